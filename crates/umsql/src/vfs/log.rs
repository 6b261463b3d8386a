//! Group commit: many transactions become durable by one sync of the write-ahead log.
//!
//! Nouns. The *position* is the number of bytes ever written to this database's log; it only grows,
//! over resets and truncations of the file. A *commit* waits until the log is durable up to the
//! position that was current when SQLite's COMMIT had returned. The *leader* is the one who syncs;
//! all who wait when it is done and whose position it covered are its *batch*.
//!
//! ```text
//!   commit A: lead ── fdatasync (covers what is written now) ──▶ wake the batch, and one who leads next
//!   commit B:    wait ────────────────────────────────────────▶ durable
//!   commit C:          wait (written after the sync began) ───▶ lead ── fdatasync ──▶ ...
//! ```
//!
//! Why this is right. Connections run with `synchronous=NORMAL`: COMMIT writes the transaction's
//! frames to the log, with a checksum that goes on from frame to frame, and returns without a sync.
//! So
//! * when the sync of the log that began after a commit's last write has succeeded, its frames and
//!   all before them are on the disk, and recovery finds an unbroken chain up to its commit mark;
//! * what is not durable is not acknowledged: a session waits here before it sends CommandComplete;
//! * a *checkpoint* keeps the order for us. In NORMAL it syncs the log before it writes the first
//!   page into the database, and it syncs the database before the log may be reused. So the
//!   database never has a page whose log is not durable, and a log is overwritten only when the
//!   database has all of it. The sync of a checkpoint counts for those who wait here, too, for it
//!   is the same file;
//! * a *reset* writes the new header and syncs it before any frame. Frames of before are in the
//!   database then, durably, so a position from before the reset that is still waited for is
//!   covered by the next sync in any case.
//!
//! A commit can be seen by others before it is durable. Who commits after having seen it has a
//! later position, so it is never durable without it. `docs/sqlite.md` says what this means for
//! readers.
//!
//! One sync runs at a time, a checkpoint's too. The kernel reports a failed write to one sync of an
//! open file only; of two at once the other would be told that all is well, and its batch would be
//! acknowledged.
//!
//! After a failed sync nobody knows what is on the disk, and the kernel may report success the next
//! time although the pages are gone. So a failure is for good: all who wait get it, and so does
//! every later commit, sync and write until the server is started again ([`Trouble`]).
//!
//! What it does not do: it does not know the file; the caller brings the sync.

use std::collections::VecDeque;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::host::{self, For, Holder, Sleeper};

/// Buckets of the histogram: batches of 1, 2 to 3, 4 to 7, and so on; the last one has all larger
/// ones.
pub(crate) const BUCKETS: usize = 10;

/// Why a database takes no more writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// A sync failed, with this.
    SyncFailed(String),
    /// The file, or its log, was deleted.
    Deleted,
}

/// What the group commit counts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counts {
    /// Syncs of the log on behalf of commits.
    pub(crate) syncs: u64,
    /// Commits that waited for one, or found that they need not.
    pub(crate) commits: u64,
    /// Commits whose session did not want to wait.
    pub(crate) not_waited: u64,
    /// Bytes written to the log.
    pub(crate) bytes: u64,
    /// How many syncs had a batch of so many commits.
    pub(crate) batches: [u64; BUCKETS],
}

/// The log of one database.
#[derive(Debug, Default)]
pub(crate) struct Log {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Begins with one: what the file has when it is opened may not be on the disk.
    written: u64,
    durable: u64,
    /// Who syncs now.
    leader: Option<Holder>,
    waiters: VecDeque<(u64, Sleeper)>,
    trouble: Option<Trouble>,
    counts: Counts,
    /// Where the file's content ends since its last reset,
    end: u64,
    /// and where it ended when a checkpoint was asked for.
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
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a finished write to the log's file.
    pub(crate) fn wrote(&self, at: u64, len: usize) {
        let mut state = self.state();
        state.written += len as u64;
        if at == 0 {
            // A new header: the log begins again.
            (state.end, state.end_at_request) = (0, 0);
        }
        state.end = state.end.max(at + len as u64);
    }

    /// Notes that the log's file has this size now.
    pub(crate) fn truncated(&self, size: u64) {
        let mut state = self.state();
        state.end = state.end.min(size);
        state.end_at_request = state.end_at_request.min(size);
    }

    /// How much was ever written.
    pub(crate) fn position(&self) -> u64 {
        self.state().written
    }

    /// Whether all that was written is durable.
    #[cfg(test)]
    pub(crate) fn is_durable(&self) -> bool {
        let state = self.state();
        state.durable >= state.written
    }

    /// Where the log's content ends, in bytes from the start of its file.
    pub(crate) fn end(&self) -> u64 {
        self.state().end
    }

    /// True when the log has grown by `bytes` since this was last true: then a checkpoint is due.
    pub(crate) fn has_grown_by(&self, bytes: u64) -> bool {
        let mut state = self.state();
        let due = state.end >= state.end_at_request + bytes;
        if due {
            state.end_at_request = state.end;
        }
        due
    }

    pub(crate) fn counts(&self) -> Counts {
        let state = self.state();
        Counts { bytes: state.written - 1, ..state.counts.clone() }
    }

    /// Notes a commit that nobody waits for.
    pub(crate) fn not_waited(&self) {
        self.state().counts.not_waited += 1;
    }

    /// Why nothing more is written, if so.
    pub(crate) fn trouble(&self) -> Option<Trouble> {
        self.state().trouble.clone()
    }

    /// From now on nothing is written; those who wait are told.
    pub(crate) fn fail(&self, trouble: Trouble) {
        let mut state = self.state();
        state.trouble.get_or_insert(trouble);
        let waiters = std::mem::take(&mut state.waiters);
        drop(state);
        wake(waiters);
    }

    /// Waits until all that is written now is durable, on behalf of SQLite itself: a checkpoint,
    /// for one.
    pub(crate) fn sync(&self, sync: impl Fn() -> io::Result<()>) -> Result<(), Trouble> {
        self.until_durable(self.position(), false, sync)
    }

    /// Waits until a commit, which is in the log up to `position`, is durable.
    pub(crate) fn wait_durable(
        &self,
        position: u64,
        sync: impl Fn() -> io::Result<()>,
    ) -> Result<(), Trouble> {
        self.state().counts.commits += 1;
        self.until_durable(position, true, sync)
    }

    /// Whoever finds nobody syncing leads.
    ///
    /// The wait is deaf to cancellation: a commit that is asked for cannot be taken back.
    fn until_durable(
        &self,
        position: u64,
        is_commit: bool,
        sync: impl Fn() -> io::Result<()>,
    ) -> Result<(), Trouble> {
        let mut state = self.state();
        let mut led = false;
        loop {
            if let Some(trouble) = &state.trouble {
                return Err(trouble.clone());
            }
            if state.durable >= position {
                // We may have been woken to lead, and need not: then the next one in line leads.
                let next = if state.leader.is_none() { state.waiters.pop_front() } else { None };
                drop(state);
                wake(next);
                return Ok(());
            }
            debug_assert!(!led, "a leader's sync covers its own position");
            if let Some(leader) = state.leader {
                // The leader looks at the line under the same lock when it is done, so it will find
                // us.
                let woken = host::park(For::LogWrite, self, Some(leader), None, |sleeper| {
                    state.waiters.push_back((position, sleeper));
                    drop(state);
                });
                debug_assert_eq!(woken, Ok(()), "this wait has no deadline and hears no cancel");
                state = self.state();
                continue;
            }
            state.leader = Some(Holder::current());
            drop(state);
            let mut lead = Lead { log: self, target: 0, is_commit, done: false };
            lead.target = self.position();
            lead.end(sync())?;
            led = true;
            state = self.state();
        }
    }

    /// Notes how a sync that covers `target` ended, and wakes those it concerns.
    fn settle(&self, target: u64, synced: io::Result<()>) -> Result<(), Trouble> {
        if let Err(error) = synced {
            let trouble = Trouble::SyncFailed(error.to_string());
            self.fail(trouble.clone());
            return Err(trouble);
        }
        let mut state = self.state();
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

/// Wakes waiters who are out of the line.
fn wake(waiters: impl IntoIterator<Item = (u64, Sleeper)>) {
    for (_, sleeper) in waiters {
        sleeper.wake();
    }
}

/// The duty of a leader: however its sync ends, those who wait hear of it.
struct Lead<'a> {
    log: &'a Log,
    target: u64,
    is_commit: bool,
    done: bool,
}

impl Lead<'_> {
    fn end(mut self, synced: io::Result<()>) -> Result<(), Trouble> {
        self.done = true;
        let mut state = self.log.state();
        state.leader = None;
        let waited = state.waiters.iter().filter(|w| w.0 <= self.target).count();
        let batch = usize::from(self.is_commit) + waited;
        if batch > 0 {
            state.counts.syncs += 1;
            state.counts.batches[(batch.ilog2() as usize).min(BUCKETS - 1)] += 1;
        }
        drop(state);
        self.log.settle(self.target, synced)?;
        // Who came too late for this sync leads the next one.
        let next = self.log.state().waiters.pop_front();
        wake(next);
        Ok(())
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.log.state().leader = None;
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
        log.state().waiters.len()
    }

    #[test]
    fn those_who_wait_during_a_sync_share_the_next_one() {
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
    fn a_leaders_error_reaches_everybody_and_is_for_good() {
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
        // Neither a commit nor a checkpoint tries again.
        assert_eq!(log.wait_durable(log.position(), || panic!("synced again")), failed);
        assert_eq!(log.sync(|| panic!("synced again")), failed);
        assert!(!log.is_durable());
    }

    /// The kernel tells one of two syncs that run at once of a failed write, and the other that all
    /// is well.
    #[test]
    fn a_failure_that_is_reported_once_is_not_hidden_from_those_who_commit() {
        let log = Log::default();
        let (entered, failed) = (AtomicU64::new(0), AtomicBool::new(false));
        let sync = || {
            entered.fetch_add(1, Ordering::Relaxed);
            // Time for the other to come; it must not.
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
            assert_eq!(log.sync(sync), lost, "the checkpoint hears of it, too");
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
        assert_eq!(syncs.into_inner(), 1, "once, and then it is known");
    }

    #[test]
    fn a_checkpoints_sync_counts_and_nobody_is_left_waiting() {
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
        // Begun again at the front, it grows from there.
        log.wrote(0, 32);
        assert!(!log.has_grown_by(2000));
        log.wrote(32, 2000);
        assert!(log.has_grown_by(2000));
        assert_eq!(log.counts().bytes, 32 + 2000 + 32 + 2000);
    }
}
