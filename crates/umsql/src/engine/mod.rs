//! SQLite, re-hosted: connections that are leased for a request or a transaction, that yield and
//! can be cancelled while they run, and that see the machine's tables.
//!
//! Invariant *Lease*: a connection belongs to one session from [`Engine::lease`] until the lease is
//! dropped, and goes back to the pool only outside a transaction and unchanged by its user.
//!
//! What it does not do: it knows no protocol and no transaction blocks.

mod catalog;
mod files;
mod functions;
mod lazy_writer;
mod opening;
mod tables;

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::Connection;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::limits::Limit;

pub use files::Files;
use lazy_writer::LazyWriter;

use crate::error::{Result, SqlError};
use crate::host;
use crate::vfs::{Database, PATIENCE};

/// Virtual machine steps between two looks at the clock and the cancel flag.
const STEPS_PER_LOOK: i32 = 1000;
/// How many looks a probe for a result type may take.
const PROBE_LOOKS: i64 = 20;
/// Prepared statements a pooled connection keeps.
const STATEMENTS_KEPT: usize = 32;
/// Connections that one scheduler's pool keeps while they are idle.
const IDLE_KEPT: usize = 32;

/// A database and its connections.
#[derive(Debug)]
pub(crate) struct Engine {
    path: PathBuf,
    files: Files,
    /// The database as our own file system knows it; none when its files are on SQLite's.
    database: Option<Arc<Database>>,
    lazy: LazyWriter,
    pools: Mutex<Vec<Vec<Db>>>,
    /// Counts changes of the schema, so that statements prepared before are not used after.
    schema: AtomicU64,
    /// Writers pass one at a time.
    pub(crate) gate: host::Gate,
}

impl Engine {
    /// Opens the database, and creates it when it does not exist.
    pub(crate) fn open(path: &Path, files: Files) -> Result<Engine> {
        opening::look_before(path)?;
        Engine::open_file(path, files).map_err(|error| opening::explain(path, error))
    }

    fn open_file(path: &Path, files: Files) -> Result<Engine> {
        let (connection, database) = files.connect(path, lazy_writer::READERS_PATIENCE)?;
        let mode: String = connection.query_row("PRAGMA journal_mode=WAL", [], |row| row.get(0))?;
        if mode != "wal" {
            let message = format!("the file cannot have a write-ahead log (its journal is {mode})");
            return Err(SqlError::new("25006", message));
        }
        // A damaged file is found now, and not by the first client.
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
        let engine = Engine {
            path: path.to_owned(),
            files,
            database,
            lazy: LazyWriter::new(connection),
            pools: Mutex::default(),
            schema: AtomicU64::new(0),
            gate: host::Gate::new(),
        };
        engine.put_back(engine.connect()?);
        Ok(engine)
    }

    /// A connection that is not the pool's.
    pub(crate) fn second(&self) -> Result<Connection> {
        Ok(self.files.connect(&self.path, PATIENCE)?.0)
    }

    /// How much was ever written to the log. Only the owner of the gate writes.
    pub(crate) fn log_position(&self) -> u64 {
        self.database.as_ref().map_or(0, |database| database.log.position())
    }

    #[cfg(test)]
    pub(crate) fn log_is_durable(&self) -> bool {
        self.database.as_ref().is_none_or(|database| database.log.is_durable())
    }

    #[cfg(test)]
    pub(crate) fn group_commit_counts(&self) -> crate::vfs::Counts {
        self.database.as_ref().map(|database| database.log.counts()).unwrap_or_default()
    }

    /// Whether anything may be written.
    pub(crate) fn check_writable(&self) -> Result<()> {
        let trouble = self.database.as_ref().and_then(|database| database.log.trouble());
        trouble.map_or(Ok(()), |trouble| Err(files::error_of(&trouble)))
    }

    /// Ends a commit that was at `position` when SQLite had done it: when this returns, it is on
    /// the disk, unless its session does not want to wait for that.
    ///
    /// # Errors
    /// Nobody knows whether it is durable: it must not be acknowledged.
    pub(crate) fn committed(self: &Arc<Engine>, position: u64, waits: bool) -> Result<()> {
        let Some(database) = &self.database else { return Ok(()) };
        if waits {
            database.wait_durable(position).map_err(|trouble| files::error_of(&trouble))?;
        } else {
            database.log.not_waited();
            self.sync_soon();
        }
        self.checkpoint_if_due();
        Ok(())
    }

    /// A connection for the caller alone.
    pub(crate) fn lease(self: &Arc<Engine>) -> Result<Lease> {
        let mut db = match self.take_kept() {
            Some(db) => db,
            None => self.connect()?,
        };
        let schema = self.schema.load(Ordering::Acquire);
        if db.schema != schema {
            db.connection.flush_prepared_statement_cache();
            // Columns are looked up in the connection's copy of the schema; a step makes it look
            // again.
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
        let (mut connection, _) = self.files.connect(&self.path, PATIENCE)?;
        connection.execute_batch("PRAGMA foreign_keys=ON; PRAGMA temp_store=MEMORY;")?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS_KEPT);
        // A worker's stack is small: these keep SQLite's recursion far from its end.
        connection.set_limit(Limit::SQLITE_LIMIT_EXPR_DEPTH, 200)?;
        connection.set_limit(Limit::SQLITE_LIMIT_COMPOUND_SELECT, 100)?;

        let probe = Probe::default();
        let looks = probe.clone();
        connection.authorizer(Some(allow))?;
        connection.progress_handler(STEPS_PER_LOOK, Some(move || look(&looks)))?;
        functions::register(&connection, &probe)?;
        let (database, on) = (self.database.clone(), self.files);
        let group_commit = move || files::group_commit(database.as_deref());
        let page_pool = move || files::page_pool(on);
        tables::register(&connection, vec![Box::new(group_commit), Box::new(page_pool)])?;
        rusqlite::vtab::series::load_module(&connection)?;
        let schema = self.schema.load(Ordering::Acquire);
        Ok(Db { connection, probe, schema, catalog: false })
    }

    /// A connection that nobody uses: one of this scheduler's if there is one, for what it has
    /// cached was used here.
    fn take_kept(&self) -> Option<Db> {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        let own = pools.get_mut(host::scheduler_index()).and_then(Vec::pop);
        own.or_else(|| pools.iter_mut().max_by_key(|pool| pool.len())?.pop())
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

/// The progress handler: yields when the quantum is over, and stops the statement when it was
/// cancelled. A panic must not cross SQLite, so it stops the statement too.
fn look(probe: &Probe) -> bool {
    let stop = std::panic::catch_unwind(|| {
        host::yield_if_due();
        host::cancelled()
    });
    probe.used_up() || stop.unwrap_or(true)
}

/// How the log is kept and synced is the server's business: a client that changed it, on its own
/// connection even, would take the durability of everybody's commits away. They may be asked for.
fn allow(context: AuthContext<'_>) -> Authorization {
    const KEPT: [&str; 4] = ["journal_mode", "synchronous", "locking_mode", "wal_autocheckpoint"];
    match context.action {
        AuthAction::Pragma { pragma_name, pragma_value: Some(_) }
            if KEPT.iter().any(|kept| pragma_name.eq_ignore_ascii_case(kept)) =>
        {
            Authorization::Deny
        }
        // A query that writes, past the write gate. `INSERT INTO t(t) VALUES ('optimize')` does the
        // same.
        AuthAction::Function { function_name }
            if function_name.eq_ignore_ascii_case("optimize") =>
        {
            Authorization::Deny
        }
        _ => Authorization::Allow,
    }
}

/// Whether a statement runs only to learn the type of its result: then it is short, and functions
/// with an effect have none.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vfs::testing::{LossyDisk, lossy};
    use fiber::{Fiber, Resume, StackConfig, StackPool};

    /// What `ums serve` gives its workers.
    const STACK: usize = 1 << 20;

    /// How much of a stack a statement needs, from preparing it to its last row.
    fn stack_for(sql: &str) -> usize {
        let mut pool = StackPool::new(StackConfig { size: STACK, ..StackConfig::default() });
        let vfs = lossy(&LossyDisk::default());
        let engine = Arc::new(Engine::open(Path::new("/db"), Files::On(vfs)).unwrap());
        let sql = sql.to_owned();
        let mut run = Fiber::new(pool.take().unwrap(), "sql", move |_| {
            let lease = engine.lease().unwrap();
            // One that is too deep is refused with an error, which is as good.
            let done = lease.prepare(&sql).and_then(|mut statement| {
                let mut rows = statement.query([])?;
                while rows.next()?.is_some() {}
                Ok(())
            });
            if let Err(error) = done {
                println!("refused: {error:.80}");
            }
        });
        assert_eq!(run.resume(), Resume::Finished);
        run.into_stack().touched_bytes()
    }

    #[test]
    fn the_deepest_statements_leave_half_of_the_stack() {
        let nest = |times: usize, open: &str, core: &str, close: &str| {
            format!("{}{core}{}", open.repeat(times), close.repeat(times))
        };
        let worst = [
            ("sum", format!("SELECT 1{}", " + 1".repeat(195))),
            ("and", format!("SELECT 1 WHERE 1{}", " AND 1".repeat(195))),
            ("parentheses", format!("SELECT {}", nest(190, "abs(", "1", ")"))),
            ("union", format!("SELECT 1{}", " UNION SELECT 1".repeat(99))),
            ("ordered", format!("SELECT 1{} ORDER BY 1", " EXCEPT SELECT 2".repeat(99))),
            ("scalar subqueries", format!("SELECT {}", nest(30, "(SELECT ", "1", ")"))),
            ("from", nest(60, "SELECT * FROM (", "SELECT 1", ")")),
            ("too deep", nest(5_000, "SELECT * FROM (", "SELECT 1", ")")),
            ("case", format!("SELECT {}", nest(190, "CASE WHEN 1 THEN ", "1", " END"))),
            ("like", "SELECT hex(zeroblob(500)) LIKE '%0%0%0%0%0%1' ".to_owned()),
            ("json", format!("SELECT json('{}')", nest(900, "[", "1", "]"))),
            ("glob", format!("SELECT 'a' GLOB '{}'", "*a".repeat(2_000))),
        ];
        for (name, sql) in worst {
            let used = stack_for(&sql);
            println!("{name}: {} KiB of stack", used >> 10);
            assert!(used <= STACK / 2, "{name}: {} KiB", used >> 10);
        }
    }
}
