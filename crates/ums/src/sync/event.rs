//! The event: something that has happened, or not yet.
//!
//! ```text
//!          | set()                           | a wait that finds it set
//! manual   | stays set; all waiters continue | leaves it set
//! auto     | lets one continue; only if no   | takes it: it is unset again
//!          | waiter is there, stays set      |
//! ```
//!
//! There is no `PulseEvent`: it would wake only the threads that wait at that instant, so every use
//! of it can lose a wake-up. A condition variable is the right tool for that purpose.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::patience::Patience;
use super::queue::{ShortLock, WaitQueue};
use crate::current::{self, Operation};
use crate::os::threads::operation;
use crate::record::reason::WaitReason;
use crate::wait::error::WaitError;
use crate::wait::{Arm, Outcome, Source, Ticket, Waitable};

/// An event, manual or auto reset.
///
/// ```
/// let done = ums::sync::Event::manual(false);
/// std::thread::scope(|s| {
///     s.spawn(|| done.set());
///     done.wait()
/// })?;
/// assert!(done.is_set());
/// # Ok::<(), ums::WaitError>(())
/// ```
pub struct Event {
    /// Set only under the short lock. Any caller may reset it; the wait of an auto event does.
    set: AtomicBool,
    resets_itself: bool,
    queue: ShortLock<WaitQueue>,
}

impl Event {
    /// Creates a manual event, which stays set until it is reset.
    pub const fn manual(set: bool) -> Event {
        Event::new(set, false)
    }

    /// Creates an auto event, which ends one wait for each `set`.
    pub const fn auto(set: bool) -> Event {
        Event::new(set, true)
    }

    const fn new(set: bool, resets_itself: bool) -> Event {
        let queue = ShortLock::biased(WaitQueue::new());
        Event { set: AtomicBool::new(set), resets_itself, queue }
    }

    /// Sets the event. A manual event lets all waiters continue; an auto event lets the first
    /// waiter continue, or, if there is none, the next caller.
    pub fn set(&self) {
        operation("event: set");
        let caller = Operation::begin_release();
        if !self.resets_itself {
            let batch = caller.locked(&self.queue, |queue| {
                self.set.store(true, Ordering::Release);
                queue.grant_all()
            });
            return batch.ready();
        }
        let next = caller.locked(&self.queue, |queue| {
            let next = queue.grant_one();
            if next.is_none() {
                self.set.store(true, Ordering::Release);
            }
            next
        });
        caller.ready_if(next);
    }

    /// Resets the event; returns whether it was set.
    pub fn reset(&self) -> bool {
        operation("event: reset");
        self.set.swap(false, Ordering::AcqRel)
    }

    /// Returns whether the event was set at some moment during the call. Does not reset it.
    pub fn is_set(&self) -> bool {
        operation("event: is_set");
        self.is_set_now()
    }

    /// Waits until the event is set.
    ///
    /// # Errors
    /// [`WaitError::Cancelled`] if the work request was cancelled.
    pub fn wait(&self) -> Result<(), WaitError> {
        self.wait_within(Patience::Cancellable)
    }

    /// Like [`wait`](Event::wait), for at most this time.
    ///
    /// # Errors
    /// [`WaitError`] if the time passed or the work request was cancelled.
    pub fn wait_for(&self, time: Duration) -> Result<(), WaitError> {
        self.wait_within(Patience::For(time))
    }

    /// Like [`wait`](Event::wait), until this moment at the latest.
    ///
    /// # Errors
    /// [`WaitError`] if the moment came or the work request was cancelled.
    pub fn wait_until(&self, deadline: Instant) -> Result<(), WaitError> {
        self.wait_within(Patience::Until(deadline))
    }

    #[inline]
    fn wait_within(&self, patience: Patience) -> Result<(), WaitError> {
        operation("event: wait");
        if self.take() {
            return Ok(());
        }
        operation("event: is not set");
        let caller = Operation::begin();
        let me = current::waiting_on(caller.scheduler());
        let begun = caller.locked(&self.queue, |queue| {
            // The event is set under the short lock, so `set` either comes before this check or
            // finds the ticket.
            if self.take() {
                return None;
            }
            let ticket = me.begin(patience.what(WaitReason::EVENT, self));
            queue.push(ticket, ());
            Some(ticket)
        });
        let Some(ticket) = begun else { return Ok(()) };
        let outcome = caller.park(ticket, patience.deadline());
        if outcome != Outcome::Granted {
            self.queue.lock().remove(ticket);
        }
        outcome.ok()
    }

    #[inline]
    fn take(&self) -> bool {
        self.is_set_now() && (!self.resets_itself || self.set.swap(false, Ordering::AcqRel))
    }

    #[inline]
    fn is_set_now(&self) -> bool {
        self.set.load(Ordering::Acquire)
    }

    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.queue.lock().len()
    }
}

impl<'a> Waitable<'a> for &'a Event {
    type Output = ();

    fn arm(self) -> Arm<'a, ()> {
        Arm::new(self)
    }
}

impl Source<()> for &Event {
    fn try_now(&mut self) -> Option<()> {
        self.take().then_some(())
    }

    fn queue(&self, ticket: Ticket) -> bool {
        let _settled = current::before_short_lock();
        let mut queue = self.queue.lock();
        // As in `wait_within`: `set` either comes before this look, or finds the ticket.
        let waits = !self.is_set_now();
        if waits {
            queue.push(ticket, ());
        }
        waits
    }

    fn unqueue(&self, ticket: Ticket, granted: bool) {
        if !granted {
            self.queue.lock().remove(ticket);
        }
    }

    fn granted(&mut self) -> Option<()> {
        Some(())
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.resets_itself { "auto" } else { "manual" };
        f.debug_struct("Event").field("reset", &kind).field("set", &self.is_set_now()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::Select;
    use crate::sync::testing::{Dice, LONG, SHORT, until};
    use std::sync::Mutex;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn an_event_is_printed_with_its_kind_and_whether_it_is_set() {
        let shown = |event: Event| format!("{event:?}");
        assert!(shown(Event::manual(true)).ends_with(r#"{ reset: "manual", set: true }"#));
        assert!(shown(Event::auto(false)).ends_with(r#"{ reset: "auto", set: false }"#));
    }

    #[test]
    fn a_manual_event_lets_all_go_on_until_it_is_reset() {
        let event = Event::manual(false);
        std::thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| event.wait());
            }
            until(|| event.waiting() == 3);
            event.set();
        });
        event.wait().unwrap();
        assert!(event.is_set());
        assert!(event.reset());
        assert_eq!(event.wait_for(SHORT), Err(WaitError::TimedOut));
        assert_eq!(event.waiting(), 0);
    }

    #[test]
    fn an_auto_event_lets_one_go_on_in_order_and_a_set_is_kept() {
        let (event, order) = (Event::auto(false), Mutex::new(Vec::new()));
        std::thread::scope(|s| {
            for i in 0..3 {
                let (event, order) = (&event, &order);
                s.spawn(move || {
                    event.wait_for(LONG).unwrap();
                    order.lock().unwrap().push(i);
                });
                until(|| event.waiting() == i + 1);
            }
            for i in 0..3 {
                event.set();
                until(|| order.lock().unwrap().len() == i + 1);
            }
        });
        assert_eq!(order.into_inner().unwrap(), [0, 1, 2]);
        event.set();
        event.set();
        assert_eq!(event.wait_until(Instant::now()), Ok(()));
        assert_eq!(event.wait_until(Instant::now()), Err(WaitError::TimedOut));
    }

    /// An auto event is unset again, so a select that lost what it was granted would wait on.
    #[test]
    fn a_select_that_waits_for_an_event_goes_on_when_it_is_set() {
        for event in [Event::auto(false), Event::manual(false)] {
            std::thread::scope(|s| {
                let picker = s.spawn(|| Select::new().on(&event, |()| 7).wait_for(LONG));
                until(|| event.waiting() == 1);
                event.set();
                assert_eq!(picker.join().unwrap(), Ok(7));
            });
            assert_eq!((event.is_set(), event.waiting()), (!event.resets_itself, 0));
        }
    }

    #[test]
    fn sets_race_with_deadlines_and_none_is_lost() {
        const SETS: usize = 3_000;
        let (event, got) = (Event::auto(false), AtomicUsize::new(0));
        std::thread::scope(|s| {
            for seed in 1..=3 {
                let (event, got) = (&event, &got);
                s.spawn(move || {
                    let mut dice = Dice(seed);
                    while got.load(Ordering::Relaxed) < SETS {
                        let time = Duration::from_nanos(dice.roll(50_000));
                        if event.wait_for(time).is_ok() {
                            got.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            for sent in 1..=SETS {
                event.set();
                // One at a time, because setting an event that is set has no effect.
                until(|| got.load(Ordering::Relaxed) >= sent);
            }
        });
        assert_eq!(got.into_inner(), SETS);
    }
}
