//! The ownership word: whether a watched thread owns its place and may run its code, in one atomic
//! word.
//!
//! ```text
//! mode    | the thread                               | may be revoked | the thread changes it to
//! RUNTIME | is inside the library, or parked         | no             | USER, REVOKED
//! USER    | runs user code, owns its place           | when blocked   | RUNTIME, CALL
//! CALL    | is in an interposed call, owns its place | when blocked   | USER
//! REVOKED | has lost its place, is not yet at a gate | no             | RUNTIME, at the gate
//!
//! a revoker changes USER and CALL to REVOKED
//! ```
//!
//! The bits above the mode are a count that grows with every change. A *revoker* (the watcher or
//! the watchdog) does three things in this order: it reads the word, it looks whether the thread is
//! blocked, and it exchanges exactly the word that it has read for REVOKED. A thread that wakes
//! passes a *gate* before it runs another instruction of user code, and passing adds one to the
//! count. So one of three things happens:
//!
//! * The thread woke and passed its gate before the exchange. Then the count differs, the exchange
//!   fails, and the thread continues.
//! * The thread woke and has not passed its gate yet. Then the exchange succeeds, the gate finds
//!   REVOKED, and the thread stops there.
//! * The revoker read the word after the thread had passed its gate. Then the revoker finds the
//!   thread awake, because waking is recorded before the gate and the revoker looks at the thread's
//!   state after it has read the word. This is why the word is read *before* the state.
//!
//! The model in `loom.rs` tries every order of these steps. What a thread does at the gate is in
//! `thread.rs`.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::os::atomic::AtomicU64;

const RUNTIME: u64 = 0;
const USER: u64 = 1;
const CALL: u64 = 2;
const REVOKED: u64 = 3;
const MODE: u64 = 3;
/// Adding this to the word counts one change.
const STEP: u64 = 4;

/// A word as a revoker has read it, or as its thread has written it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WordValue(u64);

impl WordValue {
    /// Returns whether the thread owned a place that may be revoked while the thread is blocked.
    pub fn is_revocable(self) -> bool {
        matches!(self.0 & MODE, USER | CALL)
    }

    /// Returns whether the thread was in an interposed call, which ends with a gate of its own.
    pub fn is_call(self) -> bool {
        self.0 & MODE == CALL
    }

    /// Returns a number that differs after every change of the word. It is not 0 if the place may
    /// be revoked.
    pub fn number(self) -> u64 {
        self.0
    }

    fn next(self, mode: u64) -> u64 {
        (self.0 & !MODE).wrapping_add(STEP) | mode
    }
}

/// The ownership word of one thread.
#[derive(Debug)]
pub struct Word(AtomicU64);

impl Word {
    /// Makes the word of a thread that is inside the library.
    pub fn new() -> Word {
        Word(AtomicU64::new(RUNTIME))
    }

    /// Reads the word, for [`Word::revoke`].
    pub fn seen(&self) -> WordValue {
        WordValue(self.0.load(Acquire))
    }

    /// Revokes the place of a thread that is blocked. Returns false if the word has changed since
    /// it was read.
    pub fn revoke(&self, seen: WordValue) -> bool {
        debug_assert!(seen.is_revocable());
        self.0.compare_exchange(seen.0, seen.next(REVOKED), AcqRel, Acquire).is_ok()
    }

    /// Called by the thread itself, at a gate. Returns true if the thread may continue. Returns
    /// false if it has lost its place; the word then says that the thread is inside the library.
    pub fn pass(&self) -> bool {
        self.step(|seen| seen.0 & MODE)
    }

    /// Called by the thread itself: enters the library. Returns false if the place was revoked
    /// before the entry, as `pass` does.
    pub fn enter(&self) -> bool {
        self.change(RUNTIME)
    }

    /// Called by the thread itself: begins an interposed call. Returns as `pass`.
    pub fn begin_call(&self) -> bool {
        self.change(CALL)
    }

    /// Called by the thread itself: ends an interposed call. Returns as `pass`.
    pub fn end_call(&self) -> bool {
        self.change(USER)
    }

    /// Called by the thread itself, inside the library and owning its place: leaves to user code.
    pub fn leave(&self) {
        let now = WordValue(self.0.load(Relaxed));
        debug_assert_eq!(now.0 & MODE, RUNTIME, "only a thread that is inside can leave");
        // No other thread changes the word in this mode.
        self.0.store(now.next(USER), Release);
    }

    /// Called by the thread itself, inside the library, after it has given its place up: leaves the
    /// library in the mode REVOKED, so that it stops at its next gate.
    pub fn lose(&self) {
        let now = WordValue(self.0.load(Relaxed));
        debug_assert_eq!(now.0 & MODE, RUNTIME, "only a thread that is inside can give up");
        self.0.store(now.next(REVOKED), Release);
    }

    /// Called by the thread itself: returns whether it is in user code.
    pub fn in_user(&self) -> bool {
        self.0.load(Relaxed) & MODE == USER
    }

    /// Called by the thread itself: returns whether it is inside the library.
    pub fn in_runtime(&self) -> bool {
        self.0.load(Relaxed) & MODE == RUNTIME
    }

    fn change(&self, mode: u64) -> bool {
        self.step(|_| mode)
    }

    /// Called by the thread itself: changes to another mode, unless the place was revoked. Tries
    /// again if the word has changed meanwhile, as this thread's own signal handler may change it.
    fn step(&self, to: impl Fn(WordValue) -> u64) -> bool {
        loop {
            let now = WordValue(self.0.load(Relaxed));
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
    fn a_thread_inside_the_library_is_never_revocable() {
        let word = Word::new();
        assert!(!word.seen().is_revocable() && word.pass());
        word.leave();
        assert!(word.seen().is_revocable());
        assert!(word.enter());
        assert!(!word.seen().is_revocable());
    }

    #[test]
    fn after_a_gate_was_passed_the_revokers_exchange_fails_r1() {
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
        // The thread is inside the library now. The SIGTRAP that its own parking causes must not
        // stop it again (R7 in docs/design/races.md).
        assert!(word.pass());
    }

    #[test]
    fn a_call_that_was_revoked_ends_at_the_gate_and_one_that_was_not_continues() {
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
