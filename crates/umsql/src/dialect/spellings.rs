//! Forms that SQL spells with words between arguments, and operators that SQLite does not have.
//!
//! ```text
//!   substring(a from b for c)      ──▶  pg_substr(a, b, c)
//!   trim(leading b from a)         ──▶  ltrim(a, b)
//!   format(a, b)                   ──▶  pg_format(a, b)
//!   position(a in b)               ──▶  instr(b, a)
//!   overlay(a placing b from c)    ──▶  (pg_substr(a, 1, c - 1) || b || ..)
//!   a ^ b                          ──▶  power(a, b)
//!   a SIMILAR TO b                 ──▶  a REGEXP pg_similar(b)
//!   a = ANY (..), a <> ALL (..)    ──▶  a IN (..), a NOT IN (..)
//!   (SELECT ..) UNION (SELECT ..)  ──▶  SELECT * FROM (SELECT ..) UNION SELECT * FROM (SELECT ..)
//!   UPDATE t a SET                 ──▶  UPDATE t AS a SET
//! ```
//!
//! A form that is nested too deeply, or is too long, is passed to SQLite as it is.

use super::rewrite::Rewriter;
use super::tokens::{Token, closing, items};

impl<'t, 'a> Rewriter<'t, 'a> {
    /// Translates a word that begins one of these forms. Returns false if it begins none.
    pub(super) fn spelling(&mut self, word: &str) -> bool {
        let is_call = self.next_is(1, "(") && !self.is_in_schema();
        match word {
            "substring" | "substr" if is_call => self.substring(),
            "format" | "mod" if is_call => {
                self.operand = Some(self.put(1, &format!("pg_{word}")));
                true
            }
            "trim" if is_call => self.trim(),
            "btrim" if is_call => {
                self.operand = Some(self.put(1, "trim"));
                true
            }
            "position" if is_call => self.position(),
            "overlay" if is_call => self.overlay(),
            "similar" if self.next_is(1, "to") => self.similar(),
            "is" if self.next_is(1, "unknown") => self.put_operator(2, "IS NULL"),
            "is" if self.next_is(1, "not") && self.next_is(2, "unknown") => {
                self.put_operator(3, "IS NOT NULL")
            }
            "union" if self.next_is(1, "distinct") => self.put_operator(2, "UNION"),
            "only" if self.at > 0 && self.names_table(self.at - 1) => {
                self.skip(1);
                true
            }
            "table" if self.at == 0 => {
                self.put(1, "SELECT * FROM");
                true
            }
            _ => self.alias(),
        }
    }

    fn put_operator(&mut self, count: usize, text: &str) -> bool {
        self.put(count, text);
        (self.operand, self.product) = (None, None);
        true
    }

    /// Returns whether the name of a table follows this token.
    fn names_table(&self, at: usize) -> bool {
        let token = &self.tokens[at];
        token.is("from") || token.is("join") || self.is_target(at)
    }

    /// Returns whether a table that is changed follows this token.
    fn is_target(&self, at: usize) -> bool {
        let token = &self.tokens[at];
        let is_first = |word: &str| token.is(word) && at == 0;
        is_first("update") || token.is("from") && at > 0 && self.tokens[at - 1].is("delete")
    }

    /// Writes AS before the alias of the table that UPDATE or DELETE changes.
    fn alias(&mut self) -> bool {
        let before = |back: usize| self.at.checked_sub(back);
        let is_only = before(2).is_some_and(|at| self.tokens[at].is("only"));
        let is_table = self.at > 0 && self.tokens[self.at - 1].is("only");
        let target = before(2 + usize::from(is_only)).filter(|at| self.is_target(*at));
        let target = target.filter(|_| !is_table);
        let Some(word) = self.peek(0).filter(|_| target.is_some()) else { return false };
        let ends = ["set", "where", "returning", "as", "using", "indexed", "not", "from"];
        if !word.is_name() || ends.iter().any(|end| word.is(end)) {
            return false;
        }
        self.put(1, &format!("AS {}", word.text));
        true
    }

    /// Returns the tokens between the parentheses of the call that begins here, and the index after
    /// the call.
    fn arguments(&self) -> Option<(&'t [Token<'a>], usize)> {
        let close = self.closing(self.at + 1)?;
        Some((&self.tokens[self.at + 2..close], close + 1))
    }

    fn substring(&mut self) -> bool {
        let Some((inner, end)) = self.arguments() else { return false };
        let (text, rest) = cut(inner, "from");
        let (text, count_first) = cut(text, "for");
        let Some(from) = rest.or(count_first.map(|_| &inner[..0])) else {
            // The arguments have commas between them.
            self.operand = Some(self.put(1, "pg_substr"));
            return true;
        };
        let (from, count) = cut(from, "for");
        let count = count.or(count_first);
        let from = if from.is_empty() { "1".to_owned() } else { self.inner(from) };
        if text.is_empty() || count.is_some_and(<[_]>::is_empty) {
            return false;
        }
        let count = count.map_or(String::new(), |count| format!(", {}", self.inner(count)));
        let call = format!("pg_substr({}, {from}{count})", self.inner(text));
        self.put_call(end, &call)
    }

    fn trim(&mut self) -> bool {
        let Some((inner, end)) = self.arguments() else { return false };
        let side = inner.first().map(|word| word.text.to_ascii_lowercase());
        let (function, rest) = match side.as_deref() {
            Some("leading") => ("ltrim", &inner[1..]),
            Some("trailing") => ("rtrim", &inner[1..]),
            Some("both") => ("trim", &inner[1..]),
            _ => ("trim", inner),
        };
        let (set, text) = match cut(rest, "from") {
            (set, Some(text)) if !text.is_empty() => (set, text),
            (text, None) if rest.len() < inner.len() && !text.is_empty() => (&rest[..0], text),
            _ => return false,
        };
        let set = if set.is_empty() { String::new() } else { format!(", {}", self.inner(set)) };
        let call = format!("{function}({}{set})", self.inner(text));
        self.put_call(end, &call)
    }

    fn position(&mut self) -> bool {
        let Some((inner, end)) = self.arguments() else { return false };
        let (part, Some(whole)) = cut(inner, "in") else { return false };
        if part.is_empty() || whole.is_empty() {
            return false;
        }
        let call = format!("instr({}, {})", self.inner(whole), self.inner(part));
        self.put_call(end, &call)
    }

    fn overlay(&mut self) -> bool {
        let Some((inner, end)) = self.arguments() else { return false };
        let (text, Some(rest)) = cut(inner, "placing") else { return false };
        let (new, Some(rest)) = cut(rest, "from") else { return false };
        let (from, count) = cut(rest, "for");
        if [text, new, from].iter().any(|part| part.is_empty()) {
            return false;
        }
        let (text, new, from) = (self.inner(text), self.inner(new), self.inner(from));
        let count = count.map_or(format!("length({new})"), |count| self.inner(count));
        let call = format!(
            "(pg_substr({text}, 1, ({from}) - 1) || ({new}) || pg_substr({text}, ({from}) + \
             ({count})))"
        );
        self.put_call(end, &call)
    }

    fn put_call(&mut self, end: usize, call: &str) -> bool {
        self.operand = Some(self.put(end - self.at, call));
        true
    }

    fn similar(&mut self) -> bool {
        let Some(end) = self.operand_end(self.at + 2) else { return false };
        if self.tokens.get(end).is_some_and(|token| token.is("escape")) {
            return false;
        }
        let pattern = self.inner(&self.tokens[self.at + 2..end]);
        self.put_operator(end - self.at, &format!("REGEXP pg_similar({})", pattern.trim()))
    }

    /// Translates `a ^ b`, whose left side has just ended.
    pub(super) fn power(&mut self) -> bool {
        let (Some(left), false) = (self.operand, self.is_in_schema()) else { return false };
        let Some(end) = self.operand_end(self.at + 1) else { return false };
        let right = self.inner(&self.tokens[self.at + 1..end]);
        self.call_with(left, "power", &right, end);
        true
    }

    /// Returns whether the name of a collation follows that compares bytes, as SQLite does.
    pub(super) fn is_binary_collation(&self, ahead: usize) -> bool {
        let name = self.peek(ahead).map(|token| token.folded());
        name.is_some_and(|name| ["C", "POSIX", "default", "ucs_basic"].contains(&name.as_str()))
    }

    /// Returns whether a sign is before this token, as in `(a, b) = ROW(1, 2)`.
    pub(super) fn follows_sign(&self) -> bool {
        let before = self.at.checked_sub(1).map(|at| &self.tokens[at]);
        before.is_some_and(|before| before.sign("=") || before.sign("<>"))
    }

    /// Returns whether this keyword of SQLite, which PostgreSQL allows as a name, is a name here.
    pub(super) fn is_plain_name(&self, word: &str) -> bool {
        let keywords: &[&str] = match word {
            "nothing" => &["do"],
            _ => &["create", "unique", "drop", "alter", "reindex", "concurrently"],
        };
        let before = self.at.checked_sub(1).map(|at| &self.tokens[at]);
        before.is_some_and(|before| !keywords.iter().any(|keyword| before.is(keyword)))
    }

    /// Translates a comparison with the elements of an array: `= ANY ($1)`, `= ANY ('{1,2}')`.
    fn array_membership(&mut self, operator: &str) -> bool {
        let Some(close) = self.closing(self.at + 2) else { return false };
        let array = &self.tokens[self.at + 3..close];
        if array.is_empty() {
            return false;
        }
        let array = self.inner(array);
        let list = format!(" {operator} (SELECT value FROM json_each(ums_elements({array})))");
        self.put_operator(close + 1 - self.at, &list)
    }

    /// Translates a comparison with ANY or ALL that means IN or NOT IN. Returns false for another.
    pub(super) fn membership(&mut self, sign: &str) -> bool {
        let any = self.next_is(1, "any") || self.next_is(1, "some");
        let operator = match sign {
            "=" if any => "IN",
            "<>" | "!=" if self.next_is(1, "all") => "NOT IN",
            _ => return false,
        };
        if !self.next_is(2, "(") {
            return false;
        }
        if self.next_is(3, "select") || self.next_is(3, "values") {
            self.operator(2, operator);
            return true;
        }
        let Some(close) = self.closing(self.at + 2) else { return false };
        let array = without_cast(&self.tokens[self.at + 3..close]);
        let [array, open, list @ .., last] = array else {
            return self.array_membership(operator);
        };
        if !array.is("array") || !open.sign("[") {
            return self.array_membership(operator);
        }
        if !last.sign("]") || list.iter().any(|token| token.sign("[") || token.sign("]")) {
            return false;
        }
        let items: Vec<_> = items(list).into_iter().map(|item| self.inner_or_empty(item)).collect();
        let list = format!("{operator} ({})", items.join(", "));
        self.put_operator(close + 1 - self.at, &format!(" {list}"))
    }

    fn inner_or_empty(&self, tokens: &'t [Token<'a>]) -> String {
        if tokens.is_empty() { String::new() } else { self.inner(tokens) }
    }

    /// Returns whether the parenthesis here begins a query that is an operand of UNION, EXCEPT or
    /// INTERSECT.
    pub(super) fn begins_operand_query(&self) -> bool {
        let before = self.at.checked_sub(1).map(|at| &self.tokens[at]);
        let combines =
            |token: &Token<'_>| ["union", "except", "intersect"].iter().any(|word| token.is(word));
        let after_set = before.is_none_or(|token| {
            combines(token) || token.is("all") && self.at > 1 && combines(&self.tokens[self.at - 2])
        });
        let mut at = 1;
        // Only there, so that a long row of parentheses is read once.
        while after_set && self.next_is(at, "(") {
            at += 1;
        }
        after_set && ["select", "values", "with"].iter().any(|word| self.next_is(at, word))
    }
}

/// Returns an array without its cast: pg_dump writes `(ARRAY[..])::text[]`.
fn without_cast<'t, 'a>(tokens: &'t [Token<'a>]) -> &'t [Token<'a>] {
    let close = closing(tokens).filter(|_| tokens[0].sign("("));
    match close.and_then(|close| Some((close, tokens.get(close + 1)?))) {
        Some((close, cast)) if cast.sign("::") => &tokens[1..close],
        _ => tokens,
    }
}

/// Returns the tokens before and after this word, outside parentheses.
fn cut<'t, 'a>(tokens: &'t [Token<'a>], word: &str) -> (&'t [Token<'a>], Option<&'t [Token<'a>]>) {
    let mut depth = 0usize;
    for (at, token) in tokens.iter().enumerate() {
        if token.sign("(") {
            depth += 1;
        } else if token.sign(")") {
            depth = depth.saturating_sub(1);
        } else if depth == 0 && token.is(word) {
            return (&tokens[..at], Some(&tokens[at + 1..]));
        }
    }
    (tokens, None)
}

#[cfg(test)]
mod tests {
    use super::super::edits::Edits;
    use super::super::rewrite::rewrite;
    use super::super::tokens::tokens;

    #[test]
    fn words_between_arguments_become_commas() {
        let cases = [
            ("select substring(a from 2 for 3)", "select pg_substr(a, 2, 3)"),
            ("select substring(a for 3), b", "select pg_substr(a, 1, 3), b"),
            ("select substring(a from b::int)", "select pg_substr(a, int4(b))"),
            ("select substr(a, 2)", "select pg_substr(a, 2)"),
            ("select trim(both 'x' from a)", "select trim(a, 'x')"),
            ("select trim(leading from a)", "select ltrim(a)"),
            ("select trim(trailing a)", "select rtrim(a)"),
            ("select trim(a, 'x')", "select trim(a, 'x')"),
            ("select position('a' in f(b, 'c'))", "select instr(f(b, 'c'), 'a')"),
            (
                "select overlay(a placing 'x' from 2 for 1)",
                "select (pg_substr(a, 1, (2) - 1) || ('x') || pg_substr(a, (2) + (1)))",
            ),
            ("select a where b is not unknown", "select a where b IS NOT NULL"),
            ("select 2 ^ -3 * 4", "select power(2, -3) * 4"),
            ("select 1 + 2 ^ 3 ^ 2", "select 1 + power(power(2, 3), 2)"),
            ("select a similar to 'b%' || c", "select a REGEXP pg_similar('b%') || c"),
            ("create view v as select substr(a, 1)", "create view v as select substr(a, 1)"),
        ];
        for (from, to) in cases {
            assert_eq!(rewrite(from, &tokens(from).unwrap(), &Edits::default()), to);
        }
    }

    #[test]
    fn queries_and_targets_are_spelled_as_sqlite_does() {
        let cases = [
            (
                "(select a from t limit 1) union all (select 2) order by 1",
                "SELECT * FROM (select a from t limit 1) union all SELECT * FROM (select 2) \
                 order by 1 NULLS LAST",
            ),
            ("select 1 union distinct select 2", "select 1 UNION select 2"),
            ("table t", "SELECT * FROM t"),
            ("select a from t where a = any (select 1)", "select a from t where a  IN  (select 1)"),
            ("select a = any(array[1, b / c])", "select a  IN (1, pg_div(b, c))"),
            ("select a <> all(array[1])", "select a  NOT IN (1)"),
            ("update t a set b = 1", "update t AS a set b = 1"),
            ("update only t set b = 1", "update t set b = 1"),
            ("delete from t a where a.b = 1", "delete from t AS a where a.b = 1"),
            ("delete from t where b = 1", "delete from t where b = 1"),
            ("select (select 1)", "select (select 1)"),
        ];
        for (from, to) in cases {
            let to = to.replace("  ", " ");
            assert_eq!(
                rewrite(from, &tokens(from).unwrap(), &Edits::default()).replace("  ", " "),
                to
            );
        }
    }
}
