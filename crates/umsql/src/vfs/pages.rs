//! A pool of recently read database pages, shared by all connections, for reads past the kernel's
//! page cache.
//!
//! SQLite caches pages for each connection separately, and drops all of them when another
//! connection has written. Pages that it then reads again come from the pool instead of from the
//! disk. (If reads use the kernel's page cache, a pool has no benefit: a copy from that cache costs
//! no more than one from the pool.)
//!
//! ```text
//!   xRead ──▶ in the pool? copy ── else ──▶ disk, then keep ── unless there was a write meanwhile
//!   xWrite ─▶ announce (forget) ──▶ disk ──▶ done
//! ```
//!
//! Nouns. A *place* is the number of a page in its file. A *shard* is a part of the pool with its
//! own lock. The lock is held for one copy at most, and never while a worker waits.
//!
//! Invariant. **Newest Copy**: a page in the pool is equal to the page in the file. Before a writer
//! writes to the disk, it removes the page from the pool and announces the write in the page's
//! shard; the write counts as running until it is done. A reader that has read a page from the file
//! puts it into the pool only if no write was running or announced meanwhile. So a page may be
//! missing from the pool, but it is never old. Other processes do not write, because the database
//! is locked.
//!
//! All pages have one size. The pool reads nothing itself, and does not delay writes. The pages of
//! a closed file are evicted when other pages need the room.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};

use ums::lock::Lock;

use quick_cache::unsync::Cache;

/// SQLite's usual page size. A read of another size always goes to the file.
const PAGE: usize = 4096;
/// How many pages a pool keeps: 32 MiB.
const PAGES: usize = 8192;
const SHARDS: usize = 16;
/// A write of more pages than this drops all pages of its file.
const MANY: u64 = 64;

/// The pages of all files of a file system.
pub(crate) struct Pool {
    shards: [Lock<Shard>; SHARDS],
    files: AtomicU64,
}

struct Shard {
    kept: Cache<(u64, u64), Box<[u8]>>,
    hits: u64,
    misses: u64,
    /// The number of writes announced so far; below, the number of writes that are running.
    announced: u64,
    writing: u64,
}

impl Default for Pool {
    fn default() -> Pool {
        let shard = || Shard {
            kept: Cache::new(PAGES / SHARDS),
            hits: 0,
            misses: 0,
            announced: 0,
            writing: 0,
        };
        Pool { shards: std::array::from_fn(|_| Lock::new(shard())), files: AtomicU64::new(0) }
    }
}

/// The size of a pool, and its hits and misses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PoolCounts {
    pub(crate) pages: u64,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
}

impl Pool {
    pub(crate) fn counts(&self) -> PoolCounts {
        self.shards.iter().fold(PoolCounts::default(), |sum, shard| {
            let shard = shard.lock();
            PoolCounts {
                pages: sum.pages + shard.kept.len() as u64,
                hits: sum.hits + shard.hits,
                misses: sum.misses + shard.misses,
            }
        })
    }
}

/// The pages of one file.
pub(crate) struct Pages {
    pool: Arc<Pool>,
    /// The file's number in the pool. Giving the file a new number drops all of its pages. A number
    /// is never reused.
    id: AtomicU64,
}

/// A miss: a page that is being read because the pool does not have it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Miss {
    key: (u64, u64),
    announced: u64,
}

impl Pages {
    pub(crate) fn new(pool: &Arc<Pool>) -> Pages {
        let id = AtomicU64::new(pool.files.fetch_add(1, Ordering::Relaxed));
        Pages { pool: Arc::clone(pool), id }
    }

    /// Fills `buf` if it is one page and the pool has that page. Otherwise returns a [`Miss`] to
    /// pass to [`Pages::keep`] when the page has been read, or `None` if the page must not be kept.
    pub(crate) fn read(&self, buf: &mut [u8], at: u64) -> Result<(), Option<Miss>> {
        let Some(key) = self.name(buf.len(), at) else { return Err(None) };
        let mut shard = self.shard(key.1);
        if let Some(page) = shard.kept.get(&key) {
            buf.copy_from_slice(page);
            shard.hits += 1;
            return Ok(());
        }
        shard.misses += 1;
        Err((shard.writing == 0).then_some(Miss { key, announced: shard.announced }))
    }

    /// Puts a page into the pool, which was read from the file after the miss.
    pub(crate) fn keep(&self, miss: Miss, page: &[u8]) {
        let mut shard = self.shard(miss.key.1);
        // Newest Copy: no write was announced since the miss, and none was running then.
        if shard.announced == miss.announced {
            shard.kept.insert(miss.key, page.into());
        }
    }

    /// Runs `write`, and drops the pages that it changes.
    pub(crate) fn write<E>(
        &self,
        len: usize,
        at: u64,
        write: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let touched = at / PAGE as u64..(at + len as u64).div_ceil(PAGE as u64);
        if touched.end - touched.start > MANY {
            // The number changes before and after the write. So a page that was read before or
            // during the write can be kept only under an old number.
            self.forget();
            let written = write();
            self.forget();
            return written;
        }
        for place in touched.clone() {
            let mut shard = self.shard(place);
            shard.announced += 1;
            shard.writing += 1;
            shard.kept.remove(&(self.id.load(Ordering::Acquire), place));
        }
        let written = write();
        touched.for_each(|place| self.shard(place).writing -= 1);
        written
    }

    /// Drops all pages of the file.
    pub(crate) fn forget(&self) {
        self.id.store(self.pool.files.fetch_add(1, Ordering::Relaxed), Ordering::Release);
    }

    /// Returns the key of the page that a read of this length covers.
    fn name(&self, len: usize, at: u64) -> Option<(u64, u64)> {
        let is_page = len == PAGE && at.is_multiple_of(PAGE as u64);
        is_page.then(|| (self.id.load(Ordering::Acquire), at / PAGE as u64))
    }

    /// Returns the shard of a place. It does not depend on the file's number.
    fn shard(&self, place: u64) -> MutexGuard<'_, Shard> {
        self.pool.shards[place as usize % SHARDS].lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u64 = PAGE as u64;

    fn page(of: u8) -> Vec<u8> {
        vec![of; PAGE]
    }

    fn read(pages: &Pages, at: u64) -> Option<u8> {
        let mut buf = page(0);
        pages.read(&mut buf, at).ok().map(|()| buf[PAGE - 1])
    }

    fn miss(pages: &Pages, at: u64) -> Option<Miss> {
        pages.read(&mut page(0), at).expect_err("the pool has the page")
    }

    fn ok() -> Result<(), ()> {
        Ok(())
    }

    #[test]
    fn a_page_is_kept_for_all_and_a_write_forgets_it() {
        let pool = Arc::default();
        let (pages, other) = (Pages::new(&pool), Pages::new(&pool));
        pages.keep(miss(&pages, ALL).unwrap(), &page(7));
        assert_eq!(read(&pages, ALL), Some(7));
        assert_eq!(read(&other, ALL), None, "that is another file");
        assert_eq!(pool.counts(), PoolCounts { pages: 1, hits: 1, misses: 2 });
        // A write of two bytes, one in each of two pages.
        pages.write(2, 2 * ALL - 1, ok).unwrap();
        assert_eq!(read(&pages, ALL), None);
        assert_eq!(pool.counts().pages, 0);
    }

    #[test]
    fn what_was_read_before_a_write_is_not_kept_after_it() {
        let pages = Pages::new(&Arc::default());
        let before = miss(&pages, 0).unwrap();
        pages.write(PAGE, 0, ok).unwrap();
        pages.keep(before, &page(1));
        assert_eq!(read(&pages, 0), None);
    }

    #[test]
    fn what_is_read_during_a_write_is_not_kept() {
        let pages = Pages::new(&Arc::default());
        pages
            .write(PAGE, 0, || {
                assert!(miss(&pages, 0).is_none(), "it may be the old page or the new one");
                ok()
            })
            .unwrap();
        assert!(miss(&pages, 0).is_some());
    }

    #[test]
    fn what_was_read_before_the_file_was_forgotten_is_not_found_after_it() {
        let pages = Pages::new(&Arc::default());
        let before = miss(&pages, 0).unwrap();
        // A write of many pages changes the file's number.
        pages
            .write(PAGE * (MANY as usize + 1), 0, || {
                pages.keep(before, &page(1));
                assert_eq!(read(&pages, 0), None);
                let during = miss(&pages, 0).unwrap();
                pages.keep(during, &page(1));
                ok()
            })
            .unwrap();
        assert_eq!(read(&pages, 0), None);
    }

    #[test]
    fn only_whole_pages_are_kept() {
        let pages = Pages::new(&Arc::default());
        assert!(pages.read(&mut [0; 100], 0).is_err_and(|miss| miss.is_none()));
        assert!(pages.read(&mut page(0), 24).is_err_and(|miss| miss.is_none()));
        assert!(pages.read(&mut vec![0; 2 * PAGE], 0).is_err_and(|miss| miss.is_none()));
    }

    #[test]
    fn a_pool_keeps_its_size() {
        let pool = Arc::default();
        let pages = Pages::new(&pool);
        for at in 0..4 * PAGES as u64 {
            pages.keep(miss(&pages, at * ALL).unwrap(), &page(1));
        }
        assert!(pool.counts().pages <= PAGES as u64, "{:?}", pool.counts());
    }

    /// Threads write increasing numbers and read them. No read may return a number that is less
    /// than the one in the file when the read began.
    #[test]
    fn a_reader_never_meets_an_old_page() {
        const AT: usize = 4;
        let pages = Pages::new(&Arc::default());
        let disk: [Lock<u64>; AT] = Default::default();
        let done: [AtomicU64; AT] = Default::default();
        std::thread::scope(|scope| {
            for at in 0..AT {
                let (pages, disk, done) = (&pages, &disk, &done);
                scope.spawn(move || {
                    for number in 1..=20_000 {
                        let write = || {
                            *disk[at].lock() = number;
                            ok()
                        };
                        pages.write(PAGE, at as u64 * ALL, write).unwrap();
                        done[at].store(number, Ordering::SeqCst);
                    }
                });
                scope.spawn(move || {
                    let mut buf = page(0);
                    while done[at].load(Ordering::SeqCst) < 20_000 {
                        let least = done[at].load(Ordering::SeqCst);
                        if let Err(miss) = pages.read(&mut buf, at as u64 * ALL) {
                            let found = *disk[at].lock();
                            std::thread::yield_now();
                            buf[..8].copy_from_slice(&found.to_le_bytes());
                            miss.into_iter().for_each(|miss| pages.keep(miss, &buf));
                        }
                        let found = u64::from_le_bytes(buf[..8].try_into().unwrap());
                        assert!(found >= least, "{found} is older than {least}");
                    }
                });
            }
        });
    }
}
