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
//! When is a batch flushed? `wait` always flushes. `reap` flushes if [`BATCH`] entries are queued,
//! or if the oldest has waited for [`PATIENCE`] *looks* (calls of `ready`) or for [`AGE_MAX_NS`].
//! `submit` flushes only when the queue is full. So while a worker keeps the processor, an entry is
//! flushed less than one look after it is due.
//!
//! The kernel answers `-EAGAIN` if a descriptor is in non-blocking mode and the operation would
//! block. The other drivers wait in that case, so this one does so, too: it submits a poll, and
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
//! The [`arena`] of buffers is registered with the ring when the first of them is used; `arena.rs`
//! says why files are not registered.
//!
//! What this driver does not do: registered files, zero-copy sends, multishot receives.

#![allow(unsafe_code)] // Named invariants "Frozen Buffer" and "One Thread", stated above.

use std::collections::VecDeque;
use std::io;
use std::mem::ManuallyDrop;
use std::time::Duration;

use io_uring::squeue::Entry;
use io_uring::types::{Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{Builder, EnterFlags, IoUring, Probe, opcode};

use super::arena;
use super::call;
use super::helpers::Chores;
use super::waiting::TokenMap;
use crate::os::clock;
use crate::os::driver::{CURRENT, Done, Driver, LiveOp, Op, Submitted, TOKEN_MAX, Waker};

/// The number of entries of the submission queue.
const SQ_ENTRIES: u32 = 256;
/// The number of entries of the completion queue. When it is full, the kernel keeps completions in
/// its own memory.
const CQ_ENTRIES: u32 = 4096;
/// The number of queued entries that makes a flush due.
const BATCH: u32 = 32;
/// The number of calls of `ready` after which a queued entry is flushed in any case.
const PATIENCE: u32 = 16;
/// The age of a queued entry that makes a flush due at the next call of `ready`: 50 us. The limit
/// exists because a disk could have worked on the operation meanwhile.
const AGE_MAX_NS: u64 = 50_000;

/// The user data of the bell's poll, and that of cancellations, whose own results have no meaning.
const BELL: u64 = TOKEN_MAX + 1;
const CANCEL: u64 = TOKEN_MAX + 2;

/// An operation that was submitted.
struct Flight {
    op: LiveOp<'static>,
    /// Whether the kernel has a poll instead of the operation, because the operation returned
    /// `-EAGAIN`.
    polling: bool,
    /// Whether the operation was cancelled. Then it is not submitted again.
    cancelled: bool,
}

/// Whether the arena is registered with the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Registered {
    /// No operation has used it yet.
    NotYet,
    Yes,
    /// The kernel refused it, because we may not lock so much memory.
    Refused,
}

/// The io_uring driver; see the top of this file.
pub struct UringDriver {
    ring: IoUring,
    flights: TokenMap<Flight>,
    /// Entries that were submitted while the submission queue was full.
    backlog: VecDeque<Entry>,
    /// The number of entries that were not flushed yet, and how often `ready` was called since
    /// then.
    queued: u32,
    looks: u32,
    /// When the oldest of these entries was queued, and the age that makes a flush due, in ticks.
    queued_at: u64,
    age_max: u64,
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

    /// Does the same, but leaves out the modes before this one, which are better.
    pub(super) fn with_modes_from(first: usize) -> io::Result<UringDriver> {
        let (ring, mode) = open_ring(first)?;
        check(&ring)?;
        let mut enter_flags = EnterFlags::GETEVENTS | EnterFlags::EXT_ARG;
        if ring.params().is_feature_no_iowait() {
            // Otherwise the kernel counts an idle scheduler as a processor that waits for a disk.
            enter_flags |= EnterFlags::NO_IOWAIT;
        }
        let bell = Waker::new()?;
        let mut driver = UringDriver {
            ring,
            flights: TokenMap::default(),
            backlog: VecDeque::new(),
            queued: 0,
            looks: 0,
            queued_at: 0,
            age_max: 0,
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
        if self.queued == 0 {
            self.queued_at = clock::ticks();
            if self.age_max == 0 {
                // 0 while the rate of the ticks is not known.
                self.age_max = clock::ticks_within(AGE_MAX_NS);
            }
        }
        self.queued += 1;
        if self.backlog.is_empty() {
            if self.push_now(&entry) {
                return;
            }
            self.enter(0, None);
            if self.backlog.is_empty() && self.push_now(&entry) {
                return;
            }
        }
        self.backlog.push_back(entry);
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
            _ => entry(op),
        }
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
            // Only the call with the last batch waits.
            let want = if self.backlog.is_empty() { want } else { 0 };
            let flags = self.enter_flags.bits();
            // SAFETY: Plain Call: `args` and the time that it points to are borrowed for the call.
            let entered =
                unsafe { self.ring.submitter().enter(before as u32, want, flags, Some(&args)) };
            let stuck = entered.is_err_and(|error| self.is_stuck(&error));
            let after = self.ring.submission().len();
            self.queued = (after + self.backlog.len()) as u32;
            self.looks = 0;
            if self.backlog.is_empty() || stuck || after == before {
                return;
            }
        }
    }

    /// Handles an error of `io_uring_enter`. Returns true if the kernel could take no entry for
    /// now.
    #[cold]
    fn is_stuck(&self, error: &io::Error) -> bool {
        match error.raw_os_error() {
            Some(libc::ETIME | libc::EINTR) => false,
            // The kernel has completions that do not fit into the queue. The caller drains the
            // queue and returns.
            Some(libc::EBUSY) => true,
            // The kernel is short of memory. The thread sleeps for a moment instead of trying at
            // once.
            Some(libc::EAGAIN | libc::ENOMEM) => {
                std::thread::sleep(Duration::from_micros(100));
                true
            }
            Some(libc::EEXIST) => panic!("an io_uring driver was used by a thread not its own"),
            Some(libc::EBADR) => panic!("the kernel ran out of memory and lost an I/O completion"),
            _ => panic!("io_uring_enter failed: {error}"),
        }
    }

    /// Returns whether the kernel must be entered: it has deferred or overflowed completions, or a
    /// flush is due.
    fn must_enter(&mut self) -> bool {
        // `ManuallyDrop`, because the queue's destructor would write to shared memory. This only
        // loads.
        let sq = ManuallyDrop::new(self.ring.submission());
        sq.taskrun() || sq.cq_overflow() || self.flush_due()
    }

    fn flush_due(&self) -> bool {
        let old = || clock::ticks().saturating_sub(self.queued_at) >= self.age_max;
        self.queued >= BATCH || (self.queued > 0 && (self.looks >= PATIENCE || old()))
    }

    /// Takes all completions out of the completion queue, and all others that have arrived.
    fn drain(&mut self, out: &mut Vec<Done>) {
        loop {
            let next = self.ring.completion().next();
            let Some(cqe) = next else { break };
            let (token, result) = (cqe.user_data(), cqe.result());
            match token {
                CANCEL => {}
                BELL => {
                    self.rung = true;
                    self.bell_armed = io_uring::cqueue::more(cqe.flags());
                }
                _ => self.land(token, result, out),
            }
        }
        if !self.bell_armed {
            self.arm_bell();
        }
        self.chores.collect(out);
        out.append(&mut self.finished);
    }

    /// Handles the completion of one operation: delivers it, or submits the operation again.
    fn land(&mut self, token: u64, result: i32, out: &mut Vec<Done>) {
        let flight = self.flights.get_mut(&token).expect("a completion belongs to a submission");
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
            self.flights.remove(&token);
            out.push(Done { token, result });
        } else if flight.cancelled {
            self.flights.remove(&token);
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
        let flight = Flight { op, polling: false, cancelled: false };
        assert!(self.flights.insert(token, flight).is_none(), "token {token} is already pending");
        self.push(entry.user_data(token));
        Submitted::Pending
    }

    fn cancel(&mut self, token: u64) {
        let Some(flight) = self.flights.get_mut(&token) else {
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

    fn ready(&mut self) -> bool {
        self.looks += u32::from(self.queued > 0);
        // As in `must_enter`: without the destructor this only loads.
        !ManuallyDrop::new(self.ring.completion()).is_empty()
            || self.chores.has_news()
            || !self.finished.is_empty()
            || self.must_enter()
    }

    fn reap(&mut self, out: &mut Vec<Done>) {
        self.drain(out);
        if self.must_enter() {
            self.enter(0, None);
            self.drain(out);
        }
    }

    fn wait(&mut self, timeout_ns: Option<u64>, out: &mut Vec<Done>) {
        let had = out.len();
        self.drain(out);
        let idle = out.len() == had && !self.rung && timeout_ns != Some(0);
        let sleep = idle && self.chores.may_sleep();
        if sleep || self.queued > 0 || self.must_enter() {
            self.enter(u32::from(sleep), timeout_ns);
            self.drain(out);
        }
        self.chores.awake();
        self.chores.collect(out);
        self.rung = false;
    }

    fn waker(&self) -> Waker {
        self.bell.clone()
    }

    fn done(&mut self) -> usize {
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
            crate::os::thread_number() == self.owner || self.flights.is_empty(),
            "an io_uring driver with operations in flight was dropped by a thread not its own"
        );
        let tokens: Vec<u64> = self.flights.keys().copied().collect();
        for token in tokens {
            self.cancel(token);
        }
        let mut dropped = Vec::new();
        while !self.flights.is_empty() {
            self.wait(Some(10_000_000), &mut dropped);
        }
    }
}

/// Opens a ring with the best flags that the kernel accepts, beginning with mode number `first`.
fn open_ring(first: usize) -> io::Result<(IoUring, &'static str)> {
    type Setup = fn(&mut Builder) -> &mut Builder;
    const MODES: [(&str, Setup); 3] = [
        ("SINGLE_ISSUER, DEFER_TASKRUN, TASKRUN_FLAG, SUBMIT_ALL", |b| {
            b.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().setup_submit_all()
        }),
        ("COOP_TASKRUN, TASKRUN_FLAG, SUBMIT_ALL", |b| {
            b.setup_coop_taskrun().setup_taskrun_flag().setup_submit_all()
        }),
        ("no flags", |b| b),
    ];
    let mut refused = None;
    for (mode, setup) in MODES.into_iter().skip(first) {
        let mut builder = IoUring::builder();
        setup(&mut builder).setup_cqsize(CQ_ENTRIES).setup_clamp().dontfork();
        match builder.build(SQ_ENTRIES) {
            Ok(ring) => return Ok((ring, mode)),
            // EINVAL: the kernel does not support a flag. Any other error would be the same for all
            // flags.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => refused = Some(error),
            Err(error) => return Err(reason(&error)),
        }
    }
    Err(refused.map_or_else(|| io::ErrorKind::Unsupported.into(), |error| reason(&error)))
}

/// Returns an error that says in words why the kernel refused a ring.
fn reason(error: &io::Error) -> io::Error {
    let why = match error.raw_os_error() {
        Some(libc::ENOSYS) => "this kernel has none, or a filter hides it",
        Some(libc::EPERM | libc::EACCES) => "denied (seccomp filter or kernel.io_uring_disabled)",
        Some(libc::ENOMEM) => "no memory to lock (see ulimit -l)",
        Some(libc::EMFILE | libc::ENFILE) => "no descriptors left",
        _ => "io_uring_setup failed",
    };
    io::Error::new(error.kind(), format!("{why}: {error}"))
}

/// Returns an error if the ring cannot do what this driver needs. Linux 5.13 can.
fn check(ring: &IoUring) -> io::Result<()> {
    let no = |what: &str| Err(io::Error::new(io::ErrorKind::Unsupported, format!("lacks {what}")));
    let can = ring.params();
    if !(can.is_feature_nodrop() && can.is_feature_ext_arg() && can.is_feature_fast_poll()) {
        return no("kept completions, timed waits or internal polling (Linux 5.11)");
    }
    if !can.is_feature_resource_tagging() {
        return no("multishot polls (Linux 5.13)"); // Both came with the same release.
    }
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    let needed = [
        ("POLL_ADD", opcode::PollAdd::CODE),
        ("ASYNC_CANCEL", opcode::AsyncCancel::CODE),
        ("RECV", opcode::Recv::CODE),
        ("SEND", opcode::Send::CODE),
        ("RECVMSG", opcode::RecvMsg::CODE),
        ("SENDMSG", opcode::SendMsg::CODE),
        ("ACCEPT", opcode::Accept::CODE),
        ("CONNECT", opcode::Connect::CODE),
        ("READ", opcode::Read::CODE),
        ("WRITE", opcode::Write::CODE),
        ("READV", opcode::Readv::CODE),
        ("WRITEV", opcode::Writev::CODE),
        ("FSYNC", opcode::Fsync::CODE),
    ];
    needed.iter().find(|&&(_, code)| !probe.is_supported(code)).map_or(Ok(()), |(op, _)| no(op))
}

/// Returns a poll for the side of the descriptor that the operation needs.
fn poll_entry(op: &Op) -> Entry {
    let events = call::poll_events(op.side()) as u32;
    opcode::PollAdd::new(Fd(op.fd()), events).build()
}

/// Returns the submission entry of an operation whose buffer is not registered.
fn entry(op: &Op) -> Entry {
    const QUIET: i32 = libc::MSG_NOSIGNAL;
    // Longer than the kernel transfers in one call. Shortened, as the system calls do.
    let clip = |len: usize| u32::try_from(len).unwrap_or(i32::MAX as u32);
    match *op {
        Op::PollIn { .. } | Op::PollOut { .. } => poll_entry(op),
        Op::Call { .. } => unreachable!("a call goes to the helpers"),
        Op::Recv { fd, buf, len, flags } => {
            opcode::Recv::new(Fd(fd), buf, clip(len)).flags(flags).build()
        }
        Op::Send { fd, buf, len, flags } => {
            opcode::Send::new(Fd(fd), buf, clip(len)).flags(flags | QUIET).build()
        }
        Op::RecvMsg { fd, msg, flags } => {
            opcode::RecvMsg::new(Fd(fd), msg).flags(flags as u32).build()
        }
        Op::SendMsg { fd, msg, flags } => {
            opcode::SendMsg::new(Fd(fd), msg).flags((flags | QUIET) as u32).build()
        }
        Op::Accept { fd, flags } => {
            let (addr, len) = (std::ptr::null_mut(), std::ptr::null_mut());
            opcode::Accept::new(Fd(fd), addr, len).flags(flags).build()
        }
        Op::Connect { fd, addr, len } => opcode::Connect::new(Fd(fd), addr, len).build(),
        Op::Read { fd, buf, len, offset } => {
            opcode::Read::new(Fd(fd), buf, clip(len)).offset(offset).build()
        }
        Op::Write { fd, buf, len, offset } => {
            opcode::Write::new(Fd(fd), buf, clip(len)).offset(offset).build()
        }
        Op::Readv { fd, iov, cnt, offset } => {
            opcode::Readv::new(Fd(fd), iov, cnt).offset(offset).build()
        }
        Op::Writev { fd, iov, cnt, offset } => {
            opcode::Writev::new(Fd(fd), iov, cnt).offset(offset).build()
        }
        Op::Fsync { fd, data_only } => {
            let flags = if data_only { FsyncFlags::DATASYNC } else { FsyncFlags::empty() };
            opcode::Fsync::new(Fd(fd)).flags(flags).build()
        }
    }
}

#[cfg(test)]
mod tests;
