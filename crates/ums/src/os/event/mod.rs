//! The event: what a thread waits on while it must not run.
//!
//! An auto-reset event on one futex word. Exactly one thread waits on an event, any thread sets it.
//! A set that comes before the wait is kept, so there is no lost wake-up:
//!
//! ```text
//! word      | meaning                        | set()                  | wait()
//! UNSET (0) | nothing                        | -> SET                 | -> ASLEEP, sleep
//! SET (1)   | one set not yet consumed       | stays                  | -> UNSET, return
//! ASLEEP(2) | the owner sleeps in the kernel | -> SET, wake it        | (the owner sleeps)
//! ```
//!
//! A hand-off between two threads therefore costs one futex wake and one futex wait, which is the
//! minimum for kernel threads. It knows nothing of workers.

use std::sync::atomic::Ordering;

#[cfg(not(loom))]
use rustix::thread::futex;

use super::atomic::AtomicU32;
use super::clock::{NEVER, now};

const UNSET: u32 = 0;
const SET: u32 = 1;
const ASLEEP: u32 = 2;

/// An auto-reset event for one waiting thread.
#[derive(Debug)]
pub struct Event {
    word: AtomicU32,
    /// The kernel's side of the futex, in models.
    #[cfg(loom)]
    kernel: ::loom::sync::Notify,
}

impl Event {
    /// Makes an event that is not set.
    pub fn new() -> Event {
        Event {
            word: AtomicU32::new(UNSET),
            #[cfg(loom)]
            kernel: ::loom::sync::Notify::new(),
        }
    }

    /// Lets the waiting thread run, now or when it next waits.
    #[inline]
    pub fn set(&self) {
        if self.word.swap(SET, Ordering::AcqRel) == ASLEEP {
            self.wake_sleeper();
        }
    }

    /// Does what [`Event::set`] does, for a worker that is saved only after it has passed on what
    /// to set.
    #[cfg(not(loom))]
    pub fn post(&self) -> context::Post<'_> {
        context::Post::event(&self.word)
    }

    #[cfg(loom)]
    pub fn post(&self) -> context::Post<'_> {
        unreachable!("models have no contexts")
    }

    /// Waits until the event is set, and consumes that.
    #[inline]
    pub fn wait(&self) {
        self.wait_until(NEVER);
    }

    /// Waits until the event is set (true), or until it is nudged while `instead` is true (false),
    /// which resets `instead`. A nudge may come too early to be noticed, so it must be repeated.
    pub fn wait_unless(&self, instead: &std::sync::atomic::AtomicBool) -> bool {
        loop {
            if self.word.compare_exchange(SET, UNSET, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return true;
            }
            if instead.swap(false, Ordering::AcqRel) {
                // No thread sleeps any more. If a set came in between, it stays for the next wait.
                let _ =
                    self.word.compare_exchange(ASLEEP, UNSET, Ordering::AcqRel, Ordering::Acquire);
                return false;
            }
            let asleep =
                self.word.compare_exchange(UNSET, ASLEEP, Ordering::AcqRel, Ordering::Acquire);
            if !matches!(asleep, Err(SET)) {
                self.sleep(None);
            }
        }
    }

    /// Makes the thread that sleeps on it check `instead`, without setting it.
    pub fn nudge(&self) {
        self.wake_sleeper();
    }

    /// Returns the address of its word, by which the kernel names the wait of a thread that sleeps
    /// on it.
    pub fn address(&self) -> u64 {
        std::ptr::from_ref(&self.word) as u64
    }

    /// Waits until the event is set (true) or the deadline has passed (false).
    pub fn wait_until(&self, deadline: u64) -> bool {
        loop {
            // SET -> UNSET ends the wait; UNSET -> ASLEEP announces that a wake is needed. A set
            // between the two changes the word, so the kernel refuses to sleep on ASLEEP: nothing
            // is lost.
            if self.word.compare_exchange(SET, UNSET, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return true;
            }
            let asleep =
                self.word.compare_exchange(UNSET, ASLEEP, Ordering::AcqRel, Ordering::Acquire);
            if matches!(asleep, Err(SET)) {
                continue;
            }
            let timeout = if deadline == NEVER {
                None
            } else {
                let left = deadline.saturating_sub(now());
                if left == 0 {
                    // Withdraws ASLEEP; if a set came in between, it counts.
                    return self.word.swap(UNSET, Ordering::AcqRel) == SET;
                }
                Some(left)
            };
            self.sleep(timeout);
        }
    }

    /// Sleeps as long as the word is ASLEEP and the deadline has not passed. May end early.
    #[cfg(not(loom))]
    fn sleep(&self, timeout_ns: Option<u64>) {
        if let Some(now) = super::sim::now() {
            let until = timeout_ns.map_or(NEVER, |ns| now.saturating_add(ns));
            return super::sim::block(self.as_simulated(), until, "event.wait");
        }
        futex_wait(&self.word, ASLEEP, timeout_ns);
    }

    #[cfg(not(loom))]
    fn wake_sleeper(&self) {
        super::sim::wake(self.as_simulated());
        futex_wake(&self.word);
    }

    #[cfg(not(loom))]
    fn as_simulated(&self) -> super::sim::On {
        super::sim::On::Event(std::ptr::from_ref(self).addr())
    }

    #[cfg(loom)]
    fn sleep(&self, _: Option<u64>) {
        self.kernel.wait();
    }

    #[cfg(loom)]
    fn wake_sleeper(&self) {
        self.kernel.notify();
    }
}

#[cfg(not(loom))]
fn futex_wait(word: &AtomicU32, expected: u32, timeout_ns: Option<u64>) {
    let ts = timeout_ns.map(|ns| rustix::fs::Timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as _,
    });
    // Every error means "look again", which the caller's loop does.
    let _ = futex::wait(word, futex::Flags::PRIVATE, expected, ts.as_ref());
}

#[cfg(not(loom))]
fn futex_wake(word: &AtomicU32) {
    // Events live in waiters, which are never freed, so the word is still there even if its waiter
    // has already continued.
    let _ = futex::wake(word, futex::Flags::PRIVATE, 1);
}

#[cfg(all(test, loom))]
mod loom;
#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_set_before_the_wait_is_kept_u11() {
        let event = Event::new();
        event.set();
        event.set();
        event.wait();
        assert!(!event.wait_until(now() + 1_000_000), "two sets before a wait count once");
    }

    #[test]
    fn every_set_wakes_the_waiter_u12() {
        let (here, there) = (Arc::new(Event::new()), Arc::new(Event::new()));
        let (h, t) = (here.clone(), there.clone());
        let peer = std::thread::spawn(move || {
            for _ in 0..10_000 {
                t.wait();
                h.set();
            }
        });
        for _ in 0..10_000 {
            there.set();
            here.wait();
        }
        peer.join().unwrap();
    }

    #[test]
    fn a_nudge_ends_a_wait_and_consumes_no_set() {
        use std::sync::atomic::AtomicBool;
        let (event, instead) = (Arc::new(Event::new()), Arc::new(AtomicBool::new(false)));
        let (theirs, told) = (event.clone(), instead.clone());
        let waiter = std::thread::spawn(move || {
            let nudged = !theirs.wait_unless(&told);
            (nudged, theirs.wait_unless(&told))
        });
        instead.store(true, Ordering::SeqCst);
        while instead.load(Ordering::SeqCst) {
            event.nudge();
            std::thread::yield_now();
        }
        event.set();
        assert_eq!(waiter.join().unwrap(), (true, true));
        assert!(!event.wait_until(now() + 1_000_000), "one set was consumed once");
    }
}
