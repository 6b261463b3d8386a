//! The looker: finds which functions a worker is in, whether it runs, waits or is suspended.
//!
//! ```text
//!   a fiber that is suspended      its stack pointer is known, its frames are copied
//!   a thread, or the running fiber its thread is sampled by a signal
//! ```
//!
//! A stack is read through the kernel, while its fiber may be
//! resumed or end and its memory may be unmapped. What was copied counts only if the fiber was
//! suspended at the same place, and had been switched to equally often, before and after the copy.

use std::sync::atomic::{Ordering, fence};

use super::unwind::Walker;
use crate::os::linux::own_memory::OwnMemory;
use crate::os::linux::sample::{self, Sample};
use crate::record::frame::Frame;
use crate::scheduler::lists::worker_list::State;
use crate::scheduler::{Scheduler, WorkerKind};
use crate::wait::Waiter;

/// How often a worker is looked at if it changes its state meanwhile.
const LOOKS: usize = 3;

/// What it takes to look at stacks, read once for all of them.
pub(crate) struct Looker {
    walker: Walker,
    memory: Option<OwnMemory>,
}

/// Returns numbers that change when the worker runs.
fn moment(waiter: &Waiter) -> (u64, u8) {
    fence(Ordering::Acquire);
    let view = &waiter.record.view;
    (view.switches.load(Ordering::Relaxed), view.state.load(Ordering::Relaxed))
}

impl Looker {
    pub(crate) fn new() -> Looker {
        Looker { walker: Walker::new(), memory: OwnMemory::open() }
    }

    /// Returns the functions that a worker of this scheduler is in, the innermost first. Returns
    /// none if its thread did not answer, or if it kept running meanwhile.
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

    /// Samples a fiber that is suspended (Looked Twice).
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
        // On its scheduler's host thread, but for one that is preemptive, or runs on without the
        // baton.
        WorkerKind::OwnContext
            if !waiter.is(State::Preemptive) && !waiter.record.lending.is_lent() =>
        {
            s.baton_thread()
        }
        _ => waiter.record.view.thread.load(Ordering::Relaxed),
    };
    let stack = waiter.record.view.stack()?;
    let sample = sample::take(thread).filter(|_| thread != 0)?;
    // Otherwise another fiber ran on that thread, or another thread has this thread id by now.
    stack.contains(sample.stack_pointer() as usize).then_some(sample)
}
