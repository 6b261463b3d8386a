//! Patience: how long a wait may last, and whether it can be cancelled.
//!
//! The limit is stored as the caller gave it and becomes a deadline only when a wait really begins,
//! so that an operation that need not wait reads no clock.

use std::time::{Duration, Instant};

use crate::os::clock::{NEVER, after};
use crate::record::reason::WaitReason;
use crate::wait::What;

/// How long the caller is willing to wait.
#[derive(Clone, Copy)]
pub(super) enum Patience {
    /// No deadline and no cancellation: the plain functions of locks.
    Endless,
    /// No deadline, cancellable: all other plain functions.
    Cancellable,
    /// For this long from now, cancellable: the `_for` functions.
    For(Duration),
    /// Until this moment, cancellable: the `_until` functions.
    Until(Instant),
    /// Until this time of the crate's own clock (nanoseconds), cancellable.
    At(u64),
}

impl Patience {
    /// Returns the deadline in nanoseconds of the clock.
    #[inline]
    pub(super) fn deadline(self) -> u64 {
        match self {
            Patience::Endless | Patience::Cancellable => NEVER,
            limited => limited.limit(),
        }
    }

    #[inline(never)]
    fn limit(self) -> u64 {
        match self {
            Patience::Endless | Patience::Cancellable => NEVER,
            Patience::For(span) => after(span),
            Patience::Until(at) => after(at.saturating_duration_since(Instant::now())),
            Patience::At(deadline) => deadline,
        }
    }

    /// Returns the same limit with its deadline fixed now, for callers that wait several times.
    pub(super) fn fixed(self) -> Patience {
        match self {
            Patience::Endless | Patience::Cancellable => self,
            other => Patience::At(other.deadline()),
        }
    }

    /// Describes a wait on `resource` with this limit.
    #[inline]
    pub(super) fn what<R>(self, reason: WaitReason, resource: &R) -> What {
        let cancellable = !matches!(self, Patience::Endless);
        What { cancellable, ..What::new(reason).on(resource) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::clock::now;

    #[test]
    fn no_span_overflows_the_clock() {
        assert_eq!(Patience::For(Duration::MAX).deadline(), NEVER);
        for limit in [Patience::Endless, Patience::Cancellable] {
            assert_eq!(limit.fixed().deadline(), NEVER);
        }
        let past = Instant::now();
        assert!(Patience::Until(past).deadline() <= now());
        let soon = Patience::For(Duration::from_secs(1)).fixed();
        assert_eq!(soon.deadline(), soon.deadline());
    }
}
