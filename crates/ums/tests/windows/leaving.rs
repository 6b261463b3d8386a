//! The ways to leave scheduling mode, and what happens to the workers then.
//!
//! Unsafe only because of `fork`. Named invariant **Signal**: the child calls only functions that
//! are allowed after a fork.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ums::windows::{self, CompletionList, Reason, SchedulerAction, WorkerContext};

use crate::harness::{Rounds, alone};

#[test]
fn the_entry_point_may_leave_at_its_first_call_and_the_thread_may_enter_again_w7() {
    alone(|| {
        for _ in 0..3 {
            let mut calls = 0;
            windows::enter_scheduling_mode(|_, reason| {
                assert!(matches!(reason, Reason::Startup));
                calls += 1;
                SchedulerAction::Leave
            })
            .unwrap();
            assert_eq!(calls, 1);
        }
    });
}

#[test]
fn a_worker_whose_scheduler_left_continues_under_another_w7() {
    alone(|| {
        let list = CompletionList::new().unwrap();
        let steps = Arc::new(AtomicU32::new(0));
        let mine = steps.clone();
        let worker = WorkerContext::spawn(&list, move || {
            for _ in 0..3 {
                mine.fetch_add(1, Ordering::SeqCst);
                windows::thread_yield(0).unwrap();
            }
        })
        .unwrap();
        let mut waiting = list.poll().next();
        // Each scheduler executes the worker once, and leaves when the worker yields.
        for step in 1..=3 {
            windows::enter_scheduling_mode(|scheduler, reason| match reason {
                Reason::Startup => {
                    SchedulerAction::Execute(scheduler.claim(&waiting.take().unwrap()).unwrap())
                }
                Reason::Yield { worker, .. } => {
                    waiting = Some(worker);
                    SchedulerAction::Leave
                }
                other => panic!("{other:?}"),
            })
            .unwrap();
            assert_eq!(steps.load(Ordering::SeqCst), step);
        }
        let mut rounds = Rounds::new(&list);
        rounds.ready.extend(waiting);
        windows::enter_scheduling_mode(|scheduler, reason| rounds.next(scheduler, reason)).unwrap();
        assert!(worker.is_terminated());
    });
}

#[test]
fn a_panic_of_the_entry_point_leaves_scheduling_mode_and_continues_in_the_caller() {
    alone(|| {
        let panicked = std::panic::catch_unwind(|| {
            windows::enter_scheduling_mode(|_, _| panic!("expected by the test"))
        });
        assert!(panicked.is_err());
        assert_eq!(windows::current(), None);
        windows::enter_scheduling_mode(|_, _| SchedulerAction::Leave).unwrap();
    });
}

#[test]
fn leaving_gives_the_thread_its_processors_back() {
    alone(|| {
        let allowed = || {
            let mask = rustix::thread::sched_getaffinity(None).unwrap();
            (0..64).filter(|&cpu| mask.is_set(cpu)).collect::<Vec<_>>()
        };
        let before = allowed();
        let mut during = Vec::new();
        windows::enter_scheduling_mode(|_, _| {
            during = allowed();
            SchedulerAction::Leave
        })
        .unwrap();
        assert_eq!(during.len(), 1);
        assert_eq!(allowed(), before);
    });
}

#[test]
fn the_child_of_a_fork_in_a_worker_is_an_ordinary_thread() {
    alone(|| {
        let list = CompletionList::new().unwrap();
        let status = Arc::new(AtomicU32::new(99));
        let mine = status.clone();
        WorkerContext::spawn(&list, move || {
            // SAFETY: Signal: the child reads a thread-local, waits, and exits.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let plain = windows::thread_yield(0).is_err() && windows::current().is_none();
                // The child may block, because it has no scheduler.
                std::thread::sleep(std::time::Duration::from_millis(1));
                // SAFETY: Signal.
                unsafe { libc::_exit(if plain { 0 } else { 1 }) };
            }
            let mut told = 0;
            // SAFETY: Signal: the process's own child, and a local.
            let waited = unsafe { libc::waitpid(child, &mut told, 0) };
            assert_eq!(waited, child);
            mine.store(told as u32, Ordering::SeqCst);
        })
        .unwrap();
        Rounds::run(&list);
        assert_eq!(status.load(Ordering::SeqCst), 0);
    });
}
