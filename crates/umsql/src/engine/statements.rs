//! The prepared statements of a connection, kept beside it with what executing them needs to know:
//! the numbers of their parameters, and their columns.
//!
//! Unsafe code, because a statement borrows its connection, and a [`Statements`] has both. The
//! statement stays inside this file: a caller gets it only as a [`Prepared`], which borrows the
//! [`Statements`] that it goes back to.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use rusqlite::types::Value;
use rusqlite::{Connection, PrepFlags, Rows, Statement, StatementStatus};

use crate::error::{Result, SqlError};
use crate::wire::types::Column;

/// How many prepared statements a connection keeps.
const STATEMENTS_KEPT: usize = 32;

/// A connection with its prepared statements.
#[derive(Debug)]
pub(super) struct Statements {
    /// The statements that nothing uses at present. The last one was used last.
    kept: RefCell<Vec<Box<Kept>>>,
    /// The last field, so the connection is closed after its statements have ended.
    connection: Rc<Connection>,
}

// SAFETY: Own Memory: the connection and its statements refer to nothing but each other, and all
// of them are in this object. A `Prepared` borrows it, so it does not move to another thread then.
unsafe impl Send for Statements {}

#[derive(Debug)]
struct Kept {
    text: Box<str>,
    /// Whether it was prepared for a reader. What the authorizer decided for an owner does not hold
    /// for a reader.
    restricted: bool,
    /// For each parameter of SQLite's: the place of its value among those of the client. A place
    /// that no value has stands for a parameter without a number.
    places: Box<[usize]>,
    known: Option<Known>,
    statement: Statement<'static>,
}

/// The columns of a statement, and for what they were found.
#[derive(Debug)]
struct Known {
    columns: Arc<[Column]>,
    /// The types of the statement's parameters.
    types: Box<[u32]>,
    /// How often SQLite had prepared the statement again.
    prepared_again: i32,
}

impl Statements {
    pub(super) fn new(connection: Connection) -> Statements {
        Statements { kept: RefCell::default(), connection: Rc::new(connection) }
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Ends all statements.
    pub(super) fn clear(&self) {
        self.kept.borrow_mut().clear();
        self.connection.flush_prepared_statement_cache();
    }

    /// Returns the kept statement with this text, or prepares one.
    pub(super) fn prepare(&self, text: &str, restricted: bool) -> rusqlite::Result<Prepared<'_>> {
        let mut kept = self.kept.borrow_mut();
        let is_it = |kept: &Box<Kept>| *kept.text == *text && kept.restricted == restricted;
        let found = kept.iter().rposition(is_it).map(|at| kept.remove(at));
        drop(kept);
        let used = match found {
            Some(found) => found,
            None => self.prepare_new(text, restricted)?,
        };
        Ok(Prepared { home: self, used: Some(used) })
    }

    #[cold]
    fn prepare_new(&self, text: &str, restricted: bool) -> rusqlite::Result<Box<Kept>> {
        // SAFETY: Held: this object has the connection, and the statement is in this object or in a
        // `Prepared` that borrows it. So the statement ends first.
        let connection: &'static Connection = unsafe { &*Rc::as_ptr(&self.connection) };
        let flags = PrepFlags::SQLITE_PREPARE_PERSISTENT;
        let statement = connection.prepare_with_flags(text, flags)?;
        let place = |index| {
            let number: usize = statement.parameter_name(index)?.strip_prefix('$')?.parse().ok()?;
            number.checked_sub(1)
        };
        let indices = 1..=statement.parameter_count();
        let places = indices.map(|index| place(index).unwrap_or(usize::MAX)).collect();
        Ok(Box::new(Kept { text: text.into(), restricted, places, known: None, statement }))
    }
}

/// A prepared statement in use. Dropping it gives it back to its connection.
#[derive(Debug)]
pub(crate) struct Prepared<'a> {
    home: &'a Statements,
    used: Option<Box<Kept>>,
}

impl Prepared<'_> {
    fn used(&self) -> &Kept {
        self.used.as_ref().expect("it is there until it is dropped")
    }

    fn used_mut(&mut self) -> &mut Kept {
        self.used.as_mut().expect("it is there until it is dropped")
    }

    pub(crate) fn readonly(&self) -> bool {
        self.used().statement.readonly()
    }

    pub(crate) fn column_count(&self) -> usize {
        self.used().statement.column_count()
    }

    /// Binds a value to every `$n` of the statement.
    pub(crate) fn bind(&mut self, parameters: &[Value]) -> Result<()> {
        let Kept { places, statement, .. } = self.used_mut();
        for (index, place) in places.iter().enumerate() {
            let value = parameters.get(*place);
            let value =
                value.ok_or_else(|| SqlError::new("42P02", "there is no value for a parameter"))?;
            statement.raw_bind_parameter(index + 1, value)?;
        }
        Ok(())
    }

    /// Finds the columns with `find`, unless they are known for parameters of these types.
    pub(crate) fn find_columns(
        &mut self,
        types: &[u32],
        find: impl FnOnce(&Statement<'_>, &str) -> Vec<Column>,
    ) {
        let Kept { text, known, statement, .. } = self.used_mut();
        let prepared_again = statement.get_status(StatementStatus::RePrepare);
        let holds =
            |known: &Known| known.prepared_again == prepared_again && *known.types == *types;
        if !known.as_ref().is_some_and(holds) {
            let columns = find(statement, text).into();
            *known = Some(Known { columns, types: types.into(), prepared_again });
        }
    }

    /// Returns the columns that were found last.
    pub(crate) fn columns(&self) -> Option<&Arc<[Column]>> {
        self.used().known.as_ref().map(|known| &known.columns)
    }

    /// Executes the statement. Returns its rows, and the columns that were found last.
    pub(crate) fn run(&mut self) -> (Rows<'_>, Option<&Arc<[Column]>>) {
        let Kept { known, statement, .. } = self.used_mut();
        (statement.raw_query(), known.as_ref().map(|known| &known.columns))
    }
}

impl Drop for Prepared<'_> {
    fn drop(&mut self) {
        let Some(mut used) = self.used.take() else { return };
        used.statement.clear_bindings();
        let mut kept = self.home.kept.borrow_mut();
        if kept.len() >= STATEMENTS_KEPT {
            kept.remove(0);
        }
        kept.push(used);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(prepared: &mut Prepared<'_>, found: &mut usize) -> Vec<String> {
        prepared.find_columns(&[], |statement, _| {
            *found += 1;
            let names = statement.column_names().into_iter();
            names.map(|name| Column::new(name, 25)).collect()
        });
        prepared.columns().unwrap().iter().map(|column| column.name.clone()).collect()
    }

    fn count(prepared: &mut Prepared<'_>) -> usize {
        let (mut rows, _) = prepared.run();
        let mut count = 0;
        while rows.next().unwrap().is_some() {
            count += 1;
        }
        count
    }

    #[test]
    fn columns_are_found_again_when_sqlite_has_prepared_the_statement_again() {
        let all = Statements::new(Connection::open_in_memory().unwrap());
        all.connection().execute_batch("CREATE TABLE t(a); INSERT INTO t VALUES (1)").unwrap();
        let mut found = 0;
        for _ in 0..2 {
            let mut prepared = all.prepare("SELECT * FROM t", false).unwrap();
            assert_eq!(columns(&mut prepared, &mut found), ["a"]);
            assert_eq!(count(&mut prepared), 1);
        }
        assert_eq!(found, 1);
        all.connection().execute_batch("ALTER TABLE t ADD COLUMN b").unwrap();
        let mut prepared = all.prepare("SELECT * FROM t", false).unwrap();
        assert_eq!(count(&mut prepared), 1);
        assert_eq!(columns(&mut prepared, &mut found), ["a", "b"]);
    }

    #[test]
    fn a_statement_comes_back_without_its_values_and_the_oldest_ones_end() {
        let all = Statements::new(Connection::open_in_memory().unwrap());
        let mut prepared = all.prepare("SELECT 1 WHERE $2 = 7", false).unwrap();
        assert_eq!(prepared.bind(&[Value::Null]).unwrap_err().code, "42P02");
        prepared.bind(&[Value::Null, Value::Integer(7)]).unwrap();
        assert_eq!(count(&mut prepared), 1);
        drop(prepared);
        let mut prepared = all.prepare("SELECT 1 WHERE $2 = 7", false).unwrap();
        assert_eq!(count(&mut prepared), 0);
        drop(prepared);
        assert_eq!(all.kept.borrow().len(), 1);
        drop(all.prepare("SELECT 1 WHERE $2 = 7", true).unwrap());
        assert_eq!(all.kept.borrow().len(), 2, "a reader has its own");
        for number in 0..STATEMENTS_KEPT {
            drop(all.prepare(&format!("SELECT {number}"), false).unwrap());
        }
        let kept = all.kept.borrow();
        assert_eq!(kept.len(), STATEMENTS_KEPT);
        assert_eq!(&*kept[0].text, "SELECT 0");
    }
}
