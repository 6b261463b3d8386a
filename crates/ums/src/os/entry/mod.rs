//! Entries into the library: whether a worker's thread is inside it, and how its scheduler's baton
//! is taken while it is outside.
//!
//! A worker that is *inside* may touch what only the baton's holder may touch. A worker that is
//! *outside* runs application code and touches nothing of that. It keeps the baton there, and may
//! be blocked in the kernel for long. Then a *taker*, one thread of the process, takes the baton
//! from it, and the worker learns that at its next entry.
//!
//! ```text
//! HELD  | the worker has the baton, as far as it knows
//! ASKED | the taker takes the baton, if the worker is outside
//! TAKEN | the worker has lost the baton, and does not know yet
//!
//! the worker, at each entry                    the taker
//! E1 depth := depth + 1                        T1 HELD -> ASKED
//! E2 (no instruction)                          T2 membarrier: a barrier on all threads
//! E3 not HELD? ASKED -> HELD, or it was taken  T3 depth = 0? and may it be taken?
//!    ... uses the scheduler ...                T4 ASKED -> TAKEN, else ASKED -> HELD
//! L1 depth := depth - 1
//! ```
//!
//! * *Exactly one of them has the baton.* T2 stands between T1 and T3 on the taker, and for the
//!   worker between E1 and E3, or before E1, or after E3. An entry whose E1 comes before the
//!   barrier is seen at T3, unless it has been left. An entry whose E1 comes after it sees ASKED at
//!   E3 and takes it back, so T4 fails; or it comes after T4 and sees TAKEN.
//! * *What the taker finds is in order.* L1 is a release and T3 an acquire, so the taker sees
//!   everything that the worker did inside. Until T4 nothing of that changes, for a worker changes
//!   it inside only.
//! * *An entry within an entry never finds TAKEN*, for T3 has found depth 0. So a worker that holds
//!   a short lock (which is an entry) keeps its baton, and an operation of several steps needs one
//!   entry around them.
//!
//! There is one taker, so HELD -> ASKED -> HELD cannot come back to a taker that has slept. The
//! model in `entry/loom.rs` tries all of this.
//!
//! What a worker does that finds TAKEN is not decided here: the scheduler sets a function for that
//! ([`return_with`]).

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use super::atomic::AtomicU32;

const HELD: u32 = 0;
const ASKED: u32 = 1;
const TAKEN: u32 = 2;

/// The entries of one worker's thread.
#[derive(Debug)]
pub struct Entry {
    /// How many entries its thread is in, one within the other. Written by that thread.
    depth: AtomicU32,
    word: AtomicU32,
}

impl Default for Entry {
    fn default() -> Entry {
        Entry::new()
    }
}

impl Entry {
    /// Makes the entry of a thread that is outside.
    pub fn new() -> Entry {
        Entry { depth: AtomicU32::new(0), word: AtomicU32::new(HELD) }
    }

    /// Prepares it for a thread that does not exist yet, and will begin inside.
    pub fn begin_inside(&self) {
        self.depth.store(1, Relaxed);
        self.word.store(HELD, Relaxed);
    }

    /// Returns whether its thread is outside. Then the caller sees everything that the thread did
    /// inside.
    #[inline]
    pub fn is_outside(&self) -> bool {
        self.depth.load(Acquire) == 0
    }

    /// E1 and E2. Returns whether the word is HELD.
    #[inline(always)]
    fn step_in(&self) -> bool {
        self.depth.store(self.depth.load(Relaxed) + 1, Relaxed);
        light_fence();
        self.word.load(Acquire) == HELD
    }

    /// E1 to E3. Returns false if the baton was taken; then the thread is inside without it.
    #[cfg(test)]
    fn enter(&self) -> bool {
        self.step_in() || self.keep()
    }

    /// E3, if the word is not HELD. Returns whether the baton is kept.
    fn keep(&self) -> bool {
        let now = self.word.compare_exchange(ASKED, HELD, AcqRel, Acquire);
        matches!(now, Ok(_) | Err(HELD))
    }

    /// L1.
    #[inline(always)]
    fn leave(&self) {
        self.depth.store(self.depth.load(Relaxed) - 1, Release);
    }

    /// T1 to T4. `barrier` is T2. Returns true if the caller has the baton; then what `may` found
    /// still holds. Called by one thread of the process.
    pub fn take(&self, barrier: impl FnOnce(), may: impl FnOnce() -> bool) -> bool {
        if self.word.compare_exchange(HELD, ASKED, AcqRel, Acquire).is_err() {
            return false;
        }
        barrier();
        let to = if self.is_outside() && may() { TAKEN } else { HELD };
        self.word.compare_exchange(ASKED, to, AcqRel, Acquire).is_ok() && to == TAKEN
    }

    /// Returns true if the baton was taken from this thread since the last call. Called by the
    /// thread that owns the entry, inside the library.
    pub fn was_taken(&self) -> bool {
        self.word.compare_exchange(TAKEN, HELD, AcqRel, Acquire).is_ok()
    }
}

/// E2. The taker's barrier orders both processors; here the compiler must keep the two accesses in
/// order.
#[inline(always)]
fn light_fence() {
    #[cfg(loom)]
    super::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    #[cfg(not(loom))]
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
}

thread_local! {
    static MINE: Cell<Option<&'static Entry>> = const { Cell::new(None) };
}

static RETURN: OnceLock<fn()> = OnceLock::new();

/// Sets the function that is called on a thread that finds at an entry that the baton was taken. It
/// returns with the baton.
pub fn return_with(call: fn()) {
    let _ = RETURN.set(call);
}

/// Sets the entry of the calling thread.
pub fn enter_by(entry: Option<&'static Entry>) {
    MINE.set(entry);
}

/// Returns the entry of the calling thread, if it is a worker's.
#[inline]
pub fn mine() -> Option<&'static Entry> {
    MINE.get()
}

/// Returns whether the calling thread is inside.
#[inline]
pub fn is_inside() -> bool {
    MINE.get().is_some_and(|mine| mine.depth.load(Relaxed) > 0)
}

/// Keeps the calling worker's thread inside as long as this lives.
#[derive(Debug)]
#[must_use = "dropping it is leaving"]
pub struct Inside {
    entry: &'static Entry,
    here: std::marker::PhantomData<*const ()>,
}

impl Inside {
    /// Enters. A worker whose baton was taken has it again when this returns. Returns None if the
    /// thread is no worker's.
    #[inline(always)]
    pub fn enter() -> Option<Inside> {
        let entry = MINE.get()?;
        if !entry.step_in() {
            see(entry);
        }
        Some(Inside { entry, here: std::marker::PhantomData })
    }
}

impl Drop for Inside {
    #[inline(always)]
    fn drop(&mut self) {
        self.entry.leave();
    }
}

/// E3, if the word is not HELD.
#[cold]
#[inline(never)]
fn see(entry: &Entry) {
    if !entry.keep() {
        RETURN.get().expect("`return_with` is called before a baton is taken")();
    }
}

/// Runs application code on a thread that is inside: it is outside meanwhile. `f` must not panic.
pub fn outside<R>(f: impl FnOnce() -> R) -> R {
    let entry = MINE.get();
    if let Some(entry) = entry {
        entry.leave();
    }
    let result = f();
    // Inside as before; only the step of leaving is omitted.
    std::mem::forget(Inside::enter());
    result
}

#[cfg(all(test, loom))]
mod loom;
#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_is_inside_keeps_its_baton() {
        let entry = Entry::new();
        assert!(entry.enter());
        assert!(!entry.take(|| (), || true));
        entry.leave();
        assert!(!entry.take(|| (), || false), "the taker found a reason not to");
        assert!(entry.enter(), "and nothing is left of that");
    }

    #[test]
    fn a_worker_that_enters_while_it_is_asked_keeps_its_baton() {
        let entry = Entry::new();
        let taken = entry.take(
            || {
                assert!(entry.enter());
                entry.leave();
            },
            || true,
        );
        assert!(!taken);
    }

    #[test]
    fn a_worker_that_was_taken_finds_that_once() {
        let entry = Entry::new();
        assert!(entry.take(|| (), || true));
        assert!(!entry.take(|| (), || true), "nothing is left to be taken");
        assert!(!entry.enter());
        assert!(entry.was_taken() && !entry.was_taken());
        entry.leave();
        assert!(entry.enter());
    }

    #[test]
    fn a_thread_that_counts_knows_whether_it_is_inside() {
        static ENTRY: OnceLock<Entry> = OnceLock::new();
        drop(Inside::enter());
        assert!(!is_inside(), "it is no worker's");
        enter_by(Some(ENTRY.get_or_init(Entry::new)));
        let (a, b) = (Inside::enter(), Inside::enter());
        drop(a);
        assert!(is_inside());
        outside(|| assert!(!is_inside()));
        assert!(is_inside());
        drop(b);
        assert!(!is_inside());
        enter_by(None);
    }
}
