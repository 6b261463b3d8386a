//! Work that is ready does not starve (B9, G4). Endless signals, endless requests and workers that
//! yield compete with it, and it still runs within a bounded number of choices.
//!
//! The stories run on one scheduler, and count the turns that the competitors get.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use ums::Node;
use ums::sim::{Check, Faults};
use ums::sync::Event;

/// The limit of consecutive choices that may pass over older work.
const K: u64 = 1000;

/// An allowance for the turns of the story itself, which begins and ends it.
const SPARE: u64 = 20;

/// The number of turns after which a storm ends, so that a story with starvation ends too.
const ENOUGH: u64 = 16 * K;

fn check(name: &str, story: impl Fn(&Node) + Send + Sync + 'static) {
    let command = format!("cargo test -p ums --features sim --test sim {name}");
    let count = std::env::var("UMS_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(6);
    let check = Check { seeds: 0..count, faults: Faults::default(), command };
    ums::sim::check(&check, move || {
        let builder = Node::builder().schedulers(1).max_workers(40).take_over_blocked(false);
        let node = super::mixed::of_some_kind(builder, ums::sim::below(3)).build().unwrap();
        story(&node);
        let most = ums::testing::scheduler(&node, 0).counters.passed_over_max;
        assert!(most <= K, "{most} choices in a row left something older behind");
        super::end(node);
    });
}

/// Two workers that signal each other again and again, and count their turns. They end after
/// [`ENOUGH`] turns.
fn storm(turns: &Arc<AtomicU64>, stop: &Arc<AtomicBool>) -> Vec<ums::JoinHandle<()>> {
    let events = [0, 1].map(|_| Arc::new(Event::auto(false)));
    (0..2)
        .map(|me| {
            let (mine, theirs) = (events[me].clone(), events[1 - me].clone());
            let (turns, stop) = (turns.clone(), stop.clone());
            ums::spawn(move || {
                if me == 1 {
                    mine.wait().unwrap();
                }
                while !stop.load(SeqCst) && turns.fetch_add(1, SeqCst) < ENOUGH {
                    theirs.set();
                    mine.wait().unwrap();
                }
                theirs.set();
            })
        })
        .collect()
}

/// An endless supply of requests: each queues the next, up to the limit.
fn supply(turns: Arc<AtomicU64>, stop: Arc<AtomicBool>, limit: u64) {
    if !stop.load(SeqCst) && turns.fetch_add(1, SeqCst) < limit {
        drop(ums::spawn(move || supply(turns, stop, limit)));
    }
}

#[test]
fn a_worker_that_yielded_runs_beside_endless_signals_b9() {
    check("a_worker_that_yielded_runs_beside_endless_signals_b9", |node| {
        let longest = node.run(|| {
            let (turns, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
            let all = storm(&turns, &stop);
            let longest = (0..4).map(|_| {
                let before = turns.load(SeqCst);
                ums::yield_now();
                turns.load(SeqCst) - before
            });
            let longest = longest.max();
            stop.store(true, SeqCst);
            all.into_iter().for_each(|task| task.join().unwrap());
            longest.unwrap()
        });
        assert!(longest <= K + SPARE, "{longest} others were chosen before it");
    });
}

#[test]
fn a_queued_request_starts_beside_endless_signals_g4() {
    check("a_queued_request_starts_beside_endless_signals_g4", |node| {
        let before = node.run(|| {
            let (turns, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
            let all = storm(&turns, &stop);
            // The storm begins during this sleep.
            ums::sleep(Duration::from_micros(100)).unwrap();
            let (seen, began) = (turns.clone(), turns.load(SeqCst));
            let request = ums::spawn(move || seen.load(SeqCst) - began);
            // This worker polls and does not join, because a joined request is preferred to
            // ordinary requests.
            while !request.is_finished() && turns.load(SeqCst) < ENOUGH {
                ums::sleep(Duration::from_micros(50)).unwrap();
            }
            stop.store(true, SeqCst);
            all.into_iter().for_each(|task| task.join().unwrap());
            request.join().unwrap()
        });
        assert!(before <= K + SPARE, "{before} others were chosen before it");
    });
}

#[test]
fn a_sleeper_wakes_beside_many_queued_requests_g4() {
    check("a_sleeper_wakes_beside_many_queued_requests_g4", |node| {
        const MANY: u64 = 3000;
        let (turns, late) = node.run(|| {
            let turns = Arc::new(AtomicU64::new(0));
            // All of these are older than the end of the sleep.
            let all: Vec<_> = (0..MANY)
                .map(|_| {
                    let turns = turns.clone();
                    ums::spawn(move || {
                        turns.fetch_add(1, SeqCst);
                    })
                })
                .collect();
            ums::sleep(Duration::from_nanos(1)).unwrap();
            let late = turns.load(SeqCst);
            all.into_iter().for_each(|task| task.join().unwrap());
            (turns.load(SeqCst), late)
        });
        assert_eq!(turns, MANY);
        assert!(late <= K + SPARE, "{late} requests were started before the sleeper went on");
    });
}

#[test]
fn a_sleeper_wakes_beside_an_endless_supply_of_requests_g4() {
    check("a_sleeper_wakes_beside_an_endless_supply_of_requests_g4", |node| {
        let turns = node.run(|| {
            let (turns, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
            supply(turns.clone(), stop.clone(), 8 * K);
            ums::sleep(Duration::from_micros(10)).unwrap();
            let turns = turns.load(SeqCst);
            stop.store(true, SeqCst);
            turns
        });
        assert!(turns <= K + SPARE, "{turns} requests were started before the sleeper went on");
    });
}

#[test]
fn workers_that_are_signalled_again_and_again_are_all_served_evenly_b9() {
    check("workers_that_are_signalled_again_and_again_are_all_served_evenly_b9", |node| {
        const PAIRS: usize = 6;
        let served = node.run(|| {
            let begin = Arc::new(Event::manual(false));
            let waiting = Arc::new(AtomicU64::new(0));
            let all = Arc::new(AtomicU64::new(0));
            let served: Arc<Vec<_>> = Arc::new((0..PAIRS).map(|_| AtomicU64::new(0)).collect());
            // The two workers of a pair signal each other. All pairs share the turns, so a pair
            // that gets more turns takes them from the others.
            let players: Vec<_> = (0..PAIRS)
                .flat_map(|pair| {
                    let events = [0, 1].map(|_| Arc::new(Event::auto(false)));
                    [(pair, 0, events.clone()), (pair, 1, events)]
                })
                .map(|(pair, me, events)| {
                    let (begin, waiting) = (begin.clone(), waiting.clone());
                    let (all, served) = (all.clone(), served.clone());
                    ums::spawn(move || {
                        waiting.fetch_add(1, SeqCst);
                        begin.wait().unwrap();
                        if me == 1 {
                            events[me].wait().unwrap();
                        }
                        while all.fetch_add(1, SeqCst) < ENOUGH {
                            served[pair].fetch_add(1, SeqCst);
                            events[1 - me].set();
                            events[me].wait().unwrap();
                        }
                        events[1 - me].set();
                    })
                })
                .collect();
            while waiting.load(SeqCst) < 2 * PAIRS as u64 {
                ums::yield_now();
            }
            begin.set();
            players.into_iter().for_each(|task| task.join().unwrap());
            served.iter().map(|served| served.load(SeqCst)).collect::<Vec<_>>()
        });
        let (least, most) = (served.iter().min().unwrap(), served.iter().max().unwrap());
        assert!(least * 100 >= most * 95, "the shares differ: {served:?}");
    });
}

/// On fibers, because a switch between threads takes several steps of the world.
#[test]
fn a_quick_join_counts_as_a_part_of_a_choice_beside_an_older_request() {
    const JOINS: u64 = 200;
    let name = "a_quick_join_counts_as_a_part_of_a_choice_beside_an_older_request";
    let command = format!("cargo test -p ums --features sim --test sim {name}");
    ums::sim::check(&Check { seeds: 0..6, faults: Faults::default(), command }, || {
        let builder = Node::builder().schedulers(1).max_workers(40).take_over_blocked(false);
        let node = super::mixed::of_some_kind(builder, 0).build().unwrap();
        node.run(|| {
            let old = ums::spawn(|| ());
            (0..JOINS).for_each(|_| ums::spawn(|| ()).join().unwrap());
            assert!(!old.is_finished(), "the joins go first");
            old.join().unwrap();
        });
        // Each join makes two choices: its task begins, and the joiner goes on.
        let most = ums::testing::scheduler(&node, 0).counters.passed_over_max;
        assert!(most < JOINS, "{JOINS} joins count as {most} choices");
        super::end(node);
    });
}
