//! Fuzz targets for the scheduler's lists, which tests also run with fewer inputs. A target turns
//! bytes into a sequence of operations, and after each operation compares the lists with a simple
//! model.
//!
//! Not part of the API: it exists only in tests and with `--cfg fuzzing`, for the targets in
//! `fuzz/`.

use std::collections::{BTreeMap, VecDeque};

use super::on;
use crate::scheduler::lists::NO_WORKER;
use crate::scheduler::lists::timer_list::{TimerId, TimerList};
use crate::scheduler::lists::worker_list::{Execution, Rotated, STANDBY, State, Workers};
use crate::wait::Waiter;

/// The bytes of a sequence of operations.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// Returns a number that may be small or large.
    fn number(&mut self) -> Option<u64> {
        let (bits, mantissa) = (self.next()? % 56, self.next()?);
        Some(u64::from(mantissa) << bits)
    }
}

/// Checks a timer list against a sorted map, while timers are set, cancelled and expire.
pub fn timers(data: &[u8]) {
    let (mut bytes, mut now) = (Bytes(data), 1_u64 << 40);
    let mut list = TimerList::new(now);
    let mut model: BTreeMap<(u64, u32), TimerId> = BTreeMap::new();
    let mut next = 0_u32;
    while let Some(step) = bytes.next() {
        match step % 4 {
            0 | 1 => {
                let Some(span) = bytes.number() else { break };
                // The deadline may have passed already.
                let deadline = now.saturating_add(span).saturating_sub(u64::from(step));
                model.insert((deadline, next), list.insert(deadline, next));
                next += 1;
            }
            2 if !model.is_empty() => {
                let at = usize::from(step / 4) % model.len();
                let key = *model.keys().nth(at).expect("it is shorter than that");
                let id = model.remove(&key).expect("it was there");
                assert_eq!(list.cancel(id), Some(key.1), "a timer that is set can be cancelled");
                assert_eq!(list.cancel(id), None, "once");
            }
            _ => {
                let Some(span) = bytes.number() else { break };
                now = now.saturating_add(span);
                let mut expired = Vec::new();
                list.expire(now, |item| expired.push(item));
                // No nanosecond follows the last one of the clock.
                let later = now.checked_add(1).map(|after| model.split_off(&(after, 0)));
                let due = std::mem::replace(&mut model, later.unwrap_or_default());
                let due: Vec<u32> = due.into_keys().map(|(_, item)| item).collect();
                assert_eq!(expired, due, "by deadline, and then by arrival");
            }
        }
        assert_eq!(list.len(), model.len());
        let earliest = model.keys().next().map(|(deadline, _)| *deadline);
        assert!(list.next_expiry() <= earliest.or(list.next_expiry()), "no wake-up is late");
        assert!(earliest.is_none_or(|at| !list.due(at.saturating_sub(1)) || list.bound() < at));
        assert!(earliest.is_none_or(|at| list.due(at.max(now))), "what is due is not overlooked");
    }
}

/// Workers whose lists are checked never run.
impl Execution for () {}

/// Number of workers in the lists.
const WORKERS: u32 = 6;

/// Checks the lists of workers against plain queues while workers start, wait, wake, yield and end.
pub fn workers(data: &[u8]) {
    let waiters: Vec<_> = (0..=WORKERS).map(|id| Waiter::take(None, id)).collect();
    let mut bytes = Bytes(data);
    let apart = bytes.next().unwrap_or(0) % 4 > 0;
    let mut workers = Workers::new(apart, waiters[STANDBY as usize]);
    for id in 1..=WORKERS {
        assert_eq!(workers.add(waiters[id as usize], (), 0), id);
        workers.shift(id, State::New, State::Idle, 0);
    }
    let mut model = Model::new(apart);
    while let Some(step) = bytes.next() {
        model.step(&mut workers, step);
        let lists = [workers.idle, workers.signalled, workers.yielded];
        let lists = lists.map(|list| on(list, &mut workers));
        let wanted =
            [&model.idle, &model.signalled, &model.yielded].map(|queue| Vec::from(queue.clone()));
        assert_eq!(lists, wanted, "after step {step}");
        let mut waiting = Vec::from(model.waiting.clone());
        waiting.sort_unstable();
        assert_eq!(workers.waiters().collect::<Vec<_>>(), waiting, "after step {step}");
        assert_eq!(workers.waiting(), waiting.len(), "after step {step}");
    }
    waiters.into_iter().for_each(Waiter::give_back);
}

/// The lists as plain queues.
struct Model {
    idle: VecDeque<u32>,
    signalled: VecDeque<u32>,
    yielded: VecDeque<u32>,
    waiting: VecDeque<u32>,
    current: Option<u32>,
    /// Workers whose wait has ended and that have not run since then.
    waited: Vec<u32>,
    apart: bool,
}

impl Model {
    fn new(apart: bool) -> Model {
        let [signalled, yielded, waiting] = [const { VecDeque::new() }; 3];
        let idle = (1..=WORKERS).collect();
        Model { idle, signalled, yielded, waiting, current: None, waited: Vec::new(), apart }
    }

    fn step(&mut self, workers: &mut Workers<()>, step: u8) {
        match (step % 8, self.current) {
            (0, None) if !self.idle.is_empty() => {
                let id = self.idle.pop_back().expect("a worker is idle");
                workers.shift(id, State::Idle, State::Running, 0);
                self.current = Some(id);
            }
            (1, Some(id)) => {
                workers.wait(id, 0);
                self.waiting.push_back(id);
                self.current = None;
            }
            (2, Some(id)) => {
                workers.shift(id, State::Running, State::Idle, 0);
                self.idle.push_back(id);
                self.current = None;
            }
            (3, Some(id)) => {
                let first = self.yielded.front().copied();
                let mixed =
                    !self.signalled.is_empty() || first.is_some_and(|id| self.waited.contains(&id));
                match workers.rotate(id) {
                    Rotated::Not => assert!(mixed),
                    Rotated::Alone => assert!(!mixed && first.is_none()),
                    Rotated::To(next) => {
                        assert!(!mixed);
                        assert_eq!(Some(next), self.leave_head());
                        self.yielded.push_back(id);
                        self.current = Some(next);
                    }
                }
            }
            (4, None) => {
                let heads = [workers.signalled.head, workers.yielded.head];
                let next = heads.into_iter().find(|head| *head != NO_WORKER);
                assert_eq!(next, self.leave_head());
                next.inspect(|id| workers.shift(*id, State::Runnable, State::Running, 0));
                self.current = next;
            }
            (5..8, _) if !self.waiting.is_empty() => {
                let at = usize::from(step / 8) % self.waiting.len();
                let id = self.waiting.remove(at).expect("it is shorter than that");
                workers.wake(id, 0);
                self.wake(id);
            }
            _ => {}
        }
    }

    fn leave_head(&mut self) -> Option<u32> {
        let next = self.signalled.pop_front().or_else(|| self.yielded.pop_front())?;
        self.waited.retain(|id| *id != next);
        Some(next)
    }

    fn wake(&mut self, id: u32) {
        self.waited.push(id);
        let list = if self.apart { &mut self.signalled } else { &mut self.yielded };
        list.push_back(id);
    }
}

#[cfg(test)]
#[path = "../../../../fuzz/kept.rs"]
mod kept;

#[cfg(test)]
mod tests {
    /// Runs `target` with 6000 pseudo-random sequences, the same ones in each run.
    fn many(target: fn(&[u8])) {
        let mut word = 0x9E37_79B9_7F4A_7C15_u64;
        for length in 0..6000 {
            let history: Vec<u8> = (0..length % 300)
                .map(|_| {
                    word ^= word << 13;
                    word ^= word >> 7;
                    word ^= word << 17;
                    (word >> 32) as u8
                })
                .collect();
            target(&history);
        }
    }

    #[test]
    fn timers_agree_with_a_sorted_map_whatever_the_history_u69() {
        many(super::timers);
        super::kept::each("timers", super::timers);
    }

    #[test]
    fn lists_agree_with_plain_queues_whatever_the_history_u20_b9() {
        many(super::workers);
        super::kept::each("workers", super::workers);
    }
}
