//! Which sequence an INSERT takes numbers from: `currval` and `lastval` return them.

use rusqlite::Connection;

use super::metadata::column_metadata;
use super::targets::Table;
use crate::dialect::tokens::{Token, closing};
use crate::dialect::{TakenNumbers, sequence::sequence_name};

/// Returns what an INSERT takes from the sequence of its table. Returns `None` if it takes nothing.
pub(super) fn taken(tokens: &[Token<'_>], db: &Connection) -> Option<Box<TakenNumbers>> {
    let into = tokens.windows(2).position(|two| two[0].is("insert") && two[1].is("into"))? + 2;
    let (table, len) = Table::read(&tokens[into..])?;
    let column = numbered_column(db, &table.name)?;
    let mut rest = &tokens[into + len..];
    let mut is_listed = true;
    if rest.first()?.sign("(")
        && let Some(close) = closing(rest)
    {
        let is_it =
            |token: &Token<'_>| token.is_name() && token.name().eq_ignore_ascii_case(&column);
        is_listed = rest[..close].iter().any(is_it);
        rest = &rest[close + 1..];
    }
    let says = |word: &str| rest.iter().any(|token| token.is(word));
    let is_default = rest.first().is_some_and(|first| first.is("default"));
    if is_listed && !is_default && !says("default") {
        return None;
    }
    // Of several rows, or of none, SQLite does not tell which has got a number.
    let several = rest.windows(2).any(|two| two[0].sign(",") && two[1].sign("("));
    let is_sure = !says("conflict") && (!is_listed || is_default || !several);
    let sequence = sequence_name(&table.name, &column).into();
    Some(Box::new(TakenNumbers { sequence, is_sure }))
}

/// Returns the column of a table that SQLite numbers.
fn numbered_column(db: &Connection, table: &str) -> Option<String> {
    let key =
        "SELECT name FROM pragma_table_info(?1) WHERE pk = 1 AND type = 'INTEGER' COLLATE NOCASE";
    let column: String = db.prepare_cached(key).ok()?.query_row([table], |row| row.get(0)).ok()?;
    let (.., is_numbered) = column_metadata(db, None, table, &column).ok()?;
    is_numbered.then_some(column)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::tokens::tokens;

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
        assert_eq!(sure("insert into t values (1, 1), (default, 1)"), Some(false));
        assert_eq!(sure("insert into t(a) values (1) on conflict do nothing"), Some(false));
        assert_eq!(sure("with x as (select 1) insert into t(a) select * from x"), Some(true));
        assert_eq!(sure("insert into t(a, ID) values (1, 2)"), None);
        assert_eq!(sure("insert into t values (1, 2)"), None);
        assert_eq!(sure("insert into s(a) values (1)"), None);
        assert_eq!(sure("update t set a = 1"), None);
    }
}
