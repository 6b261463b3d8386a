//! perf events of single threads: opening them, and reading context switches from their rings.
//!
//! An *event* belongs to one thread and counts something there. A *ring* is a mapping into which
//! the kernel writes records of an event, and which every thread of the process may read. It is
//! mapped without the right to write, so the kernel overwrites the oldest records and no reader has
//! to keep up. The ring keeps its event alive even after the event's descriptor is closed.
//!
//! ```text
//! ... | sample (the user's registers) | switch: out, blocked or preempted | switch: in | ...
//!                                                                      data_head ^
//! ```
//!
//! Invariant **Own Memory**: the addresses of a ring stay mapped until the process ends. Closing a
//! ring replaces its pages by fresh pages of zeros, which read as an empty ring. So a reader that
//! comes late sees old records or none, and never faults.
//!
//! What this file does not do: it does not decide which worker may run; `watch` does.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// `struct perf_event_attr` up to `sig_data` (size 128, Linux 5.13), written from
/// perf_event_open(2); libc has no such type.
#[repr(C)]
#[derive(Clone, Default)]
pub struct Attr {
    /// The kind of event: hardware, software, breakpoint, ...
    pub kind: u32,
    /// The length of this structure. [`Attr::open`] sets it.
    pub size: u32,
    /// The event, of that kind.
    pub config: u64,
    /// The number of occurrences after which the event acts.
    pub sample_period: u64,
    /// What the event records then.
    pub sample_type: u64,
    pub(super) read_format: u64,
    /// Some of the bits below.
    pub flags: u64,
    /// The number of bytes in the ring after which a reader is woken, with [`WATERMARK`].
    pub wakeup_watermark: u32,
    /// For a breakpoint: whether it is on execution, reading or writing.
    pub bp_type: u32,
    /// The address of a breakpoint.
    pub config1: u64,
    /// The length of a breakpoint.
    pub config2: u64,
    pub(super) branch_sample_type: u64,
    /// Which registers a sample contains.
    pub sample_regs_user: u64,
    pub(super) sample_stack_user: u32,
    pub(super) clock: i32,
    pub(super) sample_regs_intr: u64,
    pub(super) aux_watermark: u32,
    pub(super) sample_max_stack: u16,
    pub(super) reserved_2: u16,
    pub(super) aux_sample_size: u32,
    pub(super) reserved_3: u32,
    pub(super) sig_data: u64,
}

const _: () = assert!(size_of::<Attr>() == 128);

/// A kind: software events.
pub const SOFTWARE: u32 = 1;
/// A kind: breakpoints.
pub const BREAKPOINT: u32 = 5;

/// A software event: context switches.
pub const CONTEXT_SWITCHES: u64 = 3;
/// A software event: page faults that did not have to wait for a disk.
pub const MINOR_FAULTS: u64 = 5;
/// A software event: page faults that had to wait.
pub const MAJOR_FAULTS: u64 = 6;
/// A software event that never happens.
pub const DUMMY: u64 = 9;

/// A breakpoint on execution.
pub const BP_EXECUTE: u32 = 4;

// Bits of `flags`.
/// The event does not count until it is enabled.
pub const DISABLED: u64 = 1 << 0;
/// Counts only what happens in user mode.
pub const EXCLUDE_KERNEL: u64 = 1 << 5;
/// Does not count what happens in a hypervisor.
pub const EXCLUDE_HV: u64 = 1 << 6;
/// `wakeup_watermark` is a number of bytes.
pub const WATERMARK: u64 = 1 << 14;
/// Writes a record into the ring at each context switch.
pub const CONTEXT_SWITCH: u64 = 1 << 26;
/// The event ends when the process calls `exec`.
pub const REMOVE_ON_EXEC: u64 = 1 << 36;
/// Sends SIGTRAP to the event's thread, before the thread executes another instruction in user
/// mode.
pub const SIGTRAP: u64 = 1 << 37;

/// A watermark that is never reached, so no reader is ever woken.
pub const NEVER_WAKE: u32 = 0x7fff_ffff;

const SAMPLE_REGS_USER: u64 = 1 << 12;

/// The sampled register that shows whether the thread is in a system call: on x86-64 the kernel
/// puts -ENOSYS into rax at the entry of each.
#[cfg(target_arch = "x86_64")]
const CALL_REGISTER: u64 = 1 << 0;
#[cfg(not(target_arch = "x86_64"))]
const CALL_REGISTER: u64 = 0;

impl Attr {
    /// Returns the event that stops a thread after it has blocked: every context switch sends the
    /// thread SIGTRAP.
    ///
    /// The event does not exclude the kernel, although that needs privilege. With `exclude_kernel`
    /// it would never count, because a switch happens in the kernel.
    pub fn gate() -> Attr {
        let sampled = if CALL_REGISTER == 0 { 0 } else { SAMPLE_REGS_USER };
        Attr {
            kind: SOFTWARE,
            config: CONTEXT_SWITCHES,
            sample_period: 1,
            sample_type: sampled,
            sample_regs_user: CALL_REGISTER,
            wakeup_watermark: NEVER_WAKE,
            flags: EXCLUDE_HV | WATERMARK | CONTEXT_SWITCH | REMOVE_ON_EXEC | SIGTRAP,
            ..Attr::default()
        }
    }

    /// Returns an event that only records context switches, which needs no privilege.
    pub fn notify() -> Attr {
        Attr {
            kind: SOFTWARE,
            config: DUMMY,
            wakeup_watermark: NEVER_WAKE,
            flags: EXCLUDE_KERNEL | EXCLUDE_HV | WATERMARK | CONTEXT_SWITCH,
            ..Attr::default()
        }
    }

    /// Returns an event of this kind with these flags that acts at every occurrence. All other
    /// fields are zero.
    pub fn every_time(kind: u32, config: u64, flags: u64) -> Attr {
        Attr { kind, config, flags, sample_period: 1, ..Attr::default() }
    }

    /// Opens the event on the calling thread.
    ///
    /// # Errors
    ///
    /// `EACCES` if the process lacks CAP_PERFMON and perf_event_paranoid is too high (above 1 for
    /// events that include the kernel, above 2 for all); `EINVAL` or `E2BIG` if the kernel does not
    /// support the event; `EPERM` or `ENOSYS` under a seccomp filter; `EMFILE` if no descriptor is
    /// left.
    pub fn open(&self) -> io::Result<OwnedFd> {
        const CLOEXEC: libc::c_ulong = 8;
        let attr = Attr { size: size_of::<Attr>() as u32, ..self.clone() };
        let (this_thread, any_cpu, no_group) = (0, -1, -1);
        // SAFETY: Plain Call: `attr` is a local whose `size` field says how long it is; the kernel
        // only reads it.
        let fd = unsafe {
            libc::syscall(libc::SYS_perf_event_open, &attr, this_thread, any_cpu, no_group, CLOEXEC)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: Own Memory: the call has just returned this descriptor, and only to us.
        Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
    }

    /// Replaces the attributes of the event behind a descriptor by these. Returns false if the
    /// kernel refuses that, for instance because the descriptor number belongs to another file by
    /// now.
    pub fn replace(&self, event: RawFd) -> bool {
        const MODIFY_ATTRIBUTES: libc::Ioctl = 0x4008_240b;
        let attr = Attr { size: size_of::<Attr>() as u32, ..self.clone() };
        // SAFETY: Plain Call: `attr` is a local whose `size` field says how long it is. Only perf
        // events accept this request.
        unsafe { libc::ioctl(event, MODIFY_ATTRIBUTES, &attr) == 0 }
    }
}

/// Enables the event behind a descriptor. Returns false if the descriptor is no event.
pub fn enable(event: RawFd) -> bool {
    request(event, 0x2400)
}

/// Disables the event behind a descriptor. Does nothing if the descriptor is no event.
pub fn disable(event: RawFd) {
    request(event, 0x2401);
}

fn request(event: RawFd, what: libc::Ioctl) -> bool {
    // SAFETY: Plain Call: no memory is passed. Only perf events accept these requests.
    unsafe { libc::ioctl(event, what, 0) == 0 }
}

/// What the last record of a ring says about the event's thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Last {
    /// The thread has been waiting in the kernel since this position of the ring. The flag is true
    /// if it waits in a system call, and false if it waits in a page fault, as far as the record
    /// shows that.
    Blocked(u64, bool),
    /// The thread runs, or could run, or its state is unknown.
    Runs,
}

const RECORD_SAMPLE: u32 = 9;
const RECORD_SWITCH: u32 = 14;
const SWITCH_OUT: u16 = 1 << 13;
const SWITCH_OUT_PREEMPTED: u16 = 1 << 14;

/// The offset of `data_head` in the first page.
const HEAD_AT: usize = 1024;

/// The addresses of one ring, whatever is mapped there at the moment.
#[derive(Debug)]
pub struct PerfRing {
    base: *mut u8,
    page: usize,
}

// SAFETY: Own Memory: it is read with atomic loads, from memory that stays mapped; only one
// thread at a time maps events into it, as `map` and `close` require.
unsafe impl Send for PerfRing {}
// SAFETY: Own Memory: as above.
unsafe impl Sync for PerfRing {}

impl PerfRing {
    /// Reserves addresses for a ring. They are mapped until the process ends, at first to pages of
    /// zeros.
    ///
    /// # Errors
    /// There is not enough memory, or the process has too many mappings.
    pub fn reserve() -> io::Result<PerfRing> {
        let page = rustix::param::page_size();
        let base = map(ptr::null_mut(), 2 * page, None)?;
        Ok(PerfRing { base, page })
    }

    /// Makes the kernel write this event's records here. Only one thread may call this at a time.
    ///
    /// # Errors
    /// `EPERM` beyond the limit of locked memory.
    pub fn map(&self, event: &OwnedFd) -> io::Result<()> {
        map(self.base, 2 * self.page, Some(event.as_raw_fd())).map(drop)
    }

    /// Maps pages of zeros over the ring, so that the ring no longer keeps the event alive. The
    /// event ends when its descriptor is closed as well.
    pub fn close(&self) {
        // If there is no memory for the new mapping, the old one stays, and so does the event. That
        // is harmless, because readers may see old records anyway.
        let _ = map(self.base, 2 * self.page, None);
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at + 8 <= 2 * self.page && at.is_multiple_of(8));
        // SAFETY: Own Memory: an aligned word inside the two pages. The kernel writes whole words.
        unsafe { AtomicU64::from_ptr(self.base.add(at).cast()) }
    }

    /// Returns the position up to which the kernel has written.
    pub fn head(&self) -> u64 {
        self.word(HEAD_AT).load(Ordering::Acquire)
    }

    /// Returns what the last record says about the thread.
    ///
    /// The last eight bytes of a switch record of these events are its header. If the last eight
    /// bytes are anything else, or if the kernel writes meanwhile, the result is that the thread
    /// runs, which is the safe answer.
    pub fn last(&self) -> Last {
        let head = self.head();
        if head < 8 {
            return Last::Runs;
        }
        let record = |back: u64| {
            let at = (head.wrapping_sub(back) as usize) & (self.page - 1);
            self.word(self.page + at).load(Ordering::Relaxed)
        };
        let (kind, misc, _) = header(record(8));
        let out = kind == RECORD_SWITCH && misc & SWITCH_OUT != 0;
        if !out || misc & SWITCH_OUT_PREEMPTED != 0 {
            return Last::Runs;
        }
        // Before it may be a sample of one register: a header, a word that says which registers,
        // the register.
        let mut in_call = true;
        if head >= 32 && header(record(32)).0 == RECORD_SAMPLE {
            in_call = record(16) as i64 == -i64::from(libc::ENOSYS);
        }
        match self.head() == head {
            true => Last::Blocked(head, in_call),
            false => Last::Runs,
        }
    }
}

/// Returns the kind, the flags and the size in the header of a record.
fn header(word: u64) -> (u32, u16, u16) {
    (word as u32, (word >> 32) as u16, (word >> 48) as u16)
}

fn map(at: *mut u8, size: usize, fd: Option<i32>) -> io::Result<*mut u8> {
    let kind = match fd {
        Some(_) => libc::MAP_SHARED,
        None => libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
    };
    let fixed = if at.is_null() { 0 } else { libc::MAP_FIXED };
    // SAFETY: Own Memory: a new mapping, or one that replaces a mapping of this ring.
    let base =
        unsafe { libc::mmap(at.cast(), size, libc::PROT_READ, kind | fixed, fd.unwrap_or(-1), 0) };
    match base {
        libc::MAP_FAILED => Err(io::Error::last_os_error()),
        base => Ok(base.cast()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_field_of_the_signal_lies_where_the_kernel_expects_it() {
        // E2BIG would mean that the kernel found a value other than 0 beyond the fields that it
        // supports. EINVAL for an impossible kind shows that it has read the first field.
        let attr = Attr { kind: SOFTWARE, config: u64::MAX, ..Attr::default() };
        assert!(attr.open().is_err(), "there is no software event of this number");
        assert_eq!(std::mem::offset_of!(Attr, sig_data), 120);
        assert_eq!(std::mem::offset_of!(Attr, flags), 40);
    }

    #[test]
    fn a_ring_without_an_event_says_that_its_thread_runs() {
        let ring = PerfRing::reserve().unwrap();
        assert_eq!((ring.head(), ring.last()), (0, Last::Runs));
        ring.close();
        assert_eq!(ring.head(), 0);
    }
}
