//! The looker: finds which functions a worker is in, whether the worker runs, waits or is
//! suspended.
//!
//! ```text
//!   a fiber that is suspended      its saved stack pointer is known, its stack is copied
//!   a thread, or the running fiber its thread is sampled by a signal
//! ```
//!
//! While the stack of a suspended fiber is copied, the fiber may be resumed or end, and its memory
//! may be unmapped. So the copy is made by a system call, which fails instead of faulting. The copy
//! is used only if, before and after it, the fiber was suspended at the same place and had been
//! switched to equally often (*Looked Twice*).

use std::sync::atomic::{Ordering, fence};

use super::unwind::Walker;
use crate::os::linux::own_memory::OwnMemory;
use crate::os::linux::sample::{self, Sample};
use crate::record::frame::Frame;
use crate::scheduler::lists::worker_list::State;
use crate::scheduler::{Scheduler, WorkerKind};
use crate::wait::Waiter;

/// How many times a worker is looked at, if its state changes during the look.
const LOOKS: usize = 3;

/// What is needed to look at stacks; it is read once and used for many looks.
pub(crate) struct Looker {
    walker: Walker,
    memory: Option<OwnMemory>,
}

/// Returns two numbers that change when the worker runs: its count of switches, and its state.
fn moment(waiter: &Waiter) -> (u64, u8) {
    fence(Ordering::Acquire);
    let view = &waiter.record.view;
    (view.switches.load(Ordering::Relaxed), view.state.load(Ordering::Relaxed))
}

impl Looker {
    pub(crate) fn new() -> Looker {
        Looker { walker: Walker::new(), memory: OwnMemory::open() }
    }

    /// Returns the functions that a worker of this scheduler is in, the innermost first. Returns an
    /// empty list if its thread did not answer the signal, or if the worker kept running during all
    /// looks.
    pub(crate) fn look(&mut self, s: &Scheduler, waiter: &'static Waiter) -> Vec<Frame> {
        let mut looks = 0;
        loop {
            let before = moment(waiter);
            let sample = self.suspended(waiter).or_else(|| awake(s, waiter));
            looks += 1;
            if looks < LOOKS && (sample.is_none() || moment(waiter) != before) {
                continue;
            }
            return sample.map(|sample| self.walker.frames(&sample)).unwrap_or_default();
        }
    }

    /// Takes the sample of a suspended fiber from a copy of its stack (Looked Twice).
    fn suspended(&self, waiter: &Waiter) -> Option<Sample> {
        let (view, memory) = (&waiter.record.view, self.memory.as_ref()?);
        let place = || (moment(waiter).0, view.saved_at.load(Ordering::Relaxed), view.stack());
        let before = place();
        let (_, at, Some(stack)) = before else { return None };
        if at == 0 {
            return None;
        }
        let saved = memory.word(at).filter(|saved| stack.contains(*saved))?;
        let pushed = fiber::SAVED_WORDS * size_of::<usize>();
        let copied = memory.copy(saved, (stack.top() - saved).min(sample::COPY_MAX))?;
        if memory.word(at) != Some(saved) || place() != before || copied.len() < pushed {
            return None;
        }
        let word = |n: usize| {
            let bytes = copied.as_chunks::<{ size_of::<u64>() }>().0;
            u64::from_ne_bytes(bytes[n])
        };
        let kept = fiber::Registers::of(saved as u64, std::array::from_fn(word));
        Some(Sample::of_suspended(kept, copied[pushed..].to_vec()))
    }
}

/// Samples a worker whose thread runs, or waits in the kernel.
fn awake(s: &Scheduler, waiter: &Waiter) -> Option<Sample> {
    let thread = match s.options.kind {
        WorkerKind::Fiber => s.baton_thread(),
        // It runs on its scheduler's host thread, unless it is preemptive or runs without the
        // baton.
        WorkerKind::OwnContext if !waiter.is(State::Preemptive) && !waiter.record.is_lent() => {
            s.baton_thread()
        }
        _ => waiter.record.view.thread.load(Ordering::Relaxed),
    };
    let stack = waiter.record.view.stack()?;
    let sample = sample::take(thread).filter(|_| thread != 0)?;
    // If the stack pointer is not in the worker's stack, another fiber ran on that thread, or the
    // thread id means another thread by now.
    stack.contains(sample.stack_pointer() as usize).then_some(sample)
}
