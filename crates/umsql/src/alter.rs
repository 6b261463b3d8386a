//! ALTER TABLE, as far as SQLite does not have it, and SET CONSTRAINTS .. IMMEDIATE.
//!
//! All changes of one statement happen, or none.

use rusqlite::{Connection, OptionalExtension};

use crate::dialect::AlterTable;
use crate::dialect::alter::{Owner, TableChange, changed, named_key, type_of};
use crate::dialect::keys::BIG_NUMBER;
use crate::dialect::translate::quote;
use crate::engine::{Lease, check_keys, sequences};
use crate::error::{Failure, Result, SqlError};
use crate::identity::{definition, has_added_key, number, number_by_default};
use crate::run::Ran;
use crate::sequences::{Sequence, unknown};
use crate::session::{Session, Tx};
use crate::wire::types;

impl Session {
    /// Carries out ALTER TABLE.
    pub(crate) fn alter_table(&mut self, alter: &AlterTable) -> std::result::Result<Ran, Failure> {
        self.change_schema("ALTER TABLE", |lease| carry_out(lease, alter))
    }

    /// Carries out a statement that changes the schema in several steps.
    pub(crate) fn change_schema(
        &mut self,
        tag: &str,
        carry_out: impl FnOnce(&Lease) -> Result<()>,
    ) -> std::result::Result<Ran, Failure> {
        self.begin_several();
        let outcome = self.with_lease(|me, lease| {
            me.begin_statement(lease)?;
            me.own_gate(lease)?;
            let is_alone = lease.is_autocommit();
            lease.execute_batch(if is_alone { "BEGIN" } else { "SAVEPOINT ums_alter" })?;
            let outcome = carry_out(lease);
            lease.execute_batch(match (&outcome, is_alone) {
                (Ok(()), true) => "COMMIT",
                (Ok(()), false) => "RELEASE ums_alter",
                (Err(_), true) => "ROLLBACK",
                (Err(_), false) => "ROLLBACK TO ums_alter; RELEASE ums_alter",
            })?;
            if outcome.is_err() {
                lease.forget_schema()?;
            }
            lease.schema_changed();
            me.server.forget_plans();
            me.config.mode.altered = true;
            Ok(outcome?)
        });
        self.release_gate_outside();
        outcome.map(|()| Ran::Complete(tag.into()))
    }

    /// Checks that the owner of a relation is the one that it gets: all have the same.
    ///
    /// # Errors
    /// 42P01, 42704, and 42809 for the wrong kind of a relation. ALTER TABLE is for all kinds.
    pub(crate) fn change_owner(&mut self, owner: &Owner) -> std::result::Result<Ran, Failure> {
        self.check_may_write()?;
        let same = ["ums", "current_user", "current_role", "session_user"];
        if !same.contains(&owner.role.as_str()) {
            let message = format!("role \"{}\" does not exist", owner.role);
            return Err(SqlError::new("42704", message)
                .hint("The role ums owns everything; pg_restore and pg_dump have --no-owner.")
                .into());
        }
        let name = &owner.relation;
        let found = self.with_lease(|me, lease| {
            me.begin_statement(lease)?;
            let kind = "SELECT type FROM sqlite_schema \
                WHERE name = ?1 COLLATE NOCASE AND type <> 'trigger'";
            let found = lease.query_row(kind, [name], |row| row.get(0)).optional()?;
            let is_it = |one: &Sequence| one.name.eq_ignore_ascii_case(name);
            Ok(match found {
                None if sequences(lease)?.iter().any(is_it) => Some("sequence".to_owned()),
                found => found,
            })
        })?;
        let wrong = match (owner.tag, found.as_deref()) {
            (_, None) if !owner.if_exists => return Err(unknown(name).into()),
            (_, None) | ("ALTER TABLE", _) => None,
            ("ALTER VIEW", Some(kind)) => (kind != "view").then_some("a view"),
            ("ALTER SEQUENCE", Some(kind)) => (kind != "sequence").then_some("a sequence"),
            (_, Some(kind)) => (kind != "index").then_some("an index"),
        };
        match wrong {
            Some(kind) => Err(SqlError::new("42809", format!("\"{name}\" is not {kind}")).into()),
            None => Ok(Ran::Complete(owner.tag.into())),
        }
    }

    /// Looks for rows that refer to none, now and after each statement of the transaction.
    pub(crate) fn check_constraints(&mut self) -> std::result::Result<Ran, Failure> {
        self.with_lease(|_, lease| Ok(check_keys(lease, None)?))?;
        self.config.mode.checks_keys = self.tx == Tx::Block;
        Ok(Ran::Complete("SET CONSTRAINTS".into()))
    }
}

fn carry_out(lease: &Lease, alter: &AlterTable) -> Result<()> {
    if alter.table.get(..7).is_some_and(|start| start.eq_ignore_ascii_case("sqlite_")) {
        let message = format!("permission denied for table {}", alter.table);
        return Err(SqlError::new("42501", message));
    }
    let Some((table, mut definition)) = definition(lease, &alter.table)? else {
        if alter.if_exists {
            return Ok(());
        }
        let message = format!("relation \"{}\" does not exist", alter.table);
        return Err(SqlError::new("42P01", message));
    };
    for change in &alter.changes {
        match change {
            TableChange::Type { column, declared } if is_row_number(lease, &table, column)? => {
                change_number(lease, &table, &mut definition, column, declared)?;
                continue;
            }
            TableChange::Default(column, _) if is_row_number(lease, &table, column)? => {
                let message = "changing the default of the number of the row is not supported";
                return Err(SqlError::unsupported(message));
            }
            // The word INTEGER would make a key the number of the row, for which the table is
            // stored in another way.
            TableChange::Type { column, declared } if declared.eq_ignore_ascii_case("integer") => {
                let (column, declared) = (column.clone(), "int".to_owned());
                let change = TableChange::Type { column, declared };
                apply(lease, &table, &mut definition, &change)?;
                continue;
            }
            TableChange::Key { name, is_primary, columns } => {
                let key = (name.as_deref(), *is_primary, &columns[..]);
                add_key(lease, &table, &mut definition, key)?;
                continue;
            }
            TableChange::Identity { column, is_always, options } => {
                number(lease, &table, &mut definition, (column, *is_always), options)?;
                continue;
            }
            TableChange::Numbers { column, sequence } => {
                number_by_default(lease, &table, &mut definition, column, sequence)?;
                continue;
            }
            TableChange::Drop { constraint, if_exists } => {
                if drop_key(lease, constraint)? {
                    continue;
                }
                if *if_exists && changed(&definition, change).is_err() {
                    continue;
                }
            }
            _ => (),
        }
        apply(lease, &table, &mut definition, change)?;
    }
    Ok(())
}

/// Adds a PRIMARY KEY or a UNIQUE: a unique index, unless it is the key that a numbered column has
/// already.
fn add_key(
    lease: &Lease,
    table: &str,
    definition: &mut String,
    (name, is_primary, columns): (Option<&str>, bool, &[String]),
) -> Result<()> {
    check_columns(lease, table, columns, is_primary)?;
    let own = match is_primary {
        true => format!("{table}_pkey"),
        false => format!("{table}_{}_key", columns.join("_")),
    };
    let name = name.unwrap_or(&own);
    let taken = "SELECT 1 FROM sqlite_schema WHERE name = ?1 COLLATE NOCASE";
    let is_taken = lease.prepare(taken)?.exists([name])?;
    let exists = || SqlError::new("42P07", format!("relation \"{name}\" already exists"));
    if is_primary {
        if let Some(named) = named_key(definition, name, columns)? {
            if is_taken {
                return Err(exists());
            }
            *definition = named;
            return lease.redefine(table, definition);
        }
        let has_key = "SELECT EXISTS (SELECT 1 FROM pragma_table_info(?1) WHERE pk > 0)";
        if lease.query_row(has_key, [table], |row| row.get(0))? || has_added_key(lease, table)? {
            let message = format!("multiple primary keys for table \"{table}\" are not allowed");
            return Err(SqlError::new("42P16", message));
        }
    }
    if is_taken {
        return Err(exists());
    }
    let list: Vec<_> = columns.iter().map(|column| quote(column)).collect();
    let (name, on, list) = (quote(name), quote(table), list.join(", "));
    // The comment, which SQLite keeps, tells the catalogue that this is more than an index.
    let kind = if is_primary { "PRIMARY KEY" } else { "UNIQUE" };
    lease.execute_batch(&format!("CREATE UNIQUE INDEX {name} ON {on} ({list} /* {kind} */)"))?;
    if is_primary {
        forbid_null(lease, table, columns)?;
        *definition = crate::identity::definition(lease, table)?.unwrap_or_default().1;
    }
    Ok(())
}

/// Checks that a key names columns of the table, each once.
fn check_columns(lease: &Lease, table: &str, columns: &[String], is_primary: bool) -> Result<()> {
    let text = "SELECT 1 FROM pragma_table_xinfo(?1) WHERE name = ?2 COLLATE NOCASE";
    for (at, column) in columns.iter().enumerate() {
        if !lease.prepare(text)?.exists([table, column])? {
            let message = format!("column \"{column}\" named in key does not exist");
            return Err(SqlError::new("42703", message));
        }
        if columns[..at].iter().any(|other| other.eq_ignore_ascii_case(column)) {
            let kind = if is_primary { "primary key" } else { "unique" };
            let message = format!("column \"{column}\" appears twice in {kind} constraint");
            return Err(SqlError::new("42701", message));
        }
    }
    Ok(())
}

/// Changes the type of the number of the row.
fn change_number(
    lease: &Lease,
    table: &str,
    definition: &mut String,
    column: &str,
    declared: &str,
) -> Result<()> {
    let (oid, _) = type_of(declared);
    if !matches!(oid, types::INT2 | types::INT4 | types::INT8) {
        let message = format!("the type of the key \"{column}\" cannot be changed");
        return Err(SqlError::unsupported(message));
    }
    check_range(lease, table, column, oid)?;
    *definition = definition.replacen(BIG_NUMBER, "INTEGER", 1);
    let declared = if oid == types::INT8 { BIG_NUMBER } else { "INTEGER" };
    let (column, declared) = (column.to_owned(), declared.to_owned());
    *definition = changed(definition, &TableChange::Type { column, declared })?;
    lease.redefine(table, definition)
}

/// Returns an error if a number in the column is too large for the type.
fn check_range(lease: &Lease, table: &str, column: &str, oid: u32) -> Result<()> {
    let (max, name) = match oid {
        types::INT2 => (i64::from(i16::MAX), "smallint"),
        types::INT4 => (i64::from(i32::MAX), "integer"),
        _ => return Ok(()),
    };
    let column = quote(column);
    let text = format!("SELECT 1 FROM {} WHERE {column} NOT BETWEEN ?1 AND ?2", quote(table));
    match lease.prepare(&text)?.exists([-max - 1, max])? {
        true => Err(SqlError::new("22003", format!("{name} out of range"))),
        false => Ok(()),
    }
}

/// Forbids NULL in the columns of a primary key.
fn forbid_null(lease: &Lease, table: &str, columns: &[String]) -> Result<()> {
    let text = "SELECT \"notnull\" FROM pragma_table_info(?1) WHERE name = ?2 COLLATE NOCASE";
    for column in columns {
        if !lease.query_row(text, [table, column], |row| row.get(0))? {
            let (table, column) = (quote(table), quote(column));
            lease.execute_batch(&format!(
                "ALTER TABLE {table} ALTER COLUMN {column} SET NOT NULL"
            ))?;
        }
    }
    Ok(())
}

/// Carries out one change, and checks or converts what is stored.
fn apply(lease: &Lease, table: &str, definition: &mut String, change: &TableChange) -> Result<()> {
    *definition = changed(definition, change)?;
    lease.redefine(table, definition)?;
    match change {
        TableChange::Add(_) => {
            check_keys(lease, Some(table))?;
            check_rows(lease, table)
        }
        TableChange::Type { column, declared } => convert(lease, table, column, declared),
        _ => Ok(()),
    }
}

/// Returns whether the column is the number of the row.
fn is_row_number(db: &Connection, table: &str, column: &str) -> Result<bool> {
    let text =
        "SELECT count(*) = 1 AND max(name = ?2 COLLATE NOCASE AND type = 'INTEGER' COLLATE NOCASE)
        FROM pragma_table_info(?1) WHERE pk > 0";
    Ok(db.query_row(text, [table, column], |row| row.get::<_, Option<bool>>(0))? == Some(true))
}

/// Drops the unique index that stands for a key which was added later. Returns false if there is
/// none.
fn drop_key(db: &Connection, constraint: &str) -> Result<bool> {
    let text = "SELECT count(*) FROM sqlite_schema WHERE type = 'index' AND name = ?1
        COLLATE NOCASE AND sql IS NOT NULL";
    let is_index = db.query_row(text, [constraint], |row| row.get::<_, bool>(0))?;
    if is_index {
        db.execute_batch(&format!("DROP INDEX {}", quote(constraint)))?;
    }
    Ok(is_index)
}

/// Returns an error if a row violates a CHECK.
fn check_rows(db: &Connection, table: &str) -> Result<()> {
    let check = format!("PRAGMA quick_check({})", quote(table));
    let said: String = db.query_row(&check, [], |row| row.get(0))?;
    if said == "ok" {
        return Ok(());
    }
    let message = format!("a row of table \"{table}\" violates the constraint: {said}");
    Err(SqlError::new("23514", message))
}

/// Converts what is stored to the new type of the column.
fn convert(db: &Connection, table: &str, column: &str, declared: &str) -> Result<()> {
    let (oid, modifier) = type_of(declared);
    let (table, column) = (quote(table), quote(column));
    db.execute_batch(&format!(
        "UPDATE {table} SET {column} = ums_assign({column}, {oid}, {modifier})
            WHERE {column} IS NOT NULL; REINDEX {table}"
    ))?;
    Ok(())
}
