//! Reads statements and queries: cuts them into clauses, and finds the columns of their results.
//!
//! The names and types of a query's columns are those of its select list. A set operation has the
//! names of its first query, and types that fit all of them.

use std::ops::Range;
use std::rc::Rc;

use super::analysis::Analysis;
use super::expression::Typed;
use super::parts::{
    COLUMNS_MAX, Columns, Item, NameScope, Outcome, QueryClause, QueryLevel, Relation,
    RelationSource, TypedOperand,
};
use crate::dialect::tokens::{Token, TokenKind};
use crate::wire::types;

/// What is known of a query.
#[derive(Default)]
pub(super) struct QueryResults {
    pub(super) columns: Columns,
    /// Whether it returns one row at most.
    pub(super) is_single: bool,
    /// Whether it is a set operation.
    of_set: bool,
}

/// The clauses of a SELECT, without the words with which they begin.
#[derive(Default)]
struct Clauses {
    list: Range<usize>,
    is_distinct: bool,
    from: Option<Range<usize>>,
    r#where: Option<Range<usize>>,
    group: Option<Range<usize>>,
    having: Option<Range<usize>>,
    order: Option<Range<usize>>,
    /// LIMIT, OFFSET and FETCH, with these words.
    limit: Option<Range<usize>>,
}

const SET_WORDS: [&str; 3] = ["union", "except", "intersect"];

impl Analysis<'_, '_> {
    /// Returns whether a query begins at `at`.
    pub(super) fn begins_query(&self, at: usize, end: usize) -> bool {
        ["select", "with", "values"].iter().any(|word| self.is(at, end, word))
    }

    /// Returns the columns of the statement's results, and whether it is a set operation.
    pub(super) fn statement(&mut self) -> (Columns, bool) {
        let end = self.tokens.len();
        self.levels.push(QueryLevel::default());
        let start = self.with(None, 0..end);
        let verb = &self.tokens[start.min(end - 1)];
        if verb.is("insert") {
            (self.insert(start..end), false)
        } else if verb.is("update") || verb.is("delete") {
            (self.change(start..end), false)
        } else {
            self.levels.pop();
            let query = self.query(None, start..end);
            (query.columns, query.of_set)
        }
    }

    /// Reads the query of a table that is created. The statement has no results.
    pub(super) fn created(&mut self) -> (Columns, bool) {
        let end = self.tokens.len();
        if let Some(at) = self.find(0..end, |at| self.tokens[at].is("as"))
            && self.begins_query(at + 1, end)
        {
            self.query(None, at + 1..end);
        }
        (None, false)
    }

    /// Returns the first place in the range, in no parentheses, for which `f` is true.
    fn find(&self, range: Range<usize>, f: impl Fn(usize) -> bool) -> Option<usize> {
        let mut depth = 0usize;
        range.into_iter().find(|at| {
            match self.tokens[*at].text {
                "(" | "[" => depth += 1,
                ")" | "]" => depth = depth.saturating_sub(1),
                _ => return depth == 0 && f(*at),
            }
            false
        })
    }

    fn insert(&mut self, range: Range<usize>) -> Columns {
        let end = range.end;
        let returning = self.find(range.clone(), |at| self.tokens[at].is("returning"));
        let conflict = self
            .find(range.clone(), |at| self.tokens[at].is("on") && self.is(at + 1, end, "conflict"));
        let rows_end = conflict.or(returning).unwrap_or(end);
        let query = self.find(range.start..rows_end, |at| {
            self.tokens[at].is("select") || self.tokens[at].is("with")
        });
        if let Some(query) = query {
            self.query(None, query..rows_end);
        }
        let into = self.find(range, |at| self.tokens[at].is("into"))?;
        let scope = self.target(&mut (into + 1), end)?;
        self.returned(&scope, returning? + 1..end)
    }

    /// Reads UPDATE or DELETE.
    fn change(&mut self, range: Range<usize>) -> Columns {
        let (start, end) = (range.start, range.end);
        let deletes = self.tokens[start].is("delete");
        let find = |word: &str| self.find(range.clone(), |at| self.tokens[at].is(word));
        let returning = find("returning");
        let rest = returning.unwrap_or(end);
        let r#where = find("where").filter(|at| *at < rest);
        let rest = r#where.unwrap_or(rest);
        let more = if deletes { find("using") } else { find("from") };
        let more = more.filter(|at| *at < rest);
        let set = find("set").filter(|_| !deletes);
        let mut scope = self.target(&mut (start + 1 + usize::from(deletes)), end)?;
        if let Some(more) = more {
            let others = self.from(None, more + 1..rest);
            scope.is_open |= others.is_open;
            scope.relations.extend(others.relations);
        }
        if let Some(set) = set {
            for item in self.split(set + 1..more.unwrap_or(rest)) {
                let equals = item.clone().find(|at| self.tokens[*at].sign("="));
                if let Some(equals) = equals.filter(|at| *at < item.start + 4) {
                    self.expression(&scope, equals + 1..item.end);
                }
            }
        }
        if let Some(at) = r#where {
            let end = returning.unwrap_or(end);
            self.condition_at(&scope, "WHERE", at + 1..end);
        }
        self.returned(&scope, returning? + 1..end)
    }

    fn returned(&mut self, scope: &NameScope<'_>, list: Range<usize>) -> Columns {
        self.items(scope, list).1
    }

    /// Reads the common table expressions at the beginning of the range, and returns what is after
    /// them.
    fn with(&mut self, parent: Option<&NameScope<'_>>, range: Range<usize>) -> usize {
        let (mut at, end) = (range.start, range.end);
        if !self.is(at, end, "with") {
            return at;
        }
        at += 1;
        let recursive = self.is(at, end, "recursive");
        at += usize::from(recursive);
        loop {
            match self.common_table(parent, recursive, &mut at, end) {
                Some(()) if self.is(at, end, ",") => at += 1,
                Some(()) => return at,
                None => {
                    self.lost = true;
                    return end;
                }
            }
        }
    }

    fn common_table(
        &mut self,
        parent: Option<&NameScope<'_>>,
        recursive: bool,
        at: &mut usize,
        end: usize,
    ) -> Option<()> {
        let name = self.token(*at, end).filter(|token| token.is_name())?.name();
        let name = name.to_ascii_lowercase();
        *at += 1;
        let mut names = Vec::new();
        if self.is(*at, end, "(") {
            let close = self.closing(*at, end)?;
            names = self.names(*at + 1..close);
            *at = close + 1;
        }
        *at += usize::from(self.is(*at, end, "as"));
        *at += usize::from(self.is(*at, end, "not"));
        *at += usize::from(self.is(*at, end, "materialized"));
        let close = self.closing(*at, end).filter(|_| self.is(*at, end, "("))?;
        let body = *at + 1..close;
        *at = close + 1;
        let set = self.find(body.clone(), |at| self.is_set_word(at));
        let columns = match set.filter(|_| recursive) {
            Some(set) => {
                let first = self.query(parent, body.start..set).columns;
                let first = Self::with_names(first, &names);
                self.tables.push((name.clone(), first.clone()));
                self.query(parent, body);
                self.tables.pop();
                first
            }
            None => Self::with_names(self.query(parent, body).columns, &names),
        };
        self.tables.push((name, columns));
        Some(())
    }

    fn is_set_word(&self, at: usize) -> bool {
        SET_WORDS.iter().any(|word| self.tokens[at].is(word))
    }

    /// Reads the query that takes up the range. What is open in its results is a text.
    pub(super) fn query(
        &mut self,
        parent: Option<&NameScope<'_>>,
        range: Range<usize>,
    ) -> QueryResults {
        let query = self.open_query(parent, range);
        let settled = |column: &Outcome| {
            let text = Typed::new(types::TEXT);
            let settle = |typed: Typed| if typed.is_open() { text } else { typed };
            Outcome { name: column.name.clone(), typed: column.typed.map(settle) }
        };
        let columns = query.columns.map(|columns| columns.iter().map(settled).collect());
        QueryResults { columns, ..query }
    }

    fn open_query(&mut self, parent: Option<&NameScope<'_>>, range: Range<usize>) -> QueryResults {
        let query = self.deeper(|me| {
            let visible = me.tables.len();
            let start = me.with(parent, range.clone());
            let query = me.set(parent, start..range.end);
            me.tables.truncate(visible);
            Some(query)
        });
        query.unwrap_or_default()
    }

    /// Reads a query, or several that a set operation joins.
    fn set(&mut self, parent: Option<&NameScope<'_>>, range: Range<usize>) -> QueryResults {
        let (mut start, mut parts) = (range.start, Vec::new());
        while let Some(at) = self.find(start..range.end, |at| self.is_set_word(at)) {
            parts.push(start..at);
            start = at + 1;
            start += usize::from(self.is(start, range.end, "all"));
            start += usize::from(self.is(start, range.end, "distinct"));
        }
        parts.push(start..range.end);
        if let [only] = &parts[..] {
            return self.part(parent, only.clone(), false);
        }
        let all: Vec<(usize, Columns)> = parts
            .into_iter()
            .map(|part| (part.start, self.part(parent, part, true).columns))
            .collect();
        let columns = self.united(&all);
        QueryResults { columns, is_single: false, of_set: true }
    }

    fn united(&mut self, all: &[(usize, Columns)]) -> Columns {
        let first = all.first()?.1.as_ref()?;
        let mut united = Vec::new();
        for (index, column) in first.iter().enumerate() {
            let mut same = Vec::new();
            for (at, columns) in all {
                let typed = columns.as_ref()?.get(index)?.typed;
                same.push((*at, TypedOperand::of(typed)));
            }
            let typed = self.common("UNION", &same);
            united.push(Outcome { name: column.name.clone(), typed });
        }
        Some(united.into())
    }

    /// Reads one query of a set operation.
    fn part(
        &mut self,
        parent: Option<&NameScope<'_>>,
        range: Range<usize>,
        in_set: bool,
    ) -> QueryResults {
        let (start, end) = (range.start, range.end);
        if self.is(start, end, "(") {
            let Some(close) = self.closing(start, end) else { return QueryResults::default() };
            let query = self.open_query(parent, start + 1..close);
            return QueryResults { is_single: query.is_single && close + 1 == end, ..query };
        }
        if self.is(start, end, "values") {
            let columns = self.values(parent, start + 1..end);
            let is_single = self.find(range, |at| self.tokens[at].sign(",")).is_none();
            return QueryResults { columns, is_single, of_set: false };
        }
        if !self.is(start, end, "select") {
            return QueryResults::default();
        }
        let is_outer = self.levels.is_empty() && !in_set;
        self.levels.push(QueryLevel { is_outer, ..QueryLevel::default() });
        let query = self.select(parent, start + 1..end, in_set);
        self.levels.pop();
        query
    }

    fn values(&mut self, parent: Option<&NameScope<'_>>, range: Range<usize>) -> Columns {
        let level = self.levels.len();
        let scope = NameScope { parent, level, ..NameScope::default() };
        let ends = |at: usize| ["order", "limit"].iter().any(|word| self.tokens[at].is(word));
        let end = self.find(range.clone(), ends).unwrap_or(range.end);
        let mut columns: Vec<Vec<(usize, TypedOperand)>> = Vec::new();
        for row in self.split(range.start..end) {
            if row.len() < 2 {
                return None;
            }
            for (index, item) in self.split(row.start + 1..row.end - 1).into_iter().enumerate() {
                if columns.len() == index {
                    columns.push(Vec::new());
                }
                let operand = self.expression(&scope, item.clone());
                columns[index].push((item.start, operand));
            }
        }
        let named = columns.iter().enumerate().map(|(index, same)| Outcome {
            name: format!("column{}", index + 1),
            typed: self.common("VALUES", same),
        });
        Some(named.collect())
    }

    /// Cuts a SELECT into its clauses. The range begins after SELECT.
    fn clauses(&self, range: Range<usize>) -> Clauses {
        let mut found = Clauses::default();
        let (mut at, end) = (range.start, range.end);
        if self.is(at, end, "distinct") && self.is(at + 1, end, "on") {
            at = self.closing(at + 2, end).map_or(end, |close| close + 1);
        } else if self.is(at, end, "distinct") || self.is(at, end, "all") {
            found.is_distinct = self.is(at, end, "distinct");
            at += 1;
        }
        let mut head = "";
        loop {
            let next = self.find(at..end, |at| !self.head(at, end).is_empty());
            let part = at..next.unwrap_or(end);
            match head {
                "" => found.list = part,
                "from" => found.from = Some(part),
                "where" => found.r#where = Some(part),
                "group" => found.group = Some(part.start + 1..part.end),
                "having" => found.having = Some(part),
                "order" => found.order = Some(part.start + 1..part.end),
                "limit" => {
                    let start = found.limit.map_or(part.start - 1, |limit| limit.start);
                    found.limit = Some(start..part.end);
                }
                _ => (),
            }
            let Some(next) = next else { return found };
            head = self.head(next, end);
            at = next + 1;
        }
    }

    /// Returns the word with which a clause begins at `at`; an empty text if none does.
    fn head(&self, at: usize, end: usize) -> &'static str {
        let token = &self.tokens[at];
        let before = at.checked_sub(1).map(|before| &self.tokens[before]);
        if token.kind != TokenKind::Word || before.is_some_and(|before| before.sign(".")) {
            return "";
        }
        let follows = |word: &str| self.is(at + 1, end, word);
        match token.text.to_ascii_lowercase().as_str() {
            "from" if !before.is_some_and(|before| before.is("distinct")) => "from",
            "where" => "where",
            "group" if follows("by") => "group",
            "having" => "having",
            "window" => "window",
            "order" if follows("by") => "order",
            "limit" | "offset" | "fetch" => "limit",
            "for" if ["update", "share", "no", "key"].iter().any(|word| follows(word)) => "for",
            _ => "",
        }
    }

    fn clause(&mut self, clause: QueryClause) {
        if let Some(level) = self.levels.last_mut() {
            level.clause = clause;
        }
    }

    /// Reads a SELECT. The range begins after this word.
    fn select(
        &mut self,
        parent: Option<&NameScope<'_>>,
        range: Range<usize>,
        in_set: bool,
    ) -> QueryResults {
        let clauses = self.clauses(range);
        let level = self.levels.len();
        let scope = match clauses.from.clone() {
            Some(from) => self.from(parent, from),
            None => NameScope { parent, level, ..NameScope::default() },
        };
        self.clause(QueryClause::Results);
        let (items, columns) = self.items(&scope, clauses.list);
        if let Some(level) = self.levels.last_mut() {
            level.aliases = items.iter().filter_map(|item| item.alias.clone()).collect();
        }
        self.clause(QueryClause::Condition);
        let by_number = clauses.r#where.clone().is_some_and(|range| self.compares_oid(range));
        if let Some(range) = clauses.r#where {
            self.condition_at(&scope, "WHERE", range);
        }
        self.clause(QueryClause::Having);
        let has_having = clauses.having.is_some();
        if let Some(range) = clauses.having {
            self.condition_at(&scope, "HAVING", range);
        }
        self.clause(QueryClause::Results);
        if let Some(order) = clauses.order.filter(|_| !in_set) {
            if clauses.is_distinct {
                self.check_distinct(&scope, &items, order.clone());
            }
            self.order(&scope, order);
        }
        let is_grouped = clauses.group.is_some();
        if !scope.is_open {
            self.check_groups(&scope, &items, clauses.group, has_having);
        }
        let has_aggregate = self.levels.last().is_some_and(|level| level.has_aggregate);
        let is_one = clauses.limit.is_some_and(|range| self.limit(range));
        let has_from = clauses.from.is_some();
        // A condition selects an object of the catalogue by its number. The check of the others
        // needs a WITH clause, which SQLite has only in statements with fewer than 200 cursors:
        // one of the catalogue may have more.
        let is_catalog = |relation: &Relation| matches!(relation.source, RelationSource::Catalog);
        let of_catalog = by_number && has_from && scope.relations.iter().all(is_catalog);
        let is_single = (has_aggregate && !is_grouped) || is_one || !has_from || of_catalog;
        QueryResults { columns, is_single, of_set: false }
    }

    /// Returns whether a condition compares the number of an object.
    fn compares_oid(&self, range: Range<usize>) -> bool {
        let is_oid = |token: &Token<'_>| token.is_name() && token.name().ends_with("oid");
        self.tokens[range].windows(2).any(|two| is_oid(&two[0]) && two[1].sign("="))
    }

    /// Reads the items of a select list.
    fn items(&mut self, scope: &NameScope<'_>, list: Range<usize>) -> (Vec<Item>, Columns) {
        let (mut items, mut columns) = (Vec::new(), Some(Vec::new()));
        for part in self.split(list) {
            let is_star = !part.is_empty() && self.tokens[part.end - 1].sign("*");
            if is_star && (part.len() == 1 || self.is(part.end - 2, part.end, ".")) {
                let at = part.end.saturating_sub(3);
                let of = (part.len() > 1).then(|| self.tokens[at].name().to_ascii_lowercase());
                let star = self.star(scope, of.as_deref(), part.end - 1);
                columns = columns.zip(star).map(|(mut columns, star)| {
                    columns.extend(star.iter().cloned());
                    columns
                });
                items.push(Item { tokens: part, alias: None, is_star: true });
            } else {
                let (item, outcome) = self.item(scope, part);
                items.push(item);
                columns.iter_mut().for_each(|columns| columns.push(outcome.clone()));
            }
        }
        let columns = columns.filter(|columns| columns.len() <= COLUMNS_MAX);
        (items, columns.map(Rc::from))
    }

    fn item(&mut self, scope: &NameScope<'_>, part: Range<usize>) -> (Item, Outcome) {
        let mut at = part.start;
        let mut alias = None;
        let operand = self.wholly(|me| {
            let operand = me.operand(scope, &mut at, part.end, 0)?;
            let after = at;
            at += usize::from(me.is(at, part.end, "as"));
            if at + 1 == part.end && me.tokens[at].is_name() {
                alias = Some(me.tokens[at].name().to_ascii_lowercase());
                at = after;
                return Some(operand);
            }
            if let Some(text) = me.token(at, part.end).filter(|next| next.kind == TokenKind::Text) {
                // To SQLite a text is a name here.
                let message = format!("syntax error at or near \"{:.40}\"", text.text);
                me.refuse(at, "42601", message);
                at = part.end;
            }
            (at == part.end).then_some(operand)
        });
        let is_known = operand.is_some();
        let end = if is_known { at } else { part.end };
        let tokens = part.start..end;
        let is_column = is_known && matches!(tokens.len(), 1 | 3);
        let last = &self.tokens[tokens.end.saturating_sub(1)];
        let own = (is_column && last.is_name()).then(|| last.name().to_ascii_lowercase());
        let name = alias.clone().or(own).unwrap_or_default();
        let operand = operand.unwrap_or_default();
        self.keep(operand, None);
        let typed = operand.typed;
        (Item { tokens, alias, is_star: false }, Outcome { name, typed })
    }

    /// Reads ORDER BY. A name alone that a result has means that result.
    fn order(&mut self, scope: &NameScope<'_>, range: Range<usize>) {
        for part in self.split(range) {
            let Some(first) = self.tokens[..part.end].get(part.start) else { continue };
            let is_end = |at: usize| {
                at == part.end || ["asc", "desc", "nulls"].iter().any(|w| self.is(at, part.end, w))
            };
            let is_alone = first.is_name() && is_end(part.start + 1);
            let aliases = self.levels.last().map(|level| &level.aliases);
            let is_alias = |name: &str| aliases.is_some_and(|aliases| aliases.contains(name));
            if !(is_alone && is_alias(&first.name().to_ascii_lowercase())) {
                let mut at = part.start;
                self.wholly(|me| me.operand(scope, &mut at, part.end, 0));
            }
        }
    }

    /// Checks LIMIT and OFFSET, and returns whether they leave one row.
    fn limit(&mut self, range: Range<usize>) -> bool {
        let mut is_one = false;
        for at in range.clone() {
            let (is_limit, is_offset) = (self.tokens[at].is("limit"), self.tokens[at].is("offset"));
            let next = |ahead: usize| self.token(at + ahead, range.end).map(|token| token.text);
            is_one |= is_limit && next(1) == Some("1");
            is_one |= self.tokens[at].is("fetch")
                && next(2).is_some_and(|word| word == "1" || word.eq_ignore_ascii_case("row"));
            if (is_limit || is_offset)
                && next(1) == Some("-")
                && next(2).is_some_and(|number| number.parse::<f64>().is_ok_and(|n| n > 0.0))
            {
                let (code, word) = if is_limit { ("2201W", "LIMIT") } else { ("2201X", "OFFSET") };
                self.refuse(at + 1, code, format!("{word} must not be negative"));
            }
        }
        is_one
    }

    /// Returns the type of a query that stands for a value. One that may return several rows is
    /// marked, so that a second row is an error.
    pub(super) fn scalar(&mut self, scope: &NameScope<'_>, range: Range<usize>) -> Option<Typed> {
        let start = range.start;
        let query = self.query(Some(scope), range);
        let columns = query.columns?;
        let [column] = &columns[..] else { return None };
        if !query.is_single {
            self.found.marks.push((start, TokenKind::Only));
        }
        column.typed
    }

    /// Returns the type of the only column of a query.
    pub(super) fn only_column(
        &mut self,
        scope: &NameScope<'_>,
        range: Range<usize>,
    ) -> Option<Typed> {
        let columns = self.query(Some(scope), range).columns?;
        let [column] = &columns[..] else { return None };
        column.typed
    }
}
