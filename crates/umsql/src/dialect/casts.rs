//! Casts, and literals whose type is written beside them.
//!
//! ```text
//!   x::int, CAST(x AS int)  ──▶  int4(x)             in a statement
//!                           ──▶  CAST(x AS int)      in the schema
//!   date '2020-02-29'       ──▶  pg_date('2020-02-29')
//! ```
//!
//! SQLite's own CAST never fails: `'a'` is 0 as a number. So a statement calls a function of this
//! server (`engine/casts.rs`), which refuses what is no value of the type. The schema keeps
//! SQLite's CAST, because another program that opens the file has no such functions.

use super::rewrite::{MOVED_MAX, Rewriter, spelled};
use super::tokens::{Token, TokenKind};
use crate::wire::types;

/// The most tokens in the parentheses after a type's name.
const MODIFIER_MAX: usize = 8;

/// How a truth value becomes a text.
const TRUTH_WORDS: &str = "WHEN 1 THEN 'true' WHEN 0 THEN 'false' END";

/// The name of a type in the tokens.
struct TypeName {
    /// How many tokens it takes.
    len: usize,
    oid: u32,
    /// The precision and scale of a numeric, as further arguments of a call.
    arguments: String,
    /// The most characters of a `varchar(n)` or a `char(n)`.
    length: Option<String>,
}

impl Rewriter<'_, '_> {
    /// Returns whether the statement's text becomes a part of the schema.
    pub(super) fn is_in_schema(&self) -> bool {
        self.tokens[0].is("create") || self.tokens[0].is("alter")
    }

    /// Translates a `::` cast of the operand that just ended.
    pub(super) fn cast_suffix(&mut self) -> bool {
        let (Some(start), Some(target)) = (self.operand, self.type_name(1)) else {
            return false;
        };
        if self.moved > MOVED_MAX {
            return false;
        }
        let is_truth = self.peek(0).is_some_and(|token| token.kind == TokenKind::TruthCast);
        let type_at = if self.next_is(1, "pg_catalog") { 3 } else { 1 };
        let regclass = self.next_is(type_at, "regclass");
        self.skip(1 + target.len);
        self.moved += self.out.len() - start;
        let operand = self.out.split_off(start);
        let operand = operand.trim_end();
        let truth = operand.eq_ignore_ascii_case("true") || operand.eq_ignore_ascii_case("false");
        let text = if regclass {
            format!(
                "(SELECT c.oid FROM (SELECT {operand} AS ums_x), pg_class c \
                 WHERE c.relname = ums_x OR c.oid = ums_x)"
            )
        } else if truth && target.oid == types::TEXT {
            format!("'{}'", operand.to_ascii_lowercase())
        } else if is_truth {
            format!("(CASE pg_bool({operand}) {TRUTH_WORDS})")
        } else if let Some(function) = self.conversion(target.oid) {
            format!("{function}({operand}{})", target.arguments)
        } else if let Some(length) = target.length.filter(|_| !self.is_in_schema()) {
            let cut = format!("substr(CAST({operand} AS text), 1, {length})");
            // The spaces at the end of a char(n) have no meaning.
            if target.oid == types::BPCHAR { format!("rtrim({cut}, ' ')") } else { cut }
        } else {
            format!("CAST({operand} AS {})", storage(target.oid))
        };
        self.out.push_str(&text);
        self.operand = Some(start);
        true
    }

    /// Translates the end of `CAST(x AS type)`, from AS on.
    pub(super) fn cast_target(&mut self) -> bool {
        let (Some(start), Some(target)) =
            (self.open.last().map(|open| open.operand), self.type_name(1))
        else {
            return false;
        };
        let is_truth = self.peek(0).is_some_and(|token| token.kind == TokenKind::TruthCast);
        if is_truth && let Some(len) = self.out[start..].find('(') {
            self.moved += self.out.len() - start;
            self.out.replace_range(start..start + len, "(CASE pg_bool");
            self.skip(1 + target.len);
            self.out.push_str(&format!(") {TRUTH_WORDS}"));
            self.operand = None;
            return true;
        }
        if let Some(length) = target.length.as_ref().filter(|_| !self.is_in_schema())
            && let Some(len) = self.out[start..].find('(')
        {
            let is_char = target.oid == types::BPCHAR;
            self.moved += self.out.len() - start;
            let begins = if is_char { "rtrim(substr(CAST" } else { "substr(CAST" };
            self.out.replace_range(start..start + len, begins);
            self.skip(1 + target.len);
            let ends = if is_char { "), ' '" } else { "" };
            self.out.push_str(&format!(" AS text), 1, {length}{ends}"));
            self.operand = None;
            return true;
        }
        let function = self.conversion(target.oid).filter(|_| self.moved <= MOVED_MAX);
        let word = self.out[start..].find('(').map(|len| start..start + len);
        let (Some(function), Some(word)) = (function, word) else {
            self.put(1 + target.len, &format!("AS {}", storage(target.oid)));
            return true;
        };
        self.moved += self.out.len() - start;
        self.out.replace_range(word, function);
        self.skip(1 + target.len);
        self.out.push_str(&target.arguments);
        self.operand = None;
        true
    }

    /// Translates a literal after the name of its type.
    pub(super) fn typed_literal(&mut self) -> bool {
        let (Some(target), Some(literal)) = (self.type_name(0), self.peek(1)) else { return false };
        let Some(function) = self.conversion(target.oid) else { return false };
        self.operand = Some(self.put(2, &format!("{function}({})", literal.text)));
        true
    }

    /// Translates the default of a boolean column, if it is a literal in quotes.
    pub(super) fn default_truth(&mut self) -> bool {
        let literal = self.peek(1).filter(|token| token.kind == TokenKind::Text);
        let Some(truth) = literal.and_then(|token| types::truth(&token.value())) else {
            return false;
        };
        let before = self.tokens[..self.at].iter().rev().take(8);
        let mut column = before.take_while(|token| !token.sign(",") && !token.sign("("));
        if !column.any(|token| token.is("bool") || token.is("boolean")) {
            return false;
        }
        self.put(2, &format!("DEFAULT {}", spelled(truth)));
        true
    }

    /// Returns the function of this server that converts to the type `oid`, if this statement calls
    /// one.
    fn conversion(&self, oid: u32) -> Option<&'static str> {
        let schema = self.is_in_schema();
        Some(match oid {
            types::BOOL => "pg_bool",
            types::DATE if schema => "date",
            _ if schema => return None,
            types::DATE => "pg_date",
            types::INT2 => "int2",
            types::INT4 => "int4",
            types::INT8 => "int8",
            types::FLOAT4 => "float4",
            types::FLOAT8 => "float8",
            types::NUMERIC => "numeric",
            types::BYTEA => "bytea",
            types::UUID => "pg_uuid",
            types::TIMESTAMP => "pg_timestamp",
            types::TIMESTAMPTZ => "pg_timestamptz",
            _ => return None,
        })
    }

    /// Returns the type whose name begins `ahead` tokens from here.
    fn type_name(&self, ahead: usize) -> Option<TypeName> {
        let mut len = 0;
        if self.next_is(ahead, "pg_catalog") && self.next_is(ahead + 1, ".") {
            len = 2;
        }
        let first = self.peek(ahead + len).filter(Token::is_name)?;
        let mut name = first.text.to_owned();
        let mut arguments = String::new();
        len += 1;
        let follows: &[&str] = match first.text.to_ascii_lowercase().as_str() {
            "double" => &["precision"],
            "character" => &["varying"],
            _ => &[],
        };
        for word in follows {
            if self.next_is(ahead + len, word) {
                name = format!("{name} {word}");
                len += 1;
            }
        }
        if self.next_is(ahead + len, "(") {
            let end = ahead + len + MODIFIER_MAX;
            while !self.next_is(ahead + len, ")") {
                if ahead + len == end {
                    return None;
                }
                let token = self.peek(ahead + len)?;
                if token.kind == TokenKind::Number {
                    arguments = format!("{arguments}, {}", token.text);
                }
                len += 1;
            }
            len += 1;
        }
        if ["with", "without"].iter().any(|word| self.next_is(ahead + len, word))
            && self.next_is(ahead + len + 1, "time")
        {
            let with = self.next_is(ahead + len, "with");
            name.push_str(if with { " with time zone" } else { "" });
            len += 3;
        }
        let mut oid = types::by_name(&name);
        while self.next_is(ahead + len, "[") && self.next_is(ahead + len + 1, "]") {
            len += 2;
            oid = types::TEXT;
        }
        let mut length = None;
        if matches!(oid, types::VARCHAR | types::BPCHAR) {
            length = arguments.strip_prefix(", ").map(str::to_owned);
            // `char` alone is one character.
            let is_one =
                name.eq_ignore_ascii_case("char") || name.eq_ignore_ascii_case("character");
            length = length.or(is_one.then(|| "1".to_owned()));
        }
        if oid != types::NUMERIC {
            arguments.clear();
        }
        Some(TypeName { len, oid, arguments, length })
    }
}

/// Returns the type name to use in SQLite's cast for PostgreSQL's type `oid`.
fn storage(oid: u32) -> &'static str {
    match oid {
        types::INT2 | types::INT4 | types::OID => "int",
        types::INT8 => "bigint",
        types::FLOAT4 | types::FLOAT8 => "real",
        types::NUMERIC => "numeric",
        types::BOOL => "boolean",
        types::BYTEA => "blob",
        _ => "text",
    }
}
