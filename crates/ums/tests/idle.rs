//! The idle loop: one wait in the kernel, and the events that end it (U72-U76, G5, G6).

#![allow(unsafe_code)] // For the harness.

mod common;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream as StdStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::*;
use ums::io::{CURRENT, Request};
use ums::net::UnixStream;
use ums::node::{IoChoice, Placement};
use ums::sync::channel;
use ums::testing::scheduler;
use ums::user::UserLock;
use ums::{Node, WaitReason};

/// A timer so far off that it cannot be what wakes a scheduler here.
const LATE: Duration = Duration::from_secs(600);

fn sleeps(node: &Node, index: usize) -> bool {
    node.snapshot().schedulers[index].is_idle
}

/// Waits until the scheduler sleeps in the kernel and has nothing left to do.
fn until_idle(node: &Node, index: usize) {
    eventually("the scheduler is idle", || sleeps(node, index));
    std::thread::sleep(ms(2));
    eventually("the scheduler is idle", || sleeps(node, index));
}

/// Runs the body for each scheduler of each node, while one of its workers waits for a distant
/// timer. So a waiting worker runs the idle loop on its stack, not only an idle worker.
fn each_idle(body: impl Fn(&Node, usize)) {
    let alone = |b: ums::Builder| b.placement(Placement::AlwaysPreferred);
    both_kinds_with(alone, |node, _, n| {
        for i in 0..n {
            let sleeper = start(node, i, || ums::sleep(LATE));
            eventually("it sleeps", || scheduler(node, i).counters.timers == 1);
            until_idle(node, i);
            body(node, i);
            sleeper.cancel();
            drop(sleeper.join());
        }
    });
}

#[test]
fn a_new_request_wakes_it_g5() {
    each_idle(|node, i| assert_eq!(on(node, i, ums::worker::scheduler_id), Some(i)));
}

#[test]
fn a_release_by_a_plain_thread_wakes_it_g5() {
    each_idle(|node, i| {
        let gate = Gate::shut();
        let theirs = gate.clone();
        let waiter = start(node, i, move || theirs.pass());
        eventually("it waits", || gate.waiters() == 1);
        until_idle(node, i);
        gate.open();
        waiter.join().unwrap();
    });
}

#[test]
fn a_release_on_another_scheduler_comes_through_the_inbox_g5_g6() {
    let alone = |b: ums::Builder| b.placement(Placement::AlwaysPreferred);
    both_kinds_with(alone, |node, kind, n| {
        for i in 0..n {
            let lock = Arc::new(UserLock::new());
            lock.acquire(1, None).unwrap();
            let theirs = lock.clone();
            let waiter = start(node, i, move || {
                let before = (ums::worker::worker_id(), thread_number());
                theirs.acquire(2, None).unwrap();
                assert_eq!(
                    (ums::worker::worker_id(), thread_number()),
                    before,
                    "on its scheduler, in {kind:?}"
                );
                theirs.release(2);
                ums::worker::scheduler_id()
            });
            eventually("it waits", || lock.waiters() == 1);
            until_idle(node, i);
            let releaser = (i + 1) % n;
            on(node, releaser, move || lock.release(1));
            assert_eq!(waiter.join().unwrap(), Some(i));
        }
    });
}

#[test]
fn a_worker_that_rejoins_wakes_it_g5_g8() {
    each_idle(|node, i| {
        let thread = on(node, i, || {
            ums::go_preemptive(WaitReason::PREEMPTIVE_EXTERNAL, || std::thread::sleep(ms(10)));
            ums::worker::scheduler_id()
        });
        assert_eq!(thread, Some(i));
    });
}

#[test]
fn a_cancellation_wakes_it_g5_b59() {
    each_idle(|node, i| {
        let waiter = start(node, i, || ums::sleep(Duration::MAX));
        eventually("it waits", || scheduler(node, i).counters.waiting == 2);
        until_idle(node, i);
        waiter.cancel();
        assert!(waiter.join().unwrap().is_err());
    });
}

#[test]
fn a_shutdown_wakes_it_g5() {
    for kind in kinds() {
        for n in COUNTS {
            // `one_kind` shuts the node down and checks that everything has ended.
            one_kind(
                kind,
                |b| b.schedulers(n),
                |node| {
                    for i in 0..n {
                        on(node, i, || ());
                        until_idle(node, i);
                    }
                },
            );
        }
    }
}

/// Returns a stream between a worker and a plain thread.
fn stream() -> (UnixStream, StdStream) {
    let (theirs, ours) = StdStream::pair().unwrap();
    (UnixStream::from(theirs), ours)
}

#[test]
fn a_completion_wakes_it_whatever_the_back_end_u74_u75() {
    for choice in [IoChoice::Auto, IoChoice::Epoll, IoChoice::Sync] {
        let options = |b: ums::Builder| b.io(choice).placement(Placement::AlwaysPreferred);
        both_kinds_with(options, |node, _, n| {
            for i in 0..n {
                // The completion comes first; the timer is far off.
                let (mut theirs, mut ours) = stream();
                let sleeper = start(node, i, || ums::sleep(LATE));
                let reader = start(node, i, move || theirs.read(&mut [0; 8]));
                eventually("it reads", || scheduler(node, i).counters.pending_io == 1);
                until_idle(node, i);
                ours.write_all(b"hello").unwrap();
                assert_eq!(reader.join().unwrap().unwrap(), 5);
                sleeper.cancel();
                drop(sleeper.join());
                // The timer comes first; the completion never comes.
                let (mut theirs, ours) = stream();
                let reader = start(node, i, move || theirs.read(&mut [0; 8]));
                eventually("it reads", || scheduler(node, i).counters.pending_io == 1);
                let sleeper = start(node, i, || ums::sleep(ms(20)));
                sleeper.join().unwrap().unwrap();
                assert!(!reader.is_finished());
                drop(ours);
                assert_eq!(reader.join().unwrap().unwrap(), 0);
            }
        });
    }
}

#[test]
fn each_scheduler_has_an_event_of_its_own_u73() {
    let alone = |b: ums::Builder| b.placement(Placement::AlwaysPreferred);
    both_kinds_with(alone, |node, _, n| {
        for i in 0..n {
            on(node, i, || ());
            until_idle(node, i);
        }
        let sleeps = |i: usize| scheduler(node, i).counters.idle_switches;
        for woken in 0..n {
            let before: Vec<_> = (0..n).map(sleeps).collect();
            for _ in 0..5 {
                on(node, woken, || ());
                until_idle(node, woken);
            }
            for (i, before) in before.into_iter().enumerate() {
                let again = sleeps(i) - before;
                assert_eq!(again > 0, i == woken, "{woken} was woken, {i} slept {again} times");
            }
        }
    });
}

/// Returns the voluntary context switches and the processor time, in nanoseconds, of each thread of
/// a node.
fn activity() -> BTreeMap<u32, (u64, u64)> {
    let of = |thread| {
        let switches = thread_status(thread, "voluntary_ctxt_switches");
        let schedstat = about_thread(thread, "schedstat");
        let on_cpu = schedstat.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0);
        (switches, on_cpu)
    };
    node_thread_numbers().into_iter().map(|thread| (thread, of(thread))).collect()
}

#[test]
fn an_idle_node_does_nothing_at_all_u76_u72_b57() {
    for kind in kinds() {
        for n in COUNTS {
            one_kind(
                kind,
                |b| b.schedulers(n),
                |node| {
                    // The node has workers that are idle, one that waits, and one that reads.
                    let tasks: Vec<_> = (0..20)
                        .map(|at| start(node, at % n, move || ums::sleep(ms(at as u64 % 5))))
                        .collect();
                    tasks.into_iter().for_each(|t| t.join().unwrap().unwrap());
                    let waiter = start(node, 0, || ums::sleep(Duration::MAX));
                    let (mut theirs, ours) = stream();
                    let reader = start(node, n - 1, move || theirs.read(&mut [0; 8]));
                    eventually("it waits", || scheduler(node, 0).counters.waiting > 0);
                    eventually("it reads", || scheduler(node, n - 1).counters.pending_io == 1);
                    (0..n).for_each(|i| until_idle(node, i));
                    std::thread::sleep(ms(50));

                    let before = activity();
                    std::thread::sleep(Duration::from_secs(1));
                    let after = activity();
                    assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
                    for (thread, (switches, on_cpu)) in &before {
                        let (switches_now, on_cpu_now) = after[thread];
                        assert_eq!(switches_now, *switches, "thread {thread} of {kind:?} woke up");
                        assert!(on_cpu_now - on_cpu < 1_000_000, "it computed");
                    }
                    waiter.cancel();
                    drop(waiter.join());
                    drop(ours);
                    assert_eq!(reader.join().unwrap().unwrap(), 0);
                },
            );
        }
    }
}

#[test]
fn the_next_timer_is_the_only_timeout_of_its_sleep_u72() {
    each_alone(
        |b| b,
        |node, _, n| {
            for i in 0..n {
                let sleeper = start(node, i, || {
                    let began = Instant::now();
                    ums::sleep(ms(120)).unwrap();
                    began.elapsed()
                });
                eventually("it sleeps", || scheduler(node, i).counters.timers == 1);
                until_idle(node, i);
                let before = scheduler(node, i).counters.idle_switches;
                assert!(sleeper.join().unwrap() >= ms(120));
                until_idle(node, i);
                let slept = scheduler(node, i).counters.idle_switches - before;
                // One sleep until the timer, perhaps another because the thread woke a moment too
                // early.
                assert!(slept <= 3, "slept {slept} times for one timer");
            }
        },
    );
}

#[test]
fn spinning_before_sleeping_is_asked_for_and_ends_b57() {
    const SPIN: Duration = Duration::from_millis(100);
    let spinning = |b: ums::Builder| b.idle_spin(SPIN).placement(Placement::AlwaysPreferred);
    both_kinds_with(spinning, |node, _, n| {
        let me = n - 1;
        on(node, me, || ());
        until_idle(node, me);
        // A request that comes while the scheduler spins finds it awake, so the scheduler does not
        // sleep between two requests.
        let before = scheduler(node, me).counters.idle_switches;
        for _ in 0..20 {
            on(node, me, || ());
        }
        let slept = scheduler(node, me).counters.idle_switches - before;
        assert!(slept < 20, "it slept {slept} times between 20 requests");
        // With nothing to do, the scheduler sleeps after the spin, and the next request wakes it.
        until_idle(node, me);
        assert_eq!(on(node, me, || ums::sleep(ms(1))), Ok(()));
    });
}

/// Lets a task on each of two schedulers send a number back and forth.
fn play(node: &Node, times: u64) {
    let ((ping, pinged), (pong, ponged)) = (channel::bounded(1), channel::bounded(1));
    let here = start(node, 0, move || {
        for n in 0..times {
            ping.send(n).unwrap();
            assert_eq!(ponged.recv(), Ok(n));
        }
    });
    let there = start(node, 1, move || {
        for _ in 0..times {
            pong.send(pinged.recv().unwrap()).unwrap();
        }
    });
    [here, there].into_iter().for_each(|task| task.join().unwrap());
}

fn paid(node: &Node) -> [u64; 2] {
    [0, 1].map(|i| scheduler(node, i).counters.idle_spins_paid)
}

#[test]
fn messages_between_two_schedulers_find_them_awake_b57() {
    let two = |b: ums::Builder| b.schedulers(2).placement(Placement::AlwaysPreferred);
    for kind in kinds() {
        one_kind(kind, two, |node| {
            // How many depends on what else the computer does.
            eventually("polls find messages", || {
                play(node, 1000);
                paid(node).iter().all(|paid| *paid >= 20)
            });
            for i in 0..2 {
                let c = scheduler(node, i).counters;
                assert!(c.idle_spins_paid <= c.idle_spins && c.idle_spin_ns > 0);
                // Now the node is idle, and polls no more.
                until_idle(node, i);
            }
            let polls = [0, 1].map(|i| scheduler(node, i).counters.idle_spins);
            std::thread::sleep(ms(50));
            assert_eq!([0, 1].map(|i| scheduler(node, i).counters.idle_spins), polls);
        });
    }
}

#[test]
fn spinning_can_be_forbidden_b57() {
    for kind in kinds() {
        one_kind(
            kind,
            |b| b.schedulers(2).idle_spin(Duration::ZERO),
            |node| {
                play(node, 1000);
                let spun = [0, 1].map(|i| scheduler(node, i).counters.idle_spins);
                assert_eq!(spun, [0, 0]);
            },
        );
    }
}

#[test]
fn a_scheduler_without_peers_does_not_spin_b57() {
    for kind in kinds() {
        one_kind(
            kind,
            |b| b.schedulers(1),
            |node| {
                for _ in 0..1000 {
                    on(node, 0, || ());
                }
                assert_eq!(scheduler(node, 0).counters.idle_spins, 0);
            },
        );
    }
}

#[test]
fn a_scheduler_that_polls_takes_a_request_from_a_busy_peer_b57_b5() {
    for kind in kinds() {
        one_kind(
            kind,
            |b| b.schedulers(2).idle_spin(Duration::MAX),
            |node| {
                // It polls until the node ends.
                on(node, 1, || ());
                let before = scheduler(node, 1).counters.idle_switches;
                for _ in 0..3 {
                    let taken = on(node, 0, || {
                        let child = ums::spawn(ums::worker::scheduler_id);
                        let began = Instant::now();
                        while !child.is_finished() && began.elapsed() < PATIENCE {
                            std::hint::spin_loop();
                        }
                        assert!(child.is_finished(), "the scheduler that polls left it lying");
                        child.join().unwrap()
                    });
                    assert_eq!(taken, Some(1));
                }
                assert_eq!(scheduler(node, 1).counters.idle_switches, before, "it was awake");
            },
        );
    }
}

#[test]
fn a_scheduler_without_free_workers_is_not_woken_for_anothers_request_b5() {
    for kind in kinds() {
        for n in [3, 4] {
            // Each scheduler has one worker: the first scheduler's spins, the second one's waits,
            // the others' are idle.
            one_kind(
                kind,
                |b| b.schedulers(n).max_workers(n),
                |node| {
                    let gate = Gate::shut();
                    let theirs = gate.clone();
                    let waiter = start(node, 1, move || theirs.pass());
                    eventually("it waits", || gate.waiters() == 1);
                    (1..n).for_each(|i| until_idle(node, i));
                    let taken = on(node, 0, || {
                        let child = ums::spawn(ums::worker::scheduler_id);
                        let began = Instant::now();
                        while !child.is_finished() && began.elapsed() < PATIENCE {
                            std::hint::spin_loop();
                        }
                        assert!(child.is_finished(), "an idle scheduler left it lying");
                        child.join().unwrap()
                    });
                    assert!(taken.is_some_and(|by| by >= 2), "taken by {taken:?}");
                    gate.open();
                    waiter.join().unwrap();
                },
            );
        }
    }
}

#[test]
fn of_two_requests_that_a_completion_routine_queues_an_idle_scheduler_takes_one_b5() {
    for kind in kinds() {
        one_kind(
            kind,
            |b| b.schedulers(2),
            |node| {
                let (theirs, mut ours) = StdStream::pair().unwrap();
                theirs.set_nonblocking(true).unwrap();
                let (told, done) =
                    (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
                let (seen, end) = (told.clone(), done.clone());
                on(node, 0, move || {
                    let routine = move |_: std::io::Result<usize>, _: Vec<u8>| {
                        drop(ums::spawn(move || {
                            let began = Instant::now();
                            while !seen.load(Ordering::SeqCst) && began.elapsed() < PATIENCE {
                                std::hint::spin_loop(); // it does not yield
                            }
                            end.store(seen.load(Ordering::SeqCst), Ordering::SeqCst);
                        }));
                        drop(ums::spawn(move || told.store(true, Ordering::SeqCst)));
                    };
                    Request::read(theirs, vec![0; 1], CURRENT, routine).submit();
                });
                (0..2).for_each(|i| until_idle(node, i));
                ours.write_all(b"!").unwrap();
                eventually("an idle scheduler takes the other one", || done.load(Ordering::SeqCst));
            },
        );
    }
}
