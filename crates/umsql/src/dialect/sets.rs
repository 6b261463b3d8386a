//! Set operations, and queries that are not SELECT.
//!
//! ```text
//!   (SELECT ..) UNION (SELECT ..)   ──▶ SELECT * FROM (SELECT ..) UNION SELECT * FROM (SELECT ..)
//!   VALUES (1) ORDER BY 1           ──▶ SELECT * FROM (VALUES (1)) ORDER BY 1
//!   TABLE t                         ──▶ SELECT * FROM t
//! ```
//!
//! SQLite has no parentheses around a query of a set operation, and no clauses after VALUES.

use super::rewrite::Rewriter;
use super::tokens::Token;

impl<'a> Rewriter<'_, 'a> {
    /// Translates a word of a query. Returns `None` if it is no word of this file, and false if
    /// SQLite understands it as it is.
    pub(super) fn query_word(&mut self, token: &Token<'a>, lower: &str) -> Option<bool> {
        match lower {
            "limit" | "offset" | "fetch" => {
                self.end_values();
                return Some(self.limit(token));
            }
            "order" => {
                self.end_values();
                return Some(false);
            }
            "values" | "table" if self.at == 0 => return Some(self.begin_values()),
            "distinct" if self.is_before(1, "union") => self.skip(1),
            "unknown" if self.is_test() => self.operand = Some(self.put(1, "NULL")),
            _ => return None,
        }
        Some(true)
    }

    /// Writes what is before the parenthesis of a query that a set operation joins.
    pub(super) fn begin_operand(&mut self) {
        const WORDS: [&str; 3] = ["union", "except", "intersect"];
        let back = if self.is_before(1, "all") || self.is_before(1, "distinct") { 2 } else { 1 };
        let is_first = self.at == 0 && self.is_whole();
        let is_operand = is_first || WORDS.iter().any(|word| self.is_before(back, word));
        if is_operand && ["select", "values", "with"].iter().any(|word| self.next_is(1, word)) {
            self.space();
            self.out.push_str("SELECT * FROM ");
        }
    }

    /// Translates the beginning of TABLE, and of VALUES with clauses after it.
    fn begin_values(&mut self) -> bool {
        if !self.is_whole() {
            return false;
        }
        if self.next_is(0, "table") {
            self.put(1, "SELECT * FROM");
            return true;
        }
        let mut depth = 0usize;
        let has_clauses = self.tokens.iter().any(|token| {
            match token.text {
                "(" => depth += 1,
                ")" => depth = depth.saturating_sub(1),
                _ => (),
            }
            depth == 0 && ["order", "limit", "offset", "fetch"].iter().any(|word| token.is(word))
        });
        if !has_clauses || self.tokens.iter().any(|token| token.is("union")) {
            return false;
        }
        self.wraps = true;
        self.put(1, "SELECT * FROM (VALUES");
        true
    }

    /// Ends VALUES before the first of its clauses.
    fn end_values(&mut self) {
        if self.wraps && self.open.is_empty() {
            self.wraps = false;
            self.out.push(')');
        }
    }

    /// Returns whether IS, or IS NOT, is before this place.
    fn is_test(&self) -> bool {
        self.is_before(1, "is") || (self.is_before(1, "not") && self.is_before(2, "is"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::rewrite::rewrite;
    use super::super::tokens::tokens;

    #[test]
    fn queries_in_parentheses_and_values_with_clauses_become_sqlites() {
        let cases = [
            (
                "(select a from t limit 1) union all (select 2) order by 1",
                "SELECT * FROM (select a from t limit 1) union all SELECT * FROM (select 2) order \
                 by 1 NULLS LAST",
            ),
            (
                "select 1 union distinct (select 2 except select 3)",
                "select 1 union SELECT * FROM (select 2 except select 3)",
            ),
            ("select (select 1), 1 in (select 2)", "select (select 1), 1 in (select 2)"),
            (
                "values (1), (2) order by 1 limit 1",
                "SELECT * FROM (VALUES (1), (2)) order by 1 NULLS LAST limit 1",
            ),
            ("values (1), (2)", "values (1), (2)"),
            ("table t", "SELECT * FROM t"),
            ("select a is unknown, a is not unknown", "select a is NULL, a is not NULL"),
            ("select int '5', text 'a'", "select int4('5'), 'a'"),
        ];
        for (from, to) in cases {
            let tokens = tokens(from).unwrap();
            let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert_eq!(words(&rewrite(from, &tokens)), to);
        }
    }
}
