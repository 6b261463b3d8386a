//! Signal handlers of the application beside those of this library, with each kind of worker:
//! theirs in ours, ours in theirs, on alternate signal stacks, and signals that are blocked.
//! `signals_chained.rs` has the handlers that the application installed before or after ours.
//!
//! Ours run often here: for samples of stacks (SIGURG), for calls that block undeclared (SIGTRAP),
//! and for faults that are passed on (SIGSEGV). Each test runs in a process of its own, because it
//! changes the actions of signals.
//!
//! Named invariant **Signal**: the handlers of these tests only use atomics, `errno`, constant
//! thread-locals and system calls.

#![allow(unsafe_code)] // For the harness.

mod common;
#[path = "common/signals.rs"]
mod signals;

use std::cell::Cell;
use std::collections::HashSet;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use common::seccomp::{has_survived, survived};
use common::*;
use signals::*;
use ums::sync::channel::bounded;
use ums::windows::CompletionList;
use ums::{Node, WorkerKind};

/// Runs `body` in a child process with each kind of worker, and checks that it returns there.
fn in_a_child_of_each_kind(test: &str, body: fn(WorkerKind)) {
    if let Some(errand) = child_errand() {
        let _watch = Watchdog::start(errand.clone());
        body(kind_named(errand));
        survived();
    }
    for kind in kinds() {
        let output = run_child(test, &format!("{kind:?}"));
        assert!(has_survived(&output), "{kind:?}: {output:?}");
    }
}

/// Builds a node with one scheduler, which detects blocks if its workers have their own contexts.
fn one_scheduler(kind: WorkerKind) -> Node {
    build(kind, |b| b.schedulers(1).detect_blocking(kind == WorkerKind::OwnContext))
}

/// Reads a byte, by a system call of which the library knows nothing. Returns how often a signal
/// has ended the call.
fn read_byte(pipe: &std::io::PipeReader) -> usize {
    let mut byte = [0];
    let tries = std::iter::repeat_with(|| rustix::io::read(pipe, &mut byte));
    tries.take_while(|read| *read != Ok(1)).inspect(|r| assert!(r.is_err(), "{r:?}")).count()
}

static HANDLED: AtomicU64 = AtomicU64::new(0);

/// A handler that works for a while, and leaves `errno` as it was.
extern "C" fn works(signal: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let kept = errno();
    set_errno(libc::ENOTTY);
    (0..200).for_each(|n| _ = std::hint::black_box(n));
    set_errno(kept);
    HANDLED.fetch_add(u64::from(signal == libc::SIGUSR1), SeqCst);
}

/// Sends SIGUSR1 to a kernel thread again and again, at most two ahead of its handler, and SIGALRM
/// to the process, until it is dropped.
struct Flood {
    enough: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

fn interval(us: i64) {
    let span = libc::timeval { tv_sec: 0, tv_usec: us };
    let timer = libc::itimerval { it_interval: span, it_value: span };
    // SAFETY: Own Memory: a local, and null.
    assert_eq!(unsafe { libc::setitimer(libc::ITIMER_REAL, &timer, std::ptr::null_mut()) }, 0);
}

impl Flood {
    fn of(thread: i32) -> Flood {
        let enough = Arc::new(AtomicBool::new(false));
        let last = enough.clone();
        interval(200);
        let floods = move || {
            while !last.load(SeqCst) {
                let before = HANDLED.load(SeqCst);
                send_to(thread, libc::SIGUSR1);
                let done = || HANDLED.load(SeqCst) > before || last.load(SeqCst);
                while !done() {
                    std::hint::spin_loop();
                }
            }
        };
        Flood { enough, thread: Some(std::thread::spawn(floods)) }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        interval(0);
        self.enough.store(true, SeqCst);
        self.thread.take().into_iter().for_each(|thread| thread.join().unwrap());
    }
}

/// The page on which `lets_in` resolves faults.
static FAULTS_AT: AtomicUsize = AtomicUsize::new(0);

extern "C" fn lets_in(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: Signal: the kernel's own information about a fault.
    let at = unsafe { (*info).si_addr() as usize };
    // Another fault would be an error of the library. The process then ends, and the test fails.
    if at == FAULTS_AT.load(SeqCst) { Page::let_in(at) } else { std::process::abort() }
}

#[test]
fn a_flood_of_the_applications_signals_disturbs_no_handler_of_ours() {
    const ME: &str = "a_flood_of_the_applications_signals_disturbs_no_handler_of_ours";
    in_a_child_of_each_kind(ME, |kind| {
        handle(libc::SIGSEGV, lets_in, libc::SA_ONSTACK, &[]);
        let node = one_scheduler(kind);
        let page = Arc::new(Page::new());
        FAULTS_AT.store(page.address(), SeqCst);
        for flags in [0, libc::SA_NODEFER, libc::SA_ONSTACK, libc::SA_ONSTACK | libc::SA_NODEFER] {
            handle(libc::SIGUSR1, works, flags | libc::SA_RESTART, &[]);
            // This one comes at any rate, to any thread, and must not fill a signal stack.
            let deferred = flags & !libc::SA_NODEFER;
            handle(libc::SIGALRM, works, deferred | libc::SA_RESTART, &[]);
            under_a_flood(&node, &page);
        }
        end(node);
    });
}

/// Two workers exchange messages, fault, block, compute and keep their `errno`, while a flood comes
/// over their thread and its stack is sampled.
fn under_a_flood(node: &Node, page: &Arc<Page>) {
    const ROUNDS: u64 = 60;
    let ([to, from], thread) = ([bounded::<u64>(1), bounded(1)], Arc::new(AtomicI32::new(0)));
    let (page, tell) = (page.clone(), thread.clone());
    let [through, dry] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let (is_through, is_dry) = (through.clone(), dry.clone());
    let (ask, asked) = std::sync::mpsc::channel::<()>();
    let (reader, writer) = std::io::pipe().unwrap();
    let answers = std::thread::spawn(move || answer(&asked, writer));
    let kind = node.worker_kind();
    let blocks = kind == WorkerKind::OwnContext;
    let first = start(node, 0, move || {
        let _room = roomy(kind);
        tell.store(kernel_thread(), SeqCst);
        let mut sum = 0;
        for round in 0..ROUNDS {
            set_errno(4711);
            spin(Duration::from_micros(300));
            page.shut();
            assert_eq!((page.touch(), errno()), (0, 4711));
            if blocks && round % 4 == 0 {
                ask.send(()).unwrap();
                set_errno(4712);
                read_byte(&reader);
                assert_eq!(errno(), 4712, "a call that bypasses the C library leaves it alone");
            }
            to.0.send(round).unwrap();
            sum += from.1.recv().unwrap();
            ums::sleep(Duration::from_micros(50)).unwrap();
        }
        // The flood ends before the worker gives its roomy signal stack back.
        is_through.store(true, SeqCst);
        while !is_dry.load(SeqCst) {
            ums::sleep(Duration::from_micros(50)).unwrap();
        }
        sum
    });
    let second = start(node, 0, move || {
        let _room = roomy(kind);
        while let Ok(number) = to.1.recv() {
            spin(Duration::from_micros(100));
            from.0.send(number * number).unwrap();
        }
    });
    eventually("it has begun", || thread.load(SeqCst) != 0);
    let before = HANDLED.load(SeqCst);
    let flood = Flood::of(thread.load(SeqCst));
    while !through.load(SeqCst) && !first.is_finished() {
        assert!(node.stacks().len() <= 3);
    }
    drop(flood);
    dry.store(true, SeqCst);
    assert_eq!(first.join().unwrap(), (0..ROUNDS).map(|n| n * n).sum());
    second.join().unwrap();
    answers.join().unwrap();
    assert!(HANDLED.load(SeqCst) > before, "there was a flood");
}

/// Writes a byte half a millisecond after each question.
fn answer(asked: &std::sync::mpsc::Receiver<()>, mut writer: std::io::PipeWriter) {
    while asked.recv().is_ok() {
        std::thread::sleep(Duration::from_micros(500));
        writer.write_all(b"x").unwrap();
    }
}

static ENTERED: AtomicBool = AtomicBool::new(false);
static ENOUGH: AtomicBool = AtomicBool::new(false);
/// An address in the frame of the handler that ran last.
static FRAME: AtomicUsize = AtomicUsize::new(0);

#[inline(never)]
extern "C" fn handler_that_spins(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let here = 0u8;
    FRAME.store((&raw const here).addr(), SeqCst);
    set_errno(4713);
    ENTERED.store(true, SeqCst);
    while !ENOUGH.load(SeqCst) {
        std::hint::spin_loop();
    }
    // Ours came meanwhile.
    if errno() != 4713 {
        std::process::abort();
    }
}

/// When the application makes a signal stack of its own, seen from a worker.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Made {
    Never,
    First,
    AfterSwitches,
}

#[test]
fn ours_comes_while_a_handler_of_the_applications_runs() {
    const ME: &str = "ours_comes_while_a_handler_of_the_applications_runs";
    in_a_child_of_each_kind(ME, |kind| {
        handle(libc::SIGUSR1, handler_that_spins, libc::SA_ONSTACK, &[]);
        let node = build(kind, |b| b.schedulers(1));
        for made in [Made::Never, Made::First, Made::AfterSwitches] {
            let task = start(&node, 0, move || {
                let early = (made == Made::First).then(SignalStack::here);
                ums::sleep(ms(1)).unwrap();
                ums::yield_now();
                let late = (made == Made::AfterSwitches).then(SignalStack::here);
                ums::sleep(ms(1)).unwrap();
                ums::go_preemptive(ums::WaitReason::PREEMPTIVE_EXTERNAL, || ());
                send_to(kernel_thread(), libc::SIGUSR1);
                let own = early.or(late);
                ums::yield_now();
                let at = FRAME.load(SeqCst);
                assert!(own.is_none_or(|own| own.contains(at) && own.is_here()), "{made:?}");
            });
            eventually("its handler runs", || ENTERED.swap(false, SeqCst));
            let looks = (0..5).flat_map(|_| node.stacks()).collect::<Vec<_>>();
            ENOUGH.store(true, SeqCst);
            task.join().unwrap();
            ENOUGH.store(false, SeqCst);
            let is_seen = looks.iter().any(|s| s.to_string().contains("handler_that_spins"));
            // The library knows the bounds of its own signal stacks no more than of others.
            println!("{kind:?} {made:?}: seen in its handler: {is_seen}");
        }
        end(node);
    });
}

#[test]
fn a_call_that_ours_interrupts_in_a_worker_goes_on() {
    const ME: &str = "a_call_that_ours_interrupts_in_a_worker_goes_on";
    in_a_child_of_each_kind(ME, |kind| {
        let node = build(kind, |b| b.schedulers(1));
        let (reader, mut writer) = std::io::pipe().unwrap();
        let task = start(&node, 0, move || {
            let read = || (read_byte(&reader), blocked_signals());
            ums::go_preemptive(ums::WaitReason::PREEMPTIVE_EXTERNAL, read)
        });
        eventually("it is seen where it waits", || {
            let seen = node.stacks();
            seen.iter().any(|stack| stack.to_string().contains("read_byte"))
        });
        (0..20).for_each(|_| _ = node.stacks());
        writer.write_all(b"x").unwrap();
        assert_eq!(task.join().unwrap(), (0, HashSet::new()));
        end(node);
    });
}

/// Thread workers are threads of `std`, and only two frames of handlers fit on their signal stacks.
fn roomy(kind: WorkerKind) -> Option<SignalStack> {
    (kind == WorkerKind::Thread).then(SignalStack::here)
}

static PIPE: AtomicI32 = AtomicI32::new(-1);

extern "C" fn handler_that_blocks(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: Signal: the test keeps the pipe open. The call leaves `errno` alone.
    let pipe = unsafe { std::os::fd::BorrowedFd::borrow_raw(PIPE.load(SeqCst)) };
    ENTERED.store(true, SeqCst);
    // A call that the library could make again, from its instructions.
    while rustix::io::read(pipe, &mut [0]) != Ok(1) {}
}

/// The poke for a blocked call comes, and the worker stays where it is, because the frames of the
/// handler may be on the host's signal stack.
#[test]
fn a_worker_does_not_leave_its_host_in_a_handler_of_the_applications() {
    const ME: &str = "a_worker_does_not_leave_its_host_in_a_handler_of_the_applications";
    in_a_child_of_each_kind(ME, |kind| {
        if kind != WorkerKind::OwnContext {
            return;
        }
        let node = one_scheduler(kind);
        let (reader, mut writer) = std::io::pipe().unwrap();
        PIPE.store(std::os::fd::AsRawFd::as_raw_fd(&reader), SeqCst);
        let on = libc::SA_ONSTACK;
        // With the last flags, only the stack shows that a handler runs.
        let alone = on | libc::SA_NODEFER;
        let cases = [(false, 0), (false, on), (true, on), (false, alone), (true, alone)];
        for (own, flags) in cases {
            handle(libc::SIGUSR1, handler_that_blocks, flags, &[]);
            let task = start(&node, 0, move || {
                let stack = own.then(SignalStack::here);
                let host = kernel_thread();
                send_to(host, libc::SIGUSR1);
                assert!(stack.is_none_or(|own| own.is_here()));
                (kernel_thread() == host, blocked_signals())
            });
            eventually("its handler waits", || ENTERED.swap(false, SeqCst));
            std::thread::sleep(ms(100));
            writer.write_all(b"x").unwrap();
            assert_eq!(task.join().unwrap(), (true, HashSet::new()), "own stack: {own}");
        }
        let counters = || node.snapshot().schedulers[0].counters;
        assert_eq!((counters().undeclared_calls, counters().preemptive), (0, 0));
        // Outside a handler the same call leaves the host.
        let task = start(&node, 0, move || read_byte(&reader));
        eventually("it leaves", || counters().preemptive == 1);
        writer.write_all(b"x").unwrap();
        task.join().unwrap();
        end(node);
    });
}

/// Uses each part of the library that waits, or has a thread.
fn uses_everything() {
    let (send, receive) = bounded(1);
    let task = ums::spawn(move || (0..3).for_each(|n| send.send(n).unwrap()));
    assert_eq!(std::iter::from_fn(|| receive.recv().ok()).sum::<i32>(), 3);
    task.join().unwrap();
    ums::sleep(ms(1)).unwrap();
    assert!(receive.recv_for(ms(1)).is_err());
    let away = ums::go_preemptive(ums::WaitReason::PREEMPTIVE_EXTERNAL, || 7);
    assert_eq!(away, 7);
    let listener = ums::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let client = ums::spawn(move || ums::net::TcpStream::connect(at).unwrap().write(b"x").unwrap());
    let mut byte = [0];
    let (stream, _) = listener.accept().unwrap();
    std::io::Read::read_exact(&mut &stream, &mut byte).unwrap();
    assert_eq!((client.join().unwrap(), &byte), (1, b"x"));
    let path = std::env::temp_dir().join(format!("ums-signals-{}", std::process::id()));
    ums::fs::write(&path, b"abc").unwrap();
    assert_eq!(ums::fs::read(&path).unwrap(), b"abc");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn with_every_signal_blocked_before_the_node_everything_works_and_stays_blocked() {
    const ME: &str = "with_every_signal_blocked_before_the_node_everything_works_and_stays_blocked";
    in_a_child_of_each_kind(ME, |kind| {
        change_mask(libc::SIG_SETMASK, blockable());
        let node = one_scheduler(kind);
        let blocked = on(&node, 0, || {
            uses_everything();
            blocked_signals()
        });
        assert_eq!(blocked, blockable().collect::<HashSet<_>>(), "the worker inherits the mask");
        // Neither a sample nor a poke reaches the worker. Both are given up.
        let computing = Computing::on(&node);
        assert_eq!(node.stacks().len(), 1);
        computing.end();
        let (reader, mut writer) = std::io::pipe().unwrap();
        let task = start(&node, 0, move || read_byte(&reader));
        std::thread::sleep(ms(50));
        writer.write_all(b"x").unwrap();
        assert_eq!(task.join().unwrap(), 0);
        end(node);
    });
}

/// Documented in docs/worker-kinds.md: the mask belongs to the kernel thread. A thread worker has
/// one of its own. Fibers share that of their host. Workers with their own context share it on the
/// host, and each has one of its own while it is preemptive.
#[test]
fn a_mask_belongs_to_the_kernel_thread_and_no_switch_changes_it() {
    const ME: &str = "a_mask_belongs_to_the_kernel_thread_and_no_switch_changes_it";
    in_a_child_of_each_kind(ME, |kind| {
        let node = build(kind, |b| b.schedulers(1));
        on(&node, 0, move || {
            let mine: HashSet<_> = [libc::SIGUSR1, libc::SIGALRM].into();
            let other = ums::spawn(|| {
                ums::yield_now();
                blocked_signals()
            });
            ums::yield_now();
            change_mask(libc::SIG_BLOCK, mine.clone());
            let shares = kind != WorkerKind::Thread;
            let others = if shares { mine.clone() } else { HashSet::new() };
            assert_eq!(other.join().unwrap(), others);
            uses_everything();
            assert_eq!(blocked_signals(), mine, "after switches");
            let away = || ums::go_preemptive(ums::WaitReason::PREEMPTIVE_EXTERNAL, blocked_signals);
            match kind {
                WorkerKind::Thread => assert_eq!(away(), mine),
                WorkerKind::Fiber => assert_eq!(away(), HashSet::new()),
                WorkerKind::OwnContext => {
                    assert_eq!(away(), HashSet::new());
                    ums::go_preemptive(ums::WaitReason::PREEMPTIVE_EXTERNAL, || {
                        change_mask(libc::SIG_BLOCK, [libc::SIGWINCH]);
                    });
                    uses_everything();
                    assert_eq!(blocked_signals(), mine, "the host's is as before");
                    assert_eq!(away(), [libc::SIGWINCH].into(), "it kept its own");
                }
            }
            change_mask(libc::SIG_UNBLOCK, mine);
        });
        end(node);
    });
}

thread_local! {
    static MARK: Cell<u64> = const { Cell::new(0) };
}
static FOREIGN: AtomicU64 = AtomicU64::new(0);

extern "C" fn looks_at_its_mark(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    if MARK.get() != 4714 {
        FOREIGN.fetch_add(1, SeqCst);
    }
    HANDLED.fetch_add(1, SeqCst);
}

/// While glibc's handler for changes of credentials runs on a host, the FS base is that of the
/// host. No handler of the application may see that.
#[test]
fn handlers_find_the_workers_thread_locals_while_credentials_change() {
    const ME: &str = "handlers_find_the_workers_thread_locals_while_credentials_change";
    in_a_child_of_each_kind(ME, |kind| {
        for flags in [0, libc::SA_ONSTACK] {
            handle(libc::SIGUSR1, looks_at_its_mark, flags, &[]);
            handle(libc::SIGALRM, works, libc::SA_RESTART, &[]);
            let node = build(kind, |b| b.schedulers(1));
            let (thread, enough) = (Arc::new(AtomicI32::new(0)), Arc::new(AtomicBool::new(false)));
            let (tell, last) = (thread.clone(), enough.clone());
            let task = start(&node, 0, move || {
                let _room = roomy(kind);
                MARK.set(4714);
                tell.store(kernel_thread(), SeqCst);
                while !last.load(SeqCst) {
                    std::hint::spin_loop();
                }
            });
            eventually("it computes", || thread.load(SeqCst) != 0);
            let flood = Flood::of(thread.load(SeqCst));
            for _ in 0..3000 {
                // SAFETY: Own Memory: numbers. It changes nothing, but on all threads.
                assert_eq!(unsafe { libc::seteuid(libc::geteuid()) }, 0);
            }
            drop(flood);
            enough.store(true, SeqCst);
            task.join().unwrap();
            end(node);
        }
        assert_eq!(FOREIGN.load(SeqCst), 0, "of {} signals", HANDLED.load(SeqCst));
    });
}

#[test]
fn a_wait_for_the_event_of_a_completion_list_goes_on_after_a_signal() {
    const ME: &str = "a_wait_for_the_event_of_a_completion_list_goes_on_after_a_signal";
    if let Some(errand) = child_errand() {
        let _watch = Watchdog::start(errand);
        handle(libc::SIGUSR1, works, 0, &[]);
        let list = CompletionList::new().unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let list = &list;
            let waiter = scope.spawn(move || {
                tell.send(thread_number()).unwrap();
                [None, Some(Duration::MAX)].map(|timeout| list.event().wait(timeout))
            });
            let thread = told.recv().unwrap();
            for _ in 0..2 {
                for _ in 0..10 {
                    eventually("it waits", || {
                        about_thread(thread, "status").contains("S (sleeping)")
                    });
                    let before = HANDLED.load(SeqCst);
                    send_to(thread.cast_signed(), libc::SIGUSR1);
                    eventually("it is handled", || HANDLED.load(SeqCst) > before);
                }
                // Signals the event, as a worker does that comes onto the list.
                rustix::io::write(list.event(), &1u64.to_ne_bytes()).unwrap();
            }
            assert_eq!(waiter.join().unwrap(), [true, true]);
        });
        assert!(!list.event().wait(Some(Duration::from_millis(1))), "it was reset");
        survived();
    }
    let output = run_child(ME, "any kind");
    assert!(has_survived(&output), "{output:?}");
}
