//! Hidden schedulers: the same services as the visible ones, separate from them (U89-U93).

#![allow(unsafe_code)] // For the harness.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use common::*;
use ums::net::UnixStream;
use ums::node::{HiddenOptions, HiddenScheduler};
use ums::stats::WorkerState;
use ums::sync::Mutex;
use ums::testing::{lists, scheduler};
use ums::user::UserLock;
use ums::{Node, WaitReason, WorkerKind};

fn hidden(node: &Node, name: &str) -> HiddenScheduler {
    node.hidden(name, HiddenOptions::default()).expect("it can be made")
}

#[test]
fn a_hidden_scheduler_offers_the_same_services_u89() {
    both_kinds(|node, _, n| {
        let own = hidden(node, "own");
        assert!(own.id() >= n, "hidden ones are numbered after the visible ones");
        let work = own.spawn(|| {
            let place = (ums::worker::scheduler_id(), ums::worker::worker_kind());
            // Spawn and yield, sleep, a lock held across a wait, I/O, a scope, going preemptive.
            let (total, mut stack) = (Arc::new(Mutex::new(0)), [0; 3]);
            let adders: Vec<_> = (0..10)
                .map(|_| {
                    let total = total.clone();
                    ums::spawn(move || {
                        let mut total = total.lock();
                        let before = *total;
                        ums::yield_now();
                        ums::sleep(ms(1)).unwrap();
                        *total = before + 1;
                        ums::worker::scheduler_id()
                    })
                })
                .collect();
            let homes: Vec<_> = adders.into_iter().map(|a| a.join().unwrap()).collect();
            ums::scope(|s| {
                for place in &mut stack {
                    s.spawn(move || *place = 1);
                }
            });
            let (mut here, mut there) = UnixStream::pair().unwrap();
            let reader = ums::spawn(move || {
                use std::io::Read;
                there.read(&mut [0; 4]).unwrap()
            });
            ums::yield_now();
            std::io::Write::write_all(&mut here, b"four").unwrap();
            let read = reader.join().unwrap();
            let outside =
                ums::go_preemptive(WaitReason::PREEMPTIVE_EXTERNAL, ums::worker::scheduler_id);
            let sum = *total.lock();
            (place, homes, sum, stack, read, outside)
        });
        let (place, homes, sum, stack, read, outside) = work.unwrap().join().unwrap();
        assert_eq!(place, (Some(own.id()), Some(WorkerKind::Thread)));
        assert!(homes.iter().all(|home| *home == Some(own.id())), "{homes:?}");
        assert_eq!((sum, stack, read, outside), (10, [1; 3], 4, None));
    });
}

#[test]
fn a_name_means_one_scheduler_u89() {
    both_kinds(|node, _, _| {
        let (one, again, other) = (hidden(node, "one"), hidden(node, "one"), hidden(node, "two"));
        assert_eq!(one.id(), again.id());
        assert_ne!(one.id(), other.id());
        // Many threads create it at the same time; there is still one scheduler.
        let ids: Vec<_> = std::thread::scope(|s| {
            let threads: Vec<_> =
                (0..8).map(|_| s.spawn(|| hidden(node, "at once").id())).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    });
}

#[test]
fn blocking_work_on_a_hidden_scheduler_delays_no_visible_one_u90_u91() {
    both_kinds(|node, _, n| {
        let backup = hidden(node, "backup");
        let (done, steps) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let end = done.clone();
        // Blocks in I/O and computes, without a yield, until the visible schedulers have finished.
        let copying = backup.spawn(move || {
            let mut blocks = 0;
            loop {
                std::fs::read("/proc/self/status").unwrap();
                std::thread::sleep(ms(1));
                spin(ms(1));
                blocks += 1;
                if end.load(SeqCst) {
                    return blocks;
                }
            }
        });
        let copying = copying.unwrap();
        eventually("it runs", || scheduler(node, backup.id()).counters.idle == 0);
        for i in 0..n {
            let count = steps.clone();
            on(node, i, move || {
                for _ in 0..20 {
                    ums::sleep(ms(1)).unwrap();
                    count.fetch_add(1, SeqCst);
                }
            });
        }
        assert_eq!(steps.load(SeqCst), 20 * n);
        assert!(!copying.is_finished(), "they ran in parallel");
        done.store(true, SeqCst);
        assert!(copying.join().unwrap() > 0);
    });
}

#[test]
fn on_a_hidden_scheduler_workers_take_turns_as_on_any_u91() {
    both_kinds(|node, _, _| {
        let own = hidden(node, "own");
        let (busy, ran) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicBool::new(false)));
        let still = busy.clone();
        let first = own.spawn(move || {
            while still.load(SeqCst) {
                std::hint::spin_loop();
            }
        });
        let first = first.unwrap();
        let flag = ran.clone();
        let second = own.spawn(move || flag.store(true, SeqCst)).unwrap();
        std::thread::sleep(ms(50));
        assert!(!ran.load(SeqCst), "a worker does not preempt another one");
        busy.store(false, SeqCst);
        first.join().unwrap();
        second.join().unwrap();
    });
}

#[test]
fn visible_and_hidden_workers_wait_for_the_same_things_u89_g6() {
    both_kinds(|node, _, n| {
        let own = hidden(node, "own");
        let lock = Arc::new(UserLock::new());
        lock.acquire(1, None).unwrap();
        let theirs = lock.clone();
        let waiter = own.spawn(move || {
            theirs.acquire(2, None).unwrap();
            theirs.release(2);
            ums::worker::scheduler_id()
        });
        let waiter = waiter.unwrap();
        eventually("it waits", || lock.waiters() == 1);
        on(node, n - 1, move || lock.release(1));
        assert_eq!(waiter.join().unwrap(), Some(own.id()));
    });
}

#[test]
fn run_borrows_from_its_caller_and_returns_u85_u89() {
    both_kinds(|node, _, n| {
        let own = hidden(node, "own");
        let id = own.id();
        let seen = on(node, n - 1, move || {
            let before = (ums::worker::worker_id(), thread_number());
            let mut places = vec![0; 4];
            let at = own.run(|| {
                places.push(9);
                ums::worker::scheduler_id()
            });
            assert_eq!((ums::worker::worker_id(), thread_number()), before);
            let call = || own.run(|| std::panic::resume_unwind(Box::new("on purpose")));
            let panic: std::thread::Result<()> =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(call));
            assert!(panic.is_err());
            (at, places)
        });
        assert_eq!(seen, (Some(id), vec![0, 0, 0, 0, 9]));
        // A plain thread may call it, too.
        assert_eq!(hidden(node, "own").run(ums::worker::scheduler_id), Some(id));
    });
}

#[test]
fn ready_workers_are_there_from_the_start_b18() {
    both_kinds(|node, _, _| {
        let options = HiddenOptions { max_workers: Some(3), ready: 3, nice: 0 };
        let admin = node.hidden("admin", options).unwrap();
        let view = scheduler(node, admin.id());
        assert_eq!((view.workers.len(), view.workers_max), (3, 3));
        assert!(view.workers.iter().all(|w| w.state == WorkerState::Idle));
    });
}

#[test]
fn the_threads_of_a_hidden_scheduler_have_its_nice_value_u91() {
    both_kinds(|node, _, _| {
        let nice = || rustix::process::getpriority_process(None).unwrap();
        let before = nice();
        let quiet = node.hidden("quiet", HiddenOptions { nice: 7, ..Default::default() }).unwrap();
        assert_eq!(quiet.run(nice), before.max(7));
        let quietest = HiddenOptions { nice: u8::MAX, ..Default::default() };
        assert_eq!(node.hidden("quietest", quietest).unwrap().run(nice), 19);
        // The nice value of the creating thread and of other schedulers' threads is unchanged.
        assert_eq!((nice(), hidden(node, "own").run(nice)), (before, before));
        assert_eq!(node.run(nice), before);
    });
}

/// The rows that SQL Server 2000 prints for each scheduler.
const ROWS: [&str; 8] = [
    "Scheduler ID",
    "  num users",
    "  num runnable",
    "  num workers",
    "  idle workers",
    "  work queued",
    "  cntxt switches",
    "  cntxt switches(idle)",
];

fn value(node: &Node, scheduler: usize, row: usize) -> u64 {
    node.umsstats()[8 * scheduler + row].1 as u64
}

#[test]
fn umsstats_has_the_rows_of_the_original_for_visible_schedulers_u92() {
    both_kinds(|node, _, n| {
        hidden(node, "own").spawn(|| ()).unwrap().join().unwrap();
        let rows = node.umsstats();
        assert_eq!(rows.len(), 8 * n);
        for (i, block) in rows.chunks(8).enumerate() {
            let names: Vec<_> = block.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(names, ROWS);
            assert_eq!(block[0].1, i as f64);
        }
    });
}

#[test]
fn umsstats_counts_users_on_their_home_scheduler_u92() {
    both_kinds_with(ums::Builder::classic, |node, _, n| {
        let users: Vec<_> = (0..2 * n).map(|_| node.user()).collect();
        for i in 0..n {
            assert_eq!(value(node, i, 1), 2, "scheduler {i}");
        }
        drop(users);
        assert!((0..n).all(|i| value(node, i, 1) == 0));
    });
}

#[test]
fn umsstats_says_whether_a_scheduler_is_full_and_all_are_busy_u93() {
    for kind in kinds() {
        for n in COUNTS {
            let three_each = |b: ums::Builder| {
                b.schedulers(n).max_workers(3 * n).placement(ums::node::Placement::AlwaysPreferred)
            };
            one_kind(kind, three_each, |node| {
                let me = n - 1;
                let gate = Gate::shut();
                let pass = |_| {
                    let gate = gate.clone();
                    start(node, me, move || gate.pass())
                };
                let read = || (value(node, me, 3), value(node, me, 4), value(node, me, 5));
                let first: Vec<_> = (0..2).map(pass).collect();
                eventually("two workers, all busy", || read() == (2, 0, 0));
                let rest: Vec<_> = (0..3).map(pass).collect();
                eventually("three workers, the maximum, and two requests wait", || {
                    read() == (3, 0, 2)
                });
                assert_eq!(scheduler(node, me).workers_max, 3);
                gate.open();
                for task in first.into_iter().chain(rest) {
                    task.join().unwrap();
                }
                eventually("all three are idle", || read() == (3, 3, 0));
            });
        }
    }
}

#[test]
fn umsstats_counts_runnable_workers_and_switches_u92() {
    each_alone(
        |b| b,
        |node, _, n| {
            let handle = node.clone();
            on(node, n - 1, move || {
                let (stop, seen) = (Arc::new(AtomicBool::new(false)), lists().scheduler);
                let peers: Vec<_> = (0..2)
                    .map(|_| {
                        let stop = stop.clone();
                        ums::spawn(move || {
                            while !stop.load(SeqCst) {
                                ums::yield_now();
                            }
                        })
                    })
                    .collect();
                let before = value(&handle, seen, 6);
                // List lengths are published by a full turn, such as that of a sleep.
                eventually("both are runnable", || {
                    ums::sleep(ms(1)).unwrap();
                    lists().runnable.len() == 2 && value(&handle, seen, 2) >= 1
                });
                assert!(value(&handle, seen, 6) > before);
                stop.store(true, SeqCst);
                peers.into_iter().for_each(|p| p.join().unwrap());
            });
        },
    );
}
