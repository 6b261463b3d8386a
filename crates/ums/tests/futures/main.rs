//! Tests of `block_on`, on workers of every kind and on plain threads. The caller gets the output
//! once, whichever thread calls the waker, before or during the wait. A wait that fails drops its
//! future.

mod awaited;
#[path = "../common/mod.rs"]
mod common;
mod ready;
mod spawned;

use std::cell::Cell;
use std::future::{pending, poll_fn, ready};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use common::*;
use ums::future::{block_on, block_on_for, block_on_until};
use ums::lock::Lock;
use ums::stats::{WorkerRow, WorkerState};
use ums::{Node, WaitError, WaitReason};

/// A value that comes once, and the waker of the future that waits for it.
#[derive(Default)]
struct Slot {
    value: Option<u32>,
    waker: Option<Waker>,
}

type Shared = Arc<Lock<Slot>>;

fn fill(slot: &Lock<Slot>, value: u32) {
    let waker = {
        let mut slot = slot.lock();
        slot.value = Some(value);
        slot.waker.take()
    };
    waker.into_iter().for_each(Waker::wake);
}

fn filled(slot: Shared) -> impl Future<Output = u32> {
    poll_fn(move |context| {
        let mut slot = slot.lock();
        slot.waker = Some(context.waker().clone());
        slot.value.take().map_or(Poll::Pending, Poll::Ready)
    })
}

fn waiting(node: &Node) -> usize {
    waiting_for(node, WaitReason::FUTURE)
}

fn joining(node: &Node) -> usize {
    waiting_for(node, WaitReason::JOIN)
}

fn waiting_for(node: &Node, reason: WaitReason) -> usize {
    let waits = |w: &&WorkerRow| w.state == WorkerState::Waiting && w.reason == Some(reason);
    node.snapshot().workers.iter().filter(waits).count()
}

/// Sets a flag when it is dropped.
struct Told(Arc<AtomicBool>);

impl Drop for Told {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

#[test]
fn a_future_is_awaited_wherever_it_is_woken() {
    both_kinds(|node, _, n| {
        assert_eq!(on(node, 0, || block_on(ready(1))), Ok(1));
        let slot = Shared::default();
        let theirs = slot.clone();
        let waiter = start(node, 0, move || block_on(filled(theirs)));
        eventually("it waits", || waiting(node) == 1);
        let theirs = slot.clone();
        on(node, n - 1, move || fill(&theirs, 2));
        assert_eq!(waiter.join().unwrap(), Ok(2), "woken by a worker");
        let theirs = slot.clone();
        let waiter = start(node, 0, move || block_on(filled(theirs)));
        eventually("it waits", || waiting(node) == 1);
        fill(&slot, 3);
        assert_eq!(waiter.join().unwrap(), Ok(3), "woken by a plain thread");
        let theirs = slot.clone();
        let filler = start(node, 0, move || fill(&theirs, 4));
        assert_eq!(block_on(filled(slot)), Ok(4), "awaited by a plain thread");
        filler.join().unwrap();
    });
}

/// The future uses its caller's locals, and belongs to its thread.
#[test]
fn a_future_may_borrow_and_needs_no_send() {
    both_kinds(|node, _, _| {
        let seen = on(node, 0, || {
            let count = Rc::new(Cell::new(0));
            let polled = &count;
            let future = async move {
                for _ in 0..3 {
                    polled.set(polled.get() + 1);
                    again().await;
                }
                block_on(async { polled.get() + 10 }).expect("a call inside a call")
            };
            (block_on(future), count.get())
        });
        assert_eq!(seen, (Ok(13), 3));
    });
}

/// Wakes itself and is pending once.
async fn again() {
    let mut first = true;
    poll_fn(move |context| {
        if !std::mem::take(&mut first) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[test]
fn a_future_that_wakes_itself_lets_others_run_and_hears_the_end() {
    each_alone(
        |b| b.max_workers(8),
        |node, _, n| {
            for s in 0..n {
                // Another worker of the same scheduler has a turn for each poll.
                let turns = on(node, s, || {
                    let (stop, turns) =
                        (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
                    let (theirs, count) = (stop.clone(), turns.clone());
                    let other = ums::spawn(move || {
                        while !theirs.load(SeqCst) {
                            count.fetch_add(1, SeqCst);
                            ums::yield_now();
                        }
                    });
                    ums::yield_now();
                    let before = turns.load(SeqCst);
                    let hundred = async {
                        for _ in 0..100 {
                            again().await;
                        }
                    };
                    block_on(hundred).unwrap();
                    let turns = turns.load(SeqCst) - before;
                    stop.store(true, SeqCst);
                    other.join().unwrap();
                    turns
                });
                assert!(turns >= 100, "{turns} turns");
                let forever = async || loop {
                    again().await;
                };
                let waited: Result<(), _> = on(node, s, move || block_on_for(ms(1), forever()));
                assert_eq!(waited, Err(WaitError::TimedOut));
                let begun = Arc::new(AtomicBool::new(false));
                let theirs = begun.clone();
                let task = start(node, s, move || {
                    theirs.store(true, SeqCst);
                    let waited: Result<(), _> = block_on(forever());
                    waited
                });
                eventually("it has begun", || begun.load(SeqCst));
                task.cancel();
                assert_eq!(task.join().unwrap(), Err(WaitError::Cancelled));
            }
        },
    );
}

#[test]
fn a_wait_that_fails_drops_its_future_and_a_late_wake_is_harmless() {
    both_kinds(|node, _, _| {
        let slot = Shared::default();
        let dropped = Arc::new(AtomicBool::new(false));
        let (theirs, told) = (slot.clone(), Told(dropped.clone()));
        let future = async move {
            let _told = told;
            filled(theirs).await
        };
        let task = start(node, 0, move || {
            let waited = block_on(future);
            // The next wait of the same worker is not disturbed by the waker of the last one.
            (waited, block_on_for(ms(1), pending::<()>()))
        });
        eventually("it waits", || waiting(node) == 1);
        task.cancel();
        assert_eq!(task.join().unwrap(), (Err(WaitError::Cancelled), Err(WaitError::Cancelled)));
        assert!(dropped.load(SeqCst));
        fill(&slot, 1);
        assert_eq!(slot.lock().value, Some(1), "the value stays where it is");
        // The waker of an earlier call does not end a later wait of the same worker.
        let kept = Arc::new(Lock::new(None::<Waker>));
        let theirs = kept.clone();
        let never = ums::sync::Event::manual(false);
        let task = start(node, 0, move || {
            let keep = poll_fn(|context| {
                *theirs.lock() = Some(context.waker().clone());
                Poll::<()>::Pending
            });
            (block_on_for(ms(1), keep), never.wait())
        });
        let in_event = |w: &WorkerRow| w.reason == Some(WaitReason::EVENT);
        eventually("it waits for the event", || node.snapshot().workers.iter().any(in_event));
        let waker = kept.lock().take().expect("it was polled");
        waker.wake_by_ref();
        on(node, 0, || waker.wake());
        std::thread::sleep(ms(2));
        assert!(node.snapshot().workers.iter().any(in_event), "it still waits");
        task.cancel();
        assert_eq!(task.join().unwrap(), (Err(WaitError::TimedOut), Err(WaitError::Cancelled)));
    });
}

#[test]
fn deadlines_and_cancellations_end_a_wait_and_not_what_is_ready() {
    both_kinds(|node, _, _| {
        let past = Instant::now() - ms(1);
        assert_eq!(on(node, 0, move || block_on_until(past, ready(5))), Ok(5));
        let polled = on(node, 0, move || {
            let polls = Cell::new(0);
            let counts = poll_fn(|_| (polls.set(polls.get() + 1), Poll::<()>::Pending).1);
            (block_on_until(past, counts), polls.get())
        });
        assert_eq!(polled, (Err(WaitError::TimedOut), 2));
        let soon = Instant::now() + ms(2);
        let waited = on(node, 0, move || block_on_until(soon, pending::<()>()));
        assert!(waited == Err(WaitError::TimedOut) && Instant::now() >= soon);
        assert_eq!(block_on_for(Duration::MAX, again()), Ok(()), "on a plain thread");
        let forever = async {
            loop {
                again().await;
            }
        };
        let waited: Result<(), _> = block_on_for(ms(1), forever);
        assert_eq!(waited, Err(WaitError::TimedOut), "on a plain thread");
        let task = start(node, 0, || {
            while !ums::is_cancelled() {
                ums::yield_now();
            }
            let second = || {
                let mut polls = 0;
                poll_fn(move |_| {
                    polls += 1;
                    if polls == 2 { Poll::Ready(2) } else { Poll::Pending }
                })
            };
            (block_on(ready(1)), block_on(second()), block_on(pending::<()>()))
        });
        task.cancel();
        // A task that was cancelled before it began does not run.
        if let Ok(waited) = task.join() {
            assert_eq!(waited, (Ok(1), Ok(2), Err(WaitError::Cancelled)));
        }
    });
}

/// Nothing that a thread does outside its scheduler is cancelled.
#[test]
fn a_preemptive_caller_is_not_cancelled() {
    both_kinds(|node, _, _| {
        let begun = Arc::new(AtomicBool::new(false));
        let (theirs, slot) = (begun.clone(), Shared::default());
        let awaited = slot.clone();
        let task = start(node, 0, move || {
            ums::go_preemptive(WaitReason::PREEMPTIVE_EXTERNAL, || {
                theirs.store(true, SeqCst);
                while !ums::is_cancelled() {
                    std::thread::yield_now();
                }
                let thrice = async {
                    again().await;
                    again().await;
                    filled(awaited).await
                };
                block_on(thrice)
            })
        });
        eventually("it has begun", || begun.load(SeqCst));
        task.cancel();
        std::thread::sleep(ms(1));
        fill(&slot, 9);
        assert_eq!(task.join().unwrap(), Ok(9));
    });
}

/// A ring is answered by one poll, and then the caller sleeps.
#[test]
fn each_wake_costs_one_poll() {
    both_kinds(|node, _, _| {
        let task = start(node, 0, || {
            let polls = Cell::new(0);
            let wakes_itself_once = poll_fn(|context| {
                polls.set(polls.get() + 1);
                if polls.get() == 1 {
                    context.waker().wake_by_ref();
                    context.waker().wake_by_ref();
                }
                Poll::<()>::Pending
            });
            (block_on(wakes_itself_once), polls.get())
        });
        eventually("it waits", || waiting(node) == 1);
        task.cancel();
        // Before and after the ring, and when the wait has ended.
        assert_eq!(task.join().unwrap(), (Err(WaitError::Cancelled), 3));
    });
}

/// A value that comes while the wait fails is returned.
#[test]
fn a_value_that_comes_with_the_end_of_the_wait_is_not_lost() {
    both_kinds(|node, _, _| {
        let polls = on(node, 0, || {
            let polls = Cell::new(0);
            let second = poll_fn(|_| {
                polls.set(polls.get() + 1);
                if polls.get() == 2 { Poll::Ready(7) } else { Poll::Pending }
            });
            (block_on_for(ms(1), second), polls.get())
        });
        assert_eq!(polls, (Ok(7), 2));
    });
}

#[test]
fn a_panic_of_a_future_is_passed_on_and_the_worker_can_wait_again() {
    both_kinds(|node, _, _| {
        let after = on(node, 0, || {
            let panics = async {
                again().await;
                panic!("a future's own");
            };
            let caught = catch_unwind(AssertUnwindSafe(|| block_on(panics)));
            (caught.is_err(), block_on(async { again().await }))
        });
        assert_eq!(after, (true, Ok(())));
    });
}

/// Many wakers for one caller, from many threads: it sees each change.
#[test]
fn no_wake_is_lost() {
    const WAKERS: usize = 4;
    const EACH: usize = 300;
    both_kinds(|node, _, n| {
        let count = Arc::new((AtomicUsize::new(0), Lock::new(None::<Waker>)));
        let theirs = count.clone();
        let waiter = start(node, 0, move || {
            block_on(poll_fn(|context| {
                *theirs.1.lock() = Some(context.waker().clone());
                let all = theirs.0.load(SeqCst) == WAKERS * EACH;
                if all { Poll::Ready(()) } else { Poll::Pending }
            }))
        });
        let wake = move |count: &(AtomicUsize, Lock<Option<Waker>>)| {
            for _ in 0..EACH {
                count.0.fetch_add(1, SeqCst);
                let waker = count.1.lock().take();
                waker.into_iter().for_each(Waker::wake);
            }
        };
        let workers: Vec<_> = (0..WAKERS / 2)
            .map(|k| (count.clone(), k))
            .map(|(count, k)| start(node, k % n, move || wake(&count)))
            .collect();
        std::thread::scope(|s| {
            (0..WAKERS / 2).for_each(|_| drop(s.spawn(|| wake(&count))));
        });
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        assert_eq!(waiter.join().unwrap(), Ok(()));
    });
}

/// Timers and channels of a tokio runtime that runs beside the node.
#[test]
fn futures_of_another_runtime_are_awaited() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let handle = runtime.handle().clone();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let beside = std::thread::spawn(move || runtime.block_on(stopped));
    // The threads of tokio are there before the harness counts threads and descriptors.
    block_on(handle.spawn(async {})).unwrap().unwrap();
    both_kinds(|node, _, _| {
        let handle = handle.clone();
        let answers = on(node, 0, move || {
            let (to, mut from) = tokio::sync::mpsc::channel::<u64>(2);
            let sender = handle.spawn(async move {
                for n in 0..10 {
                    tokio::time::sleep(Duration::from_micros(200)).await;
                    to.send(n).await.expect("it is received");
                }
            });
            let mut sum = 0;
            while let Some(n) = block_on(from.recv()).expect("it is not cancelled") {
                sum += n;
            }
            (sum, block_on(sender).expect("it is not cancelled").is_ok())
        });
        assert_eq!(answers, (45, true));
    });
    stop.send(()).unwrap();
    beside.join().unwrap().unwrap();
}
