//! Time limits and shields.

use std::io::{Read, Write};
use std::panic::catch_unwind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ums::net::{TcpListener, UnixStream};
use ums::sync::channel::{RecvError, SendError, bounded};
use ums::sync::{Barrier, Condvar, Event, Latch, Mutex, Select, Semaphore};
use ums::task::JoinError;
use ums::{WaitError, WaitReason, shield, with_deadline, with_timeout};

use super::common::{both_kinds, both_kinds_with, eventually, on, start};
use super::{CANCELLED, HOUR, SHORT, TIMED_OUT, waiting};

#[test]
fn each_wait_ends_at_the_limit_around_it() {
    fn fails(wait: impl FnOnce() -> Result<(), WaitError>) {
        assert_eq!(with_timeout(SHORT, wait), Err(TIMED_OUT));
    }
    let waits = || {
        fails(|| ums::sleep(HOUR));
        fails(|| Event::manual(false).wait());
        fails(|| Latch::new(1).wait());
        fails(|| Barrier::new(2).wait().map(drop));
        fails(|| Semaphore::new(0).acquire().map(drop));
        fails(|| ums::future::block_on(std::future::pending()));
        let (mutex, condvar) = (Mutex::new(()), Condvar::new());
        fails(|| condvar.wait(&mut mutex.lock()));
        let (tx, rx) = bounded::<u8>(0);
        let received = with_timeout(SHORT, || rx.recv());
        assert_eq!(received, Err(RecvError::Wait(TIMED_OUT)));
        let sent = with_timeout(SHORT, || tx.send(3));
        assert_eq!(sent, Err(SendError::Wait(3, TIMED_OUT)), "the value comes back");
        fails(|| Select::new().on(&rx, drop).wait());
        fails(|| {
            ums::sleep(2 * SHORT).unwrap_err();
            ums::checkpoint()
        });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let accepted = with_timeout(SHORT, || listener.accept()).map(drop).unwrap_err();
        assert_eq!(WaitError::of(&accepted), Some(TIMED_OUT));
        assert!(with_timeout(SHORT, || listener.incoming().next()).is_none(), "it has an end");
        let (mut one, _other) = UnixStream::pair().unwrap();
        let read = with_timeout(SHORT, || one.read(&mut [0])).unwrap_err();
        assert_eq!(WaitError::of(&read), Some(TIMED_OUT));
        let written = with_timeout(SHORT, || {
            loop {
                if let Err(error) = one.write(&[0; 1 << 16]) {
                    break error;
                }
            }
        });
        assert_eq!(WaitError::of(&written), Some(TIMED_OUT));
    };
    waits();
    both_kinds(|node, _, n| on(node, n - 1, waits));
}

#[test]
fn the_error_of_an_io_call_says_what_the_call_waited_for() {
    fn says<T>(result: std::io::Result<T>, name: &str) {
        let error = result.err().expect("the time is over");
        assert_eq!(error.to_string(), format!("the wait for {name} timed out"));
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
        assert_eq!(WaitError::of(&error), Some(TIMED_OUT));
    }
    let waits = || {
        let (one, _other) = UnixStream::pair().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let receive = || {
            let (_tx, rx) = bounded::<u8>(0);
            Ok(rx.recv()?)
        };
        // A call waits, or is not begun because the time is over already.
        for before in [Duration::ZERO, 2 * SHORT] {
            let limited = |call: &dyn Fn() -> std::io::Result<()>| {
                with_timeout(SHORT, || {
                    let _ = ums::sleep(before);
                    call()
                })
            };
            says(limited(&|| (&one).read(&mut [0]).map(drop)), "NETWORK_READ");
            says(limited(&|| (&one).write_all(&[0; 1 << 20])), "NETWORK_WRITE");
            says(limited(&|| listener.accept().map(drop)), "NETWORK_ACCEPT");
            says(limited(&|| receive().map(drop)), "CHANNEL_RECEIVE");
        }
        one.set_read_timeout(Some(SHORT)).unwrap();
        says((&one).read(&mut [0]), "NETWORK_READ");
    };
    waits();
    both_kinds(|node, _, n| on(node, n - 1, waits));
}

#[test]
fn a_join_ends_at_the_limit_and_gives_the_handle_back() {
    both_kinds(|node, _, n| {
        let go = Arc::new(Event::manual(false));
        let theirs = go.clone();
        let child = start(node, n - 1, move || theirs.wait());
        let joined = on(node, 0, move || with_timeout(SHORT, || child.join()));
        let Err(JoinError::Wait(child, TIMED_OUT)) = joined else { panic!("{joined:?}") };
        go.set();
        assert_eq!(child.join().unwrap(), Ok(()));
    });
}

#[test]
fn what_must_not_fail_has_no_limit() {
    let deaf = || {
        let mutex = Arc::new(Mutex::new(0));
        let (held, holds) = std::sync::mpsc::channel();
        let (go, goes) = std::sync::mpsc::channel();
        let theirs = mutex.clone();
        let holder = std::thread::spawn(move || {
            let guard = theirs.lock();
            held.send(()).unwrap();
            goes.recv().unwrap();
            std::thread::sleep(20 * SHORT);
            drop(guard);
        });
        holds.recv().unwrap();
        let began = Instant::now();
        go.send(()).unwrap();
        with_timeout(SHORT, || *mutex.lock() += 1);
        assert!(began.elapsed() > SHORT, "it did not wait longer than its limit");
        holder.join().unwrap();
        // A wait with a limit of its own that is earlier: the caller's time is not over.
        assert_eq!(with_timeout(HOUR, || Event::manual(false).wait_for(SHORT)), Err(TIMED_OUT));
        assert_eq!(with_timeout(HOUR, || ums::sleep(SHORT)), Ok(()));
        assert_eq!(with_timeout(HOUR, ums::checkpoint), Ok(()));
        // A call that need not wait.
        let (tx, rx) = bounded(1);
        assert_eq!(with_timeout(Duration::ZERO, || tx.send(1)), Ok(()));
        assert_eq!(with_timeout(Duration::ZERO, || rx.recv()), Ok(1));
    };
    deaf();
    both_kinds(|node, _, _| on(node, 0, deaf));
}

#[test]
fn the_earliest_limit_holds_and_the_one_around_it_comes_back() {
    let nested = || {
        let began = Instant::now();
        let slept = with_timeout(SHORT, || {
            let inner = with_timeout(HOUR, || ums::sleep(HOUR));
            let inner_deadline = with_deadline(began + HOUR, || ums::sleep(HOUR));
            [inner, inner_deadline, ums::sleep(HOUR)]
        });
        assert_eq!(slept, [Err(TIMED_OUT); 3]);
        with_timeout(HOUR, || {
            assert_eq!(with_deadline(began, || ums::sleep(HOUR)), Err(TIMED_OUT));
            let panic = catch_unwind(|| with_timeout(Duration::ZERO, || panic!("on purpose")));
            assert!(panic.is_err());
            assert_eq!(ums::sleep(SHORT), Ok(()), "the limit inside ends with its closure");
            // Inside a shield the limit around it does not hold, but its own does.
            with_timeout(Duration::ZERO, || {
                assert_eq!(shield(|| ums::sleep(SHORT)), Ok(()));
                assert_eq!(shield(|| with_timeout(SHORT, || ums::sleep(HOUR))), Err(TIMED_OUT));
                assert_eq!(ums::sleep(SHORT), Err(TIMED_OUT));
            });
        });
        assert_eq!(ums::sleep(SHORT), Ok(()));
    };
    nested();
    both_kinds(|node, _, _| on(node, 0, nested));
}

#[test]
fn the_tasks_of_a_scope_have_its_limit_and_the_next_request_has_none() {
    both_kinds_with(
        |b| b.max_workers(8),
        |node, _, _| {
            on(node, 0, || {
                let ends = Mutex::new(Vec::new());
                let sleep = || ends.lock().push(ums::sleep(HOUR));
                let free = with_timeout(SHORT, || {
                    let free = ums::spawn(|| ums::sleep(10 * SHORT));
                    ums::scope(|s| {
                        s.spawn(sleep);
                        s.spawn(|| ums::scope(|s| drop(s.spawn(sleep))));
                    });
                    free
                });
                assert_eq!(ends.into_inner(), [Err(TIMED_OUT); 2]);
                assert_eq!(free.join().unwrap(), Ok(()), "a spawned task goes its own way");
            });
            // The same workers carry these out.
            let tasks: Vec<_> = (0..8).map(|_| node.spawn(|| ums::sleep(SHORT)).unwrap()).collect();
            assert!(tasks.into_iter().all(|task| task.join().unwrap() == Ok(())));
        },
    );
}

#[test]
fn a_limit_is_gone_when_its_waiter_is_used_again() {
    // The nodes take their workers from one pool, too.
    both_kinds_with(
        |b| b.schedulers(1).max_workers(1),
        |node, _, _| {
            for _ in 0..2 {
                let limited = || with_timeout(SHORT, || ums::sleep(HOUR));
                assert_eq!(on(node, 0, limited), Err(TIMED_OUT));
                let free = || (ums::worker::is_worker(), ums::sleep(2 * SHORT));
                assert_eq!(on(node, 0, free), (true, Ok(())));
                assert_eq!(with_timeout(SHORT, || Event::manual(false).wait()), Err(TIMED_OUT));
                assert_eq!(Event::manual(false).wait_for(2 * SHORT), Err(TIMED_OUT));
            }
        },
    );
}

#[test]
fn a_shield_keeps_a_cancellation_away_until_it_ends() {
    both_kinds(|node, _, n| {
        let (go, (mine, theirs)) = (Arc::new(Event::manual(false)), UnixStream::pair().unwrap());
        let waits_for = go.clone();
        let task = start(node, n - 1, move || {
            let shielded = shield(|| {
                let waited = waits_for.wait();
                let read = (&mine).read(&mut [0]).unwrap();
                (waited, read, ums::is_cancelled(), ums::checkpoint())
            });
            (shielded, ums::is_cancelled(), ums::sleep(SHORT))
        });
        eventually("it waits", || waiting(node, WaitReason::EVENT) == 1);
        task.cancel();
        go.set();
        eventually("it reads", || waiting(node, WaitReason::NETWORK_READ) == 1);
        task.cancel();
        (&theirs).write_all(b"x").unwrap();
        let ended = task.join().unwrap();
        assert_eq!(ended, ((Ok(()), 1, false, Ok(())), true, Err(CANCELLED)));
    });
}

#[test]
fn what_is_preemptive_has_its_own_bounds() {
    both_kinds(|node, _, n| {
        let external = WaitReason::PREEMPTIVE_EXTERNAL;
        on(node, n - 1, move || {
            let event = Event::manual(false);
            let wait = || (with_timeout(SHORT, || event.wait()), ums::sleep(SHORT));
            let inside = ums::go_preemptive(external, wait);
            assert_eq!(inside, (Err(TIMED_OUT), Ok(())));
            // The limit around the call does not reach it.
            let slept = || (ums::sleep(SHORT), ums::checkpoint());
            let inside = with_timeout(Duration::ZERO, || ums::go_preemptive(external, slept));
            assert_eq!(inside, (Ok(()), Ok(())));
            if let Ok(away) = ums::worker::couple(external) {
                assert_eq!(with_timeout(SHORT, || event.wait()), Err(TIMED_OUT));
                drop(away);
            }
        });
        let (begun, begins) = std::sync::mpsc::channel();
        let (go, goes) = std::sync::mpsc::channel::<()>();
        let task = start(node, n - 1, move || {
            ums::go_preemptive(external, move || {
                begun.send(()).unwrap();
                goes.recv().unwrap();
                (ums::is_cancelled(), shield(ums::is_cancelled), shield(ums::checkpoint))
            })
        });
        begins.recv().unwrap();
        task.cancel();
        go.send(()).unwrap();
        assert_eq!(task.join().unwrap(), (true, false, Ok(())));
    });
}

#[test]
fn views_show_how_much_time_is_left() {
    both_kinds(|node, _, n| {
        let (go, theirs) = (Arc::new(Event::manual(false)), Arc::new(Event::manual(false)));
        let (a, b) = (go.clone(), theirs.clone());
        let limited = start(node, n - 1, move || with_timeout(HOUR, || a.wait()));
        let free = start(node, n - 1, move || b.wait());
        eventually("both wait", || waiting(node, WaitReason::EVENT) == 2);
        let left = |id| {
            let seen = node.snapshot();
            seen.requests.iter().find(|r| r.id == id).expect("it waits").time_left_ns
        };
        let ns = left(limited.request_id()).expect("it has a limit");
        assert!(u128::from(ns) <= HOUR.as_nanos() && ns > 0, "{ns}");
        assert_eq!(left(free.request_id()), None);
        go.set();
        theirs.set();
        assert_eq!((limited.join().unwrap(), free.join().unwrap()), (Ok(()), Ok(())));
    });
}
