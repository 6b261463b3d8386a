//! Interposed calls: what blocks, called through here, hands the place over first and is gated after.
//!
//! [`crate::interpose`] defines the C library's blocking functions in a program, so that code which knows
//! nothing of this crate comes through here. Where a call will surely block (a `poll` that does not wait says
//! so, or it is a sleep) the place is given up before it, which is the fastest way; where that cannot be
//! told, the call is made in the mode CALL and the catcher may take the place.
//!
//! In a thread that is not watched each is the C library's own function and two thread-local looks. Thread
//! workers of a scheduler that detects blocking are not watched either: their calls that will block go
//! preemptive (`detect_here`).
//!
//! Not covered: what the C library calls inside itself (`fgetc`, `getaddrinfo`, `system`), and system calls
//! without it. Those need one of the other mechanisms.
//!
//! Named invariants. **Next Symbol**: what `dlsym` finds behind ours under the same name is the C library's
//! function of the same type. **Passed On**: pointers are the caller's, and are handed on as they came.

#![allow(unsafe_code)]
#![allow(non_upper_case_globals, clippy::missing_safety_doc)]

use std::cell::Cell;
use std::ffi::CStr;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    c_int, c_long, c_uint, c_void, fd_set, iovec, msghdr, nfds_t, off_t, pid_t, pollfd,
    pthread_mutex_t, pthread_t, sem_t, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec,
    timeval, useconds_t,
};

use super::thread::me;

/// Whether the calling thread is watched.
pub fn is_watched() -> bool {
    me().is_some()
}

/// Runs a call that it is given, as its thread should run one that blocks.
type Runner = fn(&mut dyn FnMut());

thread_local! {
    static RUNNER: Cell<Option<Runner>> = const { Cell::new(None) };
}

/// From now on calls of this thread that will block are run by `runner`. The thread is not watched.
pub(crate) fn detect_here(runner: Runner) {
    RUNNER.set(Some(runner));
}

/// Runs a call that may block, for whoever interposes functions of its own. `sure`: whether it surely will.
#[doc(hidden)]
#[inline]
pub fn may_block<R>(sure: impl FnOnce() -> bool, call: impl FnOnce() -> R) -> R {
    run(false, sure, call)
}

/// Runs a call that may block. `sure`: whether it surely will; `likely`: whether it mostly does.
#[inline]
fn run<R>(likely: bool, sure: impl FnOnce() -> bool, call: impl FnOnce() -> R) -> R {
    match me() {
        Some(me) => me.call(sure, call),
        None => match RUNNER.get() {
            Some(runner) if likely || sure() => run_by(runner, call),
            _ => call(),
        },
    }
}

#[cold]
fn run_by<R>(runner: Runner, call: impl FnOnce() -> R) -> R {
    let (mut call, mut result, mut errno) = (Some(call), None, 0);
    // SAFETY: Passed On: this thread's own errno, which the way home must not change.
    let at = unsafe { libc::__errno_location() };
    runner(&mut || {
        result = call.take().map(|call| call());
        // SAFETY: Passed On: as above.
        errno = unsafe { *at };
    });
    // SAFETY: Passed On: as above.
    unsafe { *at = errno };
    result.expect("a runner runs its call")
}

/// A function of the C library.
struct Real {
    name: &'static CStr,
    at: AtomicPtr<c_void>,
}

impl Real {
    const fn of(name: &'static CStr) -> Real {
        Real { name, at: AtomicPtr::new(ptr::null_mut()) }
    }

    fn find(&self) -> *mut c_void {
        let known = self.at.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        // SAFETY: Next Symbol: a name that ends with a zero.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.at.store(found, Ordering::Relaxed);
        found
    }
}

/// Defines interposed functions: the name, and whether it will surely block. Each is found once,
/// before signal handlers need it, by `find_all`.
macro_rules! calls {
    ($( fn $name:ident($($arg:ident: $type:ty),*) -> $out:ty = $sure:expr; )*) => {
        mod real {
            use super::*;
            $( pub(super) static $name: Real = {
                const NAME: &str = concat!(stringify!($name), "\0");
                match CStr::from_bytes_with_nul(NAME.as_bytes()) {
                    Ok(name) => Real::of(name),
                    Err(_) => unreachable!(),
                }
            }; )*
        }

        /// The C library's own functions, without a look.
        mod plain {
            use super::*;
            $(
                pub(super) unsafe fn $name($($arg: $type),*) -> $out {
                    let real = real::$name.find();
                    if real.is_null() {
                        return -1 as _;
                    }
                    // SAFETY: Next Symbol: the type of this name in the C library.
                    let real = unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> $out>(real)
                    };
                    // SAFETY: Passed On.
                    unsafe { real($($arg),*) }
                }
            )*
        }

        $(
            #[doc(hidden)]
            pub unsafe fn $name($($arg: $type),*) -> $out {
                // SAFETY: Passed On.
                run(LIKELY.contains(&stringify!($name)), || $sure, || unsafe { plain::$name($($arg),*) })
            }
        )*

        /// Finds all of them.
        pub(super) fn find_all() {
            $( real::$name.find(); )*
        }
    };
}

/// What mostly waits, although nothing tells before. In a thread that is not watched it is taken for
/// blocking.
const LIKELY: [&str; 11] = [
    "ppoll",
    "select",
    "epoll_wait",
    "waitpid",
    "wait4",
    "waitid",
    "flock",
    "fsync",
    "fdatasync",
    "sem_wait",
    "sem_timedwait",
];

calls! {
    fn read(fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t = waits(fd, libc::POLLIN);
    fn write(fd: c_int, buf: *const c_void, n: size_t) -> ssize_t = waits(fd, libc::POLLOUT);
    fn readv(fd: c_int, parts: *const iovec, n: c_int) -> ssize_t = waits(fd, libc::POLLIN);
    fn writev(fd: c_int, parts: *const iovec, n: c_int) -> ssize_t = waits(fd, libc::POLLOUT);
    fn pread64(fd: c_int, buf: *mut c_void, n: size_t, at: off_t) -> ssize_t = false;
    fn pwrite64(fd: c_int, buf: *const c_void, n: size_t, at: off_t) -> ssize_t = false;
    fn recv(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int) -> ssize_t =
        flags & libc::MSG_DONTWAIT == 0 && waits(fd, libc::POLLIN);
    fn recvfrom(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int, from: *mut sockaddr,
        len: *mut socklen_t) -> ssize_t =
        flags & libc::MSG_DONTWAIT == 0 && waits(fd, libc::POLLIN);
    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t =
        flags & libc::MSG_DONTWAIT == 0 && waits(fd, libc::POLLIN);
    fn send(fd: c_int, buf: *const c_void, n: size_t, flags: c_int) -> ssize_t =
        flags & libc::MSG_DONTWAIT == 0 && waits(fd, libc::POLLOUT);
    fn sendto(fd: c_int, buf: *const c_void, n: size_t, flags: c_int, to: *const sockaddr,
        len: socklen_t) -> ssize_t =
        flags & libc::MSG_DONTWAIT == 0 && waits(fd, libc::POLLOUT);
    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t = false;
    fn accept(fd: c_int, from: *mut sockaddr, len: *mut socklen_t) -> c_int =
        waits(fd, libc::POLLIN);
    fn accept4(fd: c_int, from: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int =
        waits(fd, libc::POLLIN);
    fn connect(fd: c_int, to: *const sockaddr, len: socklen_t) -> c_int = false;
    fn poll(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int = false;
    fn ppoll(fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int
        = false;
    fn select(n: c_int, read: *mut fd_set, write: *mut fd_set, other: *mut fd_set,
        timeout: *mut timeval) -> c_int = false;
    fn epoll_wait(fd: c_int, events: *mut libc::epoll_event, n: c_int, timeout: c_int) -> c_int
        = false;
    fn nanosleep(span: *const timespec, left: *mut timespec) -> c_int = true;
    fn clock_nanosleep(clock: libc::clockid_t, flags: c_int, span: *const timespec,
        left: *mut timespec) -> c_int = true;
    fn usleep(us: useconds_t) -> c_int = us > 0;
    fn sleep(seconds: c_uint) -> c_uint = seconds > 0;
    fn waitpid(pid: pid_t, status: *mut c_int, options: c_int) -> pid_t = false;
    fn wait4(pid: pid_t, status: *mut c_int, options: c_int, usage: *mut libc::rusage) -> pid_t
        = false;
    fn waitid(kind: libc::idtype_t, id: libc::id_t, info: *mut libc::siginfo_t, options: c_int)
        -> c_int = false;
    fn flock(fd: c_int, how: c_int) -> c_int = false;
    fn fsync(fd: c_int) -> c_int = false;
    fn fdatasync(fd: c_int) -> c_int = false;
    fn sem_wait(sem: *mut sem_t) -> c_int = false;
    fn sem_timedwait(sem: *mut sem_t, until: *const timespec) -> c_int = false;
    fn pthread_join(thread: pthread_t, value: *mut *mut c_void) -> c_int = false;
    fn pthread_mutex_lock(mutex: *mut pthread_mutex_t) -> c_int = false;
    fn pthread_sigmask(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int = false;
    fn syscall(number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long)
        -> c_long = false;
}

/// Whether a call on this descriptor will wait: it is not ready, and is one that waits.
fn waits(fd: c_int, events: i16) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec};
    // SAFETY: Passed On: the caller's own call on it comes right after; a closed one is not ready.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd.max(0)) };
    let flags = PollFlags::from_bits_truncate(events as u16);
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let idle = rustix::event::poll(&mut [PollFd::from_borrowed_fd(fd, flags)], Some(&now)) == Ok(0);
    idle && rustix::fs::fcntl_getfl(fd).is_ok_and(|f| !f.contains(rustix::fs::OFlags::NONBLOCK))
}

/// `poll`, with a look first that does not wait.
#[doc(hidden)]
pub unsafe fn poll_with_a_look(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: Passed On.
    let now = || unsafe { plain::poll(fds, n, 0) };
    if timeout == 0 || !is_watched() && RUNNER.get().is_none() {
        // SAFETY: Passed On.
        return unsafe { plain::poll(fds, n, timeout) };
    }
    match now() {
        // SAFETY: Passed On.
        0 => run(false, || true, || unsafe { plain::poll(fds, n, timeout) }),
        ready => ready,
    }
}

/// `pthread_mutex_lock`: the place is at risk only where the lock is taken.
#[doc(hidden)]
pub unsafe fn lock_with_a_look(mutex: *mut pthread_mutex_t) -> c_int {
    if is_watched() {
        // SAFETY: Passed On.
        let tried = unsafe { libc::pthread_mutex_trylock(mutex) };
        if tried != libc::EBUSY {
            return tried;
        }
    }
    // SAFETY: Passed On.
    unsafe { pthread_mutex_lock(mutex) }
}

/// `pthread_sigmask`: a watched thread keeps SIGTRAP unblocked, for that is its gate (R8).
#[doc(hidden)]
pub unsafe fn mask_but_sigtrap(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int {
    // SAFETY: Passed On.
    let plain = |set| unsafe { plain::pthread_sigmask(how, set, old) };
    if set.is_null() || how == libc::SIG_UNBLOCK || !me().is_some_and(|me| me.word.in_user()) {
        return plain(set);
    }
    // SAFETY: Passed On: a copy of the caller's set.
    let mut copy = unsafe { *set };
    // SAFETY: Passed On: a local.
    unsafe { libc::sigdelset(&mut copy, libc::SIGTRAP) };
    plain(&copy)
}

/// `syscall`: only waiting on a futex is looked at.
#[doc(hidden)]
pub unsafe fn syscall_of_a_futex(number: c_long, args: [c_long; 6]) -> c_long {
    let [a, b, c, d, e, f] = args;
    let wait = matches!(
        b as c_int & !(libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME),
        libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET | libc::FUTEX_LOCK_PI
    );
    // SAFETY: Passed On.
    unsafe {
        match number == libc::SYS_futex && wait {
            true => syscall(number, a, b, c, d, e, f),
            false => plain::syscall(number, a, b, c, d, e, f),
        }
    }
}

/// Defines the C library's blocking functions in this program, so that worker threads which call them hand
/// their processor over. Once in a binary or a shared library, at its root.
///
/// See [`crate::watch::calls`] for what they do and what they do not cover.
#[macro_export]
macro_rules! interpose {
    () => {
        $crate::interpose! { @
            read(fd: i32, buf: *mut c_void, n: usize) -> isize;
            write(fd: i32, buf: *const c_void, n: usize) -> isize;
            readv(fd: i32, parts: *const iovec, n: i32) -> isize;
            writev(fd: i32, parts: *const iovec, n: i32) -> isize;
            pread64(fd: i32, buf: *mut c_void, n: usize, at: i64) -> isize;
            pwrite64(fd: i32, buf: *const c_void, n: usize, at: i64) -> isize;
            recv(fd: i32, buf: *mut c_void, n: usize, flags: i32) -> isize;
            recvfrom(fd: i32, buf: *mut c_void, n: usize, flags: i32, from: *mut sockaddr,
                len: *mut u32) -> isize;
            recvmsg(fd: i32, message: *mut msghdr, flags: i32) -> isize;
            send(fd: i32, buf: *const c_void, n: usize, flags: i32) -> isize;
            sendto(fd: i32, buf: *const c_void, n: usize, flags: i32, to: *const sockaddr,
                len: u32) -> isize;
            sendmsg(fd: i32, message: *const msghdr, flags: i32) -> isize;
            accept(fd: i32, from: *mut sockaddr, len: *mut u32) -> i32;
            accept4(fd: i32, from: *mut sockaddr, len: *mut u32, flags: i32) -> i32;
            connect(fd: i32, to: *const sockaddr, len: u32) -> i32;
            ppoll(fds: *mut pollfd, n: u64, timeout: *const timespec, mask: *const sigset_t) -> i32;
            select(n: i32, read: *mut fd_set, write: *mut fd_set, other: *mut fd_set,
                timeout: *mut timeval) -> i32;
            epoll_wait(fd: i32, events: *mut epoll_event, n: i32, timeout: i32) -> i32;
            nanosleep(span: *const timespec, left: *mut timespec) -> i32;
            clock_nanosleep(clock: i32, flags: i32, span: *const timespec, left: *mut timespec)
                -> i32;
            usleep(us: u32) -> i32;
            sleep(seconds: u32) -> u32;
            waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
            wait4(pid: i32, status: *mut i32, options: i32, usage: *mut rusage) -> i32;
            waitid(kind: u32, id: u32, info: *mut siginfo_t, options: i32) -> i32;
            flock(fd: i32, how: i32) -> i32;
            fsync(fd: i32) -> i32;
            fdatasync(fd: i32) -> i32;
            sem_wait(sem: *mut sem_t) -> i32;
            sem_timedwait(sem: *mut sem_t, until: *const timespec) -> i32;
            pthread_join(thread: u64, value: *mut *mut c_void) -> i32;
        }
        #[doc(hidden)]
        #[allow(unsafe_code, missing_docs, clippy::missing_safety_doc)]
        mod ums_interposed_by_hand {
            use $crate::watch::calls::{libc, self};
            #[unsafe(no_mangle)]
            unsafe extern "C" fn poll(fds: *mut libc::pollfd, n: u64, timeout: i32) -> i32 {
                // SAFETY: Passed On, see `ums::watch::calls`.
                unsafe { calls::poll_with_a_look(fds, n, timeout) }
            }
            #[unsafe(no_mangle)]
            unsafe extern "C" fn pthread_mutex_lock(mutex: *mut libc::pthread_mutex_t) -> i32 {
                // SAFETY: Passed On, as above.
                unsafe { calls::lock_with_a_look(mutex) }
            }
            #[unsafe(no_mangle)]
            unsafe extern "C" fn pthread_sigmask(
                how: i32,
                set: *const libc::sigset_t,
                old: *mut libc::sigset_t,
            ) -> i32 {
                // SAFETY: Passed On, as above.
                unsafe { calls::mask_but_sigtrap(how, set, old) }
            }
            // Variadic in C, which on Linux hands these seven over in the same way.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn syscall(
                number: i64, a: i64, b: i64, c: i64, d: i64, e: i64, f: i64,
            ) -> i64 {
                // SAFETY: Passed On, as above.
                unsafe { calls::syscall_of_a_futex(number, [a, b, c, d, e, f]) }
            }
        }
    };
    (@ $( $name:ident($($arg:ident: $type:ty),*) -> $out:ty; )*) => {
        #[doc(hidden)]
        #[allow(unsafe_code, missing_docs, clippy::missing_safety_doc, clippy::too_many_arguments)]
        mod ums_interposed {
            use $crate::watch::calls::libc::*;
            $(
                #[unsafe(no_mangle)]
                unsafe extern "C" fn $name($($arg: $type),*) -> $out {
                    // SAFETY: Passed On, see `ums::watch::calls`.
                    unsafe { $crate::watch::calls::$name($($arg),*) }
                }
            )*
        }
    };
}

#[doc(hidden)]
pub use ::libc;
