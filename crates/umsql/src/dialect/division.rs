//! Divisions become calls, because SQLite's operators return NULL where PostgreSQL has an error,
//! and its `%` knows whole numbers only.
//!
//! ```text
//!   a * b / c       ──▶  pg_div(a * b, c)
//!   a % 2           ──▶  pg_mod(a, 2)
//!   a / 2           ──▶  a / 2              a number that is not zero
//! ```
//!
//! The left side is everything since the last operator that binds less tightly. The right side is
//! one operand: a name, a literal, a call, a parenthesis, or a CASE, with its signs and casts. The
//! schema keeps SQLite's operators, because another program that opens the file has no such
//! functions.

use super::rewrite::{MOVED_MAX, Rewriter};
use super::tokens::{Token, TokenKind};

impl Rewriter<'_, '_> {
    /// Translates a division whose left side has just ended. Returns false if SQLite's operator has
    /// the same result, or if the form exceeds the limits.
    pub(super) fn division(&mut self, sign: &str) -> bool {
        let Some(left) = self.product.or(self.operand) else { return false };
        if self.is_in_schema() || self.moved > MOVED_MAX {
            return false;
        }
        let Some(end) = self.operand_end(self.at + 1) else { return false };
        let right = &self.tokens[self.at + 1..end];
        if sign == "/" && matches!(right, [one] if is_more_than_zero(one)) {
            return false;
        }
        let right = self.inner(right);
        let function = if sign == "/" { "pg_div" } else { "pg_mod" };
        self.call_with(left, function, &right, end);
        self.product = Some(left);
        true
    }

    /// Writes a call in place of an operation: of what begins at `left` in the output, and of the
    /// translated right side, which ends before the token `end`.
    pub(super) fn call_with(&mut self, left: usize, function: &str, right: &str, end: usize) {
        self.moved += self.out.len() - left;
        let operand = self.out.split_off(left);
        self.out.push_str(&format!("{function}({}, {})", operand.trim_end(), right.trim()));
        self.skip(end - self.at);
        self.operand = Some(left);
    }

    /// Returns the index of the token after the operand that begins at this index.
    pub(super) fn operand_end(&self, start: usize) -> Option<usize> {
        let token = |at: usize| self.tokens.get(at);
        let is_sign = |at: usize, sign: &str| token(at).is_some_and(|token| token.sign(sign));
        let mut at = start;
        while ["+", "-", "~"].iter().any(|sign| is_sign(at, sign)) {
            at += 1;
        }
        let first = token(at)?;
        at = if first.sign("(") {
            self.closing(at)? + 1
        } else if first.is("case") {
            self.end_of_case(at)? + 1
        } else {
            at + 1
        };
        if first.is_name() && !first.is("case") {
            while is_sign(at, ".") {
                at += 2;
            }
            if is_sign(at, "(") {
                at = self.closing(at)? + 1;
                while token(at).is_some_and(|word| word.is("filter") || word.is("over")) {
                    at = if is_sign(at + 1, "(") { self.closing(at + 1)? + 1 } else { at + 2 };
                }
            }
        } else if first.kind == TokenKind::Sign && !first.sign("(") {
            return None;
        }
        while is_sign(at, "::") {
            at += 1 + self.type_length(at + 1 - self.at)?;
        }
        (at <= self.tokens.len()).then_some(at)
    }

    /// Returns the index of the END of the CASE at this index.
    fn end_of_case(&self, case: usize) -> Option<usize> {
        let mut depth = 0usize;
        for (at, token) in self.tokens.iter().enumerate().skip(case) {
            depth += usize::from(token.is("case"));
            if token.is("end") {
                depth -= 1;
                if depth == 0 {
                    return Some(at);
                }
            }
        }
        None
    }
}

fn is_more_than_zero(token: &Token<'_>) -> bool {
    token.kind == TokenKind::Number && token.text.parse().is_ok_and(|number: f64| number > 0.0)
}

#[cfg(test)]
mod tests {
    use super::super::edits::Edits;
    use super::super::rewrite::rewrite;
    use super::super::tokens::tokens;

    #[test]
    fn a_division_takes_the_whole_product_before_it_and_one_operand_after_it() {
        let cases = [
            ("select a / b", "select pg_div(a, b)"),
            ("select a * b / c + d", "select pg_div(a * b, c) + d"),
            ("select 1 + a / -b * c", "select 1 + pg_div(a, -b) * c"),
            ("select a / b / c % d", "select pg_mod(pg_div(pg_div(a, b), c), d)"),
            ("select a / 2, b % 2, c / 0", "select a / 2, pg_mod(b, 2), pg_div(c, 0)"),
            ("select a / 2 / b", "select pg_div(a / 2, b)"),
            ("select (a + b) / (c - d)", "select pg_div((a + b), (c - d))"),
            ("select (a * (b / c)) / d", "select pg_div((a * (pg_div(b, c))), d)"),
            ("select t.a / f(x, 1 / y)::int", "select pg_div(t.a, int4(f(x, pg_div(1, y))))"),
            ("select sum(a) / count(*) over w, b", "select pg_div(sum(a), count(*) over w), b"),
            (
                "select sum(a) / sum(b) filter (where c) over (order by d)",
                "select pg_div(sum(a), sum(b) filter (where c) over (order by d NULLS LAST))",
            ),
            (
                "select a / case when b then case c when 1 then 2 end end, d",
                "select pg_div(a, case when b then case c when 1 then 2 end end), d",
            ),
            ("select $1 / $2 where a > b / c", "select pg_div($1, $2) where a > pg_div(b, c)"),
            (
                "select a * case when b then c / d end / e",
                "select pg_div(a * case when b then pg_div(c, d) end, e)",
            ),
            ("select -a / b", "select -pg_div(a, b)"),
            ("select a || b / c", "select a || pg_div(b, c)"),
            ("select a / 'x' , b", "select pg_div(a, 'x') , b"),
            ("create view v as select a / b", "create view v as select a / b"),
            ("select a /", "select a /"),
        ];
        for (from, to) in cases {
            assert_eq!(rewrite(from, &tokens(from).unwrap(), &Edits::default()), to);
        }
    }
}
