//! The ownership word: who may run a watched thread's code, in one atomic word.
//!
//! ```text
//! mode    | the thread                              | may be revoked | who leaves it, to what
//! RUNTIME | is inside the machine, or parked        | no             | itself -> USER, REVOKED
//! USER    | runs the user's code, owns its place    | when blocked   | itself -> RUNTIME, CALL; revoker -> REVOKED
//! CALL    | is in an interposed call, owns its place| when blocked   | itself -> USER; revoker -> REVOKED
//! REVOKED | has lost its place, and does not know   | no             | itself, at the gate -> RUNTIME
//! ```
//!
//! Above the mode stands a count that grows with every change. A revoker reads the word (*seen*),
//! looks whether the thread is blocked, and exchanges exactly what it has seen. A thread that wakes
//! passes a *gate* before it runs another instruction of the user's, and passing adds one. So:
//!
//! * It woke and passed before the exchange: the count differs, the exchange fails, it goes on.
//! * It woke and has not passed: the exchange succeeds, the gate finds REVOKED, it stops there.
//! * Seen after it passed: then the look at its state, which comes later, finds it awake, because
//!   waking is recorded before the gate. Hence the word is read *before* the state.
//!
//! The model in `loom.rs` tries all of this. What a thread does at the gate is not told here.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::os::atomic::AtomicU64;

const RUNTIME: u64 = 0;
const USER: u64 = 1;
const CALL: u64 = 2;
const REVOKED: u64 = 3;
const MODE: u64 = 3;
/// One more change.
const STEP: u64 = 4;

/// A word as a revoker saw it, or as its thread left it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen(u64);

impl Seen {
    /// Whether its thread owned a place and may lose it.
    pub fn is_revocable(self) -> bool {
        matches!(self.0 & MODE, USER | CALL)
    }

    /// Whether its thread was in an interposed call, which has a gate at its end by itself.
    pub fn is_call(self) -> bool {
        self.0 & MODE == CALL
    }

    /// A number that is the same only for the same sight of the same word; never 0 when revocable.
    pub fn number(self) -> u64 {
        self.0
    }

    fn next(self, mode: u64) -> u64 {
        (self.0 & !MODE).wrapping_add(STEP) | mode
    }
}

/// Who may run a thread's code.
#[derive(Debug)]
pub struct Word(AtomicU64);

impl Word {
    /// The word of a thread inside the machine.
    pub fn new() -> Word {
        Word(AtomicU64::new(RUNTIME))
    }

    /// Reads it, for [`Word::revoke`].
    pub fn seen(&self) -> Seen {
        Seen(self.0.load(Acquire))
    }

    /// Takes the place away from a thread that is blocked. False: it has moved since.
    pub fn revoke(&self, seen: Seen) -> bool {
        debug_assert!(seen.is_revocable());
        self.0.compare_exchange(seen.0, seen.next(REVOKED), AcqRel, Acquire).is_ok()
    }

    /// Own thread, at a gate: true, go on; false, the place is lost, and the thread is inside the
    /// machine from here on.
    pub fn pass(&self) -> bool {
        self.step(|seen| seen.0 & MODE)
    }

    /// Own thread: into the machine. False: the place was lost on the way, as `pass`.
    pub fn enter(&self) -> bool {
        self.change(RUNTIME)
    }

    /// Own thread: begins an interposed call. False: as `pass`.
    pub fn begin_call(&self) -> bool {
        self.change(CALL)
    }

    /// Own thread: an interposed call is over. False: as `pass`.
    pub fn end_call(&self) -> bool {
        self.change(USER)
    }

    /// Own thread, inside the machine and owning its place: into the user's code.
    pub fn leave(&self) {
        let now = Seen(self.0.load(Relaxed));
        debug_assert_eq!(now.0 & MODE, RUNTIME, "only who is inside can leave");
        // Nobody else changes the word in this mode.
        self.0.store(now.next(USER), Release);
    }

    /// Own thread, inside the machine, which has given its place up: on, to its next gate.
    pub fn lose(&self) {
        let now = Seen(self.0.load(Relaxed));
        debug_assert_eq!(now.0 & MODE, RUNTIME, "only who is inside can give up");
        self.0.store(now.next(REVOKED), Release);
    }

    /// Own thread: whether it is in the user's code, by its own account.
    pub fn in_user(&self) -> bool {
        self.0.load(Relaxed) & MODE == USER
    }

    /// Own thread: whether it is inside the machine.
    pub fn in_runtime(&self) -> bool {
        self.0.load(Relaxed) & MODE == RUNTIME
    }

    fn change(&self, mode: u64) -> bool {
        self.step(|_| mode)
    }

    /// Own thread: to another mode, unless the place was lost. Tried again when this thread's own
    /// signal handler has come between.
    fn step(&self, to: impl Fn(Seen) -> u64) -> bool {
        loop {
            let now = Seen(self.0.load(Relaxed));
            let (next, result) = match now.0 & MODE {
                RUNTIME => return true,
                REVOKED => (RUNTIME, false),
                _ => (to(now), true),
            };
            if self.0.compare_exchange(now.0, now.next(next), AcqRel, Acquire).is_ok() {
                return result;
            }
        }
    }
}

#[cfg(all(test, loom))]
#[path = "loom.rs"]
mod loom;
#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_inside_the_machine_is_never_revocable() {
        let word = Word::new();
        assert!(!word.seen().is_revocable() && word.pass());
        word.leave();
        assert!(word.seen().is_revocable());
        assert!(word.enter());
        assert!(!word.seen().is_revocable());
    }

    #[test]
    fn a_gate_passed_since_spoils_the_revokers_exchange_r1() {
        let word = Word::new();
        word.leave();
        let seen = word.seen();
        assert!(word.pass());
        assert!(!word.revoke(seen));
        assert!(word.in_user());
    }

    #[test]
    fn a_revoked_thread_stops_at_the_gate_once_r2() {
        let word = Word::new();
        word.leave();
        assert!(word.revoke(word.seen()));
        assert!(!word.pass());
        // Inside the machine now: the trap of its own park must not stop it again (R7).
        assert!(word.pass());
    }

    #[test]
    fn a_call_that_was_revoked_ends_at_the_gate_and_one_that_was_not_goes_on() {
        let word = Word::new();
        word.leave();
        assert!(word.begin_call() && word.seen().is_call());
        assert!(word.end_call() && word.in_user());
        assert!(word.begin_call());
        assert!(word.revoke(word.seen()));
        assert!(!word.end_call());
        assert!(word.in_runtime());
    }

    #[test]
    fn of_two_revokers_one_wins() {
        let word = Word::new();
        word.leave();
        let (one, two) = (word.seen(), word.seen());
        assert!(word.revoke(one));
        assert!(!word.revoke(two));
    }
}
