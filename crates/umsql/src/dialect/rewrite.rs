//! The pass over a statement's tokens: copies most of them, and rewrites the forms that SQLite
//! spells differently.
//!
//! A cast `x::t` is the only form that changes output that is already written: the pass remembers
//! where the last complete operand begins in the output, and inserts `CAST(` there. What others
//! want to be written beside the tokens is given to the pass as [`Edits`].
//!
//! The work is bounded, because a client may send any text. A form that is nested too deeply, is
//! too long or moves too many bytes (the limits are below) is passed to SQLite untranslated, and
//! SQLite refuses it.

use super::edits::{Edit, Edits, Place};
use super::tokens::{Token, TokenKind, is_table_of_query};
use crate::wire::types;

/// Returns the tokens, which are part of `source`, in SQLite's spelling and with the edits.
pub(super) fn rewrite(source: &str, tokens: &[Token<'_>], edits: &Edits) -> String {
    Rewriter { edits: edits.list(), ..Rewriter::new(source, tokens) }.run()
}

/// An open parenthesis in the output.
pub(super) struct Open {
    /// The start of the operand that ends at the matching parenthesis: the start of the function's
    /// name for a call, and otherwise the start of the parenthesis.
    pub(super) operand: usize,
    /// Where the parenthesis is.
    pub(super) start: usize,
    /// The start of the product around the parenthesis.
    product: Option<usize>,
    /// Whether this is the parenthesis of `CAST (`.
    cast: bool,
    /// Whether a query in a FROM clause begins here.
    query: bool,
    /// Where the query begins that stands for a value, and may return several rows.
    only: Option<usize>,
}

pub(super) struct Rewriter<'t, 'a> {
    pub(super) source: &'a str,
    pub(super) tokens: &'t [Token<'a>],
    /// The edits that have not been written yet.
    edits: &'t [Edit],
    pub(super) at: usize,
    pub(super) out: String,
    /// The start of the last complete operand in `out`; `None` after an operator.
    pub(super) operand: Option<usize>,
    /// The start of the product or quotient in `out` whose last operand may follow.
    pub(super) product: Option<usize>,
    pub(super) open: Vec<Open>,
    /// For each CASE without its END, where it begins, and the start of the product around it.
    cases: Vec<(usize, Option<usize>)>,
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
    /// Whether the statement creates a table of the rows of a query.
    pub(super) of_query: bool,
    /// Whether this is a part of the definition of a table or an index.
    pub(super) of_table: bool,
    /// Whether the statement is VALUES with clauses after it, which have not begun.
    pub(super) wraps: bool,
}

/// The deepest nesting of forms that is translated; deeper ones are passed to SQLite as they are,
/// which refuses them.
const DEPTH_MAX: usize = 16;
/// Each cast of a cast moves its operand again; after this many moved bytes no further cast is
/// translated.
pub(super) const MOVED_MAX: usize = 16 << 20;
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
            edits: &[],
            at: 0,
            out,
            operand: None,
            product: None,
            open: Vec::new(),
            cases: Vec::new(),
            copied,
            depth: 0,
            requotes: ["select", "with", "insert", "update", "delete", "(", "values", "table"]
                .iter()
                .any(|word| tokens[0].is(word) || tokens[0].sign(word)),
            orders: Vec::new(),
            moved: 0,
            of_query: is_table_of_query(tokens),
            of_table: false,
            wraps: false,
        }
    }

    fn run(mut self) -> String {
        while let Some(token) = self.peek(0) {
            self.order(&token);
            self.edit(|edit| edit.place == Place::After && edit.at < token.at);
            if !self.replace(&token) && !self.special(&token) {
                self.copy(&token);
            }
        }
        if self.orders.last().is_some_and(|order| *order == self.open.len()) {
            self.place_nulls();
        }
        self.edit(|edit| edit.place == Place::After);
        self.out
    }

    /// Writes the next edits, as long as they are due.
    fn edit(&mut self, is_due: impl Fn(&Edit) -> bool) {
        while let [edit, rest @ ..] = self.edits
            && is_due(edit)
        {
            self.out.push_str(&edit.text);
            self.edits = rest;
        }
    }

    /// Writes the text that an edit puts in place of this token. Returns false if there is none.
    fn replace(&mut self, token: &Token<'a>) -> bool {
        let own = self.edits.iter().take_while(|edit| edit.at == token.at);
        let Some(edit) = own.into_iter().find(|edit| edit.place == Place::Instead) else {
            return false;
        };
        self.operand = Some(self.put(1, &edit.text));
        self.edits = &self.edits[1..];
        true
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
        if let Some(token) = self.peek(0) {
            self.edit(|edit| edit.place == Place::Before && edit.at <= token.at);
        }
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
    fn space(&mut self) {
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
                let product = self.product.take();
                self.open.push(Open { operand, start, product, cast, query, only: None });
                self.operand = None;
            }
            (TokenKind::Sign, ")") => {
                let open = self.open.pop();
                self.operand = open.as_ref().map(|open| open.operand);
                self.product = open.as_ref().and_then(|open| open.product);
                if let Some(open) = open.filter(|open| open.query) {
                    self.name_columns(open.start);
                }
            }
            (TokenKind::Sign, ".") => (),
            (TokenKind::Sign, "*" | "/" | "%") => {
                self.product = self.product.or(self.operand);
                self.operand = None;
            }
            (TokenKind::Sign, _) => (self.operand, self.product) = (None, None),
            (TokenKind::Word, _) if token.is("case") && !after_dot => {
                self.cases.push((start, self.product.take()));
                self.operand = None;
            }
            (TokenKind::Word, _) if token.is("end") && !self.cases.is_empty() => {
                let (case, product) = self.cases.pop().expect("there is one");
                (self.operand, self.product) = (Some(case), product);
            }
            (TokenKind::Word, _) if is_operator_word(token) && !after_dot => {
                (self.operand, self.product) = (None, None);
            }
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
            TokenKind::Number if self.is_shown(token) => {
                self.operand = Some(self.put(1, &format!("'{}'", token.text)));
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
                    open.only = Some(token.at);
                    self.out.push_str(&only_begin(token.at));
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

    /// Returns whether the number is about to become a text, which has all of its digits.
    fn is_shown(&self, number: &Token<'a>) -> bool {
        let text = [("::", "text"), ("as", "text")];
        let before = self.at.checked_sub(1).map(|at| &self.tokens[at]);
        let is_cast = text.iter().any(|(sign, to)| self.next_is(1, sign) && self.next_is(2, to));
        let is_joined = self.next_is(1, "||") || before.is_some_and(|token| token.sign("||"));
        number.text.contains('.') && !self.is_in_schema() && (is_cast || is_joined)
    }

    fn special_sign(&mut self, token: &Token<'a>) -> bool {
        let operator = match token.text {
            "::" => return self.cast_suffix(),
            "/" | "%" => return self.division(token.text),
            "^" => return self.power(),
            "[" => return self.subscript(),
            "=" | "<>" | "!=" => return self.membership(token.text),
            "(" if self.begins_operand_query() => {
                self.out.push_str(if self.at > 0 { " SELECT * FROM" } else { "SELECT * FROM " });
                return false;
            }
            ")" => {
                if let Some(at) = self.open.last().and_then(|open| open.only) {
                    self.out.push_str(&format!(") SELECT v{at} FROM ums_v LIMIT 2)"));
                }
                return false;
            }
            "~" if self.operand.is_some() => "REGEXP",
            "!~" => "NOT REGEXP",
            "~*" => "REGEXP '(?i)' ||",
            "!~*" => "NOT REGEXP '(?i)' ||",
            "~~" => "LIKE",
            "!~~" => "NOT LIKE",
            "~~*" => "MATCH",
            "!~~*" => "NOT MATCH",
            _ => return false,
        };
        self.operator(1, operator);
        true
    }

    pub(super) fn operator(&mut self, count: usize, operator: &str) {
        self.put(count, &format!(" {operator} "));
        (self.operand, self.product) = (None, None);
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
            // `CREATE INDEX i ON t (a varchar_pattern_ops)`
            word if word.ends_with("_ops") && self.tokens[0].is("create") => self.skip(1),
            "cascade" | "restrict" if self.tokens[0].is("alter") => self.skip(1),
            "on" if self.names_index() => self.put_index_name(),
            "collate" if self.next_is(1, "pg_catalog") => self.skip(4),
            "collate" if self.is_binary_collation(1) => self.skip(2),
            "row" if self.next_is(1, "(") && self.follows_sign() => self.skip(1),
            "nothing" | "index" if self.is_plain_name(&lower) => {
                self.operand = Some(self.put(1, &format!("`{lower}`")));
            }
            "ilike" => self.operator(1, "MATCH"),
            "as" if self.open.last().is_some_and(|open| open.cast) => return self.cast_target(),
            "current_user" | "session_user" | "current_catalog" | "current_schema"
            | "current_role"
                if !self.next_is(1, "(") =>
            {
                self.operand = Some(self.put(1, &format!("{lower}()")));
            }
            "extract" if self.next_is(1, "(") => return self.extract(),
            "make_interval" if self.next_is(1, "(") => return self.make_interval(),
            "pg_index" if self.index_keys() => (),
            "generate_series" | "unnest" if self.next_is(1, "(") => return self.series(),
            "json_each" | "jsonb_each" if self.next_is(1, "(") => return self.json_each(),
            "array" if self.next_is(1, "(") && self.next_is(2, "select") => return self.array(),
            "unlogged" if self.at == 1 => self.skip(1),
            "concurrently" if self.tokens[0].is("create") => self.skip(1),
            "using" if self.next_is(1, "btree") => self.skip(2),
            // The order of an index is no order of rows, so that of NULL does not matter.
            "nulls" if self.is_index() && (self.next_is(1, "first") || self.next_is(1, "last")) => {
                self.skip(2);
            }
            "default" if self.next_is(1, "now") => {
                self.put(4, "DEFAULT CURRENT_TIMESTAMP");
            }
            "serial" | "smallserial" if self.tokens[0].is("create") => {
                self.put(1, "INTEGER");
            }
            "default" if self.is_in_schema() => return self.default_truth(),
            _ => return self.called(&lower) || self.typed_word(&lower),
        }
        true
    }

    /// Translates the name of a function that SQLite has by another name, or not at all. Returns
    /// false for another word.
    fn called(&mut self, word: &str) -> bool {
        if !self.next_is(1, "(") {
            return false;
        }
        let name = match word {
            "pg_get_indexdef" | "pg_get_viewdef" | "pg_get_constraintdef" => {
                return self.definition();
            }
            "pg_options_to_table" => return self.no_options(),
            "bool_and" | "every" => "min",
            "bool_or" => "max",
            // The only one that the catalogue's queries have is of a view without rows.
            "json_build_object" if self.tokens.iter().any(|token| token.is("pg_sequence")) => {
                "json_object"
            }
            _ => return false,
        };
        self.operand = Some(self.put(1, name));
        true
    }

    /// Translates the present time, or a literal after the name of its type.
    fn typed_word(&mut self, word: &str) -> bool {
        match word {
            "current_timestamp" | "current_date" | "localtimestamp" | "localtime" => {
                self.present(word)
            }
            "interval" | "time" | "date" if self.is_view() => self.typed_literal(),
            "interval" | "time" | "date" | "timestamp" | "timestamptz"
                if !self.is_in_schema() || self.of_query =>
            {
                self.typed_literal()
            }
            "bool" | "boolean" | "int" | "integer" | "int2" | "int4" | "int8" | "bigint"
            | "smallint" | "numeric" | "decimal" | "real" | "float4" | "float8" | "uuid"
                if !self.is_in_schema() =>
            {
                self.typed_literal()
            }
            "json" | "jsonb" | "date" | "timestamp" | "timestamptz" | "text" | "varchar"
                if self.peek(1).is_some_and(|token| token.kind == TokenKind::Text) =>
            {
                // A literal after the name of its type: the literal alone has the same value, so
                // the type's name is dropped.
                self.skip_prefix_word();
                true
            }
            _ => self.spelling(word),
        }
    }

    /// Translates the beginning of `extract(field FROM x)` to that of a call.
    fn extract(&mut self) -> bool {
        let field = self.peek(2).filter(|field| field.is_name() || field.kind == TokenKind::Text);
        let Some(field) = field.filter(|_| self.next_is(3, "from")) else { return false };
        let field = field.value().replace('\'', "''");
        let start = self.put(4, &format!("extract('{field}',"));
        let (product, cast, query) = (self.product.take(), false, false);
        self.open.push(Open { operand: start, start, product, cast, query, only: None });
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
        self.space();
        self.skip(len + 1);
        // The parenthesis at the end stands for the sign.
        if !self.membership(sign.text) {
            self.operator(1, operator);
        }
        true
    }

    /// Returns the translation of a part of the statement.
    pub(super) fn inner(&self, tokens: &'t [Token<'a>]) -> String {
        let depth = self.depth + 1;
        let requotes = self.requotes;
        let of_table = self.of_table || (self.is_in_schema() && !self.is_view());
        Rewriter { depth, requotes, of_table, ..Rewriter::new(self.source, tokens) }.run()
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

/// Returns what is before a query that stands for a value, and begins at `at`. A second row is an
/// error; one row's smallest value is its value. Its column has a name of its own, so that
/// `plan/operators.rs` tells the types of several such queries apart.
fn only_begin(at: usize) -> String {
    format!("SELECT iif(count(*) > 1, ums_several_rows(), min(v{at})) FROM (WITH ums_v(v{at}) AS (")
}

/// Returns SQLite's spelling of a truth value.
pub(super) fn spelled(truth: bool) -> &'static str {
    if truth { "TRUE" } else { "FALSE" }
}

/// Returns whether the token is a word between operands, so that neither a call nor a
/// cast extends across it.
pub(super) fn is_operator_word(token: &Token<'_>) -> bool {
    const WORDS: [&str; 35] = [
        "select",
        "default",
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
mod tests;
