//! VALUES with clauses after it, which SQLite does not have.
//!
//! ```text
//!   VALUES (1) ORDER BY 1   ──▶ SELECT * FROM (VALUES (1)) ORDER BY 1
//! ```

use super::rewrite::Rewriter;
use super::tokens::Token;

impl<'a> Rewriter<'_, 'a> {
    /// Translates a word of a query. Returns `None` if it is no word of this file, and false if
    /// SQLite understands it as it is.
    pub(super) fn query_word(&mut self, token: &Token<'a>, lower: &str) -> Option<bool> {
        match lower {
            "limit" | "offset" | "fetch" => {
                self.end_values();
                Some(self.limit(token))
            }
            "order" => {
                self.end_values();
                Some(false)
            }
            "values" if self.at == 0 => Some(self.begin_values()),
            "values" if self.is_combined() => Some(self.values_of_set()),
            _ => None,
        }
    }

    /// Translates the beginning of VALUES with clauses after it.
    fn begin_values(&mut self) -> bool {
        if !self.is_whole() {
            return false;
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

    /// Returns whether a word that combines queries is before this one.
    fn is_combined(&self) -> bool {
        let is = |back: usize, words: &[&str]| {
            let before = self.at.checked_sub(back).map(|at| &self.tokens[at]);
            before.is_some_and(|before| words.iter().any(|word| before.is(word)))
        };
        const COMBINE: [&str; 3] = ["union", "except", "intersect"];
        is(1, &COMBINE) || (is(1, &["all", "distinct"]) && is(2, &COMBINE))
    }

    /// Translates VALUES after UNION, behind which SQLite allows no ORDER BY.
    fn values_of_set(&mut self) -> bool {
        let mut end = self.at + 1;
        while self.tokens.get(end).is_some_and(|token| token.sign("(")) {
            let Some(close) = self.closing(end) else { return false };
            end = close + 1;
            if !self.tokens.get(end).is_some_and(|token| token.sign(",")) {
                break;
            }
            end += 1;
        }
        if end == self.at + 1 {
            return false;
        }
        let rows = self.inner(&self.tokens[self.at + 1..end]);
        self.put(end - self.at, &format!("SELECT * FROM (VALUES {rows})"));
        self.operand = None;
        true
    }

    /// Ends VALUES before the first of its clauses.
    fn end_values(&mut self) {
        if self.wraps && self.open.is_empty() {
            self.wraps = false;
            self.out.push(')');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::edits::Edits;
    use super::super::rewrite::rewrite;
    use super::super::tokens::tokens;

    #[test]
    fn values_with_clauses_become_a_query() {
        let cases = [
            (
                "values (1), (2) order by 1 limit 1",
                "SELECT * FROM (VALUES (1), (2)) order by 1 NULLS LAST limit 1",
            ),
            ("values (1), (2)", "values (1), (2)"),
            (
                "values (1) union all values (2), (3) order by 1",
                "values (1) union all SELECT * FROM (VALUES (2), (3)) order by 1 NULLS LAST",
            ),
        ];
        for (from, to) in cases {
            let tokens = tokens(from).unwrap();
            let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert_eq!(words(&rewrite(from, &tokens, &Edits::default())), to);
        }
    }
}
