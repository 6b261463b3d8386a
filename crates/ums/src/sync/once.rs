//! The once cell: a value made by the first caller that needs it, while the others wait.
//!
//! std's own `OnceLock` contains the value, and this crate's mutex decides which caller makes it.
//! So a caller may wait, yield and do I/O while it makes the value. Waiters show the maker as their
//! blocker. A maker that needs the value it is making gets a panic that says so. If making the
//! value fails or panics, the next caller in the queue tries.

use std::fmt;
use std::sync::OnceLock;

use super::raw_mutex::RawMutex;
use crate::os::threads::operation;
use crate::record::reason::WaitReason;

/// A cell that is written once.
///
/// ```
/// static TABLE: ums::sync::OnceCell<Vec<u32>> = ums::sync::OnceCell::new();
/// assert_eq!(TABLE.get(), None);
/// assert_eq!(TABLE.get_or_init(|| vec![1, 2])[1], 2);
/// assert_eq!(TABLE.set(vec![]), Err(vec![]));
/// ```
pub struct OnceCell<T> {
    /// Written only by the owner of `maker`, and therefore never waits itself.
    value: OnceLock<T>,
    maker: RawMutex,
}

impl<T> OnceCell<T> {
    /// Creates an empty cell.
    pub const fn new() -> OnceCell<T> {
        OnceCell { value: OnceLock::new(), maker: RawMutex::new() }
    }

    /// Returns the value, if there is one.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        self.value.get()
    }

    /// Returns the value mutably, without locking: `&mut self` excludes other borrows.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        self.value.get_mut()
    }

    /// Returns the value, made by `make` if there is none. Of many callers one makes it; the others
    /// wait.
    ///
    /// # Panics
    /// Panics if `make` panics (the next caller then tries again), if `make` needs this cell
    /// itself, and if the caller's wait is chosen to break a deadlock (`make` needs a lock that a
    /// waiter for this cell holds).
    #[inline]
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        match self.get_or_try_init(|| Ok::<T, std::convert::Infallible>(make())) {
            Ok(value) => value,
            Err(never) => match never {},
        }
    }

    /// Like [`get_or_init`](OnceCell::get_or_init), for a `make` that can fail.
    ///
    /// # Errors
    /// The error of `make`; the next caller tries again.
    ///
    /// # Panics
    /// Panics like [`get_or_init`](OnceCell::get_or_init).
    #[inline]
    pub fn get_or_try_init<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
        operation("once: get");
        match self.get() {
            Some(value) => Ok(value),
            None => self.init(make),
        }
    }

    /// Stores a value; waits if one is being made.
    ///
    /// # Errors
    /// Returns the new value if the cell has one already.
    pub fn set(&self, value: T) -> Result<(), T> {
        let _maker = self.become_maker();
        self.value.set(value)
    }

    /// Consumes the cell and returns its value.
    pub fn into_inner(self) -> Option<T> {
        self.value.into_inner()
    }

    #[cold]
    fn init<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
        let _maker = self.become_maker();
        if let Some(value) = self.get() {
            return Ok(value);
        }
        let value = make()?;
        Ok(self.value.get_or_init(|| value))
    }

    fn become_maker(&self) -> Maker<'_> {
        self.maker.lock_or_panic(WaitReason::ONCE);
        Maker(&self.maker)
    }
}

/// The right to make the value. It ends when this is dropped, also by a panic.
struct Maker<'a>(&'a RawMutex);

impl Drop for Maker<'_> {
    fn drop(&mut self) {
        self.0.unlock();
    }
}

impl<T> Default for OnceCell<T> {
    fn default() -> OnceCell<T> {
        OnceCell::new()
    }
}

impl<T: fmt::Debug> fmt::Debug for OnceCell<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_tuple("OnceCell");
        match self.get() {
            Some(value) => out.field(value),
            None => out.field(&format_args!("<empty>")),
        };
        out.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::testing::until;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn one_makes_it_and_all_see_it() {
        let (cell, made) = (OnceCell::new(), AtomicUsize::new(0));
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    let value = cell.get_or_init(|| {
                        // The other three wait for this maker.
                        until(|| cell.maker.waiting() == 3);
                        made.fetch_add(1, Ordering::Relaxed) + 7
                    });
                    assert_eq!(*value, 7);
                });
            }
        });
        assert_eq!(made.into_inner(), 1);
        assert_eq!(cell.into_inner(), Some(7));
    }

    #[test]
    fn after_a_panic_or_an_error_the_next_tries() {
        let cell: OnceCell<i32> = OnceCell::new();
        let panics = std::panic::AssertUnwindSafe(|| cell.get_or_init(|| panic!("no")));
        assert!(std::panic::catch_unwind(|| *panics()).is_err());
        assert_eq!(cell.get_or_try_init(|| Err("no")), Err("no"));
        assert_eq!(format!("{cell:?}"), "OnceCell(<empty>)");
        assert_eq!(*cell.get_or_init(|| 3), 3);
        assert_eq!(cell.set(4), Err(4));
        assert_eq!(format!("{cell:?}"), "OnceCell(3)");
    }

    #[test]
    #[should_panic(expected = "would wait for itself")]
    fn a_maker_that_needs_its_own_value_is_told() {
        let cell: OnceCell<u8> = OnceCell::default();
        cell.get_or_init(|| *cell.get_or_init(|| 1));
    }
}
