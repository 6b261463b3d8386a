//! Writes to stderr that neither wait nor fail loudly, and the three standard descriptors.
//!
//! Stderr may be closed, a pipe that no process reads, or a device that is full. Code of this
//! library must not wait for it, because that code may have a scheduler's baton, or may be about to
//! end the process. It must not panic either, as the printing macros do. So it writes by
//! [`write_now`], which tries once. Only a process that is about to die gives a reader some time,
//! by [`write_within`].
//!
//! If the program has closed a descriptor from 0 to 2, the next descriptor of the library would get
//! that number, and messages to stderr would be written to it: eight bytes of a message add to the
//! counter of an eventfd. [`keep_standard_descriptors_taken`] prevents that.
//!
//! It does not compose messages, and does not limit their number: `record::report` does.

use std::os::fd::{AsFd, AsRawFd, IntoRawFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};

/// How long [`write_within`] waits at a time, in milliseconds.
const WAIT_MS: i64 = 10;

/// Writes to stderr if that accepts the bytes immediately. Returns whether all of them were
/// written. It may be called in a signal handler, and touches no thread-local. It waits only if
/// another writer fills the pipe after this function has asked whether there is room.
pub fn write_now(bytes: &[u8]) -> bool {
    write_within(bytes, &mut 0)
}

/// Like [`write_now`], but waits for room meanwhile. Subtracts the time that it has waited from
/// `waits`, in steps of [`WAIT_MS`], and waits no longer when nothing of that is left.
pub fn write_within(bytes: &[u8], waits: &mut u32) -> bool {
    let stderr = std::io::stderr();
    loop {
        let mut asked = [PollFd::new(&stderr, PollFlags::OUT)];
        let time = if *waits > 0 { WAIT_MS * 1_000_000 } else { 0 };
        let ready = poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: time }));
        if ready != Ok(0) || *waits == 0 {
            return ready.is_ok()
                && asked[0].revents() == PollFlags::OUT
                && rustix::io::write(&stderr, bytes).is_ok_and(|n| n == bytes.len());
        }
        *waits -= 1;
    }
}

/// Opens `/dev/null` for each of the descriptors 0 to 2 that is closed, as `std` does when a Rust
/// program starts. To be called before the library opens a descriptor of its own. Without
/// `/dev/null` it does nothing.
pub fn keep_standard_descriptors_taken() {
    let is_closed = |fd: &dyn AsFd| rustix::io::fcntl_getfd(fd) == Err(rustix::io::Errno::BADF);
    let (stdin, stdout, stderr) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
    let standard: [&dyn AsFd; 3] = [&stdin, &stdout, &stderr];
    for fd in standard {
        if !is_closed(fd) {
            continue;
        }
        let Ok(null) = open("/dev/null", OFlags::RDWR, Mode::empty()) else { return };
        // Another thread may have taken the number meanwhile. Then this one is closed again.
        if null.as_raw_fd() <= stderr.as_fd().as_raw_fd() {
            let _ = null.into_raw_fd();
        }
    }
}
