//! The pause in which an idle scheduler takes nothing from its peers, because it would not pay.
//!
//! To take a request from another scheduler costs both about as much as a few microseconds of work:
//! the request and what it uses come from the other processor's cache, and a task that waits for
//! its end there waits for a message. A request that ends sooner is better left to its scheduler.
//! How long a request will take is unknown, so a scheduler learns from those that it has taken:
//!
//! ```text
//!   the last steal was                      the next one may be
//!   not brief                               at once
//!   brief, as fewer than 256 in a row       at once
//!   brief, as 256 or more in a row          after 32 us, then 64 us, .. 512 us
//! ```
//!
//! A steal was *brief* if requests have ended and nothing can run again within 4 us. (A request
//! that waits soon, perhaps for the next bytes of its connection, does not make the steal brief: it
//! has moved to where it can run later.) Without the pause, a peer that spawns and joins thousands
//! of tiny tasks would be held up at each of them.
//!
//! There is no pause if the peer has ended no request of its own between two steals from it: it
//! does not get to what waits in its queue. And a row ends if 10 ms pass without a steal.

use crate::os::clock;

/// If nothing can run so soon after a steal, the steal has cost more than it has gained.
const BRIEF_NS: u64 = 4_000;
/// After so many brief steals in a row, the scheduler pauses. Among requests of which many are
/// short and some take long, as in a tree of tasks, a scheduler that pauses sooner loses more than
/// it saves.
const BRIEF_STEALS: u32 = 256;
/// The first pause.
const PAUSE_NS: u64 = 32_000;
const PAUSE_MAX_NS: u64 = 512_000;
/// A row ends if there is no steal for so long.
const ROW_ENDS_NS: u64 = 10_000_000;

/// What the last steals have taught, and the pause that follows from it.
#[derive(Debug)]
pub(super) struct StealPause {
    /// When the last request was taken, in ticks; 0 after the steal was judged.
    taken: u64,
    /// How many requests had ended when it was taken.
    ended: u64,
    /// The number of the peer from which it was taken, and how many requests had ended there.
    peer: (usize, u64),
    /// Whether requests had ended there since the steal before, which was from the same peer.
    peer_runs: bool,
    /// How many brief steals there were in a row.
    brief: u32,
    /// How long the last pause is, in nanoseconds; 0 if there was none since the last steal that
    /// was not brief.
    pause: u64,
    /// When the last steal was judged, and the pause began, in ticks.
    since: u64,
}

impl StealPause {
    pub const fn new() -> StealPause {
        StealPause {
            taken: 0,
            ended: 0,
            peer: (usize::MAX, 0),
            peer_runs: false,
            brief: 0,
            pause: 0,
            since: 0,
        }
    }

    /// Called when a request was taken, at this time, after so many have ended here. `peer` is the
    /// number of the peer that had it, and how many have ended there.
    pub fn taken(&mut self, now: u64, ended: u64, peer: (usize, u64)) {
        if clock::ticks_to_ns(now.saturating_sub(self.since)) > ROW_ENDS_NS {
            (self.brief, self.pause) = (0, 0);
        }
        self.peer_runs = peer.0 == self.peer.0 && peer.1 != self.peer.1;
        (self.taken, self.ended, self.peer) = (now, ended, peer);
    }

    /// Returns whether the last steal was not judged yet.
    #[inline]
    pub fn is_unjudged(&self) -> bool {
        self.taken > 0
    }

    /// Judges the last steal. Nothing can run at this time, after so many requests have ended.
    pub fn judge(&mut self, now: u64, ended: u64) {
        let taken = std::mem::take(&mut self.taken);
        let took = clock::ticks_to_ns(now.saturating_sub(taken));
        let is_brief = ended != self.ended && took < BRIEF_NS;
        self.brief = match (is_brief, self.peer_runs) {
            (false, _) => 0,
            (true, runs) => self.brief.saturating_add(runs.into()),
        };
        let pause = match self.brief {
            BRIEF_STEALS.. if self.peer_runs => (2 * self.pause).clamp(PAUSE_NS, PAUSE_MAX_NS),
            _ => 0,
        };
        self.begin(now, pause);
    }

    /// A pause of so many nanoseconds begins at this time, in ticks.
    pub fn begin(&mut self, now: u64, pause: u64) {
        (self.since, self.pause) = (now, pause);
    }

    /// Returns for how many nanoseconds the pause still lasts; 0 if there is none. Reads the clock
    /// only if the last steal led to a pause.
    pub fn left(&self, now: impl FnOnce() -> u64) -> u64 {
        if self.pause == 0 {
            return 0;
        }
        let paused = clock::ticks_to_ns(now().saturating_sub(self.since));
        self.pause.saturating_sub(paused)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// More ticks than a brief steal or a pause has, at any rate of the ticks.
    const LONG: u64 = 10_000_000;

    /// Judges a steal that took so many ticks, in which so many requests ended, and before which so
    /// many had ended at the peer. Returns how long the scheduler pauses.
    fn stolen(pause: &mut StealPause, took: u64, ended: u64, at_peer: u64) -> u64 {
        let now = clock::ticks();
        pause.taken(now - took, pause.ended, (1, pause.peer.1 + at_peer));
        pause.judge(now, pause.ended + ended);
        assert_eq!(pause.left(|| now), pause.pause);
        assert_eq!(pause.left(|| now + LONG), 0);
        pause.pause
    }

    /// One in whose row a brief steal makes it pause for 512 us.
    fn after_many() -> StealPause {
        let mut pause = StealPause::new();
        (0..BRIEF_STEALS + 8).for_each(|_| _ = stolen(&mut pause, 0, 1, 1));
        pause
    }

    #[test]
    fn many_brief_steals_in_a_row_lead_to_a_pause_that_grows_until_one_is_not_brief() {
        let mut pause = StealPause::new();
        // The first is the first from this peer.
        for _ in 0..BRIEF_STEALS {
            assert_eq!(stolen(&mut pause, 0, 1, 1), 0);
        }
        let pauses: Vec<_> = (0..6).map(|_| stolen(&mut pause, 0, 1, 1)).collect();
        assert_eq!(pauses, [32_000, 64_000, 128_000, 256_000, 512_000, 512_000]);
        assert_eq!(stolen(&mut pause, LONG, 1, 1), 0, "it took long");
        assert_eq!(stolen(&mut pause, 0, 1, 1), 0, "a new row");
        assert_eq!(stolen(&mut after_many(), 0, 0, 1), 0, "the request waits");
    }

    #[test]
    fn there_is_no_pause_while_the_peer_does_not_get_to_its_queue() {
        let mut pause = after_many();
        assert_eq!(pause.pause, 512_000);
        for _ in 0..1000 {
            assert_eq!(stolen(&mut pause, 0, 1, 0), 0);
        }
        assert_eq!(stolen(&mut pause, 0, 1, 1), 32_000, "it does again");
        let now = clock::ticks();
        pause.taken(now, 0, (2, 1));
        pause.judge(now, 1);
        assert_eq!(pause.pause, 0, "another peer");
    }

    #[test]
    fn a_row_ends_after_some_time_without_a_steal() {
        let mut pause = after_many();
        pause.taken(pause.since + 1000 * LONG, 0, (1, pause.peer.1 + 1));
        assert_eq!((pause.brief, pause.pause), (0, 0));
    }
}
