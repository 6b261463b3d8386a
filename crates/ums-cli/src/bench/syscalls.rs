//! Counts the system calls of a yield and of a switch.
//!
//! The kernel's tracepoint `raw_syscalls:sys_enter` counts every call of every thread of this
//! process. It requires the right to trace; without that right the bench is skipped.

use std::fs::File;
use std::io::Read;

use super::meter::{BenchArgs, Lines, Ran, Stop};
use super::setup::Setup;
use crate::raw;

/// `syscalls n=`.
pub fn syscalls(args: &BenchArgs) -> Ran {
    let setup = Setup::read(args)?;
    let n = args.number("n", setup.size(1_000_000, 10_000))?;
    args.all_known()?;
    let lines = setup.lines("syscalls");
    // Opened before the node is built, so that the node's threads inherit the counter.
    let mut calls = Calls::count_from_now()?;
    setup.node(1, 16)?.run(move || {
        // The system calls that a reading itself makes are subtracted.
        let before = calls.read();
        let reading = calls.read() - before;
        let per_op = |lines: &Lines, metric, calls: u64| {
            lines.metric(metric, calls.saturating_sub(reading) as f64 / n as f64, "count");
        };

        let before = calls.read();
        for _ in 0..n {
            ums::yield_now();
        }
        per_op(&lines, "per_yield_with_nothing_to_do", calls.read() - before);

        let other = ums::spawn(move || (0..=n).for_each(|_| ums::yield_now()));
        ums::yield_now();
        let before = calls.read();
        for _ in 0..n {
            ums::yield_now();
        }
        per_op(&lines, "per_yield_with_switch", calls.read() - before);
        other.join().expect("a yielding task");
    });
    Ok(())
}

/// Counts the system calls of this thread and of those that it creates from now on.
struct Calls(File);

impl Calls {
    fn count_from_now() -> Result<Calls, Stop> {
        let denied = |what: &str, error| Stop::Skip(format!("{what}: {error}"));
        let id = "events/raw_syscalls/sys_enter/id";
        let id = std::fs::read_to_string(format!("/sys/kernel/tracing/{id}"))
            .or_else(|_| std::fs::read_to_string(format!("/sys/kernel/debug/tracing/{id}")))
            .map_err(|error| denied("the kernel's tracepoints cannot be read", error))?;
        let id: u64 = id.trim().parse().map_err(|_| Stop::Skip("no tracepoint number".into()))?;
        let meter = raw::count_tracepoint(id).map_err(|error| denied("perf_event_open", error))?;
        Ok(Calls(meter))
    }

    fn read(&mut self) -> u64 {
        let mut count = [0; 8];
        self.0.read_exact(&mut count).expect("a counter can be read");
        u64::from_ne_bytes(count)
    }
}
