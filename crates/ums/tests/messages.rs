//! What the library does if its messages cannot be written: stderr is closed, full, a device
//! without room, or a pipe whose reader has stopped or gone. It goes on: no panic, no wait, no
//! abort, and no message in another file. A process that dies with a message dies all the same.
//!
//! The panics of tasks are printed by `std`, which waits for a full stderr and is not this
//! library's to change. So these tests turn that printing off.
//!
//! Named invariant **Plain Call**: descriptors are closed by number, before anything owns them.

#![allow(unsafe_code)]

mod common;
#[path = "common/signals.rs"]
mod signals;

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use common::seccomp::{Verdict, filter, has_survived, survived};
use common::*;
use ums::serve::{Connection, Next, ServeOptions, Session, Why};
use ums::{Node, WorkerKind};

/// What stderr is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stderr {
    /// A pipe that is read, to see that the messages are written at all.
    Read,
    /// A full pipe that is never read.
    Full,
    /// A pipe whose reader has gone.
    Broken,
    /// `/dev/full`.
    NoRoom,
    /// Closed before the process starts. `std` then opens `/dev/null`.
    ClosedBefore,
    /// Closed by the process, with stdin, before it builds a node.
    ClosedBetween,
}
use Stderr::{Broken, ClosedBefore, ClosedBetween, Full, NoRoom, Read};

const ALL: [Stderr; 6] = [Read, Full, Broken, NoRoom, ClosedBefore, ClosedBetween];

/// A child whose stderr is like this, and what must stay open meanwhile.
struct Started {
    child: Child,
    _open: Option<std::io::PipeReader>,
}

fn begin(test: &str, kind: WorkerKind, stderr: Stderr) -> Started {
    let mut command = child(test, &format!("{kind:?} {stderr:?}"));
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command.env("UMS_WATCH", "trap");
    let (reader, writer) = std::io::pipe().unwrap();
    let mut open = None;
    match stderr {
        Read => _ = command.stderr(Stdio::piped()),
        Full => {
            rustix::io::ioctl_fionbio(&writer, true).unwrap();
            while rustix::io::write(&writer, b".").is_ok() {}
            rustix::io::ioctl_fionbio(&writer, false).unwrap();
            command.stderr(writer);
            open = Some(reader);
        }
        Broken => _ = command.stderr(writer),
        NoRoom => _ = command.stderr(std::fs::File::create("/dev/full").unwrap()),
        ClosedBefore => {
            let close = || {
                // SAFETY: Plain Call: a number.
                unsafe { libc::close(2) };
                Ok(())
            };
            // SAFETY: Plain Call: the closure makes one system call.
            unsafe { command.pre_exec(close) };
        }
        ClosedBetween => _ = command.stderr(Stdio::piped()),
    }
    Started { child: command.spawn().unwrap(), _open: open }
}

/// Runs `body` in a child with each kind of worker and each kind of stderr, and hands over how it
/// ended.
fn in_children(test: &str, body: fn(WorkerKind), ended: fn(Stderr, Output)) {
    if let Some(errand) = child_errand() {
        let (kind, stderr) = errand.split_once(' ').unwrap();
        let _watch = Watchdog::start(errand.clone());
        std::panic::set_hook(Box::new(|_| ()));
        let kind = kind_named(kind);
        if stderr == format!("{ClosedBetween:?}") {
            for fd in [0, 2] {
                // SAFETY: Plain Call: a number. No object of this process owns the descriptor.
                assert_eq!(unsafe { libc::close(fd) }, 0);
            }
        }
        body(kind);
        survived();
    }
    for kind in kinds() {
        let all = ALL.map(|stderr| (stderr, begin(test, kind, stderr)));
        for (stderr, started) in all {
            let output = started.child.wait_with_output().unwrap();
            println!("{kind:?} {stderr:?}: {}", output.status);
            ended(stderr, output);
        }
    }
}

/// A session that panics.
struct Panics;

impl Session for Panics {
    fn request(&mut self, _: &mut Connection<'_>, _: Why) -> Next {
        panic!("on purpose");
    }
}

/// Makes a session panic, and waits until that is counted.
fn panic_in_a_session(node: &Node) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let server = node.serve(listener, ServeOptions::default(), |_, _| Box::new(Panics)).unwrap();
    let mut client = std::net::TcpStream::connect(at).unwrap();
    std::io::Write::write_all(&mut client, b"x").unwrap();
    eventually("it is counted", || server.counters().panics > 0);
}

/// The text of each message that `every_message` causes.
const SAID: [&str; 7] = [
    "could not be pinned",
    "this mechanism does not work here",
    "panicked when it",
    "is held up",
    "stands still",
    "STALL",
    "at messages::every_message",
];

/// Causes messages, and checks that the schedulers go on.
fn every_message(kind: WorkerKind) {
    filter(Verdict::AllButThese, &[libc::SYS_sched_setaffinity, libc::SYS_perf_event_open]);
    let node = build(kind, |b| b.schedulers(1).pin(true).take_over_blocked(false));
    assert_eq!(ums::watch::mechanism().unwrap(), ums::watch::Mechanism::Trap);
    // A task that panics.
    assert!(start(&node, 0, || panic!("on purpose")).join().is_err());
    panic_in_a_session(&node);
    // The monitor's messages, and its reports. `AtomicBool`s tell when there was one.
    static REPORTED: AtomicBool = AtomicBool::new(false);
    let options = ums::monitor::Options::default().stall(ms(10)).per_minute(1000);
    let options = options.on_report(|_| REPORTED.store(true, SeqCst));
    let reporting = build(kind, |b| b.schedulers(1).monitor(options).take_over_blocked(false));
    let still = build(kind, |b| b.schedulers(1).max_workers(1));
    let gate = Gate::shut();
    let inside = gate.clone();
    let waits = start(&still, 0, move || inside.pass());
    let queued = start(&still, 0, || 7);
    // They block, and do not compute, because the monitor would blame a busy computer instead.
    let (readers, writers): (Vec<_>, Vec<_>) =
        (0..2).map(|_| std::io::pipe().unwrap()).collect::<Vec<_>>().into_iter().unzip();
    let blocks = |node, reader| start(node, 0, move || bare_read(&reader));
    let blocked: Vec<_> =
        [&node, &reporting].into_iter().zip(readers).map(|(n, r)| blocks(n, r)).collect();
    let held_up = [start(&node, 0, || 8), start(&reporting, 0, || 9)];
    let found = |node: &Node| node.monitor_counts().iter().map(|c| c.reports).sum::<u64>() > 0;
    eventually("it is reported", || REPORTED.load(SeqCst) && found(&node));
    // The message about a scheduler that stands still comes after a second, and is not counted.
    std::thread::sleep(ms(2500));
    writers.into_iter().for_each(|mut w| std::io::Write::write_all(&mut w, b"x").unwrap());
    blocked.into_iter().for_each(|task| assert_eq!(task.join().unwrap(), b'x'));
    gate.open();
    waits.join().unwrap();
    assert_eq!(queued.join().unwrap(), 7);
    assert_eq!(held_up.map(|task| task.join().unwrap()), [8, 9]);
    // The backtraces for SIGUSR2 come from a thread of their own, which may wait without a limit.
    let gate = Gate::shut();
    let inside = gate.clone();
    let waits = start(&node, 0, move || inside.pass());
    node.print_stacks_on_sigusr2().unwrap();
    signals::send_to(kernel_thread(), libc::SIGUSR2);
    std::thread::sleep(ms(300));
    gate.open();
    waits.join().unwrap();
    for node in [node, reporting, still] {
        assert_eq!(on(&node, 0, || ums::sleep(ms(1))), Ok(()));
        // What is printed to stdin, stdout or stderr reaches no descriptor of the library.
        for fd in [0, 1, 2] {
            let what = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap();
            assert!(!what.to_string_lossy().contains("anon_inode"), "{fd}: {what:?}");
        }
        end(node);
    }
}

#[test]
fn messages_that_cannot_be_written_harm_nothing() {
    const ME: &str = "messages_that_cannot_be_written_harm_nothing";
    in_children(ME, every_message, |stderr, output| {
        assert!(has_survived(&output), "{stderr:?}: {output:?}");
        let text = String::from_utf8_lossy(&output.stderr);
        match stderr {
            Read => {
                SAID.iter().for_each(|said| assert!(text.contains(said), "'{said}': {text}"));
            }
            _ => assert!(text.is_empty(), "{stderr:?}: {text}"),
        }
    });
}

#[inline(never)]
fn bottomless(depth: u64) -> u64 {
    let frame = std::hint::black_box([depth; 64]);
    if frame[7] == u64::MAX { 0 } else { bottomless(depth + 1) + frame[8] }
}

#[test]
fn a_process_that_dies_with_a_message_dies_although_it_cannot_be_written() {
    const ME: &str = "a_process_that_dies_with_a_message_dies_although_it_cannot_be_written";
    let body = |kind: WorkerKind| {
        // The handler for an overflow, or the one for a crash.
        let overflows = kind == WorkerKind::Fiber;
        if !overflows {
            ums::stats::print_last_events_on_crash();
        }
        let node = build(kind, |b| b.schedulers(1).event_ring(true));
        on(&node, 0, move || {
            ums::sleep(ms(1)).unwrap();
            if overflows {
                assert_ne!(bottomless(0), 1);
            }
            std::process::abort();
        });
    };
    in_children(ME, body, |stderr, output| {
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{stderr:?}: {output:?}");
        let text = String::from_utf8_lossy(&output.stderr);
        let says = text.contains("us ago: WAIT") || text.contains("overflowed its stack");
        assert_eq!(says, stderr == Read, "{stderr:?}: {text}");
    });
}
