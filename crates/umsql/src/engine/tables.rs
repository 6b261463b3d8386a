//! The statistics of `ums` in SQL: each table of [`host::tables`] and each table of the engine
//! itself is a virtual table that any query can use.
//!
//! A cursor takes its snapshot when a scan begins, so all rows of one scan are of one moment.
//!
//! The traits are unsafe because SQLite sees a table and a cursor through a pointer to their base
//! struct. So both are `repr(C)` with that struct as their first field, and no code here touches
//! it.
#![allow(unsafe_code)]

use std::borrow::Cow;
use std::ffi::{CStr, CString, c_int};
use std::sync::Arc;

use rusqlite::vtab::{
    Context, Filters, IndexInfo, Module, VTab, VTabConfig, VTabConnection, VTabCursor,
};
use rusqlite::{Connection, Error, Result, ffi};

use crate::host::{self, Cell, HostTable};
use crate::vfs::guarded;

const MODULE: Module<'static, Table> = Module::eponymous_only_module();

/// Returns a table's current rows; `None` if the table no longer exists.
type Read = Arc<dyn Fn() -> Option<HostTable> + Send + Sync>;

/// Returns a table of the engine itself.
pub(super) type Own = Box<dyn Fn() -> HostTable + Send + Sync>;

/// Registers with `connection` all tables of the host, and the engine's own.
pub(super) fn register(connection: &Connection, own: Vec<Own>) -> Result<()> {
    for table in host::tables() {
        let name = table.name;
        register_one(connection, &table, Arc::new(move || host::table_now(name)))?;
    }
    let mut own = own.into_iter();
    own.try_for_each(|table| register_one(connection, &table(), Arc::new(move || Some(table()))))
}

fn register_one(connection: &Connection, table: &HostTable, read: Read) -> Result<()> {
    let names = table.columns.iter().map(|(name, kind)| format!("\"{name}\" {kind}"));
    let columns = names.collect::<Vec<_>>().join(", ");
    let declaration = CString::new(format!("CREATE TABLE x({columns})"))?;
    connection.create_module(table.name, &MODULE, Some(Declared { read, declaration }))
}

struct Declared {
    read: Read,
    declaration: CString,
}

#[repr(C)]
struct Table {
    base: ffi::sqlite3_vtab,
    read: Read,
}

// SAFETY: Plain Data: `base` is the first field of a `repr(C)` struct.
unsafe impl<'vtab> VTab<'vtab> for Table {
    type Aux = Declared;
    type Cursor = Cursor;

    fn connect(
        connection: &mut VTabConnection,
        aux: Option<&Declared>,
        _module_name: &[u8],
        _database_name: &[u8],
        _table_name: &[u8],
        _args: &[&[u8]],
    ) -> Result<(Cow<'static, CStr>, Table)> {
        // Views may use these tables.
        connection.config(VTabConfig::Innocuous)?;
        let declared =
            aux.ok_or_else(|| Error::ModuleError("a host table has a declaration".into()))?;
        let read = Arc::clone(&declared.read);
        let table = Table { base: ffi::sqlite3_vtab::default(), read };
        Ok((Cow::Owned(declared.declaration.clone()), table))
    }

    fn best_index(&self, info: &mut IndexInfo) -> Result<bool> {
        info.set_estimated_cost(1000.0);
        Ok(true)
    }

    fn open(&'vtab mut self) -> Result<Cursor> {
        Ok(Cursor {
            base: ffi::sqlite3_vtab_cursor::default(),
            read: Arc::clone(&self.read),
            rows: Vec::new(),
            at: 0,
        })
    }
}

#[repr(C)]
struct Cursor {
    base: ffi::sqlite3_vtab_cursor,
    read: Read,
    rows: Vec<Vec<Cell>>,
    at: usize,
}

// SAFETY: Plain Data: `base` is the first field of a `repr(C)` struct.
unsafe impl VTabCursor for Cursor {
    fn filter(&mut self, _: c_int, _: Option<&str>, _: &Filters<'_>) -> Result<()> {
        let failed = Err(Error::ModuleError("the host could not give its tables".into()));
        let table = guarded(failed, || Ok((self.read)()))?;
        self.rows = table.map(|table| table.rows).unwrap_or_default();
        self.at = 0;
        Ok(())
    }

    fn next(&mut self) -> Result<()> {
        self.at += 1;
        Ok(())
    }

    fn eof(&self) -> bool {
        self.at >= self.rows.len()
    }

    fn column(&self, context: &mut Context, index: c_int) -> Result<()> {
        match self.rows.get(self.at).and_then(|row| row.get(index as usize)) {
            Some(Cell::Int(int)) => context.set_result(int),
            Some(Cell::Float(float)) => context.set_result(float),
            Some(Cell::Text(text)) => context.set_result(text),
            Some(Cell::Null) | None => context.set_result(rusqlite::types::Null),
        }
    }

    fn rowid(&self) -> Result<i64> {
        Ok(self.at as i64)
    }
}
