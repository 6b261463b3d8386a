//! Page faults that last as long as a test wants, because a thread of this process resolves them
//! (userfaultfd).
//!
//! Unsafe because of the system calls. Named invariant **Own Memory**: they get only memory that
//! this file allocates and keeps.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};

const USER_MODE_ONLY: i32 = 1;
const API: libc::c_ulong = 0xc018_aa3f;
const REGISTER: libc::c_ulong = 0xc020_aa00;
const ZEROPAGE: libc::c_ulong = 0xc020_aa04;
const MISSING: u64 = 1;

/// A page of memory. The first access to it blocks until [`Page::resolve`] is called.
pub struct Page {
    file: File,
    base: usize,
}

impl Page {
    /// Maps a page. Returns None if the kernel refuses userfaultfd.
    pub fn new() -> Option<Page> {
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: Own Memory: a new descriptor, a new mapping, and borrowed structures.
        unsafe {
            let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | USER_MODE_ONLY);
            if fd < 0 {
                return None;
            }
            let file = File::from_raw_fd(fd as i32);
            let mut api = [0xaa_u64, 0, 0];
            if libc::ioctl(file.as_raw_fd(), API, &mut api) != 0 {
                return None;
            }
            let base = libc::mmap(std::ptr::null_mut(), 4096, access, kind, -1, 0);
            assert_ne!(base, libc::MAP_FAILED);
            let base = base as usize;
            let mut range = [base as u64, 4096, MISSING, 0];
            (libc::ioctl(file.as_raw_fd(), REGISTER, &mut range) == 0)
                .then_some(Page { file, base })
        }
    }

    /// Reads the page, which blocks until it is resolved.
    pub fn touch(base: usize) -> u8 {
        // SAFETY: Own Memory: mapped by `new`, and never unmapped.
        unsafe { (base as *const u8).read_volatile() }
    }

    pub fn base(&self) -> usize {
        self.base
    }

    /// Gives the page its contents, so that the thread that touched it continues.
    pub fn resolve(&self) {
        let mut range = [self.base as u64, 4096, 0, 0];
        // SAFETY: Own Memory: a page of this descriptor's range.
        let failed = unsafe { libc::ioctl(self.file.as_raw_fd(), ZEROPAGE, &mut range) };
        assert_eq!(failed, 0, "{}", std::io::Error::last_os_error());
    }
}
