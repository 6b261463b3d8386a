//! Extreme sizes and counts of a node, with all that they say: the sentence of a refusal, the stack
//! that a request can use, many extremes at once.

use std::time::Duration;

use crate::common::{self, build, kinds, turn};
use ums::node::HiddenOptions;
use ums::sync::{Barrier, Latch, Semaphore};
use ums::{Builder, WorkerKind};

/// Returns the error text with which such a node is refused.
fn refused(kind: WorkerKind, options: impl FnOnce(Builder) -> Builder) -> String {
    match common::try_build(kind, options) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("{kind:?} workers: it was not refused"),
    }
}

#[test]
fn fibers_whose_blocks_should_be_detected_are_refused() {
    let text = refused(WorkerKind::Fiber, |b| b.detect_blocking(true));
    assert!(text.contains("share one thread") && text.contains("own_context_workers"), "{text}");
}

#[test]
fn a_stack_that_is_too_small_or_too_large_is_refused_when_the_node_is_built_b16() {
    let _turn = turn();
    for kind in kinds() {
        for bytes in [0, 1, 4096, (16 << 10) - 1, (1 << 40) + 1, usize::MAX] {
            let text = refused(kind, |b| b.schedulers(1).stack_size(bytes));
            assert!(text.contains("at least") && text.contains("at most"), "{kind:?}: {text}");
        }
    }
}

#[test]
fn the_least_stack_carries_a_request_and_its_panic_b16() {
    let _turn = turn();
    for kind in kinds() {
        let text = refused(kind, |b| b.schedulers(1).stack_size(0));
        let words = text.split(' ').skip_while(|word| *word != "least").nth(1);
        let least: usize = words.and_then(|word| word.parse().ok()).expect("the sentence says it");
        let node = build(kind, |b| b.schedulers(1).max_workers(4).stack_size(least));
        let sum: u32 = node.run(|| {
            let parts = (0..3).map(|_| {
                ums::spawn(|| {
                    ums::yield_now();
                    std::hint::black_box([1u8; 2048]).iter().map(|n| u32::from(*n)).sum::<u32>()
                })
            });
            let parts: Vec<_> = parts.collect();
            parts.into_iter().map(|part| part.join().expect("it ends")).sum()
        });
        assert_eq!(sum, 3 * 2048, "{kind:?} on {least} bytes");
        let ended = node.run(|| ums::spawn(|| std::panic::resume_unwind(Box::new("it"))).join());
        assert!(ended.is_err(), "{kind:?} on {least} bytes");
    }
}

#[test]
fn the_largest_counts_and_times_are_used_literally() {
    let _turn = turn();
    let options = |b: Builder| {
        let b = b.schedulers(1).queue_limit(usize::MAX).preemptive_limit(usize::MAX);
        let b = b.min_workers(usize::MAX).max_workers(8).queue_timeout(Duration::MAX);
        b.idle_worker_timeout(Duration::MAX).holder_spin(Duration::ZERO)
    };
    for kind in kinds() {
        assert!(refused(kind, |b| b.schedulers(usize::MAX)).contains("1 to 1024"));
        let text = refused(kind, |b| b.schedulers(1).max_workers(usize::MAX));
        assert!(text.contains(&usize::MAX.to_string()), "{text}");
        let node = build(kind, options);
        let most = Some(usize::MAX);
        let hidden = HiddenOptions { max_workers: most, ready: usize::MAX, nice: 0 };
        assert!(node.hidden("more than can be numbered", hidden).is_err());
        let met = node.run(|| {
            let (sender, receiver) = ums::sync::channel::bounded(usize::MAX);
            sender.send(7).expect("there is room");
            let permits = Semaphore::new(Semaphore::MAX);
            drop(permits.acquire_many(Semaphore::MAX));
            assert!(permits.try_acquire_many(usize::MAX).is_none());
            let too_many = || permits.add_permits(usize::MAX);
            let too_many = std::panic::catch_unwind(std::panic::AssertUnwindSafe(too_many));
            assert!(too_many.is_err() && permits.available() == Semaphore::MAX);
            let soon = Duration::from_millis(1);
            assert!(Barrier::new(usize::MAX).wait_for(soon).is_err());
            assert!(Latch::new(usize::MAX).wait_for(soon).is_err());
            receiver.recv_for(Duration::MAX).expect("it is there")
        });
        assert_eq!(met, 7, "{kind:?}");
    }
}
