//! A priority scheduler: of the ready workers, the one with the highest priority runs.
//!
//! The worker with high priority waits for its pipe; each time the pipe is written to, it runs
//! next, before the workers that only compute. `cargo run --example windows_priority`

use std::collections::BinaryHeap;
use std::io::{Read, Write};
use std::time::Duration;

use ums::windows::{self, CompletionList, Reason, SchedulerAction, WorkerContext};

/// A ready worker, ordered by its priority alone.
struct Ready(WorkerContext);

impl PartialEq for Ready {
    fn eq(&self, other: &Ready) -> bool {
        self.0.priority() == other.0.priority()
    }
}

impl Eq for Ready {}

impl PartialOrd for Ready {
    fn partial_cmp(&self, other: &Ready) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ready {
    fn cmp(&self, other: &Ready) -> std::cmp::Ordering {
        self.0.priority().cmp(&other.0.priority())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let list = CompletionList::new()?;
    let (mut reader, mut writer) = std::io::pipe()?;
    let important = WorkerContext::spawn(&list, move || {
        let mut byte = [0];
        while let Ok(1) = reader.read(&mut byte) {
            println!("important: got {}", byte[0]);
        }
    })?;
    important.set_priority(10);
    for name in ["north", "south"] {
        WorkerContext::spawn(&list, move || {
            for part in 0..40_u64 {
                let sum: u64 = (0..200_000).map(|n| n ^ part).sum();
                assert!(sum > 0, "{name} computes");
                windows::thread_yield(0).expect("a worker");
            }
        })?;
    }
    std::thread::spawn(move || {
        for n in 0..3 {
            std::thread::sleep(Duration::from_millis(2));
            let _ = writer.write_all(&[n]);
        }
    });

    let mut ready = BinaryHeap::new();
    windows::enter_scheduling_mode(|scheduler, reason| {
        if let Reason::Yield { worker, .. } = reason {
            ready.push(Ready(worker));
        }
        loop {
            ready.extend(list.poll().map(Ready));
            while let Some(Ready(worker)) = ready.pop() {
                if let Ok(claim) = scheduler.claim(&worker) {
                    return SchedulerAction::Execute(claim);
                }
            }
            if list.members() == 0 {
                return SchedulerAction::Leave;
            }
            list.event().wait(None);
        }
    })?;
    Ok(())
}
