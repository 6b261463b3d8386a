//! Interposed calls: a call that blocks, made through here, gives the thread's place up first and
//! passes a gate after.
//!
//! [`crate::interpose`] defines the C library's blocking functions in a program, so that code which
//! knows nothing of this crate calls these. If a call is certain to block (a `poll` that does not
//! wait says so, or it is a sleep), the place is given up before it, which is the fastest way. If
//! that is unknown, the call is made in the mode CALL, and the watcher may take the place.
//!
//! In a thread that is not watched each is the C library's own function after two thread-local
//! looks. In thread workers of a scheduler that detects blocking, a call that is certain to block
//! goes preemptive; in workers with their own context, a call that may block does
//! (`detect_here`).
//!
//! There is one table ([`crate::blocking_calls`]) and one way through, for Rust programs and for
//! the C library of this crate. A call may be left by `pthread_exit` or a thread's cancellation,
//! which unwind: nothing on the way needs a destructor while the C library's function runs.
//!
//! Not covered: what the C library calls inside itself (`fgetc`, `getaddrinfo`, `system`), and
//! system calls without it. Those need one of the other mechanisms.
//!
//! Named invariants. **Loaded**: what `dlsym` finds behind ours under the same name is the C
//! library's function of the same type. **Contract**: pointers are the caller's, and are handed on
//! unchanged.

#![allow(unsafe_code)]
#![allow(non_upper_case_globals, clippy::missing_safety_doc)]

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use errno::{errno, set_errno};
use libc::{
    POLLIN, POLLOUT, c_char, c_int, c_long, c_uint, c_void, clockid_t, epoll_event, fd_set, id_t,
    idtype_t, iovec, msghdr, nfds_t, off_t, pid_t, pollfd, pthread_mutex_t, pthread_t, rusage,
    sem_t, siginfo_t, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval,
    useconds_t,
};

use super::carriers::Carrier;
use super::hosted;
use super::interrupted::Interrupted;
use super::means::Blocks;
use super::signals;
use super::state::Seen;
use super::thread::{gate_handler, me};
use crate::os::linux::handlers::Frame;

/// Returns whether the calling thread is watched.
pub fn is_watched() -> bool {
    me().is_some()
}

/// The interface through which the block watch talks to the scheduler of a thread: how the thread
/// runs calls that block. All methods are called on that thread. Those with a default matter only
/// for a thread that a host runs, which can leave its host for its own kernel thread.
pub(crate) trait BlockHandler: Sync {
    /// Returns the least likelihood of blocking at which [`run_declared`](Self::run_declared) runs
    /// a call.
    fn least_likelihood(&self) -> Blocks;

    /// Runs an interposed call that will block.
    fn run_declared(&self, call: &mut dyn FnMut());

    /// Runs a call that was seen to block on the thread's host. Called in a signal handler, only
    /// after [`may_leave`](Self::may_leave) has allowed it.
    fn run_seen(&self, call: &mut dyn FnMut()) {
        call();
    }

    /// Returns whether the thread is in code whose calls are run so.
    fn is_in_user_code(&self) -> bool {
        false
    }

    /// Returns whether it may leave its host there. Called with the signal mask of that code.
    fn may_leave(&self) -> bool {
        false
    }

    /// Moves the thread, whose scheduler was taken from its host while it was blocked there, to its
    /// own kernel thread, and makes it rejoin its scheduler.
    fn leave_taken(&self, _: &'static Carrier) {}

    /// Moves the thread to its own kernel thread, for one instruction. Returns false if it may not
    /// leave from here.
    fn step_out(&self) -> bool {
        false
    }

    /// Makes the thread rejoin its scheduler after that instruction.
    fn step_back(&self) {}
}

thread_local! {
    static HANDLER: Cell<Option<&'static dyn BlockHandler>> = const { Cell::new(None) };
}

/// From now on, `handler` runs every call of this thread that is about to block.
pub(crate) fn detect_here(handler: &'static dyn BlockHandler) {
    HANDLER.set(Some(handler));
}

/// Runs a call that may block as the calling thread must run it. `blocks` returns how likely it is
/// to block.
#[doc(hidden)]
#[inline]
pub fn may_block<B: Into<Blocks>, R>(blocks: impl FnOnce() -> B, call: impl FnOnce() -> R) -> R {
    match (me(), HANDLER.get()) {
        (None, None) => call(),
        (Some(me), None) => me.call(|| blocks().into(), call),
        (Some(me), Some(_)) if !me.word.in_user() => call(),
        (me, Some(handler)) => match me {
            _ if blocks().into() >= handler.least_likelihood() => {
                run_by(|call| handler.run_declared(call), call)
            }
            Some(me) => me.call(|| Blocks::Unknown, call),
            None => call(),
        },
    }
}

/// Returns whether the calling thread, in the handler of a poke, is in code whose calls are moved
/// to its own kernel thread.
pub(super) fn is_in_user_code() -> bool {
    HANDLER.get().is_some_and(|handler| handler.is_in_user_code())
}

/// Does for the calling thread, in the handler of a poke and in such code, what
/// [`super::Watched::poked`] does for a watched one.
pub(super) fn poked(frame: &mut Frame<'_>, seen: Option<Seen>, ends: bool) {
    // If the thread may not leave, the call stays as it was interrupted: made here, it could be
    // interrupted in here again and again.
    let Some(handler) = HANDLER.get().filter(|handler| handler.may_leave()) else { return };
    let Some(call) = Interrupted::find(frame, seen) else { return };
    let result = match ends {
        true => -i64::from(libc::EINTR),
        false => run_by(|run| handler.run_seen(run), || call.make()),
    };
    call.is_over(frame, result);
}

/// Does as [`poked`] for a thread that was seen blocked in a fault, which the signal has ended: the
/// instruction at `pc` is next, once more.
pub(super) fn poked_in_fault(frame: &mut Frame<'_>, pc: u64) {
    let Some(handler) = HANDLER.get() else { return };
    if hosted::is_next(frame, pc) && handler.step_out() {
        signals::let_traps_in();
        hosted::step(frame);
    }
}

/// Makes the calling thread, which has executed its one instruction, rejoin its scheduler.
pub(super) fn has_stepped() {
    HANDLER.get().inspect(|handler| handler.step_back());
}

/// Makes the calling thread, in a handler, leave the carrier that its scheduler was taken from.
pub(super) fn leave_taken(carrier: &'static Carrier) {
    HANDLER.get().inspect(|handler| handler.leave_taken(carrier));
}

#[cold]
fn run_by<R>(run: impl FnOnce(&mut dyn FnMut()), call: impl FnOnce() -> R) -> R {
    // Rejoining must not change the call's errno.
    let (mut call, mut result, mut kept) = (Some(call), None, errno());
    run(&mut || {
        result = call.take().map(|call| call());
        kept = errno();
    });
    set_errno(kept);
    result.expect("the handler runs the call")
}

/// A function of the C library.
struct Real {
    /// Its name, which ends with a zero.
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
            // A program without a C library behind this one cannot continue.
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
            connect(fd: c_int, to: *const sockaddr, len: socklen_t) -> c_int, blocks false;
            poll(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int,
                blocks poll_waits(fds, n, timeout);
            ppoll(fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t)
                -> c_int, blocks false;
            select(n: c_int, read: *mut fd_set, write: *mut fd_set, other: *mut fd_set,
                timeout: *mut timeval) -> c_int, blocks false;
            pselect(n: c_int, read: *mut fd_set, write: *mut fd_set, other: *mut fd_set,
                timeout: *const timespec, mask: *const sigset_t) -> c_int, blocks false;
            epoll_wait(fd: c_int, events: *mut epoll_event, n: c_int, timeout: c_int) -> c_int,
                blocks false;
            epoll_pwait(fd: c_int, events: *mut epoll_event, n: c_int, timeout: c_int,
                mask: *const sigset_t) -> c_int, blocks false;
            nanosleep(span: *const timespec, left: *mut timespec) -> c_int,
                blocks is_some_time(span);
            clock_nanosleep(clock: clockid_t, flags: c_int, span: *const timespec,
                left: *mut timespec) -> c_int, blocks flags != 0 || is_some_time(span);
            usleep(us: useconds_t) -> c_int, blocks us > 0;
            sleep(seconds: c_uint) -> c_uint, blocks seconds > 0;
            waitpid(pid: pid_t, status: *mut c_int, options: c_int) -> pid_t, blocks false;
            wait4(pid: pid_t, status: *mut c_int, options: c_int, usage: *mut rusage) -> pid_t,
                blocks false;
            waitid(kind: idtype_t, id: id_t, info: *mut siginfo_t, options: c_int) -> c_int,
                blocks false;
            flock(fd: c_int, how: c_int) -> c_int, blocks false;
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

/// Calls the C library's own function, whatever the table says.
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

/// Makes each row of the table a function that looks first, and a function that finds all of them
/// before a signal handler needs one.
#[doc(hidden)]
#[macro_export]
macro_rules! with_a_look {
    ($( $name:ident($($arg:ident: $type:ty),*) -> $out:ty, blocks $blocks:expr; )*) => {
        mod real {
            use super::Real;
            $( pub(super) static $name: Real = Real::of(concat!(stringify!($name), "\0")); )*
            pub(super) static pthread_mutex_lock: Real = Real::of("pthread_mutex_lock\0");
            pub(super) static pthread_sigmask: Real = Real::of("pthread_sigmask\0");
            pub(super) static syscall: Real = Real::of("syscall\0");
            pub(super) static pthread_exit: Real = Real::of("pthread_exit\0");

            /// Finds all of them.
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
pub(super) use real::find_all;

/// Returns how likely a call on this descriptor is to wait: certain if it is not ready and is not
/// nonblocking.
fn waits(fd: c_int, events: i16) -> Blocks {
    use rustix::event::{PollFd, PollFlags, Timespec};
    // SAFETY: Contract: the caller's own call on it comes right after; a closed one is not ready.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd.max(0)) };
    let flags = PollFlags::from_bits_truncate(events as u16);
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let idle = rustix::event::poll(&mut [PollFd::from_borrowed_fd(fd, flags)], Some(&now)) == Ok(0);
    let fd = std::os::fd::AsRawFd::as_raw_fd(&fd);
    if idle && !is_nonblocking(fd) { Blocks::Certain } else { Blocks::Unlikely }
}

/// As much as always fits into a descriptor that is ready for writing.
const LITTLE: size_t = libc::PIPE_BUF;

/// Returns how likely it is that writing `n` bytes waits: there may be room for some of them only.
fn writes(fd: c_int, n: size_t) -> Blocks {
    if n > LITTLE && !is_nonblocking(fd) {
        return waits(fd, POLLOUT).max(Blocks::Unknown);
    }
    waits(fd, POLLOUT)
}

fn is_nonblocking(fd: c_int) -> bool {
    // SAFETY: Contract: asks for flags; for a closed descriptor that fails.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    flags >= 0 && flags & libc::O_NONBLOCK != 0
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

/// Returns how likely a `poll` is to wait, by making one that does not wait.
fn poll_waits(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> Blocks {
    let now = 0;
    let waits =
        timeout != now && real!(poll(fds: *mut pollfd, n: nfds_t, now: c_int) -> c_int) == 0;
    if waits { Blocks::Certain } else { Blocks::Unlikely }
}

/// `pthread_mutex_lock`: the place is at risk only if the lock is held by another thread.
#[doc(hidden)]
pub unsafe fn lock_with_a_look(mutex: *mut pthread_mutex_t) -> c_int {
    if is_watched() {
        // SAFETY: Contract.
        let tried = unsafe { libc::pthread_mutex_trylock(mutex) };
        if tried != libc::EBUSY {
            return tried;
        }
    }
    let lock = || real!(pthread_mutex_lock(mutex: *mut pthread_mutex_t) -> c_int);
    may_block(|| false, lock)
}

/// `pthread_sigmask`: a watched thread keeps SIGTRAP unblocked, for that is its gate (R8).
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

/// `syscall`: only a wait on a futex is treated as a call that may block.
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

/// `pthread_exit`: a thread ends on its own kernel thread.
#[doc(hidden)]
pub unsafe fn exit_on_own_thread(value: *mut c_void) -> ! {
    if me().is_some() {
        gate_handler().before_exit();
    }
    type Function = unsafe extern "C-unwind" fn(*mut c_void) -> !;
    // SAFETY: Loaded: the type of this name in the C library, but for the unwinding, which it
    // does.
    let function =
        unsafe { std::mem::transmute::<*mut c_void, Function>(real::pthread_exit.get()) };
    // SAFETY: Contract.
    unsafe { function(value) }
}

/// Defines the C library's blocking functions in this program, so that worker threads which call
/// them hand their processor over. Use it once in a binary or a shared library, at its root.
///
/// The functions are those that read, write, wait, sleep and lock, such as `read`, `poll`,
/// `nanosleep` and `pthread_mutex_lock`. They have an effect on thread workers with
/// [`Builder::detect_blocking`](crate::Builder::detect_blocking), on workers with their own
/// context, and on the workers of [`windows`](crate::windows); on other threads they only call the
/// C library's own function. Not covered is what the C library calls inside itself (`fgetc`,
/// `getaddrinfo`, `system`), and system calls that are made without it.
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
            // Variadic in C, which on Linux hands these seven over in the same way.
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
