//! Traces: the event rings of a node, combined for trace viewers.
//!
//! ```text
//!   rings of all schedulers --read repeatedly--> records, each once, in order of time
//!        |
//!        +--> slices: of each scheduler, which worker runs; of each worker, whether it runs, could
//!        |    run, waits (and for what) or is preemptive
//!        +--> wakes: from the worker that ended a wait to the worker that runs because of it
//!        +--> marks: I/O submitted and completed, requests begun and stolen
//! ```
//!
//! [`Trace::to_chrome_json`] is for chrome://tracing and other programs that read its format,
//! [`Trace::to_perfetto`] for ui.perfetto.dev. If events were overwritten before they were read,
//! the trace says how many.

// A file uses only files that are declared above it.
#[cfg(feature = "traces")]
mod timeline;
#[cfg(feature = "traces")]
mod chrome;
#[cfg(feature = "traces")]
mod perfetto;
#[cfg(feature = "metrics")]
mod order;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::current::{is_worker, sleep};
use crate::node::{Node, NodeInner};
use crate::os::clock;
use crate::record::event_ring::{Recorded, RingEvent};

#[cfg(feature = "metrics")]
pub(crate) use order::TraceOrder;

/// The time between two reads of the rings while a trace is recorded.
const READ_EVERY: Duration = Duration::from_millis(4);

/// One record of an event ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TraceEvent {
    /// The scheduler's number.
    pub scheduler: usize,
    /// How many events the scheduler had recorded before this one.
    pub number: u64,
    /// The time of the event, in nanoseconds of the monotonic clock. [`RingEvent::Switch`] says how
    /// exact it is.
    pub at_ns: u64,
    /// The kind of the event.
    pub event: RingEvent,
    /// The worker's number.
    pub worker: u32,
    /// A detail; see [`RingEvent`].
    pub detail: u32,
}

/// A file format for traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TraceFormat {
    /// The format of chrome://tracing.
    Chrome,
    /// The format of ui.perfetto.dev.
    Perfetto,
}

/// The events of a node's schedulers over some time.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Trace {
    /// The events, in order of time.
    pub events: Vec<TraceEvent>,
    /// How many events were overwritten before they were read.
    pub lost: u64,
    /// The names of the schedulers, by number.
    pub names: Vec<String>,
}

#[cfg(feature = "traces")]
impl Trace {
    pub(crate) fn in_format(&self, format: TraceFormat) -> Vec<u8> {
        match format {
            TraceFormat::Chrome => self.to_chrome_json().into_bytes(),
            TraceFormat::Perfetto => self.to_perfetto(),
        }
    }
}

impl Node {
    /// Returns the present contents of the event rings; empty if
    /// [`Builder::event_ring`](crate::Builder::event_ring) is off.
    ///
    /// ```
    /// let node = ums::Node::builder().schedulers(1).build()?;
    /// node.run(|| ums::sleep(std::time::Duration::from_millis(1))).unwrap();
    /// let trace = node.last_events();
    /// assert!(trace.events.iter().any(|e| e.event == ums::stats::RingEvent::Wait));
    /// assert!(trace.to_chrome_json().contains("waits SLEEP"));
    /// # Ok::<(), ums::BuildError>(())
    /// ```
    pub fn last_events(&self) -> Trace {
        last_events(&self.inner)
    }

    /// Records for this long and returns the events of that time. May be called on a plain thread
    /// or a worker.
    pub fn record_trace(&self, span: Duration) -> Trace {
        self.record_trace_while(span, |_| true)
    }

    /// Records as [`Node::record_trace`] does, but stops when `so` returns false. `so` is passed
    /// the number of events.
    pub(crate) fn record_trace_while(&self, span: Duration, so: impl Fn(usize) -> bool) -> Trace {
        let mut recorder = Recorder::new();
        recorder.skip(&self.inner);
        recorder.record(&self.inner, span, so)
    }

    /// Like [`Node::record_trace_while`], with the events that are in the rings already.
    pub(crate) fn record_from_start(&self, span: Duration, so: impl Fn(usize) -> bool) -> Trace {
        Recorder::new().record(&self.inner, span, so)
    }
}

/// Returns the present contents of a node's rings.
pub(crate) fn last_events(node: &NodeInner) -> Trace {
    let mut recorder = Recorder::new();
    recorder.read(node);
    recorder.finish(node)
}

/// Reads rings. Remembers for each ring up to which position it was read.
struct Recorder {
    next: BTreeMap<usize, u64>,
    /// The records read so far, each with its scheduler's number.
    records: Vec<(usize, Recorded)>,
    lost: u64,
    /// The same moment on both clocks: nanoseconds and ticks.
    moment: (u64, u64),
}

impl Recorder {
    fn new() -> Recorder {
        let moment = (clock::now(), clock::ticks());
        Recorder { next: BTreeMap::new(), records: Vec::new(), lost: 0, moment }
    }

    /// Skips the events that are in the rings already.
    fn skip(&mut self, node: &NodeInner) {
        for s in node.all() {
            let last = s.ring.and_then(|ring| ring.read().last().map(|record| record.number + 1));
            self.next.insert(s.index, last.unwrap_or(0));
        }
    }

    /// Reads the rings again and again for this long, or until `so` returns false.
    fn record(mut self, node: &NodeInner, span: Duration, so: impl Fn(usize) -> bool) -> Trace {
        let end = clock::after(span);
        while clock::now() < end && so(self.records.len()) {
            if is_worker() {
                // If the request was cancelled, it cannot sleep any more. The caller gets the
                // events that were recorded so far.
                if sleep(READ_EVERY).is_err() {
                    break;
                }
            } else {
                std::thread::sleep(READ_EVERY);
            }
            self.read(node);
        }
        // What has happened since, and all events if the loop was not entered.
        self.read(node);
        self.finish(node)
    }

    fn read(&mut self, node: &NodeInner) {
        for s in node.all() {
            let Some(ring) = s.ring else { continue };
            let records = ring.read();
            let first = records.first().map_or(0, |record| record.number);
            let next = *self.next.get(&s.index).unwrap_or(&first);
            self.lost += first.saturating_sub(next);
            let new = records.iter().filter(|record| record.number >= next);
            self.records.extend(new.map(|record| (s.index, *record)));
            let last = records.last().map_or(next, |record| record.number + 1);
            self.next.insert(s.index, last.max(next));
        }
    }

    fn finish(self, node: &NodeInner) -> Trace {
        let (ns, then) = self.moment;
        // One rate for all events: otherwise two of them could change places.
        let rate = clock::rate();
        let at_ns = |ticks: u64| match ticks.checked_sub(then) {
            Some(later) => ns + rate.ns(later),
            None => ns.saturating_sub(rate.ns(then - ticks)),
        };
        let event = |(scheduler, record): (usize, Recorded)| TraceEvent {
            scheduler,
            number: record.number,
            at_ns: at_ns(record.at),
            event: record.event,
            worker: record.worker,
            detail: record.detail,
        };
        let mut events: Vec<_> = self.records.into_iter().map(event).collect();
        events.sort_by_key(|event| (event.at_ns, event.scheduler, event.number));
        let names = node.all().iter().map(|s| s.name().to_owned()).collect();
        Trace { events, lost: self.lost, names }
    }
}
