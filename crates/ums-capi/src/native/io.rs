//! I/O: requests with completion routines, calls that wait, and waits for readiness.
//!
//! A request borrows the caller's buffers until its routine has been called. Files are read at an
//! offset; pipes and sockets have only `UMS_CURRENT` and must be in non-blocking mode.
//!
//! A call that waits is a request whose routine sets an event. When its time limit expires, it
//! cancels the operation, and still waits for the operation's end. So the buffer belongs to the
//! caller again when the call returns.
//!
//! This file has unsafe code, because a buffer is a pointer and a length, and the request uses the
//! buffer after the call. The memory that a request points at stays valid and untouched until the
//! routine is called: either the header demands this of the caller, or the caller waits until then.

#![allow(unsafe_code)]

use std::ffi::{c_int, c_short, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Instant;

use libc::{iovec, sockaddr, socklen_t};
use ums::io::{Buffer, Pending, Request, Watch};
use ums::lock::Lock;
use ums::sync::{Arm, Select, Sleeper, Wait};
use ums::{WaitError, WaitReason};

use super::fault::{Fault, guard};
use super::object::{self, Handle, objects};
use super::options::span;
use super::task::UMS_FOREVER;
use crate::caller::{Argument, Descriptor, LentDescriptor, Out};

/// The offset that means the file's own position; the only one that pipes and sockets have.
pub const UMS_CURRENT: u64 = u64::MAX;

/// A read would find input, the end, or an error.
pub const UMS_READABLE: u32 = 1;
/// A write would find room or an error.
pub const UMS_WRITABLE: u32 = 2;

/// Called once when the request has ended, with the number of bytes (accept: the new descriptor),
/// or a negative errno (-ECANCELED: it was cancelled). It runs between two workers of the
/// scheduler, or before the submitting call returns. It may enqueue, submit, set events, and use
/// channels with the time limit 0. It must not wait.
pub type ums_routine = Option<extern "C-unwind" fn(arg: Argument, result: i64)>;

/// A submitted request, which can be cancelled.
pub struct ums_pending {
    _opaque: [u8; 0],
}

objects! {
    ums_pending = b"ums pend": Pending;
}

/// A buffer of the caller that a request uses.
struct Lent(*mut u8, usize);

// SAFETY: Frozen Buffer: no other code touches the bytes, on whichever thread the operation runs.
unsafe impl Send for Lent {}

// SAFETY: Frozen Buffer: the bytes stay valid and do not move.
unsafe impl Buffer for Lent {
    fn start(&mut self) -> *mut u8 {
        self.0
    }

    fn size(&self) -> usize {
        self.1
    }
}

/// The routine with its argument.
struct Finish {
    routine: extern "C-unwind" fn(Argument, i64),
    arg: Argument,
}

impl Finish {
    fn new(routine: ums_routine, arg: Argument) -> Result<Finish, Fault> {
        let routine = routine.ok_or_else(|| Fault::null("the routine"))?;
        Ok(Finish { routine, arg })
    }
}

/// The receiver of a request's result.
trait Told: Send + 'static {
    fn tell(self, result: i64);
}

impl Told for Finish {
    fn tell(self, result: i64) {
        (self.routine)(self.arg, result);
    }
}

fn number<T>(result: io::Result<T>, number: impl FnOnce(T) -> i64) -> i64 {
    match result {
        Ok(value) => number(value),
        Err(error) => -i64::from(error.raw_os_error().unwrap_or(libc::EIO)),
    }
}

/// What a request does.
enum What {
    Read(Lent, u64),
    Write(Lent, u64),
    Scatter(Vec<Lent>, u64),
    Gather(Vec<Lent>, u64),
    Sync { metadata: bool },
    Accept,
    Connect(Vec<u8>),
}

impl What {
    /// Returns what a caller that waits for it waits for, as statistics show it.
    fn reason(&self) -> WaitReason {
        match self {
            What::Accept => WaitReason::NETWORK_ACCEPT,
            What::Connect(_) => WaitReason::NETWORK_CONNECT,
            What::Sync { .. } => WaitReason::WRITELOG,
            _ => WaitReason::IO_COMPLETION,
        }
    }

    /// Returns whether it is a read, an accept or a connect. A cancelled caller does not begin
    /// these, so a task hears the cancellation although its peer never pauses. It may write what
    /// need not wait, such as a farewell.
    fn brings_something(&self) -> bool {
        !matches!(self, What::Write(..) | What::Gather(..) | What::Sync { .. })
    }

    fn request(self, fd: Descriptor, told: impl Told) -> Result<Request, Fault> {
        let fd = lend(fd)?;
        let bytes = |n: usize| n as i64;
        Ok(match self {
            What::Read(b, at) => Request::read(fd, b, at, move |r, _| told.tell(number(r, bytes))),
            What::Write(b, at) => {
                Request::write(fd, b, at, move |r, _| told.tell(number(r, bytes)))
            }
            What::Scatter(b, at) => {
                Request::read_scatter(fd, b, at, move |r, _| told.tell(number(r, bytes)))
            }
            What::Gather(b, at) => {
                Request::write_gather(fd, b, at, move |r, _| told.tell(number(r, bytes)))
            }
            What::Sync { metadata } => {
                Request::sync(fd, metadata, move |r| told.tell(number(r, |()| 0)))
            }
            What::Accept => Request::accept(fd, move |r: io::Result<OwnedFd>| {
                told.tell(number(r, |fd| i64::from(fd.into_raw_fd())));
            }),
            What::Connect(address) => {
                Request::connect(fd, address, move |r| told.tell(number(r, |()| 0)))
            }
        })
    }
}

/// Returns the descriptor in the form that operations use.
pub(super) fn lend(fd: Descriptor) -> Result<LentDescriptor, Fault> {
    fd.lend().ok_or_else(|| Fault::new(libc::EBADF, "a negative descriptor"))
}

/// Returns the buffer of these two parameters.
///
/// # Safety
/// The pointer is NULL, or points to `len` bytes that stay valid until the request has ended.
unsafe fn lent(buffer: *mut c_void, len: usize) -> Result<Lent, Fault> {
    if buffer.is_null() && len > 0 {
        return Err(Fault::null("the buffer"));
    }
    let start = if buffer.is_null() { std::ptr::dangling_mut() } else { buffer.cast() };
    Ok(Lent(start, len))
}

/// Returns the buffers of an array of them.
///
/// # Safety
/// The pointer is NULL, or points to `count` readable elements, whose buffers stay valid until the
/// request has ended.
unsafe fn lent_all(parts: *const iovec, count: usize) -> Result<Vec<Lent>, Fault> {
    if parts.is_null() {
        return Err(Fault::null("iov"));
    }
    if count > libc::UIO_MAXIOV as usize {
        return Err(Fault::new(libc::EINVAL, "more than 1024 buffers in one request"));
    }
    // SAFETY: Contract.
    let parts = unsafe { std::slice::from_raw_parts(parts, count) };
    // SAFETY: Contract.
    parts.iter().map(|part| unsafe { lent(part.iov_base, part.iov_len) }).collect()
}

/// Returns the bytes of an address.
///
/// # Safety
/// The pointer is NULL, or points to `len` readable bytes.
unsafe fn address(from: *const sockaddr, len: socklen_t) -> Result<Vec<u8>, Fault> {
    if from.is_null() {
        return Err(Fault::null("address"));
    }
    if len as usize > size_of::<libc::sockaddr_storage>() {
        return Err(Fault::new(libc::EINVAL, "no address is so long"));
    }
    // SAFETY: Contract.
    Ok(unsafe { std::slice::from_raw_parts(from.cast::<u8>(), len as usize) }.to_vec())
}

/// Submits a request. Stores a pointer to it in `pending`, or NULL if it has completed.
fn submit(
    fd: Descriptor,
    what: Result<What, Fault>,
    (routine, arg): (ums_routine, Argument),
    mut pending: Out<'_, Handle<ums_pending>>,
) -> c_int {
    guard(|| {
        let told = Finish::new(routine, arg)?;
        let submitted = what?.request(fd, told)?.submit();
        let at_once = submitted.completed_at_once();
        if !pending.is_null() {
            pending.put(if at_once { Handle::none() } else { object::make(submitted) });
        }
        Ok(at_once.into())
    })
}

/// Submits a read. Returns 1 if it completed at once: then the routine has been called and
/// `*pending` is NULL; otherwise 0. `pending` may be NULL. The request uses the buffer until the
/// routine is called. On a plain thread this call blocks until the read has completed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ums_submit_read(
    fd: Descriptor,
    buffer: *mut c_void,
    len: usize,
    offset: u64,
    routine: ums_routine,
    arg: Argument,
    pending: Out<'_, Handle<ums_pending>>,
) -> c_int {
    // SAFETY: C Caller: the buffer is lent until the routine is called.
    let what = unsafe { lent(buffer, len) }.map(|buffer| What::Read(buffer, offset));
    submit(fd, what, (routine, arg), pending)
}

/// Submits a write of the buffer's bytes. Otherwise as ums_submit_read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ums_submit_write(
    fd: Descriptor,
    buffer: *const c_void,
    len: usize,
    offset: u64,
    routine: ums_routine,
    arg: Argument,
    pending: Out<'_, Handle<ums_pending>>,
) -> c_int {
    // SAFETY: C Caller: the buffer is lent until the routine is called.
    let what = unsafe { lent(buffer.cast_mut(), len) }.map(|buffer| What::Write(buffer, offset));
    submit(fd, what, (routine, arg), pending)
}

/// Submits a read into several buffers, one after another. The array may be freed; the buffers must
/// stay. Otherwise as ums_submit_read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ums_submit_readv(
    fd: Descriptor,
    iov: *const iovec,
    count: usize,
    offset: u64,
    routine: ums_routine,
    arg: Argument,
    pending: Out<'_, Handle<ums_pending>>,
) -> c_int {
    // SAFETY: C Caller: what the header says of these.
    let what = unsafe { lent_all(iov, count) }.map(|parts| What::Scatter(parts, offset));
    submit(fd, what, (routine, arg), pending)
}

/// Submits a write from several buffers, one after another. The array may be freed; the buffers
/// must stay. Otherwise as ums_submit_write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ums_submit_writev(
    fd: Descriptor,
    iov: *const iovec,
    count: usize,
    offset: u64,
    routine: ums_routine,
    arg: Argument,
    pending: Out<'_, Handle<ums_pending>>,
) -> c_int {
    // SAFETY: C Caller: what the header says of these.
    let what = unsafe { lent_all(iov, count) }.map(|parts| What::Gather(parts, offset));
    submit(fd, what, (routine, arg), pending)
}

/// Submits a sync, which completes when everything that was written to the file is on the disk;
/// with `metadata` also the file's metadata. Otherwise as ums_submit_read.
#[unsafe(no_mangle)]
pub extern "C" fn ums_submit_sync(
    fd: Descriptor,
    metadata: bool,
    routine: ums_routine,
    arg: Argument,
    pending: Out<'_, Handle<ums_pending>>,
) -> c_int {
    submit(fd, Ok(What::Sync { metadata }), (routine, arg), pending)
}

/// Submits an accept of one connection. The result is the connection's descriptor, in
/// non-blocking mode. Otherwise as ums_submit_read.
#[unsafe(no_mangle)]
pub extern "C" fn ums_submit_accept(
    fd: Descriptor,
    routine: ums_routine,
    arg: Argument,
    pending: Out<'_, Handle<ums_pending>>,
) -> c_int {
    submit(fd, Ok(What::Accept), (routine, arg), pending)
}

/// Submits a connect of a socket. The address is copied. Otherwise as ums_submit_read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ums_submit_connect(
    fd: Descriptor,
    addr: *const sockaddr,
    len: socklen_t,
    routine: ums_routine,
    arg: Argument,
    pending: Out<'_, Handle<ums_pending>>,
) -> c_int {
    // SAFETY: C Caller: what the header says of these.
    let what = unsafe { address(addr, len) }.map(What::Connect);
    submit(fd, what, (routine, arg), pending)
}

/// Asks the system to cancel the request. Its routine is called nevertheless, with -ECANCELED or
/// with the real result. If the request has ended, this has no effect.
#[unsafe(no_mangle)]
pub extern "C" fn ums_pending_cancel(pending: Handle<ums_pending>) -> c_int {
    guard(|| {
        object::get(pending)?.cancel();
        Ok(0)
    })
}

/// Frees the pointer, not the request, which continues. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn ums_pending_free(pending: Handle<ums_pending>) -> c_int {
    guard(|| {
        if !pending.is_null() {
            object::retire(&object::get(pending)?);
        }
        Ok(0)
    })
}

/// What a waiting caller and its routine share.
#[derive(Default)]
struct Shared {
    result: AtomicI64,
    /// Set when the result is there.
    is_over: AtomicBool,
    /// The caller, while it waits.
    sleeper: Lock<Option<Sleeper>>,
}

impl Shared {
    /// Waits for the end of the operation.
    fn wait(&self, wait: Wait) -> Result<(), WaitError> {
        // The routine sets the flag before it looks for a sleeper, so it wakes this one, or the
        // flag is seen here.
        wait.on(self).park(|me| {
            let mut sleeper = self.sleeper.lock();
            match self.is_over.load(Ordering::Acquire) {
                true => drop(me.wake()),
                false => *sleeper = Some(me),
            }
        })
    }
}

impl Told for Arc<Shared> {
    fn tell(self, result: i64) {
        self.result.store(result, Ordering::Relaxed);
        self.is_over.store(true, Ordering::Release);
        let sleeper = self.sleeper.lock().take();
        sleeper.map(Sleeper::wake);
    }
}

/// Submits the operation and waits for it.
fn wait(fd: Descriptor, what: Result<What, Fault>, timeout_ns: u64) -> i64 {
    let mut result = 0;
    let code = guard(|| {
        let what = what?;
        // Checked before the request is submitted: a wait that is refused afterwards would end this
        // call while the kernel still uses the caller's buffer.
        ums::worker::assert_may_wait();
        if what.brings_something() && ums::is_cancelled() {
            // A caller that tries again and again lets others run.
            ums::yield_if_due();
            return Err(WaitError::Cancelled.into());
        }
        if !ums::worker::is_worker() && timeout_ns != UMS_FOREVER {
            poll(&fd, &what, timeout_ns)?;
        }
        let (shared, wait) = (Arc::<Shared>::default(), Wait::new(what.reason()));
        let written = if let What::Write(_, offset) = what { Some(offset) } else { None };
        let syncs = matches!(what, What::Sync { .. });
        let pending = what.request(fd, shared.clone())?.submit();
        let limit = Instant::now().checked_add(span(timeout_ns));
        let limited = limit.map_or(wait, |limit| wait.until(limit));
        let mut waited = shared.wait(limited);
        if waited.is_err() && (syncs || written.is_some_and(|offset| is_file(&fd, offset))) {
            // A cancellation does not end it, so that the caller knows whether it has happened.
            waited = shared.wait(limited.uncancellable());
        }
        if waited.is_err() {
            pending.cancel();
            // Also if the caller's work request is cancelled: the buffer is in use until then.
            let ended = shared.wait(wait.uncancellable());
            ended.expect("the wait has no deadline and cannot be cancelled");
        }
        result = shared.result.load(Ordering::Relaxed);
        match (waited, result) {
            (Err(error), r) if r == -i64::from(libc::ECANCELED) => Err(error.into()),
            (_, r) if r < 0 => Err(io::Error::from_raw_os_error(-r as i32).into()),
            _ => Ok(0),
        }
    });
    if code < 0 { i64::from(code) } else { result }
}

/// Returns whether the descriptor that is used at this offset is that of a file: it has a position.
fn is_file(fd: &Descriptor, offset: u64) -> bool {
    // SAFETY: Plain Call: it has no memory.
    offset != UMS_CURRENT || unsafe { libc::lseek(fd.number(), 0, libc::SEEK_CUR) } >= 0
}

/// Waits until the descriptor is ready, or the time limit expires. On a plain thread this comes
/// before the operation, which would block without a time limit.
fn poll(fd: &Descriptor, what: &What, timeout_ns: u64) -> Result<(), Fault> {
    let events = match what {
        What::Read(_, UMS_CURRENT) | What::Scatter(_, UMS_CURRENT) | What::Accept => libc::POLLIN,
        What::Write(_, UMS_CURRENT) | What::Gather(_, UMS_CURRENT) => libc::POLLOUT,
        _ => return Ok(()),
    };
    poll_for(fd.number(), events, Some(timeout_ns)).map(drop)
}

/// Calls `poll(2)` for these events of one descriptor. Returns the events that have come.
fn poll_for(fd: c_int, events: c_short, timeout_ns: Option<u64>) -> Result<c_short, Fault> {
    let mut set = [libc::pollfd { fd, events, revents: 0 }];
    let left = timeout_ns.map(|ns| libc::timespec {
        tv_sec: (ns / 1_000_000_000).cast_signed(),
        tv_nsec: (ns % 1_000_000_000).cast_signed(),
    });
    let left = left.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: Plain Call: the array and the time outlive it.
    match unsafe { libc::ppoll(set.as_mut_ptr(), 1, left, std::ptr::null()) } {
        0 => Err(WaitError::TimedOut.into()),
        -1 => Err(io::Error::last_os_error().into()),
        _ => Ok(set[0].revents),
    }
}

/// Waits until the descriptor is ready for one of the events, UMS_READABLE and UMS_WRITABLE
/// combined with |, for at most this long. Returns the event that has come, or both. Neither reads
/// nor writes: another caller may take the input first, so the descriptor should be in non-blocking
/// mode.
#[unsafe(no_mangle)]
pub extern "C" fn ums_wait_fd(fd: Descriptor, events: u32, timeout_ns: u64) -> c_int {
    guard(|| {
        if events == 0 || events & !(UMS_READABLE | UMS_WRITABLE) != 0 {
            return Err(Fault::new(libc::EINVAL, format!("no event of a descriptor is {events}")));
        }
        let watch = Watch::new(lend(fd)?);
        let ready = look(&watch, events)?;
        if ready != 0 {
            return Ok(ready as c_int);
        }
        if timeout_ns == 0 {
            return Err(WaitError::TimedOut.into());
        }
        let limit = span(timeout_ns);
        let came = match events {
            UMS_READABLE => ums::with_timeout(limit, || watch.wait_readable()).map(|()| events)?,
            UMS_WRITABLE => ums::with_timeout(limit, || watch.wait_writable()).map(|()| events)?,
            _ if ums::worker::is_worker() => either(&watch).wait_for(limit)??,
            _ => poll_either(watch.get_ref().as_fd().as_raw_fd(), timeout_ns)?,
        };
        Ok(came as c_int)
    })
}

/// Returns which of these events have come already.
fn look(watch: &Watch<LentDescriptor>, events: u32) -> io::Result<u32> {
    let mut ready = 0;
    for event in [UMS_READABLE, UMS_WRITABLE] {
        if events & event != 0
            && let Some(came) = Select::new().on(arm(watch, event), |came| came).try_now()
        {
            came?;
            ready |= event;
        }
    }
    Ok(ready)
}

/// Returns the arm of a select that waits for this event.
pub(super) fn arm(watch: &Watch<LentDescriptor>, event: u32) -> Arm<'_, io::Result<()>> {
    if event == UMS_READABLE { watch.readable() } else { watch.writable() }
}

/// Returns a select for both events.
fn either(watch: &Watch<LentDescriptor>) -> Select<'_, io::Result<u32>> {
    let select = Select::new().on(watch.readable(), |came| came.map(|()| UMS_READABLE));
    select.on(watch.writable(), |came| came.map(|()| UMS_WRITABLE))
}

/// Waits for both events on a plain thread, where a select cannot wait for a descriptor.
fn poll_either(fd: c_int, timeout_ns: u64) -> Result<u32, Fault> {
    let end = Instant::now().checked_add(span(timeout_ns));
    loop {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()).as_nanos() as u64);
        match poll_for(fd, libc::POLLIN | libc::POLLOUT, left) {
            Ok(libc::POLLIN) => return Ok(UMS_READABLE),
            Ok(libc::POLLOUT) => return Ok(UMS_WRITABLE),
            // An error and a hang-up end reads and writes.
            Ok(_) => return Ok(UMS_READABLE | UMS_WRITABLE),
            Err(fault) if fault.errno() == libc::EINTR => {}
            Err(fault) => return Err(fault),
        }
    }
}

/// Reads, and waits until the read has completed; other workers run meanwhile. Returns the number
/// of bytes. Pipes and sockets must be in non-blocking mode (O_NONBLOCK): in blocking mode the call
/// may block its scheduler, and the time limit then has no effect. -ETIMEDOUT: nothing came in that
/// time; with the limit 0, there is nothing to read. -ECANCELED: the work request was cancelled,
/// and nothing was read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ums_read(
    fd: Descriptor,
    buffer: *mut c_void,
    len: usize,
    offset: u64,
    timeout_ns: u64,
) -> i64 {
    // SAFETY: C Caller: the buffer is lent for the time of the call.
    let buffer = unsafe { lent(buffer, len) };
    wait(fd, buffer.map(|buffer| What::Read(buffer, offset)), timeout_ns)
}

/// Writes, and waits until the write has completed; other workers run meanwhile. Returns the number
/// of bytes, which may be less than `len`. Pipes and sockets must be in non-blocking mode
/// (O_NONBLOCK): in blocking mode the call may block its scheduler, and the time limit then has no
/// effect. -ETIMEDOUT: there was no room in that time; with the limit 0, there is none. -ECANCELED:
/// the work request was cancelled, the write to a pipe or socket would have to wait, and nothing
/// was written. A cancellation does not end a write to a file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ums_write(
    fd: Descriptor,
    buffer: *const c_void,
    len: usize,
    offset: u64,
    timeout_ns: u64,
) -> i64 {
    // SAFETY: C Caller: the buffer is lent for the time of the call.
    let buffer = unsafe { lent(buffer.cast_mut(), len) };
    wait(fd, buffer.map(|buffer| What::Write(buffer, offset)), timeout_ns)
}

/// Waits until everything that was written to the file is on the disk; with `metadata` also the
/// file's metadata. A cancellation does not end it.
#[unsafe(no_mangle)]
pub extern "C" fn ums_sync(fd: Descriptor, metadata: bool) -> c_int {
    wait(fd, Ok(What::Sync { metadata }), UMS_FOREVER) as c_int
}

/// Waits for a connection, and accepts it. Returns its descriptor, in non-blocking mode. The
/// listening socket must be in non-blocking mode, too, as for `ums_read`.
#[unsafe(no_mangle)]
pub extern "C" fn ums_accept(fd: Descriptor, timeout_ns: u64) -> c_int {
    wait(fd, Ok(What::Accept), timeout_ns) as c_int
}

/// Connects a socket in non-blocking mode, and waits until it is connected.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ums_connect(
    fd: Descriptor,
    addr: *const sockaddr,
    len: socklen_t,
    timeout_ns: u64,
) -> c_int {
    // SAFETY: C Caller: what the header says of these.
    wait(fd, unsafe { address(addr, len) }.map(What::Connect), timeout_ns) as c_int
}
