//! Implements the spans in a build with the feature `spans`. The application's collector of spans
//! is called on schedulers' threads and in the middle of turns, so it must not use this crate's
//! waits.

use tracing::{Span, trace, trace_span};

use super::code::{CarriedSpans, CodeSpans, unnoted};
use crate::os::lock::Lock;

/// The spans of one worker. The worker itself begins, pauses and ends them; `woken` is called by
/// any thread.
pub(crate) struct WorkerSpans {
    own: Lock<Spans>,
    /// The application's.
    code: CodeSpans,
}

struct Spans {
    worker: Option<Span>,
    request: Option<Span>,
    entered: bool,
}

impl Spans {
    fn enter(&mut self) {
        self.each(|span| {
            span.with_subscriber(|(id, to)| to.enter(id));
        });
        self.entered = true;
    }

    /// Calls `f` for each span, the outer one first.
    fn each(&self, f: impl FnMut(&Span)) {
        self.worker.iter().chain(&self.request).for_each(f);
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
        WorkerSpans { own: Lock::new(own), code: CodeSpans::new() }
    }

    /// Notes that the worker begins to live and runs.
    pub fn begin_worker(&'static self, kind: &'static str, name: impl FnOnce() -> String) {
        let name = name();
        let span = trace_span!(
            target: "tokio::task", parent: None, "runtime.spawn", kind, task.name = %name
        );
        has_a_waker(&span);
        self.own.lock().worker = Some(span);
        self.go_on();
    }

    /// Notes that the worker ends.
    pub fn end_worker(&self) {
        self.pause();
        let mut spans = self.own.lock();
        (spans.worker, spans.request) = (None, None);
    }

    /// Notes that the worker begins a request.
    pub fn begin_request(&self, request: u64, user: u64) {
        let mut spans = self.own.lock();
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
        spans.request = Some(span);
    }

    /// Notes that the request has ended.
    pub fn end_request(&self) {
        self.code.clear();
        let mut spans = self.own.lock();
        if let Some(span) = spans.request.take() {
            unnoted(|| _ = span.with_subscriber(|(id, to)| to.exit(id)));
        }
    }

    /// Leaves the worker's spans, before another worker runs on the same thread.
    pub fn pause(&self) {
        let mut spans = self.own.lock();
        if spans.entered {
            self.code.pause();
            spans.leave();
        }
    }

    /// Enters the worker's spans again, because the worker runs.
    pub fn go_on(&'static self) {
        let mut spans = self.own.lock();
        if !spans.entered {
            spans.enter();
            self.code.go_on();
        }
    }

    /// Returns the application's spans that the worker's code is inside.
    pub fn carried(&self) -> CarriedSpans {
        self.code.carried()
    }

    /// Notes that the worker's wait was ended.
    pub fn woken(&self) {
        let mut ids = Vec::new();
        self.own.lock().each(|span| ids.extend(span.id()));
        for id in ids {
            trace!(target: "tokio::task::waker", op = "waker.wake_by_ref", task.id = id.into_u64());
        }
    }
}

/// Reports that the span has a waker, because tokio-console shows a task without wakers as lost.
fn has_a_waker(span: &Span) {
    if let Some(id) = span.id() {
        trace!(target: "tokio::task::waker", op = "waker.clone", task.id = id.into_u64());
    }
}
