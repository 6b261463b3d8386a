//! What all sessions of a server share: the engine, the cancellation keys, the plans of prepared
//! statements, and a few buffers.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use crate::auth::{self, Verifier};
use crate::engine::{Engine, Files};
use crate::error::SqlError;
use crate::host;
use crate::plan::Plan;
use ums::lock::Lock;

/// The settings of a server.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The database file; it is created if it does not exist. A database in memory (`:memory:`)
    /// cannot be served, because every connection would have its own.
    pub database: PathBuf,
    /// The password that every client must prove with SCRAM-SHA-256; `None` means that no password
    /// is required.
    pub password: Option<String>,
    /// The longest message a logged-in client may send, in bytes.
    pub max_message: usize,
    /// The file system that the database is stored on.
    pub files: Files,
    /// The folders in which clients may name files, by ATTACH and BACKUP. Empty: they name none.
    pub folders: Vec<PathBuf>,
}

impl Settings {
    /// Settings for a database without a password, with messages of at most 64 MiB, and without
    /// folders for clients.
    pub fn new(database: impl Into<PathBuf>) -> Settings {
        let (database, files) = (database.into(), Files::default());
        Settings { database, password: None, max_message: 64 << 20, files, folders: Vec::new() }
    }
}

/// How many free buffers are kept for the next requests.
const BUFFERS_KEPT: usize = 64;
/// A buffer that grew beyond this is not kept, in bytes.
const BUFFER_MAX: usize = 128 << 10;

/// The key of a session, with which its requests can be cancelled.
#[derive(Debug)]
struct Key {
    secret: u32,
    user: u64,
    /// Whether a statement of the session is deferred: it waits for the write gate without a
    /// worker. Then there is no request to cancel, and a cancellation sets `cancelled`.
    deferred: bool,
    /// Whether the deferred statement has been cancelled.
    cancelled: bool,
    /// How often a statement of the session was deferred.
    deferrals: u64,
}

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
    pub(crate) verifier: Option<Verifier>,
    pub(crate) max_message: usize,
    keys: Lock<HashMap<u32, Key>>,
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
        Ok(Arc::new(Server {
            engine: Arc::new(Engine::open(&settings.database, settings.files, &settings.folders)?),
            verifier: settings.password.as_deref().map(Verifier::new),
            max_message: settings.max_message,
            keys: Lock::default(),
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

    /// Creates the secret with which the requests of `user` can be cancelled.
    pub(crate) fn new_key(&self, user: u64) -> (u32, u32) {
        let (pid, secret) = (user as u32, u32::from_be_bytes(auth::random()));
        let key = Key { secret, user, deferred: false, cancelled: false, deferrals: 0 };
        self.keys.lock().insert(pid, key);
        (pid, secret)
    }

    pub(crate) fn forget_key(&self, user: u64) {
        self.keys.lock().remove(&(user as u32));
    }

    /// Cancels the request of the session with this number if the secret is right.
    pub(crate) fn cancel(&self, pid: u32, secret: u32) {
        let user =
            self.keys.lock().get(&pid).filter(|key| key.secret == secret).map(|key| key.user);
        if let Some(user) = user {
            self.cancel_user(user);
        }
    }

    /// Cancels the request of `user`, or its deferred statement. Returns false if it has neither.
    pub(crate) fn cancel_user(&self, user: u64) -> bool {
        loop {
            let deferrals = self.deferrals(user);
            if self.end_cancelled_deferral(user, true) {
                return true;
            }
            let found = host::cancel_request(user);
            if self.deferrals(user) == deferrals {
                return found;
            }
            // A statement was deferred meanwhile. The request that was cancelled may have deferred
            // it after its last check for a cancellation, so look again.
        }
    }

    fn deferrals(&self, user: u64) -> u64 {
        self.keys.lock().get(&(user as u32)).map_or(0, |key| key.deferrals)
    }

    /// Takes the user of a cancelled deferred statement out of the gate's queue and asks for its
    /// next request, which answers the client. With `cancel` the statement is cancelled first.
    /// Returns false if no cancelled statement of `user` is deferred.
    pub(crate) fn end_cancelled_deferral(&self, user: u64, cancel: bool) -> bool {
        let mut keys = self.keys.lock();
        let key = keys.get_mut(&(user as u32)).filter(|key| key.user == user && key.deferred);
        let cancelled = key.is_some_and(|key| {
            key.cancelled |= cancel;
            key.cancelled
        });
        drop(keys);
        if cancelled {
            // If the user is not in the queue, its session is about to look for a cancellation, or
            // owns the gate. In the second case its next request finds the cancellation.
            self.engine.gate.give_up(user).into_iter().for_each(|resume| resume());
        }
        cancelled
    }

    /// Limits how many workers may wait for the write gate; further statements that write wait
    /// without a worker.
    pub fn limit_waiting_writers(&self, workers: usize) {
        self.waiting_max.store(workers, Ordering::Relaxed);
    }

    pub(crate) fn gate_is_crowded(&self) -> bool {
        self.engine.gate.waiting_workers() >= self.waiting_max.load(Ordering::Relaxed)
    }

    /// Records that the statement of `user` is deferred.
    pub(crate) fn defer(&self, user: u64) {
        if let Some(key) = self.keys.lock().get_mut(&(user as u32)) {
            key.deferred = true;
            key.deferrals += 1;
        }
    }

    /// Records that the statement of `user` is no longer deferred. Returns true if it was cancelled
    /// meanwhile.
    pub(crate) fn end_deferral(&self, user: u64) -> bool {
        let mut keys = self.keys.lock();
        let Some(key) = keys.get_mut(&(user as u32)) else { return false };
        key.deferred = false;
        std::mem::take(&mut key.cancelled)
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
