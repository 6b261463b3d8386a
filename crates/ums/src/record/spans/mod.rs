//! Spans: shows workers and requests as `tracing` spans, with the names and fields by which
//! tokio-console recognises tasks. This needs the feature `spans`; without it every function here
//! is empty.
//!
//! ```text
//!   worker  begins ........................................... ends       one span
//!   request           begins ................. ends                       one inside it
//!   entered           ======   park   ====  yield  ===                    only while it runs
//!   waker                           wake                                  an event: its wait ends
//! ```
//!
//! A worker's spans are entered on the thread that carries the worker, and left before another
//! worker runs on that thread, because fibers would otherwise be inside one another's spans. While
//! a worker is preemptive its spans stay entered, because it runs.
//!
//! What this room does not do: it does not enter and leave the application's own spans. If code on
//! a fiber stays inside such a span while it waits, the other fibers of the thread run inside that
//! span, too, as with `async` code.

#[cfg(feature = "spans")]
mod on;
#[cfg(feature = "spans")]
pub(crate) use on::WorkerSpans;

#[cfg(not(feature = "spans"))]
mod off;
#[cfg(not(feature = "spans"))]
pub(crate) use off::WorkerSpans;
