//! Locals: the values of request-locals that a waiter's code sees.
//!
//! ```text
//!   waiter --> Values [A: 1]                 outside
//!                     [A: 1, B: 2]           inside a scope that sets B
//!                     [A: 3, B: 2]           inside one that sets A: the inner value hides 1
//! ```
//!
//! Only the code of the waiter itself sets and reads its values, and gives clones of them to
//! others.
//!
//! What this file does not do: it finds no waiter, and does not decide when values end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::scoped::Values;
use super::waiter::Waiter;

/// Whether any waiter of the process has had a value. A program without request-locals reads this,
/// and nothing else.
static USED: AtomicBool = AtomicBool::new(false);

/// Returns whether any waiter may have values. If not, the caller has none, and need not look.
#[inline(always)]
pub(crate) fn are_used() -> bool {
    // A waiter that has values has set this itself, or was given them by one that has.
    USED.load(Ordering::Relaxed)
}

impl Waiter {
    /// Returns the values that the code of this waiter, which is the caller, sees.
    pub(crate) fn values(&self) -> Values {
        self.scoped.load().map_or_else(Values::default, |scoped| scoped.values.lock().clone())
    }

    /// Calls `f`, whose code sees these values, and no others, on this waiter, which is the caller.
    pub(crate) fn within<R>(&'static self, values: Values, f: impl FnOnce() -> R) -> R {
        if !are_used() {
            if values.is_empty() {
                return f();
            }
            USED.store(true, Ordering::Relaxed);
        }
        let outside = OuterValues { waiter: self, values: self.replace_values(values) };
        let result = f();
        drop(outside);
        result
    }

    /// Returns the value that belongs to the whole request of this waiter, which is the caller; on
    /// a plain thread, to the whole thread. The first call makes it. There is one such value, so
    /// there is one caller of this function. The value of an ended request lives on until the
    /// waiter's next request makes its own.
    pub(crate) fn of_request<T>(&self, make: impl FnOnce() -> Arc<T>) -> Arc<T>
    where
        T: Send + Sync + 'static,
    {
        let request = self.record.view.request.load(Ordering::Relaxed);
        let mut own = self.scoped().of_request.lock();
        let known = own.as_ref().filter(|(of, _)| *of == request);
        if let Some(Ok(value)) = known.map(|(_, value)| Arc::downcast(value.clone())) {
            return value;
        }
        let made = make();
        *own = Some((request, made.clone()));
        made
    }

    fn replace_values(&self, values: Values) -> Values {
        std::mem::replace(&mut *self.scoped().values.lock(), values)
    }
}

/// Calls `f`, which runs on a waiter without being its code, and sees no values.
#[inline]
pub(crate) fn seeing_none<R>(on: impl FnOnce() -> &'static Waiter, f: impl FnOnce() -> R) -> R {
    match are_used().then(on) {
        Some(waiter) if !waiter.values().is_empty() => waiter.within(Values::default(), f),
        _ => f(),
    }
}

/// The values of the code around the caller's. They are the waiter's again when this is dropped.
struct OuterValues {
    waiter: &'static Waiter,
    values: Values,
}

impl Drop for OuterValues {
    fn drop(&mut self) {
        let inside = self.waiter.replace_values(std::mem::take(&mut self.values));
        // Outside the lock, and among the values outside: a destructor is the application's code.
        drop(inside);
    }
}
