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
            token.sign(",")
                || ["from", "join", "lateral"].iter().any(|word| token.is(word))
                || (token.is("using") && self.tokens[0].is("delete"))
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

    /// Replaces a call of `pg_get_indexdef` and its like by a subquery for the definition. It
    /// is not an SQL function, because the functions that this crate registers have no connection
    /// for a query.
    pub(super) fn definition(&mut self) -> bool {
        let Some(close) = self.closing(self.at + 1) else { return false };
        let arguments = &self.tokens[self.at + 2..close];
        let object = arguments.split(|token| token.sign(",")).next().unwrap_or_default();
        if object.is_empty() {
            return false;
        }
        let object = self.inner(object);
        let (key, source) = match self.tokens[self.at].text.to_ascii_lowercase().as_str() {
            "pg_get_viewdef" => ("c.oid", "pg_views x JOIN pg_class c ON c.relname = x.viewname"),
            "pg_get_constraintdef" => ("oid", "pg_constraint"),
            _ => ("indexrelid", "pg_index"),
        };
        // A name in the argument means a column outside.
        let text = format!(
            "(SELECT ums_definition FROM (SELECT {key} AS ums_key, ums_definition FROM {source}) \
             WHERE ums_key = {object})"
        );
        self.operand = Some(self.put(close + 1 - self.at, &text));
        true
    }

    /// Replaces a call of `pg_options_to_table`, whose argument has no options here.
    pub(super) fn no_options(&mut self) -> bool {
        let Some(close) = self.closing(self.at + 1) else { return false };
        let text = "(SELECT '' AS option_name, '' AS option_value WHERE 0)";
        self.operand = None;
        self.put(close + 1 - self.at, text);
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
        let Some(close) = self.closing(self.at + 1).filter(|_| self.is_in_from()) else {
            return false;
        };
        let is_numbered = self.tokens[self.at].is("unnest")
            && self.tokens.get(close + 1).is_some_and(|token| token.is("with"))
            && self.tokens.get(close + 2).is_some_and(|token| token.is("ordinality"));
        let last = if is_numbered { close + 2 } else { close };
        let mut after = last + 1;
        let aliased = self.tokens.get(after).is_some_and(|token| token.is("as"));
        after += usize::from(aliased);
        let alias = match self.tokens.get(after) {
            Some(token) if token.is_name() && (aliased || !is_clause_word(token)) => token,
            _ => {
                after = last;
                &self.tokens[self.at]
            }
        };
        let mut column = alias.text;
        let list = after + 1;
        let arrays = items(&self.tokens[self.at + 2..close]);
        if is_numbered || (self.tokens[self.at].is("unnest") && arrays.len() > 1) {
            let names = self.tokens.get(list).filter(|token| token.sign("(") && after > last);
            let names = names.and_then(|_| self.closing(list)).map(|end| (list + 1, end));
            let text = self.several_arrays(&arrays, names, is_numbered);
            let text = format!("({text}) AS {}", alias.text);
            let end = names.map_or(after, |(_, end)| end);
            self.put(end + 1 - self.at, &text);
            self.operand = None;
            return true;
        }
        if self.tokens.get(list).is_some_and(|token| token.sign("(")) && after > last {
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
        let call = match self.tokens[self.at].is("unnest") {
            true => format!("json_each(ums_elements{call})"),
            false => format!("generate_series{call}"),
        };
        let text = format!("(SELECT value AS {column} FROM {call}) AS {}", alias.text);
        let count = after + 1 - self.at;
        self.put(count.min(self.tokens.len() - self.at), &text);
        self.operand = None;
        true
    }

    /// Returns the query for `unnest(a, b)`: the elements at the same places of several arrays, and
    /// with ORDINALITY the places. The names of the columns are between two tokens.
    fn several_arrays(
        &self,
        arrays: &[&'t [Token<'a>]],
        names: Option<(usize, usize)>,
        is_numbered: bool,
    ) -> String {
        let named: Vec<_> = names
            .map(|(start, end)| &self.tokens[start..end])
            .unwrap_or_default()
            .iter()
            .filter(|token| token.is_name())
            .collect();
        let (mut with, mut keys, mut columns, mut joins) =
            (String::new(), Vec::new(), Vec::new(), String::new());
        for (index, array) in arrays.iter().enumerate() {
            let (one, array) = (format!("ums_e{index}"), self.inner(array));
            with += &format!(
                "{one} AS MATERIALIZED (SELECT key, value FROM json_each(ums_elements({array}))), "
            );
            keys.push(format!("SELECT key FROM {one}"));
            let name = named.get(index).map_or("unnest", |token| token.text);
            columns.push(format!("{one}.value AS {name}"));
            joins += &format!(" LEFT JOIN {one} ON {one}.key = ums_k.key");
        }
        if is_numbered {
            let name = named.get(arrays.len()).map_or("ordinality", |token| token.text);
            columns.push(format!("ums_k.key + 1 AS {name}"));
        }
        let (keys, columns) = (keys.join(" UNION "), columns.join(", "));
        format!(
            "WITH {with}ums_k AS ({keys}) SELECT {columns} FROM ums_k{joins} ORDER BY ums_k.key"
        )
    }

    /// Replaces `pg_index i, unnest(i.indkey, i.indoption) WITH ORDINALITY k(key, option, place)`,
    /// with which Django reads the columns of indexes: SQLite has no such join.
    pub(super) fn index_keys(&mut self) -> bool {
        let pattern = "pg_index i , unnest ( i . indkey , i . indoption ) with ordinality";
        let words: Vec<_> = pattern.split(' ').collect();
        let is_there = words.iter().enumerate().all(|(at, word)| self.next_is(at, word));
        // An alias, and three names in parentheses.
        let [key, option, place] = [2, 4, 6].map(|at| self.peek(words.len() + at));
        let (Some(key), Some(option), Some(place)) = (key, option, place) else { return false };
        if !is_there || ![key, option, place].iter().all(Token::is_name) {
            return false;
        }
        let (key, option, place) = (key.text, option.text, place.text);
        let text = format!(
            "(SELECT i.*, u.value AS {key}, 0 AS {option}, u.key + 1 AS {place} FROM pg_index i, \
             json_each(ums_elements(i.indkey)) AS u)"
        );
        self.put(words.len() + 8, &text);
        self.operand = None;
        true
    }

    /// Returns whether CREATE INDEX has no name before this ON.
    pub(super) fn names_index(&self) -> bool {
        let before = self.at.checked_sub(1).map(|at| &self.tokens[at]);
        self.tokens[0].is("create")
            && self.at < 5
            && before.is_some_and(|before| before.is("index") || before.is("concurrently"))
    }

    /// Gives an index the name that PostgreSQL would: of the table, and of its columns or
    /// functions.
    pub(super) fn put_index_name(&mut self) {
        let open = self.tokens.iter().position(|token| token.sign("("));
        let close = open.and_then(|open| self.closing(open));
        let list = open.zip(close).map_or(&[][..], |(open, close)| &self.tokens[open + 1..close]);
        let table = self.tokens.get(self.at + 1..open.unwrap_or(self.at + 1));
        let table = table
            .unwrap_or_default()
            .iter()
            .rfind(|token| token.is_name() && !token.is("using") && !token.is("btree"));
        let mut name = table.map_or(String::new(), Token::folded);
        for item in if list.is_empty() { Vec::new() } else { items(list) } {
            let is_named = matches!(item, [one, ..] if one.is_name());
            let is_plain = item.get(1).is_none_or(|next| next.is_name() || next.sign("("));
            let part = if is_named && is_plain { item[0].folded() } else { "expr".to_owned() };
            name = format!("{name}_{part}");
        }
        let name = name.replace('"', "\"\"");
        self.put(1, &format!("\"{name}_idx\" ON"));
        (self.operand, self.product) = (None, None);
    }

    /// Translates `json_each(..)` in a FROM clause to PostgreSQL's two columns, of which the value
    /// is a JSON text.
    pub(super) fn json_each(&mut self) -> bool {
        let Some(close) = self.closing(self.at + 1).filter(|_| self.is_in_from()) else {
            return false;
        };
        let argument = self.inner(&self.tokens[self.at + 1..=close]);
        let is_as = self.tokens.get(close + 1).is_some_and(|token| token.is("as"));
        let alias = self.tokens.get(close + 1 + usize::from(is_as));
        let is_named =
            alias.is_some_and(|token| token.is_name() && (is_as || !is_clause_word(token)));
        let name =
            if is_named { String::new() } else { format!(" AS {}", self.tokens[self.at].text) };
        let text = format!(
            "(SELECT key, CASE type WHEN 'text' THEN json_quote(value) WHEN 'null' THEN 'null' \
             WHEN 'true' THEN 'true' WHEN 'false' THEN 'false' ELSE CAST(value AS text) END \
             AS value FROM json_each{argument}){name}"
        );
        self.put(close + 1 - self.at, &text);
        self.operand = None;
        true
    }

    /// Translates `a[1]`, whose array has just ended.
    pub(super) fn subscript(&mut self) -> bool {
        let close = self.tokens[self.at..].iter().take(8).position(|token| token.sign("]"));
        let (Some(start), Some(close)) = (self.operand, close) else { return false };
        let place = &self.tokens[self.at + 1..self.at + close];
        if place.is_empty() || self.is_in_schema() || self.moved > MOVED_MAX {
            return false;
        }
        let place = self.inner(place);
        // A name is the only array whose first element has the number 0.
        let of_name = self.tokens[self.at - 1].is("typname");
        self.skip(close + 1);
        let array = self.out.split_off(start);
        self.moved += array.len();
        let array = array.trim_end();
        let element = match of_name {
            true => format!("substr({array}, ({place}) + 1, 1)"),
            false => format!("json_extract(ums_elements({array}), '$[' || (({place}) - 1) || ']')"),
        };
        self.out.push_str(&element);
        self.operand = Some(start);
        true
    }

    /// Returns whether this call is in a FROM clause, and not in an expression.
    fn is_in_from(&self) -> bool {
        let mut before = self.tokens[..self.at].iter().rev();
        let mut token = before.next();
        if token.is_some_and(|token| token.sign(".")) {
            token = before.nth(1);
        }
        token.is_some_and(|token| {
            let begins = token.is("from") || token.is("join") || token.sign(",");
            begins && !self.open_is_call()
        })
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
                "select array(select 'x' || x from pg_catalog.unnest(c.o) x) from c",
                "select (WITH ums_a(item) AS (select 'x' || x from (SELECT value AS x FROM \
                 json_each(ums_elements(c.o))) AS x) SELECT '{' || \
                 coalesce(group_concat(ums_element(item)), '') || '}' FROM ums_a) from c",
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
    fn several_arrays_are_joined_by_the_places_of_their_elements() {
        let text = one("select * from unnest(($1)::int[], b) as t(x, y) where x > 1");
        let expected = "select * from (WITH ums_e0 AS MATERIALIZED (SELECT key, value FROM \
            json_each(ums_elements(pg_text(($1))))), ums_e1 AS MATERIALIZED (SELECT key, value \
            FROM json_each(ums_elements(b))), ums_k AS (SELECT key FROM ums_e0 UNION SELECT key \
            FROM ums_e1) SELECT ums_e0.value AS x, ums_e1.value AS y FROM ums_k LEFT JOIN ums_e0 \
            ON ums_e0.key = ums_k.key LEFT JOIN ums_e1 ON ums_e1.key = ums_k.key \
            ORDER BY ums_k.key) AS t where x > 1";
        assert_eq!(text, expected);
    }

    #[test]
    fn what_django_asks_of_the_catalogue_is_translated() {
        for (from, to) in [
            (
                "select c.k[1] from c",
                "select json_extract(ums_elements(c.k), '$[' || ((1) - 1) || ']') from c",
            ),
            (
                "select a from unnest(k) with ordinality t(a, n)",
                "select a from (WITH ums_e0 AS MATERIALIZED (SELECT key, value FROM \
                 json_each(ums_elements(k))), ums_k AS (SELECT key FROM ums_e0) SELECT \
                 ums_e0.value AS a, ums_k.key + 1 AS n FROM ums_k LEFT JOIN ums_e0 ON ums_e0.key \
                 = ums_k.key ORDER BY ums_k.key) AS t",
            ),
            (
                "select * from pg_index i, unnest(i.indkey, i.indoption) with ordinality \
                 k(a, o, n)",
                "select * from (SELECT i.*, u.value AS a, 0 AS o, u.key + 1 AS n FROM pg_index i, \
                 json_each(ums_elements(i.indkey)) AS u)",
            ),
        ] {
            assert_eq!(one(from), to);
        }
    }

    #[test]
    fn an_index_without_a_name_gets_postgresqls() {
        for (from, to) in [
            (
                "create index on word (lower(w))",
                "create index \"word_lower_idx\" ON word (lower(w))",
            ),
            (
                "create unique index on public.t (a desc, (b + 1))",
                "create unique index \"t_a_expr_idx\" ON t (a desc, (b + 1))",
            ),
            ("create index i on t (a)", "create index i on t (a)"),
        ] {
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
