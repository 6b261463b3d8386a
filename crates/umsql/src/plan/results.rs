//! The names and types of a statement's result columns, as far as they are known without a value.
//!
//! A table's column has its declared type. [`super::analysis`] has found the others.

use rusqlite::Statement as Prepared;

use super::names::catalog_type;
use crate::dialect::{Sql, entitle};
use crate::wire::types;

/// What is known of a column without a value.
pub(crate) struct KnownColumn {
    pub(crate) name: String,
    pub(crate) oid: Option<u32>,
    pub(crate) modifier: i32,
    pub(crate) scale: Option<u16>,
}

impl KnownColumn {
    fn of(column: &rusqlite::Column<'_>) -> KnownColumn {
        let declared = column.decl_type();
        let oid = declared.map(types::by_name);
        // Most declarations have no numbers, and this runs for each execution of a statement that
        // was not described.
        let modifier = match declared.filter(|declared| declared.contains('(')) {
            Some(declared) => types::modifier(declared),
            None => -1,
        };
        let scale = types::scale(modifier).filter(|_| oid == Some(types::NUMERIC));
        KnownColumn { name: column.name().to_owned(), oid, modifier, scale }
    }
}

/// Gives columns of one name this name again: SQLite numbers those of a query in a FROM clause,
/// such as `a:1`.
fn undo_numbers(columns: &mut [KnownColumn], sql: &Sql) {
    for index in 1..columns.len() {
        let (before, [column, ..]) = columns.split_at_mut(index) else { return };
        let Some((name, number)) = column.name.split_once(':') else { continue };
        let is_numbered = number.parse::<u32>().is_ok()
            && before.iter().any(|other| other.name == name)
            && !sql.texts.iter().any(|text| text.contains(&column.name));
        if is_numbered {
            column.name.truncate(name.len());
        }
    }
}

/// Returns the columns of a prepared statement: their names, and their types where those are known
/// without a value.
pub(crate) fn columns(prepared: &Prepared<'_>, sql: &Sql) -> Vec<KnownColumn> {
    let mut columns: Vec<_> = prepared.columns().map(|column| KnownColumn::of(&column)).collect();
    let types = &sql.types;
    let known = (types.columns.len() == columns.len()).then_some(&types.columns);
    for (index, column) in columns.iter_mut().enumerate() {
        let Some(typed) = known.and_then(|known| known[index]) else {
            if sql.catalog && column.oid.is_none() {
                column.oid = catalog_type(&column.name);
            }
            continue;
        };
        // SQLite knows the declarations of a set operation's first query, and those of the tables
        // behind the views of the catalogue.
        let differs = (types.of_set || sql.catalog) && column.oid != Some(typed.oid);
        // A numbered column is an INTEGER for SQLite, and may be a bigint.
        let is_big = column.oid == Some(types::INT4) && typed.oid == types::INT8;
        if column.oid.is_none() || differs || is_big {
            (column.oid, column.scale, column.modifier) = (Some(typed.oid), typed.scale, -1);
        }
    }
    undo_numbers(&mut columns, sql);
    entitle(&sql.titles, columns.iter_mut().map(|column| &mut column.name).collect());
    columns
}
