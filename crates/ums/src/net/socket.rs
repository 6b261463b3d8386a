//! The part that all sockets share: the descriptor, its timeouts, and the operations.
//!
//! ```text
//!   TcpStream, UdpSocket, ...  --has a-->  Socket<the std type>
//!                                            adoption   the driver may keep a registration
//!                                            std        owns the descriptor; names and options
//!                                            limits     timeouts and the deadline
//! ```
//!
//! Rule *Adopted*: a descriptor is *adopted* for as long as its `Socket` lives: drivers may rely on
//! what the descriptor's number means, and keep it registered. The adoption is taken back before
//! the descriptor is closed or given away.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use socket2::SockAddr;

use crate::current::{begin, checkpoint_for, limit, park, still_wanted, yield_if_due};
use crate::io::{
    Readiness, accept, accept_now, decode, send_bytes, wait_for, wait_readable, wait_writable,
};
use crate::os::clock::{self, NEVER};
use crate::os::driver::{LiveOp, Side};
use crate::os::linux::call::{Tried, try_now};
use crate::os::linux::owned::{self, DescriptorKind};
use crate::os::op::Message;
use crate::os::sockets;
use crate::record::reason::WaitReason;
use crate::record::report;
use crate::wait::error::WaitError;
use crate::wait::{Arm, Outcome, Source, Ticket, What};

/// The shortest and longest pause before a retry, where the kernel has no event to wait for.
const PAUSE_MIN: Duration = Duration::from_micros(500);
const PAUSE_MAX: Duration = Duration::from_millis(32);
/// The pause of a listener after the process ran out of descriptors.
const PAUSE_SHORT: Duration = Duration::from_millis(10);

/// A socket of any type; see the header of this file.
pub(super) struct Socket<S> {
    // Dropped first: the adoption ends before the descriptor is closed (rule Adopted).
    adoption: Adoption,
    pub std: S,
    limits: Limits,
    /// Whether the last read of a stream filled its buffer. Then more bytes have probably arrived.
    filled: AtomicBool,
}

/// The right of drivers to rely on a descriptor number.
struct Adoption(RawFd);

impl Drop for Adoption {
    fn drop(&mut self) {
        owned::release(self.0);
    }
}

/// How long operations may wait, in nanoseconds, and the instant at which all of them end.
struct Limits {
    read_ns: AtomicU64,
    write_ns: AtomicU64,
    deadline: AtomicU64,
}

/// The two directions that have timeouts.
#[derive(Clone, Copy)]
pub(super) enum Way {
    Read,
    Write,
}

impl Limits {
    fn none() -> Limits {
        let never = || AtomicU64::new(NEVER);
        Limits { read_ns: never(), write_ns: never(), deadline: never() }
    }

    fn copy(&self) -> Limits {
        let copy = |word: &AtomicU64| AtomicU64::new(word.load(Ordering::Relaxed));
        let Limits { read_ns, write_ns, deadline } = self;
        Limits { read_ns: copy(read_ns), write_ns: copy(write_ns), deadline: copy(deadline) }
    }

    fn span(&self, way: Way) -> &AtomicU64 {
        match way {
            Way::Read => &self.read_ns,
            Way::Write => &self.write_ns,
        }
    }

    /// Returns the deadline of an operation that begins now. Reads the clock only if there is a
    /// timeout.
    fn end(&self, way: Way) -> u64 {
        let deadline = self.deadline.load(Ordering::Relaxed);
        match self.span(way).load(Ordering::Relaxed) {
            NEVER => deadline,
            span => deadline.min(clock::now().saturating_add(span)),
        }
    }
}

impl<S: AsRawFd> Socket<S> {
    /// Wraps a socket that is in non-blocking mode already.
    pub fn new(std: S, kind: DescriptorKind) -> Socket<S> {
        let fd = std.as_raw_fd();
        owned::adopt(fd, kind);
        let filled = AtomicBool::new(false);
        Socket { adoption: Adoption(fd), std, limits: Limits::none(), filled }
    }

    /// Wraps another descriptor of the same socket, with a copy of the timeouts.
    pub fn again(&self, std: S, kind: DescriptorKind) -> Socket<S> {
        Socket { limits: self.limits.copy(), ..Socket::new(std, kind) }
    }

    /// Gives the descriptor away, in non-blocking mode.
    pub fn into_std(self) -> S {
        let Socket { adoption, std, .. } = self;
        drop(adoption);
        std
    }

    fn fd(&self) -> RawFd {
        self.adoption.0
    }

    pub fn set_timeout(&self, way: Way, span: Option<Duration>) -> io::Result<()> {
        let ns = match span {
            None => NEVER,
            Some(Duration::ZERO) => {
                let text = "a timeout of zero would end every wait at once; None means no timeout";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
            }
            Some(span) => u64::try_from(span.as_nanos()).unwrap_or(NEVER),
        };
        self.limits.span(way).store(ns, Ordering::Relaxed);
        Ok(())
    }

    pub fn timeout(&self, way: Way) -> Option<Duration> {
        let ns = self.limits.span(way).load(Ordering::Relaxed);
        (ns != NEVER).then(|| Duration::from_nanos(ns))
    }

    pub fn set_deadline(&self, at: Option<Instant>) {
        let at = at.map(|at| clock::after(at.saturating_duration_since(Instant::now())));
        self.limits.deadline.store(at.unwrap_or(NEVER), Ordering::Relaxed);
    }

    /// `recv(2)`.
    pub fn receive(&self, buf: &mut [u8], flags: i32) -> io::Result<usize> {
        self.read(LiveOp::recv(self.fd(), buf, flags))
    }

    /// `recv(2)` on a stream.
    ///
    /// If the last read filled its buffer, the call is tried at once: there is probably more, and
    /// a call then costs less than the turn of a ring. So a caller that reads small pieces parks
    /// once for what has arrived, not once for each piece.
    pub fn receive_bytes(&self, buf: &mut [u8]) -> io::Result<usize> {
        let room = buf.len();
        let mut op = LiveOp::recv(self.fd(), buf, 0);
        let result = match self.try_again(&mut op)? {
            Some(result) => result,
            None => self.read(op),
        };
        self.filled.store(matches!(result, Ok(count) if count == room), Ordering::Relaxed);
        result
    }

    /// `recv(2)` of what has arrived. Neither waits nor lets others run: the caller may be the poll
    /// of a future, which may hold what belongs to its thread.
    pub fn receive_now(&self, buf: &mut [u8]) -> io::Result<usize> {
        now(LiveOp::recv(self.fd(), buf, 0))
    }

    /// `send(2)` on a stream, of as much as there is room for, in the same way.
    pub fn send_now(&self, buf: &[u8]) -> io::Result<usize> {
        now(LiveOp::send(self.fd(), buf, 0))
    }

    /// `sendmsg(2)` on a stream, of as much as there is room for, in the same way.
    pub fn send_now_vectored(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        now(LiveOp::send_msg(self.fd(), &mut Message::from(bufs), 0))
    }

    /// Makes a call that takes input of this socket and does not block. Waits for input while there
    /// is none.
    pub fn with_input(&self, call: Call<'_>) -> io::Result<usize> {
        checkpoint_for(WaitReason::NETWORK_READ)?;
        let deadline = self.limits.end(Way::Read);
        repeat(call, || wait_readable(self.fd(), WaitReason::NETWORK_READ, deadline))
    }

    /// Makes a call that writes on this socket and does not block. Waits for room while there is
    /// none.
    pub fn with_room(&self, call: Call<'_>) -> io::Result<usize> {
        yield_if_due();
        let deadline = self.limits.end(Way::Write);
        repeat(call, || wait_writable(self.fd(), WaitReason::NETWORK_WRITE, deadline))
    }

    fn try_again(&self, op: &mut LiveOp<'_>) -> io::Result<Option<io::Result<usize>>> {
        if !self.filled.load(Ordering::Relaxed) || !sockets::are_tried_first() {
            return Ok(None);
        }
        checkpoint_for(WaitReason::NETWORK_READ)?;
        match try_now(op) {
            Tried::Finished(result) => Ok(Some(decode(result))),
            Tried::WouldBlock => Ok(None),
        }
    }

    /// `recvmsg(2)` into several buffers.
    pub fn receive_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.read(LiveOp::recv_msg(self.fd(), &mut Message::into(bufs), 0))
    }

    /// `recvfrom(2)`. Returns no address if the sender has none.
    pub fn receive_from(
        &self,
        buf: &mut [u8],
        flags: i32,
    ) -> io::Result<(usize, Option<SockAddr>)> {
        let mut buf = [IoSliceMut::new(buf)];
        let mut message = Message::into(&mut buf).with_sender();
        let n = self.read(LiveOp::recv_msg(self.fd(), &mut message, flags))?;
        Ok((n, message.sender()))
    }

    /// `send(2)` of a datagram.
    pub fn send(&self, buf: &[u8]) -> io::Result<usize> {
        self.write(LiveOp::send(self.fd(), buf, 0))
    }

    /// `send(2)` on a stream.
    pub fn send_bytes(&self, buf: &[u8]) -> io::Result<usize> {
        self.write_bytes(LiveOp::send(self.fd(), buf, 0))
    }

    /// `sendmsg(2)` on a stream, from several buffers.
    pub fn send_bytes_vectored(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.write_bytes(LiveOp::send_msg(self.fd(), &mut Message::from(bufs), 0))
    }

    /// `sendto(2)`. With `patient`, a send to a full queue is retried at growing intervals, because
    /// no event tells when the queue has room.
    pub fn send_to(&self, buf: &[u8], to: &SockAddr, patient: bool) -> io::Result<usize> {
        let buf = [IoSlice::new(buf)];
        let mut message = Message::from(&buf).to(to);
        let flags = if patient { libc::MSG_DONTWAIT } else { 0 };
        let mut backoff = Backoff::new(WaitReason::NETWORK_WRITE, self.limits.end(Way::Write));
        loop {
            match self.write(LiveOp::send_msg(self.fd(), &mut message, flags)) {
                Err(error) if patient && error.raw_os_error() == Some(libc::EAGAIN) => {
                    backoff.pause(self.fd())?;
                }
                result => return result,
            }
        }
    }

    fn read(&self, op: LiveOp<'_>) -> io::Result<usize> {
        // A caller that reads again and again lets others run also if each read fails at once.
        if let Err(error) = still_wanted() {
            yield_if_due();
            return Err(error.during(WaitReason::NETWORK_READ));
        }
        wait_for(op, WaitReason::NETWORK_READ, self.limits.end(Way::Read))
    }

    fn write_bytes(&self, op: LiveOp<'_>) -> io::Result<usize> {
        send_bytes(op, || self.limits.end(Way::Write), true)
    }

    /// Tries the write, and waits only if there is no room. There nearly always is room; then this
    /// is one cheap system call, and the worker keeps running.
    ///
    /// A datagram is never left to a ring. If a send must wait, a ring repeats it with the part of
    /// the buffer that the first attempt has left. A Unix datagram socket that finds its receiver's
    /// queue full has consumed the whole buffer by then, so an empty datagram would be sent (seen
    /// with Linux 6.18).
    fn write(&self, mut op: LiveOp<'_>) -> io::Result<usize> {
        yield_if_due();
        let mut deadline = None;
        loop {
            if let Tried::Finished(result) = try_now(&mut op) {
                return decode(sockets::result_of(&op, result));
            }
            let deadline = *deadline.get_or_insert_with(|| self.limits.end(Way::Write));
            wait_writable(self.fd(), WaitReason::NETWORK_WRITE, deadline)?;
        }
    }

    /// Accepts one connection. `short` says that the last call found no descriptor or memory left;
    /// this call then begins with a pause. A call that finds none says so on stderr.
    pub fn accept(&self, short: &AtomicBool, deadline: u64) -> io::Result<OwnedFd> {
        loop {
            checkpoint_for(WaitReason::NETWORK_ACCEPT)?;
            if short.swap(false, Ordering::Relaxed) {
                pause(WaitReason::NETWORK_ACCEPT, self.fd(), PAUSE_SHORT, deadline)?;
            }
            let error = match accept(self.fd(), ACCEPTED, deadline) {
                Ok(fd) => return Ok(fd),
                Err(error) => error,
            };
            if !concerns_one_connection(&error) {
                note_shortage(short, &error);
                return Err(error);
            }
        }
    }

    /// Returns the arm of a select that waits until the socket has input, or room.
    pub fn ready_arm(&self, way: Way) -> Arm<'_, io::Result<()>> {
        let side = match way {
            Way::Read => Side::In,
            Way::Write => Side::Out,
        };
        Arm::new(Readiness::new(self.fd(), side))
    }

    /// Returns the arm of a select that accepts a connection. `make` makes the result; `None` means
    /// that the peer has gone. `short` is as for [`Socket::accept`].
    pub fn accept_arm<'a, T>(
        &'a self,
        short: &'a AtomicBool,
        make: impl Fn(OwnedFd) -> io::Result<Option<T>> + 'a,
    ) -> Arm<'a, io::Result<T>> {
        let pauses = short.swap(false, Ordering::Relaxed);
        let pause_ends = if pauses { clock::after(PAUSE_SHORT) } else { 0 };
        let ready = Readiness::new(self.fd(), Side::In);
        Arm::new(Accepting { ready, fd: self.fd(), pause_ends, short, make })
    }

    /// Like [`Socket::accept`], but waits while the system has no descriptor or memory for a
    /// connection. Meanwhile the connection stays in the listener's queue.
    pub fn accept_despite_shortage(&self, short: &AtomicBool) -> io::Result<OwnedFd> {
        loop {
            // The next call begins with a pause.
            match self.accept(short, NEVER) {
                Err(error) if is_shortage(&error) => {}
                other => return other,
            }
        }
    }
}

/// Makes the call, if that is possible without waiting.
fn now(mut op: LiveOp<'_>) -> io::Result<usize> {
    match try_now(&mut op) {
        Tried::Finished(result) => decode(sockets::result_of(&op, result)),
        Tried::WouldBlock => Err(io::ErrorKind::WouldBlock.into()),
    }
}

/// A system call that does not block. It returns how many bytes it has moved.
pub(super) type Call<'a> = &'a mut dyn FnMut() -> rustix::io::Result<usize>;

/// Makes the call until it has moved something, or failed. Waits while it would block.
fn repeat(call: Call<'_>, wait: impl Fn() -> io::Result<()>) -> io::Result<usize> {
    loop {
        match call() {
            Err(Errno::AGAIN) => wait()?,
            Err(Errno::INTR) => {}
            result => return Ok(result?),
        }
    }
}

/// The flags of accepted connections.
const ACCEPTED: i32 = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;

/// Returns whether a connection failed before it was accepted, so that the next one may succeed.
fn concerns_one_connection(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ECONNABORTED | libc::EPROTO))
}

/// Waits for a connection.
struct Accepting<'a, F> {
    ready: Readiness,
    fd: RawFd,
    /// Until then no connection is accepted.
    pause_ends: u64,
    short: &'a AtomicBool,
    make: F,
}

impl<F> Accepting<'_, F> {
    fn pauses(&self) -> bool {
        self.pause_ends > 0 && clock::now() < self.pause_ends
    }
}

impl<T, F: Fn(OwnedFd) -> io::Result<Option<T>>> Source<io::Result<T>> for Accepting<'_, F> {
    fn try_now(&mut self) -> Option<io::Result<T>> {
        // A loop that accepts lets others run, even if there is always a connection.
        yield_if_due();
        if self.pauses() {
            return None;
        }
        loop {
            if let Err(error) = self.ready.try_now()? {
                return Some(Err(error));
            }
            match accept_now(self.fd, ACCEPTED)? {
                Ok(fd) => match (self.make)(fd).transpose() {
                    None => {}
                    made => return made,
                },
                Err(error) if concerns_one_connection(&error) => {}
                Err(error) => {
                    note_shortage(self.short, &error);
                    return Some(Err(error));
                }
            }
        }
    }

    fn deadline(&self) -> u64 {
        if self.pauses() { self.pause_ends } else { NEVER }
    }

    fn about_to_wait(&self) {
        if !self.pauses() {
            self.ready.about_to_wait();
        }
    }

    fn queue(&self, ticket: Ticket) -> bool {
        self.pauses() || self.ready.queue(ticket)
    }

    fn unqueue(&self, ticket: Ticket, granted: bool) {
        self.ready.unqueue(ticket, granted);
    }

    /// Another caller may have accepted the connection, or its peer has gone.
    fn granted(&mut self) -> Option<io::Result<T>> {
        self.try_now()
    }
}

/// Returns whether the error is a shortage of descriptors or memory, so that the connection could
/// be accepted later.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    matches!(code, Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}

/// Notes whether an accept has failed because of a shortage. Then the next one pauses, and a
/// message on stderr says so.
fn note_shortage(short: &AtomicBool, error: &io::Error) {
    let is_short = is_shortage(error);
    short.store(is_short, Ordering::Relaxed);
    if is_short {
        report_shortage(error);
    }
}

/// Reports on stderr that connections wait because of this error.
#[cold]
pub(crate) fn report_shortage(error: &io::Error) {
    let cure = match error.raw_os_error() {
        Some(libc::EMFILE) => "close some, or raise the limit of this process (ulimit -Hn)",
        Some(libc::ENFILE) => "close some, or raise fs.file-max",
        _ => "the system is short of memory for sockets",
    };
    let why = "new connections wait because none can be accepted now";
    crate::current::warn(report::WarningKind::Descriptors, format_args!("{why}: {error}: {cure}"));
}

/// Pauses between retries that become longer and longer.
pub(super) struct Backoff {
    reason: WaitReason,
    next: Duration,
    end: u64,
}

impl Backoff {
    /// Prepares pauses that fail when the deadline comes.
    pub fn new(reason: WaitReason, deadline: u64) -> Backoff {
        Backoff { reason, next: PAUSE_MIN, end: deadline }
    }

    /// Pauses before the next attempt with this descriptor.
    pub fn pause(&mut self, fd: RawFd) -> io::Result<()> {
        pause(self.reason, fd, self.next, self.end)?;
        self.next = self.next.saturating_mul(2).min(PAUSE_MAX);
        Ok(())
    }
}

/// In a simulated world, waits before an attempt to connect for as long as its network takes.
pub(super) fn pause_before_connecting(deadline: u64) -> io::Result<()> {
    let Some(delay) = sockets::delay_before_connecting() else { return Ok(()) };
    pause(WaitReason::NETWORK_CONNECT, -1, delay, deadline)
}

/// Waits for this long; fails if the deadline comes first.
fn pause(reason: WaitReason, fd: RawFd, span: Duration, deadline: u64) -> io::Result<()> {
    let (until, deadline) = (clock::after(span), deadline.min(limit()));
    match park(begin(What::new(reason).fd(fd)), until.min(deadline)) {
        Outcome::TimedOut if until < deadline => Ok(()),
        outcome => outcome.ok().map_err(|error| error.during(reason)),
    }
}

/// Checks a time to live. The system would read the largest number as -1, which sets its default.
pub(super) fn time_to_live(ttl: u32, least: u32) -> io::Result<u32> {
    if (least..=255).contains(&ttl) {
        return Ok(ttl);
    }
    let text = format!("a time to live of {ttl}: a packet can have {least} to 255");
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
}

/// Returns whether this is the error of a caller whose request was cancelled, or whose time is
/// over: its further calls would fail, too.
pub(super) fn is_wait_error(error: &io::Error) -> bool {
    WaitError::of(error).is_some()
}
