//! What a message between two schedulers costs in shared memory.
//!
//! The schedulers of a simulated world run the code that they always run, and the world counts what
//! they do with the cache lines that they share (`ums::sim::line_counts`). It counts atomics only:
//! what a channel's lock protects lies beside the lock, and the value of a message in the
//! receiver's frame.
//!
//! * **Contract**: as in `main.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ums::Node;
use ums::sim::Faults;
use ums::sync::channel::bounded;

const ROUNDS: u64 = 200;

/// Returns how many times in a hundred messages a line was changed, taken and fetched.
fn cost(seed: u64) -> [u64; 3] {
    let found = Arc::new([const { AtomicU64::new(0) }; 3]);
    let theirs = Arc::clone(&found);
    let ended = ums::sim::run(seed, Faults::default(), move || {
        let builder = Node::builder().schedulers(2).max_workers(8);
        // SAFETY: Contract.
        #[allow(unsafe_code)]
        let node = unsafe { builder.fiber_workers() }.build().unwrap();
        let (ping, pinged) = bounded(1);
        let (pong, ponged) = bounded(1);
        let answers = move || while pinged.recv().is_ok_and(|n: u64| pong.send(n).is_ok()) {};
        let asks = move || {
            let round = |n| {
                ping.send(n).unwrap();
                assert_eq!(ponged.recv(), Ok(n));
            };
            (0..ROUNDS).for_each(round);
            let before = ums::sim::line_counts();
            (0..ROUNDS).for_each(round);
            let after = ums::sim::line_counts();
            let counted = [
                after.changes - before.changes,
                after.taken - before.taken,
                after.fetched - before.fetched,
            ];
            for (found, counted) in theirs.iter().zip(counted) {
                found.store(counted * 100 / (2 * ROUNDS), Ordering::Relaxed);
            }
        };
        let answers = node.spawn_on(1, answers).unwrap();
        node.spawn_on(0, asks).unwrap().join().unwrap();
        answers.join().unwrap();
        super::end(node);
    });
    assert_eq!(ended.failed, None, "{}", ended.trace);
    std::array::from_fn(|at| found[at].load(Ordering::Relaxed))
}

#[test]
fn a_message_between_two_schedulers_changes_little_shared_memory() {
    let seeds = (0..).filter(|seed| ums::sim::walks_at_random(*seed)).take(8);
    for seed in seeds {
        let [changes, taken, fetched] = cost(seed);
        println!(
            "of 100 messages: {changes} read-modify-writes, {taken} lines taken, {fetched} fetched"
        );
        // The numbers of lines depend on what the allocator puts side by side.
        assert!(changes < 900, "{changes} read-modify-writes for 100 messages");
    }
}
