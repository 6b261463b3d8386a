//! Messages to the operator of the program. All messages of one line that this library writes to
//! stderr are written here. (The monitor's reports and the backtraces for SIGUSR2 are long, and
//! have threads of their own, which may wait for stderr.)
//!
//! ```text
//! let message = format_args!("scheduler '{name}' could not create a worker: {error}");
//! report::warn(WarningKind::NoWorker, message)
//! ums: scheduler '0' could not create a worker: out of memory (3 like it left out)
//! ```
//!
//! *How to use it.* A message says what is wrong and what to do about it. The caller adds neither
//! `ums: ` nor a newline; this file adds both. A caller with a scheduler uses `Scheduler::warn`,
//! because the node may have been built with [`warnings(false)`](crate::Builder::warnings).
//! [`say`] is for a message that is written once in a process, or just before it aborts: it has no
//! rate limit and cannot be turned off.
//!
//! *What it guarantees.* It never panics, allocates or takes a lock, so it can be called anywhere:
//! by the holder of a scheduler's baton, and in the middle of a turn. It never waits: a message
//! that stderr does not accept immediately is left out. A message is one `write`, and is cut at
//! [`LENGTH_MAX`] bytes. In any [`PAUSE_NS`], one message of each [`WarningKind`] is written; the
//! next one says how many were left out before it.
//!
//! In a simulation nothing is written, because a campaign runs thousands of simulated worlds.

use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::os::clock;
use crate::os::stderr::write_now;

/// Longer messages are cut. A pipe accepts this many bytes in one piece.
const LENGTH_MAX: usize = 1024;
/// The pause between two messages of one kind: 10 s. Messages about clients have a tenth of it.
const PAUSE_NS: u64 = 10_000_000_000;

/// The subject of a message. Each kind has its own rate limit.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WarningKind {
    /// The system refused a worker, or another thread.
    NoWorker,
    /// A scheduler has as many workers as it is allowed to have.
    WorkerLimit,
    /// Every worker waits, and requests wait for a worker.
    Standstill,
    /// The system refused a file descriptor.
    Descriptors,
    /// A worker does not yield.
    Stall,
    /// Application code panicked, and the library caught the panic.
    Panicked,
    /// An option could not be applied.
    Setup,
    /// What a client of a server did wrong, such as a failed login.
    Client,
    /// The end of a node takes long.
    Ending,
}

impl WarningKind {
    /// Returns how long no further message of this kind is written.
    fn pause_ns(self) -> u64 {
        if matches!(self, WarningKind::Client) { PAUSE_NS / 10 } else { PAUSE_NS }
    }
}

/// The rate limit of one kind of messages.
struct Gate {
    /// The time until which no message of this kind is written.
    closed_until: AtomicU64,
    left_out: AtomicU64,
}

impl Gate {
    const fn open() -> Gate {
        Gate { closed_until: AtomicU64::new(0), left_out: AtomicU64::new(0) }
    }

    /// Returns whether a message may be written now. Of several callers at once, one gets true.
    fn passes(&self, now: u64, pause: u64) -> bool {
        let until = self.closed_until.load(Ordering::Relaxed);
        let next = now.saturating_add(pause);
        now >= until
            && self
                .closed_until
                .compare_exchange(until, next, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    fn tell(
        &self,
        (now, pause): (u64, u64),
        text: fmt::Arguments<'_>,
        write: impl FnOnce(&[u8]) -> bool,
    ) {
        if !self.passes(now, pause) {
            self.left_out.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let left_out = self.left_out.swap(0, Ordering::Relaxed);
        let line = match left_out {
            0 => Line::of(format_args!("{text}")),
            n => Line::of(format_args!("{text} ({n} like it left out)")),
        };
        if !write(line.bytes()) {
            self.left_out.fetch_add(left_out + 1, Ordering::Relaxed);
        }
    }
}

static GATES: [Gate; 9] = [const { Gate::open() }; 9];

/// Returns whether a message of this kind would be left out now, so that a caller can avoid the
/// work of composing it.
pub(crate) fn is_closed(kind: WarningKind) -> bool {
    clock::now() < GATES[kind as usize].closed_until.load(Ordering::Relaxed)
}

/// Writes a message to stderr, unless one of its kind was written less than [`PAUSE_NS`] ago.
#[cold]
pub(crate) fn warn(kind: WarningKind, text: fmt::Arguments<'_>) {
    if crate::os::sim::is_here() {
        return;
    }
    GATES[kind as usize].tell((clock::now(), kind.pause_ns()), text, write_now);
}

/// Writes a message that is the only one of its kind in this process, because it is written once or
/// the process is about to abort.
#[cold]
pub(crate) fn say(text: fmt::Arguments<'_>) {
    write_now(Line::of(text).bytes());
}

/// A message, composed in the caller's stack frame.
struct Line {
    text: [u8; LENGTH_MAX],
    len: usize,
}

impl Line {
    fn of(text: fmt::Arguments<'_>) -> Line {
        let mut line = Line { text: [0; LENGTH_MAX], len: 0 };
        // The part that does not fit is cut off.
        let _ = write!(line, "ums: {text}");
        line.text[line.len] = b'\n';
        line.len += 1;
        line
    }

    fn bytes(&self) -> &[u8] {
        &self.text[..self.len]
    }
}

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // One byte is reserved for the newline.
        let room = LENGTH_MAX - 1 - self.len;
        let taken = text.len().min(room);
        self.text[self.len..self.len + taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.len += taken;
        if taken == text.len() { Ok(()) } else { Err(fmt::Error) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(gate: &Gate, now: u64, text: &str, taken: bool) -> Option<String> {
        let mut said = None;
        gate.tell((now, PAUSE_NS), format_args!("{text}"), |bytes| {
            said = Some(String::from_utf8(bytes.to_vec()).unwrap());
            taken
        });
        said
    }

    #[test]
    fn the_next_sentence_tells_how_many_were_left_out() {
        let gate = Gate::open();
        assert_eq!(told(&gate, 5, "first", true).unwrap(), "ums: first\n");
        assert_eq!(told(&gate, 6, "second", true), None);
        assert_eq!(told(&gate, PAUSE_NS, "third", true), None);
        let fourth = told(&gate, PAUSE_NS + 5, "fourth", true).unwrap();
        assert_eq!(fourth, "ums: fourth (2 like it left out)\n");
        assert_eq!(told(&gate, 3 * PAUSE_NS, "fifth", true).unwrap(), "ums: fifth\n");
    }

    #[test]
    fn a_sentence_that_stderr_does_not_take_counts_as_left_out() {
        let gate = Gate::open();
        assert!(told(&gate, 0, "first", false).is_some());
        let second = told(&gate, PAUSE_NS, "second", true).unwrap();
        assert_eq!(second, "ums: second (1 like it left out)\n");
    }

    #[test]
    fn a_long_sentence_is_cut_and_ends_with_a_newline() {
        let line = Line::of(format_args!("{}", "a".repeat(2 * LENGTH_MAX)));
        assert_eq!((line.len, line.bytes().last()), (LENGTH_MAX, Some(&b'\n')));
    }
}
