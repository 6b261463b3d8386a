//! Finds the cause of a stall from figures alone. The rules are those by which the support of the
//! original read its reports. They had to guess how long a thread waited for a processor; here the
//! kernel's own count is used.
//!
//! The rules are applied in this order, to the time between two readings of the figures:
//!
//! 1. The thread ran for 40 % of the time or more: it *computes*, or, if it spent most of that time
//!    in the kernel, it is *in the kernel*.
//! 2. The thread was ready and had no processor for half of the time: it is *crowded* if other
//!    threads of this process used most of what the process may use. Otherwise it is *starved* by
//!    the consumer that took most of the processor time.
//! 3. The thread sleeps: it is *blocked* in a system call.
//! 4. Otherwise the cause is *unclear*, and the report says so.
//!
//! The figures do not cover the time in which the monitor itself could not look; see `baton.rs`.

use super::figures::{ProcessUse, ThreadUse};
use crate::record::reason::WaitReason;

/// The cause of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Diagnosis {
    /// The worker computes in user mode and does not yield.
    Computes,
    /// The worker computes in the kernel, in a system call.
    InKernel,
    /// The worker sleeps in a system call that blocks its thread: it should go preemptive.
    Blocked,
    /// The worker sleeps for a lock that is not released although it is normally held for a few
    /// instructions only.
    StuckOnShortLock,
    /// The thread is ready and gets no processor: the cause is outside the process.
    Starved(Thief),
    /// The thread is ready, but the process's own other threads use the processors: preemptive
    /// calls, hidden schedulers, threads of the application.
    Crowded,
    /// Workers wait for something that does not happen. Most of them wait for this reason.
    WaitsFor(WaitReason),
    /// Workers wait, for different reasons.
    WorkersWait,
    /// The kernel refuses threads or memory for new workers.
    CannotCreateWorkers,
    /// The disk or the file system is slow.
    Disk,
    /// Workers wait for each other in a circle.
    Circle,
    /// The figures do not show the cause.
    Unclear,
}

/// What took the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thief {
    /// Other processes of this computer.
    Others,
    /// The hypervisor: stolen time.
    Hypervisor,
    /// The control group's quota.
    Quota,
    /// Unknown: the monitor itself got no processor either. The process was stopped, or the
    /// computer stood still.
    Standstill,
}

impl Diagnosis {
    /// Returns true if the cause is neither the application nor this library.
    pub fn exonerates(self) -> bool {
        matches!(self, Diagnosis::Starved(_) | Diagnosis::Disk)
    }

    /// Diagnoses a thread that should have yielded, from what it and the process used, and from the
    /// time in which the monitor itself got no processor.
    pub(super) fn of(
        thread: &ThreadUse,
        process: &ProcessUse,
        stood_still: std::time::Duration,
    ) -> Diagnosis {
        let span = process.interval.as_nanos().max(1);
        let percent = |part: std::time::Duration| part.as_nanos() * 100 / span;
        if percent(thread.user.saturating_add(thread.kernel)) >= 40 {
            let kernel = thread.kernel > thread.user;
            return if kernel { Diagnosis::InKernel } else { Diagnosis::Computes };
        }
        let sleeps = matches!(thread.state, 'S' | 'D');
        let stolen = is_third(process.stolen, process.interval);
        if percent(thread.ready) >= 50 || (stolen && !sleeps) {
            return Diagnosis::without_processor(thread, process);
        }
        if sleeps {
            return Diagnosis::Blocked;
        }
        // While a process is stopped, its threads are neither ready nor asleep.
        match percent(thread.ready.saturating_add(stood_still)) {
            50.. => Diagnosis::Starved(Thief::Standstill),
            _ => Diagnosis::Unclear,
        }
    }

    fn without_processor(thread: &ThreadUse, process: &ProcessUse) -> Diagnosis {
        if is_third(process.throttled, process.interval) {
            return Diagnosis::Starved(Thief::Quota);
        }
        if is_third(process.stolen, process.interval) {
            return Diagnosis::Starved(Thief::Hypervisor);
        }
        let others = process.used.saturating_sub(thread.user.saturating_add(thread.kernel));
        let all = process.interval.saturating_mul(process.allowed.max(1));
        if others.saturating_mul(10) >= all.saturating_mul(6) {
            return Diagnosis::Crowded;
        }
        Diagnosis::Starved(Thief::Others)
    }
}

/// Returns whether this is a third of the time or more.
fn is_third(part: std::time::Duration, time: std::time::Duration) -> bool {
    part.saturating_mul(3) >= time
}

impl std::fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Diagnosis::Computes => "it computes and does not yield",
            Diagnosis::InKernel => "it works in the kernel and does not yield",
            Diagnosis::Blocked => "it sleeps in a system call, which should go preemptive",
            Diagnosis::StuckOnShortLock => {
                "it sleeps for a lock that is held for moments and is not released"
            }
            Diagnosis::Starved(Thief::Others) => {
                "not its fault: other processes use the processors"
            }
            Diagnosis::Starved(Thief::Hypervisor) => {
                "not its fault: the hypervisor gives the machine no processor"
            }
            Diagnosis::Starved(Thief::Quota) => {
                "not its fault: the control group's quota of processor time is used up"
            }
            Diagnosis::Starved(Thief::Standstill) => {
                "not its fault: the whole process stood still, the monitor too"
            }
            Diagnosis::Crowded => "other threads of this process use the processors",
            Diagnosis::WaitsFor(reason) => {
                return write!(f, "most workers wait for {}", reason.name());
            }
            Diagnosis::WorkersWait => "its workers wait, for different things",
            Diagnosis::CannotCreateWorkers => "no worker can be created",
            Diagnosis::Disk => "the disk, or what carries the file, was slow",
            Diagnosis::Circle => "they wait for each other in a circle",
            Diagnosis::Unclear => "the figures do not say why",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    struct Case {
        user: u64,
        kernel: u64,
        ready: u64,
        state: char,
        used: u64,
        stolen: u64,
        throttled: u64,
        allowed: u32,
        stood_still: u64,
    }

    const QUIET: Case = Case {
        user: 0,
        kernel: 0,
        ready: 0,
        state: 'R',
        used: 0,
        stolen: 0,
        throttled: 0,
        allowed: 2,
        stood_still: 0,
    };

    /// Diagnoses figures of one second, on a computer with two processors.
    fn of(case: &Case) -> Diagnosis {
        let thread = ThreadUse {
            user: ms(case.user),
            kernel: ms(case.kernel),
            ready: ms(case.ready),
            state: case.state,
            ..ThreadUse::default()
        };
        let process = ProcessUse {
            interval: ms(1000),
            processors: 2,
            allowed: case.allowed,
            used: ms(case.used),
            stolen: ms(case.stolen),
            throttled: ms(case.throttled),
            ..ProcessUse::default()
        };
        Diagnosis::of(&thread, &process, ms(case.stood_still))
    }

    #[test]
    fn each_of_the_rules_has_its_figures_b34() {
        let cases = [
            (Case { user: 950, used: 960, ..QUIET }, Diagnosis::Computes),
            // The thread gets half a processor and uses all of that, so the cause is still its own
            // code.
            (Case { user: 480, ready: 510, used: 480, ..QUIET }, Diagnosis::Computes),
            (Case { kernel: 700, user: 100, used: 800, ..QUIET }, Diagnosis::InKernel),
            (Case { state: 'S', ..QUIET }, Diagnosis::Blocked),
            (Case { state: 'D', user: 10, ..QUIET }, Diagnosis::Blocked),
            (Case { user: 100, ready: 890, used: 110, ..QUIET }, Diagnosis::Starved(Thief::Others)),
            (Case { user: 100, ready: 890, used: 1900, ..QUIET }, Diagnosis::Crowded),
            // Other threads of the process use all of the one processor that it may use.
            (Case { user: 100, ready: 890, used: 990, allowed: 1, ..QUIET }, Diagnosis::Crowded),
            (
                Case { user: 100, ready: 890, used: 200, throttled: 800, ..QUIET },
                Diagnosis::Starved(Thief::Quota),
            ),
            (
                Case { user: 100, stolen: 1500, used: 100, ..QUIET },
                Diagnosis::Starved(Thief::Hypervisor),
            ),
            (Case { state: 'R', user: 200, ready: 200, ..QUIET }, Diagnosis::Unclear),
            (
                Case { user: 20, ready: 250, stood_still: 700, ..QUIET },
                Diagnosis::Starved(Thief::Standstill),
            ),
            (Case { state: 'S', stood_still: 700, ..QUIET }, Diagnosis::Blocked),
            (Case { user: 450, stood_still: 500, ..QUIET }, Diagnosis::Computes),
        ];
        for (case, expected) in &cases {
            assert_eq!(of(case), *expected);
            let outside = matches!(expected, Diagnosis::Starved(_));
            assert_eq!(expected.exonerates(), outside);
        }
    }
}
