//! The values that INSERT and UPDATE store. Where SQLite would store something else than
//! PostgreSQL, a call of `ums_assign` is written around the value (`engine/assign.rs` has the
//! function).
//!
//! ```text
//!   update t set n = n + 1        ──▶  set n = ums_assign(n + 1, 23, -1)
//!   insert into t(n) values (x)   ──▶  values (ums_assign(x, 23, -1))
//!   insert into t(n) select x ..  ──▶  with ums_source(c1) as (select x ..)
//!                                      select ums_assign(c1, 23, -1) from ums_source where true
//! ```
//!
//! Several rows of VALUES are converted as a query is, so that a long statement does not become
//! much longer. This file also writes what SQLite does not know: DEFAULT as a value, and INSERT
//! with fewer values than columns.
//!
//! A statement that is not understood stays as it is, and SQLite refuses it.

use rusqlite::Connection;

use super::fit::{Fit, Values, without_parentheses};
use super::rows::{begins_query, each_item, is_default, level, result_items, rows, without_alias};
use super::targets::{Table, Target};
use super::wrap::Wrap;
use crate::dialect::Edits;
use crate::dialect::tokens::{Token, closing, items};
use crate::dialect::translate::quote;
use crate::error::{Result, SqlError};

/// Returns whether the statement stores values.
pub(super) fn assigns(tokens: &[Token<'_>]) -> bool {
    verb(tokens).is_some()
}

/// Returns what is written into the statement. `parameters` has the types of parameters: those that
/// the client has declared, and those with which they are sent.
///
/// # Errors
/// Those that PostgreSQL finds before it executes the statement: 42804 and the errors of literals,
/// 42601 for a number of values that is not that of the columns, 42701 for a column named twice.
pub(super) fn assignments(
    tokens: &[Token<'_>],
    parameters: (&[u32], &[u32]),
    db: &Connection,
) -> Result<Edits> {
    let Some(verb) = verb(tokens) else { return Ok(Edits::default()) };
    let values = Values::new(db, tokens, parameters);
    let mut writer = Assigner { db, tokens, values, edits: Edits::default() };
    match tokens[verb].is("update") {
        true => writer.update(verb + 1)?,
        false => writer.insert(verb + 1)?,
    };
    Ok(writer.edits)
}

/// Returns where INSERT or UPDATE is.
fn verb(tokens: &[Token<'_>]) -> Option<usize> {
    let at = match tokens.first()?.is("with") {
        true => level(tokens, |_, token| {
            ["select", "insert", "replace", "update", "delete"].iter().any(|word| token.is(word))
        })?,
        false => 0,
    };
    ["insert", "replace", "update"].iter().any(|word| tokens[at].is(word)).then_some(at)
}

/// The columns that an INSERT fills.
struct Filling {
    table: Table,
    targets: Vec<Target>,
    /// The token after which a list of columns is missing.
    unlisted: Option<usize>,
}

impl Filling {
    /// Checks the number of values, and returns the columns that get one.
    fn filled(&self, count: usize, place: Option<&Token<'_>>) -> Result<&[Target]> {
        let wrong = |message: &'static str| {
            let offset = place.map(|token| token.at);
            Err(SqlError { offset, ..SqlError::syntax(message) })
        };
        match self.targets.get(..count) {
            None => wrong("INSERT has more expressions than target columns"),
            Some(_) if count < self.targets.len() && self.unlisted.is_none() => {
                wrong("INSERT has more target columns than expressions")
            }
            Some(filled) => Ok(filled),
        }
    }
}

struct Assigner<'w> {
    db: &'w Connection,
    tokens: &'w [Token<'w>],
    values: Values<'w>,
    edits: Edits,
}

impl<'w> Assigner<'w> {
    /// Reads what follows INSERT.
    fn insert(&mut self, at: usize) -> Result<()> {
        let tokens = self.tokens;
        let Some(into) = tokens[at..].iter().take(3).position(|token| token.is("into")) else {
            return Ok(());
        };
        let Some((into, begin)) = self.filling(at + into + 1)? else { return Ok(()) };
        let mut rest = &tokens[begin..];
        if rest.first().is_some_and(|first| first.is("overriding")) {
            rest = rest.get(3..).unwrap_or_default();
        }
        let end = level(rest, |index, token| {
            token.is("returning")
                || (token.is("on") && rest.get(index + 1).is_some_and(|next| next.is("conflict")))
        });
        let (source, after) = rest.split_at(end.unwrap_or(rest.len()));
        match source.first() {
            None => return Ok(()),
            Some(first) if first.is("default") => return Ok(()),
            Some(_) if rows(source).is_some() => self.rows(source, &into)?,
            Some(_) => {
                self.query(source, &into, after.first().is_some_and(|on| on.is("on")))?;
            }
        }
        match after {
            [_, _, r#do, update, ..] if r#do.is("do") && update.is("update") => {
                Err(SqlError::syntax(
                    "ON CONFLICT DO UPDATE requires inference specification or constraint name",
                ))
            }
            _ => match level(after, |_, token| token.is("set")) {
                Some(set) => self.sets(&after[set + 1..], &into.table),
                None => Ok(()),
            },
        }
    }

    /// Reads the table and the list of columns. Returns also where what follows them begins.
    fn filling(&self, at: usize) -> Result<Option<(Filling, usize)>> {
        let tokens = self.tokens;
        let Some((table, len)) = tokens.get(at..).and_then(Table::read) else { return Ok(None) };
        let mut at = at + len;
        if tokens.get(at).is_some_and(|token| token.is("as")) {
            at += 2;
        }
        let Some(rest) = tokens.get(at..) else { return Ok(None) };
        let listed = rest.first().is_some_and(|token| token.sign("("))
            && rest.get(1).is_some_and(|next| !begins_query(next));
        if !listed {
            let targets = table.columns(self.db);
            if targets.is_empty() && tokens.iter().any(|token| token.is("default")) {
                table.check_exists(self.db)?;
            }
            let into = Filling { table, targets, unlisted: Some(at - 1) };
            return Ok(Some((into, at)).filter(|(into, _)| !into.targets.is_empty()));
        }
        let Some(close) = closing(rest) else { return Ok(None) };
        let list = items(&rest[1..close]);
        let names = list.iter().filter_map(|item| item.first());
        let again = |name: &str| SqlError {
            message: format!("column \"{name}\" specified more than once").into(),
            ..SqlError::new("42701", "")
        };
        let targets = self.named(names, &table, again)?;
        let Some(targets) = targets.filter(|targets| targets.len() == list.len()) else {
            return Ok(None);
        };
        Ok(Some((Filling { table, targets, unlisted: None }, at + close + 1)))
    }

    /// Returns the columns with these names. Returns `None` if the table does not have all of them.
    fn named<'t>(
        &self,
        names: impl Iterator<Item = &'t Token<'t>>,
        table: &Table,
        again: impl Fn(&str) -> SqlError,
    ) -> Result<Option<Vec<Target>>> {
        let mut targets: Vec<Target> = Vec::new();
        for token in names {
            let name = token.name();
            if targets.iter().any(|target| target.name.eq_ignore_ascii_case(&name)) {
                return Err(SqlError { offset: Some(token.at), ..again(&name) });
            }
            let Some(target) = table.column(self.db, &name) else { return Ok(None) };
            targets.push(target);
        }
        if self.tokens.iter().any(|token| token.is("default")) {
            table.read_defaults(self.db, &mut targets);
        }
        Ok(Some(targets))
    }

    /// Reads the rows of VALUES.
    fn rows(&mut self, source: &[Token<'_>], into: &Filling) -> Result<()> {
        let Some((first, rest)) = rows(source) else { return Ok(()) };
        let list = items(first);
        let targets = into.filled(list.len(), first.first())?;
        self.list_columns(into, targets);
        if rest.is_empty() {
            for (item, target) in list.iter().zip(targets) {
                self.value(item, target, &into.table)?;
            }
            return Ok(());
        }
        let mut calls = vec![Wrap::default(); targets.len()];
        each_item(source, |column, item| {
            let (Some(target), Some(call)) = (targets.get(column), calls.get_mut(column)) else {
                return Ok(());
            };
            call.add(self.values.fit(item, target)?, item, target);
            Ok(())
        })?;
        // The rows may be of several types.
        let spelled = calls.iter().any(|call| call.spelling.is_some());
        calls.iter_mut().for_each(|call| call.spelling = None);
        let is_called = self.open_source(source, &calls, false);
        let edited = |call: &Wrap| call.is_replaced || call.defaults || spelled;
        if calls.iter().any(edited) {
            each_item(source, |column, item| match targets.get(column) {
                Some(target) if edited(&calls[column]) => self.spelled(item, target, &into.table),
                _ => Ok(()),
            })?;
        }
        if is_called {
            self.close_source(source, &calls, targets, &into.table);
        }
        Ok(())
    }

    /// Reads a query whose rows are stored. SQLite knows neither parentheses around it nor, after
    /// its FROM clause, `ON CONFLICT`, which it takes for the condition of a join; `has_conflict`
    /// says that this follows.
    fn query(&mut self, source: &[Token<'_>], into: &Filling, has_conflict: bool) -> Result<()> {
        let inner = without_parentheses(source);
        let around = (source.len() - inner.len()) / 2;
        let is_compound = level(inner, |_, token| {
            ["union", "except", "intersect"].iter().any(|word| token.is(word))
        });
        let list = match inner.first() {
            Some(first) if first.is("values") => inner
                .get(1..)
                .map(|rest| items(closing(rest).map_or(rest, |close| &rest[1.min(close)..close]))),
            _ => Some(result_items(inner)).filter(|list| !list.is_empty()),
        };
        let count = list.as_ref().map_or(into.targets.len(), Vec::len);
        let targets = into.filled(count, inner.first())?;
        self.list_columns(into, targets);
        let calls = targets.iter().enumerate().map(|(column, target)| {
            let mut call = Wrap::default();
            let item = list.as_ref().and_then(|list| list.get(column)).copied();
            match item.filter(|_| is_compound.is_none()).map(without_alias) {
                Some(item) => call.add(self.values.fit(item, target)?, item, target),
                None => {
                    call.converts = !target.is_open();
                    call.refuses_null = target.keyed;
                }
            }
            Ok(call)
        });
        let calls = calls.collect::<Result<Vec<Wrap>>>()?;
        source[..around].iter().for_each(|open| self.edits.instead(open, ""));
        let is_called = self.open_source(inner, &calls, has_conflict);
        for ((call, target), item) in calls.iter().zip(targets).zip(list.unwrap_or_default()) {
            if call.is_replaced {
                self.literal(without_alias(item), target)?;
            }
        }
        if is_called {
            self.close_source(inner, &calls, targets, &into.table);
        }
        source[source.len() - around..].iter().for_each(|close| self.edits.instead(close, ""));
        Ok(())
    }

    /// Writes the list of columns that INSERT leaves out, if it has fewer values.
    fn list_columns(&mut self, into: &Filling, targets: &[Target]) {
        if let Some(after) = into.unlisted
            && targets.len() < into.targets.len()
        {
            let names: Vec<String> = targets.iter().map(|target| quote(&target.name)).collect();
            self.edits.after(&self.tokens[after], format!("({})", names.join(", ")));
        }
    }

    /// Writes what comes before rows that are converted, or are to stand apart. Returns false if
    /// that is not so.
    fn open_source(&mut self, source: &[Token<'_>], calls: &[Wrap], is_apart: bool) -> bool {
        let converts = |call: &Wrap| call.converts || call.refuses_null;
        let is_called = is_apart || calls.iter().any(converts);
        if let Some(first) = source.first().filter(|_| is_called) {
            let names: Vec<String> = (1..=calls.len()).map(|n| format!("c{n}")).collect();
            self.edits.before(first, format!("WITH ums_source({}) AS (", names.join(", ")));
        }
        is_called
    }

    fn close_source(
        &mut self,
        source: &[Token<'_>],
        calls: &[Wrap],
        targets: &[Target],
        table: &Table,
    ) {
        let columns = calls.iter().zip(targets).enumerate().map(|(index, (call, target))| {
            format!("{}c{}{}", call.begin(), index + 1, call.end(target, table))
        });
        let columns: Vec<String> = columns.collect();
        if let Some(last) = source.last() {
            let text = format!(") SELECT {} FROM ums_source WHERE true", columns.join(", "));
            self.edits.after(last, text);
        }
    }

    /// Reads what follows UPDATE.
    fn update(&mut self, at: usize) -> Result<()> {
        let tokens = self.tokens;
        let skip = match &tokens[at..] {
            [or, ..] if or.is("or") => 2,
            [only, ..] if only.is("only") => 1,
            _ => 0,
        };
        let Some((table, _)) = tokens.get(at + skip..).and_then(Table::read) else {
            return Ok(());
        };
        match level(&tokens[at..], |_, token| token.is("set")) {
            Some(set) => self.sets(&tokens[at + set + 1..], &table),
            None => Ok(()),
        }
    }

    /// Reads the assignments after SET.
    fn sets(&mut self, tokens: &[Token<'_>], table: &Table) -> Result<()> {
        let end = level(tokens, |index, token| {
            let is_distinct = index > 0 && tokens[index - 1].is("distinct");
            token.is("where") || token.is("returning") || (token.is("from") && !is_distinct)
        });
        let list = items(&tokens[..end.unwrap_or(tokens.len())]);
        let mut assigned: Vec<(Vec<&Token<'_>>, &[Token<'_>])> = Vec::new();
        for item in list {
            let (names, rest) = match item {
                [name, rest @ ..] if name.is_name() => (vec![name], rest),
                [open, ..] if open.sign("(") => {
                    let Some(close) = closing(item) else { return Ok(()) };
                    let names = items(&item[1..close]);
                    (names.iter().filter_map(|name| name.first()).collect(), &item[close + 1..])
                }
                _ => return Ok(()),
            };
            let [equal, value @ ..] = rest else { return Ok(()) };
            if !equal.sign("=") {
                return Ok(());
            }
            assigned.push((names, value));
        }
        let again = |name: &str| {
            SqlError::syntax(format!("multiple assignments to same column \"{name}\""))
        };
        let names = assigned.iter().flat_map(|(names, _)| names.iter().copied());
        let Some(targets) = self.named(names, table, again)? else { return Ok(()) };
        let mut targets = &targets[..];
        for (names, value) in assigned {
            let (own, others) = targets.split_at(names.len());
            targets = others;
            match own {
                [target] => self.value(value, target, table)?,
                _ => self.several(value, own, table)?,
            }
        }
        Ok(())
    }

    /// Reads the values of `(a, b) = (1, 2)` or `(a, b) = (select ..)`.
    fn several(&mut self, value: &[Token<'_>], targets: &[Target], table: &Table) -> Result<()> {
        let [open, inner @ .., _] = value else { return Ok(()) };
        if !open.sign("(") || closing(value) != Some(value.len() - 1) {
            return Ok(());
        }
        if inner.first().is_some_and(begins_query) {
            let (table, targets) = (table.clone(), targets.to_vec());
            return self.query(inner, &Filling { table, targets, unlisted: None }, false);
        }
        for (item, target) in items(inner).iter().zip(targets) {
            self.value(item, target, table)?;
        }
        Ok(())
    }

    /// Writes a call around a value, if it needs one.
    fn value(&mut self, item: &[Token<'_>], target: &Target, table: &Table) -> Result<()> {
        let (Some(first), Some(last)) = (item.first(), item.last()) else { return Ok(()) };
        self.edits.check()?;
        if is_default(item) {
            return self.literal(item, target);
        }
        let mut call = Wrap::default();
        call.add(self.values.fit(item, target)?, item, target);
        if call.converts || call.refuses_null {
            self.edits.before(first, call.begin());
        }
        if call.is_replaced {
            self.literal(item, target)?;
        }
        if call.converts || call.refuses_null {
            self.edits.after(last, call.end(target, table));
        }
        Ok(())
    }

    /// Writes what is stored in place of a value of one of several rows, or the call that makes a
    /// text of it.
    fn spelled(&mut self, item: &[Token<'_>], target: &Target, table: &Table) -> Result<()> {
        if let Fit::Call(Some(_)) = self.values.fit(item, target)? {
            let keyed = Target { keyed: false, ..target.clone() };
            return self.value(item, &keyed, table);
        }
        self.literal(item, target)
    }

    /// Writes what is stored in place of a value.
    fn literal(&mut self, item: &[Token<'_>], target: &Target) -> Result<()> {
        self.edits.check()?;
        let inner = without_parentheses(item);
        if is_default(item) {
            let text = target.default.as_ref().map(|text| format!("({text})"));
            self.edits.instead(&item[0], text.unwrap_or_else(|| "NULL".to_owned()));
        } else if let Fit::Instead(text) = self.values.fit(item, target)? {
            self.edits.instead(&inner[0], text);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::statement::recognise;
    use crate::dialect::tokens::tokens;
    use crate::dialect::{Sql, Statement};

    fn written(source: &str) -> std::result::Result<String, &'static str> {
        let db = Connection::open_in_memory().unwrap();
        db.execute_batch(
            "create table t(a int, b text default 'x', c varchar(3));
             create table k(id integer primary key, n int default 5);
             create view v as select 1 as a",
        )
        .unwrap();
        let list = tokens(source).unwrap();
        let edits = assignments(&list, (&[0, 0], &[20, 25]), &db).map_err(|error| error.code)?;
        match recognise(&list, source, &edits).unwrap() {
            Statement::Sql(Sql { texts, .. }) => Ok(texts.into_iter().next().unwrap()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_call_is_written_around_a_value_that_may_not_fit() {
        for (from, to) in [
            ("insert into t values (1, 'b', 'c')", "insert into t values (1, 'b', 'c')"),
            (
                "insert into t (c, a) values ($2, ($1)) returning a",
                "insert into t (c, a) values (ums_assign($2, 1043, 7), \
                 ums_assign(($1), 23, -1)) returning a",
            ),
            (
                "insert into t as x (b, c) values (true, 1.5::int)",
                "insert into t as x (b, c) values ('true', ums_assign(int4(1.5), 1043, 7))",
            ),
            (
                "with w as (select 1) insert into t (a) values ((select * from w order by 1))",
                "with w as (select 1) insert into t (a) values \
                 (ums_assign((select * from w order by 1 NULLS LAST), 23, -1))",
            ),
            ("update t as x set a = a + 1, b = a is distinct from 2, (a, c) = (a, 'x')", "42601"),
            (
                "update t set a = a + 1, b = a is distinct from 2 where c = 'abcd'",
                "update t set a = ums_assign(a + 1, 23, -1), \
                 b = ums_assign(a is distinct from 2, 25, -1, -1) where c = 'abcd'",
            ),
            (
                "update t set (a, c) = (select 1.5, c from t), b = default",
                "update t set (a, c) = (WITH ums_source(c1, c2) AS (select 1.5, c from t) SELECT \
                 ums_assign(c1, 23, -1), ums_assign(c2, 1043, 7) FROM ums_source WHERE true), \
                 b = ('x')",
            ),
            (
                "insert into k values ($1, 2) on conflict (id) do update set n = excluded.n + 1",
                "insert into k values (ums_not_null(ums_assign($1, 23, -1), 'id', 'k'), 2) \
                 on conflict (id) do update set n = ums_assign(excluded.n + 1, 23, -1)",
            ),
            ("insert into v values (1)", "insert into v values (1)"),
        ] {
            match to.len() {
                5 => assert_eq!(written(from), Err(to)),
                _ => assert_eq!(written(from).as_deref(), Ok(to)),
            }
        }
    }

    #[test]
    fn several_rows_and_queries_are_converted_as_a_whole() {
        for (from, to) in [
            ("insert into t (a) values (1), (2)", "insert into t (a) values (1), (2)"),
            (
                "insert into t values (1, 'b', 'c'), (2.5, a = 1, true) on conflict do nothing",
                "22001",
            ),
            (
                "insert into t (a, b) values (1, 'b'), (2.5, a = 1) on conflict do nothing",
                "insert into t (a, b) WITH ums_source(c1, c2) AS (values (1, 'b'), (2.5, \
                 ums_assign(a = 1, 25, -1, -1))) SELECT ums_assign(c1, 23, -1), \
                 ums_assign(c2, 25, -1) FROM ums_source WHERE true on conflict do nothing",
            ),
            (
                "insert into t select a, b from t order by c",
                "insert into t(\"a\", \"b\") select a, b from t order by c NULLS LAST",
            ),
            (
                "insert into t (a) ((select a from t order by 1)) on conflict do nothing",
                "insert into t (a) WITH ums_source(c1) AS (select a from t order by 1 NULLS LAST) \
                 SELECT c1 FROM ums_source WHERE true on conflict do nothing",
            ),
            (
                "insert into t (select * from t)",
                "insert into t WITH ums_source(c1, c2, c3) AS \
                 (select * from t) SELECT ums_assign(c1, 23, -1), ums_assign(c2, 25, -1), \
                 ums_assign(c3, 1043, 7) FROM ums_source WHERE true",
            ),
            (
                "insert into t (c) select b from t order by c on conflict do nothing",
                "insert into t (c) WITH ums_source(c1) AS (select b from t order by c NULLS LAST) \
                 SELECT ums_assign(c1, 1043, 7) FROM ums_source WHERE true on conflict do nothing",
            ),
            (
                "insert into k select * from t",
                "insert into k WITH ums_source(c1, c2) AS (select * from t) SELECT \
                 ums_not_null(ums_assign(c1, 23, -1), 'id', 'k'), ums_assign(c2, 23, -1) \
                 FROM ums_source WHERE true",
            ),
        ] {
            match to.len() {
                5 => assert_eq!(written(from), Err(to)),
                _ => assert_eq!(written(from).as_deref(), Ok(to)),
            }
        }
    }

    #[test]
    fn defaults_and_missing_columns_are_written() {
        for (from, to) in [
            ("insert into t values (1)", "insert into t(\"a\") values (1)"),
            ("insert into t values (1, default)", "insert into t(\"a\", \"b\") values (1, ('x'))"),
            ("insert into k values (default, 1)", "insert into k values (NULL, 1)"),
            (
                "insert into k values (default, default), (7, 1)",
                "insert into k values (NULL, (5)), (7, 1)",
            ),
            ("insert into t default values", "insert into t default values"),
        ] {
            assert_eq!(written(from).as_deref(), Ok(to));
        }
    }

    #[test]
    fn a_statement_with_too_many_conversions_is_refused() {
        let rows = |count| format!("insert into t (b) values {}", vec!["(1=1)"; count].join(","));
        assert!(written(&rows(1000)).is_ok());
        assert_eq!(written(&rows(1 << 18)), Err("54001"));
        let whole = format!("insert into t (a) values {}", vec!["(1+1)"; 1 << 18].join(","));
        assert!(written(&whole).unwrap().len() < whole.len() + 100);
    }

    #[test]
    fn what_postgresql_refuses_before_it_executes_is_refused() {
        for (source, code) in [
            ("insert into t (a, A) values (1, 2)", "42701"),
            ("insert into t (a) values (1, 2)", "42601"),
            ("insert into t (a, b) values (1)", "42601"),
            ("insert into t values (1, 'b', 'c', 4)", "42601"),
            ("insert into t (a, b) select 1", "42601"),
            ("insert into t (a) select true", "42804"),
            ("insert into t (a) values (1), (true)", "42804"),
            ("update t set a = 1, a = 2", "42601"),
            ("update t set (a, b) = (true, 'x')", "42804"),
            ("insert into k values (1, 2) on conflict do update set n = 1", "42601"),
            ("insert into k values (1, 2) on conflict (id) do update set n = true", "42804"),
        ] {
            assert_eq!(written(source), Err(code), "{source}");
        }
    }
}
