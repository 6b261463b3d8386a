//! How operations on files end: deadlines, cancellation, full disks.
//!
//! Named invariant **Plain Call**: the one C call here takes numbers, and keeps no pointer.

#![allow(unsafe_code)]

use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::pipe::{PipeFlags, pipe_with};
use ums::fs::File;

use super::*;

/// Returns the reading and the writing side of a pipe, as files.
fn pipe() -> (File, File) {
    let (read, write): (OwnedFd, OwnedFd) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    (read.into(), write.into())
}

#[test]
fn a_deadline_ends_a_read_and_the_pipe_still_works_rule_10() {
    everywhere(|node| {
        node.run(move || {
            let (mut reader, mut writer) = pipe();
            let began = Instant::now();
            reader.set_deadline(Some(began + common::ms(5)));
            assert_eq!(kind_of(reader.read(&mut [0; 8])), ErrorKind::TimedOut);
            assert!(began.elapsed() >= common::ms(5));
            reader.set_deadline(None);
            writer.write_all(b"late").unwrap();
            let mut buf = [0; 4];
            reader.read_exact(&mut buf).unwrap();
            assert_eq!(&buf, b"late");
        });
    });
}

#[test]
fn three_thousand_deadlines_at_once_end_three_thousand_reads() {
    const MANY: usize = 3000;
    for kind in kinds() {
        // Threads are more expensive; the test is about the lists, which are the same for both
        // kinds.
        let many = if kind == ums::WorkerKind::Fiber { MANY } else { MANY / 4 };
        for io in back_ends(kind) {
            // The synchronous driver's list takes quadratic time.
            let many = if io == IoChoice::Sync { many / 10 } else { many };
            let options = |b: ums::Builder| b.schedulers(2).max_workers(2 * MANY + 8).io(io);
            one_kind(kind, options, |node| {
                let (reader, writer) = pipe();
                let reader = std::sync::Arc::new(reader);
                reader.set_deadline(Some(Instant::now() + common::ms(300)));
                let reads: Vec<_> = (0..many)
                    .map(|at| {
                        let reader = reader.clone();
                        common::start(node, at % 2, move || (&*reader).read(&mut [0; 8]))
                    })
                    .collect();
                for read in reads {
                    assert_eq!(kind_of(read.join().unwrap()), ErrorKind::TimedOut);
                }
                drop(writer);
            });
        }
    }
}

#[test]
fn a_cancelled_request_stops_reading_but_finishes_its_writes_b59() {
    everywhere(|node| {
        let (mut reader, writer) = pipe();
        let file = File::from(tempfile::tempfile().unwrap());
        let task = common::start(node, 0, move || {
            let waited = is_cancelled(reader.read(&mut [0; 8]));
            assert!(ums::is_cancelled());
            file.write_all_at(b"rolled back", 0).unwrap();
            file.sync_data().unwrap();
            file.set_len(6).unwrap();
            let begun = is_cancelled(file.read_at(&mut [0; 8], 0));
            let mut deaf = file;
            deaf.set_cancellable(false);
            (waited, begun, deaf.read_full_at(&mut [0; 8], 0).unwrap())
        });
        common::eventually("it reads", || {
            ums::testing::scheduler(node, 0).counters.pending_io == 1
        });
        task.cancel();
        assert_eq!(task.join().unwrap(), (true, true, 6));
        drop(writer);
    });
}

#[test]
fn a_full_device_says_so() {
    everywhere(|node| {
        node.run(move || {
            let mut full = File::options().write(true).open("/dev/full").unwrap();
            assert_eq!(errno_of(full.write(b"x")), Some(libc::ENOSPC));
            let mut zero = File::open("/dev/zero").unwrap();
            let mut buf = [7; 16];
            zero.read_exact(&mut buf).unwrap();
            assert_eq!(buf, [0; 16]);
        });
    });
}

#[test]
fn a_file_that_may_not_grow_says_so() {
    const ME: &str = "ends::a_file_that_may_not_grow_says_so";
    if common::child_errand().is_none() {
        let _turn = common::turn();
        let output = common::run_child(ME, "limited");
        return assert!(output.status.success(), "{output:?}");
    }
    // Without this, the signal SIGXFSZ would end the process before the call could fail.
    ignore_the_signal();
    let limit = rustix::process::Rlimit { current: Some(8192), maximum: Some(8192) };
    rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).unwrap();
    everywhere(|node| {
        node.run(move || {
            let file = File::from(tempfile::tempfile().unwrap());
            assert_eq!(file.write_at(&[1; 16_384], 0).unwrap(), 8192, "as far as it may");
            assert_eq!(errno_of(file.write_all_at(&[1; 16_384], 0)), Some(libc::EFBIG));
            assert_eq!(errno_of(file.set_len(16_384)), Some(libc::EFBIG));
            assert_eq!(file.metadata().unwrap().len(), 8192);
        });
    });
}

fn ignore_the_signal() {
    // SAFETY: Plain Call: a number and a constant; no handler is involved.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}
