//! Thread workers that block in the kernel without declaring it, with the defaults: they lose their
//! scheduler, and run beside it until their next call into the library.

mod common;

use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use common::*;
use ums::node::Placement;
use ums::stats::{SchedulerCounters, WorkerState};
use ums::{Node, WorkerKind};

fn node(schedulers: usize) -> Node {
    build(WorkerKind::Thread, |b| b.schedulers(schedulers).placement(Placement::AlwaysPreferred))
}

/// Returns whether this system lets a node take its scheduler from a blocked worker.
fn can_take_over() -> bool {
    let refused = ums::probe::taking_over_is_refused();
    if let Some(why) = refused {
        ums::testing::skipped("membarrier", why);
    }
    refused.is_none()
}

fn counters(node: &Node) -> SchedulerCounters {
    node.snapshot().schedulers[0].counters
}

#[test]
fn two_holders_of_a_std_mutex_over_a_wait_both_end() {
    let _turn = turn();
    if !can_take_over() {
        return;
    }
    let _watch = Watchdog::start("two holders of a mutex".into());
    let (node, lock) = (node(1), Arc::new(Mutex::new(0)));
    let both = [(); 2].map(|()| {
        let lock = lock.clone();
        start(&node, 0, move || {
            let mut count = lock.lock().unwrap();
            ums::sleep(ms(50)).unwrap();
            *count += 1;
        })
    });
    both.into_iter().for_each(|task| task.join().unwrap());
    assert_eq!(*lock.lock().unwrap(), 2);
    assert!(counters(&node).undeclared_blocks >= 1);
    end(node);
}

/// Spawns a task that calls `block`, which blocks until `go_on` is called. Checks that other tasks
/// of its scheduler run meanwhile.
fn others_run_during(block: impl FnOnce() + Send + 'static, go_on: impl FnOnce()) {
    let _watch = Watchdog::start("a block".into());
    let node = node(1);
    let is_over = Arc::new(AtomicBool::new(false));
    let tell = is_over.clone();
    let blocked = start(&node, 0, move || {
        block();
        tell.store(true, SeqCst);
        // After the yield it has rejoined its scheduler, and is an ordinary worker again.
        ums::yield_now();
        assert!(ums::worker::is_worker());
        ums::worker::worker_id()
    });
    // Each of these needs the baton: a wait, a timer and a request.
    on(&node, 0, || {
        ums::sleep(ms(1)).unwrap();
        ums::spawn(ums::yield_now).join().unwrap();
    });
    assert!(!is_over.load(SeqCst), "they ran while it was blocked");
    let seen = counters(&node);
    assert_eq!((seen.preemptive, seen.undeclared_blocks), (1, 1), "{seen:?}");
    let is_away = |w: &ums::stats::WorkerRow| w.state == WorkerState::Preemptive;
    assert_eq!(node.snapshot().workers.iter().filter(|w| is_away(w)).count(), 1);
    go_on();
    assert!(blocked.join().unwrap().is_some());
    assert_eq!(counters(&node).preemptive, 0);
    end(node);
}

#[test]
fn others_run_while_a_worker_reads_an_empty_pipe() {
    let _turn = turn();
    if !can_take_over() {
        return;
    }
    let (mut reads, mut writes) = std::io::pipe().unwrap();
    let block = move || {
        assert_eq!(reads.read(&mut [0]).unwrap(), 1);
    };
    others_run_during(block, move || writes.write_all(b"x").unwrap());
}

#[test]
fn others_run_while_a_worker_waits_for_a_lock_of_std() {
    let _turn = turn();
    if !can_take_over() {
        return;
    }
    let lock = Arc::new(Mutex::new(()));
    let theirs = lock.clone();
    let held = lock.lock().unwrap();
    others_run_during(move || drop(theirs.lock().unwrap()), move || drop(held));
}

#[test]
fn others_run_while_a_worker_sleeps_in_the_kernel() {
    let _turn = turn();
    if !can_take_over() {
        return;
    }
    let (go, told) = std::sync::mpsc::channel::<()>();
    // Blocks of 100 ms, one after another, at the same place in the code.
    let block = move || while told.recv_timeout(ms(100)).is_err() {};
    others_run_during(block, move || go.send(()).unwrap());
}

#[test]
fn a_taken_worker_continues_until_its_next_call_and_is_chosen_like_others_then_u14() {
    let _turn = turn();
    if !can_take_over() {
        return;
    }
    let _watch = Watchdog::start("a taken worker".into());
    let node = node(1);
    let (mut reads, mut writes) = std::io::pipe().unwrap();
    let [ran_on, asked] = std::array::from_fn(|_| Arc::new(AtomicBool::new(false)));
    let (tell_ran_on, tell_asked) = (ran_on.clone(), asked.clone());
    let taken = start(&node, 0, move || {
        reads.read_exact(&mut [0]).unwrap();
        tell_ran_on.store(true, SeqCst);
        assert!(ums::worker::is_worker(), "it has the baton again when this returns");
        tell_asked.store(true, SeqCst);
    });
    eventually("it was taken", || counters(&node).preemptive == 1);
    let computing = Computing::on(&node);
    writes.write_all(b"x").unwrap();
    eventually("it runs beside its scheduler", || ran_on.load(SeqCst));
    std::thread::sleep(ms(20));
    assert!(!asked.load(SeqCst), "the other worker has the baton and does not yield");
    computing.end();
    taken.join().unwrap();
    assert!(asked.load(SeqCst));
    end(node);
}

#[test]
fn a_request_that_ends_or_panics_after_its_block_ends_as_any_other() {
    let _turn = turn();
    if !can_take_over() {
        return;
    }
    let _watch = Watchdog::start("ends of taken requests".into());
    let node = node(1);
    for panics in [false, true] {
        let (mut reads, mut writes) = std::io::pipe().unwrap();
        let taken = start(&node, 0, move || {
            // The destructor of this value waits; after a panic it does so during unwinding.
            let _waits = Waits;
            reads.read_exact(&mut [0]).unwrap();
            assert!(!panics, "on purpose");
        });
        eventually("it was taken", || counters(&node).preemptive == 1);
        writes.write_all(b"x").unwrap();
        assert_eq!(taken.join().is_err(), panics);
        assert_eq!(counters(&node).preemptive, 0);
    }
    end(node);
}

#[test]
fn a_request_has_ended_before_its_taken_worker_has_the_baton_again() {
    let _turn = turn();
    if !can_take_over() {
        return;
    }
    let _watch = Watchdog::start("the end of a taken request".into());
    let node = node(1);
    let (mut reads, mut writes) = std::io::pipe().unwrap();
    let taken = start(&node, 0, move || reads.read_exact(&mut [0]).unwrap());
    eventually("it was taken", || counters(&node).preemptive == 1);
    let computing = Computing::on(&node);
    writes.write_all(b"x").unwrap();
    eventually("it has ended, although another worker has the baton", || taken.is_finished());
    assert_eq!(counters(&node).preemptive, 1);
    computing.end();
    taken.join().unwrap();
    end(node);
}

struct Waits;

impl Drop for Waits {
    fn drop(&mut self) {
        ums::sleep(ms(1)).unwrap();
    }
}

#[test]
fn a_taken_worker_may_go_preemptive_and_be_taken_again() {
    let _turn = turn();
    if !can_take_over() {
        return;
    }
    let _watch = Watchdog::start("taken twice".into());
    let node = node(1);
    let (mut reads, mut writes) = std::io::pipe().unwrap();
    let taken = start(&node, 0, move || {
        for _ in 0..2 {
            reads.read_exact(&mut [0]).unwrap();
            let reason = ums::WaitReason::PREEMPTIVE_EXTERNAL;
            assert!(ums::go_preemptive(reason, || !ums::worker::is_worker()));
            let away = ums::worker::couple(reason).unwrap();
            assert!(!ums::worker::is_worker());
            drop(away);
        }
    });
    for times in 1..=2 {
        let is_so = || (counters(&node).undeclared_blocks, counters(&node).preemptive);
        eventually("it was taken", || is_so() == (times, 1));
        writes.write_all(b"x").unwrap();
    }
    taken.join().unwrap();
    end(node);
}

#[test]
fn a_shutdown_waits_for_a_taken_worker() {
    let _turn = turn();
    if !can_take_over() {
        return;
    }
    let _watch = Watchdog::start("a shutdown".into());
    let node = node(1);
    let (mut reads, mut writes) = std::io::pipe().unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let tell = done.clone();
    let task = start(&node, 0, move || {
        reads.read_exact(&mut [0]).unwrap();
        ums::yield_now();
        tell.store(true, SeqCst);
    });
    eventually("it was taken", || counters(&node).preemptive == 1);
    let ends = std::thread::spawn(move || end(node));
    std::thread::sleep(ms(20));
    writes.write_all(b"x").unwrap();
    ends.join().unwrap();
    assert!(done.load(SeqCst) && task.is_finished());
}

/// Returns whether a worker that blocks for 100 ms loses the scheduler of a node with these
/// options.
fn is_taken(options: impl FnOnce(ums::Builder) -> ums::Builder) -> bool {
    let node = build(WorkerKind::Thread, |b| options(b.schedulers(1)));
    on(&node, 0, || std::thread::sleep(ms(100)));
    let taken = counters(&node).undeclared_blocks > 0;
    end(node);
    taken
}

#[test]
fn it_can_be_turned_off_and_the_classic_profile_never_does_it() {
    let _turn = turn();
    assert!(!is_taken(|b| b.take_over_blocked(false)));
    assert!(!is_taken(ums::Builder::classic));
    assert_eq!(is_taken(|b| b), can_take_over());
}

#[test]
fn at_the_limit_of_preemptive_workers_none_is_taken_b30() {
    let _turn = turn();
    let _watch = Watchdog::start("the limit".into());
    let node = build(WorkerKind::Thread, |b| b.schedulers(1).preemptive_limit(1));
    let (mut reads, mut writes) = std::io::pipe().unwrap();
    let away = start(&node, 0, move || {
        ums::go_preemptive(ums::WaitReason::PREEMPTIVE_EXTERNAL, || {
            reads.read_exact(&mut [0]).unwrap();
        });
    });
    eventually("one is preemptive", || counters(&node).preemptive == 1);
    on(&node, 0, || std::thread::sleep(ms(100)));
    assert_eq!(counters(&node).undeclared_blocks, 0);
    writes.write_all(b"x").unwrap();
    away.join().unwrap();
    end(node);
}

#[test]
fn whatever_blocks_one_worker_at_most_has_its_schedulers_baton() {
    let _turn = turn();
    if !can_take_over() {
        return;
    }
    for schedulers in [1, 2] {
        let _watch = Watchdog::start("blocks at random".into());
        let node = node(schedulers);
        let lock = Arc::new(Mutex::new(0_u32));
        // For each scheduler, the number of workers that run with its baton.
        let batons: Arc<[AtomicU32; 2]> = Arc::default();
        let done = Arc::new(AtomicUsize::new(0));
        let tasks: Vec<_> = (0..24)
            .map(|n| {
                let (lock, batons, done) = (lock.clone(), batons.clone(), done.clone());
                let (mut reads, mut writes) = std::io::pipe().unwrap();
                start(&node, n % schedulers, move || {
                    for round in 0..12 {
                        match (n * 7 + round * 5) % 4 {
                            0 => {
                                let mut count = lock.lock().unwrap();
                                ums::sleep(ms(1)).unwrap();
                                *count += 1;
                            }
                            1 => std::thread::sleep(ms(12 + n as u64 % 5)),
                            2 => {
                                let feed = std::thread::spawn(move || {
                                    std::thread::sleep(ms(13));
                                    writes.write_all(b"x").unwrap();
                                    writes
                                });
                                reads.read_exact(&mut [0]).unwrap();
                                writes = feed.join().unwrap();
                            }
                            _ => ums::yield_now(),
                        }
                        // Inside the library, so that the baton cannot be taken from this worker
                        // meanwhile.
                        ums::testing::with_the_baton(|scheduler| {
                            assert_eq!(batons[scheduler].fetch_add(1, SeqCst), 0, "two batons");
                            std::hint::spin_loop();
                            batons[scheduler].fetch_sub(1, SeqCst);
                        });
                    }
                    done.fetch_add(1, SeqCst);
                })
            })
            .collect();
        tasks.into_iter().for_each(|task| task.join().unwrap());
        assert_eq!(done.load(SeqCst), 24);
        let taken: u64 =
            node.snapshot().schedulers.iter().map(|s| s.counters.undeclared_blocks).sum();
        assert!(taken > 0, "some were taken");
        end(node);
    }
}
