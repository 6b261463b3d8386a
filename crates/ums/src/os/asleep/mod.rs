//! Announce, fence, look again: a protocol by which a thread goes to sleep, and never sleeps while
//! another thread has put something where the sleeping thread looks for work.
//!
//! A *sleeper* is a thread that goes to sleep when it finds nothing to do in certain places. A
//! *waker* puts something into one of these places. The waker must wake the sleeper if that sleeps,
//! and should cost little if the sleeper is awake. Both use one flag:
//!
//! ```text
//!   sleeper                                 waker
//!   S1 flag := true      announce()         W1 put something where the sleeper looks
//!   S2 fence             announce()         W2 fence                            wake()
//!   S3 look everywhere again                W3 if the flag is true, swap it
//!   S4 nothing found: sleep on the event       to false                         wake()
//!   S5 flag := false     awake()            W4 if it was true, set the event
//! ```
//!
//! **No sleeper sleeps while something is in a place where it looks.** The fences S2 and W2 have an
//! order. If S2 comes first, then S1 comes before W3. So W3 sees true, and this waker sets the
//! event; or W3 sees that the flag was swapped since then, by another waker, which sets the event,
//! or by S5, when the sleeper is awake. A set event stays set until S4 sees it. If W2 comes first,
//! then W1 comes before S3, so S3 finds the thing that W1 has put there.
//!
//! **Only one waker sets the event** for each announcement, because only one swap finds true. So
//! several wakers in a row make one system call. If the sleeper is awake, a waker costs one fence
//! and one load.
//!
//! **Everything that a waker did before is visible** to a sleeper whose S5 finds false, because the
//! swap of W3 releases and that of S5 acquires.
//!
//! Apart from the fences, the accesses need no order of their own. An event that was set for a
//! sleeper whose S3 found something ends a later S4 at once; the sleeper then looks once more than
//! needed.
//!
//! **Without the swap** ([`Asleep::must_ring`]). A waker that is stopped between W3 and W4 has
//! taken the flag along: until it continues, the sleeper sleeps, and later wakers see false and
//! leave the event alone. Where the sleeper is needed *because* a thread is stopped, as the
//! watchers are, W3 only loads. The flag stays true until S5, so each waker that comes before S5
//! sets the event itself, whatever becomes of the others. The proof above holds: it needs that W3
//! sees true unless the sleeper is awake, and here only S5 makes it see false. To set an event that
//! is set already costs a swap and no system call. Such a sleeper does not learn from S5 whether it
//! was woken.
//!
//! **Many sleepers** ([`IdleMask`]). Several sleepers look at the same places. Each has a flag, and
//! a waker takes the flag of one of them. The proof above applies to each sleeper. If its S2 comes
//! after W2, its look finds the thing that W1 has put there. Otherwise W3 sees its flag, or that
//! another waker or S5 has taken the flag since. So if W3 finds no flag, every sleeper that
//! announces itself later finds the thing. One fence serves two loads: a waker that calls
//! [`Asleep::wake`] for one sleeper, and then takes another one's flag, has its W2 in `wake`.
//!
//! **Many places** ([`WorkMask`]). So that a sleeper need not look everywhere, places that may have
//! something are marked; `mask.rs` says why the look at the marked ones is enough.
//!
//! These use the protocol: wait/inbox, scheduler/peers, scheduler/alarm, the file helpers' mailbox,
//! the watcher of a place and the watchdog. In assembly, a `context::Post` takes the waker's steps.

mod mask;

use std::sync::atomic::Ordering;

pub use self::mask::{IdleMask, WorkMask};
use super::atomic::{AtomicBool, fence};
use super::event::ThreadEvent;

/// The flag of one sleeper: whether it sleeps, or is about to.
#[derive(Debug)]
pub struct Asleep(AtomicBool);

impl Asleep {
    /// Makes the flag of a sleeper that is awake.
    #[cfg(not(loom))]
    pub const fn new() -> Asleep {
        Asleep(AtomicBool::new(false))
    }

    /// Makes the flag of a sleeper that is awake.
    #[cfg(loom)]
    pub fn new() -> Asleep {
        Asleep(AtomicBool::new(false))
    }

    /// Steps S1 and S2: announces that the sleeper is about to sleep. The sleeper must look
    /// everywhere again before it sleeps.
    pub fn announce(&self) {
        self.0.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Step S5. Returns true if a waker has woken the sleeper since the announcement; everything
    /// that this waker did before is visible from here on. After false, the next waker finds the
    /// sleeper awake.
    pub fn awake(&self) -> bool {
        !self.0.swap(false, Ordering::AcqRel)
    }

    /// Step S5 without its result. It makes nothing visible.
    pub fn withdraw(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// Steps W2 and W3. The caller has put something where the sleeper looks. Returns true if the
    /// sleeper sleeps; then the caller sets its event (W4).
    #[inline]
    #[must_use = "the sleeper sleeps on unless its event is set"]
    pub fn wake(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::AcqRel)
    }

    /// W2, and W3 without the swap. Called after something was put where the sleeper looks. Returns
    /// true if the sleeper sleeps; then the caller sets its event (W4), whether or not another
    /// waker has. For a sleeper that must not depend on one waker to continue.
    #[inline]
    #[must_use = "the sleeper sleeps on unless its event is set"]
    pub fn must_ring(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed)
    }

    /// S1 to S5 of a sleeper that sleeps on an [`ThreadEvent`].
    pub fn sleep_unless(&self, event: &ThreadEvent, found: impl FnOnce() -> bool) {
        self.announce();
        if !found() {
            event.wait();
        }
        self.withdraw();
    }

    /// Returns whether the sleeper sleeps, or is about to. To other threads the answer may be
    /// stale.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns the flag, for a waker that is written in assembly.
    #[cfg(not(loom))]
    pub fn flag(&self) -> &AtomicBool {
        &self.0
    }
}

#[cfg(all(test, loom))]
mod loom;
