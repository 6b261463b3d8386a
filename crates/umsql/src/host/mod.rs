//! The interface between `umsql` and `ums`: everything that the server needs from its schedulers.
//!
//! The rest of the crate waits, sleeps, yields and reads statistics only through this module. Only
//! this module and [`crate::listen`] use `ums`.
//!
//! Terms: a **user** is a connection, identified by a number. A **request** is the work request
//! that the current worker carries out for a user.
//!
//! It contains neither SQL nor the wire protocol.

pub(crate) mod files;
#[cfg(test)]
pub(crate) mod memory;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) use ums::WaitError;
use ums::stats::{View, WaitClass};
pub(crate) use ums::sync::{Event, Holder, Mutex as ParkingMutex, RawMutex, Sleeper, Woken};
pub(crate) use ums::user::UserLock;
use ums::{Node, WaitReason};

/// An error: the current request was cancelled while it waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interrupted;

/// The byte stream to a client, as a session uses it.
pub trait Conn {
    /// Returns this connection's user number.
    fn user(&self) -> u64;

    /// Returns the user id of the client's process, if the connection came by a Unix-domain socket.
    fn peer_uid(&self) -> Option<u32> {
        None
    }

    /// Reads the bytes that have arrived, without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if nothing has arrived; any other error ends the connection.
    fn try_read(&mut self, buf: &mut [u8]) -> io::Result<usize>;

    /// Reads bytes. Parks the worker until some have arrived.
    ///
    /// # Errors
    /// Any error, a timeout included, ends the connection.
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize>;

    /// Returns a closure that enqueues the next work request of a session that waits without a
    /// worker ([`crate::Flow::Later`]).
    fn resume(&self) -> Box<dyn FnOnce() + Send>;

    /// Writes all of `bytes`. Parks the worker while the connection accepts no more. A cancellation
    /// does not end this wait, unless the server stops.
    ///
    /// # Errors
    /// Any error, a timeout included, ends the connection.
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Writes `bytes` for a statement that goes on afterwards. Returns how many are written: all,
    /// or fewer if the request is cancelled while it waits.
    ///
    /// # Errors
    /// Any error, a timeout included, ends the connection.
    fn write_until_cancelled(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes).map(|()| bytes.len())
    }

    /// Begins a part of an answer: what is written until the next one begins has one limit of time.
    fn begin_part(&mut self) {}

    /// Writes a message about the client to the log.
    fn warn(&self, text: std::fmt::Arguments<'_>) {
        let _ = text;
    }

    /// Records that the client has logged in. Returns false if there is no place for it, or the
    /// connection is closing.
    fn logged_in(&mut self) -> bool {
        true
    }

    /// Returns whether the connection is closing, because the server stops, the login took too
    /// long, or there is no room for it.
    fn is_closing(&self) -> bool {
        false
    }

    /// Returns what the clock asks about the client; `None` if it asks nothing.
    fn peer(&self) -> Option<Arc<dyn Peer>> {
        None
    }
}

/// The client of a session, seen from another thread.
pub trait Peer: std::fmt::Debug + Send + Sync {
    /// Returns whether a request of the client is queued or running.
    fn is_busy(&self) -> bool;

    /// Returns whether the client has closed the connection.
    fn has_gone(&self) -> bool;
}

/// A cell of a [`HostTable`].
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// No value.
    Null,
    /// An integer.
    Int(i64),
    /// A number with a fraction.
    Float(f64),
    /// A text.
    Text(String),
}

/// One of the statistics tables of `ums`: its contents at one moment.
#[derive(Debug, Clone)]
pub struct HostTable {
    /// The table's name in SQL, such as `ums_schedulers`.
    pub name: &'static str,
    /// The name and the SQL type of each column.
    pub columns: Vec<(&'static str, &'static str)>,
    /// The table's rows, each as long as `columns`.
    pub rows: Vec<Vec<Cell>>,
}

/// One line of `DBCC SQLPERF(waitstats)`; times are in milliseconds.
#[derive(Debug, Clone, PartialEq)]
pub struct WaitStat {
    /// The reason for the wait.
    pub reason: String,
    /// How many waits there were.
    pub requests: u64,
    /// The time from the start of the wait until the worker ran again.
    pub wait_ms: f64,
    /// The part of `wait_ms` between the signal and running again.
    pub signal_ms: f64,
}

/// Returns true if the current request has been cancelled.
pub fn cancelled() -> bool {
    ums::is_cancelled()
}

/// Cancels the running request of `user`. Returns false if it has none.
pub fn cancel_request(user: u64) -> bool {
    Node::current().is_some_and(|node| node.cancel(user))
}

/// How long a statement may compute before others get a turn. It is shorter than the quantum of
/// `ums`, because a client's answer needs several turns, and each may come after one slice of every
/// statement that computes.
const SLICE: Duration = Duration::from_micros(200);

/// Yields to the next worker if the statement has used its slice.
pub fn yield_if_due() {
    ums::worker::yield_after(SLICE);
}

/// Returns the number of the calling worker that `memory` keeps.
pub(crate) fn word() -> &'static std::sync::atomic::AtomicU64 {
    ums::worker::word()
}

/// Waits for `time`. If `time` is zero, yields.
///
/// # Errors
/// If the request is cancelled before the time has passed.
pub fn sleep(time: Duration) -> Result<(), Interrupted> {
    if time.is_zero() {
        ums::yield_now();
        return if cancelled() { Err(Interrupted) } else { Ok(()) };
    }
    ums::sleep(time).map_err(|_| Interrupted)
}

/// Returns the moment `span` after this one. A moment that cannot be represented is replaced by one
/// that does not come either.
pub(crate) fn after(now: Instant, span: Duration) -> Instant {
    const CENTURY: Duration = Duration::from_secs(100 * 366 * 24 * 3600);
    now.checked_add(span).or_else(|| now.checked_add(CENTURY)).unwrap_or(now)
}

/// Waits for `time`, also in a cancelled request; yields if `time` is zero. For short pauses
/// between attempts, which would be a busy loop if a cancellation ended them.
pub(crate) fn pause(time: Duration) {
    if time.is_zero() {
        return ums::yield_now();
    }
    let wait = ums::sync::Wait::new(WaitReason::SLEEP).uncancellable();
    // Nothing wakes the sleeper, so the wait ends at its deadline.
    let _ = wait.until(after(Instant::now(), time)).park(drop);
}

/// Waits for `time` because a client asked for it, with the reason `WAITFOR`.
///
/// # Errors
/// If the request is cancelled before the time has passed.
pub fn wait_for(time: Duration) -> Result<(), Interrupted> {
    ums::worker::sleep_as(WaitReason::register("WAITFOR", WaitClass::Queue), time)
        .map_err(|_| Interrupted)
}

/// Runs `f` outside the scheduler, which meanwhile runs other workers.
pub fn go_preemptive<R: Send>(reason: &'static str, f: impl FnOnce() -> R + Send) -> R {
    ums::go_preemptive(WaitReason::register(reason, WaitClass::External), f)
}

/// The options of the hidden schedulers for background work. Their threads have a lower priority
/// than those that serve users.
const BACKGROUND: ums::node::HiddenOptions =
    ums::node::HiddenOptions { max_workers: None, ready: 0, nice: 19 };

/// Runs `f` as background work on the hidden scheduler with this name, and waits for its result.
///
/// # Panics
/// If `f` panics, with the same payload, and if the system refuses to create the scheduler's
/// thread.
pub fn on_hidden<R: Send>(scheduler: &'static str, f: impl FnOnce() -> R + Send) -> R {
    match Node::current() {
        Some(node) => match node.hidden(scheduler, BACKGROUND) {
            Ok(hidden) => hidden.run(f),
            Err(error) => panic!("the hidden scheduler {scheduler} could not be made: {error}"),
        },
        None => f(),
    }
}

/// Starts `f` on the hidden scheduler with this name, which has two workers. If the caller is not a
/// worker or the node is shutting down, returns false and starts nothing.
pub(crate) fn start_hidden(scheduler: &'static str, f: impl FnOnce() + Send + 'static) -> bool {
    let options = ums::node::HiddenOptions { max_workers: Some(2), ..Default::default() };
    let hidden = Node::current().and_then(|node| node.hidden(scheduler, options).ok());
    hidden.is_some_and(|hidden| hidden.spawn(f).is_ok())
}

/// The things that the engine waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum For {
    /// A lock on the database that several connections may hold at the same time.
    SharedLock,
    /// A lock on the database that only one connection may hold.
    ExclusiveLock,
    /// The log's sync. Cancellation does not end this wait, because a commit whose sync has begun
    /// cannot be taken back.
    LogWrite,
    /// One of SQLite's own mutexes.
    EngineMutex,
}

impl For {
    pub(crate) fn reason(self) -> WaitReason {
        match self {
            For::SharedLock => WaitReason::register("LCK_M_S", WaitClass::Resource),
            For::ExclusiveLock => WaitReason::LCK_M_X,
            For::LogWrite => WaitReason::register("WRITELOG", WaitClass::Resource),
            For::EngineMutex => WaitReason::register("SQLITE_MUTEX", WaitClass::Resource),
        }
    }
}

/// Parks the worker until the [`Sleeper`] that is passed to `queue` is woken. `queue` stores the
/// sleeper where the waker finds it, and must not wait itself.
pub(crate) fn park<R>(
    why: For,
    resource: &R,
    holder: Option<Holder>,
    until: Option<Instant>,
    queue: impl FnOnce(Sleeper),
) -> Result<(), WaitError> {
    let mut wait = ums::sync::Wait::new(why.reason()).on(resource).held_by(holder);
    if let Some(until) = until {
        wait = wait.until(until);
    }
    if why == For::LogWrite {
        wait = wait.uncancellable();
    }
    wait.park(queue)
}

/// Returns the number of the current worker's scheduler.
pub fn scheduler_index() -> usize {
    ums::worker::scheduler_id().unwrap_or(0)
}

/// Returns the statistics tables of `ums`, without rows. The virtual tables in SQL have the same
/// names.
pub fn tables() -> Vec<HostTable> {
    View::ALL.iter().map(|view| table(view.empty())).collect()
}

/// Returns the table with this name and its current rows. On a plain thread the table has no rows.
pub fn table_now(name: &str) -> Option<HostTable> {
    let view = *View::ALL.iter().find(|view| view.empty().name == name)?;
    Some(table(Node::current().map_or_else(|| view.empty(), |node| node.view(view))))
}

fn table(table: ums::stats::Table) -> HostTable {
    let kind = |column: &ums::stats::Column| if column.is_number() { "bigint" } else { "text" };
    HostTable {
        name: table.name,
        columns: table.columns.iter().map(|column| (column.name, kind(column))).collect(),
        rows: table.rows.into_iter().map(|row| row.into_iter().map(cell).collect()).collect(),
    }
}

fn cell(cell: ums::stats::Cell) -> Cell {
    match cell {
        ums::stats::Cell::Null => Cell::Null,
        ums::stats::Cell::Int(n) => Cell::Int(n),
        ums::stats::Cell::Text(text) => Cell::Text(text),
    }
}

/// Returns the rows of `DBCC SQLPERF(umsstats)`: eight for each visible scheduler.
pub fn umsstats() -> Vec<(String, f64)> {
    Node::current().map(|node| node.umsstats()).unwrap_or_default()
}

/// Returns the rows of `DBCC SQLPERF(waitstats)`.
pub fn waitstats() -> Vec<WaitStat> {
    let waits = Node::current().map(|node| node.snapshot().waits).unwrap_or_default();
    let ms = |ns: u64| ns as f64 / 1e6;
    waits
        .into_iter()
        .map(|w| WaitStat {
            reason: w.reason.name().to_owned(),
            requests: w.begun,
            wait_ms: ms(w.total_ns),
            signal_ms: ms(w.signal_ns),
        })
        .collect()
}

/// Sets the wait statistics to zero.
pub fn clear_waitstats() {
    if let Some(node) = Node::current() {
        node.reset_waits();
    }
}
