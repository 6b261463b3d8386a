//! Placement: which scheduler a user belongs to, and which one its next request goes to.
//!
//! Requests move, started workers never do: a user has no stack between requests, so its next
//! request can go anywhere. Policies (B3):
//!
//! | policy | a new user | each request |
//! |---|---|---|
//! | `Classic` | fewest users (U23) | always the user's scheduler, for life (U24) |
//! | `Hinted`, the default | least loaded | the preferred one, unless it is loaded 20 % above the least loaded (B1) |
//! | `LeastLoaded` | least loaded | the least loaded one |
//! | `AlwaysPreferred` | least loaded | always the preferred one |
//!
//! It reads loads and counts; it moves nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::limits::HINT_SLACK_PERCENT;
use crate::scheduler::Scheduler;

/// How users and requests are spread over schedulers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// Fewest users, for life, and no request is ever taken by another scheduler (U23, U24).
    Classic,
    /// The user's preferred scheduler unless it is overloaded (B1).
    #[default]
    Hinted,
    /// Always the least loaded scheduler.
    LeastLoaded,
    /// Always the user's preferred scheduler.
    AlwaysPreferred,
}

impl Placement {
    /// Whether idle schedulers may take unstarted requests from loaded ones (B5).
    pub fn steals(self) -> bool {
        matches!(self, Placement::Hinted | Placement::LeastLoaded)
    }

    /// The scheduler for a new user, among the visible ones that are online.
    pub(crate) fn for_user(self, schedulers: &[Arc<Scheduler>]) -> usize {
        let key = |s: &Scheduler| {
            let (users, load) = (&s.users, &s.load);
            let (users, load) = (users.load(Ordering::Relaxed), load.load(Ordering::Relaxed));
            if self == Placement::Classic { (users, 0) } else { (load, users) }
        };
        least(schedulers, key)
    }

    /// The scheduler for a request of a user who prefers `preferred`.
    pub(crate) fn for_request(self, schedulers: &[Arc<Scheduler>], preferred: usize) -> usize {
        let online = schedulers.get(preferred).is_some_and(|s| s.online.load(Ordering::Relaxed));
        let load = |s: &Scheduler| s.load.load(Ordering::Relaxed);
        match self {
            Placement::Classic | Placement::AlwaysPreferred if online => preferred,
            Placement::Hinted if online => {
                let best = least(schedulers, load);
                let (mine, theirs) = (load(&schedulers[preferred]), load(&schedulers[best]));
                // In whole requests, so that 1 against 0 is more than 20 per cent.
                if mine * 100 > theirs * (100 + HINT_SLACK_PERCENT) { best } else { preferred }
            }
            _ => least(schedulers, load),
        }
    }
}

/// The first online scheduler with the least key: ties are deterministic (U23).
fn least<K: Ord>(schedulers: &[Arc<Scheduler>], key: impl Fn(&Scheduler) -> K) -> usize {
    let online = schedulers.iter().enumerate().filter(|(_, s)| s.online.load(Ordering::Relaxed));
    online.min_by_key(|(_, s)| key(s)).map_or(0, |(at, _)| at)
}
