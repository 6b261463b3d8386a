//! Whether a value fits the column that stores it, as far as its tokens say.
//!
//! ```text
//!   int column       1        stored as it is        1.5, x + 1   converted when it is stored
//!                    true     refused: 42804         'abc'        refused: 22P02
//! ```
//!
//! As in PostgreSQL, a literal is read when the statement is prepared, and so is a mistake in it
//! found. A type that is not known is no mistake: then the value is looked at when it is stored.

use std::cell::OnceCell;

use rusqlite::Connection;
use rusqlite::types::{Value, ValueRef};

use super::analysis::type_of;
use super::expression::Typed;
use super::names::{Names, number};
use super::targets::Target;
use crate::dialect::tokens::{Token, TokenKind, closing};
use crate::engine::{AS_TRUTH, TO_EVEN, assigned};
use crate::error::{MORE_DIGITS, Result, SqlError};
use crate::wire::{floats, types};

/// The type of an expression that is nested more deeply is not looked for, because SQLite has not
/// read the statement yet, and may refuse it for its depth.
const DEPTH_MAX: usize = 32;

/// What has to be done with a value.
#[derive(Debug, PartialEq)]
pub(super) enum Fit {
    /// It is stored as it is.
    Stored,
    /// It is converted when it is stored. A number becomes another one, or a text, as this says.
    Call(Option<i64>),
    /// This literal is stored in its place.
    Instead(String),
}

/// A statement whose values are looked at.
pub(super) struct Values<'v> {
    db: &'v Connection,
    tokens: &'v [Token<'v>],
    /// The types that the client has declared for parameters, zero for none.
    declared: &'v [u32],
    /// The types with which parameters are sent.
    parameters: &'v [u32],
    names: OnceCell<Names<'v>>,
}

impl<'v> Values<'v> {
    pub(super) fn new(
        db: &'v Connection,
        tokens: &'v [Token<'v>],
        (declared, parameters): (&'v [u32], &'v [u32]),
    ) -> Values<'v> {
        Values { db, tokens, declared, parameters, names: OnceCell::new() }
    }

    /// Returns what has to be done so that the column stores this value.
    ///
    /// # Errors
    /// 42804 if the value is of a type that PostgreSQL does not convert on assignment. The error of
    /// a literal that is no value of the column's type.
    pub(super) fn fit(&self, item: &[Token<'_>], target: &Target) -> Result<Fit> {
        if target.is_open() || item.is_empty() {
            return Ok(Fit::Stored);
        }
        let inner = without_parentheses(item);
        let fit = match inner {
            [one] if one.is("null") || one.is("default") => Ok(Fit::Stored),
            [one] if one.kind == TokenKind::Truth => Ok(Fit::Stored),
            _ => match literal(inner) {
                Some(literal) => literal.fit(target),
                None => self.expression(inner, target),
            },
        };
        fit.map_err(|error| SqlError { offset: item.first().map(|first| first.at), ..error })
    }

    fn expression(&self, item: &[Token<'_>], target: &Target) -> Result<Fit> {
        let names = self.names.get_or_init(|| Names::certain(self.db, self.tokens));
        let is_flat = depth(item) <= DEPTH_MAX;
        let typed = is_flat.then(|| type_of(item, self.declared, names)).flatten();
        let mut typed = typed.filter(|typed| typed.oid != 0 && typed.oid != types::UNKNOWN);
        let mut sent = None;
        if let [one] = item
            && let Some(number) = number(one)
        {
            sent = self.parameters.get(number.wrapping_sub(1)).copied();
            if self.declared.get(number.wrapping_sub(1)) == Some(&types::TEXT) {
                typed = Some(Typed::new(types::TEXT));
            }
        }
        if let Some(from) = typed.map(|typed| typed.oid)
            && !(from == types::TEXT && may_be_other(item, target))
            && !is_assignable(from, target.oid)
        {
            return Err(mismatch(from, target));
        }
        let Some(from) = sent.or_else(|| typed.map(|typed| typed.oid)) else {
            return Ok(Fit::Call(None));
        };
        let scale = typed.and_then(|typed| typed.scale).filter(|_| from == types::NUMERIC);
        let spelling = match from {
            types::FLOAT4 | types::FLOAT8 if is_whole(target.oid) => Some(TO_EVEN),
            types::BOOL if is_text(target.oid) => Some(AS_TRUTH),
            _ => scale.map(i64::from).filter(|_| is_text(target.oid)),
        };
        // A number that is the result of arithmetic may be none of its type.
        let is_exact = matches!(item, [_]) || matches!(item, [_, dot, _] if dot.sign("."));
        Ok(match target.oid {
            _ if target.modifier >= 0 => Fit::Call(spelling),
            to if is_text(to) && !is_text(from) => Fit::Call(spelling),
            to if is_text(to) => Fit::Stored,
            types::BOOL | types::BYTEA if from == target.oid => Fit::Stored,
            types::NUMERIC | types::FLOAT8 if is_number(from) => Fit::Stored,
            to if is_exact && is_whole(to) && is_whole(from) && width(from) <= width(to) => {
                Fit::Stored
            }
            _ => Fit::Call(spelling),
        })
    }
}

/// A literal: its value, its type (that of a text is open), and its text.
struct Literal {
    value: Value,
    from: u32,
    text: String,
    /// Whether it is one token, without a sign.
    is_one: bool,
}

impl Literal {
    fn fit(&self, target: &Target) -> Result<Fit> {
        if self.from != types::UNKNOWN && !is_assignable(self.from, target.oid) {
            return Err(mismatch(self.from, target));
        }
        let assign = |value: &Value| {
            assigned(ValueRef::from(value), target.oid, target.modifier).map_err(SqlError::from)
        };
        if is_text(target.oid) && self.from != types::UNKNOWN {
            assign(&Value::Text(self.text.clone()))?;
            // A column of texts makes a text of a whole number.
            let same = matches!(self.value, Value::Integer(_)) && self.from != types::BOOL;
            let fraction = self.text.split_once('.').map_or(0, |(_, fraction)| fraction.len());
            return Ok(match self.is_one {
                _ if same => Fit::Stored,
                true => Fit::Instead(format!("'{}'", self.text)),
                false => Fit::Call(Some(fraction as i64)),
            });
        }
        if let (Value::Real(real), true) = (&self.value, is_number(target.oid))
            && real.is_infinite()
        {
            let (shown, name) = (&self.text, types::name(target.oid));
            let message = format!("\"{shown:.40}\" is out of range for type {name}");
            return Err(SqlError::new("22003", message));
        }
        let is_rounded = types::digits(target.modifier).is_some();
        if target.oid == types::NUMERIC && !is_rounded && !floats::keeps(&self.text) {
            return Err(SqlError::unsupported(MORE_DIGITS));
        }
        let stored = assign(&self.value)?;
        let is_same = match (&self.value, &stored) {
            (Value::Text(text), Value::Integer(int)) => {
                is_whole(target.oid) && int.to_string() == *text
            }
            (Value::Integer(int), Value::Real(real)) => *int as f64 == *real,
            (given, stored) => given == stored,
        };
        Ok(if is_same { Fit::Stored } else { Fit::Call(None) })
    }
}

/// Returns whether a value is a literal, so that it is not NULL.
pub(super) fn is_literal(item: &[Token<'_>]) -> bool {
    matches!(item, [one] if one.kind == TokenKind::Truth) || literal(item).is_some()
}

/// Reads a literal.
fn literal(item: &[Token<'_>]) -> Option<Literal> {
    let (sign, one) = match item {
        [one] => ("", one),
        [sign, one] if sign.sign("-") && one.kind == TokenKind::Number => ("-", one),
        _ => return None,
    };
    let is_one = sign.is_empty();
    match one.kind {
        TokenKind::Text | TokenKind::Escaped | TokenKind::Dollar => {
            let text = one.value();
            let value = Value::Text(text.clone());
            Some(Literal { value, from: types::UNKNOWN, text, is_one })
        }
        TokenKind::Number => {
            let text = format!("{sign}{}", one.text);
            if let Ok(int) = text.parse::<i64>() {
                let from = if i32::try_from(int).is_ok() { types::INT4 } else { types::INT8 };
                let (value, text) = (Value::Integer(int), int.to_string());
                return Some(Literal { value, from, text, is_one });
            }
            let real: f64 = text.parse().ok()?;
            let text = if text.contains(['e', 'E']) { real.to_string() } else { text };
            let text = match text.trim_start_matches('-').strip_prefix('.') {
                Some(fraction) => format!("{sign}0.{fraction}"),
                None => text,
            };
            Some(Literal { value: Value::Real(real), from: types::NUMERIC, text, is_one })
        }
        TokenKind::Word if one.is("true") || one.is("false") => {
            let value = Value::Integer(one.is("true").into());
            let text = one.text.to_ascii_lowercase();
            Some(Literal { value, from: types::BOOL, text, is_one })
        }
        _ => None,
    }
}

/// Returns whether an expression that seems to be a text may be of another type: NULL has every
/// type, and `||` also joins values of these.
fn may_be_other(item: &[Token<'_>], target: &Target) -> bool {
    let joins = matches!(target.oid, types::BYTEA | types::JSON | types::JSONB);
    item.iter().any(|token| token.is("null") || (joins && token.sign("||")))
}

fn mismatch(from: u32, target: &Target) -> SqlError {
    let (name, to, from) = (&target.name, types::name(target.oid), types::name(from));
    let message = format!("column \"{name}\" is of type {to} but expression is of type {from}");
    SqlError::new("42804", message).hint("You will need to rewrite or cast the expression.")
}

/// Returns whether PostgreSQL converts one type to another on assignment.
fn is_assignable(from: u32, to: u32) -> bool {
    let is_time = |oid| matches!(oid, types::DATE | types::TIMESTAMP | types::TIMESTAMPTZ);
    let is_json = |oid| matches!(oid, types::JSON | types::JSONB);
    let is_other = |oid| matches!(oid, types::BOOL | types::BYTEA | types::UUID);
    let is_known =
        |oid| is_number(oid) || is_time(oid) || is_json(oid) || is_text(oid) || is_other(oid);
    from == to
        || is_text(to)
        || (is_number(from) && is_number(to))
        || (is_time(from) && is_time(to))
        || (is_json(from) && is_json(to))
        || !is_known(from)
        || !is_known(to)
}

fn is_text(oid: u32) -> bool {
    matches!(oid, types::TEXT | types::VARCHAR | types::BPCHAR | types::NAME)
}

fn is_whole(oid: u32) -> bool {
    matches!(oid, types::INT2 | types::INT4 | types::INT8)
}

fn is_number(oid: u32) -> bool {
    is_whole(oid) || matches!(oid, types::NUMERIC | types::FLOAT4 | types::FLOAT8)
}

fn width(oid: u32) -> i16 {
    types::size(oid)
}

/// Returns how deeply an expression is nested.
fn depth(item: &[Token<'_>]) -> usize {
    let (mut depth, mut deepest) = (0usize, 0);
    for token in item {
        if token.sign("(") || token.is("case") {
            depth += 1;
        } else if token.sign(")") || token.is("end") {
            depth = depth.saturating_sub(1);
        }
        deepest = deepest.max(depth);
    }
    deepest
}

/// Returns an item without the parentheses around all of it.
pub(super) fn without_parentheses<'t, 'a>(item: &'t [Token<'a>]) -> &'t [Token<'a>] {
    let mut inner = item;
    for _ in 0..DEPTH_MAX {
        match inner {
            [open, rest @ .., _]
                if open.sign("(")
                    && closing(inner) == Some(inner.len() - 1)
                    && !rest.is_empty() =>
            {
                inner = rest;
            }
            _ => return inner,
        }
    }
    item
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::tokens::tokens;
    use crate::plan::Table;

    /// Returns what is done with a value, or the SQLSTATE with which it is refused.
    fn fit(value: &str, column: &str) -> std::result::Result<Fit, &'static str> {
        let db = Connection::open_in_memory().unwrap();
        db.execute_batch(
            "create table t(i int, s smallint, b bigint, p numeric(5,2), n numeric, v varchar(3),
                 x text, c char(2), d date, m timestamp, k boolean, r real, f float8, u uuid,
                 y bytea, j json, z interval)",
        )
        .unwrap();
        let target = Table::named("t").column(&db, column).unwrap();
        let source = format!("update t set {column} = {value}");
        let tokens = tokens(&source).unwrap();
        let parameters = [types::INT2, types::TEXT, types::NUMERIC];
        let declared = [types::INT2, 0, types::NUMERIC];
        let values = Values::new(&db, &tokens, (&declared, &parameters));
        values.fit(&tokens[5..], &target).map_err(|error| error.code)
    }

    #[test]
    fn a_value_that_evidently_fits_is_stored_as_it_is() {
        for (value, column) in [
            ("1", "i"),
            ("-32768", "s"),
            ("'42'", "i"),
            ("9223372036854775807", "b"),
            ("999.99", "p"),
            ("(1.5)", "n"),
            ("'abc'", "v"),
            ("123", "v"),
            ("'2026-02-28'", "d"),
            ("'2026-02-28 10:00:00'", "m"),
            ("true", "k"),
            ("i > 1", "k"),
            ("1", "f"),
            ("1.5", "f"),
            ("'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "u"),
            ("'{}'", "j"),
            ("null", "i"),
            ("s", "i"),
            ("$1", "i"),
            ("$3", "n"),
            ("$2", "x"),
            ("x || 'y'", "x"),
            ("p * 2", "n"),
            ("'1 day'", "z"),
        ] {
            assert_eq!(fit(value, column), Ok(Fit::Stored), "{value} {column}");
        }
    }

    #[test]
    fn another_value_is_converted_when_it_is_stored() {
        let instead = |text: &str| Fit::Instead(text.into());
        for (value, column, expected) in [
            ("1.5", "i", Fit::Call(None)),
            ("i + 1", "i", Fit::Call(None)),
            ("b", "i", Fit::Call(None)),
            ("$1", "v", Fit::Call(None)),
            ("$2", "i", Fit::Call(None)),
            ("'abc  '", "v", Fit::Call(None)),
            ("2.005", "p", Fit::Call(None)),
            ("'today'", "d", Fit::Call(None)),
            ("m", "d", Fit::Call(None)),
            ("0.1", "r", Fit::Call(None)),
            ("i = 1", "x", Fit::Call(Some(AS_TRUTH))),
            ("p", "x", Fit::Call(Some(2))),
            ("f * 2", "i", Fit::Call(Some(TO_EVEN))),
            ("p * 2", "i", Fit::Call(None)),
            ("(select 1)", "i", Fit::Call(None)),
            ("coalesce(null, null)", "i", Fit::Call(None)),
            ("y || y", "y", Fit::Call(None)),
            ("true", "x", instead("'true'")),
            ("1.50", "x", instead("'1.50'")),
            (".5", "x", instead("'0.5'")),
            ("-1.50", "x", Fit::Call(Some(2))),
        ] {
            assert_eq!(fit(value, column), Ok(expected), "{value} {column}");
        }
    }

    #[test]
    fn a_value_that_is_nested_deeply_is_looked_at_when_it_is_stored() {
        let nested =
            |depth: usize, text: &str| format!("{}{text}{}", "(".repeat(depth), ")".repeat(depth));
        assert_eq!(fit(&nested(20, "true"), "i"), Err("42804"));
        for depth in [40, 100_000] {
            assert_eq!(fit(&nested(depth, "true"), "i"), Ok(Fit::Call(None)));
            assert_eq!(fit(&format!("abs{} + 1", nested(depth, "i")), "i"), Ok(Fit::Call(None)));
        }
    }

    #[test]
    fn what_cannot_be_a_value_of_the_column_is_refused_at_once() {
        for (value, column, code) in [
            ("32768", "s", "22003"),
            ("2147483648", "i", "22003"),
            ("9223372036854775808", "b", "22003"),
            ("1000", "p", "22003"),
            ("1e400", "f", "22003"),
            ("1e400", "n", "22003"),
            ("'abc'", "i", "22P02"),
            ("''", "i", "22P02"),
            ("'abcd'", "v", "22001"),
            ("1234", "v", "22001"),
            ("true", "v", "22001"),
            ("'2026-02-30'", "d", "22008"),
            ("'soon'", "d", "22007"),
            ("5", "d", "42804"),
            ("1", "k", "42804"),
            ("true", "i", "42804"),
            ("i > 1", "i", "42804"),
            ("x || 'y'", "i", "42804"),
            ("$1", "k", "42804"),
            ("d", "u", "42804"),
            ("'x'", "u", "22P02"),
            ("'{a: 1}'", "j", "22P02"),
        ] {
            assert_eq!(fit(value, column), Err(code), "{value} {column}");
        }
    }
}
