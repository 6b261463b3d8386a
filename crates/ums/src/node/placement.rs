//! Placement: which scheduler a user belongs to, and to which scheduler its next request goes.
//!
//! Requests move, started workers never do: a user has no stack between requests, so its next
//! request can go to any scheduler. The policies:
//!
//! | policy | a new user | each request |
//! |---|---|---|
//! | `Classic` | fewest users | always the user's scheduler |
//! | `Hinted`, default | least loaded | the preferred, unless its load is 20 % above the least |
//! | `LeastLoaded` | least loaded | the least loaded one |
//! | `AlwaysPreferred` | least loaded | always the preferred one |
//!
//! This file reads loads and counts. It does not move anything itself.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::os::limits::HINT_SLACK_PERCENT;
use crate::scheduler::Scheduler;

/// How users and requests are spread over schedulers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// Each request goes to the scheduler that had the fewest users when the user was created. No
    /// request is ever taken by another scheduler.
    Classic,
    /// Each request goes to the user's preferred scheduler, unless its load is more than 20 % above
    /// that of the least loaded one.
    #[default]
    Hinted,
    /// Always the least loaded scheduler.
    LeastLoaded,
    /// Always the user's preferred scheduler.
    AlwaysPreferred,
}

impl Placement {
    /// Returns whether idle schedulers may take requests that have not begun from loaded ones.
    pub fn steals(self) -> bool {
        matches!(self, Placement::Hinted | Placement::LeastLoaded)
    }

    /// Chooses the scheduler for a new user, among the visible ones that are online.
    pub(crate) fn for_user(self, schedulers: &[Arc<Scheduler>]) -> usize {
        let key = |s: &Scheduler| {
            let (users, load) = (s.users.load(Ordering::Relaxed), s.load());
            if self == Placement::Classic { (users, 0) } else { (load, users) }
        };
        least(schedulers, key)
    }

    /// Chooses the scheduler for a request of a user whose preferred scheduler is `preferred`.
    pub(crate) fn for_request(self, schedulers: &[Arc<Scheduler>], preferred: usize) -> usize {
        let online = schedulers.get(preferred).is_some_and(|s| s.online.load(Ordering::Relaxed));
        let load = Scheduler::load;
        match self {
            Placement::Classic | Placement::AlwaysPreferred if online => preferred,
            Placement::Hinted if online => {
                let best = least(schedulers, load);
                let (mine, theirs) = (load(&schedulers[preferred]), load(&schedulers[best]));
                // Loads count whole requests, so a load of 1 is more than 20 per cent above a load
                // of 0.
                if mine * 100 > theirs * (100 + HINT_SLACK_PERCENT) { best } else { preferred }
            }
            _ => least(schedulers, load),
        }
    }
}

/// Returns the first online scheduler with the least key, so ties are deterministic.
fn least<K: Ord>(schedulers: &[Arc<Scheduler>], key: impl Fn(&Scheduler) -> K) -> usize {
    let online = schedulers.iter().enumerate().filter(|(_, s)| s.online.load(Ordering::Relaxed));
    online.min_by_key(|(_, s)| key(s)).map_or(0, |(at, _)| at)
}
