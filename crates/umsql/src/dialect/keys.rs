//! The columns of a primary key in CREATE TABLE: they are NOT NULL, as in PostgreSQL. SQLite lets a
//! primary key be NULL unless its column says otherwise.
//!
//! ```text
//!   create table t (a int primary key, b int)       ──▶  a int primary key NOT NULL
//!   create table t (a int, b int, primary key (b))  ──▶  b int NOT NULL
//! ```
//!
//! A table that was created earlier keeps its columns as they are.

use super::edits::Edits;
use super::tokens::{Token, closing, items};

/// Words with which the constraint of a table begins.
const CONSTRAINTS: [&str; 6] = ["constraint", "primary", "unique", "check", "foreign", "exclude"];

/// Returns what is written into a CREATE TABLE.
pub(super) fn not_null(tokens: &[Token<'_>]) -> Edits {
    let mut edits = Edits::default();
    let Some(list) = definitions(tokens) else { return edits };
    let is_constraint = |item: &[Token<'_>]| {
        item.first().is_some_and(|first| CONSTRAINTS.iter().any(|word| first.is(word)))
    };
    let constraints = list.iter().filter(|item| is_constraint(item));
    let of_table: Vec<String> = constraints.flat_map(|item| keyed(item)).collect();
    for item in list.iter().filter(|item| !is_constraint(item)) {
        let ([name, ..], Some(last)) = (item, item.last()) else { continue };
        let in_key =
            key(item).is_some() || of_table.iter().any(|key| name.name().eq_ignore_ascii_case(key));
        let is_said = item.windows(2).any(|two| two[0].is("not") && two[1].is("null"));
        if in_key && !is_said {
            edits.after(last, " NOT NULL");
        }
    }
    edits
}

/// Returns the definitions of columns and constraints.
fn definitions<'t, 'a>(tokens: &'t [Token<'a>]) -> Option<Vec<&'t [Token<'a>]>> {
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
fn keyed(constraint: &[Token<'_>]) -> Vec<String> {
    let listed = || {
        let list = constraint.get(key(constraint)? + 2..)?;
        Some(items(list.get(1..closing(list)?)?))
    };
    let listed = listed().unwrap_or_default();
    listed.iter().filter_map(|item| Some(item.first()?.name())).collect()
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
                "(a INTEGER primary key NOT NULL)",
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
            let text = rewrite(from, &list, &not_null(&list));
            assert!(text.ends_with(to), "{text}");
        }
    }
}
