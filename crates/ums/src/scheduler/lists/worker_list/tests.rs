//! Tests of the lists of workers.

use super::*;
use crate::scheduler::request::{RequestState, make};
use crate::testing::on;
use proptest::prelude::*;
use std::collections::VecDeque;

/// Makes workers 1..=n, all idle.
fn idle(n: u32, apart: bool) -> Workers<()> {
    let mut workers = Workers::new(apart, Waiter::take(None, STANDBY));
    for id in 1..=n {
        let waiter = Waiter::take(None, id);
        assert_eq!(workers.add(waiter, (), 0), id);
        workers.shift(id, State::New, State::Idle, 0);
    }
    workers
}

fn waiting(n: u32, apart: bool) -> Workers<()> {
    let mut workers = idle(n, apart);
    for id in 1..=n {
        workers.shift(id, State::Idle, State::Running, 0);
        workers.wait(id, 0);
    }
    workers
}

fn yielders(workers: &mut Workers<()>, ids: impl IntoIterator<Item = u32>) {
    for id in ids {
        workers.resume(id);
        workers.shift(id, State::Running, State::Runnable, 0);
    }
}

#[test]
fn signalled_workers_stand_in_the_order_of_signals_apart_from_those_that_yielded_b9() {
    let mut workers = waiting(5, true);
    yielders(&mut workers, [4, 5]);
    [3, 1, 2].into_iter().for_each(|id| workers.wake(id, 0));
    assert_eq!(on(workers.signalled, &mut workers), [3, 1, 2]);
    assert_eq!(on(workers.yielded, &mut workers), [4, 5]);
    assert_eq!(workers.runnable(), 5);
}

#[test]
fn a_plain_fifo_list_has_them_all_in_order_rule_15() {
    let mut workers = waiting(4, false);
    yielders(&mut workers, [4]);
    (1..=3).for_each(|id| workers.wake(id, 0));
    assert_eq!(on(workers.yielded, &mut workers), [4, 1, 2, 3]);
    assert_eq!(workers.runnable(), 4);
}

#[test]
#[should_panic(expected = "was woken")]
fn waking_a_worker_that_does_not_wait_is_refused_u20() {
    idle(1, true).wake(1, 0);
}

fn request() -> WorkRequest {
    make(RequestState::new(0, false), || ()).0
}

#[test]
fn a_new_worker_starts_its_first_request_u20() {
    let mut workers = idle(2, true);
    let new = workers.add(Waiter::take(None, 3), (), 0);
    workers.start(new, request(), 7);
    let worker = workers.get(new);
    assert_eq!((worker.state, worker.since, worker.request.is_some()), (State::Running, 7, true));
    assert_eq!(on(workers.idle, &mut workers), [1, 2]);
}

#[derive(Clone, Debug)]
enum Step {
    Start(usize),
    Wait,
    WaitForNext,
    Yield,
    Finish,
    Wake(usize),
    Next,
    GoOn,
    Resume(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..8usize).prop_map(Step::Start),
        Just(Step::Wait),
        Just(Step::WaitForNext),
        Just(Step::Yield),
        Just(Step::Finish),
        (0..8usize).prop_map(Step::Wake),
        Just(Step::Next),
        Just(Step::GoOn),
        (0..8usize).prop_map(Step::Resume),
    ]
}

proptest! {
    /// One List: in every history, each worker is on the list that its state says, once, and
    /// the lists agree with a model of plain queues.
    #[test]
    fn each_worker_is_on_the_list_that_its_state_says_u20(
        steps in prop::collection::vec(step(), 0..400),
    ) {
        let mut workers = idle(8, true);
        let mut model_waiting: VecDeque<u32> = VecDeque::new();
        let mut current: Option<u32> = None;
        for step in steps {
            match (step, current) {
                (Step::Start(at), None) if at < workers.idle.len as usize => {
                    // Usually the last, but any other may be chosen.
                    let id = on(workers.idle, &mut workers).into_iter().rev().nth(at).unwrap();
                    workers.start(id, request(), 0);
                    prop_assert!(workers.get(id).request.take().is_some());
                    current = Some(id);
                }
                (Step::GoOn, Some(id)) => workers.go_on(id, 0),
                (Step::Resume(at), None) if at < model_waiting.len() => {
                    let id = model_waiting.remove(at).unwrap();
                    workers.resume(id);
                    current = Some(id);
                }
                (Step::Wait, Some(id)) => {
                    workers.wait(id, 0);
                    model_waiting.push_back(id);
                    current = None;
                }
                // As its caller does: only if no worker has yielded.
                (Step::WaitForNext, Some(id)) if workers.yielded.is_empty() => {
                    let first = on(workers.signalled, &mut workers).first().copied();
                    prop_assert_eq!(workers.wait_for_next(id, 0), first);
                    model_waiting.push_back(id);
                    current = first;
                }
                (Step::Yield, Some(id)) => {
                    workers.shift(id, State::Running, State::Runnable, 0);
                    current = None;
                }
                (Step::Finish, Some(id)) => {
                    workers.finish(id, 0);
                    current = None;
                }
                (Step::Wake(at), _) if at < model_waiting.len() => {
                    let id = model_waiting.remove(at).unwrap();
                    workers.wake(id, 0);
                }
                (Step::Next, None) => {
                    let lists = [workers.signalled, workers.yielded];
                    if let Some(id) = lists.map(|l| l.head).into_iter().find(|h| *h != NO_WORKER) {
                        workers.shift(id, State::Runnable, State::Running, 0);
                        current = Some(id);
                    }
                }
                _ => {}
            }
            each_is_on_its_list(&mut workers, &model_waiting, current);
        }
    }
}

fn each_is_on_its_list(workers: &mut Workers<()>, waiting: &VecDeque<u32>, current: Option<u32>) {
    let lists = [workers.idle, workers.signalled, workers.yielded];
    let mut on: Vec<Vec<u32>> = lists.into_iter().map(|l| on(l, workers)).collect();
    on.push(workers.waiters().collect());
    assert_eq!(on[3].len(), workers.waiting());
    let listed: usize = on.iter().map(Vec::len).sum();
    assert_eq!(listed + usize::from(current.is_some()), 8);
    let states = [State::Idle, State::Runnable, State::Runnable, State::Waiting];
    for (ids, state) in on.iter().zip(states) {
        assert!(ids.iter().all(|id| workers.get(*id).state == state));
    }
    let mut waiting = Vec::from(waiting.clone());
    waiting.sort_unstable();
    assert_eq!(on[3], waiting);
    assert_eq!(workers.in_state(State::Waiting), waiting.len());
}

#[test]
fn the_check_finds_a_wrong_count_of_waiting_workers() {
    let mut workers = idle(2, true);
    let all_listed = workers.check();
    assert_eq!(all_listed, Ok(()));
    workers.waiting += 1;
    assert!(workers.check().is_err_and(|text| text.contains("workers wait")));
}
