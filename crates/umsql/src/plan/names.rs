//! Looks up the names in a statement's tokens: the columns of the tables that the statement
//! mentions, their declared types, and names of types.

use std::cell::RefCell;
use std::collections::HashMap;

use rusqlite::Connection;

use super::expression::Typed;
use super::metadata::{column_metadata, select_all};
use crate::dialect::tokens::{Token, TokenKind};
use crate::wire::arrays::array_of;
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
    let open = tokens[skip..].iter().take(6).position(|token| token.sign("["));
    let is_array = open.is_some_and(|open| {
        let is_part = |token: &Token<'_>| token.is_name() || token.kind == TokenKind::Number;
        tokens[skip + 1..skip + open].iter().all(|t| is_part(t) || "(,)".contains(t.text))
    });
    let oid = match first.text.to_ascii_lowercase().as_str() {
        "double" => types::FLOAT8,
        // The name of a table is sent as a text.
        "regclass" | "regtype" => types::TEXT,
        "timestamp" if zoned => types::TIMESTAMPTZ,
        name => types::by_name(name),
    };
    Some(if is_array { array_of(oid).unwrap_or(types::TEXT) } else { oid })
}

/// The types of the columns of the catalogue views. They are listed here because a view's columns
/// have no declared type.
const CATALOG: [(u32, &str); 10] = [
    (types::INT2VECTOR, "indkey indoption"),
    (
        types::BOOL,
        "relhasindex relhasrules relhastriggers relrowsecurity relforcerowsecurity \
         relispartition relhasoids attnotnull atthasdef attisdropped indisunique indisprimary \
         indisclustered indisvalid indisreplident condeferrable condeferred rolsuper \
         rolinherit rolcreaterole rolcreatedb rolcanlogin rolreplication rolbypassrls \
         datallowconn datistemplate hasindexes typnotnull typisdefined attislocal \
         indisexclusion indimmediate indisready indislive indnullsnotdistinct opcdefault \
         seqcycle relispopulated atthasmissing is_instead is_called lanispl lanpltrusted \
         convalidated conislocal connoinherit relisshared usesuper",
    ),
    (
        types::NAME,
        "opcname rulename relname attname nspname typname datname rolname usename amname spcname \
         collname conname extname schemaname tablename tableowner tablespace indexname \
         table_catalog table_schema table_name column_name viewname viewowner",
    ),
    (
        types::OID,
        "oid relnamespace relowner relam relfilenode reltoastrelid reltablespace reloftype \
         reltype attrelid atttypid attcollation adrelid indexrelid indrelid typnamespace \
         typelem typrelid typarray typbasetype typcollation typowner nspowner datdba \
         dattablespace usesysid conrelid conindid confrelid conparentid contypid \
         connamespace objoid classoid classid objid refclassid refobjid ev_class tableoid \
         seqrelid seqtypid amhandler opcmethod opcnamespace opcowner opcfamily opcintype \
         opckeytype collnamespace enumtypid rngtypid rngsubtype roleid member",
    ),
    (types::INT2, "attnum attlen attinhcount relnatts relchecks typlen indnatts indnkeyatts adnum"),
    (
        types::INT4,
        "atttypmod attndims typtypmod encoding datconnlimit rolconnlimit relpages \
         ordinal_position attstattarget objsubid refobjsubid",
    ),
    (
        types::CHAR,
        "relkind relpersistence relreplident attidentity attgenerated attstorage \
         attcompression typtype typcategory typdelim amtype datlocprovider contype \
         confupdtype confdeltype confmatchtype deptype ev_type ev_enabled attalign typstorage",
    ),
    (types::VARCHAR, "table_type data_type is_nullable column_default"),
    (types::FLOAT4, "reltuples enumsortorder"),
    (types::TEXT, "indexdef description extversion"),
];

/// Returns the type of a column of the catalogue views.
pub(super) fn catalog_type(column: &str) -> Option<u32> {
    let has = |columns: &str| columns.split(' ').any(|name| name == column);
    CATALOG.iter().find(|(_, columns)| has(columns)).map(|(oid, _)| *oid)
}

/// Returns the names that the statement gives to columns: `AS b`, `(..) b`, `AS t(a, b)` and
/// `WITH t(a, b) AS (..)`. Some of them are names of tables.
fn given<'t, 'a>(tokens: &'t [Token<'a>]) -> impl Iterator<Item = &'t Token<'a>> {
    let in_list = |token: &Token<'_>| token.is_name() || token.sign(",");
    let mut given = false;
    tokens.iter().enumerate().skip(1).filter_map(move |(index, token)| {
        let before = &tokens[index - 1];
        if token.sign("(") {
            let first = index.checked_sub(2).map(|first| &tokens[first]);
            let names = first.is_some_and(|first| {
                first.sign(")") || ["as", "with", "recursive"].iter().any(|word| first.is(word))
            });
            // `) AND (b = 1)` is no list of names.
            let end = || tokens[index + 1..].iter().find(|token| !in_list(token));
            given = before.is_name() && names && end().is_some_and(|token| token.sign(")"));
        } else if !in_list(token) {
            given = false;
        }
        (token.is_name() && (given || before.is("as") || before.sign(")"))).then_some(token)
    })
}

/// Names of columns, and their types.
pub(super) type TypedNames = Vec<(String, Option<u32>)>;

/// The tables that a statement mentions, among whose columns names are looked up.
pub(super) struct Names<'a> {
    db: &'a Connection,
    tables: Vec<String>,
    /// If only a certain type counts: the names that were looked up, in lower case. Those that the
    /// statement itself gives to columns are in it from the beginning, without a type.
    certain: Option<RefCell<HashMap<String, Option<u32>>>>,
}

/// The most names, and the most tables, that are looked up for a certain type. What is beyond has
/// none, so that the work of a long statement is bounded.
const CERTAIN_NAMES_MAX: usize = 4096;
const CERTAIN_TABLES_MAX: usize = 64;

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
        Names { db, tables, certain: None }
    }

    /// Returns names whose columns have a type only if all tables that the statement mentions
    /// agree, and if the statement gives the name to nothing else.
    pub(super) fn certain(db: &'a Connection, tokens: &[Token<'_>]) -> Names<'a> {
        let given = given(tokens).map(|token| (token.name().to_ascii_lowercase(), None));
        let certain = Some(RefCell::new(given.collect()));
        Names { certain, ..Names::new(db, tokens) }
    }

    fn certain_column(&self, name: &str, known: &mut HashMap<String, Option<u32>>) -> Option<u32> {
        let key = name.to_ascii_lowercase();
        if let Some(found) = known.get(&key) {
            return *found;
        }
        if known.len() >= CERTAIN_NAMES_MAX || self.tables.len() > CERTAIN_TABLES_MAX {
            return None;
        }
        let mut types = self.tables.iter().filter_map(|table| self.declared(table, name));
        let first = types.next();
        let found = first.filter(|first| types.all(|oid| oid == *first));
        known.insert(key, found);
        found
    }

    fn declared(&self, table: &str, column: &str) -> Option<u32> {
        self.declaration(table, column, types::by_name)
    }

    /// Returns what the declaration of this column of a table says.
    fn declaration<T>(&self, table: &str, column: &str, say: impl Fn(&str) -> T) -> Option<T> {
        let found = column_metadata(self.db, None, table, column).ok()?;
        Some(say(found.0?.to_str().ok()?))
    }

    /// Returns what the declaration of a column adds to its type; -1 for nothing.
    fn modifier(&self, name: &str) -> i32 {
        let of = |table: &String| self.declaration(table, name, types::modifier);
        self.tables.iter().find_map(of).unwrap_or(-1)
    }

    pub(super) fn column(&self, name: &str) -> Option<u32> {
        if let Some(known) = &self.certain {
            return self.certain_column(name, &mut known.borrow_mut());
        }
        let found = self.tables.iter().find_map(|table| self.declared(table, name));
        found.or_else(|| catalog_type(name).filter(|oid| *oid == types::BOOL))
    }

    pub(super) fn db(&self) -> &'a Connection {
        self.db
    }

    /// Returns the type of a column, with its digits if it is a numeric.
    pub(super) fn typed(&self, name: &str) -> Option<Typed> {
        Some(match self.column(name)? {
            types::NUMERIC => Typed::numeric(types::scale(self.modifier(name))),
            oid => Typed::new(oid),
        })
    }

    /// Returns the tables, with the names of their columns in lower case, and the types.
    pub(super) fn tables(&self) -> Vec<(&str, TypedNames)> {
        let tables = self.tables.iter().take(CERTAIN_TABLES_MAX);
        tables.map(|table| (table.as_str(), self.typed_names(table))).collect()
    }

    /// Returns the names of the columns of a table or a view, and their types; none if there is no
    /// such table.
    pub(super) fn typed_names(&self, table: &str) -> TypedNames {
        let Ok(prepared) = select_all(self.db, None, table) else { return Vec::new() };
        let typed = prepared.columns().map(|column| {
            (column.name().to_ascii_lowercase(), column.decl_type().map(types::by_name))
        });
        typed.collect()
    }

    pub(super) fn columns_of(&self, table: &str) -> Vec<u32> {
        let Ok(prepared) = select_all(self.db, None, table) else { return Vec::new() };
        prepared.columns().map(|c| c.decl_type().map_or(types::TEXT, types::by_name)).collect()
    }

    /// Returns the type of an operand that consists of one token.
    pub(super) fn operand(&self, token: &Token<'_>) -> Option<u32> {
        match token.kind {
            TokenKind::Number if token.text.contains(['.', 'e']) => Some(types::NUMERIC),
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
