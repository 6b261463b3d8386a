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
use crate::wire::canonical::is_temporal;
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
    /// The precision and scale of a numeric, the digits of a time, or the length of a text, as
    /// further arguments of a call.
    arguments: String,
}

impl Rewriter<'_, '_> {
    /// Returns whether the statement's text becomes a part of the schema.
    pub(super) fn is_in_schema(&self) -> bool {
        self.of_table || self.tokens[0].is("create") || self.tokens[0].is("alter")
    }

    /// Returns whether the statement creates an index.
    pub(super) fn is_index(&self) -> bool {
        self.tokens[0].is("create") && self.tokens.iter().take(3).any(|token| token.is("index"))
    }

    /// Returns whether the statement creates a view.
    pub(super) fn is_view(&self) -> bool {
        self.tokens[0].is("create") && self.tokens.iter().take(4).any(|token| token.is("view"))
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
        if regclass && self.is_sequence(start) {
            self.skip(1 + target.len);
            return true;
        }
        let named_type = self.next_is(type_at, "regtype")
            && self.next_is(type_at + 1, "::")
            && self.next_is(type_at + 2, "text");
        self.skip(1 + target.len);
        self.moved += self.out.len() - start;
        let operand = self.out.split_off(start);
        let operand = operand.trim_end();
        let truth = operand.eq_ignore_ascii_case("true") || operand.eq_ignore_ascii_case("false");
        let is_text = matches!(target.oid, types::TEXT | types::VARCHAR | types::BPCHAR);
        let operand = match truth && is_text {
            true => format!("'{}'", operand.to_ascii_lowercase()),
            false if is_truth => format!("(CASE pg_bool({operand}) {TRUTH_WORDS})"),
            false => operand.to_owned(),
        };
        if named_type {
            self.skip(2);
            self.out.push_str(&format!("format_type({operand}, -1)"));
            self.operand = Some(start);
            return true;
        }
        let text = if regclass && !operand.starts_with(['\'', '$']) {
            format!("(SELECT c.relname FROM pg_class c WHERE c.oid = {operand})")
        } else if regclass {
            format!(
                "(SELECT c.oid FROM (SELECT ums_object_name({operand}) AS ums_x), pg_ums_names c \
                 WHERE c.name = ums_x OR c.oid = ums_x)"
            )
        } else if truth && target.oid == types::TEXT || is_truth && target.arguments.is_empty() {
            operand
        } else if let Some(function) = self.conversion(&target) {
            format!("{function}({operand}{})", target.arguments)
        } else {
            format!("CAST({operand} AS {})", storage(target.oid))
        };
        self.out.push_str(&text);
        self.operand = Some(start);
        true
    }

    /// Returns whether the operand is the sequence of `nextval('s'::regclass)`. It has no number
    /// here, and the function takes its name.
    fn is_sequence(&self, operand: usize) -> bool {
        let Some(open) = self.open.last() else { return false };
        let Some(before) = self.out.get(open.start + 1..operand) else { return false };
        let called = self.out[..open.start].trim_end().trim_end_matches(['`', '"']);
        let name = called.rsplit(|c: char| !c.is_alphanumeric() && c != '_').next();
        let is = |known: &&str| name.is_some_and(|name| name.eq_ignore_ascii_case(known));
        before.trim().is_empty() && ["nextval", "setval", "currval"].iter().any(is)
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
            let cut = self.conversion(&target).filter(|_| !target.arguments.is_empty());
            let begins = cut.map_or(String::new(), |function| format!("{function}("));
            let ends = cut.map_or(String::new(), |_| format!("){}", target.arguments));
            self.moved += self.out.len() - start;
            self.out.replace_range(start..start + len, &format!("{begins}(CASE pg_bool"));
            self.skip(1 + target.len);
            self.out.push_str(&format!(") {TRUTH_WORDS}{ends}"));
            self.operand = None;
            return true;
        }
        let function = self.conversion(&target).filter(|_| self.moved <= MOVED_MAX);
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

    /// Translates a literal after the name of its type. In the schema a literal alone has the same
    /// value, except those of types that SQLite has not.
    pub(super) fn typed_literal(&mut self) -> bool {
        // A name that is not known is a text, too.
        let is_typed = |target: &TypeName| target.oid != types::TEXT;
        let Some(target) = self.type_name(0).filter(is_typed) else { return false };
        let literal = self.peek(target.len).filter(|token| token.kind == TokenKind::Text);
        let (Some(literal), Some(function)) = (literal, self.conversion(&target)) else {
            return false;
        };
        let unit = self.peek(target.len + 1).filter(|_| target.oid == types::INTERVAL);
        let unit = unit.and_then(|token| interval_unit(&token));
        let value = literal.value();
        let is_count = value.trim().parse::<f64>().is_ok();
        let (count, text) = match unit {
            None => (1, format!("{function}({}{})", literal.text, target.arguments)),
            Some(unit) if is_count => (2, format!("pg_interval('{} {unit}')", value.trim())),
            Some(unit) => (2, format!("interval_trunc('{unit}', pg_interval({}))", literal.text)),
        };
        self.operand = Some(self.put(target.len + count, &text));
        true
    }

    /// Translates the present time, and the parts of it.
    pub(super) fn present(&mut self, word: &str) -> bool {
        if self.is_in_schema() && !self.of_query {
            return false;
        }
        let function = match word {
            "current_timestamp" => "pg_timestamptz",
            "current_date" => "pg_date",
            "localtime" => "pg_time",
            _ => "pg_timestamp",
        };
        let digits = self.peek(2).filter(|token| token.kind == TokenKind::Number);
        let digits = digits.filter(|_| self.next_is(1, "(") && self.next_is(3, ")"));
        let (count, text) = match digits {
            Some(digits) => (4, format!("{function}(now(), {})", digits.text)),
            None if word == "current_timestamp" => (1, "now()".to_owned()),
            None => (1, format!("{function}(now())")),
        };
        self.operand = Some(self.put(count, &text));
        true
    }

    /// Translates the default of a boolean column, if it is a literal in quotes.
    pub(super) fn default_truth(&mut self) -> bool {
        let literal = self.peek(1).filter(|token| token.kind == TokenKind::Text);
        let Some(truth) = literal.and_then(|token| types::truth(&token.value())) else {
            return false;
        };
        // `defaults` translates a cast.
        if self.next_is(2, "::") {
            return false;
        }
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
    fn conversion(&self, target: &TypeName) -> Option<&'static str> {
        let schema = self.is_in_schema();
        let of_query = is_temporal(target.oid) && self.of_query;
        Some(match target.oid {
            types::BOOL => "pg_bool",
            // A view of these types is one for this server only: SQLite has no intervals, and does
            // not read the zone of a time.
            types::DATE if self.is_view() => "pg_date",
            types::DATE if schema && !of_query => "date",
            types::INTERVAL if self.is_view() => "pg_interval",
            types::TIME if self.is_view() => "pg_time",
            _ if schema && !of_query => return None,
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
            types::TEXT => "pg_text",
            types::TIME => "pg_time",
            types::INTERVAL => "pg_interval",
            _ if target.arguments.is_empty() => return None,
            types::VARCHAR => "varchar",
            types::BPCHAR => "bpchar",
            _ => return None,
        })
    }

    /// Returns how many tokens the name of a type takes that begins `ahead` tokens from here.
    pub(super) fn type_length(&self, ahead: usize) -> Option<usize> {
        self.type_name(ahead).map(|name| name.len)
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
        if first.is("float") && self.next_is(ahead + len, "(") {
            name = format!("float({})", self.peek(ahead + len + 1).map_or("", |one| one.text));
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
        match oid {
            // `char` is `char(1)`.
            types::BPCHAR if arguments.is_empty() && !first.is("bpchar") => {
                arguments = ", 1".into()
            }
            types::NUMERIC | types::VARCHAR | types::BPCHAR => (),
            _ if is_temporal(oid) && oid != types::DATE => (),
            _ => arguments.clear(),
        }
        Some(TypeName { len, oid, arguments })
    }
}

/// Returns the unit that may follow the literal of an interval: `interval '1' day`.
fn interval_unit(token: &Token<'_>) -> Option<&'static str> {
    ["year", "month", "day", "hour", "minute", "second"].into_iter().find(|unit| token.is(unit))
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
