//! A stack of a fiber: its addresses, the header above its first frame, and how deep it has been
//! used.
//!
//! ```text
//!   limit        low                           base    header           (colour)  top
//!     │  guard    │  usable, grows down  <----- │ fiber │ worker's name │          │
//! ```
//!
//! The *header* is two cache lines above the first frame. The first has what a switch needs of the
//! fiber that runs on the stack, and has room for the [`Fiber`] itself. So a switch finds both in
//! the page of the fiber's frames. The second has the worker's name for the fault handler, which
//! finds the header from the address of the fault. A switch does not touch the name.
//!
//! The *colour* is a distance of some cache lines that differs from stack to stack. Without it the
//! headers and the first frames of many stacks would fall into the same sets of the caches.
//! Measured with `examples/floor.rs`: a switch among 100 or 1,000 fibers costs 2.4 ns with colours
//! and 8 to 9 ns without; 8, 32 and 62 colours cost the same. More colours than these would push
//! the frames of a worker that waits out of the highest page.
//!
//! [`Fiber`]: crate::Fiber
//!
//! A [`Stack`] is the right to use memory that a pool has mapped. If a `Stack` is dropped and not
//! returned to its pool, that memory is leaked on purpose, and counted, because the pool cannot
//! know whether something still refers to it.
//!
//! Unsafe code: the header is an address; and `Stack` guarantees to the switch that its memory is
//! valid.
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};

use crate::registry::{self, Region};
use crate::sys;

/// Bytes for a fiber in the header: a cache line, and more if a sanitizer keeps something there.
pub(crate) const FIBER_ROOM: usize = if cfg!(any(asan, tsan)) { 128 } else { 64 };
/// Bytes for the name in the header: a cache line.
const NAME_ROOM: usize = 64;
/// Bytes of the header.
const HEADER: usize = FIBER_ROOM + NAME_ROOM;
/// The number of different colours, and the bytes between two of them: one cache line. Together
/// they take a quarter of a page.
const COLOURS: usize = 16;
const COLOUR_STEP: usize = 64;
/// Bytes above the first frame, at most.
pub(crate) const ABOVE_BASE: usize = HEADER + (COLOURS - 1) * COLOUR_STEP;

/// The longest text of a name that the header keeps, in bytes.
const NAME_MAX: usize = NAME_ROOM - size_of::<u32>() - 2;

static LEAKED: AtomicUsize = AtomicUsize::new(0);

/// Returns how many stacks this process has leaked on purpose: those of suspended fibers that were
/// dropped, and those that were dropped instead of returned to their pool.
///
/// ```
/// let before = fiber::leaked();
/// let mut pool = fiber::StackPool::new(fiber::StackConfig::default());
/// drop(pool.take()?);
/// assert!(fiber::leaked() > before);
/// # Ok::<(), fiber::StackError>(())
/// ```
pub fn leaked() -> usize {
    LEAKED.load(Relaxed)
}

/// Counts one stack that will never return to its pool.
pub(crate) fn count_leak() {
    LEAKED.fetch_add(1, Relaxed);
}

/// The addresses of a stack. It is a plain value: only a [`Stack`] is the right to use the memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Where the first frame starts.
    base: NonZeroUsize,
    /// Lowest address of the guard.
    guard_low: usize,
    /// Lowest usable address.
    pub(crate) low: usize,
    /// One past the highest address.
    pub(crate) top: usize,
    /// The slab's number in its pool.
    pub(crate) slab: u32,
    /// The size of the signal stack in the middle of the guard; 0 if there is none.
    signal: u32,
}

impl Place {
    /// Returns the stack in `region`.
    pub(crate) fn new(region: Region, slab: u32, signal: usize) -> Place {
        let base = NonZeroUsize::new(base_of(&region)).expect("no stack at address 0");
        let Region { guard_low, low, top, .. } = region;
        Place { base, guard_low, low, top, slab, signal: signal as u32 }
    }
}

/// A stack taken from a [`StackPool`](crate::StackPool), to be given to a fiber or back to the
/// pool.
///
/// Dropping it leaks it (see [`leaked`]).
#[derive(Debug)]
#[must_use = "a stack that is dropped and not given back is leaked"]
pub struct Stack {
    place: Place,
}

impl Stack {
    /// Returns the right to use the stack at `place`, which its pool has marked as out.
    pub(crate) fn claim(place: Place) -> Stack {
        Stack { place }
    }

    /// Gives the right up, and returns the addresses to the pool.
    pub(crate) fn into_place(self) -> Place {
        let place = self.place;
        std::mem::forget(self);
        place
    }

    /// Returns its usable bytes: at least the configured size.
    #[inline]
    pub fn size(&self) -> usize {
        self.place.base.get() - self.place.low
    }

    /// Returns how deep the stack has been used since its pages were last returned to the kernel:
    /// the bytes from the top to the lowest page that has been touched. Returns 0 for a stack that
    /// was never used.
    ///
    /// It asks the kernel which pages are in memory. So pages below the lowest one in memory do not
    /// count if they have been swapped out, and all of a precommitted stack counts.
    pub fn touched_bytes(&self) -> usize {
        self.range().touched_bytes().expect("a stack that is out is mapped")
    }

    /// Returns its range of addresses.
    pub fn range(&self) -> StackRange {
        StackRange { low: self.place.low, top: self.place.top }
    }

    /// Writes the name that the fault handler will print, cut to what the header holds.
    pub(crate) fn set_name(&mut self, name: Name<'_>) {
        let at = name_at(self.place.base.get());
        // SAFETY: Own Memory: only this `Stack` has the memory, and the header lies above the first
        // frame.
        unsafe { ptr::with_exposed_provenance_mut::<KeptName>(at).write(KeptName::of(name)) };
    }

    /// Returns the address of the header, which begins with the room for a fiber.
    pub(crate) fn header(&self) -> usize {
        self.place.base.get()
    }

    /// Starts a thread on this stack, which must come from a pool for threads
    /// ([`StackPool::for_threads`](crate::StackPool::for_threads)). The thread costs no mapping of
    /// its own, and an overflow of its stack is reported with its name.
    ///
    /// The thread is not one of `std`: [`std::thread::current`] shows no name. If `main` panics,
    /// the panic is reported as usual, and the thread ends.
    ///
    /// # Errors
    ///
    /// If the system refuses a thread. Then the stack comes back.
    ///
    /// # Panics
    ///
    /// If the stack is one for fibers.
    pub fn spawn(
        mut self,
        name: &str,
        main: impl FnOnce() + Send + 'static,
    ) -> Result<StackThread, (io::Error, Stack)> {
        let signal = self.place.signal as usize;
        assert_ne!(signal, 0, "a thread needs a stack of a pool for threads");
        self.set_name(Name::from(name));
        let Place { guard_low, low, base, .. } = self.place;
        let signal_low = guard_low + (low - guard_low - signal) / 2;
        let ended = Arc::new(AtomicBool::new(false));
        let (name, tell) = (name.to_owned(), Arc::clone(&ended));
        let main = Box::new(move || {
            sys::name_this_thread(&name);
            // SAFETY: Own Memory: the signal stack belongs to the stack of this thread, which is
            // given back when the thread has been joined.
            unsafe { sys::use_signal_stack(signal_low, signal) };
            // A panic was reported. The payload is not dropped, because that may panic again.
            catch_unwind(AssertUnwindSafe(main)).unwrap_or_else(std::mem::forget);
            tell.store(true, Release);
        });
        // SAFETY: Own Memory: only this `Stack` has the memory, and the thread's handle keeps it.
        match unsafe { sys::spawn_on(low, base.get(), main) } {
            Ok(thread) => Ok(StackThread { thread, ended, stack: Some(self) }),
            Err(error) => Err((error, self)),
        }
    }
}

/// A thread on a pooled stack ([`Stack::spawn`]).
///
/// If it is dropped without being joined, the stack is leaked (see [`leaked`]).
#[derive(Debug)]
#[must_use = "the stack of a thread that is not joined is leaked"]
pub struct StackThread {
    /// The C library's handle.
    thread: usize,
    /// Whether the thread's first function has returned.
    ended: Arc<AtomicBool>,
    /// Present until the thread has been joined.
    stack: Option<Stack>,
}

impl StackThread {
    /// Waits until the thread has ended, and returns its stack.
    ///
    /// # Panics
    ///
    /// If a thread joins itself.
    pub fn join(mut self) -> Stack {
        // SAFETY: Own Memory: the thread was not joined or detached, because the stack is present
        // until then.
        unsafe { sys::join(self.thread) };
        self.stack.take().expect("a thread is joined once")
    }

    /// Returns whether the thread's first function has returned. Then `join` waits for a moment at
    /// most.
    pub fn is_finished(&self) -> bool {
        self.ended.load(Acquire)
    }
}

impl Drop for StackThread {
    fn drop(&mut self) {
        if self.stack.is_some() {
            // SAFETY: Own Memory: as in `join`.
            unsafe { sys::detach(self.thread) };
        }
    }
}

/// The range of addresses of a stack. It may outlive the stack; then it describes whatever memory
/// is there.
///
/// ```
/// let range = fiber::StackRange::new(0x1000, 0x3000).expect("the low end is first");
/// assert_eq!((range.low(), range.top(), range.size()), (0x1000, 0x3000, 0x2000));
/// assert_eq!(fiber::StackRange::new(0x3000, 0x1000), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackRange {
    /// At most `top`.
    low: usize,
    top: usize,
}

impl StackRange {
    /// Returns the range from the lowest usable address to one past the highest, which need not be
    /// whole pages. Returns `None` if `low` is above `top`.
    pub const fn new(low: usize, top: usize) -> Option<StackRange> {
        if low <= top { Some(StackRange { low, top }) } else { None }
    }

    /// Returns its lowest usable address.
    pub const fn low(self) -> usize {
        self.low
    }

    /// Returns the address one past its highest.
    pub const fn top(self) -> usize {
        self.top
    }

    /// Returns whether this address is in the range.
    pub const fn contains(self, address: usize) -> bool {
        self.low <= address && address < self.top
    }

    /// Returns the stack of the calling thread, or `None` if the C library does not know it.
    pub fn of_this_thread() -> Option<StackRange> {
        let (low, len) = sys::thread_stack()?;
        StackRange::new(low, low.checked_add(len)?)
    }

    /// Returns the range of the pooled stack whose usable memory contains this address, or `None`
    /// if there is none. Async-signal-safe.
    pub fn of_fiber_at(address: usize) -> Option<StackRange> {
        let region = registry::find(address)?;
        let range = StackRange { low: region.low, top: region.top };
        range.contains(address).then_some(range)
    }

    /// Returns whether the calling code runs on this stack.
    pub fn is_here(self) -> bool {
        let here = 0u8;
        self.contains(ptr::from_ref(&here).addr())
    }

    /// Returns its size in bytes.
    pub fn size(self) -> usize {
        self.top - self.low
    }

    /// Returns the same as [`Stack::touched_bytes`], for this range; of the lowest page only the
    /// bytes in the range count. Returns `None` if part of the range is not mapped.
    pub fn touched_bytes(self) -> Option<usize> {
        Some(self.top - sys::lowest_resident(self.low, self.top)?)
    }
}

/// Returns the address of the header of this stack, which is also where its first frame starts.
pub(crate) fn base_of(region: &Region) -> usize {
    region.top - HEADER - (region.index % COLOURS) * COLOUR_STEP
}

fn name_at(header: usize) -> usize {
    header + FIBER_ROOM
}

/// Reads the name from a header. Async-signal-safe.
///
/// # Safety
///
/// `header` is the address of the header of a stack that is out, or whose slab is mapped and does
/// not change during the call.
pub(crate) unsafe fn read_name(header: usize) -> KeptName {
    // SAFETY: Contract. Plain Data: every bit pattern is a value of the type.
    unsafe { ptr::with_exposed_provenance::<KeptName>(name_at(header)).read_volatile() }
}

/// The name of a fiber: a text, and perhaps the number of one of several with the same text. It is
/// put together only when it is printed.
///
/// ```
/// assert_eq!(fiber::Name::from("worker 1").to_string(), "worker 1");
/// assert_eq!(fiber::Name::numbered("ums-0", 7).to_string(), "ums-0/7");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name<'a> {
    text: &'a str,
    number: Option<u32>,
}

impl<'a> Name<'a> {
    /// Returns the name that is printed as the text, a slash and the number.
    pub const fn numbered(text: &'a str, number: u32) -> Name<'a> {
        Name { text, number: Some(number) }
    }
}

impl<'a> From<&'a str> for Name<'a> {
    fn from(text: &'a str) -> Name<'a> {
        Name { text, number: None }
    }
}

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text)?;
        self.number.map_or(Ok(()), |number| write!(f, "/{number}"))
    }
}

/// A name as a header keeps it: every bit pattern is one.
#[repr(C)]
pub(crate) struct KeptName {
    number: u32,
    is_numbered: u8,
    len: u8,
    text: [u8; NAME_MAX],
}

impl KeptName {
    fn of(name: Name<'_>) -> KeptName {
        let len = sys::whole_characters(name.text, NAME_MAX);
        let mut text = [0; NAME_MAX];
        text[..len].copy_from_slice(&name.text.as_bytes()[..len]);
        let (number, is_numbered) = (name.number.unwrap_or(0), u8::from(name.number.is_some()));
        KeptName { number, is_numbered, len: len as u8, text }
    }

    /// Returns the name, for a message.
    pub(crate) fn get(&self) -> Name<'_> {
        let len = usize::from(self.len).min(NAME_MAX);
        let text = std::str::from_utf8(&self.text[..len]).unwrap_or("?");
        Name { text, number: (self.is_numbered != 0).then_some(self.number) }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        count_leak();
    }
}

// SAFETY: Own Memory: the memory from `low` to `base` is mapped, has at least `MIN_SIZE` bytes, is
// used by no other code, and stays mapped while this `Stack` exists. Every access to the guard
// below it faults. The base is aligned to 64 bytes.
unsafe impl corosensei::stack::Stack for Stack {
    #[inline]
    fn base(&self) -> NonZeroUsize {
        self.place.base
    }

    #[inline]
    fn limit(&self) -> NonZeroUsize {
        // A guard never starts at address 0: the kernel maps nothing there.
        NonZeroUsize::new(self.place.guard_low).unwrap_or(NonZeroUsize::MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::{StackConfig, StackPool};

    /// The configuration of pools for threads in these tests.
    const THREADS: StackConfig = StackConfig { size: 64 << 10, precommit: false, keep_warm: 4 };

    #[test]
    fn threads_run_on_pooled_stacks_and_give_them_back() {
        let mut pool = StackPool::for_threads(THREADS);
        for round in 0..3 {
            let threads: Vec<_> = (0..8)
                .map(|n| {
                    let stack = pool.take().expect("a stack");
                    let range = stack.range();
                    let main = move || {
                        assert!(range.is_here());
                        let own = StackRange::of_this_thread().expect("the C library knows it");
                        assert!(range.contains(own.low()) && own.top() <= range.top());
                        // The thread may use as much as was asked for.
                        assert!(own.size() >= 64 << 10, "{} bytes", own.size());
                        let comm = std::fs::read_to_string("/proc/thread-self/comm");
                        assert_eq!(comm.expect("the name").trim(), format!("pooled-{n}"));
                    };
                    stack.spawn(&format!("pooled-{n}"), main).map_err(|(error, _)| error)
                })
                .collect();
            for thread in threads {
                pool.give(thread.expect("a thread").join());
            }
            assert_eq!((pool.stats().taken, pool.stats().pooled), (0, 8), "round {round}");
        }
    }

    #[test]
    fn a_thread_that_panics_gives_its_stack_back_and_a_dropped_one_leaks_it() {
        let name =
            "stack::tests::a_thread_that_panics_gives_its_stack_back_and_a_dropped_one_leaks_it";
        crate::child::succeeds(name, || {
            let mut pool = StackPool::for_threads(THREADS);
            let start = |pool: &mut StackPool| {
                let stack = pool.take().expect("a stack");
                stack.spawn("careless", || panic!("the last straw")).expect("a thread")
            };
            let thread = start(&mut pool);
            while !thread.is_finished() {
                std::thread::yield_now();
            }
            pool.give(thread.join());
            assert_eq!(leaked(), 0);
            drop(start(&mut pool));
            assert_eq!((leaked(), pool.stats().taken), (1, 1));
        });
    }

    #[test]
    #[should_panic(expected = "a pool for threads")]
    fn no_thread_runs_on_a_stack_of_fibers() {
        let mut pool = StackPool::new(THREADS);
        let _ = pool.take().expect("a stack").spawn("misplaced", || ());
    }

    #[test]
    fn how_deep_a_stack_was_used_is_told_for_every_range_of_it() {
        let page = sys::page_size();
        let mut pool =
            StackPool::new(StackConfig { size: 64 << 10, precommit: false, keep_warm: 1 });
        let stack = pool.take().expect("a stack");
        let whole = stack.range();
        // The second page and everything above it is touched, so that ranges can begin below and
        // above the lowest touched page.
        let touched = whole.low + page;
        for at in (touched..whole.top - HEADER).step_by(page) {
            // SAFETY: Own Memory: the stack belongs to this test, and no fiber runs on it.
            unsafe { ptr::with_exposed_provenance_mut::<u8>(at).write(1) };
        }
        for low in [0, 1, page - 1, page, page + 1, 3 * page - 1].map(|n| whole.low + n) {
            for len in [0, 1, page - 1, page, page + 1, 2 * page + 1, 5 * page - 1] {
                let range = StackRange::new(low, low + len).expect("low is first");
                let expected = range.top - range.low.max(touched.min(range.top));
                assert_eq!(range.touched_bytes(), Some(expected), "{low:#x} and {len} bytes");
            }
        }
        assert_eq!(StackRange::new(0, usize::MAX).and_then(StackRange::touched_bytes), None);
        assert_eq!(StackRange::new(usize::MAX, usize::MAX - 1), None);
        pool.give(stack);
    }
}
