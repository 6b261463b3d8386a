//! Races of the block watch that a random run does not reach. These tests provoke them;
//! docs/design/races.md lists all of them.
//!
//! Unsafe because of direct system calls. Named invariant **Own Memory**: they get locals and
//! numbers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use ums::watch::{Mechanism, mechanism};
use ums::windows::{self, CompletionList, SchedulerAction, WorkerContext};

use crate::harness::{Heard, Rounds, alone, eventually};

/// Returns true if this system can notice interposed calls only, not direct system calls.
fn only_calls() -> bool {
    let only = mechanism().unwrap() == Mechanism::Calls;
    if only {
        ums::testing::skipped("perf", "only interposed calls are noticed");
    }
    only
}

/// Creates a worker that computes and counts until the flag is set. Returns the flag and the count.
fn computes(list: &CompletionList) -> (Arc<AtomicBool>, Arc<AtomicU64>) {
    let (stop, beats) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (mine, count) = (stop.clone(), beats.clone());
    WorkerContext::spawn(list, move || {
        while !mine.load(SeqCst) {
            count.fetch_add(1, SeqCst);
        }
    })
    .unwrap();
    (stop, beats)
}

fn bare_read(pipe: &std::io::PipeReader) -> rustix::io::Result<usize> {
    rustix::io::read(pipe, &mut [0])
}

/// Returns the kernel's form of a signal set with only this signal.
fn set_of(signal: i32) -> u64 {
    1 << (signal - 1)
}

fn change_mask(how: i32, set: u64) {
    // SAFETY: Own Memory: a local of the kernel's size.
    let done = unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, how, &set, std::ptr::null_mut::<u64>(), 8_usize)
    };
    assert_eq!(done, 0);
}

#[test]
fn a_worker_that_blocks_sigtrap_meets_its_gate_when_it_unblocks_it_r8() {
    if only_calls() {
        return;
    }
    if crate::OWN {
        return; // In user mode the mask is the scheduler's, and such a block holds that up.
    }
    alone(|| {
        let list = CompletionList::new().unwrap();
        let (pipe, feed) = std::io::pipe().unwrap();
        let (stage, gone_on) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        let (mine, last) = (stage.clone(), gone_on.clone());
        WorkerContext::spawn(&list, move || {
            // A direct system call, because a program may have interposed the C library's function.
            change_mask(libc::SIG_BLOCK, set_of(libc::SIGTRAP));
            mine.store(1, SeqCst);
            bare_read(&pipe).unwrap();
            mine.store(2, SeqCst);
            change_mask(libc::SIG_UNBLOCK, set_of(libc::SIGTRAP));
            last.store(true, SeqCst);
        })
        .unwrap();
        let (stop, beats) = computes(&list);
        let outside = std::thread::spawn(move || {
            eventually("the other computes, for the first has blocked", || beats.load(SeqCst) > 0);
            assert_eq!(stage.load(SeqCst), 1);
            std::io::Write::write_all(&mut &feed, b"x").unwrap();
            std::thread::sleep(Duration::from_millis(100));
            // While SIGTRAP was blocked the worker kept running, as documented, but it did not pass
            // the call that unblocked the signal.
            let early = gone_on.load(SeqCst);
            stop.store(true, SeqCst);
            early
        });
        Rounds::run(&list);
        assert!(!outside.join().unwrap(), "it ran beyond its gate");
    });
}

#[test]
fn a_worker_that_changes_its_affinity_is_noticed_all_the_same_r10() {
    if only_calls() {
        return;
    }
    let before = rustix::thread::sched_getaffinity(None).unwrap();
    if (0..1024).filter(|&cpu| before.is_set(cpu)).count() < 2 {
        ums::testing::skipped("processors", "there is one only");
        return;
    }
    alone(move || {
        let list = CompletionList::new().unwrap();
        let (pipe, feed) = std::io::pipe().unwrap();
        let (steps, over) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        let (mine, done) = (steps.clone(), over.clone());
        WorkerContext::spawn(&list, move || {
            for step in 0..50_usize {
                // Any processor but its own.
                let mut mask = before;
                mask.unset(rustix::thread::sched_getcpu());
                rustix::thread::sched_setaffinity(None, &mask).unwrap();
                bare_read(&pipe).unwrap();
                mine.store(step as u32 + 1, SeqCst);
            }
            done.store(true, SeqCst);
        })
        .unwrap();
        let yields = Arc::new(AtomicU64::new(0));
        let count = yields.clone();
        WorkerContext::spawn(&list, move || {
            // If a block is not noticed, no thread writes to the pipe, and the test hangs.
            while !over.load(SeqCst) {
                if steps.load(SeqCst) < 50 {
                    std::io::Write::write_all(&mut &feed, b"x").unwrap();
                }
                count.fetch_add(1, SeqCst);
                std::thread::sleep(Duration::from_millis(1));
                windows::thread_yield(0).unwrap();
            }
        })
        .unwrap();
        Rounds::run(&list);
        assert!(yields.load(SeqCst) > 0);
    });
}

/// The kernel wakes many workers while one computes. Each of them gets the processor until it
/// reaches its gate and no further, and the computing worker loses the processor only for that
/// time.
#[test]
fn workers_woken_together_pass_no_gate_and_leave_the_running_one_its_processor_r11() {
    if only_calls() {
        return;
    }
    alone(|| {
        const SLEEPERS: u32 = 16;
        let list = CompletionList::new().unwrap();
        let awake = Arc::new(AtomicU32::new(0));
        let word = Arc::new(AtomicU32::new(0));
        for _ in 0..SLEEPERS {
            let (mine, word) = (awake.clone(), word.clone());
            WorkerContext::spawn(&list, move || {
                // A direct futex wait on one word. One wake-up ends it for all workers.
                while word.load(SeqCst) == 0 {
                    let flags = rustix::thread::futex::Flags::PRIVATE;
                    let _ = rustix::thread::futex::wait(&word, flags, 0, None);
                }
                mine.fetch_add(1, SeqCst);
            })
            .unwrap();
        }
        let (stop, beats) = computes(&list);
        let ran = awake.clone();
        let outside = std::thread::spawn(move || {
            eventually("the last computes", || beats.load(SeqCst) > 0);
            word.store(1, SeqCst);
            let flags = rustix::thread::futex::Flags::PRIVATE;
            let woken = rustix::thread::futex::wake(&word, flags, i32::MAX as u32);
            std::thread::sleep(Duration::from_millis(50));
            let (before, early) = (beats.load(SeqCst), ran.load(SeqCst));
            eventually("the running worker has the processor", || beats.load(SeqCst) > before);
            stop.store(true, SeqCst);
            (woken, early)
        });
        Rounds::run(&list);
        let (woken, early) = outside.join().unwrap();
        let woken = woken.unwrap() as u32;
        // A worker that is being moved to its own kernel thread may not have begun its call again
        // yet.
        assert!(woken == SLEEPERS || crate::OWN && woken > 0, "all of them were blocked: {woken}");
        assert_eq!(early, 0, "a woken worker ran its code");
        assert_eq!(awake.load(SeqCst), SLEEPERS);
    });
}

#[test]
fn the_watchdog_detects_a_block_when_the_watcher_gets_no_processor_r12() {
    if only_calls() {
        return;
    }
    alone(|| {
        let list = CompletionList::new().unwrap();
        let over = Arc::new(AtomicBool::new(false));
        for _ in 0..2 {
            let work = || (0..6).for_each(|_| std::thread::sleep(Duration::from_millis(40)));
            WorkerContext::spawn(&list, work).unwrap();
        }
        let mut rounds = Rounds::new(&list);
        let mut hogs = Vec::new();
        let mut rescues = 0;
        windows::enter_scheduling_mode(|scheduler, reason| {
            // Ordinary threads keep this processor busy, so that the watcher thread gets almost
            // none of it.
            while hogs.len() < 2 {
                let (cpu, stop) = (scheduler.cpu(), over.clone());
                hogs.push(std::thread::spawn(move || {
                    let mut mask = rustix::thread::CpuSet::new();
                    mask.set(cpu);
                    rustix::thread::sched_setaffinity(None, &mask).unwrap();
                    while !stop.load(SeqCst) {
                        std::hint::spin_loop();
                    }
                }));
            }
            rescues = rescues.max(scheduler.revokes().1);
            let next = rounds.next(scheduler, reason);
            if matches!(next, SchedulerAction::Leave) {
                over.store(true, SeqCst);
            }
            next
        })
        .unwrap();
        for hog in hogs {
            hog.join().unwrap();
        }
        println!("{rescues} of 12 blocks were noticed by the watchdog");
        let blocks = rounds.heard.iter().filter(|heard| matches!(heard, Heard::Blocked(..)));
        // Two more calls are for the ends of the two workers.
        assert!(blocks.count() >= 2 + 6, "blocks went unnoticed: {:?}", rounds.heard);
    });
}

static SIGNALS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count(_: libc::c_int) {
    SIGNALS.fetch_add(1, SeqCst);
}

/// Runs a worker that reads 300 bytes, each of which is written while the worker waits. Beside it
/// another worker, the writer, computes and yields, and `torment` acts on the reader's thread. The
/// reader must get every byte and no error, and must not run while the writer has the processor.
///
/// A page fault may block the writer, for example just after a fork. Then the scheduler executes
/// the reader, and rightly so. The scheduler counts these blocks before it does so.
fn tormented(torment: impl FnOnce(i32, &AtomicBool) + Send + 'static) {
    alone(move || {
        const BYTES: u32 = 300;
        let list = CompletionList::new().unwrap();
        let (pipe, feed) = std::io::pipe().unwrap();
        let (read, over) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        let (mine, done) = (read.clone(), over.clone());
        let worker = WorkerContext::spawn(&list, move || {
            for _ in 0..BYTES {
                assert_eq!(bare_read(&pipe), Ok(1));
                mine.fetch_add(1, SeqCst);
            }
            done.store(true, SeqCst);
        })
        .unwrap();
        let (theirs, last) = (read.clone(), over.clone());
        let blocks = Arc::new(AtomicU32::new(0));
        let seen = blocks.clone();
        let writer = WorkerContext::spawn(&list, move || {
            let mut written = 0;
            while !last.load(SeqCst) {
                let (run, before) = (seen.load(SeqCst), theirs.load(SeqCst));
                if written == before {
                    std::io::Write::write_all(&mut &feed, b"x").unwrap();
                    written += 1;
                }
                // During this time the reader wakes, and waits at its gate.
                let began = Instant::now();
                while began.elapsed() < Duration::from_micros(100) {
                    let ran = theirs.load(SeqCst) != before;
                    assert!(
                        !ran || seen.load(SeqCst) != run,
                        "the reader ran beside its scheduler"
                    );
                }
                windows::thread_yield(0).unwrap();
            }
        })
        .unwrap();
        let tid = worker.thread_id() as i32;
        let end = over.clone();
        let tormentor = std::thread::spawn(move || torment(tid, &end));
        let mut rounds = Rounds::new(&list);
        windows::enter_scheduling_mode(|scheduler, reason| {
            rounds.note(reason);
            if matches!(rounds.heard.last(), Some(Heard::Blocked(worker, ..)) if *worker == writer)
            {
                blocks.fetch_add(1, SeqCst);
            }
            rounds.choose(scheduler)
        })
        .unwrap();
        tormentor.join().unwrap();
        assert_eq!(read.load(SeqCst), BYTES);
    });
}

#[test]
fn a_storm_of_signals_at_a_worker_opens_no_gate_and_interrupts_nothing() {
    if only_calls() {
        return;
    }
    // SAFETY: Own Memory: a handler that only increments a counter.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count as extern "C" fn(libc::c_int) as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGURG, &action, std::ptr::null_mut());
    }
    let before = SIGNALS.load(SeqCst);
    tormented(|tid, over| {
        while !over.load(SeqCst) {
            // SAFETY: Own Memory: numbers.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, libc::SIGURG) };
            std::thread::sleep(Duration::from_micros(30));
        }
    });
    assert!(SIGNALS.load(SeqCst) > before + 10, "the signals did not arrive");
}

/// Runs in the child of a fork: attaches to the thread with ptrace and detaches again, in a loop.
/// Makes only system calls.
fn attach_forever(tid: i32) -> ! {
    for before in 0.. {
        let null = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: Own Memory: numbers and null.
        unsafe {
            if libc::ptrace(libc::PTRACE_SEIZE, tid, null, null) != 0 {
                // The thread has ended, or attaching is not allowed.
                libc::_exit(i32::from(before == 0));
            }
            libc::ptrace(libc::PTRACE_INTERRUPT, tid, null, null);
            libc::waitpid(tid, std::ptr::null_mut(), libc::__WALL);
            libc::ptrace(libc::PTRACE_DETACH, tid, null, null);
            libc::usleep(200);
        }
    }
    unreachable!("the loop ends only when the process is killed")
}

#[test]
fn a_debugger_that_attaches_and_detaches_opens_no_gate() {
    if only_calls() {
        return;
    }
    tormented(|tid, over| {
        // SAFETY: Own Memory: numbers; the child makes system calls only.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            attach_forever(tid);
        }
        eventually("the reader is done", || over.load(SeqCst));
        let mut status = 0;
        // SAFETY: Own Memory: a number and a local.
        let ended = unsafe {
            let early = libc::waitpid(child, &mut status, libc::WNOHANG);
            libc::kill(child, libc::SIGKILL);
            early == child || libc::waitpid(child, &mut status, 0) == child
        };
        assert!(ended);
        if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 1 {
            ums::testing::skipped("attaching", "the kernel refuses it");
        }
    });
}

#[test]
fn a_list_that_is_filled_while_its_scheduler_falls_asleep_wakes_it_r6() {
    alone(|| {
        let list = CompletionList::new().unwrap();
        // Both workers sleep and wake at nearly the same moments, many times.
        for _ in 0..4 {
            let work = || {
                for us in 0..100_u64 {
                    std::thread::sleep(Duration::from_micros(us));
                    windows::thread_yield(0).unwrap();
                }
            };
            WorkerContext::spawn(&list, work).unwrap();
        }
        let heard = Rounds::run(&list);
        assert!(heard.iter().filter(|heard| matches!(heard, Heard::Yield(..))).count() == 400);
    });
}

/// Sends the calling thread the SIGTRAP that the kernel sends for a debug exception without a known
/// cause.
#[cfg(target_arch = "x86_64")]
fn trap_without_a_cause() {
    // SAFETY: Own Memory: a local, for which all zeros are a valid value, and numbers.
    let sent = unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        info.si_signo = libc::SIGTRAP;
        info.si_code = libc::TRAP_BRKPT;
        let (process, thread) = (libc::getpid(), libc::gettid());
        libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, thread, libc::SIGTRAP, &raw const info)
    };
    assert_eq!(sent, 0, "{}", std::io::Error::last_os_error());
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_breakpoint_whose_cause_was_lost_does_not_end_the_process_r13() {
    const NAME: &str = "races::a_breakpoint_whose_cause_was_lost_does_not_end_the_process_r13";
    if let Err(text) = Mechanism::Breakpoint.try_here() {
        ums::testing::skipped("breakpoint", text);
        return;
    }
    if mechanism().unwrap() != Mechanism::Breakpoint {
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", NAME]).env("UMS_WATCH", Mechanism::Breakpoint.name());
        let output = again.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{}: {text}", output.status);
        assert!(text.contains("1 passed"), "{text}");
        return;
    }
    alone(|| {
        let list = CompletionList::new().unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let done = over.clone();
        WorkerContext::spawn(&list, move || {
            trap_without_a_cause();
            std::thread::sleep(Duration::from_millis(1));
            trap_without_a_cause();
            done.store(true, SeqCst);
        })
        .unwrap();
        Rounds::run(&list);
        assert!(over.load(SeqCst));
    });
}
