//! The pool: hands out stacks and takes them back. The stack that was used last is handed out
//! first.
//!
//! ```text
//! take:   warm (last in, first out)  ->  cold  ->  carve the newest slab  ->  reserve a slab
//! give:   warm; if there are too many, the one unused longest turns cold: its pages go back to the
//!         kernel
//! ```
//!
//! A *warm* stack keeps its pages, so taking it costs no system call and no page fault. A page
//! fault costs microseconds, a thousand times as much as a switch. A *cold* stack keeps only its
//! highest page, which every fiber touches first. The pool keeps as many stacks warm as are out,
//! and at least `keep_warm`: so its pages are at most about twice those in use, and fibers that
//! come and go in large numbers find warm stacks.
//!
//! A pool belongs to one scheduler, so its functions take `&mut self`, and it has no locks. It may
//! move to another thread while no stack is being taken or given. Dropping the pool unmaps each
//! slab that has no stack in use, and leaves the others mapped. The pool never reclaims a stack
//! that is in use, and never unmaps a slab before it is dropped.

use std::collections::VecDeque;

use crate::registry::Geometry;
use crate::slab::{Slab, StackError};
use crate::stack::{ABOVE_BASE, Place, Stack};
use crate::sys::{self, GuardKind, page_size};

/// The smallest stack, because printing a panic needs about this much.
const SIZE_MIN: usize = 16 * 1024;
/// The largest stack. A larger size is a mistake.
const SIZE_MAX: usize = 1 << 40;
/// The size of a guard, in bytes. For Rust one page would be enough, because it touches each page
/// of a large frame in turn. C that was compiled without -fstack-clash-protection does not, and may
/// skip a small guard.
const GUARD: usize = 16 * 1024;
/// Number of stacks in the first slab. Each further slab has twice as many as the one before,
/// within the two limits below.
const SLAB_STACKS_FIRST: usize = 64;
/// The same for stacks of threads, which are larger.
const SLAB_THREAD_STACKS_FIRST: usize = 8;
const SLAB_STACKS_MAX: usize = 4096;
const SLAB_BYTES_MAX: usize = 1 << 30;

/// Options of a pool: which stacks it makes and keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackConfig {
    /// Usable bytes of each stack, rounded up to pages; at least 16 KiB, at most 1 TiB. Address
    /// space is reserved for all of them. Memory is used for pages that have been touched.
    pub size: usize,
    /// Whether all memory of a stack is committed when the stack is made, and kept. Then no page
    /// fault happens while a fiber runs, and [`StackPool::take`] fails if there is too little
    /// memory.
    pub precommit: bool,
    /// How many stacks in the pool keep their pages, at least: as many do as are out, if those are
    /// more. The others keep only their highest page.
    pub keep_warm: usize,
}

impl Default for StackConfig {
    /// Returns stacks of 64 KiB, committed as touched, of which 64 are kept warm.
    fn default() -> StackConfig {
        StackConfig { size: 64 * 1024, precommit: false, keep_warm: 64 }
    }
}

/// Statistics of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StackStats {
    /// Stacks taken and not given back.
    pub taken: usize,
    /// Stacks in the pool, warm and cold.
    pub pooled: usize,
    /// Stacks in the pool that keep all their pages.
    pub warm: usize,
    /// Slabs: mappings that the pool has made.
    pub slabs: usize,
    /// Bytes of address space reserved.
    pub reserved_bytes: usize,
    /// How stacks are guarded: `MADV_GUARD_INSTALL` or `mprotect`.
    pub guard: &'static str,
}

/// A scheduler's stacks.
///
/// ```
/// let mut pool = fiber::StackPool::new(fiber::StackConfig::default());
/// let stack = pool.take()?;
/// assert!(stack.size() >= 64 * 1024);
/// pool.give(stack);
/// assert_eq!((pool.stats().taken, pool.stats().pooled), (0, 1));
/// # Ok::<(), fiber::StackError>(())
/// ```
#[derive(Debug)]
pub struct StackPool {
    /// The stack used last is at the back.
    warm: VecDeque<Place>,
    cold: Vec<Place>,
    slabs: Vec<Slab>,
    taken: usize,
    keep_warm: usize,
    precommit: bool,
    geometry: Geometry,
    /// The size of the signal stack below each stack; 0 for stacks of fibers.
    signal: usize,
    kind: GuardKind,
}

impl StackPool {
    /// Returns an empty pool. Nothing is reserved before the first [`take`](StackPool::take).
    pub fn new(config: StackConfig) -> StackPool {
        StackPool::with_guard(config, GuardKind::probed())
    }

    /// Returns an empty pool of stacks for threads ([`Stack::spawn`]). Each has room for what the C
    /// library keeps on the stack of a thread, and a signal stack below it.
    pub fn for_threads(config: StackConfig) -> StackPool {
        StackPool::for_threads_with_guard(config, GuardKind::probed())
    }

    /// Does the same with this kind of guard, for tests of the older kinds.
    pub(crate) fn for_threads_with_guard(config: StackConfig, kind: GuardKind) -> StackPool {
        let size = config.size.clamp(SIZE_MIN, SIZE_MAX) + sys::thread_overhead();
        let mut pool = StackPool::with_guard(StackConfig { size, ..config }, kind);
        pool.signal = sys::signal_stack_size();
        pool.geometry.guard = 2 * pool.geometry.guard + pool.signal;
        pool
    }

    /// Returns a pool that guards its stacks by this kind of guard, for tests of the older kind.
    pub(crate) fn with_guard(config: StackConfig, kind: GuardKind) -> StackPool {
        let page = page_size();
        let size = config.size.clamp(SIZE_MIN, SIZE_MAX) + ABOVE_BASE;
        let geometry =
            Geometry { guard: GUARD.next_multiple_of(page), usable: size.next_multiple_of(page) };
        StackPool {
            warm: VecDeque::new(),
            cold: Vec::new(),
            slabs: Vec::new(),
            taken: 0,
            // Stacks that were committed in advance stay committed.
            keep_warm: if config.precommit { usize::MAX } else { config.keep_warm },
            precommit: config.precommit,
            geometry,
            signal: 0,
            kind,
        }
    }

    /// Returns a stack: a free one, the most recently used first, or else a new one.
    ///
    /// # Errors
    ///
    /// If the kernel refuses address space, a guard or memory. [`StackError`] says what to do.
    #[inline]
    pub fn take(&mut self) -> Result<Stack, StackError> {
        let place = match self.warm.pop_back() {
            Some(place) => place,
            None => self.take_cold()?,
        };
        self.slabs[place.slab as usize].out += 1;
        self.taken += 1;
        Ok(Stack::claim(place))
    }

    /// Takes a stack back.
    ///
    /// # Panics
    ///
    /// If the stack came from another pool.
    #[inline]
    pub fn give(&mut self, stack: Stack) {
        let place = stack.into_place();
        let slab = self.slabs.get_mut(place.slab as usize).filter(|slab| slab.contains(&place));
        let Some(slab) = slab else { panic!("a stack was given to a pool it was not taken from") };
        slab.out -= 1;
        self.taken -= 1;
        self.warm.push_back(place);
        // Twice at most: the limit falls by one with each stack that is given back.
        while self.warm.len() > self.keep_warm.max(self.taken) {
            self.cool_oldest();
        }
    }

    /// Keeps the pages of all stacks that are given back from now on. For the end of a pool, which
    /// unmaps them all.
    pub fn keep_all_warm(&mut self) {
        self.keep_warm = usize::MAX;
    }

    /// Returns the pool's statistics.
    pub fn stats(&self) -> StackStats {
        StackStats {
            taken: self.taken,
            pooled: self.warm.len() + self.cold.len(),
            warm: self.warm.len(),
            slabs: self.slabs.len(),
            reserved_bytes: self.slabs.iter().map(Slab::reserved_bytes).sum(),
            guard: self.kind.name(),
        }
    }

    /// Returns how stacks are guarded on this computer: `MADV_GUARD_INSTALL` (Linux 6.13) or
    /// `mprotect`.
    pub fn guard_kind() -> &'static str {
        GuardKind::probed().name()
    }

    #[cold]
    fn take_cold(&mut self) -> Result<Place, StackError> {
        if let Some(place) = self.cold.pop() {
            return Ok(place);
        }
        if let Some(place) = self.carve_newest() {
            return place;
        }
        let stride = self.geometry.stride();
        let is_for_threads = self.signal > 0;
        let first = if is_for_threads { SLAB_THREAD_STACKS_FIRST } else { SLAB_STACKS_FIRST };
        let wanted = first << self.slabs.len().min(16);
        let count = wanted.min(SLAB_STACKS_MAX).min(SLAB_BYTES_MAX / stride).max(1);
        self.slabs.push(Slab::reserve(self.geometry, self.signal, count)?);
        self.carve_newest().expect("a slab has at least one stack")
    }

    /// Carves a stack of the newest slab, the only one that can have uncarved stacks.
    fn carve_newest(&mut self) -> Option<Result<Place, StackError>> {
        let number = self.slabs.len().checked_sub(1)?;
        let (newest, older) = self.slabs.split_last_mut()?;
        let carved = newest.carve(number as u32, self.kind, self.precommit)?;
        Some(carved.map_err(|error| match error {
            // The slab knows its own stacks only.
            StackError::Guard { kind, stacks, source } => {
                let older: usize = older.iter().map(|slab| slab.carved()).sum();
                StackError::Guard { kind, stacks: older + stacks, source }
            }
            other => other,
        }))
    }

    /// Returns the pages of the stack that is unused longest to the kernel, except the highest, and
    /// makes it cold.
    #[cold]
    fn cool_oldest(&mut self) {
        let Some(place) = self.warm.pop_front() else { return };
        let place = self.slabs[place.slab as usize].cool(Stack::claim(place));
        self.cold.push(place);
    }
}

impl Drop for StackPool {
    fn drop(&mut self) {
        for slab in self.slabs.drain(..) {
            if slab.out == 0 {
                drop(slab);
            } else {
                // Some of its stacks are out and may have frames on them. So the slab stays mapped
                // and registered until the process ends.
                std::mem::forget(slab);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(unsafe_code)] // Unsafe calls that end threads, or suspend a fiber.

    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    use super::*;
    use crate::child;
    use crate::fiber::Fiber;
    use crate::registry;
    use crate::switch::Resume;

    fn config(size: usize, keep_warm: usize) -> StackConfig {
        StackConfig { size, precommit: false, keep_warm }
    }

    fn run(stack: Stack, f: impl FnOnce() + 'static) -> Stack {
        let mut fiber = Fiber::new(stack, "test", |_| f());
        assert_eq!(fiber.resume(), Resume::Finished);
        fiber.into_stack()
    }

    /// Uses about `bytes` of the stack it is called on.
    #[inline(never)]
    fn deep(bytes: usize) -> u8 {
        let frame = std::hint::black_box([1u8; 1024]);
        if bytes <= 1024 { frame[0] } else { deep(bytes - 1024).wrapping_add(frame[1023]) }
    }

    #[test]
    fn a_pool_and_its_stacks_may_move_to_another_thread() {
        fn send<T: Send>() {}
        send::<StackPool>();
        send::<Stack>();
    }

    fn mappings() -> usize {
        std::fs::read_to_string("/proc/self/maps").expect("the process's mappings").lines().count()
    }

    #[test]
    fn a_hundred_thousand_stacks_take_few_mappings() {
        // If guards cost mappings, 10,000 stacks come close enough to the limit.
        let few = GuardKind::probed() != GuardKind::Mprotect;
        let count = if few { 100_000 } else { 10_000 };
        let before = mappings();
        let mut pool = StackPool::new(config(64 * 1024, 0));
        let stacks: Vec<Stack> =
            (0..count).map(|_| pool.take().expect("a stack for each")).collect();
        assert_eq!(pool.stats().taken, count);
        assert!(pool.stats().reserved_bytes >= count * 64 * 1024);
        assert!(!few || mappings() < before + 200, "{before} mappings became {}", mappings());
        // A fiber runs on one in ten, which shows that carved stacks from first to last work.
        for (index, stack) in stacks.into_iter().enumerate() {
            let stack =
                if index % 10 == 0 { run(stack, || assert!(deep(2048) > 0)) } else { stack };
            pool.give(stack);
        }
        assert_eq!((pool.stats().taken, pool.stats().pooled), (0, count));
    }

    #[test]
    fn headers_and_first_frames_of_many_stacks_share_no_set_of_a_cache() {
        // A first-level cache of 64 sets of 64 bytes, so a set for each line of a page.
        let mut sets = [0usize; 64];
        let mut pool = StackPool::new(StackConfig::default());
        let stacks: Vec<Stack> = (0..1000).map(|_| pool.take().expect("a stack")).collect();
        for stack in stacks {
            sets[stack.header() / 64 % 64] += 1;
            pool.give(stack);
        }
        let used = sets.iter().filter(|stacks| **stacks > 0).count();
        let most = sets.iter().max().expect("64 sets");
        assert!(used >= 16 && *most <= 1000 / 15, "{used} sets, {most} stacks in one");
    }

    #[test]
    fn the_stack_given_back_last_is_taken_first_and_nothing_new_is_reserved() {
        let mut pool = StackPool::new(StackConfig::default());
        let first = pool.take().expect("a stack");
        let second = pool.take().expect("a stack");
        let (first_at, second_at) = (first.header(), second.header());
        assert_ne!(first_at, second_at);
        let reserved = pool.stats().reserved_bytes;
        pool.give(first);
        pool.give(second);
        let third = pool.take().expect("a stack");
        let fourth = pool.take().expect("a stack");
        assert_eq!((third.header(), fourth.header()), (second_at, first_at));
        assert_eq!(pool.stats().reserved_bytes, reserved);
        pool.give(third);
        pool.give(fourth);
    }

    #[test]
    fn a_pooled_stack_is_taken_run_and_given_back_without_a_system_call() {
        static DONE: AtomicBool = AtomicBool::new(false);
        let mut pool = StackPool::new(StackConfig::default());
        let warm = pool.take().expect("a stack");
        pool.give(run(warm, || ()));
        // The thread is not joined, because it must end by the bare system call, which std does not
        // know of.
        std::thread::spawn(move || {
            // SAFETY: Plain Call: from here on any call but read, write, exit and sigreturn kills
            // this thread.
            assert_eq!(unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_STRICT) }, 0);
            for _ in 0..1000 {
                let Ok(stack) = pool.take() else { break };
                pool.give(run(stack, || ()));
            }
            DONE.store(true, SeqCst);
            // SAFETY: Plain Call: ends this thread, which holds nothing that others wait for.
            unsafe { libc::syscall(libc::SYS_exit, 0) };
        });
        let patience = (0..600).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(50));
            DONE.load(SeqCst)
        });
        assert!(patience, "the thread made a system call and was killed for it");
    }

    #[test]
    fn only_keep_warm_stacks_keep_their_pages() {
        let mut pool = StackPool::new(config(64 * 1024, 3));
        let stacks: Vec<Stack> = (0..10).map(|_| pool.take().expect("a stack")).collect();
        for stack in stacks {
            pool.give(run(stack, || assert!(deep(32 * 1024) > 0)));
        }
        assert_eq!((pool.stats().warm, pool.stats().pooled), (3, 10));
        let stacks: Vec<Stack> = (0..10).map(|_| pool.take().expect("a stack")).collect();
        let touched: Vec<usize> = stacks.iter().map(Stack::touched_bytes).collect();
        assert!(touched[..3].iter().all(|bytes| *bytes >= 32 * 1024), "{touched:?}");
        assert!(touched[3..].iter().all(|bytes| *bytes <= page_size()), "{touched:?}");
        stacks.into_iter().for_each(|stack| pool.give(stack));
    }

    #[test]
    fn as_many_stacks_stay_warm_as_are_out() {
        let mut pool = StackPool::new(config(64 * 1024, 3));
        let mut stacks: Vec<Stack> = (0..100).map(|_| pool.take().expect("a stack")).collect();
        for _ in 0..50 {
            pool.give(stacks.pop().expect("a stack that is out"));
        }
        assert_eq!((pool.stats().warm, pool.stats().taken), (50, 50));
        for taken in (10..50).rev() {
            pool.give(stacks.pop().expect("a stack that is out"));
            assert_eq!((pool.stats().warm, pool.stats().taken), (taken, taken));
        }
        pool.keep_all_warm();
        stacks.into_iter().for_each(|stack| pool.give(stack));
        assert_eq!((pool.stats().warm, pool.stats().pooled), (20, 100));
    }

    #[test]
    fn every_stack_of_a_slab_that_is_guarded_in_batches_has_its_guard() {
        for kind in [GuardKind::probed(), GuardKind::Madvise, GuardKind::Mprotect] {
            if kind == GuardKind::Madvise && GuardKind::probed() == GuardKind::Mprotect {
                continue;
            }
            let mut pool = StackPool::with_guard(config(16 * 1024, 0), kind);
            // Another test counts the mappings of this process, of which `mprotect` makes many.
            let count = if kind == GuardKind::Mprotect { 40 } else { 200 };
            let stacks: Vec<Stack> = (0..count).map(|_| pool.take().expect("a stack")).collect();
            for stack in stacks {
                let region = registry::find(stack.header()).expect("its slab");
                for (at, faults) in [(region.guard_low, true), (region.low - 512, true)]
                    .into_iter()
                    .chain([(region.low, false)])
                {
                    // SAFETY: Own Memory: the stack belongs to this test. The call fails with
                    // EFAULT in the guard, and writes 390 bytes otherwise.
                    let failed =
                        unsafe { libc::uname(std::ptr::with_exposed_provenance_mut(at)) } != 0;
                    assert_eq!(failed, faults, "{kind:?} at {at:#x} of {region:?}");
                }
                pool.give(stack);
            }
        }
    }

    #[test]
    fn the_high_water_mark_is_what_was_used() {
        let mut pool = StackPool::new(config(1024 * 1024, 1));
        let stack = pool.take().expect("a stack");
        assert_eq!(stack.touched_bytes(), 0);
        let stack = run(stack, || assert!(deep(100 * 1024) > 0));
        let touched = stack.touched_bytes();
        // Frames of unoptimized code are two or three times as large as their variables.
        assert!((100 * 1024..400 * 1024).contains(&touched), "{touched} bytes of 100 KiB");
        pool.give(stack);
    }

    #[test]
    fn precommitted_stacks_are_committed_from_the_start_and_stay_so() {
        let all = |stack: &Stack| stack.touched_bytes() >= stack.size();
        let mut pool = StackPool::new(StackConfig { precommit: true, ..config(32 * 1024, 0) });
        let stack = pool.take().expect("a stack");
        assert!(all(&stack));
        pool.give(stack);
        let stack = pool.take().expect("a stack");
        assert!(all(&stack));
        pool.give(stack);
    }

    #[test]
    fn a_dropped_pool_unmaps_exactly_the_slabs_that_are_whole() {
        let mut pool = StackPool::new(config(64 * 1024, 1000));
        let mut stacks: Vec<Stack> =
            (0..SLAB_STACKS_FIRST + 1).map(|_| pool.take().expect("a stack")).collect();
        assert_eq!(pool.stats().slabs, 2);
        let whole = stacks[SLAB_STACKS_FIRST].header();
        let kept = stacks.remove(5);
        stacks.into_iter().for_each(|stack| pool.give(stack));
        drop(pool);
        let region = registry::find(kept.header()).expect("a slab with a stack out stays");
        assert_eq!(crate::stack::base_of(&region), kept.header());
        assert_ne!(registry::find(whole).map(|region| region.top), Some(whole + 64));
        // The stack that is out still works.
        let kept = run(kept, || assert!(deep(32 * 1024) > 0));
        assert!(kept.touched_bytes() >= 32 * 1024);
    }

    #[test]
    fn sizes_are_rounded_up_and_never_below_the_least() {
        for (asked, least) in [(0, SIZE_MIN), (65_537, 65_537), (1 << 20, 1 << 20)] {
            let mut pool = StackPool::new(config(asked, 1));
            let stack = pool.take().expect("a stack");
            assert!((least..least + 2 * page_size()).contains(&stack.size()), "{}", stack.size());
            pool.give(stack);
        }
    }

    #[test]
    fn an_absurd_size_is_an_error_with_advice_or_a_stack() {
        let mut pool = StackPool::new(config(usize::MAX, 1));
        match pool.take() {
            Ok(stack) => pool.give(stack),
            Err(error) => assert!(error.to_string().contains("smaller stacks"), "{error}"),
        }
    }

    #[test]
    #[should_panic(expected = "not taken from")]
    fn a_stack_of_another_pool_is_refused() {
        let mut one = StackPool::new(StackConfig::default());
        let mut two = StackPool::new(StackConfig::default());
        let mine = two.take().expect("a stack");
        two.give(mine);
        two.give(one.take().expect("a stack"));
    }

    #[test]
    fn too_many_mappings_is_an_error_that_says_what_to_do() {
        // Runs in a process of its own, because at the limit no other test could map memory.
        child::succeeds("pool::tests::too_many_mappings_is_an_error_that_says_what_to_do", || {
            let limit = std::fs::read_to_string("/proc/sys/vm/max_map_count").expect("the limit");
            let limit: usize = limit.trim().parse().expect("a number");
            if limit > 1_000_000 {
                return; // Too many to try.
            }
            let mut pool = StackPool::with_guard(config(16 * 1024, 0), GuardKind::Mprotect);
            let mut stacks = Vec::with_capacity(limit);
            let error = loop {
                match pool.take() {
                    Ok(stack) => stacks.push(stack),
                    Err(error) => break error,
                }
                assert!(stacks.len() < limit, "the limit was never met");
            };
            stacks.into_iter().for_each(|stack| pool.give(stack));
            let said = error.to_string();
            assert!(said.contains("vm.max_map_count"), "{said}");
            // The stacks that were made before can still be taken.
            assert!(pool.take().is_ok());
        });
    }
}
