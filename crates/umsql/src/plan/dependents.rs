//! What depends on a table that is dropped or emptied: the foreign keys of other tables, and views.
//! SQLite drops a table in spite of them.

use rusqlite::Connection;

use crate::dialect::Sql;
use crate::dialect::tokens::{Token, tokens};
use crate::dialect::translate::quote;
use crate::error::{Result, SqlError};

/// Refuses DROP TABLE and TRUNCATE of a table on which something else depends. Gives TRUNCATE ..
/// RESTART IDENTITY the statements that restart the numbers.
///
/// # Errors
/// 2BP01, and 0A000 for CASCADE.
pub(super) fn check_dependents(tokens: &[Token<'_>], sql: &mut Sql, db: &Connection) -> Result<()> {
    let drops = sql.tag == "DROP TABLE";
    if !drops && sql.tag != "TRUNCATE TABLE" {
        return Ok(());
    }
    let cascades = tokens.iter().any(|token| token.is("cascade"));
    let mut names = names(tokens);
    if !drops {
        empty_in_order(db, sql, &mut names, cascades)?;
    }
    for name in &names {
        let key = referring(db, &names, name)?;
        let view = if drops { dependent_view(db, name)? } else { None };
        let dependent = key.map(|table| format!("a foreign key of table {table}"));
        let Some(dependent) = dependent.or(view.map(|view| format!("view {view}"))) else {
            continue;
        };
        return Err(if cascades {
            let message = format!("CASCADE is not supported: {dependent} depends on table {name}");
            SqlError::unsupported(message).hint("Drop it first.")
        } else if drops {
            let message =
                format!("cannot drop table {name} because other objects depend on it: {dependent}");
            SqlError::new("2BP01", message).hint("Drop them first.")
        } else {
            let message = format!("cannot truncate table {name}: {dependent} refers to it");
            SqlError::unsupported(message)
                .hint("Truncate both tables in one statement, or write CASCADE.")
        });
    }
    let restarts = tokens.windows(2).any(|two| two[0].is("restart") && two[1].is("identity"));
    if restarts && db.table_exists(None, "sqlite_sequence")? {
        for name in &names {
            let name = name.replace('\'', "''");
            sql.texts.push(format!("DELETE FROM sqlite_sequence WHERE name = '{name}'"));
        }
    }
    Ok(())
}

/// Gives TRUNCATE the tables that refer to its own, if it cascades, and the order in which they can
/// be emptied: a table comes after those that refer to it.
fn empty_in_order(
    db: &Connection,
    sql: &mut Sql,
    names: &mut Vec<String>,
    cascades: bool,
) -> Result<()> {
    let mut at = 0;
    while cascades && at < names.len() {
        match referring(db, names, &names[at])? {
            Some(other) => names.push(other),
            None => at += 1,
        }
    }
    let mut rest: Vec<String> = names.clone();
    let mut texts = Vec::new();
    while !rest.is_empty() {
        let mut next = 0;
        for (index, name) in rest.iter().enumerate() {
            let others: Vec<_> = names.iter().filter(|other| !rest.contains(other)).collect();
            let known: Vec<_> = others.into_iter().chain([name]).cloned().collect();
            if referring(db, &known, name)?.is_none_or(|other| !rest.contains(&other)) {
                next = index;
                break;
            }
        }
        texts.push(format!("DELETE FROM {}", quote(&rest.remove(next))));
    }
    sql.texts = texts;
    Ok(())
}

/// Returns the names of the tables.
fn names(tokens: &[Token<'_>]) -> Vec<String> {
    const WORDS: [&str; 10] = [
        "drop", "truncate", "table", "if", "exists", "only", "cascade", "restrict", "restart",
        "continue",
    ];
    let is_word = |token: &Token<'_>| WORDS.iter().any(|word| token.is(word));
    let mut names = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let is_schema = tokens.get(at + 1).is_some_and(|next| next.sign("."));
        if token.is_name() && !is_word(token) && !token.is("identity") && !is_schema {
            names.push(token.name());
        }
    }
    names
}

/// Returns a table outside the list with a foreign key that refers to the table `name`.
fn referring(db: &Connection, names: &[String], name: &str) -> Result<Option<String>> {
    let mut query = db.prepare_cached(
        "SELECT s.name FROM sqlite_schema s JOIN pragma_foreign_key_list(s.name) f \
         WHERE s.type = 'table' AND f.\"table\" = ?1 COLLATE NOCASE",
    )?;
    let tables = query.query_map([name], |row| row.get::<_, String>(0))?;
    for table in tables {
        let table = table?;
        if !names.iter().any(|other| other.eq_ignore_ascii_case(&table)) {
            return Ok(Some(table));
        }
    }
    Ok(None)
}

/// Returns a view that mentions the table `name`.
fn dependent_view(db: &Connection, name: &str) -> Result<Option<String>> {
    let mut query = db.prepare_cached("SELECT name, sql FROM sqlite_schema WHERE type = 'view'")?;
    let views =
        query.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)))?;
    for view in views {
        let (view, text) = view?;
        let Ok(list) = tokens(&text) else { continue };
        let mentions = list.windows(2).any(|two| {
            let before = ["from", "join"].iter().any(|word| two[0].is(word))
                || two[0].sign(",")
                || two[0].sign("(");
            before && two[1].is_name() && two[1].name().eq_ignore_ascii_case(name)
        });
        if mentions && !view.eq_ignore_ascii_case(name) {
            return Ok(Some(view));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::statement::recognise;
    use crate::dialect::{Edits, Statement};

    #[test]
    fn a_table_on_which_something_depends_stays() {
        let db = Connection::open_in_memory().unwrap();
        db.execute_batch(
            "create table house(id integer primary key autoincrement);
             create table room(id int, house int references House(id));
             create table yard(id int); create view seen as select y.id from room r, yard y;",
        )
        .unwrap();
        let check = |source: &str| {
            let list = tokens(source).unwrap();
            let Statement::Sql(mut sql) = recognise(&list, source, &Edits::default()).unwrap()
            else {
                panic!("{source}")
            };
            check_dependents(&list, &mut sql, &db).map(|()| sql.texts.len()).map_err(|e| e.code)
        };
        assert_eq!(check("drop table house"), Err("2BP01"));
        assert_eq!(check("drop table if exists public.House cascade"), Err("0A000"));
        assert_eq!(check("drop table yard"), Err("2BP01"));
        assert_eq!(check("truncate house"), Err("0A000"));
        assert_eq!(check("truncate house, room restart identity"), Ok(4));
        assert_eq!(check("truncate house cascade"), Ok(2));
        assert_eq!(check("truncate table yard"), Ok(1));
        assert_eq!(check("drop table none"), Ok(1));
    }
}
