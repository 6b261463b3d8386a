//! The documented behaviour: new workers wait until they are executed, yields pass a parameter,
//! lists return every item once, contexts keep values.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ums::windows::{
    self, CompletionList, Current, Reason, SchedulerAction, ThreadKind, TimedOut, WorkerContext,
};

use crate::harness::{Heard, Rounds, alone, eventually};

#[test]
fn a_new_worker_is_on_the_list_and_does_not_run_until_it_is_executed() {
    alone(|| {
        let list = CompletionList::new().unwrap();
        let ran = Arc::new(AtomicU32::new(0));
        let mine = ran.clone();
        let work = move || {
            mine.fetch_add(1, Ordering::SeqCst);
        };
        let worker = WorkerContext::spawn(&list, work).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(ran.load(Ordering::SeqCst), 0);
        assert!(!list.is_empty() && list.members() == 1);
        let heard = Rounds::run(&list);
        assert_eq!(ran.load(Ordering::SeqCst), 1);
        assert!(worker.is_terminated());
        assert_eq!(heard.first(), Some(&Heard::Startup));
    });
}

#[test]
fn a_yield_names_the_worker_and_brings_its_parameter() {
    alone(|| {
        let list = CompletionList::new().unwrap();
        let worker = WorkerContext::spawn(&list, || {
            for param in [7, 0, usize::MAX] {
                windows::thread_yield(param).unwrap();
            }
        })
        .unwrap();
        let heard = Rounds::run(&list);
        let yields: Vec<_> =
            heard.into_iter().filter(|heard| matches!(heard, Heard::Yield(..))).collect();
        let expected = [7, 0, usize::MAX].map(|param| Heard::Yield(worker.clone(), param));
        assert_eq!(yields, expected);
    });
}

#[test]
fn workers_pass_a_number_round_by_yields_alone() {
    alone(|| {
        const WORKERS: usize = 10;
        const ROUNDS: usize = 200;
        let list = CompletionList::new().unwrap();
        let turn = Arc::new(AtomicUsize::new(0));
        for me in 0..WORKERS {
            let turn = turn.clone();
            let work = move || {
                for round in 0..ROUNDS {
                    // The order is first in, first out, and no worker blocks, so each worker finds
                    // exactly its own turn.
                    assert_eq!(turn.fetch_add(1, Ordering::SeqCst), round * WORKERS + me);
                    windows::thread_yield(me).unwrap();
                }
            };
            WorkerContext::spawn(&list, work).unwrap();
        }
        let heard = Rounds::run(&list);
        assert_eq!(turn.load(Ordering::SeqCst), WORKERS * ROUNDS);
        let yields = heard.iter().filter(|heard| matches!(heard, Heard::Yield(..))).count();
        assert_eq!(yields, WORKERS * ROUNDS);
    });
}

#[test]
fn each_thread_knows_its_role() {
    alone(|| {
        let list = CompletionList::new().unwrap();
        let seen = Arc::new(AtomicU32::new(0));
        let mine = seen.clone();
        let worker = WorkerContext::spawn(&list, move || {
            let Some(Current::Worker(me)) = windows::current() else { panic!("a worker") };
            assert_eq!(me.user_context(), 41);
            assert_eq!(windows::thread_kind(me.thread_id()), ThreadKind::Worker);
            mine.store(me.thread_id(), Ordering::SeqCst);
        })
        .unwrap();
        worker.set_user_context(41);
        assert_eq!(windows::current(), None);
        let me = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        assert_eq!(windows::thread_kind(me), ThreadKind::Plain);
        let mut rounds = Rounds::new(&list);
        windows::enter_scheduling_mode(|scheduler, reason| {
            assert_eq!(windows::current(), Some(Current::Scheduler));
            assert_eq!(windows::thread_kind(me), ThreadKind::Scheduler);
            rounds.next(scheduler, reason)
        })
        .unwrap();
        assert_eq!(windows::thread_kind(me), ThreadKind::Plain);
        assert_eq!(seen.load(Ordering::SeqCst), worker.thread_id());
        // The system may reuse the thread's number for another thread, but not for a worker,
        // because there is none.
        assert_eq!(windows::thread_kind(worker.thread_id()), ThreadKind::Plain);
    });
}

#[test]
fn a_context_keeps_user_value_priority_and_affinity() {
    alone(|| {
        let list = CompletionList::new().unwrap();
        let worker = WorkerContext::builder().user_context(5).spawn(&list, || {}).unwrap();
        assert_eq!((worker.user_context(), worker.priority(), worker.affinity()), (5, 0, 0));
        worker.set_user_context(6);
        worker.set_priority(-3);
        worker.set_affinity(3);
        assert_eq!((worker.user_context(), worker.priority(), worker.affinity()), (6, -3, 3));
        worker.set_affinity(0);
        Rounds::run(&list);
        assert_eq!(worker.user_context(), 6, "also after its end");
    });
}

#[test]
fn dequeue_takes_everything_once_oldest_first() {
    alone(|| {
        let list = CompletionList::new().unwrap();
        let workers: Vec<_> = (0..5).map(|_| WorkerContext::spawn(&list, || {}).unwrap()).collect();
        let taken: Vec<_> = list.dequeue(Some(Duration::ZERO)).unwrap().collect();
        assert_eq!(taken, workers);
        assert!(list.is_empty());
        assert_eq!(list.dequeue(Some(Duration::ZERO)).unwrap_err(), TimedOut);
        let mut rounds = Rounds::new(&list);
        rounds.ready.extend(taken);
        windows::enter_scheduling_mode(|scheduler, reason| rounds.next(scheduler, reason)).unwrap();
        assert_eq!(list.members(), 0);
    });
}

#[test]
fn what_is_not_taken_out_of_a_dequeued_chain_is_queued_again() {
    alone(|| {
        let list = CompletionList::new().unwrap();
        for _ in 0..3 {
            WorkerContext::spawn(&list, || {}).unwrap();
        }
        let first = list.dequeue(None).unwrap().next().unwrap();
        let rest: Vec<_> = list.poll().collect();
        assert_eq!(rest.len(), 2);
        let mut rounds = Rounds::new(&list);
        rounds.ready.push_back(first);
        rounds.ready.extend(rest);
        windows::enter_scheduling_mode(|scheduler, reason| rounds.next(scheduler, reason)).unwrap();
        assert_eq!(list.members(), 0);
    });
}

#[test]
fn dequeue_waits_as_long_as_its_timeout() {
    alone(|| {
        let list = CompletionList::new().unwrap();
        let began = Instant::now();
        assert_eq!(list.dequeue(Some(Duration::from_millis(50))).unwrap_err(), TimedOut);
        assert!(began.elapsed() >= Duration::from_millis(50));
        let later = list.clone();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            WorkerContext::spawn(&later, || {}).unwrap();
        });
        let taken: Vec<_> = list.dequeue(None).unwrap().collect();
        assert_eq!(taken.len(), 1);
        thread.join().unwrap();
        let mut rounds = Rounds::new(&list);
        rounds.ready.extend(taken);
        windows::enter_scheduling_mode(|scheduler, reason| rounds.next(scheduler, reason)).unwrap();
    });
}

#[test]
fn the_event_is_signalled_when_the_list_stops_being_empty_and_may_be_stale_w9() {
    alone(|| {
        let list = CompletionList::new().unwrap();
        let readable = || {
            use rustix::event::{PollFd, PollFlags, Timespec, poll};
            let event = list.event();
            let mut fds = [PollFd::from_borrowed_fd(event.as_fd(), PollFlags::IN)];
            poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
        };
        assert!(!readable() && !list.event().reset());
        WorkerContext::spawn(&list, || {}).unwrap();
        assert!(readable(), "a new worker made it signalled");
        let taken: Vec<_> = list.poll().collect();
        assert!(readable(), "taking without waiting leaves a stale signal");
        assert!(list.event().wait(Some(Duration::ZERO)));
        assert!(!readable(), "waiting resets it");
        assert!(!list.event().wait(Some(Duration::from_millis(5))));
        let mut rounds = Rounds::new(&list);
        rounds.ready.extend(taken);
        windows::enter_scheduling_mode(|scheduler, reason| rounds.next(scheduler, reason)).unwrap();
    });
}

#[test]
fn termination_is_a_blocked_call_and_an_item_on_the_list_w6() {
    alone(|| {
        let list = CompletionList::new().unwrap();
        let worker = WorkerContext::spawn(&list, || {}).unwrap();
        let mut ready: Vec<_> = list.poll().collect();
        let mut calls = Vec::new();
        windows::enter_scheduling_mode(|scheduler, reason| match reason {
            Reason::Startup => {
                SchedulerAction::Execute(scheduler.claim(&ready.pop().unwrap()).unwrap())
            }
            reason => {
                calls.push(format!("{reason:?}"));
                assert!(worker.is_terminated());
                let queued: Vec<_> = list.poll().collect();
                assert_eq!(queued, std::slice::from_ref(&worker));
                assert_eq!(list.members(), 0);
                SchedulerAction::Leave
            }
        })
        .unwrap();
        assert_eq!(calls, ["Blocked { syscall: true }"]);
    });
}

#[test]
fn a_panic_in_a_worker_ends_that_worker_alone() {
    alone(|| {
        let list = CompletionList::new().unwrap();
        let worker = WorkerContext::spawn(&list, || panic!("expected by the test")).unwrap();
        let other = WorkerContext::spawn(&list, || {}).unwrap();
        Rounds::run(&list);
        assert!(worker.is_terminated() && other.is_terminated());
    });
}

#[test]
fn thread_locals_and_their_destructors_are_the_workers_own() {
    struct Last(Arc<AtomicU32>);
    impl Drop for Last {
        fn drop(&mut self) {
            // The thread is still in scheduling mode, so the worker may even yield in a destructor.
            windows::thread_yield(99).unwrap();
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    thread_local! {
        static MINE: std::cell::RefCell<Option<Last>> = const { std::cell::RefCell::new(None) };
    }
    alone(|| {
        let list = CompletionList::new().unwrap();
        let dropped = Arc::new(AtomicU32::new(0));
        for _ in 0..4 {
            let dropped = dropped.clone();
            let work = move || {
                MINE.with_borrow_mut(|mine| assert!(mine.replace(Last(dropped)).is_none()));
                windows::thread_yield(1).unwrap();
                MINE.with_borrow(|mine| assert!(mine.is_some()));
            };
            WorkerContext::spawn(&list, work).unwrap();
        }
        let heard = Rounds::run(&list);
        assert_eq!(dropped.load(Ordering::SeqCst), 4);
        assert_eq!(heard.iter().filter(|h| matches!(h, Heard::Yield(_, 99))).count(), 4);
    });
}

/// Returns the number of threads that the running test and its workers have begun. These have the
/// name of the calling thread. The test runner may begin the thread of another test at any time.
pub fn threads_of_the_test() -> usize {
    let name = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let own = name("/proc/thread-self/comm");
    let all = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    all.filter(|thread| name(&format!("{}/comm", thread.path().display())) == own).count()
}

#[test]
fn ten_thousand_workers_a_thousand_at_a_time_leave_nothing_behind() {
    alone(|| {
        let files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        // A first run creates what is kept for the process: the watchdog thread and the pool of
        // watch records.
        let list = CompletionList::new().unwrap();
        WorkerContext::spawn(&list, || {}).unwrap();
        Rounds::run(&list);
        let before = (threads_of_the_test(), files());
        for _ in 0..10 {
            for _ in 0..1000 {
                WorkerContext::builder()
                    .stack_size(64 << 10)
                    .spawn(&list, || windows::thread_yield(0).unwrap())
                    .unwrap();
            }
            Rounds::run(&list);
            assert_eq!(list.members(), 0);
        }
        eventually("all threads and descriptors are gone", || {
            threads_of_the_test() <= before.0 && files() <= before.1
        });
    });
}
