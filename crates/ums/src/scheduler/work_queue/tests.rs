//! Tests of the work queue: order, bound, removal from the middle, the times of the first requests,
//! and the own lane.

use std::cell::Cell;
use std::sync::Arc;

use super::lane::PLACES_KEPT;
use super::*;
use crate::os::clock::NEVER;
use crate::os::counted::AtomicBool;
use crate::scheduler::lists::NO_WORKER;
use crate::scheduler::request::{Family, RequestRef, RequestState, make};

fn request(user: u64, urgent: bool) -> WorkRequest {
    make(RequestState::new(user, urgent), || ()).0
}

/// A request, and a reference that stays when it is queued.
fn known(user: u64) -> (WorkRequest, RequestRef) {
    let (request, result) = make(RequestState::new(user, false), || ());
    (request, result.request())
}

fn users(queue: &WorkQueue) -> Vec<u64> {
    std::iter::from_fn(|| queue.take(true).or_else(|| queue.take(false)))
        .map(|r| r.state().user)
        .collect()
}

/// What a queue should contain: when each request was queued, in the order of service.
#[derive(Default)]
struct Expected {
    urgent: Vec<u64>,
    others: Vec<u64>,
}

impl Expected {
    fn forget(&mut self, request: u64) {
        self.urgent.retain(|queued| *queued != request);
        self.others.retain(|queued| *queued != request);
    }

    fn promote(&mut self, request: u64) -> bool {
        let found = self.others.contains(&request);
        if found {
            self.forget(request);
            self.urgent.push(request);
        }
        found
    }

    fn agrees_with(&self, queue: &WorkQueue, step: u64) {
        let firsts = [self.urgent.first().copied(), self.others.first().copied()];
        assert_eq!((queue.fronts(), queue.fronts_seen()), (firsts, firsts), "after step {step}");
        let lengths = (self.urgent.len(), self.urgent.len() + self.others.len());
        assert_eq!((queue.urgent(), queue.len()), lengths, "after step {step}");
    }

    fn first(&mut self, urgent: bool) -> Option<u64> {
        let lane = if urgent { &mut self.urgent } else { &mut self.others };
        (!lane.is_empty()).then(|| lane.remove(0))
    }
}

/// Each request is queued at the time that is the number of its step.
fn of(request: Option<WorkRequest>) -> Option<u64> {
    request.map(|request| request.state().enqueued)
}

/// Returns which worker queues a request at the time `step`.
fn worker_of(step: u64) -> WorkerId {
    1 + (step / 100 % 3) as WorkerId
}

/// Queues a request at the time `step`, in one of two ways.
fn queue_at(queue: &WorkQueue, step: u64, urgent: bool, own: bool) -> (RequestRef, bool) {
    let mut state = RequestState::new(step, urgent);
    state.enqueued = step;
    let (new, result) = make(state, || ());
    let by = Caller::Request;
    let parent = worker_of(step);
    let queued = if own { queue.push_own(new, by, parent) } else { queue.push(new, by) };
    (result.request(), queued.is_ok())
}

/// Takes this request out of the own lane, if it is there.
fn take_this(queue: &WorkQueue, expected: &mut Expected, request: &RequestState) {
    let Some(found) = queue.take_own(request) else { return };
    assert_eq!(found.state().enqueued, request.enqueued);
    expected.forget(request.enqueued);
    let older = expected.others.iter().any(|other| *other < request.enqueued);
    assert_eq!(queue.has_older(found.state()), older);
}

/// Takes the first request of the own lane.
fn take_first_own(queue: &WorkQueue, expected: &mut Expected) {
    let first = expected.others.first().copied().filter(|_| expected.urgent.is_empty());
    let first = first.filter(|first| queue.own.front_seen() == Some(*first));
    assert_eq!(of(queue.take_first_own()), first);
    first.into_iter().for_each(|taken| expected.forget(taken));
}

/// Takes a request that goes, if those of this worker go. A search that has passed over it finds it
/// when it begins again.
fn take_of(
    queue: &WorkQueue,
    expected: &mut Expected,
    search: &mut Search,
    worker: WorkerId,
) -> bool {
    let fresh: Vec<u64> = queue.lock().fresh.iter().map(|r| r.state().enqueued).collect();
    let goes = |queued: u64| worker_of(queued) == worker || fresh.contains(&queued);
    let first = expected.others.iter().copied().find(|queued| goes(*queued));
    let (mut found, mut ends) = (None, 0);
    while found.is_none() && ends < 2 {
        found = queue.first_that(search, |mark, queued| {
            assert_eq!(mark.parent(), worker_of(queued));
            mark.parent() == worker
        });
        ends += u32::from(search.ended);
        search.next_period();
    }
    let taken = found.map(|(queued, place)| (queued, of(queue.take_at(place))));
    assert_eq!(taken.is_some(), first.is_some());
    taken.inspect(|(queued, taken)| {
        assert!(goes(*queued) && *taken == Some(*queued));
        expected.forget(*queued);
    });
    taken.map(|taken| taken.0) == first
}

/// Half of the searches begin with the oldest request.
fn search_for(queue: &WorkQueue, expected: &mut Expected, search: &mut Search, random: u64) {
    let anew = random & 1 == 0;
    let search = if anew { &mut Search::default() } else { search };
    let first = take_of(queue, expected, search, worker_of(random >> 1));
    assert!(first || !anew);
}

/// Closes the queue. It must count its requests as it has shown them. Returns their number.
fn close(queue: &WorkQueue) -> usize {
    let mut seen = 0;
    queue.each(|_| seen += 1);
    let (queued, accepted) = (queue.len(), queue.accepted());
    let left = queue.close().len();
    assert_eq!((queued, left, accepted - queue.accepted()), (seen, seen, seen));
    left
}

#[test]
fn joins_in_order_of_age_pass_no_free_slot_twice() {
    let queue = WorkQueue::new(3000);
    let all: Vec<_> = (1..=100).map(|step| queue_at(&queue, step, false, true).0).collect();
    // Another scheduler takes the first, so the joins do not begin where the search begins.
    assert_eq!(of(queue.take_for_another(|| ())), Some(1));
    for (at, request) in all.iter().enumerate().skip(1) {
        assert!(queue.take_own(request.state()).is_some());
        assert!(!queue.has_older(request.state()));
        assert_eq!(queue.own.begins_at(), at as u64 + 1);
    }
}

#[test]
fn the_lanes_are_served_as_one_row_whatever_leaves_from_the_middle_u29_g11() {
    // The bound is larger than the own lane, so that all lanes are used.
    let (queue, mut expected) = (WorkQueue::new(3000), Expected::default());
    let mut random = 1u64;
    let mut all: Vec<RequestRef> = Vec::new();
    let mut left = 0;
    let mut search = Search::default();
    for step in 0..40_000u64 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(step);
        // One of the last requests, because most of the older ones have left.
        let back = (random >> 20) as usize % all.len().clamp(1, 4000);
        let old = all.iter().rev().nth(back).cloned();
        let old = old.as_ref().map(RequestRef::state);
        // The queue first grows, and then shrinks.
        let kinds = if step / 5_000 % 2 == 0 { 24 } else { 9 };
        match (random >> 40) % kinds {
            0 => {
                let urgent = random >> 59 == 0;
                assert_eq!(of(queue.take(urgent)), expected.first(urgent), "step {step}");
            }
            1 => assert_eq!(of(queue.take(false)), expected.first(false), "step {step}"),
            2 if random >> 45 & 1 == 0 => take_first_own(&queue, &mut expected),
            2 => search_for(&queue, &mut expected, &mut search, random >> 46),
            3 => {
                let found = old.and_then(|old| of(queue.remove(old)));
                found.into_iter().for_each(|found| expected.forget(found));
                left += usize::from(found.is_some());
            }
            4 => {
                let found = old.map(|old| (queue.promote(old), expected.promote(old.enqueued)));
                assert!(found.is_none_or(|(promoted, should)| promoted == should), "step {step}");
            }
            5 => {
                if let Some(old) = old {
                    take_this(&queue, &mut expected, old);
                }
            }
            6 => {
                let taken = of(queue.take_for_another(|| ()));
                assert_eq!(taken.is_some(), queue.len() + usize::from(taken.is_some()) > 0);
                taken.into_iter().for_each(|taken| expected.forget(taken));
                left += usize::from(taken.is_some());
            }
            _ => {
                let (urgent, before) = (random >> 58 == 0, queue.len());
                let (request, queued) = queue_at(&queue, step, urgent, random >> 55 & 3 != 0);
                assert_eq!(queued, urgent || before < 3000, "step {step}");
                let lane = if urgent { &mut expected.urgent } else { &mut expected.others };
                lane.extend(queued.then_some(step));
                all.push(request);
            }
        }
        expected.agrees_with(&queue, step);
    }
    left += close(&queue);
    assert_eq!(queue.len(), 0);
    assert!(left > 1000 && all.len() > 15_000, "{left} left, {} were queued", all.len());
}

#[test]
fn only_a_child_of_the_same_worker_is_taken_after_its_sibling_g11() {
    let (queue, code) = (WorkQueue::new(3000), Cell::new(0));
    let push = |step: u64, parent| {
        let mut state = RequestState::new(step, false);
        state.enqueued = step;
        let (new, result) = make(state, || ());
        code.set(new.code());
        assert!(queue.push_own(new, Caller::Request, parent).is_ok());
        result.request()
    };
    let after = |request: &RequestRef, parent| {
        let position = request.state().position.load(Ordering::Relaxed);
        let has = queue.has_child_after(position, parent, code.get());
        let taken = of(queue.take_child_after(position, parent, code.get()));
        assert_eq!(has, taken.is_some());
        taken
    };
    let all: Vec<_> = [(1, 7), (2, 7), (3, 8), (4, 7)].map(|(step, by)| push(step, by)).into();
    // The first of another lane has position 0 there.
    let (new, shared) = known(0);
    assert!(queue.push(new, Caller::Request).is_ok());
    assert_eq!(after(&shared, 7), None);
    assert!(queue.remove(shared.state()).is_some());
    assert_eq!(of(queue.take(false)), Some(1));
    assert_eq!([after(&all[0], 8), after(&all[0], 7), after(&all[0], 7)], [None, Some(2), None]);
    assert_eq!(queue.own.begins_at(), 2, "the search passes no free slot twice");
    assert_eq!([after(&all[1], 7), after(&all[3], 7)], [None, None], "none was queued after it");
    assert_eq!((after(&all[2], 7), queue.len()), (Some(4), 1));
    // As many later that the next slot is that of another request.
    let later: Vec<_> = (5..=1027).map(|step| push(step, 7)).collect();
    assert_eq!((after(&all[3], 7), after(&all[2], 7)), (Some(5), None));
    assert_eq!(after(&all[0], 7), None, "position 1 and position 1025 share a slot");
    assert_eq!((after(&later[0], 7), queue.len()), (Some(6), 1022));
    drop(queue.close());
}

#[test]
fn only_a_child_of_the_asked_code_is_taken_after_its_sibling_b9() {
    let queue = WorkQueue::new(10);
    let (first, known) = make(RequestState::new(1, false), || ());
    let (same, other) = (first.code(), make(RequestState::new(2, false), || [0u64; 8]).0);
    let code = other.code();
    assert_ne!(same, code);
    for new in [first, other] {
        assert!(queue.push_own(new, Caller::Request, 7).is_ok());
    }
    let position = known.state().position.load(Ordering::Relaxed);
    assert!(WorkQueue::is_own(position));
    assert!(!queue.has_child_after(position, 7, same));
    assert!(queue.take_child_after(position, 7, same).is_none());
    assert!(queue.take_child_after(position, 8, code).is_none());
    assert!(queue.has_child_after(position, 7, code));
    assert!(queue.take_child_after(position, 7, code).is_some());
    drop(queue.close());
}

#[test]
fn requests_of_a_scope_become_urgent_in_order_wherever_they_are() {
    let queue = WorkQueue::new(10);
    let family = Arc::new(Family::new(NEVER));
    for user in 0..6 {
        let mut state = RequestState::new(user, false);
        state.enqueued = user;
        state.origin = (user % 2 == 0).then(|| family.clone() as _);
        let new = make(state, || ()).0;
        let by = Caller::Request;
        let queued = if user < 4 { queue.push_own(new, by, 1) } else { queue.push(new, by) };
        assert!(queued.is_ok());
    }
    assert!(!queue.promote_all());
    family.urgent.store(true, Ordering::Relaxed);
    assert!(queue.promote_all() && !queue.promote_all());
    assert_eq!((queue.urgent(), queue.len()), (3, 6));
    assert_eq!(users(&queue), [0, 2, 4, 1, 3, 5]);
}

#[test]
fn a_view_shows_each_request_once_while_others_queue_and_take() {
    let queue = Arc::new(WorkQueue::new(10_000));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for step in 1..300_000 {
                let mut state = RequestState::new(step, false);
                state.enqueued = step;
                let _ = queue.push_own(make(state, || ()).0, Caller::Request, 1);
                if step % 3 > 0 || queue.len() > 500 {
                    drop(queue.take(false));
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                drop(queue.take_for_another(|| ()));
            }
        });
        while !stop.load(Ordering::Relaxed) {
            queue.each(|seen| assert_eq!(seen.user, seen.enqueued, "halves of two requests"));
        }
    });
}

#[test]
fn requests_are_served_first_in_first_out_u29() {
    let queue = WorkQueue::new(10);
    (1..=4).for_each(|u| assert!(queue.push(request(u, false), Caller::Request).is_ok()));
    assert_eq!(users(&queue), [1, 2, 3, 4]);
}

#[test]
fn requests_of_holders_are_served_first_and_past_the_bound_b12() {
    let queue = WorkQueue::new(2);
    (1..=2).for_each(|u| assert!(queue.push(request(u, false), Caller::Request).is_ok()));
    assert!(queue.push(request(9, true), Caller::Request).is_ok());
    assert_eq!(queue.urgent(), 1);
    assert_eq!(users(&queue), [9, 1, 2]);
}

#[test]
fn a_full_queue_says_how_full_it_is_g2_b19() {
    let queue = WorkQueue::new(1);
    assert!(queue.push(request(1, false), Caller::Request).is_ok());
    let refused =
        queue.push(request(2, false), Caller::Request).err().map(|(e, r)| (e, r.state().user));
    assert_eq!(refused, Some((EnqueueError::QueueFull(1), 2)));
    assert_eq!(queue.close().len(), 1);
    let closed = queue.push(request(3, true), Caller::Request).err().map(|(e, _)| e);
    assert_eq!(closed, Some(EnqueueError::ShuttingDown));
}

#[test]
fn another_scheduler_takes_urgent_requests_first_however_young_they_are() {
    let queue = WorkQueue::new(10);
    for (step, urgent) in [(1, false), (2, false), (3, true), (4, true)] {
        assert!(queue_at(&queue, step, urgent, true).1);
    }
    let taken = std::iter::from_fn(|| of(queue.take_for_another(|| ())));
    assert_eq!(taken.collect::<Vec<_>>(), [3, 4, 1, 2]);
}

#[test]
fn an_awaited_request_is_promoted_g11() {
    let queue = WorkQueue::new(10);
    let (new, awaited) = known(2);
    assert!(queue.push(request(1, false), Caller::Request).is_ok());
    assert!(queue.push(new, Caller::Request).is_ok());
    assert!(queue.promote(awaited.state()));
    assert!(!queue.promote(awaited.state()));
    assert!(queue.fronts()[0].is_some(), "it may have a reserve worker");
    assert_eq!(users(&queue), [2, 1]);
}

#[test]
fn a_request_that_leaves_from_the_middle_keeps_the_order_of_the_others_u29() {
    let queue = WorkQueue::new(10);
    let push = |queue: &WorkQueue, user| {
        let (new, state) = known(user);
        assert!(queue.push(new, Caller::Request).is_ok());
        state
    };
    let all: Vec<_> = (0..6).map(|user| push(&queue, user)).collect();
    assert!(queue.remove(all[2].state()).is_some());
    assert!(queue.remove(all[2].state()).is_none());
    assert!(queue.remove(all[0].state()).is_some());
    assert_eq!(queue.len(), 4);
    assert_eq!(queue.take(false).map(|r| r.state().user), Some(1));
    // The first place of `queue` is that of request 3 now. A request of another queue that has
    // a place number that exists in `queue`, too, is not found there.
    let other = WorkQueue::new(10);
    (0..4).for_each(|user| drop(push(&other, user)));
    let stranger = push(&other, 9);
    assert!(queue.remove(stranger.state()).is_none());
    assert!(queue.promote(all[4].state()));
    assert_eq!(users(&queue), [4, 3, 5]);
    assert!(queue.remove(all[5].state()).is_none());
}

#[test]
fn a_request_that_stays_at_the_front_keeps_no_empty_places_behind_it_g2() {
    let queue = WorkQueue::new(10);
    assert!(queue.push(request(1, false), Caller::Request).is_ok());
    for user in 2..10_000 {
        let (new, leaves) = known(user);
        assert!(queue.push(new, Caller::Request).is_ok());
        assert!(queue.remove(leaves.state()).is_some());
    }
    let (new, last) = known(10_000);
    assert!(queue.push(new, Caller::Request).is_ok());
    assert!(queue.lock().fresh.places.len() <= PLACES_KEPT + 3);
    assert!(queue.promote(last.state()), "it is found in its new place");
    assert_eq!(users(&queue), [10_000, 1]);
}

#[test]
fn a_lane_is_moved_together_only_when_it_would_keep_too_many_empty_places() {
    let queue = WorkQueue::new(10);
    assert!(queue.push(request(1, false), Caller::Request).is_ok());
    let one_more_leaves = || {
        let (new, leaves) = known(2);
        assert!(queue.push(new, Caller::Request).is_ok());
        assert!(queue.remove(leaves.state()).is_some());
        queue.lock().fresh.places.len()
    };
    // One empty place for the request that stays, and those that a lane may keep.
    for empty in 1..=1 + PLACES_KEPT {
        assert_eq!(one_more_leaves(), 1 + empty);
    }
    assert_eq!(one_more_leaves(), 1);
}

#[test]
fn a_join_of_the_oldest_request_begins_the_next_search_behind_it() {
    let queue = WorkQueue::new(3000);
    let all: Vec<_> = (0..100).map(|step| queue_at(&queue, step, false, true).0).collect();
    for (taken, request) in (1..).zip(&all) {
        assert!(queue.take_own(request.state()).is_some());
        assert_eq!(queue.own.begins_at(), taken, "the search passes no free slot");
    }
}

#[test]
fn a_request_that_is_taken_by_its_age_begins_the_next_search_behind_it() {
    let queue = WorkQueue::new(3000);
    let all: Vec<_> = (1..=100).map(|step| queue_at(&queue, step, false, true).0).collect();
    for step in 1..=all.len() as u64 {
        assert_eq!(of(queue.take_first_own()), Some(step));
        assert_eq!(queue.own.begins_at(), step, "the search passes no free slot");
    }
}

fn push_of(queue: &WorkQueue, parent: WorkerId, step: u64) {
    let mut state = RequestState::new(0, false);
    state.enqueued = step;
    let new = make(state, || ()).0;
    assert!(queue.push_own(new, Caller::Request, parent).is_ok());
}

/// Otherwise each look for the next request would pass all requests of a long row.
#[test]
fn a_search_asks_about_a_row_of_requests_of_one_worker_once_in_a_while_b9() {
    let queue = WorkQueue::new(3000);
    // More than the own lane holds: the first are in the stale lane.
    (1..=1500).for_each(|step| push_of(&queue, 7, step));
    push_of(&queue, 8, 1501);
    push_of(&queue, 7, 1502);
    let (mut search, asked) = (Search::default(), Cell::new(0));
    let only_of_8 = |mark: RequestMark, _| {
        asked.set(asked.get() + 1);
        mark.parent() == 8
    };
    let (queued, place) = queue.first_that(&mut search, only_of_8).expect("worker 8's");
    assert_eq!(queued, 1501);
    assert!((20..30).contains(&asked.take()));
    assert_eq!(of(queue.take_at(place)), Some(1501));
    assert!(queue.first_that(&mut search, only_of_8).is_none() && search.ended);
    assert!(asked.take() <= 2, "it goes on where it was");
    assert!(queue.first_that(&mut search, only_of_8).is_none());
    assert_eq!(asked.take(), 0, "it has seen all");
    queue.push(request(0, false), Caller::Request).unwrap_or_else(|_| unreachable!());
    assert!(matches!(queue.first_that(&mut search, only_of_8), Some((_, QueuePlace::Fresh))));
    drop(queue.close());
}

/// Completion routines queue such requests.
#[test]
fn a_search_finds_requests_that_no_worker_has_queued_b9() {
    for (number, lane) in [(10, "own"), (1100, "stale")] {
        let queue = WorkQueue::new(3000);
        (1..=number).for_each(|step| push_of(&queue, NO_WORKER, step));
        let of_none = |mark: RequestMark, _| mark.parent() == NO_WORKER;
        let mut search = Search::default();
        let (queued, place) = queue.first_that(&mut search, of_none).expect(lane);
        assert_eq!((queued, of(queue.take_at(place))), (1, Some(1)), "{lane}");
        drop(queue.close());
    }
}

#[test]
fn a_search_ends_for_a_period_when_it_has_looked_often_enough_b9() {
    let queue = WorkQueue::new(3000);
    (0..300).for_each(|step| push_of(&queue, 1 + step as WorkerId % 2, step));
    let (mut search, asked) = (Search::default(), Cell::new(0));
    let none_goes = |_, _| {
        asked.set(asked.get() + 1);
        false
    };
    assert!(queue.first_that(&mut search, none_goes).is_none());
    assert_eq!((asked.get(), search.ended), (256, false));
    assert!(queue.first_that(&mut search, |_, _| true).is_none(), "in the same period");
    search.next_period();
    assert!(queue.first_that(&mut search, none_goes).is_none());
    assert_eq!((asked.get(), search.ended), (300, true));
    search.next_period();
    assert_eq!(queue.first_that(&mut search, |_, _| true).map(|found| found.0), Some(0));
    drop(queue.close());
}

#[test]
fn an_old_request_does_not_close_the_own_lane_to_younger_ones() {
    let queue = WorkQueue::new(10);
    let (old, _) = queue_at(&queue, 0, false, true);
    for step in 1..5000 {
        // A task that is joined at once leaves from the young end.
        let (young, _) = queue_at(&queue, step, false, true);
        assert_eq!(of(queue.take_own(young.state())), Some(step));
        assert_eq!((queue.len(), queue.fronts()), (1, [None, Some(0)]));
    }
    assert!(queue.take_own(old.state()).is_none(), "it has left the own lane");
    assert!(queue.promote(old.state()) && of(queue.take(true)) == Some(0));
    assert_eq!(queue.len(), 0);
}
