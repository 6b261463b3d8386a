//! What GROUP BY and DISTINCT allow. With GROUP BY, or an aggregate, a query may name a column
//! outside an aggregate only if the column is grouped, or if the primary key of its table is.
//! SQLite takes the column's value from any row of the group.
//!
//! ```text
//!   select place, id from reading group by place                42803: id is not grouped
//!   select distinct role from staff order by name               42P10: name is no result
//! ```
//!
//! If GROUP BY has an expression, nothing is checked, because an equal expression is allowed, too.

use std::ops::Range;

use super::analysis::Analysis;
use super::metadata::column_metadata;
use super::parts::{Item, NameScope, QueryClause, Reference, Relation, RelationSource};
use crate::dialect::tokens::TokenKind;

/// The most items of GROUP BY, of ORDER BY and of a select list that are compared with each other.
const ITEMS_MAX: usize = 200;

/// The grouped columns, and the parts of the statement that are grouped as a whole.
#[derive(Default)]
struct Grouped {
    columns: Vec<(usize, String)>,
    parts: Vec<Range<usize>>,
}

impl Analysis<'_, '_> {
    pub(super) fn enter_aggregate(&mut self, is_aggregate: bool) {
        if let Some(level) = self.levels.last_mut().filter(|_| is_aggregate) {
            level.has_aggregate = true;
            level.inside += 1;
        }
    }

    pub(super) fn leave_aggregate(&mut self, is_aggregate: bool) {
        if let Some(level) = self.levels.last_mut().filter(|_| is_aggregate) {
            level.inside = level.inside.saturating_sub(1);
        }
    }

    /// Notes that the query of this level names a column of its own FROM clause.
    pub(super) fn refer(
        &mut self,
        level: usize,
        tokens: Range<usize>,
        relation: usize,
        column: String,
    ) {
        if level == self.levels.len()
            && let Some(level) = self.levels.last_mut()
            && level.inside == 0
            && matches!(level.clause, QueryClause::Results | QueryClause::Having)
        {
            level.references.push(Reference { tokens, relation, column });
        }
    }

    /// Checks that each column outside an aggregate is grouped.
    pub(super) fn check_groups(
        &mut self,
        scope: &NameScope<'_>,
        items: &[Item],
        group: Option<Range<usize>>,
        has_having: bool,
    ) {
        let Some(level) = self.levels.last_mut() else { return };
        let references = std::mem::take(&mut level.references);
        if group.is_none() && !level.has_aggregate && !has_having {
            return;
        }
        let mut grouped = Grouped::default();
        let parts = group.map(|range| self.split(range)).unwrap_or_default();
        if parts.len() > ITEMS_MAX {
            return;
        }
        for part in parts {
            if self.add_group(scope, items, part, &mut grouped).is_none() {
                return;
            }
        }
        let all = scope.relations.iter().enumerate();
        let has_key: Vec<bool> =
            all.map(|(at, relation)| self.has_grouped_key(relation, at, &grouped)).collect();
        let is_free = |reference: &&Reference| {
            let Reference { tokens, relation, column } = reference;
            let Some(of) = scope.relations.get(*relation) else { return false };
            !grouped.parts.iter().any(|part| part.contains(&tokens.start))
                && !grouped.columns.iter().any(|(at, name)| at == relation && name == column)
                && of.merged.is_empty()
                && !has_key[*relation]
        };
        let Some(free) = references.iter().find(is_free) else { return };
        let name = &scope.relations[free.relation].name;
        let message = format!(
            "column \"{name}.{}\" must appear in the GROUP BY clause or be used in an aggregate \
             function",
            free.column
        );
        self.refuse(free.tokens.start, "42803", message);
    }

    /// Adds what an item of GROUP BY says. Returns `None` if that is an expression.
    fn add_group(
        &self,
        scope: &NameScope<'_>,
        items: &[Item],
        part: Range<usize>,
        grouped: &mut Grouped,
    ) -> Option<()> {
        if let Some(column) = self.plain_column(scope, part.clone()) {
            grouped.columns.push(column);
            return Some(());
        }
        let [token] = &self.tokens[part] else { return None };
        let item = if token.kind == TokenKind::Number {
            items.get(token.text.parse::<usize>().ok()?.checked_sub(1)?)
        } else {
            let name = token.name().to_ascii_lowercase();
            items.iter().find(|item| token.is_name() && item.alias.as_ref() == Some(&name))
        };
        let item = item?;
        grouped.columns.extend(self.plain_column(scope, item.tokens.clone()));
        grouped.parts.push(item.tokens.clone());
        Some(())
    }

    /// Returns the relation and the name of the column, if the tokens are a column's name.
    fn plain_column(&self, scope: &NameScope<'_>, tokens: Range<usize>) -> Option<(usize, String)> {
        let (qualifier, name) = match &self.tokens[tokens] {
            [name] => (None, name),
            [qualifier, dot, name] if dot.sign(".") => (Some(qualifier), name),
            _ => return None,
        };
        let name = name.is_name().then(|| name.name().to_ascii_lowercase())?;
        let qualifier = qualifier.map(|token| token.name().to_ascii_lowercase());
        let mut all = scope.relations.iter().enumerate();
        let found = all.find(|(_, relation)| {
            qualifier.as_ref().is_none_or(|qualifier| *qualifier == relation.name)
                && matches!(self.column_of(relation, &name), Ok(Some(_)))
        });
        found.map(|(index, _)| (index, name))
    }

    /// Returns whether a part of the primary key of the table is grouped. A key that was added to
    /// the table later is an index.
    fn has_grouped_key(&self, relation: &Relation, at: usize, grouped: &Grouped) -> bool {
        let RelationSource::Table(table) = &relation.source else { return false };
        let mut columns = grouped.columns.iter().filter(|(relation, _)| *relation == at);
        let is_key = |column: &str| {
            let found = column_metadata(self.db, None, table, column);
            found.is_ok_and(|(_, _, _, is_key, _)| is_key)
        };
        let has_index = || {
            let text = "SELECT 1 FROM sqlite_schema WHERE type = 'index' AND tbl_name = ?1 \
                        COLLATE NOCASE AND name = ?1 || '_pkey' COLLATE NOCASE";
            let found = self.db.prepare_cached(text).and_then(|mut query| query.exists([table]));
            found.unwrap_or(true)
        };
        columns.clone().any(|(_, column)| is_key(column))
            || (columns.next().is_some() && has_index())
    }

    /// Checks that what DISTINCT orders by is a result.
    pub(super) fn check_distinct(
        &mut self,
        scope: &NameScope<'_>,
        items: &[Item],
        order: Range<usize>,
    ) {
        let parts = self.split(order);
        let is_long = items.len() > ITEMS_MAX || parts.len() > ITEMS_MAX;
        if scope.is_open || is_long || items.iter().any(|item| item.is_star) {
            return;
        }
        let columns: Vec<_> =
            items.iter().map(|item| self.plain_column(scope, item.tokens.clone())).collect();
        for part in parts {
            const WORDS: [&str; 5] = ["asc", "desc", "nulls", "first", "last"];
            let is_way = |at: &usize| WORDS.iter().any(|word| self.tokens[*at].is(word));
            let end = part.clone().find(is_way).unwrap_or(part.end);
            let part = part.start..end;
            let column = self.plain_column(scope, part.clone());
            let text = |range: &Range<usize>| {
                self.tokens[range.clone()].iter().map(|token| token.folded())
            };
            let is_result = |(item, own): (&Item, &Option<(usize, String)>)| {
                text(&item.tokens).eq(text(&part))
                    || (column.is_some() && *own == column)
                    || (part.len() == 1
                        && item.alias.as_ref()
                            == Some(&self.tokens[part.start].name().to_ascii_lowercase()))
            };
            let is_number = part.len() == 1 && self.tokens[part.start].kind == TokenKind::Number;
            if !is_number && !part.is_empty() && !items.iter().zip(&columns).any(is_result) {
                let message =
                    "for SELECT DISTINCT, ORDER BY expressions must appear in select list";
                self.refuse(part.start, "42P10", message.to_owned());
            }
        }
    }
}
