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
//! The *least loaded* of up to 8 schedulers is found by a look at all of them. In a larger node it
//! is the less loaded of two that are chosen at random: to read all loads would fetch a cache line
//! of each scheduler for each request. With two choices instead of one, the largest load exceeds
//! the mean by the logarithm of a logarithm of the number of schedulers (Azar, Broder, Karlin and
//! Upfal: Balanced allocations, 1999). The look at all is always made for a new user that keeps its
//! scheduler for life (`Classic`, `AlwaysPreferred`), because it is placed once.
//!
//! This file reads loads and counts. It does not move anything itself.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::os::limits::{DRAWS_MAX, HINT_SLACK_PERCENT, LOOKS_MAX};
use crate::os::random;
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
    /// Always the least loaded scheduler; in a node of more than 8 schedulers, as with `Hinted`,
    /// the less loaded of two that are chosen at random.
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
        let users = |s: &Scheduler| s.users.load(Ordering::Relaxed);
        match self {
            Placement::Classic => least_of_all(schedulers, users),
            Placement::AlwaysPreferred => least_of_all(schedulers, |s| (s.load(), users(s))),
            _ => least(schedulers, |s| (s.load(), users(s))),
        }
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

/// Returns an online scheduler with a small key: the smallest of all, or in a larger node the
/// smaller one of two.
fn least<K: Ord>(schedulers: &[Arc<Scheduler>], key: impl Fn(&Scheduler) -> K) -> usize {
    if schedulers.len() <= LOOKS_MAX {
        return least_of_all(schedulers, key);
    }
    let two = draw(schedulers, None).and_then(|one| Some((one, draw(schedulers, Some(one))?)));
    match two {
        Some((one, other)) if key(&schedulers[other]) < key(&schedulers[one]) => other,
        Some((one, _)) => one,
        None => least_of_all(schedulers, key),
    }
}

/// Returns an online scheduler other than `not`, each with the same chance. Returns None after some
/// draws of others: then most schedulers are offline.
fn draw(schedulers: &[Arc<Scheduler>], not: Option<usize>) -> Option<usize> {
    let is_good = |at: &usize| Some(*at) != not && schedulers[*at].online.load(Ordering::Relaxed);
    (0..DRAWS_MAX).map(|_| random::below(schedulers.len())).find(is_good)
}

/// Returns the first online scheduler with the smallest key, so ties are deterministic.
fn least_of_all<K: Ord>(schedulers: &[Arc<Scheduler>], key: impl Fn(&Scheduler) -> K) -> usize {
    let online = schedulers.iter().enumerate().filter(|(_, s)| s.online.load(Ordering::Relaxed));
    online.min_by_key(|(_, s)| key(s)).map_or(0, |(at, _)| at)
}
