//! A simple scheduler for tests, and a watchdog for tests that hang.
//!
//! [`Rounds`] is a scheduler that runs the ready workers, first in, first out, until every worker
//! of its list has ended. It records the reasons with which its entry point was called.

use std::collections::VecDeque;
use std::sync::MutexGuard;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use ums::lock::Lock;
use ums::windows::{
    self, Claim, CompletionList, ExecuteError, Reason, SchedulerAction, SchedulerThread,
    WorkerContext,
};

/// How long one test may take before it counts as hung.
const HUNG: Duration = Duration::from_secs(240);

/// Runs the body on a thread of its own, one test at a time. Fails if the body hangs.
pub fn alone<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
    static TURN: Lock<()> = Lock::new(());
    let _turn: MutexGuard<'_, ()> = TURN.lock();
    windows::raw::own_contexts_by_default(
        crate::OWN && ums::probe::own_contexts_are_refused().is_none(),
    );
    let (tell, told) = channel();
    let thread = std::thread::spawn(move || {
        let _ = tell.send(body());
    });
    match told.recv_timeout(HUNG) {
        Ok(value) => {
            thread.join().unwrap();
            value
        }
        Err(RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => unreachable!("it sends before it ends"),
        },
        Err(RecvTimeoutError::Timeout) => {
            eprintln!("a test of the Windows layer hangs");
            std::process::abort();
        }
    }
}

/// A call of a scheduler's entry point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    Startup,
    /// The worker that had been executed; whether it blocked in a system call; whether it had ended
    /// by then.
    Blocked(WorkerContext, bool, bool),
    Yield(WorkerContext, usize),
}

/// A scheduler that runs its workers first in, first out, until no worker is left.
pub struct Rounds<'a> {
    pub list: &'a CompletionList,
    pub ready: VecDeque<WorkerContext>,
    pub heard: Vec<Heard>,
    executed: Option<WorkerContext>,
}

impl<'a> Rounds<'a> {
    pub fn new(list: &'a CompletionList) -> Rounds<'a> {
        Rounds { list, ready: VecDeque::new(), heard: Vec::new(), executed: None }
    }

    /// Runs all workers of the list to their end on the calling thread. Returns the recorded calls.
    pub fn run(list: &'a CompletionList) -> Vec<Heard> {
        let mut rounds = Rounds::new(list);
        windows::enter_scheduling_mode(|scheduler, reason| rounds.next(scheduler, reason)).unwrap();
        rounds.heard
    }

    /// Records the call, and takes the ready workers from the list.
    pub fn note(&mut self, reason: Reason) {
        self.heard.push(match reason {
            Reason::Startup => Heard::Startup,
            Reason::Blocked { syscall } => {
                let worker = self.executed.clone().expect("a worker was executed");
                let ended = worker.is_terminated();
                Heard::Blocked(worker, syscall, ended)
            }
            Reason::Yield { worker, param } => {
                assert_eq!(
                    self.executed.as_ref(),
                    Some(&worker),
                    "the worker that yields was executed"
                );
                self.ready.push_back(worker.clone());
                Heard::Yield(worker, param)
            }
            other => panic!("unknown reason {other:?}"),
        });
        self.take();
    }

    pub fn take(&mut self) {
        self.ready.extend(self.list.poll().filter(|worker| !worker.is_terminated()));
    }

    /// The whole entry point: records the call, and chooses the next worker.
    pub fn next(&mut self, scheduler: &SchedulerThread, reason: Reason) -> SchedulerAction {
        self.note(reason);
        self.choose(scheduler)
    }

    /// Executes a worker that this scheduler has claimed.
    pub fn execute(&mut self, claim: Claim) -> SchedulerAction {
        self.executed = Some(claim.worker().clone());
        SchedulerAction::Execute(claim)
    }

    /// Executes the first ready worker. Waits if none is ready, and leaves when no worker is left.
    pub fn choose(&mut self, scheduler: &SchedulerThread) -> SchedulerAction {
        loop {
            while let Some(worker) = self.ready.pop_front() {
                match scheduler.claim(&worker) {
                    Ok(claim) => return self.execute(claim),
                    Err(ExecuteError::Terminated) => {}
                    Err(ExecuteError::Locked) => self.ready.push_back(worker),
                    Err(error) => panic!("{worker:?}: {error}"),
                }
            }
            if self.list.members() == 0 {
                return SchedulerAction::Leave;
            }
            self.list.event().wait(Some(Duration::from_millis(100)));
            self.take();
        }
    }
}

/// Waits until a condition becomes true; fails if that takes too long.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let began = std::time::Instant::now();
    while !condition() {
        assert!(began.elapsed() < Duration::from_secs(60), "it never happened that {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
