//! The memory of blocks. A scheduler keeps the memory of requests that end there, and uses it for
//! its next requests ([`SpareBlocks`]).

#![allow(unsafe_code)]

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::{Cell, UnsafeCell};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use crate::os::entry::Inside;
use crate::os::pool::{Member, Pool, Pooled};

/// The sizes of the blocks that are kept, the smaller first: most requests fit into it, and a
/// worker that waits for long keeps its block. Requests with larger closures or results are
/// allocated and freed one by one.
const BLOCKS: [Layout; 2] = [block(192), block(256)];

/// How many blocks of each size a scheduler keeps.
pub(super) const SPARE_MAX: usize = 1024;

const fn block(size: usize) -> Layout {
    match Layout::from_size_align(size, 16) {
        Ok(layout) => layout,
        Err(_) => unreachable!(),
    }
}

/// Returns the number of the size for a value of this layout. Both are known when a request's type
/// is compiled.
#[inline(always)]
fn size_for(layout: Layout) -> Option<usize> {
    let fits = |block: &Layout| layout.size() <= block.size() && layout.align() <= block.align();
    match () {
        () if fits(&BLOCKS[0]) => Some(0),
        () if fits(&BLOCKS[1]) => Some(1),
        () => None,
    }
}

/// The memory of one block, which is kept or freed when this is dropped.
pub(super) struct Memory(NonNull<u8>, Layout);

impl Memory {
    /// Owns the memory at this address, which [`Memory::take`] has given for a value of this
    /// layout.
    #[inline]
    pub(super) fn of(at: NonNull<u8>, layout: Layout) -> Memory {
        Memory(at, layout)
    }

    /// Takes memory for a value of this layout: a spare block of the caller's scheduler, or new
    /// memory. A caller that is inside the library already says so, and need not enter again.
    #[inline(always)]
    pub(super) fn take(layout: Layout, inside: Option<&Inside>) -> NonNull<u8> {
        let Some(size) = size_for(layout) else { return allocate(layout) };
        let pop = |spare: &mut [Spare; 2]| spare[size].pop();
        let spare = match inside {
            Some(inside) => SpareBlocks::with_inside(inside, pop),
            None => SpareBlocks::with(pop),
        };
        spare.flatten().unwrap_or_else(|| allocate(BLOCKS[size]))
    }

    /// Does what dropping it does, compiled for the one layout that the caller has.
    #[inline(always)]
    pub(super) fn give_back(self) {
        ManuallyDrop::new(self).keep_or_free();
    }

    #[inline(always)]
    fn keep_or_free(&self) {
        let at = self.0;
        let Some(size) = size_for(self.1) else { return free(at, self.1) };
        let keep = |inside: Inside| SpareBlocks::with_inside(&inside, |spare| spare[size].push(at));
        if Inside::enter_at_once().and_then(keep) != Some(true) {
            keep_or_free_slowly(at, size);
        }
    }
}

/// Does the same for a block of this size, if the caller must wait for its scheduler, has none, or
/// has enough blocks.
#[cold]
#[inline(never)]
fn keep_or_free_slowly(at: NonNull<u8>, size: usize) {
    if SpareBlocks::with(|spare| spare[size].push(at)) != Some(true) {
        free(at, BLOCKS[size]);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.keep_or_free();
    }
}

/// Frees memory that was allocated with this layout.
#[cold]
fn free(at: NonNull<u8>, layout: Layout) {
    // SAFETY: Own Memory: the callers own the memory, and do not use it any more.
    unsafe { dealloc(at.as_ptr(), layout) };
}

#[cold]
fn allocate(layout: Layout) -> NonNull<u8> {
    // SAFETY: Plain Call: the layout is not empty, because a block has a state.
    let at = unsafe { alloc(layout) };
    NonNull::new(at).unwrap_or_else(|| handle_alloc_error(layout))
}

/// Spare blocks of one size. Each contains the address of the next.
#[derive(Default)]
pub(super) struct Spare {
    first: Option<NonNull<u8>>,
    len: usize,
}

impl Spare {
    /// Keeps a block that the caller owns, and returns true; or false if there are enough.
    #[inline]
    fn push(&mut self, at: NonNull<u8>) -> bool {
        let room = self.len < SPARE_MAX;
        if room {
            // SAFETY: Own Memory: the caller's block, which is large enough, and aligned.
            unsafe { at.cast().write(self.first) };
            self.first = Some(at);
            self.len += 1;
        }
        room
    }

    /// Returns a block, which the caller owns from now on.
    #[inline]
    fn pop(&mut self) -> Option<NonNull<u8>> {
        let at = self.first?;
        // SAFETY: Own Memory: `push` has written the address of the next block here.
        self.first = unsafe { at.cast().read() };
        self.len -= 1;
        Some(at)
    }

    #[cfg(all(test, not(loom)))]
    pub(super) fn len(&self) -> usize {
        self.len
    }
}

/// The memory of requests that have ended on one scheduler, for its next requests. The holder of
/// the scheduler's baton uses it, and finds it by a thread-local. No other scheduler writes its
/// cache lines.
#[repr(align(128))]
pub(crate) struct SpareBlocks {
    /// One list for each size.
    blocks: UnsafeCell<[Spare; 2]>,
    member: Member<SpareBlocks>,
}

// SAFETY: Baton: only the thread that holds the scheduler's baton touches the list.
unsafe impl Sync for SpareBlocks {}
// SAFETY: Own Memory: the blocks belong to the list, and any thread may free them.
unsafe impl Send for SpareBlocks {}

static SPARE: Pool<SpareBlocks> = Pool::new();

thread_local! {
    /// The list of the scheduler whose baton this thread has.
    static HERE: Cell<Option<&'static SpareBlocks>> = const { Cell::new(None) };
}

impl Pooled for SpareBlocks {
    fn member(&self) -> &Member<SpareBlocks> {
        &self.member
    }
}

impl SpareBlocks {
    /// Makes an empty list for a scheduler.
    pub fn for_scheduler() -> &'static SpareBlocks {
        SPARE.take(|member| SpareBlocks { blocks: UnsafeCell::default(), member }, |_| ())
    }

    /// Frees the blocks when the scheduler is dropped.
    pub fn give_back(&'static self) {
        // SAFETY: Own Memory: the scheduler has ended, so no thread has its baton.
        let blocks = unsafe { &mut *self.blocks.get() };
        for (blocks, layout) in blocks.iter_mut().zip(BLOCKS) {
            while let Some(block) = blocks.pop() {
                free(block, layout);
            }
        }
        SPARE.give_back(self);
    }

    /// Called where the calling thread gets a scheduler's baton or loses it.
    pub fn use_here(blocks: Option<&'static SpareBlocks>) {
        HERE.set(blocks);
    }

    /// Calls `f` with the lists of the scheduler whose baton the calling thread has, if it has one.
    #[inline]
    pub(super) fn with<R>(f: impl FnOnce(&mut [Spare; 2]) -> R) -> Option<R> {
        SpareBlocks::with_inside(&Inside::enter()?, f)
    }

    /// Does the same for a caller that is inside the library.
    #[inline]
    fn with_inside<R>(_inside: &Inside, f: impl FnOnce(&mut [Spare; 2]) -> R) -> Option<R> {
        let here = HERE.get()?;
        // SAFETY: Baton: the thread is inside and has the baton, so no other thread touches the
        // list; and `f`, which is code of this file, does not come here again.
        Some(f(unsafe { &mut *here.blocks.get() }))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_spare_block_is_taken_once_and_the_one_that_was_kept_last_comes_first() {
        let mut spare = Spare::default();
        let blocks = [(); 3].map(|()| allocate(BLOCKS[0]));
        assert!(blocks.iter().all(|at| spare.push(*at)));
        let taken = [(); 4].map(|()| spare.pop());
        assert_eq!(taken, [Some(blocks[2]), Some(blocks[1]), Some(blocks[0]), None]);
        assert_eq!(spare.len(), 0);
        blocks.into_iter().for_each(|at| free(at, BLOCKS[0]));
    }
}
