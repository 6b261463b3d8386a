//! Entries into the library: whether a worker's thread is inside the library, and how its
//! scheduler's baton is taken from it while it is outside.
//!
//! A worker that is *inside* may touch the data that only the baton's holder may touch. A worker
//! that is *outside* runs application code and touches nothing of that. It keeps the baton
//! meanwhile, but it may block in the kernel for long. Then a *taker*, which is one thread of the
//! process, takes the baton from it, and the worker finds that out at its next entry.
//!
//! ```text
//! HELD  | the worker has the baton
//! ASKED | the taker is trying to take the baton, and succeeds if the worker is outside
//! TAKEN | the worker has lost the baton, and has not found that out yet
//!
//! the worker, at each entry                    the taker
//! E1 depth := depth + 1                        T1 HELD -> ASKED
//! E2 (no instruction)                          T2 membarrier: a barrier on all threads
//! E3 not HELD? ASKED -> HELD, or it was taken  T3 depth = 0? and may it be taken?
//!    ... uses the scheduler ...                T4 ASKED -> TAKEN, else ASKED -> HELD
//! L1 depth := depth - 1
//! ```
//!
//! * *The worker and the taker never both have the baton.* The barrier T2 takes effect at one
//!   moment of the worker's execution, and the taker executes T1 before that moment and T3 after
//!   it. If the worker's E1 comes before the moment, T3 sees depth > 0, unless the worker has left
//!   again. If E1 comes after it, E3 sees ASKED and changes it back to HELD, so that T4 fails; or
//!   E3 comes after T4 and sees TAKEN.
//! * *The taker sees everything that the worker did inside*, because L1 is a release store and T3
//!   an acquire load. Nothing of that changes before T4, because a worker changes it only inside.
//! * *An entry within an entry never finds TAKEN*, because T4 takes the baton only if T3 has found
//!   depth 0. So a worker that holds a short lock (which includes an entry) keeps its baton. For
//!   the same reason an operation of several steps needs one entry around all of them.
//!
//! The process has only one taker. So while a taker is between T1 and T4, no other thread can
//! change the word from HELD to ASKED again. The model in `entry/loom.rs` tries all of this.
//!
//! This file does not decide what a worker that finds TAKEN does next: the scheduler sets a
//! function for that ([`return_with`]).

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use super::atomic::AtomicU32;

const HELD: u32 = 0;
const ASKED: u32 = 1;
const TAKEN: u32 = 2;

/// The entry state of one worker's thread.
#[derive(Debug)]
pub struct Entry {
    /// How many entries the thread is in, one within the other. Only that thread writes this.
    depth: AtomicU32,
    word: AtomicU32,
}

impl Default for Entry {
    fn default() -> Entry {
        Entry::new()
    }
}

impl Entry {
    /// Makes the state of a thread that is outside.
    pub fn new() -> Entry {
        Entry { depth: AtomicU32::new(0), word: AtomicU32::new(HELD) }
    }

    /// Resets the state for a thread that does not exist yet and that will begin inside.
    pub fn begin_inside(&self) {
        self.depth.store(1, Relaxed);
        self.word.store(HELD, Relaxed);
    }

    /// Returns whether the thread is outside. If it is, the caller sees everything that the thread
    /// did inside.
    #[inline]
    pub fn is_outside(&self) -> bool {
        self.depth.load(Acquire) == 0
    }

    /// Steps E1 and E2. Returns whether the word is HELD.
    #[inline(always)]
    fn step_in(&self) -> bool {
        self.depth.store(self.depth.load(Relaxed) + 1, Relaxed);
        light_fence();
        self.word.load(Acquire) == HELD
    }

    /// Steps E1 and E2, and L1 if the word is not HELD. Returns whether the thread is inside.
    #[inline(always)]
    fn enter_at_once(&self) -> bool {
        let held = self.step_in();
        if !held {
            self.leave();
        }
        held
    }

    /// Steps E1 to E3. Returns false if the baton was taken; then the thread is inside without it.
    #[cfg(test)]
    fn enter(&self) -> bool {
        self.step_in() || self.keep()
    }

    /// Step E3 for a word that is not HELD. Returns whether the worker keeps the baton.
    fn keep(&self) -> bool {
        let now = self.word.compare_exchange(ASKED, HELD, AcqRel, Acquire);
        matches!(now, Ok(_) | Err(HELD))
    }

    /// Step L1.
    #[inline(always)]
    fn leave(&self) {
        self.depth.store(self.depth.load(Relaxed) - 1, Release);
    }

    /// Steps T1 to T4; `barrier` is T2. Returns true if the caller has taken the baton; the
    /// condition that `may` has checked then still holds. Only one thread of the process calls
    /// this.
    pub fn take(&self, barrier: impl FnOnce(), may: impl FnOnce() -> bool) -> bool {
        if self.word.compare_exchange(HELD, ASKED, AcqRel, Acquire).is_err() {
            return false;
        }
        barrier();
        let to = if self.is_outside() && may() { TAKEN } else { HELD };
        self.word.compare_exchange(ASKED, to, AcqRel, Acquire).is_ok() && to == TAKEN
    }

    /// Returns true if the baton was taken from this thread since the last call. Only the thread
    /// itself calls this, inside the library.
    pub fn was_taken(&self) -> bool {
        self.word.compare_exchange(TAKEN, HELD, AcqRel, Acquire).is_ok()
    }
}

/// Step E2. The taker's barrier orders the accesses of both processors. Here only the compiler must
/// keep the two accesses in order.
#[inline(always)]
pub(super) fn light_fence() {
    #[cfg(loom)]
    super::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    #[cfg(not(loom))]
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
}

/// What every entry reads of its thread. It is in one cache line, because each worker with its own
/// context has thread-locals of its own: among many, each line more is one to be fetched at a
/// switch.
#[repr(align(32))]
struct OfThread {
    entry: Cell<Option<&'static Entry>>,
    /// An address that stands for the thread's scheduler, which this file does not know.
    scheduler: Cell<*const ()>,
    holder: Cell<u32>,
}

thread_local! {
    static MINE: OfThread = const { OfThread {
        entry: Cell::new(None),
        scheduler: Cell::new(std::ptr::null()),
        holder: Cell::new(NO_HOLDER),
    } };
}

impl OfThread {
    #[inline(always)]
    fn entry(&self) -> Option<&'static Entry> {
        self.entry.get()
    }
}

/// Sets the address that stands for the scheduler of the calling thread; null if it has none. Only
/// `scheduler::set_here` calls this, because the scheduler reads the address as one of its own.
pub fn belong_to(scheduler: *const ()) {
    MINE.with(|mine| mine.scheduler.set(scheduler));
}

/// Returns the address that [`belong_to`] has set.
#[inline(always)]
pub fn scheduler() -> *const () {
    MINE.with(|mine| mine.scheduler.get())
}

/// Returns the address of what every entry of the calling thread reads.
pub fn place() -> usize {
    MINE.with(|mine| std::ptr::from_ref(mine).addr())
}

#[inline(always)]
fn holder() -> u32 {
    MINE.with(|mine| mine.holder.get())
}

/// The number that stands for a thread without a baton. No lock is ever biased to it (`bias`).
pub const NO_HOLDER: u32 = u32::MAX - 1;

/// Sets the number that names the calling thread as a holder of its scheduler's baton, or
/// [`NO_HOLDER`]. No other scheduler of the process has or had this number.
pub fn hold_as(number: u32) {
    MINE.with(|mine| mine.holder.set(number));
}

static RETURN: OnceLock<fn()> = OnceLock::new();

/// Sets the function that a thread calls when it finds at an entry that its baton was taken. When
/// the function returns, the thread has the baton again.
pub fn return_with(call: fn()) {
    let _ = RETURN.set(call);
}

/// Sets the entry state that the calling thread uses; `None` if the thread is no worker's.
pub fn enter_by(entry: Option<&'static Entry>) {
    MINE.with(|mine| mine.entry.set(entry));
}

/// Returns the entry state of the calling thread, if the thread is a worker's.
#[inline]
pub fn mine() -> Option<&'static Entry> {
    MINE.with(OfThread::entry)
}

/// Returns whether the calling thread is inside. False on a thread that is no worker's.
#[inline]
pub fn is_inside() -> bool {
    MINE.with(OfThread::entry).is_some_and(|mine| mine.depth.load(Relaxed) > 0)
}

/// Keeps the calling worker's thread inside the library while this value lives.
#[derive(Debug)]
#[must_use = "dropping it is leaving"]
pub struct Inside {
    entry: &'static Entry,
    here: PhantomData<*const ()>,
}

impl Inside {
    /// Enters. If the worker's baton was taken, waits until the worker has it again. Returns `None`
    /// on a thread that is no worker's.
    #[inline(always)]
    pub fn enter() -> Option<Inside> {
        let entry = MINE.with(OfThread::entry)?;
        if !entry.step_in() {
            see(entry);
        }
        Some(Inside { entry, here: PhantomData })
    }

    /// Enters, if the taker has not asked for the baton. Otherwise returns `None`, also on a thread
    /// that is no worker's; the caller then calls [`Inside::enter`]. For a function whose usual
    /// path should call no other, and so save no registers.
    #[inline(always)]
    pub fn enter_at_once() -> Option<Inside> {
        let entry = MINE.with(OfThread::entry)?;
        entry.enter_at_once().then_some(entry).map(|entry| Inside { entry, here: PhantomData })
    }

    /// Returns the number of the scheduler whose baton the calling thread has, and keeps as long as
    /// it is inside. [`NO_HOLDER`] if it has none.
    #[inline(always)]
    pub fn holder(&self) -> BatonNumber<'_> {
        BatonNumber { number: holder(), inside: PhantomData }
    }

    /// Returns the same for a caller that knows the number of its scheduler.
    #[inline(always)]
    pub fn holder_is(&self, number: u32) -> BatonNumber<'_> {
        debug_assert_eq!(number, holder(), "the number is that of another holder");
        BatonNumber { number, inside: PhantomData }
    }
}

/// The number by which short locks know the holder of a scheduler's baton, as long as it is inside.
#[derive(Clone, Copy, Debug)]
pub struct BatonNumber<'a> {
    number: u32,
    inside: PhantomData<&'a Inside>,
}

impl BatonNumber<'_> {
    /// Returns the number; [`NO_HOLDER`] if the thread has no baton.
    #[inline(always)]
    pub fn number(self) -> u32 {
        self.number
    }
}

impl Drop for Inside {
    #[inline(always)]
    fn drop(&mut self) {
        self.entry.leave();
    }
}

/// Step E3 for a word that is not HELD.
#[cold]
#[inline(never)]
fn see(entry: &Entry) {
    if !entry.keep() {
        RETURN.get().expect("`return_with` is called before a baton is taken")();
    }
}

/// Runs application code on a thread that is inside; the thread is outside while `f` runs. `f` must
/// not panic.
pub fn outside<R>(f: impl FnOnce() -> R) -> R {
    let entry = MINE.with(OfThread::entry);
    if let Some(entry) = entry {
        entry.leave();
    }
    let result = f();
    // The thread stays inside, so the guard must not be dropped, which would leave.
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
