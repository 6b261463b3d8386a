//! Bounds: what holds for all waits of a piece of code, whichever function begins them.
//!
//! * A *limit* is a moment at which each of these waits ends, unless its own deadline is earlier.
//! * A *shield* keeps the cancellation of the work request from these waits.
//!
//! A third thing is noted here, which bounds no wait: that the waiter *blocks on a future*.
//!
//! Only the waiter itself changes its bounds, between two waits. A limit and a shield apply only to
//! waits that may fail: those that a cancellation of their request would end. A wait for a mutex,
//! or for the end of a scope, has no bounds.

use std::sync::atomic::Ordering;

use super::waiter::{LIMITABLE, Ticket, Waiter};
use crate::os::clock::{self, NEVER};

/// In `WorkerStatus::bounds`: the waits ignore cancellation.
pub(super) const SHIELDED: u8 = 1;
/// In `WorkerStatus::bounds`: the waits have a limit.
const LIMITED: u8 = 2;
/// In `WorkerStatus::bounds`: the waiter polls a future and waits while it is pending.
const BLOCKS_ON: u8 = 4;

/// The bounds of a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub shielded: bool,
    /// In nanoseconds of the clock; [`NEVER`] if there is none.
    pub limit: u64,
    /// Whether the waiter polls a future and keeps its worker while the future is pending.
    pub blocks_on: bool,
}

impl Bounds {
    /// The bounds of code around which there are none but a limit.
    pub fn only(limit: u64) -> Bounds {
        Bounds { shielded: false, limit, blocks_on: false }
    }
}

impl Waiter {
    /// Returns the bounds of this waiter, which is the caller.
    pub(crate) fn bounds(&self) -> Bounds {
        let blocks_on = self.has_bound(BLOCKS_ON);
        Bounds { shielded: self.is_shielded(), limit: self.limit(), blocks_on }
    }

    /// Sets the bounds of this waiter, which is the caller.
    pub(crate) fn set_bounds(&self, bounds: Bounds) {
        let Bounds { shielded, limit, blocks_on } = bounds;
        if limit != NEVER {
            self.scoped().limit.store(limit, Ordering::Relaxed);
        }
        let bits = [(shielded, SHIELDED), (limit != NEVER, LIMITED), (blocks_on, BLOCKS_ON)];
        let bits = bits.map(|(is, bit)| if is { bit } else { 0 });
        self.record.view.bounds.store(bits[0] | bits[1] | bits[2], Ordering::Relaxed);
    }

    /// Returns whether the waits of this waiter ignore cancellation.
    #[inline]
    pub(crate) fn is_shielded(&self) -> bool {
        self.has_bound(SHIELDED)
    }

    /// Returns the limit of this waiter's waits, in nanoseconds of the clock; [`NEVER`] if there is
    /// none.
    #[inline]
    pub(crate) fn limit(&self) -> u64 {
        if self.has_bound(LIMITED) { self.known_limit() } else { NEVER }
    }

    #[cold]
    fn known_limit(&self) -> u64 {
        self.scoped.load().map_or(NEVER, |scoped| scoped.limit.load(Ordering::Relaxed))
    }

    /// Returns how much time is left until the limit, in nanoseconds; None if there is none.
    pub(crate) fn time_left_ns(&self) -> Option<u64> {
        let limit = self.limit();
        (limit != NEVER).then(|| limit.saturating_sub(clock::now()))
    }

    #[inline]
    pub(super) fn has_bound(&self, bit: u8) -> bool {
        self.record.view.bounds.load(Ordering::Relaxed) & bit != 0
    }

    /// Returns whether the work request of this waiter was cancelled, unless the waiter is
    /// shielded. If this waiter runs a closure for another worker, the request of that worker
    /// counts, too, unless that worker is shielded.
    #[inline]
    pub(crate) fn is_cancelled(&self) -> bool {
        let cancelled = |w: &Waiter| w.cancelled.load(Ordering::Relaxed) && !w.is_shielded();
        cancelled(self) || (self.origin.load().is_some_and(cancelled) && !self.is_shielded())
    }

    /// Returns whether the time of this waiter's waits is over. Reads the clock only if there is a
    /// limit.
    #[inline]
    pub(crate) fn is_past_limit(&self) -> bool {
        self.has_bound(LIMITED) && clock::now() >= self.limit()
    }
}

impl Ticket {
    /// Returns the deadline of this wait, whose own deadline is given.
    #[inline]
    pub(crate) fn deadline(self, own: u64) -> u64 {
        if self.waiter.has_bound(LIMITED) { self.earlier(own) } else { own }
    }

    #[cold]
    fn earlier(self, own: u64) -> u64 {
        if self.waiter.waits_as(LIMITABLE) { own.min(self.waiter.limit()) } else { own }
    }
}
