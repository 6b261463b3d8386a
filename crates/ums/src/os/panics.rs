//! Panics of application code: [`contain`] runs such code where no panic may pass.

/// Runs application code and catches a panic of it. Returns false if it panicked. The payload is
/// dropped here, and its destructor may panic again.
pub fn contain(call: impl FnOnce()) -> bool {
    let catch =
        |call: &mut dyn FnMut()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).err();
    let mut call = Some(call);
    let mut payload = catch(&mut || call.take().into_iter().for_each(|call| call()));
    let fine = payload.is_none();
    if let Some(again) = catch(&mut || drop(payload.take())) {
        // This payload is leaked: if its destructor panicked with another of its kind, and so on,
        // this would never end.
        std::mem::forget(again);
    }
    fine
}
