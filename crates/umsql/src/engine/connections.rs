//! A database with its pools of connections, and the lease of one.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rusqlite::{CachedStatement, Connection};

use super::allowed::{self, Refused};
use super::clients::Clients;
use super::files::Files;
use super::folders::Folders;
use super::lazy_writer::{self, LazyWriter};
use super::probe::Probe;
use super::{
    alter, catalog, definitions, empty_catalog, files, formats, functions, limits, math, opening,
    patterns, sequences, strings, tables, templates, texts,
};
use crate::budget::Budget;
use crate::error::{Result, SqlError};
use crate::heaps;
use crate::host::{self, UserLock};
use crate::memory::{self, Limits, Taken};
use crate::settings::Config;
use crate::timeouts::Timeouts;
use crate::vfs::{self, Database, PATIENCE, guarded};
use ums::lock::Lock;

/// How many steps of SQLite's virtual machine run between two looks whether others
/// should run, and for a cancellation.
const STEPS_PER_LOOK: i32 = 1000;
/// How many prepared statements a pooled connection keeps.
const STATEMENTS_KEPT: usize = 32;
/// How many small blocks of memory a connection keeps for its statements: SQLite's default.
const LOOKASIDE_BLOCKS: i32 = 100;
/// How many idle connections one scheduler's pool keeps.
const IDLE_KEPT: usize = 32;
/// How much memory, in bytes, an idle connection may keep.
const BYTES_KEPT: usize = 4 << 20;
/// The write gate prefers waiters on the scheduler of the worker that releases it. This is how many
/// times in a row they may be served before the first waiter in the queue.
const PASSES: usize = 16;

/// A database, and the pools of its connections.
#[derive(Debug)]
pub(crate) struct Engine {
    path: PathBuf,
    files: Files,
    /// The database in this crate's file system. `None` if its files are in SQLite's own file
    /// system.
    database: Option<Arc<Database>>,
    lazy: Arc<LazyWriter>,
    /// Where clients may name files.
    pub(crate) folders: Arc<Folders>,
    /// What clients may take.
    pub(crate) limits: Limits,
    pub(crate) budget: Arc<Budget>,
    /// The clients that have logged in.
    pub(crate) clients: Arc<Clients>,
    pools: Lock<Vec<Vec<Db>>>,
    /// The number of schema changes so far. A statement that was prepared before a change is not
    /// used after it.
    schema: AtomicU64,
    /// The write gate: a lock that a session holds while it writes, so writers pass one at a time.
    pub(crate) gate: Arc<UserLock>,
}

impl Engine {
    /// Opens the database, and creates it if it does not exist.
    pub(crate) fn open(
        path: &Path,
        files: Files,
        folders: &[PathBuf],
        limits: Limits,
    ) -> Result<Engine> {
        opening::look_before(path)?;
        let folders = Folders::new(folders)?;
        Engine::open_file(path, files, folders, limits)
            .map_err(|error| opening::explain(path, error))
    }

    fn open_file(path: &Path, files: Files, folders: Folders, limits: Limits) -> Result<Engine> {
        files.keep_temporary_files_beside(path);
        let (connection, database) = files.connect(path, lazy_writer::READERS_PATIENCE)?;
        let mode: String = connection.query_row("PRAGMA journal_mode=WAL", [], |row| row.get(0))?;
        if mode != "wal" {
            let message = format!("the file cannot have a write-ahead log (its journal is {mode})");
            return Err(SqlError::new("25006", message));
        }
        // A damaged file is reported here, when the server starts, and not to the first client.
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
        if let Some(database) = &database {
            database.log.limit_transactions(limits.log);
        }
        let gate = Arc::new(UserLock::near(PASSES));
        let lazy = LazyWriter::new(connection, database.clone(), Arc::clone(&gate), limits.log);
        let engine = Engine {
            path: path.to_owned(),
            files,
            database,
            lazy: Arc::new(lazy),
            folders: Arc::new(folders),
            limits,
            budget: Arc::new(Budget::new(limits.server)?),
            clients: Arc::default(),
            pools: Lock::default(),
            schema: AtomicU64::new(0),
            gate,
        };
        engine.put_back(engine.connect()?);
        Ok(engine)
    }

    /// Opens a connection that does not belong to the pools.
    pub(crate) fn second(&self) -> Result<Connection> {
        Ok(self.files.connect(&self.path, PATIENCE)?.0)
    }

    /// Returns whether this is the path of the database, or of its log.
    pub(crate) fn is_at(&self, path: &Path) -> bool {
        let own = std::fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
        let own = own.into_os_string();
        ["", "-wal", "-shm", "-journal"].iter().any(|suffix| {
            let mut name = own.clone();
            name.push(suffix);
            path == Path::new(&name)
        })
    }

    /// Makes `user` the owner of the write gate, and returns true, unless another user owns it.
    /// While the lazy writer owns it, waits: it is soon done.
    pub(crate) fn try_gate(&self, user: u64) -> bool {
        if self.gate.acquire_or_leave(user, || ()) {
            return true;
        }
        // If the user is not in the queue any more, the gate was passed to it meanwhile.
        if self.gate.give_up(user).is_none() {
            return true;
        }
        self.gate.owner() == Some(lazy_writer::USER) && self.gate.acquire(user, None).is_ok()
    }

    /// Returns the number of bytes ever written to the log. Only the owner of the write gate writes
    /// to it.
    pub(crate) fn log_position(&self) -> u64 {
        self.database.as_ref().map_or(0, |database| database.log.position())
    }

    /// Records that the owner of the write gate begins to write. Returns the log's position.
    pub(crate) fn begin_to_write(&self) -> u64 {
        self.database.as_ref().map_or(0, |database| database.log.begin_transaction())
    }

    #[cfg(test)]
    pub(crate) fn log_is_durable(&self) -> bool {
        self.database.as_ref().is_none_or(|database| database.log.is_durable())
    }

    #[cfg(test)]
    pub(crate) fn group_commit_counts(&self) -> crate::vfs::Counts {
        self.database.as_ref().map(|database| database.log.counts()).unwrap_or_default()
    }

    /// Returns an error if the database accepts no more writes.
    pub(crate) fn check_writable(&self) -> Result<()> {
        let trouble = self.database.as_ref().and_then(|database| database.log.trouble());
        trouble.map_or(Ok(()), |trouble| Err(files::error_of(&trouble)))
    }

    /// Completes a commit that is in the log up to `position`. Waits until the commit is on the
    /// disk, unless `waits` is false.
    ///
    /// # Errors
    /// If the commit may not be durable. Then it must not be acknowledged.
    pub(crate) fn committed(self: &Arc<Engine>, position: u64, waits: bool) -> Result<()> {
        let Some(database) = &self.database else { return Ok(()) };
        if waits {
            database.wait_durable(position).map_err(|trouble| files::error_of(&trouble))?;
        } else {
            database.log.not_waited();
            self.lazy.sync_soon();
        }
        self.lazy.checkpoint_if_due();
        Ok(())
    }

    /// Leases a connection for `user`, which no one else uses until the lease is dropped. From then
    /// on the connection's account is the caller's.
    pub(crate) fn lease(self: &Arc<Engine>, user: u64) -> Result<Lease> {
        let db = match self.take_kept() {
            Some(db) => db,
            None => self.connect()?,
        };
        db.account.begin(user);
        // From here on a failure ends the lease.
        let engine = Arc::clone(self);
        let mut lease =
            Lease { engine, db: Some(db), pinned: false, restricted: false, refreshed: false };
        lease.refresh()?;
        Ok(lease)
    }

    /// Records that a statement has changed the schema.
    pub(crate) fn schema_changed(&self) -> u64 {
        self.schema.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Returns how many changes of the schema there have been.
    pub(crate) fn schema(&self) -> u64 {
        self.schema.load(Ordering::Acquire)
    }

    fn connect(&self) -> Result<Db> {
        let account = Taken::new(true, &self.limits, &self.budget)?;
        account.begin(0);
        let made = self.connect_with(account);
        memory::stop();
        made
    }

    fn connect_with(&self, account: Taken) -> Result<Db> {
        let (mut connection, _) = self.files.connect(&self.path, PATIENCE)?;
        // The functions stay, and would take the blocks that statements need.
        vfs::set_lookaside(&connection, 0);
        connection.execute_batch("PRAGMA foreign_keys=ON; PRAGMA temp_store=FILE;")?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS_KEPT);
        limits::set(&connection, self.limits.value)?;

        let probe = Probe::default();
        let looks = probe.clone();
        let refused = allowed::restrict(&mut connection, Arc::clone(&self.folders))?;
        connection.progress_handler(STEPS_PER_LOOK, Some(move || look(&looks)))?;
        functions::register(&connection, &probe)?;
        let config = Arc::new(Lock::new(Config::new(Timeouts::default(), 0)));
        functions::settings(&connection, &probe, &config)?;
        definitions::register(&connection, &config)?;
        sequences::register(&connection, &probe, &config)?;
        texts::register(&connection, self.limits.value)?;
        patterns::register(&connection)?;
        formats::register(&connection, self.limits.value)?;
        templates::register(&connection, self.limits.value)?;
        strings::register(&connection, self.limits.value)?;
        math::register(&connection)?;
        let (database, on) = (self.database.clone(), self.files);
        let group_commit = move || files::group_commit(database.as_deref());
        let page_pool = move || files::page_pool(on);
        let limits = self.limits;
        let budget = Arc::clone(&self.budget);
        let memory = move || files::memory(&limits, &budget);
        let clients = Arc::clone(&self.clients);
        let clients = move || clients.table();
        let own: Vec<tables::Own> =
            vec![Box::new(group_commit), Box::new(page_pool), Box::new(memory), Box::new(clients)];
        tables::register(&connection, own)?;
        rusqlite::vtab::series::load_module(&connection)?;
        vfs::set_lookaside(&connection, LOOKASIDE_BLOCKS);
        let schema = self.schema();
        Ok(Db { connection, probe, refused, schema, catalog: false, config, account })
    }

    /// Takes an idle connection. Connections of this scheduler are preferred, because their caches
    /// were filled here.
    fn take_kept(&self) -> Option<Db> {
        let mut pools = self.pools.lock();
        let own = pools.get_mut(host::scheduler_index()).and_then(Vec::pop);
        own.or_else(|| pools.iter_mut().max_by_key(|pool| pool.len())?.pop())
    }

    fn put_back(&self, db: Db) {
        let mut pools = self.pools.lock();
        let index = host::scheduler_index();
        if pools.len() <= index {
            pools.resize_with(index + 1, Vec::new);
        }
        if pools[index].len() < IDLE_KEPT {
            pools[index].push(db);
        }
    }
}

/// The progress handler, which SQLite calls during a statement. It yields if the slice is used
/// up. It returns true, which stops the statement, if the request was cancelled, or after a panic,
/// because a panic must not cross SQLite.
fn look(probe: &Probe) -> bool {
    let stop = guarded(true, || {
        host::yield_if_due();
        host::cancelled()
    });
    probe.used_up() || stop
}

#[derive(Debug)]
struct Db {
    connection: Connection,
    probe: Probe,
    refused: Refused,
    schema: u64,
    /// Whether the catalogue views have been created.
    catalog: bool,
    /// The settings of the session whose statement runs, for functions of SQL.
    config: Arc<Lock<Config>>,
    /// Counts SQLite's memory. It is the last field, so the connection is closed before it ends.
    account: Taken,
}

/// A leased connection. Dropping the lease returns it to the pool.
#[derive(Debug)]
pub(crate) struct Lease {
    engine: Arc<Engine>,
    db: Option<Db>,
    /// Whether the session has changed the connection. If so, the session keeps the lease, and the
    /// connection is closed afterwards.
    pub(crate) pinned: bool,
    /// Whether a reader has it.
    restricted: bool,
    /// Whether the schema had changed since the connection was used before.
    pub(crate) refreshed: bool,
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

    /// Forgets what the connection knows of an older schema.
    fn refresh(&mut self) -> Result<()> {
        let schema = self.engine.schema();
        let db = self.db.as_mut().expect("a lease has its connection until it is dropped");
        if db.schema != schema {
            db.connection.flush_prepared_statement_cache();
            // Columns are looked up in the connection's copy of the schema. The query updates the
            // copy. If the schema changes before it runs, it is compiled again; in a transaction
            // that is once at most, because the transaction's snapshot stays.
            let transaction = db.connection.unchecked_transaction()?;
            transaction.query_row("SELECT count(*) FROM main.sqlite_schema", [], |_| Ok(()))?;
            transaction.rollback()?;
            db.schema = schema;
            self.refreshed = true;
        }
        Ok(())
    }

    /// Returns how many changes of the schema the connection knows.
    pub(crate) fn schema(&self) -> u64 {
        self.db().schema
    }

    /// Restricts the connection to what a reader may use, until the lease ends.
    pub(crate) fn restrict(&mut self) {
        self.restricted = true;
        self.db().refused.set_restricted(true);
    }

    /// Prepares a statement, or takes it from the connection's cache. What the authorizer decided
    /// for an owner does not hold for a reader, so the cache keeps their statements apart.
    pub(crate) fn prepare_cached(&self, text: &str) -> rusqlite::Result<CachedStatement<'_>> {
        let connection = &self.db().connection;
        if self.restricted {
            // A text may end in a comment, which the new line ends.
            connection.prepare_cached(&format!("{text}\n/* reader */"))
        } else {
            connection.prepare_cached(text)
        }
    }

    /// Replaces the definition of a table. On an error, the caller undoes what has been done.
    ///
    /// # Errors
    /// SQLite's, if it cannot read the definition.
    pub(crate) fn redefine(&self, table: &str, definition: &str) -> Result<()> {
        alter::redefine(&self.db().connection, &self.db().refused, table, definition)
    }

    /// Forgets the connection's copy of the schema, which a rollback of [`Lease::redefine`] leaves.
    pub(crate) fn forget_schema(&self) -> Result<()> {
        let db = self.db();
        db.refused.trusting(|| Ok(db.connection.execute_batch("PRAGMA writable_schema = RESET")?))
    }

    /// Creates the catalogue views on this connection unless it has them.
    pub(crate) fn ensure_catalog(&mut self) -> Result<()> {
        let db = self.db.as_mut().expect("a lease has its connection until it is dropped");
        if !db.catalog {
            db.connection.execute_batch(&empty_catalog::views())?;
            db.connection.execute_batch(catalog::VIEWS)?;
            // In a transaction that is rolled back, the views go with it.
            db.catalog = db.connection.is_autocommit();
        }
        Ok(())
    }

    /// Records a change of the schema, and drops the statements that were prepared before it.
    pub(crate) fn schema_changed(&mut self) {
        let schema = self.engine.schema_changed();
        if let Some(db) = &mut self.db {
            db.connection.flush_prepared_statement_cache();
            db.schema = schema;
        }
    }

    /// Lends the settings of a session to the functions of SQL, for one statement. The second call
    /// gives them back.
    pub(crate) fn lend(&self, config: &mut Config) {
        std::mem::swap(&mut *self.db().config.lock(), config);
    }

    /// Returns why the authorizer refused the last statement, if it did and nothing has asked yet.
    pub(crate) fn refused(&self) -> Option<SqlError> {
        self.db().refused.take()
    }

    /// Returns the account of the connection.
    pub(crate) fn account(&self) -> &Taken {
        &self.db().account
    }

    /// Runs `f` as a probe.
    pub(crate) fn probing<R>(&self, f: impl FnOnce(&Connection) -> R) -> R {
        self.db().probe.during(|| f(self))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(db) = self.db.take() else { return };
        db.refused.set_restricted(false);
        let clean =
            db.connection.is_autocommit() || db.connection.execute_batch("ROLLBACK").is_ok();
        db.account.end();
        db.account.limit_to(self.engine.limits.client);
        // A connection that has kept much of what a large statement took is closed.
        if clean && !self.pinned && db.account.bytes() <= BYTES_KEPT {
            self.engine.put_back(db);
        } else {
            drop(db);
        }
        heaps::trim_soon();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vfs::testing::{LossyDisk, lossy};
    use fiber::{Fiber, Resume, StackConfig, StackPool};
    use rusqlite::hooks::{AuthContext, Authorization};

    const LIMITS: Limits = Limits {
        server: 1 << 30,
        client: 1 << 28,
        temporary: 1 << 30,
        value: 1 << 24,
        log: 1 << 30,
    };

    /// The stack size of the workers of `ums serve`.
    const STACK: usize = 1 << 20;

    /// Returns how much of a stack a statement needs, from preparing it to its last row.
    fn stack_for(sql: &str) -> usize {
        stack_after("", sql)
    }

    /// The same, in a database that has this schema.
    fn stack_after(schema: &str, sql: &str) -> usize {
        let mut pool = StackPool::new(StackConfig { size: STACK, ..StackConfig::default() });
        let vfs = lossy(&LossyDisk::default());
        let engine = Arc::new(Engine::open(Path::new("/db"), Files::On(vfs), &[], LIMITS).unwrap());
        engine.lease(1).unwrap().execute_batch(schema).unwrap();
        let sql = sql.to_owned();
        let mut run = Fiber::new(pool.take().unwrap(), "sql", move |_| {
            let lease = engine.lease(1).unwrap();
            // A statement that is too deep may fail instead.
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
    fn a_schema_that_changes_all_the_time_is_read_once_for_a_lease() {
        let vfs = lossy(&LossyDisk::default());
        let engine = Arc::new(Engine::open(Path::new("/db"), Files::On(vfs), &[], LIMITS).unwrap());
        let mut lease = engine.lease(1).unwrap();
        let (other, mut changes) = (engine.lease(1).unwrap(), 0);
        // SQLite asks this after it has read the schema, and before it runs the statement.
        let connection = &mut lease.db.as_mut().unwrap().connection;
        let changing = move |_: AuthContext<'_>| {
            changes += 1;
            assert!(changes < 20, "the schema has been read again and again");
            other.execute_batch(&format!("CREATE TABLE t{changes}(x)")).unwrap();
            Authorization::Allow
        };
        connection.authorizer(Some(changing)).unwrap();
        engine.schema_changed();
        lease.refresh().unwrap();
        assert!(lease.is_autocommit());
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

    /// Returns statements that create `count` tables, of which each has a trigger that inserts into
    /// the next.
    fn chain(count: usize) -> String {
        let table = |n: usize| {
            format!(
                "CREATE TABLE t{n}(x); CREATE TRIGGER g{n} AFTER INSERT ON t{n} BEGIN
                   INSERT INTO t{}(x) SELECT new.x WHERE new.x IN (SELECT 1); END;",
                n + 1
            )
        };
        (0..count).map(table).collect::<String>() + &format!("CREATE TABLE t{count}(x);")
    }

    /// Returns statements that create `count` tables, of which each refers to the one before with
    /// ON DELETE CASCADE.
    fn cascade(count: usize) -> String {
        let table = |n: usize| {
            format!("CREATE TABLE c{}(x PRIMARY KEY REFERENCES c{n}(x) ON DELETE CASCADE);", n + 1)
        };
        "CREATE TABLE c0(x PRIMARY KEY);".to_owned() + &(0..count).map(table).collect::<String>()
    }

    /// Returns statements that create `count` views, of which each selects from the one before.
    fn views(count: usize) -> String {
        let view = |n: usize| format!("CREATE VIEW v{} AS SELECT * FROM v{n};", n + 1);
        "CREATE VIEW v0 AS SELECT 1;".to_owned() + &(0..count).map(view).collect::<String>()
    }

    #[test]
    fn chains_of_triggers_and_cascades_leave_half_of_the_stack() {
        let words = "CREATE VIRTUAL TABLE w USING fts5(x)";
        let (open, close) = ("(".repeat(250), ")".repeat(250));
        let parentheses = format!("SELECT * FROM w('{open}a{close}')");
        for (name, schema, sql) in [
            ("chain", chain(1200), "INSERT INTO t0 VALUES (1)"),
            ("cascade", cascade(1200), "DELETE FROM c0"),
            ("updates", cascade(1200).replace("DELETE", "UPDATE"), "UPDATE c0 SET x = 1"),
            ("views", views(1200), "SELECT * FROM v1200"),
            ("words", words.into(), &parentheses),
        ] {
            let used = stack_after(&schema, sql);
            println!("{name}: {} KiB of stack", used >> 10);
            assert!(used <= STACK / 2, "{name}: {} KiB", used >> 10);
        }
    }
}
