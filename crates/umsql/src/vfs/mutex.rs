//! SQLite's own mutexes, which park a worker that waits for one, so that its scheduler runs others.
//!
//! Connections are opened without a mutex of their own, so only a few are left that SQLite holds
//! briefly: for its list of file systems, its random numbers, its initialisation. The worker, or
//! the plain thread, that locked a mutex owns it, never the thread that runs a fiber.
//!
//! Unsafe because SQLite calls these functions through a table of C functions. Named invariant.
//! **Own Mutex**: every `sqlite3_mutex` that SQLite has is a [`Mutex`] of this module, either one
//! of the statics or a box that lives from the call of `alloc` that made it to the one call of
//! `free`, which SQLite makes when the mutex is no longer used.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rusqlite::ffi;

use crate::host::{For, RawMutex};

/// One of SQLite's mutexes.
struct Mutex {
    raw: RawMutex,
    recursive: bool,
    /// How many more times its owner has locked it. Only the owner accesses this.
    again: AtomicU32,
}

impl Mutex {
    const fn new(recursive: bool) -> Mutex {
        Mutex { raw: RawMutex::new(), recursive, again: AtomicU32::new(0) }
    }

    fn enters_again(&self) -> bool {
        let again = self.recursive && self.raw.is_mine();
        if again {
            self.again.fetch_add(1, Ordering::Relaxed);
        }
        again
    }

    fn enter(&self) {
        if !self.enters_again() {
            self.raw.lock(For::EngineMutex.reason());
        }
    }

    fn try_enter(&self) -> bool {
        self.enters_again() || self.raw.try_lock()
    }

    fn leave(&self) {
        let again = self.again.load(Ordering::Relaxed);
        if again > 0 {
            self.again.store(again - 1, Ordering::Relaxed);
        } else {
            self.raw.unlock();
        }
    }
}

/// The static mutexes, by number from `SQLITE_MUTEX_STATIC_MAIN` on.
static STATICS: [Mutex; 16] = [const { Mutex::new(false) }; 16];
const FIRST_STATIC: c_int = 2;

/// Calls `f` with the mutex behind SQLite's pointer; returns `None` for a null pointer.
fn with<R>(mutex: *mut ffi::sqlite3_mutex, f: impl FnOnce(&Mutex) -> R) -> Option<R> {
    // SAFETY: Own Mutex: SQLite gives back pointers that `alloc` gave it, before it frees them.
    unsafe { mutex.cast::<Mutex>().as_ref() }.map(f)
}

unsafe extern "C" fn ready() -> c_int {
    ffi::SQLITE_OK
}

unsafe extern "C" fn alloc(kind: c_int) -> *mut ffi::sqlite3_mutex {
    let mutex: *const Mutex = match kind {
        0 | 1 => Box::into_raw(Box::new(Mutex::new(kind == 1))),
        number => match STATICS.get((number - FIRST_STATIC) as usize) {
            Some(mutex) => mutex,
            None => std::ptr::null(),
        },
    };
    mutex.cast_mut().cast()
}

unsafe extern "C" fn free(mutex: *mut ffi::sqlite3_mutex) {
    // SAFETY: Own Mutex: SQLite frees only what `alloc` boxed, once.
    drop(unsafe { Box::from_raw(mutex.cast::<Mutex>()) });
}

unsafe extern "C" fn enter(mutex: *mut ffi::sqlite3_mutex) {
    with(mutex, Mutex::enter);
}

unsafe extern "C" fn try_enter(mutex: *mut ffi::sqlite3_mutex) -> c_int {
    let entered = with(mutex, Mutex::try_enter).unwrap_or(true);
    if entered { ffi::SQLITE_OK } else { ffi::SQLITE_BUSY }
}

unsafe extern "C" fn leave(mutex: *mut ffi::sqlite3_mutex) {
    with(mutex, Mutex::leave);
}

unsafe extern "C" fn held(mutex: *mut ffi::sqlite3_mutex) -> c_int {
    c_int::from(with(mutex, |mutex| mutex.raw.is_mine()).unwrap_or(true))
}

unsafe extern "C" fn not_held(mutex: *mut ffi::sqlite3_mutex) -> c_int {
    c_int::from(with(mutex, |mutex| !mutex.raw.is_mine()).unwrap_or(true))
}

static METHODS: ffi::sqlite3_mutex_methods = ffi::sqlite3_mutex_methods {
    xMutexInit: Some(ready),
    xMutexEnd: Some(ready),
    xMutexAlloc: Some(alloc),
    xMutexFree: Some(free),
    xMutexEnter: Some(enter),
    xMutexTry: Some(try_enter),
    xMutexLeave: Some(leave),
    xMutexHeld: Some(held),
    xMutexNotheld: Some(not_held),
};

static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Registers these mutexes with SQLite, once in a process and before SQLite is first used. If
/// SQLite has been used before, it has chosen its own mutexes and keeps them. That is sound too,
/// because SQLite holds none of them while it waits in the file system.
///
/// This also switches SQLite's memory statistics off, which take a mutex at every allocation.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: Own Mutex: the table is a static whose functions keep the invariant. SQLite
        // refuses both calls when it is in use already.
        let done = unsafe {
            ffi::sqlite3_config(ffi::SQLITE_CONFIG_MEMSTATUS, 0 as c_int);
            ffi::sqlite3_config(ffi::SQLITE_CONFIG_MUTEX, &raw const METHODS)
        };
        INSTALLED.store(done == ffi::SQLITE_OK, Ordering::Relaxed);
    });
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

    #[test]
    fn sqlite_gets_statics_and_boxes_and_gives_boxes_back() {
        // SAFETY: Own Mutex: as SQLite would call them.
        unsafe {
            let boxed = alloc(0);
            enter(boxed);
            assert_eq!((held(boxed), try_enter(boxed)), (1, ffi::SQLITE_BUSY));
            leave(boxed);
            assert_eq!(not_held(boxed), 1);
            free(boxed);
            assert_eq!(alloc(2), alloc(2));
            assert_ne!(alloc(2), alloc(3));
            assert!(alloc(99).is_null());
        }
    }
}
