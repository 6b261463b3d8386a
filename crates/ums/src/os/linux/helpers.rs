//! The file helpers: threads that carry out operations which have no asynchronous form.
//!
//! No event tells when a file of a disk can be read without waiting, and a directory operation has
//! no other form than a call that blocks. Such operations are *chores*: a driver hands them to a
//! pool of threads and gets their completions back in its *mailbox*. The process has two pools: one
//! for calls, which may wait for the other end of a FIFO or of a network, and one for reads, writes
//! and syncs, which wait for a disk: so opening sixteen FIFOs that have no writer stops no file
//! that is open. And it has two more of these for threads with a nice value: a helper inherits the
//! nice value of the thread that made it, and cannot lower it again.
//!
//! ```text
//!   driver (one baton holder)             pool (HELPERS_MAX threads each, on demand)
//!   send    -> Queued --- a helper takes it ---> Started --- call ---> mailbox -> collect
//!                |                                  (cancel: too late, the real result comes)
//!                +---- cancel ----> Cancelled, and -ECANCELED at once
//! ```
//!
//! A helper that finds nothing to do for [`IDLE_MAX`] ends. A thread that submits while every
//! helper is busy makes one more, up to the bound; beyond it chores stand in line, first in, first
//! out. If not even one thread can be created, the submitter does the chore itself.
//!
//! No driver sleeps beside news, by the proof in os/asleep: a helper puts its completion into the
//! mailbox, sets `news` and wakes; before it sleeps, the driver looks at `news` again. The bell
//! never rings for a busy driver.
//!
//! Invariants: *One Completion* (the seam). A chore is Queued as long as its operation is in its
//! place; only the thread that took it from there can carry it out.
//!
//! It does not do: batches (each chore is one call), priorities, ending a call that has begun.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::affinity;
use super::call::{self, Tried};
use super::waiting::TokenMap;
use crate::os::asleep::Asleep;
use crate::os::driver::{Done, LiveOp, Op, Waker};
use crate::os::lock::{Condvar, Lock};

/// The most helpers of a pool.
pub const HELPERS_MAX: u32 = 16;
/// How long a helper waits for something to do before it ends.
const IDLE_MAX: Duration = Duration::from_secs(10);
/// Stack of a helper, which calls only the C library and `std::fs`.
const STACK: usize = 256 << 10;

/// Where a driver's completions arrive.
struct Mailbox {
    done: Lock<Vec<Done>>,
    news: AtomicBool,
    asleep: Asleep,
    bell: Waker,
}

impl Mailbox {
    fn deliver(&self, done: Done) {
        let mut list = self.done.lock();
        list.push(done);
        self.news.store(true, Ordering::Release);
        drop(list);
        if self.asleep.wake() {
            self.bell.wake();
        }
    }
}

/// One operation on its way through the pool.
struct Chore {
    /// The operation, until it is taken: to be carried out, or because it was cancelled.
    op: Lock<Option<LiveOp<'static>>>,
    token: u64,
    to: Arc<Mailbox>,
}

impl Chore {
    /// Takes the operation. Returns None if another thread has.
    fn take(&self) -> Option<LiveOp<'static>> {
        self.op.lock().take()
    }

    fn run(&self) {
        // The operation is gone before its end is told: with the end, its buffers are the caller's.
        let result = {
            let Some(mut op) = self.take() else { return };
            match call::try_now(&mut op) {
                Tried::Finished(result) => result,
                Tried::WouldBlock => -libc::EAGAIN,
            }
        };
        self.to.deliver(Done { token: self.token, result });
    }
}

/// The chores of one driver.
pub struct Chores {
    mailbox: Arc<Mailbox>,
    /// The chores that were sent and not collected or cancelled.
    sent: TokenMap<Arc<Chore>>,
}

impl Chores {
    /// Makes an empty set of chores; `bell` is what ends the driver's sleep.
    pub fn new(bell: Waker) -> Chores {
        let (done, news, asleep) = (Lock::default(), AtomicBool::new(false), Asleep::new());
        let mailbox = Arc::new(Mailbox { done, news, asleep, bell });
        Chores { mailbox, sent: TokenMap::default() }
    }

    /// Hands an operation to the pool.
    pub fn send(&mut self, token: u64, op: LiveOp<'static>) {
        let pool = Pool::of(&op);
        let chore = Chore { op: Lock::new(Some(op)), token, to: self.mailbox.clone() };
        let chore = Arc::new(chore);
        let before = self.sent.insert(token, chore.clone());
        assert!(before.is_none(), "token {token} is already pending");
        pool.push(chore);
    }

    /// Asks for an end. Returns true if the chore had not begun and never will; its completion is
    /// the caller's to deliver. Returns false if it is not here, or has begun, and its real result
    /// will be collected.
    pub fn cancel(&mut self, token: u64) -> bool {
        let cancelled = self.sent.get(&token).is_some_and(|chore| chore.take().is_some());
        if cancelled {
            self.sent.remove(&token);
        }
        cancelled
    }

    /// Returns whether there is something to collect. One load.
    pub fn has_news(&self) -> bool {
        self.mailbox.news.load(Ordering::Acquire)
    }

    /// Appends the completions that have arrived.
    pub fn collect(&mut self, out: &mut Vec<Done>) {
        if !self.has_news() {
            return;
        }
        let from = out.len();
        let mut list = self.mailbox.done.lock();
        self.mailbox.news.store(false, Ordering::Relaxed);
        out.append(&mut list);
        drop(list);
        for done in &out[from..] {
            self.sent.remove(&done.token);
        }
    }

    /// Notes that the driver is about to sleep. Returns false if it must not, because there is
    /// news.
    pub fn may_sleep(&self) -> bool {
        if self.sent.is_empty() {
            return true;
        }
        self.mailbox.asleep.announce();
        !self.has_news()
    }

    /// Notes that the driver is awake.
    pub fn awake(&self) {
        self.mailbox.asleep.withdraw();
    }

    /// Returns how many chores were sent and not yet collected.
    pub fn pending(&self) -> usize {
        self.sent.len()
    }

    /// Returns how many chores are done and not yet collected.
    pub fn done(&self) -> usize {
        self.mailbox.done.lock().len()
    }
}

impl Drop for Chores {
    /// Cancels the chores that have not begun, and waits for the others: their buffers are in use
    /// until then.
    fn drop(&mut self) {
        self.sent.retain(|_, chore| chore.take().is_none());
        let mut dropped = Vec::new();
        while !self.sent.is_empty() {
            if self.may_sleep() {
                let events = libc::POLLIN;
                let mut bell = [libc::pollfd { fd: self.mailbox.bell.fd(), events, revents: 0 }];
                // A bell that was not silenced ends this wait at once: then look a little later.
                match call::poll(&mut bell, Some(10_000_000)) {
                    Ok(0) => {}
                    _ => std::thread::sleep(Duration::from_micros(50)),
                }
            }
            self.awake();
            self.collect(&mut dropped);
        }
    }
}

/// The helpers for one class of chores.
struct Pool {
    name: &'static str,
    state: Lock<State>,
    work: Condvar,
}

struct State {
    line: VecDeque<Arc<Chore>>,
    /// Helpers that wait for work.
    idle: usize,
    /// The numbers of the helpers that exist, a bit each.
    numbers: u32,
}

static CALLS: Pool = Pool::new("call");
static TRANSFERS: Pool = Pool::new("file");
static NICE_CALLS: Pool = Pool::new("nice-call");
static NICE_TRANSFERS: Pool = Pool::new("nice-file");

impl Pool {
    const fn new(name: &'static str) -> Pool {
        let state = State { line: VecDeque::new(), idle: 0, numbers: 0 };
        Pool { name, state: Lock::new(state), work: Condvar::new() }
    }

    fn of(op: &Op) -> &'static Pool {
        match (matches!(op, Op::Call { .. }), affinity::is_nice()) {
            (true, false) => &CALLS,
            (false, false) => &TRANSFERS,
            (true, true) => &NICE_CALLS,
            (false, true) => &NICE_TRANSFERS,
        }
    }

    fn push(&'static self, chore: Arc<Chore>) {
        let mut state = self.state.lock();
        state.line.push_back(chore);
        if state.line.len() <= state.idle {
            drop(state);
            return self.work.notify_one();
        }
        if state.numbers.count_ones() == HELPERS_MAX {
            return; // One of them will take it.
        }
        let number = state.numbers.trailing_ones();
        state.numbers |= 1 << number;
        drop(state);
        let name = format!("ums-{}-{number}", self.name);
        let builder = std::thread::Builder::new().name(name).stack_size(STACK);
        if builder.spawn(move || self.helper(number)).is_err() {
            self.without(number);
        }
    }

    /// Handles that a helper could not be created. If there is none at all, the caller does the
    /// chores in line.
    #[cold]
    fn without(&self, number: u32) {
        let mut state = self.state.lock();
        state.numbers &= !(1 << number);
        while state.numbers == 0
            && let Some(chore) = state.line.pop_front()
        {
            drop(state);
            chore.run();
            state = self.state.lock();
        }
    }

    fn helper(&self, number: u32) {
        // It was made by the submitting thread, perhaps a worker pinned to one processor.
        affinity::unpin();
        let mut state = self.state.lock();
        loop {
            if let Some(chore) = state.line.pop_front() {
                drop(state);
                chore.run();
                drop(chore);
                state = self.state.lock();
                continue;
            }
            state.idle += 1;
            let (guard, timed_out) = self.work.wait_timeout(state, IDLE_MAX);
            state = guard;
            state.idle -= 1;
            if timed_out && state.line.is_empty() {
                state.numbers &= !(1 << number);
                return;
            }
        }
    }
}
