//! Implements the spans in a build with the feature `spans`.
//!
//! The application's collector of spans is called on schedulers' threads, in the middle of turns,
//! and in signal handlers. So no lock of this crate is held while it runs, and it must not call
//! this crate.

use std::sync::atomic::{AtomicU64, Ordering};

use tracing::span::Id;
use tracing::{Span, trace, trace_span};

use super::code::{Borrowed, CarriedSpans, CodeSpans, unnoted};
use crate::os::lock::Lock;

/// The spans of one worker. The worker itself begins, pauses and ends them; `woken` is called by
/// any thread, and uses the numbers only.
pub(crate) struct WorkerSpans {
    own: Lock<Spans>,
    /// The numbers of the worker's span and of the request's; 0 for none.
    numbers: [AtomicU64; 2],
    /// The application's.
    code: CodeSpans,
}

#[derive(Default)]
struct Spans {
    worker: Option<Span>,
    request: Option<Span>,
    entered: bool,
}

impl Spans {
    fn enter(&mut self) {
        for span in self.worker.iter().chain(&self.request) {
            span.with_subscriber(|(id, to)| to.enter(id));
        }
        self.entered = true;
    }

    fn leave(&mut self) {
        for span in self.request.iter().chain(&self.worker) {
            span.with_subscriber(|(id, to)| to.exit(id));
        }
        self.entered = false;
    }
}

impl WorkerSpans {
    pub const fn new() -> WorkerSpans {
        let own = Spans { worker: None, request: None, entered: false };
        let numbers = [AtomicU64::new(0), AtomicU64::new(0)];
        WorkerSpans { own: Lock::new(own), numbers, code: CodeSpans::new() }
    }

    /// Notes that the worker begins to live and runs.
    pub fn begin_worker(&'static self, kind: &'static str, name: impl FnOnce() -> String) {
        let name = name();
        let span = trace_span!(
            target: "tokio::task", parent: None, "runtime.spawn", kind, task.name = %name
        );
        has_a_waker(&span);
        self.number(0, &span);
        Borrowed::from(&self.own).worker = Some(span);
        self.go_on();
    }

    /// Notes that the worker ends.
    pub fn end_worker(&self) {
        self.pause();
        self.numbers.iter().for_each(|number| number.store(0, Ordering::Relaxed));
        let mut spans = Borrowed::from(&self.own);
        (spans.worker, spans.request) = (None, None);
    }

    /// Notes that the worker begins a request.
    pub fn begin_request(&self, request: u64, user: u64) {
        let mut spans = Borrowed::from(&self.own);
        let name = match user {
            0 => "task".to_owned(),
            user => format!("user {user}"),
        };
        let around = spans.worker.as_ref().and_then(Span::id);
        let span = trace_span!(
            target: "tokio::task", parent: around, "runtime.spawn",
            kind = "request", task.name = %name, task.id = request, user.id = user
        );
        has_a_waker(&span);
        unnoted(|| _ = span.with_subscriber(|(id, to)| to.enter(id)));
        self.number(1, &span);
        spans.request = Some(span);
    }

    /// Notes that the request has ended.
    pub fn end_request(&self) {
        self.numbers[1].store(0, Ordering::Relaxed);
        if let Some(span) = Borrowed::from(&self.own).request.take() {
            unnoted(|| _ = span.with_subscriber(|(id, to)| to.exit(id)));
        }
    }

    /// Exits the application's spans that code of the request, which has ended, has left entered.
    pub fn end_code(&self) {
        self.code.clear();
    }

    /// Leaves the worker's spans, before other code than the worker's runs on the same thread.
    /// Returns false if it has left them already.
    pub fn pause(&self) -> bool {
        let mut spans = Borrowed::from(&self.own);
        let runs = spans.entered;
        if runs {
            self.code.pause();
            spans.leave();
        }
        runs
    }

    /// Enters the worker's spans again, because the worker runs.
    pub fn go_on(&'static self) {
        let mut spans = Borrowed::from(&self.own);
        if !spans.entered {
            spans.enter();
            self.code.go_on();
        }
    }

    /// Leaves the worker's spans until the returned value is dropped, also by a panic.
    pub fn paused(&'static self) -> PausedSpans {
        PausedSpans(self.pause().then_some(self))
    }

    /// Returns the application's spans that the worker's code is inside.
    pub fn carried(&self) -> CarriedSpans {
        self.code.carried()
    }

    /// Notes that the worker's wait was ended.
    pub fn woken(&self) {
        let numbers = self.numbers.iter().map(|number| number.load(Ordering::Relaxed));
        for id in numbers.filter(|number| *number != 0) {
            trace!(target: "tokio::task::waker", op = "waker.wake_by_ref", task.id = id);
        }
    }

    fn number(&self, of: usize, span: &Span) {
        let number = span.id().as_ref().map_or(0, Id::into_u64);
        self.numbers[of].store(number, Ordering::Relaxed);
    }
}

/// Enters the spans again when it is dropped, unless they had been left before it was made.
pub(crate) struct PausedSpans(Option<&'static WorkerSpans>);

impl Drop for PausedSpans {
    fn drop(&mut self) {
        self.0.into_iter().for_each(WorkerSpans::go_on);
    }
}

/// Reports that the span has a waker, because tokio-console shows a task without wakers as lost.
fn has_a_waker(span: &Span) {
    if let Some(id) = span.id() {
        trace!(target: "tokio::task::waker", op = "waker.clone", task.id = id.into_u64());
    }
}
