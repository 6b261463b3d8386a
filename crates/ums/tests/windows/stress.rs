//! Many workers block, fault and yield at random, and check after every step that they may run.
//!
//! The harness does not know how the library works. Each scheduler records the worker that it has
//! executed, and erases the record when its entry point is called. Between any two steps a worker
//! checks that it is the recorded one. If it is not, the worker runs without having been executed,
//! which is a *violation*. The executions, yields and completions of each worker are counted, so
//! that a lost or duplicated one is noticed.
//!
//! Each mechanism runs in a process of its own, chosen by `UMS_WATCH`. If the test runs as root,
//! each mechanism also runs as an ordinary user.
//!
//! The positive control is the same run with the gate switched off. It must find violations.
//!
//! ```text
//! UMS_STRESS_SECS=60 cargo test -p ums --test windows --test windows_interposed \
//!     no_instruction -- --nocapture --test-threads=1
//! ```
//!
//! Unsafe because of raw system calls. Named invariant **Own Memory**: they get memory that the
//! worker allocated and keeps.

#[path = "../common/dice.rs"]
#[allow(dead_code)] // Only whole numbers are wanted here.
mod dice;

use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ums::lock::Lock;
use ums::watch::Mechanism;
use ums::windows::{self, CompletionList, ExecuteError, Reason, SchedulerAction, WorkerContext};

use self::dice::Dice;
use crate::harness::alone;

const NOBODY: usize = usize::MAX;

#[derive(Default)]
struct Counts {
    steps: AtomicU64,
    violations: AtomicU64,
    interrupted: AtomicU64,
    duplicates: AtomicU64,
    revokes: AtomicU64,
    rescues: AtomicU64,
    lent: AtomicU64,
}

struct World {
    counts: Counts,
    /// For each scheduler, the worker that it has executed.
    running: Vec<AtomicUsize>,
    /// For each worker, the scheduler that executed it last.
    by: Vec<AtomicUsize>,
    /// For each worker, how often it appeared on the list or yielded, minus how often it was
    /// executed.
    balance: Vec<AtomicI64>,
    stop: AtomicBool,
    /// A futex word that never changes.
    word: AtomicU32,
}

impl World {
    fn look(&self, me: usize) {
        let by = self.by[me].load(Ordering::SeqCst);
        if self.running[by].load(Ordering::SeqCst) != me {
            self.counts.violations.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn got(&self, worker: usize) {
        if self.balance[worker].fetch_add(1, Ordering::SeqCst) != 0 {
            self.counts.duplicates.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// A worker's own pipe, and a page of a file that can be evicted from memory.
struct Tools {
    pipe: std::io::PipeReader,
    file: Option<(std::fs::File, usize)>,
}

const FILE_PAGES: usize = 16;

fn tools(dir: &std::path::Path, me: usize) -> (Tools, std::io::PipeWriter) {
    let (pipe, feed) = std::io::pipe().unwrap();
    let file = std::fs::OpenOptions::new()
        .create(true)
        .read(true)
        .write(true)
        .truncate(true)
        .open(dir.join(format!("faults-{me}")))
        .and_then(|mut file| {
            file.write_all(&[7; FILE_PAGES * 4096]).and(file.sync_all()).map(|()| file)
        });
    // Workers in user mode do not use the file: while such a worker waits for a disk, it holds up
    // its scheduler, and there is nothing else to check.
    let file = file.ok().filter(|_| !crate::OWN).map(|file| {
        // SAFETY: Own Memory: a new mapping, which is never removed.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                FILE_PAGES * 4096,
                libc::PROT_READ,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(base, libc::MAP_FAILED);
        (file, base as usize)
    });
    (Tools { pipe, file }, feed)
}

fn one_step(world: &World, me: usize, dice: &mut Dice, tools: &Tools) -> bool {
    let us = |n: u64| libc::timespec { tv_sec: 0, tv_nsec: 1000 * n as i64 };
    let short = us(20 + dice.roll(200));
    // SAFETY: Own Memory: locals, the worker's descriptors, and its mapping.
    let failed = unsafe {
        match dice.roll(8) {
            0 => {
                let mut byte = [0_u8];
                libc::read(tools.pipe.as_raw_fd(), byte.as_mut_ptr().cast(), 1) < 0
            }
            1 => libc::nanosleep(&short, std::ptr::null_mut()) != 0,
            2 => {
                let word = world.word.as_ptr();
                let failed = libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT, 0, &short) != 0;
                // If this call is noticed only when it blocks, it may rarely fail with EINTR,
                // because its number cannot be determined, so it cannot be repeated.
                failed && (crate::INTERPOSED || !crate::OWN)
            }
            3 => {
                let fd = tools.pipe.as_raw_fd();
                let mut fds = libc::pollfd { fd, events: libc::POLLPRI, revents: 0 };
                libc::ppoll(&mut fds, 1, &short, std::ptr::null()) < 0
            }
            4 if dice.roll(8) == 0 => touch_what_was_thrown_out(world, me, dice, tools),
            5 => libc::clock_nanosleep(libc::CLOCK_MONOTONIC, 0, &short, std::ptr::null_mut()) != 0,
            _ => {
                windows::thread_yield(me).unwrap();
                false
            }
        }
    };
    failed && std::io::Error::last_os_error().raw_os_error() == Some(libc::EINTR)
}

/// Reads a page of the file, which causes a major page fault if the file system has evicted the
/// page.
unsafe fn touch_what_was_thrown_out(
    world: &World,
    me: usize,
    dice: &mut Dice,
    tools: &Tools,
) -> bool {
    if let Some((file, base)) = &tools.file {
        let size = FILE_PAGES * 4096;
        // SAFETY: Own Memory: this worker's mapping and file.
        unsafe {
            libc::madvise(*base as *mut libc::c_void, size, libc::MADV_DONTNEED);
            libc::posix_fadvise(file.as_raw_fd(), 0, size as i64, libc::POSIX_FADV_DONTNEED);
            let at = *base + 4096 * dice.roll(FILE_PAGES as u64) as usize;
            assert_eq!((at as *const u8).read_volatile(), 7);
        }
        world.look(me);
    }
    false
}

fn work(world: &World, me: usize, tools: &Tools) {
    let mut dice = Dice(me as u64 * 77 + 1);
    while !world.stop.load(Ordering::SeqCst) {
        world.look(me);
        if one_step(world, me, &mut dice, tools) {
            world.counts.interrupted.fetch_add(1, Ordering::SeqCst);
        }
        world.look(me);
        for _ in 0..dice.roll(2000) {
            std::hint::spin_loop();
        }
        world.look(me);
        world.counts.steps.fetch_add(1, Ordering::SeqCst);
    }
}

fn schedule(world: &World, me: usize, list: &CompletionList) {
    let mut ready = std::collections::VecDeque::new();
    let mut dice = Dice(me as u64 + 1000);
    windows::enter_scheduling_mode(|scheduler, reason| {
        world.running[me].store(NOBODY, Ordering::SeqCst);
        if let Reason::Yield { worker, param } = reason {
            world.got(param);
            ready.push_back(worker);
        }
        loop {
            for worker in list.poll() {
                world.got(worker.user_context());
                ready.push_back(worker);
            }
            ready.retain(|worker: &WorkerContext| !worker.is_terminated());
            // Chooses one of the ready workers at random.
            if !ready.is_empty() {
                let n = dice.roll(ready.len() as u64) as usize;
                ready.swap(0, n);
            }
            if let Some(worker) = ready.pop_front() {
                match scheduler.claim(&worker) {
                    Ok(claim) => {
                        let id = worker.user_context();
                        world.balance[id].fetch_sub(1, Ordering::SeqCst);
                        world.by[id].store(me, Ordering::SeqCst);
                        world.running[me].store(id, Ordering::SeqCst);
                        return SchedulerAction::Execute(claim);
                    }
                    Err(ExecuteError::Terminated) => {}
                    Err(error) => panic!("{error}"),
                }
            } else if list.members() == 0 {
                let (revokes, rescues) = scheduler.revokes();
                world.counts.revokes.fetch_add(revokes, Ordering::SeqCst);
                world.counts.rescues.fetch_add(rescues, Ordering::SeqCst);
                world.counts.lent.fetch_add(scheduler.lent(), Ordering::SeqCst);
                return SchedulerAction::Leave;
            } else {
                list.event().wait(Some(Duration::from_millis(20)));
            }
        }
    })
    .unwrap();
}

/// Runs the stress and returns the counts. Hangs if a worker is lost.
fn run(workers: usize, schedulers: usize, time: Duration) -> Counts {
    let dir = tempfile::tempdir_in(std::env::var_os("UMS_STRESS_DIR").unwrap_or(".".into()))
        .or_else(|_| tempfile::tempdir())
        .unwrap();
    let world = Arc::new(World {
        counts: Counts::default(),
        running: (0..schedulers).map(|_| AtomicUsize::new(NOBODY)).collect(),
        by: (0..workers).map(|_| AtomicUsize::new(0)).collect(),
        balance: (0..workers).map(|_| AtomicI64::new(0)).collect(),
        stop: AtomicBool::new(false),
        word: AtomicU32::new(0),
    });
    let list = CompletionList::new().unwrap();
    let mut feeds = Vec::new();
    for me in 0..workers {
        let (tools, feed) = tools(dir.path(), me);
        feeds.push(feed);
        let world = world.clone();
        WorkerContext::builder()
            .user_context(me)
            .spawn(&list, move || work(&world, me, &tools))
            .unwrap();
    }
    let threads: Vec<_> = (0..schedulers)
        .map(|me| {
            let (world, list) = (world.clone(), list.clone());
            std::thread::spawn(move || schedule(&world, me, &list))
        })
        .collect();
    let began = Instant::now();
    let mut dice = Dice(5);
    while began.elapsed() < time {
        let n = dice.roll(workers as u64) as usize;
        // So few bytes that each worker waits at some time, and enough that each continues.
        let _ = feeds[n].write_all(b"x");
        std::thread::sleep(Duration::from_micros(100));
    }
    world.stop.store(true, Ordering::SeqCst);
    drop(feeds);
    for thread in threads {
        thread.join().unwrap();
    }
    assert!(
        world.balance.iter().all(|balance| balance.load(Ordering::SeqCst) == 1),
        "an end came twice or never"
    );
    Arc::into_inner(world).map(|world| world.counts).unwrap_or_default()
}

/// Runs in the child processes of the tests below; it is also the command for a long run.
#[test]
fn stress_in_this_process() {
    let Ok(text) = std::env::var("UMS_STRESS") else { return };
    let numbers: Vec<u64> = text.split(' ').map(|word| word.parse().unwrap()).collect();
    let &[workers, schedulers, seconds] = &numbers[..] else { panic!("UMS_STRESS=\"6 1 60\"") };
    let gate_off = std::env::var_os("UMS_STRESS_WITHOUT_GATE").is_some();
    ums::watch::switch_gate(!gate_off);
    let began = Instant::now();
    let done = Arc::new(AtomicBool::new(false));
    let ended = done.clone();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(seconds + 60));
        if !ended.load(Ordering::SeqCst) {
            eprintln!("a worker or a wake-up was lost: the stress does not end");
            std::process::abort();
        }
    });
    let counts = alone_for(seconds, move || {
        run(workers as usize, schedulers as usize, Duration::from_secs(seconds))
    });
    done.store(true, Ordering::SeqCst);
    let get = |n: &AtomicU64| n.load(Ordering::SeqCst);
    println!(
        "{}: {} s, {} steps, {} revokes ({} by the watchdog), lent {}, violations {}, \
         duplicates {}, EINTR {}",
        ums::watch::mechanism().unwrap().name(),
        began.elapsed().as_secs(),
        get(&counts.steps),
        get(&counts.revokes),
        get(&counts.rescues),
        get(&counts.lent),
        get(&counts.violations),
        get(&counts.duplicates),
        get(&counts.interrupted),
    );
    assert!(get(&counts.steps) > 0);
    if gate_off {
        assert!(get(&counts.violations) > 0, "the harness does not notice a missing gate");
        return;
    }
    assert_eq!(get(&counts.duplicates), 0);
    assert_eq!(get(&counts.interrupted), 0);
    assert_eq!(get(&counts.violations), 0);
}

fn alone_for<T: Send + 'static>(seconds: u64, body: impl FnOnce() -> T + Send + 'static) -> T {
    match seconds {
        0..60 => alone(body),
        _ => body(),
    }
}

/// Runs a child process with this mechanism, as root or as the user `nobody`.
fn child(how: Mechanism, as_nobody: bool, gate: bool, stress: &str) {
    // One child at a time: each loads all the processors.
    static TURN: Lock<()> = Lock::new(());
    let _turn = TURN.lock();
    let dir = tempfile::tempdir().unwrap();
    let exe = dir.path().join("stress");
    // A program that a process has open for writing cannot be started (ETXTBSY). If this process
    // made the copy, a child that another test forks meanwhile would hold the descriptor until its
    // own exec; `cp` forks nothing.
    let copied = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&exe).status();
    assert!(copied.unwrap().success(), "cp could not copy this test's program");
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let mut command = Command::new(&exe);
    command.args(["--exact", "stress::stress_in_this_process", "--nocapture"]);
    command.env("UMS_STRESS", stress).env("UMS_WATCH", how.name());
    command.env("UMS_STRESS_DIR", dir.path()).current_dir("/");
    if !gate {
        command.env("UMS_STRESS_WITHOUT_GATE", "1");
    }
    if as_nobody {
        command.uid(65534).gid(65534);
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find(|line| line.contains("violations")).unwrap_or("no line");
    let who = if as_nobody { ", as nobody" } else { "" };
    let what = if gate { "" } else { ", positive control: the gate is off" };
    println!("{stress}: {line}{who}{what}");
    let errors = String::from_utf8_lossy(&output.stderr);
    // Without the gate, two threads that run at once may also lose a worker, or meet at a claim:
    // that is found, too.
    let signs = ["a worker or a wake-up was lost", "the worker is running"];
    let found = signs.iter().any(|sign| text.contains(sign) || errors.contains(sign));
    let fine = output.status.success() || (!gate && found);
    assert!(fine, "{how:?}, nobody: {as_nobody}: {text}\n{errors}");
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn stress(how: Mechanism) {
    if let Err(text) = how.try_here() {
        ums::testing::skipped(how.name(), text);
        return;
    }
    let seconds = std::env::var("UMS_STRESS_SECS").unwrap_or("2".into());
    // A mechanism that needs no privilege is also tested without any.
    let users = if is_root() && how != Mechanism::Trap { &[false, true][..] } else { &[false] };
    for &as_nobody in users {
        child(how, as_nobody, true, &format!("6 1 {seconds}"));
        child(how, as_nobody, true, &format!("64 2 {seconds}"));
    }
    if how != Mechanism::Calls || crate::INTERPOSED {
        child(how, false, false, "6 1 2");
    }
}

#[test]
fn no_instruction_outside_ownership_with_the_trap_gate() {
    stress(Mechanism::Trap);
}

#[test]
fn no_instruction_outside_ownership_with_the_breakpoint_gate() {
    stress(Mechanism::Breakpoint);
}

#[test]
fn no_instruction_outside_ownership_with_interposed_calls_only() {
    stress(Mechanism::Calls);
}
