//! Foreign locks: a debug check that no worker waits or yields while it holds one.
//!
//! A lock of std, of parking_lot or of a C library blocks the thread. If a worker waits or yields
//! while it holds one, the next worker on that scheduler may ask for the same lock and block the
//! thread, and with it the whole scheduler, the holder included.
//!
//! *What can be detected.* Little without help: a lock of std or parking_lot is a word in the
//! caller's memory, taken without a call that `ums` could intercept; the guard types are opaque;
//! and locks that the C library takes internally cannot be seen either. So the caller declares a
//! foreign lock by wrapping its guard. The monitor reports an undeclared one when it blocks a
//! scheduler (a `STALL` with the diagnosis `it sleeps in a system call` and the function that
//! locks). Between workers, [`Mutex`](super::Mutex) has none of these problems.
//!
//! In release builds the wrapper is only the guard, and nothing is checked.

use std::ops::{Deref, DerefMut};

/// The guard of a foreign lock, which its worker must drop before it waits or yields. In a debug
/// build, a worker that waits or yields while it holds one panics.
///
/// ```
/// let list = std::sync::Mutex::new(vec![1]);
/// let node = ums::Node::builder().schedulers(1).build()?;
/// let sum = node.run(move || {
///     let mut held = ums::sync::foreign(list.lock().unwrap());
///     held.push(2);
///     let sum = held.iter().sum::<i32>();
///     drop(held); // in a debug build, `yield_now` would panic without this
///     ums::yield_now();
///     sum
/// });
/// assert_eq!(sum, 3);
/// # Ok::<(), ums::BuildError>(())
/// ```
#[must_use = "the lock is held until this is dropped"]
pub struct Foreign<G> {
    guard: G,
    _mark: Mark,
}

/// Declares that the caller holds a foreign lock with this guard, until the returned value is
/// dropped.
#[track_caller]
pub fn foreign<G>(guard: G) -> Foreign<G> {
    Foreign { guard, _mark: Mark::set() }
}

impl<G> Deref for Foreign<G> {
    type Target = G;
    fn deref(&self) -> &G {
        &self.guard
    }
}

impl<G> DerefMut for Foreign<G> {
    fn deref_mut(&mut self) -> &mut G {
        &mut self.guard
    }
}

impl<G: std::fmt::Debug> std::fmt::Debug for Foreign<G> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Foreign").field(&self.guard).finish()
    }
}

/// Counts the lock in the worker that holds it. Like a guard, it cannot move to another thread.
struct Mark {
    #[cfg(debug_assertions)]
    held: Option<(&'static crate::wait::Waiter, u32)>,
    stays: std::marker::PhantomData<*const ()>,
}

impl Mark {
    #[cfg(debug_assertions)]
    #[track_caller]
    fn set() -> Mark {
        let place = std::panic::Location::caller();
        let waiter = crate::current::is_worker().then(crate::current::waiter);
        let held = waiter.map(|waiter| (waiter, waiter.foreign.hold(place)));
        Mark { held, stays: std::marker::PhantomData }
    }

    #[cfg(not(debug_assertions))]
    fn set() -> Mark {
        Mark { stays: std::marker::PhantomData }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        #[cfg(debug_assertions)]
        self.held.iter().for_each(|(waiter, request)| waiter.foreign.release(*request));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_declared_guard_is_printed_with_what_it_guards() {
        let list = std::sync::Mutex::new(vec![1]);
        assert!(format!("{:?}", foreign(list.lock().unwrap())).contains("[1]"));
    }
}
