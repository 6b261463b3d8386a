//! The gate of the mechanism that needs no privilege: a breakpoint at the instruction where a
//! blocked thread will resume user code.
//!
//! Every watched thread has a perf event on itself for a breakpoint that sends SIGTRAP; the event
//! is disabled at first. A watcher or the watchdog that finds the thread blocked does four things:
//! it reads from the state file where the thread will resume, moves the breakpoint there and
//! enables it, checks that the thread is still blocked, and only then takes its place away. After
//! that check the thread cannot return to user code without hitting the breakpoint, so it always
//! passes its gate (R3 in docs/design/races.md).
//!
//! After a page fault a thread resumes at the instruction that faulted, where the processor skips
//! breakpoints once. So there are two more events, which send SIGTRAP at the end of a fault. One is
//! for faults that had to wait for a disk, and is always enabled. The other is for all other
//! faults, which may have waited for another thread of the process, and is enabled together with
//! the breakpoint. A thread that waits for the address space's own lock triggers none of the three
//! events, so it keeps its place.
//!
//! A breakpoint may be moved or disabled after its thread has ended, when the number of its
//! descriptor may mean another file. Only perf events understand these requests. If the number now
//! means the breakpoint of another watched thread, that thread passes its gate once and continues.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use crate::os::linux::perf::{
    self, Attr, BP_EXECUTE, BREAKPOINT, DISABLED, EXCLUDE_HV, EXCLUDE_KERNEL, MAJOR_FAULTS,
    MINOR_FAULTS, REMOVE_ON_EXEC, SIGTRAP, SOFTWARE,
};

/// The breakpoint of one watched thread.
#[derive(Debug)]
pub(super) struct Breakpoint {
    fd: AtomicI32,
    /// The event for faults that are not counted as major, that is, that did not wait for a disk.
    faults: AtomicI32,
    armed: AtomicBool,
    /// Another thread is moving the breakpoint.
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

    /// Opens the events on the calling thread. Returns their descriptors, which that thread must
    /// keep open.
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

    /// Called by the thread itself, before it closes the descriptors: forgets them.
    pub fn detach(&self) {
        self.fd.store(-1, Ordering::Release);
        self.faults.store(-1, Ordering::Release);
    }

    /// Called by any thread but the watched one: returns the right to move the breakpoint, or
    /// `None` if another thread has it. This function never waits.
    pub fn lock(&self) -> Option<Moving<'_>> {
        // Not `then_some`: that would make a `Moving` in every case, and dropping the needless one
        // would release the right of the other thread.
        (!self.locked.swap(true, Ordering::Acquire)).then(|| Moving(&self.locked))
    }

    /// Called by the thread itself: returns whether it has a breakpoint event.
    pub fn is_attached(&self) -> bool {
        self.fd.load(Ordering::Relaxed) >= 0
    }

    /// Moves the breakpoint to this address and enables it. The caller has the right to move it.
    /// The thread resumes at that address after a call, or after a fault if `in_fault`. Returns
    /// whether all of that succeeded.
    pub fn arm(&self, address: u64, in_fault: bool) -> bool {
        let fd = self.fd.load(Ordering::Acquire);
        self.armed.store(true, Ordering::SeqCst);
        let attr = attr(address);
        let faults = self.faults.load(Ordering::Acquire);
        (!in_fault || perf::enable(faults)) && attr.replace(fd) && perf::enable(fd)
    }

    /// Disables a breakpoint that was armed and is not needed. The caller has the right to move it.
    ///
    /// The events are disabled even if `armed` is already false. The thread may have cleared
    /// `armed` and disabled the breakpoint at a gate after [`Breakpoint::arm`] set `armed` and
    /// before it enabled the breakpoint. `armed` is cleared last, so that until then a thread that
    /// hits the breakpoint disables it itself.
    pub fn withdraw(&self) {
        self.disable();
        self.armed.store(false, Ordering::SeqCst);
    }

    /// Called by the thread itself, at its gate: disables the breakpoint if it is enabled. `armed`
    /// is cleared first: another thread that enables the breakpoint after that withdraws it itself.
    pub fn disarm_own(&self) {
        if self.armed.load(Ordering::SeqCst) && self.armed.swap(false, Ordering::SeqCst) {
            self.disable();
        }
    }

    fn disable(&self) {
        perf::disable(self.fd.load(Ordering::Acquire));
        perf::disable(self.faults.load(Ordering::Acquire));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_attempt_to_move_a_breakpoint_releases_no_right_r3() {
        let breakpoint = Breakpoint::new();
        let mine = breakpoint.lock();
        assert!(mine.is_some());
        for _ in 0..3 {
            assert!(breakpoint.lock().is_none());
        }
        drop(mine);
        assert!(breakpoint.lock().is_some());
    }

    #[test]
    fn a_breakpoint_that_is_enabled_after_its_thread_passed_a_gate_is_withdrawn_r3() {
        #[inline(never)]
        extern "C" fn visited() -> u64 {
            std::hint::black_box(7)
        }
        let breakpoint = Breakpoint::new();
        let Ok(events) = breakpoint.attach() else {
            crate::testing::skipped("breakpoint", "the kernel refuses it");
            return;
        };
        super::super::trap::install();
        assert!(breakpoint.arm(visited as extern "C" fn() -> u64 as usize as u64, false));
        // The state that results if the thread passed a gate after `arm` set `armed`, and before
        // `arm` enabled the breakpoint.
        breakpoint.armed.store(false, Ordering::SeqCst);
        breakpoint.withdraw();
        assert_eq!(std::hint::black_box(visited as extern "C" fn() -> u64)(), 7);
        let mut hits = [0; 8];
        assert_eq!(rustix::io::read(&events[0], &mut hits), Ok(8));
        assert_eq!(u64::from_ne_bytes(hits), 0, "hits");
    }
}
