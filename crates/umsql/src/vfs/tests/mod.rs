//! Tests of the file system with SQLite: compared with SQLite's own file system, under stress, and
//! with power loss.
//!
//! Unsafe because fiber workers are chosen: only this crate and SQLite run on them, and these keep
//! no thread-scoped state across a wait.
#![allow(unsafe_code)]

mod loss;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rusqlite::types::Value;
use rusqlite::{Connection, ffi};
use ums::Node;

use super::disk::Disk;
use super::lossy::Dice;
use super::testing::{Faults, LossyDisk, lossy};
use super::{Seat, Vfs};

/// A temporary folder, which is removed when this value is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("ums-vfs-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn connect(path: &Path) -> Connection {
    Vfs::system(false).connect(path, super::PATIENCE).unwrap().0
}

fn stock(path: &Path) -> Connection {
    Connection::open(path).unwrap()
}

fn rows(connection: &Connection, sql: &str) -> Vec<Vec<Value>> {
    let mut statement = connection.prepare(sql).unwrap();
    let columns = statement.column_count();
    let mut rows = statement.query([]).unwrap();
    let mut all = Vec::new();
    while let Some(row) = rows.next().unwrap() {
        all.push((0..columns).map(|index| row.get(index).unwrap()).collect());
    }
    all
}

fn integrity(connection: &Connection) -> String {
    connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap()
}

/// Returns two nodes: one with thread workers and one with fiber workers.
fn nodes(schedulers: usize) -> [Node; 2] {
    let builder = || Node::builder().schedulers(schedulers).max_workers(32).stack_size(1 << 20);
    // SAFETY: Contract: see the header.
    [builder().build().unwrap(), unsafe { builder().fiber_workers() }.build().unwrap()]
}

const SCRIPT: &[&str] = &[
    "CREATE TABLE t(id INTEGER PRIMARY KEY, a TEXT, b REAL, c BLOB)",
    "CREATE INDEX t_a ON t(a, b)",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < 3000)
     INSERT INTO t SELECT i, 'row ' || (i * 7919 % 1000), i / 7.0, zeroblob(i % 200) FROM n",
    "BEGIN",
    "UPDATE t SET a = a || '!' WHERE id % 3 = 0",
    "SAVEPOINT s",
    "DELETE FROM t WHERE id > 1500",
    "ROLLBACK TO s",
    "DELETE FROM t WHERE id % 10 = 5",
    "COMMIT",
    "BEGIN",
    "DELETE FROM t",
    "ROLLBACK",
    "CREATE TABLE big(x)",
    "INSERT INTO big VALUES (zeroblob(2000000))",
    "UPDATE big SET x = zeroblob(10)",
    "DROP TABLE big",
    "VACUUM",
];
const QUESTIONS: &[&str] = &[
    "SELECT count(*), sum(id), sum(b), sum(length(c)) FROM t",
    "SELECT a, count(*) FROM t GROUP BY a ORDER BY a LIMIT 50",
    "SELECT * FROM t WHERE a > 'row 5' ORDER BY b DESC LIMIT 20",
    "PRAGMA integrity_check",
    "PRAGMA page_count",
];

#[test]
fn a_database_is_the_same_to_the_byte_as_with_sqlites_own_file_system() {
    for mode in ["WAL", "DELETE", "TRUNCATE", "PERSIST", "MEMORY"] {
        let folder = Folder::new();
        let play = |connection: Connection| {
            let settings = format!("PRAGMA cache_size=20; PRAGMA journal_mode={mode}");
            connection.execute_batch(&settings).unwrap();
            for sql in SCRIPT {
                connection.execute_batch(sql).unwrap_or_else(|e| panic!("{mode}: {sql}: {e}"));
            }
            let answers: Vec<_> = QUESTIONS.iter().map(|sql| rows(&connection, sql)).collect();
            connection.close().unwrap();
            answers
        };
        let (ours, theirs) = (folder.file("ours"), folder.file("theirs"));
        assert_eq!(play(connect(&ours)), play(stock(&theirs)), "{mode}");
        let (ours, theirs) = (std::fs::read(&ours).unwrap(), std::fs::read(&theirs).unwrap());
        assert!(ours == theirs, "{mode}: {} and {} bytes", ours.len(), theirs.len());
        assert!(!folder.file("ours-wal").exists(), "{mode}");
    }
}

#[test]
fn sqlites_own_file_system_is_locked_out_until_the_last_connection_is_closed() {
    let folder = Folder::new();
    let path = folder.file("db");
    let connection = connect(&path);
    connection.execute_batch("PRAGMA journal_mode=WAL; CREATE TABLE t(x)").unwrap();
    let other = stock(&path);
    other.busy_timeout(Duration::ZERO).unwrap();
    let refused = other.query_row("SELECT count(*) FROM t", [], |_| Ok(())).unwrap_err();
    assert_eq!(refused.sqlite_error_code(), Some(rusqlite::ErrorCode::DatabaseBusy));
    let second = connect(&path);
    drop(connection);
    assert!(other.query_row("SELECT count(*) FROM t", [], |_| Ok(())).is_err());
    drop(second);
    assert_eq!(rows(&other, "SELECT count(*) FROM t"), [[Value::Integer(0)]]);
}

/// Moves money between accounts, and reads the sum, from many connections with tiny caches.
fn transfers(vfs: &'static Vfs, path: &Path, mode: &str, schedulers: usize) {
    const ACCOUNTS: i64 = 200;
    for node in nodes(schedulers) {
        let open = move |path: &Path| {
            let connection = vfs.connect(path, Duration::from_secs(60)).unwrap().0;
            connection.execute_batch("PRAGMA cache_size=10; PRAGMA synchronous=NORMAL").unwrap();
            connection
        };
        let first = open(path);
        first
            .execute_batch(&format!(
                "PRAGMA journal_mode={mode}; DROP TABLE IF EXISTS accounts;
                 CREATE TABLE accounts(id INTEGER PRIMARY KEY, balance, filler);
                 WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i < {ACCOUNTS})
                 INSERT INTO accounts SELECT i, 100, zeroblob(400) FROM n"
            ))
            .unwrap();
        let work = |number: u64, writes: bool| {
            let path = path.to_owned();
            move || {
                let connection = open(&path);
                let mut dice = Dice::new(number + 1);
                for _ in 0..200 {
                    if writes {
                        let (from, to) = (dice.roll(200) + 1, dice.roll(200) + 1);
                        let sql = format!(
                            "BEGIN IMMEDIATE;
                             UPDATE accounts SET balance = balance - 5 WHERE id = {from};
                             UPDATE accounts SET balance = balance + 5 WHERE id = {to}; COMMIT"
                        );
                        connection.execute_batch(&sql).unwrap();
                    } else {
                        let sum = rows(&connection, "SELECT sum(balance), count(*) FROM accounts");
                        assert_eq!(sum, [[Value::Integer(100 * ACCOUNTS), ACCOUNTS.into()]]);
                    }
                    ums::yield_now();
                }
            }
        };
        let tasks: Vec<_> =
            (0..12).map(|number| node.spawn(work(number, number % 3 != 0)).unwrap()).collect();
        tasks.into_iter().for_each(|task| task.join().unwrap());
        assert_eq!(integrity(&first), "ok");
        drop(first);
        let report = node.shutdown(Duration::from_secs(10));
        assert_eq!((report.cancelled, report.left), (0, 0));
    }
}

#[test]
fn transfers_and_readers_with_tiny_caches_see_one_sum_on_one_scheduler() {
    let folder = Folder::new();
    transfers(Vfs::system(false), &folder.file("db"), "WAL", 1);
}

#[test]
fn transfers_and_readers_with_tiny_caches_see_one_sum_on_two_schedulers() {
    let folder = Folder::new();
    transfers(Vfs::system(false), &folder.file("db"), "WAL", 2);
}

#[test]
fn a_rollback_journal_works_too() {
    let disk = LossyDisk::default();
    transfers(lossy(&disk), Path::new("/db"), "DELETE", 2);
}

#[test]
fn a_refused_writer_waits_in_line_and_shows_its_reason_and_blocker_b22() {
    let folder = Folder::new();
    let path = folder.file("db");
    let owner = connect(&path);
    owner.execute_batch("PRAGMA journal_mode=WAL; CREATE TABLE t(x); BEGIN IMMEDIATE").unwrap();
    let node = Node::builder().schedulers(1).build().unwrap();
    let other = path.clone();
    let waiter = node
        .spawn(move || connect(&other).execute_batch("INSERT INTO t VALUES (1)").unwrap())
        .unwrap();
    let limit = Instant::now() + Duration::from_secs(20);
    let reason = |node: &Node| node.snapshot().workers.iter().find_map(|w| w.reason);
    while reason(&node).is_none_or(|reason| reason.name() != "LCK_M_X") {
        assert!(Instant::now() < limit, "the writer does not wait for the lock");
        std::thread::yield_now();
    }
    owner.execute_batch("COMMIT").unwrap();
    waiter.join().unwrap();
    assert_eq!(rows(&owner, "SELECT x FROM t"), [[Value::Integer(1)]]);
}

#[test]
fn a_writer_whose_patience_ends_gets_busy() {
    let folder = Folder::new();
    let owner = connect(&folder.file("db"));
    owner.execute_batch("PRAGMA journal_mode=WAL; CREATE TABLE t(x); BEGIN IMMEDIATE").unwrap();
    let patience = Duration::from_millis(150);
    let (other, _) = Vfs::system(false).connect(&folder.file("db"), patience).unwrap();
    let began = Instant::now();
    let error = other.execute_batch("INSERT INTO t VALUES (1)").unwrap_err();
    assert_eq!(error.sqlite_error_code(), Some(rusqlite::ErrorCode::DatabaseBusy));
    assert!(began.elapsed() >= patience);
}

fn extended(error: rusqlite::Error) -> i32 {
    match error {
        rusqlite::Error::SqliteFailure(error, _) => error.extended_code,
        other => panic!("{other}"),
    }
}

#[test]
fn a_full_disk_undoes_the_transaction_and_nothing_else() {
    let disk = LossyDisk::default();
    let (connection, _) = lossy(&disk).connect(Path::new("/db"), super::PATIENCE).unwrap();
    connection.execute_batch("PRAGMA journal_mode=WAL; CREATE TABLE t(x)").unwrap();
    connection.execute_batch("INSERT INTO t VALUES (1)").unwrap();
    disk.set_faults(Faults { room: Some(200_000), ..Faults::default() });
    let error = connection.execute_batch("INSERT INTO t VALUES (zeroblob(500000))").unwrap_err();
    assert_eq!(extended(error) & 0xff, ffi::SQLITE_FULL);
    assert_eq!(rows(&connection, "SELECT count(*) FROM t"), [[Value::Integer(1)]]);
    disk.set_faults(Faults::default());
    connection.execute_batch("INSERT INTO t VALUES (2)").unwrap();
    assert_eq!(integrity(&connection), "ok");
}

#[test]
fn after_a_failed_sync_nothing_is_written_and_reads_continue() {
    let disk = LossyDisk::default();
    let (connection, seat) = lossy(&disk).connect(Path::new("/db"), super::PATIENCE).unwrap();
    connection
        .execute_batch("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; CREATE TABLE t(x)")
        .unwrap();
    let commit = |seat: &Seat| seat.database.wait_durable(seat.database.log.position());
    assert_eq!(commit(&seat), Ok(()));
    disk.set_faults(Faults { sync_fails: true, ..Faults::default() });
    connection.execute_batch("INSERT INTO t VALUES (1)").unwrap();
    assert!(commit(&seat).is_err());
    // The disk works again, but the database still accepts no writes.
    disk.set_faults(Faults::default());
    assert!(commit(&seat).is_err());
    let error = connection.execute_batch("INSERT INTO t VALUES (2)").unwrap_err();
    assert_eq!(extended(error), ffi::SQLITE_IOERR_WRITE);
    assert_eq!(rows(&connection, "SELECT count(*) FROM t"), [[Value::Integer(1)]]);
    let error = connection.query_row("PRAGMA wal_checkpoint", [], |_| Ok(())).unwrap_err();
    assert_eq!(extended(error), ffi::SQLITE_IOERR_FSYNC);
    drop((connection, seat));
    assert!(disk.has("/db-wal"), "the log stays, for it has what the database may lack");
}

#[test]
fn a_file_deleted_underneath_is_noticed_at_the_next_commit() {
    for name in ["/db", "/db-wal"] {
        let disk = LossyDisk::default();
        let (connection, seat) = lossy(&disk).connect(Path::new("/db"), super::PATIENCE).unwrap();
        connection.execute_batch("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL").unwrap();
        connection.execute_batch("CREATE TABLE t(x)").unwrap();
        disk.remove(name);
        let found = seat.database.wait_durable(seat.database.log.position());
        assert_eq!(found, Err(super::Trouble::Deleted), "{name}");
    }
}

#[test]
fn a_log_deleted_underneath_is_noticed_though_a_checkpoint_was_the_one_that_synced() {
    let disk = LossyDisk::default();
    let (connection, seat) = lossy(&disk).connect(Path::new("/db"), super::PATIENCE).unwrap();
    connection.execute_batch("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL").unwrap();
    connection.execute_batch("CREATE TABLE t(x); INSERT INTO t VALUES (1)").unwrap();
    disk.remove("/db-wal");
    connection.query_row("PRAGMA wal_checkpoint", [], |_| Ok(())).unwrap();
    let found = seat.database.wait_durable(seat.database.log.position());
    assert_eq!(found, Err(super::Trouble::Deleted));
    assert_eq!(seat.database.log.trouble(), Some(super::Trouble::Deleted));
}

#[test]
fn a_page_goes_to_the_log_in_one_write_with_its_header() {
    let disk = LossyDisk::default();
    let (connection, _) = lossy(&disk).connect(Path::new("/db"), super::PATIENCE).unwrap();
    connection.execute_batch("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL").unwrap();
    connection.execute_batch("CREATE TABLE t(x); INSERT INTO t VALUES (1)").unwrap();
    let before = disk.changes("/db-wal");
    connection.execute_batch("UPDATE t SET x = x + 1").unwrap();
    assert_eq!(disk.changes("/db-wal") - before, 1, "one page, one write");
    // With a cache of so few pages, SQLite writes pages in the middle of a transaction, and writes
    // them again later.
    connection.execute_batch("PRAGMA cache_size=5; PRAGMA cache_spill=1; BEGIN").unwrap();
    for round in 0..3 {
        let fill = "WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200)
                    INSERT INTO t SELECT zeroblob(900) FROM n";
        connection.execute_batch(fill).unwrap();
        connection.execute_batch(&format!("UPDATE t SET x = {round} WHERE rowid % 7 = 0")).unwrap();
    }
    connection.execute_batch("COMMIT").unwrap();
    assert_eq!(integrity(&connection), "ok");
    let (other, _) = lossy(&disk).connect(Path::new("/db"), super::PATIENCE).unwrap();
    assert_eq!(rows(&other, "SELECT count(*) FROM t"), [[Value::Integer(601)]]);
    assert_eq!(integrity(&other), "ok");
}

#[test]
fn without_power_safe_overwrite_no_synced_commit_shares_its_last_sector_with_an_earlier_one() {
    let disk = LossyDisk::default();
    let (connection, _) = lossy(&disk).connect(Path::new("/db"), super::PATIENCE).unwrap();
    let mut is_safe = 0;
    // SAFETY: Plain Call: the argument of this opcode is a number, a local of this function.
    let done = unsafe {
        let opcode = ffi::SQLITE_FCNTL_POWERSAFE_OVERWRITE;
        let argument = (&raw mut is_safe).cast();
        ffi::sqlite3_file_control(connection.handle(), c"main".as_ptr(), opcode, argument)
    };
    assert_eq!(done, ffi::SQLITE_OK);
    // With pages so small, the page of a commit fills an eighth of a sector.
    connection.execute_batch("PRAGMA page_size=512; PRAGMA journal_mode=WAL").unwrap();
    connection.execute_batch("PRAGMA synchronous=FULL; CREATE TABLE t(x)").unwrap();
    let sector = || disk.size_of(Path::new("/db-wal")).unwrap().unwrap() / 4096;
    for _ in 0..5 {
        let before = sector();
        connection.execute_batch("INSERT INTO t VALUES (1)").unwrap();
        assert!(sector() > before, "the rest of the sector is filled");
    }
    assert_eq!(integrity(&connection), "ok");
}

#[test]
fn a_page_that_one_connection_has_read_is_in_the_pool_for_the_next_one() {
    let vfs = lossy(&LossyDisk::default());
    let connect = || vfs.connect(Path::new("/db"), super::PATIENCE).unwrap().0;
    // The pages are kept while any connection is open.
    let first = connect();
    first.execute_batch("CREATE TABLE t(x); INSERT INTO t VALUES (1)").unwrap();
    let read = || rows(&connect(), "SELECT x FROM t");
    assert_eq!(read(), [[Value::Integer(1)]]);
    let before = vfs.pool_counts();
    assert!(before.pages > 0, "{before:?}");
    assert_eq!(read(), [[Value::Integer(1)]]);
    let after = vfs.pool_counts();
    assert!(after.hits > before.hits, "{before:?}, {after:?}");
    drop(first);
}
