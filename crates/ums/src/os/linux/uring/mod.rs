//! The io_uring driver: submission and completion through shared memory.
//!
//! This driver serves schedulers whose baton stays on one thread (fiber workers). It submits an
//! operation by stores into the submission queue (SQ), and finds completions by loads from the
//! completion queue (CQ). One `io_uring_enter` flushes a batch of submissions, runs the kernel's
//! deferred work and, if the scheduler is idle, waits.
//!
//! ```text
//!             store                 enter                        loads
//!   submit ---------> [ SQ ] ------------------> kernel ------> [ CQ ] ---------> Done
//!      | SQ full                 ^                                  | -EAGAIN
//!      v                         | first come, first served         v
//!   [ backlog ] -----------------+                     poll, then the operation again
//! ```
//!
//! When is the kernel entered? `wait` enters whenever it could do something. While workers run, the
//! driver gathers work for one call: entries that it queued, and completions that the kernel has
//! deferred. `reap` enters if [`BATCH`] entries are queued, or if the oldest work has waited for
//! [`PATIENCE`] *looks* (calls of `ready`) or for [`AGE_MAX_NS`]. `submit` enters only when the
//! queue is full. So while a worker keeps the processor, the kernel is entered less than one look
//! after that is due.
//!
//! A small operation that could complete at once, such as a send, is cheaper as an entry in a batch
//! than as a call of its own. `gathers` returns whether an entry should be used: it should if the
//! batch will be flushed soon. After a batch that was flushed late, because a worker kept the
//! processor, the next [`SHY`] operations are made at once.
//!
//! The kernel answers `-EAGAIN` if a descriptor is in non-blocking mode and the operation would
//! block. The other drivers wait in that case. So this driver waits, too: it submits a poll, and
//! then the operation again. For that, and in order to cancel all operations at the end, the driver
//! keeps each operation until its completion.
//!
//! Invariants
//! * *Frozen Buffer*, *One Completion* (see `os/driver`). An entry that was pushed belongs to the
//!   kernel, whatever a later `io_uring_enter` returns: an error of that call completes nothing and
//!   frees nothing.
//! * *One Thread*: the ring is created, used and dropped on one kernel thread. The kernel checks
//!   that (`EEXIST`), and so does this driver.
//!
//! An operation for which io_uring has no entry (a call) is handed to the file helpers. Its
//! completion wakes the driver by the bell.
//!
//! The [`arena`] of buffers is registered when the first is used; `arena.rs` says why no files are.
//!
//! What this driver does not do: registered files, zero-copy sends, multishot receives.

#![allow(unsafe_code)] // Named invariants "Frozen Buffer" and "One Thread", stated above.

mod buffers;
mod entries;
mod flights;
mod setup;

use std::collections::VecDeque;
use std::io;
use std::mem::{ManuallyDrop, MaybeUninit};

use io_uring::squeue::{Entry, Flags};
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, cqueue, opcode};

use super::arena;
use super::call::{self, Tried};
use super::helpers::Chores;
use crate::os::clock;
use crate::os::driver::{CURRENT, Done, Driver, LiveOp, Op, Submitted, TOKEN_MAX, Waker};
use crate::os::op::RECEIVE_MAX;
use buffers::Buffers;
use entries::{entry, poll_entry};
use flights::{Flight, Flights};
use setup::{check, is_stuck, open_ring};

/// How many completions are taken out of the ring at once.
const AT_ONCE: usize = 16;
/// The number of queued entries that makes a flush due.
const BATCH: u32 = 32;
/// The number of calls of `ready` after which the kernel is entered if there is work for it.
const PATIENCE: u32 = 64;
/// The number that takes the place of [`PATIENCE`] if an operation on a file is queued, because a
/// disk could work on the operation meanwhile.
const PATIENCE_FOR_FILES: u32 = 16;
/// The age of the oldest work that makes a call due at the next call of `ready`: 50 us.
const AGE_MAX_NS: u64 = 50_000;
/// A batch is late if it was flushed at this many times the age at which the flush was due.
const LATE: u64 = 4;
/// How many operations are made at once after a batch that was late.
const SHY: u32 = 256;

/// The user data of the bell's poll, and that of cancellations, whose own results have no meaning.
const BELL: u64 = TOKEN_MAX + 1;
const CANCEL: u64 = TOKEN_MAX + 2;

/// Whether the arena is registered with the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Registered {
    /// No operation has used it yet.
    NotYet,
    Yes,
    /// The kernel refused it, because we may not lock so much memory.
    Refused,
}

/// Whether the kernel chooses the buffers of operations that have none.
enum Provided {
    /// No such operation was submitted yet.
    NotYet,
    Yes(Buffers),
    /// The kernel cannot choose buffers, or the environment excludes it (`UMS_RING_WITHOUT`). The
    /// driver polls the descriptor instead, and then makes the system call.
    Refused,
}

/// The features of the kernel that the driver can do without, by name, in `UMS_RING_WITHOUT`.
const BUFFERS: &str = "buffers";

/// The io_uring driver; see the top of this file.
pub struct UringDriver {
    ring: IoUring,
    /// Dropped after the ring.
    provided: Provided,
    flights: Flights,
    /// Entries that were submitted while the submission queue was full.
    backlog: VecDeque<Entry>,
    /// The number of entries that were not flushed yet.
    queued: u32,
    /// How often `ready` was called since there is work for the kernel, and after how many calls
    /// the kernel is entered.
    looks: u32,
    patience: u32,
    /// When the oldest of this work was noticed, and the age that makes a call due, in ticks.
    due_since: u64,
    age_max: u64,
    /// When the kernel was left last, in ticks.
    left: u64,
    /// How many more operations are made at once because a batch was late.
    shy: u32,
    /// The operations that were handed to the file helpers.
    chores: Chores,
    /// Completions that did not come from the kernel.
    finished: Vec<Done>,
    bell: Waker,
    bell_armed: bool,
    /// Whether the bell was used, and no `wait` has ended because of it yet.
    rung: bool,
    arena: Registered,
    /// The flags of every `io_uring_enter`.
    enter_flags: EnterFlags,
    owner: u32,
    mode: &'static str,
}

impl UringDriver {
    /// Opens a ring for the calling thread, with the best flags that this kernel accepts.
    ///
    /// # Errors
    ///
    /// If io_uring is denied (containers often deny it) or too old. The text says what was tried.
    pub fn new() -> io::Result<UringDriver> {
        UringDriver::with_modes_from(0)
    }

    /// Opens a ring as [`UringDriver::new`] does, but does not try the modes before the `first`,
    /// which are better.
    pub(super) fn with_modes_from(first: usize) -> io::Result<UringDriver> {
        let (ring, mode) = open_ring(first)?;
        check(&ring)?;
        let without = std::env::var("UMS_RING_WITHOUT").unwrap_or_default();
        let provided = match without.as_str() {
            "" => Provided::NotYet,
            BUFFERS => Provided::Refused,
            other => {
                let text = format!("UMS_RING_WITHOUT is {other:?}, and can be {BUFFERS:?}");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
            }
        };
        let mut enter_flags = EnterFlags::GETEVENTS | EnterFlags::EXT_ARG;
        if ring.params().is_feature_no_iowait() {
            // Otherwise the kernel counts an idle scheduler as a processor that waits for a disk.
            enter_flags |= EnterFlags::NO_IOWAIT;
        }
        let bell = Waker::new()?;
        let mut driver = UringDriver {
            ring,
            provided,
            flights: Flights::default(),
            backlog: VecDeque::new(),
            queued: 0,
            looks: 0,
            patience: PATIENCE,
            due_since: 0,
            age_max: 0,
            left: 0,
            shy: 0,
            chores: Chores::new(bell.clone()),
            finished: Vec::new(),
            bell,
            bell_armed: false,
            rung: false,
            arena: Registered::NotYet,
            enter_flags,
            owner: crate::os::thread_number(),
            mode,
        };
        driver.arm_bell();
        Ok(driver)
    }

    /// Makes the kernel poll the bell. The poll is multishot and reports each wake, so the eventfd
    /// is never read.
    fn arm_bell(&mut self) {
        let poll = opcode::PollAdd::new(Fd(self.bell.fd()), libc::POLLIN as u32).multi(true);
        self.bell_armed = true;
        self.push(poll.build().user_data(BELL));
    }

    /// Queues an entry. Enters the kernel only if the queue is full.
    fn push(&mut self, entry: Entry) {
        if !self.backlog.is_empty() || !self.push_now(&entry) {
            self.push_when_full(entry);
        }
        // The entry is counted only now, because entering the kernel sets the count of queued
        // entries anew.
        self.queued += 1;
        self.notice_work();
    }

    #[cold]
    fn push_when_full(&mut self, entry: Entry) {
        if self.backlog.is_empty() {
            self.enter(0, None);
        }
        if !self.backlog.is_empty() || !self.push_now(&entry) {
            self.backlog.push_back(entry);
        }
    }

    /// Notes since when there is work for the kernel.
    #[inline]
    fn notice_work(&mut self) {
        if self.due_since == 0 {
            self.due_since = clock::ticks();
            if self.age_max == 0 {
                // 0 while the rate of the ticks is not known.
                self.age_max = clock::ticks_within(AGE_MAX_NS);
            }
        }
    }

    /// Returns the submission entry of an operation. If its buffer is registered, the entry uses
    /// that.
    #[inline]
    fn entry(&mut self, op: &Op) -> Entry {
        match *op {
            Op::Read { fd, buf, len, offset } if offset != CURRENT && self.knows(buf, len) => {
                opcode::ReadFixed::new(Fd(fd), buf, len as u32, 0).offset(offset).build()
            }
            Op::Write { fd, buf, len, offset } if offset != CURRENT && self.knows(buf, len) => {
                opcode::WriteFixed::new(Fd(fd), buf, len as u32, 0).offset(offset).build()
            }
            Op::Receive { fd, most, .. } if self.has_buffers() => {
                let most = most.min(RECEIVE_MAX) as u32;
                let receive = opcode::Recv::new(Fd(fd), std::ptr::null_mut(), most);
                receive.buf_group(buffers::GROUP).build().flags(Flags::BUFFER_SELECT)
            }
            Op::Receive { .. } => poll_entry(op),
            _ => entry(op),
        }
    }

    /// Makes the driver behave as on a kernel that cannot choose buffers.
    #[cfg(test)]
    pub(super) fn refuse_buffers(&mut self) {
        self.provided = Provided::Refused;
    }

    /// Returns whether the kernel has buffers to choose from. The first call gives it some.
    #[inline]
    fn has_buffers(&mut self) -> bool {
        if let Provided::NotYet = self.provided {
            self.provide_buffers();
        }
        matches!(self.provided, Provided::Yes(_))
    }

    #[cold]
    fn provide_buffers(&mut self) {
        let mut buffers = Buffers::new();
        let (start, count) = (buffers.address(), buffers::COUNT);
        // SAFETY: Own Memory: the descriptions stay where they are until the ring was closed.
        let registered = unsafe {
            self.ring.submitter().register_buf_ring_with_flags(start, count, buffers::GROUP, 0)
        };
        self.provided = match registered {
            Ok(()) => {
                (0..count).for_each(|number| buffers.give(number));
                Provided::Yes(buffers)
            }
            Err(_) => Provided::Refused,
        };
    }

    /// Returns whether the kernel has pinned these bytes in advance. The first call for bytes of
    /// the arena registers the arena.
    #[inline]
    fn knows(&mut self, buf: *const u8, len: usize) -> bool {
        arena::holds(buf, len)
            && match self.arena {
                Registered::Yes => true,
                Registered::Refused => false,
                Registered::NotYet => self.register_arena(),
            }
    }

    #[cold]
    fn register_arena(&mut self) -> bool {
        let whole = arena::start()
            .map(|start| libc::iovec { iov_base: start.as_ptr().cast(), iov_len: arena::SIZE });
        let registered = whole.is_some_and(|whole| {
            // SAFETY: Frozen Buffer: the arena is never unmapped.
            unsafe { self.ring.submitter().register_buffers(&[whole]) }.is_ok()
        });
        self.arena = if registered { Registered::Yes } else { Registered::Refused };
        registered
    }

    fn push_now(&mut self, entry: &Entry) -> bool {
        // SAFETY: Frozen Buffer: the operation is kept in `flights` until the kernel has answered
        // this entry; or the entry has no buffer.
        unsafe { self.ring.submission().push(entry) }.is_ok()
    }

    /// Enters the kernel: flushes the queue and the backlog, runs deferred work, and waits at most
    /// this long for `want` completions. Returns early after a signal or if the kernel is short of
    /// memory. Entries that the kernel did not take stay queued.
    fn enter(&mut self, want: u32, timeout_ns: Option<u64>) {
        let ts = timeout_ns
            .map(|ns| Timespec::new().sec(ns / 1_000_000_000).nsec((ns % 1_000_000_000) as u32));
        let args = match &ts {
            Some(ts) => SubmitArgs::new().timespec(ts),
            None => SubmitArgs::new(),
        };
        loop {
            while let Some(entry) = self.backlog.front().cloned()
                && self.push_now(&entry)
            {
                self.backlog.pop_front();
            }
            let before = self.ring.submission().len();
            self.begin_batch();
            // Only the call with the last batch waits.
            let want = if self.backlog.is_empty() { want } else { 0 };
            let flags = self.enter_flags.bits();
            // SAFETY: Plain Call: `args` and the time that it points to are borrowed for the call.
            let entered =
                unsafe { self.ring.submitter().enter(before as u32, want, flags, Some(&args)) };
            self.left = clock::ticks();
            let stuck = entered.is_err_and(|error| is_stuck(&error));
            let after = self.ring.submission().len();
            self.queued = (after + self.backlog.len()) as u32;
            if self.backlog.is_empty() || stuck || after == before {
                return;
            }
        }
    }

    /// Notes that the kernel is entered now: whether that is late, and that it has no work after
    /// this.
    #[inline]
    fn begin_batch(&mut self) {
        let age = match self.due_since {
            0 => 0,
            since => clock::ticks().saturating_sub(since),
        };
        if age > LATE * self.age_max && self.age_max > 0 {
            self.shy = SHY;
        }
        (self.due_since, self.looks, self.patience) = (0, 0, PATIENCE);
    }

    /// Returns whether there is anything for the kernel to do: entries are queued, or it has
    /// deferred completions, or completions did not fit into the queue.
    #[inline]
    fn has_work(&mut self) -> bool {
        // `ManuallyDrop`, because the queue's destructor would write to shared memory. This only
        // loads.
        let sq = ManuallyDrop::new(self.ring.submission());
        self.queued > 0 || sq.taskrun() || sq.cq_overflow()
    }

    /// Returns whether it is time to enter the kernel for that. `now` is as for `ready`.
    #[inline]
    fn must_enter(&mut self, now: u64) -> bool {
        if !self.has_work() {
            return false;
        }
        self.notice_work();
        // The age of a queued entry is known. Completions may have been deferred long before they
        // are noticed, at any time since the kernel was left: a worker may have computed meanwhile.
        // They must not come after a timer that is due.
        let since = if self.queued > 0 { self.due_since } else { self.left };
        let old = || clock::ticks_or(now).saturating_sub(since) >= self.age_max;
        self.queued >= BATCH || self.looks >= self.patience || old()
    }

    /// Takes the completions that are in the completion queue, and all others that have arrived.
    fn drain(&mut self, out: &mut Vec<Done>) {
        loop {
            let mut room = [const { MaybeUninit::<cqueue::Entry>::uninit() }; AT_ONCE];
            let some = &*self.ring.completion().fill(&mut room);
            for cqe in some {
                match cqe.user_data() {
                    CANCEL => {}
                    BELL => {
                        self.rung = true;
                        self.bell_armed = cqueue::more(cqe.flags());
                    }
                    token => self.land(token, cqe.result(), cqe.flags(), out),
                }
            }
            if some.len() < AT_ONCE {
                break;
            }
        }
        if !self.bell_armed {
            self.arm_bell();
        }
        self.chores.collect(out);
        out.append(&mut self.finished);
    }

    /// Handles the completion of one operation: delivers it, or submits the operation again.
    /// `flags` say which buffer the kernel has chosen for it, if any.
    fn land(&mut self, token: u64, mut result: i32, flags: u32, out: &mut Vec<Done>) {
        let flight = self.flights.get(token).expect("a completion belongs to a submission");
        let is_receive = matches!(*flight.op, Op::Receive { .. });
        if result >= 0 && !flight.polling && !is_receive {
            // Nearly every completion is that of an operation that was carried out.
            self.flights.remove(token);
            return out.push(Done { token, result });
        }
        let chosen = cqueue::buffer_select(flags);
        if let (Some(number), Provided::Yes(buffers)) = (chosen, &mut self.provided) {
            if let Ok(len @ 1..) = usize::try_from(result) {
                flight.op.fill(buffers.copy(number, len));
            }
            buffers.give(number);
        }
        if is_receive {
            let is_poll = flight.polling || matches!(self.provided, Provided::Refused);
            if is_poll && result >= 0 {
                result = match call::try_now(&mut flight.op) {
                    Tried::Finished(result) => result,
                    Tried::WouldBlock => -libc::EAGAIN,
                };
                flight.polling = false;
            } else if result == -libc::ENOBUFS {
                // Other receives of the same batch have taken the last buffers. `drain` gives all
                // of them back before this entry is flushed.
                result = -libc::EINTR;
            }
        }
        let would_block = match *flight.op {
            Op::Connect { .. } => false,
            op => result == -libc::EAGAIN && !call::asked_not_to_wait(&op),
        };
        let again = match flight.polling {
            true => result >= 0,
            // EINTR: a signal or a cancellation interrupted a worker thread of the kernel.
            false => would_block || result == -libc::EINTR,
        };
        if !again {
            self.flights.remove(token);
            out.push(Done { token, result });
        } else if flight.cancelled {
            self.flights.remove(token);
            out.push(Done { token, result: -libc::ECANCELED });
        } else {
            flight.polling = would_block && !flight.polling;
            let op = *flight.op;
            let entry = if flight.polling { poll_entry(&op) } else { self.entry(&op) };
            self.push(entry.user_data(token));
        }
    }
}

impl Driver for UringDriver {
    fn name(&self) -> &'static str {
        "io_uring"
    }

    fn describe(&self) -> String {
        format!("io_uring ({}): this scheduler stays on one thread", self.mode)
    }

    fn submit(&mut self, token: u64, op: LiveOp<'static>) -> Submitted {
        assert!(token <= TOKEN_MAX, "token {token} is reserved");
        debug_assert_eq!(crate::os::thread_number(), self.owner, "One Thread");
        if let Op::Call { .. } = *op {
            self.chores.send(token, op);
            return Submitted::Pending;
        }
        let entry = self.entry(&op);
        if op.blocks() {
            self.patience = PATIENCE_FOR_FILES;
        }
        let flight = Flight { op, polling: false, cancelled: false };
        self.flights.insert(token, flight);
        self.push(entry.user_data(token));
        Submitted::Pending
    }

    fn cancel(&mut self, token: u64) {
        let Some(flight) = self.flights.get(token) else {
            if self.chores.cancel(token) {
                self.finished.push(Done { token, result: -libc::ECANCELED });
            }
            return;
        };
        if !std::mem::replace(&mut flight.cancelled, true) {
            // Queued after the operation itself, so that the kernel finds the operation.
            self.push(opcode::AsyncCancel::new(token).build().user_data(CANCEL));
        }
    }

    fn ready(&mut self, now: u64) -> bool {
        self.looks += u32::from(self.due_since > 0);
        // As in `has_work`: without the destructor this only loads.
        !ManuallyDrop::new(self.ring.completion()).is_empty()
            || self.chores.has_news()
            || !self.finished.is_empty()
            || self.must_enter(now)
    }

    fn reap(&mut self, out: &mut Vec<Done>) {
        self.drain(out);
        if self.must_enter(0) {
            self.enter(0, None);
            self.drain(out);
        }
    }

    fn wait(&mut self, timeout_ns: Option<u64>, out: &mut Vec<Done>) {
        let had = out.len();
        self.drain(out);
        let idle = out.len() == had && !self.rung && timeout_ns != Some(0);
        let sleep = idle && self.chores.may_sleep();
        if sleep || self.has_work() {
            self.enter(u32::from(sleep), timeout_ns);
            self.drain(out);
        }
        self.chores.awake();
        self.chores.collect(out);
        self.rung = false;
    }

    fn gathers(&mut self, others_can_run: bool) -> bool {
        if self.shy > 0 {
            self.shy -= 1;
            return false;
        }
        others_can_run || self.queued > 0
    }

    fn waker(&self) -> Waker {
        self.bell.clone()
    }

    fn done(&mut self) -> usize {
        // The kernel may have deferred completions until it is entered.
        if self.has_work() {
            self.enter(0, None);
        }
        self.ring.completion().len() + self.chores.done() + self.finished.len()
    }

    fn pending(&self) -> usize {
        self.flights.len() + self.chores.pending() + self.finished.len()
    }
}

impl Drop for UringDriver {
    /// Cancels all operations that were submitted, and waits for them, because the kernel may write
    /// into their buffers until they complete.
    fn drop(&mut self) {
        assert!(
            crate::os::thread_number() == self.owner || self.flights.len() == 0,
            "an io_uring driver with operations in flight was dropped by a thread not its own"
        );
        for token in self.flights.tokens() {
            self.cancel(token);
        }
        let mut dropped = Vec::new();
        while self.flights.len() > 0 {
            self.wait(Some(10_000_000), &mut dropped);
        }
    }
}

#[cfg(test)]
mod tests;
