//! The characteristics of a transaction, and the clauses that lock: the parts of BEGIN, SET
//! TRANSACTION, LOCK TABLE and SELECT .. FOR UPDATE.
//!
//! It says what a client has written. `transaction` carries it out.

use super::reader::{Reader, near};
use super::tokens::Token;
use crate::error::{Result, SqlError};

/// How much of what others commit a transaction sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Isolation {
    /// The same as `ReadCommitted`, as in PostgreSQL.
    ReadUncommitted,
    /// Each statement sees what was committed before it began.
    ReadCommitted,
    /// All statements see what was committed before the first one began.
    RepeatableRead,
    /// The same as `RepeatableRead`: a transaction that writes fails unless its snapshot is the
    /// newest, so all are serializable.
    Serializable,
}

impl Isolation {
    const ALL: [Isolation; 4] = [
        Isolation::ReadUncommitted,
        Isolation::ReadCommitted,
        Isolation::RepeatableRead,
        Isolation::Serializable,
    ];

    /// Returns the name that SHOW prints.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Isolation::ReadUncommitted => "read uncommitted",
            Isolation::ReadCommitted => "read committed",
            Isolation::RepeatableRead => "repeatable read",
            Isolation::Serializable => "serializable",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Isolation> {
        Isolation::ALL.into_iter().find(|level| level.name().eq_ignore_ascii_case(name.trim()))
    }

    /// Returns whether all statements of a transaction have one snapshot.
    pub(crate) fn keeps_snapshot(self) -> bool {
        matches!(self, Isolation::RepeatableRead | Isolation::Serializable)
    }
}

/// What a client has said of a transaction; `None` is nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Characteristics {
    pub(crate) isolation: Option<Isolation>,
    pub(crate) read_only: Option<bool>,
}

impl Characteristics {
    /// Reads `ISOLATION LEVEL .., READ ONLY, NOT DEFERRABLE`, up to the statement's end. DEFERRABLE
    /// asks for a snapshot with which a transaction that only reads does not fail: here all are so.
    pub(crate) fn read(r: &mut Reader<'_, '_>) -> Result<Characteristics> {
        let mut read = Characteristics::default();
        while !r.rest.is_empty() {
            if r.take(&["isolation", "level"]) {
                let words =
                    |level: &Isolation| r.take(&level.name().split(' ').collect::<Vec<_>>());
                let level = Isolation::ALL.into_iter().find(words);
                read.isolation = Some(level.ok_or_else(|| syntax_error(r))?);
            } else if r.take(&["read", "only"]) {
                read.read_only = Some(true);
            } else if r.take(&["read", "write"]) {
                read.read_only = Some(false);
            } else if !r.take(&["deferrable"]) && !r.take(&["not", "deferrable"]) {
                return Err(syntax_error(r));
            }
            if r.take(&[","]) && r.rest.is_empty() {
                return Err(syntax_error(r));
            }
        }
        Ok(read)
    }
}

/// `BEGIN` or `START TRANSACTION`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Begin {
    pub(crate) characteristics: Characteristics,
    /// Whether it locks at once: SQLite's `BEGIN IMMEDIATE` and `BEGIN EXCLUSIVE`.
    pub(crate) immediate: bool,
    /// Whether it is START TRANSACTION, which has a tag of its own.
    pub(crate) starts: bool,
}

impl Begin {
    /// Reads what follows BEGIN or START.
    pub(crate) fn read(r: &mut Reader<'_, '_>) -> Result<Begin> {
        let immediate = r.take(&["immediate"]) || r.take(&["exclusive"]);
        let _ = immediate || r.take(&["deferred"]);
        let _ = r.take(&["transaction"]) || r.take(&["work"]);
        Ok(Begin { characteristics: Characteristics::read(r)?, immediate, starts: false })
    }
}

/// `LOCK TABLE a, b IN .. MODE NOWAIT`. There is one lock for all tables.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TableLock {
    pub(crate) tables: Vec<String>,
    /// Whether others may write meanwhile (`ACCESS SHARE`), but not change the tables themselves.
    pub(crate) weakest: bool,
    pub(crate) patience: LockPatience,
}

/// What happens if others have the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LockPatience {
    Waits,
    /// The statement fails.
    NoWait,
}

impl TableLock {
    /// Reads what follows LOCK.
    pub(crate) fn read(r: &mut Reader<'_, '_>) -> Result<TableLock> {
        r.take(&["table"]);
        let mut tables = Vec::new();
        while tables.is_empty() || r.take(&[","]) {
            r.take(&["only"]);
            tables.push(r.table()?);
            r.take(&["*"]);
        }
        let mut weakest = false;
        if r.take(&["in"]) {
            const MODES: [&[&str]; 8] = [
                &["access", "share"],
                &["access", "exclusive"],
                &["row", "share"],
                &["row", "exclusive"],
                &["share", "update", "exclusive"],
                &["share", "row", "exclusive"],
                &["share"],
                &["exclusive"],
            ];
            let mode = MODES.iter().position(|mode| r.take(mode));
            weakest = mode.ok_or_else(|| syntax_error(r))? == 0;
            if !r.take(&["mode"]) {
                return Err(syntax_error(r));
            }
        }
        let patience = if r.take(&["nowait"]) { LockPatience::NoWait } else { LockPatience::Waits };
        r.end()?;
        Ok(TableLock { tables, weakest, patience })
    }
}

/// Reads the clauses `FOR UPDATE OF t NOWAIT` with which a query ends.
pub(crate) fn row_lock(mut r: Reader<'_, '_>) -> Result<LockPatience> {
    let mut patience = LockPatience::Waits;
    while !r.rest.is_empty() {
        const STRENGTHS: [&[&str]; 4] = [
            &["for", "update"],
            &["for", "no", "key", "update"],
            &["for", "share"],
            &["for", "key", "share"],
        ];
        if !STRENGTHS.iter().any(|strength| r.take(strength)) {
            return Err(
                syntax_error(&r).hint("Write FOR UPDATE at the end of the query, after LIMIT.")
            );
        }
        if r.take(&["of"]) {
            r.table()?;
            while r.take(&[","]) {
                r.table()?;
            }
        }
        if r.take(&["nowait"]) {
            patience = LockPatience::NoWait;
        } else if r.take(&["skip", "locked"]) {
            return Err(SqlError::unsupported("SKIP LOCKED is not supported").hint(
                "One lock covers all rows, so it would skip all of them. Leave it out to wait, or \
                 write NOWAIT.",
            ));
        }
    }
    Ok(patience)
}

/// Returns whether a clause that locks rows begins here.
pub(crate) fn begins_row_lock(token: &Token<'_>, next: Option<&Token<'_>>) -> bool {
    const WORDS: [&str; 4] = ["update", "share", "no", "key"];
    token.is("for") && next.is_some_and(|next| WORDS.iter().any(|word| next.is(word)))
}

fn syntax_error(r: &Reader<'_, '_>) -> SqlError {
    let end = || SqlError::syntax("syntax error at end of input");
    r.rest.first().map_or_else(end, near)
}

#[cfg(test)]
mod tests {
    use super::super::tokens::tokens;
    use super::*;

    fn begin(sql: &str) -> Result<Begin> {
        Begin::read(&mut Reader::new(&tokens(sql).unwrap()))
    }

    #[test]
    fn the_characteristics_of_a_transaction_are_read() {
        let all = begin("transaction isolation level repeatable read, read only not deferrable");
        let isolation = Some(Isolation::RepeatableRead);
        let characteristics = Characteristics { isolation, read_only: Some(true) };
        assert_eq!(all, Ok(Begin { characteristics, starts: false, immediate: false }));
        assert_eq!(begin(""), Ok(Begin::default()));
        assert!(begin("immediate").unwrap().immediate && begin("exclusive").unwrap().immediate);
        assert!(!begin("deferred").unwrap().immediate);
        let last = begin("read only read write isolation level serializable").unwrap();
        assert_eq!(last.characteristics.isolation, Some(Isolation::Serializable));
        assert_eq!(last.characteristics.read_only, Some(false));
        for wrong in ["fast", "isolation level chaos", "isolation", "read only,", ", read only"] {
            assert_eq!(begin(wrong).unwrap_err().code, "42601", "{wrong}");
        }
    }

    #[test]
    fn locks_of_tables_are_read() {
        let lock = |sql: &str| TableLock::read(&mut Reader::new(&tokens(sql).unwrap()));
        let weakest = lock("table only public.a *, \"B\" in access share mode").unwrap();
        assert_eq!((&weakest.tables[..], weakest.weakest), (&["a".into(), "B".into()][..], true));
        assert_eq!(weakest.patience, LockPatience::Waits);
        let strong = lock("t in share row exclusive mode nowait").unwrap();
        assert_eq!((strong.weakest, strong.patience), (false, LockPatience::NoWait));
        for wrong in ["", "table", "t in row mode", "t in share", "t wait", "t,"] {
            assert_eq!(lock(wrong).unwrap_err().code, "42601", "{wrong}");
        }
    }

    #[test]
    fn locks_of_rows_are_read_to_the_end_of_the_query() {
        let lock = |sql: &str| row_lock(Reader::new(&tokens(sql).unwrap()));
        assert_eq!(lock("for update"), Ok(LockPatience::Waits));
        assert_eq!(
            lock("for no key update of a, b for key share nowait"),
            Ok(LockPatience::NoWait)
        );
        assert_eq!(lock("for update skip locked").unwrap_err().code, "0A000");
        for wrong in ["for update limit 1", "for updates", "for share of"] {
            assert_eq!(lock(wrong).unwrap_err().code, "42601", "{wrong}");
        }
    }
}
