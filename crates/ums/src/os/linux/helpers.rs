//! The file helpers: threads that carry out operations which have no asynchronous form.
//!
//! No event tells when a regular file can be read without waiting for the disk, and a directory
//! operation is always a call that blocks. Such operations are *chores*: a driver hands them to a
//! pool of threads, the helpers, and receives the completions in its *mailbox*.
//!
//! The process has two pools, so that calls which hang do not stop transfers. One pool is for
//! calls, such as opening files; they may wait for the other end of a FIFO or for a network. The
//! other is for reads, writes and syncs, which wait for a disk. So sixteen opens of FIFOs without a
//! writer stop no transfer of a file that is open. Threads with a nice value use a second pair of
//! such pools, because a helper inherits the nice value of the thread that created it, and cannot
//! lower it again.
//!
//! ```text
//!   driver (one baton holder)             pool (HELPERS_MAX threads each, on demand)
//!   send    -> Queued --- a helper takes it ---> Started --- call ---> mailbox -> collect
//!                |                                  (cancel: too late, the real result comes)
//!                +---- cancel ----> Cancelled, and -ECANCELED at once
//! ```
//!
//! A helper that has nothing to do for [`IDLE_MAX`] ends. A thread that submits a chore while every
//! helper is busy creates one more helper, up to [`HELPERS_MAX`]. Beyond that, chores queue in the
//! order of arrival. If not even one helper can be created, the submitting thread does the chore
//! itself.
//!
//! A driver never sleeps while its mailbox has news. The protocol and its proof are in `os/asleep`:
//! a helper puts its completion into the mailbox, sets `news`, and then wakes the driver if that is
//! asleep; the driver checks `news` once more before it sleeps. A driver that is awake is not
//! woken.
//!
//! Invariants: *One Completion* (see `os/driver`). A chore is queued as long as its operation is in
//! its field `op`; only the thread that takes the operation out can carry it out.
//!
//! What this file does not do: it makes no batches (each chore is one call), has no priorities, and
//! does not end a call that has begun.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::affinity;
use super::call::{self, Tried};
use super::waiting::TokenMap;
use crate::os::asleep::Asleep;
use crate::os::driver::{Done, LiveOp, Op, Waker};
use crate::os::lock::{Lock, LockCondvar};
use crate::os::threads;

/// The most helpers of a pool.
pub const HELPERS_MAX: u32 = 16;
/// How long a helper waits for a chore before it ends.
const IDLE_MAX: Duration = Duration::from_secs(10);
/// The stack size of a helper, which calls only the C library and `std::fs`.
const STACK: usize = 256 << 10;

/// The place where the completions of a driver's chores arrive.
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

/// One operation on its way through a pool.
struct Chore {
    /// The operation, until a thread takes it out, to carry it out or because it was cancelled.
    op: Lock<Option<LiveOp<'static>>>,
    token: u64,
    to: Arc<Mailbox>,
}

impl Chore {
    /// Takes the operation out. Returns `None` if another thread has done so.
    fn take(&self) -> Option<LiveOp<'static>> {
        self.op.lock().take()
    }

    fn run(&self) {
        // The operation is dropped before its completion is delivered, because from then on its
        // buffers belong to the caller.
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
    /// The chores that were sent, and neither collected nor cancelled.
    sent: TokenMap<Arc<Chore>>,
}

impl Chores {
    /// Makes an empty set of chores. `bell` ends the driver's sleep.
    pub fn new(bell: Waker) -> Chores {
        let (done, news, asleep) = (Lock::default(), AtomicBool::new(false), Asleep::new());
        let mailbox = Arc::new(Mailbox { done, news, asleep, bell });
        Chores { mailbox, sent: TokenMap::default() }
    }

    /// Hands an operation to its pool.
    pub fn send(&mut self, token: u64, op: LiveOp<'static>) {
        let pool = Pool::of(&op);
        let chore = Chore { op: Lock::new(Some(op)), token, to: self.mailbox.clone() };
        let chore = Arc::new(chore);
        let before = self.sent.insert(token, chore.clone());
        assert!(before.is_none(), "token {token} is already pending");
        pool.push(chore);
    }

    /// Cancels a chore. Returns true if the chore had not begun and never will; then the caller
    /// delivers its completion. Returns false if the token is not that of a chore, or if the chore
    /// has begun; then its real result will be collected.
    pub fn cancel(&mut self, token: u64) -> bool {
        let cancelled = self.sent.get(&token).is_some_and(|chore| chore.take().is_some());
        if cancelled {
            self.sent.remove(&token);
        }
        cancelled
    }

    /// Returns whether there is something to collect. Costs one load.
    pub fn has_news(&self) -> bool {
        self.mailbox.news.load(Ordering::Acquire)
    }

    /// Appends the completions that have arrived to `out`.
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

    /// Announces that the driver is about to sleep. Returns false if the driver must not sleep,
    /// because there is something to collect.
    pub fn may_sleep(&self) -> bool {
        if self.sent.is_empty() {
            return true;
        }
        self.mailbox.asleep.announce();
        !self.has_news()
    }

    /// Withdraws the announcement, because the driver is awake.
    pub fn awake(&self) {
        self.mailbox.asleep.withdraw();
    }

    /// Returns how many chores were sent and not yet collected.
    pub fn pending(&self) -> usize {
        self.sent.len()
    }

    /// Returns how many chores have completed and are not yet collected.
    pub fn done(&self) -> usize {
        self.mailbox.done.lock().len()
    }
}

impl Drop for Chores {
    /// Cancels the chores that have not begun, and waits for the others, because their buffers are
    /// in use until they complete.
    fn drop(&mut self) {
        self.sent.retain(|_, chore| chore.take().is_none());
        let mut dropped = Vec::new();
        while !self.sent.is_empty() {
            if self.may_sleep() {
                let events = libc::POLLIN;
                let mut bell = [libc::pollfd { fd: self.mailbox.bell.fd(), events, revents: 0 }];
                // If the bell was used and not read, `poll` returns immediately. Then this waits a
                // moment.
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
    work: LockCondvar,
}

struct State {
    line: VecDeque<Arc<Chore>>,
    /// Helpers that wait for work.
    idle: usize,
    /// The numbers of the helpers that exist, one bit for each.
    numbers: u32,
}

static CALLS: Pool = Pool::new("call");
static TRANSFERS: Pool = Pool::new("file");
static NICE_CALLS: Pool = Pool::new("nice-call");
static NICE_TRANSFERS: Pool = Pool::new("nice-file");

impl Pool {
    const fn new(name: &'static str) -> Pool {
        let state = State { line: VecDeque::new(), idle: 0, numbers: 0 };
        Pool { name, state: Lock::new(state), work: LockCondvar::new() }
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
        if threads::start(builder, move || self.helper(number)).is_err() {
            self.without(number);
        }
    }

    /// Called when a helper could not be created. If there is no helper at all, the caller does the
    /// queued chores itself.
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
        // The submitting thread created this one, and may be a worker that is pinned to a
        // processor.
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
