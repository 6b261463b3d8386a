//! Stories run from seeds: the library keeps its promises in whatever order threads run, and
//! whatever is late or fails.
//!
//! * **Contract**: each story ensures that it keeps no thread-scoped state across a wait, as fiber
//!   workers require.

mod cancel;
mod deeds;
mod disk;
mod fairness;
mod futures;
mod idlers;
mod large;
#[path = "../../examples/sim_lock_order.rs"]
mod lock_order;
#[path = "../../examples/sim_lost_update.rs"]
mod lost_update;
mod messages;
mod mixed;
mod net;
mod overdue;
mod select;
mod structured;

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ums::Node;
use ums::node::Placement;
use ums::sim::{Check, Faults};

/// Runs a story with many seeds. `UMS_SEEDS` sets how many.
fn check(name: &str, faults: Faults, story: impl Fn() + Send + Sync + 'static) {
    let count = std::env::var("UMS_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(200);
    let command = format!("cargo test -p ums --features sim --test sim {name}");
    let checked = ums::sim::check(&Check { seeds: 0..count, faults, command }, story);
    println!("{name}: {} seeds, median {} steps", checked.seeds, checked.median_steps);
}

fn node(schedulers: usize) -> Node {
    node_with(schedulers, 1)
}

/// Returns a node with at least this many workers on each scheduler.
fn node_with(schedulers: usize, workers: usize) -> Node {
    let placement = [Placement::Hinted, Placement::Classic, Placement::LeastLoaded];
    let builder = Node::builder()
        .schedulers(schedulers)
        .max_workers(schedulers * (workers + ums::sim::below(4) as usize))
        .placement(placement[ums::sim::below(3) as usize])
        .idle_worker_timeout(Duration::from_millis(1 + ums::sim::below(100)));
    mixed::of_some_kind(builder, ums::sim::below(3)).build().unwrap()
}

fn end(node: Node) {
    let report = node.shutdown(Duration::from_secs(100));
    assert_eq!(report, ums::node::ShutdownReport::default(), "nothing is cancelled or left over");
}

#[test]
fn every_request_ends_once_and_nothing_is_left() {
    check(
        "every_request_ends_once_and_nothing_is_left",
        Faults { stall: 20, ..Faults::default() },
        || {
            let node = node(2);
            let count = Arc::new(AtomicU64::new(0));
            let tasks: Vec<_> = (0..20)
                .map(|n| {
                    let count = Arc::clone(&count);
                    let task = node.spawn(move || {
                        for _ in 0..n % 4 {
                            ums::yield_now();
                        }
                        if n % 3 == 0 {
                            ums::sleep(Duration::from_micros(n * 50)).unwrap();
                        }
                        count.fetch_add(1, Ordering::Relaxed);
                        n
                    });
                    task.unwrap()
                })
                .collect();
            let sum: u64 = tasks.into_iter().map(|task| task.join().unwrap()).sum();
            assert_eq!((sum, count.load(Ordering::Relaxed)), (190, 20));
            end(node);
        },
    );
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let story = || {
        let node = node(2);
        let lock = Arc::new(ums::sync::Mutex::new(0));
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let lock = Arc::clone(&lock);
                node.spawn(move || {
                    for _ in 0..5 {
                        let mut guard = lock.lock();
                        ums::yield_now();
                        *guard += 1;
                    }
                })
                .unwrap()
            })
            .collect();
        tasks.into_iter().for_each(|task| task.join().unwrap());
        assert_eq!(*lock.lock(), 40);
        end(node);
    };
    for seed in 0..20 {
        let first = ums::sim::run(seed, Faults::default(), story);
        let again = ums::sim::run(seed, Faults::default(), story);
        assert_eq!(first.failed, None);
        assert_eq!(first.trace, again.trace, "seed {seed}");
    }
}

/// Returns a counter that the tasks of a story increment, so that the story can check that each did
/// its part.
fn tally() -> Arc<AtomicU64> {
    Arc::default()
}

const STALLS: Faults = Faults { short: 0, fail: 0, cut: 0, no_thread: 0, jump: 2, stall: 20 };

#[test]
fn a_lock_has_one_owner_and_no_worker_waits_forever() {
    check("a_lock_has_one_owner_and_no_worker_waits_forever", STALLS, || {
        let node = node(1 + ums::sim::below(3) as usize);
        let lock = Arc::new(ums::sync::Mutex::new((0_u64, false)));
        let tasks: Vec<_> = (0..6)
            .map(|_| {
                let lock = Arc::clone(&lock);
                let task = node.spawn(move || {
                    for _ in 0..4 {
                        let span = Duration::from_micros(ums::sim::below(2000));
                        let Ok(mut guard) = lock.lock_for(span) else { continue };
                        assert!(!std::mem::replace(&mut guard.1, true), "two owners");
                        ums::yield_now();
                        if ums::sim::below(4) == 0 {
                            ums::sleep(Duration::from_micros(ums::sim::below(500))).unwrap();
                        }
                        guard.0 += 1;
                        guard.1 = false;
                    }
                });
                task.unwrap()
            })
            .collect();
        tasks.into_iter().for_each(|task| task.join().unwrap());
        assert!(!lock.is_locked());
        end(node);
    });
}

#[test]
fn what_is_sent_arrives_once_and_in_order() {
    check("what_is_sent_arrives_once_and_in_order", STALLS, || {
        // There are enough workers, because the receivers must not wait for a worker that a sender
        // has.
        let node = node_with(2, 4);
        let (sender, receiver) = ums::sync::channel::bounded(1 + ums::sim::below(4) as usize);
        let senders: Vec<_> = (0..3_u64)
            .map(|task| {
                let sender = sender.clone();
                let send = move || (0..10).for_each(|n| sender.send((task, n)).unwrap());
                node.spawn(send).unwrap()
            })
            .collect();
        drop(sender);
        let take = move || {
            let mut next = [0; 3];
            while let Ok((task, n)) = receiver.recv() {
                assert_eq!(n, next[task as usize], "of {task}");
                next[task as usize] += 1;
            }
            next
        };
        let taken = node.spawn(take).unwrap().join().unwrap();
        assert_eq!(taken, [10; 3]);
        senders.into_iter().for_each(|task| task.join().unwrap());
        end(node);
    });
}

#[test]
fn no_sleeper_wakes_before_its_time_u69() {
    check("no_sleeper_wakes_before_its_time_u69", STALLS, || {
        let node = node(2);
        let tasks: Vec<_> = (0..10)
            .map(|_| {
                let sleep = || {
                    let max = [100, 30_000][ums::sim::below(2) as usize];
                    let span = Duration::from_micros(ums::sim::below(max));
                    let began = ums::sim::now();
                    ums::sleep(span).unwrap();
                    assert!(ums::sim::now() - began >= span.as_nanos() as u64);
                };
                node.spawn(sleep).unwrap()
            })
            .collect();
        tasks.into_iter().for_each(|task| task.join().unwrap());
        end(node);
    });
}

#[test]
fn a_preemptive_worker_rejoins_its_scheduler_and_holds_no_other_up_u77() {
    check("a_preemptive_worker_rejoins_its_scheduler_and_holds_no_other_up_u77", STALLS, || {
        let node = node(2);
        let done = tally();
        let tasks: Vec<_> = (0..6)
            .map(|n| {
                let done = Arc::clone(&done);
                let task = node.spawn(move || {
                    let result = ums::go_preemptive(ums::WaitReason::PREEMPTIVE_EXTERNAL, || {
                        ums::sim::thread_sleep(Duration::from_micros(ums::sim::below(3000)));
                        n
                    });
                    assert_eq!(result, n);
                    done.fetch_add(1, Ordering::Relaxed);
                    ums::yield_now();
                });
                task.unwrap()
            })
            .collect();
        tasks.into_iter().for_each(|task| task.join().unwrap());
        assert_eq!(done.load(Ordering::Relaxed), 6);
        end(node);
    });
}

#[test]
fn bytes_arrive_whole_and_in_order_over_sockets_that_stutter() {
    let faults = Faults { short: 3000, ..STALLS };
    check("bytes_arrive_whole_and_in_order_over_sockets_that_stutter", faults, || {
        let node = node_with(2, 6);
        let pairs: Vec<_> = (0..3)
            .map(|_| {
                let (here, there) = node.run(|| ums::net::UnixStream::pair().unwrap());
                let echo = node.spawn(move || {
                    let mut there = there;
                    let mut buf = [0; 64];
                    loop {
                        match there.read(&mut buf).unwrap() {
                            0 => break,
                            n => there.write_all(&buf[..n]).unwrap(),
                        }
                    }
                });
                let talk = node.spawn(move || {
                    let mut here = here;
                    for round in 0..5_u8 {
                        let words = [round; 100];
                        let mut back = [0xff; 100];
                        here.write_all(&words).unwrap();
                        here.read_exact(&mut back).unwrap();
                        assert_eq!(words, back);
                    }
                });
                (talk.unwrap(), echo.unwrap())
            })
            .collect();
        for (talk, echo) in pairs {
            talk.join().unwrap();
            echo.join().unwrap();
        }
        end(node);
    });
}

#[test]
fn a_connection_that_breaks_is_an_error_on_both_sides_and_hangs_neither() {
    let faults = Faults { short: 2000, fail: 300, ..STALLS };
    check("a_connection_that_breaks_is_an_error_on_both_sides_and_hangs_neither", faults, || {
        let node = node(2);
        let (here, there) = node.run(|| ums::net::UnixStream::pair().unwrap());
        let echo = node.spawn(move || {
            let mut there = there;
            let mut buf = [0; 64];
            while let Ok(n @ 1..) = there.read(&mut buf) {
                if there.write_all(&buf[..n]).is_err() {
                    break;
                }
            }
        });
        let talk = node.spawn(move || {
            let mut here = here;
            let mut back = [0; 50];
            for _ in 0..10 {
                if here.write_all(&[7; 50]).and_then(|()| here.read_exact(&mut back)).is_err() {
                    return;
                }
                assert_eq!(back, [7; 50]);
            }
        });
        talk.unwrap().join().unwrap();
        echo.unwrap().join().unwrap();
        end(node);
    });
}

#[test]
fn a_node_ends_at_any_moment_and_every_request_has_an_end_g13() {
    check("a_node_ends_at_any_moment_and_every_request_has_an_end_g13", STALLS, || {
        let node = node(2);
        let ended = tally();
        let event = Arc::new(ums::sync::Event::manual(false));
        let mut tasks = Vec::new();
        for n in 0..12 {
            let (ended, event) = (Arc::clone(&ended), Arc::clone(&event));
            let task = node.spawn(move || {
                match n % 4 {
                    0 => drop(ums::sleep(Duration::from_micros(ums::sim::below(5000)))),
                    1 => drop(event.wait_for(Duration::from_secs(3600))),
                    2 => ums::yield_now(),
                    _ => drop(ums::sleep(Duration::MAX)),
                }
                ended.fetch_add(1, Ordering::Relaxed);
            });
            tasks.push(task.unwrap());
        }
        ums::sim::thread_sleep(Duration::from_micros(ums::sim::below(3000)));
        let report = node.shutdown(Duration::from_micros(ums::sim::below(3000)));
        assert_eq!(report.left, 0);
        let fine = tasks.into_iter().filter_map(|task| task.join().ok()).count() as u64;
        assert_eq!(
            fine,
            ended.load(Ordering::Relaxed),
            "a task that ended says so, the others were never begun"
        );
    });
}

#[test]
fn a_panic_ends_its_request_and_nothing_else() {
    check("a_panic_ends_its_request_and_nothing_else", STALLS, || {
        let node = node(2);
        let tasks: Vec<_> = (0..10)
            .map(|n| {
                let task = node.spawn(move || {
                    ums::yield_now();
                    if n % 3 == 0 {
                        std::panic::resume_unwind(Box::new(n));
                    }
                    ums::yield_now();
                });
                task.unwrap()
            })
            .collect();
        for (n, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.join().is_err(), n % 3 == 0);
        }
        end(node);
    });
}

#[test]
fn a_thread_that_the_system_refuses_is_tried_again_b17() {
    let faults = Faults { no_thread: 1000, ..STALLS };
    check("a_thread_that_the_system_refuses_is_tried_again_b17", faults, || {
        let builder = Node::builder().schedulers(2).max_workers(8);
        // Schedulers themselves need threads, so building the node may fail.
        let Ok(node) = builder.build() else { return };
        let tasks: Vec<_> = (0..6)
            .map(|_| node.spawn(|| ums::sleep(Duration::from_millis(1)).unwrap()).unwrap())
            .collect();
        tasks.into_iter().for_each(|task| task.join().unwrap());
        end(node);
    });
}

#[test]
fn the_pause_after_a_refused_worker_may_end_at_any_moment_b17() {
    let faults = Faults { no_thread: 4000, stall: 500, ..Faults::default() };
    check("the_pause_after_a_refused_worker_may_end_at_any_moment_b17", faults, || {
        let builder = Node::builder().schedulers(1).max_workers(4);
        let Ok(node) = builder.idle_worker_timeout(Duration::from_millis(1)).build() else {
            return;
        };
        for _ in 0..8 {
            // The sleeper makes the scheduler run a turn when the pause of 100 ms is about to end,
            // and its worker stays in use.
            let span = Duration::from_micros(94_000 + ums::sim::below(8_000));
            let done = Arc::new(ums::sync::Event::manual(false));
            let theirs = Arc::clone(&done);
            let sleeper = node.spawn(move || {
                ums::sleep(span).unwrap();
                theirs.wait().unwrap();
            });
            let refused = node.spawn(|| 7).unwrap();
            assert_eq!(refused.join().unwrap(), 7);
            done.set();
            sleeper.unwrap().join().unwrap();
            // Idle workers end after this time, so the next round needs new ones.
            ums::sim::thread_sleep(Duration::from_millis(2));
        }
        end(node);
    });
}

#[test]
fn a_lock_goes_from_user_to_user() {
    check("a_lock_goes_from_user_to_user", STALLS, || {
        let node = node(2);
        let lock = Arc::new(ums::user::UserLock::new());
        let users: Vec<_> = (0..4).map(|_| node.user()).collect();
        for _ in 0..3 {
            let all = users.iter().map(|user| {
                let (id, lock) = (user.id(), Arc::clone(&lock));
                let task = user.enqueue(move || {
                    lock.acquire(id, None).unwrap();
                    assert_eq!(lock.owner(), Some(id));
                    ums::yield_now();
                    lock.release(id);
                });
                task.unwrap()
            });
            let all: Vec<_> = all.collect();
            all.into_iter().for_each(|task| task.join().unwrap());
        }
        assert_eq!(lock.owner(), None);
        drop(users);
        end(node);
    });
}

#[test]
fn a_planted_deadlock_is_found_and_named() {
    let failed = (0..50).map(|seed| ums::sim::run(seed, Faults::default(), mixed::two_locks));
    let failed: Vec<_> = failed.filter_map(|ended| ended.failed).collect();
    assert!(!failed.is_empty(), "some seed makes them meet");
    assert!(failed[0].contains("no thread can run"), "{}", failed[0]);
}

/// The tasks of a server, all at the same time: a random number of each kind of task, with all
/// faults.
fn busy_day() {
    let node = node_with(2 + ums::sim::below(2) as usize, 8);
    let (sender, receiver) = ums::sync::channel::bounded(8);
    let day = Arc::new(Day {
        lock: ums::sync::Mutex::new(0),
        gate: ums::user::UserLock::near(ums::sim::below(3) as usize),
        expected: tally(),
    });
    let users: Vec<_> = (0..4).map(|_| node.user()).collect();
    for _ in 0..8 {
        let mut tasks = Vec::new();
        for user in &users {
            let (day, sender, id) = (day.clone(), sender.clone(), user.id());
            let what = ums::sim::below(7);
            let task = user.enqueue(move || {
                for _ in 0..ums::sim::below(6) {
                    day.step(what, id, &sender);
                }
                if what == 6 {
                    std::panic::resume_unwind(Box::new("on purpose"));
                }
            });
            let task = task.unwrap();
            if ums::sim::below(20) == 0 && what == 6 {
                task.cancel();
            }
            tasks.push((task, what));
        }
        for (task, what) in tasks {
            assert_eq!(task.join().is_err(), what == 6);
        }
    }
    drop((users, sender));
    while receiver.try_recv().is_ok() {}
    let today = day.clone();
    let counted = node.run(move || *today.lock.lock());
    assert_eq!(counted, day.expected.load(Ordering::Relaxed));
    assert_eq!((day.gate.owner(), day.gate.waiters()), (None, 0));
    end(node);
}

type Sender = ums::sync::channel::Sender<ums::user::UserId>;

/// The state that the tasks of a busy day share.
struct Day {
    lock: ums::sync::Mutex<u64>,
    gate: ums::user::UserLock,
    /// How often tasks have incremented the number under the lock.
    expected: Arc<AtomicU64>,
}

impl Day {
    /// Carries out one step of this kind.
    fn step(&self, what: u64, user: ums::user::UserId, sender: &Sender) {
        match what {
            0 => {
                let Ok(mut guard) = self.lock.lock_for(Duration::from_millis(1)) else { return };
                ums::yield_now();
                *guard += 1;
                self.expected.fetch_add(1, Ordering::Relaxed);
            }
            1 => {
                self.gate.acquire(user, None).unwrap();
                ums::sleep(Duration::from_micros(ums::sim::below(300))).unwrap();
                self.gate.release(user);
            }
            2 => drop(sender.try_send(user)),
            3 => ums::go_preemptive(ums::WaitReason::PREEMPTIVE_EXTERNAL, || {
                ums::sim::thread_sleep(Duration::from_micros(ums::sim::below(500)));
            }),
            4 => {
                let child = ums::spawn(ums::yield_now);
                child.join().unwrap();
            }
            5 => echo_once(),
            _ => (0..20).for_each(|_| ums::yield_now()),
        }
    }
}

/// The two ends of a socket pair, in a task and in its child. A broken connection may only cause an
/// error.
fn echo_once() {
    let (mut here, mut there) = ums::net::UnixStream::pair().unwrap();
    let child = ums::spawn(move || {
        let mut buf = [0; 32];
        while let Ok(n @ 1..) = there.read(&mut buf) {
            if there.write_all(&buf[..n]).is_err() {
                break;
            }
        }
    });
    let mut back = [0; 40];
    if here.write_all(&[9; 40]).and_then(|()| here.read_exact(&mut back)).is_ok() {
        assert_eq!(back, [9; 40]);
    }
    drop(here);
    child.join().unwrap();
}

#[test]
fn a_busy_day_ends_well() {
    let faults = Faults { short: 1000, fail: 100, ..STALLS };
    check("a_busy_day_ends_well", faults, busy_day);
}

#[test]
fn everything_at_once_keeps_every_promise() {
    check("everything_at_once_keeps_every_promise", mixed::FAULTS, mixed::day);
}

/// Returns the first seed with which a story fails, and the failure. A second run with the seed
/// must fail after the same steps.
fn first_failure(story: fn()) -> (u64, String) {
    let told = |seed| ums::sim::run(seed, Faults::default(), story);
    let failed =
        (0..2000).find_map(|seed| Some((seed, told(seed))).filter(|(_, e)| e.failed.is_some()));
    let (seed, ended) = failed.expect("one of so many seeds finds it");
    assert_eq!(told(seed), ended);
    (seed, ended.failed.unwrap_or_default())
}

#[test]
fn the_lost_update_of_the_example_is_found() {
    let (_, why) = first_failure(lost_update::story);
    assert!(why.contains("six apples were added"), "{why}");
}

#[test]
fn the_deadlock_of_the_example_is_found() {
    let (_, why) = first_failure(lock_order::story);
    assert!(why.contains("no thread can run, and none waits with a deadline"), "{why}");
}

/// Workers that go preemptive again as soon as they have returned.
fn in_and_out() {
    let builder = Node::builder().schedulers(1).max_workers(4);
    let node = mixed::of_some_kind(builder, 1).build().unwrap();
    let task = || {
        for _ in 0..20 {
            ums::go_preemptive(ums::WaitReason::PREEMPTIVE_EXTERNAL, || {
                ums::sim::thread_sleep(Duration::from_micros(ums::sim::below(20)));
            });
        }
    };
    let tasks: Vec<_> = (0..3).map(|_| node.spawn(task).unwrap()).collect();
    tasks.into_iter().for_each(|task| task.join().unwrap());
    end(node);
}

#[test]
fn a_worker_that_goes_preemptive_again_at_once_does_so_the_same_way_each_time() {
    for seed in 0..100 {
        let [first, again] = [(), ()].map(|()| ums::sim::run(seed, STALLS, in_and_out));
        assert_eq!(first.failed, None, "seed {seed}");
        assert_eq!(first.trace, again.trace, "seed {seed}");
    }
}
