//! Signal handlers that the application installed before or after those of this library, with each
//! kind of worker. What was there before gets the signals that are not ours, as the kernel would
//! have called it: with its mask, and once if it has `SA_RESETHAND`. What comes after costs the
//! library some of its reports, and nothing else.
//!
//! Each test runs in processes of its own. Named invariant **Signal**: the handlers only use
//! atomics, `errno` and system calls.

#![allow(unsafe_code)] // For the harness.

mod common;
#[path = "common/signals.rs"]
mod signals;

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering::SeqCst};

use common::seccomp::{has_survived, survived};
use common::*;
use signals::*;
use ums::{Node, WorkerKind};

/// The flags of the application's handlers.
const FLAGS: [i32; 4] = [0, libc::SA_NODEFER, libc::SA_ONSTACK, libc::SA_RESETHAND];

/// Runs `body` in a child process for each kind of worker and each of `FLAGS`, and returns how each
/// ended.
fn children(test: &str, body: fn(WorkerKind, i32)) -> Vec<(String, std::process::Output)> {
    if let Some(errand) = child_errand() {
        let _watch = Watchdog::start(errand.clone());
        let (kind, flags) = errand.split_once(' ').unwrap();
        body(kind_named(kind), flags.parse().unwrap());
        survived();
    }
    let each = kinds().into_iter().flat_map(|kind| FLAGS.map(|flags| format!("{kind:?} {flags}")));
    each.map(|errand| (errand.clone(), run_child(test, &errand))).collect()
}

fn all_survive(test: &str, body: fn(WorkerKind, i32)) {
    for (errand, output) in children(test, body) {
        assert!(has_survived(&output), "{errand}: {output:?}");
    }
}

/// Whether the thread is in a handler with these flags, and so has these signals blocked.
fn mask_fits(signal: i32, flags: i32, also: &[i32]) -> bool {
    let own = (flags & libc::SA_NODEFER == 0).then_some(signal);
    blocked_signals() == own.into_iter().chain(also.iter().copied()).collect()
}

static CALLS: AtomicU64 = AtomicU64::new(0);
static WRONG: AtomicU64 = AtomicU64::new(0);
static FLAGS_NOW: AtomicI32 = AtomicI32::new(0);

/// Counts its calls, checks what is blocked, and leaves a wrong `errno`.
extern "C" fn counts(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: Signal: the kernel's own information.
    let named = unsafe { (*info).si_signo };
    if named != signal || !mask_fits(signal, FLAGS_NOW.load(SeqCst), &[libc::SIGWINCH]) {
        WRONG.fetch_add(1, SeqCst);
    }
    CALLS.fetch_add(1, SeqCst);
    set_errno(libc::ENOTTY);
}

/// Sends three of these to the thread of a worker. The earlier handler gets each, or the first.
fn three_are_passed_on(node: &Node, signal: i32, flags: i32) {
    CALLS.store(0, SeqCst);
    on(node, 0, move || {
        set_errno(4711);
        (0..3).for_each(|_| send_to(kernel_thread(), signal));
        assert_eq!(errno(), 4711, "a handler of ours leaves it unchanged");
    });
    let expected = if flags & libc::SA_RESETHAND == 0 { 3 } else { 1 };
    assert_eq!((CALLS.load(SeqCst), WRONG.load(SeqCst)), (expected, 0), "signal {signal}");
}

/// Makes the library install its handler for samples, and returns whether a sample was taken.
fn sample(node: &Node) -> bool {
    let computing = Computing::on(node);
    let seen = node.stacks().iter().any(|stack| !stack.of_the_application().is_empty());
    computing.end();
    seen
}

#[test]
fn an_earlier_handler_gets_the_signals_that_are_not_ours_as_the_kernel_would_send_them() {
    const ME: &str =
        "an_earlier_handler_gets_the_signals_that_are_not_ours_as_the_kernel_would_send_them";
    all_survive(ME, |kind, flags| {
        FLAGS_NOW.store(flags, SeqCst);
        for signal in [libc::SIGURG, libc::SIGUSR2, libc::SIGTRAP] {
            handle(signal, counts, flags, &[libc::SIGWINCH]);
        }
        let detects = kind == WorkerKind::OwnContext;
        let node = build(kind, |b| b.schedulers(1).detect_blocking(detects));
        node.print_stacks_on_sigusr2().unwrap();
        eventually("a sample", || sample(&node));
        three_are_passed_on(&node, libc::SIGURG, flags);
        three_are_passed_on(&node, libc::SIGUSR2, flags);
        // Without its handler, SIGTRAP ends the process.
        if detects && flags & libc::SA_RESETHAND == 0 {
            three_are_passed_on(&node, libc::SIGTRAP, flags);
        }
        eventually("ours still work", || sample(&node));
        end(node);
    });
}

static FAULTS_AT: AtomicUsize = AtomicUsize::new(0);

/// Resolves a fault on the page, if it is allowed to.
extern "C" fn lets_in(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: Signal: the kernel's own information about a fault.
    let at = unsafe { (*info).si_addr() as usize };
    if !mask_fits(signal, FLAGS_NOW.load(SeqCst), &[libc::SIGWINCH]) {
        WRONG.fetch_add(1, SeqCst);
    }
    CALLS.fetch_add(1, SeqCst);
    if at == FAULTS_AT.load(SeqCst) {
        Page::let_in(at);
    }
}

#[test]
fn an_earlier_handler_of_faults_resolves_them() {
    const ME: &str = "an_earlier_handler_of_faults_resolves_them";
    let ended = children(ME, |kind, flags| {
        FLAGS_NOW.store(flags, SeqCst);
        handle(libc::SIGSEGV, lets_in, flags, &[libc::SIGWINCH]);
        let node = build(kind, |b| b.schedulers(1));
        let page = Arc::new(Page::new());
        FAULTS_AT.store(page.address(), SeqCst);
        let mine = page.clone();
        on(&node, 0, move || {
            for n in 1..=3 {
                mine.shut();
                ums::yield_now();
                assert_eq!(mine.touch(), 0);
                assert_eq!((CALLS.load(SeqCst), WRONG.load(SeqCst)), (n, 0));
            }
        });
        end(node);
    });
    for (errand, output) in ended {
        if errand.ends_with(&format!(" {}", libc::SA_RESETHAND)) {
            // The second fault has no handler.
            assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{errand}: {output:?}");
        } else {
            assert!(has_survived(&output), "{errand}: {output:?}");
        }
    }
}

/// As programs do that report their own crashes: it says something, and sends the signal again.
extern "C" fn reports_and_dies(signal: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    const WORD: &[u8] = b"the application's report\n";
    // SAFETY: Signal: a borrowed buffer and its length, and numbers.
    unsafe { libc::write(2, WORD.as_ptr().cast(), WORD.len()) };
    send_to(kernel_thread(), signal);
}

/// Ours write the events of the schedulers, or find that a fault is no overflow.
#[test]
fn an_earlier_handler_of_crashes_reports_once_and_the_process_dies() {
    const ME: &str = "an_earlier_handler_of_crashes_reports_once_and_the_process_dies";
    let ended = children(ME, |kind, flags| {
        let flags = flags | libc::SA_RESETHAND;
        handle(libc::SIGSEGV, reports_and_dies, flags, &[]);
        handle(libc::SIGABRT, reports_and_dies, flags, &[]);
        let crashes = kind == WorkerKind::OwnContext;
        if crashes {
            ums::stats::print_last_events_on_crash();
        }
        let node = build(kind, |b| b.schedulers(1).event_ring(true));
        on(&node, 0, move || {
            ums::sleep(ms(1)).unwrap();
            send_to(kernel_thread(), if crashes { libc::SIGABRT } else { libc::SIGSEGV });
            std::thread::sleep(ms(20_000));
        });
    });
    for (errand, output) in ended {
        let text = String::from_utf8_lossy(&output.stderr);
        let crashes = errand.starts_with("OwnContext");
        let signal = if crashes { libc::SIGABRT } else { libc::SIGSEGV };
        assert_eq!(output.status.signal(), Some(signal), "{errand}: {text}");
        assert_eq!(text.matches("the application's report").count(), 1, "{errand}: {text}");
        assert_eq!(text.contains("us ago: WAIT worker 1 SLEEP"), crashes, "{errand}: {text}");
    }
}

#[test]
fn a_later_handler_costs_reports_and_nothing_else() {
    const ME: &str = "a_later_handler_costs_reports_and_nothing_else";
    all_survive(ME, |kind, flags| {
        if flags & libc::SA_RESETHAND != 0 {
            return; // After the first signal it would not be there.
        }
        let detects = kind == WorkerKind::OwnContext;
        let node = build(kind, |b| b.schedulers(1).detect_blocking(detects));
        node.print_stacks_on_sigusr2().unwrap();
        eventually("a sample", || sample(&node));
        FLAGS_NOW.store(flags, SeqCst);
        for signal in [libc::SIGURG, libc::SIGUSR2, libc::SIGTRAP] {
            handle(signal, counts, flags | libc::SA_RESTART, &[libc::SIGWINCH]);
        }
        handle(libc::SIGSEGV, lets_in, flags, &[libc::SIGWINCH]);
        assert!(!sample(&node), "the sample's signal goes to the application");
        assert!(CALLS.load(SeqCst) > 0);
        let page = Arc::new(Page::new());
        FAULTS_AT.store(page.address(), SeqCst);
        let (reader, mut writer) = std::io::pipe().unwrap();
        let begun = Arc::new(AtomicBool::new(false));
        let tell = begun.clone();
        let task = start(&node, 0, move || {
            page.shut();
            assert_eq!(page.touch(), 0);
            send_to(kernel_thread(), libc::SIGUSR2);
            tell.store(true, SeqCst);
            // Undeclared: it is poked in vain, and so it holds up its scheduler.
            while rustix::io::read(&reader, &mut [0]) != Ok(1) {}
        });
        let other = start(&node, 0, || ums::sleep(ms(1)).unwrap());
        eventually("it has begun", || begun.load(SeqCst));
        std::thread::sleep(ms(30));
        writer.write_all(b"x").unwrap();
        task.join().unwrap();
        other.join().unwrap();
        assert_eq!(WRONG.load(SeqCst), 0);
        end(node);
    });
}
