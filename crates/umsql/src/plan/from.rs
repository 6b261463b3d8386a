//! Reads FROM clauses: tables, queries and functions that return rows, and the conditions of their
//! joins.
//!
//! What is not understood makes the scope open: a name that is in none of its relations may be
//! one of what was not understood.

use std::ops::Range;
use std::rc::Rc;

use super::analysis::Analysis;
use super::expression::Typed;
use super::parts::{Columns, NameScope, Outcome, Relation, RelationSource};
use super::scope::all_columns;
use crate::dialect::tokens::TokenKind;
use crate::wire::arrays::element_of;
use crate::wire::types;

/// The most relations of one FROM clause.
const RELATIONS_MAX: usize = 64;

/// Gives the columns other names.
fn renamed(columns: Rc<[Outcome]>, names: &[String]) -> Rc<[Outcome]> {
    let mut columns = columns.to_vec();
    for (column, name) in columns.iter_mut().zip(names) {
        column.name.clone_from(name);
    }
    columns.into()
}

impl Analysis<'_, '_> {
    /// Returns what is in the FROM clause in the range.
    pub(super) fn from<'s>(
        &mut self,
        parent: Option<&'s NameScope<'s>>,
        range: Range<usize>,
    ) -> NameScope<'s> {
        let level = self.levels.len();
        let mut scope = NameScope { parent, level, ..NameScope::default() };
        let mut conditions = Vec::new();
        let mut at = range.start;
        if self.joined(&mut scope, &mut conditions, &mut at, range.end).is_none() || at != range.end
        {
            scope.is_open = true;
        }
        for condition in conditions {
            self.condition_at(&scope, "JOIN/ON", condition);
        }
        scope
    }

    /// Reads relations and the joins between them.
    fn joined(
        &mut self,
        scope: &mut NameScope<'_>,
        conditions: &mut Vec<Range<usize>>,
        at: &mut usize,
        end: usize,
    ) -> Option<()> {
        self.relation(scope, at, end)?;
        while *at < end {
            if scope.relations.len() > RELATIONS_MAX {
                return None;
            }
            if self.is(*at, end, ",") {
                *at += 1;
                self.relation(scope, at, end)?;
                continue;
            }
            let (start, natural) = (*at, self.is(*at, end, "natural"));
            const WORDS: [&str; 7] =
                ["natural", "left", "right", "full", "inner", "cross", "outer"];
            while WORDS.iter().any(|word| self.is(*at, end, word)) {
                *at += 1;
            }
            if !self.is(*at, end, "join") {
                return None;
            }
            *at += 1;
            self.relation(scope, at, end)?;
            if natural {
                self.merge(scope);
            }
            let is_free = natural || self.is(start, end, "cross");
            if is_free == (self.is(*at, end, "on") || self.is(*at, end, "using")) {
                // SQLite takes a join without a condition as CROSS JOIN.
                let text =
                    self.token(*at, end).map(|token| format!("at or near \"{}\"", token.text));
                let near = text.unwrap_or_else(|| "at end of input".to_owned());
                self.refuse(*at, "42601", format!("syntax error {near}"));
            }
            if self.is(*at, end, "on") {
                let start = *at + 1;
                *at = self.end_of_join(start, end);
                conditions.push(start..*at);
            } else if self.is(*at, end, "using") {
                let close = self.closing(*at + 1, end)?;
                let names = self.names(*at + 2..close);
                scope.relations.last_mut()?.merged = names;
                *at = close + 1;
            }
        }
        Some(())
    }

    /// Notes which columns a natural join merges.
    fn merge(&mut self, scope: &mut NameScope<'_>) {
        let Some((last, before)) = scope.relations.split_last_mut() else { return };
        let columns = match &last.source {
            RelationSource::Table(table) => all_columns(self.db, table),
            RelationSource::Columns(columns) => Some(Rc::clone(columns)),
            _ => None,
        };
        let is_known = columns.as_ref().map(|columns| columns.len() * before.len());
        scope.is_open |= is_known.and_then(|work| self.count(work)).is_none();
        if scope.is_open {
            return;
        }
        let names = columns.iter().flat_map(|columns| columns.iter().map(|column| &column.name));
        let has = |name: &&String| {
            before.iter().any(|relation| self.column_of(relation, name) != Ok(None))
        };
        last.merged = names.filter(has).cloned().collect();
    }

    /// Returns where the condition that begins at `at` ends.
    fn end_of_join(&self, at: usize, end: usize) -> usize {
        let mut depth = 0usize;
        let place = (at..end).find(|index| {
            let token = &self.tokens[*index];
            match token.text {
                "(" => depth += 1,
                ")" => depth = depth.saturating_sub(1),
                _ => (),
            }
            const WORDS: [&str; 6] = ["natural", "join", "inner", "cross", "full", "left"];
            let begins = WORDS.iter().any(|word| token.is(word)) || token.is("right");
            depth == 0 && (token.sign(",") || (begins && !self.is(index + 1, end, "(")))
        });
        place.unwrap_or(end)
    }

    /// Returns the names in a list, in lower case.
    pub(super) fn names(&self, range: Range<usize>) -> Vec<String> {
        let names = self.tokens[range].iter().filter(|token| token.is_name());
        names.map(|token| token.name().to_ascii_lowercase()).collect()
    }

    /// Reads one relation with its alias.
    fn relation(&mut self, scope: &mut NameScope<'_>, at: &mut usize, end: usize) -> Option<()> {
        while self.is(*at, end, "lateral") || self.is(*at, end, "only") {
            *at += 1;
        }
        if self.is(*at, end, "(") {
            let close = self.closing(*at, end)?;
            let inner = *at + 1..close;
            if !self.begins_query(inner.start, close) {
                // A join in parentheses.
                return None;
            }
            let columns = self.query(scope.parent, inner).columns;
            *at = close + 1;
            let source = columns.map_or(RelationSource::Unknown, RelationSource::Columns);
            self.alias(scope, (String::new(), source), at, end);
            return Some(());
        }
        let start = *at;
        self.token(*at, end).filter(|token| token.is_name())?;
        while self.is(*at + 1, end, ".") {
            *at += 2;
        }
        let last = self.token(*at, end).filter(|token| token.is_name())?;
        *at += 1;
        let name = last.name().to_ascii_lowercase();
        if self.is(*at, end, "(") {
            let close = self.closing(*at, end)?;
            let inner = *at + 1..close;
            *at = close + 1;
            self.function_in_from(scope, &name, inner, (at, end));
            return Some(());
        }
        let source = self.source(start, *at - 1);
        self.alias(scope, (name, source), at, end);
        Some(())
    }

    /// Adds what a function returns as a table.
    fn function_in_from(
        &mut self,
        scope: &mut NameScope<'_>,
        name: &str,
        inner: Range<usize>,
        (at, end): (&mut usize, usize),
    ) {
        if matches!(name, "json_each" | "jsonb_each") {
            let column =
                |name: &str, oid| Outcome { name: name.to_owned(), typed: Some(Typed::new(oid)) };
            let value = if name == "json_each" { types::JSON } else { types::JSONB };
            let columns = [column("key", types::TEXT), column("value", value)];
            let source = RelationSource::Columns(Rc::from(columns));
            return self.alias(scope, (name.to_owned(), source), at, end);
        }
        if name == "unnest" {
            let column = |me: &mut Self, item: Range<usize>| {
                let array = me.expression(scope, item).typed;
                let typed = array.and_then(|array| element_of(array.oid)).map(Typed::new);
                Outcome { name: name.to_owned(), typed }
            };
            let mut columns: Vec<Outcome> =
                self.split(inner).into_iter().map(|item| column(self, item)).collect();
            if self.is(*at, end, "with") && self.is(*at + 1, end, "ordinality") {
                *at += 2;
                let typed = Some(Typed::new(types::INT8));
                columns.push(Outcome { name: "ordinality".to_owned(), typed });
            }
            if let [only] = &columns[..] {
                return self.only_column_in_from(scope, name, only.typed, (at, end));
            }
            let source = RelationSource::Columns(columns.into());
            return self.alias(scope, (name.to_owned(), source), at, end);
        }
        if name != "generate_series" {
            if !name.starts_with("pg_") && all_columns(self.db, name).is_none() {
                let message = format!("function {name} does not exist");
                self.refuse(inner.start.saturating_sub(2), "42883", message);
            }
            return self.alias(scope, (name.to_owned(), RelationSource::Unknown), at, end);
        }
        let is_other = |place: &usize| {
            let name = self.tokens[*place].name().to_ascii_lowercase();
            self.is(place + 1, inner.end, ".")
                && scope.relations.iter().any(|other| other.name == name)
        };
        if let Some(place) = inner.clone().find(is_other) {
            self.unsupported(
                place,
                "a function of another table's columns in FROM is not supported",
                "Call it in a query of its own, or write a join.",
            );
        }
        let typed = self.series(scope, inner);
        self.only_column_in_from(scope, name, typed, (at, end));
    }

    /// Adds a function that returns one column.
    fn only_column_in_from(
        &mut self,
        scope: &mut NameScope<'_>,
        name: &str,
        typed: Option<Typed>,
        (at, end): (&mut usize, usize),
    ) {
        let column = Outcome { name: name.to_owned(), typed };
        let source = RelationSource::Columns(Rc::from([column]));
        self.alias(scope, (name.to_owned(), source), at, end);
        // The alias names the column, too.
        if let Some(relation) = scope.relations.last_mut()
            && let RelationSource::Columns(columns) = &relation.source
            && columns[0].name == name
        {
            let name = [relation.name.clone()];
            relation.source = RelationSource::Columns(renamed(Rc::clone(columns), &name));
        }
    }

    /// Reads the alias of a relation, and adds the relation to the scope.
    fn alias(
        &mut self,
        scope: &mut NameScope<'_>,
        (mut name, mut source): (String, RelationSource),
        at: &mut usize,
        end: usize,
    ) {
        let is_as = self.is(*at, end, "as");
        *at += usize::from(is_as);
        let alias = self.token(*at, end).filter(|token| token.is_name());
        if let Some(alias) = alias.filter(|token| is_as || !is_join_word(token.text)) {
            name = alias.name().to_ascii_lowercase();
            *at += 1;
            if self.is(*at, end, "(")
                && let Some(close) = self.closing(*at, end)
            {
                let names = self.names(*at + 1..close);
                *at = close + 1;
                source = match source {
                    RelationSource::Columns(columns) => {
                        RelationSource::Columns(renamed(columns, &names))
                    }
                    RelationSource::Table(table) => match all_columns(self.db, &table) {
                        Some(columns) => RelationSource::Columns(renamed(columns, &names)),
                        None => RelationSource::Unknown,
                    },
                    other => other,
                };
            }
        }
        scope.relations.push(Relation { name, source, merged: Vec::new() });
    }

    /// Returns what the name stands for whose tokens are from `start` to `last`.
    pub(super) fn source(&mut self, start: usize, last: usize) -> RelationSource {
        if self.count(1 + self.tables.len() / 8).is_none() {
            return RelationSource::Unknown;
        }
        let name = self.tokens[last].name();
        if start == last {
            let lower = name.to_ascii_lowercase();
            let found = self.tables.iter().rev().find(|(table, _)| *table == lower);
            if let Some((_, columns)) = found {
                return columns.clone().map_or(RelationSource::Unknown, RelationSource::Columns);
            }
        } else {
            match self.tokens[start].name().to_ascii_lowercase().as_str() {
                "pg_catalog" | "information_schema" => return RelationSource::Catalog,
                "public" | "main" => (),
                _ => return RelationSource::Unknown,
            }
        }
        if matches!(self.db.table_exists(None, name.as_str()), Ok(true)) {
            return RelationSource::Table(name);
        }
        let is_catalog = self.tokens[last].kind == TokenKind::Word
            && name.get(..3).is_some_and(|start| start.eq_ignore_ascii_case("pg_"));
        if is_catalog {
            return RelationSource::Catalog;
        }
        let columns = all_columns(self.db, &name);
        self.view(&name, columns).map_or(RelationSource::Unknown, RelationSource::Columns)
    }

    /// Returns the scope of a statement that changes the table whose name, and alias, begin at
    /// `at`.
    pub(super) fn target(&mut self, at: &mut usize, end: usize) -> Option<NameScope<'static>> {
        let level = self.levels.len();
        let mut scope = NameScope { level, ..NameScope::default() };
        *at += usize::from(self.is(*at, end, "only"));
        let start = *at;
        *at += if self.is(*at + 1, end, ".") { 3 } else { 1 };
        let name = self.token(*at - 1, end).filter(|token| token.is_name())?;
        let name = name.name().to_ascii_lowercase();
        let source = self.source(start, *at - 1);
        if self.is(*at, end, "(") {
            // The list of an INSERT.
            scope.relations.push(Relation { name, source, merged: Vec::new() });
        } else {
            self.alias(&mut scope, (name, source), at, end);
        }
        Some(scope)
    }

    /// Returns the columns of a common table expression's query, with the names in its list.
    pub(super) fn with_names(columns: Columns, names: &[String]) -> Columns {
        columns.map(|columns| renamed(columns, names))
    }
}

fn is_join_word(word: &str) -> bool {
    const WORDS: &str = "natural left right full inner cross outer join on using set with \
                         tablesample values select default returning where";
    WORDS.split_ascii_whitespace().any(|other| word.eq_ignore_ascii_case(other))
}
