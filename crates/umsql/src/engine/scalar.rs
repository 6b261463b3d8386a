//! How a function of SQL is registered, and who may call it.

use rusqlite::functions::{Context, FunctionFlags, SqlFnOutput};
use rusqlite::{Connection, Result};

/// Registers a function without side effects, which the schema may use, for example in a default
/// or a view.
pub(super) fn scalar<T: SqlFnOutput>(
    connection: &Connection,
    name: &str,
    arguments: i32,
    f: impl Fn(&Context<'_>) -> Result<T> + Send + 'static,
) -> Result<()> {
    register(connection, name, arguments, FunctionFlags::SQLITE_INNOCUOUS, f)
}

/// The same, for a function whose result depends on its arguments only, so that an index may use
/// it.
pub(super) fn deterministic<T: SqlFnOutput>(
    connection: &Connection,
    name: &str,
    arguments: i32,
    f: impl Fn(&Context<'_>) -> Result<T> + Send + 'static,
) -> Result<()> {
    let flags = FunctionFlags::SQLITE_INNOCUOUS | FunctionFlags::SQLITE_DETERMINISTIC;
    register(connection, name, arguments, flags, f)
}

/// Registers a function that only a client's own statement may call, so that no view or trigger
/// makes another client wait.
pub(super) fn direct<T: SqlFnOutput>(
    connection: &Connection,
    name: &str,
    arguments: i32,
    f: impl Fn(&Context<'_>) -> Result<T> + Send + 'static,
) -> Result<()> {
    register(connection, name, arguments, FunctionFlags::SQLITE_DIRECTONLY, f)
}

fn register<T: SqlFnOutput>(
    connection: &Connection,
    name: &str,
    arguments: i32,
    flags: FunctionFlags,
    f: impl Fn(&Context<'_>) -> Result<T> + Send + 'static,
) -> Result<()> {
    connection.create_scalar_function(name, arguments, flags | FunctionFlags::SQLITE_UTF8, f)
}
