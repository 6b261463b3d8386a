//! The columns in which a statement stores values: their declared types, and what is stored if the
//! statement says nothing.

use rusqlite::{Connection, Result};

use super::metadata::column_metadata;
use super::scope::all_columns;
use crate::dialect::tokens::Token;
use crate::error::SqlError;
use crate::wire::types;

/// A table that a statement names.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    pub(super) schema: Option<String>,
    pub(crate) name: String,
}

/// A column in which a value is stored.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) name: String,
    /// The type; [`types::UNKNOWN`] if the declaration names none that this server knows, so that
    /// the column takes any value.
    pub(crate) oid: u32,
    pub(crate) modifier: i32,
    /// Whether it is a part of a primary key that SQLite would let be NULL, or replace NULL in.
    pub(crate) keyed: bool,
    /// The default, as SQL.
    pub(crate) default: Option<String>,
}

impl Table {
    /// Returns a table of the server's own database.
    pub(crate) fn named(name: &str) -> Table {
        Table { schema: None, name: name.to_owned() }
    }

    /// Reads a name, with its schema if it has one. Returns also how many tokens it takes.
    pub(super) fn read(tokens: &[Token<'_>]) -> Option<(Table, usize)> {
        let is_own = |schema: &Token<'_>| schema.is("public") || schema.is("pg_catalog");
        match tokens {
            [schema, dot, name, ..] if dot.sign(".") && schema.is_name() && name.is_name() => {
                let schema = (!is_own(schema)).then(|| schema.name());
                Some((Table { schema, name: name.name() }, 3))
            }
            [name, ..] if name.is_name() => Some((Table::named(&name.name()), 1)),
            _ => None,
        }
    }

    /// Returns this column. Returns `None` if there is none, or if the table is a view.
    pub(crate) fn column(&self, db: &Connection, name: &str) -> Option<Target> {
        let found = column_metadata(db, self.schema.as_deref(), &self.name, name).ok()?;
        let (declared, _, not_null, key, _) = found;
        let declared = declared.and_then(|declared| declared.to_str().ok()).unwrap_or_default();
        let declared = declared.trim();
        Some(Target::new(name.to_owned(), declared, key && !not_null, key))
    }

    /// Returns the columns that INSERT fills if it names none. Returns none for a view.
    pub(crate) fn columns(&self, db: &Connection) -> Vec<Target> {
        let names = self.declarations(db).unwrap_or_default();
        let target = |(name, default): (String, Option<String>)| {
            Some(Target { default, ..self.column(db, &name)? })
        };
        names.into_iter().map(target).collect::<Option<_>>().unwrap_or_default()
    }

    /// Returns an error if there is nothing of this name.
    ///
    /// # Errors
    /// 42P01.
    pub(super) fn check_exists(&self, db: &Connection) -> crate::error::Result<()> {
        match all_columns(db, &self.name) {
            Some(_) => Ok(()),
            None => {
                let message = format!("relation \"{}\" does not exist", self.name);
                Err(SqlError::new("42P01", message))
            }
        }
    }

    /// Reads the defaults of these columns.
    pub(super) fn read_defaults(&self, db: &Connection, targets: &mut [Target]) {
        let all = self.declarations(db).unwrap_or_default();
        for target in targets {
            let own = all.iter().find(|(name, _)| name.eq_ignore_ascii_case(&target.name));
            target.default = own.and_then(|(_, default)| default.clone());
        }
    }

    /// Returns the names and the defaults of the columns that are not computed.
    fn declarations(&self, db: &Connection) -> Result<Vec<(String, Option<String>)>> {
        let sql = "SELECT name, dflt_value FROM pragma_table_xinfo(?1, ?2) WHERE hidden = 0";
        let mut prepared = db.prepare_cached(sql)?;
        let rows =
            prepared.query_map((&self.name, &self.schema), |row| Ok((row.get(0)?, row.get(1)?)))?;
        rows.collect()
    }
}

impl Target {
    fn new(name: String, declared: &str, nullable_key: bool, key: bool) -> Target {
        let oid = types::by_name(declared);
        let is = |names: &[&str]| names.iter().any(|name| declared.eq_ignore_ascii_case(name));
        let is_open = match oid {
            _ if declared.contains('[') => true,
            types::TEXT => !is(&["text"]),
            // Names such as `point` stand for whole numbers in SQLite.
            types::INT8 => !is(&["bigint", "int8", "bigserial"]),
            _ => false,
        };
        Target {
            name,
            oid: if is_open { types::UNKNOWN } else { oid },
            modifier: types::modifier(declared),
            // SQLite puts a number in place of NULL into this one, even if it is NOT NULL.
            keyed: nullable_key || (key && is(&["integer", "bigserial"])),
            default: None,
        }
    }

    /// Returns a column of a view, into which a trigger stores values.
    pub(crate) fn of_view(name: &str, declared: &str) -> Target {
        Target::new(name.to_owned(), declared, false, false)
    }

    /// Returns whether every value is stored as it is.
    pub(super) fn is_open(&self) -> bool {
        self.oid == types::UNKNOWN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_columns_of_a_table_have_their_types_and_defaults() {
        let db = Connection::open_in_memory().unwrap();
        db.execute_batch(
            "create table t(a integer primary key, b varchar(3) not null default 'x', c, d interval,
                 e int generated always as (a + 1));
             create table u(a int primary key, b int, c int not null, d int[], e point, f bigint);
             create view v as select 1 as a",
        )
        .unwrap();
        let table = Table::named("t");
        let all = table.columns(&db);
        let seen: Vec<_> = all.iter().map(|t| (t.name.as_str(), t.oid, t.modifier)).collect();
        let open = types::UNKNOWN;
        let expected = [
            ("a", types::INT4, -1),
            ("b", types::VARCHAR, 7),
            ("c", open, -1),
            ("d", types::INTERVAL, -1),
        ];
        assert_eq!(seen, expected);
        assert_eq!(all[1].default.as_deref(), Some("'x'"));
        let keyed = |table: &str, column: &str| {
            Table::named(table).column(&db, column).is_some_and(|target| target.keyed)
        };
        assert!(keyed("t", "A") && keyed("u", "a"));
        assert!(!keyed("t", "b") && !keyed("u", "b") && !keyed("u", "c"));
        let of_u = |column| Table::named("u").column(&db, column).unwrap().oid;
        assert_eq!([of_u("d"), of_u("e"), of_u("f")], [open, open, types::INT8]);
        assert!(table.column(&db, "nothing").is_none());
        assert!(Table::named("v").columns(&db).is_empty());
    }
}
