//! `SELECT last_value, is_called FROM t_id_seq`, as `pg_dump` asks for the next number of an
//! identity column. SQLite keeps the numbers in a table of its own, and has no relation of that
//! name.

use rusqlite::Connection;

use crate::dialect::Edits;
use crate::dialect::tokens::Token;
use crate::dialect::translate::quote;

/// Replaces the name of a sequence in such a query by a query for its values. Returns `None` for
/// another statement, and if there is a table of this name.
pub(super) fn sequence_values(tokens: &[Token<'_>], db: &Connection) -> Option<Edits> {
    let [select, first, rest @ ..] = tokens else { return None };
    if !select.is("select") || !first.is("last_value") {
        return None;
    }
    let name = match rest.iter().position(|token| token.is("from")).map(|at| &rest[at + 1..]) {
        Some([schema, dot, name, ..]) if schema.is("public") && dot.sign(".") => name,
        Some([name, ..]) => name,
        _ => return None,
    };
    let exists = |table: &str| db.table_exists(None, table).unwrap_or_default();
    let is_sequence = name.is_name() && !exists(&name.name()) && exists("sqlite_sequence");
    let text = name.name().replace('\'', "''");
    let values = format!(
        "(SELECT max(coalesce(v.seq, 1), 1) AS last_value, 0 AS log_cnt, \
           coalesce(v.seq, 0) > 0 AS is_called \
         FROM pg_ums_serial s LEFT JOIN sqlite_sequence v ON v.name = s.tbl \
         WHERE s.sequence = '{text}' COLLATE NOCASE) AS {}",
        quote(&name.name())
    );
    let mut edits = Edits::default();
    edits.instead(name, values);
    is_sequence.then_some(edits)
}
