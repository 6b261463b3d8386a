//! A worker blocks in the kernel. Its scheduler is called and runs another worker. The blocked
//! worker, once woken, runs no instruction of its own code until it is executed again.
//!
//! Unsafe only because of system calls for which the library has no safe form. Named invariant
//! **Own Memory**: they get only memory that the test allocated and keeps.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use ums::watch::{Mechanism, mechanism};
use ums::windows::{self, CompletionList, Reason, SchedulerAction, WorkerContext};

use crate::faults;
use crate::harness::{Heard, Rounds, alone, eventually};

/// Returns whether, on this system, only blocks in interposed calls are noticed, and this program
/// interposes none.
fn only_calls() -> bool {
    mechanism().unwrap() == Mechanism::Calls && !crate::INTERPOSED
}

/// Runs one worker that calls `blocks`, and one that computes until the first has finished. Returns
/// how often the first one blocked.
fn beside_a_computing_worker(
    name: &'static str,
    blocks: impl FnOnce() + Send + 'static,
) -> Vec<(bool, bool)> {
    alone(move || {
        let list = CompletionList::new().unwrap();
        let done = Arc::new(AtomicBool::new(false));
        let (mine, theirs) = (done.clone(), done.clone());
        let blocker = WorkerContext::spawn(&list, move || {
            blocks();
            mine.store(true, Ordering::SeqCst);
        })
        .unwrap();
        let began = Instant::now();
        WorkerContext::spawn(&list, move || {
            while !theirs.load(Ordering::SeqCst) {
                assert!(began.elapsed() < Duration::from_secs(60), "{name}: the other never ends");
                windows::thread_yield(0).unwrap();
            }
        })
        .unwrap();
        let heard = Rounds::run(&list);
        let of_blocker = |heard: &Heard| match heard {
            Heard::Blocked(worker, syscall, ended) if *worker == blocker => {
                Some((*syscall, *ended))
            }
            _ => None,
        };
        heard.iter().filter_map(of_blocker).collect()
    })
}

fn blocks_in_a_call(name: &'static str, blocks: impl FnOnce() + Send + 'static) {
    if only_calls() {
        println!("{name}: without perf only interposed calls are noticed");
        return;
    }
    let seen = beside_a_computing_worker(name, blocks);
    let calls = seen.iter().filter(|(syscall, ended)| *syscall && !ended).count();
    assert!(calls >= 1, "{name}: its scheduler was not called: {seen:?}");
}

/// Calls the closure on a plain thread, a little later.
fn later(f: impl FnOnce() + Send + 'static) {
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        f();
    });
}

#[test]
fn a_read_from_a_pipe_lets_another_run() {
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    blocks_in_a_call("read", move || {
        later(move || writer.write_all(b"x").unwrap());
        let mut byte = [0];
        assert_eq!(reader.read(&mut byte).unwrap(), 1);
    });
}

/// `read`, by a system call instruction whose first byte is on one page and whose second byte is on
/// the next.
#[cfg(target_arch = "x86_64")]
fn read_on_two_pages(file: &impl std::os::fd::AsRawFd, bytes: &mut [u8]) -> isize {
    /// `xor eax, eax; syscall; ret`: a C function whose arguments are passed to the kernel
    /// unchanged.
    const CODE: [u8; 5] = [0x31, 0xc0, 0x0f, 0x05, 0xc3];
    type Read = extern "C" fn(libc::c_int, *mut u8, usize) -> isize;
    const PAGE: usize = 4096;
    // SAFETY: Own Memory: two new pages that become code. The code is a function of this type, and
    // preserves the registers that it must.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let writable = libc::PROT_READ | libc::PROT_WRITE;
        let pages = libc::mmap(std::ptr::null_mut(), 2 * PAGE, writable, flags, -1, 0);
        assert_ne!(pages, libc::MAP_FAILED);
        let code = pages.cast::<u8>().add(PAGE - 3);
        code.copy_from_nonoverlapping(CODE.as_ptr(), CODE.len());
        assert_eq!(libc::mprotect(pages, 2 * PAGE, libc::PROT_READ | libc::PROT_EXEC), 0);
        let read = std::mem::transmute::<*mut u8, Read>(code);
        let came = read(file.as_raw_fd(), bytes.as_mut_ptr(), bytes.len());
        assert_eq!(libc::munmap(pages, 2 * PAGE), 0);
        came
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_read_by_an_instruction_on_two_pages_lets_another_run() {
    if mechanism().unwrap() == Mechanism::Calls {
        ums::testing::skipped("perf", "only interposed calls are noticed");
        return;
    }
    let (reader, mut writer) = std::io::pipe().unwrap();
    blocks_in_a_call("read", move || {
        later(move || writer.write_all(b"x").unwrap());
        assert_eq!(read_on_two_pages(&reader, &mut [0]), 1);
    });
}

#[test]
fn a_sleep_lets_another_run() {
    // Long enough for a watching thread to get a processor meanwhile, also on a busy computer.
    blocks_in_a_call("nanosleep", || std::thread::sleep(Duration::from_millis(200)));
}

#[test]
fn a_condition_variable_lets_another_run() {
    let pair = Arc::new((Mutex::new(false), Condvar::new()));
    let theirs = pair.clone();
    blocks_in_a_call("futex", move || {
        later(move || {
            *theirs.0.lock().unwrap() = true;
            theirs.1.notify_all();
        });
        let mut ready = pair.0.lock().unwrap();
        while !*ready {
            ready = pair.1.wait(ready).unwrap();
        }
    });
}

#[test]
fn an_accept_lets_another_run() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    blocks_in_a_call("accept", move || {
        later(move || drop(std::net::TcpStream::connect(address).unwrap()));
        listener.accept().unwrap();
    });
}

#[test]
fn waiting_for_a_child_lets_another_run() {
    blocks_in_a_call("wait", || {
        let mut child = std::process::Command::new("sleep").arg("0.05").spawn().unwrap();
        assert!(child.wait().unwrap().success());
    });
}

#[test]
fn a_page_fault_lets_another_run_and_is_told_from_a_call_w2() {
    let Some(page) = faults::Page::new() else {
        ums::testing::skipped("userfaultfd", "the kernel refuses it");
        return;
    };
    if crate::OWN {
        return; // Of workers in user mode faults are not noticed.
    }
    if mechanism().unwrap() == Mechanism::Calls {
        ums::testing::skipped("perf", "faults are not noticed");
        return;
    }
    let base = page.base();
    let seen = beside_a_computing_worker("fault", move || {
        later(move || page.resolve());
        assert_eq!(faults::Page::touch(base), 0);
    });
    assert!(seen.contains(&(false, false)), "a fault is no system call: {seen:?}");
}

/// Worker A is blocked in a read and is woken while worker B computes. Returns whether A ran its
/// own code while B computed.
fn woken_beside_a_computing_worker() -> bool {
    alone(|| {
        let list = CompletionList::new().unwrap();
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        let (read, enough) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (mine, last) = (read.clone(), enough.clone());
        WorkerContext::spawn(&list, move || {
            let mut byte = [0];
            assert_eq!(reader.read(&mut byte).unwrap(), 1);
            mine.store(true, Ordering::SeqCst);
        })
        .unwrap();
        WorkerContext::spawn(&list, move || {
            while !last.load(Ordering::SeqCst) {
                std::hint::spin_loop();
            }
        })
        .unwrap();
        let (queued, seen) = (list.clone(), read.clone());
        let other = std::thread::spawn(move || {
            // Both workers have run by now: the first is blocked, the second computes.
            std::thread::sleep(Duration::from_millis(50));
            writer.write_all(b"x").unwrap();
            eventually("the reader is on the list", || {
                !queued.is_empty() || seen.load(Ordering::SeqCst)
            });
            std::thread::sleep(Duration::from_millis(50));
            let early = seen.load(Ordering::SeqCst);
            enough.store(true, Ordering::SeqCst);
            early
        });
        Rounds::run(&list);
        assert!(read.load(Ordering::SeqCst));
        other.join().unwrap()
    })
}

#[test]
fn a_woken_worker_runs_nothing_until_it_is_executed_and_would_without_its_gate() {
    if only_calls() {
        return; // See the interposed tests.
    }
    assert!(!woken_beside_a_computing_worker(), "the gate leaks");
    // The positive control: with the gate switched off, the same harness must notice a leak.
    ums::watch::switch_gate(false);
    // On a busy computer the woken worker may not get a processor in time to be noticed. Then the
    // test tries again.
    let leaked = (0..10).any(|_| woken_beside_a_computing_worker());
    ums::watch::switch_gate(true);
    assert!(leaked, "the harness does not notice a missing gate");
}

#[test]
fn the_scheduler_is_called_when_all_workers_are_blocked_and_may_wait() {
    if only_calls() {
        return;
    }
    alone(|| {
        let blocked = |heard: &&Heard| matches!(heard, Heard::Blocked(_, true, false));
        let mut heard = Vec::new();
        // On a busy computer, a sleep may end before a watching thread gets a processor. Then the
        // test tries again.
        for _ in 0..10 {
            let list = CompletionList::new().unwrap();
            for ms in [40, 60, 80, 100] {
                let work = move || std::thread::sleep(Duration::from_millis(ms));
                WorkerContext::spawn(&list, work).unwrap();
            }
            let began = Instant::now();
            heard = Rounds::run(&list);
            assert!(began.elapsed() >= Duration::from_millis(100));
            if heard.iter().filter(blocked).count() >= 4 {
                return;
            }
        }
        panic!("{heard:?}");
    });
}

#[test]
fn a_scheduler_that_waits_for_a_blocked_workers_lock_is_no_deadlock_w8() {
    if only_calls() {
        return;
    }
    alone(|| {
        let list = CompletionList::new().unwrap();
        let lock = Arc::new(Mutex::new(()));
        let (mine, held) = (lock.clone(), Arc::new(AtomicBool::new(false)));
        let lent = Arc::new(AtomicU64::new(0));
        let (tell, seen) = (held.clone(), lent.clone());
        WorkerContext::spawn(&list, move || {
            // On a busy computer, a sleep may end before the scheduler runs.
            for _ in 0..1000 {
                let guard = mine.lock().unwrap();
                tell.store(true, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(10));
                drop(guard);
                std::thread::sleep(Duration::from_millis(1)); // The scheduler gets the lock.
                if seen.load(Ordering::SeqCst) > 0 {
                    break;
                }
            }
        })
        .unwrap();
        let mut rounds = Rounds::new(&list);
        windows::enter_scheduling_mode(|scheduler, reason| {
            // As in malloc: the worker blocks while it holds the lock. When it is woken, it waits
            // at its gate and still holds the lock.
            if held.load(Ordering::SeqCst) {
                drop(lock.lock().unwrap());
            }
            lent.fetch_max(scheduler.lent(), Ordering::SeqCst);
            rounds.next(scheduler, reason)
        })
        .unwrap();
        assert!(
            lent.load(Ordering::SeqCst) >= 1,
            "the worker was allowed to run because the scheduler waited"
        );
    });
}

static SIGNALS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count(_: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::SeqCst);
}

/// Returns the result of a raw read that is interrupted by a signal with these flags, and then gets
/// data.
fn interrupted_read(signal: i32, flags: i32) -> (isize, i32) {
    alone(move || {
        // SAFETY: Own Memory: a handler that only increments a counter.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = count as extern "C" fn(libc::c_int) as usize;
            action.sa_flags = flags;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
        let before = SIGNALS.load(Ordering::SeqCst);
        let list = CompletionList::new().unwrap();
        let (reader, mut writer) = std::io::pipe().unwrap();
        let descriptor = reader.as_raw_fd();
        let result = Arc::new(Mutex::new(None));
        let mine = result.clone();
        let worker = WorkerContext::spawn(&list, move || {
            let mut byte = [0_u8];
            // SAFETY: Own Memory: one byte.
            let n = unsafe { libc::read(reader.as_raw_fd(), byte.as_mut_ptr().cast(), 1) };
            let error = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
            *mine.lock().unwrap() = Some((n, error));
        })
        .unwrap();
        let tid = worker.thread_id() as i32;
        let sender = std::thread::spawn(move || {
            let call = format!("{} {descriptor:#x} ", libc::SYS_read);
            eventually("the worker waits in read", || {
                let file = format!("/proc/self/task/{tid}/syscall");
                std::fs::read_to_string(file).is_ok_and(|text| text.starts_with(&call))
            });
            // SAFETY: Own Memory: numbers.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), tid, signal) };
            eventually("the handler has run", || SIGNALS.load(Ordering::SeqCst) > before);
            std::thread::sleep(Duration::from_millis(20));
            let _ = writer.write_all(b"x");
        });
        Rounds::run(&list);
        sender.join().unwrap();
        let seen = result.lock().unwrap().take();
        seen.expect("the read came back")
    })
}

#[test]
fn a_signal_interrupts_a_blocked_call_exactly_when_its_handler_says_so() {
    if only_calls() {
        return;
    }
    assert_eq!(interrupted_read(libc::SIGUSR1, 0), (-1, libc::EINTR));
    assert_eq!(interrupted_read(libc::SIGUSR2, libc::SA_RESTART).0, 1);
}

#[test]
fn many_schedulers_share_one_list_and_each_item_comes_once_w10_w11() {
    alone(|| {
        const WORKERS: u32 = 40;
        const STEPS: u32 = 20;
        let list = CompletionList::new().unwrap();
        let steps = Arc::new(AtomicU32::new(0));
        for n in 0..WORKERS {
            let steps = steps.clone();
            let work = move || {
                for step in 0..STEPS {
                    steps.fetch_add(1, Ordering::SeqCst);
                    match (n + step) % 4 {
                        0 => std::thread::sleep(Duration::from_micros(100)),
                        _ => windows::thread_yield(0).unwrap(),
                    }
                }
            };
            WorkerContext::spawn(&list, work).unwrap();
        }
        let schedulers: Vec<_> = (0..3)
            .map(|_| {
                let list = list.clone();
                std::thread::spawn(move || Rounds::run(&list).len())
            })
            .collect();
        let calls: Vec<_> = schedulers.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert_eq!(steps.load(Ordering::SeqCst), WORKERS * STEPS);
        assert_eq!(list.members(), 0);
        assert!(calls.iter().all(|&calls| calls >= 1), "{calls:?}");
    });
}

#[test]
fn a_worker_that_is_executed_while_it_runs_without_a_place_keeps_its_gate_r15() {
    if crate::OWN {
        return; // It needs a thread whose bare system calls are noticed.
    }
    if mechanism().unwrap() == Mechanism::Calls {
        ums::testing::skipped("perf", "bare system calls are not noticed");
        return;
    }
    // On a busy computer the worker may not be blocked when the story needs it. Then the story is
    // repeated.
    let told = (0..100).any(|_| alone(keeps_its_gate_without_a_place));
    assert!(told, "the worker was never blocked when the scheduler expected it");
}

/// Returns false if the worker was not blocked when the story needed it.
fn keeps_its_gate_without_a_place() -> bool {
    let list = CompletionList::new().unwrap();
    let (pipe, mut feed) = std::io::pipe().unwrap();
    let (word, gone_on) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
    let (mine, last) = (word.clone(), gone_on.clone());
    WorkerContext::spawn(&list, move || {
        let short = rustix::thread::Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        let _ = rustix::thread::nanosleep(&short);
        // Because the scheduler waits for this word, the worker is allowed to run here although no
        // scheduler executes it. It keeps running like that until it blocks again.
        mine.store(1, Ordering::SeqCst);
        rustix::io::read(&pipe, &mut [0]).unwrap();
        last.store(true, Ordering::SeqCst);
    })
    .unwrap();
    let (mut blocks, mut lent) = (0, 0);
    let (mut early, mut missed) = (false, false);
    windows::enter_scheduling_mode(|scheduler, reason| {
        blocks += u32::from(matches!(reason, Reason::Blocked { .. }));
        lent = scheduler.lent();
        if blocks == 1 {
            // The entry point waits for the worker, as it would for a lock that the worker holds.
            while word.load(Ordering::SeqCst) == 0 {
                let little = libc::timespec { tv_sec: 0, tv_nsec: 5_000_000 };
                let (at, wait) = (word.as_ptr(), libc::FUTEX_WAIT);
                // SAFETY: Own Memory: a word that lives, and a local.
                unsafe { libc::syscall(libc::SYS_futex, at, wait, 0, &raw const little) };
            }
            // Meanwhile the worker continues until its second block.
            std::thread::sleep(Duration::from_millis(20));
        }
        if blocks == 2 && !gone_on.load(Ordering::SeqCst) {
            feed.write_all(b"x").unwrap();
            std::thread::sleep(Duration::from_millis(20));
            early = gone_on.load(Ordering::SeqCst);
        }
        if list.members() == 0 || early {
            return SchedulerAction::Leave;
        }
        let first = list.dequeue(Some(Duration::from_secs(2)));
        let items = first.or_else(|_| {
            missed = true;
            feed.write_all(b"x").unwrap();
            list.dequeue(Some(Duration::from_secs(30)))
        });
        let worker = items.unwrap().next();
        let worker = worker.expect("it comes to its list");
        match worker.is_terminated() {
            true => SchedulerAction::Leave,
            false => SchedulerAction::Execute(scheduler.claim(&worker).unwrap()),
        }
    })
    .unwrap();
    assert!(!early, "it ran beyond its gate");
    !missed && lent >= 1
}

#[test]
fn an_unblocked_worker_comes_to_the_list_of_its_creation_w11() {
    if only_calls() {
        return;
    }
    alone(|| {
        let (theirs, mine) = (CompletionList::new().unwrap(), CompletionList::new().unwrap());
        let work = || std::thread::sleep(Duration::from_millis(5));
        let worker = WorkerContext::spawn(&theirs, work).unwrap();
        let mut next = theirs.poll().next();
        windows::enter_scheduling_mode(|scheduler, reason| {
            if let Reason::Yield { .. } = reason {
                panic!("no worker yields");
            }
            if worker.is_terminated() {
                return SchedulerAction::Leave;
            }
            if let Some(worker) = next.take() {
                return SchedulerAction::Execute(scheduler.claim(&worker).unwrap());
            }
            // The worker blocked while this scheduler, whose list would be `mine`, executed it.
            let back = theirs.dequeue(None).unwrap().next().unwrap();
            assert!(mine.is_empty());
            SchedulerAction::Execute(scheduler.claim(&back).unwrap())
        })
        .unwrap();
    });
}
