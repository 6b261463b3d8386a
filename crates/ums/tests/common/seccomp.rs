//! A seccomp filter for tests that show that no system call is made: it kills the process at the
//! first call that is not allowed.
//!
//! Named invariant **Plain Call**: the structures outlive the calls that read them.

#![allow(unsafe_code, dead_code)]

use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W};

/// Which calls the filter lets through: those of a list, or all others.
#[derive(Clone, Copy)]
pub enum Verdict {
    /// The calls of the list go through; any other call kills the process.
    OnlyThese,
    /// The calls of the list fail with `ENOSYS`, all others go through.
    AllButThese,
}

/// Installs a filter for the calling thread and all threads that it starts from now on. A filter
/// cannot be removed.
pub fn filter(verdict: Verdict, calls: &[libc::c_long]) {
    let (listed, other) = match verdict {
        Verdict::OnlyThese => (libc::SECCOMP_RET_ALLOW, libc::SECCOMP_RET_KILL_PROCESS),
        Verdict::AllButThese => {
            (libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32, libc::SECCOMP_RET_ALLOW)
        }
    };
    let plain = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    // The number of the call is the first word of what a filter sees.
    let mut program = vec![plain(BPF_LD | BPF_W | BPF_ABS, 0)];
    for (at, call) in calls.iter().enumerate() {
        let to_listed = (calls.len() - at) as u8;
        let code = (BPF_JMP | BPF_JEQ | BPF_K) as u16;
        program.push(libc::sock_filter { code, jt: to_listed, jf: 0, k: *call as u32 });
    }
    program.push(plain(BPF_RET | BPF_K, other));
    program.push(plain(BPF_RET | BPF_K, listed));
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: Plain Call: numbers only.
    let denied = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(denied, 0, "a process may always give up privileges");
    // SAFETY: Plain Call: `program` points at the filter, which lives until the end of this scope.
    let denied = unsafe {
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, std::ptr::from_ref(&program))
    };
    assert_eq!(denied, 0, "the kernel has seccomp filters: {}", std::io::Error::last_os_error());
}

/// From now on, the only calls allowed to this thread are those of [`survived`].
pub fn no_more_calls() {
    filter(Verdict::OnlyThese, &[libc::SYS_write, libc::SYS_exit_group]);
}

/// Prints that the process has survived, and ends it.
pub fn survived() -> ! {
    const WORD: &[u8] = b"survived\n";
    // SAFETY: Plain Call: a borrowed buffer and its length; then a call that does not return.
    unsafe {
        libc::syscall(libc::SYS_write, 1, WORD.as_ptr(), WORD.len());
        libc::syscall(libc::SYS_exit_group, 0);
    }
    unreachable!("exit_group does not return")
}

/// Returns whether a child process has called [`survived`].
pub fn has_survived(output: &std::process::Output) -> bool {
    output.status.success() && output.stdout.ends_with(b"survived\n")
}
