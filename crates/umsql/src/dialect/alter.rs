//! Changes of a table that SQLite's ALTER TABLE does not have: foreign keys, types and defaults.
//!
//! ```text
//!   alter table t add constraint k foreign key (a) references r (id)
//!   alter table t alter column a type varchar(20), alter column b set default 7
//!   alter table t drop constraint k
//! ```
//!
//! The definition of a table is the text of its CREATE TABLE. [`changed`] returns the new text;
//! `engine::alter` stores it.

use super::constraints::constraints;
use super::keys::{definitions, is_constraint};
use super::reader::{Reader, near};
use super::tokens::{Token, TokenKind, items, tokens};
use crate::error::{Result, SqlError};
use crate::wire::types;

/// The changes of one ALTER TABLE.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AlterTable {
    pub(crate) table: String,
    pub(crate) if_exists: bool,
    pub(crate) changes: Vec<TableChange>,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum TableChange {
    /// A foreign key or a CHECK, as it is written in CREATE TABLE.
    Add(String),
    Type {
        column: String,
        declared: String,
    },
    /// The default of a column; `None` removes it.
    Default(String, Option<String>),
    Drop {
        constraint: String,
        if_exists: bool,
    },
}

/// Reads an ALTER TABLE all of whose changes are those of this file. Returns `None` for another
/// one.
///
/// # Errors
/// 42601.
pub(crate) fn read(statement: &[Token<'_>], source: &str) -> Result<Option<AlterTable>> {
    let mut r = Reader::new(statement);
    if !r.take(&["alter", "table"]) {
        return Ok(None);
    }
    let if_exists = r.take(&["if", "exists"]);
    r.take(&["only"]);
    let table = r.table()?;
    let mut changes = Vec::new();
    if let Some(other) = unbalanced(r.rest) {
        return Err(near(other));
    }
    for item in items(r.rest) {
        match change(item, source)? {
            Some(change) => changes.push(change),
            None => return Ok(None),
        }
    }
    Ok(Some(AlterTable { table, if_exists, changes }))
}

/// Returns a parenthesis that closes none, or the last token if one is not closed.
fn unbalanced<'t, 'a>(tokens: &'t [Token<'a>]) -> Option<&'t Token<'a>> {
    let mut depth = 0usize;
    for token in tokens {
        match token.text {
            "(" => depth += 1,
            ")" if depth == 0 => return Some(token),
            ")" => depth -= 1,
            _ => (),
        }
    }
    tokens.last().filter(|_| depth > 0)
}

/// Returns the part of the query that the tokens take up.
fn text(tokens: &[Token<'_>], source: &str) -> String {
    match tokens {
        [first, .., last] => source[first.at..last.end()].to_owned(),
        [one] => one.text.to_owned(),
        [] => String::new(),
    }
}

fn change(item: &[Token<'_>], source: &str) -> Result<Option<TableChange>> {
    let mut r = Reader::new(item);
    if r.take(&["add"]) {
        let is_known = |token: &Token<'_>| token.is("foreign") || token.is("check");
        let Some(kind) = r.rest.iter().take(3).position(is_known) else { return Ok(None) };
        // SQLite needs no comma between constraints, and keys need an index besides.
        let more = ["constraint", "unique", "primary", "check", "foreign"];
        let is_more = |token: &Token<'_>| more.iter().any(|word| token.is(word));
        match r.rest[kind + 1..].iter().find(|token| is_more(token)) {
            Some(more) => return Err(near(more)),
            None => return Ok(Some(TableChange::Add(text(r.rest, source)))),
        }
    }
    if r.take(&["drop", "constraint"]) {
        let if_exists = r.take(&["if", "exists"]);
        let constraint = r.name()?;
        let _ = r.take(&["cascade"]) || r.take(&["restrict"]);
        r.end()?;
        return Ok(Some(TableChange::Drop { constraint, if_exists }));
    }
    if !r.take(&["alter"]) {
        return Ok(None);
    }
    r.take(&["column"]);
    let column = r.name()?;
    if r.take(&["drop", "default"]) {
        r.end()?;
        return Ok(Some(TableChange::Default(column, None)));
    }
    if r.take(&["set", "default"]) {
        return match r.rest.is_empty() {
            true => Err(SqlError::syntax("syntax error at end of input")),
            false => Ok(Some(TableChange::Default(column, Some(text(r.rest, source))))),
        };
    }
    if !(r.take(&["type"]) || r.take(&["set", "data", "type"])) {
        return Ok(None);
    }
    // The value is converted as on assignment, whatever USING says of the same cast.
    let end = r.rest.iter().position(|token| token.is("using")).unwrap_or(r.rest.len());
    let declared = &r.rest[..end];
    let is_part = |token: &Token<'_>| {
        let is_other = AFTER_TYPE.iter().any(|word| token.is(word));
        (token.is_name() && !is_other)
            || token.kind == TokenKind::Number
            || "(),[]".contains(token.text)
    };
    match (declared.first(), declared.iter().find(|token| !is_part(token))) {
        (None, _) => Err(SqlError::syntax("syntax error at end of input")),
        (Some(first), _) if !first.is_name() => Err(near(first)),
        (_, Some(other)) => Err(near(other)),
        _ => Ok(Some(TableChange::Type { column, declared: text(declared, source) })),
    }
}

/// Words that follow the type in the definition of a column.
const AFTER_TYPE: [&str; 11] = [
    "constraint",
    "primary",
    "not",
    "null",
    "unique",
    "check",
    "default",
    "collate",
    "references",
    "generated",
    "as",
];

/// Returns a table's definition after a change.
///
/// # Errors
/// 42703 for a column, 42704 for a constraint that the table does not have.
pub(crate) fn changed(definition: &str, change: &TableChange) -> Result<String> {
    let list = tokens(definition)?;
    let is_virtual = list.get(1).is_some_and(|word| word.is("virtual"));
    let unreadable = || SqlError::unsupported("the definition of this table cannot be changed");
    let items = definitions(&list).filter(|_| !is_virtual).ok_or_else(unreadable)?;
    let last = items.last().and_then(|item| item.last()).ok_or_else(unreadable)?.end();
    let column = |name: &str| {
        let found = items
            .iter()
            .find(|item| !is_constraint(item) && item[0].name().eq_ignore_ascii_case(name));
        found
            .copied()
            .ok_or_else(|| SqlError::new("42703", format!("column \"{name}\" does not exist")))
    };
    let replaced = |start: usize, end: usize, text: &str| {
        format!("{}{text}{}", &definition[..start], &definition[end..])
    };
    Ok(match change {
        TableChange::Add(constraint) => replaced(last, last, &format!(", {constraint}")),
        TableChange::Type { column: name, declared } => {
            let item = column(name)?;
            let end = item[1..]
                .iter()
                .position(|token| AFTER_TYPE.iter().any(|word| token.is(word)))
                .map_or(item.len(), |at| at + 1);
            replaced(item[0].end(), item[end - 1].end(), &format!(" {declared}"))
        }
        TableChange::Default(name, value) => {
            let item = column(name)?;
            let end = item[item.len() - 1].end();
            let added = value.as_ref().map_or(String::new(), |v| format!(" DEFAULT ({v})"));
            match default_of(item) {
                None => replaced(end, end, &added),
                Some((start, end)) => replaced(start, end, &added),
            }
        }
        TableChange::Drop { constraint, .. } => {
            let named = |item: &&&[Token<'_>]| {
                item[0].is("constraint")
                    && item.get(1).is_some_and(|own| own.name().eq_ignore_ascii_case(constraint))
            };
            let is_key = |item: &[Token<'_>]| {
                item.iter().take(3).any(|token| token.is("unique") || token.is("primary"))
            };
            let Some(item) = items.iter().find(named).filter(|item| !is_key(item)) else {
                return Err(missing(definition, &list, constraint));
            };
            // With the comma before it.
            let start = definition[..item[0].at].rfind(',').unwrap_or(item[0].at);
            replaced(start, item[item.len() - 1].end(), "")
        }
    })
}

/// Returns the error about a constraint that cannot be dropped.
fn missing(definition: &str, list: &[Token<'_>], constraint: &str) -> SqlError {
    let table = list.iter().take_while(|token| !token.sign("(")).last().map(Token::name);
    let known = constraints(&table.unwrap_or_default(), definition);
    if known.iter().any(|one| one.name.eq_ignore_ascii_case(constraint)) {
        let message = "a constraint that CREATE TABLE has made for a column, or a key, cannot be \
            dropped";
        return SqlError::unsupported(message).hint("Create the table anew.");
    }
    SqlError::new("42704", format!("constraint \"{constraint}\" does not exist"))
}

/// Returns where `DEFAULT value` is in the definition of a column.
fn default_of(item: &[Token<'_>]) -> Option<(usize, usize)> {
    let at = item.iter().position(|token| token.is("default"))?;
    let value = item.get(at + 1)?;
    let end = if value.sign("(") {
        at + 1 + super::tokens::closing(&item[at + 1..])?
    } else if value.sign("-") || value.sign("+") {
        at + 2
    } else {
        at + 1
    };
    Some((item[at - 1].end(), item.get(end)?.end()))
}

/// Returns the type of a declaration, with what it adds to the type.
pub(crate) fn type_of(declared: &str) -> (u32, i32) {
    (types::by_name(declared), types::modifier(declared))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "CREATE TABLE t(id INTEGER primary key, \
         a varchar(3) default 'x' not null, b int, \
         constraint k foreign key (b) references r (id))";

    fn after(source: &str) -> std::result::Result<String, &'static str> {
        let alter = read(&tokens(source).unwrap(), source).map_err(|error| error.code)?;
        let alter = alter.ok_or("other")?;
        let text = alter.changes.iter().try_fold(TABLE.to_owned(), |text, change| {
            changed(&text, change).map_err(|error| error.code)
        });
        Ok(text?.replace("CREATE TABLE t(id INTEGER primary key, ", ""))
    }

    #[test]
    fn the_definition_has_the_change() {
        for (source, expected) in [
            (
                "alter table t add constraint q foreign key (b) references s (x)",
                "a varchar(3) default 'x' not null, b int, constraint k foreign key (b) references \
                 r (id), constraint q foreign key (b) references s (x))",
            ),
            (
                "alter table only t alter column a type varchar(20) using a::varchar(20)",
                "a varchar(20) default 'x' not null, b int, constraint k foreign key (b) \
                 references r (id))",
            ),
            (
                "alter table t alter a drop default, alter b set default 7",
                "a varchar(3) not null, b int DEFAULT (7), constraint k foreign key (b) references \
                 r (id))",
            ),
            (
                "alter table t drop constraint if exists K cascade",
                "a varchar(3) default 'x' not null, b int)",
            ),
        ] {
            assert_eq!(after(source).as_deref(), Ok(expected), "{source}");
        }
        assert_eq!(after("alter table t alter column z type int"), Err("42703"));
        assert_eq!(after("alter table t drop constraint z"), Err("42704"));
        assert_eq!(after("alter table t drop constraint t_pkey"), Err("0A000"));
        let keyed = "create table t(a int, constraint u unique (a))";
        let drop = TableChange::Drop { constraint: "u".into(), if_exists: false };
        assert_eq!(changed(keyed, &drop).unwrap_err().code, "0A000");
        assert_eq!(after("alter table t add column z int"), Err("other"));
        for wrong in [
            "alter table t alter a type",
            "alter table t alter a type int unique",
            "alter table t alter a type int default 7",
            "alter table t add foreign key (a) references r (id) unique (b)",
            "alter table t add check (a > 0) primary key (a)",
            "alter table t alter a set default 7) unique check (1",
            "alter table t add check (1)) as select (1",
        ] {
            assert_eq!(after(wrong), Err("42601"), "{wrong}");
        }
        let other = "create virtual table v using fts5(a)";
        let default = TableChange::Default("a".into(), None);
        assert_eq!(changed(other, &default).unwrap_err().code, "0A000");
    }
}
