//! Selects on workers: tasks, tokens, futures and sockets beside channels, in every kind.

use std::future::pending;
use std::io::{ErrorKind, Read, Write};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::Poll;
use std::time::Duration;

use ums::future::polled;
use ums::net::{TcpListener, TcpStream, UdpSocket, UnixListener, UnixStream};
use ums::sync::channel::{BroadcastError, RecvError, bounded, broadcast, unbounded, watch};
use ums::sync::{Event, Select};
use ums::task::{CancelToken, JoinError};
use ums::{Node, WaitError, WaitReason, WorkerKind};

use super::common::{back_ends, both_kinds, eventually, kinds, on, one_kind, start};
use super::{HOUR, SHORT, waiting};

#[test]
fn a_task_that_ends_is_joined_by_its_arm_and_another_task_stays() {
    both_kinds(|node, _, n| {
        let (go, theirs) = (Arc::new(Event::manual(false)), Arc::new(Event::manual(false)));
        let (opened, open) = (go.clone(), theirs.clone());
        let selecting = start(node, 0, move || {
            let mut one = ums::spawn(move || go.wait().map(|()| 1));
            let mut two = ums::spawn(move || theirs.wait().map(|()| 2));
            let first = Select::new()
                .on(&mut one, |ended| ended.unwrap().unwrap())
                .on(&mut two, |ended| ended.unwrap().unwrap())
                .wait();
            (first, one)
        });
        eventually("it waits", || waiting(node, WaitReason::SELECT) == 1);
        open.set();
        let (first, one) = selecting.join().unwrap();
        assert_eq!(first, Ok(2));
        opened.set();
        assert_eq!(one.join().unwrap(), Ok(1), "the other is still there");
        let failed = start(node, n - 1, || {
            let mut task = ums::spawn(|| -> () { panic!("on purpose") });
            Select::new().on(&mut task, |ended| ended.unwrap_err()).wait().unwrap()
        });
        assert!(matches!(failed.join(), Ok(JoinError::Panicked(_))));
    });
}

#[test]
fn a_task_that_no_other_worker_would_begin_is_begun_for_its_arm() {
    let one_worker = |builder: ums::Builder| builder.schedulers(1).max_workers(1);
    for kind in kinds() {
        one_kind(kind, one_worker, |node| {
            let sum = on(node, 0, || {
                let mut task = ums::spawn(|| 3);
                Select::new().on(&mut task, |ended| ended.unwrap()).on(HOUR, |()| 0).wait()
            });
            assert_eq!(sum, Ok(3));
        });
    }
}

#[test]
fn a_token_ends_a_select_whose_other_arms_never_happen() {
    both_kinds(|node, _, _| {
        let (token, theirs) = (CancelToken::new(), CancelToken::new());
        let parent = theirs.clone();
        let child = theirs.child();
        let ours = token.clone();
        let selecting = start(node, 0, move || {
            let (_tx, rx) = unbounded::<()>();
            let select = Select::new().on(&token, |()| "token").on(&child, |()| "child");
            select.on(&rx, |_| "value").wait()
        });
        eventually("it waits", || waiting(node, WaitReason::SELECT) == 1);
        parent.cancel();
        assert_eq!(selecting.join().unwrap(), Ok("child"));
        assert!(!ours.is_cancelled());
    });
}

#[test]
fn a_cancelled_select_fails_and_keeps_nothing_of_any_arm() {
    both_kinds(|node, _, _| {
        let seats = Arc::new(ums::sync::Semaphore::new(0));
        let theirs = seats.clone();
        let selecting = start(node, 0, move || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut never = pin!(pending::<()>());
            let mut task = ums::spawn(|| ums::sleep(HOUR));
            let select = Select::new()
                .on(&listener, drop)
                .on(polled(never.as_mut()), drop)
                .on(&*theirs, drop)
                .on(&mut task, drop)
                .wait();
            task.cancel();
            (select, task.join_uncancellable().is_ok())
        });
        eventually("it waits", || waiting(node, WaitReason::SELECT) == 1);
        selecting.cancel();
        assert_eq!(selecting.join().unwrap().0, Err(WaitError::Cancelled));
        seats.add_permits(1);
        assert_eq!(seats.available(), 1, "the permit does not go to one that has left");
    });
}

#[test]
fn a_future_is_polled_when_it_is_woken_and_one_that_wakes_itself_lets_others_run() {
    both_kinds(|node, _, n| {
        let (tx, rx) = bounded(1);
        let selecting = start(node, n - 1, move || {
            let mut future = pin!(async move { rx.recv_async().await.unwrap() });
            Select::new().on(polled(future.as_mut()), |value| value).on(HOUR, |()| 0).wait()
        });
        eventually("it waits", || waiting(node, WaitReason::SELECT) == 1);
        tx.send(5).unwrap();
        assert_eq!(selecting.join().unwrap(), Ok(5));
        let told = on(node, 0, || {
            let done = Arc::new(AtomicUsize::new(0));
            let (theirs, polls) = (done.clone(), AtomicUsize::new(0));
            let other = ums::spawn(move || theirs.store(1, SeqCst));
            let mut waking = pin!(std::future::poll_fn(|context| {
                polls.fetch_add(1, SeqCst);
                context.waker().wake_by_ref();
                if done.load(SeqCst) == 1 { Poll::Ready(()) } else { Poll::Pending }
            }));
            let told = Select::new().on(polled(waking.as_mut()), |()| 1).on(HOUR, |()| 2).wait();
            other.join().unwrap();
            let never = std::future::poll_fn(|context| {
                context.waker().wake_by_ref();
                Poll::<()>::Pending
            });
            let mut never = pin!(never);
            let limited = Select::new().on(polled(never.as_mut()), |()| 1).wait_for(SHORT);
            (told, limited)
        });
        assert_eq!(told, (Ok(1), Err(WaitError::TimedOut)));
    });
}

#[test]
fn listeners_and_sockets_are_ready_before_and_during_a_select() {
    both_kinds(sockets_are_ready);
}

#[test]
fn sockets_are_ready_with_every_driver() {
    for kind in kinds() {
        for driver in back_ends(kind) {
            one_kind(kind, |b| b.schedulers(2).io(driver), |node| sockets_are_ready(node, kind, 2));
        }
    }
}

fn sockets_are_ready(node: &Node, kind: WorkerKind, n: usize) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, unix) = (tcp.local_addr().unwrap(), UnixListener::bind(&path).unwrap());
    let accept = move |tcp: &TcpListener, unix: &UnixListener| {
        Select::new()
            .on(tcp, |accepted| Ok(accepted.unwrap().0))
            .on(unix, |accepted| Err(accepted.unwrap().0))
            .on(HOUR, |()| panic!("{kind:?}: no connection has come"))
            .wait()
            .unwrap()
    };
    let accepting = start(node, n - 1, move || {
        let first = accept(&tcp, &unix);
        (first, tcp, unix)
    });
    eventually("it waits", || waiting(node, WaitReason::SELECT) == 1);
    let mut client = UnixStream::connect(&path).unwrap();
    let (first, tcp, unix) = accepting.join().unwrap();
    let mut server = first.unwrap_err();
    // This one is there before the select begins.
    let other = TcpStream::connect(address).unwrap();
    let second = on(node, 0, move || accept(&tcp, &unix).unwrap());
    drop((other, second));

    let reading = start(node, 0, move || {
        let room = Select::new().on(server.writable(), |room| room.is_ok()).wait();
        let input = Select::new().on(server.readable(), |input| input.is_ok());
        assert_eq!((room, input.on(HOUR, |()| false).wait()), (Ok(true), Ok(true)));
        let mut byte = [0];
        server.read_exact(&mut byte).unwrap();
        let none = Select::new().on(server.readable(), drop).wait_for(SHORT);
        assert_eq!(none, Err(WaitError::TimedOut), "it was read");
        eventually("the poll ends", || ums::io::pending_io().outstanding == 0);
        byte[0]
    });
    eventually("it waits", || waiting(node, WaitReason::SELECT) == 1);
    client.write_all(&[7]).unwrap();
    assert_eq!(reading.join().unwrap(), 7);
}

#[test]
fn a_socket_that_another_caller_has_emptied_is_waited_for_again() {
    both_kinds(|node, _, n| {
        let listener = Arc::new(TcpListener::bind("127.0.0.1:0").unwrap());
        let address = listener.local_addr().unwrap();
        let got = Arc::new(AtomicUsize::new(0));
        const EACH: usize = 20;
        let acceptors: Vec<_> = (0..3)
            .map(|at| {
                let (listener, got) = (listener.clone(), got.clone());
                start(node, at % n, move || {
                    while got.load(SeqCst) < EACH {
                        Select::new()
                            .on(&*listener, |accepted| {
                                accepted.unwrap();
                                got.fetch_add(1, SeqCst);
                            })
                            .on(Duration::from_millis(20), |()| ())
                            .wait()
                            .unwrap();
                    }
                })
            })
            .collect();
        let clients: Vec<_> = (0..EACH).map(|_| TcpStream::connect(address).unwrap()).collect();
        acceptors.into_iter().for_each(|acceptor| acceptor.join().unwrap());
        assert_eq!(got.load(SeqCst), clients.len());
    });
}

#[test]
fn outside_of_workers_a_select_waits_for_no_socket_and_says_so() {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let told = Select::new().on(socket.readable(), |ready| ready).wait().unwrap();
    let error = told.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("only a worker"), "{error}");
    assert!(Select::new().on(socket.readable(), drop).try_now().is_none());
    let (tx, rx) = unbounded();
    tx.send(1).unwrap();
    let arm = Select::new().biased().on(socket.readable(), |_| Ok(0)).on(&rx, |n| n).wait();
    assert_eq!(arm, Ok(Ok(1)), "another arm is ready, so it need not wait");
    socket.send_to(b"x", socket.local_addr().unwrap()).unwrap();
    eventually("it has arrived", || {
        Select::new().on(socket.readable(), |ready| ready.is_ok()).wait().unwrap()
    });
}

#[test]
fn the_ticks_of_an_interval_and_the_value_of_a_oneshot_are_arms() {
    both_kinds(|node, _, _| {
        let (ticks, value, gone) = on(node, 0, || {
            let (tx, rx) = ums::sync::channel::oneshot();
            let mut interval = ums::task::Interval::new(2 * SHORT);
            let (mut tx, mut ticks) = (Some(tx), 0);
            let value = loop {
                let select = Select::new().on(&mut interval, Err).on(&rx, Ok);
                match select.wait().unwrap() {
                    Ok(value) => break value,
                    Err(passed) => ticks += passed,
                }
                if ticks >= 3
                    && let Some(tx) = tx.take()
                {
                    drop(ums::spawn(move || tx.send("value").unwrap()));
                }
            };
            (ticks, value, Select::new().on(&rx, |gone| gone).wait())
        });
        assert!(ticks >= 3, "{ticks}");
        assert_eq!(value, Ok("value"));
        assert!(matches!(gone, Ok(Err(RecvError::Disconnected))));
    });
}

#[test]
fn the_receivers_of_a_watch_and_of_a_broadcast_are_arms() {
    both_kinds(|node, _, n| {
        let ((newest, mut watcher), (lines, mut reader)) = (watch(0), broadcast(2));
        watcher.get();
        let (tell, told) = unbounded();
        let selecting = start(node, n - 1, move || {
            for _ in 0..4 {
                let select = Select::new()
                    .on(&mut watcher, |changed| format!("{changed:?}"))
                    .on(&mut reader, |line| format!("{line:?}"));
                tell.send(select.wait().unwrap()).unwrap();
            }
            (watcher, reader)
        });
        let waits = || eventually("it waits", || waiting(node, WaitReason::SELECT) == 1);
        waits();
        newest.send(1);
        assert_eq!(told.recv().unwrap(), "Ok(())");
        waits();
        lines.send("a").unwrap();
        assert_eq!(told.recv().unwrap(), "Ok(\"a\")");
        waits();
        drop(lines.clone());
        newest.modify(|value| *value = 2);
        assert_eq!(told.recv().unwrap(), "Ok(())", "there is another sender");
        waits();
        drop(newest);
        assert_eq!(told.recv().unwrap(), "Err(Disconnected)");
        let (mut watcher, mut reader) = selecting.join().unwrap();

        let (value, rest) = on(node, 0, move || {
            let none = Select::new().on(&mut reader, |_| ()).wait_for(SHORT);
            assert_eq!(none, Err(WaitError::TimedOut));
            ["b", "c", "d"].into_iter().for_each(|line| lines.send(line).unwrap());
            drop(lines);
            let mut next = || Select::new().on(&mut reader, |line| line).wait().unwrap();
            (watcher.get(), [next(), next(), next(), next()])
        });
        let (lost, gone) = (BroadcastError::Lagged(1), BroadcastError::Disconnected);
        assert_eq!((value, rest), (2, [Err(lost), Ok("c"), Ok("d"), Err(gone)]));
    });
}

#[test]
fn a_watch_that_is_being_changed_is_waited_for_by_its_arm() {
    both_kinds(|node, _, n| {
        let (newest, mut watcher) = watch(0);
        watcher.get();
        let (begun, go) = (Arc::new(Event::manual(false)), Arc::new(Event::manual(false)));
        let (begins, goes) = (begun.clone(), go.clone());
        let changing = start(node, 0, move || {
            newest.modify(|value| {
                begins.set();
                *value = goes.wait().map_or(0, |()| 5);
            });
            newest
        });
        begun.wait().unwrap();
        let selecting = start(node, n - 1, move || {
            let changed = Select::new().on(&mut watcher, |changed| changed).on(HOUR, |()| Ok(()));
            (changed.wait(), watcher.get())
        });
        eventually("it waits", || waiting(node, WaitReason::MUTEX) == 1);
        go.set();
        assert_eq!(selecting.join().unwrap(), (Ok(Ok(())), 5));
        drop(changing.join());
    });
}

/// Starts an attempt after another, each after a pause, until one of them has an answer.
fn first_answer(answers: &[Option<u32>]) -> Result<Option<u32>, WaitError> {
    ums::task_group(|group| {
        let mut left = answers.iter();
        let mut pause = Duration::ZERO;
        loop {
            let next = Select::new().on(group, Some).on(pause, |()| None).wait()?;
            match next.transpose()? {
                Some(Some(Some(answer))) => {
                    group.cancel();
                    return Ok(Some(answer));
                }
                Some(Some(None)) => {}
                // All attempts have ended, or the pause has.
                Some(None) | None => match left.next() {
                    Some(answer) => {
                        pause = SHORT;
                        group.spawn(move || {
                            ums::sleep(5 * SHORT)?;
                            answer.map_or_else(|| ums::sleep(HOUR).map(|()| None), |a| Ok(Some(a)))
                        });
                    }
                    None if pause == Duration::MAX => return Ok(None),
                    None => pause = Duration::MAX,
                },
            }
        }
    })
}

#[test]
fn the_results_of_a_group_are_arms_beside_a_time() {
    both_kinds(|node, _, n| {
        let answer = on(node, n - 1, || first_answer(&[None, None, Some(7), Some(8)]));
        assert!(matches!(answer, Ok(Some(7 | 8))), "{answer:?}");
    });
    // The workers of the tasks are beyond the limit.
    let one_worker = |builder: ums::Builder| builder.schedulers(1).max_workers(1);
    for kind in kinds() {
        one_kind(kind, one_worker, |node| {
            assert_eq!(on(node, 0, || first_answer(&[None, Some(9)])), Ok(Some(9)));
            let failed = on(node, 0, || {
                ums::task_group(|group| {
                    group.spawn(|| Err::<(), _>(WaitError::TimedOut));
                    Select::new().on(group, |next| next).on(HOUR, |()| Ok(None)).wait()?
                })
            });
            assert_eq!(failed, Err(WaitError::TimedOut));
        });
    }
}

#[test]
fn a_panic_of_a_group_passes_through_its_arm() {
    both_kinds(|node, _, _| {
        let caught = start(node, 0, || {
            ums::task_group(|group| {
                group.spawn(|| -> Result<(), WaitError> { panic!("on purpose") });
                Select::new().on(group, |next| next).on(HOUR, |()| Ok(None)).wait()?
            })
        });
        let JoinError::Panicked(panic) = caught.join().unwrap_err() else { panic!("it panicked") };
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"on purpose"));
    });
}
