//! A file whose pages arrive when the test says so: a file system with one file (FUSE), served by a
//! thread of this process.
//!
//! A page fault on a mapping of the file waits as it would for a disk: only a fatal signal
//! interrupts it. Mounting the file system needs privilege; without it, [`SlowFile::new`] returns
//! None.
//!
//! Unsafe because of the system calls. Named invariant **Own Memory**: they get only memory that
//! this file allocates and keeps.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

const PAGE: usize = 4096;
const ENOSYS: i32 = 38;

/// The requests that are answered, by their FUSE numbers.
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const RELEASE: u32 = 18;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;

/// A mounted file and its mapping; the module's text describes it.
pub struct SlowFile {
    base: usize,
    size: usize,
    /// An open descriptor, which keeps the file system alive.
    _file: File,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    shut: Mutex<bool>,
    opened: Condvar,
    delay_us: AtomicU64,
    /// How many reads the kernel has requested.
    asked: AtomicU64,
    over: AtomicBool,
}

impl SlowFile {
    /// Maps a new file of this many pages. Returns None if mounting is refused.
    pub fn new(pages: usize) -> Option<SlowFile> {
        let fuse = OpenOptions::new().read(true).write(true).open("/dev/fuse").ok()?;
        let point = tempfile::NamedTempFile::new().ok()?;
        let path = std::ffi::CString::new(point.path().to_str()?).ok()?;
        let options = format!("fd={},rootmode=100444,user_id=0,group_id=0\0", fuse.as_raw_fd());
        // SAFETY: Own Memory: strings that end with a zero.
        let refused = unsafe {
            let kind = c"fuse".as_ptr();
            libc::mount(c"slow".as_ptr(), path.as_ptr(), kind, 0, options.as_ptr().cast())
        };
        if refused != 0 {
            return None;
        }
        let gate = Arc::new(Gate::default());
        let (mine, size) = (gate.clone(), pages * PAGE);
        std::thread::Builder::new()
            .name("slow-file".into())
            .spawn(move || serve(fuse, &mine, size as u64))
            .unwrap();
        let file = File::open(point.path());
        // The file system is detached now, and stays alive as long as the file is open.
        // SAFETY: Own Memory: as above.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
        let file = file.unwrap();
        // Makes the kernel ask for the file's size now, so that it does not ask during a fault.
        assert_eq!(file.metadata().unwrap().len(), size as u64);
        let (access, kind) = (libc::PROT_READ, libc::MAP_SHARED);
        // SAFETY: Own Memory: a new mapping of our own file.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), size, access, kind, file.as_raw_fd(), 0) };
        assert_ne!(base, libc::MAP_FAILED);
        Some(SlowFile { base: base as usize, size, _file: file, gate })
    }

    /// From now on, each page arrives after this delay.
    pub fn delay(&self, delay: Duration) {
        self.gate.delay_us.store(delay.as_micros() as u64, SeqCst);
    }

    /// From now on, no page arrives until [`SlowFile::resolve`].
    pub fn hold(&self) {
        *self.gate.shut.lock().unwrap() = true;
    }

    /// Delivers the pages that are waited for.
    pub fn resolve(&self) {
        *self.gate.shut.lock().unwrap() = false;
        self.gate.opened.notify_all();
    }

    /// Returns how many reads the kernel has requested so far.
    pub fn asked(&self) -> u64 {
        self.gate.asked.load(SeqCst)
    }

    pub fn base(&self) -> usize {
        self.base
    }

    /// Reads the first byte of a page, and waits for the page if it was not read before.
    pub fn touch(base: usize, page: usize) -> u8 {
        // SAFETY: Own Memory: mapped by `new` for as long as the test runs.
        unsafe { ((base + page * PAGE) as *const u8).read_volatile() }
    }

    /// Returns the value of this page's first byte.
    pub fn holds(page: usize) -> u8 {
        (page * 31 + 7) as u8
    }
}

impl Drop for SlowFile {
    fn drop(&mut self) {
        self.gate.over.store(true, SeqCst);
        self.resolve();
        // SAFETY: Own Memory: the contract of this type excludes that a thread still touches the
        // mapping. The server ends when the file is closed.
        unsafe { libc::munmap(self.base as *mut libc::c_void, self.size) };
    }
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn small(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// Answers requests until the file is closed.
fn serve(mut fuse: File, gate: &Gate, size: u64) {
    let mut request = vec![0; 1 << 20];
    while let Ok(n) = fuse.read(&mut request) {
        let request = &request[..n];
        let (opcode, unique) = (small(request, 4), number(request, 8));
        let body = &request[40..];
        let (error, answer) = match opcode {
            FORGET | BATCH_FORGET | INTERRUPT => continue,
            INIT => (0, started(small(body, 0), small(body, 4))),
            GETATTR => (0, attributes(size)),
            OPEN => (0, opened()),
            READ => {
                gate.asked.fetch_add(1, SeqCst);
                gate.wait();
                (0, pages(number(body, 8), u64::from(small(body, 16)), size))
            }
            RELEASE => (0, vec![]),
            _ => (-ENOSYS, vec![]),
        };
        let mut reply = Vec::with_capacity(16 + answer.len());
        reply.extend((16 + answer.len() as u32).to_le_bytes());
        reply.extend(error.to_le_bytes());
        reply.extend(unique.to_le_bytes());
        reply.extend(answer);
        let _ = fuse.write(&reply);
    }
}

impl Gate {
    fn wait(&self) {
        let shut = self.shut.lock().unwrap();
        let so = |shut: &mut bool| *shut && !self.over.load(SeqCst);
        drop(self.opened.wait_while(shut, so).unwrap());
        std::thread::sleep(Duration::from_micros(self.delay_us.load(SeqCst)));
    }
}

fn started(major: u32, minor: u32) -> Vec<u8> {
    const READ_AHEAD: u32 = PAGE as u32;
    let mut answer = vec![];
    let words = [major, minor.min(31), READ_AHEAD, 0, 0, 1 << 16, 1];
    words.into_iter().for_each(|word| answer.extend(word.to_le_bytes()));
    answer.resize(64, 0);
    answer
}

/// Returns the answer to `open`. It asks the kernel not to report closes, because a process that
/// exits may have no thread left to answer the report.
fn opened() -> Vec<u8> {
    const NO_FLUSH: u64 = 1 << 5;
    [0, NO_FLUSH].into_iter().flat_map(u64::to_le_bytes).collect()
}

fn attributes(size: u64) -> Vec<u8> {
    let mut answer = vec![];
    let forever = u64::from(u32::MAX);
    // How long the answer stays valid, in seconds; then inode number, size, blocks and three times.
    [forever, 0, 1, size, size / 512, 0, 0, 0]
        .into_iter()
        .for_each(|word| answer.extend(u64::to_le_bytes(word)));
    // The nanoseconds of the three times, mode, links, owner and group, device, block size.
    [0, 0, 0, 0o100_444, 1, 0, 0, 0, PAGE as u32, 0]
        .into_iter()
        .for_each(|word| answer.extend(u32::to_le_bytes(word)));
    answer
}

fn pages(offset: u64, len: u64, size: u64) -> Vec<u8> {
    let end = (offset + len).min(size);
    (offset..end).map(|at| SlowFile::holds(at as usize / PAGE)).collect()
}
