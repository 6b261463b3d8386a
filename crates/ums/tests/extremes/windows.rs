//! The Windows layer: times of its lists, stacks, and the numbers that a worker carries for the
//! application.

use std::collections::VecDeque;
use std::sync::OnceLock;
use std::time::Duration;

use ums::windows::{
    CompletionList, Reason, SchedulerAction, ThreadKind, WorkerContext, enter_scheduling_mode,
    thread_kind, thread_yield,
};

use super::Entry;
use super::On::Thread;
use super::tries::{called, came, spans, woken};

pub const TABLE: &[Entry] = &[
    ("CompletionList::dequeue", Thread, |_| {
        listed(|list, t| came(list.dequeue(Some(t)).map(drop)));
    }),
    ("ListEvent::wait", Thread, |_| {
        listed(|list, t| {
            // The event may be signalled although the list is empty.
            list.event().reset();
            list.event().wait(Some(t))
        });
    }),
    ("WorkerBuilder::stack_size", Thread, |_| {
        let list = CompletionList::new().unwrap();
        for own in [false, ums::probe::own_contexts_are_refused().is_none()] {
            let builder = || WorkerContext::builder().own_context(own);
            for bytes in [0, 1, 1 << 20] {
                called();
                builder().stack_size(bytes).spawn(&list, || ()).unwrap();
            }
            for bytes in [1 << 60, isize::MAX as usize, usize::MAX - 1, usize::MAX] {
                called();
                let error = builder().stack_size(bytes).spawn(&list, || ());
                assert!(error.is_err(), "{bytes} bytes, own context: {own}");
            }
        }
        assert_eq!(run_all(list), []);
    }),
    ("WorkerBuilder::user_context", Thread, |_| {
        with_worker(|_, _| ());
        for value in [0, 1, usize::MAX] {
            called();
            let list = CompletionList::new().unwrap();
            let builder = WorkerContext::builder().own_context(false).user_context(value);
            assert_eq!(builder.spawn(&list, || ()).unwrap().user_context(), value);
            run_all(list);
        }
    }),
    ("WorkerContext::set_user_context", Thread, |_| {
        with_worker(|worker, value| {
            worker.set_user_context(value as usize);
            assert_eq!(worker.user_context(), value as usize);
        });
    }),
    ("WorkerContext::set_priority", Thread, |_| {
        with_worker(|worker, _| {
            for priority in [0, -1, i32::MIN, i32::MAX] {
                called();
                worker.set_priority(priority);
                assert_eq!(worker.priority(), priority);
            }
        });
    }),
    ("WorkerContext::set_affinity", Thread, |_| {
        with_worker(|worker, cpus| {
            worker.set_affinity(cpus);
            assert_eq!(worker.affinity(), cpus);
            worker.set_affinity(0);
        });
    }),
    ("windows::thread_yield", Thread, |_| {
        assert!(thread_yield(usize::MAX).is_err(), "this is no worker");
        let list = CompletionList::new().unwrap();
        let yields = || {
            for param in [0, 1, usize::MAX] {
                called();
                thread_yield(param).unwrap();
            }
        };
        WorkerContext::builder().own_context(false).spawn(&list, yields).unwrap();
        assert_eq!(run_all(list), [0, 1, usize::MAX]);
    }),
    ("windows::thread_kind", Thread, |_| {
        for number in [0, i32::MAX as u32, u32::MAX] {
            called();
            assert_eq!(thread_kind(number), ThreadKind::Plain);
        }
    }),
];

/// Tries a wait for a worker to appear on a list.
fn listed(wait: impl Fn(&CompletionList, Duration) -> bool) {
    let make = || Listed { list: CompletionList::new().unwrap(), worker: OnceLock::new() };
    let wake = |listed: &Listed| {
        let spawn = || {
            let builder = WorkerContext::builder().own_context(false);
            builder.spawn(&listed.list, || ()).unwrap()
        };
        listed.worker.get_or_init(spawn);
    };
    woken(spans(), make, |listed, t| wait(&listed.list, t), wake);
}

/// A list, and the worker on it, which is run to its end when this is dropped.
struct Listed {
    list: CompletionList,
    worker: OnceLock<WorkerContext>,
}

impl Drop for Listed {
    fn drop(&mut self) {
        run_all(self.list.clone());
    }
}

/// Calls the function with a worker and each extreme of a number.
fn with_worker(set: fn(&WorkerContext, u64)) {
    let list = CompletionList::new().unwrap();
    let worker = WorkerContext::builder().own_context(false).spawn(&list, || ()).unwrap();
    for value in [0, 1, u64::MAX] {
        called();
        set(&worker, value);
    }
    run_all(list);
}

/// Runs all workers of a list to their end. Returns what they passed when they yielded.
fn run_all(list: CompletionList) -> Vec<usize> {
    let scheduler = move || {
        let (mut ready, mut params) = (VecDeque::new(), Vec::new());
        enter_scheduling_mode(|scheduler, reason| {
            if let Reason::Yield { worker, param } = reason {
                params.push(param);
                ready.push_back(worker);
            }
            loop {
                ready.extend(list.poll().filter(|worker| !worker.is_terminated()));
                while let Some(worker) = ready.pop_front() {
                    if let Ok(claim) = scheduler.claim(&worker) {
                        return SchedulerAction::Execute(claim);
                    }
                }
                if list.members() == 0 {
                    return SchedulerAction::Leave;
                }
                list.event().wait(Some(Duration::from_millis(10)));
            }
        })
        .unwrap();
        params
    };
    std::thread::spawn(scheduler).join().unwrap()
}
