//! Counts what the threads of a world do with the cache lines that they share.
//!
//! Each thread of a world counts as a processor with a cache without end, which is coherent: a
//! thread that writes a line takes it from all others, and a thread that reads a line of which
//! another thread has written a part fetches it. `noted.rs` tells this file of them.
//!
//! What this file does not do: it counts only atomics, and what else `os/counted.rs` is told of. It
//! knows no caches that are full, and no lines that are fetched ahead.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The size of a cache line, in bytes.
const LINE: usize = 64;

/// How many worlds count. Others must not be slower.
pub(super) static COUNTING: AtomicUsize = AtomicUsize::new(0);

/// What a thread does with a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It loads the word.
    Read,
    /// It stores a value.
    Write,
    /// It reads and writes the word at once (a *read-modify-write*).
    Change,
}

/// How threads of a world have used lines that more than one of them uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LineCounts {
    /// Read-modify-writes.
    pub changes: u64,
    /// Writes to a line that another thread has read or written since this one wrote to it.
    pub taken: u64,
    /// Reads of a line that another thread has written to since this one used it.
    pub fetched: u64,
}

#[derive(Default)]
struct Line {
    /// How often another thread became the writer.
    version: u64,
    /// The thread that wrote last, or that used the line first.
    writer: usize,
    /// Whether another thread has read the line since.
    is_read: bool,
    /// Whether more than one thread has used the line.
    is_shared: bool,
    /// The version that each thread has, except the writer.
    seen: HashMap<usize, u64>,
}

/// The lines of a world.
pub(super) struct Lines {
    lines: HashMap<usize, Line>,
    pub counts: LineCounts,
}

impl Lines {
    pub fn begin() -> Lines {
        COUNTING.fetch_add(1, Ordering::Relaxed);
        Lines { lines: HashMap::new(), counts: LineCounts::default() }
    }

    pub fn note(&mut self, me: usize, at: usize, access: Access) {
        let counts = &mut self.counts;
        let first = || Line { writer: me, ..Line::default() };
        let line = self.lines.entry(at / LINE).or_insert_with(first);
        line.is_shared |= line.writer != me;
        counts.changes += u64::from(line.is_shared && access == Access::Change);
        if access == Access::Read {
            if line.writer != me {
                line.is_read = true;
                counts.fetched +=
                    u64::from(line.seen.insert(me, line.version) != Some(line.version));
            }
        } else if line.writer != me || line.is_read {
            counts.taken += 1;
            line.version += 1;
            (line.writer, line.is_read) = (me, false);
        }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        COUNTING.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_moves_when_another_thread_writes_or_reads_it() {
        let mut lines = Lines::begin();
        let mut after = |me, at, access| {
            lines.note(me, at, access);
            let LineCounts { changes, taken, fetched } = lines.counts;
            (changes, taken, fetched)
        };
        assert_eq!(after(1, 0, Access::Change), (0, 0, 0), "only one thread uses it");
        assert_eq!(after(2, 63, Access::Read), (0, 0, 1));
        assert_eq!(after(2, 0, Access::Read), (0, 0, 1), "thread 2 has it");
        assert_eq!(after(1, 8, Access::Write), (0, 1, 1));
        assert_eq!(after(1, 8, Access::Change), (1, 1, 1), "no thread has read it since");
        assert_eq!(after(2, 0, Access::Read), (1, 1, 2));
        assert_eq!(after(2, 0, Access::Change), (2, 2, 2));
        assert_eq!(after(1, 64, Access::Write), (2, 2, 2), "another line");
    }
}
