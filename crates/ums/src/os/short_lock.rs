//! A lock that is held for a few instructions: never over a switch, never over code that is not ours.
//!
//! Who holds one is inside the machine, wherever the call came from, and others who run the same scheduler
//! need it next. So a thread that is watched for blocking says how many it holds, and is not stopped while
//! that is more than none (`watch`). In all other threads that is one look at a thread-local.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};

thread_local! {
    static HELD: Cell<Option<&'static AtomicU32>> = const { Cell::new(None) };
}

/// From now on the calling thread counts there how many short locks it holds or waits for.
pub fn count_held_in(count: Option<&'static AtomicU32>) {
    HELD.set(count);
}

/// One more for as long as this lives. Only its own thread writes the count.
struct Held(Option<&'static AtomicU32>);

impl Held {
    #[inline]
    fn one_more() -> Held {
        let held = HELD.get();
        held.inspect(|held| held.store(held.load(Ordering::Relaxed) + 1, Ordering::Relaxed));
        Held(held)
    }
}

impl Drop for Held {
    #[inline]
    fn drop(&mut self) {
        self.0.inspect(|held| held.store(held.load(Ordering::Relaxed) - 1, Ordering::Relaxed));
    }
}

/// A lock that is held for a few instructions.
#[derive(Debug, Default)]
pub struct ShortLock<S>(Mutex<S>);

/// The state behind a short lock, locked.
pub struct ShortGuard<'a, S> {
    home: &'a ShortLock<S>,
    state: MutexGuard<'a, S>,
    /// Dropped after the lock has been given back.
    #[allow(dead_code)] // Held for its drop.
    held: Held,
}

impl<S> ShortLock<S> {
    /// A lock that nobody holds.
    pub const fn new(state: S) -> ShortLock<S> {
        ShortLock(Mutex::new(state))
    }

    /// Locks. Nothing behind a short lock can be left half done by a panic, so poison is ignored.
    #[inline]
    pub fn lock(&self) -> ShortGuard<'_, S> {
        let held = Held::one_more();
        ShortGuard { home: self, state: self.0.lock().unwrap_or_else(|e| e.into_inner()), held }
    }
}

impl<'a, S> ShortGuard<'a, S> {
    /// The lock that this guard holds.
    pub fn home(&self) -> &'a ShortLock<S> {
        self.home
    }
}

impl<S> Deref for ShortGuard<'_, S> {
    type Target = S;
    fn deref(&self) -> &S {
        &self.state
    }
}

impl<S> DerefMut for ShortGuard<'_, S> {
    fn deref_mut(&mut self) -> &mut S {
        &mut self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_counts_knows_how_many_it_holds() {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (one, two) = (ShortLock::new(1), ShortLock::new(2));
        drop(one.lock());
        assert_eq!(COUNT.load(Ordering::Relaxed), 0, "nobody asked for a count");
        count_held_in(Some(&COUNT));
        let (a, b) = (one.lock(), two.lock());
        assert_eq!(COUNT.load(Ordering::Relaxed), 2);
        drop((a, b));
        assert_eq!(COUNT.load(Ordering::Relaxed), 0);
        count_held_in(None);
    }
}
