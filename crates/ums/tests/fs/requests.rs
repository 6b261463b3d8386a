//! I/O request objects (U57-U66, B46), and how they end.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use rustix::pipe::{PipeFlags, pipe_with};
use ums::fs::{DirectBuffer, File};
use ums::io::{CURRENT, Request, pending_io};
use ums::testing::lists;

use super::*;

fn file_of(bytes: &[u8]) -> Arc<File> {
    let file = File::from(tempfile::tempfile().unwrap());
    file.write_all_at(bytes, 0).unwrap();
    Arc::new(file)
}

/// Returns the reading and the writing side of a pipe in non-blocking mode.
fn pipe() -> (Arc<OwnedFd>, OwnedFd) {
    let (read, write) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).unwrap();
    (Arc::new(read), write)
}

/// The results that completion routines received, each with the number of its request.
type Got<T> = common::Log<(usize, T)>;
/// The number of bytes that a request moved (`None` for an error), and its bytes.
type Moved = (Option<usize>, Vec<u8>);
/// A completion routine that gets the buffers of every kind of request in the same form.
type Note = Box<dyn FnOnce(io::Result<usize>, Vec<Vec<u8>>) + Send>;

#[test]
fn a_request_reads_writes_scatters_gathers_and_syncs_u60() {
    everywhere(|node| {
        node.run(move || {
            let file = file_of(b"0123456789");
            let got: Got<Moved> = Got::default();
            let note = |number: usize| {
                let got = got.clone();
                move |result: io::Result<usize>, bytes: Vec<Vec<u8>>| {
                    assert_eq!(lists().io, 0, "off the list before its routine runs");
                    got.push((number, (result.ok(), bytes.concat())));
                }
            };
            let one = |note: Note| {
                move |result: io::Result<usize>, bytes: Vec<u8>| note(result, vec![bytes])
            };
            let wait_for = |n: usize| common::eventually("it completes", || got.len() == n);
            Request::read(file.clone(), vec![0; 4], 2, one(Box::new(note(1)))).submit();
            wait_for(1);
            Request::write(file.clone(), b"AB".to_vec(), 0, one(Box::new(note(2)))).submit();
            wait_for(2);
            let parts = vec![vec![0; 3], vec![0; 3]];
            Request::read_scatter(file.clone(), parts, 0, note(3)).submit();
            wait_for(3);
            let parts = vec![b"xy".to_vec(), b"z".to_vec()];
            Request::write_gather(file.clone(), parts, 8, note(4)).submit();
            wait_for(4);
            let done = note(5);
            let sync = move |result: io::Result<()>| done(result.map(|()| 0), vec![]);
            Request::sync(file.clone(), true, sync).submit();
            wait_for(5);
            let expected: [(usize, Moved); 5] = [
                (1, (Some(4), b"2345".to_vec())),
                (2, (Some(2), b"AB".to_vec())),
                (3, (Some(6), b"AB2345".to_vec())),
                (4, (Some(3), b"xyz".to_vec())),
                (5, (Some(0), vec![])),
            ];
            assert_eq!(got.all(), expected);
            let mut all = [0; 11];
            file.read_exact_at(&mut all, 0).unwrap();
            assert_eq!(&all, b"AB234567xyz");
        });
    });
}

#[test]
fn on_a_plain_thread_the_routine_has_run_when_submit_returns_u66() {
    let (file, got) = (file_of(b"hello"), Got::default());
    let note = got.clone();
    let routine = move |result: io::Result<usize>, _: DirectBuffer| note.push((1, result.unwrap()));
    let pending = Request::read(file, DirectBuffer::new(64), 0, routine).submit();
    assert!(pending.completed_at_once());
    assert_eq!(got.all(), [(1, 5)]);
    assert_eq!(pending_io().outstanding, 0);
}

#[test]
fn the_synchronous_back_end_runs_the_routine_before_submit_returns_u58_u66() {
    on_back_ends(
        |io| io == IoChoice::Sync,
        |node, _| {
            node.run(move || {
                let got = Got::default();
                let note = got.clone();
                let routine = move |result: io::Result<usize>, _: Vec<u8>| {
                    note.push((lists().io, result.unwrap()));
                };
                let pending = Request::read(file_of(b"hello"), vec![0; 9], 1, routine).submit();
                assert!(pending.completed_at_once());
                assert_eq!(got.all(), [(0, 4)]);
            });
        },
    );
}

/// Reads a file piece by piece: each completion routine submits the next read.
fn read_on(file: Arc<File>, left: usize, got: Got<usize>) {
    let again = file.clone();
    let routine = move |result: io::Result<usize>, _: Vec<u8>| match left {
        0 => got.push((0, result.unwrap())),
        _ => read_on(again, left - 1, got),
    };
    let _ = Request::read(file, vec![0; 9], 1, routine).submit();
}

#[test]
fn a_yield_runs_the_routine_that_a_chain_of_requests_has_put_off() {
    on_back_ends(
        |io| io == IoChoice::Sync,
        |node, _| {
            node.run(|| {
                let got = Got::default();
                read_on(file_of(b"hello"), 20, got.clone());
                assert!(got.all().is_empty(), "not so many routines run inside one another");
                ums::yield_now();
                assert_eq!(got.all(), [(0, 4)]);
            });
        },
    );
}

#[test]
fn a_long_chain_of_requests_that_complete_at_once_does_not_use_up_the_stack_u66() {
    on_back_ends(
        |_| true,
        |node, _| {
            let got = Got::default();
            let note = got.clone();
            node.run(move || read_on(file_of(b"hello"), 20_000, note));
            common::eventually("the last routine runs", || !got.all().is_empty());
            assert_eq!(got.all(), [(0, 4)]);
        },
    );
}

#[test]
fn a_hundred_thousand_outstanding_reads_all_complete_u63() {
    const MANY: usize = 100_000;
    let grown = |before: u64| memory().saturating_sub(before);
    asynchronously(|node| {
        let bytes: Vec<u8> = (0..=255).collect();
        let file = file_of(&bytes);
        let before = memory();
        let most = node.run(move || {
            let (sum, count) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let mut most = 0;
            for at in 0..MANY {
                let (sum, count) = (sum.clone(), count.clone());
                let routine = move |result: io::Result<usize>, bytes: Vec<u8>| {
                    assert_eq!(result.unwrap(), 1);
                    sum.fetch_add(bytes[0] as usize, SeqCst);
                    count.fetch_add(1, SeqCst);
                };
                Request::read(file.clone(), vec![0; 1], at as u64 % 256, routine).submit();
            }
            most = most.max(pending_io().outstanding);
            common::eventually("they all completed", || count.load(SeqCst) == MANY);
            let expected: usize = (0..MANY).map(|at| at % 256).sum();
            assert_eq!((sum.load(SeqCst), lists().io), (expected, 0));
            most
        });
        assert!(most > MANY / 2, "only {most} were outstanding at once");
        assert!(grown(before) < 512 << 20, "{} bytes for {MANY} requests", grown(before));
    });
}

/// Returns the memory in use by this process, in bytes.
fn memory() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split(' ').nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size() as u64
}

#[test]
fn a_cancelled_request_still_runs_its_routine_once_with_its_buffer() {
    everywhere(|node| {
        let (reader, writer) = pipe();
        node.run(move || {
            let got = Got::default();
            let submit = |number| {
                let note = got.clone();
                let routine = move |result: io::Result<usize>, bytes: Vec<u8>| {
                    note.push((number, (result.map_err(|e| e.raw_os_error()), bytes.len())));
                };
                Request::read(reader.clone(), vec![0; 8], CURRENT, routine).submit()
            };
            let (first, second) = (submit(1), submit(2));
            assert_eq!((pending_io().outstanding, got.len()), (2, 0));
            first.cancel();
            first.cancel();
            common::eventually("it was cancelled", || got.len() == 1);
            assert_eq!(got.all(), [(1, (Err(Some(libc::ECANCELED)), 8))]);
            rustix::io::write(&writer, b"abc").unwrap();
            common::eventually("the other reads", || got.len() == 2);
            assert_eq!(got.all()[1], (2, (Ok(3), 8)));
            second.cancel();
            (0..100).for_each(|_| ums::yield_now());
            assert_eq!((got.len(), lists().io), (2, 0));
        });
    });
}

#[test]
fn a_request_is_cancelled_from_another_thread() {
    everywhere(|node| {
        let (reader, writer) = pipe();
        let got = Arc::new(Mutex::new(None));
        let note = got.clone();
        let pending = node.run(move || {
            let routine = move |result: io::Result<usize>, _: Vec<u8>| {
                *note.lock().unwrap() = Some(result.map_err(|e| e.raw_os_error()));
            };
            Request::read(reader, vec![0; 8], CURRENT, routine).submit()
        });
        pending.cancel();
        common::eventually("it was cancelled", || got.lock().unwrap().is_some());
        assert_eq!(*got.lock().unwrap(), Some(Err(Some(libc::ECANCELED))));
        drop(writer);
    });
}

#[test]
fn cancels_race_with_completions_and_each_routine_runs_once() {
    asynchronously(|node| {
        const MANY: usize = 2000;
        let file = file_of(&[7; 4096]);
        node.run(move || {
            let (ran, good) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            for round in 0..MANY {
                let (ran, good) = (ran.clone(), good.clone());
                let routine = move |result: io::Result<usize>, bytes: Vec<u8>| {
                    ran.fetch_add(1, SeqCst);
                    match result {
                        Ok(n) => {
                            assert!(n == 64 && bytes.iter().all(|b| *b == 7));
                            good.fetch_add(1, SeqCst);
                        }
                        Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ECANCELED)),
                    }
                };
                let pending = Request::read(file.clone(), vec![0; 64], 0, routine).submit();
                (0..round % 4).for_each(|_| ums::yield_now());
                pending.cancel();
            }
            common::eventually("all ended", || ran.load(SeqCst) == MANY);
            (0..100).for_each(|_| ums::yield_now());
            assert_eq!((ran.load(SeqCst), lists().io), (MANY, 0));
        });
    });
}

#[test]
fn a_shutdown_ends_outstanding_requests_and_runs_each_routine_u63() {
    everywhere(|node| {
        const MANY: usize = 500;
        let ran = Arc::new(AtomicUsize::new(0));
        let (reader, writer) = pipe();
        let file = file_of(&[7; 4096]);
        for scheduler in 0..node.scheduler_count() {
            let (ran, reader, file) = (ran.clone(), reader.clone(), file.clone());
            common::on(node, scheduler, move || {
                for at in 0..MANY {
                    let ran = ran.clone();
                    let routine = move |result: io::Result<usize>, bytes: Vec<u8>| {
                        let whole = result.is_ok_and(|n| n == bytes.len());
                        assert!(!whole || bytes.iter().all(|b| *b == 7));
                        ran.fetch_add(1, SeqCst);
                    };
                    if at % 2 == 0 {
                        Request::read(reader.clone(), vec![0; 8], CURRENT, routine).submit();
                    } else {
                        Request::read(file.clone(), vec![0; 8], at as u64, routine).submit();
                    }
                }
            });
        }
        let report = node.clone().shutdown(common::PATIENCE);
        assert_eq!(report, ums::node::ShutdownReport::default());
        assert_eq!(ran.load(SeqCst), MANY * node.scheduler_count());
        drop(writer);
    });
}

#[test]
fn requests_that_the_kernel_has_finished_are_counted_apart_b46() {
    asynchronously(|node| {
        let file = file_of(b"hello");
        node.run(move || {
            let got = Got::default();
            let note = got.clone();
            let routine =
                move |result: io::Result<usize>, _: Vec<u8>| note.push((1, result.unwrap()));
            Request::read(file, vec![0; 5], 0, routine).submit();
            // No other worker runs here, and this one does not yield, so nothing processes the
            // completion.
            let began = std::time::Instant::now();
            let mut seen = pending_io();
            while seen.done == 0 {
                assert_eq!(seen.outstanding, 1);
                assert!(began.elapsed() < common::PATIENCE, "{seen:?}");
                seen = pending_io();
            }
            assert_eq!((seen.outstanding, seen.done), (1, 1));
            assert_eq!(got.len(), 0, "its routine has not run");
            common::eventually("its routine ran", || got.len() == 1);
            assert_eq!(pending_io(), ums::io::PendingIo::default());
        });
    });
}
