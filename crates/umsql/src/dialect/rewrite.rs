//! The pass over a statement's tokens: copies most of them, and rewrites the forms that SQLite
//! spells differently.
//!
//! A cast `x::t` is the only form that changes output that is already written: the pass remembers
//! where the last complete operand begins in the output, and inserts `CAST(` there.
//!
//! The work is bounded, because a client may send any text. A form that is nested too deeply, is
//! too long or moves too many bytes (the limits are below) is passed to SQLite untranslated, and
//! SQLite refuses it.

use super::tokens::{Token, TokenKind};
use crate::wire::types;

/// Returns the tokens, which are part of `source`, in SQLite's spelling.
pub(super) fn rewrite(source: &str, tokens: &[Token<'_>]) -> String {
    Rewriter::new(source, tokens).run()
}

/// An open parenthesis in the output.
pub(super) struct Open {
    /// The start of the operand that ends at the matching parenthesis: the start of the function's
    /// name for a call, and otherwise the start of the parenthesis.
    pub(super) operand: usize,
    /// Where the parenthesis is.
    start: usize,
    /// Whether this is the parenthesis of `CAST (`.
    cast: bool,
    /// Whether a query in a FROM clause begins here.
    query: bool,
    /// Whether a query begins here that stands for a value, and may return several rows.
    only: bool,
}

pub(super) struct Rewriter<'t, 'a> {
    pub(super) source: &'a str,
    pub(super) tokens: &'t [Token<'a>],
    pub(super) at: usize,
    pub(super) out: String,
    /// The start of the last complete operand in `out`; `None` after an operator.
    pub(super) operand: Option<usize>,
    pub(super) open: Vec<Open>,
    /// The end of the last copied token. The space after it has not been copied yet.
    copied: usize,
    /// The number of rewriters around this one.
    depth: usize,
    /// Whether names in double quotes get others. SQLite takes a name in double quotes that is no
    /// column for a text. The schema keeps its quotes.
    requotes: bool,
    /// For each ORDER BY whose list is not complete, the number of parentheses around it.
    pub(super) orders: Vec<usize>,
    /// The number of bytes that casts have moved so far.
    pub(super) moved: usize,
    /// Whether the statement is VALUES with clauses after it, which have not begun.
    pub(super) wraps: bool,
}

/// The deepest nesting of forms that is translated; deeper ones are passed to SQLite as they are,
/// which refuses them.
const DEPTH_MAX: usize = 16;
/// Each cast of a cast moves its operand again; after this many moved bytes no further cast is
/// translated.
pub(super) const MOVED_MAX: usize = 16 << 20;
/// What is around a query that stands for a value. A second row is an error; one row's smallest
/// value is its value.
const ONLY_BEGIN: &str =
    "SELECT iif(count(*) > 1, ums_several_rows(), min(v)) FROM (WITH ums_v(v) AS (";
const ONLY_END: &str = ") SELECT v FROM ums_v LIMIT 2)";
/// The most tokens of a form that is translated.
const FORM_MAX: usize = 2000;

impl<'t, 'a> Rewriter<'t, 'a> {
    fn new(source: &'a str, tokens: &'t [Token<'a>]) -> Rewriter<'t, 'a> {
        let copied = tokens[0].at;
        let end = tokens[tokens.len() - 1].end();
        let out = String::with_capacity(end - copied + 16);
        Rewriter {
            source,
            tokens,
            at: 0,
            out,
            operand: None,
            open: Vec::new(),
            copied,
            depth: 0,
            requotes: ["select", "with", "insert", "update", "delete", "(", "values", "table"]
                .iter()
                .any(|word| tokens[0].is(word) || tokens[0].sign(word)),
            orders: Vec::new(),
            moved: 0,
            wraps: false,
        }
    }

    fn run(mut self) -> String {
        while let Some(token) = self.peek(0) {
            self.order(&token);
            if !self.special(&token) {
                self.copy(&token);
            }
        }
        if self.orders.last().is_some_and(|order| *order == self.open.len()) {
            self.place_nulls();
        }
        self.out
    }

    pub(super) fn peek(&self, ahead: usize) -> Option<Token<'a>> {
        self.tokens.get(self.at + ahead).copied()
    }

    pub(super) fn next_is(&self, ahead: usize, text: &str) -> bool {
        self.peek(ahead).is_some_and(|token| token.is(text) || token.sign(text))
    }

    /// Skips `count` tokens.
    pub(super) fn skip(&mut self, count: usize) {
        self.at += count;
        if let Some(last) = self.tokens.get(self.at - 1) {
            self.copied = last.end();
        }
    }

    /// Writes `text` in place of the next `count` tokens, and returns where it begins in the
    /// output.
    pub(super) fn put(&mut self, count: usize, text: &str) -> usize {
        self.space();
        let start = self.out.len();
        self.out.push_str(text);
        self.skip(count);
        start
    }

    /// Returns whether this is the whole statement, and no part of one.
    pub(super) fn is_whole(&self) -> bool {
        self.depth == 0
    }

    /// Copies the space before the next token; a comment becomes one space.
    pub(super) fn space(&mut self) {
        let Some(token) = self.peek(0) else { return };
        let gap = &self.source[self.copied..token.at];
        if gap.chars().all(char::is_whitespace) {
            self.out.push_str(gap);
        } else {
            self.out.push(' ');
        }
    }

    fn copy(&mut self, token: &Token<'a>) {
        let name_before = self.at > 0 && self.tokens[self.at - 1].kind == TokenKind::Word;
        let after_dot = self.at > 0 && self.tokens[self.at - 1].sign(".");
        let start = match token.kind {
            TokenKind::Quoted if self.requotes => {
                self.put(1, &format!("`{}`", token.name().replace('`', "``")))
            }
            _ => self.put(1, token.text),
        };
        match (token.kind, token.text) {
            (TokenKind::Sign, "(") => {
                let cast = name_before && self.tokens[self.at - 2].is("cast");
                let call = name_before && !is_operator_word(&self.tokens[self.at - 2]);
                let operand = if call { self.operand.unwrap_or(start) } else { start };
                let query = self.begins_derived_table();
                self.open.push(Open { operand, start, cast, query, only: false });
                self.operand = None;
            }
            (TokenKind::Sign, ")") => {
                let open = self.open.pop();
                self.operand = open.as_ref().map(|open| open.operand);
                if let Some(open) = open.filter(|open| open.query) {
                    self.name_columns(open.start);
                }
            }
            (TokenKind::Sign, ".") => (),
            (TokenKind::Sign, _) => self.operand = None,
            (TokenKind::Word, _) if is_operator_word(token) && !after_dot => self.operand = None,
            _ if after_dot && self.operand.is_some() => (),
            _ => self.operand = Some(start),
        }
    }

    /// Translates a form that begins at `token`. Returns false if there is none.
    fn special(&mut self, token: &Token<'a>) -> bool {
        match token.kind {
            TokenKind::Sign => self.special_sign(token),
            TokenKind::TruthCast if token.text == "::" => self.special_sign(token),
            TokenKind::TruthCast => self.special_word(token),
            TokenKind::Word => self.special_word(token),
            TokenKind::Escaped | TokenKind::Dollar => {
                let text = format!("'{}'", token.value().replace('\'', "''"));
                self.operand = Some(self.put(1, &text));
                true
            }
            TokenKind::Digits => {
                let value = token.value();
                let number = value.trim().trim_start_matches('+');
                let is_below = number.starts_with('-');
                let text = if is_below { format!("({number})") } else { number.to_owned() };
                self.operand = Some(self.put(1, &text));
                true
            }
            TokenKind::Only => {
                if let Some(open) = self.open.last_mut() {
                    open.only = true;
                    self.out.push_str(ONLY_BEGIN);
                }
                self.put(1, token.text);
                self.operand = None;
                true
            }
            TokenKind::Truth => {
                let truth = types::truth(&token.value()).unwrap_or_default();
                self.operand = Some(self.put(1, spelled(truth)));
                true
            }
            _ => false,
        }
    }

    fn special_sign(&mut self, token: &Token<'a>) -> bool {
        let operator = match token.text {
            "::" => return self.cast_suffix(),
            "(" => {
                self.begin_operand();
                return false;
            }
            ")" if self.open.last().is_some_and(|open| open.only) => {
                self.out.push_str(ONLY_END);
                return false;
            }
            "~" if self.operand.is_some() => "REGEXP",
            "!~" => "NOT REGEXP",
            "~*" => "REGEXP '(?i)' ||",
            "!~*" => "NOT REGEXP '(?i)' ||",
            "~~" | "~~*" => "LIKE",
            "!~~" | "!~~*" => "NOT LIKE",
            _ => return false,
        };
        self.operator(1, operator);
        true
    }

    pub(super) fn operator(&mut self, count: usize, operator: &str) {
        self.put(count, &format!(" {operator} "));
        self.operand = None;
    }

    fn special_word(&mut self, token: &Token<'a>) -> bool {
        let lower = token.text.to_ascii_lowercase();
        let dotted = self.next_is(1, ".");
        if let Some(is_done) = self.query_word(token, &lower) {
            return is_done;
        }
        match lower.as_str() {
            "pg_catalog" | "public" if dotted => self.skip_prefix(),
            "information_schema" if dotted => {
                self.operand = Some(self.put(2, "information_schema_"));
                // The table's name, which follows, continues the rewritten name.
                if let Some(name) = self.peek(0) {
                    self.copied = name.at;
                    self.put(1, name.text);
                }
            }
            "operator" if self.next_is(1, "(") => return self.spelled_operator(),
            "collate" if self.next_is(1, "pg_catalog") => self.skip(4),
            "ilike" => self.operator(1, "LIKE"),
            "as" if self.open.last().is_some_and(|open| open.cast) => return self.cast_target(),
            "current_user" | "session_user" | "current_catalog" | "current_schema"
            | "current_role"
                if !self.next_is(1, "(") =>
            {
                self.operand = Some(self.put(1, &format!("{lower}()")));
            }
            "extract" if self.next_is(1, "(") => return self.extract(),
            "generate_series" if self.next_is(1, "(") => return self.series(),
            "array" if self.next_is(1, "(") && self.next_is(2, "select") => return self.array(),
            "pg_get_indexdef" if self.next_is(1, "(") => return self.index_definition(),
            "unlogged" if self.at == 1 => self.skip(1),
            "concurrently" if self.tokens[0].is("create") => self.skip(1),
            "using" if self.next_is(1, "btree") => self.skip(2),
            "default" if self.next_is(1, "now") => {
                self.put(4, "DEFAULT CURRENT_TIMESTAMP");
            }
            "serial" | "bigserial" | "smallserial" if self.tokens[0].is("create") => {
                self.put(1, "INTEGER");
            }
            "default" if self.is_in_schema() => return self.default_truth(),
            "bool" | "boolean" | "date" | "timestamp" | "timestamptz" | "int" | "integer"
            | "int2" | "int4" | "int8" | "bigint" | "smallint" | "numeric" | "decimal" | "real"
            | "float4" | "float8" | "uuid"
                if !self.is_in_schema()
                    && self.peek(1).is_some_and(|token| token.kind == TokenKind::Text) =>
            {
                return self.typed_literal();
            }
            "json" | "jsonb" | "date" | "timestamp" | "timestamptz" | "text"
                if self.peek(1).is_some_and(|token| token.kind == TokenKind::Text) =>
            {
                // A literal after the name of its type: the literal alone has the same value, so
                // the type's name is dropped.
                self.skip_prefix_word();
            }
            _ => return false,
        }
        true
    }

    /// Translates the beginning of `extract(field FROM x)` to that of a call.
    fn extract(&mut self) -> bool {
        let field = self.peek(2).filter(|field| field.is_name() || field.kind == TokenKind::Text);
        let Some(field) = field.filter(|_| self.next_is(3, "from")) else { return false };
        let field = field.value().replace('\'', "''");
        let start = self.put(4, &format!("extract('{field}',"));
        self.open.push(Open { operand: start, start, cast: false, query: false, only: false });
        self.operand = None;
        true
    }

    /// Skips a schema's name and its dot.
    fn skip_prefix(&mut self) {
        self.space();
        self.skip(2);
        self.copied = self.peek(0).map_or(self.copied, |next| next.at);
    }

    fn skip_prefix_word(&mut self) {
        self.space();
        self.skip(1);
        self.copied = self.peek(0).map_or(self.copied, |next| next.at);
    }

    /// Translates `OPERATOR(pg_catalog.~)`.
    fn spelled_operator(&mut self) -> bool {
        let mut len = 2;
        while self.peek(len).is_some_and(|token| token.is_name() || token.sign(".")) {
            len += 1;
        }
        let (Some(sign), true) = (self.peek(len), self.next_is(len + 1, ")")) else { return false };
        let operator = match sign.text {
            "~" => "REGEXP",
            "!~" => "NOT REGEXP",
            "~~" => "LIKE",
            "!~~" => "NOT LIKE",
            other => other,
        };
        self.operator(len + 2, operator);
        true
    }

    /// Returns the translation of a part of the statement.
    pub(super) fn inner(&self, tokens: &'t [Token<'a>]) -> String {
        let depth = self.depth + 1;
        let requotes = self.requotes;
        Rewriter { depth, requotes, ..Rewriter::new(self.source, tokens) }.run()
    }

    /// Returns the index of the parenthesis that closes the one at `open`. Returns None if the form
    /// exceeds the limits.
    pub(super) fn closing(&self, open: usize) -> Option<usize> {
        if self.depth >= DEPTH_MAX {
            return None;
        }
        let mut depth = 0usize;
        for (index, token) in self.tokens.iter().enumerate().skip(open).take(FORM_MAX) {
            if token.sign("(") {
                depth += 1;
            } else if token.sign(")") {
                depth -= 1;
                if depth == 0 {
                    return Some(index);
                }
            }
        }
        None
    }
}

/// Returns SQLite's spelling of a truth value.
pub(super) fn spelled(truth: bool) -> &'static str {
    if truth { "TRUE" } else { "FALSE" }
}

/// Returns whether the token is a word between operands, so that neither a call nor a
/// cast extends across it.
pub(super) fn is_operator_word(token: &Token<'_>) -> bool {
    const WORDS: [&str; 34] = [
        "select",
        "from",
        "where",
        "and",
        "or",
        "not",
        "in",
        "is",
        "like",
        "between",
        "then",
        "else",
        "when",
        "case",
        "on",
        "values",
        "as",
        "by",
        "having",
        "limit",
        "offset",
        "returning",
        "set",
        "distinct",
        "all",
        "union",
        "except",
        "intersect",
        "any",
        "exists",
        "using",
        "join",
        "order",
        "group",
    ];
    token.kind == TokenKind::Word && WORDS.iter().any(|word| token.is(word))
}

#[cfg(test)]
mod tests {
    use super::super::tokens::tokens;
    use super::*;

    fn one(source: &str) -> String {
        rewrite(source, &tokens(source).unwrap())
    }

    #[test]
    fn casts_take_the_whole_operand_before_them() {
        let cases = [
            ("select $1::int + 1", "select int4($1) + 1"),
            ("select a.b::text", "select CAST(a.b AS text)"),
            ("select f(x, (1))::int8", "select int8(f(x, (1)))"),
            ("select (a + b)::double precision", "select float8((a + b))"),
            ("select x::int::text", "select CAST(int4(x) AS text)"),
            ("select 1 where a in (1)::int", "select 1 where a in int4((1))"),
            ("select '1'::pg_catalog.int4", "select int4('1')"),
            ("select 't'::bool", "select pg_bool('t')"),
            ("select $1::varchar(20)[] , 2", "select CAST($1 AS text) , 2"),
            ("select a::varchar(20)", "select substr(CAST(a AS text), 1, 20)"),
            ("select a::char || 'x'", "select rtrim(substr(CAST(a AS text), 1, 1), ' ') || 'x'"),
            ("select cast(a as varchar(2)), 1", "select substr(CAST(a AS text), 1, 2), 1"),
            ("select cast(a as character(2))", "select rtrim(substr(CAST(a AS text), 1, 2), ' ')"),
            ("select a::character varying, a::uuid", "select CAST(a AS text), pg_uuid(a)"),
            ("select cast(a as timestamp with time zone)", "select pg_timestamptz(a)"),
            ("select cast (f(a) as numeric(10, 2)) + 1", "select numeric(f(a), 10, 2) + 1"),
            ("select cast(cast('1' as int) as text)", "select cast(int4('1') AS text)"),
            ("select '{1,2}'::int[][]", "select CAST('{1,2}' AS text)"),
            ("select x::numeric(1,2,3,4,5)", "select x::numeric(1,2,3,4,5)"),
            ("select true::text", "select 'true'"),
            ("select date '2020-02-29', bool 't'", "select pg_date('2020-02-29'), pg_bool('t')"),
            (
                "create view v as select a::int, b::bool",
                "create view v as select CAST(a AS int), pg_bool(b)",
            ),
            (
                "create table t(a int check (cast(a as int) > 0))",
                "create table t(a int check (cast(a AS int) > 0))",
            ),
            ("select ':: x'", "select ':: x'"),
        ];
        for (from, to) in cases {
            assert_eq!(one(from), to);
        }
    }

    #[test]
    fn tokens_that_were_marked_become_what_they_mean() {
        let marked = |source: &str, at: usize, kind| {
            let mut list = tokens(source).unwrap();
            list[at].kind = kind;
            rewrite(source, &list)
        };
        let cases = [
            ("select '+5', 1", 1, TokenKind::Digits, "select 5, 1"),
            ("select 1-'-5'", 3, TokenKind::Digits, "select 1-(-5)"),
            (
                "select f(a)::text || 'x'",
                5,
                TokenKind::TruthCast,
                "select (CASE pg_bool(f(a)) WHEN 1 THEN 'true' WHEN 0 THEN 'false' END) || 'x'",
            ),
            (
                "select cast(a = b as text)",
                6,
                TokenKind::TruthCast,
                "select (CASE pg_bool(a = b) WHEN 1 THEN 'true' WHEN 0 THEN 'false' END)",
            ),
        ];
        for (source, at, kind, expected) in cases {
            assert_eq!(marked(source, at, kind), expected);
        }
    }

    #[test]
    fn a_name_in_double_quotes_is_never_a_text() {
        let cases = [
            ("select \"a\".\"b`c\" from t", "select `a`.`b``c` from t"),
            ("delete from \"a\"\"b\"", "delete from `a\"b`"),
            ("create view v as select \"a\"", "create view v as select \"a\""),
        ];
        for (from, to) in cases {
            assert_eq!(one(from), to);
        }
    }

    #[test]
    fn catalogue_spellings_become_sqlite_ones() {
        let from = "select 1 from pg_catalog.pg_class c \
                    where c.relname OPERATOR(pg_catalog.~) '^(t)$' \
                    COLLATE pg_catalog.default and pg_catalog.f(c.oid)";
        let to = "select 1 from pg_class c where c.relname  REGEXP  '^(t)$' and f(c.oid)";
        assert_eq!(one(from), to);
        assert_eq!(one("select current_user, E'a\\n'"), "select current_user(), 'a\n'");
        assert_eq!(one("select ~1, a ~ 'x'"), "select ~1, a  REGEXP  'x'");
        assert_eq!(
            one("select extract(year from (a))::int, extract(b)"),
            "select int4(extract('year', (a))), extract(b)"
        );
    }

    #[test]
    fn a_default_in_quotes_of_a_boolean_column_is_a_truth_value() {
        let cases = [
            ("create table t(a boolean default 't')", "create table t(a boolean DEFAULT TRUE)"),
            (
                "create table t(a bool not null default 'no', b text default 't')",
                "create table t(a bool not null DEFAULT FALSE, b text default 't')",
            ),
        ];
        for (from, to) in cases {
            assert_eq!(one(from), to);
        }
    }

    #[test]
    fn work_stays_bounded_when_forms_are_nested() {
        let nested = format!("select {}1{}", "array(select ".repeat(3000), ")".repeat(3000));
        assert!(one(&nested).len() < nested.len() * 20);
        let casts = format!("select 1{}", "::regclass".repeat(3000));
        assert!(one(&casts).len() < 1 << 20);
    }
}
