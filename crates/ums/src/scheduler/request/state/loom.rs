//! Models of the request's word, each of two threads, in all interleavings:
//!
//! * *Join and end.* The joiner sees that the request has ended, and what was stored before, or
//!   the end sees the joiner's ticket.
//! * *End and drop.* One of the two drops the last reference, and sees what the other has done.
//! * *Join and the last canceller.* A joiner that is alone sees that the request is cancelled.
//! * *Thief and promoter.* The thief sees that the request is urgent, or the promoter sees the
//!   thief's number.

use super::*;
use ::loom::sync::Arc;
use ::loom::sync::atomic::AtomicU32;
use ::loom::thread;

fn ends(state: &RequestState, waiter: &'static Waiter) -> bool {
    state.ends_plainly(waiter).is_some_and(|plain| end_and_drop(&state.word, plain, waiter))
}

#[test]
fn loom_of_a_join_and_an_end_one_sees_the_other() {
    ::loom::model(|| {
        // The result, and the ticket of the joiner. Unordered, so that a load may be stale.
        let zero = || AtomicU32::new(0);
        let all = Arc::new((RequestState::new(0, false), zero(), zero()));
        let worker = all.clone();
        let worker = thread::spawn(move || {
            let (state, result, ticket) = &*worker;
            result.store(1, Ordering::Relaxed);
            let joined = state.finish();
            if joined {
                assert_eq!(ticket.load(Ordering::Relaxed), 2);
            }
            joined
        });
        let (state, result, ticket) = &*all;
        let waits = !state.is_done() && {
            ticket.store(2, Ordering::Relaxed);
            state.join()
        };
        if !waits {
            assert!(state.is_done());
            assert_eq!(result.load(Ordering::Relaxed), 1);
        }
        assert_eq!(worker.join().unwrap(), waits, "the end claims the ticket of a joiner");
    });
}

#[test]
fn loom_of_an_end_and_a_drop_one_is_the_last() {
    for joins in [false, true] {
        ::loom::model(move || {
            let waiter = Waiter::take(None, 0);
            let state = RequestState::new(0, false);
            assert!(state.start(waiter, 0));
            let all = Arc::new((state, [(); 2].map(|()| AtomicU32::new(0))));
            let worker = all.clone();
            let worker = thread::spawn(move || {
                let (state, [result, handle]) = &*worker;
                result.store(1, Ordering::Relaxed);
                let dropped = ends(state, waiter) || {
                    state.finish();
                    drop_ref(&state.word)
                };
                let is_last = !dropped;
                assert!(!is_last || handle.load(Ordering::Relaxed) == 1);
                is_last
            });
            let (state, [result, handle]) = &*all;
            let joined = joins && state.join() && state.forget_joiner();
            handle.store(1, Ordering::Relaxed);
            let is_last = !drop_ref(&state.word);
            assert!(!is_last || result.load(Ordering::Relaxed) == 1);
            let others = worker.join().unwrap();
            assert!(is_last != others, "one of the two is the last ({joined})");
        });
    }
}

/// Of a request that its joiner has taken, and that has ended.
#[test]
fn loom_of_references_that_a_joiner_has_made_none_is_lost() {
    ::loom::model(|| {
        let state = Arc::new(RequestState::new(0, false));
        assert!(state.join_taken() && state.finish());
        assert!(drop_ref(&state.word), "the runner's");
        state.add_ref();
        let other = state.clone();
        let drops = thread::spawn(move || drop_ref(&other.word));
        state.add_ref();
        let mine = [(); 2].map(|()| drop_ref(&state.word));
        let lasts = mine.into_iter().chain([drops.join().unwrap()]).filter(|dropped| !dropped);
        assert_eq!(lasts.count(), 1, "one of the three is the last");
    });
}

#[test]
fn loom_of_a_joiner_that_is_alone_sees_what_the_last_canceller_did() {
    ::loom::model(|| {
        let state = Arc::new(RequestState::new(0, false));
        // A third reference, of the canceller.
        state.add_ref();
        let cancels = state.clone();
        let canceller = thread::spawn(move || {
            let _ = cancels.cancel();
            assert!(drop_ref(&cancels.word));
        });
        assert!(state.join_taken());
        canceller.join().unwrap();
        let word = state.word.load(Ordering::Relaxed);
        assert!(word & CANCELLED != 0, "the joiner's store undid the cancellation");
        assert!(word & JOINED != 0);
    });
}

#[test]
fn loom_of_a_thief_and_a_promoter_one_sees_the_other() {
    ::loom::model(|| {
        let state = Arc::new(RequestState::new(0, false));
        let stolen = state.clone();
        let thief = thread::spawn(move || {
            stolen.moves_to(1);
            stolen.is_urgent()
        });
        state.make_urgent();
        let seen = state.thief() == Some(1);
        assert!(thief.join().unwrap() || seen, "it is queued where no promoter looks");
    });
}
