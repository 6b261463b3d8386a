//! A journal on a disk that loses what was not synced.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ums::fs::File;
use ums::sim::{Faults, below};

use super::{check, node};

const RECORD: usize = 200;

/// A record says which one it is in every byte pair, so that a torn one shows.
fn record(number: u64) -> [u8; RECORD] {
    std::array::from_fn(|at| (number as u8).wrapping_add(1).wrapping_mul(1 + (at % 2) as u8))
}

/// Writes records one after another, and counts those that are there for good, until the disk is gone.
fn write(path: &Path, syncs: bool, told: &AtomicU64) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    for number in 0..20 {
        file.write_all(&record(number))?;
        if syncs {
            file.sync_data()?;
        }
        told.store(number + 1, Ordering::Relaxed);
    }
    Ok(())
}

/// What a node with two schedulers finds after the power has failed at some moment.
fn power_fails(path: PathBuf, syncs: bool) {
    let told = Arc::new(AtomicU64::new(0));
    let before = node(2);
    let (theirs, journal) = (Arc::clone(&told), path.clone());
    let writer = before.spawn(move || drop(write(&journal, syncs, &theirs))).unwrap();
    ums::sim::thread_sleep(Duration::from_micros(below(4000)));
    ums::sim::power_off();
    writer.join().unwrap();
    before.shutdown(Duration::from_secs(10));
    ums::sim::power_on().unwrap();

    let after = node(2);
    let found = after.run(move || {
        let mut bytes = vec![0; 20 * RECORD];
        let file = File::open(&path).unwrap();
        let mut filled = 0;
        // An operation may fail, and may be short.
        while let Ok(n @ 1..) = file.read_at(&mut bytes[filled..], filled as u64) {
            filled += n;
        }
        bytes.truncate(filled);
        bytes
    });
    after.shutdown(Duration::from_secs(10));
    for number in 0..told.load(Ordering::Relaxed) {
        let at = number as usize * RECORD;
        let lasts = found.get(at..at + RECORD) == Some(&record(number)[..]);
        assert!(lasts, "record {number} was said to be there for good");
    }
}

fn journal() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    (folder, path)
}

#[test]
fn what_was_synced_is_there_when_the_power_comes_back() {
    let faults = Faults { short: 1000, stall: 20, ..Faults::default() };
    check("what_was_synced_is_there_when_the_power_comes_back", faults, || {
        let (_folder, path) = journal();
        power_fails(path, true);
    });
}

#[test]
fn what_was_not_synced_may_be_gone() {
    let story = || {
        let (_folder, path) = journal();
        power_fails(path, false);
    };
    let ended = (0..50).map(|seed| ums::sim::run(seed, Faults::default(), story));
    let failed: Vec<_> = ended.filter_map(|ended| ended.failed).collect();
    assert!(failed.iter().any(|why| why.contains("said to be there for good")), "{failed:?}");
}
