//! Operations that block the kernel thread until a test resolves them: faults on two kinds of
//! pages, and waiting for the child of a `vfork`.
//!
//! Named invariant **Own Memory**: direct system calls get memory that the test allocated and
//! keeps.

#![allow(unsafe_code, dead_code)] // Each test file uses its own part of it.

use std::io::{PipeReader, Write};
use std::sync::Arc;

#[path = "faults.rs"]
mod faults;
#[path = "slow_file.rs"]
mod slow_file;
pub use slow_file::SlowFile;

/// An operation (`touch`) that blocks until `resolve`, and then returns the value that `holds`
/// returns.
pub trait Slow: Send + Sync {
    fn touch(&self) -> u8;
    fn holds(&self) -> u8;
    fn resolve(&self);
}

impl Slow for faults::Page {
    fn touch(&self) -> u8 {
        faults::Page::touch(self.base())
    }

    fn holds(&self) -> u8 {
        0
    }

    fn resolve(&self) {
        faults::Page::resolve(self);
    }
}

impl Slow for SlowFile {
    fn touch(&self) -> u8 {
        SlowFile::touch(self.base(), 3)
    }

    fn holds(&self) -> u8 {
        SlowFile::holds(3)
    }

    fn resolve(&self) {
        SlowFile::resolve(self);
    }
}

/// A child of `vfork`, which lives until it has read a byte. Its parent waits for it in the kernel.
struct Child {
    reads: PipeReader,
    writes: std::io::PipeWriter,
}

impl Slow for Child {
    fn touch(&self) -> u8 {
        extern "C" fn live(fd: *mut libc::c_void) -> i32 {
            let mut byte = 0u8;
            let into = (&raw mut byte) as u64;
            // SAFETY: Own Memory: the byte is the child's own. The child calls nothing of the C
            // library, because the C library's thread descriptor is that of its parent.
            unsafe {
                let mut result = 0i64;
                for (number, first) in [(libc::SYS_read, fd as u64), (libc::SYS_exit, 0)] {
                    std::arch::asm!(
                        "syscall",
                        inlateout("rax") number => result,
                        in("rdi") first, in("rsi") into, in("rdx") 1,
                        lateout("rcx") _, lateout("r11") _,
                    );
                }
                result as i32
            }
        }
        let mut stack = vec![0u64; 4096];
        let fd = std::os::fd::AsRawFd::as_raw_fd(&self.reads);
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        // SAFETY: Own Memory: the child has a stack of its own, which outlives the child because
        // its parent waits for it.
        unsafe {
            let top = stack.as_mut_ptr_range().end.cast();
            let child = libc::clone(live, top, flags, fd as usize as *mut libc::c_void);
            assert!(child > 0, "{}", std::io::Error::last_os_error());
            assert_eq!(libc::waitpid(child, std::ptr::null_mut(), 0), child);
        }
        7
    }

    fn holds(&self) -> u8 {
        7
    }

    fn resolve(&self) {
        (&self.writes).write_all(b"x").unwrap();
    }
}

pub fn user_page() -> Option<Arc<dyn Slow>> {
    let page = faults::Page::new();
    if page.is_none() {
        ums::testing::skipped("userfaultfd", "the kernel refuses it");
    }
    page.map(|page| Arc::new(page) as Arc<dyn Slow>)
}

pub fn file(pages: usize) -> Option<SlowFile> {
    let file = SlowFile::new(pages);
    match &file {
        Some(file) => file.hold(),
        None => ums::testing::skipped("mount", "no file system can be mounted"),
    }
    file
}

pub fn file_page() -> Option<Arc<dyn Slow>> {
    file(8).map(|file| Arc::new(file) as Arc<dyn Slow>)
}

pub fn child() -> Option<Arc<dyn Slow>> {
    let (reads, writes) = std::io::pipe().unwrap();
    Some(Arc::new(Child { reads, writes }))
}
