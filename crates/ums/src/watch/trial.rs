//! Finds by trying which mechanism works here: a thread blocks on a socket, is detected, is woken,
//! and is stopped at its gate.
//!
//! The kernel's version is not consulted, because the restrictions of a container or of a
//! system-call filter only show when the mechanism is tried.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::means::{Blocks, Mechanism};
use super::place::Place;
use super::thread::{GateHandler, PlaceOwner, Watched};
use super::{adopt, calls};
use crate::os::event::ThreadEvent;
use crate::record::report;

/// How long detection may take on a busy computer.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often a block was detected, and how often the thread stopped at its gate.
#[derive(Default)]
struct Seen {
    noticed: AtomicU32,
    gated: AtomicU32,
}

struct TrialOwner(Arc<Seen>);

impl PlaceOwner for TrialOwner {
    fn place_is_free(&self, _: bool) {
        self.0.noticed.fetch_add(1, Ordering::SeqCst);
    }
}

struct TrialThread {
    seen: Arc<Seen>,
    may_run: AtomicBool,
    /// The event of the watched thread, on which it waits at its gate.
    go: OnceLock<&'static ThreadEvent>,
}

impl GateHandler for TrialThread {
    fn report(&self) {
        self.seen.gated.fetch_add(1, Ordering::SeqCst);
    }

    fn owns_place(&self) -> bool {
        self.may_run.load(Ordering::SeqCst)
    }

    fn event(&self) -> &'static ThreadEvent {
        self.go.get().expect("set before the thread is watched")
    }

    fn stop(&self) {}
}

impl Mechanism {
    /// Tries this mechanism on this computer: a thread blocks, is detected, wakes, and stops at its
    /// gate.
    ///
    /// # Errors
    /// A message that says what did not happen, or the kernel's refusal.
    pub fn try_here(self) -> Result<(), String> {
        run(self)
    }
}

/// Returns the mechanism that this process uses: the one that the environment variable `UMS_WATCH`
/// names, or else the best one that works.
///
/// The mechanisms are tried once for each process, with a thread that blocks in the kernel. If the
/// named one does not work here, it is used nevertheless, and a line on stderr says that blocked
/// threads may stay unnoticed.
///
/// # Errors
/// `InvalidInput` if `UMS_WATCH` names no mechanism.
pub fn mechanism() -> io::Result<Mechanism> {
    static CHOSEN: OnceLock<Result<Mechanism, String>> = OnceLock::new();
    let chosen = CHOSEN.get_or_init(|| {
        let named = std::env::var_os("UMS_WATCH").unwrap_or_default();
        if named.is_empty() {
            return Ok(best());
        }
        let is_named = |how: &Mechanism| named == how.name();
        let Some(how) = Mechanism::ALL.into_iter().find(is_named) else {
            let named = named.display();
            return Err(format!("UMS_WATCH={named}: it must be trap, breakpoint or calls"));
        };
        if let Err(why) = how.try_here() {
            report::say(format_args!(
                "UMS_WATCH={}: this mechanism does not work here, so blocked threads may stay \
                 unnoticed: {why}",
                how.name()
            ));
        }
        Ok(how)
    });
    chosen.clone().map_err(|text| io::Error::new(io::ErrorKind::InvalidInput, text))
}

fn best() -> Mechanism {
    let mut works = Mechanism::ALL.into_iter().filter(|how| how.try_here().is_ok());
    works.next().unwrap_or(Mechanism::Calls)
}

fn run(how: Mechanism) -> Result<(), String> {
    adopt::prepare();
    // Not a pipe: if its reader has ended, a write would end a C program by SIGPIPE.
    let (mut reader, mut writer) = UnixStream::pair().map_err(|e| e.to_string())?;
    let cpu = super::place::some_cpu();
    let seen = Arc::new(Seen::default());
    let place =
        Place::open(cpu, how, Box::new(TrialOwner(seen.clone()))).map_err(|e| e.to_string())?;
    let handler = Arc::new(TrialThread {
        seen: seen.clone(),
        may_run: AtomicBool::new(false),
        go: OnceLock::new(),
    });
    let (tell, told) = mpsc::channel();
    let (mine, at) = (handler.clone(), place.clone());
    let thread = std::thread::spawn(move || {
        let outcome = be_watched(&mine, &at, how, |me| {
            let mut result = Ok(0);
            let mut read = || result = reader.read(&mut [0]);
            match how {
                // This mechanism has a gate only at interposed calls, so the call is made as one.
                Mechanism::Calls => me.call(&|| Blocks::Unknown, &mut read),
                _ => read(),
            }
            result.map_err(|e| e.to_string())
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
    let patience = PATIENCE.saturating_mul(2);
    while noticed && seen.gated.load(Ordering::SeqCst) == 0 && began.elapsed() < patience {
        std::thread::sleep(Duration::from_millis(1));
    }
    let gated = seen.gated.load(Ordering::SeqCst) > 0;
    handler.may_run.store(true, Ordering::SeqCst);
    handler.go.get().inspect(|go| go.set());
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
    handler: &Arc<TrialThread>,
    place: &Arc<Place>,
    how: Mechanism,
    f: impl FnOnce(&'static Watched) -> Result<R, String>,
) -> Result<(), String> {
    crate::os::linux::cpus::pin_to(place.cpu).map_err(|e| e.to_string())?;
    let me = Watched::take().map_err(|e| e.to_string())?;
    let _ = handler.go.set(&me.go);
    if let Err(error) = me.adopt(handler.clone(), how) {
        me.give_back();
        return Err(error.to_string());
    }
    place.belongs(me);
    place.seat(me);
    me.word.leave();
    let result = f(me);
    me.enter_library();
    place.vacate(me);
    me.abandon();
    me.give_back();
    // Uses `calls`, so that the trial covers the folder's dependence on interposed calls.
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
            crate::testing::skipped("breakpoint", text);
            return;
        }
        let cpu = crate::watch::place::some_cpu();
        let seen = Arc::new(Seen::default());
        let place = Place::open(cpu, how, Box::new(TrialOwner(seen.clone()))).unwrap();
        let (may_run, go) = (AtomicBool::new(true), OnceLock::new());
        let handler = Arc::new(TrialThread { seen: seen.clone(), may_run, go });
        let at = place.clone();
        let noticed = std::thread::spawn(move || {
            let mut noticed = [0; 2];
            let outcome = be_watched(&handler, &at, how, |me| {
                let block = || std::thread::sleep(Duration::from_millis(100));
                let held = LOCK.lock();
                block();
                noticed[0] = seen.noticed.load(Ordering::SeqCst);
                drop(held);
                // The same without the lock: the place is lost, and the thread owns it again
                // immediately.
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
    fn the_c_librarys_functions_are_known_before_a_thread_is_watched() {
        // The trial's threads read and write sockets, and call no other function of the table.
        let _ = run(Mechanism::Calls);
        assert!(calls::are_known());
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
