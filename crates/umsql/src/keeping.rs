//! What a session keeps in memory outside SQLite, counted in its account: messages that have not
//! arrived completely, the answer until it is sent, prepared statements and portals.
//!
//! It does not decide what is kept; `session`, `extended` and `run` do.

use crate::error::{Result, SqlError};
use crate::memory::Kept;
use crate::session::{CHUNK, Session};

/// The most prepared statements or portals that a session keeps.
const KEPT_MAX: usize = 10_000;

impl Session {
    /// Returns an error if a session that keeps objects of the sizes `kept`, in bytes, has no room
    /// for another of `size`. All objects of one kind together may be as large as one message.
    pub(crate) fn check_room(
        &self,
        kept: impl Iterator<Item = usize>,
        size: usize,
        what: &str,
    ) -> Result<()> {
        let (count, bytes) = kept.fold((0, size), |(count, bytes), size| (count + 1, bytes + size));
        if count < KEPT_MAX && bytes <= self.server.max_message {
            return Ok(());
        }
        let max = self.server.max_message;
        let limit = format!("this session keeps at most {KEPT_MAX} {what}, of {max} bytes in all");
        Err(SqlError::new("53400", limit))
    }

    /// Makes room for the next bytes of input, and returns where they begin. The room grows with
    /// what has arrived, not with what a message says of its length.
    pub(crate) fn make_room(&mut self) -> Result<usize> {
        let len = self.input.len();
        if self.input.capacity() < len + CHUNK {
            // A quarter more: large messages are copied a few times, and little is unused.
            let more = CHUNK.max(len / 4);
            self.input.try_reserve_exact(more).map_err(|_| SqlError::out_of_memory())?;
            self.kept.input = self.input.capacity();
            self.count()?;
        }
        self.input.resize(len + CHUNK, 0);
        Ok(len)
    }

    /// Counts what the session keeps in memory.
    pub(crate) fn count(&mut self) -> Result<()> {
        self.purse.count(self.kept, self.lease.as_ref().map(|lease| lease.account()))
    }

    /// Counts what the session keeps until its next request. It is not more than before.
    pub(crate) fn count_rest(&mut self) {
        let rows = self.portals.iter().map(|(_, portal)| portal.state.bytes()).sum();
        let bound: usize = self.portals.iter().map(|(_, portal)| portal.size).sum();
        if self.prepared.len() != self.prepared_counted.0 {
            let bytes = self.prepared.iter().map(|(_, plan)| plan.size).sum();
            self.prepared_counted = (self.prepared.len(), bytes);
        }
        let objects = bound + self.prepared_counted.1;
        let (input, stream) = (self.input.capacity(), self.kept.stream);
        let kept = Kept { input, output: 0, objects, rows, stream };
        if kept != self.kept {
            self.kept = kept;
            // What cannot be counted was refused when it was made.
            let _ = self.count();
        }
    }
}
