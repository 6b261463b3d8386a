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
//!   nothing. The list is not locked meanwhile, because a subscriber is the application's code.
//! * An entry holds a reference to its span. A span whose handle is gone, but whose guard was
//!   forgotten, can so be entered again.

use std::cell::Cell;

use tracing::Dispatch;
use tracing::dispatcher::WeakDispatch;
use tracing::span::Id;

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

    fn all(&self) -> Vec<Inside> {
        self.0.lock().clone()
    }

    /// Exits all, and notes no more. The calling worker has stopped to run its own code.
    pub fn pause(&self) {
        CURRENT.set(None);
        self.all().iter().rev().for_each(Inside::exit);
    }

    /// Enters all again, and notes what the calling worker's code enters from now on.
    pub fn go_on(&'static self) {
        self.all().iter().for_each(Inside::enter);
        CURRENT.set(Some(self));
    }

    /// Exits those that the code of a request has left entered, and forgets them.
    pub fn clear(&self) {
        let left = std::mem::take(&mut *self.0.lock());
        unnoted(|| left.iter().rev().for_each(Inside::exit));
        left.into_iter().for_each(Inside::forget);
    }

    /// Returns what the calling worker's code is inside.
    pub fn carried(&self) -> CarriedSpans {
        CarriedSpans(self.all())
    }
}

/// Calls `f`, which enters or exits spans of the library.
pub(super) fn unnoted(f: impl FnOnce()) {
    let current = CURRENT.take();
    f();
    CURRENT.set(current);
}

/// Notes that the code of the calling thread's worker has entered a span.
pub(super) fn note_enter(to: &Collector, span: &Id) {
    let (Some(current), Some(dispatch)) = (CURRENT.get(), to.dispatch.upgrade()) else { return };
    let inside = Inside { span: dispatch.clone_span(span), to: to.clone() };
    current.0.lock().push(inside);
}

/// Notes that the code of the calling thread's worker has exited a span.
pub(super) fn note_exit(to: &Collector, span: &Id) {
    let Some(current) = CURRENT.get() else { return };
    let mut list = current.0.lock();
    let it = |inside: &Inside| inside.to.layer == to.layer && inside.span == *span;
    // Guards may be dropped in any order.
    let gone = list.iter().rposition(it).map(|at| list.remove(at));
    drop(list);
    gone.into_iter().for_each(Inside::forget);
}

/// The spans of a fiber's code, for the worker that carries out a closure for the fiber. The fiber
/// waits meanwhile, and keeps the references.
pub(crate) struct CarriedSpans(Vec<Inside>);

impl CarriedSpans {
    /// Calls `f`, the whole code of a request, inside the spans. They are exited with the request.
    pub fn around<R>(self, f: impl FnOnce() -> R) -> R {
        self.0.iter().for_each(Inside::enter);
        f()
    }
}
