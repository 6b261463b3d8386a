//! Stacks: which functions every worker is in, those that do not run too.
//!
//! ```text
//!   a fiber that is suspended      its stack pointer is known, its frames are copied
//!   a thread, or the running fiber its thread is sampled by a signal, as the monitor does
//!        |
//!        +--> frames --> names --> what the code of the application is in, the machine's left out
//! ```
//!
//! No scheduler is stopped or asked. Named invariant **Looked Twice**: a stack is read through the
//! kernel while its fiber may be resumed or end and its memory may be unmapped; what was copied
//! counts only if the fiber was suspended at the same place, and had been switched to as often,
//! before and after. There is no unsafe code in this.
//!
//! It takes milliseconds for each worker, most of them for names; whoever asks from a worker goes
//! preemptive meanwhile. Idle workers have nothing to tell and are left out.

mod on_signal;

use std::fmt::{Display, Formatter};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use crate::current::go_preemptive;
use crate::monitor::Frame;
use crate::monitor::unwind::Walker;
use crate::node::{Node, NodeInner};
use crate::os::clock;
use crate::os::linux::own_memory::OwnMemory;
use crate::os::linux::sample::{self, Sample};
use crate::reason::WaitReason;
use crate::scheduler::{Shared, WorkerKind};
use crate::views::{Cell, WorkerRow, worker_row};
use crate::wait::Party;
use crate::worker::State;

/// Times that a worker is looked at which changes its state meanwhile.
const LOOKS: usize = 3;

/// What a worker is in the middle of. Its `Display` is a line about the worker and one for each
/// function of the application, the innermost first.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WorkerStack {
    /// The worker, as the views show it.
    pub worker: WorkerRow,
    /// Its scheduler's name.
    pub scheduler_name: String,
    /// The functions that it is in, the innermost first; empty when nothing could be seen of them:
    /// its thread did not answer, or it went on and on meanwhile.
    pub frames: Vec<Frame>,
}

impl Node {
    /// What every worker that is not idle is in the middle of.
    ///
    /// ```
    /// use std::time::Duration;
    /// #[inline(never)]
    /// fn waits_for_the_post() {
    ///     let _ = ums::sleep(Duration::from_secs(60));
    /// }
    /// let node = ums::Node::builder().schedulers(1).build()?;
    /// let task = node.spawn(waits_for_the_post)?;
    /// let seen = || node.stacks().iter().any(|stack| stack.to_string().contains("the_post"));
    /// while !seen() {
    ///     std::thread::sleep(Duration::from_millis(1));
    /// }
    /// task.cancel();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stacks(&self) -> Vec<WorkerStack> {
        of_node(&self.inner)
    }

    /// What this worker is in the middle of, idle or not. None: there is no such worker.
    pub fn stack_of(&self, scheduler: usize, worker: u32) -> Option<WorkerStack> {
        let all = self.inner.all();
        let s = all.iter().find(|s| s.index == scheduler)?;
        let party = s.left_over().into_iter().find(|party| number_of(party) == worker)?;
        Some(outside(|| Looker::new().look(s, party, &all)))
    }
}

/// Runs it where it may block.
fn outside<R: Send>(f: impl FnOnce() -> R + Send) -> R {
    go_preemptive(WaitReason::PREEMPTIVE_EXTERNAL, f)
}

/// Of all workers that are not idle.
fn of_node(node: &NodeInner) -> Vec<WorkerStack> {
    outside(|| {
        let (all, mut looker) = (node.all(), Looker::new());
        let mut stacks = Vec::new();
        for s in &all {
            let parties = s.left_over().into_iter().filter(|party| !party.is(State::Idle));
            stacks.extend(parties.map(|party| looker.look(s, party, &all)));
        }
        stacks
    })
}

fn number_of(party: &Party) -> u32 {
    party.worker.load(Ordering::Relaxed)
}

/// What looking at stacks needs, read once for all of them.
struct Looker {
    walker: Walker,
    memory: Option<OwnMemory>,
}

/// What changes when a worker goes on.
fn moment(party: &Party) -> (u64, u8) {
    fence(Ordering::Acquire);
    let view = &party.view;
    (view.switches.load(Ordering::Relaxed), view.state.load(Ordering::Relaxed))
}

impl Looker {
    fn new() -> Looker {
        Looker { walker: Walker::new(), memory: OwnMemory::open() }
    }

    fn look(&mut self, s: &Shared, party: &'static Party, all: &[Arc<Shared>]) -> WorkerStack {
        let mut looks = 0;
        loop {
            let before = moment(party);
            let sample = self.suspended(party).or_else(|| awake(s, party));
            looks += 1;
            if looks < LOOKS && (sample.is_none() || moment(party) != before) {
                continue;
            }
            let frames = sample.map(|sample| self.walker.frames(&sample)).unwrap_or_default();
            let worker = worker_row(s, party, clock::ticks(), all);
            return WorkerStack { worker, scheduler_name: s.name().to_owned(), frames };
        }
    }

    /// Of a fiber that is suspended (Looked Twice).
    fn suspended(&self, party: &Party) -> Option<Sample> {
        let (view, memory) = (&party.view, self.memory.as_ref()?);
        let place = || (moment(party).0, view.saved_at.load(Ordering::Relaxed), view.stack());
        let before = place();
        let (_, at, Some(stack)) = before else { return None };
        if at == 0 {
            return None;
        }
        let saved = memory.word(at).filter(|saved| (stack.low..stack.top).contains(saved))?;
        let pushed = fiber::SAVED_WORDS * size_of::<usize>();
        let copied = memory.copy(saved, (stack.top - saved).min(sample::COPY_MAX))?;
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

/// Of a worker whose thread runs, or waits in the kernel.
fn awake(s: &Shared, party: &Party) -> Option<Sample> {
    let thread = match s.options.kind {
        WorkerKind::Fiber => s.baton_thread(),
        _ => party.view.thread.load(Ordering::Relaxed),
    };
    let stack = party.view.stack()?;
    let sample = sample::take(thread).filter(|_| thread != 0)?;
    // Else another fiber ran on that thread, or a thread that has got its number since.
    (stack.low..stack.top).contains(&(sample.stack_pointer() as usize)).then_some(sample)
}

impl WorkerStack {
    /// The frames of the application's code: without those by which the machine parked the worker,
    /// and those by which it called the request.
    pub fn of_the_application(&self) -> &[Frame] {
        let path = |frame: &Frame| frame.name.trim_start_matches('<').to_owned();
        let is = |frame: &Frame, of: &[&str]| of.iter().any(|start| path(frame).starts_with(start));
        let is_machine = |frame: &Frame| {
            // A name without a path is the C library's.
            is(frame, &["ums::", "fiber::", "corosensei::"])
                || is(frame, &["core::", "std::", "alloc::", "rustix::", "io_uring::", "0x"])
                || !frame.name.contains("::")
        };
        let parks = |frame: &Frame| is(frame, &["ums::scheduler::", "fiber::", "corosensei::"]);
        let is_main = |frame: &Frame| frame.name.contains("worker_main");
        let end = self.frames.iter().position(is_main).unwrap_or(self.frames.len());
        // From the outside first: what the application calls may be the machine's, too.
        let ours =
            ["ums::scheduler::", "ums::task::", "ums::request::", "ums::serve::", "ums::user::"];
        let glue = [&ours[..], &["core::", "std::"]].concat();
        let is_glue = |frame: &Frame| is(frame, &glue) || frame.name.starts_with("__rust");
        let outer = self.frames[..end].iter().rev().take_while(|frame| is_glue(frame)).count();
        let frames = &self.frames[..end - outer];
        let inner = frames.iter().take_while(|frame| is_machine(frame));
        let first = inner.enumerate().filter(|(_, frame)| parks(frame)).last();
        &frames[first.map_or(0, |(at, _)| at + 1)..]
    }

    /// As an object, with all frames.
    pub(crate) fn to_json(&self) -> String {
        let w = &self.worker;
        let cells: [(&str, Cell); 13] = [
            ("scheduler_id", w.scheduler.into()),
            ("scheduler_name", self.scheduler_name.as_str().into()),
            ("worker_id", w.id.into()),
            ("is_fiber", (w.kind != WorkerKind::Thread).into()),
            ("state", state(w).into()),
            ("os_thread_id", w.thread.into()),
            ("wait_type", w.reason.map(WaitReason::name).into()),
            ("wait_duration_us", (w.waited_ns / 1000).into()),
            ("user_id", w.user.into()),
            ("request_id", w.request.into()),
            ("elapsed_us", (w.of_request.elapsed_ns / 1000).into()),
            ("text", self.to_string().into()),
            ("frames_count", self.frames.len().into()),
        ];
        let cells = cells.map(|(name, cell)| format!("\"{name}\":{}", cell.to_json()));
        let frame = |frame: &Frame| {
            let place = Cell::from(frame.place.as_deref()).to_json();
            format!("{{\"name\":{},\"place\":{place}}}", Cell::from(frame.name.as_str()).to_json())
        };
        let frames: Vec<_> = self.frames.iter().map(frame).collect();
        format!("{{{},\"frames\":[{}]}}", cells.join(","), frames.join(","))
    }
}

fn state(worker: &WorkerRow) -> String {
    format!("{:?}", worker.state).to_uppercase()
}

impl Display for WorkerStack {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let w = &self.worker;
        let made_of =
            if w.thread == 0 { "fiber".to_owned() } else { format!("thread {}", w.thread) };
        write!(f, "worker {} of scheduler {}, {made_of}: ", w.id, self.scheduler_name)?;
        f.write_str(&state(w))?;
        if let Some(reason) = w.reason {
            write!(f, " {} for {}", reason.name(), span(w.waited_ns))?;
        }
        if w.request != 0 {
            write!(f, "; request {}", w.request)?;
            if w.user != 0 {
                write!(f, " of user {}", w.user)?;
            }
            write!(f, ", running for {}", span(w.of_request.elapsed_ns))?;
        }
        if self.frames.is_empty() {
            f.write_str("\n    (could not be seen)")?;
        }
        for frame in self.of_the_application() {
            write!(f, "\n    at {}", frame.name)?;
            if let Some(place) = &frame.place {
                write!(f, " ({place})")?;
            }
        }
        Ok(())
    }
}

/// A time for people.
fn span(ns: u64) -> String {
    match ns {
        0..1_000_000 => format!("{} us", ns / 1_000),
        1_000_000..1_000_000_000 => format!("{} ms", ns / 1_000_000),
        _ => format!("{}.{} s", ns / 1_000_000_000, ns / 100_000_000 % 10),
    }
}
