//! The node of a bench, and the processors that it runs on.

use std::ops::Range;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_setaffinity};
use ums::node::IoChoice;
use ums::{Node, WorkerKind};

use super::meter::{BenchArgs, Lines, Stop};
use crate::raw::workers_of;

/// The arguments that every bench accepts.
pub struct Setup {
    pub kind: WorkerKind,
    io: IoChoice,
    stack: u64,
    events: bool,
    detect: bool,
    warnings: bool,
    /// `None`: as the library decides.
    spin_ns: Option<u64>,
}

impl Setup {
    /// Reads `kind=`, `io=`, `stack=`, `events=`, `detect=` and `spin=`.
    pub fn read(args: &BenchArgs) -> Result<Setup, Stop> {
        let kind = match args.text("kind", "fiber") {
            "fiber" => WorkerKind::Fiber,
            "thread" => WorkerKind::Thread,
            "context" => WorkerKind::OwnContext,
            other => return Err(Stop::Usage(format!("kind={other}: fiber, thread or context"))),
        };
        let io = args.text("io", "auto");
        let io =
            io.parse().map_err(|_| Stop::Usage(format!("io={io}: auto, uring, epoll, sync")))?;
        let events = is_on(args, "events")?;
        let detect = is_on(args, "detect")?;
        let spin_ns = match args.text("spin", "auto") {
            "auto" => None,
            "off" => Some(0),
            _ => Some(args.number("spin", 0)?),
        };
        let stack = args.number("stack", 0)?;
        Ok(Setup { kind, io, stack, events, detect, warnings: true, spin_ns })
    }

    /// Turns the monitor off, whose signals would interrupt a scheduler that is single-stepped.
    pub fn without_warnings(self) -> Setup {
        Setup { warnings: false, ..self }
    }

    /// Returns the printer of JSON lines for this bench and this kind of worker.
    pub fn lines(&self, bench: impl Into<String>) -> Lines {
        let peer = match self.kind {
            WorkerKind::Fiber => "ums-fiber",
            WorkerKind::Thread => "ums-thread",
            WorkerKind::OwnContext => "ums-context",
        };
        Lines { bench: bench.into(), peer }
    }

    /// Returns `fiber` for workers that are switched in user mode. Returns `thread` for thread
    /// workers, whose operations take longer.
    pub fn size(&self, fiber: u64, thread: u64) -> u64 {
        if self.kind == WorkerKind::Thread { thread } else { fiber }
    }

    /// Builds a node of one scheduler for each of the first `cpus` processors, and pins the process
    /// to them. Each scheduler has at most so many workers; `None` means as the library decides.
    pub fn node(&self, cpus: u64, workers: impl Into<Option<u64>>) -> Result<Node, Stop> {
        pin(cpus)?;
        let builder = Node::builder()
            .schedulers(cpus as usize)
            .queue_limit(1 << 22)
            .io(self.io)
            .event_ring(self.events)
            .detect_blocking(self.detect)
            .warnings(self.warnings)
            .pin(cpus > 1);
        let builder = match workers.into() {
            Some(workers) => builder.max_workers((workers as usize).saturating_mul(cpus as usize)),
            None => builder,
        };
        let builder =
            if self.stack > 0 { builder.stack_size(self.stack as usize) } else { builder };
        let spin = self.spin_ns.map(Duration::from_nanos);
        let builder = if let Some(spin) = spin { builder.idle_spin(spin) } else { builder };
        workers_of(self.kind, builder).build().map_err(|error| Stop::Skip(error.to_string()))
    }
}

/// Reads a key whose values are `on` and `off`, the default.
fn is_on(args: &BenchArgs, key: &'static str) -> Result<bool, Stop> {
    match args.text(key, "off") {
        "on" => Ok(true),
        "off" => Ok(false),
        other => Err(Stop::Usage(format!("{key}={other}: on or off"))),
    }
}

/// Pins the calling thread, and the threads that it will create, to the first `cpus` processors.
pub fn pin(cpus: u64) -> Result<(), Stop> {
    pin_to_all(0..cpus as usize)
}

/// Pins the calling thread to this processor.
pub fn pin_to(cpu: usize) -> Result<(), Stop> {
    pin_to_all(cpu..cpu.saturating_add(1))
}

fn pin_to_all(cpus: Range<usize>) -> Result<(), Stop> {
    let mut set = CpuSet::new();
    cpus.clone().for_each(|cpu| set.set(cpu));
    sched_setaffinity(None, &set)
        .map_err(|error| Stop::Skip(format!("cannot pin to the CPUs {cpus:?}: {error}")))
}
