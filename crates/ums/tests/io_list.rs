//! Asynchronous I/O from a worker's view: the I/O list, the cost of checking it, and that deadlines
//! and cancellations lose nothing (U57-U62, G14, B59, rule 10). Tests of completion routines are
//! beside `src/io/mod.rs`.

#![allow(unsafe_code)] // For the harness.

mod common;

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::os::unix::net::UnixStream as StdStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use common::seccomp::{has_survived, no_more_calls, survived};
use common::*;
use ums::net::UnixStream;
use ums::node::{IoChoice, Placement};
use ums::testing::{lists, scheduler};
use ums::{Builder, Node, WorkerKind};

const CHOICES: [IoChoice; 3] = [IoChoice::Auto, IoChoice::Epoll, IoChoice::Sync];

/// Runs the body for each back end, kind and number of schedulers.
fn each_back_end(body: impl Fn(&Node, WorkerKind, usize)) {
    for choice in CHOICES {
        both_kinds_with(|b: Builder| b.io(choice).placement(Placement::AlwaysPreferred), &body);
    }
}

/// Returns a stream between a worker and a plain thread.
fn stream() -> (UnixStream, StdStream) {
    let (theirs, ours) = StdStream::pair().unwrap();
    (UnixStream::from(theirs), ours)
}

#[test]
fn outstanding_io_is_on_its_schedulers_list_until_it_completes_u57_u61() {
    each_back_end(|node, _, n| {
        for i in 0..n {
            on(node, i, || {
                let (mut theirs, mut ours) = UnixStream::pair().unwrap();
                let reader = ums::spawn(move || {
                    let got = theirs.read(&mut [0; 8]).unwrap();
                    (got, lists().io)
                });
                eventually("it reads", || lists().waiting.len() == 1);
                assert_eq!(lists().io, 1);
                for _ in 0..100 {
                    ums::yield_now();
                    assert_eq!(lists().io, 1, "pending until it is complete");
                }
                ours.write_all(b"abc").unwrap();
                assert_eq!(reader.join().unwrap(), (3, 0), "off the list before its worker runs");
            });
        }
    });
}

#[test]
fn a_yielding_worker_finds_the_completion_of_another_u62() {
    each_back_end(|node, _, n| {
        for i in 0..n {
            on(node, i, || {
                let (mut theirs, mut ours) = UnixStream::pair().unwrap();
                let got = Arc::new(AtomicBool::new(false));
                let flag = got.clone();
                let reader = ums::spawn(move || {
                    theirs.read_exact(&mut [0; 1]).unwrap();
                    flag.store(true, SeqCst);
                });
                eventually("it reads", || lists().waiting.len() == 1);
                ours.write_all(b"x").unwrap();
                // This worker never waits, so only its yields can find the completion.
                eventually("a yield found it", || got.load(SeqCst));
                reader.join().unwrap();
            });
        }
    });
}

#[test]
fn reads_and_writes_come_plain_and_vectored_u60() {
    each_back_end(|node, _, n| {
        on(node, n - 1, || {
            let (mut a, mut b) = UnixStream::pair().unwrap();
            let reader = ums::spawn(move || {
                let mut plain = [0; 5];
                b.read_exact(&mut plain).unwrap();
                let (mut left, mut right) = ([0; 2], [0; 8]);
                let parts = &mut [IoSliceMut::new(&mut left), IoSliceMut::new(&mut right)];
                let got = b.read_vectored(parts).unwrap();
                (plain, got, left, right)
            });
            eventually("it reads", || lists().waiting.len() == 1);
            assert_eq!(a.write(b"plain").unwrap(), 5);
            eventually("it reads again", || lists().waiting.len() == 1);
            let parts = [IoSlice::new(b"scat"), IoSlice::new(b"ter")];
            assert_eq!(a.write_vectored(&parts).unwrap(), 7);
            let (plain, got, left, right) = reader.join().unwrap();
            assert_eq!((&plain, got), (b"plain", 7));
            assert_eq!((&left, &right), (b"sc", b"atter\0\0\0"));
        });
    });
}

#[test]
fn the_synchronous_back_end_does_at_once_what_it_can_u58_u66() {
    let sync = |b: Builder| b.io(IoChoice::Sync).placement(Placement::AlwaysPreferred);
    both_kinds_with(sync, |node, _, n| {
        for i in 0..n {
            assert!(node.io_text().contains("poll(2)"), "{}", node.io_text());
            let handle = node.clone();
            on(node, i, move || {
                let (mut a, mut b) = UnixStream::pair().unwrap();
                let count = || {
                    let c = scheduler(&handle, i).counters;
                    (c.context_switches, c.turns, c.io_completions)
                };
                let before = count();
                a.write_all(b"hello").unwrap();
                b.read_exact(&mut [0; 5]).unwrap();
                assert_eq!(lists().io, 0);
                assert_eq!(count(), before, "neither call waited or was ever listed");
            });
        }
    });
}

/// Runs in a child process under the filter, on one worker: yields while many reads are
/// outstanding.
fn yield_beside_reads(errand: &str) -> ! {
    const MANY: usize = 100;
    let n = errand.parse().unwrap();
    let node = build(WorkerKind::Fiber, |b| b.schedulers(n).placement(Placement::AlwaysPreferred));
    if !node.io_text().starts_with("io_uring") {
        // Without io_uring there is nothing to measure.
        println!("no ring: {}", node.io_text());
        survived()
    }
    on(&node, n - 1, || {
        let (mut ends, ended) = (Vec::new(), Arc::new(AtomicBool::new(false)));
        for _ in 0..MANY {
            let (mut theirs, ours) = UnixStream::pair().unwrap();
            let ended = ended.clone();
            drop(ums::spawn(move || {
                drop(theirs.read(&mut [0; 8]));
                ended.store(true, SeqCst);
            }));
            ends.push(ours);
        }
        eventually("all of them read", || lists().io == MANY);
        // The scheduler hands submitted requests to the kernel within this many yields.
        (0..1000).for_each(|_| ums::yield_now());
        no_more_calls();
        (0..1000).for_each(|_| ums::yield_now());
        if ended.load(SeqCst) {
            std::process::abort();
        }
        survived()
    })
}

#[test]
fn looking_at_outstanding_io_makes_no_system_call_u59_g14() {
    if let Some(errand) = child_errand() {
        yield_beside_reads(&errand);
    }
    let _turn = turn();
    for n in COUNTS {
        let me = "looking_at_outstanding_io_makes_no_system_call_u59_g14";
        let output = run_child(me, &n.to_string());
        assert!(has_survived(&output), "{n}: {output:?}");
    }
}

#[test]
fn a_deadline_ends_a_read_and_nothing_is_lost_rule_10() {
    each_back_end(|node, _, n| {
        let (theirs, mut ours) = stream();
        let bytes = on(node, n - 1, move || {
            let mut theirs = theirs;
            theirs.set_read_timeout(Some(ms(10))).unwrap();
            for _ in 0..3 {
                let mut buf = [7; 16];
                let error = theirs.read(&mut buf).expect_err("nothing is written");
                assert_eq!(error.kind(), ErrorKind::TimedOut);
                assert_eq!(lists().io, 0, "the wait lasted until its completion");
                assert_eq!(buf, [7; 16]);
            }
            theirs.set_read_timeout(None).unwrap();
            ums::spawn(move || {
                let mut bytes = Vec::new();
                theirs.read_to_end(&mut bytes).map(|_| bytes)
            })
        });
        ours.write_all(b"everything").unwrap();
        drop(ours);
        assert_eq!(bytes.join().unwrap().unwrap(), b"everything");
    });
}

#[test]
fn deadlines_race_with_data_and_no_byte_is_lost_rule_10() {
    each_back_end(|node, _, n| {
        let (mut theirs, mut ours) = stream();
        let reader = start(node, n - 1, move || {
            theirs.set_read_timeout(Some(std::time::Duration::from_micros(300))).unwrap();
            let (mut bytes, mut late, mut buf) = (Vec::new(), 0, [0; 4]);
            loop {
                match theirs.read(&mut buf) {
                    Ok(0) => return (bytes, late),
                    Ok(got) => bytes.extend_from_slice(&buf[..got]),
                    Err(e) if e.kind() == ErrorKind::TimedOut => late += 1,
                    Err(e) => panic!("{e}"),
                }
            }
        });
        let sent: Vec<u8> = (0..200).collect();
        for byte in &sent {
            ours.write_all(&[*byte]).unwrap();
            std::thread::sleep(std::time::Duration::from_micros(280));
        }
        drop(ours);
        let (bytes, _late) = reader.join().unwrap();
        assert_eq!(bytes, sent);
    });
}

#[test]
fn a_cancelled_read_ends_and_its_completion_is_waited_for_b59_rule_10() {
    each_back_end(|node, _, n| {
        for i in 0..n {
            let (mut theirs, ours) = stream();
            let reader = start(node, i, move || {
                let error = theirs.read(&mut [0; 8]).expect_err("it is cancelled");
                let inner = error.get_ref().and_then(|e| e.downcast_ref::<ums::WaitError>());
                (inner.copied(), lists().io)
            });
            eventually("it reads", || scheduler(node, i).counters.pending_io == 1);
            reader.cancel();
            assert_eq!(reader.join().unwrap(), (Some(ums::WaitError::Cancelled), 0));
            drop(ours);
        }
    });
}

#[test]
fn a_hundred_readers_each_get_their_own_bytes_u63() {
    each_back_end(|node, _, n| {
        const READERS: usize = 100;
        let (readers, mut ends): (Vec<_>, Vec<_>) = (0..READERS)
            .map(|at| {
                let (mut theirs, ours) = stream();
                let reader = start(node, at % n, move || {
                    let mut word = [0; 8];
                    theirs.read_exact(&mut word).map(|()| u64::from_le_bytes(word))
                });
                (reader, ours)
            })
            .unzip();
        for (at, end) in ends.iter_mut().enumerate().rev() {
            end.write_all(&(at as u64).to_le_bytes()).unwrap();
        }
        for (at, reader) in readers.into_iter().enumerate() {
            assert_eq!(reader.join().unwrap().unwrap(), at as u64);
        }
    });
}
