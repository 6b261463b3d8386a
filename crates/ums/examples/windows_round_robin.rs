//! A round-robin scheduler written by the program: three workers that compute, sleep and yield.
//!
//! `cargo run --example windows_round_robin`

use std::collections::VecDeque;
use std::time::Duration;

use ums::windows::{self, CompletionList, Reason, SchedulerAction, WorkerContext};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let list = CompletionList::new()?;
    for name in ["anna", "boris", "clara"] {
        WorkerContext::spawn(&list, move || {
            for round in 1..=3 {
                println!("{name}: round {round}");
                if round == 2 {
                    // Blocks in the kernel; the other workers continue.
                    std::thread::sleep(Duration::from_millis(2));
                }
                windows::thread_yield(round).expect("a worker");
            }
        })?;
    }
    let mut ready = VecDeque::new();
    windows::enter_scheduling_mode(|scheduler, reason| {
        if let Reason::Yield { worker, .. } = reason {
            ready.push_back(worker);
        }
        loop {
            ready.extend(list.poll());
            while let Some(worker) = ready.pop_front() {
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
