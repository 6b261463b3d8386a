//! Stories of idle schedulers. No request waits in a queue while a scheduler that could take it
//! sleeps, whichever scheduler was woken for the request and whatever other work that scheduler
//! has. No stolen request is lost when the node ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ums::Node;
use ums::node::Placement;
use ums::sim::{below, thread_sleep};
use ums::sync::Event;

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
