//! Rewrites a statement from PostgreSQL's spelling to SQLite's.
//!
//! This file has the statements that are replaced as a whole. [`super::rewrite`] changes the others
//! token by token.
//!
//! This file does not parse. A form that is not listed here is passed to SQLite as it is, and the
//! client gets SQLite's syntax error.

use std::ops::Range;

use super::characteristics::{self, LockPatience};
use super::edits::Edits;
use super::keys;
use super::reader::Reader;
use super::rewrite::rewrite;
use super::titles::{Title, titles};
use super::tokens::{Token, TokenKind};
use super::unsupported;
use crate::error::{Result, SqlError};

/// One or more statements for SQLite that together are one statement of the client. They are
/// executed in order.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sql {
    /// The translated texts.
    pub(crate) texts: Vec<String>,
    /// The command tag, without the row count.
    pub(crate) tag: &'static str,
    /// The part of the client's query with which the first text begins.
    pub(crate) verbatim: Range<usize>,
    /// The names of the columns, as far as they are not those of tables' columns.
    pub(crate) titles: Box<[Title]>,
    /// The types of the columns, as far as they are known when the statement is prepared.
    pub(crate) types: ResultTypes,
    /// Whether the statement changes the schema.
    pub(crate) alters: bool,
    /// Whether the statement changes its connection, so that other sessions cannot use the
    /// connection afterwards.
    pub(crate) pins: bool,
    /// How the statement must be executed.
    pub(crate) manner: Manner,
    /// Whether the statement mentions the catalogue views.
    pub(crate) catalog: bool,
    /// What happens if others have the lock that its clause FOR UPDATE asks for, if it has one.
    pub(crate) locks: Option<LockPatience>,
    /// What an INSERT takes from a sequence.
    pub(crate) taken: Option<Box<TakenNumbers>>,
}

impl Sql {
    /// Returns the tag of a statement that is complete, with the number of rows if it has one.
    pub(crate) fn complete(&self, rows: usize) -> String {
        match self.tag {
            "INSERT 0" | "UPDATE" | "DELETE" | "SELECT" => format!("{} {rows}", self.tag),
            tag => tag.to_owned(),
        }
    }
}

/// What an INSERT takes from the sequence of its table.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TakenNumbers {
    /// The name of the sequence.
    pub(crate) sequence: Box<str>,
    /// Whether the last row certainly gets a number from it.
    pub(crate) is_sure: bool,
}

/// How a statement must be executed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Manner {
    Plain,
    /// Outside a transaction.
    Alone,
    /// Its functions use sequences; with a lock, if they may change them.
    Numbers(Option<LockPatience>),
}

/// The types of a statement's columns. The list is empty if they are not known.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct ResultTypes {
    pub(crate) columns: Box<[Option<ResultType>]>,
    /// Whether the columns are those of a set operation, and may differ from the first query's.
    pub(crate) of_set: bool,
}

/// The type of one column.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ResultType {
    pub(crate) oid: u32,
    /// The digits behind the point of a numeric, if all values have the same number of them.
    pub(crate) scale: Option<u16>,
}

impl Sql {
    /// Returns the place in the client's query of this place in the first text.
    pub(crate) fn place(&self, offset: usize) -> Option<usize> {
        let place = self.verbatim.start + offset;
        self.verbatim.contains(&place).then_some(place)
    }
}

/// Translates one statement of the query `source`, and writes the edits into it.
pub(crate) fn sql(tokens: &[Token<'_>], source: &str, edits: &Edits) -> Result<Sql> {
    if let Some(sql) = whole_statement(Reader::new(tokens))? {
        return Ok(sql);
    }
    unsupported::refuse(tokens)?;
    let (tokens, locks) = trim(tokens)?;
    if locks.is_some() {
        unsupported::refuse_lock(tokens)?;
    }
    let text = match &tokens[0] {
        first if first.is("create") => rewrite(source, tokens, &keys::of_columns(tokens)?),
        first if first.is("alter") => rewrite(source, tokens, &keys::of_added_column(tokens)?),
        _ => rewrite(source, tokens, edits),
    };
    let begin = tokens[0].at;
    // A name in double quotes gets others.
    let is_same = |(a, b): &(u8, u8)| a == b || (*a == b'"' && *b == b'`');
    let same = source[begin..].bytes().zip(text.bytes()).take_while(is_same).count();
    let first = tokens[0].text.to_ascii_lowercase();
    let second = tokens.get(1).map(|token| token.text.to_ascii_lowercase()).unwrap_or_default();
    let temporary = matches!(second.as_str(), "temp" | "temporary");
    let tag = tag(&first, &second, tokens);
    Ok(Sql {
        tag,
        verbatim: begin..begin + same,
        titles: titles(tokens),
        types: ResultTypes::default(),
        alters: matches!(
            first.as_str(),
            "create" | "drop" | "alter" | "reindex" | "vacuum" | "pragma"
        ),
        pins: matches!(first.as_str(), "pragma" | "attach" | "detach")
            || (first == "create" && temporary),
        manner: match (first.as_str(), tag) {
            ("vacuum", _) => Manner::Alone,
            // The statement itself may call functions, and does not change the schema.
            ("create", _) => Manner::Plain,
            (_, "SELECT" | "INSERT 0" | "UPDATE" | "DELETE") => numbers(tokens, locks),
            _ => Manner::Plain,
        },
        catalog: tokens.iter().any(|t| {
            let start = t.text.get(..3).unwrap_or_default();
            t.kind == TokenKind::Word
                && (start.eq_ignore_ascii_case("pg_")
                    || t.is("information_schema")
                    || t.is("regclass"))
        }),
        texts: vec![text],
        locks,
        taken: None,
    })
}

/// Looks for calls of functions that use sequences.
fn numbers(tokens: &[Token<'_>], locks: Option<LockPatience>) -> Manner {
    let mut manner = Manner::Plain;
    for two in tokens.windows(2).filter(|two| two[1].sign("(")) {
        let name = if two[0].is_name() { two[0].name() } else { continue };
        let is = |names: &[&str]| names.iter().any(|known| name.eq_ignore_ascii_case(known));
        if is(&["nextval", "setval"]) {
            return Manner::Numbers(Some(locks.unwrap_or(LockPatience::Waits)));
        }
        if is(&["currval", "lastval", "pg_get_serial_sequence"]) {
            manner = Manner::Numbers(locks);
        }
    }
    manner
}

fn tag(first: &str, second: &str, tokens: &[Token<'_>]) -> &'static str {
    let object = if matches!(second, "temp" | "temporary" | "unique" | "unlogged" | "virtual") {
        tokens.get(2).map(|token| token.text.to_ascii_lowercase()).unwrap_or_default()
    } else {
        second.to_owned()
    };
    match (first, object.as_str()) {
        ("select" | "values" | "table" | "(", _) => "SELECT",
        ("insert" | "replace", _) => "INSERT 0",
        ("update", _) => "UPDATE",
        ("delete", _) => "DELETE",
        ("with", _) => with_tag(tokens),
        ("create", "table") if tokens.iter().any(|token| token.is("select")) => "SELECT",
        ("create", "table") => "CREATE TABLE",
        ("create", "index") => "CREATE INDEX",
        ("create", "view") => "CREATE VIEW",
        ("create", "trigger") => "CREATE TRIGGER",
        ("drop", "table") => "DROP TABLE",
        ("drop", "index") => "DROP INDEX",
        ("drop", "view") => "DROP VIEW",
        ("drop", "trigger") => "DROP TRIGGER",
        ("alter", _) => "ALTER TABLE",
        ("analyze", _) => "ANALYZE",
        ("vacuum", _) => "VACUUM",
        ("reindex", _) => "REINDEX",
        ("pragma", _) => "PRAGMA",
        ("attach", _) => "ATTACH",
        ("detach", _) => "DETACH",
        _ => "OK",
    }
}

/// Returns the tag of the statement that follows the common table expressions.
fn with_tag(tokens: &[Token<'_>]) -> &'static str {
    let mut depth = 0usize;
    for token in tokens {
        match token.text {
            "(" => depth += 1,
            ")" => depth = depth.saturating_sub(1),
            _ if depth > 0 => (),
            _ if token.is("select") => return "SELECT",
            _ if token.is("insert") || token.is("replace") => return "INSERT 0",
            _ if token.is("update") => return "UPDATE",
            _ if token.is("delete") => return "DELETE",
            _ => (),
        }
    }
    "SELECT"
}

/// Translates the statements that are replaced as a whole.
fn whole_statement(mut r: Reader<'_, '_>) -> Result<Option<Sql>> {
    let ddl = |texts: Vec<String>, tag| Sql {
        texts,
        tag,
        verbatim: 0..0,
        titles: Box::default(),
        types: ResultTypes::default(),
        alters: true,
        pins: false,
        manner: Manner::Plain,
        catalog: false,
        locks: None,
        taken: None,
    };
    if r.take(&["truncate"]) {
        r.take(&["table"]);
        let texts = tables(&mut r)?.iter().map(|t| format!("DELETE FROM {}", quote(t))).collect();
        return Ok(Some(Sql { alters: false, ..ddl(texts, "TRUNCATE TABLE") }));
    }
    if r.take(&["vacuum"]) {
        while ["full", "freeze", "verbose"].iter().any(|word| r.take(&[word])) {}
        if r.take(&["into"]) {
            return Err(SqlError::unsupported("VACUUM INTO is not supported")
                .hint("Write BACKUP TO 'file'."));
        }
        if r.take(&["analyze"]) {
            let target = if r.rest.is_empty() { String::new() } else { quote(&r.table()?) };
            return Ok(Some(ddl(vec![format!("ANALYZE {target}")], "VACUUM")));
        }
        return Ok(Some(Sql { manner: Manner::Alone, ..ddl(vec!["VACUUM".into()], "VACUUM") }));
    }
    for (words, tag) in [
        (["drop", "table"], "DROP TABLE"),
        (["drop", "view"], "DROP VIEW"),
        (["drop", "index"], "DROP INDEX"),
    ] {
        if r.take(&words) {
            let exists = if r.take(&["if", "exists"]) { "IF EXISTS " } else { "" };
            let drop = |name: &String| format!("{tag} {exists}{}", quote(name));
            return Ok(Some(ddl(tables(&mut r)?.iter().map(drop).collect(), tag)));
        }
    }
    Ok(None)
}

/// Reads `a, b [CASCADE | RESTRICT | RESTART IDENTITY]`.
fn tables(r: &mut Reader<'_, '_>) -> Result<Vec<String>> {
    r.take(&["only"]);
    let mut names = vec![r.table()?];
    while r.take(&[","]) {
        names.push(r.table()?);
    }
    let _ = r.take(&["restart", "identity"]) || r.take(&["continue", "identity"]);
    let _ = r.take(&["cascade"]) || r.take(&["restrict"]);
    r.end()?;
    Ok(names)
}

/// Returns a name in quotes.
pub(crate) fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A statement's tokens without the clause that locks, and what the clause says.
type Trimmed<'t, 'a> = (&'t [Token<'a>], Option<LockPatience>);

/// Removes clauses at the end that mean nothing to SQLite: the storage options of a new table, and
/// the row locks of a query, which the session takes itself.
fn trim<'t, 'a>(tokens: &'t [Token<'a>]) -> Result<Trimmed<'t, 'a>> {
    let mut depth = 0usize;
    let creates = tokens[0].is("create");
    for (index, token) in tokens.iter().enumerate() {
        let next = tokens.get(index + 1);
        match token.text {
            "(" => depth += 1,
            ")" => depth = depth.saturating_sub(1),
            _ if depth > 0 || index == 0 => (),
            _ if creates && token.is("with") && next.is_some_and(|next| next.sign("(")) => {
                return Ok((&tokens[..index], None));
            }
            _ if creates && token.is("tablespace") => return Ok((&tokens[..index], None)),
            _ if characteristics::begins_row_lock(token, next) => {
                let patience = characteristics::row_lock(Reader::new(&tokens[index..]))?;
                return Ok((&tokens[..index], Some(patience)));
            }
            _ => (),
        }
    }
    Ok((tokens, None))
}

#[cfg(test)]
mod tests {
    use super::super::tokens::tokens;
    use super::*;

    fn translated(source: &str) -> Result<Sql> {
        sql(&tokens(source).unwrap(), source, &Edits::default())
    }

    fn all(source: &str) -> Vec<String> {
        translated(source).unwrap().texts
    }

    fn one(source: &str) -> String {
        all(source).remove(0)
    }

    #[test]
    fn ddl_that_pgbench_sends_is_understood_by_sqlite() {
        let create =
            "create table pgbench_tellers(tid int not null,filler char(84)) with (fillfactor=100)";
        assert_eq!(one(create), "create table pgbench_tellers(tid int not null,filler char(84))");
        let drop = all("drop table if exists a, public.b cascade");
        assert_eq!(drop, ["DROP TABLE IF EXISTS \"a\"", "DROP TABLE IF EXISTS \"b\""]);
        assert_eq!(all("truncate table a, b"), ["DELETE FROM \"a\"", "DELETE FROM \"b\""]);
        assert_eq!(one("vacuum analyze t"), "ANALYZE \"t\"");
        assert_eq!(
            one("create unlogged table t(a serial primary key)"),
            "create table t(a INTEGER primary key AUTOINCREMENT NOT NULL)"
        );
    }

    #[test]
    fn what_cannot_be_done_is_refused_and_not_half_done() {
        let source = "vacuum into 'copy'";
        assert_eq!(translated(source).unwrap_err().code, "0A000");
    }

    #[test]
    fn it_is_known_how_much_of_a_statement_is_unchanged() {
        let source = "select 1;  select nope";
        let list = tokens(source).unwrap();
        let second = super::super::tokens::statements(&list)[1].clone();
        let edits = Edits::default();
        assert_eq!(sql(&list[second], source, &edits).unwrap().verbatim, 11..22);
        let changed = "select 1::int";
        assert_eq!(translated(changed).unwrap().verbatim, 0..7);
    }
}
