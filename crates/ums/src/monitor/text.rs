//! A report as text: one line with the finding, and below it the figures and the backtrace.

use std::fmt::{Display, Formatter, Result};
use std::time::Duration;

use super::report::{Condition, Report};

/// Number of frames shown; the others are counted.
const FRAMES_SHOWN: usize = 24;

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        self.headline(f)?;
        self.place(f)?;
        self.figures(f)?;
        if let Some(deadlock) = &self.deadlock {
            write!(f, "{deadlock}")?;
        }
        for frame in self.backtrace.iter().take(FRAMES_SHOWN) {
            write!(f, "\nums:   at {frame}")?;
        }
        if self.backtrace.len() > FRAMES_SHOWN {
            write!(
                f,
                "\nums:   and {} functions around these",
                self.backtrace.len() - FRAMES_SHOWN
            )?;
        }
        if self.suppressed > 0 {
            write!(f, "\nums:   {} reports before this one were left out", self.suppressed)?;
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
                ": {} requests wait for a worker, none has got one for {ms} ms",
                self.queued
            )?,
            (Condition::NotPickedUp, _) => {
                write!(f, " has not picked up any of {} requests for {ms} ms", self.queued)?;
            }
            (Condition::AllStuck, _) => {
                write!(f, " and all others have not picked up a request for {ms} ms")?;
            }
            (Condition::SlowSubmission, _) => {
                write!(f, " was held up by a submission for {ms} ms")?
            }
            (Condition::Deadlock, _) => {
                let number = self.deadlock.as_ref().map_or(0, |deadlock| deadlock.waiters.len());
                write!(f, ": {number} waits that have lasted {ms} ms and more")?;
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
        write!(f, " {} could run, {} are queued", self.runnable, self.queued)?;
        if self.cancelled { f.write_str("; the request was cancelled") } else { Ok(()) }
    }

    fn figures(&self, f: &mut Formatter<'_>) -> Result {
        if let (Some(thread), Some(process)) = (&self.thread, &self.process) {
            write!(
                f,
                "\nums:   thread {} ({} s old): in {} ms user {} ms, kernel {} ms, ready without a \
                 processor {} ms, gave it up {} times, lost it {} times",
                thread.id,
                thread.age.as_secs(),
                process.interval.as_millis(),
                thread.user.as_millis(),
                thread.kernel.as_millis(),
                thread.ready.as_millis(),
                thread.voluntary,
                thread.involuntary
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
                "\nums:   process {} % of {} processors, idle {} %, stolen {} ms, throttled {} ms",
                process.percent_used(),
                process.processors,
                process.percent_idle(),
                process.stolen.as_millis(),
                process.throttled.as_millis()
            )?;
        }
        Ok(())
    }
}
