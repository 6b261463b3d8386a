//! Tests of join handles and channels as futures, awaited by workers, by spawned futures, and by
//! another runtime.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};

use ums::future::{FutureTask, block_on, spawn_future};
use ums::sync::channel::{
    Receiver, RecvError, SendError, Sender, TryRecvError, bounded, oneshot, rendezvous, unbounded,
};
use ums::task::JoinError;
use ums::{WaitReason, WorkerKind};

use super::common::{Gate, both_kinds, both_kinds_with, build, end, eventually, on, start, turn};

/// Counts its calls.
#[derive(Default)]
struct Calls(AtomicUsize);

impl Wake for Calls {
    fn wake(self: Arc<Calls>) {
        self.0.fetch_add(1, SeqCst);
    }
}

impl Calls {
    fn new() -> (Arc<Calls>, Waker) {
        let calls = Arc::new(Calls::default());
        (calls.clone(), Waker::from(calls))
    }

    fn made(&self) -> usize {
        self.0.load(SeqCst)
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

#[test]
fn a_task_is_awaited_by_another_runtime_and_by_workers() {
    let runtime = runtime();
    both_kinds(|node, _, n| {
        let gate = Arc::new(Gate::shut());
        let theirs = gate.clone();
        let task = start(node, n - 1, move || {
            theirs.pass();
            1
        });
        let mut task = task;
        let (calls, waker) = Calls::new();
        let mut polled = pin!(&mut task);
        for _ in 0..3 {
            assert!(polled.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        gate.open();
        eventually("the last waker is called", || calls.made() == 1);
        assert_eq!(runtime.block_on(task).unwrap(), 1);

        let theirs = start(node, n - 1, || panic!("on purpose"));
        assert!(matches!(runtime.block_on(theirs), Err(JoinError::Panicked(_))));
        let awaited = on(node, 0, || {
            let tasks: Vec<_> = (0..10).map(|n| ums::spawn(move || n)).collect();
            block_on(async move {
                let mut sum = 0;
                for task in tasks {
                    sum += task.await.unwrap();
                }
                sum
            })
        });
        assert_eq!(awaited, Ok(45));
    });
}

#[test]
fn a_task_that_never_runs_says_so_to_its_future() {
    let runtime = runtime();
    both_kinds_with(
        |b| b.schedulers(1).max_workers(1),
        |node, _, _| {
            let gate = Arc::new(Gate::shut());
            let theirs = gate.clone();
            let holder = start(node, 0, move || theirs.pass());
            eventually("the only worker waits", || gate.waiters() == 1);
            let mut task = start(node, 0, || ());
            let (calls, waker) = Calls::new();
            let first = pin!(&mut task).poll(&mut Context::from_waker(&waker));
            assert!(first.is_pending());
            task.cancel();
            assert_eq!(calls.made(), 1);
            assert!(matches!(runtime.block_on(task), Err(JoinError::NeverRan)));
            gate.open();
            holder.join().unwrap();
        },
    );
}

/// The handle is polled, given up, and then joined in the other ways.
#[test]
fn a_task_that_was_polled_can_still_be_joined() {
    both_kinds(|node, _, n| {
        let gate = Arc::new(Gate::shut());
        let theirs = gate.clone();
        let mut task = start(node, n - 1, move || {
            theirs.pass();
            5
        });
        let (calls, waker) = Calls::new();
        assert!(pin!(&mut task).poll(&mut Context::from_waker(&waker)).is_pending());
        let joiner = start(node, 0, move || task.join().unwrap());
        eventually("both wait", || super::joining(node) == 1);
        gate.open();
        assert_eq!(joiner.join().unwrap(), 5);
        assert_eq!(calls.made(), 0, "the join has taken the waker's place");
    });
}

/// A worker that blocks on a future keeps its worker: what it awaits must not need another one.
#[test]
fn tasks_that_a_blocked_worker_awaits_get_a_worker() {
    both_kinds_with(
        |b| b.schedulers(1).max_workers(1),
        |node, _, _| {
            let sum = on(node, 0, || {
                let tasks: Vec<_> = (0..3).map(|n| ums::spawn(move || n)).collect();
                block_on(async move {
                    let mut sum = 0;
                    for task in tasks {
                        sum += task.await.unwrap();
                    }
                    sum
                })
            });
            assert_eq!(sum, Ok(3));
        },
    );
}

/// A spawned future keeps no worker, so the tasks that it awaits may wait for one.
#[test]
fn tasks_that_spawned_futures_await_stay_within_the_limit() {
    both_kinds_with(
        |b| b.max_workers(8),
        |node, _, _| {
            let futures: Vec<FutureTask<usize>> = on(node, 0, || {
                let sleeps = |n| move || ums::sleep(super::ms(1)).map(|()| n).unwrap();
                let of = |n| async move { ums::spawn(sleeps(n)).await.unwrap() };
                (0..40).map(|n| spawn_future(of(n))).collect()
            });
            let runtime = runtime();
            let mut sum = 0;
            for future in futures {
                sum += runtime.block_on(future).unwrap();
                assert!(node.snapshot().workers.len() <= 8, "an awaited task had no worker");
            }
            assert_eq!(sum, 780);
        },
    );
}

/// Values of plain senders and of futures, through little room, to plain receivers and futures.
#[test]
fn every_value_arrives_once_whoever_sends_and_receives() {
    const EACH: usize = 200;
    both_kinds(|node, _, n| {
        for room in [1, 3, usize::MAX] {
            let (tx, rx) = if room == usize::MAX { unbounded() } else { bounded(room) };
            let got: Arc<Vec<AtomicUsize>> =
                Arc::new((0..4 * EACH).map(|_| AtomicUsize::new(0)).collect());
            let mut ends = Vec::new();
            for k in 0..2 {
                let (rx, got): (Receiver<usize>, _) = (rx.clone(), got.clone());
                ends.push(on(node, k % n, move || {
                    spawn_future(async move {
                        while let Ok(value) = rx.recv_async().await {
                            got[value].fetch_add(1, SeqCst);
                        }
                    })
                }));
            }
            let (plain, counts) = (rx.clone(), got.clone());
            let receiver = start(node, n - 1, move || {
                plain.iter().for_each(|value: usize| _ = counts[value].fetch_add(1, SeqCst));
            });
            drop(rx);
            let mut senders = Vec::new();
            for k in 0..4 {
                let (tx, values) = (tx.clone(), k * EACH..(k + 1) * EACH);
                senders.push(on(node, k % n, move || {
                    spawn_future(async move {
                        for value in values {
                            if k % 2 == 0 {
                                tx.send_async(value).await.unwrap();
                            } else {
                                tx.send(value).unwrap();
                            }
                        }
                    })
                }));
            }
            drop(tx);
            senders.into_iter().for_each(|sender| sender.join().unwrap());
            ends.into_iter().for_each(|end| end.join().unwrap());
            receiver.join().unwrap();
            assert!(got.iter().all(|count| count.load(SeqCst) == 1), "room {room}");
        }
    });
}

fn is_pending<F: Future + Unpin>(future: &mut F, waker: &Waker) -> bool {
    std::pin::Pin::new(future).poll(&mut Context::from_waker(waker)).is_pending()
}

#[test]
fn a_future_that_is_dropped_after_it_was_woken_passes_that_on() {
    let (tx, rx) = bounded::<u32>(1);
    let ([first, second], [waker, other]) = two_calls();
    let (mut a, mut b) = (rx.recv_async(), rx.recv_async());
    assert!(is_pending(&mut a, &waker) && is_pending(&mut b, &other));
    tx.send(1).unwrap();
    assert_eq!((first.made(), second.made()), (1, 0), "one value wakes one future");
    drop(a);
    assert_eq!(second.made(), 1);
    assert!(!is_pending(&mut b, &other));

    // The same for senders.
    tx.send(2).unwrap();
    let ([first, second], [waker, other]) = two_calls();
    let (mut a, mut b) = (tx.send_async(3), tx.send_async(4));
    assert!(is_pending(&mut a, &waker) && is_pending(&mut b, &other));
    assert_eq!(rx.try_recv(), Ok(2));
    assert_eq!((first.made(), second.made()), (1, 0));
    drop(a);
    assert_eq!(second.made(), 1);
    assert!(!is_pending(&mut b, &other));
    assert_eq!((rx.try_recv(), rx.try_recv()), (Ok(4), Err(TryRecvError::Empty)));
}

fn two_calls() -> ([Arc<Calls>; 2], [Waker; 2]) {
    let [(first, waker), (second, other)] = [Calls::new(), Calls::new()];
    ([first, second], [waker, other])
}

#[test]
fn a_waiting_senders_value_wakes_the_next_future() {
    let _turn = turn();
    let (tx, rx) = bounded::<u32>(1);
    let ([first, second], [waker, other]) = two_calls();
    let (mut a, mut b) = (rx.recv_async(), rx.recv_async());
    assert!(is_pending(&mut a, &waker) && is_pending(&mut b, &other));
    tx.send(1).unwrap();
    let node = build(WorkerKind::Thread, |b| b.schedulers(1));
    let sender = start(&node, 0, move || tx.send(2).unwrap());
    eventually("it waits", || super::waiting_for(&node, WaitReason::CHANNEL_SEND) == 1);
    assert!(!is_pending(&mut a, &waker), "it takes the first value, and makes room");
    sender.join().unwrap();
    end(node);
    assert_eq!((first.made(), second.made()), (1, 1));
    assert!(!is_pending(&mut b, &other));
}

#[test]
fn the_end_of_one_side_ends_the_futures_of_the_other() {
    let runtime = runtime();
    let (tx, rx) = bounded::<u32>(1);
    let (calls, waker) = Calls::new();
    let mut receive = rx.recv_async();
    assert!(is_pending(&mut receive, &waker));
    drop(tx);
    assert_eq!(calls.made(), 1);
    assert_eq!(runtime.block_on(receive), Err(RecvError::Disconnected));

    let (tx, rx) = bounded::<u32>(1);
    tx.send(1).unwrap();
    let (calls, waker) = Calls::new();
    let mut send = tx.send_async(2);
    assert!(is_pending(&mut send, &waker));
    drop(rx);
    assert_eq!(calls.made(), 1);
    assert_eq!(runtime.block_on(send), Err(SendError::Disconnected(2)));

    let (tx, rx) = oneshot();
    std::thread::scope(|scope| {
        scope.spawn(move || tx.send(7).unwrap());
        assert_eq!(runtime.block_on(rx.recv_async()), Ok(7));
    });
}

#[test]
fn a_future_is_refused_by_a_channel_without_a_buffer() {
    let (tx, rx): (Sender<u32>, Receiver<u32>) = rendezvous();
    let refusals = [
        catch_unwind(AssertUnwindSafe(|| drop(rx.recv_async()))),
        catch_unwind(AssertUnwindSafe(|| drop(tx.send_async(1)))),
    ];
    for refusal in refusals {
        let text = *refusal.unwrap_err().downcast::<&str>().unwrap();
        assert!(text.contains("bounded(1)"), "{text}");
    }
}

/// A waker that uses the channel is not called under the channel's locks.
#[test]
fn a_waker_may_use_the_channel() {
    struct Uses(Receiver<u32>, AtomicUsize);
    impl Wake for Uses {
        fn wake(self: Arc<Uses>) {
            self.1.fetch_add(self.0.try_recv().map_or(0, |value| value as usize), SeqCst);
        }
    }
    let (tx, rx) = bounded::<u32>(1);
    let uses = Arc::new(Uses(rx.clone(), AtomicUsize::new(0)));
    let waker = Waker::from(uses.clone());
    let mut receive = rx.recv_async();
    assert!(is_pending(&mut receive, &waker));
    tx.send(9).unwrap();
    assert_eq!(uses.1.load(SeqCst), 9);
    assert!(is_pending(&mut receive, &waker), "the waker has taken the value");
}

/// A task ends while a plain thread polls it, and then joins it.
#[test]
fn no_end_of_a_task_is_missed_by_its_future() {
    both_kinds(|node, _, n| {
        for round in 0..200 {
            let mut task = node.spawn_on(round % n, move || round).unwrap();
            let (_, waker) = Calls::new();
            match pin!(&mut task).poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(ended) => assert_eq!(ended.unwrap(), round),
                Poll::Pending if round % 2 == 0 => assert_eq!(task.join().unwrap(), round),
                Poll::Pending => assert_eq!(block_on(task).unwrap().unwrap(), round),
            }
        }
    });
}
