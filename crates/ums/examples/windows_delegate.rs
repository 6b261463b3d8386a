//! Delegation: an entry point hands work that may need a lock of a worker to another thread.
//!
//! The scheduler reports each yield. Printing takes the lock of standard output, and a blocked
//! worker may hold that lock. So the entry point does not print. It sends the text through a
//! channel, whose buffer was allocated before, to a plain thread that prints. At the end, workers,
//! scheduler and printer are shut down in this order.
//!
//! `cargo run --example windows_delegate`

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use ums::windows::{self, CompletionList, Reason, SchedulerAction, WorkerContext};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (tell, told) = mpsc::sync_channel::<(u32, usize)>(64);
    let printer = std::thread::spawn(move || {
        for (thread, count) in told {
            println!("thread {thread} yields for the {count}. time");
        }
    });

    let list = CompletionList::new()?;
    let stop = Arc::new(AtomicBool::new(false));
    for _ in 0..2 {
        let stop = stop.clone();
        WorkerContext::spawn(&list, move || {
            let mut count = 0;
            while !stop.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(5));
                count += 1;
                windows::thread_yield(count).expect("a worker");
            }
        })?;
    }

    let began = Instant::now();
    let mut ready = VecDeque::with_capacity(8);
    windows::enter_scheduling_mode(|scheduler, reason| {
        if let Reason::Yield { worker, param } = reason {
            // A full channel means that the printer is behind; losing a line is better than
            // waiting.
            let _ = tell.try_send((worker.thread_id(), param));
            ready.push_back(worker);
        }
        if began.elapsed() > Duration::from_millis(30) {
            stop.store(true, Ordering::Relaxed);
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
    drop(tell);
    printer.join().expect("no panic");
    Ok(())
}
