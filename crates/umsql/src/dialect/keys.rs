//! The columns of a primary key in CREATE TABLE: they are NOT NULL, as in PostgreSQL. SQLite lets a
//! primary key be NULL unless its column says otherwise.
//!
//! ```text
//!   create table t (a int primary key, b int)       ──▶  a int primary key NOT NULL
//!   create table t (a int, b int, primary key (b))  ──▶  b int NOT NULL
//! ```
//!
//! A `serial` column is the primary key alone, and has SQLite's AUTOINCREMENT, so that the number
//! of a deleted row is not given again.
//!
//! A table that was created earlier keeps its columns as they are.

use super::edits::Edits;
use super::tokens::{Token, closing, items};
use crate::error::{Result, SqlError};

/// Words with which the constraint of a table begins.
const CONSTRAINTS: [&str; 6] = ["constraint", "primary", "unique", "check", "foreign", "exclude"];

/// Returns what is written into a CREATE TABLE.
///
/// # Errors
/// 0A000 for a `serial` column that is not the primary key alone.
pub(super) fn of_columns(tokens: &[Token<'_>]) -> Result<Edits> {
    let mut edits = Edits::default();
    let Some(list) = definitions(tokens) else { return Ok(edits) };
    let of_table: Vec<&Token<'_>> =
        list.iter().filter(|item| is_constraint(item)).flat_map(|item| keyed(item)).collect();
    let mut numbered: Option<&Token<'_>> = None;
    for item in &list {
        let ([name, ..], Some(last)) = (item, item.last()) else { continue };
        if is_constraint(item) {
            if let Some(column) = numbered.filter(|column| is_within(column, item)) {
                edits.after(column, " AUTOINCREMENT");
            }
            continue;
        }
        let same = |key: &&&Token<'_>| name.name().eq_ignore_ascii_case(&key.name());
        let named = of_table.iter().find(same).copied();
        let in_key = key(item).is_some() || named.is_some();
        if item.get(1).is_some_and(is_serial) {
            match (key(item), &of_table[..]) {
                (Some(at), _) => edits.after(&item[at + 1], " AUTOINCREMENT"),
                (None, [_]) if named.is_some() => numbered = named,
                _ => return Err(not_alone(&item[1])),
            }
        }
        let is_said = item.windows(2).any(|two| two[0].is("not") && two[1].is("null"));
        if in_key && !is_said {
            edits.after(last, " NOT NULL");
        }
    }
    Ok(edits)
}

/// Returns whether the definition is that of a constraint, and not of a column.
pub(super) fn is_constraint(item: &[Token<'_>]) -> bool {
    item.first().is_some_and(|first| CONSTRAINTS.iter().any(|word| first.is(word)))
}

fn is_serial(token: &Token<'_>) -> bool {
    ["serial", "bigserial", "smallserial"].iter().any(|word| token.is(word))
}

fn is_within(token: &Token<'_>, item: &[Token<'_>]) -> bool {
    item.iter().any(|other| other.at == token.at)
}

fn not_alone(serial: &Token<'_>) -> SqlError {
    let message = format!("{} is supported for the primary key only", serial.text);
    let error = SqlError::unsupported(message).hint("Write \"id serial primary key\".");
    SqlError { offset: Some(serial.at), ..error }
}

/// Returns the definitions of columns and constraints.
pub(super) fn definitions<'t, 'a>(tokens: &'t [Token<'a>]) -> Option<Vec<&'t [Token<'a>]>> {
    let table = tokens.iter().take(3).position(|token| token.is("table"))?;
    let open =
        tokens.iter().position(|token| token.sign("(")).filter(|_| tokens[0].is("create"))?;
    if tokens[table..open].iter().any(|token| token.is("as")) {
        return None;
    }
    let close = open + closing(&tokens[open..])?;
    Some(items(&tokens[open + 1..close]))
}

/// Returns where PRIMARY KEY is in a definition.
fn key(item: &[Token<'_>]) -> Option<usize> {
    item.windows(2).position(|two| two[0].is("primary") && two[1].is("key"))
}

/// Returns the columns of a constraint PRIMARY KEY.
fn keyed<'t, 'a>(constraint: &'t [Token<'a>]) -> Vec<&'t Token<'a>> {
    let listed = || {
        let list = constraint.get(key(constraint)? + 2..)?;
        Some(items(list.get(1..closing(list)?)?))
    };
    let listed = listed().unwrap_or_default();
    listed.iter().filter_map(|item| item.first()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::rewrite::rewrite;
    use super::super::tokens::tokens;
    use super::*;

    #[test]
    fn the_columns_of_a_primary_key_are_not_null() {
        let cases = [
            ("create table t(a int primary key, b int)", "(a int primary key NOT NULL, b int)"),
            (
                "create table if not exists t(a serial primary key)",
                "(a INTEGER primary key AUTOINCREMENT NOT NULL)",
            ),
            (
                "create table t(a bigserial, b int, primary key (A))",
                "(a INTEGER NOT NULL, b int, primary key (A AUTOINCREMENT))",
            ),
            (
                "create table t(a int, \"B\" int not null, c int, constraint k primary key (b, C))",
                "(a int, \"B\" int not null, c int NOT NULL, constraint k primary key (b, C))",
            ),
            ("create table t(a int unique)", "(a int unique)"),
            ("create table t as select (a) primary key", " as select (a) primary key"),
            ("create index primary on t(a primary key)", "(a primary key)"),
        ];
        for (from, to) in cases {
            let list = tokens(from).unwrap();
            let text = rewrite(from, &list, &of_columns(&list).unwrap());
            assert!(text.ends_with(to), "{text}");
        }
        for source in [
            "create table t(a serial)",
            "create table t(a serial, b int primary key)",
            "create table t(a serial, b int, primary key (a, b))",
        ] {
            let refused = of_columns(&tokens(source).unwrap()).unwrap_err();
            assert_eq!(refused.code, "0A000", "{source}");
        }
    }
}
