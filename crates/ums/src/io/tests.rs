//! Tests of requests with completion routines that no public call submits: behaviours U57 to U66 of
//! the I/O list, and rule 9 of ARCHITECTURE.md. They run with thread workers and with fibers, on
//! each scheduler of nodes with 1, 2 and 4 schedulers.
//!
//! The two reasons for unsafe code here: **Contract**: only closures of these tests run on fibers,
//! and they keep no thread-scoped state across a wait. **Frozen Buffer**: what an operation points
//! at is static.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::node::{IoChoice, Placement, ShutdownReport};
use crate::os::driver::{CURRENT, LiveOp};
use crate::testing::{lists, scheduler};
use crate::worker::worker_id;
use crate::{Builder, Node, WaitReason, WorkerKind};
use crate::{spawn, yield_now};

/// Runs the body on a worker of each scheduler of each node.
fn on_each_scheduler(
    options: impl Fn(Builder) -> Builder,
    body: impl Fn(&Node) + Copy + Send + 'static,
) {
    for kind in [WorkerKind::Thread, WorkerKind::Fiber] {
        for n in [1, 2, 4] {
            let builder = Node::builder().schedulers(n).placement(Placement::AlwaysPreferred);
            let builder = options(builder);
            let builder = match kind {
                // SAFETY: Contract: what runs here keeps no thread-scoped state over a wait.
                WorkerKind::Fiber => unsafe { builder.fiber_workers() },
                _ => builder,
            };
            let node = builder.build().unwrap();
            for i in 0..n {
                let handle = node.clone();
                node.spawn_on(i, move || body(&handle)).unwrap().join().unwrap();
            }
            assert_eq!(node.shutdown(Duration::from_secs(30)), ShutdownReport::default());
        }
    }
}

/// Returns a pipe: the side to read, the side to write.
fn pipe() -> (OwnedFd, OwnedFd) {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap()
}

fn write(fd: &OwnedFd) {
    assert_eq!(rustix::io::write(fd, b"x"), Ok(1));
}

/// Yields until the condition holds.
#[track_caller]
fn until(so: impl Fn() -> bool) {
    let began = Instant::now();
    while !so() {
        assert!(began.elapsed() < Duration::from_secs(30), "the condition did not become true");
        yield_now();
    }
}

/// Submits a poll of this descriptor. Its routine sets the returned flag.
fn submit_flag(fd: &OwnedFd) -> Arc<AtomicBool> {
    let flag = Arc::new(AtomicBool::new(false));
    let ran = flag.clone();
    let pending = super::submit_poll(fd.as_raw_fd(), Box::new(move |_| ran.store(true, SeqCst)));
    assert!(pending.is_some(), "nothing can be read yet");
    flag
}

#[test]
fn an_outstanding_request_is_on_the_list_of_its_own_scheduler_u57_u61() {
    on_each_scheduler(
        |b| b,
        |node| {
            let (read, send) = pipe();
            let me = lists().scheduler;
            assert_eq!(lists().io, 0);
            let ran = submit_flag(&read);
            assert_eq!(lists().io, 1);
            spawn(yield_now).join().unwrap(); // a turn publishes the list lengths
            for other in 0..node.scheduler_count() {
                // The other schedulers publish their lengths soon, if they have not yet.
                let expected = u64::from(other == me);
                until(|| scheduler(node, other).counters.pending_io == expected);
            }
            assert!(!ran.load(SeqCst));
            write(&send);
            until(|| ran.load(SeqCst));
            assert_eq!(lists().io, 0);
        },
    );
}

#[test]
fn the_routine_runs_on_the_worker_that_yields_while_its_submitter_waits_u34_u62_u64() {
    on_each_scheduler(
        |b| b,
        |_| {
            let (read, send) = pipe();
            let ran_on = Arc::new(Mutex::new(None));
            let note = ran_on.clone();
            let submitter = spawn(move || {
                let fd = read.as_raw_fd();
                let routine = move |_| *note.lock().unwrap() = worker_id();
                assert!(super::submit_poll(fd, Box::new(routine)).is_some());
                let me = worker_id();
                assert!(crate::sleep(Duration::MAX).is_err());
                (me, worker_id())
            });
            until(|| lists().io == 1 && lists().waiting.len() == 1);
            write(&send);
            until(|| ran_on.lock().unwrap().is_some());
            assert_eq!(*ran_on.lock().unwrap(), worker_id(), "the worker that yielded ran it");
            assert_eq!(lists().waiting.len(), 1, "the submitter is as busy as before");
            submitter.cancel();
            let (before, after) = submitter.join().unwrap();
            assert_eq!(before, after);
            assert_ne!(before, worker_id());
        },
    );
}

#[test]
fn a_completed_request_is_off_the_list_when_its_routine_runs_once_u63() {
    on_each_scheduler(
        |b| b,
        |_| {
            let (read, send) = pipe();
            let seen = Arc::new(Mutex::new(Vec::new()));
            let note = seen.clone();
            let routine = move |_| note.lock().unwrap().push(lists().io);
            assert!(super::submit_poll(read.as_raw_fd(), Box::new(routine)).is_some());
            write(&send);
            until(|| !seen.lock().unwrap().is_empty());
            (0..100).for_each(|_| yield_now());
            assert_eq!(*seen.lock().unwrap(), [0]);
        },
    );
}

#[test]
fn detecting_and_running_switch_to_no_worker_u65() {
    on_each_scheduler(
        |b| b,
        |node| {
            let (read, send) = pipe();
            let ran = submit_flag(&read);
            let count = || {
                let c = scheduler(node, lists().scheduler).counters;
                (c.context_switches, c.idle_switches)
            };
            let before = count();
            write(&send);
            until(|| ran.load(SeqCst));
            assert_eq!(count(), before, "one worker yielded, and there was no switch");
        },
    );
}

#[test]
fn what_completes_at_once_is_never_listed_and_runs_before_submit_returns_u58_u66() {
    let sync = |b: Builder| b.io(IoChoice::Sync);
    on_each_scheduler(sync, |_| {
        let (read, send) = pipe();
        let seen = Arc::new(Mutex::new(Vec::new()));
        static TEXT: &[u8] = b"hello";
        let note = seen.clone();
        let op = LiveOp::write(send.as_raw_fd(), TEXT, CURRENT);
        let routine = move |result| note.lock().unwrap().push((result, lists().io, worker_id()));
        let pending = super::submit(op, Box::new(routine));
        assert_eq!(*seen.lock().unwrap(), [(5, 0, worker_id())], "it ran before submit returned");
        assert_eq!(pending, None);
        let mut buf = [0; 8];
        assert_eq!(rustix::io::read(&read, &mut buf), Ok(5));
    });
}

#[test]
fn without_asynchronous_io_the_same_code_completes_u4_u58() {
    for choice in [IoChoice::Auto, IoChoice::Epoll, IoChoice::Sync] {
        on_each_scheduler(
            move |b| b.io(choice),
            |_| {
                let (read, send) = pipe();
                let ran = submit_flag(&read);
                write(&send);
                until(|| ran.load(SeqCst));
            },
        );
    }
}

#[test]
fn a_routine_that_would_switch_panics_and_harms_no_worker_rule_9() {
    fn sleep_in_it() {
        let _ = crate::sleep(Duration::ZERO);
    }
    fn leave_in_it() {
        crate::go_preemptive(WaitReason::PREEMPTIVE_EXTERNAL, || {});
    }
    fn read_in_it() {
        let (read, _send) = pipe();
        let _ =
            super::wait_for(LiveOp::poll(read.as_raw_fd(), super::Side::In), WaitReason::OTHER, 0);
    }
    const ALL: [fn(); 4] = [yield_now, sleep_in_it, leave_in_it, read_in_it];
    on_each_scheduler(
        |b| b,
        |node| {
            let panics = || scheduler(node, lists().scheduler).counters.panics;
            let (before, after_it) = (panics(), Arc::new(AtomicUsize::new(0)));
            for (at, misdeed) in ALL.into_iter().enumerate() {
                let (read, send) = pipe();
                let count = after_it.clone();
                let routine = move |_| {
                    misdeed();
                    count.fetch_add(1, SeqCst);
                };
                assert!(super::submit_poll(read.as_raw_fd(), Box::new(routine)).is_some());
                write(&send);
                until(|| panics() > before + at as u64);
                // Nothing is broken afterwards: the worker can wait, and others run.
                crate::sleep(Duration::from_millis(1)).unwrap();
                assert_eq!(spawn(|| 7).join().unwrap(), 7);
            }
            assert_eq!(after_it.load(SeqCst), 0);
        },
    );
}

#[test]
fn a_routine_may_submit_and_enqueue_rule_9() {
    on_each_scheduler(
        |b| b,
        |_| {
            let ((read, send), (read2, send2)) = (pipe(), pipe());
            let (done, ran) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let (done2, ran2, fd2) = (done.clone(), ran.clone(), read2.as_raw_fd());
            let routine = move |_| {
                drop(spawn(move || ran2.fetch_add(1, SeqCst)));
                let second = move |_| {
                    done2.fetch_add(1, SeqCst);
                };
                assert!(super::submit_poll(fd2, Box::new(second)).is_some());
            };
            assert!(super::submit_poll(read.as_raw_fd(), Box::new(routine)).is_some());
            write(&send);
            until(|| ran.load(SeqCst) == 1);
            assert_eq!(done.load(SeqCst), 0);
            write(&send2);
            until(|| done.load(SeqCst) == 1);
        },
    );
}

#[test]
fn a_look_costs_what_completed_not_what_is_outstanding_g14() {
    const MANY: usize = 1_000;
    on_each_scheduler(
        |b| b,
        |_| {
            let batch = || {
                let began = Instant::now();
                (0..100).for_each(|_| yield_now());
                began.elapsed()
            };
            let least = || (0..200).map(|_| batch()).min().unwrap();
            let (one, _one) = pipe();
            let mut flags = vec![submit_flag(&one)];
            yield_now();
            let with_one = least();
            let (many, _many) = pipe();
            flags.extend((1..MANY).map(|_| submit_flag(&many)));
            yield_now();
            assert_eq!(lists().io, MANY);
            let with_many = least();
            // Walking the list at each of the 100 yields would visit 100,000 entries.
            assert!(
                with_many < with_one * 10 + Duration::from_micros(50),
                "100 yields took {with_one:?} with one request outstanding and {with_many:?} with \
                 {MANY}"
            );
            drop((_one, _many)); // hung up: all requests complete
            until(|| flags.iter().all(|f| f.load(SeqCst)));
        },
    );
}

#[test]
fn no_scope_is_opened_in_a_completion_routine_which_could_not_wait_for_its_tasks() {
    on_each_scheduler(
        |b| b,
        |_| {
            let (read, send) = pipe();
            let opened = Arc::new(AtomicBool::new(false));
            let saw = opened.clone();
            let routine = move |_| crate::scope(|_| saw.store(true, SeqCst));
            assert!(super::submit_poll(read.as_raw_fd(), Box::new(routine)).is_some());
            write(&send);
            until(|| Arc::strong_count(&opened) == 1);
            assert!(!opened.load(SeqCst));
        },
    );
}

#[test]
fn a_connection_is_made_and_accepted_by_requests_u60() {
    on_each_scheduler(
        |b| b,
        |_| {
            use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            listener.set_nonblocking(true).unwrap();
            let port = listener.local_addr().unwrap().port();
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
            // A sockaddr_in: the family in the host's byte order, the rest in the network's.
            let mut address = (libc::AF_INET as u16).to_ne_bytes().to_vec();
            address.extend(port.to_be_bytes());
            address.extend([127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
            let told = Arc::new((AtomicUsize::new(0), Mutex::new(None)));
            let (accepted, connected) = (told.clone(), told.clone());
            super::Request::accept(listener, move |fd| {
                *accepted.1.lock().unwrap() = Some(fd.unwrap());
                accepted.0.fetch_add(1, SeqCst);
            })
            .submit();
            let again = socket.try_clone().unwrap();
            super::Request::connect(socket, address, move |result| {
                result.unwrap();
                connected.0.fetch_add(1, SeqCst);
            })
            .submit();
            until(|| told.0.load(SeqCst) == 2);
            write(&again);
            let accepted = told.1.lock().unwrap().take().unwrap();
            until(|| rustix::io::read(&accepted, &mut [0u8; 1]) == Ok(1));
        },
    );
}
