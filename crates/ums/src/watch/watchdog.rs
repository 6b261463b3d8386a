//! The watchdog: looks now and then whether a worker is blocked, at every place and at every
//! scheduler that has no place.
//!
//! *Places* (R12). A catcher runs only when its processor has nothing else to do. Where something
//! foreign keeps the processor busy, it does not notice. The watchdog is one ordinary thread for
//! the whole process. It acts on what it has seen blocked twice, so it leaves the common case to
//! the catcher, which is faster.
//!
//! *Schedulers of thread workers* (`scheduler/blocked.rs`). It is the one taker of `os/entry`.
//!
//! When all of them have been idle for a few looks, it sleeps without a timeout until one is not.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use crate::os::event::Event;

/// What it looks at.
pub(crate) trait Subject: Send + Sync {
    /// Takes from a blocked worker what it shall lose. True: it did.
    fn look(&self) -> bool;

    /// Whether something runs that may block.
    fn is_busy(&self) -> bool;
}

/// Time between two looks: the first while something was wrong lately, up to the second otherwise.
const TICK_MS: (u64, u64) = (1, 4);
/// Vain looks before the time is doubled.
const CALM: u32 = 64;
/// Looks in a row at which all subjects were idle before it sleeps: a scheduler that is idle for
/// moments need not wake it each time.
const IDLE: u32 = 8;

static DOG: OnceLock<Dog> = OnceLock::new();

struct Dog {
    subjects: Mutex<Vec<Arc<dyn Subject>>>,
    bell: Event,
}

static ASLEEP: AtomicBool = AtomicBool::new(false);

/// Looks at this from now on.
pub(crate) fn watch(subject: &Arc<dyn Subject>) -> io::Result<()> {
    static STARTED: Mutex<bool> = Mutex::new(false);
    let dog = DOG.get_or_init(|| Dog { subjects: Mutex::default(), bell: Event::new() });
    let mut started = STARTED.lock().unwrap_or_else(|e| e.into_inner());
    if !*started {
        let thread = std::thread::Builder::new().name("ums-watchdog".into());
        thread.stack_size(64 << 10).spawn(|| watch_for_ever(dog))?;
        *started = true;
    }
    dog.lock().push(subject.clone());
    Ok(())
}

/// Looks at it no more; returns when no look is under way.
pub(crate) fn forget(subject: &Arc<dyn Subject>) {
    if let Some(dog) = DOG.get() {
        dog.lock().retain(|other| !std::ptr::addr_eq(Arc::as_ptr(other), Arc::as_ptr(subject)));
    }
}

/// Somebody was seated, or a scheduler decides: there is something to look at. What the caller has
/// stored before is seen by the look that precedes the sleep, or else the sleep is seen here.
#[inline]
pub(crate) fn wake() {
    fence(Ordering::SeqCst);
    if ASLEEP.load(Ordering::SeqCst)
        && let Some(dog) = DOG.get()
    {
        dog.bell.set();
    }
}

impl Dog {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<dyn Subject>>> {
        self.subjects.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// Whoever started it may be pinned, and perhaps to the very processor whose catcher is starved.
fn go_anywhere() {
    use rustix::thread::{sched_getaffinity, sched_setaffinity};
    let main = Some(rustix::process::getpid());
    // Where that is refused it stays where it is, which is slower and no less right.
    let _ = sched_getaffinity(main).and_then(|mask| sched_setaffinity(None, &mask));
}

fn watch_for_ever(dog: &Dog) {
    go_anywhere();
    let (mut calm, mut tick, mut idle) = (0, TICK_MS.0, 0);
    loop {
        let (mut busy, mut acted) = (false, false);
        for subject in dog.lock().iter() {
            acted |= subject.look();
            busy |= subject.is_busy();
        }
        idle = if busy { 0 } else { idle + 1 };
        if idle > IDLE {
            idle = 0;
            ASLEEP.store(true, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            if !dog.lock().iter().any(|subject| subject.is_busy()) {
                dog.bell.wait();
            }
            ASLEEP.store(false, Ordering::SeqCst);
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
