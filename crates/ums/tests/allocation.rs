//! Memory that cannot be had: an allocator that refuses one allocation, at each place in turn, and
//! a system that refuses threads, mappings or descriptors.
//!
//! Where `std` has no way to return an error, such as for `Box::new`, the promise is only that the
//! process ends with the message of `std`. So each run is a process of its own. It must either go
//! on, with or without an error, or die of SIGABRT with that message. It must not hang, fault or
//! panic.
//!
//! The n-th allocation of an operation is refused, on whichever thread it is, for n = 1 and so on,
//! until the operation ends before that. So the test need not list the places. It prints how many
//! there are.

#![allow(unsafe_code)] // Named invariant **Contract**: the allocator is that of the system.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::Output;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};

use common::seccomp::{Verdict, filter, has_survived, survived};
use common::*;
use ums::sync::channel::bounded;
use ums::{Node, WorkerKind};

/// How many allocations succeed before one is refused. Without an operation, none is.
static LEFT: AtomicI64 = AtomicI64::new(i64::MAX);

/// The alignment of memory that is counted. Only a test here asks for so much.
const COUNTED: usize = 2048;

/// How many pieces of memory with this alignment are allocated.
static ALLOCATED: AtomicI64 = AtomicI64::new(0);

struct Refusing;

impl Refusing {
    /// Counts an allocation, and returns whether it is the one that is refused.
    fn refuses() -> bool {
        LEFT.load(SeqCst) < i64::MAX / 2 && LEFT.fetch_sub(1, SeqCst) == 1
    }

    fn count(layout: Layout, change: i64) {
        if layout.align() == COUNTED {
            ALLOCATED.fetch_add(change, SeqCst);
        }
    }
}

// SAFETY: Contract: memory comes from the system's allocator, or there is none.
unsafe impl GlobalAlloc for Refusing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Refusing::count(layout, 1);
        // SAFETY: Contract.
        if Refusing::refuses() { std::ptr::null_mut() } else { unsafe { System.alloc(layout) } }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        Refusing::count(layout, -1);
        // SAFETY: Contract.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if Refusing::refuses() {
            return std::ptr::null_mut();
        }
        // SAFETY: Contract.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Refusing = Refusing;

/// Runs the operation with its n-th allocation refused. Returns whether it came to that.
fn refuse_the(n: i64, operation: impl FnOnce()) -> bool {
    LEFT.store(n, SeqCst);
    operation();
    LEFT.swap(i64::MAX, SeqCst) <= 0
}

/// Runs `f` on a worker, if the node takes it and its task can be joined.
fn on_if_possible(node: &Node, f: impl FnOnce() + Send + 'static) {
    if let Ok(task) = node.spawn_on(0, f) {
        let _ = task.join();
    }
}

type Operation = fn(&Node);

/// What uses memory. Each operation may fail, and must not panic.
const OPERATIONS: &[(&str, Operation)] = &[
    ("a node", |node| {
        let kind = node.worker_kind();
        if let Ok(node) = try_build(kind, |b| b.schedulers(1)) {
            on_if_possible(&node, || ());
            node.shutdown(std::time::Duration::from_secs(20));
        }
    }),
    ("a task", |node| on_if_possible(node, || ())),
    ("tasks of a worker", |node| {
        on_if_possible(node, || {
            let tasks = [ums::spawn(|| ()), ums::spawn(ums::yield_now)];
            tasks.into_iter().for_each(|task| drop(task.join()));
        });
    }),
    ("a channel", |node| {
        on_if_possible(node, || {
            let (send, receive) = bounded(1);
            let task = ums::spawn(move || (0..3).try_for_each(|n| send.send(n).map_err(drop)));
            while receive.recv().is_ok() {}
            drop(task.join());
        });
    }),
    ("timers", |node| {
        on_if_possible(node, || {
            let tasks = (0..8).map(|n| ums::spawn(move || ums::sleep(ms(n % 3))));
            let tasks: Vec<_> = tasks.collect();
            tasks.into_iter().for_each(|task| drop(task.join()));
        });
    }),
    ("I/O of sockets", |node| {
        on_if_possible(node, || {
            let Ok((mut one, mut other)) = ums::net::UnixStream::pair() else { return };
            let task = ums::spawn(move || std::io::Read::read(&mut one, &mut [0; 8]).is_ok());
            let _ = other.write(b"x");
            drop(task.join());
        });
    }),
    ("I/O of files", |node| {
        on_if_possible(node, || {
            let _ = ums::fs::read("/proc/self/stat");
            let _ = ums::fs::metadata("/");
        });
    }),
    ("a user", |node| {
        let user = node.user();
        if let Ok(task) = user.enqueue(|| ()) {
            drop(task.join());
        }
    }),
    ("what is seen", |node| drop((node.snapshot(), node.stacks()))),
];

/// Checks that a process has gone on, or has died as `std` lets it die.
#[track_caller]
fn ends_well(what: &str, output: &Output) -> bool {
    let text = String::from_utf8_lossy(&output.stderr);
    let says = text.contains("memory allocation of ") && text.contains(" bytes failed");
    let aborted = output.status.signal() == Some(libc::SIGABRT) && says;
    assert!(has_survived(output) || aborted, "{what}: {output:?}");
    aborted
}

#[test]
fn an_allocation_that_fails_is_an_error_or_the_end_of_the_process() {
    const ME: &str = "an_allocation_that_fails_is_an_error_or_the_end_of_the_process";
    if let Some(errand) = child_errand() {
        let _watch = Watchdog::start(errand.clone());
        let [kind, which, n] = errand.split(' ').collect::<Vec<_>>()[..] else { unreachable!() };
        let node = build(kind_named(kind), |b| b.schedulers(1));
        on(&node, 0, || ());
        let (name, operation) = OPERATIONS[which.parse::<usize>().unwrap()];
        if !refuse_the(n.parse().unwrap(), || operation(&node)) {
            println!("{name}: all succeeded");
        }
        // What has failed was an error, and everything goes on.
        assert_eq!(on(&node, 0, || ums::spawn(|| 7).join().unwrap()), 7);
        end(node);
        survived();
    }
    for kind in kinds() {
        for (which, (name, _)) in OPERATIONS.iter().enumerate() {
            let (mut places, mut deaths, mut n) = (0, 0, 1);
            loop {
                // A backtrace would take most of the time.
                let mut command = child(ME, &format!("{kind:?} {which} {n}"));
                let output = command.env("RUST_BACKTRACE", "0").output().unwrap();
                let what = format!("{kind:?} workers, {name}, allocation {n}");
                deaths += usize::from(ends_well(&what, &output));
                if String::from_utf8_lossy(&output.stdout).contains("all succeeded") {
                    break;
                }
                places += 1;
                // The kinds differ little: of many places of the others, each third is enough.
                n += if places < 40 || kind == WorkerKind::Thread { 1 } else { 3 };
            }
            println!(
                "{kind:?} workers, {name}: {places} places tried, {deaths} ends of the process"
            );
            assert!(places > 0, "{name} allocates nothing");
        }
    }
}

/// System calls that are refused together, and whether a node can be built without them.
const CALLS: &[(&str, &[libc::c_long], bool)] = &[
    ("threads", &[libc::SYS_clone, libc::SYS_clone3], false),
    ("mappings", &[libc::SYS_mmap], false),
    ("events", &[libc::SYS_eventfd2], false),
    // Without these, helper threads do all I/O.
    ("rings and sets", &[libc::SYS_io_uring_setup, libc::SYS_epoll_create1], true),
    ("advice and protection", &[libc::SYS_madvise, libc::SYS_mprotect], true),
];

#[test]
fn a_node_that_the_system_refuses_is_an_error() {
    const ME: &str = "a_node_that_the_system_refuses_is_an_error";
    if let Some(errand) = child_errand() {
        let (kind, which) = errand.split_once(' ').unwrap();
        let kind = kind_named(kind);
        let (name, calls, may_build) = CALLS[which.parse::<usize>().unwrap()];
        let _watch = Watchdog::start(errand.clone());
        filter(Verdict::AllButThese, calls);
        match try_build(kind, |b| b.schedulers(1)) {
            Err(error) => println!("{name}: {error}"),
            Ok(_) => assert!(may_build, "a {kind:?} node without {name}"),
        }
        survived();
    }
    for kind in kinds() {
        for (which, (name, ..)) in CALLS.iter().enumerate() {
            let output = run_child(ME, &format!("{kind:?} {which}"));
            ends_well(&format!("{kind:?} workers without {name}"), &output);
            let text = String::from_utf8_lossy(&output.stdout);
            println!(
                "{kind:?}: {}",
                text.lines().find(|l| l.contains(name)).unwrap_or("it is built")
            );
        }
    }
}

#[test]
fn the_memory_of_a_request_that_is_too_large_to_be_kept_is_freed() {
    #[repr(align(2048))]
    struct Large(u8);
    const { assert!(align_of::<Large>() == COUNTED) };
    for kind in kinds() {
        one_kind(
            kind,
            |b| b.schedulers(1),
            |node| {
                for n in 0..3 {
                    let large = Large(n);
                    let of = move || (std::hint::black_box(&large).0, ALLOCATED.load(SeqCst));
                    assert_eq!(start(node, 0, of).join().unwrap(), (n, 1));
                    eventually("it is freed", || ALLOCATED.load(SeqCst) == 0);
                }
            },
        );
    }
}
