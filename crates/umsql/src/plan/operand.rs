//! Reads expressions: finds the operands of each operator, by PostgreSQL's precedence.
//!
//! ```text
//!   OR < AND < NOT < IS < = <> < > < IN LIKE BETWEEN < other operators < + - < * / % < ^
//!      < AT TIME ZONE < COLLATE < sign < ::
//! ```
//!
//! A function returns `None` if it does not understand what it reads; see [`super::analysis`].

use std::ops::Range;

use super::analysis::Analysis;
use super::expression::{Category, Typed, number};
use super::names::number as parameter_number;
use super::parts::{NameScope, TypedOperand};
use crate::dialect::tokens::{Token, TokenKind};
use crate::host;
use crate::wire::{floats, types};

const OR: u8 = 1;
const AND: u8 = 2;
const NOT: u8 = 3;
const IS: u8 = 4;
const COMPARISON: u8 = 5;
const MATCH: u8 = 6;
const OTHER: u8 = 7;
const SUM: u8 = 8;
const PRODUCT: u8 = 9;
const POWER: u8 = 10;
const ZONE: u8 = 11;
const SIGN: u8 = 13;
const CAST: u8 = 15;

/// The digits of the smallest `bigint`, behind its sign.
const MOST: &str = "9223372036854775808";

const COMPARISONS: [&str; 8] = ["=", "<", ">", "<=", ">=", "<>", "!=", "=="];

/// Returns how tightly the operator binds that begins with this token; 0 if it is none.
fn power(token: &Token<'_>, next: Option<&Token<'_>>) -> u8 {
    let follows = |words: &[&str]| next.is_some_and(|next| words.iter().any(|word| next.is(word)));
    if token.kind == TokenKind::Sign {
        return match token.text {
            "+" | "-" => SUM,
            "*" | "/" | "%" => PRODUCT,
            "^" => POWER,
            "::" | "[" => CAST,
            "||" | "<<" | ">>" | "&" | "|" | "#" | "->" | "->>" => OTHER,
            "~" | "!~" | "~*" | "!~*" | "~~" | "!~~" | "~~*" | "!~~*" => OTHER,
            sign if COMPARISONS.contains(&sign) => COMPARISON,
            _ => 0,
        };
    }
    if token.kind != TokenKind::Word {
        return 0;
    }
    match token.text.to_ascii_lowercase().as_str() {
        "or" => OR,
        "and" => AND,
        "is" | "isnull" | "notnull" => IS,
        "in" | "like" | "ilike" | "similar" | "between" | "regexp" | "glob" => MATCH,
        "not" if follows(&["in", "like", "ilike", "similar", "between", "regexp", "glob"]) => MATCH,
        "at" if follows(&["time"]) => ZONE,
        "collate" => SIGN - 1,
        _ => 0,
    }
}

/// Returns whether PostgreSQL has a type of this name, which has no rules here.
fn is_type(name: &str) -> bool {
    const NAMES: [&str; 22] = [
        "interval", "time", "timetz", "bit", "varbit", "money", "inet", "cidr", "macaddr", "xml",
        "point", "line", "box", "circle", "path", "tsvector", "tsquery", "regproc", "xid",
        "record", "citext", "jsonpath",
    ];
    let word = name.split_once(' ').map_or(name, |(word, _)| word);
    NAMES.contains(&word) || word.starts_with("reg") || word.contains("range") || word == "pg_lsn"
}

impl Analysis<'_, '_> {
    /// Returns the expression that takes up the range.
    pub(super) fn expression(
        &mut self,
        scope: &NameScope<'_>,
        range: Range<usize>,
    ) -> TypedOperand {
        host::yield_if_due();
        let mut at = range.start;
        let read = self.wholly(|me| {
            let operand = me.operand(scope, &mut at, range.end, 0)?;
            (at == range.end).then_some(operand)
        });
        read.unwrap_or_default()
    }

    /// Checks the condition that takes up the range.
    pub(super) fn condition_at(&mut self, scope: &NameScope<'_>, what: &str, range: Range<usize>) {
        let operand = self.expression(scope, range.clone());
        self.condition(range.start, what, operand);
    }

    /// Reads an expression from `at` on, up to an operator that binds no tighter than `least`.
    pub(super) fn operand(
        &mut self,
        scope: &NameScope<'_>,
        at: &mut usize,
        end: usize,
        least: u8,
    ) -> Option<TypedOperand> {
        self.deeper(|me| {
            let mut left = me.prefix(scope, at, end)?;
            while let Some(token) = me.token(*at, end) {
                let power = power(token, me.token(*at + 1, end));
                if power <= least {
                    break;
                }
                left = me.infix(scope, at, end, (left, power))?;
            }
            Some(left)
        })
    }

    /// Reads an operator and what follows it.
    fn infix(
        &mut self,
        scope: &NameScope<'_>,
        at: &mut usize,
        end: usize,
        (left, power): (TypedOperand, u8),
    ) -> Option<TypedOperand> {
        let (place, token) = (*at, self.token(*at, end)?);
        *at += 1;
        match power {
            IS => return self.is_test(scope, at, end, (token, left)),
            MATCH => return self.matches(scope, at, end, left),
            CAST if token.sign("[") => {
                *at = self.closing(place, end)? + 1;
                return Some(TypedOperand::default());
            }
            CAST => {
                let cast = self.cast(at, end)?;
                return Some(self.cast_of(place, left, cast));
            }
            ZONE => {
                *at += 2;
                self.operand(scope, at, end, ZONE)?;
                let zoned = |oid| match oid {
                    types::TIMESTAMP => Some(Typed::new(types::TIMESTAMPTZ)),
                    types::TIMESTAMPTZ => Some(Typed::new(types::TIMESTAMP)),
                    _ => None,
                };
                return Some(TypedOperand::of(left.typed.and_then(|typed| zoned(typed.oid))));
            }
            _ if token.is("collate") => {
                *at += if self.is(*at + 1, end, ".") { 3 } else { 1 };
                return Some(left);
            }
            COMPARISON if self.is_quantified(*at, end) => {
                return self.quantified(scope, at, end, (place, left));
            }
            _ => (),
        }
        let right = self.operand(scope, at, end, power)?;
        Some(match power {
            OR | AND => {
                let what = if power == OR { "OR" } else { "AND" };
                self.condition(place, what, left);
                self.condition(place, what, right);
                TypedOperand::new(types::BOOL)
            }
            COMPARISON => {
                self.compare(place, token.text, left, right);
                TypedOperand::new(types::BOOL)
            }
            SUM | PRODUCT | POWER => {
                TypedOperand::of(self.arithmetic(place, token.text, left, right))
            }
            _ => self.other(place, token.text, left, right),
        })
    }

    fn other(
        &mut self,
        at: usize,
        sign: &str,
        left: TypedOperand,
        right: TypedOperand,
    ) -> TypedOperand {
        match sign {
            "||" => TypedOperand::of(Some(self.concatenation(at, left, right))),
            "->" => TypedOperand::default(),
            "->>" => TypedOperand::new(types::TEXT),
            "<<" | ">>" | "&" | "|" | "#" => {
                TypedOperand::of(self.arithmetic(at, sign, left, right))
            }
            _ => {
                self.text_operator(at, sign, left, right);
                TypedOperand::new(types::BOOL)
            }
        }
    }

    /// Reads what follows IS.
    fn is_test(
        &mut self,
        scope: &NameScope<'_>,
        at: &mut usize,
        end: usize,
        (token, left): (&Token<'_>, TypedOperand),
    ) -> Option<TypedOperand> {
        let place = *at;
        if token.is("is") {
            *at += usize::from(self.is(*at, end, "not"));
            if self.is(*at, end, "distinct") && self.is(*at + 1, end, "from") {
                *at += 2;
                let right = self.operand(scope, at, end, IS)?;
                self.compare(place, "=", left, right);
            } else if self.is(*at, end, "null") || self.is(*at, end, "unknown") {
                *at += 1;
            } else if self.is(*at, end, "true") || self.is(*at, end, "false") {
                *at += 1;
                self.condition(place, "IS TRUE", left);
            } else {
                return None;
            }
        }
        Some(TypedOperand::new(types::BOOL))
    }

    /// Reads IN, BETWEEN, LIKE and their kin, from the word after the operand on.
    fn matches(
        &mut self,
        scope: &NameScope<'_>,
        at: &mut usize,
        end: usize,
        left: TypedOperand,
    ) -> Option<TypedOperand> {
        *at -= 1;
        let not = self.is(*at, end, "not");
        *at += usize::from(not);
        let (place, word) = (*at, self.token(*at, end)?);
        *at += 1;
        if word.is("in") {
            let close = self.closing(*at, end)?;
            if self.begins_query(*at + 1, close) {
                let right = self.only_column(scope, *at + 1..close);
                self.compare(place, "=", left, TypedOperand::of(right));
            } else {
                for item in self.split(*at + 1..close) {
                    let right = self.expression(scope, item);
                    self.compare(place, "=", left, right);
                }
            }
            *at = close + 1;
        } else if word.is("between") {
            *at += usize::from(self.is(*at, end, "symmetric"));
            let low = self.operand(scope, at, end, MATCH)?;
            self.compare(place, ">=", left, low);
            if !self.is(*at, end, "and") {
                return None;
            }
            *at += 1;
            let high = self.operand(scope, at, end, MATCH)?;
            self.compare(place, "<=", left, high);
        } else {
            *at += usize::from(word.is("similar"));
            let right = self.operand(scope, at, end, MATCH)?;
            let signs = if word.is("ilike") { ["~~*", "!~~*"] } else { ["~~", "!~~"] };
            self.text_operator(place, signs[usize::from(not)], left, right);
            if self.is(*at, end, "escape") {
                *at += 1;
                self.operand(scope, at, end, MATCH)?;
            }
        }
        Some(TypedOperand::new(types::BOOL))
    }

    fn is_quantified(&self, at: usize, end: usize) -> bool {
        let words = ["any", "some", "all"];
        words.iter().any(|word| self.is(at, end, word)) && self.is(at + 1, end, "(")
    }

    /// Reads what follows `= ANY`.
    fn quantified(
        &mut self,
        scope: &NameScope<'_>,
        at: &mut usize,
        end: usize,
        (place, left): (usize, TypedOperand),
    ) -> Option<TypedOperand> {
        let close = self.closing(*at + 1, end)?;
        if self.begins_query(*at + 2, close) {
            let right = self.only_column(scope, *at + 2..close);
            self.compare(place, self.tokens[place].text, left, TypedOperand::of(right));
        } else {
            self.expression(scope, *at + 2..close);
        }
        *at = close + 1;
        Some(TypedOperand::new(types::BOOL))
    }

    /// Returns what a cast makes of the operand. The cast of a truth value to a text, which is no
    /// number, is marked at its sign, or word, which is at `at`.
    pub(super) fn cast_of(
        &mut self,
        at: usize,
        operand: TypedOperand,
        cast: TypedOperand,
    ) -> TypedOperand {
        let kind = |operand: TypedOperand| operand.typed.and_then(Typed::category);
        if (kind(operand), kind(cast)) == (Some(Category::Truth), Some(Category::Text)) {
            self.found.marks.push((at, TokenKind::TruthCast));
        }
        if !cast.typed.is_some_and(|to| matches!(to.oid, types::TEXT | types::VARCHAR)) {
            self.keep(operand, cast.typed);
        }
        let digits = operand.literal.and_then(|at| number(self.tokens[at].value().trim()));
        let from = digits.or(operand.typed);
        TypedOperand::of(cast.typed.map(|to| from.map_or(to, |from| from.cast(to))))
    }

    /// Reads a type after `::`.
    fn cast(&mut self, at: &mut usize, end: usize) -> Option<TypedOperand> {
        let start = *at;
        *at += if self.is(*at + 1, end, ".") { 3 } else { 1 };
        let word = self.token(*at - 1, end).filter(|token| token.is_name())?;
        for second in ["precision", "varying"] {
            *at += usize::from(self.is(*at, end, second));
        }
        if self.is(*at, end, "(") {
            *at = self.closing(*at, end)? + 1;
        }
        let times = ["time", "timestamp"].iter().any(|name| word.is(name));
        if times && ["with", "without"].iter().any(|word| self.is(*at, end, word)) {
            *at += 3;
        }
        let typed = self.type_of(start..*at);
        let mut is_array = false;
        while self.is(*at, end, "[") {
            *at = self.closing(*at, end)? + 1;
            is_array = true;
        }
        let array = |typed: Typed| if is_array { typed.array() } else { Some(typed) };
        Some(TypedOperand::of(typed.and_then(array)))
    }

    /// Returns the type whose name takes up the range.
    pub(super) fn type_of(&mut self, range: Range<usize>) -> Option<Typed> {
        let texts: Vec<_> = self.tokens[range.clone()].iter().map(|token| token.text).collect();
        let text = texts.join(" ").to_ascii_lowercase();
        let name = text.trim_start_matches("pg_catalog . ");
        let typed = Typed::declared(name);
        if typed.is_none() && !is_type(name) {
            let message = format!("type \"{name}\" does not exist");
            self.refuse(range.start, "42704", message);
        }
        typed
    }

    /// Reads an operand, and the signs before it.
    fn prefix(
        &mut self,
        scope: &NameScope<'_>,
        at: &mut usize,
        end: usize,
    ) -> Option<TypedOperand> {
        let (place, token) = (*at, self.token(*at, end)?);
        *at += 1;
        match token.kind {
            TokenKind::Number => {
                let is_least = token.text == MOST && place > 0 && self.tokens[place - 1].sign("-");
                let is_long = !is_least && !floats::keeps(token.text);
                let long = is_long.then_some(place);
                Some(TypedOperand { long, ..TypedOperand::of(number(token.text)) })
            }
            TokenKind::Text => Some(TypedOperand::text(place)),
            TokenKind::Escaped | TokenKind::Dollar => Some(TypedOperand::of(Some(Typed::OPEN))),
            TokenKind::Truth => Some(TypedOperand::new(types::BOOL)),
            TokenKind::Digits | TokenKind::Only | TokenKind::TruthCast => None,
            TokenKind::Param => Some(TypedOperand::of(self.parameter(parameter_number(token)))),
            TokenKind::Quoted => self.named(scope, at, end),
            TokenKind::Word => self.word(scope, at, end),
            TokenKind::Sign => match token.text {
                "+" | "-" | "~" => {
                    let operand = self.operand(scope, at, end, SIGN)?;
                    let least = token.text == "-"
                        && *at == place + 2
                        && self.tokens[place + 1].text == "2147483648";
                    let operand = if least { TypedOperand::new(types::INT4) } else { operand };
                    let negated = self.negation(place, token.text, operand);
                    Some(TypedOperand { long: operand.long, ..negated })
                }
                "(" => {
                    let close = self.closing(place, end)?;
                    *at = close + 1;
                    self.parenthesis(scope, place + 1..close)
                }
                _ => None,
            },
        }
    }

    /// Reads what is in parentheses: a query, an expression, or a row of several.
    fn parenthesis(&mut self, scope: &NameScope<'_>, range: Range<usize>) -> Option<TypedOperand> {
        if self.begins_query(range.start, range.end) {
            return Some(TypedOperand::of(self.scalar(scope, range)));
        }
        let items = self.split(range.clone());
        if let [_] = &items[..] {
            let mut at = range.start;
            let operand = self.operand(scope, &mut at, range.end, 0)?;
            return (at == range.end).then_some(operand);
        }
        for item in items {
            self.expression(scope, item);
        }
        Some(TypedOperand::default())
    }

    /// Reads an operand that begins with a word.
    fn word(&mut self, scope: &NameScope<'_>, at: &mut usize, end: usize) -> Option<TypedOperand> {
        let token = self.tokens[*at - 1];
        let called = self.is(*at, end, "(");
        if self.is(*at, end, ".") {
            return self.named(scope, at, end);
        }
        let typed = |oid| Some(TypedOperand::new(oid));
        match token.text.to_ascii_lowercase().as_str() {
            "not" => {
                let (place, operand) = (*at - 1, self.operand(scope, at, end, NOT)?);
                self.condition(place, "NOT", operand);
                typed(types::BOOL)
            }
            "case" => self.case(scope, at, end),
            "null" => Some(TypedOperand::of(Some(Typed::OPEN))),
            "true" | "false" => typed(types::BOOL),
            "current_date" => typed(types::DATE),
            "current_timestamp" => {
                *at += if called { 3 } else { 0 };
                typed(types::TIMESTAMPTZ)
            }
            "current_user" | "session_user" | "current_role" | "current_schema"
            | "current_catalog"
                if !called =>
            {
                typed(types::NAME)
            }
            "exists" if called => {
                let close = self.closing(*at, end)?;
                self.query(Some(scope), *at + 1..close);
                *at = close + 1;
                typed(types::BOOL)
            }
            "localtime" | "localtimestamp" => {
                *at += if called { 3 } else { 0 };
                typed(if token.is("localtime") { types::TIME } else { types::TIMESTAMP })
            }
            "array" | "row" | "current_time" => self.special(scope, at, end),
            name if self.token(*at, end).is_some_and(|next| next.kind == TokenKind::Text) => {
                let literal = TypedOperand::text(*at);
                *at += 1;
                let cast = Typed::declared(name)?;
                const UNITS: [&str; 6] = ["year", "month", "day", "hour", "minute", "second"];
                let is_interval = cast.oid == types::INTERVAL;
                let has_unit = is_interval && UNITS.iter().any(|unit| self.is(*at, end, unit));
                *at += usize::from(has_unit);
                Some(self.cast_of(*at, literal, TypedOperand::of(Some(cast))))
            }
            _ => self.named(scope, at, end),
        }
    }

    /// Reads a form of which only the extent is known.
    fn special(
        &mut self,
        scope: &NameScope<'_>,
        at: &mut usize,
        end: usize,
    ) -> Option<TypedOperand> {
        if self.is(*at, end, "(") || self.is(*at, end, "[") {
            let close = self.closing(*at, end)?;
            let inner = *at + 1..close;
            *at = close + 1;
            if self.begins_query(inner.start, inner.end) {
                let element = self.only_column(scope, inner);
                if element.and_then(Typed::category) == Some(Category::Truth) {
                    self.unsupported(
                        *at - 1,
                        "an array of truth values is not supported",
                        "Cast them to int.",
                    );
                }
                return Some(TypedOperand::of(element.and_then(Typed::array)));
            }
            for item in self.split(inner) {
                self.expression(scope, item);
            }
            return Some(TypedOperand::default());
        }
        self.named(scope, at, end)
    }

    /// Reads the name of a column or a function, whose first part is before `at`.
    fn named(&mut self, scope: &NameScope<'_>, at: &mut usize, end: usize) -> Option<TypedOperand> {
        let mut last = *at - 1;
        while self.is(last + 1, end, ".") {
            last += 2;
            self.token(last, end).filter(|token| token.is_name())?;
        }
        let first = *at - 1;
        *at = last + 1;
        if self.is(*at, end, "(") {
            let close = self.closing(*at, end)?;
            let inner = *at + 1..close;
            *at = close + 1;
            return self.function(scope, last, inner, (at, end));
        }
        self.column(scope, first..last + 1)
    }

    /// Reads CASE, from the word after it on.
    fn case(&mut self, scope: &NameScope<'_>, at: &mut usize, end: usize) -> Option<TypedOperand> {
        let mut of = None;
        if !self.is(*at, end, "when") {
            let operand = self.operand(scope, at, end, 0)?;
            let is_open = operand.typed.is_some_and(Typed::is_open);
            of = Some(if is_open { TypedOperand::new(types::TEXT) } else { operand });
        }
        let mut results = Vec::new();
        while self.is(*at, end, "when") {
            let place = *at;
            *at += 1;
            let when = self.operand(scope, at, end, 0)?;
            match of {
                Some(of) => self.compare(place, "=", of, when),
                None => self.condition(place, "CASE/WHEN", when),
            }
            if !self.is(*at, end, "then") {
                return None;
            }
            *at += 1;
            results.push((*at, self.operand(scope, at, end, 0)?));
        }
        if self.is(*at, end, "else") {
            *at += 1;
            results.push((*at, self.operand(scope, at, end, 0)?));
        }
        if !self.is(*at, end, "end") {
            return None;
        }
        *at += 1;
        Some(TypedOperand::of(self.common("CASE", &results)))
    }
}
