//! Requests beyond the soft limit of workers, while the scheduler is idle and waits end all the
//! time. Each overdue request gets a worker, within the pause that the scheduler keeps between two
//! such workers.

use std::sync::Arc;
use std::time::Duration;

use ums::Node;
use ums::sim::{Check, Faults};
use ums::sync::Event;

/// More than the soft limit of workers of a computer with up to four processors.
const SOFT: u64 = 512;
const BEYOND: u64 = 150;

#[test]
fn overdue_requests_get_a_worker_in_each_millisecond_of_an_idle_scheduler_b14() {
    let name = "overdue_requests_get_a_worker_in_each_millisecond_of_an_idle_scheduler_b14";
    let command = format!("cargo test -p ums --features sim --test sim {name}");
    let faults = Faults::default();
    ums::sim::check(&Check { seeds: 0..6, faults, command }, || {
        let builder = Node::builder().schedulers(1).take_over_blocked(false);
        let node = super::mixed::of_some_kind(builder, ums::sim::below(3)).build().unwrap();
        let took = node.run(|| {
            let began = ums::sim::now();
            let open = Arc::new(Event::manual(false));
            let tasks: Vec<_> = (0..SOFT + BEYOND)
                .map(|_| {
                    let open = open.clone();
                    ums::spawn(move || {
                        // The first wait ends, so that this is no standstill. The second lasts.
                        ums::sleep(Duration::from_micros(1)).unwrap();
                        open.wait().unwrap();
                    })
                })
                .collect();
            let last = Arc::new(Event::manual(false));
            let tell = last.clone();
            let request = ums::spawn(move || tell.set());
            last.wait().unwrap();
            let took = ums::sim::now() - began;
            open.set();
            tasks.into_iter().for_each(|task| task.join().unwrap());
            request.join().unwrap();
            took
        });
        // The first request beyond the limit is overdue after 100 ms.
        let most = Duration::from_millis(100 + 2 * BEYOND);
        assert!(u128::from(took) <= most.as_nanos(), "the last one had a worker after {took} ns");
        super::end(node);
    });
}
