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

/// The sequences of a session.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sequences {
    /// All sequences, while a statement runs that may use them.
    pub(crate) open: Option<Vec<Sequence>>,
    /// What `currval` returns, by the sequence's name.
    current: Vec<(Box<str>, i64)>,
    /// What `lastval` returns.
    latest: Option<i64>,
}

impl Sequences {
    /// Takes the next number of a sequence.
    pub(crate) fn next(&mut self, name: &str) -> Result<i64> {
        let sequence = self.named(name)?;
        let Some(next) = sequence.last.checked_add(1) else {
            let name = &sequence.name;
            let message = format!("nextval: reached maximum value of sequence \"{name}\"");
            return Err(SqlError::new("2200H", message));
        };
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
        let sequence = self.named(name)?;
        let name = sequence.name.clone();
        if value < 1 {
            let message = format!(
                "setval: value {value} is out of bounds for sequence \"{name}\" (1..{})",
                i64::MAX
            );
            return Err(SqlError::new("22003", message));
        }
        sequence.last = if is_called { value } else { value.saturating_sub(1) };
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
    pub(crate) fn of_column(&self, table: &str, column: &str) -> Result<Option<&str>> {
        let is_it = |one: &&Sequence| one.is_of(table, column);
        let open = self.open.as_ref().ok_or_else(elsewhere)?;
        Ok(open.iter().find(is_it).map(|one| one.name.as_str()))
    }

    fn note(&mut self, name: &str, number: i64) {
        match self.current.iter_mut().find(|(known, _)| known.eq_ignore_ascii_case(name)) {
            Some((_, last)) => *last = number,
            None => self.current.push((name.into(), number)),
        }
    }

    fn named(&mut self, name: &str) -> Result<&mut Sequence> {
        let open = self.open.as_mut().ok_or_else(elsewhere)?;
        let found = open.iter_mut().find(|one| one.name.eq_ignore_ascii_case(name));
        found.ok_or_else(|| SqlError::new("42P01", format!("relation \"{name}\" does not exist")))
    }
}

/// Returns the error of a statement that does not open the sequences.
fn elsewhere() -> SqlError {
    SqlError::unsupported("a sequence in this statement is not supported")
        .hint("Call its function in a SELECT, an INSERT, an UPDATE or a DELETE.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_counts_and_is_set() {
        let mut all = Sequences::default();
        assert_eq!(all.next("s").unwrap_err().code, "0A000");
        let (name, table, column) = ("s".to_owned(), "t".to_owned(), "id".to_owned());
        all.open = Some(vec![Sequence { name, table, column, last: 4, change: Change::None }]);
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
