//! Interposed calls: what blocks, called through here, hands the place over first and is gated
//! after.
//!
//! [`crate::interpose`] defines the C library's blocking functions in a program, so that code which
//! knows nothing of this crate comes through here. Where a call will surely block (a `poll` that
//! does not wait says so, or it is a sleep) the place is given up before it, which is the fastest
//! way; where that cannot be told, the call is made in the mode CALL and the catcher may take the
//! place.
//!
//! In a thread that is not watched each is the C library's own function and two thread-local looks.
//! In thread workers of a scheduler that detects blocking, a call that surely blocks goes
//! preemptive, and in workers with their own context one that may (`detect_here`).
//!
//! There is one table ([`crate::blocking_calls`]) and one way through, for Rust programs and for
//! the C library of this crate. A call may be left by `pthread_exit` or a thread's cancellation,
//! which unwind: nothing on the way needs a destructor while the C library's function runs.
//!
//! Not covered: what the C library calls inside itself (`fgetc`, `getaddrinfo`, `system`), and
//! system calls without it. Those need one of the other mechanisms.
//!
//! Named invariants. **Next Symbol**: what `dlsym` finds behind ours under the same name is the C
//! library's function of the same type. **Passed On**: pointers are the caller's, and are handed on
//! as they came.

#![allow(unsafe_code)]
#![allow(non_upper_case_globals, clippy::missing_safety_doc)]

use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    POLLIN, POLLOUT, c_char, c_int, c_long, c_uint, c_void, clockid_t, epoll_event, fd_set, id_t,
    idtype_t, iovec, msghdr, nfds_t, off_t, pid_t, pollfd, pthread_mutex_t, pthread_t, rusage,
    sem_t, siginfo_t, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval,
    useconds_t,
};

use super::Blocks;
use super::carriers::Carrier;
use super::hosted;
use super::interrupted::Interrupted;
use super::signals;
use super::state::Seen;
use super::thread::{keeper, me};

/// Whether the calling thread is watched.
pub fn is_watched() -> bool {
    me().is_some()
}

/// Runs a call that it is given, as its thread should run one that blocks.
type Run = fn(&mut dyn FnMut());

/// How calls of a thread are run that blocks for its scheduler to know of it.
#[derive(Clone, Copy)]
pub(crate) struct Runner {
    /// One that comes through here, and will block.
    pub declared: Run,
    /// One that was seen to block on the thread's host.
    pub seen: Run,
    /// Whether the thread is in code whose calls are run so.
    pub is_in_user_code: fn() -> bool,
    /// Whether it may leave its host there, asked with the signal mask of that code.
    pub may_leave: fn() -> bool,
    /// From which likelihood on a call is.
    pub from: Blocks,
    /// It has lost its host while it was blocked there: goes on on its own kernel thread, and comes
    /// home.
    pub leave_taken: fn(&'static Carrier),
    /// It goes on on its own kernel thread, for one instruction. False: not from here.
    pub step_out: fn() -> bool,
    /// That instruction is over: it comes home.
    pub step_back: fn(),
}

thread_local! {
    static RUNNER: Cell<Option<Runner>> = const { Cell::new(None) };
}

/// From now on calls of this thread that will block are run by `runner`.
pub(crate) fn detect_here(runner: Runner) {
    RUNNER.set(Some(runner));
}

/// Runs a call that may block, as its thread should. `blocks`: whether it will.
#[doc(hidden)]
#[inline]
pub fn may_block<B: Into<Blocks>, R>(blocks: impl FnOnce() -> B, call: impl FnOnce() -> R) -> R {
    match (me(), RUNNER.get()) {
        (None, None) => call(),
        (Some(me), None) => me.call(|| blocks().into(), call),
        (Some(me), Some(_)) if !me.word.in_user() => call(),
        (me, Some(runner)) => match me {
            _ if blocks().into() >= runner.from => run_by(runner.declared, call),
            Some(me) => me.call(|| Blocks::Perhaps, call),
            None => call(),
        },
    }
}

/// Whether the calling thread, in the handler of a poke, is in code whose calls are carried over.
pub(super) fn is_in_user_code() -> bool {
    RUNNER.get().is_some_and(|runner| (runner.is_in_user_code)())
}

/// The calling thread, in the handler of a poke and in such code; as [`super::Watched::poked`] of a
/// thread that is watched.
pub(super) fn poked(frame: *mut libc::ucontext_t, seen: Option<Seen>, ends: bool) {
    // One that may not is left as it was interrupted: made here, it could be interrupted in here
    // again and again.
    let Some(runner) = RUNNER.get().filter(|runner| (runner.may_leave)()) else { return };
    let Some(call) = Interrupted::find(frame, seen) else { return };
    let result = match ends {
        true => -i64::from(libc::EINTR),
        false => run_by(runner.seen, || call.make()),
    };
    call.is_over(frame, result);
}

/// As [`poked`], of one that was seen blocked in a fault, which the signal has ended: the
/// instruction at `pc` is next, once more.
pub(super) fn poked_in_fault(frame: *mut libc::ucontext_t, pc: u64) {
    let Some(runner) = RUNNER.get() else { return };
    if hosted::is_next(frame, pc) && (runner.step_out)() {
        signals::let_traps_in();
        hosted::step(frame);
    }
}

/// The calling thread has made its step.
pub(super) fn has_stepped() {
    RUNNER.get().inspect(|runner| (runner.step_back)());
}

/// The calling thread, in a handler, has lost its host.
pub(super) fn leave_taken(carrier: &'static Carrier) {
    RUNNER.get().inspect(|runner| (runner.leave_taken)(carrier));
}

#[cold]
fn run_by<R>(run: Run, call: impl FnOnce() -> R) -> R {
    let (mut call, mut result, mut errno) = (Some(call), None, 0);
    // SAFETY: Passed On: this thread's own errno, which the way home must not change.
    let at = unsafe { libc::__errno_location() };
    run(&mut || {
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
    /// Ends with a zero.
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
        // SAFETY: Next Symbol: a name that ends with a zero.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr().cast()) };
        self.at.store(found, Ordering::Relaxed);
        found
    }

    /// What is about to be called.
    fn get(&self) -> *mut c_void {
        let found = self.find();
        if found.is_null() {
            // A program without a C library behind this one cannot go on.
            std::process::abort();
        }
        found
    }
}

/// The table: every interposed call, and whether it blocks, as far as can be told. Hands its rows
/// to the macro that it is given the name of.
#[doc(hidden)]
#[macro_export]
macro_rules! blocking_calls {
    ($then:ident) => {
        $crate::$then! {
            read(fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t, blocks waits(fd, POLLIN);
            write(fd: c_int, buf: *const c_void, n: size_t) -> ssize_t, blocks writes(fd, n);
            readv(fd: c_int, parts: *const iovec, n: c_int) -> ssize_t, blocks waits(fd, POLLIN);
            writev(fd: c_int, parts: *const iovec, n: c_int) -> ssize_t, blocks writes(fd, usize::MAX);
            pread64(fd: c_int, buf: *mut c_void, n: size_t, at: off_t) -> ssize_t, blocks Blocks::Hardly;
            pwrite64(fd: c_int, buf: *const c_void, n: size_t, at: off_t) -> ssize_t, blocks Blocks::Hardly;
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
            nanosleep(span: *const timespec, left: *mut timespec) -> c_int, blocks is_some_time(span);
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

/// A caller of the C library's own function, whatever the table says.
macro_rules! real {
    ($name:ident($($arg:ident: $type:ty),*) -> $out:ty) => {{
        static REAL: &Real = &real::$name;
        type Function = unsafe extern "C-unwind" fn($($type),*) -> $out;
        // SAFETY: Next Symbol: the type of this name in the C library.
        let function = unsafe { std::mem::transmute::<*mut c_void, Function>(REAL.get()) };
        // SAFETY: Passed On.
        unsafe { function($($arg),*) }
    }};
}

/// Each row of the table as a function with a look, and all of them to be found before a signal
/// handler needs one.
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

/// Whether a call on this descriptor will wait: it is not ready, and is one that waits.
fn waits(fd: c_int, events: i16) -> Blocks {
    use rustix::event::{PollFd, PollFlags, Timespec};
    // SAFETY: Passed On: the caller's own call on it comes right after; a closed one is not ready.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd.max(0)) };
    let flags = PollFlags::from_bits_truncate(events as u16);
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let idle = rustix::event::poll(&mut [PollFd::from_borrowed_fd(fd, flags)], Some(&now)) == Ok(0);
    let fd = std::os::fd::AsRawFd::as_raw_fd(&fd);
    if idle && !is_nonblocking(fd) { Blocks::Surely } else { Blocks::Hardly }
}

/// As much as goes into whatever says that it can be written to.
const LITTLE: size_t = libc::PIPE_BUF;

/// Whether writing so much will wait: there may be room for some of it only.
fn writes(fd: c_int, n: size_t) -> Blocks {
    if n > LITTLE && !is_nonblocking(fd) {
        return waits(fd, POLLOUT).max(Blocks::Perhaps);
    }
    waits(fd, POLLOUT)
}

fn is_nonblocking(fd: c_int) -> bool {
    // SAFETY: Passed On: asks for numbers; of a closed one there are none.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    flags >= 0 && flags & libc::O_NONBLOCK != 0
}

/// As `waits`, unless the caller has asked for no waiting.
fn waits_unless(flags: c_int, fd: c_int, events: i16) -> Blocks {
    if flags & libc::MSG_DONTWAIT != 0 { Blocks::Hardly } else { waits(fd, events) }
}

/// As `writes`, unless the caller has asked for no waiting.
fn writes_unless(flags: c_int, fd: c_int, n: size_t) -> Blocks {
    if flags & libc::MSG_DONTWAIT != 0 { Blocks::Hardly } else { writes(fd, n) }
}

/// Whether this is a time that is not over at once.
fn is_some_time(time: *const timespec) -> bool {
    // SAFETY: Passed On: the caller's structure, which the call itself would read.
    let time = unsafe { time.as_ref() };
    time.is_some_and(|time| time.tv_sec > 0 || time.tv_nsec > 0)
}

/// Whether a `poll` will wait, by one that does not.
fn poll_waits(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> Blocks {
    let now = 0;
    let waits =
        timeout != now && real!(poll(fds: *mut pollfd, n: nfds_t, now: c_int) -> c_int) == 0;
    if waits { Blocks::Surely } else { Blocks::Hardly }
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
    let lock = || real!(pthread_mutex_lock(mutex: *mut pthread_mutex_t) -> c_int);
    may_block(|| false, lock)
}

/// `pthread_sigmask`: a watched thread keeps SIGTRAP unblocked, for that is its gate (R8).
#[doc(hidden)]
pub unsafe fn mask_but_sigtrap(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int {
    let plain = |set: *const sigset_t| real!(pthread_sigmask(how: c_int, set: *const sigset_t, old: *mut sigset_t) -> c_int);
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
pub unsafe fn exit_at_home(value: *mut c_void) -> ! {
    if me().is_some() {
        keeper().before_exit();
    }
    type Function = unsafe extern "C-unwind" fn(*mut c_void) -> !;
    // SAFETY: Next Symbol: the type of this name in the C library, but for the unwinding, which it
    // does.
    let function =
        unsafe { std::mem::transmute::<*mut c_void, Function>(real::pthread_exit.get()) };
    // SAFETY: Passed On.
    unsafe { function(value) }
}

/// Defines the C library's blocking functions in this program, so that worker threads which call
/// them hand their processor over. Once in a binary or a shared library, at its root.
///
/// See [`crate::watch::calls`] for what they do and what they do not cover.
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
                // SAFETY: Passed On, see `ums::watch::calls`.
                unsafe { calls::lock_with_a_look(mutex) }
            }
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn pthread_sigmask(
                how: i32,
                set: *const libc::sigset_t,
                old: *mut libc::sigset_t,
            ) -> i32 {
                // SAFETY: Passed On, as above.
                unsafe { calls::mask_but_sigtrap(how, set, old) }
            }
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn pthread_exit(value: *mut libc::c_void) -> ! {
                // SAFETY: Passed On, as above.
                unsafe { calls::exit_at_home(value) }
            }
            // Variadic in C, which on Linux hands these seven over in the same way.
            #[unsafe(no_mangle)]
            unsafe extern "C-unwind" fn syscall(
                number: i64, a: i64, b: i64, c: i64, d: i64, e: i64, f: i64,
            ) -> i64 {
                // SAFETY: Passed On, as above.
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
                    // SAFETY: Passed On, see `ums::watch::calls`.
                    unsafe { $crate::watch::calls::$name($($arg),*) }
                }
            )*
        }
    };
}

#[doc(hidden)]
pub use ::libc;
