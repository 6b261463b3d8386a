//! SQLite, re-hosted: connections that are leased for a request or a transaction, that yield and can be
//! cancelled while they run, and that see the machine's tables.
//!
//! Invariant *Lease*: a connection belongs to one session from [`Engine::lease`] until the lease is dropped,
//! and goes back to the pool only outside a transaction and unchanged by its user.
//!
//! What it does not do: it knows no protocol and no transaction blocks.

mod catalog;
mod functions;
mod tables;

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::limits::Limit;
use rusqlite::{Connection, OpenFlags};

use crate::error::Result;
use crate::host;

/// Virtual machine steps between two looks at the clock and the cancel flag.
const STEPS_PER_LOOK: i32 = 1000;
/// How many looks a probe for a result type may take.
const PROBE_LOOKS: i64 = 20;
/// Prepared statements a pooled connection keeps.
const STATEMENTS_KEPT: usize = 32;
/// Connections that one scheduler's pool keeps while they are idle.
const IDLE_KEPT: usize = 32;
/// How often a connection looks again when the file is locked, a millisecond apart.
const BUSY_LOOKS: i32 = 5000;

/// A database and its connections.
#[derive(Debug)]
pub(crate) struct Engine {
    path: PathBuf,
    pools: Mutex<Vec<Vec<Db>>>,
    /// Counts changes of the schema, so that statements prepared before are not used after.
    schema: AtomicU64,
    /// Writers pass one at a time.
    pub(crate) gate: host::Gate,
}

impl Engine {
    /// Opens the database, and creates it when it does not exist.
    pub(crate) fn open(path: &Path) -> Result<Engine> {
        let engine = Engine {
            path: path.to_owned(),
            pools: Mutex::default(),
            schema: AtomicU64::new(0),
            gate: host::Gate::new(),
        };
        let db = engine.connect()?;
        db.connection.execute_batch("PRAGMA journal_mode=WAL")?;
        engine.put_back(db);
        Ok(engine)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A connection for the caller alone.
    pub(crate) fn lease(self: &Arc<Engine>) -> Result<Lease> {
        let kept = {
            let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
            pools.get_mut(host::scheduler_index()).and_then(Vec::pop)
        };
        let mut db = match kept {
            Some(db) => db,
            None => self.connect()?,
        };
        let schema = self.schema.load(Ordering::Acquire);
        if db.schema != schema {
            db.connection.flush_prepared_statement_cache();
            // Columns are looked up in the connection's copy of the schema; a step makes it look again.
            db.connection.query_row("SELECT count(*) FROM main.sqlite_schema", [], |_| Ok(()))?;
            db.schema = schema;
        }
        Ok(Lease { engine: Arc::clone(self), db: Some(db), pinned: false })
    }

    /// Says that a statement changed the schema.
    pub(crate) fn schema_changed(&self) -> u64 {
        self.schema.fetch_add(1, Ordering::AcqRel) + 1
    }

    fn connect(&self) -> Result<Db> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut connection = Connection::open_with_flags(&self.path, flags)?;
        connection.busy_handler(Some(look_again))?;
        connection.execute_batch(
            "PRAGMA synchronous=NORMAL; PRAGMA foreign_keys=ON; PRAGMA temp_store=MEMORY;",
        )?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS_KEPT);
        // A worker's stack is small: these keep SQLite's recursion far from its end.
        connection.set_limit(Limit::SQLITE_LIMIT_EXPR_DEPTH, 200)?;
        connection.set_limit(Limit::SQLITE_LIMIT_COMPOUND_SELECT, 100)?;

        let probe = Probe::default();
        let looks = probe.clone();
        connection.progress_handler(STEPS_PER_LOOK, Some(move || look(&looks)))?;
        functions::register(&connection, &probe)?;
        tables::register(&connection)?;
        rusqlite::vtab::series::load_module(&connection)?;
        let schema = self.schema.load(Ordering::Acquire);
        Ok(Db { connection, probe, schema, catalog: false })
    }

    fn put_back(&self, db: Db) {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        let index = host::scheduler_index();
        if pools.len() <= index {
            pools.resize_with(index + 1, Vec::new);
        }
        if pools[index].len() < IDLE_KEPT {
            pools[index].push(db);
        }
    }
}

/// The progress handler: yields when the quantum is over, and stops the statement when it was cancelled.
/// A panic must not cross SQLite, so it stops the statement too.
fn look(probe: &Probe) -> bool {
    let stop = std::panic::catch_unwind(|| {
        host::yield_if_due();
        host::cancelled()
    });
    probe.used_up() || stop.unwrap_or(true)
}

/// The busy handler. Writers pass the gate one at a time, so what is met here is short: a checkpoint, or
/// another process.
fn look_again(looks: i32) -> bool {
    let slept = std::panic::catch_unwind(|| host::sleep(Duration::from_millis(1)));
    looks < BUSY_LOOKS && matches!(slept, Ok(Ok(())))
}

/// Whether a statement runs only to learn the type of its result: then it is short, and functions with an
/// effect have none.
#[derive(Debug, Clone)]
pub(crate) struct Probe {
    looks_left: Arc<AtomicI64>,
}

impl Default for Probe {
    fn default() -> Probe {
        Probe { looks_left: Arc::new(AtomicI64::new(i64::MAX)) }
    }
}

impl Probe {
    pub(crate) fn is_on(&self) -> bool {
        self.looks_left.load(Ordering::Relaxed) != i64::MAX
    }

    fn used_up(&self) -> bool {
        self.is_on() && self.looks_left.fetch_sub(1, Ordering::Relaxed) <= 0
    }
}

#[derive(Debug)]
struct Db {
    connection: Connection,
    probe: Probe,
    schema: u64,
    /// The catalogue views are there.
    catalog: bool,
}

/// A connection on loan; it goes back when this is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    engine: Arc<Engine>,
    db: Option<Db>,
    /// Its user changed it, so it stays with the user and is closed afterwards.
    pub(crate) pinned: bool,
}

impl Deref for Lease {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.db().connection
    }
}

impl Lease {
    fn db(&self) -> &Db {
        self.db.as_ref().expect("a lease has its connection until it is dropped")
    }

    /// Creates the catalogue views on this connection if they are not there yet.
    pub(crate) fn ensure_catalog(&mut self) -> Result<()> {
        let db = self.db.as_mut().expect("a lease has its connection until it is dropped");
        if !db.catalog {
            db.connection.execute_batch(catalog::VIEWS)?;
            db.catalog = true;
        }
        Ok(())
    }

    /// Forgets what was prepared against the schema as it was.
    pub(crate) fn schema_changed(&mut self) {
        let schema = self.engine.schema_changed();
        if let Some(db) = &mut self.db {
            db.connection.flush_prepared_statement_cache();
            db.schema = schema;
        }
    }

    /// Runs `f` as a probe.
    pub(crate) fn probing<R>(&self, f: impl FnOnce(&Connection) -> R) -> R {
        let looks_left = &self.db().probe.looks_left;
        looks_left.store(PROBE_LOOKS, Ordering::Relaxed);
        let result = f(self);
        looks_left.store(i64::MAX, Ordering::Relaxed);
        result
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(db) = self.db.take() else { return };
        if !db.connection.is_autocommit() && db.connection.execute_batch("ROLLBACK").is_err() {
            return;
        }
        if !self.pinned {
            self.engine.put_back(db);
        }
    }
}
