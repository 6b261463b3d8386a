//! CREATE TABLE .. AS, as two statements for SQLite, whose own gives the columns no types.
//!
//! ```text
//!   create table t as select a, b + 1 as c from s
//!     ──▶ CREATE TABLE "main"."t"("a" character varying(5), "c" bigint)
//!         INSERT INTO "main"."t" select a, b + 1 as c from s
//! ```
//!
//! Both are one transaction. SQLite's statement stays for a query that mentions the catalogue's
//! views before the connection has them.

use rusqlite::Connection;

use super::results::{KnownColumn, columns};
use super::targets::Table;
use crate::dialect::reader::{Reader, near};
use crate::dialect::tokens::{Token, closing, is_table_of_query, items};
use crate::dialect::translate::quote;
use crate::dialect::{ResultTypes, Sql, Statement};
use crate::error::{Result, SqlError};
use crate::wire::declaration::declaration;
use crate::wire::types;

/// What is before the query.
struct Head {
    schema: String,
    table: String,
    /// Whether an existing table is no error.
    may_exist: bool,
    /// The names of the columns, as far as they are not those of the query.
    names: Vec<String>,
    /// Where the query begins and ends.
    query: std::ops::Range<usize>,
    has_rows: bool,
}

/// Recognises CREATE TABLE .. AS, whose query `typed` recognises. Returns `None` for another
/// statement.
///
/// # Errors
/// What is wrong with the query or the names; 0A000 for what this server does not have.
pub(super) fn table_of_query(
    tokens: &mut [Token<'_>],
    db: &Connection,
    typed: impl FnOnce(&mut [Token<'_>]) -> Result<(Statement, Box<[u32]>)>,
) -> Result<Option<(Statement, Box<[u32]>)>> {
    if !is_table_of_query(tokens) {
        return Ok(None);
    }
    let head = head(tokens)?;
    let (statement, parameters) = typed(&mut tokens[head.query.clone()])?;
    let Statement::Sql(query) = statement else { return Ok(None) };
    let [translated] = &query.texts[..] else { return Ok(None) };
    let prepared = match db.prepare(translated) {
        Ok(prepared) => prepared,
        Err(_) if query.catalog => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let found = columns(&prepared, &query);
    drop(prepared);
    if head.names.len() > found.len() {
        return Err(SqlError::syntax("too many column names were specified"));
    }
    let column = |(at, column): (usize, &KnownColumn)| {
        let name = head.names.get(at).unwrap_or(&column.name);
        let oid = column.oid.filter(|oid| *oid != types::UNKNOWN).unwrap_or(types::TEXT);
        format!("{} {}", quote(name), declaration(oid, column.modifier))
    };
    let list: Vec<_> = found.iter().enumerate().map(column).collect();
    let table = format!("{}.{}", quote(&head.schema), quote(&head.table));
    let is_there = db.table_exists(Some(head.schema.as_str()), head.table.as_str())?;
    let creates = format!("CREATE TABLE {table}({})", list.join(", "));
    let (texts, tag) = match (head.may_exist && is_there, head.has_rows) {
        (true, _) => (vec![format!("CREATE TABLE IF NOT EXISTS {table}(x)")], "CREATE TABLE AS"),
        (_, false) => (vec![creates], "CREATE TABLE AS"),
        (_, true) => (vec![creates, format!("INSERT INTO {table} {translated}")], "SELECT"),
    };
    let sql = Sql {
        texts,
        tag,
        verbatim: 0..0,
        titles: Box::default(),
        types: ResultTypes::default(),
        alters: true,
        pins: head.schema.eq_ignore_ascii_case("temp"),
        ..query
    };
    Ok(Some((Statement::Sql(sql), parameters)))
}

fn head(tokens: &[Token<'_>]) -> Result<Head> {
    let mut r = Reader::new(tokens);
    r.take(&["create"]);
    let is_temporary = r.take(&["temp"]) || r.take(&["temporary"]);
    r.take(&["unlogged"]);
    r.take(&["table"]);
    let may_exist = r.take(&["if", "not", "exists"]);
    let unreadable = || r.rest.first().map_or_else(|| SqlError::syntax("syntax error"), near);
    let (table, len) = Table::read(r.rest).ok_or_else(unreadable)?;
    r.rest = &r.rest[len..];
    let schema = match table.schema {
        _ if is_temporary => "temp".to_owned(),
        Some(schema) if schema.eq_ignore_ascii_case("pg_temp") => "temp".to_owned(),
        // That of an attached database.
        Some(schema) => schema,
        None => "main".to_owned(),
    };
    let mut names = Vec::new();
    if let (Some(open), Some(close)) = (r.rest.first().filter(|t| t.sign("(")), closing(r.rest)) {
        for item in items(&r.rest[1..close]) {
            match item {
                [name] if name.is_name() => names.push(name.folded()),
                _ => return Err(near(item.get(1).unwrap_or(open))),
            }
        }
        r.rest = &r.rest[close + 1..];
    }
    if let Some(option) = r.rest.first().filter(|next| !next.is("as")) {
        let what = option.text.to_ascii_uppercase();
        let message = format!("CREATE TABLE .. {what} .. AS is not supported");
        return Err(SqlError { offset: Some(option.at), ..SqlError::unsupported(message) });
    }
    let start = tokens.len() - r.rest.len() + 1;
    let ends = |words: &[&str]| {
        let last = tokens.len().checked_sub(words.len()).filter(|at| *at > start);
        last.filter(|at| Reader::new(&tokens[*at..]).take(words))
    };
    let without = ends(&["with", "no", "data"]);
    let end = without.or_else(|| ends(&["with", "data"])).unwrap_or(tokens.len());
    Ok(Head {
        schema,
        table: table.name,
        may_exist,
        names,
        query: start..end,
        has_rows: without.is_none(),
    })
}
