//! The settings of PostgreSQL that a client may name, with their defaults here.
//!
//! It keeps no values; `settings` does.

/// A setting that has a name in PostgreSQL.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) name: &'static str,
    pub(crate) default: &'static str,
    pub(crate) rule: Rule,
}

/// Which values a setting may have.
#[derive(Debug)]
pub(crate) enum Rule {
    /// Any: what it changes in PostgreSQL does not exist here, or cannot be seen by a client.
    Free,
    /// None but its own.
    Fixed,
    /// On and off, which the server obeys.
    Switch,
    /// A level of isolation, which the server obeys.
    Isolation,
    /// One of these, which the server obeys.
    OneOf(&'static [&'static str]),
    /// Those for which the function returns true: they say what the server does. The text is a hint
    /// for a client that sets another.
    Only(fn(&str) -> bool, &'static str),
}

/// The settings whose values a client is told of when they change, as PostgreSQL writes their
/// names.
pub(crate) const REPORTED: [&str; 7] = [
    "application_name",
    "client_encoding",
    "DateStyle",
    "default_transaction_read_only",
    "IntervalStyle",
    "standard_conforming_strings",
    "TimeZone",
];

const fn free(name: &'static str, default: &'static str) -> Known {
    Known { name, default, rule: Rule::Free }
}

const fn fixed(name: &'static str, default: &'static str) -> Known {
    Known { name, default, rule: Rule::Fixed }
}

const fn only(
    name: &'static str,
    default: &'static str,
    accepts: fn(&str) -> bool,
    hint: &'static str,
) -> Known {
    Known { name, default, rule: Rule::Only(accepts, hint) }
}

/// Returns whether the value is one of these, apart from the case of letters.
fn is(value: &str, list: &[&str]) -> bool {
    list.iter().any(|one| one.eq_ignore_ascii_case(value.trim()))
}

fn items(value: &str) -> impl Iterator<Item = &str> {
    value.split(',').map(|item| item.trim().trim_matches('"'))
}

fn is_utc(value: &str) -> bool {
    let names = ["utc", "gmt", "etc/utc", "etc/gmt", "universal", "zulu", "z", "uct", "local"];
    is(value, &names) || is(value, &["0", "+0", "-0", "+00", "+00:00", "00:00"])
}

fn is_iso(value: &str) -> bool {
    items(value).all(|item| is(item, &["iso", "mdy", "dmy", "ymd", "us", "european"]))
}

fn is_public(value: &str) -> bool {
    items(value).any(|item| is(item, &["public"]))
        || items(value).all(|item| is(item, &["", "$user", "pg_catalog", "pg_temp"]))
}

/// The settings, apart from time limits and those of the present transaction.
pub(crate) const KNOWN: &[Known] = &[
    // What the server obeys.
    free("application_name", ""),
    Known {
        name: "default_transaction_isolation",
        default: "read committed",
        rule: Rule::Isolation,
    },
    Known { name: "default_transaction_read_only", default: "off", rule: Rule::Switch },
    Known {
        name: "synchronous_commit",
        default: "on",
        rule: Rule::OneOf(&[
            "on",
            "off",
            "local",
            "remote_write",
            "remote_apply",
            "true",
            "false",
            "yes",
            "no",
            "1",
            "0",
        ]),
    },
    // What says how the server is.
    fixed("server_version", "15.0"),
    fixed("server_version_num", "150000"),
    fixed("server_encoding", "UTF8"),
    fixed("integer_datetimes", "on"),
    fixed("max_identifier_length", "63"),
    fixed("in_hot_standby", "off"),
    fixed("lc_collate", "C"),
    fixed("lc_ctype", "C"),
    only(
        "timezone",
        "UTC",
        is_utc,
        "Times are in UTC; convert them in the client, or in the query.",
    ),
    only(
        "client_encoding",
        "UTF8",
        |value| is(value, &["utf8", "utf-8", "unicode", "sql_ascii"]),
        "Texts are in UTF-8.",
    ),
    only("datestyle", "ISO, MDY", is_iso, "Dates are written as ISO 8601 says."),
    only(
        "intervalstyle",
        "postgres",
        |value| is(value, &["postgres"]),
        "There is no other style of intervals.",
    ),
    only(
        "bytea_output",
        "hex",
        |value| is(value, &["hex"]),
        "Bytes are written in hexadecimal digits.",
    ),
    only(
        "standard_conforming_strings",
        "on",
        |value| is(value, &["on", "true", "yes", "1"]),
        "A backslash has a meaning in E'..' only.",
    ),
    only(
        "extra_float_digits",
        "1",
        |value| is(value, &["1", "2", "3"]),
        "Numbers are written with all of their digits.",
    ),
    only("search_path", "\"$user\", public", is_public, "There is one schema, public."),
    only("role", "none", |value| is(value, &["none"]), "Log in as the user whose rights you want."),
    only(
        "session_authorization",
        "default",
        |_| false,
        "Log in as the user whose rights you want.",
    ),
    only("default_tablespace", "", |value| value.is_empty(), "There are no tablespaces."),
    only(
        "default_table_access_method",
        "heap",
        |value| is(value, &["heap"]),
        "There are no other kinds of tables.",
    ),
    only(
        "transform_null_equals",
        "off",
        |value| is(value, &["off", "false", "no", "0"]),
        "Write IS NULL.",
    ),
    // What has no effect that a client could see.
    free("array_nulls", "on"),
    free("backslash_quote", "safe_encoding"),
    free("check_function_bodies", "on"),
    free("client_min_messages", "notice"),
    free("commit_delay", "0"),
    free("constraint_exclusion", "partition"),
    free("cpu_index_tuple_cost", "0.005"),
    free("cpu_operator_cost", "0.0025"),
    free("cpu_tuple_cost", "0.01"),
    free("cursor_tuple_fraction", "0.1"),
    free("deadlock_timeout", "1s"),
    free("default_statistics_target", "100"),
    free("default_transaction_deferrable", "off"),
    free("effective_cache_size", "4GB"),
    free("effective_io_concurrency", "1"),
    free("enable_bitmapscan", "on"),
    free("enable_hashagg", "on"),
    free("enable_hashjoin", "on"),
    free("enable_indexonlyscan", "on"),
    free("enable_indexscan", "on"),
    free("enable_material", "on"),
    free("enable_mergejoin", "on"),
    free("enable_nestloop", "on"),
    free("enable_seqscan", "on"),
    free("enable_sort", "on"),
    free("enable_tidscan", "on"),
    free("escape_string_warning", "on"),
    free("from_collapse_limit", "8"),
    free("geqo", "on"),
    free("jit", "off"),
    free("join_collapse_limit", "8"),
    free("lc_messages", "C"),
    free("log_duration", "off"),
    free("log_min_duration_statement", "-1"),
    free("log_min_messages", "warning"),
    free("log_statement", "none"),
    free("maintenance_work_mem", "64MB"),
    free("max_parallel_maintenance_workers", "0"),
    free("max_parallel_workers_per_gather", "0"),
    free("plan_cache_mode", "auto"),
    free("quote_all_identifiers", "off"),
    free("random_page_cost", "4"),
    free("row_security", "on"),
    free("seq_page_cost", "1"),
    free("synchronize_seqscans", "on"),
    free("temp_buffers", "8MB"),
    free("transaction_deferrable", "off"),
    free("work_mem", "4MB"),
    free("xmloption", "content"),
];
