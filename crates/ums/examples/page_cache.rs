//! A storage engine's page cache: a fixed set of frames over one file, filled by direct reads.
//!
//! `cargo run --release -p ums --example page_cache [FOLDER]`
//!
//! A task asks for a page by its number, and gets a *pin*: as long as it holds the pin, the page
//! stays in its frame. Of the tasks that ask for a page that is in no frame, one reads it in, and
//! the others wait for that one. A clock hand chooses the frame whose page makes room.
//!
//! `main` makes a file in the folder, reads it from many tasks, and checks every page that they
//! get. The file is removed at the end.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::ops::Deref;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ums::WaitError;
use ums::fs::{DirectBuffer, File, OpenOptions};
use ums::sync::{Condvar, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

const PAGE: usize = 4096;
const PAGES: u64 = 128;
const FRAMES: usize = 32; // fewer than tasks, so that some wait for a frame
const TASKS: u64 = 64;
const REQUESTS: u64 = 500;

struct Cache {
    file: File,
    frames: Vec<RwLock<Frame>>,
    /// Never locked over a wait for the disk.
    table: Mutex<Table>,
    /// A frame has lost its last pin.
    freed: Condvar,
    reads: AtomicUsize,
}

/// The task that reads a page in holds the frame's lock for writing meanwhile.
struct Frame {
    bytes: DirectBuffer,
    is_loaded: bool,
}

struct Table {
    /// The frame of each page that is in one, or on its way into one.
    places: HashMap<u64, usize>,
    slots: Vec<Slot>,
    hand: usize,
}

/// What the table knows of a frame.
#[derive(Clone, Default)]
struct Slot {
    page: Option<u64>,
    pins: usize,
    was_used: bool,
}

/// A page in its frame. The lock is released before the pin, as these fields are in this order: a
/// frame without a pin is not locked.
struct Page<'a> {
    frame: RwLockReadGuard<'a, Frame>,
    _pin: Pin<'a>,
}

struct Pin<'a> {
    cache: &'a Cache,
    frame: usize,
}

impl Cache {
    fn new(file: File) -> Cache {
        let frame = || Frame { bytes: DirectBuffer::new(PAGE), is_loaded: false };
        let slots = vec![Slot::default(); FRAMES];
        Cache {
            file,
            frames: (0..FRAMES).map(|_| RwLock::new(frame())).collect(),
            table: Mutex::new(Table { places: HashMap::new(), slots, hand: 0 }),
            freed: Condvar::new(),
            reads: AtomicUsize::new(0),
        }
    }

    /// Returns a page, which stays in its frame until the result is dropped. Waits for the disk,
    /// for another task that reads the same page, or, if every frame has a pin, for a frame.
    fn page(&self, number: u64) -> io::Result<Page<'_>> {
        loop {
            let (pin, empty) = self.pin(number)?;
            let frame = match empty {
                Some(empty) => self.read_in(number, empty)?,
                // Unlike `read`, this wait ends if the caller is cancelled.
                None => self.frames[pin.frame].read_for(Duration::MAX)?,
            };
            // If not, the task that was to read the page has failed, and this one tries.
            if frame.is_loaded {
                return Ok(Page { frame, _pin: pin });
            }
        }
    }

    /// Pins a page. If it was in no frame, also returns its frame, which the caller must fill.
    fn pin(
        &self,
        number: u64,
    ) -> Result<(Pin<'_>, Option<RwLockWriteGuard<'_, Frame>>), WaitError> {
        let mut table = self.table.lock();
        loop {
            if let Some(frame) = table.places.get(&number).copied() {
                table.pin(frame);
                return Ok((Pin { cache: self, frame }, None));
            }
            if let Some(frame) = table.find_room() {
                table.assign(frame, number);
                table.pin(frame);
                // Locked before another task can find the page in the table.
                let empty = self.frames[frame].try_write().expect("it had no pin");
                return Ok((Pin { cache: self, frame }, Some(empty)));
            }
            self.freed.wait(&mut table)?; // the table is unlocked meanwhile
        }
    }

    /// Reads a page into its frame. After an error the page is in no frame.
    fn read_in<'a>(
        &self,
        number: u64,
        mut frame: RwLockWriteGuard<'a, Frame>,
    ) -> io::Result<RwLockReadGuard<'a, Frame>> {
        frame.is_loaded = false;
        self.reads.fetch_add(1, Ordering::Relaxed);
        let result = self.file.read_exact_at(&mut frame.bytes, number * PAGE as u64);
        result.inspect_err(|_| self.forget(number))?;
        frame.is_loaded = true;
        Ok(RwLockWriteGuard::downgrade(frame))
    }

    /// Takes a page out of the table. Its frame gets another page when it has no pin.
    fn forget(&self, number: u64) {
        let mut table = self.table.lock();
        let frame = table.places.remove(&number).expect("it was assigned");
        table.slots[frame].page = None;
    }
}

impl Table {
    fn pin(&mut self, frame: usize) {
        self.slots[frame].pins += 1;
        self.slots[frame].was_used = true;
    }

    /// Moves the hand to the first frame that has no pin and was not used since the hand passed it
    /// last. Returns `None` if every frame has a pin.
    fn find_room(&mut self) -> Option<usize> {
        for _ in 0..2 * self.slots.len() {
            let at = self.hand;
            self.hand = (at + 1) % self.slots.len();
            let slot = &mut self.slots[at];
            if slot.pins == 0 && !std::mem::take(&mut slot.was_used) {
                return Some(at);
            }
        }
        None
    }

    /// Gives the frame to this page.
    fn assign(&mut self, frame: usize, number: u64) {
        if let Some(old) = self.slots[frame].page.replace(number) {
            self.places.remove(&old);
        }
        self.places.insert(number, frame);
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        let mut table = self.cache.table.lock();
        table.slots[self.frame].pins -= 1;
        if table.slots[self.frame].pins == 0 {
            // All of them: one may find its page in another frame, and need none.
            self.cache.freed.notify_all();
        }
    }
}

impl Deref for Page<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.frame.bytes
    }
}

#[ums::main]
fn main() -> io::Result<()> {
    let folder = std::env::args_os().nth(1).unwrap_or(".".into());
    let path = Path::new(&folder).join(format!("page_cache.{}", std::process::id()));
    let result = make_file(&path).and_then(|()| open(&path)).and_then(read_and_check);
    let removed = ums::fs::remove_file(&path);
    result.and(removed)
}

/// Writes pages that begin with their own number.
fn make_file(path: &Path) -> io::Result<()> {
    let file = File::create_new(path)?;
    for number in 0..PAGES {
        file.write_all_at(&content(number), number * PAGE as u64)?;
    }
    file.sync_all()
}

fn content(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(PAGE / 8)
}

fn open(path: &Path) -> io::Result<File> {
    match OpenOptions::new().read(true).direct(true).open(path) {
        Err(error) if error.kind() == ErrorKind::InvalidInput => {
            eprintln!("{error}: reading by way of the system's cache");
            File::open(path)
        }
        result => result,
    }
}

fn read_and_check(file: File) -> io::Result<()> {
    let cache = Cache::new(file);
    let read = |number| cache.page(number).map(|page| assert_eq!(&page[..], content(number)));
    // All tasks want the same page: one of them reads it.
    ums::task_group(|group| {
        (0..TASKS).for_each(|_| group.spawn(|| read(PAGES - 1)));
        io::Result::Ok(())
    })?;
    assert_eq!(cache.reads.load(Ordering::Relaxed), 1);
    // Low numbers are asked for more often than high ones. A page with a pin stays in its frame,
    // however many others need room.
    let kept = cache.page(PAGES - 1)?;
    ums::task_group(|group| {
        for task in 0..TASKS {
            group.spawn(move || (0..REQUESTS).try_for_each(|n| read(random(task, n))));
        }
        io::Result::Ok(())
    })?;
    assert_eq!(&kept[..], content(PAGES - 1));
    drop(kept);
    let reads = cache.reads.load(Ordering::Relaxed);
    let table = cache.table.lock();
    let is_right = |(page, frame): (&u64, &usize)| table.slots[*frame].page == Some(*page);
    assert!(table.places.iter().all(is_right) && table.places.len() <= FRAMES);
    assert!(table.slots.iter().all(|slot| slot.pins == 0));
    println!("{} requests, {reads} reads of the disk", TASKS * (REQUESTS + 1));
    Ok(())
}

/// Returns the number of a page: the least of four random ones.
fn random(task: u64, request: u64) -> u64 {
    let mut bits = (task << 32 | request).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits ^= bits >> 31;
    (0..4).map(|part| (bits >> (16 * part)) % PAGES).min().expect("four numbers")
}
