//! Looks up the names in a statement's tokens: the columns of the tables that the statement
//! mentions, their declared types, and names of types.

use rusqlite::Connection;

use crate::dialect::tokens::{Token, TokenKind};
use crate::wire::types;

/// Returns the number in a `$n` token.
pub(super) fn number(token: &Token<'_>) -> Option<usize> {
    if token.kind == TokenKind::Param { token.text[1..].parse().ok() } else { None }
}

/// Returns the type whose name is at the beginning of the tokens.
pub(super) fn type_at(tokens: &[Token<'_>]) -> Option<u32> {
    let skip = if tokens.first()?.is("pg_catalog") { 2 } else { 0 };
    let first = tokens.get(skip).filter(|token| token.is_name())?;
    let zoned = tokens.get(skip + 1).is_some_and(|token| token.is("with"));
    Some(match first.text.to_ascii_lowercase().as_str() {
        "double" => types::FLOAT8,
        "timestamp" if zoned => types::TIMESTAMPTZ,
        name => types::by_name(name),
    })
}

/// The columns of the catalogue views that psql reads as booleans. They are listed here because a
/// view's columns have no declared type.
const CATALOG_FLAGS: [&str; 26] = [
    "relhasindex",
    "relhasrules",
    "relhastriggers",
    "relrowsecurity",
    "relforcerowsecurity",
    "relispartition",
    "relhasoids",
    "attnotnull",
    "atthasdef",
    "attisdropped",
    "indisunique",
    "indisprimary",
    "indisclustered",
    "indisvalid",
    "indisreplident",
    "condeferrable",
    "condeferred",
    "rolsuper",
    "rolinherit",
    "rolcreaterole",
    "rolcreatedb",
    "rolcanlogin",
    "rolreplication",
    "rolbypassrls",
    "datallowconn",
    "datistemplate",
];

/// The tables that a statement mentions, among whose columns names are looked up.
pub(super) struct Names<'a> {
    db: &'a Connection,
    tables: Vec<String>,
}

impl<'a> Names<'a> {
    pub(super) fn new(db: &'a Connection, tokens: &[Token<'_>]) -> Names<'a> {
        let mut tables: Vec<String> = Vec::new();
        for (index, token) in tokens.iter().enumerate().skip(1) {
            let before = &tokens[index - 1];
            let introduces =
                ["from", "join", "into", "update", "only"].iter().any(|word| before.is(word));
            let lists = before.sign(",") || before.sign(".");
            let name = token.name();
            if token.is_name()
                && (introduces || lists)
                && !tables.contains(&name)
                && matches!(db.table_exists(None, name.as_str()), Ok(true))
            {
                tables.push(name);
            }
        }
        Names { db, tables }
    }

    pub(super) fn column(&self, name: &str) -> Option<u32> {
        let found = self.tables.iter().find_map(|table| {
            let found = self.db.column_metadata(None, table.as_str(), name).ok()?;
            Some(types::by_name(found.0?.to_str().ok()?))
        });
        found.or_else(|| CATALOG_FLAGS.contains(&name).then_some(types::BOOL))
    }

    pub(super) fn columns_of(&self, table: &str) -> Vec<u32> {
        let text = format!("SELECT * FROM \"{}\"", table.replace('"', "\"\""));
        let Ok(prepared) = self.db.prepare_cached(&text) else { return Vec::new() };
        prepared.columns().map(|c| c.decl_type().map_or(types::TEXT, types::by_name)).collect()
    }

    /// Returns the type of an operand that consists of one token.
    pub(super) fn operand(&self, token: &Token<'_>) -> Option<u32> {
        match token.kind {
            TokenKind::Number if token.text.contains(['.', 'e']) => Some(types::FLOAT8),
            TokenKind::Number => match token.text.parse::<i64>() {
                Ok(int) if i32::try_from(int).is_ok() => Some(types::INT4),
                _ => Some(types::INT8),
            },
            TokenKind::Word | TokenKind::Quoted => self.column(&token.name()),
            TokenKind::Text => Some(types::TEXT),
            _ => None,
        }
    }
}
