//! Spans: workers and requests as `tracing` spans, with the names and fields by which tokio-console
//! recognises tasks. Only with the feature `spans`; without it all of this is empty.
//!
//! ```text
//!   worker  begins ........................................... ends       one span
//!   request           begins ................. ends                       one inside it
//!   entered           ======   park   ====  yield  ===                    only while it runs
//!   waker                           wake                                  an event: its wait ends
//! ```
//!
//! A span is entered on the thread that carries the worker, and left before another worker runs
//! there: fibers would be inside one another's spans otherwise. While a worker is preemptive it is
//! inside its span, for it runs.
//!
//! What it does not do: it keeps no spans of the application's. Code on a fiber that stays inside
//! one over a wait leaves its siblings inside it too, as `async` code would.

#[cfg(feature = "spans")]
mod on;
#[cfg(feature = "spans")]
pub(crate) use on::Slot;

#[cfg(not(feature = "spans"))]
mod off;
#[cfg(not(feature = "spans"))]
pub(crate) use off::Slot;
