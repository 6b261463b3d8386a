//! The unprivileged gate: a breakpoint at the place where a blocked thread's user code goes on.
//!
//! Every watched thread has a disabled breakpoint event on itself that sends SIGTRAP. Who finds it
//! blocked reads from the state file where it will go on, moves the breakpoint there and switches
//! it on, looks that the thread is still blocked, and only then takes its place away. From the
//! second look on, the thread's way back into user code leads over the breakpoint, so its gate is
//! certain (R3).
//!
//! A page fault goes on at the instruction that faulted, where the processor skips breakpoints
//! once. So there are two more events, which send SIGTRAP at the end of a fault: of one that had to
//! wait for a disk, always; of any other, which may have waited for another thread of the process,
//! switched on with the breakpoint. Who waits for the address space's own lock passes none of them,
//! and is left its place.
//!
//! Named invariant **Late Order**: a breakpoint may be moved or switched off after its thread has
//! ended and its descriptor's number means something else. These requests are understood by perf
//! events only; a thread that is given a breakpoint by mistake passes its gate and goes on.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use crate::os::linux::perf::{
    Attr, BP_EXECUTE, BREAKPOINT, DISABLED, EXCLUDE_HV, EXCLUDE_KERNEL, MAJOR_FAULTS, MINOR_FAULTS,
    REMOVE_ON_EXEC, SIGTRAP, SOFTWARE,
};

const ENABLE: libc::c_ulong = 0x2400;
const DISABLE: libc::c_ulong = 0x2401;
const MODIFY_ATTRIBUTES: libc::c_ulong = 0x4008_240b;

/// The breakpoint of one watched thread.
#[derive(Debug)]
pub(super) struct Breakpoint {
    fd: AtomicI32,
    /// The event for faults that are not counted as major.
    faults: AtomicI32,
    armed: AtomicBool,
    /// Somebody is moving it.
    locked: AtomicBool,
}

/// The right to move one breakpoint.
pub(super) struct Moving<'a>(&'a AtomicBool);

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

fn attr(address: u64) -> Attr {
    let flags = DISABLED | EXCLUDE_KERNEL | EXCLUDE_HV | REMOVE_ON_EXEC | SIGTRAP;
    let mut attr = Attr::every_time(BREAKPOINT, 0, flags);
    attr.size = size_of::<Attr>() as u32;
    attr.bp_type = BP_EXECUTE;
    attr.config1 = address;
    attr.config2 = size_of::<libc::c_long>() as u64;
    attr
}

impl Breakpoint {
    pub const fn new() -> Breakpoint {
        Breakpoint {
            fd: AtomicI32::new(-1),
            faults: AtomicI32::new(-1),
            armed: AtomicBool::new(false),
            locked: AtomicBool::new(false),
        }
    }

    /// Opens its events on the calling thread, which keeps their descriptors.
    pub fn attach(&self) -> io::Result<[OwnedFd; 3]> {
        let somewhere = Breakpoint::new as fn() -> Breakpoint as usize as u64;
        let breakpoint = attr(somewhere).open()?;
        let flags = EXCLUDE_KERNEL | EXCLUDE_HV | REMOVE_ON_EXEC | SIGTRAP;
        let major = Attr::every_time(SOFTWARE, MAJOR_FAULTS, flags).open()?;
        let minor = Attr::every_time(SOFTWARE, MINOR_FAULTS, flags | DISABLED).open()?;
        self.armed.store(false, Ordering::Relaxed);
        self.faults.store(minor.as_raw_fd(), Ordering::Release);
        self.fd.store(breakpoint.as_raw_fd(), Ordering::Release);
        Ok([breakpoint, major, minor])
    }

    /// Own thread, which is about to close the descriptors.
    pub fn detach(&self) {
        self.fd.store(-1, Ordering::Release);
        self.faults.store(-1, Ordering::Release);
    }

    /// Any thread but its own: the right to move it, if nobody else has that. Never waited for.
    pub fn lock(&self) -> Option<Moving<'_>> {
        // Not `then_some`, which would make one in vain, and give back by its drop what another
        // has.
        (!self.locked.swap(true, Ordering::Acquire)).then(|| Moving(&self.locked))
    }

    /// Who has the right to: puts it at this address, where its thread goes on after a call or
    /// (`in_fault`) a fault. False: it cannot be.
    pub fn arm(&self, address: u64, in_fault: bool) -> bool {
        let fd = self.fd.load(Ordering::Acquire);
        self.armed.store(true, Ordering::SeqCst);
        let attr = attr(address);
        let faults = self.faults.load(Ordering::Acquire);
        // SAFETY: Late Order: a local that the kernel reads; then no memory at all.
        unsafe {
            (!in_fault || libc::ioctl(faults, ENABLE, 0) == 0)
                && libc::ioctl(fd, MODIFY_ATTRIBUTES, &attr) == 0
                && libc::ioctl(fd, ENABLE, 0) == 0
        }
    }

    /// Who has the right to, or its own thread: it was not needed.
    pub fn disarm(&self) {
        if self.armed.swap(false, Ordering::SeqCst) {
            // SAFETY: Late Order: no memory.
            unsafe {
                libc::ioctl(self.fd.load(Ordering::Acquire), DISABLE, 0);
                libc::ioctl(self.faults.load(Ordering::Acquire), DISABLE, 0);
            }
        }
    }

    /// Own thread, at its gate, however it came there.
    pub fn disarm_own(&self) {
        if self.armed.load(Ordering::SeqCst) {
            self.disarm();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_refused_takes_the_right_from_nobody_r3() {
        let breakpoint = Breakpoint::new();
        let mine = breakpoint.lock();
        assert!(mine.is_some());
        for _ in 0..3 {
            assert!(breakpoint.lock().is_none());
        }
        drop(mine);
        assert!(breakpoint.lock().is_some());
    }
}
