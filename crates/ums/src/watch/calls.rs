//! Interposed calls: functions of the C library that may block, replaced so that a watched thread
//! gives its place up before it blocks and passes a gate afterwards.
//!
//! [`crate::interpose`] defines the C library's blocking functions in a program, so that code which
//! was not written for this crate calls the functions of this file. If a call is certain to block
//! (a `poll` that does not wait says so, or the call is a sleep), the place is given up before the
//! call, which is the fastest way. If that is unknown, the call is made in the mode CALL
//! (`word.rs`), and the watcher may revoke the place.
//!
//! In a thread that is not watched, each function looks at two thread-locals and calls the C
//! library's own function. In thread workers of a scheduler that detects blocking, a call that is
//! certain to block goes preemptive. In workers with their own context, even a call that may block
//! goes preemptive (`detect_here`).
//!
//! There is one table of the functions ([`crate::blocking_calls`]), for Rust programs and for the C
//! library of this crate. `pthread_exit` or the cancellation of a thread may leave a call by
//! unwinding. So no frame between the program's call and the C library's function has a destructor
//! that must run.
//!
//! Two kinds of calls are not covered: those that the C library makes inside itself (`fgetc`,
//! `getaddrinfo`, `system`), and system calls that a program makes without the C library. Those
//! need one of the other mechanisms.
//!
//! Named invariants. **Loaded**: the function that `dlsym` finds after ours under the same name is
//! the C library's, and has the same type. **Contract**: pointers are the caller's, and are passed
//! on unchanged.

#![allow(unsafe_code)]
#![allow(non_upper_case_globals, clippy::missing_safety_doc)]

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use errno::{errno, set_errno};
use libc::{
    LOCK_NB, POLLIN, POLLOUT, WNOHANG, c_char, c_int, c_long, c_uint, c_void, clockid_t,
    epoll_event, fd_set, id_t, idtype_t, iovec, msghdr, nfds_t, off_t, pid_t, pollfd,
    pthread_mutex_t, pthread_t, rusage, sem_t, siginfo_t, sigset_t, size_t, sockaddr, socklen_t,
    ssize_t, timespec, timeval, useconds_t,
};

use super::carriers::Carrier;
use super::hosted;
use super::interrupted::Interrupted;
use super::means::Blocks;
use super::signals;
use super::state::BlockedCall;
use super::thread::{Watched, gate_handler, me};
use crate::os::linux::handlers::SignalFrame;

/// Returns whether the calling thread is watched.
pub fn is_watched() -> bool {
    me().is_some()
}

/// What the scheduler of a thread does with the thread's calls that block: block watch calls these
/// methods on that thread. The methods with a default matter only for a thread that a host runs and
/// that can leave its host for its own kernel thread.
pub(crate) trait BlockHandler: Sync {
    /// Returns how likely a call must be to block, at least, for
    /// [`run_declared`](Self::run_declared) to run it. A call that is less likely to block is made
    /// directly.
    fn least_likelihood(&self) -> Blocks;

    /// Runs an interposed call that will block.
    fn run_declared(&self, call: &mut dyn FnMut());

    /// Runs a call in which the thread was seen blocked on its host. Called in a signal handler,
    /// only after [`may_leave`](Self::may_leave) has returned true.
    fn run_seen(&self, call: &mut dyn FnMut()) {
        call();
    }

    /// Returns whether the thread is in user code, where `run_declared` and `run_seen` apply.
    fn is_in_user_code(&self) -> bool {
        false
    }

    /// Returns whether the thread may leave its host at this point. Called with the signal mask
    /// that the interrupted code had.
    fn may_leave(&self) -> bool {
        false
    }

    /// Moves the thread to its own kernel thread, and makes it rejoin its scheduler. Called after
    /// the scheduler was taken from the thread's carrier, which was blocked in the thread's code.
    fn leave_taken(&self, _: &'static Carrier) {}

    /// Moves the worker from its host to its own kernel thread, which then executes one instruction
    /// of the worker and traps. Returns false if the worker may not leave its host at this point.
    fn step_out(&self) -> bool {
        false
    }

    /// Makes the thread rejoin its scheduler after [`step_out`](Self::step_out) and that
    /// instruction.
    fn step_back(&self) {}

    /// Called at an entry of a thread that has no scheduler. If the thread was allowed to run
    /// without its scheduler, and is not in a signal handler, makes it rejoin its scheduler.
    fn settle(&self) {}
}

thread_local! {
    static HANDLER: Cell<Option<&'static dyn BlockHandler>> = const { Cell::new(None) };
}

/// Makes `handler` run every call of the calling thread that is likely enough to block.
pub(crate) fn detect_here(handler: &'static dyn BlockHandler) {
    HANDLER.set(Some(handler));
}

/// Runs a call that may block in the way that the calling thread requires. `blocks` returns how
/// likely the call is to block.
#[doc(hidden)]
#[inline]
pub fn may_block<B: Into<Blocks>, R>(blocks: impl Fn() -> B, call: impl FnOnce() -> R) -> R {
    let (me, handler) = (me(), HANDLER.get());
    if me.is_none() && handler.is_none() {
        return call();
    }
    let (mut call, mut result) = (Some(call), None);
    let mut once = || result = call.take().map(|call| call());
    detect(me, handler, &|| blocks().into(), &mut once);
    result.expect("the call is made")
}

/// The part of [`may_block`] that is compiled once for all functions.
fn detect(
    me: Option<&'static Watched>,
    handler: Option<&'static dyn BlockHandler>,
    blocks: &dyn Fn() -> Blocks,
    call: &mut dyn FnMut(),
) {
    match (me, handler) {
        (None, None) => call(),
        (Some(me), None) => me.call(blocks, call),
        (Some(me), Some(_)) if !me.word.in_user() => call(),
        (me, Some(handler)) => match me {
            _ if blocks() >= handler.least_likelihood() => {
                run_by(|call| handler.run_declared(call), call)
            }
            Some(me) => me.call(&|| Blocks::Unknown, call),
            None => call(),
        },
    }
}

/// Returns whether the calling thread is in user code. Called in the handler of a poke
/// (`signals.rs`).
pub(super) fn is_in_user_code() -> bool {
    HANDLER.get().is_some_and(|handler| handler.is_in_user_code())
}

/// Makes a call again that a poke has interrupted, for a worker of a scheduler, as
/// [`super::Watched::poked`] does for a watched thread. Called in the handler of a poke that
/// interrupted user code.
pub(super) fn poked(frame: &mut SignalFrame<'_>, seen: Option<BlockedCall>, ends: bool) {
    // If the thread may not leave its host, the call is left as it was interrupted. If it were made
    // here, inside the handler, pokes could interrupt it here again and again.
    let Some(handler) = HANDLER.get().filter(|handler| handler.may_leave()) else { return };
    let Some(call) = Interrupted::find(frame, seen) else { return };
    let mut result = -i64::from(libc::EINTR);
    if !ends {
        run_by(|run| handler.run_seen(run), &mut || result = call.make());
    }
    call.is_over(frame, result);
}

/// Lets a worker that was seen blocked in a page fault leave its host for one instruction. Called
/// in the handler of a poke, as [`poked`] is. The signal has ended the wait, and the thread will
/// execute the instruction at `pc` again.
pub(super) fn poked_in_fault(frame: &mut SignalFrame<'_>, pc: u64) {
    let Some(handler) = HANDLER.get() else { return };
    if hosted::is_next(frame, pc) && handler.step_out() {
        signals::let_traps_in();
        hosted::step(frame);
    }
}

/// Makes the calling thread, which has executed the one instruction of `step_out`, rejoin its
/// scheduler.
pub(super) fn has_stepped() {
    HANDLER.get().inspect(|handler| handler.step_back());
}

/// Makes the calling thread leave the carrier that its scheduler was taken from. Called in a signal
/// handler.
pub(super) fn leave_taken(carrier: &'static Carrier) {
    HANDLER.get().inspect(|handler| handler.leave_taken(carrier));
}

/// Called by a thread in user code: if it was allowed to run without its place or its scheduler,
/// that permission ends now.
#[cold]
pub(crate) fn settle() {
    match me() {
        Some(me) => me.settle(),
        None => HANDLER.get().into_iter().for_each(|handler| handler.settle()),
    }
}

#[cold]
fn run_by(run: impl FnOnce(&mut dyn FnMut()), call: &mut dyn FnMut()) {
    // Rejoining the scheduler may change errno, so the errno that the call has left is kept.
    let mut kept = errno();
    run(&mut || {
        call();
        kept = errno();
    });
    set_errno(kept);
}

/// A function of the C library, looked up by name.
struct Real {
    /// The function's name, which ends with a zero.
    name: &'static str,
    at: AtomicPtr<c_void>,
}

impl Real {
    const fn of(name: &'static str) -> Real {
        Real { name, at: AtomicPtr::new(ptr::null_mut()) }
    }

    fn find(&self) -> *mut c_void {
        let known = self.at.load(Ordering::Relaxed);
        if known.is_null() { self.look_up() } else { known }
    }

    #[cold]
    fn look_up(&self) -> *mut c_void {
        // SAFETY: Loaded: a name that ends with a zero.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr().cast()) };
        self.at.store(found, Ordering::Relaxed);
        found
    }

    /// Returns the function, which is about to be called.
    fn get(&self) -> *mut c_void {
        let found = self.find();
        if found.is_null() {
            // If the program has no C library behind this one, it cannot continue.
            std::process::abort();
        }
        found
    }
}

/// The table of all interposed calls, each with the likelihood that it blocks. Passes its rows to
/// the macro of the given name.
#[doc(hidden)]
#[macro_export]
macro_rules! blocking_calls {
    ($then:ident) => {
        $crate::$then! {
            read(fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t, blocks waits(fd, POLLIN);
            write(fd: c_int, buf: *const c_void, n: size_t) -> ssize_t, blocks writes(fd, n);
            readv(fd: c_int, parts: *const iovec, n: c_int) -> ssize_t, blocks waits(fd, POLLIN);
            writev(fd: c_int, parts: *const iovec, n: c_int) -> ssize_t,
                blocks writes(fd, usize::MAX);
            pread64(fd: c_int, buf: *mut c_void, n: size_t, at: off_t) -> ssize_t,
                blocks Blocks::Unlikely;
            pwrite64(fd: c_int, buf: *const c_void, n: size_t, at: off_t) -> ssize_t,
                blocks Blocks::Unlikely;
            recv(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int) -> ssize_t,
                blocks waits_unless(flags, fd, POLLIN);
            recvfrom(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int, from: *mut sockaddr,
                len: *mut socklen_t) -> ssize_t, blocks waits_unless(flags, fd, POLLIN);
            recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t,
                blocks waits_unless(flags, fd, POLLIN);
            send(fd: c_int, buf: *const c_void, n: size_t, flags: c_int) -> ssize_t,
                blocks writes_unless(flags, fd, n);
            sendto(fd: c_int, buf: *const c_void, n: size_t, flags: c_int, to: *const sockaddr,
                len: socklen_t) -> ssize_t, blocks writes_unless(flags, fd, n);
            sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t,
                blocks writes_unless(flags, fd, usize::MAX);
            accept(fd: c_int, from: *mut sockaddr, len: *mut socklen_t) -> c_int,
                blocks waits(fd, POLLIN);
            accept4(fd: c_int, from: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int,
                blocks waits(fd, POLLIN);
            connect(fd: c_int, to: *const sockaddr, len: socklen_t) -> c_int, blocks connects(fd);
            poll(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int,
                blocks poll_waits(fds, n, timeout);
            ppoll(fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t)
                -> c_int, blocks ppoll_waits(fds, n, timeout);
            select(n: c_int, read: *mut fd_set, write: *mut fd_set, other: *mut fd_set,
                timeout: *mut timeval) -> c_int, blocks unless(is_zero(timeout));
            pselect(n: c_int, read: *mut fd_set, write: *mut fd_set, other: *mut fd_set,
                timeout: *const timespec, mask: *const sigset_t) -> c_int,
                blocks unless(is_no_time(timeout));
            epoll_wait(fd: c_int, events: *mut epoll_event, n: c_int, timeout: c_int) -> c_int,
                blocks unless(timeout == 0);
            epoll_pwait(fd: c_int, events: *mut epoll_event, n: c_int, timeout: c_int,
                mask: *const sigset_t) -> c_int, blocks unless(timeout == 0);
            nanosleep(span: *const timespec, left: *mut timespec) -> c_int,
                blocks is_some_time(span);
            clock_nanosleep(clock: clockid_t, flags: c_int, span: *const timespec,
                left: *mut timespec) -> c_int, blocks flags != 0 || is_some_time(span);
            usleep(us: useconds_t) -> c_int, blocks us > 0;
            sleep(seconds: c_uint) -> c_uint, blocks seconds > 0;
            waitpid(pid: pid_t, status: *mut c_int, options: c_int) -> pid_t,
                blocks unless(options & WNOHANG != 0);
            wait4(pid: pid_t, status: *mut c_int, options: c_int, usage: *mut rusage) -> pid_t,
                blocks unless(options & WNOHANG != 0);
            waitid(kind: idtype_t, id: id_t, info: *mut siginfo_t, options: c_int) -> c_int,
                blocks unless(options & WNOHANG != 0);
            flock(fd: c_int, how: c_int) -> c_int, blocks unless(how & LOCK_NB != 0);
            fsync(fd: c_int) -> c_int, blocks false;
            fdatasync(fd: c_int) -> c_int, blocks false;
            sem_wait(sem: *mut sem_t) -> c_int, blocks false;
            sem_timedwait(sem: *mut sem_t, until: *const timespec) -> c_int, blocks false;
            msgrcv(queue: c_int, message: *mut c_void, n: size_t, kind: c_long, flags: c_int)
                -> ssize_t, blocks false;
            mq_receive(queue: c_int, message: *mut c_char, n: size_t, priority: *mut c_uint)
                -> ssize_t, blocks false;
            pthread_join(thread: pthread_t, value: *mut *mut c_void) -> c_int, blocks false;
        }
    };
}

/// Calls the C library's own function of this name.
macro_rules! real {
    ($name:ident($($arg:ident: $type:ty),*) -> $out:ty) => {{
        static REAL: &Real = &real::$name;
        type Function = unsafe extern "C-unwind" fn($($type),*) -> $out;
        // SAFETY: Loaded: the type of this name in the C library.
        let function = unsafe { std::mem::transmute::<*mut c_void, Function>(REAL.get()) };
        // SAFETY: Contract.
        unsafe { function($($arg),*) }
    }};
}

/// Expands each row of the table to a function that checks how likely the call is to block, and
/// makes a function that looks up all of them before a signal handler needs one.
#[doc(hidden)]
#[macro_export]
macro_rules! with_a_look {
    ($( $name:ident($($arg:ident: $type:ty),*) -> $out:ty, blocks $blocks:expr; )*) => {
        mod real {
            use super::Real;
            #[cfg(test)]
            use super::Ordering;
            $( pub(super) static $name: Real = Real::of(concat!(stringify!($name), "\0")); )*
            pub(super) static pthread_mutex_lock: Real = Real::of("pthread_mutex_lock\0");
            pub(super) static pthread_sigmask: Real = Real::of("pthread_sigmask\0");
            pub(super) static syscall: Real = Real::of("syscall\0");
            pub(super) static pthread_exit: Real = Real::of("pthread_exit\0");

            /// Returns whether all of them are known.
            #[cfg(test)]
            pub fn are_known() -> bool {
                [$( &$name ),*].iter().all(|real| !real.at.load(Ordering::Relaxed).is_null())
            }

            /// Looks up all of them.
            pub fn find_all() {
                $( $name.find(); )*
                for by_hand in [&pthread_mutex_lock, &pthread_sigmask, &syscall, &pthread_exit] {
                    by_hand.find();
                }
            }
        }

        $(
            #[doc(hidden)]
            pub unsafe fn $name($($arg: $type),*) -> $out {
                may_block(|| $blocks, || real!($name($($arg: $type),*) -> $out))
            }
        )*
    };
}

blocking_calls!(with_a_look);
#[cfg(test)]
pub(super) use real::are_known;
pub(super) use real::find_all;

/// Returns how likely a call on this descriptor is to wait: certain if the descriptor is blocking
/// and not ready.
fn waits(fd: c_int, events: i16) -> Blocks {
    use rustix::event::{PollFd, PollFlags, Timespec};
    // SAFETY: Contract: the caller's own call on the descriptor comes right after this one; if the
    // descriptor is closed, `poll` says so and does not wait.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd.max(0)) };
    // The type of the bits depends on how rustix calls the system: not directly under miri.
    let flags = PollFlags::from_bits_truncate(events as _);
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let idle = rustix::event::poll(&mut [PollFd::from_borrowed_fd(fd, flags)], Some(&now)) == Ok(0);
    certain(idle && !is_nonblocking(std::os::fd::AsRawFd::as_raw_fd(&fd)))
}

/// Returns the likelihood of a call about which a look has told whether it waits.
fn certain(waits: bool) -> Blocks {
    if waits { Blocks::Certain } else { Blocks::Unlikely }
}

/// Returns the likelihood of a call that does not wait if its caller says so, and else may.
fn unless(never: bool) -> Blocks {
    if never { Blocks::Unlikely } else { Blocks::Unknown }
}

/// The number of bytes that always fit into a descriptor that is ready for writing.
const LITTLE: size_t = libc::PIPE_BUF;

/// Returns how likely it is that writing `n` bytes waits. A descriptor that is ready may have room
/// for some of the bytes only.
fn writes(fd: c_int, n: size_t) -> Blocks {
    if n > LITTLE && !is_nonblocking(fd) {
        return waits(fd, POLLOUT).max(Blocks::Unknown);
    }
    waits(fd, POLLOUT)
}

fn is_nonblocking(fd: c_int) -> bool {
    // SAFETY: Contract: only asks for flags; on a closed descriptor that fails.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    flags >= 0 && flags & libc::O_NONBLOCK != 0
}

/// Returns how likely it is that connecting waits: not with a descriptor in non-blocking mode.
fn connects(fd: c_int) -> Blocks {
    if is_nonblocking(fd) { Blocks::Unlikely } else { Blocks::Unknown }
}

/// Returns as `waits`, unless the caller has asked not to wait.
fn waits_unless(flags: c_int, fd: c_int, events: i16) -> Blocks {
    if flags & libc::MSG_DONTWAIT != 0 { Blocks::Unlikely } else { waits(fd, events) }
}

/// Returns as `writes`, unless the caller has asked not to wait.
fn writes_unless(flags: c_int, fd: c_int, n: size_t) -> Blocks {
    if flags & libc::MSG_DONTWAIT != 0 { Blocks::Unlikely } else { writes(fd, n) }
}

/// Returns whether this span is longer than zero.
fn is_some_time(time: *const timespec) -> bool {
    // SAFETY: Contract: the caller's structure, which the call itself would read.
    let time = unsafe { time.as_ref() };
    time.is_some_and(|time| time.tv_sec > 0 || time.tv_nsec > 0)
}

/// Returns whether there is a time limit, and it is zero.
fn is_no_time(limit: *const timespec) -> bool {
    !limit.is_null() && !is_some_time(limit)
}

/// As `is_no_time`.
fn is_zero(limit: *const timeval) -> bool {
    // SAFETY: Contract: the caller's structure, which the call itself would read.
    let limit = unsafe { limit.as_ref() };
    limit.is_some_and(|limit| limit.tv_sec == 0 && limit.tv_usec == 0)
}

/// Returns how likely a `poll` is to wait, by making one that does not wait.
fn poll_waits(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> Blocks {
    let now = 0;
    certain(timeout != now && real!(poll(fds: *mut pollfd, n: nfds_t, now: c_int) -> c_int) == 0)
}

/// As `poll_waits`.
fn ppoll_waits(fds: *mut pollfd, n: nfds_t, limit: *const timespec) -> Blocks {
    if is_no_time(limit) { Blocks::Unlikely } else { poll_waits(fds, n, -1) }
}

/// `pthread_mutex_lock`: counts as a call that may block only if another thread holds the lock.
#[doc(hidden)]
pub unsafe fn lock_with_a_look(mutex: *mut pthread_mutex_t) -> c_int {
    if is_watched() || HANDLER.get().is_some() {
        // SAFETY: Contract.
        let tried = unsafe { libc::pthread_mutex_trylock(mutex) };
        if tried != libc::EBUSY {
            return tried;
        }
    }
    let lock = || real!(pthread_mutex_lock(mutex: *mut pthread_mutex_t) -> c_int);
    may_block(|| false, lock)
}

/// `pthread_sigmask`: a watched thread keeps SIGTRAP unblocked, because SIGTRAP is its gate (R8 in
/// docs/design/races.md).
#[doc(hidden)]
pub unsafe fn mask_but_sigtrap(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int {
    type Set = *const sigset_t;
    type Old = *mut sigset_t;
    let plain = |set: Set| real!(pthread_sigmask(how: c_int, set: Set, old: Old) -> c_int);
    if set.is_null() || how == libc::SIG_UNBLOCK || !me().is_some_and(|me| me.word.in_user()) {
        return plain(set);
    }
    // SAFETY: Contract: a copy of the caller's set.
    let mut copy = unsafe { *set };
    // SAFETY: Contract: a local.
    unsafe { libc::sigdelset(&mut copy, libc::SIGTRAP) };
    plain(&copy)
}

/// `syscall`: counts as a call that may block only if it waits on a futex.
#[doc(hidden)]
pub unsafe fn syscall_of_a_futex(number: c_long, args: [c_long; 6]) -> c_long {
    type Arg = c_long;
    let [a, b, c, d, e, f] = args;
    let operation = b as c_int & !(libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME);
    let wait =
        matches!(operation, libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET | libc::FUTEX_LOCK_PI);
    let call =
        || real!(syscall(number: Arg, a: Arg, b: Arg, c: Arg, d: Arg, e: Arg, f: Arg) -> c_long);
    if number == libc::SYS_futex && wait { may_block(|| false, call) } else { call() }
}

/// `pthread_exit`: first moves the thread to its own kernel thread, because it must end there.
#[doc(hidden)]
pub unsafe fn exit_on_own_thread(value: *mut c_void) -> ! {
    if me().is_some() {
        gate_handler().before_exit();
    }
    type Function = unsafe extern "C-unwind" fn(*mut c_void) -> !;
    // SAFETY: Loaded: the type of this name in the C library, except that ours declares the
    // unwinding, which the function does.
    let function =
        unsafe { std::mem::transmute::<*mut c_void, Function>(real::pthread_exit.get()) };
    // SAFETY: Contract.
    unsafe { function(value) }
}

/// Defines the C library's blocking functions in this program, so that worker threads which call
/// them give up their processor while they block. Use it once in a binary or a shared library, at
/// its root.
///
/// The functions are those that read, write, wait, sleep and lock, such as `read`, `poll`,
/// `nanosleep` and `pthread_mutex_lock`. They have an effect on thread workers with
/// [`Builder::detect_blocking`](crate::Builder::detect_blocking), on workers with their own
/// context, and on the workers of `ums::windows`; on other threads they only call the C library's
/// own function. They do not cover what the C library calls inside itself (`fgetc`, `getaddrinfo`,
/// `system`), and system calls that are made without the C library.
///
/// ```text
/// ums::interpose!(); // beside `fn main`
/// ```
#[macro_export]
macro_rules! interpose {
    () => {
        $crate::blocking_calls! { interpose }
        #[doc(hidden)]
        #[allow(unsafe_code, missing_docs, clippy::missing_safety_doc, clippy::too_many_arguments)]
        mod ums_interposed_by_hand {
            use $crate::watch::calls::{libc, self};
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn pthread_mutex_lock(
                mutex: *mut libc::pthread_mutex_t,
            ) -> i32 {
                // SAFETY: Contract, see `ums::watch::calls`.
                unsafe { calls::lock_with_a_look(mutex) }
            }
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn pthread_sigmask(
                how: i32,
                set: *const libc::sigset_t,
                old: *mut libc::sigset_t,
            ) -> i32 {
                // SAFETY: Contract, as above.
                unsafe { calls::mask_but_sigtrap(how, set, old) }
            }
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn pthread_exit(value: *mut libc::c_void) -> ! {
                // SAFETY: Contract, as above.
                unsafe { calls::exit_on_own_thread(value) }
            }
            // In C, `syscall` is variadic. On Linux a variadic call passes these seven arguments as
            // this one does.
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn syscall(
                number: i64, a: i64, b: i64, c: i64, d: i64, e: i64, f: i64,
            ) -> i64 {
                // SAFETY: Contract, as above.
                unsafe { calls::syscall_of_a_futex(number, [a, b, c, d, e, f]) }
            }
        }
    };
    ($( $name:ident($($arg:ident: $type:ty),*) -> $out:ty, blocks $blocks:expr; )*) => {
        #[doc(hidden)]
        #[allow(unsafe_code, missing_docs, clippy::missing_safety_doc, clippy::too_many_arguments)]
        mod ums_interposed {
            use $crate::watch::calls::libc::*;
            $(
                #[unsafe(no_mangle)]
                unsafe extern "C-unwind" fn $name($($arg: $type),*) -> $out {
                    // SAFETY: Contract, see `ums::watch::calls`.
                    unsafe { $crate::watch::calls::$name($($arg),*) }
                }
            )*
        }
    };
}

#[doc(hidden)]
pub use ::libc;
