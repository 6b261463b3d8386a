//! How long a wait may last, and whether it hears cancellation.
//!
//! Kept as the caller said it, and turned into a deadline only when something really waits, so that
//! an operation that succeeds at once reads no clock.

use std::time::{Duration, Instant};

use crate::os::clock::{NEVER, after};
use crate::record::reason::WaitReason;
use crate::wait::What;

/// A caller's patience.
#[derive(Clone, Copy)]
pub(super) enum Patience {
    /// No deadline, deaf to cancellation: the plain verbs.
    Endless,
    /// This long from now, and cancellable: the `_for` verbs.
    For(Duration),
    /// Until then, and cancellable: the `_until` verbs.
    Until(Instant),
    /// Until then on our own clock, and cancellable.
    At(u64),
}

impl Patience {
    /// The deadline in nanoseconds of the clock.
    pub(super) fn deadline(self) -> u64 {
        match self {
            Patience::Endless => NEVER,
            Patience::For(span) => after(span),
            Patience::Until(at) => after(at.saturating_duration_since(Instant::now())),
            Patience::At(deadline) => deadline,
        }
    }

    /// The same patience with its deadline fixed now, for those who wait several times.
    pub(super) fn fixed(self) -> Patience {
        match self {
            Patience::Endless => Patience::Endless,
            other => Patience::At(other.deadline()),
        }
    }

    /// A wait on `resource` with this patience.
    pub(super) fn what<R>(self, reason: WaitReason, resource: &R) -> What {
        let what = What::new(reason).on(resource);
        if matches!(self, Patience::Endless) { what.uncancellable() } else { what }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::clock::now;

    #[test]
    fn no_span_overflows_the_clock() {
        assert_eq!(Patience::For(Duration::MAX).deadline(), NEVER);
        assert_eq!(Patience::Endless.fixed().deadline(), NEVER);
        let past = Instant::now();
        assert!(Patience::Until(past).deadline() <= now());
        let soon = Patience::For(Duration::from_secs(1)).fixed();
        assert_eq!(soon.deadline(), soon.deadline());
    }
}
