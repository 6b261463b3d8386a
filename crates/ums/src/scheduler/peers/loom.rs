//! A model of the idle mask: work is not left lying beside a sleeping scheduler (B5).
//!
//! Bounds: one busy scheduler that queues one request, one that goes to sleep. At most two
//! preemptions of a thread while it could go on.

use std::sync::Arc;

use super::*;
use crate::door::Door;
use crate::os::atomic::AtomicUsize;
use crate::os::driver::Waker;

/// What an idle scheduler has: its door, and where it sleeps.
#[derive(Clone)]
struct Idler {
    door: &'static Door,
    waker: Waker,
}

impl Idler {
    fn new() -> Idler {
        let waker = Waker::new().expect("a descriptor");
        Idler { door: Door::take(waker.clone()), waker }
    }

    /// As the idle loop does: announces, looks, sleeps, until it has taken the request.
    fn until_taken(&self, mask: &IdleMask, me: usize, queued: &AtomicUsize) {
        let mut took = false;
        while !took {
            mask.announce(me);
            self.door.announce_sleep();
            took = queued.load(Ordering::Relaxed) == 1
                && queued.compare_exchange(1, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok();
            if !took {
                // It hangs here when neither saw the other.
                self.waker.heard.wait();
            }
            self.door.awake();
            mask.withdraw(me);
        }
    }
}

#[test]
fn loom_a_request_beside_a_scheduler_that_goes_to_sleep_is_taken_b5() {
    let mut builder = ::loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(|| {
        let (busy, idle) = (Idler::new(), Idler::new());
        let mask = Arc::new(IdleMask::new(2));
        let queued = Arc::new(AtomicUsize::new(0));
        let sleeper = {
            let (mask, queued, idle) = (mask.clone(), queued.clone(), idle.clone());
            ::loom::thread::spawn(move || idle.until_taken(&mask, 1, &queued))
        };
        // E1 to E3, as `Shared::enqueue` does: the fence stands in `wake`.
        queued.store(1, Ordering::Relaxed);
        if !busy.door.wake()
            && let Some(1) = mask.take_other(0)
        {
            idle.door.wake();
        }
        sleeper.join().unwrap();
    });
}
