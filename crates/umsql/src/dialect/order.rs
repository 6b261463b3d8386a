//! The end of a query: where NULL is in its order, and how many of its rows are wanted.
//!
//! In PostgreSQL NULL is larger than every value; in SQLite it is smaller. So each expression of an
//! ORDER BY that does not say where NULL is gets the words for it:
//!
//! ```text
//!   ORDER BY a, b DESC              ──▶ ORDER BY a NULLS LAST, b DESC NULLS FIRST
//!   OFFSET 2 FETCH NEXT ROW ONLY    ──▶ LIMIT 1 OFFSET 2
//! ```

use super::rewrite::Rewriter;
use super::tokens::{Token, TokenKind};

/// The most tokens between LIMIT and OFFSET.
const LIMIT_MAX: usize = 64;

impl<'t, 'a> Rewriter<'t, 'a> {
    /// Notices where the list of an ORDER BY begins, and where an expression of it has ended, which
    /// is before `token`.
    pub(super) fn order(&mut self, token: &Token<'a>) {
        let here = self.open.len();
        if token.is("order") && self.next_is(1, "by") {
            return self.orders.push(here);
        }
        if self.orders.last() != Some(&here) {
            return;
        }
        let begins = self.at == 0 || ["by", ","].iter().any(|word| self.is_before(1, word));
        if token.sign(",") {
            self.place_nulls();
        } else if token.sign(")") || (!begins && ends_order(token)) {
            self.place_nulls();
            self.orders.pop();
        }
    }

    /// Returns whether a LIMIT is shortly before this place.
    fn has_limit(&self) -> bool {
        let before = self.tokens[..self.at].iter().rev().take(LIMIT_MAX);
        before.take_while(|token| !token.is("select")).any(|token| token.is("limit"))
    }

    fn is_before(&self, back: usize, text: &str) -> bool {
        let token = self.at.checked_sub(back).map(|at| &self.tokens[at]);
        token.is_some_and(|token| token.is(text) || token.sign(text))
    }

    /// Says where NULL is in the order of the expression that has just ended.
    pub(super) fn place_nulls(&mut self) {
        if !self.is_before(2, "nulls") && !self.is_before(1, "by") {
            let descends = self.is_before(1, "desc");
            self.out.push_str(if descends { " NULLS FIRST" } else { " NULLS LAST" });
        }
    }

    /// Translates `LIMIT ALL`, `OFFSET` without LIMIT or before it, and `FETCH`. Their numbers must
    /// be one token each. Returns false if SQLite understands the form as it is.
    pub(super) fn limit(&mut self, token: &Token<'a>) -> bool {
        if token.is("offset") && self.has_limit() {
            return false;
        }
        let mut at = 0;
        let (mut rows, mut skipped) = (None, None);
        loop {
            let is_count = |token: &Token<'_>| {
                matches!(token.kind, TokenKind::Number | TokenKind::Param) || is_all(token)
            };
            let count = self.peek(at + 1).filter(is_count);
            if self.next_is(at, "limit") && rows.is_none() && count.is_some() {
                (rows, at) = (count, at + 2);
            } else if self.next_is(at, "offset") && skipped.is_none() && count.is_some() {
                (skipped, at) = (count, at + 2);
                at += usize::from(self.next_is(at, "row") || self.next_is(at, "rows"));
            } else if self.next_is(at, "fetch") && rows.is_none() {
                let count = self.peek(at + 2).filter(is_count);
                at += 2 + usize::from(count.is_some());
                let one = Token { kind: TokenKind::Number, text: "1", at: 0 };
                rows = Some(count.unwrap_or(one));
                let is_row = self.next_is(at, "row") || self.next_is(at, "rows");
                if !is_row || !self.next_is(at + 1, "only") {
                    return false;
                }
                at += 2;
            } else {
                break;
            }
        }
        let is_whole = self.peek(at).is_none_or(|next| next.sign(")") || next.is("for"));
        let is_sqlites = token.is("limit") && !rows.is_none_or(|rows| is_all(&rows));
        if at == 0 || !is_whole || is_sqlites || self.is_before(1, ".") {
            return false;
        }
        let text = |token: Option<Token<'a>>| token.filter(|token| !is_all(token)).map(|t| t.text);
        let mut clause = format!("LIMIT {}", text(rows).unwrap_or("-1"));
        if let Some(skipped) = text(skipped) {
            clause.push_str(&format!(" OFFSET {skipped}"));
        }
        self.put(at, &clause);
        self.operand = None;
        true
    }
}

fn is_all(token: &Token<'_>) -> bool {
    token.is("all") || token.is("null")
}

/// Returns whether the list of an ORDER BY ends before this word.
fn ends_order(token: &Token<'_>) -> bool {
    const WORDS: [&str; 12] = [
        "on",
        "limit",
        "offset",
        "fetch",
        "for",
        "rows",
        "range",
        "groups",
        "returning",
        "union",
        "except",
        "intersect",
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
    fn null_is_larger_than_every_value() {
        let cases = [
            ("select a order by a", "select a order by a NULLS LAST"),
            (
                "select a order by a, b desc , c asc limit 1",
                "select a order by a NULLS LAST, b desc NULLS FIRST , c asc NULLS LAST limit 1",
            ),
            ("select a order by a nulls first", "select a order by a nulls first"),
            (
                "select f(a order by b), (select c order by lower(c, d)) order by g(a, b)",
                "select f(a order by b NULLS LAST), (select c order by lower(c, d) NULLS LAST) \
                 order by g(a, b) NULLS LAST",
            ),
            (
                "select sum(a) over (partition by b order by c rows 1 preceding) from t",
                "select sum(a) over (partition by b order by c NULLS LAST rows 1 preceding) from t",
            ),
            ("select a order by x::int desc", "select a order by int4(x) desc NULLS FIRST"),
            ("select \"order\", b from t", "select `order`, b from t"),
        ];
        for (from, to) in cases {
            assert_eq!(one(from), to);
        }
    }

    #[test]
    fn the_forms_of_a_limit_become_sqlites() {
        let cases = [
            ("select a limit 2 offset 1", "select a limit 2 offset 1"),
            ("select a limit all", "select a LIMIT -1"),
            ("select a limit null offset $1", "select a LIMIT -1 OFFSET $1"),
            ("select a offset 4", "select a LIMIT -1 OFFSET 4"),
            ("select a offset 4 rows", "select a LIMIT -1 OFFSET 4"),
            ("select a offset 4 limit 2", "select a LIMIT 2 OFFSET 4"),
            ("select a fetch first 3 rows only", "select a LIMIT 3"),
            ("select a fetch next row only", "select a LIMIT 1"),
            ("select a offset 1 row fetch next 2 rows only", "select a LIMIT 2 OFFSET 1"),
            ("select (select a offset 1) b", "select (select a LIMIT -1 OFFSET 1) b"),
            ("select a order by b offset 1", "select a order by b NULLS LAST LIMIT -1 OFFSET 1"),
            ("select offset from t", "select offset from t"),
            ("select a limit 1 + 1", "select a limit 1 + 1"),
            ("select a fetch first 3 rows with ties", "select a fetch first 3 rows with ties"),
        ];
        for (from, to) in cases {
            assert_eq!(one(from), to);
        }
    }
}
