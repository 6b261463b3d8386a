//! Cooperative scheduling: on each scheduler one worker runs, until it gives up the scheduler
//! (U1-U14, U16, U22).
//!
//! The bodies record what they see in atomics, because a lock would add waits.

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};

use common::seccomp::{Verdict, filter, has_survived, no_more_calls, survived};
use common::*;
use ums::stats::WorkerState;
use ums::testing::{lists, scheduler, workers};
use ums::{Node, WaitReason, WorkerKind};

/// A program that uses some of everything. Its result is the same with every worker kind.
fn story() -> u64 {
    let mut parts = [0u64; 4];
    ums::scope(|s| {
        for (at, part) in parts.iter_mut().enumerate() {
            s.spawn(move || {
                for _ in 0..at {
                    ums::yield_now();
                }
                ums::sleep(ms(at as u64)).unwrap();
                let outside = ums::go_preemptive(WaitReason::PREEMPTIVE_EXTERNAL, || at as u64);
                *part = outside + 1;
            });
        }
    });
    let late = ums::spawn(|| panic!("on purpose")).join();
    assert!(matches!(late, Err(ums::task::JoinError::Panicked(_))));
    parts.iter().sum()
}

#[test]
fn the_same_code_runs_in_both_kinds_u1() {
    both_kinds(|node, kind, _| {
        assert_eq!(node.run(|| (story(), ums::worker::worker_kind())), (10, Some(kind)));
    });
}

#[test]
fn threads_are_the_default_kind_u22() {
    let _turn = turn();
    let node = Node::builder().schedulers(1).build().unwrap();
    assert_eq!(node.worker_kind(), WorkerKind::Thread);
    assert_eq!(node.run(ums::worker::worker_kind), Some(WorkerKind::Thread));
}

/// Runs in a child process under the filter: a worker yields alone, or with a timer that is not
/// due, or to a sibling and back. To prove that the filter works, one case makes a system call.
fn yield_without_calls(errand: &str) -> ! {
    let (kind, rest) = errand.split_once(' ').unwrap();
    let (n, what) = rest.split_once(' ').unwrap();
    let kind = kind_named(kind);
    let n = n.parse().unwrap();
    let node = build(kind, |b| b.schedulers(n).placement(ums::node::Placement::AlwaysPreferred));
    let (what, turns) = (what.to_owned(), Arc::new(AtomicU32::new(0)));
    on(&node, 0, move || {
        let count = turns.clone();
        match what.as_str() {
            "timer" => drop(ums::spawn(|| ums::sleep(PATIENCE))),
            "switch" => drop(ums::spawn(move || {
                loop {
                    count.fetch_add(1, SeqCst);
                    ums::yield_now();
                }
            })),
            _ => {}
        }
        // After these yields, the spawned tasks have their workers and have come to their own wait
        // or yield.
        (0..10).for_each(|_| ums::yield_now());
        let before = turns.load(SeqCst);
        no_more_calls();
        if what == "call" {
            std::thread::yield_now();
        }
        (0..1000).for_each(|_| ums::yield_now());
        if what == "switch" && turns.load(SeqCst) - before < 999 {
            std::process::abort();
        }
        survived()
    })
}

#[test]
fn a_yield_with_nothing_to_do_makes_no_system_call_u2() {
    if let Some(errand) = child_errand() {
        yield_without_calls(&errand);
    }
    let me = "a_yield_with_nothing_to_do_makes_no_system_call_u2";
    for kind in kinds() {
        for n in COUNTS {
            for what in ["alone", "timer"] {
                let output = run_child(me, &format!("{kind:?} {n} {what}"));
                assert!(has_survived(&output), "{kind:?}, {n}, {what}: {output:?}");
            }
        }
    }
    assert!(!has_survived(&run_child(me, "Thread 1 call")), "the filter does not bite");
}

#[test]
fn a_switch_of_fibers_or_own_contexts_makes_no_system_call_u2() {
    if let Some(errand) = child_errand() {
        yield_without_calls(&errand);
    }
    let me = "a_switch_of_fibers_or_own_contexts_makes_no_system_call_u2";
    for kind in kinds().into_iter().filter(|kind| *kind != WorkerKind::Thread) {
        for n in COUNTS {
            let output = run_child(me, &format!("{kind:?} {n} switch"));
            assert!(has_survived(&output), "{kind:?}, {n}: {output:?}");
        }
    }
    let thread = run_child(me, "Thread 1 switch");
    assert!(!has_survived(&thread), "a thread switch needs the kernel");
}

fn voluntary_switches() -> u64 {
    let numbers = node_thread_numbers().into_iter();
    numbers.map(|n| thread_status(n, "voluntary_ctxt_switches")).sum()
}

#[test]
fn a_thousand_requests_cost_few_thread_switches_u3() {
    each_alone(
        |b| b,
        |node, _, n| {
            let (go, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
            for s in 0..n {
                let go = go.clone();
                drop(start(node, s, move || while !go.load(SeqCst) {}));
            }
            let users: Vec<_> = (0..100).map(|_| node.user()).collect();
            for at in 0..1000 {
                let done = done.clone();
                drop(users[at % 100].enqueue(move || done.fetch_add(1, SeqCst)).unwrap());
            }
            let before = voluntary_switches();
            go.store(true, SeqCst);
            eventually("a thousand requests", || done.load(SeqCst) == 1000);
            // With a thread for each connection, the thread would have slept a thousand times.
            let switches = voluntary_switches() - before;
            assert!(switches < 100, "{switches} thread switches for 1,000 requests on {n}");
        },
    );
}

#[test]
fn it_needs_nothing_special_of_the_kernel_u6() {
    if child_errand().is_some() {
        use libc::*;
        let special = [
            SYS_io_uring_setup,
            SYS_io_uring_enter,
            SYS_io_uring_register,
            SYS_perf_event_open,
            SYS_bpf,
            SYS_userfaultfd,
            SYS_ptrace,
            SYS_membarrier,
            SYS_sched_setaffinity,
            SYS_sched_setscheduler,
            SYS_sched_setattr,
            SYS_setpriority,
        ];
        filter(Verdict::AllButThese, &special);
        for kind in kinds() {
            for n in COUNTS {
                let node = build(kind, |b| b.schedulers(n));
                assert_eq!(node.run(story), 10);
                assert!(node.io_text().starts_with("epoll"), "{}", node.io_text());
                assert_eq!(node.shutdown(ms(5000)), ums::node::ShutdownReport::default());
            }
        }
        survived();
    }
    let output = run_child("it_needs_nothing_special_of_the_kernel_u6", "story");
    assert!(has_survived(&output), "{output:?}");
}

#[test]
fn runnable_workers_take_turns_without_priorities_u7() {
    each_alone(
        |b| b,
        |node, _, n| {
            let log = Log::default();
            let l = log.clone();
            on(node, n - 1, move || {
                let tasks: Vec<_> = (0..5)
                    .map(|me| {
                        let l = l.clone();
                        ums::spawn(move || {
                            for round in 0..50 {
                                l.push((round, me));
                                ums::yield_now();
                            }
                        })
                    })
                    .collect();
                tasks.into_iter().for_each(|t| t.join().unwrap());
            });
            // From the second round on, all five have begun.
            let order: Vec<_> =
                log.all().into_iter().filter(|(r, _)| *r > 0).map(|e| e.1).collect();
            let first: BTreeSet<_> = order[..5].iter().collect();
            assert_eq!(first.len(), 5, "each has one turn in a round: {:?}", &order[..10]);
            assert!(order.windows(6).all(|w| w[0] == w[5]), "every round is like the first");
        },
    );
}

/// Returns the body of a worker that counts and yields until `stop` is set.
fn counting(count: &Arc<AtomicU64>, stop: &Arc<AtomicBool>) -> impl FnOnce() + Send + 'static {
    let (count, stop) = (count.clone(), stop.clone());
    move || {
        while !stop.load(SeqCst) {
            count.fetch_add(1, SeqCst);
            ums::yield_now();
        }
    }
}

#[test]
fn a_busy_worker_is_never_interrupted_u8() {
    each_alone(
        |b| b,
        |node, _, n| {
            let (count, stop) = <(Arc<AtomicU64>, Arc<AtomicBool>)>::default();
            on(node, n - 1, move || {
                let peer = ums::spawn(counting(&count, &stop));
                eventually("the peer takes turns", || count.load(SeqCst) > 3);
                let before = count.load(SeqCst);
                spin(ms(200));
                assert_eq!(count.load(SeqCst), before, "the peer ran while this worker was busy");
                ums::yield_now();
                assert_eq!(count.load(SeqCst), before + 1, "the peer runs at the next yield");
                stop.store(true, SeqCst);
                peer.join().unwrap();
            });
        },
    );
}

#[test]
fn a_busy_worker_stops_only_its_own_scheduler_u9() {
    each_alone(
        |b| b,
        |node, _, n| {
            let stop = Arc::new(AtomicBool::new(false));
            let counts: Vec<Arc<AtomicU64>> = (0..n).map(|_| Arc::default()).collect();
            let peers: Vec<_> =
                (0..n).map(|s| start(node, s, counting(&counts[s], &stop))).collect();
            on(node, 0, move || {
                eventually("all peers run", || counts.iter().all(|c| c.load(SeqCst) > 0));
                let before: Vec<_> = counts.iter().map(|c| c.load(SeqCst)).collect();
                for other in 1..n {
                    let began = std::time::Instant::now();
                    while counts[other].load(SeqCst) == before[other] {
                        assert!(began.elapsed() < PATIENCE, "scheduler {other} was stopped");
                    }
                }
                spin(ms(20));
                assert_eq!(counts[0].load(SeqCst), before[0], "the own sibling ran");
                stop.store(true, SeqCst);
            });
            peers.into_iter().for_each(|p| p.join().unwrap());
        },
    );
}

/// Returns the number and the arguments of the system call that this thread is inside, as the
/// kernel reports them.
fn inside_call(thread: u32) -> Option<Vec<u64>> {
    let text = about_thread(thread, "syscall");
    let mut words = text.split_whitespace();
    let number = words.next()?.parse().ok()?;
    let arguments = words.filter_map(|w| u64::from_str_radix(w.strip_prefix("0x")?, 16).ok());
    Some([number].into_iter().chain(arguments).collect())
}

/// Returns the timeout with which this thread worker waits on its own event; `Some(0)` means
/// without a timeout. Returns None if it does not wait there.
fn parked_on_own_event(worker: u32) -> Option<u64> {
    let seen = workers().into_iter().find(|w| w.id == worker)?;
    let call = inside_call(seen.thread)?;
    let own = call[0] == libc::SYS_futex as u64 && call[1] == seen.event as u64;
    own.then_some(call[4])
}

#[test]
fn a_parked_thread_waits_on_its_own_event_without_a_timeout_u10_u11() {
    for n in COUNTS {
        one_kind(
            WorkerKind::Thread,
            |b| b.schedulers(n),
            |node| {
                let gate = Gate::shut();
                let tasks: Vec<_> = (0..5)
                    .map(|_| {
                        let gate = gate.clone();
                        start(node, 0, move || gate.pass())
                    })
                    .collect();
                on(node, 0, move || {
                    eventually("five wait", || gate.waiters() == 5);
                    let waiting = lists().waiting;
                    let all = workers();
                    let events: BTreeSet<_> = all.iter().map(|w| w.event).collect();
                    assert_eq!(events.len(), all.len(), "each worker has an event of its own");
                    for id in &waiting {
                        eventually("it is parked", || parked_on_own_event(*id).is_some());
                        assert_eq!(
                            parked_on_own_event(*id),
                            Some(0),
                            "a parked worker has a timeout"
                        );
                    }
                    let threads: Vec<_> = waiting
                        .iter()
                        .filter_map(|id| all.iter().find(|w| w.id == *id))
                        .map(|w| w.thread)
                        .collect();
                    let switches = |t: &u32| thread_status(*t, "voluntary_ctxt_switches");
                    let before: Vec<_> = threads.iter().map(switches).collect();
                    for _ in 0..100 {
                        ums::yield_now();
                        spin(std::time::Duration::from_micros(100));
                    }
                    let after: Vec<_> = threads.iter().map(switches).collect();
                    assert_eq!(before, after, "a parked thread ran");
                    gate.open();
                });
                tasks.into_iter().for_each(|t| t.join().unwrap());
            },
        );
    }
}

#[test]
fn a_runnable_thread_stays_parked_until_its_event_is_set_u12_u42_u43() {
    for n in COUNTS {
        one_kind(
            WorkerKind::Thread,
            |b| b.schedulers(n),
            |node| {
                let (gate, ran) = (Gate::shut(), Arc::new(AtomicBool::new(false)));
                let (g, r) = (gate.clone(), ran.clone());
                let waiter = start(node, 0, move || {
                    g.pass();
                    r.store(true, SeqCst);
                    thread_number()
                });
                let thread = on(node, 0, move || {
                    eventually("it waits", || gate.waiters() == 1);
                    let id = lists().waiting[0];
                    let thread = workers().into_iter().find(|w| w.id == id).unwrap().thread;
                    eventually("it is parked", || parked_on_own_event(id).is_some());
                    gate.open();
                    assert_eq!(lists().runnable, [id]);
                    spin(ms(30));
                    assert!(!ran.load(SeqCst), "being runnable made it run");
                    assert_eq!(parked_on_own_event(id), Some(0), "being runnable woke it");
                    ums::yield_now();
                    assert!(ran.load(SeqCst), "a signalled worker runs");
                    thread
                });
                assert_eq!(waiter.join().unwrap(), thread, "it was another thread that ran");
            },
        );
    }
}

/// Checks that at most one worker at a time runs between two waits on a scheduler.
struct Viable(Vec<AtomicUsize>);

impl Viable {
    /// Runs `f`, which neither waits nor yields, and checks that no other worker runs on its
    /// scheduler meanwhile.
    fn alone<R>(&self, f: impl FnOnce() -> R) -> R {
        let here = &self.0[ums::worker::scheduler_id().expect("on a worker")];
        assert_eq!(here.fetch_add(1, SeqCst), 0, "two workers run on one scheduler");
        let result = f();
        here.fetch_sub(1, SeqCst);
        result
    }
}

#[test]
fn at_most_one_worker_is_viable_on_each_scheduler_u13() {
    both_kinds(|node, _, n| {
        let viable = Arc::new(Viable((0..n).map(|_| AtomicUsize::new(0)).collect()));
        let lock = Arc::new(ums::user::UserLock::new());
        let tasks: Vec<_> = (0..8 * n)
            .map(|me| {
                let (viable, lock) = (viable.clone(), lock.clone());
                let body = move || {
                    for round in 0..40 {
                        viable.alone(|| spin(std::time::Duration::from_micros(20)));
                        match (me + round) % 4 {
                            0 => ums::sleep(std::time::Duration::from_micros(50)).unwrap(),
                            1 => {
                                lock.acquire(1000 + me as u64, None).unwrap();
                                viable.alone(|| {});
                                lock.release(1000 + me as u64);
                            }
                            2 => ums::go_preemptive(WaitReason::PREEMPTIVE_EXTERNAL, || ()),
                            _ => ums::yield_now(),
                        }
                    }
                };
                start(node, me % n, body)
            })
            .collect();
        tasks.into_iter().for_each(|t| t.join().unwrap());
    });
}

#[test]
fn a_preemptive_worker_runs_beside_its_scheduler_u14() {
    each_alone(
        |b| b,
        |node, kind, n| {
            let (out, back) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
            let (o, b) = (out.clone(), back.clone());
            let away = start(node, n - 1, move || {
                ums::go_preemptive(WaitReason::PREEMPTIVE_EXTERNAL, move || {
                    o.store(true, SeqCst);
                    // This ends only if a worker of the scheduler that the caller has left runs
                    // meanwhile.
                    eventually("the scheduler continues", || b.load(SeqCst));
                });
            });
            eventually("it has left", || out.load(SeqCst));
            on(node, n - 1, move || {
                if kind == WorkerKind::Thread {
                    assert_eq!(lists().preemptive, 1);
                    assert!(workers().iter().any(|w| w.state == WorkerState::Preemptive));
                }
                back.store(true, SeqCst);
            });
            away.join().unwrap();
        },
    );
}

fn allowed(thread: u32) -> String {
    let status = about_thread(thread, "status");
    let line = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:"));
    line.unwrap_or_default().trim().to_owned()
}

#[test]
fn schedulers_are_not_bound_to_processors_u16() {
    both_kinds(|node, _, n| {
        (0..n).for_each(|s| on(node, s, || ()));
        let ours = allowed(thread_number());
        let threads = node_thread_numbers();
        assert!(threads.len() >= n);
        for thread in threads {
            assert_eq!(allowed(thread), ours, "a thread of the node was bound to a processor");
        }
    });
}

#[test]
fn pinned_schedulers_have_a_processor_each_u16() {
    for kind in kinds() {
        let cpus = ums::probe::Cpus::read();
        let n = cpus.allowed.len().min(4);
        one_kind(
            kind,
            |b| b.schedulers(n).pin(true),
            |node| {
                let bound: Vec<_> =
                    (0..n).map(|s| on(node, s, || allowed(thread_number()))).collect();
                let asked: Vec<_> = cpus.allowed[..n].iter().map(usize::to_string).collect();
                assert_eq!(bound, asked);
                assert_eq!(scheduler(node, 0).workers.len(), 1);
            },
        );
        // Processors are counted within the affinity mask, whose first need not be processor 0.
        let last = *cpus.allowed.last().unwrap();
        let masked = std::thread::spawn(move || {
            let mut mask = rustix::thread::CpuSet::new();
            mask.set(last);
            rustix::thread::sched_setaffinity(None, &mask).unwrap();
            one_kind(
                kind,
                |b| b.pin(true),
                |node| assert_eq!(on(node, 0, || allowed(thread_number())), last.to_string()),
            );
        });
        masked.join().unwrap();
    }
}
