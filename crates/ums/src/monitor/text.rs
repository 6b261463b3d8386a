//! A report as text: one line with the finding, and below it the figures and the application's
//! functions in the backtrace.

use std::fmt::{Display, Formatter, Result};
use std::time::Duration;

use super::report::{Condition, Report};
use crate::record::frame::shown;
use crate::record::plural::counted;

/// Number of the application's frames that are shown; the others are counted.
const FRAMES_SHOWN: usize = 24;

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        self.headline(f)?;
        self.place(f)?;
        self.figures(f)?;
        if let Some(deadlock) = &self.deadlock {
            write!(f, "{deadlock}")?;
        }
        let mut shown = shown(&self.backtrace);
        if shown.is_empty() {
            // The worker is in no code of the application's. Then this library's is of interest.
            shown = self.backtrace.iter().collect();
        }
        for frame in shown.iter().take(FRAMES_SHOWN) {
            write!(f, "\nums:   at {frame}")?;
        }
        if shown.len() > FRAMES_SHOWN {
            let around = counted(shown.len() - FRAMES_SHOWN, "function");
            write!(f, "\nums:   and {around} around these")?;
        }
        if self.suppressed > 0 {
            let reports = counted(self.suppressed as usize, "report");
            write!(f, "\nums:   left out before this one: {reports}")?;
        }
        Ok(())
    }
}

impl Report {
    fn headline(&self, f: &mut Formatter<'_>) -> Result {
        let ms = self.lasted.as_millis();
        write!(f, "ums: {}: scheduler {}", self.condition.name(), self.scheduler_name)?;
        match (self.condition, self.worker) {
            (Condition::SlowRoutine, _) => write!(f, " has run a completion routine for {ms} ms")?,
            (Condition::Stall | Condition::NonYielding, Some(worker)) => {
                write!(f, ", worker {worker} has not yielded for {ms} ms")?;
            }
            (Condition::Stall | Condition::NonYielding, None) => {
                write!(f, " has not been at work for {ms} ms")?;
            }
            (Condition::NoWorkers, _) => write!(
                f,
                ": requests wait for a worker ({}), none has got one for {ms} ms",
                self.queued
            )?,
            (Condition::NotPickedUp, _) => {
                write!(f, " has picked up none of its requests ({}) for {ms} ms", self.queued)?;
            }
            (Condition::AllStuck, _) => {
                write!(f, " and all others have not picked up a request for {ms} ms")?;
            }
            (Condition::SlowSubmission, _) => {
                write!(f, " was held up by a submission for {ms} ms")?
            }
            (Condition::Deadlock, _) => {
                let number = self.deadlock.as_ref().map_or(0, |deadlock| deadlock.waiters.len());
                write!(f, ": {}, {ms} ms old and older", counted(number, "wait"))?;
            }
            (Condition::SlowIo, _) => write!(f, ": a wait for a file took {ms} ms")?,
        }
        write!(f, ": {}", self.diagnosis)?;
        self.function().map_or(Ok(()), |function| write!(f, ", in {function}"))
    }

    fn place(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str("\nums:  ")?;
        if let Some(worker) = self.worker {
            write!(f, " worker {worker}, request {} of user {};", self.request, self.user)?;
        }
        if let Some(fd) = self.fd.filter(|fd| *fd >= 0) {
            write!(f, " descriptor {fd};")?;
        }
        write!(f, " could run: {}, queued: {}", self.runnable, self.queued)?;
        if self.cancelled { f.write_str("; the request was cancelled") } else { Ok(()) }
    }

    fn figures(&self, f: &mut Formatter<'_>) -> Result {
        if let (Some(thread), Some(process)) = (&self.thread, &self.process) {
            write!(
                f,
                "\nums:   thread {} ({} s old): in {} ms user {} ms, kernel {} ms, ready without a \
                 processor {} ms, gave it up {}, lost it {}",
                thread.id,
                thread.age.as_secs(),
                process.interval.as_millis(),
                thread.user.as_millis(),
                thread.kernel.as_millis(),
                thread.ready.as_millis(),
                counted(thread.voluntary as usize, "time"),
                counted(thread.involuntary as usize, "time")
            )?;
            if self.stood_still >= Duration::from_millis(1) {
                let ms = self.stood_still.as_millis();
                write!(f, "\nums:   the monitor itself was {ms} ms late meanwhile")?;
            }
            if !thread.kernel_stack.is_empty() {
                write!(f, "\nums:   in the kernel: {}", thread.kernel_stack.join(" < "))?;
            }
        }
        if let Some(process) = &self.process {
            write!(
                f,
                "\nums:   process {} % of {}, idle {} %, stolen {} ms, throttled {} ms",
                process.percent_used(),
                counted(process.processors as usize, "processor"),
                process.percent_idle(),
                process.stolen.as_millis(),
                process.throttled.as_millis()
            )?;
        }
        Ok(())
    }
}
