//! One scheduler for each processor, all with the same completion list: any free scheduler runs a
//! ready worker.
//!
//! `cargo run --example windows_many_schedulers`

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ums::windows::{self, CompletionList, EnterError, Reason, SchedulerAction, WorkerContext};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let list = CompletionList::new()?;
    let sum = Arc::new(AtomicU64::new(0));
    for n in 1..=100 {
        let sum = sum.clone();
        WorkerContext::spawn(&list, move || {
            std::thread::sleep(Duration::from_micros(100));
            sum.fetch_add(n, Ordering::Relaxed);
        })?;
    }
    let processors = std::thread::available_parallelism()?.get();
    let schedulers: Vec<_> = (0..processors)
        .map(|_| {
            let list = list.clone();
            std::thread::spawn(move || schedule(&list))
        })
        .collect();
    for (n, scheduler) in schedulers.into_iter().enumerate() {
        let executed = scheduler.join().expect("no panic")?;
        println!("scheduler {n} executed {executed} times");
    }
    println!("sum {}", sum.load(Ordering::Relaxed));
    Ok(())
}

fn schedule(list: &CompletionList) -> Result<u64, EnterError> {
    let mut ready = VecDeque::new();
    let mut executed = 0;
    windows::enter_scheduling_mode(|scheduler, reason| {
        if let Reason::Yield { worker, .. } = reason {
            ready.push_back(worker);
        }
        loop {
            if ready.is_empty() {
                // Takes one worker. The others go back to the list, for the other schedulers.
                ready.extend(list.poll().next());
            }
            if let Some(worker) = ready.pop_front() {
                if let Ok(claim) = scheduler.claim(&worker) {
                    executed += 1;
                    return SchedulerAction::Execute(claim);
                }
            } else if list.members() == 0 {
                return SchedulerAction::Leave;
            } else {
                // Another scheduler may take the worker that caused this wake-up, so the wait has a
                // timeout.
                list.event().wait(Some(Duration::from_millis(1)));
            }
        }
    })?;
    Ok(executed)
}
