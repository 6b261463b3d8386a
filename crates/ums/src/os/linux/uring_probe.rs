//! Finds out whether io_uring is available, and with which setup flags.
//!
//! A ring is set up with each flag and closed again. This is more reliable than the kernel's
//! version number, because distributions port features back, and because containers deny io_uring
//! by their own rules. If io_uring is denied, the error number alone does not say what denies it.
//! In most cases it does, together with the sysctl and the seccomp mode of the process. After a
//! flag was accepted here, a later ring with that flag can still fail for lack of descriptors or
//! memory.
//!
//! What this file does not do: it submits nothing, and does not choose a back end.

use std::fs;
use std::io;

use io_uring::{Builder, IoUring, Probe, opcode};

/// Whether io_uring can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Uring {
    /// A ring could be set up.
    Works(UringFlags),
    /// No ring could be set up.
    Refused {
        /// The error number of `io_uring_setup`.
        errno: i32,
        /// The most probable cause of the refusal, and how to change it.
        cause: String,
    },
}

/// The setup flags that the kernel accepted, each of them tried, and the operations that it lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UringFlags {
    /// `IORING_SETUP_SINGLE_ISSUER` (6.0).
    pub single_issuer: bool,
    /// `IORING_SETUP_DEFER_TASKRUN` together with `SINGLE_ISSUER` (6.1).
    pub defer_taskrun: bool,
    /// `IORING_SETUP_COOP_TASKRUN` (5.19).
    pub coop_taskrun: bool,
    /// `IORING_SETUP_TASKRUN_FLAG` together with `COOP_TASKRUN` (5.19).
    pub taskrun_flag: bool,
    /// Operations that ums can use and this kernel lacks.
    pub missing_ops: Vec<&'static str>,
}

/// The operations that ums can use. For each there is another way if a kernel lacks it.
pub(super) const OPERATIONS: [(&str, u8); 22] = [
    ("READ", opcode::Read::CODE),
    ("WRITE", opcode::Write::CODE),
    ("READV", opcode::Readv::CODE),
    ("WRITEV", opcode::Writev::CODE),
    ("FSYNC", opcode::Fsync::CODE),
    ("OPENAT", opcode::OpenAt::CODE),
    ("CLOSE", opcode::Close::CODE),
    ("ACCEPT", opcode::Accept::CODE),
    ("CONNECT", opcode::Connect::CODE),
    ("RECV", opcode::Recv::CODE),
    ("SEND", opcode::Send::CODE),
    ("RECVMSG", opcode::RecvMsg::CODE),
    ("SENDMSG", opcode::SendMsg::CODE),
    ("SEND_ZC", opcode::SendZc::CODE),
    ("SHUTDOWN", opcode::Shutdown::CODE),
    ("POLL_ADD", opcode::PollAdd::CODE),
    ("POLL_REMOVE", opcode::PollRemove::CODE),
    ("TIMEOUT", opcode::Timeout::CODE),
    ("ASYNC_CANCEL", opcode::AsyncCancel::CODE),
    ("MSG_RING", opcode::MsgRingData::CODE),
    ("FUTEX_WAIT", opcode::FutexWait::CODE),
    ("FUTEX_WAKE", opcode::FutexWake::CODE),
];

impl Uring {
    /// Sets up rings of two entries, asks the kernel for their operations, and closes them.
    pub fn read() -> Uring {
        let ring = match ring(|builder| builder) {
            Ok(ring) => ring,
            Err(error) => {
                let errno = error.raw_os_error().unwrap_or(0);
                let sysctl = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok();
                let disabled = sysctl.and_then(|text| text.trim().parse().ok());
                let cause = refusal(errno, disabled, under_seccomp()).to_string();
                return Uring::Refused { errno, cause };
            }
        };
        let mut probe = Probe::new();
        let asked = ring.submitter().register_probe(&mut probe).is_ok();
        // This ring may hold the last descriptor, and the next rings need one, too.
        drop(ring);
        let missing = OPERATIONS.iter().filter(|(_, code)| !asked || !probe.is_supported(*code));
        Uring::Works(UringFlags {
            single_issuer: ring_works(|b| b.setup_single_issuer()),
            defer_taskrun: ring_works(|b| b.setup_single_issuer().setup_defer_taskrun()),
            coop_taskrun: ring_works(|b| b.setup_coop_taskrun()),
            taskrun_flag: ring_works(|b| b.setup_coop_taskrun().setup_taskrun_flag()),
            missing_ops: missing.map(|&(name, _)| name).collect(),
        })
    }
}

fn ring(with: impl FnOnce(&mut Builder) -> &mut Builder) -> io::Result<IoUring> {
    let ring = with(&mut IoUring::builder()).build(2)?;
    // A filter may deny this call alone.
    ring.submitter().submit()?;
    Ok(ring)
}

fn ring_works(with: impl FnOnce(&mut Builder) -> &mut Builder) -> bool {
    ring(with).is_ok()
}

/// Returns the cause of the refusal of io_uring: one sentence for each cause that can be
/// distinguished.
fn refusal(errno: i32, disabled: Option<u64>, seccomp: bool) -> &'static str {
    match (errno, disabled) {
        (libc::EPERM, Some(2)) => "sysctl kernel.io_uring_disabled is 2: off for everyone",
        (libc::EPERM, Some(1)) => {
            "sysctl kernel.io_uring_disabled is 1: needs CAP_SYS_ADMIN or kernel.io_uring_group"
        }
        (libc::EPERM | libc::EACCES | libc::ENOSYS, _) if seccomp => {
            "a seccomp filter denies it, as in most containers; \
             a profile that allows io_uring_setup, io_uring_enter and io_uring_register would do"
        }
        (libc::EPERM | libc::EACCES, _) => "a security module denies it",
        (libc::ENOSYS, _) => "this kernel was built without io_uring or is older than 5.1",
        (libc::ENOMEM, _) => "the limit of locked memory is too small for a ring (before 5.12)",
        (libc::EMFILE | libc::ENFILE, _) => "no file descriptor was left",
        _ => "an unexpected error",
    }
}

/// Returns whether this process has a seccomp filter: `Seccomp: 2` in its status.
pub(super) fn under_seccomp() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
    mode.is_some_and(|mode| mode.trim() == "2")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_of_io_uring_names_its_cause() {
        let off = refusal(libc::EPERM, Some(2), true);
        assert!(off.contains("io_uring_disabled is 2"), "{off}");
        assert!(refusal(libc::EPERM, Some(1), false).contains("io_uring_group"));
        assert!(refusal(libc::EPERM, Some(0), true).contains("seccomp"));
        assert!(refusal(libc::ENOSYS, None, true).contains("seccomp"));
        assert!(refusal(libc::ENOSYS, None, false).contains("older than 5.1"));
        assert!(refusal(libc::EPERM, None, false).contains("security module"));
        assert!(refusal(libc::ENOMEM, None, false).contains("locked memory"));
    }

    #[test]
    fn flags_that_need_each_other_are_never_found_alone() {
        match Uring::read() {
            Uring::Works(flags) => {
                assert!(flags.single_issuer || !flags.defer_taskrun, "{flags:?}");
                assert!(!flags.missing_ops.contains(&"READV"), "since 5.1: {flags:?}");
            }
            Uring::Refused { errno, cause } => assert!(errno > 0 && !cause.is_empty()),
        }
    }
}
