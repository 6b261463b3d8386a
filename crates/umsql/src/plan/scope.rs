//! The columns that an expression can name: those of what is in the FROM clause of its query, and
//! those of the queries around it.

use std::ops::Range;
use std::rc::Rc;

use rusqlite::Connection;

use super::analysis::Analysis;
use super::expression::Typed;
use super::metadata::{column_metadata, is_big_number, select_all};
use super::names::catalog_type;
use super::parts::{Columns, NameScope, Outcome, Relation, RelationSource, TypedOperand};
use crate::dialect::tokens::TokenKind;
use crate::wire::types;

/// Where a name was found.
enum Place {
    /// The number of scopes between the name and its relation, the index of the relation in its
    /// scope, and the type of the column.
    At(usize, usize, Option<Typed>),
    Missing,
    /// Perhaps in something that is not known.
    Unsure,
}

/// Returns the declared type of a table's column; `None` if the table has no such column. The inner
/// `None` means a type without rules.
pub(super) fn table_column(db: &Connection, table: &str, column: &str) -> Option<Option<Typed>> {
    let found = column_metadata(db, None, table, column).ok()?;
    let declared = found.0.and_then(|declared| declared.to_str().ok());
    Some(declared.and_then(Typed::declared))
}

fn is_integer(column: &Outcome) -> bool {
    column.typed.is_some_and(|typed| typed.oid == types::INT4)
}

/// Returns the columns of anything that SQLite can select from.
pub(super) fn all_columns(db: &Connection, table: &str) -> Columns {
    let prepared = select_all(db, None, table).ok()?;
    let mut columns: Vec<_> = prepared
        .columns()
        .map(|column| Outcome {
            name: column.name().to_ascii_lowercase(),
            typed: column.decl_type().and_then(Typed::declared),
        })
        .collect();
    // Also of a view, SQLite tells the table from which a column is.
    for (column, origin) in columns.iter_mut().zip(prepared.columns_with_metadata()) {
        let found = origin.table_name().zip(origin.origin_name());
        let schema = origin.database_name();
        let is_big = |(table, name)| is_big_number(db, schema, table, name);
        if is_integer(column) && found.is_some_and(is_big) {
            column.typed = Some(Typed::new(types::INT8));
        }
    }
    Some(columns.into())
}

impl Analysis<'_, '_> {
    /// Returns the column that the tokens name: `a`, `t.a` or `s.t.a`.
    pub(super) fn column(
        &mut self,
        scope: &NameScope<'_>,
        range: Range<usize>,
    ) -> Option<TypedOperand> {
        self.count(1 + scope.relations.len())?;
        let last = self.tokens[range.end - 1];
        let name = last.name().to_ascii_lowercase();
        let qualifier =
            (range.len() > 1).then(|| self.tokens[range.end - 3].name().to_ascii_lowercase());
        match self.place(scope, qualifier.as_deref(), &name) {
            Place::At(0, relation, typed) => {
                self.check_case(&scope.relations[relation], range.end - 1);
                self.refer(scope.level, range, relation, name);
                Some(TypedOperand::of(typed))
            }
            Place::At(_, _, typed) => Some(TypedOperand::of(typed)),
            Place::Missing => {
                if qualifier.is_none() && scope.relations.iter().any(|other| other.name == name) {
                    self.unsupported(
                        range.start,
                        "a row as a value is not supported",
                        "Name its columns.",
                    );
                }
                if qualifier.is_none() && self.is_alias_only(scope.level, &name) {
                    let message = format!("column \"{}\" does not exist", last.folded());
                    self.refuse(range.start, "42703", message);
                }
                Some(TypedOperand::default())
            }
            Place::Unsure => Some(TypedOperand::default()),
        }
    }

    fn place(&mut self, scope: &NameScope<'_>, qualifier: Option<&str>, name: &str) -> Place {
        let mut at = Some(scope);
        let mut up = 0;
        while let Some(scope) = at {
            let mut is_sure = !scope.is_open;
            for (index, relation) in scope.relations.iter().enumerate() {
                if qualifier.is_some_and(|qualifier| qualifier != relation.name) {
                    continue;
                }
                match self.column_of(relation, name) {
                    Ok(Some(typed)) => return Place::At(up, index, typed),
                    Ok(None) => (),
                    Err(()) => is_sure = false,
                }
            }
            if !is_sure {
                return Place::Unsure;
            }
            (at, up) = (scope.parent, up + 1);
        }
        Place::Missing
    }

    /// Returns the type of a relation's column; an error if it is not known whether it has one.
    pub(super) fn column_of(
        &self,
        relation: &Relation,
        name: &str,
    ) -> Result<Option<Option<Typed>>, ()> {
        match &relation.source {
            RelationSource::Table(table) => Ok(table_column(self.db, table, name)),
            RelationSource::Catalog => match catalog_type(name) {
                Some(oid) => Ok(Some(Some(Typed::new(oid)))),
                None => Err(()),
            },
            RelationSource::Columns(columns) => {
                let found = columns.iter().find(|column| column.name == name);
                match found {
                    Some(column) => Ok(Some(column.typed)),
                    // The query gives a column a name that is not known here.
                    None if columns.iter().any(|column| column.name.is_empty()) => Err(()),
                    None => Ok(None),
                }
            }
            RelationSource::Unknown => Err(()),
        }
    }

    /// Refuses a name in quotes that differs from the column's in the case of its letters. A
    /// column whose own name has capital letters may have been created without quotes.
    fn check_case(&mut self, relation: &Relation, at: usize) {
        let token = &self.tokens[at];
        let RelationSource::Table(table) = &relation.source else { return };
        let name = token.name();
        if token.kind != TokenKind::Quoted || !name.contains(|c: char| c.is_ascii_uppercase()) {
            return;
        }
        let lower = name.to_ascii_lowercase();
        let text = format!("SELECT * FROM \"{}\"", table.replace('"', "\"\""));
        let Ok(prepared) = self.db.prepare_cached(&text) else { return };
        if prepared.column_names().any(|column| column == lower) {
            let message = format!("column \"{name}\" does not exist");
            self.refuse(at, "42703", message);
        }
    }

    /// Returns whether the name is that of a result only, which a condition cannot use.
    fn is_alias_only(&self, level: usize, name: &str) -> bool {
        let level = self.levels.get(level.wrapping_sub(1));
        level.is_some_and(|level| level.is_condition() && level.aliases.contains(name))
    }

    /// Returns the columns that `*`, or `t.*`, stands for.
    pub(super) fn star(
        &mut self,
        scope: &NameScope<'_>,
        qualifier: Option<&str>,
        at: usize,
    ) -> Columns {
        // SQLite knows the declarations of the statement's columns, except those of big numbers.
        let has_big = |table: &str| {
            let all = select_all(self.db, None, table);
            let is_big = |name: &str| is_big_number(self.db, None, table, name);
            all.is_ok_and(|all| all.column_names().into_iter().any(is_big))
        };
        let is_table = |relation: &Relation| match &relation.source {
            RelationSource::Table(table) => relation.merged.is_empty() && !has_big(table),
            _ => false,
        };
        let is_outer = self.levels.last().is_some_and(|level| level.is_outer);
        if scope.is_open || (is_outer && scope.relations.iter().all(is_table)) {
            return None;
        }
        let mut all: Vec<Outcome> = Vec::new();
        for relation in &scope.relations {
            if qualifier.is_some_and(|qualifier| qualifier != relation.name) {
                continue;
            }
            let columns = match &relation.source {
                RelationSource::Table(table) => all_columns(self.db, table)?,
                RelationSource::Columns(columns) => Rc::clone(columns),
                RelationSource::Catalog | RelationSource::Unknown => return None,
            };
            self.count(columns.len())?;
            // PostgreSQL begins with the columns of USING, SQLite with those of the first table.
            let merged = if qualifier.is_none() { &relation.merged[..] } else { &[] };
            let first = all.iter().take(merged.len());
            if first.filter(|column| merged.contains(&column.name)).count() != merged.len() {
                self.unsupported(
                    at,
                    "* is not supported here: USING would change the order of the columns",
                    "Name the columns.",
                );
            }
            let merged = |name: &String| merged.contains(name);
            all.extend(columns.iter().filter(|column| !merged(&column.name)).cloned());
        }
        Some(all.into())
    }
}
