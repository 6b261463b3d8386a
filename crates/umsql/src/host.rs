//! The seam to the machine: everything `umsql` asks of whoever runs it.
//!
//! The rest of the crate waits, sleeps, yields and looks at the scheduler only through this file. The bodies
//! here are over `std`, which is enough for the tests: one thread per connection.
//!
//! Words: a **user** is a connection, named by a number; a **request** is the work request that the current
//! worker carries out for a user. [`begin_request`] and [`end_request`] bracket it.
//!
//! What it does not do: it knows nothing of SQL or of the wire.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The current request was cancelled while it waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interrupted;

/// A byte stream to a client, as a session sees it.
pub trait Conn {
    /// The number of the user this connection is.
    fn user(&self) -> u64;

    /// Reads what is there.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is there; anything else ends the connection.
    fn try_read(&mut self, buf: &mut [u8]) -> io::Result<usize>;

    /// Reads, and parks the worker until something is there.
    ///
    /// # Errors
    /// Any error, a timeout included, ends the connection.
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize>;

    /// Writes all of `bytes`, and parks the worker while the client does not take them.
    ///
    /// # Errors
    /// Any error, a timeout included, ends the connection.
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()>;
}

/// A cell of a host table.
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

/// One of the machine's tables, as it is now.
#[derive(Debug, Clone)]
pub struct HostTable {
    /// Its name in SQL, `ums_schedulers` for one.
    pub name: &'static str,
    /// Its columns: name and SQL type.
    pub columns: Vec<(&'static str, &'static str)>,
    /// Its rows, each as long as `columns`.
    pub rows: Vec<Vec<Cell>>,
}

/// One line of `DBCC SQLPERF(waitstats)`; times are in milliseconds.
#[derive(Debug, Clone, PartialEq)]
pub struct WaitStat {
    /// The reason for the wait.
    pub reason: String,
    /// How many waits there were.
    pub requests: u64,
    /// Time from the start of the wait until running again.
    pub wait_ms: f64,
    /// The part of it between the signal and running again.
    pub signal_ms: f64,
}

static CANCEL: LazyLock<Mutex<HashMap<u64, Arc<AtomicBool>>>> = LazyLock::new(Mutex::default);

thread_local! {
    static CURRENT: RefCell<Option<Arc<AtomicBool>>> = const { RefCell::new(None) };
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says that the current thread now carries out a request of `user`.
pub fn begin_request(user: u64) {
    let flag = Arc::new(AtomicBool::new(false));
    lock(&CANCEL).insert(user, Arc::clone(&flag));
    CURRENT.with_borrow_mut(|current| *current = Some(flag));
}

/// Says that the request that [`begin_request`] announced is over.
pub fn end_request(user: u64) {
    lock(&CANCEL).remove(&user);
    CURRENT.with_borrow_mut(|current| *current = None);
}

/// True when someone asked to cancel the current request.
pub fn cancelled() -> bool {
    CURRENT.with_borrow(|current| current.as_ref().is_some_and(|f| f.load(Ordering::Relaxed)))
}

/// Asks to cancel the request that `user` has running. False when it has none.
pub fn cancel_request(user: u64) -> bool {
    let flag = lock(&CANCEL).get(&user).cloned();
    flag.map(|flag| flag.store(true, Ordering::Relaxed)).is_some()
}

/// Gives the scheduler to the next worker when the quantum is used up.
pub fn yield_if_due() {}

/// Waits for `time`.
///
/// # Errors
/// When the request is cancelled first.
pub fn sleep(time: Duration) -> Result<(), Interrupted> {
    let end = Instant::now() + time;
    loop {
        if cancelled() {
            return Err(Interrupted);
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(Duration::from_millis(5)));
    }
}

/// Runs `f` outside the scheduler, which serves other workers in the meantime.
pub fn go_preemptive<R: Send>(_reason: &'static str, f: impl FnOnce() -> R + Send) -> R {
    f()
}

/// Runs `f` on the hidden scheduler of that name and waits for it.
pub fn on_hidden<R: Send>(_scheduler: &'static str, f: impl FnOnce() -> R + Send) -> R {
    f()
}

/// The number of the scheduler the current worker belongs to.
pub fn scheduler_index() -> usize {
    0
}

/// The write gate of a database: one owner at a time, in the order of arrival.
///
/// It is owned by a *user*, across its work requests. On `ums` a user that owns it has its next request
/// served at once, so the queue behind the gate can always move.
#[derive(Debug, Default)]
pub struct Gate {
    state: Mutex<GateState>,
    moved: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    owner: Option<u64>,
    queue: VecDeque<u64>,
}

impl Gate {
    /// A gate nobody owns.
    pub fn new() -> Gate {
        Gate::default()
    }

    /// Makes `user` the owner; parks, with the reason `LCK_M_X`, while another user is.
    ///
    /// # Errors
    /// When the request is cancelled first.
    pub fn acquire(&self, user: u64) -> Result<(), Interrupted> {
        let mut state = lock(&self.state);
        state.queue.push_back(user);
        loop {
            if state.owner.is_none() && state.queue.front() == Some(&user) {
                state.queue.pop_front();
                state.owner = Some(user);
                return Ok(());
            }
            if cancelled() {
                state.queue.retain(|waiting| *waiting != user);
                self.moved.notify_all();
                return Err(Interrupted);
            }
            let (next, _) = self
                .moved
                .wait_timeout(state, Duration::from_millis(20))
                .unwrap_or_else(PoisonError::into_inner);
            state = next;
        }
    }

    /// Gives the gate to whoever waits first. `user` must be the owner.
    pub fn release(&self, user: u64) {
        let mut state = lock(&self.state);
        assert_eq!(state.owner, Some(user), "a gate is released by the user that owns it");
        state.owner = None;
        self.moved.notify_all();
    }
}

/// The machine's tables, which SQL sees under their names.
pub fn tables() -> Vec<HostTable> {
    let users: Vec<u64> = lock(&CANCEL).keys().copied().collect();
    vec![
        HostTable {
            name: "ums_schedulers",
            columns: vec![("scheduler_id", "bigint"), ("status", "text"), ("load", "float8")],
            rows: vec![vec![Cell::Int(0), text("VISIBLE ONLINE"), Cell::Float(0.0)]],
        },
        HostTable { name: "ums_workers", columns: vec![("worker_id", "bigint")], rows: vec![] },
        HostTable {
            name: "ums_requests",
            columns: vec![("user_id", "bigint"), ("state", "text")],
            rows: users.into_iter().map(|u| vec![Cell::Int(u as i64), text("RUNNING")]).collect(),
        },
        HostTable {
            name: "ums_waiting_tasks",
            columns: vec![("user_id", "bigint"), ("blocking_user_id", "bigint")],
            rows: vec![],
        },
        HostTable {
            name: "ums_wait_stats",
            columns: vec![("wait_type", "text"), ("wait_time_ms", "bigint")],
            rows: vec![],
        },
    ]
}

fn text(text: &str) -> Cell {
    Cell::Text(text.into())
}

/// The rows of `DBCC SQLPERF(umsstats)`: eight for each visible scheduler.
pub fn umsstats() -> Vec<(String, f64)> {
    let users = lock(&CANCEL).len() as f64;
    let rows = [
        ("Scheduler ID", 0.0),
        ("  num users", users),
        ("  num runnable", 0.0),
        ("  num workers", users),
        ("  idle workers", 0.0),
        ("  work queued", 0.0),
        ("  cntxt switches", 0.0),
        ("  cntxt switches(idle)", 0.0),
    ];
    rows.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The rows of `DBCC SQLPERF(waitstats)`.
pub fn waitstats() -> Vec<WaitStat> {
    vec![WaitStat { reason: "LCK_M_X".into(), requests: 0, wait_ms: 0.0, signal_ms: 0.0 }]
}
