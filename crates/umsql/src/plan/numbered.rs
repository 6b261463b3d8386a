//! Which sequence an INSERT takes numbers from: `currval` and `lastval` return them. And whether a
//! statement may give a column GENERATED ALWAYS a number.

use rusqlite::Connection;

use super::metadata::numbered_column;
use super::rows::{begins_query, each_item, is_default, level, rows};
use super::targets::Table;
use crate::dialect::tokens::{Token, closing, items};
use crate::dialect::{
    Edits, TakenNumbers,
    sequence::{is_always, sequence_name},
};
use crate::error::{Result, SqlError};

/// Returns what an INSERT takes from the sequence of its table. Returns `None` if it takes nothing.
pub(super) fn taken(tokens: &[Token<'_>], db: &Connection) -> Option<Box<TakenNumbers>> {
    let into = tokens.windows(2).position(|two| two[0].is("insert") && two[1].is("into"))? + 2;
    let (table, len) = Table::read(&tokens[into..])?;
    let (column, place) = numbered_column(db, &table.name)?;
    let rest = &tokens[into + len..];
    let (any, last) = match source(rest, &column, place).0 {
        Some((values, place)) => rows_that_take(values, place)?,
        None => (true, true),
    };
    // SQLite tells the number of the last row.
    let is_sure = last && !rest.iter().any(|token| token.is("conflict"));
    let sequence = sequence_name(&table.name, &column).into();
    any.then(|| Box::new(TakenNumbers { sequence, is_sure }))
}

/// Returns whether one of these rows takes a number for the column at this place, and whether the
/// last one does. Returns `None` for a query, which gives one itself.
fn rows_that_take(values: &[Token<'_>], place: usize) -> Option<(bool, bool)> {
    rows(values)?;
    let (mut any, mut last) = (false, false);
    // The function never fails.
    let _ = each_item(values, |at, item| {
        if at == 0 {
            any |= last;
            last = true;
        }
        if at == place {
            last = is_default(item);
        }
        Ok(())
    });
    Some((any || last, last))
}

/// Refuses a number that an INSERT or an UPDATE gives to a column GENERATED ALWAYS, and leaves
/// OVERRIDING SYSTEM VALUE out, with which an INSERT may.
///
/// # Errors
/// 428C9.
pub(super) fn check_always(tokens: &[Token<'_>], edits: &mut Edits, db: &Connection) -> Result<()> {
    let overrides = |three: &[Token<'_>]| three[0].is("overriding") && three[2].is("value");
    if let Some(at) = tokens.windows(3).position(overrides) {
        // `unsupported` refuses USER.
        let words = tokens[at..at + 3].iter().filter(|_| tokens[at + 1].is("system"));
        words.for_each(|token| edits.instead(token, ""));
        return Ok(());
    }
    let Some(verb) = tokens.iter().position(|token| token.is("insert") || token.is("update"))
    else {
        return Ok(());
    };
    let inserts = tokens[verb].is("insert");
    let mut rest = &tokens[verb + 1..];
    // `INSERT OR REPLACE INTO` is SQLite's.
    let before = ["or", "ignore", "replace", "abort", "fail", "rollback", "into", "only"];
    while rest.first().is_some_and(|token| before.iter().any(|word| token.is(word))) {
        rest = &rest[1..];
    }
    let Some((table, len)) = Table::read(rest) else { return Ok(()) };
    let Some((column, place)) = always(db, &table.name) else { return Ok(()) };
    let is_given = match inserts {
        true => gives(&rest[len..], &column, place),
        false => sets(&rest[len..], &column),
    };
    let what = match is_given {
        false => return Ok(()),
        true if inserts => format!("cannot insert a non-DEFAULT value into column \"{column}\""),
        true => format!("column \"{column}\" can only be updated to DEFAULT"),
    };
    Err(SqlError::new("428C9", what).hint(if inserts {
        "Use OVERRIDING SYSTEM VALUE to override."
    } else {
        "The column is GENERATED ALWAYS AS IDENTITY."
    }))
}

/// Returns whether what follows the table's name in an INSERT gives a value to the column, which is
/// at this place of the table.
fn gives(rest: &[Token<'_>], column: &str, place: usize) -> bool {
    let (source, after) = source(rest, column, place);
    let given = |(values, place)| {
        let mut given = rows(values).is_none();
        // The function never fails.
        let _ = each_item(values, |at, item| {
            given |= at == place && !is_default(item);
            Ok(())
        });
        given
    };
    sets(after, column) || source.is_some_and(given)
}

/// What follows the table's name in an INSERT: VALUES or the query, with the place of a column in
/// it, and the clauses behind. The first is `None` if it says nothing of the column.
type Source<'t, 'a> = (Option<(&'t [Token<'a>], usize)>, &'t [Token<'a>]);

fn source<'t, 'a>(rest: &'t [Token<'a>], column: &str, place: usize) -> Source<'t, 'a> {
    let (mut rest, mut place) = (rest, place);
    if let [r#as, _, after @ ..] = rest
        && r#as.is("as")
    {
        rest = after;
    }
    let end = level(rest, |_, token| token.is("returning") || token.is("conflict"));
    let (source, after) = rest.split_at(end.unwrap_or(rest.len()));
    rest = match source {
        [source @ .., on] if on.is("on") => source,
        source => source,
    };
    let is_listed = matches!(rest, [open, next, ..] if open.sign("(") && !begins_query(next));
    if is_listed && let Some(close) = closing(rest) {
        let list = items(&rest[1..close]);
        let Some(at) = list.iter().position(|item| names(item, column)) else {
            return (None, after);
        };
        (rest, place) = (&rest[close + 1..], at);
    }
    let is_said = rest.first().is_some_and(|first| !first.is("default"));
    (is_said.then_some((rest, place)), after)
}

/// Returns whether an UPDATE sets the column to another value than DEFAULT.
fn sets(rest: &[Token<'_>], column: &str) -> bool {
    let Some(set) = rest.iter().position(|token| token.is("set")) else { return false };
    let is_end = |token: &Token<'_>| ["from", "where", "returning"].iter().any(|w| token.is(w));
    let end = level(&rest[set + 1..], |_, token| is_end(token));
    let list = &rest[set + 1..end.map_or(rest.len(), |end| set + 1 + end)];
    items(list).into_iter().any(|item| match item {
        [name, _, one] if one.is("default") => !name.is_name(),
        [open, names @ ..] if open.sign("(") => {
            let close = closing(item).unwrap_or(1);
            names[..close - 1].iter().any(|name| self::names(&[*name], column))
        }
        item => names(item, column),
    })
}

fn names(item: &[Token<'_>], column: &str) -> bool {
    item.first().is_some_and(|name| name.is_name() && name.name().eq_ignore_ascii_case(column))
}

/// Returns the column of a table that is GENERATED ALWAYS, and its place.
fn always(db: &Connection, table: &str) -> Option<(String, usize)> {
    // This reads no row of the schema if the table has no such column.
    let column = numbered_column(db, table)?;
    let text = "SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = ?1 COLLATE NOCASE";
    let mut query = db.prepare_cached(text).ok()?;
    let definition: String = query.query_row([table], |row| row.get(0)).ok()?;
    is_always(&definition).then_some(column)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::tokens::tokens;

    #[test]
    fn a_column_that_is_always_numbered_gets_no_other_number() {
        let db = Connection::open_in_memory().unwrap();
        db.execute_batch(
            "create table t(a, id integer constraint ums_always not null \
             primary key autoincrement)",
        )
        .unwrap();
        let check = |source: &str| {
            let list = tokens(source).unwrap();
            check_always(&list, &mut Edits::default(), &db).map_err(|error| error.code)
        };
        for fine in [
            "insert into t(a) values (1)",
            "insert into t values (1, default), (2, default) returning id",
            "insert into t default values",
            "insert into t as x (id, a) values (default, 1) on conflict do nothing",
            "insert into t(id) overriding system value values (7)",
            "insert into other values (1, 2)",
            "insert into t values (1)",
            "update t set a = 1, id = default where id = 3",
            "delete from t where id = 1",
        ] {
            assert_eq!(check(fine), Ok(()), "{fine}");
        }
        for wrong in [
            "insert into t(a, ID) values (1, 2)",
            "insert into t values (1, default), (2, 5) returning id",
            "insert into t(id) select 1",
            "insert into t(select 1, 2)",
            "insert or replace into public.t values (1, 2)",
            "insert into t(a) values (1) on conflict (id) do update set id = 7",
            "with x as (select 1) update only t set id = 3",
            "update t set (a, id) = (1, 2)",
        ] {
            assert_eq!(check(wrong), Err("428C9"), "{wrong}");
        }
    }

    #[test]
    fn an_insert_takes_a_number_unless_it_gives_one() {
        let db = Connection::open_in_memory().unwrap();
        db.execute_batch(
            "create table t(id integer primary key autoincrement, a); \
             create table s(id integer primary key, a)",
        )
        .unwrap();
        let sure = |source: &str| {
            let taken = taken(&tokens(source).unwrap(), &db)?;
            assert_eq!(&*taken.sequence, "t_id_seq");
            Some(taken.is_sure)
        };
        assert_eq!(sure("insert into t(a) values (1), (2)"), Some(true));
        assert_eq!(sure("insert into public.t(a) select 1"), Some(true));
        assert_eq!(sure("insert into t default values"), Some(true));
        assert_eq!(sure("insert into t values (default, 1)"), Some(true));
        assert_eq!(sure("insert into t values (1, 1), (default, 1)"), Some(true));
        assert_eq!(sure("insert into t values (default, 1), (1, 1)"), Some(false));
        assert_eq!(sure("insert into t(a, id) values (1, 77), (1, default)"), Some(true));
        assert_eq!(sure("insert into t(id, a) values (77, default)"), None);
        assert_eq!(sure("insert into t as x (a) values (default) returning id"), Some(true));
        assert_eq!(sure("insert into t select 1, 'default'"), None);
        assert_eq!(sure("insert into t(a) values (1) on conflict do nothing"), Some(false));
        assert_eq!(sure("with x as (select 1) insert into t(a) select * from x"), Some(true));
        assert_eq!(sure("insert into t(a, ID) values (1, 2)"), None);
        assert_eq!(sure("insert into t values (1, 2)"), None);
        assert_eq!(sure("insert into s(a) values (1)"), None);
        assert_eq!(sure("update t set a = 1"), None);
    }
}
