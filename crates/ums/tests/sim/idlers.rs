//! Stories of idle schedulers. No request waits in a queue while a scheduler that could take it
//! sleeps, whichever scheduler was woken for the request and whatever other work that scheduler
//! has. No stolen request is lost when the node ends.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ums::Node;
use ums::node::Placement;
use ums::sim::{Faults, below, thread_sleep};
use ums::stats::SchedulerCounters;
use ums::sync::Event;
use ums::sync::channel::unbounded;

use super::{STALLS, check, end, mixed};

/// Returns a node with three schedulers that steal requests from each other.
fn three() -> Node {
    let builder = Node::builder().schedulers(3).max_workers(12).placement(Placement::Hinted);
    mixed::of_some_kind(builder, below(3)).build().unwrap()
}

/// Keeps its scheduler busy until another scheduler sets the flag.
fn busy_until(flag: &AtomicBool, what: &str) {
    let is_set = (0..1000).any(|_| {
        thread_sleep(Duration::from_millis(1));
        flag.load(Ordering::Relaxed)
    });
    assert!(is_set, "{what} waited for a second beside an idle scheduler");
}

#[test]
fn a_request_is_taken_although_the_scheduler_woken_for_it_has_a_worker_of_its_own_to_run_b5() {
    let name =
        "a_request_is_taken_although_the_scheduler_woken_for_it_has_a_worker_of_its_own_to_run_b5";
    check(name, STALLS, || {
        let node = three();
        let (gate, taken) = (Arc::new(Event::manual(false)), Arc::new(AtomicBool::new(false)));
        let (theirs, done) = (Arc::clone(&gate), Arc::clone(&taken));
        let waiter = node.spawn_on(1, move || {
            theirs.wait().unwrap();
            busy_until(&done, "the request");
        });
        let done = Arc::clone(&taken);
        let sender = node.spawn_on(0, move || {
            ums::sleep(Duration::from_micros(500 + below(500))).unwrap();
            // The first wake-up is for a worker of scheduler 1. The second is for a request that
            // any idle scheduler may take.
            gate.set();
            let theirs = Arc::clone(&done);
            let child = ums::spawn(move || theirs.store(true, Ordering::Relaxed));
            busy_until(&done, "the request");
            child.join().unwrap();
        });
        sender.unwrap().join().unwrap();
        waiter.unwrap().join().unwrap();
        end(node);
    });
}

/// The turn that runs the routine chooses one of the requests itself, and wakes a peer for the
/// other.
#[test]
fn of_two_requests_that_a_completion_routine_queues_an_idle_scheduler_takes_one_b5() {
    let name = "of_two_requests_that_a_completion_routine_queues_an_idle_scheduler_takes_one_b5";
    check(name, STALLS, || {
        let node = three();
        let (tell, told) = std::sync::mpsc::channel();
        let asker = node.spawn_on(0, move || {
            let (here, there) = UnixStream::pair().unwrap();
            let fd = there.as_raw_fd();
            ums::testing::when_readable(fd, move |_| {
                // The descriptor stays open until its routine runs.
                drop(there);
                let begun = Arc::new([false, false].map(AtomicBool::new));
                for me in 0..2 {
                    let begun = begun.clone();
                    let task = ums::spawn(move || {
                        begun[me].store(true, Ordering::Relaxed);
                        busy_until(&begun[1 - me], "a request");
                    });
                    tell.send(task).unwrap();
                }
            });
            // The peers go to sleep meanwhile.
            ums::sleep(Duration::from_micros(500 + below(500))).unwrap();
            drop(here);
        });
        asker.unwrap().join().unwrap();
        let next = || {
            thread_sleep(Duration::from_millis(1));
            told.try_recv().ok()
        };
        for _ in 0..2 {
            let task = (0..1000).find_map(|_| next()).expect("the routine queues two requests");
            task.join().unwrap();
        }
        end(node);
    });
}

#[test]
fn what_a_node_that_ends_has_taken_it_finishes_within_the_grace_time_g13() {
    let name = "what_a_node_that_ends_has_taken_it_finishes_within_the_grace_time_g13";
    check(name, STALLS, || {
        let node = three();
        let handle = node.clone();
        let client = ums::sim::thread("client", move || {
            let mut taken = Vec::new();
            // A stolen request queues another request, as a session's request does. The node may
            // refuse it.
            for _ in 0..50 {
                taken.extend(handle.spawn(|| ums::spawn(|| ()).join().is_ok()));
                thread_sleep(Duration::from_micros(below(100)));
            }
            taken.into_iter().for_each(|task| assert!(task.join().expect("it was taken")));
        });
        thread_sleep(Duration::from_micros(below(2000)));
        end(node);
        client.unwrap().join().unwrap();
    });
}

/// Returns the sums of the schedulers' counts of polls, polls that paid, and charged nanoseconds;
/// the last of the scheduler that was charged most.
fn polls(node: &Node) -> [u64; 3] {
    let all = node.snapshot().schedulers;
    let of = |i: usize| all[i].counters;
    let sum = |of: fn(&SchedulerCounters) -> u64| all.iter().map(|s| of(&s.counters)).sum();
    let most = (0..all.len()).map(|i| of(i).idle_spin_charged_ns).max();
    [sum(|c| c.idle_spins), sum(|c| c.idle_spins_paid), most.unwrap_or(0)]
}

#[test]
fn what_is_polled_in_vain_is_at_most_a_twentieth_of_the_time_and_ends_b57() {
    let name = "what_is_polled_in_vain_is_at_most_a_twentieth_of_the_time_and_ends_b57";
    let (spun, paid) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let counts = [Arc::clone(&spun), Arc::clone(&paid)];
    check(name, Faults::default(), move || {
        let node = three();
        let began = ums::sim::now();
        let (mut senders, receivers): (Vec<_>, Vec<_>) = (0..3).map(|_| unbounded()).unzip();
        senders.rotate_left(1);
        let tasks: Vec<_> = senders
            .into_iter()
            .zip(receivers)
            .enumerate()
            .map(|(i, (next, mine))| {
                let task = node.spawn_on(i, move || {
                    for _ in 0..300 {
                        // The others' periods are as long as polls, or a little longer.
                        ums::sleep(Duration::from_micros(below(80))).unwrap();
                        next.send(()).unwrap();
                        mine.recv().unwrap();
                    }
                    // Its peers may still send and receive.
                    (next, mine)
                });
                task.unwrap()
            })
            .collect();
        let ended: Vec<_> = tasks.into_iter().map(|task| task.join().unwrap()).collect();
        drop(ended);
        let [.., charged] = polls(&node);
        let time = ums::sim::now() - began;
        // The first budget, and one poll that took longer than it was allowed.
        let most = time / 20 + 250_000 + 100_000;
        assert!(charged <= most, "{charged} ns of {time} ns were polled");
        thread_sleep(Duration::from_millis(10));
        let before = polls(&node);
        thread_sleep(Duration::from_secs(1));
        assert_eq!(polls(&node), before, "an idle node polls");
        counts[0].fetch_add(before[0], Ordering::Relaxed);
        counts[1].fetch_add(before[1], Ordering::Relaxed);
        end(node);
    });
    let (spun, paid) = (spun.load(Ordering::Relaxed), paid.load(Ordering::Relaxed));
    assert!(spun > paid && paid > 0, "{spun} polls, {paid} paid: the story shows nothing");
}
