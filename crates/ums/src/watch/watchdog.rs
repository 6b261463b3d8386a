//! The watchdog: one thread of the process that looks now and then whether a worker is blocked, at
//! every place and at every scheduler that has no place.
//!
//! *Places* (R12). A watcher runs only when its processor has nothing else to run. If another
//! program keeps the processor busy, the watcher detects nothing. The watchdog is an ordinary
//! thread, so it runs then, too. It acts only on a block that it has seen at two looks in a row. So
//! it leaves the common case to the watcher, which is faster.
//!
//! *Schedulers of thread workers* (`scheduler/blocks/taker.rs`). The watchdog is the one taker of
//! `os/entry`: the thread that takes a scheduler's baton from a blocked worker.
//!
//! The watchdog looks at *subjects*: places and schedulers. When all subjects have been idle for a
//! few looks, it sleeps without a timeout until one of them is not idle.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::os::asleep::Asleep;
use crate::os::event::ThreadEvent;
use crate::os::lock::Lock;
use crate::os::threads;

/// A place or a scheduler that the watchdog looks at.
pub(crate) trait Subject: Send + Sync {
    /// Checks the worker that has the place, or the scheduler's baton. If the worker has been
    /// blocked since an earlier look, takes the place or the baton from it, and returns true.
    fn look(&self) -> bool;

    /// Returns whether something runs that may block.
    fn is_busy(&self) -> bool;
}

/// Time between two looks: the first value after a look that took something; then it grows up to
/// the second value.
const TICK_MS: (u64, u64) = (1, 4);
/// How many looks in a row find nothing before the time between looks is doubled.
const CALM: u32 = 64;
/// How many looks in a row find all subjects idle before the watchdog sleeps without a timeout.
/// With fewer looks, a scheduler that is idle only for moments would have to wake it each time.
const IDLE: u32 = 8;

static DOG: OnceLock<Dog> = OnceLock::new();

struct Dog {
    subjects: Lock<Vec<Arc<dyn Subject>>>,
    bell: ThreadEvent,
}

#[cfg(not(loom))]
static ASLEEP: Asleep = Asleep::new();
#[cfg(loom)] // Its atomics are made at run time.
static ASLEEP: std::sync::LazyLock<Asleep> = std::sync::LazyLock::new(Asleep::new);

/// Makes the watchdog look at this subject from now on. Starts the watchdog if it does not run yet.
pub(crate) fn watch(subject: &Arc<dyn Subject>) -> io::Result<()> {
    static STARTED: Lock<bool> = Lock::new(false);
    let dog = DOG.get_or_init(|| Dog { subjects: Lock::default(), bell: ThreadEvent::new() });
    let mut started = STARTED.lock();
    if !*started {
        let thread = std::thread::Builder::new().name("ums-watchdog".into());
        threads::start(thread.stack_size(64 << 10), || watch_forever(dog))?;
        *started = true;
    }
    dog.subjects.lock().push(subject.clone());
    Ok(())
}

/// Makes the watchdog forget a subject. Returns when no look at it is under way.
pub(crate) fn forget(subject: &Arc<dyn Subject>) {
    if let Some(dog) = DOG.get() {
        dog.subjects
            .lock()
            .retain(|other| !std::ptr::addr_eq(Arc::as_ptr(other), Arc::as_ptr(subject)));
    }
}

/// Wakes the watchdog if it sleeps. Called when a thread was seated or a scheduler begins to choose
/// workers again. No wake-up is lost, by the proof in `os/asleep`.
#[inline]
pub(crate) fn wake() {
    // The caller may be stopped before it sets the event, and the watchdog is there to notice that.
    // So the next caller sets it too.
    if ASLEEP.must_ring()
        && let Some(dog) = DOG.get()
    {
        dog.bell.set();
    }
}

/// Lets the watchdog run on all processors of the process. The thread that started it may be
/// pinned, perhaps to the very processor whose watcher gets no processor time, and affinity is
/// inherited.
fn go_anywhere() {
    use rustix::thread::{sched_getaffinity, sched_setaffinity};
    let main = Some(rustix::process::getpid());
    // If the kernel refuses, the watchdog keeps its affinity, which is slower but still correct.
    let _ = sched_getaffinity(main).and_then(|mask| sched_setaffinity(None, &mask));
}

fn watch_forever(dog: &Dog) {
    go_anywhere();
    let (mut calm, mut tick, mut idle) = (0, TICK_MS.0, 0);
    loop {
        let (mut busy, mut acted) = (false, false);
        for subject in dog.subjects.lock().iter() {
            acted |= subject.look();
            busy |= subject.is_busy();
        }
        idle = if busy { 0 } else { idle + 1 };
        if idle > IDLE {
            idle = 0;
            let busy = || dog.subjects.lock().iter().any(|subject| subject.is_busy());
            ASLEEP.sleep_unless(&dog.bell, busy);
        }
        calm = if acted { 0 } else { calm + 1 };
        if acted {
            tick = TICK_MS.0;
        } else if calm >= CALM && tick < TICK_MS.1 {
            (calm, tick) = (0, tick * 2);
        }
        std::thread::sleep(Duration::from_millis(tick));
    }
}
