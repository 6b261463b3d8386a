//! Tests of blocks: the order in which references are dropped, and where memory comes from.

use super::memory::{SPARE_MAX, Spare};
use super::*;
use std::sync::Arc;

fn state() -> RequestState {
    RequestState::new(0, false)
}

#[test]
fn closure_and_result_are_dropped_once_in_every_order_of_the_references() {
    for order in 0..4 {
        let alive = Arc::new(());
        let (inside, outside) = (alive.clone(), alive.clone());
        let (mut request, mut result) = make(state(), move || {
            drop(inside);
            outside
        });
        let reference = result.request();
        assert!(result.take().is_none(), "it has not run");
        match order {
            0 => drop((request, result)),
            1 => {
                request.run();
                request.run();
                assert!(request.end().is_none() && request.end().is_none());
                drop(result);
                assert_eq!(Arc::strong_count(&alive), 2, "the result is kept");
                assert!(request.drop_unless_last().is_none(), "the reference is left");
            }
            2 => {
                assert!(request.abandon().is_none());
                assert!(matches!(result.take(), Some(Err(NoResult::NeverRan))));
            }
            _ => {
                request.run();
                assert!(request.end().is_none());
                drop(request);
                assert!(matches!(result.take(), Some(Ok(_))));
            }
        }
        drop(reference);
        assert_eq!(Arc::strong_count(&alive), 1, "order {order}");
    }
}

#[test]
fn a_large_closure_and_one_with_a_large_alignment_have_memory_of_their_own() {
    #[repr(align(128))]
    struct Aligned(u8);
    let (large, aligned) = ([7u8; 4096], Aligned(3));
    let (mut request, mut result) = make(state(), move || (large[4095], aligned.0));
    request.run();
    assert!(result.take().is_none() && request.end().is_none());
    assert!(matches!(result.take(), Some(Ok((7, 3)))));
}

#[test]
#[should_panic(expected = "taken already")]
fn a_result_is_taken_once() {
    let (mut request, mut result) = make(state(), || ());
    request.run();
    assert!(request.end().is_none() && result.take().is_some());
    let _ = result.take();
}

#[test]
fn blocks_are_kept_for_the_next_requests_up_to_a_limit() {
    let node = crate::Node::builder().schedulers(1).build().unwrap();
    let kept = || SpareBlocks::with(|blocks| blocks.each_ref().map(Spare::len));
    assert_eq!(kept(), None, "a plain thread has no list");
    let counts = node.run(move || {
        let small = [1u64; 2];
        let all: Vec<_> = (0..2 * SPARE_MAX).map(|_| make(state(), move || small[0])).collect();
        let before = kept();
        drop(all);
        let (after, large) = (kept(), [1u64; 10]);
        drop(make(state(), move || large[0]));
        [before, after, kept()]
    });
    // The larger size is for a closure of 80 bytes, and not for one of 16.
    let most = SPARE_MAX;
    assert_eq!(counts, [Some([0, 0]), Some([most, 0]), Some([most, 1])]);
}
