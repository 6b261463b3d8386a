//! The forms of a query that are replaced as a whole: functions that become subqueries, and the
//! names of columns that follow a query in a FROM clause.
//!
//! ```text
//!   (VALUES (1, 2)) AS t(a, b)
//!     ──▶ (WITH ums_t(a, b) AS (VALUES (1, 2)) SELECT * FROM ums_t) AS t
//! ```
//!
//! Casts are in `casts`.

use super::rewrite::{MOVED_MAX, Rewriter, is_operator_word};
use super::tokens::{Token, items};

impl<'t, 'a> Rewriter<'t, 'a> {
    /// Returns whether the parenthesis that was just copied begins a query in a FROM clause.
    pub(super) fn begins_derived_table(&self) -> bool {
        let before = self.at.checked_sub(2).map(|before| &self.tokens[before]);
        before.is_some_and(|token| {
            token.sign(",") || ["from", "join", "lateral"].iter().any(|word| token.is(word))
        }) && ["values", "select", "with"].iter().any(|word| self.next_is(0, word))
    }

    /// Names the columns of the query that has just ended, and whose parenthesis is at `start` of
    /// the output, if a list of names follows its alias.
    pub(super) fn name_columns(&mut self, start: usize) {
        let is_as = usize::from(self.next_is(0, "as"));
        let alias = self.peek(is_as).filter(Token::is_name);
        let alias = alias.filter(|name| is_as > 0 || !is_operator_word(name));
        let Some(alias) = alias.filter(|name| is_as > 0 || !is_clause_word(name)) else { return };
        let Some(open) = self.peek(is_as + 1).filter(|token| token.sign("(")) else { return };
        let mut close = is_as + 3;
        while self.next_is(close, ",") {
            close += 2;
        }
        let Some(end) = self.peek(close).filter(|token| token.sign(")")) else { return };
        if self.moved > MOVED_MAX {
            return;
        }
        let names = &self.source[open.at..end.end()];
        self.moved += self.out.len() - start;
        self.out.insert_str(start + 1, &format!("WITH ums_t{names} AS ("));
        self.out.push_str(" SELECT * FROM ums_t)");
        self.put(close + 1, &format!("AS {}", alias.text));
        self.operand = None;
    }

    /// Replaces a call of `pg_get_indexdef` by a subquery for the definition. It is not an SQL
    /// function, because the functions that this crate registers have no connection for a query.
    pub(super) fn index_definition(&mut self) -> bool {
        let Some(close) = self.closing(self.at + 1) else { return false };
        let arguments = &self.tokens[self.at + 2..close];
        let index = arguments.split(|token| token.sign(",")).next().unwrap_or_default();
        if index.is_empty() {
            return false;
        }
        let index = self.inner(index);
        let text = format!("(SELECT ums_definition FROM pg_index x WHERE x.indexrelid = {index})");
        self.operand = Some(self.put(close + 1 - self.at, &text));
        true
    }

    /// Gives a call of `make_interval`, whose arguments may have names, all of its arguments.
    pub(super) fn make_interval(&mut self) -> bool {
        const NAMES: [&str; 7] = ["years", "months", "weeks", "days", "hours", "mins", "secs"];
        let Some(close) = self.closing(self.at + 1) else { return false };
        let given = &self.tokens[self.at + 2..close];
        let mut arguments = NAMES.map(|_| "0".to_owned());
        let given = if given.is_empty() { Vec::new() } else { items(given) };
        for (place, argument) in given.into_iter().enumerate() {
            let (place, value) = match argument {
                [name, equal, more, value @ ..] if equal.sign("=") && more.sign(">") => {
                    (NAMES.iter().position(|known| name.is(known)), value)
                }
                [name, assign, value @ ..] if assign.sign(":=") => {
                    (NAMES.iter().position(|known| name.is(known)), value)
                }
                value => (Some(place), value),
            };
            let place = place.and_then(|place| arguments.get_mut(place));
            let (Some(place), false) = (place, value.is_empty()) else { return false };
            *place = self.inner(value);
        }
        let text = format!("make_interval({})", arguments.join(", "));
        self.operand = Some(self.put(close + 1 - self.at, &text));
        true
    }

    /// Translates `ARRAY(SELECT ..)` to one text in PostgreSQL's form of an array.
    pub(super) fn array(&mut self) -> bool {
        let Some(close) = self.closing(self.at + 1) else { return false };
        let select = self.inner(&self.tokens[self.at + 2..close]);
        let text = format!(
            "(WITH ums_a(item) AS ({select}) \
             SELECT '{{' || coalesce(group_concat(ums_element(item)), '') || '}}' FROM ums_a)"
        );
        self.operand = Some(self.put(close + 1 - self.at, &text));
        true
    }

    /// Names the column of `generate_series(..) AS i` as PostgreSQL does: `i`, or
    /// `generate_series`.
    pub(super) fn series(&mut self) -> bool {
        let from = self.at > 0
            && (self.tokens[self.at - 1].is("from")
                || self.tokens[self.at - 1].is("join")
                || self.tokens[self.at - 1].sign(","));
        let Some(close) = self.closing(self.at + 1).filter(|_| from && !self.open_is_call()) else {
            return false;
        };
        let mut after = close + 1;
        let aliased = self.tokens.get(after).is_some_and(|token| token.is("as"));
        after += usize::from(aliased);
        let alias = match self.tokens.get(after) {
            Some(token) if token.is_name() && (aliased || !is_clause_word(token)) => token,
            _ => {
                after = close;
                &self.tokens[self.at]
            }
        };
        let mut column = alias.text;
        let list = after + 1;
        if self.tokens.get(list).is_some_and(|token| token.sign("(")) && after > close {
            column = self.tokens.get(list + 1).map_or(column, |token| token.text);
            after = list + 2;
        }
        let call = match &items(&self.tokens[self.at + 2..close])[..] {
            // A series with a negative step begins at the larger number.
            [from, to, step] if step.len() > 1 && step[0].sign("-") => {
                let [from, to, step] = [to, from, step].map(|part| self.inner(part));
                format!("({from}, {to}, {step})")
            }
            _ => self.inner(&self.tokens[self.at + 1..=close]),
        };
        let text =
            format!("(SELECT value AS {column} FROM generate_series{call}) AS {}", alias.text);
        let count = after + 1 - self.at;
        self.put(count.min(self.tokens.len() - self.at), &text);
        self.operand = None;
        true
    }

    /// Returns whether the current position is inside the arguments of a function, where a comma
    /// does not continue a FROM clause.
    fn open_is_call(&self) -> bool {
        let Some(open) = self.open.last() else { return false };
        !self.out[open.operand..].starts_with('(')
    }
}

fn is_clause_word(token: &Token<'_>) -> bool {
    const WORDS: [&str; 20] = [
        "where",
        "order",
        "group",
        "limit",
        "join",
        "left",
        "right",
        "inner",
        "cross",
        "full",
        "natural",
        "on",
        "using",
        "union",
        "intersect",
        "except",
        "offset",
        "having",
        "window",
        "returning",
    ];
    WORDS.iter().any(|word| token.is(word))
}

#[cfg(test)]
mod tests {
    use super::super::edits::Edits;
    use super::super::rewrite::rewrite;
    use super::super::tokens::tokens;

    fn one(source: &str) -> String {
        rewrite(source, &tokens(source).unwrap(), &Edits::default())
    }

    #[test]
    fn an_array_of_a_query_is_one_text() {
        let cases = [
            (
                "select array(select a::int from t order by b)",
                "select (WITH ums_a(item) AS (select int4(a) from t order by b NULLS LAST) SELECT \
                 '{' || coalesce(group_concat(ums_element(item)), '') || '}' FROM ums_a)",
            ),
            (
                "select 1 from generate_series(9, $1, -2)",
                "select 1 from (SELECT value AS generate_series FROM \
                 generate_series($1, 9, -2)) AS generate_series",
            ),
        ];
        for (from, to) in cases {
            assert_eq!(one(from), to);
        }
    }

    #[test]
    fn a_series_gives_its_column_the_name_postgresql_gives_it() {
        let cases = [
            (
                "select i from generate_series(1, $1::int) as i where i > 1",
                "select i from (SELECT value AS i FROM generate_series(1, int4($1))) AS i \
                 where i > 1",
            ),
            (
                "select * from generate_series(1,3)",
                "select * from (SELECT value AS generate_series FROM generate_series(1,3)) \
                 AS generate_series",
            ),
            (
                "select n from generate_series(1,3) t(n)",
                "select n from (SELECT value AS n FROM generate_series(1,3)) AS t",
            ),
            (
                "insert into t select 1 from generate_series(1,3) returning x",
                "insert into t select 1 from (SELECT value AS generate_series FROM \
                 generate_series(1,3)) AS generate_series returning x",
            ),
        ];
        for (from, to) in cases {
            assert_eq!(one(from), to);
        }
    }

    #[test]
    fn a_query_in_a_from_clause_gives_its_columns_their_names() {
        let cases = [
            (
                "select * from (values (1,'(')) as t(a, \"B\") where a = 1",
                "select * from (WITH ums_t(a, \"B\") AS (values (1,'(')) SELECT * FROM ums_t) AS t \
                 where a = 1",
            ),
            (
                "select * from a join (select 1, (2)) t (x,y) on true",
                "select * from a join (WITH ums_t(x,y) AS (select 1, (2)) SELECT * FROM ums_t) \
                 AS t on true",
            ),
            ("select * from (values (1)) t", "select * from (values (1)) t"),
            ("select 1 from (select 1) where (a)", "select 1 from (select 1) where (a)"),
            (
                "select 1 from t where a in (select 1) and (b)",
                "select 1 from t where a in (select 1) and (b)",
            ),
            ("select * from (values (1)) as t(a", "select * from (values (1)) as t(a"),
        ];
        for (from, to) in cases {
            assert_eq!(one(from), to);
        }
    }
}
