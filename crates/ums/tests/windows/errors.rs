//! Misuse of `ums::windows`: each case returns its documented error.
//!
//! Unsafe because it tests the interface for C. Named invariants. **Contract**: contexts and lists
//! are created and deleted in the same test. **No Drops**: an entry point owns nothing when it
//! executes a worker.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use ums::windows::{
    self, CompletionList, EnterError, ExecuteError, NotAWorker, Reason, SchedulerAction,
    WorkerContext, raw,
};

use crate::harness::{Rounds, alone, eventually};

#[test]
fn a_yield_on_a_plain_or_scheduler_thread_is_refused() {
    alone(|| {
        assert_eq!(windows::thread_yield(1), Err(NotAWorker));
        windows::enter_scheduling_mode(|_, _| {
            assert_eq!(windows::thread_yield(1), Err(NotAWorker));
            SchedulerAction::Leave
        })
        .unwrap();
    });
}

#[test]
fn entering_twice_or_as_a_worker_is_refused() {
    alone(|| {
        windows::enter_scheduling_mode(|_, _| {
            let again = windows::enter_scheduling_mode(|_, _| SchedulerAction::Leave);
            assert!(matches!(again, Err(EnterError::AlreadyUms)));
            SchedulerAction::Leave
        })
        .unwrap();
        let list = CompletionList::new().unwrap();
        let refused = Arc::new(AtomicBool::new(false));
        let mine = refused.clone();
        let work = move || {
            let entered = windows::enter_scheduling_mode(|_, _| SchedulerAction::Leave);
            mine.store(matches!(entered, Err(EnterError::AlreadyUms)), Ordering::SeqCst);
        };
        WorkerContext::spawn(&list, work).unwrap();
        Rounds::run(&list);
        assert!(refused.load(Ordering::SeqCst));
    });
}

#[test]
fn a_terminated_worker_cannot_be_executed() {
    alone(|| {
        let list = CompletionList::new().unwrap();
        let worker = WorkerContext::spawn(&list, || {}).unwrap();
        Rounds::run(&list);
        windows::enter_scheduling_mode(|scheduler, _| {
            assert_eq!(scheduler.claim(&worker).unwrap_err(), ExecuteError::Terminated);
            SchedulerAction::Leave
        })
        .unwrap();
    });
}

#[test]
fn a_worker_on_the_list_is_locked_until_it_was_taken_out_w_drain() {
    alone(|| {
        let list = CompletionList::new().unwrap();
        let worker = WorkerContext::spawn(&list, || {}).unwrap();
        let mut rounds = Rounds::new(&list);
        windows::enter_scheduling_mode(|scheduler, reason| {
            if matches!(reason, Reason::Startup) {
                assert_eq!(scheduler.claim(&worker).unwrap_err(), ExecuteError::Locked);
            }
            rounds.next(scheduler, reason)
        })
        .unwrap();
    });
}

#[test]
fn a_worker_that_another_scheduler_runs_cannot_be_executed() {
    alone(|| {
        let list = CompletionList::new().unwrap();
        let [begun, stop] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let mine = [begun.clone(), stop.clone()];
        let work = move || {
            mine[0].store(true, Ordering::SeqCst);
            while !mine[1].load(Ordering::SeqCst) {
                std::hint::spin_loop();
            }
        };
        let worker = WorkerContext::spawn(&list, work).unwrap();
        let theirs = list.clone();
        let other = std::thread::spawn(move || drop(Rounds::run(&theirs)));
        let mut seen = None;
        windows::enter_scheduling_mode(|scheduler, _| {
            // A claim before that would be in the way of the other scheduler.
            eventually("the other scheduler runs it", || begun.load(Ordering::SeqCst));
            seen = scheduler.claim(&worker).err();
            SchedulerAction::Leave
        })
        .unwrap();
        stop.store(true, Ordering::SeqCst);
        other.join().unwrap();
        assert_eq!(seen, Some(ExecuteError::Running));
    });
}

#[test]
fn a_locked_context_says_try_again() {
    alone(|| {
        let list = CompletionList::new().unwrap();
        let worker = WorkerContext::spawn(&list, || {}).unwrap();
        let mut lock = Some(worker.lock());
        let mut rounds = Rounds::new(&list);
        let mut tries = 0;
        windows::enter_scheduling_mode(|scheduler, reason| {
            rounds.note(reason);
            while lock.is_some() {
                assert_eq!(scheduler.claim(&worker).unwrap_err(), ExecuteError::Locked);
                tries += 1;
                if tries == 3 {
                    lock = None;
                }
            }
            rounds.choose(scheduler)
        })
        .unwrap();
        assert!(worker.is_terminated());
    });
}

#[test]
fn a_suspended_worker_that_was_ready_never_returns_to_the_list_by_itself_w5() {
    alone(|| {
        let list = CompletionList::new().unwrap();
        let worker = WorkerContext::spawn(&list, || {}).unwrap();
        assert_eq!((worker.suspend(), worker.suspend()), (0, 1));
        let mut rounds = Rounds::new(&list);
        windows::enter_scheduling_mode(|scheduler, reason| {
            if matches!(reason, Reason::Startup) {
                let taken = list.dequeue(None).unwrap().next().unwrap();
                assert_eq!(scheduler.claim(&taken).unwrap_err(), ExecuteError::Suspended);
                assert!(taken.is_suspended());
                assert_eq!(worker.resume(), 2);
                assert_eq!(scheduler.claim(&taken).unwrap_err(), ExecuteError::Suspended);
                assert_eq!(worker.resume(), 1);
                assert_eq!(worker.resume(), 0, "resuming once too often does nothing");
                assert!(!taken.is_suspended());
                assert!(list.dequeue(Some(Duration::from_millis(20))).is_err(), "not on the list");
                rounds.ready.push_back(taken);
            }
            rounds.next(scheduler, reason)
        })
        .unwrap();
        assert!(worker.is_terminated());
    });
}

#[test]
fn a_running_worker_that_is_suspended_stops_and_appears_on_the_list_when_resumed() {
    alone(|| {
        let list = CompletionList::new().unwrap();
        let (beats, stop) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        let (mine, end) = (beats.clone(), stop.clone());
        let worker = WorkerContext::spawn(&list, move || {
            while !end.load(Ordering::SeqCst) {
                mine.fetch_add(1, Ordering::SeqCst);
            }
        })
        .unwrap();
        let (other, heart, last) = (worker.clone(), beats.clone(), stop.clone());
        let suspender = std::thread::spawn(move || {
            eventually("it runs", || heart.load(Ordering::SeqCst) > 0);
            assert_eq!(other.suspend(), 0);
            let now = || heart.load(Ordering::SeqCst);
            eventually("it has stopped", || {
                let before = now();
                std::thread::sleep(Duration::from_millis(20));
                before == now()
            });
            last.store(true, Ordering::SeqCst);
            let stopped = now();
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(now(), stopped);
            assert_eq!(other.resume(), 1);
        });
        let mut rounds = Rounds::new(&list);
        let mut seen = Vec::new();
        windows::enter_scheduling_mode(|scheduler, reason| {
            if matches!(reason, Reason::Blocked { .. }) && worker.is_suspended() {
                seen.push(scheduler.claim(&worker).unwrap_err());
            }
            rounds.next(scheduler, reason)
        })
        .unwrap();
        suspender.join().unwrap();
        assert_eq!(seen, [ExecuteError::Suspended]);
        assert!(worker.is_terminated());
    });
}

#[test]
fn a_worker_does_not_run_on_processors_outside_its_affinity() {
    alone(|| {
        let list = CompletionList::new().unwrap();
        let worker = WorkerContext::spawn(&list, || {}).unwrap();
        let mut rounds = Rounds::new(&list);
        windows::enter_scheduling_mode(|scheduler, reason| {
            rounds.note(reason);
            if !worker.is_terminated() && scheduler.cpu() < 64 {
                worker.set_affinity(!(1 << scheduler.cpu()));
                assert_eq!(scheduler.claim(&worker).unwrap_err(), ExecuteError::Affinity);
                worker.set_affinity(1 << scheduler.cpu());
            }
            rounds.choose(scheduler)
        })
        .unwrap();
    });
}

#[test]
fn next_of_an_item_unlinks_it_so_asking_twice_gives_nothing() {
    alone(|| {
        let list = raw::list_new().unwrap();
        let contexts: Vec<_> = (0..3).map(|_| raw::context_new()).collect();
        extern "C-unwind" fn nothing(arg: *mut std::ffi::c_void) -> *mut std::ffi::c_void {
            arg
        }
        // SAFETY: Contract: the context is created here, and deleted at the end.
        unsafe {
            for &context in &contexts {
                raw::context_start(context, list, 64 << 10, nothing, std::ptr::null_mut()).unwrap();
                assert_eq!(raw::context_delete(context), Err(raw::Alive));
                let again =
                    raw::context_start(context, list, 64 << 10, nothing, std::ptr::null_mut());
                assert_eq!(again.unwrap_err().kind(), std::io::ErrorKind::AlreadyExists);
            }
            let first = raw::list_dequeue(list, Some(0));
            assert_eq!(first, contexts[0]);
            assert_eq!(raw::next_item(first), contexts[1]);
            assert!(raw::next_item(first).is_null());
            assert_eq!(raw::next_item(contexts[1]), contexts[2]);
            assert!(raw::next_item(contexts[2]).is_null());
            assert!(raw::list_dequeue(list, Some(5)).is_null());
            run_all(&contexts, list);
            for context in contexts {
                assert_eq!(raw::context_delete(context), Ok(()));
            }
            assert_eq!(raw::list_members(list), 0);
            raw::list_delete(list);
        }
    });
}

thread_local! {
    static LEFT: RefCell<Vec<*const raw::Context>> = const { RefCell::new(Vec::new()) };
}

/// An entry point as C would write it: executing does not return.
extern "C-unwind" fn run_left(_: u32, _: usize, _: *mut std::ffi::c_void) {
    let Some(next) = LEFT.with_borrow_mut(Vec::pop) else { return };
    // SAFETY: No Drops: this frame has only a raw pointer.
    let error = unsafe { raw::execute(next) };
    panic!("executing failed: {error}");
}

fn run_all(contexts: &[*const raw::Context], list: *const raw::ContextList) {
    LEFT.set(contexts.to_vec());
    // SAFETY: Contract: the entry point uses no parameter, so null is valid.
    unsafe { raw::enter(run_left, std::ptr::null_mut()) }.unwrap();
    // SAFETY: Contract: the list is the caller's, and the contexts are those of its chain.
    unsafe {
        let mut item = raw::list_dequeue(list, Some(1000));
        assert!(!item.is_null(), "their ends are queued");
        while !item.is_null() {
            item = raw::next_item(item);
        }
    }
}

#[test]
fn executing_without_a_scheduler_or_a_worker_fails() {
    alone(|| {
        extern "C-unwind" fn misuse(_: u32, _: usize, _: *mut std::ffi::c_void) {
            let context = raw::context_new();
            // SAFETY: Contract: null, the worker's own context, and a context without a thread.
            unsafe {
                assert_eq!(raw::execute(std::ptr::null()), ExecuteError::NotAWorker);
                assert_eq!(raw::execute(raw::current()), ExecuteError::NotAWorker);
                assert_eq!(raw::execute(context), ExecuteError::NotAWorker);
                assert_eq!(raw::context_delete(context), Ok(()));
            }
        }
        assert!(raw::current().is_null());
        // SAFETY: Contract: null is allowed.
        unsafe {
            assert_eq!(raw::execute(std::ptr::null()), ExecuteError::NotAScheduler);
            raw::enter(misuse, std::ptr::null_mut()).unwrap();
        }
    });
}

#[test]
fn a_context_that_is_deleted_while_it_is_on_the_list_does_not_appear_there() {
    alone(|| {
        extern "C-unwind" fn nothing(arg: *mut std::ffi::c_void) -> *mut std::ffi::c_void {
            arg
        }
        let list = raw::list_new().unwrap();
        let contexts = [raw::context_new(), raw::context_new()];
        // SAFETY: Contract: created above, and deleted below.
        unsafe {
            for context in contexts {
                raw::context_start(context, list, 64 << 10, nothing, std::ptr::null_mut()).unwrap();
            }
            let first = raw::list_dequeue(list, Some(0));
            assert_eq!(raw::next_item(first), contexts[1]);
            LEFT.set(contexts.to_vec());
            raw::enter(run_left, std::ptr::null_mut()).unwrap();
            // Both have ended and are queued. `run_left` takes contexts from the end, so the one in
            // the first place ran last.
            assert_eq!(raw::context_delete(contexts[0]), Ok(()));
            let item = raw::list_dequeue(list, Some(0));
            assert_eq!(item, contexts[1]);
            assert!(raw::next_item(item).is_null());
            assert_eq!(raw::context_delete(contexts[1]), Ok(()));
            assert_eq!(raw::list_members(list), 0);
            raw::list_delete(list);
        }
    });
}

#[test]
fn a_list_whose_handles_are_gone_lives_until_its_last_member_has_ended() {
    alone(|| {
        let mut list = Some(CompletionList::new().unwrap());
        let ran = Arc::new(AtomicBool::new(false));
        let mine = ran.clone();
        let work = move || mine.store(true, Ordering::SeqCst);
        let worker = WorkerContext::spawn(list.as_ref().unwrap(), work).unwrap();
        windows::enter_scheduling_mode(|scheduler, reason| {
            let Some(last) = list.take() else {
                assert!(matches!(reason, Reason::Blocked { .. }), "its end comes like a block");
                return SchedulerAction::Leave;
            };
            let first = last.poll().next().unwrap();
            drop(last);
            SchedulerAction::Execute(scheduler.claim(&first).unwrap())
        })
        .unwrap();
        assert!(ran.load(Ordering::SeqCst) && worker.is_terminated());
    });
}
