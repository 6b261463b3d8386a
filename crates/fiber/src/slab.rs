//! Slabs: mappings that have many stacks each.
//!
//! A slab reserves address space for all its stacks at once, and *carves* them one by one. Carving
//! a stack installs its guard, and by the same call those of the next stacks if the kernel can do
//! that. It commits the stack's memory if the pool is configured to do so. Reserved address space
//! that has not been carved costs no memory, so slabs may be large.
//!
//! A slab counts how many of its stacks are out (in use outside the pool). Its pool drops the slab
//! only if that count is 0; otherwise it forgets the slab, which then stays mapped. The pool keeps
//! the list of free stacks. This file has unsafe code, because stacks are ranges of addresses.
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::ptr;

use corosensei::stack::valgrind::ValgrindStackRegistration;

use crate::registry::{self, Entry, Geometry, Region};
use crate::stack::{Place, Stack};
use crate::sys::{self, GuardKind};

/// In how many steps a slab is guarded, at least.
const BATCHES: usize = 16;

/// Why a pool could not make a stack. The message of each variant says what to do about it.
#[derive(Debug)]
#[non_exhaustive]
pub enum StackError {
    /// The kernel refused address space.
    Reserve {
        /// The number of bytes that were requested.
        bytes: usize,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel refused to guard another stack. If guards are made by `mprotect`, the reason is
    /// `vm.max_map_count`, the limit on a process's mappings.
    Guard {
        /// How stacks are guarded.
        kind: &'static str,
        /// Stacks this pool has made so far.
        stacks: usize,
        /// The kernel's answer.
        source: io::Error,
    },
    /// There is no memory for a stack that must be committed in advance.
    Commit {
        /// The number of bytes that were requested.
        bytes: usize,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl fmt::Display for StackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StackError::Reserve { bytes, .. } => write!(
                f,
                "no address space for {bytes} bytes of stacks: ask for smaller stacks or fewer \
                 workers, or raise the address space limit (ulimit -v)"
            ),
            StackError::Guard { kind, stacks, .. } if *kind == GuardKind::Mprotect.name() => {
                write!(
                    f,
                    "no guard for another stack after {stacks}: without MADV_GUARD_INSTALL \
                 (Linux 6.13) each stack takes two memory mappings; raise the limit with \
                 `sysctl vm.max_map_count=1048576` or use fewer workers"
                )
            }
            StackError::Guard { kind, stacks, .. } => write!(
                f,
                "no guard for another stack after {stacks} ({kind} failed): the kernel is out of \
                 memory for page tables; use fewer workers"
            ),
            StackError::Commit { bytes, .. } => write!(
                f,
                "no memory to commit a stack of {bytes} bytes: turn precommit off, or ask for \
                 smaller stacks or fewer workers"
            ),
        }
    }
}

impl std::error::Error for StackError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            StackError::Reserve { source, .. }
            | StackError::Guard { source, .. }
            | StackError::Commit { source, .. } => Some(source),
        }
    }
}

/// One mapping full of stacks.
#[derive(Debug)]
pub(crate) struct Slab {
    low: usize,
    count: usize,
    geometry: Geometry,
    /// The size of the signal stack of each stack, for threads; 0 for fibers. It lies in the middle
    /// of the guard.
    signal: usize,
    /// Number of stacks that are out.
    pub(crate) out: usize,
    /// One for each carved stack, in order, so its length is the number of carved stacks.
    carved: Vec<ValgrindStackRegistration>,
    /// How many stacks have their guard: the carved ones, and some that will be carved next.
    guarded: usize,
    entry: &'static Entry,
}

impl Slab {
    /// Reserves up to `count` stacks; fewer, down to one, if address space is scarce.
    pub(crate) fn reserve(
        geometry: Geometry,
        signal: usize,
        mut count: usize,
    ) -> Result<Slab, StackError> {
        let stride = geometry.stride();
        let low = loop {
            match sys::reserve(stride * count) {
                Ok(low) => break low,
                Err(_) if count > 1 => count /= 2,
                Err(source) => return Err(StackError::Reserve { bytes: stride, source }),
            }
        };
        let entry = registry::register(low, count, geometry);
        Ok(Slab { low, count, geometry, signal, out: 0, carved: Vec::new(), guarded: 0, entry })
    }

    /// Returns its bytes of address space.
    pub(crate) fn reserved_bytes(&self) -> usize {
        self.count * self.geometry.stride()
    }

    /// Returns whether the stack at `place` lies in this slab.
    #[inline]
    pub(crate) fn contains(&self, place: &Place) -> bool {
        place.low.wrapping_sub(self.low) < self.reserved_bytes()
    }

    /// Returns how many stacks are carved.
    pub(crate) fn carved(&self) -> usize {
        self.carved.len()
    }

    /// Carves the next stack. `number` is the slab's number in its pool. Returns `None` if all
    /// stacks have been carved.
    pub(crate) fn carve(
        &mut self,
        number: u32,
        kind: GuardKind,
        precommit: bool,
    ) -> Option<Result<Place, StackError>> {
        let index = self.carved.len();
        (index < self.count).then(|| {
            let Geometry { guard, usable } = self.geometry;
            let guard_low = self.low + index * self.geometry.stride();
            let low = guard_low + guard;
            let region = Region { guard_low, low, top: low + usable, index };
            self.guard(index, kind).map_err(|source| StackError::Guard {
                kind: kind.name(),
                stacks: index,
                source,
            })?;
            if precommit {
                sys::populate(region.low, usable)
                    .map_err(|source| StackError::Commit { bytes: usable, source })?;
            }
            let at = ptr::with_exposed_provenance_mut(region.low);
            self.carved.push(ValgrindStackRegistration::new(at, usable));
            Ok(Place::new(region, number, self.signal))
        })
    }
}

impl Slab {
    /// Guards the stack with this index, unless it is guarded, and perhaps those after it. It is
    /// the first that may have no guard.
    fn guard(&mut self, index: usize, kind: GuardKind) -> io::Result<()> {
        if index < self.guarded {
            return Ok(());
        }
        let stride = self.geometry.stride();
        let guard = (self.geometry.guard - self.signal) / if self.signal > 0 { 2 } else { 1 };
        let low = self.low + index * stride;
        // Above the signal stack, if there is one: the guard of the stack.
        let at = low + self.geometry.guard - guard;
        // The markers of stacks that are never carved take memory for page tables, so a slab is
        // guarded in several steps.
        let batch = (self.count / BATCHES).clamp(1, sys::GUARDS_AT_ONCE).min(self.count - index);
        if kind == GuardKind::Batched
            // SAFETY: Own Memory: the ranges are inside this slab; the stacks were never used.
            && unsafe { sys::guard_many(at, guard, stride, batch) }
            // SAFETY: Own Memory: as above.
            && (self.signal == 0 || unsafe { sys::guard_many(low, guard, stride, batch) })
        {
            self.guarded = index + batch;
            return Ok(());
        }
        // SAFETY: Own Memory: the range is inside this slab; the stack was never used.
        unsafe { sys::guard(at, guard, kind) }?;
        // A signal stack gets no guard of its own if that would take two more mappings.
        if self.signal > 0 && kind != GuardKind::Mprotect {
            // SAFETY: Own Memory: as above.
            unsafe { sys::guard(low, guard, kind) }?;
        }
        self.guarded = index + 1;
        Ok(())
    }

    /// Returns the pages of a stack of this slab to the kernel, except the highest.
    pub(crate) fn cool(&self, stack: Stack) -> Place {
        let place = stack.into_place();
        let len = place.top - place.low - sys::page_size();
        // SAFETY: Own Memory: this function owns the `Stack`, and a fiber gives its stack up only
        // when it has ended, so the contents of the pages are not needed.
        unsafe { sys::discard(place.low, len) };
        place
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        assert_eq!(self.out, 0, "a slab with stacks out must be forgotten, not dropped");
        registry::unregister(self.entry);
        self.carved.clear();
        // SAFETY: Own Memory: no stack of this slab is out, and only the pool, which is dropping
        // the slab, has the addresses of the others.
        unsafe { sys::release(self.low, self.reserved_bytes()) };
    }
}
