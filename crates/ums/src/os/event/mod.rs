//! The event: a thread waits on it until another thread sets it.
//!
//! It is an auto-reset event on one futex word. Exactly one thread waits on an event, the event's
//! owner; any thread may set it. A set before the wait is kept, so no wake-up is lost:
//!
//! ```text
//! word      | meaning                        | set()                  | wait()
//! UNSET (0) | nothing                        | -> SET                 | -> ASLEEP, sleep
//! SET (1)   | one set not yet consumed       | stays                  | -> UNSET, return
//! ASLEEP(2) | the owner sleeps in the kernel | -> SET, wake it        | (the owner sleeps)
//! ```
//!
//! So a hand-off between two threads costs one futex wake and one futex wait, which is the minimum
//! for kernel threads. This file does not use workers.

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
pub struct ThreadEvent {
    word: AtomicU32,
    /// In models, this stands for the futex in the kernel.
    #[cfg(loom)]
    kernel: ::loom::sync::Notify,
}

impl ThreadEvent {
    /// Makes an event that is not set.
    pub fn new() -> ThreadEvent {
        ThreadEvent {
            word: AtomicU32::new(UNSET),
            #[cfg(loom)]
            kernel: ::loom::sync::Notify::new(),
        }
    }

    /// Ends the owner's wait, or its next wait if it does not wait now.
    #[inline]
    pub fn set(&self) {
        if self.word.swap(SET, Ordering::AcqRel) == ASLEEP {
            self.wake_sleeper();
        }
    }

    /// Returns a post that sets this event. A worker with its own context sends the post when it
    /// leaves its thread, after its registers have been saved.
    #[cfg(not(loom))]
    pub fn post(&self) -> context::Post<'_> {
        context::Post::event(&self.word)
    }

    #[cfg(loom)]
    pub fn post(&self) -> context::Post<'_> {
        unreachable!("models have no contexts")
    }

    /// Waits until the event is set, and resets it.
    #[inline]
    pub fn wait(&self) {
        self.wait_until(NEVER);
    }

    /// Waits until the event is set, and returns true; or until `instead` is true, resets that, and
    /// returns false. A thread that sleeps here checks `instead` only when it is nudged. A nudge
    /// before the thread sleeps has no effect, so the sender repeats it until `instead` is false.
    pub fn wait_unless(&self, instead: &std::sync::atomic::AtomicBool) -> bool {
        loop {
            if self.word.compare_exchange(SET, UNSET, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return true;
            }
            if instead.swap(false, Ordering::AcqRel) {
                // This thread sleeps no longer. A set that comes before the exchange stays for the
                // next wait.
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

    /// Makes the thread that sleeps on the event check `instead` (see
    /// [`ThreadEvent::wait_unless`]), without setting the event.
    pub fn nudge(&self) {
        self.wake_sleeper();
    }

    /// Returns the address of the event's word. The kernel shows it as the futex of a thread that
    /// sleeps on the event.
    pub fn address(&self) -> u64 {
        std::ptr::from_ref(&self.word) as u64
    }

    /// Waits until the event is set (returns true) or the deadline has passed (returns false).
    pub fn wait_until(&self, deadline: u64) -> bool {
        loop {
            // SET -> UNSET ends the wait. UNSET -> ASLEEP asks the setter for a wake-up. A set
            // after that changes the word, so the kernel does not let this thread sleep, because it
            // compares the word with ASLEEP first. So no set is lost.
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
                    // Withdraws ASLEEP. A set that comes before the swap ends this wait.
                    return self.word.swap(UNSET, Ordering::AcqRel) == SET;
                }
                Some(left)
            };
            self.sleep(timeout);
        }
    }

    /// Sleeps until the word is not ASLEEP or the timeout has passed. May return early.
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
    // After every error the caller must check the word again, which its loop does.
    let _ = futex::wait(word, futex::Flags::PRIVATE, expected, ts.as_ref());
}

#[cfg(not(loom))]
fn futex_wake(word: &AtomicU32) {
    // Events are parts of waiters, which are never freed, so the word exists even if the thread
    // that waited has continued.
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
        let event = ThreadEvent::new();
        event.set();
        event.set();
        event.wait();
        assert!(!event.wait_until(now() + 1_000_000), "two sets before a wait count once");
    }

    #[test]
    fn every_set_wakes_the_waiter_u12() {
        let (here, there) = (Arc::new(ThreadEvent::new()), Arc::new(ThreadEvent::new()));
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
        let (event, instead) = (Arc::new(ThreadEvent::new()), Arc::new(AtomicBool::new(false)));
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
