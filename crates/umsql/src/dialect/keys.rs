//! The columns of a primary key in CREATE TABLE: they are NOT NULL, as in PostgreSQL. SQLite lets a
//! primary key be NULL unless its column says otherwise.
//!
//! ```text
//!   create table t (a int primary key, b int)       ──▶  a int primary key NOT NULL
//!   create table t (a int, b int, primary key (b))  ──▶  b int NOT NULL
//! ```
//!
//! A `serial` column, or one GENERATED .. AS IDENTITY, is the primary key alone, and has
//! SQLite's AUTOINCREMENT, so that the number of a deleted row is not given again.
//!
//! A table that was created earlier keeps its columns as they are.

use super::defaults;
use super::edits::Edits;
use super::reader::Reader;
use super::sequence::{ALWAYS, IDENTITIES, options};
use super::tokens::{Token, closing, items};
use crate::error::{Result, SqlError};

/// The declaration of a numbered bigint, after the name of the column. SQLite numbers rows only in
/// a column whose type is INTEGER. It tells the collation of a column, which means nothing for
/// numbers: this one says that the column is a bigint.
pub(crate) const BIG_NUMBER: &str = "INTEGER COLLATE RTRIM";
/// That collation.
pub(crate) const BIG_COLLATION: &std::ffi::CStr = c"RTRIM";

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
    let (mut identities, mut defaults) = (Edits::default(), Edits::default());
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
        let identity = identity(item);
        match &identity {
            Some(range) => counts_up(&item[range.clone()])?,
            None => defaults::of_column(item, &mut defaults)?,
        }
        if let (Some(range), Some(declared)) = (&identity, item.get(1)) {
            let is_big = ["bigint", "int8"].iter().any(|word| declared.is(word));
            identities.instead(declared, if is_big { BIG_NUMBER } else { "INTEGER" });
            let is_always = item[range.start + 1].is("always");
            let mark = if is_always { ALWAYS } else { "" };
            identities.instead(&item[range.start], mark);
            item[range.start + 1..range.end].iter().for_each(|token| identities.instead(token, ""));
        }
        if let Some(declared) = item.get(1).filter(|declared| declared.is("bigserial")) {
            identities.instead(declared, BIG_NUMBER);
        }
        if identity.is_some() || item.get(1).is_some_and(is_serial) {
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
    Ok(defaults.and(edits).and(identities))
}

/// Returns what is written into an ALTER TABLE that adds a column.
///
/// # Errors
/// Those of [`defaults::of_column`].
pub(super) fn of_added_column(tokens: &[Token<'_>]) -> Result<Edits> {
    let mut edits = Edits::default();
    if let Some(add) = tokens.iter().position(|token| token.is("add")) {
        defaults::of_column(&tokens[add + 1..], &mut edits)?;
    }
    Ok(edits)
}

/// Returns an error if the options of an identity column are not those of its numbers.
///
/// # Errors
/// 0A000, and 42601.
fn counts_up(identity: &[Token<'_>]) -> Result<()> {
    let mut r = Reader::new(identity);
    let _ = IDENTITIES.iter().any(|words| r.take(words));
    match options(&mut r)?.start {
        1 => Ok(()),
        _ => Err(SqlError::unsupported("a START other than 1 of a new table is not supported")
            .hint("Write setval after CREATE TABLE.")),
    }
}

/// Returns where GENERATED .. AS IDENTITY is in a definition, with its options.
fn identity(item: &[Token<'_>]) -> Option<std::ops::Range<usize>> {
    // After the name and the type.
    let start = item.iter().skip(2).position(|token| token.is("generated"))? + 2;
    let begins = |words: &&&[&str]| Reader::new(&item[start..]).take(words);
    let end = start + IDENTITIES.iter().find(begins)?.len();
    let options = item[end..].first().filter(|token| token.sign("("));
    Some(start..end + options.and_then(|_| closing(&item[end..])).map_or(0, |len| len + 1))
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
    let message = "a serial or identity column that is not the primary key is not supported";
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
                "create table t(\"id\" bigint NOT NULL PRIMARY KEY \
                 GENERATED BY DEFAULT AS IDENTITY)",
                "(\"id\" INTEGER COLLATE RTRIM NOT NULL PRIMARY KEY \
                 AUTOINCREMENT     )",
            ),
            (
                "create table t(a bigserial, b int, primary key (A))",
                "(a INTEGER COLLATE RTRIM NOT NULL, b int, \
                 primary key (A AUTOINCREMENT))",
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
