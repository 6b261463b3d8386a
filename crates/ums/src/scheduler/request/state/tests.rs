//! Tests of the request's word: its phases, marks and references.

use super::*;

/// Ends the request and drops a reference in one step, if that is possible.
fn ends(state: &RequestState, waiter: &'static Waiter) -> bool {
    state.ends_plainly(waiter).is_some_and(|plain| end_and_drop(&state.word, plain, waiter))
}

#[test]
fn a_request_does_not_end_while_a_canceller_uses_its_runner() {
    let waiter = Waiter::take(None, 0);
    let state = RequestState::new(0, false);
    assert!(state.start(waiter, 0));
    // The first half of `cancel`.
    let alone = state.cancelling.lock();
    state.word.fetch_or(CANCELLED | RUNNER_IN_USE, Ordering::Acquire);
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| state.finish());
        for _ in 0..1000 {
            std::thread::yield_now();
            assert!(!state.is_done(), "the runner may begin its next request");
        }
        // The second half.
        waiter.cancelled.store(true, Ordering::SeqCst);
        state.word.fetch_and(!RUNNER_IN_USE, Ordering::Release);
        drop(alone);
        assert!(!worker.join().unwrap(), "no ticket waits");
    });
    assert!(state.is_done() && !waiter.is_cancelled(), "the next request is not cancelled");
    waiter.give_back();
}

#[test]
fn no_two_requests_have_the_same_number_whichever_threads_make_them() {
    let numbers = || (0..3 * IDS).map(|_| next_id()).collect::<Vec<_>>();
    let threads = [(); 3].map(|()| std::thread::spawn(numbers));
    let all = threads.into_iter().flat_map(|thread| thread.join().unwrap());
    let mut seen = std::collections::HashSet::new();
    assert!(all.into_iter().all(|number| seen.insert(number)));
}

#[test]
fn a_request_that_starts_cancelled_knows_it_from_its_beginning() {
    let waiter = Waiter::take(None, 0);
    let mut state = RequestState::new(0, false);
    state.starts_cancelled = true;
    let _ = state.cancel();
    assert!(state.start(waiter, 0) && waiter.is_cancelled());
    state.finish();
    assert!(!waiter.is_cancelled(), "the next request is not cancelled");
    waiter.give_back();
}

#[test]
fn a_request_that_was_cancelled_does_not_start() {
    let waiter = Waiter::take(None, 0);
    let state = RequestState::new(0, false);
    let _ = state.cancel();
    assert!(!state.start(waiter, 0));
    assert!(state.is_queued() && !state.finish() && state.is_done());
    waiter.give_back();
}

#[test]
fn only_a_request_with_two_references_is_alone_and_a_joiner_that_leaves_ends_that() {
    let waiter = Waiter::take(None, 0);
    let alone = |state: &RequestState| state.word.load(Ordering::Relaxed) & ALONE != 0;
    for references in 2..4 {
        let state = RequestState::new(0, false);
        (2..references).for_each(|_| state.add_ref());
        assert!(state.join_taken());
        assert_eq!(alone(&state), references == 2, "a third may be a canceller's");
        assert!(state.start(waiter, 0));
        // The joiner's time is over.
        state.forget_joiner();
        assert!(!alone(&state) && ends(&state, waiter) && state.is_done());
        assert_eq!(drop_ref(&state.word), references == 3, "the last one is left");
    }
    let state = RequestState::new(0, false);
    assert!(state.join_taken() && state.start(waiter, 0));
    assert!(!ends(&state, waiter) && state.finish());
    assert!(drop_ref(&state.word) && !drop_ref(&state.word));
    assert!(!alone(&state), "the joiner may make references from now on");
    // Its handle was dropped while it ran.
    let state = RequestState::new(0, false);
    assert!(state.start(waiter, 0) && drop_ref(&state.word));
    assert!(!ends(&state, waiter) && !state.finish() && !drop_ref(&state.word));
    // A request that was cancelled before it was joined does not start.
    let state = RequestState::new(0, false);
    let _ = state.cancel();
    assert!(state.join_taken() && !state.start(waiter, 0) && state.finish());
    // A request that is queued again may be taken by any thread.
    let state = RequestState::new(0, false);
    assert!(state.join_taken());
    state.is_alone_no_more();
    assert!(!alone(&state) && state.finish(), "the joiner still waits");
    waiter.give_back();
}
