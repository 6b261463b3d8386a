//! Limits: many users on few workers, and what happens at each bound (U30, U37-U40, G2, G10,
//! B15-B17, B19).
//!
//! Named invariant **Plain Call**: a system call that only needs its arguments to outlive it.

#![allow(unsafe_code)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use common::seccomp::{has_survived, survived};
use common::*;
use ums::node::{EnqueueError, Placement};
use ums::stats::WorkerState;
use ums::testing::{SchedulerSnapshot, scheduler};
use ums::{Builder, JoinHandle, Node, WorkerKind};

/// All visible schedulers of the node.
fn all(node: &Node) -> Vec<SchedulerSnapshot> {
    (0..node.scheduler_count()).map(|s| scheduler(node, s)).collect()
}

fn in_state(node: &Node, state: WorkerState) -> usize {
    all(node).iter().flat_map(|v| &v.workers).filter(|w| w.state == state).count()
}

fn queued(node: &Node) -> usize {
    all(node).iter().map(|v| v.queued).sum()
}

#[test]
fn thousands_of_users_are_served_by_255_workers_u30() {
    both_kinds_with(
        |b| b.classic(),
        |node, _, _| {
            let users: Vec<_> = (0..5000).map(|_| node.user()).collect();
            let done = Arc::new(AtomicUsize::new(0));
            let request = |user: &ums::User| {
                let done = done.clone();
                user.enqueue(move || {
                    ums::sleep(ms(1)).unwrap();
                    done.fetch_add(1, SeqCst);
                })
            };
            let requests: Vec<_> = users.iter().map(|u| request(u).unwrap()).collect();
            requests.into_iter().for_each(|r| r.join().unwrap());
            assert_eq!(done.load(SeqCst), 5000);
            let most: Vec<_> = all(node).iter().map(|v| v.counters.workers_created).collect();
            assert!(most.iter().sum::<u64>() <= 255, "{most:?} workers for 255");
        },
    );
}

/// Starts 300 users whose requests wait until they are cancelled; returns how many have begun.
fn three_hundred(node: &Node) -> (Vec<JoinHandle<()>>, Arc<AtomicUsize>) {
    let begun = Arc::new(AtomicUsize::new(0));
    let request = |_| {
        let begun = begun.clone();
        let user = node.user();
        let request = user.enqueue(move || {
            begun.fetch_add(1, SeqCst);
            let _ = ums::sleep(Duration::from_secs(3600));
        });
        (request.unwrap(), user)
    };
    // The users are kept until all are created, because otherwise each would find the same
    // scheduler empty.
    let (requests, _users): (Vec<_>, Vec<_>) = (0..300).map(request).unzip();
    (requests, begun)
}

#[test]
fn a_waiting_request_keeps_its_worker_u37() {
    both_kinds_with(
        |b| b.classic(),
        |node, _, _| {
            let (requests, _) = three_hundred(node);
            eventually("255 wait", || in_state(node, WorkerState::Waiting) == 255);
            assert_eq!(queued(node), 45);
            let rows = node.umsstats();
            let sum =
                |name| -> f64 { rows.iter().filter(|r| r.0.trim() == name).map(|r| r.1).sum() };
            assert_eq!((sum("num workers"), sum("work queued")), (255.0, 45.0));
            requests.iter().for_each(JoinHandle::cancel);
            for request in requests {
                let ended = request.join();
                assert!(matches!(ended, Ok(()) | Err(ums::task::JoinError::NeverRan)));
            }
        },
    );
}

#[test]
fn at_the_maximum_nothing_new_begins_until_a_worker_is_free_u38() {
    both_kinds_with(
        |b| b.classic(),
        |node, _, _| {
            let (requests, begun) = three_hundred(node);
            eventually("255 wait", || in_state(node, WorkerState::Waiting) == 255);
            std::thread::sleep(ms(20));
            assert_eq!(begun.load(SeqCst), 255, "a request began without a worker");
            // The first request ends, and exactly one more begins.
            requests[0].cancel();
            eventually("one more has begun", || begun.load(SeqCst) == 256);
            std::thread::sleep(ms(20));
            assert_eq!((begun.load(SeqCst), queued(node)), (256, 44));
            requests.iter().for_each(JoinHandle::cancel);
        },
    );
}

/// Creates this many workers on a scheduler, and lets them become idle.
fn make_workers(node: &Node, s: usize, count: usize) {
    let gate = Gate::shut();
    let tasks: Vec<_> = (0..count)
        .map(|_| {
            let gate = gate.clone();
            start(node, s, move || gate.pass())
        })
        .collect();
    eventually("all wait", || gate.waiters() == count);
    assert_eq!(scheduler(node, s).workers.len(), count);
    gate.open();
    tasks.into_iter().for_each(|t| t.join().unwrap());
}

#[test]
fn idle_workers_are_destroyed_down_to_the_floor_u39_g10() {
    for floor in [1, 3] {
        each_alone(
            |b| b.idle_worker_timeout(ms(60)).min_workers(floor),
            |node, kind, n| {
                make_workers(node, n - 1, 8);
                let left = || scheduler(node, n - 1).workers.len();
                eventually("surplus workers are destroyed", || left() == floor);
                std::thread::sleep(ms(150));
                assert_eq!(left(), floor, "the floor is kept however long they are idle");
                let counters = scheduler(node, n - 1).counters;
                assert_eq!(counters.workers_retired, 8 - floor as u64);
                if kind == WorkerKind::Thread {
                    let mine = format!("ums-{}/", n - 1);
                    let threads = || node_threads().iter().filter(|t| t.starts_with(&mine)).count();
                    eventually("their threads end", || threads() == floor);
                }
                make_workers(node, n - 1, 8);
            },
        );
    }
}

#[test]
fn a_worker_that_is_not_idle_long_enough_stays_u39_b15() {
    each_alone(
        |b| b.idle_worker_timeout(Duration::from_secs(3600)),
        |node, _, n| {
            make_workers(node, n - 1, 5);
            std::thread::sleep(ms(100));
            on(node, n - 1, || ums::sleep(ms(10))).unwrap();
            assert_eq!(scheduler(node, n - 1).workers.len(), 5);
        },
    );
    let text = format!("{:?}", Node::builder());
    assert!(text.contains("idle_worker_timeout: 900s"), "15 minutes by default: {text}");
}

/// A number of kilobytes from `/proc/self/status`.
fn memory(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix(field)).unwrap();
    line.trim_matches(|c: char| !c.is_ascii_digit()).parse().unwrap()
}

const MIB: usize = 1 << 20;

#[test]
fn a_destroyed_thread_gives_its_stack_back_u40() {
    for n in COUNTS {
        let options = |b: Builder| {
            b.schedulers(n).stack_size(64 * MIB).idle_worker_timeout(ms(50)).pin(false)
        };
        one_kind(WorkerKind::Thread, options, |node| {
            make_workers(node, 0, 8);
            let full = memory("VmSize:");
            eventually("seven are destroyed", || scheduler(node, 0).workers.len() == 1);
            // The C library caches up to 40 MiB of stacks for new threads, which is less than one
            // of these stacks.
            let freed = || full.saturating_sub(memory("VmSize:"));
            eventually("their stacks are unmapped", || freed() >= 6 * 64 * 1024);
        });
    }
}

/// Uses this many bytes of stack, and a few thousand more, however the compiler lays out frames.
fn dig(bytes: usize) -> u8 {
    let top = 0_u8;
    dig_below(std::ptr::from_ref(&top).addr(), bytes)
}

#[inline(never)]
fn dig_below(top: usize, bytes: usize) -> u8 {
    let frame = std::hint::black_box([1u8; 1024]);
    let depth = top.saturating_sub(frame.as_ptr().addr());
    let below = if depth < bytes { dig_below(top, bytes) } else { 0 };
    frame[below as usize % frame.len()].wrapping_add(std::hint::black_box(below))
}

#[test]
fn stacks_are_as_large_as_asked_for_b16() {
    both_kinds_with(
        |b| b.stack_size(16 * MIB),
        |node, _, n| {
            for s in 0..n {
                on(node, s, || dig(8 * MIB));
            }
        },
    );
    // The default stack size of a thread worker.
    one_kind(
        WorkerKind::Thread,
        |b| b,
        |node| {
            on(node, 0, || dig(MIB));
        },
    );
}

#[test]
fn how_deep_a_worker_used_its_stack_is_reported_b16() {
    both_kinds_with(
        |b| b.stack_size(4 * MIB),
        |node, _, n| {
            for s in 0..n {
                on(node, s, || dig(MIB));
                let rows = node.snapshot().workers;
                let row = rows.iter().find(|w| w.scheduler == s).expect("it has a worker");
                // A thread's stack also holds what the C library keeps there.
                assert!((4 * MIB - 65_536..5 * MIB).contains(&row.stack_size()), "{row:?}");
                assert!((MIB - 16_384..2 * MIB).contains(&row.stack_used()), "{row:?}");
            }
        },
    );
}

#[test]
fn a_stack_that_overflows_ends_the_process_with_a_message_b16() {
    if let Some(errand) = child_errand() {
        let kind = kind_named(errand);
        let node = build(kind, |b| b.schedulers(1).stack_size(MIB));
        on(&node, 0, || dig(2 * MIB));
        survived();
    }
    for kind in kinds() {
        let me = "a_stack_that_overflows_ends_the_process_with_a_message_b16";
        let output = run_child(me, &format!("{kind:?}"));
        assert!(!output.status.success() && !has_survived(&output), "{kind:?}: no guard");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("overflow"), "{kind:?}: {text}");
        assert!(text.contains("ums-0/1"), "it names the worker: {text}");
    }
}

#[test]
fn fiber_stacks_can_be_backed_with_memory_from_the_start_b16() {
    // The process may meanwhile give back a few other pages.
    for (precommit, least, most) in [(true, 8 * 4 * 1024 - 256, u64::MAX), (false, 0, 8 * 1024)] {
        for n in COUNTS {
            let options =
                |b: Builder| b.schedulers(n).stack_size(4 * MIB).precommit_stacks(precommit);
            one_kind(WorkerKind::Fiber, options, |node| {
                let before = memory("VmRSS:");
                make_workers(node, 0, 8);
                let grown = memory("VmRSS:").saturating_sub(before);
                assert!((least..=most).contains(&grown), "{precommit}: {grown} KiB for 8 stacks");
            });
        }
    }
}

#[test]
fn a_request_queues_when_no_worker_can_be_made_b17() {
    if let Some(errand) = child_errand() {
        let (kind, n) = errand.split_once(' ').unwrap();
        let kind = kind_named(kind);
        let n = n.parse().unwrap();
        fail_to_make_workers(kind, n);
        survived();
    }
    for kind in kinds() {
        for n in COUNTS {
            let me = "a_request_queues_when_no_worker_can_be_made_b17";
            let output = run_child(me, &format!("{kind:?} {n}"));
            assert!(has_survived(&output), "{kind:?}, {n}: {output:?}");
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(text.contains("could not create a worker"), "it should be reported: {text}");
        }
    }
}

#[test]
fn a_worker_that_cannot_be_made_harms_no_other_when_stderr_is_a_broken_pipe() {
    for kind in kinds() {
        for n in [1, 2] {
            let (reader, writer) = std::io::pipe().unwrap();
            drop(reader);
            let me = "a_request_queues_when_no_worker_can_be_made_b17";
            let output = child(me, &format!("{kind:?} {n}")).stderr(writer).output().unwrap();
            assert!(has_survived(&output), "{kind:?}, {n}: {output:?}");
        }
    }
}

fn fail_to_make_workers(kind: WorkerKind, n: usize) {
    // Each slab (a mapping for several stacks) has room for one stack of this size, so each worker
    // needs a mapping of its own.
    let stack = 1 << 30;
    let options =
        |b: Builder| b.schedulers(n).stack_size(stack).placement(Placement::AlwaysPreferred);
    let node = build(kind, options);
    let gate = Gate::shut();
    let g = gate.clone();
    let first = start(&node, 0, move || g.pass());
    eventually("the first waits", || gate.waiters() == 1);
    limit_address_space(memory("VmSize:") * 1024 + (stack as u64) / 2);
    let second = start(&node, 0, ums::worker::worker_id);
    eventually("it could not be made", || scheduler(&node, 0).counters.failed_to_create_worker > 0);
    assert_eq!(scheduler(&node, 0).queued, 1, "the request waits for the worker that there is");
    assert!(!second.is_finished());
    gate.open();
    assert_eq!(second.join().unwrap(), Some((0, 1)), "the first worker carried it out");
    first.join().unwrap();

    // When memory is available again, new workers can be created.
    let gate = Gate::shut();
    let tasks = [gate.clone(), gate.clone()].map(|g| start(&node, 0, move || g.pass()));
    limit_address_space(libc::RLIM_INFINITY);
    eventually("both wait", || gate.waiters() == 2);
    gate.open();
    tasks.into_iter().for_each(|t| t.join().unwrap());
}

fn limit_address_space(bytes: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: Plain Call: a local of the right type.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_AS, &mut limit) }, 0);
    limit.rlim_cur = bytes.min(limit.rlim_max);
    // SAFETY: Plain Call: as above.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
}

#[test]
fn past_the_queues_bound_a_request_is_refused_with_a_clear_error_g2_b19() {
    for kind in kinds() {
        for n in COUNTS {
            let options = |b: Builder| {
                b.schedulers(n).max_workers(n).queue_limit(3).placement(Placement::AlwaysPreferred)
            };
            one_kind(kind, options, |node| {
                let holder = node.user();
                assert_eq!(holder.scheduler(), 0);
                let gate = Gate::shut();
                let g = gate.clone();
                let busy = start(node, 0, move || g.pass());
                eventually("the worker waits", || gate.waiters() == 1);
                let taken: Vec<_> = (0..3).map(|_| node.spawn_on(0, || ())).collect();
                let refused = node.spawn_on(0, || ()).err();
                assert_eq!(refused, Some(EnqueueError::QueueFull(3)));
                assert!(refused.unwrap().to_string().contains("3 requests are waiting"));
                let v = scheduler(node, 0);
                assert_eq!(v.load, 4, "a refused request is no load");
                assert_eq!(v.counters.requests_refused, 1, "and is counted");
                // A request that others wait for is never refused (B12).
                holder.hold();
                let urgent = holder.enqueue(|| ()).unwrap();
                holder.release();
                urgent.join().unwrap();
                gate.open();
                taken.into_iter().for_each(|t| t.unwrap().join().unwrap());
                busy.join().unwrap();
                on(node, 0, || ());
            });
        }
    }
}

#[test]
fn how_long_each_request_is_queued_is_recorded_b19() {
    for kind in kinds() {
        for n in COUNTS {
            let options =
                |b: Builder| b.schedulers(n).max_workers(n).placement(Placement::AlwaysPreferred);
            one_kind(kind, options, |node| {
                let gate = Gate::shut();
                let g = gate.clone();
                let busy = start(node, 0, move || g.pass());
                eventually("the worker waits", || gate.waiters() == 1);
                let before = threadpool(node);
                let waits = start(node, 0, || ());
                std::thread::sleep(ms(30));
                let rows = node.snapshot().requests;
                let row = rows.iter().find(|r| r.id == waits.request_id()).unwrap();
                assert_eq!((row.state.as_str(), row.worker), ("PENDING", None));
                assert!(row.queued_ns >= 30_000_000, "{} ns", row.queued_ns);
                gate.open();
                waits.join().unwrap();
                busy.join().unwrap();
                let after = threadpool(node);
                assert_eq!(after.0, before.0 + 1);
                assert!(after.1 >= before.1 + 30_000_000, "{after:?} against {before:?}");
            });
        }
    }
}

/// Returns how many requests waited for a worker, and for how many nanoseconds in total.
fn threadpool(node: &Node) -> (u64, u64) {
    let waits = node.snapshot().waits;
    let row = waits.iter().find(|w| w.reason == ums::WaitReason::THREADPOOL);
    row.map_or((0, 0), |w| (w.count, w.total_ns))
}

#[test]
fn a_request_that_waited_too_long_is_not_carried_out_b19() {
    for kind in kinds() {
        for n in COUNTS {
            let options = |b: Builder| {
                let b = b.schedulers(n).max_workers(n).queue_timeout(ms(20));
                b.placement(Placement::AlwaysPreferred)
            };
            one_kind(kind, options, |node| {
                let gate = Gate::shut();
                let never_ran = |joined| matches!(joined, Err(ums::task::JoinError::NeverRan));
                // On a busy computer this request, too, may wait too long.
                let mut timeouts = 0;
                let busy = loop {
                    let g = gate.clone();
                    let busy = start(node, 0, move || g.pass());
                    eventually("it ends, or waits", || busy.is_finished() || gate.waiters() == 1);
                    if gate.waiters() == 1 {
                        break busy;
                    }
                    assert!(never_ran(busy.join()));
                    timeouts += 1;
                };
                let ran = Arc::new(AtomicUsize::new(0));
                let r = ran.clone();
                let late = start(node, 0, move || r.store(1, SeqCst));
                std::thread::sleep(ms(40));
                gate.open();
                assert!(never_ran(late.join()));
                busy.join().unwrap();
                while start(node, 0, || ()).join().is_err() {
                    timeouts += 1;
                }
                assert_eq!(ran.load(SeqCst), 0);
                assert_eq!(scheduler(node, 0).counters.queue_timeouts, 1 + timeouts);
            });
        }
    }
}
