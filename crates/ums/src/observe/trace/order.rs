//! Traces that clients order: in which format, for how long, and how many at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use super::TraceFormat;
use crate::node::Node;
use crate::os::threads;

/// A trace that a client has asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TraceOrder {
    pub format: TraceFormat,
    /// How long to record; zero means the present contents of the rings.
    pub span: Duration,
}

/// The longest trace that is recorded for one order.
const ORDER_MAX: Duration = Duration::from_secs(60);
/// How many orders are carried out at the same time. The number is limited because each order keeps
/// its events in memory.
const ORDERS_MAX: usize = 4;
static ORDERS: AtomicUsize = AtomicUsize::new(0);

impl TraceOrder {
    /// Records the trace and delivers the file on a new thread, because the caller has other
    /// clients to serve. Stops early if `ending` becomes true.
    ///
    /// # Errors
    /// A message that says why nothing is recorded.
    pub(crate) fn carry_out(
        self,
        node: Node,
        ending: Arc<AtomicBool>,
        deliver: impl FnOnce(Vec<u8>) + Send + 'static,
    ) -> Result<(), &'static str> {
        if node.inner.all().iter().all(|s| s.ring.is_none()) {
            return Err("nothing is recorded in this process: its event rings are off");
        }
        let place = Place::take().ok_or("too many traces are being recorded")?;
        let record = move || {
            let _place = place;
            let span = self.span.min(ORDER_MAX);
            let trace = match self.span.is_zero() {
                true => node.last_events(),
                false => node.record_trace_while(span, |_| !ending.load(Ordering::Acquire)),
            };
            drop(node);
            deliver(trace.in_format(self.format));
        };
        let thread = threads::start(std::thread::Builder::new().name("ums-trace".into()), record);
        thread.map(drop).map_err(|_| "the system refuses a thread")
    }
}

/// One of the [`ORDERS_MAX`] places for running orders, occupied until this is dropped.
struct Place;

impl Place {
    fn take() -> Option<Place> {
        let one_more = |n| (n < ORDERS_MAX).then_some(n + 1);
        let taken = ORDERS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        taken.ok().map(|_| Place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        ORDERS.fetch_sub(1, Ordering::Relaxed);
    }
}
