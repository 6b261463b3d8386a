//! Power loss under load: every acknowledged commit must be on the disk afterwards.

use std::path::Path;
use std::sync::{Arc, Mutex};

use super::*;

const PATH: &str = "/db";
const WRITERS: i64 = 4;

/// The result of one run.
struct Found {
    acknowledged: usize,
    /// What was wrong after the power loss, if anything was.
    wrong: Option<String>,
}

type Work = Box<dyn FnOnce() + Send>;

fn open(vfs: &'static Vfs) -> rusqlite::Result<(Connection, Seat)> {
    let (connection, seat) = vfs.connect(Path::new(PATH), super::super::PATIENCE)?;
    connection.execute_batch("PRAGMA synchronous=NORMAL; PRAGMA wal_autocheckpoint=0")?;
    Ok((connection, seat))
}

/// Commits repeatedly, and records the acknowledged commits, until the power goes off.
fn write(vfs: &'static Vfs, writer: i64, acknowledged: &Mutex<Vec<i64>>) {
    let Ok((connection, seat)) = open(vfs) else { return };
    for n in 0.. {
        let id = n * WRITERS + writer;
        let sql = format!(
            "BEGIN IMMEDIATE; INSERT INTO done VALUES ({id}, zeroblob({}));
             UPDATE sums SET n = n + 1 WHERE writer = {writer}; COMMIT",
            id * 37 % 3000
        );
        if connection.execute_batch(&sql).is_err()
            || seat.database.wait_durable(seat.database.log.position()).is_err()
        {
            return;
        }
        acknowledged.lock().unwrap().push(id);
    }
}

fn checkpoint(vfs: &'static Vfs, seed: u64, disk: &LossyDisk) {
    let Ok((connection, _)) = open(vfs) else { return };
    let mut dice = Dice::new(seed + 1000);
    while !disk.is_off() {
        let mode = ["PASSIVE", "PASSIVE", "RESTART", "TRUNCATE"][dice.roll(4) as usize];
        let sql = format!("PRAGMA wal_checkpoint({mode})");
        let _ = connection.query_row(&sql, [], |_| Ok(()));
        ums::yield_now();
    }
}

/// Runs writers, which commit, and a checkpointer, on workers of the node or on plain threads,
/// until the power goes off. Then checks the disk.
fn run(seed: u64, faults: Faults, node: Option<&Node>) -> Found {
    let mut dice = Dice::new(seed);
    let disk = LossyDisk::default();
    let vfs = lossy(&disk);
    let (first, seat) = open(vfs).unwrap();
    first
        .execute_batch(&format!(
            "PRAGMA journal_mode=WAL; CREATE TABLE done(id INTEGER PRIMARY KEY, filler);
             CREATE TABLE sums(writer INTEGER PRIMARY KEY, n);
             INSERT INTO sums SELECT value, 0 FROM json_each('{:?}')",
            (0..WRITERS).collect::<Vec<_>>()
        ))
        .unwrap();
    seat.database.wait_durable(seat.database.log.position()).unwrap();

    disk.set_faults(faults);
    disk.power_off_after(20 + dice.roll(3000));
    let acknowledged = Arc::new(Mutex::new(Vec::new()));
    let mut work: Vec<Work> = Vec::new();
    for writer in 0..WRITERS {
        let acknowledged = Arc::clone(&acknowledged);
        work.push(Box::new(move || write(vfs, writer, &acknowledged)));
    }
    let watched = disk.clone();
    work.push(Box::new(move || checkpoint(vfs, seed, &watched)));
    match node {
        Some(node) => {
            let tasks: Vec<_> = work.into_iter().map(|work| node.spawn(work).unwrap()).collect();
            tasks.into_iter().for_each(|task| task.join().unwrap());
        }
        None => {
            let threads: Vec<_> = work.into_iter().map(std::thread::spawn).collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        }
    }
    drop((first, seat));

    let survives = (seed % 2 == 1).then(|| Dice::new(seed + 2000));
    let after = disk.after_loss(survives);
    let acknowledged = acknowledged.lock().unwrap();
    Found { wrong: check(&after, &acknowledged).err(), acknowledged: acknowledged.len() }
}

/// Opens the database, as after a restart, and checks its contents.
fn check(disk: &LossyDisk, acknowledged: &[i64]) -> Result<(), String> {
    let text = |error: rusqlite::Error| error.to_string();
    let (connection, _) =
        lossy(disk).connect(Path::new(PATH), super::super::PATIENCE).map_err(text)?;
    let whole: String =
        connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).map_err(text)?;
    if whole != "ok" {
        return Err(whole);
    }
    let mut known = connection.prepare("SELECT 1 FROM done WHERE id = ?1").map_err(text)?;
    for id in acknowledged {
        if !known.exists([id]).map_err(text)? {
            return Err(format!("{id} was acknowledged and is lost"));
        }
    }
    let uneven = "SELECT count(*) FROM sums WHERE n <>
                  (SELECT count(*) FROM done WHERE id % (SELECT count(*) FROM sums) = writer)";
    let uneven: i64 = connection.query_row(uneven, [], |row| row.get(0)).map_err(text)?;
    if uneven > 0 { Err("half of a transaction was stored".into()) } else { Ok(()) }
}

#[test]
fn every_acknowledged_commit_survives_a_power_loss_at_a_random_moment() {
    let [threads, fibers] = nodes(2);
    let mut acknowledged = 0;
    for seed in 0..200 {
        let node = [None, None, Some(&threads), Some(&fibers)][(seed / 2 % 4) as usize];
        let found = run(seed, Faults::default(), node);
        assert_eq!(found.wrong, None, "seed {seed}");
        acknowledged += found.acknowledged;
    }
    println!("{acknowledged} commits were acknowledged");
    assert!(acknowledged > 5_000, "only {acknowledged} commits were acknowledged in 200 runs");
}

#[test]
fn without_the_sync_of_the_log_acknowledged_commits_are_lost() {
    let lost = (0..50).find(|seed| {
        let faults = Faults { log_sync_does_nothing: true, ..Faults::default() };
        run(*seed, faults, None).wrong.is_some()
    });
    assert!(lost.is_some(), "the test above would not notice that the sync is missing");
}
