//! Calls of the C library, each as a safe function: words on which threads sleep, eventfds, clocks,
//! sleeping, processors, thread-local values, the heap.
//!
//! Calls that may block are made through the C library's functions, so that a worker that blocks in
//! one is noticed.
//!
//! No wake-up is lost between [`wait`] and [`wake`], because before the waiter sleeps, the kernel
//! compares the word with the value that the waiter has seen. This file has the unsafe code for
//! these calls, so that other files need none for them.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use ums::watch::calls::may_block;

use super::error::os;

/// Sleeps while the word is `seen`, for at most this many milliseconds (None: no limit). Returns
/// false if the time is over.
pub fn wait(word: &AtomicU32, seen: u32, ms: Option<u32>) -> bool {
    let span = ms.map(|ms| libc::timespec {
        tv_sec: i64::from(ms / 1000),
        tv_nsec: i64::from(ms % 1000) * 1_000_000,
    });
    let span = span.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    let result = may_block(
        || word.load(Ordering::Relaxed) == seen,
        // SAFETY: Plain Call: the word and the time outlive the call.
        || unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op, seen, span) },
    );
    result == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ETIMEDOUT)
}

/// Wakes at most this many threads that sleep on the word.
pub fn wake(word: &AtomicU32, count: i32) {
    // SAFETY: Plain Call: the kernel uses the address only to find sleeping threads.
    unsafe {
        let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
        libc::syscall(libc::SYS_futex, word.as_ptr(), op, count);
    }
}

/// Creates an eventfd. Its number is above those of stdin, stdout and stderr, also if the program
/// has closed these: what is printed must not add to a count.
pub(super) fn eventfd(count: u32, flags: i32) -> Result<OwnedFd, u32> {
    // SAFETY: Plain Call. A descriptor that is not negative is new, and belongs to this function.
    unsafe {
        let fd = libc::eventfd(count, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK | flags);
        if fd < 0 {
            return Err(os());
        }
        let made = OwnedFd::from_raw_fd(fd);
        if fd > libc::STDERR_FILENO {
            return Ok(made);
        }
        let above = libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, libc::STDERR_FILENO + 1);
        if above < 0 { Err(os()) } else { Ok(OwnedFd::from_raw_fd(above)) }
    }
}

/// Writes to stderr, unless it is closed or would have to wait.
pub(super) fn write_to_stderr(text: &str) {
    let mut asked = libc::pollfd { fd: libc::STDERR_FILENO, events: libc::POLLOUT, revents: 0 };
    // SAFETY: Plain Call: one entry, which is a local; then a borrowed text.
    unsafe {
        if libc::poll(&raw mut asked, 1, 0) == 1 && asked.revents == libc::POLLOUT {
            libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len());
        }
    }
}

/// Adds to the count of an eventfd.
pub(super) fn signal(fd: RawFd, count: u64) {
    // SAFETY: Plain Call: eight bytes. The call fails only if the count is full, and then the
    // object is signalled anyway.
    unsafe { libc::write(fd, (&raw const count).cast(), 8) };
}

/// Reads the count of an eventfd, which resets it. Returns false if the count was 0.
pub(super) fn take(fd: RawFd) -> bool {
    let mut count = 0u64;
    // SAFETY: Plain Call: eight bytes.
    unsafe { libc::read(fd, (&raw mut count).cast(), 8) == 8 }
}

/// Returns true if the count of an eventfd is not 0.
pub(super) fn is_readable(fd: RawFd) -> bool {
    let mut set = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
    poll(&mut set, 0) > 0
}

/// Waits until a descriptor of the set is readable, for at most this many milliseconds (-1: no
/// limit).
pub(super) fn poll(set: &mut [libc::pollfd], ms: i32) -> i32 {
    // SAFETY: Plain Call: the array outlives the call.
    unsafe { libc::poll(set.as_mut_ptr(), set.len() as libc::nfds_t, ms) }
}

/// Reads one of the kernel's clocks.
pub(super) fn now(clock: libc::clockid_t) -> libc::timespec {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: Plain Call: `time` outlives the call.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time
}

/// Sleeps for this long. A signal handler does not shorten the sleep.
pub(super) fn sleep(mut left: libc::timespec) {
    // SAFETY: Plain Call: `left` outlives the call.
    while unsafe { libc::nanosleep(&left, &mut left) } != 0
        && std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted
    {}
}

/// Returns the size of a page, in bytes.
pub(super) fn page_size() -> usize {
    // SAFETY: Plain Call.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// Returns the processor on which the caller runs at this moment.
pub(super) fn processor() -> u32 {
    // SAFETY: Plain Call.
    unsafe { libc::sched_getcpu() as u32 }
}

/// Returns the kernel's number of the kernel thread on which the caller runs.
pub(super) fn kernel_thread() -> u32 {
    // SAFETY: Plain Call.
    unsafe { libc::gettid() as u32 }
}

/// Returns the processors that a thread may use (0: the caller), of the first 64.
pub(super) fn affinity(id: u32) -> Result<usize, u32> {
    let id = id as libc::pid_t;
    let mut mask = [0usize; 16];
    let size = size_of_val(&mask);
    // SAFETY: Plain Call: the kernel does not write more than the given size.
    let read = unsafe { libc::syscall(libc::SYS_sched_getaffinity, id, size, mask.as_mut_ptr()) };
    if read < 0 { Err(os()) } else { Ok(mask[0]) }
}

/// Sets the processors that a thread may use (0: the caller). Returns the previous mask.
pub(super) fn set_affinity(id: u32, mask: usize) -> Result<usize, u32> {
    let before = affinity(id)?;
    let (id, size) = (id as libc::pid_t, size_of::<usize>());
    // SAFETY: Plain Call: the kernel reads one word.
    let set = unsafe { libc::syscall(libc::SYS_sched_setaffinity, id, size, &raw const mask) };
    if set < 0 { Err(os()) } else { Ok(before) }
}

/// The mask that the program has chosen for its threads; 0 if it has not.
static CHOSEN: AtomicUsize = AtomicUsize::new(0);

/// Returns the processors that the process's first thread could use when this was first called.
/// That is before the first thread is pinned: see the callers.
pub(super) fn allowed() -> usize {
    static ALLOWED: OnceLock<usize> = OnceLock::new();
    *ALLOWED.get_or_init(|| affinity(std::process::id()).unwrap_or(1))
}

/// Returns the processors for a new thread, which may be created by one that is pinned.
pub(super) fn process_mask() -> usize {
    let (chosen, allowed) = (CHOSEN.load(Ordering::Acquire), allowed());
    if chosen == 0 { allowed } else { chosen }
}

/// Lets the calling thread, which is new, run on the processors of the process. Processors beyond
/// the first 64 are kept unless its creator was pinned.
pub(super) fn use_process_mask() {
    let mask = process_mask();
    if affinity(0).is_ok_and(|own| own != mask) {
        // If the system refuses, the thread stays where its creator was.
        let _ = set_affinity(0, mask);
    }
}

/// Chooses the processors for new threads.
pub(super) fn set_process_mask(mask: usize) {
    CHOSEN.store(mask, Ordering::Release);
}

/// Sets a thread's nice value (0: the caller). If the system refuses, nothing changes.
pub(super) fn set_nice(id: u32, nice: i32) {
    // SAFETY: Plain Call.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, id, nice) };
}

/// Creates a key of thread-local values. When a thread ends, the function is called with the
/// thread's value.
pub(super) fn key_new(at_end: Option<extern "C" fn(*mut c_void)>) -> Option<u32> {
    let mut key = 0;
    let at_end = at_end.map(|f| f as unsafe extern "C" fn(*mut c_void));
    // SAFETY: Plain Call: `key` outlives the call.
    let failed = unsafe { libc::pthread_key_create(&mut key, at_end) };
    (failed == 0).then_some(key)
}

/// Returns the calling thread's value. Returns NULL if the thread has none, or if the key does not
/// exist.
pub(super) fn key_get(key: u32) -> *mut c_void {
    // SAFETY: Plain Call: for an invalid key the result is NULL.
    unsafe { libc::pthread_getspecific(key) }
}

/// Frees a key. Returns false if there is no such key.
pub(super) fn key_free(key: u32) -> bool {
    // SAFETY: Plain Call: an invalid key is an error.
    unsafe { libc::pthread_key_delete(key) == 0 }
}

/// A thread-local value, which is passed to the function that is called when the thread ends.
#[repr(transparent)]
#[derive(Debug)]
pub struct Value(*const c_void);

impl Value {
    /// Stores the value under a key, for the calling thread. Returns false if the key does not
    /// exist.
    pub(super) fn store(self, key: u32) -> bool {
        // SAFETY: C Caller: the key's function may be called with the value. An invalid key causes
        // an error.
        unsafe { libc::pthread_setspecific(key, self.0) == 0 }
    }
}

/// A block of the heap, or NULL. A method that takes the block by value ends its use.
#[repr(transparent)]
#[derive(Debug)]
pub struct Block(*mut c_void);

impl Block {
    /// Allocates a block. Returns NULL if there is no memory.
    pub(super) fn new(size: usize, zeroed: bool) -> Block {
        // A block of zero bytes is also a valid block.
        let size = size.max(1);
        // SAFETY: Plain Call.
        Block(unsafe { if zeroed { libc::calloc(1, size) } else { libc::malloc(size) } })
    }

    /// NULL.
    pub(super) const NULL: Block = Block(std::ptr::null_mut());

    pub(super) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// Changes the block's size; the block may move. If there is no memory, returns NULL, and the
    /// block stays as it was.
    pub(super) fn resize(self, size: usize, zeroed: bool) -> Block {
        let size = size.max(1);
        let before = self.size();
        // SAFETY: C Caller: it is a block of this heap. Its new part may be written.
        unsafe {
            let moved = libc::realloc(self.0, size);
            if zeroed && !moved.is_null() && size > before {
                moved.cast::<u8>().add(before).write_bytes(0, size - before);
            }
            Block(moved)
        }
    }

    /// Returns the number of bytes that the program may use in the block; 0 for NULL.
    pub(super) fn size(&self) -> usize {
        // SAFETY: C Caller: it is a block of this heap. NULL has size 0.
        unsafe { libc::malloc_usable_size(self.0) }
    }

    /// Frees the block.
    pub(super) fn free(self) {
        // SAFETY: C Caller: it is a block of this heap, or NULL.
        unsafe { libc::free(self.0) };
    }
}
