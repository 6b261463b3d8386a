//! Workers with their own context: their thread-local state is their own, and the state of their
//! kernel thread is available while they are preemptive. Most other tests run with this worker kind
//! too, and show that everything else works as with the other kinds.

#![allow(unsafe_code)] // Named invariant "Own Memory", at its place; and the harness.

mod common;

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use common::*;
use seccomp::{has_survived, survived};
use ums::{Node, WaitReason, WorkerKind};

fn preemptively<R: Send>(f: impl FnOnce() -> R + Send) -> R {
    ums::go_preemptive(WaitReason::PREEMPTIVE_EXTERNAL, f)
}

/// Runs the body on a node with one scheduler, if the system supports such workers.
fn on_own(options: impl FnOnce(ums::Builder) -> ums::Builder, body: impl FnOnce(&Node)) {
    if can_be_had(WorkerKind::OwnContext) {
        one_kind(WorkerKind::OwnContext, |b| options(b.schedulers(1)), body);
    }
}

scoped_tls::scoped_thread_local!(static SCOPED: usize);

/// Two workers are inside `SCOPED.set` at the same time. Returns the value that each reads there
/// after the other has run.
fn interleaved(node: &Node) -> Vec<Option<usize>> {
    node.run(|| {
        let inside = |n: usize| {
            move || {
                SCOPED.set(&n, || {
                    ums::yield_now();
                    let seen = SCOPED.is_set().then(|| SCOPED.with(|n| *n));
                    ums::yield_now();
                    seen
                })
            }
        };
        let both = [ums::spawn(inside(1)), ums::spawn(inside(2))];
        both.into_iter().map(|task| task.join().expect("it ends")).collect()
    })
}

#[test]
fn a_crate_with_scoped_thread_locals_is_broken_by_fibers_and_works_here() {
    let mut broken = Vec::new();
    one_kind(WorkerKind::Fiber, |b| b.schedulers(1), |node| broken = interleaved(node));
    assert_ne!(broken, [Some(1), Some(2)], "fibers share the thread-local");
    on_own(|b| b, |node| assert_eq!(interleaved(node), [Some(1), Some(2)]));
}

#[test]
fn every_worker_is_a_thread_of_its_own_to_the_language_and_to_c() {
    thread_local!(static LAZY: RefCell<Vec<usize>> = RefCell::new(vec![0]));
    on_own(
        |b| b,
        |node| {
            let seen = node.run(|| {
                // All tasks have begun before one ends, so each has a worker of its own.
                let all = std::sync::Arc::new(ums::sync::Barrier::new(50));
                let tasks: Vec<_> = (1..=50)
                    .map(|n| {
                        let all = all.clone();
                        ums::spawn(move || {
                            all.wait().unwrap();
                            let me = std::thread::current().id();
                            LAZY.with_borrow_mut(|lazy| lazy.push(n));
                            for _ in 0..20 {
                                // The borrow lasts across a wait: no other worker has this worker's
                                // value.
                                LAZY.with_borrow_mut(|lazy| {
                                    ums::sleep(ms(1)).unwrap();
                                    assert_eq!(lazy.pop(), Some(n));
                                    lazy.push(n);
                                });
                                assert_eq!(std::thread::current().id(), me);
                            }
                            LAZY.with_borrow_mut(|lazy| lazy.pop());
                            (me, kernel_thread())
                        })
                    })
                    .collect();
                tasks.into_iter().map(|task| task.join().expect("it ends")).collect::<Vec<_>>()
            });
            let threads: HashSet<_> = seen.iter().map(|(thread, _)| *thread).collect();
            let kernel: HashSet<_> = seen.iter().map(|(_, kernel)| *kernel).collect();
            assert_eq!(
                (threads.len(), kernel.len()),
                (50, 1),
                "50 threads ran on one kernel thread"
            );
        },
    );
}

#[test]
fn preemptive_it_is_the_same_thread_on_its_own_kernel_thread_also_after_a_panic() {
    on_own(
        |b| b,
        |node| {
            node.run(|| {
                let (me, host) = (std::thread::current().id(), kernel_thread());
                let first = preemptively(|| (std::thread::current().id(), kernel_thread()));
                assert_eq!(first.0, me);
                assert_ne!(first.1, host);
                assert_eq!(kernel_thread(), host, "it is back on the host");
                let panics = || preemptively(|| std::panic::resume_unwind(Box::new(7)));
                let caught = std::panic::catch_unwind(panics);
                assert_eq!(caught.expect_err("it panics").downcast_ref(), Some(&7));
                assert_eq!(kernel_thread(), host, "also on the way through a panic");
                assert_eq!(preemptively(kernel_thread), first.1, "always the same");
            });
        },
    );
}

#[test]
fn others_run_while_one_is_preemptive_and_what_it_starts_has_no_signal_blocked() {
    on_own(
        |b| b,
        |node| {
            let blocked = node.run(|| {
                let (send, receive) = std::sync::mpsc::channel();
                let away = ums::spawn(move || {
                    preemptively(move || {
                        receive.recv().expect("sent by a worker of the same scheduler");
                        let status = std::process::Command::new("grep")
                            .args(["SigBlk", "/proc/self/status"])
                            .output()
                            .expect("grep");
                        String::from_utf8(status.stdout).expect("text")
                    })
                });
                ums::yield_now();
                send.send(()).expect("it waits");
                away.join().expect("it ends")
            });
            assert!(blocked.trim_end().ends_with("0000000000000000"), "{blocked}");
        },
    );
}

#[test]
fn code_that_knows_nothing_of_workers_may_block_and_keeps_its_thread_locals() {
    on_own(
        |b| b,
        |node| {
            let pipe = std::env::temp_dir().join(format!("ums-own-{}", std::process::id()));
            rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
            let at = pipe.clone();
            node.run(move || {
                let path = at.clone();
                // A file of the standard library, which blocks in `open` and in `read`.
                let reads = ums::spawn(move || preemptively(|| std::fs::read_to_string(path)));
                // A name lookup, in C.
                let resolves = ums::spawn(|| {
                    let resolve = || std::net::ToSocketAddrs::to_socket_addrs(&("localhost", 80));
                    preemptively(resolve).map(Iterator::count)
                });
                // A C library that keeps its last error message per thread: the message stays right
                // across yields, and when the next call is made on another kernel thread.
                let told: Vec<_> = (0..8).map(|n| ums::spawn(move || last_word(n))).collect();
                for (n, told) in told.into_iter().enumerate() {
                    assert!(
                        told.join().expect("it ends").contains(&format!("no-such-library-{n}"))
                    );
                }
                assert!(!reads.is_finished(), "nothing was written yet, and the others have run");
                assert!(resolves.join().expect("it ends").expect("it is in /etc/hosts") > 0);
                let write = move || std::fs::write(at, "so it is");
                ums::spawn(move || preemptively(write)).join().expect("it ends").unwrap();
                assert_eq!(reads.join().expect("it ends").unwrap(), "so it is");
            });
            std::fs::remove_file(&pipe).unwrap();
        },
    );
}

/// Returns the dynamic linker's message about a library that does not exist, read after other
/// workers have asked for other libraries.
fn last_word(n: usize) -> String {
    let name = std::ffi::CString::new(format!("no-such-library-{n}")).unwrap();
    // SAFETY: Own Memory: the name outlives the call. The linker's message belongs to the calling
    // thread until its next message.
    let open = || assert!(unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) }.is_null());
    if n.is_multiple_of(2) {
        preemptively(open)
    } else {
        open()
    }
    for _ in 0..5 {
        ums::yield_now();
    }
    // SAFETY: Own Memory: as above; the linker's messages end with a zero.
    let text = unsafe { std::ffi::CStr::from_ptr(libc::dlerror()) };
    text.to_string_lossy().into_owned()
}

#[test]
fn a_destructor_that_waits_during_a_panic_delays_no_other_worker() {
    on_own(
        |b| b,
        |node| {
            node.run(|| {
                struct Waits(Arc<AtomicUsize>);
                impl Drop for Waits {
                    fn drop(&mut self) {
                        assert!(std::thread::panicking());
                        let before = self.0.load(Ordering::Relaxed);
                        ums::sleep(ms(20)).unwrap();
                        assert!(self.0.load(Ordering::Relaxed) > before, "others ran meanwhile");
                        assert!(std::thread::panicking());
                    }
                }
                let turns = Arc::new(AtomicUsize::new(0));
                let (counts, waits) = (turns.clone(), Waits(turns));
                let panics = ums::spawn(move || {
                    let _waits = waits;
                    std::panic::resume_unwind(Box::new("on purpose"));
                });
                while !panics.is_finished() {
                    assert!(!std::thread::panicking(), "that is another thread's");
                    counts.fetch_add(1, Ordering::Relaxed);
                    ums::sleep(ms(1)).unwrap();
                }
                assert!(panics.join().is_err());
            });
        },
    );
}

#[test]
fn ten_thousand_workers_begin_and_end_and_leave_nothing_behind() {
    const WORKERS: usize = 10_000;
    static ENDED: Mutex<Vec<(i32, i32)>> = Mutex::new(Vec::new());
    /// Records its worker's own kernel thread, which it reads while the worker is preemptive.
    struct Last(Cell<i32>);
    impl Drop for Last {
        fn drop(&mut self) {
            ENDED.lock().unwrap().push((self.0.get(), kernel_thread()));
        }
    }
    thread_local!(static LAST: Last = const { Last(Cell::new(0)) });
    let mappings = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    let before = mappings();
    on_own(
        |b| b.max_workers(WORKERS),
        |node| {
            node.run(|| {
                let barrier = Arc::new(ums::sync::Event::manual(false));
                let tasks: Vec<_> = (0..WORKERS - 1)
                    .map(|n| {
                        let barrier = barrier.clone();
                        ums::spawn(move || {
                            barrier.wait().unwrap();
                            let own = if n % 16 == 0 { preemptively(kernel_thread) } else { 0 };
                            LAST.with(|last| last.0.set(own));
                        })
                    })
                    .collect();
                ums::yield_now();
                barrier.set();
                tasks.into_iter().for_each(|task| task.join().expect("it ends"));
            });
        },
    );
    let ended = std::mem::take(&mut *ENDED.lock().unwrap());
    if can_be_had(WorkerKind::OwnContext) {
        assert_eq!(ended.len(), WORKERS - 1, "every thread's destructors have run");
        assert!(
            ended.iter().all(|(own, last)| *own == 0 || own == last),
            "on its own kernel thread"
        );
    }
    // The C library caches some stacks, and the allocator keeps its arenas.
    eventually("their stacks are gone", || mappings() < before + 400);
}

/// Returns how many mappings this process has.
fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").expect("the process's mappings").lines().count()
}

#[test]
fn workers_take_at_most_two_mappings_each() {
    const WORKERS: usize = 2_000;
    if child_errand().is_some() {
        on_own(
            |b| b.max_workers(WORKERS + 8),
            |node| {
                let before = mappings();
                let open = Arc::new(ums::sync::Event::manual(false));
                let tasks = node.run({
                    let open = Arc::clone(&open);
                    move || {
                        let wait = |_| {
                            let open = Arc::clone(&open);
                            ums::spawn(move || open.wait().expect("it is not cancelled"))
                        };
                        (0..WORKERS).map(wait).collect::<Vec<_>>()
                    }
                });
                eventually("all wait", || {
                    ums::testing::scheduler(node, 0).counters.waiting == WORKERS as u64
                });
                let each = (mappings() - before) as f64 / WORKERS as f64;
                eprintln!("{each} mappings for each worker");
                assert!(each <= 2.1, "{each} mappings for each worker");
                open.set();
                tasks.into_iter().for_each(|task| task.join().expect("it ends"));
            },
        );
        survived();
    }
    let output = run_child("workers_take_at_most_two_mappings_each", "now");
    assert!(has_survived(&output), "{output:?}");
}

fn couple() -> ums::worker::Coupled {
    ums::worker::couple(WaitReason::PREEMPTIVE_EXTERNAL).expect("it has a kernel thread of its own")
}

#[test]
fn a_guard_couples_until_it_is_dropped_also_by_a_panic_and_at_the_latest_with_the_request() {
    on_own(
        |b| b,
        |node| {
            node.run(|| {
                let (me, host) = (std::thread::current().id(), kernel_thread());
                let away = couple();
                let own = kernel_thread();
                assert_ne!(own, host);
                assert!(!ums::worker::is_worker() && std::thread::current().id() == me);
                // The worker is already coupled, so this has no effect.
                let inner = couple();
                assert_eq!((kernel_thread(), preemptively(kernel_thread)), (own, own));
                drop(away);
                assert_eq!(kernel_thread(), host);
                drop(inner);
                assert!(ums::worker::is_worker() && kernel_thread() == host);
                let caught = std::panic::catch_unwind(|| {
                    let _away = couple();
                    std::panic::resume_unwind(Box::new(7));
                });
                assert_eq!(caught.expect_err("it panics").downcast_ref(), Some(&7));
                assert!(
                    ums::worker::is_worker() && kernel_thread() == host,
                    "back on the scheduler by the panic"
                );
            });
            // The guard is forgotten. The worker's next request still runs on the host.
            let forgotten = node.spawn(|| std::mem::forget(couple())).unwrap();
            forgotten.join().unwrap();
            for _ in 0..20 {
                let tasks: Vec<_> =
                    (0..4).map(|_| node.spawn(ums::worker::is_worker).unwrap()).collect();
                assert!(tasks.into_iter().all(|task| task.join().unwrap()));
            }
            eventually("no worker is preemptive", || {
                node.snapshot().schedulers[0].counters.preemptive == 0
            });
        },
    );
}

#[test]
fn a_guard_is_going_preemptive_for_threads_nothing_for_plain_threads_and_refused_to_fibers() {
    assert!(ums::worker::couple(WaitReason::PREEMPTIVE_EXTERNAL).is_ok());
    one_kind(
        WorkerKind::Fiber,
        |b| b.schedulers(1),
        |node| {
            node.run(|| {
                let refused =
                    ums::worker::couple(WaitReason::PREEMPTIVE_EXTERNAL).expect_err("no thread");
                assert!(refused.to_string().contains("go_preemptive"), "{refused}");
                assert!(ums::worker::is_worker());
            });
        },
    );
    for kind in [WorkerKind::Thread, WorkerKind::OwnContext] {
        if !can_be_had(kind) {
            continue;
        }
        one_kind(
            kind,
            |b| b.schedulers(1),
            |node| {
                let (send, receive) = std::sync::mpsc::channel();
                let away = node.spawn(move || {
                    let _away = couple();
                    // Blocks until another worker of the same scheduler has run.
                    receive.recv().expect("sent by a worker");
                });
                node.run(move || send.send(()).expect("it waits"));
                away.unwrap().join().unwrap();
                assert_eq!(node.snapshot().schedulers[0].counters.preemptive_switches, 1);
            },
        );
    }
}

#[test]
fn a_worker_that_has_begun_to_wait_cannot_leave_and_no_guard_of_a_request_outlives_it() {
    struct Leaves;
    impl Drop for Leaves {
        fn drop(&mut self) {
            std::mem::forget(couple());
        }
    }
    for kind in [WorkerKind::Thread, WorkerKind::OwnContext] {
        if !can_be_had(kind) {
            continue;
        }
        let build = |b: ums::Builder| b.schedulers(1);
        one_kind(kind, build, |node| {
            let waits = node.spawn(|| {
                let wait = ums::sync::Wait::new(WaitReason::OTHER);
                let _ = wait.park(|_| std::mem::forget(couple()));
            });
            let panic = waits.unwrap().join().expect_err("it cannot leave");
            assert!(panic.to_string().contains("has begun to wait"), "{panic}");
            // The guard is dropped with the request's result, which no caller fetches.
            let go = Arc::new(ums::sync::Event::manual(false));
            let waiting = go.clone();
            drop(node.spawn(move || {
                waiting.wait().unwrap();
                Leaves
            }));
            go.set();
            // The guard is dropped with a request that never began.
            let holds = Leaves;
            let queued = node.run(move || {
                let queued = ums::spawn(move || drop(holds));
                queued.cancel();
                queued
            });
            assert!(queued.join().is_err(), "it was cancelled before it began");
            for _ in 0..20 {
                let tasks: Vec<_> =
                    (0..4).map(|_| node.spawn(ums::worker::is_worker).unwrap()).collect();
                assert!(tasks.into_iter().all(|task| task.join().unwrap()));
            }
            eventually("no worker is preemptive", || {
                node.snapshot().schedulers[0].counters.preemptive == 0
            });
        });
    }
}
