//! Who is to blame, from figures alone (B34): the rules by which the original's support read its
//! reports, with the kernel's own account of who waited for a processor in place of guesses.
//!
//! In this order, over the time that was measured:
//!
//! 1. The thread ran for 40 % of it or more: it *computes*, or is *in the kernel*, by where it
//!    spent most.
//! 2. It was ready and had no processor for half of it: *crowded* when our own other threads used
//!    most of what the process may use, else *starved*, by whoever took most.
//! 3. It sleeps: it is *blocked* in a system call.
//! 4. Anything else is *unclear*, and said to be.
//!
//! The figures say nothing of time in which the monitor itself could not look; see `baton.rs`.

use super::figures::{ProcessUse, ThreadUse};
use crate::record::reason::WaitReason;

/// Who is to blame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Diagnosis {
    /// The worker computes in user mode and does not yield.
    Computes,
    /// The worker computes in the kernel: a system call that works hard.
    InKernel,
    /// The worker sleeps in a system call that blocks its thread: it should go preemptive.
    Blocked,
    /// The worker sleeps because a lock that is held for moments is not let go (B48).
    Sick,
    /// The thread is ready and gets no processor: nobody here is to blame.
    Starved(Thief),
    /// The thread is ready, and the process's own other threads use the processors: preemptive
    /// calls, hidden schedulers, threads of the application.
    Crowded,
    /// Workers wait for something that nobody gives, this for most of them.
    WaitsFor(WaitReason),
    /// Workers wait, each for something else.
    WorkersWait,
    /// Workers could not be made: the system refuses threads or memory.
    CannotCreateWorkers,
    /// The disk, or whatever carries the file, is slow.
    Disk,
    /// Workers wait for each other.
    Circle,
    /// The figures do not tell.
    Unclear,
}

/// Who took the processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thief {
    /// Other processes of this machine.
    Others,
    /// The hypervisor: stolen time.
    Hypervisor,
    /// The control group's quota.
    Quota,
    /// Nobody knows who: the monitor itself got none either. The process was stopped, or the
    /// machine stood still.
    Standstill,
}

impl Diagnosis {
    /// Whether neither the application nor this library is to blame.
    pub fn exonerates(self) -> bool {
        matches!(self, Diagnosis::Starved(_) | Diagnosis::Disk)
    }

    /// Of a thread that should have yielded.
    pub(super) fn of(thread: &ThreadUse, process: &ProcessUse) -> Diagnosis {
        let span = process.interval.as_nanos().max(1);
        let percent = |part: std::time::Duration| part.as_nanos() * 100 / span;
        if percent(thread.user + thread.kernel) >= 40 {
            let kernel = thread.kernel > thread.user;
            return if kernel { Diagnosis::InKernel } else { Diagnosis::Computes };
        }
        let sleeps = matches!(thread.state, 'S' | 'D');
        let stolen = process.stolen >= process.interval / 3;
        if percent(thread.ready) >= 50 || (stolen && !sleeps) {
            return Diagnosis::without_processor(thread, process);
        }
        if sleeps { Diagnosis::Blocked } else { Diagnosis::Unclear }
    }

    fn without_processor(thread: &ThreadUse, process: &ProcessUse) -> Diagnosis {
        if process.throttled >= process.interval / 3 {
            return Diagnosis::Starved(Thief::Quota);
        }
        if process.stolen >= process.interval / 3 {
            return Diagnosis::Starved(Thief::Hypervisor);
        }
        let others = process.used.saturating_sub(thread.user + thread.kernel);
        let all = process.interval * process.allowed.max(1);
        if others * 10 >= all * 6 {
            return Diagnosis::Crowded;
        }
        Diagnosis::Starved(Thief::Others)
    }
}

impl std::fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Diagnosis::Computes => "it computes and does not yield",
            Diagnosis::InKernel => "it works in the kernel and does not yield",
            Diagnosis::Blocked => "it sleeps in a system call, which should go preemptive",
            Diagnosis::Sick => "it sleeps for a lock that is held for moments and is not let go",
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
    };

    /// Over a second, on two processors.
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
        Diagnosis::of(&thread, &process)
    }

    #[test]
    fn each_of_the_rules_has_its_figures_b34() {
        let cases = [
            (Case { user: 950, used: 960, ..QUIET }, Diagnosis::Computes),
            // Half a processor is all it gets, and it uses that: still its own doing.
            (Case { user: 480, ready: 510, used: 480, ..QUIET }, Diagnosis::Computes),
            (Case { kernel: 700, user: 100, used: 800, ..QUIET }, Diagnosis::InKernel),
            (Case { state: 'S', ..QUIET }, Diagnosis::Blocked),
            (Case { state: 'D', user: 10, ..QUIET }, Diagnosis::Blocked),
            (Case { user: 100, ready: 890, used: 110, ..QUIET }, Diagnosis::Starved(Thief::Others)),
            (Case { user: 100, ready: 890, used: 1900, ..QUIET }, Diagnosis::Crowded),
            // All of the one processor that it may use is used by its own other threads.
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
        ];
        for (case, expected) in &cases {
            assert_eq!(of(case), *expected);
            let outside = matches!(expected, Diagnosis::Starved(_));
            assert_eq!(expected.exonerates(), outside);
        }
    }
}
