//! A simulated story: a statement that was cancelled has changed nothing, and one that was
//! acknowledged is on the disk, whenever the cancellation comes.
//!
//! Sessions insert rows on a simulated disk, one after another through the write gate, and another
//! task cancels their requests at random: before they begin, while they wait for the gate, while
//! they compute, while the commit waits for the sync of the log, and after that. Then the power
//! goes off. The sequence follows from the seed.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ums::sim::{Check, Faults, below};
use ums::sync::{Event, Mutex};
use ums::task::JoinError;
use ums::{Node, User};

use crate::engine::Files;
use crate::host::memory::MemoryConn;
use crate::server::{Server, Settings};
use crate::session::{Flow, Session};
use crate::vfs::testing::{LossyDisk, lossy};

const SESSIONS: u64 = 3;
const ROWS: u64 = 4;

/// Held while a request is queued or cancelled, because both take a lock that the simulated world
/// does not see.
type Queueing = Arc<Mutex<()>>;

/// A session with its connection.
struct Talk {
    session: Session,
    conn: MemoryConn,
    /// Set when the session's next request is asked for.
    resumed: Arc<Event>,
    queueing: Queueing,
}

fn query(sql: &str) -> Vec<u8> {
    [b"Q", &(sql.len() as u32 + 5).to_be_bytes()[..], sql.as_bytes(), b"\0"].concat()
}

/// Passes these bytes to the session, in as many requests of the user as it needs. Returns the
/// answer.
fn send(mut talk: Talk, user: &User, bytes: &[u8]) -> (Talk, String) {
    talk.conn.input.extend(bytes);
    let (resumed, queueing) = (talk.resumed.clone(), talk.queueing.clone());
    let talk = Arc::new(Mutex::new(talk));
    loop {
        let theirs = Arc::clone(&talk);
        let request = move || {
            let Talk { session, conn, .. } = &mut *theirs.lock();
            session.on_readable(conn)
        };
        let queued = queueing.lock();
        let task = user.enqueue(request).unwrap();
        drop(queued);
        match task.join() {
            Ok(Flow::More) => {}
            Ok(Flow::Later) => resumed.wait().unwrap(),
            Ok(Flow::Idle) => break,
            Ok(Flow::Refuse | Flow::Close) => panic!("the session ends"),
            // It was cancelled before it began.
            Err(JoinError::NeverRan) => {}
            Err(error) => panic!("{error}"),
        }
    }
    let mut talk = Arc::into_inner(talk).expect("the request has ended").into_inner();
    let answer = std::mem::take(&mut talk.conn.output);
    (talk, String::from_utf8_lossy(&answer).into_owned())
}

fn serve(disk: &LossyDisk) -> Arc<Server> {
    let mut settings = Settings::new(Path::new("/db"));
    settings.files = Files::On(lossy(disk));
    let server = Server::open(settings).unwrap();
    server.limit_waiting_writers(below(2) as usize * 10);
    server
}

fn log_in(server: &Arc<Server>, user: &User, queueing: &Queueing) -> Talk {
    let resumed = Arc::new(Event::auto(false));
    let resume = resumed.clone();
    let mut conn = MemoryConn::of(user.id());
    conn.resume = Some(Arc::new(move || resume.set()));
    let (session, queueing) = (server.session(user.id()), queueing.clone());
    let talk = Talk { session, conn, resumed, queueing };
    send(talk, user, b"\0\0\0\x10\0\x03\0\0user\0u\0\0").0
}

/// Inserts the rows of a session, and returns each with whether it was acknowledged.
fn insert(server: &Arc<Server>, user: &User, queueing: &Queueing, first: u64) -> Vec<(u64, bool)> {
    let mut talk = log_in(server, user, queueing);
    let mut told = Vec::new();
    for row in first..first + ROWS {
        let text = match below(3) {
            0 => format!("begin; insert into t values ({row}); commit"),
            1 => format!("insert into t values ({row}); select count(*) from t"),
            _ => format!("insert into t values ({row})"),
        };
        let answer;
        (talk, answer) = send(talk, user, &query(&text));
        let cancelled = answer.contains("C57014\0");
        assert!(cancelled || answer.contains("INSERT 0 1\0"), "{answer:?}");
        told.push((row, !cancelled));
        // A failed transaction is ended, which may be cancelled, too.
        let mut status = answer;
        while !status.ends_with('I') {
            (talk, status) = send(talk, user, &query("rollback"));
        }
    }
    told
}

/// Returns whether the row is there.
fn has(row: u64, talk: Talk, user: &User) -> (Talk, bool) {
    let text = format!("select 'found ' || count(*) from t where n = {row}");
    let (talk, answer) = send(talk, user, &query(&text));
    assert!(answer.contains("found 0") || answer.contains("found 1"), "{row}: {answer:?}");
    (talk, answer.contains("found 1"))
}

/// Checks the rows of the database on this disk.
fn verify(disk: &LossyDisk, told: &[(u64, bool)], when: &str) {
    let server = serve(disk);
    let node = Node::builder().schedulers(1).build().unwrap();
    let user = node.user();
    let mut talk = log_in(&server, &user, &Queueing::default());
    for &(row, acknowledged) in told {
        let found;
        (talk, found) = has(row, talk, &user);
        assert_eq!(found, acknowledged, "row {row}, {when}");
    }
    drop(talk);
    node.shutdown(Duration::from_secs(100));
}

fn story() {
    let disk = LossyDisk::default();
    let server = serve(&disk);
    let node = Arc::new(Node::builder().schedulers(2).max_workers(16).build().unwrap());
    let first = node.user();
    let queueing = Queueing::default();
    let talk = log_in(&server, &first, &queueing);
    drop(send(talk, &first, &query("create table t(n int)")));
    let users: Vec<_> = (0..SESSIONS).map(|_| Arc::new(node.user())).collect();
    let ended = Arc::new(AtomicBool::new(false));
    let canceller = {
        let (server, ended, queueing) = (server.clone(), ended.clone(), queueing.clone());
        let users: Vec<u64> = users.iter().map(|user| user.id()).collect();
        node.spawn(move || {
            let mut cancelled = 0;
            while !ended.load(Ordering::Relaxed) {
                ums::sleep(Duration::from_micros(1 + below(60))).unwrap();
                let user = users[below(SESSIONS) as usize];
                if below(2) == 0 {
                    let _queueing = queueing.lock();
                    cancelled += u64::from(server.cancel_user(user));
                }
            }
            cancelled
        })
    };
    let sessions: Vec<_> = users
        .into_iter()
        .zip(1..)
        .map(|(user, nth)| {
            let (server, queueing) = (server.clone(), queueing.clone());
            node.spawn(move || insert(&server, &user, &queueing, nth * 100)).unwrap()
        })
        .collect();
    let told: Vec<_> = sessions.into_iter().flat_map(|s| s.join().unwrap()).collect();
    ended.store(true, Ordering::Relaxed);
    CANCELLED.fetch_add(canceller.unwrap().join().unwrap(), Ordering::Relaxed);
    let refused = told.iter().filter(|(_, acknowledged)| !acknowledged).count() as u64;
    REFUSED.fetch_add(refused, Ordering::Relaxed);
    drop(server);
    drop(first);
    if let Ok(node) = Arc::try_unwrap(node) {
        node.shutdown(Duration::from_secs(100));
    }
    verify(&disk.after_loss(None), &told, "after the power has gone off");
}

/// How many cancellations found a request or a deferred statement, in all runs.
static CANCELLED: AtomicU64 = AtomicU64::new(0);
/// How many statements got 57014, in all runs.
static REFUSED: AtomicU64 = AtomicU64::new(0);

/// Set in the process of the story.
const ALONE: &str = "UMS_COMMIT_STORY";

#[test]
fn a_cancelled_statement_changes_nothing_and_an_acknowledged_one_is_durable() {
    // A simulated world needs a process of its own, and other tests run in this one.
    if std::env::var_os(ALONE).is_none() {
        let test = std::thread::current().name().expect("a test has a name").to_owned();
        let mut alone = Command::new(std::env::current_exe().unwrap());
        let output =
            alone.args(["--exact", &test, "--nocapture"]).env(ALONE, "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
        return print!("{said}");
    }
    let count = std::env::var("UMS_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(100);
    let command = "cargo test -p umsql commit_story".to_owned();
    let check =
        Check { seeds: 0..count, faults: Faults { stall: 20, ..Faults::default() }, command };
    let checked = ums::sim::check(&check, story);
    let (cancelled, refused) = (CANCELLED.load(Ordering::Relaxed), REFUSED.load(Ordering::Relaxed));
    println!("{} seeds, {cancelled} cancellations, {refused} statements", checked.seeds);
    assert!(refused > 0 || ums::sim::replays(), "no cancellation ended a statement");
}
