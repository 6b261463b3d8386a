//! Group commit: many transactions become durable by one sync of the write-ahead log.
//!
//! Nouns. The *position* is the number of bytes ever written to this database's log. It only grows,
//! even if the file is reset or truncated. A *commit* waits until the log is durable up to the
//! position at which SQLite's COMMIT returned. The *leader* is the commit that syncs. Its *batch*
//! are all waiting commits whose positions the sync covers.
//! ```text
//!   commit A: lead ── fdatasync (covers what is written now) ──▶ wake batch and next leader
//!   commit B:    wait ────────────────────────────────────────▶ durable
//!   commit C:          wait (written after the sync began) ───▶ lead ── fdatasync ──▶ ...
//! ```
//!
//! Why this is right. Connections run with `synchronous=NORMAL`. Their COMMIT writes the
//! transaction's frames to the log and returns without a sync. The frames' checksums form a chain.
//! So
//! * when a sync of the log has succeeded that began after a commit's last write, the commit's
//!   frames and all earlier frames are on the disk, and recovery finds an unbroken chain up to the
//!   commit's mark;
//! * what is not durable is not acknowledged: a session waits here before it sends CommandComplete;
//! * a *checkpoint* keeps the order. In NORMAL it syncs the log before it writes the first page
//!   into the database, and it syncs the database before the log may be reused. So the database
//!   never has a page whose log is not durable, and a log is overwritten only when the database has
//!   all of it. The sync of a checkpoint also covers waiting commits, because it is a sync of the
//!   same file;
//! * a *reset* writes the new header and syncs it before any frame. Earlier frames are then durable
//!   in the database, so a commit that waits for a position before the reset is covered by the next
//!   sync in any case.
//!
//! Other transactions can see a commit before it is durable. A transaction that has seen it and
//! then commits has a later position, so it cannot be durable without the first. `docs/sqlite.md`
//! says what this means for readers.
//!
//! One sync runs at a time, including a checkpoint's. The kernel reports a failed write to only one
//! sync of an open file. If two ran at the same time, the other one would succeed, and its batch
//! would be acknowledged wrongly.
//!
//! After a failed sync the contents of the disk are unknown, and the kernel may report success the
//! next time although the pages are lost. So a failure is permanent: it is returned to all waiting
//! commits, and to every later commit, sync and write until the server is restarted ([`Trouble`]).
//!
//! It does not have the file itself: the caller passes a closure that syncs the file.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::host::{self, For, Holder, Sleeper};
use ums::lock::Lock;

/// The number of buckets of the histogram: batches of 1, of 2 to 3, of 4 to 7, and so on. The last
/// bucket has all larger batches.
pub(crate) const BUCKETS: usize = 10;

/// The reason why a database accepts no more writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// A sync failed, with this message.
    SyncFailed(String),
    /// The file, or its log, was deleted.
    Deleted,
}

/// The counters of the group commit.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counts {
    /// The number of syncs of the log for commits.
    pub(crate) syncs: u64,
    /// The number of commits that waited for a sync, or found their position durable.
    pub(crate) commits: u64,
    /// The number of commits of sessions that do not wait (`synchronous_commit=off`).
    pub(crate) not_waited: u64,
    /// The number of bytes written to the log.
    pub(crate) bytes: u64,
    /// The number of syncs by the size of their batch.
    pub(crate) batches: [u64; BUCKETS],
}

/// The log of one database.
#[derive(Debug)]
pub(crate) struct Log {
    state: Lock<State>,
    /// The most bytes that one transaction may write.
    limit: AtomicU64,
    /// What of them is left for the present transaction. Only the owner of the write gate changes
    /// it.
    left: AtomicU64,
}

impl Default for Log {
    fn default() -> Log {
        let none = || AtomicU64::new(u64::MAX);
        Log { state: Lock::default(), limit: none(), left: none() }
    }
}

#[derive(Debug)]
struct State {
    /// The initial value is 1, not 0, because the file's contents may not be on the disk when it is
    /// opened.
    written: u64,
    durable: u64,
    /// The worker or thread that syncs now.
    leader: Option<Holder>,
    waiters: VecDeque<(u64, Sleeper)>,
    trouble: Option<Trouble>,
    counts: Counts,
    /// Where the file's content ends, since its last reset.
    end: u64,
    /// The value of `end` when a checkpoint was last due.
    end_at_request: u64,
}

impl Default for State {
    fn default() -> State {
        State {
            written: 1,
            durable: 0,
            leader: None,
            waiters: VecDeque::new(),
            trouble: None,
            counts: Counts::default(),
            end: 0,
            end_at_request: 0,
        }
    }
}

impl Log {
    /// Limits what one transaction may write, in bytes.
    pub(crate) fn limit_transactions(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    /// Records that a transaction may write from now on. Returns the position.
    pub(crate) fn begin_transaction(&self) -> u64 {
        self.left.store(self.limit.load(Ordering::Relaxed), Ordering::Relaxed);
        self.position()
    }

    /// Returns whether the present transaction may write this many bytes more.
    pub(crate) fn has_room(&self, len: usize) -> bool {
        self.left.load(Ordering::Relaxed) >= len as u64
    }

    /// Records a completed write to the log's file.
    pub(crate) fn wrote(&self, at: u64, len: usize) {
        let left = self.left.load(Ordering::Relaxed);
        if left != u64::MAX {
            self.left.store(left.saturating_sub(len as u64), Ordering::Relaxed);
        }
        let mut state = self.state.lock();
        state.written += len as u64;
        if at == 0 {
            // A new header: the log has been reset.
            (state.end, state.end_at_request) = (0, 0);
        }
        state.end = state.end.max(at + len as u64);
    }

    /// Records that the log's file was truncated to this size.
    pub(crate) fn truncated(&self, size: u64) {
        let mut state = self.state.lock();
        state.end = state.end.min(size);
        state.end_at_request = state.end_at_request.min(size);
    }

    /// Returns the number of bytes ever written.
    pub(crate) fn position(&self) -> u64 {
        self.state.lock().written
    }

    /// Returns whether everything written is durable.
    #[cfg(test)]
    pub(crate) fn is_durable(&self) -> bool {
        let state = self.state.lock();
        state.durable >= state.written
    }

    /// Returns where the log's content ends, as an offset in its file.
    pub(crate) fn end(&self) -> u64 {
        self.state.lock().end
    }

    /// Returns true if the log has grown by `bytes` since the last time that this returned true.
    /// Then a checkpoint is due.
    pub(crate) fn has_grown_by(&self, bytes: u64) -> bool {
        let mut state = self.state.lock();
        let due = state.end >= state.end_at_request + bytes;
        if due {
            state.end_at_request = state.end;
        }
        due
    }

    pub(crate) fn counts(&self) -> Counts {
        let state = self.state.lock();
        Counts { bytes: state.written - 1, ..state.counts.clone() }
    }

    /// Counts a commit of a session that does not wait.
    pub(crate) fn not_waited(&self) {
        self.state.lock().counts.not_waited += 1;
    }

    /// Returns the failure after which nothing more is written, if there was one.
    pub(crate) fn trouble(&self) -> Option<Trouble> {
        self.state.lock().trouble.clone()
    }

    /// Records a failure: from now on nothing is written. Wakes the waiting commits, which return
    /// the failure.
    pub(crate) fn fail(&self, trouble: Trouble) {
        let mut state = self.state.lock();
        state.trouble.get_or_insert(trouble);
        let waiters = std::mem::take(&mut state.waiters);
        drop(state);
        wake(waiters);
    }

    /// Waits until everything written so far is durable. For a sync by SQLite itself, such as a
    /// checkpoint's.
    pub(crate) fn sync(&self, sync: impl Fn() -> io::Result<()>) -> Result<(), Trouble> {
        self.until_durable(self.position(), false, sync)
    }

    /// Waits until a commit is durable, which is in the log up to `position`.
    pub(crate) fn wait_durable(
        &self,
        position: u64,
        sync: impl Fn() -> io::Result<()>,
    ) -> Result<(), Trouble> {
        self.state.lock().counts.commits += 1;
        self.until_durable(position, true, sync)
    }

    /// Waits until the log is durable up to `position`. If no sync is running, this caller becomes
    /// the leader and syncs.
    ///
    /// The wait cannot be cancelled, because a commit cannot be taken back.
    fn until_durable(
        &self,
        position: u64,
        is_commit: bool,
        sync: impl Fn() -> io::Result<()>,
    ) -> Result<(), Trouble> {
        let mut state = self.state.lock();
        let mut led = false;
        loop {
            if let Some(trouble) = &state.trouble {
                return Err(trouble.clone());
            }
            if state.durable >= position {
                // This waiter may have been woken to become the leader although its position is
                // durable by now. Then the next waiter in the queue becomes the leader.
                let next = if state.leader.is_none() { state.waiters.pop_front() } else { None };
                drop(state);
                wake(next);
                return Ok(());
            }
            debug_assert!(!led, "a leader's sync covers its own position");
            if let Some(leader) = state.leader {
                // When the leader has finished, it reads the queue under the mutex that is locked
                // here, so it finds this waiter.
                let woken = host::park(For::LogWrite, self, Some(leader), None, |sleeper| {
                    state.waiters.push_back((position, sleeper));
                    drop(state);
                });
                debug_assert_eq!(
                    woken,
                    Ok(()),
                    "this wait has no deadline and cannot be cancelled"
                );
                state = self.state.lock();
                continue;
            }
            state.leader = Some(Holder::current());
            drop(state);
            let mut lead = Lead { log: self, target: 0, is_commit, done: false };
            lead.target = self.position();
            lead.end(sync())?;
            led = true;
            state = self.state.lock();
        }
    }

    /// Records the result of a sync that covers `target`, and wakes the commits that it decides.
    fn settle(&self, target: u64, synced: io::Result<()>) -> Result<(), Trouble> {
        if let Err(error) = synced {
            let trouble = Trouble::SyncFailed(error.to_string());
            self.fail(trouble.clone());
            return Err(trouble);
        }
        let mut state = self.state.lock();
        state.durable = state.durable.max(target);
        let mut woken = Vec::new();
        let durable = state.durable;
        state.waiters.retain(|(position, sleeper)| {
            let covered = *position <= durable;
            if covered {
                woken.extend(sleeper.claim());
            }
            !covered
        });
        drop(state);
        woken.into_iter().for_each(host::Woken::run);
        Ok(())
    }
}

/// Wakes waiters that have been removed from the queue.
fn wake(waiters: impl IntoIterator<Item = (u64, Sleeper)>) {
    for (_, sleeper) in waiters {
        sleeper.wake();
    }
}

/// The leader's guard: however the sync ends, even by a panic, dropping the guard wakes the waiting
/// commits with the result.
struct Lead<'a> {
    log: &'a Log,
    target: u64,
    is_commit: bool,
    done: bool,
}

impl Lead<'_> {
    fn end(mut self, synced: io::Result<()>) -> Result<(), Trouble> {
        self.done = true;
        let mut state = self.log.state.lock();
        state.leader = None;
        let waited = state.waiters.iter().filter(|w| w.0 <= self.target).count();
        let batch = usize::from(self.is_commit) + waited;
        if batch > 0 {
            state.counts.syncs += 1;
            state.counts.batches[(batch.ilog2() as usize).min(BUCKETS - 1)] += 1;
        }
        drop(state);
        self.log.settle(self.target, synced)?;
        // The first waiting commit that this sync does not cover becomes the next leader.
        let next = self.log.state.lock().waiters.pop_front();
        wake(next);
        Ok(())
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.log.state.lock().leader = None;
            self.log.fail(Trouble::SyncFailed("the sync was not finished".into()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::Duration;
    use std::time::Instant;

    fn until(condition: impl Fn() -> bool) {
        let limit = Instant::now() + Duration::from_secs(60);
        while !condition() {
            assert!(Instant::now() < limit, "a condition that must come about did not");
            std::thread::yield_now();
        }
    }

    fn waiting(log: &Log) -> usize {
        log.state.lock().waiters.len()
    }

    #[test]
    fn commits_that_wait_during_a_sync_share_the_next_one() {
        let log = Log::default();
        let (open, syncs) = (AtomicBool::new(false), AtomicU64::new(0));
        let sync = || {
            syncs.fetch_add(1, Ordering::Relaxed);
            until(|| open.load(Ordering::Relaxed));
            Ok(())
        };
        std::thread::scope(|s| {
            let commit = || {
                log.wrote(32, 100);
                log.wait_durable(log.position(), sync)
            };
            let first = s.spawn(commit);
            until(|| syncs.load(Ordering::Relaxed) == 1);
            let rest: Vec<_> = (0..5).map(|_| s.spawn(commit)).collect();
            until(|| waiting(&log) == 5);
            open.store(true, Ordering::Relaxed);
            assert_eq!(first.join().unwrap(), Ok(()));
            assert!(rest.into_iter().all(|commit| commit.join().unwrap() == Ok(())));
        });
        let counts = log.counts();
        assert_eq!((counts.syncs, counts.commits, counts.bytes), (2, 6, 600));
        assert_eq!(counts.batches[..3], [1, 0, 1], "one alone, then five together");
        assert!(log.is_durable());
    }

    #[test]
    fn a_leaders_error_reaches_every_waiting_commit_and_is_permanent() {
        let log = Log::default();
        let (open, entered) = (AtomicBool::new(false), AtomicBool::new(false));
        let sync = || {
            entered.store(true, Ordering::Relaxed);
            until(|| open.load(Ordering::Relaxed));
            Err(io::Error::other("the disk is gone"))
        };
        let failed = Err(Trouble::SyncFailed("the disk is gone".into()));
        std::thread::scope(|s| {
            let commit = || {
                log.wrote(32, 100);
                log.wait_durable(log.position(), sync)
            };
            let mut commits = vec![s.spawn(commit)];
            until(|| entered.load(Ordering::Relaxed));
            commits.extend((0..3).map(|_| s.spawn(commit)));
            until(|| waiting(&log) == 3);
            open.store(true, Ordering::Relaxed);
            assert!(commits.into_iter().all(|commit| commit.join().unwrap() == failed));
        });
        // Neither a commit nor a checkpoint syncs after the failure.
        assert_eq!(log.wait_durable(log.position(), || panic!("synced again")), failed);
        assert_eq!(log.sync(|| panic!("synced again")), failed);
        assert!(!log.is_durable());
    }

    /// The kernel reports a failed write to only one of two concurrent syncs; the other succeeds.
    #[test]
    fn a_failure_that_is_reported_once_reaches_every_commit() {
        let log = Log::default();
        let (entered, failed) = (AtomicU64::new(0), AtomicBool::new(false));
        let sync = || {
            entered.fetch_add(1, Ordering::Relaxed);
            // Gives the other sync time to begin, which it must not do.
            std::thread::sleep(Duration::from_millis(100));
            if failed.swap(true, Ordering::Relaxed) {
                Ok(())
            } else {
                Err(io::Error::other("lost"))
            }
        };
        log.wrote(32, 100);
        std::thread::scope(|s| {
            let commit = s.spawn(|| log.wait_durable(log.position(), sync));
            until(|| entered.load(Ordering::Relaxed) == 1);
            let lost = Err(Trouble::SyncFailed("lost".into()));
            assert_eq!(log.sync(sync), lost, "the checkpoint gets the failure, too");
            assert_eq!(commit.join().unwrap(), lost);
        });
        assert_eq!(entered.into_inner(), 1);
    }

    #[test]
    fn what_was_in_the_log_when_it_was_opened_is_synced_before_a_checkpoint_trusts_it() {
        let log = Log::default();
        let syncs = AtomicU64::new(0);
        let sync = || {
            syncs.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        assert!(!log.is_durable());
        assert_eq!((log.sync(sync), log.sync(sync)), (Ok(()), Ok(())));
        assert_eq!(syncs.into_inner(), 1, "the failure is remembered");
    }

    #[test]
    fn a_checkpoints_sync_covers_waiting_commits_and_wakes_all_of_them() {
        let log = Log::default();
        let stop = AtomicBool::new(false);
        let sync = || {
            std::thread::yield_now();
            Ok(())
        };
        std::thread::scope(|s| {
            let checkpoints = s.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    log.sync(sync).unwrap();
                }
            });
            let commits: Vec<_> = (0..4)
                .map(|_| {
                    s.spawn(|| {
                        for _ in 0..2_000 {
                            log.wrote(32, 1);
                            log.wait_durable(log.position(), sync).unwrap();
                        }
                    })
                })
                .collect();
            commits.into_iter().for_each(|commit| commit.join().unwrap());
            stop.store(true, Ordering::Relaxed);
            checkpoints.join().unwrap();
        });
        assert_eq!(log.counts().commits, 8_000);
    }

    #[test]
    fn a_checkpoint_is_due_each_time_the_log_has_grown() {
        let log = Log::default();
        log.wrote(0, 32);
        log.wrote(32, 1000);
        assert!(!log.has_grown_by(2000));
        log.wrote(1032, 1000);
        assert!(log.has_grown_by(2000));
        assert!(!log.has_grown_by(2000));
        // After the reset, growth is measured from the beginning of the file.
        log.wrote(0, 32);
        assert!(!log.has_grown_by(2000));
        log.wrote(32, 2000);
        assert!(log.has_grown_by(2000));
        assert_eq!(log.counts().bytes, 32 + 2000 + 32 + 2000);
    }

    #[test]
    fn each_transaction_may_write_as_much_as_the_limit_says() {
        let log = Log::default();
        log.limit_transactions(100);
        for _ in 0..2 {
            log.begin_transaction();
            assert!(log.has_room(100) && !log.has_room(101));
            log.wrote(32, 60);
            assert!(log.has_room(40) && !log.has_room(41));
        }
    }
}
