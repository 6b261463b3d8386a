//! Panics of application code: [`contain`] runs such code where no panic may pass, and [`text_of`]
//! returns the text of a panic.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs application code and catches a panic of it. Returns false if it panicked. The payload is
/// dropped here, and its destructor may panic again.
#[inline]
pub fn contain(call: impl FnOnce()) -> bool {
    let payload = catch_unwind(AssertUnwindSafe(call)).err();
    let fine = payload.is_none();
    payload.into_iter().for_each(drop_payload);
    fine
}

/// Returns the text of a panic, if it has one.
pub fn text_of(payload: &(dyn Any + Send)) -> Option<&str> {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str))
}

#[cold]
fn drop_payload(payload: Box<dyn Any + Send>) {
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        // This payload is leaked: if its destructor panicked with another of its kind, and so on,
        // this would never end.
        std::mem::forget(again);
    }
}
