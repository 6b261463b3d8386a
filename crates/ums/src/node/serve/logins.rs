//! The time in which clients must log in: one deadline for each connection, from its beginning
//! until its session says that the client has proved who it is.
//!
//! It knows no clocks. The server has one timer, for the earliest deadline (`server.rs`).

use std::collections::BTreeSet;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::os::clock::{self, NEVER};
use crate::os::lock::Lock;
use crate::scheduler::Scheduler;
use crate::scheduler::lists::timer_list::TimerId;
use crate::scheduler::request::UserId;

/// The clients of one server that have not logged in.
#[derive(Default)]
pub(super) struct Logins {
    limit: Option<Duration>,
    waiting: Lock<Waiting>,
    ended: AtomicU64,
}

#[derive(Default)]
struct Waiting {
    /// The deadlines, each with its user; the earliest first.
    deadlines: BTreeSet<(u64, UserId)>,
    alarm: Alarm,
    /// How often the alarm was set.
    alarms: u64,
}

/// The server's timer.
#[derive(Default)]
enum Alarm {
    /// It is not set, because no client is about to log in.
    #[default]
    Off,
    /// It is being set, for the time with this number.
    Rising(u64),
    /// It is set: the scheduler, the token of the request there whose time limit it is, and its
    /// timer.
    Set(Weak<Scheduler>, u64, TimerId),
}

impl Logins {
    /// Makes an empty set. `None` is no limit.
    pub fn new(limit: Option<Duration>) -> Logins {
        Logins { limit, ..Logins::default() }
    }

    /// Adds a client. Returns its deadline.
    pub fn add(&self, user: UserId) -> u64 {
        let Some(limit) = self.limit else { return NEVER };
        let deadline = clock::after(limit);
        if deadline < NEVER {
            self.waiting.lock().deadlines.insert((deadline, user));
        }
        deadline
    }

    /// Removes a client that has logged in. Returns false if its time was over, and it was taken
    /// as late.
    pub fn pass(&self, deadline: u64, user: UserId) -> bool {
        let is_unlimited = self.limit.is_none() || deadline == NEVER;
        is_unlimited || self.waiting.lock().deadlines.remove(&(deadline, user))
    }

    /// Removes a client whose connection has closed. If its time was over, that is counted.
    pub fn leave(&self, deadline: u64, user: UserId) {
        if self.limit.is_some()
            && self.waiting.lock().deadlines.remove(&(deadline, user))
            && clock::now() >= deadline
        {
            self.ended.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Removes the clients whose time is over, and returns them. The alarm is off from then on; its
    /// timer is returned, too.
    pub fn take_late(&self) -> (Vec<UserId>, Option<TimerId>) {
        let mut waiting = self.waiting.lock();
        let timer = match std::mem::take(&mut waiting.alarm) {
            Alarm::Set(_, _, timer) => Some(timer),
            _ => None,
        };
        let later = waiting.deadlines.split_off(&(clock::now() + 1, 0));
        let late = std::mem::replace(&mut waiting.deadlines, later);
        self.ended.fetch_add(late.len() as u64, Ordering::Relaxed);
        (late.into_iter().map(|(_, user)| user).collect(), timer)
    }

    /// Returns the time for which the alarm must be set, if it is off and a client waits, and a
    /// number for [`set_alarm`](Logins::set_alarm), which the caller then calls.
    pub fn begin_alarm(&self) -> Option<(u64, u64)> {
        self.limit?;
        let mut waiting = self.waiting.lock();
        let (earliest, _) = *waiting.deadlines.first()?;
        if !matches!(waiting.alarm, Alarm::Off) {
            return None;
        }
        waiting.alarms += 1;
        waiting.alarm = Alarm::Rising(waiting.alarms);
        Some((earliest, waiting.alarms))
    }

    /// Records where the alarm was set, unless it has gone off since.
    pub fn set_alarm(&self, number: u64, at: (Weak<Scheduler>, u64), timer: TimerId) {
        let mut waiting = self.waiting.lock();
        if matches!(waiting.alarm, Alarm::Rising(rising) if rising == number) {
            waiting.alarm = Alarm::Set(at.0, at.1, timer);
        }
    }

    /// Returns where the alarm is set.
    pub fn alarm(&self) -> Option<(Weak<Scheduler>, u64)> {
        match &self.waiting.lock().alarm {
            Alarm::Set(scheduler, token, _) => Some((scheduler.clone(), *token)),
            _ => None,
        }
    }

    /// Returns how many connections have ended because of their deadline.
    pub fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_pass_or_leave_in_time_are_not_late() {
        let logins = Logins::new(Some(Duration::from_secs(3600)));
        assert_eq!(logins.begin_alarm(), None, "no client is about to log in");
        let [one, two, three] = [1, 2, 3].map(|user| logins.add(user));
        assert_eq!(logins.begin_alarm(), Some((one, 1)));
        assert_eq!(logins.begin_alarm(), None, "it is being set");
        assert!(logins.pass(one, 1));
        logins.leave(two, 2);
        assert!(logins.take_late().0.is_empty());
        assert_eq!((logins.begin_alarm(), logins.ended()), (Some((three, 2)), 0));
    }

    #[test]
    fn those_whose_time_is_over_are_late_once() {
        let logins = Logins::new(Some(Duration::ZERO));
        let deadline = [1, 2, 3].map(|user| logins.add(user))[0];
        logins.leave(deadline, 1);
        assert_eq!(logins.ended(), 1, "its session has noticed it first");
        assert_eq!(logins.take_late().0, [2, 3]);
        assert!(!logins.pass(deadline, 2), "it was taken as late");
        assert!(logins.take_late().0.is_empty());
        assert_eq!((logins.begin_alarm(), logins.ended()), (None, 3));
        assert_eq!(Logins::default().add(1), NEVER);
        assert!(Logins::default().pass(NEVER, 1));
    }
}
