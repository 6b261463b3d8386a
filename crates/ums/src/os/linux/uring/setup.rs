//! Opens a ring, and judges the errors that the kernel returns for it.

use std::io;
use std::time::Duration;

use io_uring::{Builder, IoUring, Probe, opcode};

use crate::os::stderr::keep_standard_descriptors_taken;

/// The number of entries of the submission queue.
const SQ_ENTRIES: u32 = 256;
/// The number of entries of the completion queue. When it is full, the kernel keeps completions in
/// its own memory.
const CQ_ENTRIES: u32 = 4096;

/// Opens a ring with the best flags that the kernel accepts, beginning with mode number `first`.
pub(super) fn open_ring(first: usize) -> io::Result<(IoUring, &'static str)> {
    type Setup = fn(&mut Builder) -> &mut Builder;
    const MODES: [(&str, Setup); 3] = [
        ("SINGLE_ISSUER, DEFER_TASKRUN, TASKRUN_FLAG, SUBMIT_ALL", |b| {
            b.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag().setup_submit_all()
        }),
        ("COOP_TASKRUN, TASKRUN_FLAG, SUBMIT_ALL", |b| {
            b.setup_coop_taskrun().setup_taskrun_flag().setup_submit_all()
        }),
        ("no flags", |b| b),
    ];
    keep_standard_descriptors_taken();
    let mut refused = None;
    for (mode, setup) in MODES.into_iter().skip(first) {
        let mut builder = IoUring::builder();
        setup(&mut builder).setup_cqsize(CQ_ENTRIES).setup_clamp().dontfork();
        match builder.build(SQ_ENTRIES) {
            Ok(ring) => return Ok((ring, mode)),
            // EINVAL: the kernel does not support a flag. Any other error would be the same for all
            // flags.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => refused = Some(error),
            Err(error) => return Err(reason(&error)),
        }
    }
    Err(refused.map_or_else(|| io::ErrorKind::Unsupported.into(), |error| reason(&error)))
}

/// Returns an error that says in words why the kernel refused a ring.
fn reason(error: &io::Error) -> io::Error {
    let why = match error.raw_os_error() {
        Some(libc::ENOSYS) => "this kernel has none, or a filter hides it",
        Some(libc::EPERM | libc::EACCES) => "denied (seccomp filter or kernel.io_uring_disabled)",
        Some(libc::ENOMEM) => "no memory to lock (see ulimit -l)",
        Some(libc::EMFILE | libc::ENFILE) => "no descriptors left",
        _ => "io_uring_setup failed",
    };
    io::Error::new(error.kind(), format!("{why}: {error}"))
}

/// Returns an error if the ring cannot do what this driver needs. Linux 5.13 can.
pub(super) fn check(ring: &IoUring) -> io::Result<()> {
    let no = |what: &str| Err(io::Error::new(io::ErrorKind::Unsupported, format!("lacks {what}")));
    let can = ring.params();
    if !(can.is_feature_nodrop() && can.is_feature_ext_arg() && can.is_feature_fast_poll()) {
        return no("kept completions, timed waits or internal polling (Linux 5.11)");
    }
    if !can.is_feature_resource_tagging() {
        return no("multishot polls (Linux 5.13)"); // Both came with the same release.
    }
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    // A filter may allow `io_uring_setup` alone. Nothing is submitted by this.
    ring.submitter().submit().map_err(|error| reason(&error))?;
    let needed = [
        ("POLL_ADD", opcode::PollAdd::CODE),
        ("ASYNC_CANCEL", opcode::AsyncCancel::CODE),
        ("RECV", opcode::Recv::CODE),
        ("SEND", opcode::Send::CODE),
        ("RECVMSG", opcode::RecvMsg::CODE),
        ("SENDMSG", opcode::SendMsg::CODE),
        ("ACCEPT", opcode::Accept::CODE),
        ("CONNECT", opcode::Connect::CODE),
        ("READ", opcode::Read::CODE),
        ("WRITE", opcode::Write::CODE),
        ("READV", opcode::Readv::CODE),
        ("WRITEV", opcode::Writev::CODE),
        ("FSYNC", opcode::Fsync::CODE),
    ];
    needed.iter().find(|&&(_, code)| !probe.is_supported(code)).map_or(Ok(()), |(op, _)| no(op))
}

/// Handles an error of `io_uring_enter`. Returns true if the kernel could take no entry for
/// now.
#[cold]
pub(super) fn is_stuck(error: &io::Error) -> bool {
    match error.raw_os_error() {
        Some(libc::ETIME | libc::EINTR) => false,
        // The kernel has completions that do not fit into the queue. The caller drains the
        // queue and returns.
        Some(libc::EBUSY) => true,
        // The kernel is short of memory. The thread sleeps for a moment instead of trying at
        // once.
        Some(libc::EAGAIN | libc::ENOMEM) => {
            std::thread::sleep(Duration::from_micros(100));
            true
        }
        Some(libc::EEXIST) => panic!("an io_uring driver was used by a thread not its own"),
        Some(libc::EBADR) => panic!("the kernel ran out of memory and lost an I/O completion"),
        _ => panic!("io_uring_enter failed: {error}"),
    }
}
