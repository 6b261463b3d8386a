//! The sequences of numbered columns, as `nextval` and its like see them while a statement runs,
//! and what the session has got from them.
//!
//! ```text
//!   sqlite_sequence ──open──▶ Sequences ◀── nextval, setval, currval
//!                 ◀──close──
//! ```
//!
//! `numbering` opens and closes them, `engine/sequences.rs` has the functions.

use crate::dialect::TakenNumbers;
use crate::error::{Result, SqlError};

/// The sequence of a numbered column.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sequence {
    pub(crate) name: String,
    pub(crate) table: String,
    pub(crate) column: String,
    /// The number before the next one.
    pub(crate) last: i64,
    /// The greatest number that the column can have.
    pub(crate) max: i64,
    pub(crate) change: Change,
}

impl Sequence {
    /// Returns whether it is the sequence of this column.
    pub(crate) fn is_of(&self, table: &str, column: &str) -> bool {
        self.table.eq_ignore_ascii_case(table) && self.column.eq_ignore_ascii_case(column)
    }
}

/// What a statement has done with a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    None,
    /// It has taken numbers.
    Taken,
    /// It has set the next number.
    Set,
}

/// The sequences of the database, as a statement sees them.
#[derive(Debug, Clone)]
pub(crate) struct OpenSequences {
    pub(crate) all: Vec<Sequence>,
    /// Whether the statement may change them: it has the write gate.
    pub(crate) may_change: bool,
    /// The tables and their columns, if the statement asks for the sequence of one. A view has no
    /// column here.
    pub(crate) columns: Vec<(String, Option<String>)>,
}

/// The sequences of a session.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sequences {
    /// Those of the database, while a statement runs that may use them.
    pub(crate) open: Option<OpenSequences>,
    /// What `currval` returns, by the sequence's name.
    current: Vec<(Box<str>, i64)>,
    /// What `lastval` returns.
    latest: Option<i64>,
}

impl Sequences {
    /// Takes the next number of a sequence.
    pub(crate) fn next(&mut self, name: &str) -> Result<i64> {
        let sequence = self.changed(name)?;
        if sequence.last >= sequence.max {
            let (name, max) = (&sequence.name, sequence.max);
            let message = format!("nextval: reached maximum value of sequence \"{name}\" ({max})");
            return Err(SqlError::new("2200H", message));
        }
        let next = sequence.last + 1;
        sequence.last = next;
        if sequence.change == Change::None {
            sequence.change = Change::Taken;
        }
        let name = sequence.name.clone();
        self.took(&name, next);
        Ok(next)
    }

    /// Notes that the session has got a number from a sequence.
    pub(crate) fn took(&mut self, name: &str, number: i64) {
        self.note(name, number);
        self.latest = Some(number);
    }

    /// Notes the number that an INSERT has taken last, if it has stored rows.
    pub(crate) fn took_some(&mut self, taken: &TakenNumbers, number: Option<i64>) {
        match number {
            _ if !taken.is_sure => self.forget(&taken.sequence),
            Some(number) => self.took(&taken.sequence, number),
            None => (),
        }
    }

    /// Forgets what the session has got, because a statement has taken numbers that are not known.
    pub(crate) fn forget(&mut self, name: &str) {
        self.current.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self.latest = None;
    }

    /// Sets a sequence: the next number is `value`, or if that is called, the one behind it.
    pub(crate) fn set(&mut self, name: &str, value: i64, is_called: bool) -> Result<i64> {
        let sequence = self.changed(name)?;
        let (name, max) = (sequence.name.clone(), sequence.max);
        if value < 1 || value > max {
            let message = format!(
                "setval: value {value} is out of bounds for sequence \"{name}\" (1..{max})"
            );
            return Err(SqlError::new("22003", message));
        }
        sequence.last = if is_called { value } else { value - 1 };
        sequence.change = Change::Set;
        if is_called {
            self.note(&name, value);
        }
        Ok(value)
    }

    /// Returns the number that this session got last from a sequence.
    pub(crate) fn current(&mut self, name: &str) -> Result<i64> {
        let name = self.named(name)?.name.clone();
        let found = self.current.iter().find(|(known, _)| known.eq_ignore_ascii_case(&name));
        found.map(|(_, number)| *number).ok_or_else(|| {
            let message =
                format!("currval of sequence \"{name}\" is not yet defined in this session");
            SqlError::new("55000", message)
        })
    }

    /// Returns the number that this session got last from any sequence.
    pub(crate) fn latest(&self) -> Result<i64> {
        let message = "lastval is not yet defined in this session";
        self.latest.ok_or_else(|| SqlError::new("55000", message))
    }

    /// Returns the name of the sequence of a column, if it has one.
    ///
    /// # Errors
    /// 42P01 and 42703 if there is no such table or column.
    pub(crate) fn of_column(&self, table: &str, column: &str) -> Result<Option<&str>> {
        let open = self.open.as_ref().ok_or_else(elsewhere)?;
        if let Some(own) = open.all.iter().find(|one| one.is_of(table, column)) {
            return Ok(Some(&own.name));
        }
        let is_own = |one: &&(String, Option<String>)| one.0.eq_ignore_ascii_case(table);
        let mut own = open.columns.iter().filter(is_own).map(|(_, name)| name.as_ref()).peekable();
        if own.peek().is_none() {
            return Err(unknown(table));
        }
        if own.any(|name| name.is_none_or(|name| name.eq_ignore_ascii_case(column))) {
            return Ok(None);
        }
        let message = format!("column \"{column}\" of relation \"{table}\" does not exist");
        Err(SqlError::new("42703", message))
    }

    fn note(&mut self, name: &str, number: i64) {
        match self.current.iter_mut().find(|(known, _)| known.eq_ignore_ascii_case(name)) {
            Some((_, last)) => *last = number,
            None => self.current.push((name.into(), number)),
        }
    }

    fn named(&mut self, name: &str) -> Result<&mut Sequence> {
        let open = self.open.as_mut().ok_or_else(elsewhere)?;
        let found = open.all.iter_mut().find(|one| one.name.eq_ignore_ascii_case(name));
        found.ok_or_else(|| unknown(name))
    }

    /// The same for a sequence that changes.
    fn changed(&mut self, name: &str) -> Result<&mut Sequence> {
        match &self.open {
            Some(open) if open.may_change => self.named(name),
            _ => Err(elsewhere()),
        }
    }
}

pub(crate) fn unknown(relation: &str) -> SqlError {
    SqlError::new("42P01", format!("relation \"{relation}\" does not exist"))
}

/// Returns the error of a statement that does not open the sequences.
fn elsewhere() -> SqlError {
    SqlError::unsupported("a sequence in this statement is not supported")
        .hint("Call its function in a SELECT, an INSERT, an UPDATE or a DELETE.")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(max: i64, may_change: bool) -> Option<OpenSequences> {
        let (name, table, column) = ("s".to_owned(), "t".to_owned(), "id".to_owned());
        let all = vec![Sequence { name, table, column, last: 4, max, change: Change::None }];
        let own = |name: &str| ("t".to_owned(), Some(name.to_owned()));
        let columns = vec![own("id"), own("a"), ("v".to_owned(), None)];
        Some(OpenSequences { all, may_change, columns })
    }

    #[test]
    fn a_sequence_ends_with_the_greatest_number_of_its_column() {
        let mut all = Sequences { open: opened(5, true), ..Sequences::default() };
        assert_eq!(all.set("s", 6, false).unwrap_err().code, "22003");
        assert_eq!(all.next("s"), Ok(5));
        assert_eq!(all.next("s").unwrap_err().code, "2200H");
    }

    #[test]
    fn a_statement_that_reads_the_sequences_does_not_change_them() {
        let mut all = Sequences { open: opened(i64::MAX, false), ..Sequences::default() };
        assert_eq!(all.next("s").unwrap_err().code, "0A000");
        assert_eq!(all.set("s", 7, true).unwrap_err().code, "0A000");
        assert_eq!(all.current("s").unwrap_err().code, "55000");
    }

    #[test]
    fn the_sequence_of_a_column_needs_the_column() {
        let all = Sequences { open: opened(i64::MAX, false), ..Sequences::default() };
        assert_eq!(all.of_column("T", "id"), Ok(Some("s")));
        assert_eq!([all.of_column("t", "a"), all.of_column("v", "x")], [Ok(None), Ok(None)]);
        assert_eq!(all.of_column("t", "x").unwrap_err().code, "42703");
        assert_eq!(all.of_column("x", "id").unwrap_err().code, "42P01");
    }

    #[test]
    fn a_sequence_counts_and_is_set() {
        let mut all = Sequences::default();
        assert_eq!(all.next("s").unwrap_err().code, "0A000");
        all.open = opened(i64::MAX, true);
        assert_eq!(all.latest().unwrap_err().code, "55000");
        assert_eq!(all.current("S").unwrap_err().code, "55000");
        assert_eq!(all.next("S"), Ok(5));
        assert_eq!(all.set("s", 9, false), Ok(9));
        assert_eq!((all.current("s"), all.latest()), (Ok(5), Ok(5)));
        assert_eq!(all.set("s", 9, true), Ok(9));
        assert_eq!((all.current("s"), all.latest()), (Ok(9), Ok(5)));
        assert_eq!((all.next("s"), all.latest()), (Ok(10), Ok(10)));
        assert_eq!(all.set("s", 0, true).unwrap_err().code, "22003");
        assert_eq!(all.next("other").unwrap_err().code, "42P01");
        assert!(all.set("s", i64::MAX, true).is_ok());
        assert_eq!(all.next("s").unwrap_err().code, "2200H");
    }
}
