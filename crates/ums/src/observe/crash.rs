//! Crash reports: if the process dies of a signal, the last events of each scheduler are written to
//! stderr.
//!
//! A panic that ends the process is covered, too, because it calls `abort`. The handler reads the
//! event rings, which are never freed, formats into its own frame and writes. After that, the
//! signal has the effect that it would have without the handler.
//!
//! The process may be dying because its thread-local data cannot be read: a worker with its own
//! context changes the register by which thread-locals are found. A fault in the handler would end
//! the process without a message. So until everything is written the handler touches no
//! thread-local, `errno` included: it reads the processor's counter, and makes its system calls by
//! rustix, which has no `errno`. Passing the signal on may touch thread-locals, in the C library
//! and in the earlier handler.
//!
//! Named invariant **Signal**: the handler only reads atomics, formats into its own frame and calls
//! functions that POSIX allows in a signal handler. It leaves `errno` alone, and changes nothing of
//! the frame.

#![allow(unsafe_code)]

use std::fmt::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::c_int;

use crate::os::clock;
use crate::os::linux::handlers::{self, Before, Handler, SignalFrame};
use crate::os::stderr::write_within;
use crate::record::event_ring::{self, Recorded, RingEvent};
use crate::record::reason::WaitReason;

const SIGNALS: [c_int; 5] =
    [libc::SIGABRT, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];
static BEFORE: [Before; 5] = [const { Before::new() }; 5];
/// How many events of each scheduler are written.
const EVENTS: u64 = 16;
/// How long the dying process waits in all for a reader of its stderr, in steps of 10 ms.
const WAITS: u32 = 100;

/// Installs signal handlers that write the last events of each scheduler to stderr if the process
/// dies of a signal. Nodes without event rings have no events; see
/// [`Builder::event_ring`](crate::Builder::event_ring). Later calls do nothing.
pub fn print_last_events_on_crash() {
    static INSTALLED: OnceLock<()> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        // The rate of the clock's ticks is measured now, because the handler cannot do it.
        clock::start();
        for (signal, before) in SIGNALS.into_iter().zip(&BEFORE) {
            handlers::install::<Death>(signal, before, libc::SA_ONSTACK, 0);
        }
    });
}

struct Death;

// SAFETY: Signal: the handler reads atomics, formats into its own frame and writes. It leaves the
// signal's frame unchanged.
unsafe impl Handler for Death {
    /// The handler does not touch `errno`, which may be impossible to read.
    const KEEPS_ERRNO: bool = false;

    fn handle(frame: &mut SignalFrame<'_>) {
        static SAID: AtomicBool = AtomicBool::new(false);
        if !SAID.swap(true, Ordering::SeqCst) {
            say();
        }
        let signal = frame.signal();
        let place = SIGNALS.iter().position(|known| *known == signal);
        place.inspect(|place| frame.pass_on_or_raise(&BEFORE[*place], true));
    }
}

fn say() {
    let now = clock::ticks();
    let (mut waits, mut unwritten) = (WAITS, 0);
    for (scheduler, ring) in event_ring::in_use() {
        for record in ring.last(EVENTS) {
            let mut line = Line::new();
            let us = clock::ticks_to_ns(now.saturating_sub(record.at)) / 1000;
            // A line that is too long is cut.
            let at_most = if record.unread > 0 { "at most " } else { "" };
            let _ = write!(line, "ums: scheduler {scheduler}, {at_most}{us} us ago: ");
            let _ = describe(&mut line, &record);
            unwritten += u32::from(!line.say(&mut waits));
        }
    }
    if unwritten > 0 {
        let mut line = Line::new();
        let _ = write!(line, "ums: {unwritten} more events: stderr had no room for them");
        line.say(&mut waits);
    }
}

fn describe(line: &mut Line, record: &Recorded) -> std::fmt::Result {
    let Recorded { event, worker, detail, .. } = *record;
    match event {
        RingEvent::Wait | RingEvent::Leave => {
            let reason = WaitReason::from_index(detail as usize).name_if_built_in();
            write!(line, "{} worker {worker} {reason}", event.name())
        }
        RingEvent::Wake => write!(line, "WAKE worker {worker} of scheduler {detail}"),
        _ => write!(line, "{} worker {worker} ({detail})", event.name()),
    }
}

/// A line of text in the handler's own frame.
struct Line {
    text: [u8; 160],
    len: usize,
}

impl Line {
    fn new() -> Line {
        Line { text: [0; 160], len: 0 }
    }

    /// Writes the line, and returns whether it was written.
    fn say(&mut self, waits: &mut u32) -> bool {
        let end = self.len.min(self.text.len() - 1);
        self.text[end] = b'\n';
        write_within(&self.text[..=end], waits)
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let room = self.text.len() - 1 - self.len;
        let take = text.len().min(room);
        self.text[self.len..self.len + take].copy_from_slice(&text.as_bytes()[..take]);
        self.len += take;
        Ok(())
    }
}
