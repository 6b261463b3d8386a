//! A file whose pages arrive when a test lets them: a file system of one file, served by a thread
//! of this process (FUSE).
//!
//! A page fault on a mapping of it waits as for a disk: only a signal that kills ends it. Mounting
//! needs privilege; without it there is no such file.
//!
//! Unsafe for the calls. Named invariant **Own Memory**: they get only memory that was made here
//! and is kept.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

const PAGE: usize = 4096;
const ENOSYS: i32 = 38;

/// Which requests there are, by FUSE's numbers.
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const RELEASE: u32 = 18;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;

/// See the module's text.
pub struct SlowFile {
    base: usize,
    size: usize,
    /// Keeps the file system alive.
    _file: File,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    shut: Mutex<bool>,
    opened: Condvar,
    delay_us: AtomicU64,
    /// How many reads have been asked for.
    asked: AtomicU64,
    over: AtomicBool,
}

impl SlowFile {
    /// A mapping of that many pages. None where it is refused.
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
        // It stays as long as the file is open.
        // SAFETY: Own Memory: as above.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
        let file = file.unwrap();
        // The kernel asks for the size now, and not in a fault.
        assert_eq!(file.metadata().unwrap().len(), size as u64);
        let (access, kind) = (libc::PROT_READ, libc::MAP_SHARED);
        // SAFETY: Own Memory: a new mapping of our own file.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), size, access, kind, file.as_raw_fd(), 0) };
        assert_ne!(base, libc::MAP_FAILED);
        Some(SlowFile { base: base as usize, size, _file: file, gate })
    }

    /// From now on each page comes so late.
    pub fn delay(&self, delay: Duration) {
        self.gate.delay_us.store(delay.as_micros() as u64, SeqCst);
    }

    /// From now on none comes.
    pub fn hold(&self) {
        *self.gate.shut.lock().unwrap() = true;
    }

    /// Those that are waited for come.
    pub fn resolve(&self) {
        *self.gate.shut.lock().unwrap() = false;
        self.gate.opened.notify_all();
    }

    /// How many were ever asked for.
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

    /// What is there.
    pub fn holds(page: usize) -> u8 {
        (page * 31 + 7) as u8
    }
}

impl Drop for SlowFile {
    fn drop(&mut self) {
        self.gate.over.store(true, SeqCst);
        self.resolve();
        // SAFETY: Own Memory: no thread touches it any more, by the contract of this type. The
        // server ends when the file is closed.
        unsafe { libc::munmap(self.base as *mut libc::c_void, self.size) };
    }
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn small(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// Answers until the file is closed.
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

/// Asks for no notice of a close: at the end of a process there would be no thread to send it to.
fn opened() -> Vec<u8> {
    const NO_FLUSH: u64 = 1 << 5;
    [0, NO_FLUSH].into_iter().flat_map(u64::to_le_bytes).collect()
}

fn attributes(size: u64) -> Vec<u8> {
    let mut answer = vec![];
    let forever = u64::from(u32::MAX);
    // Valid for so long; then number, size, blocks and three times.
    [forever, 0, 1, size, size / 512, 0, 0, 0]
        .into_iter()
        .for_each(|word| answer.extend(u64::to_le_bytes(word)));
    // Parts of the times, mode, links, owner, device, size of a block.
    [0, 0, 0, 0o100_444, 1, 0, 0, 0, PAGE as u32, 0]
        .into_iter()
        .for_each(|word| answer.extend(u32::to_le_bytes(word)));
    answer
}

fn pages(offset: u64, len: u64, size: u64) -> Vec<u8> {
    let end = (offset + len).min(size);
    (offset..end).map(|at| SlowFile::holds(at as usize / PAGE)).collect()
}
