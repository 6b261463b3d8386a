//! Functions that clients of PostgreSQL expect, and some that demonstrate the scheduler. `pg_sleep`
//! waits on the timer list; `preemptive_sleep` leaves the scheduler, as an extended procedure of
//! SQL Server does; `busy_loop` computes without yielding.
//!
//! A worker that waits in such a function is suspended with SQLite's frames on its stack. That is
//! sound because the wait always returns: a cancelled wait returns an error, and nothing unwinds
//! the stack.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::functions::Context;
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, Error, Result};

use super::probe::Probe;
use super::scalar::{direct, scalar};
use crate::dialect::constraints;
use crate::error::{CANCELLED, SEVERAL_ROWS, SqlError};
use crate::host;
use crate::settings::{Config, Scope};
use crate::wire::declaration::declaration;
use crate::wire::{arrays, datetime, types};
use ums::lock::Lock;

pub(crate) const VERSION: &str = "PostgreSQL 15.0 (umsql, SQLite ";
/// The longest sleep a function accepts, in seconds.
const SLEEP_MAX: f64 = 86_400.0;

/// Registers all functions with `connection`.
pub(super) fn register(connection: &Connection, probe: &Probe) -> Result<()> {
    sleeps(connection, probe)?;
    session(connection)?;
    super::assign::register(connection)?;
    super::casts::register(connection)?;
    super::division::register(connection)?;
    super::times::register(connection)?;
    super::digests::register(connection)?;
    super::arrays::register(connection)?;
    super::time_operators::register(connection)?;
    super::intervals::register(connection)?;
    catalog(connection)
}

fn sleeps(connection: &Connection, probe: &Probe) -> Result<()> {
    let probing = probe.clone();
    direct(connection, "pg_sleep", 1, move |context| {
        let time = seconds(context, 1.0)?;
        if !probing.is_on() {
            host::wait_for(time).map_err(|_| Error::UserFunctionError(CANCELLED.into()))?;
        }
        Ok(text(""))
    })?;
    let probing = probe.clone();
    direct(connection, "preemptive_sleep", 1, move |context| {
        let time = seconds(context, 1000.0)?;
        if !probing.is_on() {
            host::go_preemptive("PREEMPTIVE_SLEEP", || std::thread::sleep(time));
        }
        Ok(Value::Integer((time.as_secs_f64() * 1000.0) as i64))
    })?;
    // Computes without yielding, on purpose, so that it holds up its scheduler.
    let probing = probe.clone();
    direct(connection, "busy_loop", 1, move |context| {
        let time = seconds(context, 1000.0)?;
        if !probing.is_on() {
            busy_loop(time);
        }
        if host::cancelled() {
            return Err(Error::UserFunctionError(CANCELLED.into()));
        }
        Ok(Value::Integer((time.as_secs_f64() * 1000.0) as i64))
    })
}

/// Uses the processor for `time`. It is a separate function so that the monitor's reports can name
/// it.
#[inline(never)]
fn busy_loop(time: Duration) {
    let begun = std::time::Instant::now();
    while begun.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// Reads a time. As in PostgreSQL, NaN, null and negative times are none; a time longer than
/// [`SLEEP_MAX`] is that.
fn seconds(context: &Context<'_>, units_per_second: f64) -> Result<Duration> {
    let units = match context.get_raw(0) {
        ValueRef::Null => 0.0,
        ValueRef::Integer(int) => int as f64,
        ValueRef::Real(real) => real,
        other => {
            let text = types::to_text(other);
            text.trim().parse().map_err(|_| {
                let text: String = text.chars().take(40).collect();
                let wrong = format!("invalid input syntax for type double precision: \"{text}\"");
                Error::UserFunctionError(wrong.into())
            })?
        }
    };
    let seconds = units / units_per_second;
    let seconds = if seconds.is_nan() { 0.0 } else { seconds.clamp(0.0, SLEEP_MAX) };
    Ok(Duration::from_secs_f64(seconds))
}

fn session(connection: &Connection) -> Result<()> {
    let constant =
        |name: &str, value: &'static str| scalar(connection, name, 0, move |_| Ok(text(value)));
    scalar(connection, "version", 0, |_| Ok(text(&format!("{VERSION}{})", rusqlite::version()))))?;
    constant("current_database", "ums")?;
    constant("current_catalog", "ums")?;
    constant("current_schema", "public")?;
    constant("current_user", "ums")?;
    constant("session_user", "ums")?;
    constant("current_role", "ums")?;
    scalar(connection, "pg_is_in_recovery", 0, |_| Ok(Value::Integer(0)))?;
    // There are no advisory locks, so there is nothing to unlock. Connection pools call this
    // function.
    scalar(connection, "pg_advisory_unlock_all", 0, |_| Ok(text("")))?;
    scalar(connection, "ums_several_rows", 0, |_: &Context<'_>| -> Result<Value> {
        Err(Error::UserFunctionError(SEVERAL_ROWS.into()))
    })?;
    scalar(connection, "pg_bool", 1, |context| match context.get_raw(0) {
        ValueRef::Null => Ok(Value::Null),
        ValueRef::Integer(int) => Ok(Value::Integer((int != 0).into())),
        other => match types::truth(&types::to_text(other)) {
            Some(truth) => Ok(Value::Integer(truth.into())),
            None => Err(Error::UserFunctionError("invalid input syntax for type boolean".into())),
        },
    })
}

/// Registers the functions that read and change the settings of the session whose statement runs,
/// and those that say when it began.
pub(super) fn settings(
    connection: &Connection,
    probe: &Probe,
    config: &Arc<Lock<Config>>,
) -> Result<()> {
    for arguments in [1, 2] {
        let config = Arc::clone(config);
        scalar(connection, "current_setting", arguments, move |context| {
            let Some(name) = name_of_setting(context)? else { return Ok(Value::Null) };
            let may_miss = arguments == 2 && context.get::<Option<i64>>(1)? == Some(1);
            let mut config = config.lock();
            match config.show(&name) {
                Ok(value) => Ok(text(&value)),
                Err(_) if may_miss => Ok(Value::Null),
                Err(error) => Err(failure(&mut config, error)),
            }
        })?;
    }
    for (name, which) in [
        ("now", Config::transaction_began as fn(&mut Config) -> i64),
        ("transaction_timestamp", Config::transaction_began),
        ("statement_timestamp", Config::statement_began),
        ("clock_timestamp", Config::present),
    ] {
        let config = Arc::clone(config);
        scalar(connection, name, 0, move |_| {
            Ok(text(&format!("{}+00", datetime::format(which(&mut config.lock())))))
        })?;
    }
    let owned = Arc::clone(config);
    scalar(connection, "pg_backend_pid", 0, move |_| Ok(Value::Integer(owned.lock().pid.into())))?;
    let (config, probing) = (Arc::clone(config), probe.clone());
    direct(connection, "set_config", 3, move |context| {
        let Some(name) = name_of_setting(context)? else { return Ok(Value::Null) };
        let value = context.get::<Option<String>>(1)?;
        let local = context.get::<Option<i64>>(2)? == Some(1);
        let mut config = config.lock();
        if !probing.is_on() {
            let scope = if local { Scope::Transaction } else { Scope::Session };
            let set = config.set(&name, value.as_deref(), scope);
            set.map_err(|error| failure(&mut config, error))?;
        }
        let now = config.show(&name);
        now.map(|value| text(&value)).map_err(|error| failure(&mut config, error))
    })
}

fn name_of_setting(context: &Context<'_>) -> Result<Option<String>> {
    Ok(context.get::<Option<String>>(0)?.map(|name| name.to_lowercase()))
}

/// Keeps the error for the session, because SQLite keeps its text only.
pub(super) fn failure(config: &mut Config, error: SqlError) -> Error {
    let text = error.message.to_string();
    config.failed = Some(error);
    Error::UserFunctionError(text.into())
}

/// Registers the functions that psql's queries of the catalogue views call.
fn catalog(connection: &Connection) -> Result<()> {
    let yes = |_: &Context<'_>| Ok(Value::Integer(1));
    let null = |_: &Context<'_>| Ok(Value::Null);
    for name in ["pg_table_is_visible", "pg_type_is_visible", "pg_function_is_visible"] {
        scalar(connection, name, 1, yes)?;
    }
    scalar(connection, "pg_get_userbyid", 1, |_| Ok(text("ums")))?;
    scalar(connection, "pg_encoding_to_char", 1, |_| Ok(text("UTF8")))?;
    for name in ["obj_description", "col_description"] {
        scalar(connection, name, 2, null)?;
    }
    for arguments in [2, 3] {
        scalar(connection, "pg_get_expr", arguments, |context| context.get::<Value>(0))?;
    }
    scalar(connection, "shobj_description", 2, null)?;
    scalar(connection, "pg_partition_ancestors", 1, |context| context.get::<Value>(0))?;
    scalar(connection, "ums_constraints", 2, |context| {
        let [table, text] = [0, 1].map(|index| types::to_text(context.get_raw(index)));
        Ok(text_of_constraints(&table, &text))
    })?;
    scalar(connection, "pg_relation_is_publishable", 1, |_| Ok(Value::Integer(0)))?;
    scalar(connection, "pg_table_size", 1, |_| Ok(Value::Integer(0)))?;
    scalar(connection, "pg_size_pretty", 1, |context| {
        Ok(text(&format!("{} bytes", types::to_text(context.get_raw(0)))))
    })?;
    scalar(connection, "ums_type_oid", 1, |context| {
        Ok(Value::Integer(types::by_name(&types::to_text(context.get_raw(0))).into()))
    })?;
    scalar(connection, "ums_type_width", 1, |context| {
        Ok(Value::Integer(types::modifier(&types::to_text(context.get_raw(0))).into()))
    })?;
    scalar(connection, "to_regtype", 1, |context| {
        let name = types::to_text(context.get_raw(0)).trim().to_ascii_lowercase();
        Ok(match types::by_name(&name) {
            // A name that is not known is a text, too.
            types::TEXT if name != "text" => Value::Null,
            oid => Value::Integer(oid.into()),
        })
    })?;
    scalar(connection, "format_type", 2, |context| {
        let oid = context.get_raw(0).as_i64().unwrap_or(0) as u32;
        let modifier = context.get_raw(1).as_i64().unwrap_or(-1) as i32;
        Ok(text(&declaration(oid, modifier)))
    })
}

/// Returns the constraints of a table as JSON, for the view `pg_constraint`.
fn text_of_constraints(table: &str, text: &str) -> Value {
    let json = |text: &str| arrays::json_string(text);
    let list = |names: &[String]| {
        let names: Vec<_> = names.iter().map(|name| json(name)).collect();
        format!("[{}]", names.join(","))
    };
    let all: Vec<String> = constraints(table, text)
        .iter()
        .map(|one| {
            let (target, columns) = one.refers.clone().unwrap_or_default();
            format!(
                "{{\"kind\":\"{}\",\"name\":{},\"index\":{},\"columns\":{},\"target\":{},\
                 \"targets\":{},\"rest\":{}}}",
                one.kind,
                json(&one.name),
                json(&one.index),
                list(&one.columns),
                json(&target),
                list(&columns),
                json(&one.rest)
            )
        })
        .collect();
    Value::Text(format!("[{}]", all.join(",")))
}

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}
