//! What all sessions of a server share: the engine, the keys for cancellations, the clock, the
//! plans of prepared statements, and a few buffers.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::accounts::{Accounts, Role};
use crate::clock::Clock;
use crate::engine::{Engine, Files};
use crate::error::SqlError;
use crate::host;
use crate::keys::Keys;
use crate::memory::Limits;
use crate::plan::Plan;
use crate::timeouts::Timeouts;
use crate::tls::Tls;
use ums::lock::Lock;

/// The settings of a server.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The database file; it is created if it does not exist. A database in memory (`:memory:`)
    /// cannot be served, because every connection would have its own.
    pub database: PathBuf,
    /// The accounts, one of which each client must prove to be with SCRAM-SHA-256. `None` means
    /// that no password is required, and that every client is an owner.
    pub accounts: Option<Accounts>,
    /// User ids of the operating system. A client on a Unix-domain socket whose process has one of
    /// them needs no password. It has the role of the account that it names, and is an owner if
    /// there is none. With accounts, clients with other user ids are refused there.
    pub local_users: Vec<u32>,
    /// The certificate for clients on a port that ask for TLS. `None`: there is no TLS.
    pub tls: Option<Arc<Tls>>,
    /// Whether clients on a port must use TLS. A CancelRequest is taken without it.
    pub tls_only: bool,
    /// The longest message a logged-in client may send, in bytes.
    pub max_message: usize,
    /// The file system that the database is stored on.
    pub files: Files,
    /// The folders in which clients may name files, by ATTACH and BACKUP. Empty: they name none.
    pub folders: Vec<PathBuf>,
    /// The time limits of a session that has set no others.
    pub timeouts: Timeouts,
    /// How long a session may be idle in a transaction that has written, or may send no data of a
    /// COPY, if others wait to write. Zero: without a limit.
    pub gate_idle: Duration,
    /// What clients may take of memory and disk.
    pub limits: Limits,
}

impl Settings {
    /// Settings for a database without a password and without TLS, with messages of at most 64 MiB,
    /// without folders for clients, with the limits of a computer with 4 GiB of memory, and with
    /// one time limit: a minute for an idle session for which others wait.
    pub fn new(database: impl Into<PathBuf>) -> Settings {
        Settings {
            database: database.into(),
            accounts: None,
            local_users: Vec::new(),
            tls: None,
            tls_only: false,
            max_message: 64 << 20,
            files: Files::default(),
            folders: Vec::new(),
            timeouts: Timeouts::default(),
            gate_idle: Duration::from_secs(60),
            limits: Limits::of_memory(4 << 30),
        }
    }
}

/// How many free buffers are kept for the next requests.
const BUFFERS_KEPT: usize = 64;
/// A buffer that grew beyond this is not kept, in bytes.
const BUFFER_MAX: usize = 128 << 10;

type PlanKey = (Box<str>, Box<[u32]>);

/// A SQL server, without its listener.
///
/// ```
/// let dir = std::env::temp_dir().join(format!("umsql-doc-{}", std::process::id()));
/// std::fs::create_dir_all(&dir)?;
/// let server = umsql::Server::open(umsql::Settings::new(dir.join("db")))?;
/// let session = server.session(1);
/// assert!(!session.is_logged_in());
/// # drop(session);
/// # drop(server);
/// # std::fs::remove_dir_all(&dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Server {
    pub(crate) engine: Arc<Engine>,
    pub(crate) accounts: Option<Accounts>,
    local_users: Vec<u32>,
    pub(crate) tls: Option<Arc<Tls>>,
    pub(crate) tls_only: bool,
    pub(crate) max_message: usize,
    pub(crate) keys: Arc<Keys>,
    pub(crate) clock: Arc<Clock>,
    pub(crate) timeouts: Timeouts,
    pub(crate) gate_idle: Duration,
    /// The most workers that may wait for the write gate.
    waiting_max: AtomicUsize,
    plans: Lock<Plans>,
    buffers: Lock<Vec<Vec<u8>>>,
}

/// Plans by their text, so that sessions that prepare the same statement share one.
#[derive(Debug, Default)]
struct Plans {
    known: HashMap<PlanKey, Weak<Plan>>,
    /// Unused plans are removed when there are this many.
    sweep_at: usize,
}

impl Server {
    /// Opens the database.
    ///
    /// # Errors
    /// If the database cannot be opened or created; the SQLSTATE says why (see `docs/sqlite.md`).
    pub fn open(settings: Settings) -> Result<Arc<Server>, SqlError> {
        let engine =
            Engine::open(&settings.database, settings.files, &settings.folders, settings.limits)?;
        Ok(Arc::new(Server {
            keys: Arc::new(Keys::new(Arc::clone(&engine.gate))),
            clock: Arc::default(),
            timeouts: settings.timeouts,
            gate_idle: settings.gate_idle,
            engine: Arc::new(engine),
            accounts: settings.accounts,
            local_users: settings.local_users,
            tls: settings.tls,
            tls_only: settings.tls_only,
            max_message: settings.max_message,
            waiting_max: AtomicUsize::new(usize::MAX),
            plans: Lock::default(),
            buffers: Lock::default(),
        }))
    }

    /// Returns whether a wait for one of SQLite's own mutexes parks the worker, and does not block
    /// its thread. This is false if the process used SQLite before it opened its first server.
    pub fn has_engine_mutexes(&self) -> bool {
        crate::vfs::has_own_mutexes()
    }

    /// Returns the role of a client that calls itself `name` and needs no password. Returns `None`
    /// if it must prove one. `uid` is the user id of its process, if it came by a Unix-domain
    /// socket.
    pub(crate) fn admit(&self, name: &str, uid: Option<u32>) -> Result<Option<Role>, SqlError> {
        let Some(accounts) = &self.accounts else { return Ok(Some(Role::Owner)) };
        match uid {
            None => Ok(None),
            Some(uid) if self.local_users.contains(&uid) => {
                Ok(Some(accounts.role(name).unwrap_or(Role::Owner)))
            }
            Some(_) => {
                let message = format!("peer authentication failed for user \"{name}\"");
                Err(SqlError::fatal("28000", message))
            }
        }
    }

    /// Cancels the request of `user`, or its deferred statement. Returns false if it has neither.
    pub(crate) fn cancel_user(&self, user: u64) -> bool {
        let (found, resume) = self.keys.cancel(user, &host::cancel_request);
        resume.into_iter().for_each(|resume| resume());
        found
    }

    /// Cancels the request of the session with this number if the secret is right.
    pub(crate) fn cancel(&self, pid: u32, secret: u32) {
        if let Some(user) = self.keys.user(pid, secret) {
            self.cancel_user(user);
        }
    }

    /// Asks for the next request of a user whose deferred statement has been cancelled. With
    /// `cancel` the statement is cancelled first.
    pub(crate) fn end_cancelled_deferral(&self, user: u64, cancel: bool) {
        let (_, resume) = self.keys.end_cancelled_deferral(user, cancel);
        resume.into_iter().for_each(|resume| resume());
    }

    /// Limits how many workers may wait for the write gate; further statements that write wait
    /// without a worker.
    pub fn limit_waiting_writers(&self, workers: usize) {
        self.waiting_max.store(workers, Ordering::Relaxed);
    }

    pub(crate) fn gate_is_crowded(&self) -> bool {
        self.engine.gate.waiting_workers() >= self.waiting_max.load(Ordering::Relaxed)
    }

    /// Returns the plan that another session made for the same text and parameter types.
    pub(crate) fn plan(&self, text: &str, types: &[u32]) -> Option<Arc<Plan>> {
        self.plans.lock().known.get(&(text.into(), types.into()))?.upgrade()
    }

    pub(crate) fn keep_plan(&self, text: &str, types: &[u32], plan: &Arc<Plan>) {
        let mut plans = self.plans.lock();
        if plans.known.len() >= plans.sweep_at.max(256) {
            plans.known.retain(|_, plan| plan.strong_count() > 0);
            plans.sweep_at = plans.known.len() * 2;
        }
        plans.known.insert((text.into(), types.into()), Arc::downgrade(plan));
    }

    /// Forgets all plans, because the schema has changed.
    pub(crate) fn forget_plans(&self) {
        self.plans.lock().known.clear();
    }

    pub(crate) fn take_buffer(&self) -> Vec<u8> {
        self.buffers.lock().pop().unwrap_or_default()
    }

    pub(crate) fn give_buffer(&self, mut buffer: Vec<u8>) {
        if buffer.capacity() == 0 || buffer.capacity() > BUFFER_MAX {
            return;
        }
        buffer.clear();
        let mut buffers = self.buffers.lock();
        if buffers.len() < BUFFERS_KEPT {
            buffers.push(buffer);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.clock.end();
    }
}
