//! A worker that blocks in `read` on a pipe, beside one that computes, on one processor.
//!
//! `cargo run --example windows_pipe`

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ums::windows::{self, CompletionList, Reason, SchedulerAction, WorkerContext};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let list = CompletionList::new()?;
    let (mut reader, mut writer) = std::io::pipe()?;
    let (computed, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));

    let (count, end) = (computed.clone(), done.clone());
    WorkerContext::spawn(&list, move || {
        let mut byte = [0];
        let read = reader.read(&mut byte);
        println!("read gave {read:?}; the other has computed meanwhile: {}", {
            count.load(Ordering::Relaxed) > 0
        });
        end.store(true, Ordering::Relaxed);
    })?;
    let count = computed.clone();
    WorkerContext::spawn(&list, move || {
        while !done.load(Ordering::Relaxed) {
            count.fetch_add(1, Ordering::Relaxed);
            if count.load(Ordering::Relaxed).is_multiple_of(1000) {
                windows::thread_yield(0).expect("a worker");
            }
        }
    })?;
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(10));
        let _ = writer.write_all(b"x");
    });

    let mut blocked = 0;
    let mut ready = std::collections::VecDeque::new();
    windows::enter_scheduling_mode(|scheduler, reason| {
        match reason {
            Reason::Blocked { .. } => blocked += 1,
            Reason::Yield { worker, .. } => ready.push_back(worker),
            _ => {}
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
    println!("the scheduler was called {blocked} times because its worker had blocked or ended");
    Ok(())
}
