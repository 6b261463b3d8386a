//! The calls of Linux, of the C library and of ThreadSanitizer that stacks need, each in a function
//! of its own: for mappings, guards, signal stacks, and threads on given stacks.
//!
//! A *guard* is a range of memory in which every access faults. Linux 6.13 and later can mark a
//! guard in the page table (`MADV_GUARD_INSTALL`), so a slab with any number of guarded stacks
//! stays a single mapping. Older kernels need `mprotect`, which adds two mappings for each stack
//! and so reaches `vm.max_map_count` (65,530 by default) at about 32,000 stacks. One trial finds
//! out which of the two works.
//!
//! Linux 6.15 and later install the guards of many stacks by one `process_madvise`. Where that is
//! refused, each stack is guarded by a call of its own.
//!
//! `UMS_STACKS_WITHOUT` forces the older ways, for tests: `batches` guards each stack by a call of
//! its own, and `markers` guards by `mprotect`.
//!
//! This file does not decide where stacks and guards are, and keeps no state but the result of that
//! trial.
//!
//! This file has unsafe code: each block contains one of the calls.
#![allow(unsafe_code)]

use std::fmt;
use std::io;
use std::ptr;
use std::sync::OnceLock;

/// The kernel's number, the same on all architectures. Not every C library defines it.
const MADV_GUARD_INSTALL: i32 = 102;
/// The calling process, instead of a descriptor that names a process. The kernel's number, the same
/// on all architectures.
const PIDFD_SELF_PROCESS: i32 = -10_001;

/// The most guards of one call.
pub(crate) const GUARDS_AT_ONCE: usize = 64;

/// How accesses below a stack are made to fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GuardKind {
    /// Markers in the page table, without further mappings; many guards by one call.
    Batched,
    /// The same, with a call for each guard.
    Madvise,
    /// A protected range, which takes two more mappings for each stack.
    Mprotect,
}

impl GuardKind {
    /// Returns the best kind that works on this kernel.
    pub(crate) fn probed() -> GuardKind {
        static PROBED: OnceLock<GuardKind> = OnceLock::new();
        *PROBED.get_or_init(|| {
            let without = std::env::var("UMS_STACKS_WITHOUT").unwrap_or_default();
            let known = ["", "batches", "markers"].contains(&without.as_str());
            assert!(known, "UMS_STACKS_WITHOUT is {without:?}, and can be batches or markers");
            if without == "markers" || !madvise_guards() {
                GuardKind::Mprotect
            } else if without == "batches" || !madvise_guards_in_batches() {
                GuardKind::Madvise
            } else {
                GuardKind::Batched
            }
        })
    }

    /// Returns the name shown to users.
    pub(crate) fn name(self) -> &'static str {
        match self {
            GuardKind::Batched | GuardKind::Madvise => "MADV_GUARD_INSTALL",
            GuardKind::Mprotect => "mprotect",
        }
    }
}

/// Returns whether accesses to a page marked by `MADV_GUARD_INSTALL` fault. The return value of the
/// call does not prove that, because user-mode emulators return 0 for advice that they do not know.
/// So this makes a system call that writes to the page.
fn madvise_guards() -> bool {
    let len = page_size();
    let Ok(page) = reserve(len) else { return false };
    // SAFETY: Own Memory: `page` was reserved just above and no other code knows it.
    let installed = unsafe { madvise(page, len, MADV_GUARD_INSTALL) }.is_ok();
    // SAFETY: Own Memory: uname(2) writes at most one `utsname`, which fits in the page. If the
    // page is guarded, the call fails with EFAULT and writes nothing.
    let guarded = installed && unsafe { libc::uname(ptr::with_exposed_provenance_mut(page)) } != 0;
    // SAFETY: Own Memory: nothing refers to the page.
    unsafe { release(page, len) };
    guarded
}

/// Returns whether one call can guard several ranges.
fn madvise_guards_in_batches() -> bool {
    let page = page_size();
    let Ok(at) = reserve(4 * page) else { return false };
    // SAFETY: Own Memory: the four pages were reserved just above, and no other code knows them.
    let done = unsafe { guard_many(at, page, 2 * page, 2) };
    // SAFETY: Own Memory: nothing refers to the pages.
    unsafe { release(at, 4 * page) };
    done
}

/// Returns the bytes per page.
#[inline]
pub(crate) fn page_size() -> usize {
    static SIZE: OnceLock<usize> = OnceLock::new();
    *SIZE.get_or_init(|| {
        // SAFETY: Plain Call: sysconf has no preconditions.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(size).expect("the kernel states a page size")
    })
}

/// Reserves `len` bytes of zeroes, of which only touched pages take memory.
///
/// Huge pages are turned off, because one touched byte would commit 2 MiB of neighbouring stacks.
pub(crate) fn reserve(len: usize) -> io::Result<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: Plain Call: an anonymous mapping at an address of the kernel's choice replaces
    // nothing.
    let at = unsafe { libc::mmap(ptr::null_mut(), len, prot, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let at = at.expose_provenance();
    // SAFETY: Own Memory: reserved just above. Kernels that were built without huge pages return
    // EINVAL, which does no harm.
    let _ = unsafe { madvise(at, len, libc::MADV_NOHUGEPAGE) };
    Ok(at)
}

/// Returns a reserved range to the kernel.
///
/// # Safety
///
/// The range came from [`reserve`] and nothing refers to it.
pub(crate) unsafe fn release(at: usize, len: usize) {
    // SAFETY: Contract.
    let failed = unsafe { libc::munmap(ptr::with_exposed_provenance_mut(at), len) };
    assert_eq!(failed, 0, "a slab was unmapped that was not mapped");
}

/// Makes every access to the range fault.
///
/// # Safety
///
/// The range is whole pages of a reservation, and their contents are not needed.
pub(crate) unsafe fn guard(at: usize, len: usize, kind: GuardKind) -> io::Result<()> {
    if kind != GuardKind::Mprotect {
        // SAFETY: Contract.
        match unsafe { madvise(at, len, MADV_GUARD_INSTALL) } {
            // Kernels 6.13 and 6.14 refuse markers in locked memory (mlockall): use mprotect.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
            done => return done,
        }
    }
    // SAFETY: Contract.
    let failed =
        unsafe { libc::mprotect(ptr::with_exposed_provenance_mut(at), len, libc::PROT_NONE) };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes every access to `count` ranges of `len` bytes fault, by one call. The first range starts
/// at `at`, and each other one `stride` bytes after the one before. Returns false if the kernel has
/// not guarded all of them; then some may be guarded.
///
/// # Safety
///
/// Each range is whole pages of a reservation, and their contents are not needed.
pub(crate) unsafe fn guard_many(at: usize, len: usize, stride: usize, count: usize) -> bool {
    let none = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
    let mut ranges = [none; GUARDS_AT_ONCE];
    let ranges = &mut ranges[..count];
    for (index, range) in ranges.iter_mut().enumerate() {
        range.iov_base = ptr::with_exposed_provenance_mut(at + index * stride);
        range.iov_len = len;
    }
    // SAFETY: Contract; the ranges outlive the call.
    let advised = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            PIDFD_SELF_PROCESS,
            ranges.as_ptr(),
            count,
            MADV_GUARD_INSTALL,
            0,
        )
    };
    usize::try_from(advised) == Ok(len * count)
}

/// Returns the memory of the range to the kernel. The range reads as zeroes when it is touched
/// again.
///
/// # Safety
///
/// The range is whole pages of a reservation, and their contents are not needed.
pub(crate) unsafe fn discard(at: usize, len: usize) {
    // SAFETY: Contract. If the call fails (for locked memory), the pages only keep their memory.
    let _ = unsafe { madvise(at, len, libc::MADV_DONTNEED) };
}

/// Commits the memory of the range, so that a lack of memory is an error of this call, and does not
/// make the kernel kill the process later.
pub(crate) fn populate(at: usize, len: usize) -> io::Result<()> {
    // SAFETY: Plain Call: the call changes no byte of the memory, and the kernel checks that the
    // range is mapped.
    unsafe { madvise(at, len, libc::MADV_POPULATE_WRITE) }
}

/// Returns the calling thread's stack without its guard: lowest address and length.
pub(crate) fn thread_stack() -> Option<(usize, usize)> {
    let mut attributes = std::mem::MaybeUninit::uninit();
    let (mut at, mut len) = (ptr::null_mut(), 0);
    // SAFETY: Plain Call: the first call fills the attributes, the second reads them, and the third
    // frees the memory that they own.
    unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) != 0 {
            return None;
        }
        libc::pthread_attr_getstack(attributes.as_ptr(), &mut at, &mut len);
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
    }
    // Some C libraries include the guard in this range. That does no harm to callers that look for
    // pages in memory, because the guard's are never in memory.
    let page = page_size();
    Some((at.expose_provenance().next_multiple_of(page), len / page * page))
}

/// Returns the bytes that the C library keeps on the stack of each thread (thread-locals, its own
/// record), and the least that it wants to remain.
pub(crate) fn thread_overhead() -> usize {
    type Least = unsafe extern "C" fn(*const libc::pthread_attr_t) -> usize;
    // SAFETY: Plain Call: looks a name up.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__pthread_get_minstack".as_ptr()) };
    if found.is_null() {
        // A C library without this function keeps its own record elsewhere.
        return libc::PTHREAD_STACK_MIN.next_multiple_of(page_size());
    }
    let mut attributes = std::mem::MaybeUninit::uninit();
    // SAFETY: Loaded: glibc's function of this name has this type. Plain Call: the attributes
    // outlive the call, and are destroyed after it.
    let least = unsafe {
        let least = std::mem::transmute::<*mut libc::c_void, Least>(found);
        libc::pthread_attr_init(attributes.as_mut_ptr());
        let bytes = least(attributes.as_ptr());
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        bytes
    };
    least.next_multiple_of(page_size())
}

/// The first function of a thread.
pub(crate) type ThreadMain = Box<dyn FnOnce() + Send>;

/// Creates a thread that runs `main` on the stack between these addresses. Returns the C library's
/// handle of it, which is a number or a pointer.
///
/// # Safety
///
/// No other code uses the memory, which is mapped, until the thread has been joined.
pub(crate) unsafe fn spawn_on(low: usize, top: usize, main: ThreadMain) -> io::Result<usize> {
    extern "C" fn run(main: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: Handed Over: the creator has given this box to this thread only.
        let main = unsafe { Box::from_raw(main.cast::<ThreadMain>()) };
        main();
        ptr::null_mut()
    }
    let main = Box::into_raw(Box::new(main));
    let mut attributes = std::mem::MaybeUninit::uninit();
    // SAFETY: Plain Data: a number, or with some C libraries a pointer.
    let mut thread: libc::pthread_t = unsafe { std::mem::zeroed() };
    // SAFETY: Contract; the attributes outlive the calls, and are destroyed last.
    let failed = unsafe {
        libc::pthread_attr_init(attributes.as_mut_ptr());
        let at = ptr::with_exposed_provenance_mut(low);
        let mut failed = libc::pthread_attr_setstack(attributes.as_mut_ptr(), at, top - low);
        if failed == 0 {
            failed = libc::pthread_create(&mut thread, attributes.as_ptr(), run, main.cast());
        }
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        failed
    };
    if failed == 0 {
        return Ok(thread as usize);
    }
    // SAFETY: Handed Over: no thread has got it.
    drop(unsafe { Box::from_raw(main) });
    Err(io::Error::from_raw_os_error(failed))
}

/// Waits until a thread has ended.
///
/// # Safety
///
/// [`spawn_on`] has returned the thread, and it has not been joined or detached.
pub(crate) unsafe fn join(thread: usize) {
    // SAFETY: Contract.
    let failed = unsafe { libc::pthread_join(thread as libc::pthread_t, ptr::null_mut()) };
    assert_eq!(failed, 0, "a thread cannot join itself");
}

/// Gives up the right to join a thread.
///
/// # Safety
///
/// As [`join`].
pub(crate) unsafe fn detach(thread: usize) {
    // SAFETY: Contract.
    let _ = unsafe { libc::pthread_detach(thread as libc::pthread_t) };
}

/// Returns the length of the text's start that has whole characters, and at most this many bytes.
pub(crate) fn whole_characters(text: &str, most: usize) -> usize {
    (0..=most.min(text.len())).rev().find(|&len| text.is_char_boundary(len)).unwrap_or(0)
}

/// Sets the name that the system shows for the calling thread, cut to 15 bytes.
pub(crate) fn name_this_thread(name: &str) {
    let mut bytes = [0u8; 16];
    let len = whole_characters(name, bytes.len() - 1);
    bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
    // SAFETY: Plain Call: the kernel copies the name, which ends with a zero.
    unsafe { libc::prctl(libc::PR_SET_NAME, bytes.as_ptr()) };
}

/// Bytes of a signal stack, in addition to the frame that the kernel writes there.
const SIGNAL_STACK: usize = 32 * 1024;

/// Returns the size of a signal stack: whole pages.
pub(crate) fn signal_stack_size() -> usize {
    // SAFETY: Plain Call: returns a number; 0 means unknown.
    let kernel_needs = unsafe { libc::getauxval(libc::AT_MINSIGSTKSZ) } as usize;
    (SIGNAL_STACK + kernel_needs.max(libc::MINSIGSTKSZ)).next_multiple_of(page_size())
}

/// Makes `len` bytes at this address the signal stack of the calling thread, unless it has one: a
/// sanitizer has given it its own, and unmaps what it finds at the thread's end.
///
/// # Safety
///
/// No other code uses the memory until the thread has ended.
pub(crate) unsafe fn use_signal_stack(at: usize, len: usize) {
    if signal_stack().ss_flags & libc::SS_DISABLE == 0 {
        return;
    }
    let at = ptr::with_exposed_provenance_mut(at);
    // SAFETY: Contract.
    unsafe { set_signal_stack(libc::stack_t { ss_sp: at, ss_flags: 0, ss_size: len }) };
}

const NO_SIGNAL_STACK: &str = "the system call sigaltstack is denied, probably by a seccomp \
     filter. Fibers and own contexts need it to report an overflow of a stack: allow it, or use \
     threads";

/// Returns the calling thread's signal stack.
pub(crate) fn signal_stack() -> libc::stack_t {
    // SAFETY: Plain Data: a stack_t without memory.
    let mut now: libc::stack_t = unsafe { std::mem::zeroed() };
    // SAFETY: Plain Call: only reads the present signal stack; `now` outlives the call.
    let failed = unsafe { libc::sigaltstack(ptr::null(), &raw mut now) };
    assert_eq!(failed, 0, "{NO_SIGNAL_STACK}");
    now
}

/// Changes the calling thread's signal stack.
///
/// # Safety
///
/// No other code uses the memory, if there is any, until the signal stack is changed again or the
/// thread has ended.
pub(crate) unsafe fn set_signal_stack(new: libc::stack_t) {
    // SAFETY: Contract.
    let failed = unsafe { libc::sigaltstack(&raw const new, ptr::null_mut()) };
    assert_eq!(failed, 0, "{NO_SIGNAL_STACK}");
}

/// Returns the lowest address in the range whose page is in memory, or `top` if no page is. Returns
/// `None` if part of the range is not mapped. Allocates nothing.
pub(crate) fn lowest_resident(low: usize, top: usize) -> Option<usize> {
    /// The most pages for one call: with pages of 4 KiB, all of a stack of 2 MiB.
    const AT_ONCE: usize = 512;
    let page = page_size();
    let mut at = low - low % page;
    let mut found = None;
    while at < top {
        // At least 1. A part of a page at the end counts as a page.
        let pages = (top - at).div_ceil(page).min(AT_ONCE);
        let mut resident = [0u8; AT_ONCE];
        // SAFETY: Plain Call: the kernel writes one byte for each page, and the array has room for
        // them. The kernel checks the range itself.
        let failed = unsafe {
            let start = ptr::with_exposed_provenance_mut(at);
            libc::mincore(start, pages * page, resident.as_mut_ptr().cast())
        };
        if failed != 0 {
            return None;
        }
        let first = resident[..pages].iter().position(|page| *page & 1 != 0);
        found = found.or(first.map(|index| at + index * page));
        at = at.checked_add(pages * page)?;
    }
    Some(found.unwrap_or(top).clamp(low, top))
}

/// Calls `madvise`.
///
/// # Safety
///
/// What the advice requires: the functions above state it.
unsafe fn madvise(at: usize, len: usize, advice: i32) -> io::Result<()> {
    // SAFETY: Contract.
    let failed = unsafe { libc::madvise(ptr::with_exposed_provenance_mut(at), len, advice) };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The last message of a process that is about to abort. It is formatted without allocating memory,
/// and cut if it is too long.
pub(crate) struct LastWords {
    bytes: [u8; 320],
    len: usize,
}

impl LastWords {
    /// Writes the message to stderr, unless that would have to wait: a pipe that no process reads
    /// must not keep the process from ending. A failure is ignored for the same reason.
    pub(crate) fn say(words: fmt::Arguments<'_>) {
        let mut line = LastWords { bytes: [0; 320], len: 0 };
        let _ = fmt::Write::write_fmt(&mut line, words);
        let mut asked = libc::pollfd { fd: libc::STDERR_FILENO, events: libc::POLLOUT, revents: 0 };
        // SAFETY: Signal: poll(2) is allowed in a handler; one entry, which is a local.
        let ready = unsafe { libc::poll(&raw mut asked, 1, 0) };
        if ready != 1 || asked.revents != libc::POLLOUT {
            return;
        }
        // SAFETY: Signal: write(2) is allowed in a handler; the buffer holds `len` bytes.
        let _ = unsafe { libc::write(libc::STDERR_FILENO, line.bytes.as_ptr().cast(), line.len) };
    }
}

impl fmt::Write for LastWords {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = &mut self.bytes[self.len..];
        let taken = text.len().min(room.len());
        room[..taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.len += taken;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probe_answers_the_same_twice_and_has_a_name() {
        assert_eq!(GuardKind::probed(), GuardKind::probed());
        assert!(!GuardKind::probed().name().is_empty());
    }

    #[test]
    fn a_reservation_is_resident_only_where_it_was_touched() {
        let page = page_size();
        let at = reserve(8 * page).expect("eight pages");
        assert_eq!(lowest_resident(at, at + 8 * page), Some(at + 8 * page));
        // SAFETY: Own Memory: the sixth page of the reservation above.
        unsafe { ptr::with_exposed_provenance_mut::<u8>(at + 5 * page).write(1) };
        assert_eq!(lowest_resident(at, at + 8 * page), Some(at + 5 * page));
        // SAFETY: Own Memory: nothing refers to the reservation.
        unsafe { discard(at, 8 * page) };
        assert_eq!(lowest_resident(at, at + 8 * page), Some(at + 8 * page));
        populate(at, 8 * page).expect("eight pages of memory");
        assert_eq!(lowest_resident(at, at + 8 * page), Some(at));
        // SAFETY: Own Memory: nothing refers to the reservation.
        unsafe { release(at, 8 * page) };
        assert_eq!(lowest_resident(at, at + 8 * page), None, "it is unmapped");
    }

    #[test]
    fn both_kinds_of_guard_refuse_access() {
        for kind in [GuardKind::probed(), GuardKind::Madvise, GuardKind::Mprotect] {
            if kind == GuardKind::Madvise && GuardKind::probed() == GuardKind::Mprotect {
                continue;
            }
            let page = page_size();
            let at = reserve(2 * page).expect("two pages");
            // SAFETY: Own Memory: the first page of the reservation above, which holds nothing.
            unsafe { guard(at, page, kind) }.expect("a guard");
            // SAFETY: Own Memory: the call fails with EFAULT for the guard, and fills the page
            // above it.
            let below = unsafe { libc::uname(ptr::with_exposed_provenance_mut(at)) };
            // SAFETY: Own Memory: as above.
            let above = unsafe { libc::uname(ptr::with_exposed_provenance_mut(at + page)) };
            assert_eq!((below, above), (-1, 0), "{kind:?}");
            // SAFETY: Own Memory: nothing refers to the reservation.
            unsafe { release(at, 2 * page) };
        }
    }
}
