//! Changes of a table that SQLite's ALTER TABLE does not have: keys, types, defaults and numbers.
//!
//! ```text
//!   alter table t add constraint k foreign key (a) references r (id)
//!   alter table t add primary key (a, b), add unique (c)
//!   alter table t alter column a type varchar(20), alter column b set default 7
//!   alter table t drop constraint k
//! ```
//!
//! The definition of a table is the text of its CREATE TABLE. [`changed`] returns the new text;
//! `engine::alter` stores it.

use super::constraints::constraints;
pub(crate) use super::identity::other_key;
use super::identity::{self, Numbered};
use super::keys::{self, definitions, is_constraint};
use super::reader::{Reader, near};
use super::rewrite::rewrite;
use super::sequence::{self, SequenceOptions};
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

/// `ALTER TABLE t OWNER TO role`, also of a view or a sequence.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Owner {
    pub(crate) relation: String,
    pub(crate) if_exists: bool,
    pub(crate) role: String,
    pub(crate) tag: &'static str,
}

impl Owner {
    /// Reads it. Returns `None` for another statement.
    ///
    /// # Errors
    /// 42601.
    pub(crate) fn read(mut r: Reader<'_, '_>) -> Result<Option<Owner>> {
        const KINDS: [([&str; 2], &str); 4] = [
            (["alter", "table"], "ALTER TABLE"),
            (["alter", "view"], "ALTER VIEW"),
            (["alter", "sequence"], "ALTER SEQUENCE"),
            (["alter", "index"], "ALTER INDEX"),
        ];
        let Some((_, tag)) = KINDS.into_iter().find(|(words, _)| r.take(words)) else {
            return Ok(None);
        };
        if !r.rest.windows(2).any(|two| two[0].is("owner") && two[1].is("to")) {
            return Ok(None);
        }
        let if_exists = r.take(&["if", "exists"]);
        r.take(&["only"]);
        let relation = r.table()?;
        if !r.take(&["owner", "to"]) {
            return Ok(None);
        }
        let role = r.folded_name()?;
        r.end()?;
        Ok(Some(Owner { relation, if_exists, role, tag }))
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum TableChange {
    /// A foreign key or a CHECK, as it is written in CREATE TABLE.
    Add(String),
    /// A PRIMARY KEY or a UNIQUE.
    Key {
        name: Option<String>,
        is_primary: bool,
        columns: Vec<String>,
    },
    /// GENERATED .. AS IDENTITY.
    Identity {
        column: String,
        /// Whether statements may not give it a number.
        is_always: bool,
        options: SequenceOptions,
    },
    /// A default that is the next number of a sequence.
    Numbers {
        column: String,
        sequence: String,
    },
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
        if let Some(key) = key(Reader::new(r.rest))? {
            return Ok(Some(key));
        }
        let is_known = |token: &Token<'_>| token.is("foreign") || token.is("check");
        let Some(kind) = r.rest.iter().take(3).position(is_known) else { return Ok(None) };
        // SQLite needs no comma between constraints, and keys need an index besides.
        let more = ["constraint", "unique", "primary", "check", "foreign"];
        let is_more = |token: &Token<'_>| more.iter().any(|word| token.is(word));
        match r.rest[kind + 1..].iter().find(|token| is_more(token)) {
            Some(more) => return Err(near(more)),
            None => {
                let constraint = in_schema("", &text(r.rest, source))?;
                return Ok(Some(TableChange::Add(constraint)));
            }
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
        return default(column, r.rest, source).map(Some);
    }
    if r.take(&["add", "generated"]) {
        return identity(column, r).map(Some);
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

/// Reads `[CONSTRAINT name] PRIMARY KEY (a, b)`, or UNIQUE. Returns `None` for what is no key.
fn key(mut r: Reader<'_, '_>) -> Result<Option<TableChange>> {
    let name = if r.take(&["constraint"]) { Some(r.name()?) } else { None };
    if r.take(&["exclude"]) {
        return Err(SqlError::unsupported("an exclusion constraint is not supported"));
    }
    let is_primary = r.take(&["primary", "key"]);
    if !is_primary && !r.take(&["unique"]) {
        return Ok(None);
    }
    let open = r.next()?;
    if !open.sign("(") {
        let forms = ["using", "nulls"];
        return Err(match forms.iter().any(|word| open.is(word)) {
            true => SqlError::unsupported("this form of a key is not supported")
                .hint("Write the key with its columns in parentheses."),
            false => near(open),
        });
    }
    let mut columns = vec![r.name()?];
    while r.take(&[","]) {
        columns.push(r.name()?);
    }
    let close = r.next()?;
    if !close.sign(")") {
        return Err(near(close));
    }
    r.take(&["not", "deferrable"]);
    r.take(&["initially", "immediate"]);
    if r.rest.first().is_some_and(|next| next.is("deferrable") || next.is("include")) {
        return Err(SqlError::unsupported("a key that is DEFERRABLE, or has INCLUDE"));
    }
    r.end()?;
    Ok(Some(TableChange::Key { name, is_primary, columns }))
}

/// Reads the value that a column has by default.
fn default(column: String, value: &[Token<'_>], source: &str) -> Result<TableChange> {
    const NEXT: [&str; 6] = ["constraint", "primary", "unique", "check", "references", "generated"];
    let Some(first) = value.first() else {
        return Err(SqlError::syntax("syntax error at end of input"));
    };
    let is_next = |token: &&Token<'_>| NEXT.iter().any(|word| token.is(word)) || token.is("not");
    if let Some(next) = value.iter().find(is_next).filter(|next| next.at > first.at) {
        return Err(near(next));
    }
    if let Some(name) = sequence::next_of(value) {
        // PostgreSQL's pg_dump writes a `serial` column like this.
        return Ok(TableChange::Numbers { column, sequence: name });
    }
    let value = in_schema("c DEFAULT ", &text(value, source))?;
    Ok(TableChange::Default(column, Some(value)))
}

/// Reads what follows ADD GENERATED.
fn identity(column: String, mut r: Reader<'_, '_>) -> Result<TableChange> {
    let is_always = r.take(&["always", "as", "identity"]);
    if !is_always && !r.take(&["by", "default", "as", "identity"]) {
        return Err(r.next().map_or_else(|error| error, near));
    }
    let options = sequence::options(&mut r)?;
    r.end()?;
    Ok(TableChange::Identity { column, is_always, options })
}

/// Returns a part of a table's definition in SQLite's spelling. `before` is what it must follow.
fn in_schema(before: &str, part: &str) -> Result<String> {
    let begin = format!("CREATE TABLE t({before}");
    let source = format!("{begin}{part})");
    let list = tokens(&source)?;
    let text = rewrite(&source, &list, &keys::of_columns(&list)?);
    Ok(text[begin.len()..text.len() - 1].to_owned())
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
        found.copied().ok_or_else(|| no_column(name))
    };
    let replaced = |start: usize, end: usize, text: &str| {
        format!("{}{text}{}", &definition[..start], &definition[end..])
    };
    Ok(match change {
        TableChange::Add(constraint) => replaced(last, last, &format!(", {constraint}")),
        TableChange::Type { column: name, declared } => {
            let item = column(name)?;
            let end = type_end(item);
            replaced(item[0].end(), item[end - 1].end(), &format!(" {declared}"))
        }
        TableChange::Default(name, value) => {
            let item = column(name)?;
            let end = item[item.len() - 1].end();
            let added = value.as_ref().map_or(String::new(), |v| format!(" DEFAULT {v}"));
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
        // `crate::alter` carries these out.
        TableChange::Key { .. } | TableChange::Identity { .. } | TableChange::Numbers { .. } => {
            definition.to_owned()
        }
    })
}

/// Returns the end of the type in the definition of a column.
fn type_end(item: &[Token<'_>]) -> usize {
    let after = |token: &Token<'_>| AFTER_TYPE.iter().any(|word| token.is(word));
    item[1..].iter().position(after).map_or(item.len(), |at| at + 1)
}

/// Returns a table's definition in which the column is numbered.
///
/// # Errors
/// Those of [`identity::numbered`], and 42703.
pub(crate) fn numbered(definition: &str, column: &str, is_always: bool) -> Result<Numbered> {
    let list = tokens(definition)?;
    let items = definitions(&list).unwrap_or_default();
    let is_named =
        |item: &&[Token<'_>]| !is_constraint(item) && item[0].name().eq_ignore_ascii_case(column);
    let item = items.iter().copied().find(is_named).ok_or_else(|| no_column(column))?;
    identity::numbered(definition, &items, (item, type_end(item)), is_always)
}

/// Returns a table's definition in which the key of its numbered column has a name. Returns `None`
/// if it has no key that waits for one.
///
/// # Errors
/// 0A000 if the key is not that of the numbered column.
pub(crate) fn named_key(
    definition: &str,
    name: &str,
    columns: &[String],
) -> Result<Option<String>> {
    let list = tokens(definition)?;
    identity::named(definition, &definitions(&list).unwrap_or_default(), name, columns)
}

fn no_column(name: &str) -> SqlError {
    SqlError::new("42703", format!("column \"{name}\" does not exist"))
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
                "a varchar(3) not null, b int DEFAULT 7, constraint k foreign key (b) references \
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
