//! SQLite's own mutexes. A worker that waits for one is parked, so that its scheduler runs other
//! workers.
//!
//! Connections are opened without mutexes of their own, so SQLite uses only a few mutexes, each
//! held briefly: for its list of file systems, its random numbers and its initialisation. The owner
//! of a mutex is the worker that locked it, or the plain thread; it is never the thread that runs a
//! fiber. SQLite calls the mutexes through `entry`.

use std::ffi::c_int;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::host::{For, RawMutex};

/// One of SQLite's mutexes.
pub(super) struct Mutex {
    raw: RawMutex,
    recursive: bool,
    /// How many times more its owner has locked it. Only the owner accesses this field.
    again: AtomicU32,
}

impl Mutex {
    pub(super) const fn new(recursive: bool) -> Mutex {
        Mutex { raw: RawMutex::new(), recursive, again: AtomicU32::new(0) }
    }

    fn enters_again(&self) -> bool {
        let again = self.recursive && self.raw.is_mine();
        if again {
            self.again.fetch_add(1, Ordering::Relaxed);
        }
        again
    }

    pub(super) fn enter(&self) {
        if !self.enters_again() {
            self.raw.lock(For::EngineMutex.reason());
        }
    }

    pub(super) fn try_enter(&self) -> bool {
        self.enters_again() || self.raw.try_lock()
    }

    pub(super) fn leave(&self) {
        let again = self.again.load(Ordering::Relaxed);
        if again > 0 {
            self.again.store(again - 1, Ordering::Relaxed);
        } else {
            self.raw.unlock();
        }
    }

    pub(super) fn is_mine(&self) -> bool {
        self.raw.is_mine()
    }
}

/// The static mutexes, by number from `SQLITE_MUTEX_STATIC_MAIN` on.
static STATICS: [Mutex; 16] = [const { Mutex::new(false) }; 16];
const FIRST_STATIC: c_int = 2;

/// Returns the static mutex of this number, if there is one.
pub(super) fn of_number(number: c_int) -> Option<&'static Mutex> {
    STATICS.get((number - FIRST_STATIC) as usize)
}

static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Calls `register`, which registers these mutexes with SQLite. The call is made once in a process,
/// and before SQLite is first used. If SQLite has been used before, it keeps its built-in mutexes.
/// These are sound too, because SQLite holds none of them while it waits in the file system.
pub(super) fn install(register: fn() -> bool) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| INSTALLED.store(register(), Ordering::Relaxed));
}

/// Returns whether SQLite uses these mutexes.
pub(crate) fn is_installed() -> bool {
    INSTALLED.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recursive_mutex_is_its_owners_until_it_left_as_often_as_it_entered() {
        let mutex = Mutex::new(true);
        mutex.enter();
        assert!(mutex.try_enter());
        mutex.leave();
        std::thread::scope(|s| assert!(!s.spawn(|| mutex.try_enter()).join().unwrap()));
        mutex.leave();
        std::thread::scope(|s| {
            let both = || {
                mutex.try_enter() && {
                    mutex.leave();
                    true
                }
            };
            assert!(s.spawn(both).join().unwrap());
        });
    }
}
