//! Which mechanism works here: a thread really blocks on a socket, is noticed, woken, and gated.
//!
//! Kernel versions are not asked; what a container or a filter changes shows only by trying.
//!
//! Named invariant **Own Thread**: the keeper lives on the stack of the thread that adopts it.

#![allow(unsafe_code)]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::place::{Landlord, Place};
use super::thread::{Keeper, Watched};
use super::{Blocks, Mechanism, calls};
use crate::os::event::Event;

/// How long noticing may take, on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(5);

/// Counts what a trial wants to see.
#[derive(Default)]
struct Seen {
    noticed: AtomicU32,
    gated: AtomicU32,
}

struct Lord(Arc<Seen>);

impl Landlord for Lord {
    fn place_is_free(&self, _: bool) {
        self.0.noticed.fetch_add(1, Ordering::SeqCst);
    }
}

struct Guest {
    seen: Arc<Seen>,
    may_run: AtomicBool,
    /// Of the thread that was taken for the trial.
    go: OnceLock<&'static Event>,
}

impl Keeper for Guest {
    fn report(&self) {
        self.seen.gated.fetch_add(1, Ordering::SeqCst);
    }

    fn runs(&self) -> bool {
        self.may_run.load(Ordering::SeqCst)
    }

    fn event(&self) -> &'static Event {
        self.go.get().expect("set before the thread is watched")
    }

    fn stop(&self) {}
}

pub(super) fn run(how: Mechanism) -> Result<(), String> {
    // Not a pipe: where the reader is gone already, writing to one would end a C program by
    // SIGPIPE.
    let (mut reader, mut writer) = UnixStream::pair().map_err(|e| e.to_string())?;
    let cpu = super::place::some_cpu();
    let seen = Arc::new(Seen::default());
    let place = Place::open(cpu, how, Box::new(Lord(seen.clone()))).map_err(|e| e.to_string())?;
    let guest = Arc::new(Guest {
        seen: seen.clone(),
        may_run: AtomicBool::new(false),
        go: OnceLock::new(),
    });
    let (tell, told) = mpsc::channel();
    let (mine, at) = (guest.clone(), place.clone());
    let thread = std::thread::spawn(move || {
        let outcome = be_watched(&mine, &at, how, |me| {
            let mut byte = [0];
            let read = match how {
                // Gated only where a call is interposed, so this one is.
                Mechanism::Calls => me.call(|| Blocks::Perhaps, || reader.read(&mut byte)),
                _ => reader.read(&mut byte),
            };
            read.map_err(|e| e.to_string())
        });
        let _ = tell.send(outcome);
    });
    let began = Instant::now();
    let mut told_early = None;
    while seen.noticed.load(Ordering::SeqCst) == 0 && began.elapsed() < PATIENCE {
        match told.recv_timeout(Duration::from_millis(1)) {
            Err(RecvTimeoutError::Timeout) => {}
            early => {
                told_early = Some(early.unwrap_or(Err("the thread of the trial ended".into())));
                break;
            }
        }
    }
    let noticed = seen.noticed.load(Ordering::SeqCst) > 0;
    let _ = writer.write_all(b"x");
    while noticed && seen.gated.load(Ordering::SeqCst) == 0 && began.elapsed() < 2 * PATIENCE {
        std::thread::sleep(Duration::from_millis(1));
    }
    let gated = seen.gated.load(Ordering::SeqCst) > 0;
    guest.may_run.store(true, Ordering::SeqCst);
    guest.go.get().inspect(|go| go.set());
    let outcome = told_early
        .unwrap_or_else(|| told.recv().unwrap_or(Err("the thread of the trial ended".into())));
    let _ = thread.join();
    place.close();
    outcome?;
    match (noticed, gated) {
        (false, _) => Err("a blocked thread was not noticed".into()),
        (_, false) => Err("a woken thread was not gated".into()),
        _ => Ok(()),
    }
}

/// Runs `f` as the user code of a watched thread that is seated at this place.
fn be_watched<R>(
    guest: &Guest,
    place: &Arc<Place>,
    how: Mechanism,
    f: impl FnOnce(&'static Watched) -> Result<R, String>,
) -> Result<(), String> {
    crate::os::linux::cpus::pin_to(place.cpu).map_err(|e| e.to_string())?;
    let me = Watched::take().map_err(|e| e.to_string())?;
    let _ = guest.go.set(&me.go);
    // SAFETY: Own Thread: `guest` outlives this function, which abandons.
    if let Err(error) = unsafe { me.adopt(std::ptr::from_ref(guest), how) } {
        me.give_back();
        return Err(error.to_string());
    }
    place.seat(me);
    me.word.leave();
    let result = f(me);
    me.come_in();
    place.vacate(me);
    me.abandon();
    me.give_back();
    // Named so that the module that interposes is part of what is tried.
    debug_assert!(!calls::is_watched());
    result.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::short_lock::ShortLock;

    #[test]
    fn a_worker_that_holds_a_short_lock_keeps_its_place_r5() {
        static LOCK: ShortLock<u32> = ShortLock::new(0);
        let how = match Mechanism::Trap.try_here() {
            Ok(()) => Mechanism::Trap,
            Err(_) => Mechanism::Breakpoint,
        };
        if let Err(text) = how.try_here() {
            println!("skipped: {text}");
            return;
        }
        let cpu = crate::watch::place::some_cpu();
        let seen = Arc::new(Seen::default());
        let place = Place::open(cpu, how, Box::new(Lord(seen.clone()))).unwrap();
        let (may_run, go) = (AtomicBool::new(true), OnceLock::new());
        let guest = Guest { seen: seen.clone(), may_run, go };
        let at = place.clone();
        let noticed = std::thread::spawn(move || {
            let mut noticed = [0; 2];
            let outcome = be_watched(&guest, &at, how, |me| {
                let block = || std::thread::sleep(Duration::from_millis(100));
                let held = LOCK.lock();
                block();
                noticed[0] = seen.noticed.load(Ordering::SeqCst);
                drop(held);
                // The same without the lock: the place is lost, and had again at once.
                me.go.set();
                block();
                noticed[1] = seen.noticed.load(Ordering::SeqCst);
                Ok(())
            });
            outcome.map(|()| noticed)
        });
        let noticed = noticed.join().unwrap().unwrap();
        place.close();
        assert_eq!(noticed, [0, 1]);
    }

    #[test]
    fn every_mechanism_works_or_says_what_is_missing() {
        for how in Mechanism::ALL {
            if let Err(text) = run(how) {
                println!("{}: {text}", how.name());
                assert!(how != Mechanism::Calls, "interposed calls need nothing: {text}");
            }
        }
    }
}
