//! Calls of the C library that block, defined here so that a worker's come by.
//!
//! A program that is linked with `libums` calls these instead of the C library's. On a thread that is no
//! worker they are one thread-local look and the C library's own function. A worker's call goes through
//! block watch: where it surely blocks, the processor is handed on first, which is the fastest way; and
//! where the system allows no perf events, this is how a worker that wakes is stopped.
//!
//! What is not here (calls inside the C library itself, page faults, raw system calls) is noticed and
//! gated by the other mechanisms, where there are any.
//!
//! Functions may be left by `pthread_exit` or a thread's cancellation: nothing here needs a destructor
//! while the C library's function runs.
//!
//! Named invariant **Same Function**: each is declared as the C library declares it, and the pointer that
//! is called is the C library's function of the same name.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    clockid_t, epoll_event, fd_set, iovec, msghdr, nfds_t, pid_t, pollfd, sem_t, sigset_t,
    sockaddr, socklen_t, timespec, timeval,
};
use ums::watch::calls::may_block;

/// The next definition of this name behind ours.
#[cold]
fn next(name: &CStr, known: &AtomicPtr<c_void>) -> *mut c_void {
    // SAFETY: Same Function: the name is a string.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if found.is_null() {
        // A program without a C library to fall back on cannot go on.
        std::process::abort();
    }
    known.store(found, Ordering::Release);
    found
}

/// Whether the descriptor is in blocking mode and not ready for this, so that a call surely waits.
fn waits(fd: c_int, events: i16) -> bool {
    let mut set = pollfd { fd, events, revents: 0 };
    let now = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: Same Function: system calls as they are, with arguments that outlive them.
    unsafe {
        let ready =
            libc::syscall(libc::SYS_ppoll, &raw mut set, 1, &raw const now, std::ptr::null::<u8>());
        ready == 0 && libc::fcntl(fd, libc::F_GETFL) & libc::O_NONBLOCK == 0
    }
}

fn waits_for_input(fd: c_int, flags: c_int) -> bool {
    flags & libc::MSG_DONTWAIT == 0 && waits(fd, libc::POLLIN)
}

fn waits_for_room(fd: c_int, flags: c_int) -> bool {
    flags & libc::MSG_DONTWAIT == 0 && waits(fd, libc::POLLOUT)
}

/// Whether this is a time that is not over at once.
fn is_some_time(time: *const timespec) -> bool {
    // SAFETY: Same Function: the caller's structure, which the call itself would read.
    let time = unsafe { time.as_ref() };
    time.is_some_and(|time| time.tv_sec > 0 || time.tv_nsec > 0)
}

macro_rules! interposed {
    ($($name:ident($($arg:ident: $kind:ty),*) -> $result:ty, sure $sure:expr;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`, which lets others run where it blocks.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($arg: $kind),*) -> $result {
            type Function = unsafe extern "C-unwind" fn($($kind),*) -> $result;
            static KNOWN: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
            let mut known = KNOWN.load(Ordering::Acquire);
            if known.is_null() {
                const NAME: &str = concat!(stringify!($name), "\0");
                let name = CStr::from_bytes_with_nul(NAME.as_bytes()).unwrap_or_default();
                known = next(name, &KNOWN);
            }
            // SAFETY: Same Function: found by this name.
            let function = unsafe { std::mem::transmute::<*mut c_void, Function>(known) };
            // SAFETY: Same Function: the caller's arguments, passed on.
            may_block(|| $sure, || unsafe { function($($arg),*) })
        }
    )*};
}

interposed! {
    read(fd: c_int, buf: *mut c_void, len: usize) -> isize, sure waits(fd, libc::POLLIN);
    write(fd: c_int, buf: *const c_void, len: usize) -> isize, sure waits(fd, libc::POLLOUT);
    readv(fd: c_int, iov: *const iovec, n: c_int) -> isize, sure waits(fd, libc::POLLIN);
    writev(fd: c_int, iov: *const iovec, n: c_int) -> isize, sure waits(fd, libc::POLLOUT);
    recv(fd: c_int, buf: *mut c_void, len: usize, flags: c_int) -> isize,
        sure waits_for_input(fd, flags);
    recvfrom(fd: c_int, buf: *mut c_void, len: usize, flags: c_int, from: *mut sockaddr,
        size: *mut socklen_t) -> isize, sure waits_for_input(fd, flags);
    recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> isize, sure waits_for_input(fd, flags);
    send(fd: c_int, buf: *const c_void, len: usize, flags: c_int) -> isize,
        sure waits_for_room(fd, flags);
    sendto(fd: c_int, buf: *const c_void, len: usize, flags: c_int, to: *const sockaddr,
        size: socklen_t) -> isize, sure waits_for_room(fd, flags);
    sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> isize, sure waits_for_room(fd, flags);
    accept(fd: c_int, from: *mut sockaddr, size: *mut socklen_t) -> c_int,
        sure waits(fd, libc::POLLIN);
    accept4(fd: c_int, from: *mut sockaddr, size: *mut socklen_t, flags: c_int) -> c_int,
        sure waits(fd, libc::POLLIN);
    connect(fd: c_int, to: *const sockaddr, size: socklen_t) -> c_int, sure false;
    poll(set: *mut pollfd, n: nfds_t, ms: c_int) -> c_int, sure false;
    ppoll(set: *mut pollfd, n: nfds_t, time: *const timespec, mask: *const sigset_t) -> c_int,
        sure false;
    select(n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, time: *mut timeval) -> c_int,
        sure false;
    pselect(n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, time: *const timespec,
        mask: *const sigset_t) -> c_int, sure false;
    epoll_wait(fd: c_int, events: *mut epoll_event, n: c_int, ms: c_int) -> c_int, sure false;
    epoll_pwait(fd: c_int, events: *mut epoll_event, n: c_int, ms: c_int, mask: *const sigset_t)
        -> c_int, sure false;
    nanosleep(time: *const timespec, left: *mut timespec) -> c_int, sure is_some_time(time);
    clock_nanosleep(clock: clockid_t, flags: c_int, time: *const timespec, left: *mut timespec)
        -> c_int, sure flags == 0 && is_some_time(time);
    usleep(us: c_uint) -> c_int, sure us > 0;
    sleep(seconds: c_uint) -> c_uint, sure seconds > 0;
    waitpid(pid: pid_t, status: *mut c_int, options: c_int) -> pid_t, sure false;
    sem_wait(semaphore: *mut sem_t) -> c_int, sure false;
    sem_timedwait(semaphore: *mut sem_t, until: *const timespec) -> c_int, sure false;
    flock(fd: c_int, operation: c_int) -> c_int, sure false;
    fsync(fd: c_int) -> c_int, sure false;
    fdatasync(fd: c_int) -> c_int, sure false;
    msgrcv(queue: c_int, msg: *mut c_void, len: usize, kind: c_long, flags: c_int) -> isize,
        sure false;
    mq_receive(queue: c_int, msg: *mut c_char, len: usize, priority: *mut c_uint) -> isize,
        sure false;
}
