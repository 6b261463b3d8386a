//! The writer: reports on their way to stderr, which may be a pipe that nobody reads.
//!
//! The monitor must not stand still because a terminal is stopped or a log collector hangs. So it
//! puts each report into a short queue, and a thread that exists only while there is something to
//! write takes them out. What finds the queue full is counted, and the next text says how much is
//! missing.
//!
//! What it does not do: it keeps no thread while all is well.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use super::Condition;
use super::deliver::Counts;

/// Reports that may wait to be written.
const QUEUE_MAX: usize = 16;

struct Line {
    text: String,
    condition: Condition,
    counts: Arc<Counts>,
}

struct Queue {
    lines: VecDeque<Line>,
    /// Whether a thread is writing.
    writing: bool,
    /// Left out since the last one that was taken.
    missing: u64,
}

static QUEUE: Mutex<Queue> =
    Mutex::new(Queue { lines: VecDeque::new(), writing: false, missing: 0 });
static EMPTY: Condvar = Condvar::new();

fn queue() -> MutexGuard<'static, Queue> {
    QUEUE.lock().unwrap_or_else(|e| e.into_inner())
}

/// Has a report written as soon as that can be.
pub(super) fn write(text: String, condition: Condition, counts: &Arc<Counts>) {
    let mut queue = queue();
    if queue.lines.len() >= QUEUE_MAX {
        queue.missing += 1;
        counts.unwritten(condition);
        return;
    }
    let text = match std::mem::take(&mut queue.missing) {
        0 => text,
        missing => format!("{text}\nums:   {missing} reports before this one could not be written"),
    };
    queue.lines.push_back(Line { text, condition, counts: counts.clone() });
    if !queue.writing {
        let thread = std::thread::Builder::new().name("ums-reports".into()).spawn(write_all);
        queue.writing = thread.is_ok();
        if thread.is_err() {
            // There will be another try with the next one.
            queue.missing += queue.lines.len() as u64;
            queue.lines.drain(..).for_each(|line| line.counts.unwritten(line.condition));
        }
    }
}

/// The thread.
fn write_all() {
    loop {
        let line = {
            let mut queue = queue();
            let Some(line) = queue.lines.pop_front() else {
                queue.writing = false;
                EMPTY.notify_all();
                return;
            };
            line
        };
        // Not eprintln: that panics when stderr is gone.
        if writeln!(std::io::stderr(), "{}", line.text).is_err() {
            line.counts.unwritten(line.condition);
        }
    }
}

/// Waits until everything is written, or for so long.
pub(super) fn settle(at_most: Duration) {
    let queue = queue();
    let _ = EMPTY.wait_timeout_while(queue, at_most, |queue| queue.writing);
}
