//! The writer: prints reports on stderr, which may be a pipe that no process reads.
//!
//! The monitor must not stop because a terminal is stopped or a log collector hangs. So it puts
//! each report into a short queue, and a second thread writes the queue to stderr. That thread
//! exists only while there is something to write. If the queue is full, the report is only counted,
//! and the next text says how many reports are missing.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use super::counts::ReportCounts;
use super::report::Condition;
use crate::os::lock::{Lock, LockCondvar};
use crate::os::threads;
use crate::record::plural::counted;

/// The largest number of reports in the queue.
const QUEUE_MAX: usize = 16;

struct Line {
    text: String,
    condition: Condition,
    counts: Arc<ReportCounts>,
}

struct Queue {
    lines: VecDeque<Line>,
    /// Whether a thread is writing.
    writing: bool,
    /// Reports left out since the last one that was queued.
    missing: u64,
}

static QUEUE: Lock<Queue> = Lock::new(Queue { lines: VecDeque::new(), writing: false, missing: 0 });
static EMPTY: LockCondvar = LockCondvar::new();

/// Queues a report to be written.
pub(super) fn write(text: String, condition: Condition, counts: &Arc<ReportCounts>) {
    let mut queue = QUEUE.lock();
    if queue.lines.len() >= QUEUE_MAX {
        queue.missing += 1;
        counts.unwritten(condition);
        return;
    }
    let text = match std::mem::take(&mut queue.missing) {
        0 => text,
        missing => format!(
            "{text}\nums:   could not be written before this one: {}",
            counted(missing as usize, "report")
        ),
    };
    queue.lines.push_back(Line { text, condition, counts: counts.clone() });
    if !queue.writing {
        let thread =
            threads::start(std::thread::Builder::new().name("ums-reports".into()), write_all);
        queue.writing = thread.is_ok();
        if thread.is_err() {
            // The next report tries again.
            queue.missing += queue.lines.len() as u64;
            queue.lines.drain(..).for_each(|line| line.counts.unwritten(line.condition));
        }
    }
}

/// The body of the writing thread.
fn write_all() {
    loop {
        let line = {
            let mut queue = QUEUE.lock();
            let Some(line) = queue.lines.pop_front() else {
                queue.writing = false;
                EMPTY.notify_all();
                return;
            };
            line
        };
        // Not `eprintln`: it panics when stderr is closed.
        if writeln!(std::io::stderr(), "{}", line.text).is_err() {
            line.counts.unwritten(line.condition);
        }
    }
}

/// Waits until all reports are written, or at most for this time.
pub(super) fn settle(at_most: Duration) {
    let queue = QUEUE.lock();
    EMPTY.wait_timeout_while(queue, at_most, |queue| queue.writing);
}
