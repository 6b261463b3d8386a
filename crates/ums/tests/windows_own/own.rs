//! What only workers with their own context do: they are executed in user mode, without a system
//! call, on their scheduler's kernel thread. Calls that may block move them to their own kernel
//! thread.
//!
//! Unsafe because of a filter of system calls. Named invariant **Own Memory**: the calls get
//! locals.

use std::cell::{Cell, RefCell};
use std::collections::{HashSet, VecDeque};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use ums::windows::{self, CompletionList, ExecuteError, Reason, SchedulerAction, WorkerContext};

use crate::harness::{Heard, Rounds, alone};
use crate::semantics::threads_of_the_test;
use crate::signals::blocked_signals;

/// Returns whether this system supports such workers. If it does not, the other tests of this
/// program run with threads.
fn supported() -> bool {
    let why = ums::probe::own_contexts_are_refused();
    why.iter().for_each(|why| ums::testing::skipped("own-context", why));
    why.is_none()
}

fn kernel_thread() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

fn yields(n: usize) {
    (0..n).for_each(|_| windows::thread_yield(0).unwrap());
}

#[test]
fn a_worker_runs_on_its_schedulers_kernel_thread_and_is_another_thread() {
    if !supported() {
        return;
    }
    alone(|| {
        let list = CompletionList::new().unwrap();
        let (scheduler, me) = (kernel_thread(), std::thread::current().id());
        let worker = WorkerContext::spawn(&list, move || {
            for _ in 0..10 {
                assert_eq!(kernel_thread(), scheduler);
                assert_ne!(std::thread::current().id(), me);
                windows::thread_yield(0).unwrap();
            }
        })
        .unwrap();
        assert!(worker.has_own_context());
        assert_ne!(worker.thread_id(), scheduler as u32);
        Rounds::run(&list);
        let counts = worker.counts();
        // The last execution is the one in which the worker ends.
        assert_eq!((counts.executed, counts.yields, counts.kernel_yields), (11, 10, 0));
    });
}

#[test]
fn after_a_call_that_blocked_it_stays_on_its_own_kernel_thread_until_it_yields() {
    if !supported() {
        return;
    }
    alone(|| {
        let list = CompletionList::new().unwrap();
        let scheduler = kernel_thread();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let mine = seen.clone();
        let worker = WorkerContext::spawn(&list, move || {
            let note = || mine.lock().unwrap().push(kernel_thread());
            let own = || std::thread::sleep(Duration::from_millis(2));
            note();
            own();
            note();
            windows::thread_yield(1).unwrap();
            note();
            windows::thread_yield(2).unwrap();
            note();
        })
        .unwrap();
        let heard = Rounds::run(&list);
        let own = worker.thread_id() as i32;
        assert_eq!(*seen.lock().unwrap(), [scheduler, own, scheduler, scheduler]);
        let counts = worker.counts();
        assert_eq!((counts.yields, counts.kernel_yields, counts.mixed_yields), (1, 1, 0));
        assert_eq!(counts.executed, 4, "first, after the block, and after each yield");
        assert!(heard.contains(&Heard::Blocked(worker, true, false)), "{heard:?}");
    });
}

#[test]
fn a_call_that_might_block_and_does_not_moves_it_to_its_own_kernel_thread_without_a_call() {
    if !supported() {
        return;
    }
    alone(|| {
        let list = CompletionList::new().unwrap();
        let seen = Arc::new(AtomicI32::new(0));
        let mine = seen.clone();
        let worker = WorkerContext::spawn(&list, move || {
            let file = tempfile::tempfile().unwrap();
            // Whether this call blocks is not known in advance. Here there is nothing to write.
            file.sync_all().unwrap();
            mine.store(kernel_thread(), SeqCst);
            yields(1);
        })
        .unwrap();
        Rounds::run(&list);
        assert_eq!(seen.load(SeqCst), worker.thread_id() as i32);
        assert_eq!((worker.counts().yields, worker.counts().kernel_yields), (0, 1));
    });
}

#[test]
fn what_is_ready_is_read_in_user_mode() {
    if !supported() {
        return;
    }
    alone(|| {
        use std::io::{Read, Write};
        let list = CompletionList::new().unwrap();
        let scheduler = kernel_thread();
        let worker = WorkerContext::spawn(&list, move || {
            let (mut reader, mut writer) = std::io::pipe().unwrap();
            for _ in 0..10 {
                let mut byte = [0];
                writer.write_all(b"x").unwrap();
                assert_eq!(reader.read(&mut byte).unwrap(), 1);
                assert_eq!(kernel_thread(), scheduler);
                yields(1);
            }
        })
        .unwrap();
        Rounds::run(&list);
        assert_eq!((worker.counts().yields, worker.counts().kernel_yields), (10, 0));
    });
}

/// The kernel thread on which the handler below ran, before and after its sleep.
static HANDLED: [AtomicI32; 2] = [const { AtomicI32::new(0) }; 2];

extern "C" fn sleeps(_signal: libc::c_int) {
    let span = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    HANDLED[0].store(kernel_thread(), SeqCst);
    // SAFETY: Own Memory: a local; null, because the remaining time is not needed.
    unsafe { libc::nanosleep(&span, std::ptr::null_mut()) };
    HANDLED[1].store(kernel_thread(), SeqCst);
}

#[test]
fn a_call_that_blocks_in_a_handler_of_the_applications_stays_on_the_host_which_keeps_its_mask() {
    const SIGNAL: i32 = libc::SIGWINCH;
    if !supported() {
        return;
    }
    alone(|| {
        // SAFETY: Own Memory: all zeros are a valid value.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = sleeps as extern "C" fn(libc::c_int) as usize;
        // SAFETY: Own Memory: a local, and a handler for this signal.
        unsafe { libc::sigaction(SIGNAL, &action, std::ptr::null_mut()) };
        let list = CompletionList::new().unwrap();
        let scheduler = kernel_thread();
        let worker = WorkerContext::spawn(&list, move || {
            let before = blocked_signals();
            // SAFETY: Own Memory: numbers. The signal goes to the current kernel thread; with
            // `raise` it would go to the worker's own.
            unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), kernel_thread(), SIGNAL) };
            assert_eq!(HANDLED.each_ref().map(|at| at.load(SeqCst)), [scheduler; 2]);
            assert_eq!((kernel_thread(), blocked_signals()), (scheduler, before));
            yields(1);
        })
        .unwrap();
        Rounds::run(&list);
        assert_eq!((worker.counts().yields, worker.counts().kernel_yields), (1, 0));
    });
}

#[test]
fn a_yield_while_a_worker_ends_stays_on_its_own_kernel_thread_and_is_counted_apart() {
    if !supported() {
        return;
    }
    struct Last;
    impl Drop for Last {
        fn drop(&mut self) {
            yields(2);
        }
    }
    thread_local!(static LAST: Cell<Option<Last>> = const { Cell::new(None) });
    alone(|| {
        let list = CompletionList::new().unwrap();
        let work = || {
            LAST.set(Some(Last));
            yields(3);
        };
        let worker = WorkerContext::spawn(&list, work).unwrap();
        Rounds::run(&list);
        let counts = worker.counts();
        assert_eq!((counts.yields, counts.kernel_yields, counts.mixed_yields), (3, 2, 2));
    });
}

fn errno() -> *mut i32 {
    // SAFETY: Own Memory: it is the calling thread's own.
    unsafe { libc::__errno_location() }
}

/// Runs workers that move from scheduler to scheduler. After every step a worker checks that its
/// thread identity is unchanged.
fn wander(workers: usize, schedulers: usize, rounds: usize) -> HashSet<i32> {
    thread_local! {
        static CELL: Cell<usize> = const { Cell::new(0) };
        static LAZY: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    }
    let list = CompletionList::new().unwrap();
    let places = Arc::new(Mutex::new(HashSet::new()));
    let handles: Vec<_> = (0..workers)
        .map(|n| {
            let places = places.clone();
            let work = move || {
                let me = std::thread::current().id();
                for round in 0..rounds {
                    let stamp = n * rounds + round;
                    CELL.set(stamp);
                    LAZY.with_borrow_mut(|lazy| {
                        lazy.push(stamp);
                        // SAFETY: Own Memory: it is the calling thread's own.
                        unsafe { *errno() = (stamp % 100) as i32 + 1 };
                        windows::thread_yield(n).unwrap();
                        // SAFETY: Own Memory: as above.
                        assert_eq!(unsafe { *errno() }, (stamp % 100) as i32 + 1);
                        assert_eq!(lazy.pop(), Some(stamp));
                    });
                    assert_eq!((CELL.get(), std::thread::current().id()), (stamp, me));
                    if round % 16 == 0 {
                        places.lock().unwrap().insert(kernel_thread());
                    }
                    if round % 64 == n % 64 {
                        std::thread::sleep(Duration::from_micros(50));
                    }
                    if round % 128 == n % 128 {
                        yields_while_it_unwinds(n);
                    }
                }
            };
            WorkerContext::spawn(&list, work).unwrap()
        })
        .collect();
    let barrier = Arc::new(Barrier::new(schedulers));
    let threads: Vec<_> = (0..schedulers)
        .map(|_| {
            let (list, barrier) = (list.clone(), barrier.clone());
            std::thread::spawn(move || {
                barrier.wait();
                share(&list);
                kernel_thread()
            })
        })
        .collect();
    let hosts: HashSet<i32> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert_eq!(list.members(), 0);
    let yields: u64 = handles.iter().map(|worker| worker.counts().yields).sum();
    assert!(yields as usize > workers * rounds / 2, "most yields are in user mode: {yields}");
    let places = places.lock().unwrap();
    places.intersection(&hosts).copied().collect()
}

/// Runs one of several schedulers, any of which may execute a worker that yields.
fn share(list: &CompletionList) {
    static READY: Mutex<VecDeque<WorkerContext>> = Mutex::new(VecDeque::new());
    windows::enter_scheduling_mode(|scheduler, reason| {
        let mut ready = READY.lock().unwrap();
        if let Reason::Yield { worker, .. } = reason {
            ready.push_back(worker);
        }
        loop {
            ready.extend(list.poll().filter(|worker| !worker.is_terminated()));
            if let Some(worker) = ready.pop_front() {
                return SchedulerAction::Execute(scheduler.claim(&worker).unwrap());
            }
            if list.members() == 0 {
                return SchedulerAction::Leave;
            }
            drop(ready);
            list.event().wait(Some(Duration::from_millis(1)));
            ready = READY.lock().unwrap();
        }
    })
    .unwrap();
}

fn yields_while_it_unwinds(n: usize) {
    struct Yields;
    impl Drop for Yields {
        fn drop(&mut self) {
            assert!(std::thread::panicking());
            yields(1);
            assert!(std::thread::panicking());
        }
    }
    assert!(!std::thread::panicking(), "another's panic");
    let caught = std::panic::catch_unwind(|| {
        let _yields = Yields;
        std::panic::resume_unwind(Box::new(n));
    });
    assert_eq!(caught.expect_err("it panicked").downcast_ref(), Some(&n));
}

#[test]
fn two_workers_on_one_scheduler_stay_themselves() {
    if supported() {
        alone(|| assert_eq!(wander(2, 1, 2000).len(), 1));
    }
}

#[test]
fn sixty_four_workers_stay_themselves_on_one_scheduler_and_between_two() {
    if supported() {
        alone(|| assert_eq!(wander(64, 1, 400).len(), 1));
        alone(|| assert_eq!(wander(64, 2, 400).len(), 2, "they went from one to the other"));
    }
}

#[test]
fn a_computing_worker_is_stopped_where_it_is_when_it_is_suspended_again_and_again() {
    if !supported() {
        return;
    }
    alone(|| {
        const TIMES: u32 = 200;
        let list = CompletionList::new().unwrap();
        let (beats, end) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        let workers: Vec<_> = (0..2)
            .map(|n| {
                let (beats, end) = (beats.clone(), end.clone());
                let work = move || {
                    let floats: Vec<f64> = (0..64).map(f64::from).collect();
                    let sum = |by: f64| floats.iter().map(|n| n * by).sum::<f64>();
                    let expected = sum(1.5);
                    while !end.load(SeqCst) {
                        assert_eq!(sum(std::hint::black_box(1.5)), expected, "registers are kept");
                        // One worker yields from time to time, so that the other one runs and the
                        // scheduler is called.
                        if n == 1 || beats.fetch_add(1, SeqCst).is_multiple_of(64) {
                            yields(1);
                        }
                    }
                };
                WorkerContext::spawn(&list, work).unwrap()
            })
            .collect();
        let victim = workers[0].clone();
        let (heart, last) = (beats.clone(), end.clone());
        let suspender = std::thread::spawn(move || {
            (0..TIMES).for_each(|_| suspend_and_resume(&victim, &heart));
            last.store(true, SeqCst);
        });
        let mut rounds = Rounds::new(&list);
        windows::enter_scheduling_mode(|scheduler, reason| {
            rounds.note(reason);
            loop {
                rounds.take();
                let Some(worker) = rounds.ready.pop_front() else {
                    if list.members() == 0 {
                        return SchedulerAction::Leave;
                    }
                    list.event().wait(Some(Duration::from_millis(1)));
                    continue;
                };
                match scheduler.claim(&worker) {
                    Ok(claim) => return rounds.execute(claim),
                    // A worker that was ready when it was suspended is not put on the list by
                    // itself.
                    Err(ExecuteError::Suspended) => rounds.ready.push_back(worker),
                    Err(error) => assert_eq!(error, ExecuteError::Terminated),
                }
            }
        })
        .unwrap();
        suspender.join().unwrap();
    });
}

/// Suspends a worker that computes, and checks that its count does not change until the worker is
/// resumed.
fn suspend_and_resume(worker: &WorkerContext, count: &AtomicU32) {
    let before = count.load(SeqCst);
    crate::harness::eventually("it runs", || count.load(SeqCst) > before + 100);
    assert_eq!(worker.suspend(), 0);
    std::thread::sleep(Duration::from_micros(200));
    let stopped = count.load(SeqCst);
    std::thread::sleep(Duration::from_micros(200));
    assert_eq!(count.load(SeqCst), stopped, "it is stopped");
    assert_eq!(worker.resume(), 1);
}

/// Kills the process at any system call of the calling kernel thread except these two.
fn forbid_system_calls() {
    let load = libc::sock_filter { code: 0x20, jt: 0, jf: 0, k: 0 };
    let jump_to_allow =
        |number: i64, jt| libc::sock_filter { code: 0x15, jt, jf: 0, k: number as u32 };
    let end = |k| libc::sock_filter { code: 0x06, jt: 0, jf: 0, k };
    let mut filter = [
        load,
        jump_to_allow(libc::SYS_write, 2),
        jump_to_allow(libc::SYS_exit_group, 1),
        end(libc::SECCOMP_RET_KILL_PROCESS),
        end(libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: Own Memory: locals, which the kernel copies.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let (set, none) = (libc::SECCOMP_SET_MODE_FILTER, 0);
        assert_eq!(libc::syscall(libc::SYS_seccomp, set, none, &program), 0);
    }
}

const FORBIDDEN_YIELDS: usize = 10_000;

/// The child process of the test below: workers yield in turn, and after some yields no system call
/// is allowed any more.
#[test]
fn yields_under_a_filter_in_this_process() {
    let Ok(said) = std::env::var("UMS_YIELDS") else { return };
    let (workers, own) = said.split_once(' ').unwrap();
    let (workers, own) = (workers.parse::<usize>().unwrap(), own == "own");
    alone(move || {
        let list = CompletionList::new().unwrap();
        for n in 0..workers {
            let work = move || {
                // A first round, so that all workers have started, and everything exists that is
                // created at its first use.
                yields(10);
                if n == 0 {
                    forbid_system_calls();
                    yields(FORBIDDEN_YIELDS);
                    let said = b"no system call\n";
                    // SAFETY: Own Memory: constants. No destructors run, because they make system
                    // calls.
                    unsafe {
                        libc::syscall(libc::SYS_write, 1, said.as_ptr(), said.len());
                        libc::syscall(libc::SYS_exit_group, 0);
                    }
                }
                yields(usize::MAX);
            };
            WorkerContext::builder().own_context(own).spawn(&list, work).unwrap();
        }
        let mut ready = VecDeque::with_capacity(2 * workers);
        windows::enter_scheduling_mode(|scheduler, reason| {
            if let Reason::Yield { worker, .. } = reason {
                ready.push_back(worker);
            }
            ready.extend(list.poll());
            let next = ready.pop_front().expect("no worker blocks");
            SchedulerAction::Execute(scheduler.claim(&next).unwrap())
        })
        .unwrap();
    });
}

fn under_a_filter(workers: &str, kind: &str) -> (std::process::ExitStatus, bool) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "own::yields_under_a_filter_in_this_process", "--nocapture"]);
    let output = command.env("UMS_YIELDS", format!("{workers} {kind}")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).contains("no system call");
    (output.status, said)
}

#[test]
fn a_yield_through_the_scheduler_makes_no_system_call() {
    if !supported() {
        return;
    }
    for workers in ["2", "64"] {
        let (status, said) = under_a_filter(workers, "own");
        assert!(status.success() && said, "{workers} workers: {status}");
    }
    // The positive control: executing threads needs system calls, so the filter kills the process.
    let (status, said) = under_a_filter("2", "threads");
    assert_eq!((status.signal(), said), (Some(libc::SIGSYS), false), "{status}");
}

#[test]
fn thousands_come_and_go_and_leave_nothing_behind() {
    if !supported() {
        return;
    }
    alone(|| {
        let files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
        let mappings = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
        let list = CompletionList::new().unwrap();
        let come_and_go = || {
            for n in 0..500 {
                let work = move || match n % 3 {
                    0 => yields(2),
                    1 => std::thread::sleep(Duration::from_micros(100)),
                    _ => std::panic::resume_unwind(Box::new(n)),
                };
                WorkerContext::builder().stack_size(64 << 10).spawn(&list, work).unwrap();
            }
            Rounds::run(&list);
            assert_eq!(list.members(), 0);
        };
        // The first workers leave their watch records behind, which the next workers reuse.
        come_and_go();
        let before = (threads_of_the_test(), files(), mappings());
        (0..3).for_each(|_| come_and_go());
        // The C library caches some stacks, and the allocator keeps its arenas.
        crate::harness::eventually("threads, descriptors and mappings are gone", || {
            threads_of_the_test() <= before.0 && files() <= before.1 && mappings() < before.2 + 100
        });
    });
}
