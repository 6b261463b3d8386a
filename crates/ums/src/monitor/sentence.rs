//! The message that is printed on stderr for a node that was given no options for the monitor.
//!
//! ```text
//! scheduler '0' is held up: its fiber worker 1 has not yielded for 1.0 s and computes,
//! in app::parse (main.rs:12). Call ums::yield_now() in such code, or hand it to ums::go_preemptive
//! ```
//!
//! The message says what is wrong, in which function, and what to do. A report contains much more.
//! Reports are for programs that have asked for them (`text.rs`).

use std::sync::atomic::Ordering;

use super::Diagnosis;
use super::report::{Condition, Report};
use crate::record::frame::{Frame, guilty};
use crate::record::report::WarningKind;
use crate::scheduler::{Scheduler, WorkerKind};
use crate::watch::Waits;

/// The longest name of a function, in characters. Longer names are cut, so that there is room for
/// the advice.
const NAME_MAX: usize = 200;

/// Returns the kind of message that a report counts as, for the rate limit.
pub(super) fn kind(report: &Report) -> WarningKind {
    match report.condition {
        Condition::NoWorkers | Condition::NotPickedUp => WarningKind::Standstill,
        _ => WarningKind::Stall,
    }
}

/// Returns the message about a worker or a completion routine that keeps the scheduler. `waits` is
/// the call or fault in which its thread was seen to wait, if any.
pub(super) fn of_stall(report: &Report, s: &Scheduler, waits: Option<&Waits>) -> String {
    let seconds = report.lasted.as_secs_f64();
    let worker = match s.options.kind {
        WorkerKind::Thread => "thread worker",
        WorkerKind::Fiber => "fiber worker",
        WorkerKind::OwnContext => "own-context worker",
    };
    let what = match (report.condition, report.worker) {
        (Condition::SlowRoutine, _) => format!("a completion routine has run for {seconds:.1} s"),
        (_, Some(n)) => format!("its {worker} {n} has not yielded for {seconds:.1} s"),
        (_, None) => format!("its {worker} has not yielded for {seconds:.1} s"),
    };
    let does = what_it_does(report.diagnosis, waits);
    let place = guilty(&report.backtrace).map(place).unwrap_or_default();
    let advice = match report.condition {
        Condition::SlowRoutine => "Let the routine wake a worker that does the work".to_owned(),
        _ => advice(report.diagnosis, s.options.kind, names(s)),
    };
    format!("scheduler '{}' is held up: {what} and {does}{place}. {advice}", s.name())
}

fn what_it_does(diagnosis: Diagnosis, waits: Option<&Waits>) -> String {
    match (diagnosis, waits) {
        (Diagnosis::Computes, _) => "computes".to_owned(),
        (Diagnosis::InKernel, _) => "works in the kernel".to_owned(),
        (Diagnosis::StuckOnShortLock, _) => {
            "sleeps for a lock that should be free in a moment".to_owned()
        }
        (Diagnosis::Blocked, Some(Waits { call: Some(number), .. })) => match name_of(*number) {
            Some(name) => format!("is blocked in the system call {name}"),
            None => format!("is blocked in the system call with the number {number}"),
        },
        (Diagnosis::Blocked, Some(_)) => "waits for memory that is not there yet".to_owned(),
        (Diagnosis::Blocked, None) => "sleeps most of the time, but not in this library".to_owned(),
        _ => "partly computes and partly sleeps".to_owned(),
    }
}

fn place(frame: &Frame) -> String {
    let mut name: String = frame.name.chars().take(NAME_MAX).collect();
    if name.len() < frame.name.len() {
        name.push_str("...");
    }
    match &frame.place {
        Some(place) => format!(", in {name} ({place})"),
        None => format!(", in {name}"),
    }
}

/// What the advice names, in the program's language.
struct Names {
    instead: &'static str,
    yields: &'static str,
    preemptive: &'static str,
    take_over: &'static str,
    detect: &'static str,
    stacks: &'static str,
}

const RUST: Names = Names {
    instead: "Use this library's call in its place",
    yields: "ums::yield_now()",
    preemptive: "ums::go_preemptive",
    take_over: "leave Builder::take_over_blocked on",
    detect: "turn Builder::detect_blocking on",
    stacks: "`ums stacks`, or after Node::print_stacks_on_sigusr2 by SIGUSR2",
};

const C: Names = Names {
    // There, the program sets the mode of its descriptors, and blocks in `ums_read` without it.
    instead: "Use this library's call in its place, with O_NONBLOCK on pipes and sockets",
    yields: "ums_yield()",
    preemptive: "ums_go_preemptive",
    take_over: "leave the flag UMS_KEEP_BLOCKED out",
    detect: "set the flag UMS_DETECT_BLOCKING",
    stacks: "`ums stacks`",
};

fn names(s: &Scheduler) -> &'static Names {
    if s.options.for_c { &C } else { &RUST }
}

fn advice(diagnosis: Diagnosis, kind: WorkerKind, names: &Names) -> String {
    let Names { instead, yields, preemptive, take_over, detect, .. } = names;
    let cure = match (diagnosis, kind) {
        (Diagnosis::Computes, _) => {
            return format!("Call {yields} now and then in such code, or hand it to {preemptive}");
        }
        (Diagnosis::StuckOnShortLock, _) => {
            return "What its threads are doing is shown by `ums stacks`, or by a debugger".into();
        }
        (_, WorkerKind::Thread) => take_over,
        (_, WorkerKind::Fiber) => "make the workers threads",
        (_, WorkerKind::OwnContext) => detect,
    };
    format!("{instead}, hand it to {preemptive}, or {cure}")
}

/// Returns the message about requests that wait and of which none was begun.
pub(super) fn of_queue(report: &Report, s: &Scheduler) -> String {
    let workers = s.counters.workers.load(Ordering::Relaxed);
    let (name, queued, seconds) = (s.name(), report.queued, report.lasted.as_secs_f64());
    let what = format!(
        "scheduler '{name}' has begun none of its queued requests ({queued}) for {seconds:.1} s"
    );
    if workers < s.options.limit.hard as u64 {
        return format!(
            "{what}, and the monitor cannot tell why: what its workers are doing is shown by {}",
            names(s).stacks
        );
    }
    let does = match report.common_wait {
        Some(reason) if report.condition == Condition::NoWorkers => {
            format!("; most wait for {}", reason.name())
        }
        _ => String::new(),
    };
    format!(
        "{what}: none of its workers ({workers}) has ended its request{does}. Leave max_workers \
         out or raise it, or let fewer requests wait at once"
    )
}

/// Returns the name of a system call, if it is one in which threads block.
fn name_of(number: i64) -> Option<&'static str> {
    macro_rules! names {
        ($($name:ident $call:ident,)*) => {
            match number {
                $(libc::$call => Some(stringify!($name)),)*
                _ => more_names(number),
            }
        };
    }
    names! {
        accept SYS_accept, accept4 SYS_accept4, clock_nanosleep SYS_clock_nanosleep,
        close SYS_close, connect SYS_connect, copy_file_range SYS_copy_file_range,
        epoll_pwait SYS_epoll_pwait, fallocate SYS_fallocate, fcntl SYS_fcntl,
        fdatasync SYS_fdatasync, flock SYS_flock, fsync SYS_fsync, futex SYS_futex,
        getdents64 SYS_getdents64, ioctl SYS_ioctl, madvise SYS_madvise, mmap SYS_mmap,
        mprotect SYS_mprotect, msync SYS_msync, munmap SYS_munmap, nanosleep SYS_nanosleep,
        newfstatat SYS_newfstatat, openat SYS_openat, ppoll SYS_ppoll, pread64 SYS_pread64,
        preadv SYS_preadv, pselect6 SYS_pselect6, pwrite64 SYS_pwrite64, pwritev SYS_pwritev,
        read SYS_read, readv SYS_readv, recvfrom SYS_recvfrom, recvmmsg SYS_recvmmsg,
        recvmsg SYS_recvmsg, semop SYS_semop, sendfile SYS_sendfile, sendmsg SYS_sendmsg,
        sendto SYS_sendto, splice SYS_splice, statx SYS_statx, sync SYS_sync,
        wait4 SYS_wait4, waitid SYS_waitid, write SYS_write, writev SYS_writev,
    }
}

#[cfg(target_arch = "x86_64")]
fn more_names(number: i64) -> Option<&'static str> {
    match number {
        libc::SYS_epoll_wait => Some("epoll_wait"),
        libc::SYS_open => Some("open"),
        libc::SYS_poll => Some("poll"),
        libc::SYS_rename => Some("rename"),
        libc::SYS_select => Some("select"),
        libc::SYS_stat => Some("stat"),
        libc::SYS_unlink => Some("unlink"),
        libc::SYS_vfork => Some("vfork"),
        _ => None,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn more_names(_: i64) -> Option<&'static str> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sentence_names_the_call_that_a_worker_is_blocked_in() {
        let waits = |call| Waits { call, args: [0; 6], pc: 0, sp: 0 };
        let said = |call| what_it_does(Diagnosis::Blocked, Some(&waits(call)));
        assert_eq!(said(Some(libc::SYS_futex)), "is blocked in the system call futex");
        assert_eq!(said(Some(9999)), "is blocked in the system call with the number 9999");
        assert_eq!(said(None), "waits for memory that is not there yet");
        let unseen = what_it_does(Diagnosis::Blocked, None);
        assert_eq!(unseen, "sleeps most of the time, but not in this library");
    }

    #[test]
    fn advice_for_c_names_what_c_calls_and_sets() {
        let kinds = [WorkerKind::Thread, WorkerKind::Fiber, WorkerKind::OwnContext];
        let both = [Diagnosis::Computes, Diagnosis::Blocked];
        for (diagnosis, kind) in both.iter().flat_map(|d| kinds.map(|kind| (*d, kind))) {
            let (rust, c) = (advice(diagnosis, kind, &RUST), advice(diagnosis, kind, &C));
            assert!(rust.contains("ums::go_preemptive"), "{rust}");
            assert!(c.contains("ums_go_preemptive"), "{c}");
            assert!(!c.contains("::"), "{c}");
        }
        let blocked = |kind| advice(Diagnosis::Blocked, kind, &C);
        assert!(blocked(WorkerKind::Thread).ends_with("leave the flag UMS_KEEP_BLOCKED out"));
        assert!(blocked(WorkerKind::OwnContext).ends_with("set the flag UMS_DETECT_BLOCKING"));
    }

    #[test]
    fn a_long_name_leaves_room_for_the_advice() {
        let long = Frame::new("a::".repeat(400), None);
        assert_eq!(place(&long).chars().count(), ", in ".len() + NAME_MAX + "...".len());
        assert_eq!(place(&Frame::new("a::b".into(), Some("b.rs:3".into()))), ", in a::b (b.rs:3)");
    }
}
