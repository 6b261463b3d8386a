//! A journal, and files that replace each other, on a simulated disk that loses data that was not
//! synced.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ums::fs::File;
use ums::sim::{Faults, below};

use super::{check, node};

const RECORD: usize = 200;

/// Returns a record with its number in every pair of bytes, so that a torn record can be
/// recognised.
fn record(number: u64) -> [u8; RECORD] {
    std::array::from_fn(|at| (number as u8).wrapping_add(1).wrapping_mul(1 + (at % 2) as u8))
}

/// Writes records one after another, and counts those that are durable, until the power fails.
fn write(path: &Path, syncs: bool, told: &AtomicU64) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    if syncs {
        ums::fs::sync_dir(path.parent().unwrap())?;
    }
    for number in 0..20 {
        file.write_all(&record(number))?;
        if syncs {
            file.sync_data()?;
        }
        told.store(number + 1, Ordering::Relaxed);
    }
    Ok(())
}

/// Writes on a node with two schedulers, lets the power fail at a random moment, and checks what is
/// on the disk afterwards.
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
        // The power may have failed before the file's name was durable.
        let Ok(file) = File::open(&path) else { return Vec::new() };
        let mut filled = 0;
        // A read may fail, and may be short.
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

/// Returns the contents of this version of the file.
fn version(number: u64) -> Vec<u8> {
    vec![number as u8; 700 + number as usize * 10]
}

/// Replaces a file again and again in the usual way: it writes a file with another name, and
/// renames that. Records which version is durable.
fn replace(path: &Path, sync_names: bool, told: &AtomicU64) -> std::io::Result<()> {
    let (new, folder) = (path.with_extension("new"), path.parent().unwrap());
    for number in 1..8 {
        let mut file = File::create(&new)?;
        file.write_all(&version(number))?;
        file.sync_all()?;
        drop(file);
        ums::fs::rename(&new, path)?;
        if sync_names {
            ums::fs::sync_dir(folder)?;
        }
        told.store(number, Ordering::Relaxed);
    }
    ums::fs::remove_file(path)?;
    if sync_names {
        ums::fs::sync_dir(folder)?;
    }
    told.store(8, Ordering::Relaxed);
    Ok(())
}

/// Runs this work, and ends the node in the middle of it by a power failure.
fn until_the_power_fails(
    path: &Path,
    deed: impl FnOnce(&Path, &AtomicU64) -> std::io::Result<()> + Send + 'static,
) -> u64 {
    let (node, told) = (node(1), Arc::new(AtomicU64::new(0)));
    let (theirs, path) = (Arc::clone(&told), path.to_owned());
    let worker = node.spawn(move || drop(deed(&path, &theirs))).unwrap();
    ums::sim::thread_sleep(Duration::from_micros(below(12_000)));
    ums::sim::power_off();
    worker.join().unwrap();
    node.shutdown(Duration::from_secs(10));
    ums::sim::power_on().unwrap();
    told.load(Ordering::Relaxed)
}

fn power_fails_while_replacing(sync_names: bool) {
    let (_folder, path) = journal();
    let told = until_the_power_fails(&path, move |path, told| replace(path, sync_names, told));
    match std::fs::read(&path) {
        Ok(found) => {
            let number = u64::from(found[0]);
            assert_eq!(found, version(number), "a version is whole");
            let known = told == 8 || number < told;
            assert!(!known, "version {told} was there for good, and {number} is found");
        }
        Err(_) => assert!([0, 7, 8].contains(&told), "version {told} was there for good"),
    }
}

#[test]
fn a_replaced_file_whose_name_was_synced_is_the_old_or_the_new_one() {
    check(
        "a_replaced_file_whose_name_was_synced",
        Faults { stall: 20, ..Faults::default() },
        || {
            power_fails_while_replacing(true);
        },
    );
}

#[test]
fn a_name_that_was_not_synced_may_be_gone() {
    let story = || power_fails_while_replacing(false);
    let ended = (0..50).map(|seed| ums::sim::run(seed, Faults::default(), story));
    let failed: Vec<_> = ended.filter_map(|ended| ended.failed).collect();
    assert!(failed.iter().any(|why| why.contains("was there for good")), "{failed:?}");
    assert!(!failed.iter().any(|why| why.contains("whole")), "{failed:?}");
}

#[test]
fn a_length_that_was_not_synced_may_come_back() {
    let lengths: Vec<_> = (0..60)
        .map(|seed| {
            let found = Arc::new(AtomicU64::new(0));
            let theirs = Arc::clone(&found);
            let story = move || {
                let (_folder, path) = journal();
                std::fs::write(&path, [1; 2000]).unwrap();
                let told = until_the_power_fails(&path, |path, told| {
                    let file = File::options().write(true).open(path)?;
                    file.set_len(900)?;
                    told.store(1, Ordering::Relaxed);
                    ums::sleep(Duration::from_millis(4)).expect("the task is not cancelled");
                    file.sync_all()?;
                    told.store(2, Ordering::Relaxed);
                    Ok(())
                });
                let len = std::fs::metadata(&path).unwrap().len();
                assert!([900, 2000].contains(&len), "{len}");
                assert!(told < 2 || len == 900, "what was synced lasts");
                theirs.store(told * 10_000 + len, Ordering::Relaxed);
            };
            let failed = ums::sim::run(seed, Faults::default(), story).failed;
            assert_eq!(failed, None, "seed {seed}");
            found.load(Ordering::Relaxed)
        })
        .collect();
    for seen in [12_000, 10_900, 20_900] {
        assert!(lengths.contains(&seen), "{seen} is not among {lengths:?}");
    }
}
