//! Tests of system calls that a signal interrupts in a worker with its own context: which of them
//! are made again.
//!
//! The tests send a poke (a signal, `watch/signals.rs`) to the host while the worker is in a call.
//! Block watch sends one when it has seen the call blocked; here it is sent without that, so it
//! also hits calls that are not on the list of calls that may be made again. A seccomp filter
//! produces a `close` that ends with `EINTR`: its listener answers the call when the poke is
//! already pending.
//!
//! Named invariant **Plain Call**: see ARCHITECTURE.md.

#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};
use std::time::Duration;

use super::{Node, own_contexts_are_refused};
use crate::watch::poke;

const EINTR: i64 = -(libc::EINTR as i64);

/// A system call made directly. The instruction before the `syscall` sets its number.
macro_rules! bare {
    ($number:expr, $a:expr, $b:expr, $c:expr, $d:expr) => {{
        let result: i64;
        // SAFETY: Plain Call: the arguments are numbers, and addresses of values that outlive the
        // call.
        unsafe {
            std::arch::asm!(
                "mov eax, {number}", "syscall",
                number = const $number,
                in("rdi") $a, in("rsi") $b, in("rdx") $c, in("r10") $d,
                lateout("rax") result, lateout("rcx") _, lateout("r11") _,
            );
        }
        result
    }};
}

fn node() -> Option<Node> {
    let builder = Node::builder().schedulers(1).max_workers(2);
    let builder = builder.own_context_workers().detect_blocking(true);
    own_contexts_are_refused().is_none().then(|| builder.build().unwrap())
}

fn kernel_thread() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Returns the result of a call that a worker makes while its host is poked repeatedly.
fn poked(call: impl FnOnce() -> i64 + Send + 'static) -> Option<i64> {
    static HOST: AtomicI32 = AtomicI32::new(0);
    let node = node()?;
    let task = node.spawn(|| {
        HOST.store(kernel_thread(), SeqCst);
        call()
    });
    let task = task.unwrap();
    while !task.is_finished() {
        std::thread::sleep(Duration::from_millis(1));
        match HOST.load(SeqCst) {
            0 => {}
            host => poke(host),
        }
    }
    HOST.store(0, SeqCst);
    let result = task.join().unwrap();
    drop(node);
    Some(result)
}

#[test]
fn a_call_on_the_list_goes_on_and_another_says_that_it_was_interrupted() {
    let sleep = || {
        let span = libc::timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        bare!(libc::SYS_nanosleep, &raw const span, 0, 0, 0)
    };
    let Some(slept) = poked(sleep) else { return };
    assert_eq!(slept, 0, "a sleep is continued");
    let wait = || {
        // The set of signals to wait for is empty.
        let (none, span) = (0_u64, libc::timespec { tv_sec: 5, tv_nsec: 0 });
        bare!(libc::SYS_rt_sigtimedwait, &raw const none, 0, &raw const span, 8)
    };
    assert_eq!(poked(wait), Some(EINTR), "a wait for signals is the calling kernel thread's");
}

/// Installs a seccomp filter. From now on, the returned listener answers each `close` of this
/// descriptor that the calling kernel thread makes. Until it has answered, no signal ends the call.
fn listener(fd: i32) -> Option<File> {
    use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W};
    use libc::{
        SECCOMP_FILTER_FLAG_NEW_LISTENER as NEW, SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV as DEAF,
    };
    let line = |code: u32, k: u32, jf: u8| libc::sock_filter { code: code as u16, jt: 0, jf, k };
    let mut program = [
        line(BPF_LD | BPF_W | BPF_ABS, 0, 0),
        line(BPF_JMP | BPF_JEQ | BPF_K, libc::SYS_close as u32, 3),
        // Loads the low half of the first argument.
        line(BPF_LD | BPF_W | BPF_ABS, 16, 0),
        line(BPF_JMP | BPF_JEQ | BPF_K, fd as u32, 1),
        line(BPF_RET, libc::SECCOMP_RET_USER_NOTIF, 0),
        line(BPF_RET, libc::SECCOMP_RET_ALLOW, 0),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: Plain Call: the filter lives until the end of this scope.
    let listener = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            NEW | DEAF,
            &raw const program,
        )
    };
    // SAFETY: Plain Call: a descriptor that was just created and has no other owner.
    (listener >= 0).then(|| unsafe { File::from_raw_fd(listener as i32) })
}

/// Answers one call with `EINTR`, after a poke was made pending.
fn answer(listener: &File) {
    // SAFETY: Plain Call: all zeros are a valid value of both structures, and they outlive the
    // calls.
    unsafe {
        let mut call: libc::seccomp_notif = std::mem::zeroed();
        let fd = listener.as_raw_fd();
        assert_eq!(libc::ioctl(fd, libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut call), 0);
        poke(call.pid as i32);
        let mut answer: libc::seccomp_notif_resp = std::mem::zeroed();
        (answer.id, answer.error) = (call.id, EINTR as i32);
        assert_eq!(libc::ioctl(fd, libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const answer), 0);
    }
}

#[test]
fn a_close_that_has_ended_with_eintr_closes_no_descriptor_of_the_same_number() {
    let Some(node) = node() else { return };
    // Stands for a descriptor of another thread, which got the number that the worker's `close` has
    // just freed. Closing that number a second time would close this descriptor.
    let theirs = rustix::io::fcntl_dupfd_cloexec(std::io::stderr(), 700).unwrap();
    let fd = theirs.as_raw_fd();
    let (tell, told) = std::sync::mpsc::channel();
    let task = node.spawn(move || {
        // The filter is installed on the host's kernel thread. The worker's own kernel thread is
        // not filtered.
        tell.send(listener(fd)).unwrap();
        bare!(libc::SYS_close, i64::from(fd), 0, 0, 0)
    });
    let Some(listener) = told.recv().unwrap() else {
        // The kernel has no such filter, so the call was an ordinary one and has closed the
        // descriptor.
        std::mem::forget(theirs);
        return;
    };
    answer(&listener);
    let result = task.unwrap().join().unwrap();
    let is_open = rustix::io::fcntl_getfd(&theirs).is_ok();
    // If the assertion panics, the descriptor must not be closed a second time.
    let theirs = std::mem::ManuallyDrop::new(theirs);
    assert!(is_open, "another thread's descriptor is closed, and the call said {result}");
    assert_eq!(result, EINTR);
    drop(std::mem::ManuallyDrop::into_inner(theirs));
}
