//! Spans: shows workers and requests as `tracing` spans, with the names and fields by which
//! tokio-console recognises tasks, and makes the application's spans follow its workers. This needs
//! the feature `spans`; without it every function here is empty.
//!
//! ```text
//!   worker  begins ........................................... ends       one span
//!   request           begins ................. ends                       one inside it
//!   the application's      enters ......... exits                         inside both
//!   entered           ======   park   ====  yield  ===                    only while it runs
//!   waker                           wake                                  an event: its wait ends
//! ```
//!
//! A worker's spans are entered on the thread that carries the worker, and left before another
//! worker runs on that thread, because fibers would otherwise be inside one another's spans. While
//! a worker is preemptive its spans stay entered, because it runs.
//!
//! The same holds for the spans that the application's code enters, if the program's subscriber
//! has the layer [`SpanLayer`], which notes them. A span that a request leaves entered is
//! exited with the request.
//!
//! What this room does not do: without that layer, it does not know the application's spans. If
//! code on a fiber stays inside such a span while it waits, the other fibers of the thread then run
//! inside that span, too. Tasks do not inherit the spans of their spawner.

#[cfg(feature = "spans")]
mod code;
#[cfg(feature = "spans")]
mod layer;
#[cfg(feature = "spans")]
mod on;
#[cfg(feature = "spans")]
pub(crate) use code::CarriedSpans;
#[cfg(feature = "spans")]
pub use layer::SpanLayer;
#[cfg(feature = "spans")]
pub(crate) use on::WorkerSpans;

#[cfg(not(feature = "spans"))]
mod off;
#[cfg(not(feature = "spans"))]
pub(crate) use off::{CarriedSpans, WorkerSpans};
