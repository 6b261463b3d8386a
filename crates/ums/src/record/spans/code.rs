//! The application's spans that a worker's code is inside.
//!
//! ```text
//!   the layer   notes what the code enters and exits        while the worker runs
//!   the worker  exits all, the innermost first              before another worker runs
//!               enters all, the outermost first             when it runs again
//! ```
//!
//! A subscriber keeps the spans that are entered by thread, and all fibers of a scheduler share
//! one. Between a worker's exit and its next entry the thread is inside none of its spans.
//!
//! * Only the worker itself uses its list. The lock is there because workers are shared.
//! * While the library itself enters and exits spans, there is no current list, so the layer notes
//!   nothing. The list is taken out of its place meanwhile, because a subscriber is the
//!   application's code, which must not run under a lock.
//! * A worker may leave its scheduler, and so pause, in a signal handler that has interrupted its
//!   code anywhere, such as in the allocator. So a pause allocates nothing, and the list is changed
//!   inside the library only, where a worker does not leave.
//! * An entry holds a reference to its span, so it can be entered again when its handle is gone and
//!   only its guard was forgotten.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};

use tracing::Dispatch;
use tracing::dispatcher::WeakDispatch;
use tracing::span::Id;

use crate::os::entry;
use crate::os::lock::Lock;

thread_local! {
    /// The list of the worker that runs on the calling thread.
    static CURRENT: Cell<Option<&'static CodeSpans>> = const { Cell::new(None) };
}

/// The application's spans that one worker is inside, the outermost first.
pub(super) struct CodeSpans(Lock<Vec<Inside>>);

#[derive(Clone)]
struct Inside {
    span: Id,
    to: Collector,
}

/// The subscriber of a layer.
#[derive(Clone, Debug)]
pub(super) struct Collector {
    /// The number of the layer.
    pub layer: u64,
    pub dispatch: WeakDispatch,
}

impl Inside {
    fn tell(&self, f: impl FnOnce(&Dispatch, &Id)) {
        // The subscriber is gone if it was set for a part of the program only.
        if let Some(to) = self.to.dispatch.upgrade() {
            f(&to, &self.span);
        }
    }

    fn enter(&self) {
        self.tell(|to, span| to.enter(span));
    }

    fn exit(&self) {
        self.tell(|to, span| to.exit(span));
    }

    /// Drops the reference to the span.
    fn forget(self) {
        self.tell(|to, span| _ = to.try_close(span.clone()));
    }
}

impl CodeSpans {
    pub const fn new() -> CodeSpans {
        CodeSpans(Lock::new(Vec::new()))
    }

    /// Exits all, and notes no more. The calling worker no longer runs its own code.
    pub fn pause(&self) {
        CURRENT.set(None);
        Borrowed::from(&self.0).iter().rev().for_each(Inside::exit);
    }

    /// Enters all again, and notes what the calling worker's code enters from now on.
    pub fn go_on(&'static self) {
        Borrowed::from(&self.0).iter().for_each(Inside::enter);
        CURRENT.set(Some(self));
    }

    /// Exits those that the code of a request has left entered, and forgets them.
    pub fn clear(&self) {
        let left = std::mem::take(&mut *self.0.lock());
        if !left.is_empty() {
            unnoted(|| left.iter().rev().for_each(Inside::exit));
            left.into_iter().for_each(Inside::forget);
        }
    }

    /// Returns what the calling worker's code is inside.
    pub fn carried(&self) -> CarriedSpans {
        CarriedSpans(self.0.lock().clone())
    }
}

/// A value that is out of its place while this lives, so that it can be used without the lock.
/// Only the caller uses the place meanwhile.
pub(super) struct Borrowed<'a, T> {
    place: &'a Lock<T>,
    value: T,
}

impl<'a, T: Default> From<&'a Lock<T>> for Borrowed<'a, T> {
    fn from(place: &'a Lock<T>) -> Borrowed<'a, T> {
        Borrowed { place, value: std::mem::take(&mut *place.lock()) }
    }
}

impl<T> Deref for Borrowed<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Borrowed<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for Borrowed<'_, T> {
    fn drop(&mut self) {
        std::mem::swap(&mut *self.place.lock(), &mut self.value);
    }
}

/// Calls `f`, which enters or exits spans of the library.
pub(super) fn unnoted(f: impl FnOnce()) {
    /// The list that is current again after `f`, also if the subscriber panics.
    struct Current(Option<&'static CodeSpans>);
    impl Drop for Current {
        fn drop(&mut self) {
            CURRENT.set(self.0);
        }
    }
    let _current = Current(CURRENT.take());
    f();
}

/// Notes that the code of the calling thread's worker has entered a span.
pub(super) fn note_enter(to: &Collector, span: &Id) {
    let (Some(current), Some(dispatch)) = (CURRENT.get(), to.dispatch.upgrade()) else { return };
    let inside = Inside { span: dispatch.clone_span(span), to: to.clone() };
    let _stays = entry::Inside::enter();
    current.0.lock().push(inside);
}

/// Notes that the code of the calling thread's worker has exited a span.
pub(super) fn note_exit(to: &Collector, span: &Id) {
    let Some(current) = CURRENT.get() else { return };
    let it = |inside: &Inside| inside.to.layer == to.layer && inside.span == *span;
    let stays = entry::Inside::enter();
    let mut list = current.0.lock();
    // Guards may be dropped in any order.
    let gone = list.iter().rposition(it).map(|at| list.remove(at));
    drop((list, stays));
    gone.into_iter().for_each(Inside::forget);
}

/// The spans of a fiber's code, for the worker that carries out a closure for the fiber. The fiber
/// waits meanwhile, and keeps the references.
pub(crate) struct CarriedSpans(Vec<Inside>);

impl CarriedSpans {
    /// Calls `f` inside the spans. They are exited when it returns or panics.
    pub fn around<R>(self, f: impl FnOnce() -> R) -> R {
        struct Exits(Vec<Inside>);
        impl Drop for Exits {
            fn drop(&mut self) {
                self.0.iter().rev().for_each(Inside::exit);
            }
        }
        self.0.iter().for_each(Inside::enter);
        let _exits = Exits(self.0);
        f()
    }
}
