//! What clients' statements may use of SQLite: an allow-list of functions, PRAGMAs and modules of
//! virtual tables, and files in named folders. What is not listed is refused when a statement is
//! prepared, on every connection.
//!
//! SQLite asks the authorizer while it prepares a statement, triggers and views included. It passes
//! only a code to the caller, so the authorizer keeps the error, which names the thing, in a
//! [`Refused`], from which the session takes it.
//!
//! Invariant: a name that a later version of SQLite adds is refused until it is listed here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rusqlite::config::DbConfig;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::{Connection, ffi};
use ums::lock::Lock;

use super::folders::Folders;
use crate::error::{Result, SqlError};
use crate::vfs::guarded;

/// The functions of SQLite and its extensions. `json_patch` is not one of them, because its time is
/// the product of its arguments' lengths; nor are `median` and `percentile`, which some builds of
/// SQLite have, because nothing interrupts their sort.
const FUNCTIONS: &str = "\
    -> ->> abs acos acosh asin asinh atan atan2 atanh avg bm25 ceil ceiling changes char coalesce \
    concat concat_ws cos cosh count cume_dist current_date current_time current_timestamp date \
    datetime degrees dense_rank exp first_value floor format fts5_get_locale fts5_insttoken \
    fts5_locale glob group_concat hex highlight if ifnull iif instr json json_array \
    json_array_insert json_array_length json_error_position json_extract json_group_array \
    json_group_object json_insert json_object json_pretty json_quote json_remove json_replace \
    json_set json_type json_valid jsonb jsonb_array jsonb_array_insert jsonb_extract \
    jsonb_group_array jsonb_group_object jsonb_insert jsonb_object jsonb_remove jsonb_replace \
    jsonb_set julianday lag last_insert_rowid last_value lead length like likelihood likely ln \
    log log10 log2 lower ltrim match matchinfo max min mod nth_value ntile nullif \
    octet_length offsets percent_rank pi pow power \
    printf quote radians random randomblob rank regexp replace round row_number rtreedepth \
    rtreenode rtrim sign sin sinh snippet soundex sqlite_source_id sqlite_version sqrt strftime \
    string_agg substr substring subtype sum tan tanh time timediff total total_changes trim trunc \
    typeof unhex unicode unistr unistr_quote unixepoch unlikely upper zeroblob";

/// Functions that only statements which SQLite itself makes can call, for ALTER TABLE and ANALYZE.
const INTERNAL: &str = "\
    sqlite_add_constraint sqlite_drop_column sqlite_drop_constraint sqlite_fail \
    sqlite_find_constraint sqlite_rename_column sqlite_rename_quotefix sqlite_rename_table \
    sqlite_rename_test stat_get stat_init stat_push";

/// The functions of this server (`functions.rs`).
const OWN: &str = "\
    acldefault age array_agg array_remove array_to_string array_upper ascii bit_length bpchar \
    busy_loop bytea cbrt char_length character_length chr clock_timestamp col_description \
    current_catalog current_database current_role current_schema current_schemas current_setting \
    current_user currval date_mi date_mi_interval date_mii date_part date_pl_interval date_pli \
    date_trunc datetime_pl degrees div extract extract_interval float4 float8 float8mi float8mul \
    float8pl format_type gcd gen_random_uuid greatest initcap int2 int4 int8 integer_pl_date \
    interval_avg interval_div interval_mi interval_mul interval_part interval_pl \
    interval_pl_date interval_pl_time interval_pl_timestamp interval_pl_timestamptz interval_sum \
    interval_trunc interval_um isfinite justify_days justify_hours justify_interval lastval lcm \
    least left lpad make_date make_interval make_time make_timestamp md5 mul_d_interval nextval \
    now numeric obj_description pg_advisory_unlock_all pg_backend_pid pg_bool pg_date pg_div \
    pg_encoding_to_char pg_format pg_function_is_visible pg_get_expr pg_get_serial_sequence \
    pg_get_userbyid pg_interval pg_is_in_recovery pg_mod pg_numeric pg_partition_ancestors \
    pg_relation_is_publishable pg_similar pg_size_pretty pg_sleep pg_substr pg_table_is_visible \
    pg_table_size pg_text pg_text_real pg_time pg_timestamp pg_timestamptz pg_type_is_visible \
    pg_uuid preemptive_sleep quote_ident quote_literal radians repeat reverse right rpad \
    session_user set_config setval shobj_description split_part starts_with statement_timestamp \
    strpos time_mi_interval time_mi_time time_pl_interval timedate_pl timestamp_mi \
    timestamp_mi_interval timestamp_pl_interval timestamptz_mi timestamptz_mi_interval \
    timestamptz_pl_interval to_hex to_regtype to_timestamp transaction_timestamp translate \
    ums_assign ums_constraints ums_element ums_elements ums_even ums_generated \
    ums_index_definition ums_is_numbered ums_minus ums_not_null ums_object_name ums_plus \
    ums_relation ums_several_rows ums_type_oid ums_type_width ums_view_definition \
    ums_view_tables varchar version";

/// PRAGMAs with and without a value. Those that change something change it for one connection, or
/// are writes that pass the write gate.
const PRAGMAS: &str = "\
    analysis_limit application_id automatic_index cache_size cache_spill cell_size_check \
    collation_list compile_options data_version database_list defer_foreign_keys encoding \
    foreign_key_check foreign_key_list foreign_keys freelist_count function_list \
    ignore_check_constraints incremental_vacuum index_info index_list index_xinfo integrity_check \
    max_page_count module_list optimize page_count pragma_list query_only quick_check \
    read_uncommitted recursive_triggers reverse_unordered_selects secure_delete shrink_memory \
    table_info table_list table_xinfo user_version wal_checkpoint";

/// PRAGMAs that may be read. To set them would change what other clients rely on.
const READ_PRAGMAS: &str = "\
    auto_vacuum busy_timeout hard_heap_limit journal_mode journal_size_limit locking_mode \
    mmap_size page_size schema_version soft_heap_limit synchronous temp_store threads \
    trusted_schema wal_autocheckpoint writable_schema";

/// Modules of virtual tables that a client may create tables of.
const MODULES: &str = "\
    fts3 fts4 fts4aux fts5 fts5vocab rtree rtree_i32";

/// Views of statistics that name no client and no statement. Readers may use these only. The views
/// of a later version are refused until they are listed here.
const READER_VIEWS: &str = "\
    ums_context_switches ums_group_commit ums_monitor ums_page_pool ums_schedulers ums_spinlocks \
    ums_wait_histogram ums_wait_stats";

/// PRAGMAs that write although SQLite calls their statements readers.
const OWNER_PRAGMAS: &str = "optimize wal_checkpoint";

/// Functions that take a processor from all clients.
const OWNER_FUNCTIONS: &str = "busy_loop preemptive_sleep";

/// Returns whether `list` has this name. Upper case is the same as lower case.
fn has(list: &str, name: &str) -> bool {
    list.split(' ').any(|known| known.eq_ignore_ascii_case(name))
}

/// Why the authorizer of a connection refused its last statement, and whether it refuses what a
/// reader may not use.
#[derive(Debug, Clone, Default)]
pub(crate) struct Refused(Arc<State>);

#[derive(Debug, Default)]
struct State {
    last: Lock<Option<SqlError>>,
    restricted: AtomicBool,
    /// Whether the server's own statements are being prepared.
    trusting: AtomicBool,
}

impl Refused {
    /// Takes the error.
    pub(crate) fn take(&self) -> Option<SqlError> {
        self.0.last.lock().take()
    }

    /// Refuses what a reader may not use from now on, or permits it again. The connection belongs
    /// to the caller, so no statement is being prepared.
    pub(super) fn set_restricted(&self, restricted: bool) {
        self.0.restricted.store(restricted, Ordering::Relaxed);
    }

    /// Allows everything while `f` runs, whose statements are the server's own. The connection
    /// belongs to the caller.
    pub(super) fn trusting<R>(&self, f: impl FnOnce() -> R) -> R {
        self.0.trusting.store(true, Ordering::Relaxed);
        let result = f();
        self.0.trusting.store(false, Ordering::Relaxed);
        result
    }

    /// The authorizer.
    fn decide(&self, context: AuthContext<'_>, folders: &Folders) -> Authorization {
        if self.0.trusting.load(Ordering::Relaxed) {
            return Authorization::Allow;
        }
        let mut error = refusal(&context.action, folders);
        if error.is_none() && self.0.restricted.load(Ordering::Relaxed) {
            error = for_owners(&context.action);
        }
        match error {
            None => Authorization::Allow,
            Some(error) => {
                *self.0.last.lock() = Some(error);
                Authorization::Deny
            }
        }
    }
}

/// Makes `connection` refuse what is not allowed. Returns where it keeps the reason.
pub(super) fn restrict(connection: &mut Connection, folders: Arc<Folders>) -> Result<Refused> {
    // A second defence, which needs no list.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_FTS3_TOKENIZER, false)?;
    let refused = Refused::default();
    let authorizer = refused.clone();
    connection.authorizer(Some(move |context: AuthContext<'_>| {
        guarded(Authorization::Deny, || authorizer.decide(context, &folders))
    }))?;
    Ok(refused)
}

const LISTED: &str = "docs/security.md says what of SQLite clients may use.";

/// Returns the error if this action is refused.
fn refusal(action: &AuthAction<'_>, folders: &Folders) -> Option<SqlError> {
    match action {
        AuthAction::Function { function_name: name } => function(name),
        AuthAction::Pragma { pragma_name, pragma_value } => {
            pragma(pragma_name, pragma_value.is_some())
        }
        AuthAction::CreateVtable { module_name, .. } if !has(MODULES, module_name) => {
            let message = format!("virtual tables of the module {module_name} are not available");
            Some(SqlError::unsupported(message).hint(LISTED))
        }
        AuthAction::Attach { filename } => attach(filename, folders),
        // The name is an expression or a parameter, of which the value is not known yet.
        AuthAction::Unknown { code: ffi::SQLITE_ATTACH, .. } => {
            let message = "permission denied for a file whose name is not a text";
            Some(SqlError::new("42501", message).hint("Write ATTACH 'file' AS name."))
        }
        _ => None,
    }
}

/// Returns the error if this action is refused to readers. Writes to the database need the write
/// gate, which refuses readers, so they are not looked for here.
fn for_owners(action: &AuthAction<'_>) -> Option<SqlError> {
    let denied = |what: &str| {
        let message = format!("permission denied for {what}");
        Some(SqlError::new("42501", message).hint("Only owners may use it."))
    };
    match action {
        // VACUUM attaches a file without a name, after it has got the write gate.
        AuthAction::Attach { filename } => denied(&format!("the file {filename}")),
        AuthAction::Detach { .. } => denied("DETACH"),
        AuthAction::Pragma { pragma_name: name, .. } if has(OWNER_PRAGMAS, name) => {
            denied(&format!("PRAGMA {name}"))
        }
        AuthAction::Function { function_name: name } if has(OWNER_FUNCTIONS, name) => {
            denied(&format!("function {name}"))
        }
        AuthAction::Read { table_name: name, .. } if is_view(name) && !has(READER_VIEWS, name) => {
            denied(&format!("view {name}"))
        }
        _ => None,
    }
}

fn is_view(name: &str) -> bool {
    name.eq_ignore_ascii_case("pg_stat_ssl")
        || name.get(..4).is_some_and(|start| start.eq_ignore_ascii_case("ums_"))
}

fn attach(name: &str, folders: &Folders) -> Option<SqlError> {
    // These two are databases in memory. VACUUM uses the first.
    if name.is_empty() || name == ":memory:" {
        return None;
    }
    if name.starts_with("file:") {
        let message = "ATTACH of a URI is not available";
        return Some(SqlError::unsupported(message).hint("Write the name of the file."));
    }
    folders.check(name).err()
}

fn function(name: &str) -> Option<SqlError> {
    let known = [FUNCTIONS, OWN, INTERNAL].iter().any(|list| has(list, name));
    (!known).then(|| {
        let message = format!("function {name} does not exist on this server");
        // `optimize` would write from inside a query, without the write gate.
        let hint = match name.eq_ignore_ascii_case("optimize") {
            true => "Write INSERT INTO t(t) VALUES ('optimize'), which has the same effect.",
            false => LISTED,
        };
        SqlError::new("42883", message).hint(hint)
    })
}

fn pragma(name: &str, sets: bool) -> Option<SqlError> {
    const LOG: &str =
        "The server keeps the log and its syncs; SET synchronous_commit is a session's own.";
    const LOGS: &str = "journal_mode locking_mode synchronous wal_autocheckpoint";
    if has(PRAGMAS, name) || (!sets && has(READ_PRAGMAS, name)) {
        return None;
    }
    if !has(READ_PRAGMAS, name) {
        let message = format!("PRAGMA {name} is not available");
        return Some(SqlError::unsupported(message).hint(LISTED));
    }
    let message = format!("permission denied to set PRAGMA {name}");
    let hint = if has(LOGS, name) { LOG } else { "It can be read; the server sets it." };
    Some(SqlError::new("42501", message).hint(hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of this build of SQLite that clients may not use.
    const LEFT_OUT: &str = "fts3_tokenizer fts5 fts5_source_id json_patch jsonb_patch \
        load_extension optimize rtreecheck sqlite_compileoption_get sqlite_compileoption_used \
        sqlite_log";

    fn open() -> (Connection, Refused) {
        let mut connection = Connection::open_in_memory().unwrap();
        let refused = restrict(&mut connection, Arc::default()).unwrap();
        (connection, refused)
    }

    #[test]
    fn every_function_of_the_library_is_either_allowed_or_left_out() {
        let plain = Connection::open_in_memory().unwrap();
        let mut names = plain.prepare("SELECT DISTINCT name FROM pragma_function_list").unwrap();
        let names = names.query_map([], |row| row.get::<_, String>(0)).unwrap();
        for name in names.map(|name| name.unwrap()) {
            let allowed = function(&name).is_none();
            assert_ne!(allowed, has(LEFT_OUT, &name), "{name}");
        }
        assert!(function("median").is_some() && function("percentile").is_some());
    }

    #[test]
    fn a_function_that_takes_and_gives_pointers_is_refused() {
        let (connection, refused) = open();
        for call in ["fts3_tokenizer(?1)", "fts3_tokenizer(?1, ?1)", "FTS3_Tokenizer('simple')"] {
            assert!(connection.prepare(&format!("SELECT {call}")).is_err(), "{call}");
            let error = refused.take().unwrap();
            assert_eq!(error.code, "42883");
            assert!(error.message.contains("fts3_tokenizer"), "{error}");
        }
        connection.execute_batch("CREATE TABLE t(x)").unwrap();
        let hidden = "CREATE TRIGGER g AFTER INSERT ON t BEGIN SELECT load_extension('x'); END;
                      INSERT INTO t VALUES (1)";
        assert!(connection.execute_batch(hidden).is_err());
        assert_eq!(refused.take().unwrap().code, "42883");
    }

    #[test]
    fn pragmas_and_modules_that_are_not_listed_are_refused() {
        let (connection, refused) = open();
        let code = |sql: &str| match connection.execute_batch(sql) {
            Ok(()) => "",
            Err(other) => refused.take().unwrap_or_else(|| other.into()).code,
        };
        assert_eq!(code("PRAGMA temp_store_directory = '/tmp'"), "0A000");
        assert_eq!(code("PRAGMA case_sensitive_like = 1"), "0A000");
        assert_eq!(code("PRAGMA Hard_heap_limit = 1000000"), "42501");
        assert_eq!(code("PRAGMA writable_schema = on"), "42501");
        assert_eq!(code("PRAGMA main.mmap_size = 1000000"), "42501");
        assert_eq!(code("ATTACH '/etc/passwd' AS a"), "42501");
        assert_eq!(code("ATTACH '/etc/' || 'passwd' AS a"), "42501");
        assert_eq!(code("ATTACH 'file:/etc/passwd?vfs=unix-none' AS a"), "0A000");
        assert_eq!(code("VACUUM INTO '/tmp/ums-copy-that-is-refused'"), "42501");
        assert_eq!(code("ATTACH ':memory:' AS a; DETACH a; ATTACH '' AS a"), "");
        assert_eq!(code("SELECT * FROM pragma_page_size"), "");
        assert_eq!(code("PRAGMA cache_size = 100; PRAGMA foreign_keys = off"), "");
        assert_eq!(code("CREATE VIRTUAL TABLE v USING fts3tokenize('simple')"), "0A000");
        assert_eq!(code("CREATE VIRTUAL TABLE v USING csv(filename='/etc/passwd')"), "0A000");
        for allowed in ["fts4(a)", "fts5(a)", "rtree(a, b, c)"] {
            let sql = format!(
                "CREATE VIRTUAL TABLE v USING {allowed}; INSERT INTO v VALUES (1);
                 DELETE FROM v; ALTER TABLE v RENAME TO w; PRAGMA integrity_check; DROP TABLE w"
            );
            let sql = if allowed.contains('b') { sql.replace("(1)", "(1, 2, 3)") } else { sql };
            assert_eq!(code(&sql), "", "{allowed}");
        }
        let ordinary = "CREATE TABLE t(a, b); INSERT INTO t VALUES (1, 2); CREATE INDEX i ON t(a);
            ALTER TABLE t RENAME COLUMN a TO c; ALTER TABLE t DROP COLUMN b; ANALYZE; VACUUM;
            SELECT '[1]' -> 0, c FROM t WHERE c LIKE '1%' GROUP BY c";
        assert_eq!(code(ordinary), "");
    }
}
