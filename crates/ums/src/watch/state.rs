//! Reads `/proc/self/task/TID/syscall`, which says what a thread is doing, where perf is not
//! available.
//!
//! The file says `running`, or `NUMBER arguments.. sp pc` for a thread that waits in a system call,
//! or `-1 sp pc` for one that waits elsewhere, such as in a page fault. Reading it costs about two
//! microseconds, needs no privilege, and never disturbs the thread.
//!
//! The thread itself closes the file's descriptor when it ends. Another thread may read afterwards,
//! when the descriptor's number means another file. Such a read, at position 0, returns an error or
//! text that does not parse; the thread then counts as running.

use std::ffi::CStr;
use std::io;

use rustix::fs::{self, Mode, OFlags};

use crate::os::linux::perf::Last;
use crate::os::linux::plain::FdSlot;

/// The state file of one thread.
#[derive(Debug)]
pub(crate) struct StateFile(FdSlot);

/// Where a thread waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waits {
    /// The number of the system call, or `None` in a fault.
    pub call: Option<i64>,
    /// The arguments of the call.
    pub args: [u64; 6],
    /// The address at which its user code continues, and its stack pointer.
    pub pc: u64,
    pub sp: u64,
}

/// The call that a thread was seen blocked in, in the form that a signal's information can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockedCall {
    pub number: i64,
    /// The address at which the thread continues.
    pub pc: u64,
    /// The [`fingerprint`] of its stack pointer and its arguments.
    pub of: u64,
}

/// Returns a hash of a stack pointer and arguments. Two different inputs have the same hash with a
/// probability of one in 2^64.
pub(crate) fn fingerprint(sp: u64, args: [u64; 6]) -> u64 {
    let mix = |so_far: u64, word: u64| {
        let mixed = (so_far ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ mixed >> 29
    };
    args.into_iter().fold(mix(0, sp), mix)
}

/// What the kernel says about a thread and its signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SignalState {
    /// Whether only a signal that kills can wake it.
    pub cannot_be_interrupted: bool,
    /// The signals sent to it and not yet delivered.
    pub pending: u64,
    pub blocked: u64,
}

/// The calls that change the address space.
pub(super) const ADDRESS_SPACE: [i64; 6] = [
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
];

impl Waits {
    /// Returns whether the thread waits in a call that changes the address space. Such a call is
    /// short, and allocators make it while they hold a lock.
    pub fn changes_memory_map(&self) -> bool {
        self.call.is_some_and(|call| ADDRESS_SPACE.contains(&call))
    }

    /// Returns the address of the futex that the thread waits on, if any.
    pub fn futex(&self) -> Option<u64> {
        (self.call == Some(libc::SYS_futex)).then_some(self.args[0])
    }

    /// Returns a number for what the thread waits in, which is never 0. `progress` is a number that
    /// grows with what the thread does. Two looks get the same number only if they saw the same
    /// block, as far as can be determined.
    pub fn number(&self, progress: u64) -> u64 {
        // Bounded: the upper bits may be lost; two looks are close to each other.
        progress << 16 | self.pc & 0xffff | 1
    }

    /// Returns the call that the thread waits in, if any.
    pub fn seen(&self) -> Option<BlockedCall> {
        let of = fingerprint(self.sp, self.args);
        self.call.map(|number| BlockedCall { number, pc: self.pc, of })
    }
}

impl Default for StateFile {
    fn default() -> StateFile {
        StateFile::new()
    }
}

impl StateFile {
    pub const fn new() -> StateFile {
        StateFile(FdSlot::new())
    }

    /// Opens the file of the calling thread, whose number is `tid`.
    pub fn open(&self, tid: i32) -> io::Result<()> {
        let file = std::fs::File::open(format!("/proc/self/task/{tid}/syscall"))?;
        self.0.put(Some(file.into()));
        Ok(())
    }

    /// Closes it. Called by the thread itself, at its end.
    pub fn close(&self) {
        self.0.put(None);
    }

    /// Returns where the thread waits, or `None` if it runs or nothing is known.
    pub fn waits(&self) -> Option<Waits> {
        let mut text = [0_u8; 256];
        let n = self.0.read(&mut text)?;
        parse(text.get(..n)?)
    }

    /// Returns whether the thread waits in a futex call for another thread to wake it, as for a
    /// lock.
    pub fn waits_in_futex(&self) -> bool {
        self.waits().is_some_and(|waits| waits.call == Some(libc::SYS_futex))
    }

    /// Returns the state of the thread in the form in which a ring of perf records gives it, with
    /// position 0.
    pub fn last(&self) -> Last {
        self.waits().map_or(Last::Runs, |waits| Last::Blocked(0, waits.call.is_some()))
    }
}

/// Returns whether the kernel restarts a call that a signal has ended, if the handler was installed
/// with `SA_RESTART`.
pub(crate) fn is_restarted(call: i64) -> bool {
    #[cfg(target_arch = "x86_64")]
    if [libc::SYS_poll, libc::SYS_select, libc::SYS_epoll_wait, libc::SYS_pause].contains(&call) {
        return false;
    }
    let ended = [
        libc::SYS_ppoll,
        libc::SYS_pselect6,
        libc::SYS_epoll_pwait,
        libc::SYS_epoll_pwait2,
        libc::SYS_nanosleep,
        libc::SYS_clock_nanosleep,
        libc::SYS_msgrcv,
        libc::SYS_msgsnd,
        libc::SYS_semop,
        libc::SYS_semtimedop,
        libc::SYS_io_getevents,
        libc::SYS_rt_sigtimedwait,
        libc::SYS_rt_sigsuspend,
    ];
    !ended.contains(&call)
}

/// Returns the call or fault that a thread of this process waits in. Opens and closes the thread's
/// file for this one look, and allocates nothing.
pub(crate) fn look_at(tid: i32) -> Option<Waits> {
    let mut text = [0_u8; 256];
    let n = read_of_task(tid, "syscall", &mut text)?;
    parse(&text[..n])
}

/// Returns whether a thread of this process waits for the lock of the address space. That is a wait
/// inside a page fault, and no gate follows it. Returns false if the kernel does not report the
/// function that the thread waits in.
pub(crate) fn waits_for_memory_map(tid: i32) -> bool {
    let mut text = [0_u8; 64];
    let n = read_of_task(tid, "wchan", &mut text).unwrap_or(0);
    text[..n].starts_with(b"rwsem") || text[..n].windows(9).any(|part| part == b"mmap_lock")
}

/// Reads the signals of a thread of this process. Allocates nothing.
pub(super) fn signals_of(tid: i32) -> Option<SignalState> {
    let mut text = [0_u8; 4096];
    let n = read_of_task(tid, "status", &mut text)?;
    parse_signals(&text[..n])
}

/// Reads a file of procfs about a thread of this process, and returns the length that was read.
fn read_of_task(tid: i32, name: &str, text: &mut [u8]) -> Option<usize> {
    use std::io::Write;
    let mut path = [0_u8; 64];
    write!(&mut path[..], "/proc/self/task/{tid}/{name}\0").ok()?;
    let path = CStr::from_bytes_until_nul(&path).ok()?;
    let file = fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    rustix::io::read(file, text).ok()
}

fn parse(text: &[u8]) -> Option<Waits> {
    let text = std::str::from_utf8(text).ok()?.trim_end();
    let mut words = text.split(' ');
    let number: i64 = words.next()?.parse().ok()?;
    let hex = |word: &str| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok();
    let pc = hex(words.next_back()?)?;
    let sp = hex(words.next_back()?)?;
    let args = std::array::from_fn(|_| words.next().and_then(hex).unwrap_or(0));
    Some(Waits { call: (number >= 0).then_some(number), args, pc, sp })
}

fn parse_signals(text: &[u8]) -> Option<SignalState> {
    let mut lines = text.split(|byte| *byte == b'\n');
    // The calls of `find` are in the order of the lines of the file.
    let mut find = |name: &[u8]| lines.find_map(|line| line.strip_prefix(name));
    let state = find(b"State:\t")?.first() == Some(&b'D');
    let mut set = |name: &[u8]| {
        let digits = std::str::from_utf8(find(name)?).ok()?;
        u64::from_str_radix(digits.trim(), 16).ok()
    };
    let (pending, blocked) = (set(b"SigPnd:")?, set(b"SigBlk:")?);
    Some(SignalState { cannot_be_interrupted: state, pending, blocked })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_tells_calls_from_faults_from_running() {
        assert_eq!(parse(b"running\n"), None);
        assert_eq!(parse(b""), None);
        assert_eq!(
            parse(b"0 0x3 0x7f 0x1 0x0 0x0 0x0 0x7ffd10 0x7f12\n"),
            Some(Waits { call: Some(0), args: [3, 0x7f, 1, 0, 0, 0], pc: 0x7f12, sp: 0x7ffd10 })
        );
        assert_eq!(
            parse(b"-1 0x7ffd10 0x55aa\n"),
            Some(Waits { call: None, args: [0; 6], pc: 0x55aa, sp: 0x7ffd10 })
        );
    }

    #[test]
    fn a_block_elsewhere_or_after_some_progress_has_another_number() {
        let at = |pc| Waits { call: None, args: [0; 6], pc, sp: 0 };
        let block = at(0x7fff_f7d1_2340);
        let number = block.number(5);
        assert_eq!(block.number(5), number);
        assert_ne!(at(block.pc + 16).number(5), number, "elsewhere");
        // The upper bits of an address must not hide those of the progress.
        assert!((6..1000).all(|progress| block.number(progress) != number));
        assert_ne!(at(0).number(0), 0, "0 stands for no block");
    }

    #[test]
    fn the_kernel_says_which_signals_are_pending_and_which_are_blocked() {
        let text = b"Name:\tums-0\nState:\tD (disk sleep)\nTgid:\t7\nSigQ:\t0/1\n\
            SigPnd:\t0000000000000010\nShdPnd:\t0000000000000001\nSigBlk:\tfffffffe7ffbfeff\n";
        let seen = parse_signals(text).unwrap();
        let blocked = 0xffff_fffe_7ffb_feff;
        let same = SignalState { cannot_be_interrupted: true, pending: 1 << 4, blocked };
        assert_eq!(seen, same);
        let me = signals_of(crate::os::thread_number() as i32).unwrap();
        assert!(!me.cannot_be_interrupted && me.pending == 0, "{me:?}");
        assert_eq!(me.blocked, crate::watch::mask_here());
    }

    #[test]
    fn a_thread_that_reads_its_own_file_runs() {
        let file = StateFile::new();
        assert_eq!(file.last(), Last::Runs);
        file.open(crate::os::thread_number() as i32).unwrap();
        // The thread is in a system call while it reads, but it runs. The kernel may report a
        // thread's read of its own file as a wait in a call.
        assert!(matches!(file.last(), Last::Runs | Last::Blocked(0, true)));
        file.close();
        assert_eq!(file.last(), Last::Runs);
    }
}
