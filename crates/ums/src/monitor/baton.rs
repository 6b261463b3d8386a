//! Detects a worker or a completion routine that keeps its scheduler's baton and does not yield.
//!
//! ```text
//!   unchanged for half of the limit --> read figures
//!   unchanged for the limit, while the monitor was in time --> figures again: what is the cause?
//!        outside the process --> report only when it has lasted much longer
//!        inside the process  --> report
//! ```
//!
//! The time in which the monitor could not look is not counted against the worker (see [`Slow`]).
//! If that is most of the time, the stall is reported only after a very long time, and the
//! diagnosis exonerates the process.
//!
//! Other files read the figures and name the functions; this file calls them.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::options::Options;
use super::report::{Condition, Report};
use super::slow::{Beat, Slow, ns};
use super::watch::{MonitoredNode, has_nothing_to_do, has_ready_work, progress};
use super::{Diagnosis, Thief, profile, sentence};
use crate::backtrace::unwind;
use crate::os::linux::sample;
use crate::record::frame::{Frame, guilty};
use crate::scheduler::Scheduler;
use crate::wait::Letter;
use crate::watch::{Waits, state};

impl MonitoredNode {
    /// Looks for a worker or a completion routine that does not yield.
    pub(super) fn look_at_baton(&mut self, s: &Scheduler, beat: Beat) -> Option<Report> {
        let options = &self.options;
        let slow = &mut self.suspicions[s.index].baton;
        let mark = (progress(s), 0);
        let age = slow.unchanged(mark, beat);
        if let Some(ring) = s.ring.filter(|_| age > 0) {
            ring.read_next_switch();
        }
        let lasted = age + slow.stood_still;
        slow.count(lasted, &self.counts.profile);
        if s.inbox.is_asleep() {
            slow.clear(mark, beat.now);
            return None;
        }
        let thread = s.baton_thread();
        if harms_nothing(s, options.by_default)
            || !slow.is_measured(lasted, options.stall.min(options.starved), thread)
        {
            return None;
        }
        let condition = condition(s, slow, age, options)?;
        let too_long = age >= ns(options.cancel_after) && !slow.cancelled;
        let again = must_be_reported(slow, age, beat.now, options);
        if !(again || too_long) || has_nothing_to_do(s) {
            return None;
        }
        let (used, process, stood_still) = slow.used(thread)?;
        let known = Diagnosis::of(&used, &process, stood_still);
        let diagnosis = diagnose(s, known, age >= ns(options.stall));
        // If the worker gets no processor, its request is not cancelled.
        let cancels = too_long && !diagnosis.exonerates();
        if lasted < ns(patience(diagnosis, options)) || !(again || cancels) {
            return None;
        }
        slow.reported(beat.now, options.repeat);
        slow.reported_as_long |= age >= ns(options.non_yield);
        let mut report = Report::new(condition, diagnosis, lasted, s);
        report.stood_still = Duration::from_nanos(slow.stood_still);
        report.name_the_worker(s);
        if cancels && report.request != 0 && progress(s) == mark.0 {
            slow.cancelled = true;
            cancel_request(s, &mut report);
        }
        (report.thread, report.process) = (Some(used), Some(process));
        let left_out = self.is_left_out(s.index, beat.now);
        let by_default = self.options.by_default;
        let waits = if by_default { state::look_at(thread as i32) } else { None };
        if !left_out {
            report.backtrace = frames_of_worker(thread, waits.as_ref(), || progress(s) == mark.0);
        }
        if by_default {
            if progress(s) != mark.0 {
                // The worker has yielded: the figures may be another worker's.
                return None;
            }
            report.sentence = sentence::of_stall(&report, s, waits.as_ref());
        }
        self.count_in_profile(s.index, &report.backtrace, lasted);
        Some(report)
    }

    /// Adds a stall to the profile, under the first backtrace that was taken of it.
    fn count_in_profile(&mut self, scheduler: usize, backtrace: &[Frame], lasted: u64) {
        let slow = &mut self.suspicions[scheduler].baton;
        if slow.stack.is_none() {
            let stack = profile::folded(backtrace);
            self.counts.profile.add(&stack, lasted, 1);
            slow.stack = Some((stack, lasted));
        }
    }
}

/// Returns whether a worker of this scheduler may keep the processor for any time. Work on a hidden
/// scheduler may, unless other work waits there.
fn harms_nothing(s: &Scheduler, by_default: bool) -> bool {
    !s.options.visible && !has_ready_work(s) || by_default && !holds_something_up(s)
}

fn cancel_request(s: &Scheduler, report: &mut Report) {
    report.cancelled = true;
    let (worker, request) = (report.worker.unwrap_or_default(), report.request);
    s.inbox.send(Letter::CancelRequest { worker, request });
}

/// Returns the functions that a worker's thread is in. `unchanged` returns whether the thread still
/// runs that worker.
fn frames_of_worker(
    thread: u32,
    waits: Option<&Waits>,
    unchanged: impl Fn() -> bool,
) -> Vec<Frame> {
    let asleep = waits.map(|waits| frames_of_sleeper(thread, waits)).unwrap_or_default();
    let asks = guilty(&asleep).is_none() && may_be_asked(waits, &asleep);
    let sample = if asks { sample::take(thread) } else { None };
    // If the worker has yielded meanwhile, the sample is the stack of another worker.
    let sample = sample.filter(|_| unchanged());
    sample.map(|sample| unwind::frames(&sample)).unwrap_or(asleep)
}

/// Returns the functions of a thread that sleeps in the kernel, if they can be found without waking
/// the thread. Otherwise returns an empty list.
fn frames_of_sleeper(thread: u32, waits: &Waits) -> Vec<Frame> {
    let frames = unwind::frames_of_waiting(waits);
    let stays = state::look_at(thread as i32) == Some(*waits);
    if stays { frames } else { Vec::new() }
}

/// Returns true if the thread may be sampled by a signal without any effect on the application: it
/// waits in a call that the kernel makes again after a signal, or the standard library does.
fn may_be_asked(waits: Option<&Waits>, frames: &[Frame]) -> bool {
    let Some(call) = waits.and_then(|waits| waits.call) else { return true };
    state::is_restarted(call) || frames.iter().any(|frame| frame.name.starts_with("std::"))
}

/// Returns true if this scheduler has work that could run, now or later, if the worker yielded.
fn holds_something_up(s: &Scheduler) -> bool {
    let c = &s.counters;
    let pending = [&c.waiting, &c.pending_io, &c.timers];
    has_ready_work(s) || pending.iter().any(|n| n.load(Ordering::Relaxed) > 0)
}

impl Report {
    /// Records the worker that has the baton.
    fn name_the_worker(&mut self, s: &Scheduler) {
        if let Some(waiter) = s.running() {
            self.worker = Some(waiter.worker.load(Ordering::Relaxed));
            self.request = waiter.record.view.request.load(Ordering::Relaxed);
            self.user = waiter.record.view.user.load(Ordering::Relaxed);
        }
    }
}

/// Returns the condition, if there is one. There are two cases. Either the monitor looked in time,
/// and has seen no progress for long enough; or a very long time has passed, and the monitor was
/// late for most of it.
fn condition(s: &Scheduler, slow: &Slow, age: u64, options: &Options) -> Option<Condition> {
    let lasted = age + slow.stood_still;
    let stood_still = slow.stood_still >= lasted / 2 && lasted >= ns(options.starved);
    match age {
        _ if age < ns(options.stall) && !stood_still => None,
        _ if s.is_in_routine() => Some(Condition::SlowRoutine),
        _ if age >= ns(options.non_yield) => Some(Condition::NonYielding),
        _ => Some(Condition::Stall),
    }
}

/// Returns true if the stall must be reported now: it was not reported yet, or it has become
/// non-yielding since the last report, or the time for a repeated report has come.
fn must_be_reported(slow: &Slow, age: u64, now: u64, options: &Options) -> bool {
    match slow.reports {
        0 => true,
        _ if !slow.reported_as_long => age >= ns(options.non_yield),
        _ => now >= slow.next,
    }
}

fn diagnose(s: &Scheduler, known: Diagnosis, has_had_its_time: bool) -> Diagnosis {
    match known {
        known @ (Diagnosis::Starved(_) | Diagnosis::Crowded) => known,
        _ if !has_had_its_time => Diagnosis::Starved(Thief::Standstill),
        Diagnosis::Blocked if s.stuck_on_short_lock.load(Ordering::Relaxed) => {
            Diagnosis::StuckOnShortLock
        }
        known => known,
    }
}

/// Returns how long a stall with this diagnosis must have lasted to be reported.
fn patience(diagnosis: Diagnosis, options: &Options) -> Duration {
    match diagnosis {
        Diagnosis::Starved(_) | Diagnosis::Crowded => options.starved,
        Diagnosis::Unclear => options.stall.saturating_mul(2),
        _ => Duration::ZERO,
    }
}
