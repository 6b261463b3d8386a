//! Workers with their own context: what is a thread's own stays its own, and what is the kernel thread's is had by going
//! preemptive. That everything else is as in the other kinds is said by the other tests, which run in this kind too.

mod common;

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use common::*;
use ums::{Node, WaitReason, WorkerKind};

/// The number of the kernel thread.
fn kernel_thread() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

fn preemptively<R: Send>(f: impl FnOnce() -> R + Send) -> R {
    ums::go_preemptive(WaitReason::PREEMPTIVE_EXTERNAL, f)
}

/// Runs the body on a node of one scheduler, where there are such workers.
fn on_own(options: impl FnOnce(ums::Builder) -> ums::Builder, body: impl FnOnce(&Node)) {
    if can_be_had(WorkerKind::OwnContext) {
        one_kind(WorkerKind::OwnContext, |b| options(b.schedulers(1)), body);
    }
}

scoped_tls::scoped_thread_local!(static SCOPED: usize);

/// Two workers that are inside `SCOPED.set` at once: what each reads there after the other has run.
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
                let tasks: Vec<_> = (1..=50)
                    .map(|n| {
                        ums::spawn(move || {
                            let me = std::thread::current().id();
                            LAZY.with_borrow_mut(|lazy| lazy.push(n));
                            for _ in 0..20 {
                                // Borrowed over a wait: nobody else has it.
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
                assert_eq!(kernel_thread(), host, "it came home");
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
fn a_destructor_that_waits_during_a_panic_holds_up_nobody() {
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
fn thousands_of_workers_come_and_go_and_leave_nothing_behind() {
    const WORKERS: usize = 2000;
    static ENDED: Mutex<Vec<(i32, i32)>> = Mutex::new(Vec::new());
    /// Its own kernel thread, as it was told while preemptive.
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
                            barrier.wait();
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
    // The C library keeps some stacks, and the allocator its arenas.
    eventually("their stacks are gone", || mappings() < before + 400);
}
