//! The watchdog: looks at every place now and then, for a catcher that is starved (R12).
//!
//! A catcher runs only when its processor has nothing else to do. Where something foreign keeps the processor
//! busy, it does not notice. The watchdog is one ordinary thread for the whole process. It acts on what it
//! has seen blocked twice, so it leaves the common case to the catcher, which is faster.
//!
//! It sleeps without a timeout while nobody is seated anywhere.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use super::place::{Look, Place};
use crate::os::event::Event;

/// Time between two looks: the first while something was wrong lately, up to the second otherwise.
const TICK_MS: (u64, u64) = (1, 8);
/// Vain looks before the time is doubled.
const CALM: u32 = 64;

static DOG: OnceLock<Dog> = OnceLock::new();

struct Dog {
    places: Mutex<Vec<Arc<Place>>>,
    bell: Event,
}

static ASLEEP: AtomicBool = AtomicBool::new(false);

/// Looks at this place from now on.
pub(super) fn watch(place: &Arc<Place>) -> io::Result<()> {
    static STARTED: Mutex<bool> = Mutex::new(false);
    let dog = DOG.get_or_init(|| Dog { places: Mutex::default(), bell: Event::new() });
    let mut started = STARTED.lock().unwrap_or_else(|e| e.into_inner());
    if !*started {
        let thread = std::thread::Builder::new().name("ums-watchdog".into());
        thread.stack_size(64 << 10).spawn(|| watch_for_ever(dog))?;
        *started = true;
    }
    dog.lock().push(place.clone());
    Ok(())
}

/// Looks at it no more; returns when no look is under way.
pub(super) fn forget(place: &Arc<Place>) {
    if let Some(dog) = DOG.get() {
        dog.lock().retain(|other| !Arc::ptr_eq(other, place));
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
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Place>>> {
        self.places.lock().unwrap_or_else(|e| e.into_inner())
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
    let (mut calm, mut tick) = (0, TICK_MS.0);
    loop {
        let (mut busy, mut acted) = (false, false);
        for place in dog.lock().iter() {
            acted |= look_again(place);
            busy |= place.check() || place.is_taken();
        }
        if !busy {
            ASLEEP.store(true, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            if !dog.lock().iter().any(|place| place.check() || place.is_taken()) {
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

/// Takes the place from who was blocked at the last look and still is, in the same wait.
fn look_again(place: &Place) -> bool {
    let now = place.suspicion();
    let before = place.suspect.swap(now, Ordering::Relaxed);
    if now == 0 || now != before || place.look() != Look::Taken {
        return false;
    }
    place.rescues.fetch_add(1, Ordering::Relaxed);
    true
}
