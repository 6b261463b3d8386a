//! What becomes of an operator, a comparison, a cast and a call when its operands are complete: the
//! changes of the text, and the type of the result. The rules are in `operator_rules`.

use super::expression::fixed;
use super::frames::{Frame, Operand, Operator, Shape, is_comparison, is_logical};
use super::operator_rules::{
    Arithmetic, Beside, COLLATE, Comparison, UNSURE, arithmetic, beside, call_type, comparison,
    type_name, wider,
};
use super::walk::{Turn, Walk};
use crate::dialect::tokens::TokenKind;
use crate::wire::canonical::{canonical, is_temporal};
use crate::wire::time_input;
use crate::wire::types::{self, INTERVAL, TIME, TIMESTAMP, TIMESTAMPTZ};

impl Walk<'_> {
    /// Carries out the operators that bind at least as closely.
    pub(super) fn reduce(&mut self, rank: u8) {
        loop {
            let frame = self.frame();
            let Some(operator) = frame.operators.last().copied() else { return };
            if operator.rank < rank || !frame.is_complete() {
                return;
            }
            frame.drop_operator();
            let Some(right) = frame.operands.pop() else { return };
            let left = if operator.is_unary { None } else { frame.operands.pop() };
            let result = match left {
                None => self.unary(operator.at, right),
                Some(left) => self.binary(left, operator, right),
            };
            self.frame().operands.push(result);
        }
    }

    fn unary(&mut self, at: usize, operand: Operand) -> Operand {
        if self.tokens[at].is("not") {
            return Operand { start: at, oid: Some(types::BOOL), shape: Shape::Other, ..operand };
        }
        let oid = operand.oid.filter(|oid| is_temporal(*oid) || *oid == UNSURE);
        match oid {
            Some(INTERVAL) if self.is(at, "-") => {
                self.edits.instead(at, "interval_um(");
                self.edits.after(operand.end - 1, ")");
            }
            Some(INTERVAL) | None => (),
            Some(_) => {
                let sign = self.tokens[at].text;
                let message = format!("operator does not exist: {sign} {}", type_name(oid));
                self.fail(at, "42883", message);
            }
        }
        Operand { start: at, shape: Shape::Other, ..operand }
    }

    fn binary(&mut self, left: Operand, operator: Operator, right: Operand) -> Operand {
        let result = |oid| Operand { start: left.start, end: right.end, oid, shape: Shape::Other };
        if is_logical(operator.rank) {
            return result(Some(types::BOOL));
        }
        if is_comparison(operator.rank) {
            let is_word = self.tokens[operator.at].kind == TokenKind::Word;
            let is_null = self.is(right.start, "null");
            if !is_word || (self.is(operator.at, "is") && !is_null) {
                self.compare(left, operator.at, right, Turn::Only);
            }
            return result(Some(types::BOOL));
        }
        let sign = self.tokens[operator.at].text;
        if matches!(sign, "||" | "->" | "->>") {
            return result(Some(types::TEXT).filter(|_| sign != "->"));
        }
        let is_time =
            |operand: Operand| operand.oid.is_some_and(|oid| is_temporal(oid) || oid == UNSURE);
        if !is_time(left) && !is_time(right) {
            let oid = wider(left.oid, right.oid);
            match oid {
                Some(types::NUMERIC) => self.compute(left, sign, right),
                Some(types::FLOAT8) => self.compute_double(left, operator.at, right),
                _ => (),
            }
            return result(oid);
        }
        let left_oid = self.literal(left, sign, right, operator.at);
        let right_oid = self.literal(right, sign, left, operator.at);
        match arithmetic(sign, left_oid, right_oid) {
            Arithmetic::Call(function, oid) => {
                self.edits.before(left.start, format!("{function}("));
                self.edits.instead(operator.at, ",");
                self.edits.after(right.end - 1, ")");
                result(oid)
            }
            Arithmetic::None => {
                let (left, right) = (type_name(left_oid), type_name(right_oid));
                let message = format!("operator does not exist: {left} {sign} {right}");
                self.fail(operator.at, "42883", message);
                result(None)
            }
            Arithmetic::Unsure => {
                let message =
                    format!("the types of the operands of \"{sign}\" are not known; cast them");
                self.fail(operator.at, "0A000", message);
                result(None)
            }
        }
    }

    /// Makes the result of arithmetic on numerics exact in the digits that a double has. SQLite
    /// stores a numeric that is whole as an integer, whose quotient would be whole.
    fn compute(&mut self, left: Operand, sign: &str, right: Operand) {
        let is_real = |operand: Operand| {
            operand.shape == Shape::Number && self.tokens[operand.start].text.contains('.')
        };
        match sign {
            "/" if !is_real(left) && !is_real(right) => self.edits.before(left.start, "1.0 * "),
            "+" | "-" | "*" if !self.is(0, "create") => {
                self.edits.before(left.start, "pg_numeric(");
                self.edits.after(right.end - 1, ")");
            }
            _ => (),
        }
    }

    /// Calls a function for arithmetic on doubles, which fails if the result is too large.
    fn compute_double(&mut self, left: Operand, at: usize, right: Operand) {
        let function = match self.tokens[at].text {
            "+" => "float8pl(",
            "-" => "float8mi(",
            "*" => "float8mul(",
            _ => return,
        };
        if !self.is(0, "create") {
            self.edits.before(left.start, function);
            self.edits.instead(at, ",");
            self.edits.after(right.end - 1, ")");
        }
    }

    /// Returns the type of an operand. A literal in quotes gets the one that the other operand
    /// implies, and the form that is stored.
    fn literal(&mut self, operand: Operand, sign: &str, other: Operand, at: usize) -> Option<u32> {
        if operand.shape != Shape::Literal {
            return operand.oid;
        }
        match beside(sign, other.oid?) {
            Beside::Type(types::FLOAT8) => {
                let value = self.tokens[operand.start].value();
                match value.trim().parse::<f64>() {
                    Ok(number) => self.edits.instead(operand.start, number.to_string()),
                    Err(_) => {
                        let message = "invalid input syntax for type double precision";
                        self.fail(operand.start, "22P02", format!("{message}: \"{value:.40}\""));
                    }
                }
                Some(types::FLOAT8)
            }
            Beside::Type(oid) => {
                self.store(operand.start, oid);
                Some(oid)
            }
            Beside::Several => {
                let other = type_name(other.oid);
                let message = format!("operator is not unique: {other} {sign} unknown");
                self.fail(at, "42725", message);
                Some(INTERVAL)
            }
            Beside::None => operand.oid,
        }
    }

    /// Gives a literal in quotes the form that is stored of its type.
    fn store(&mut self, at: usize, oid: u32) {
        let value = self.tokens[at].value();
        match canonical(&value, oid, None) {
            Ok(text) if text != value => self.edits.instead(at, format!("'{text}'")),
            Ok(_) => (),
            Err(error) => {
                self.error.get_or_insert((at, error));
            }
        }
    }

    /// Makes both sides of a comparison comparable as texts. `turn` says whether the left side is
    /// compared with other values, too.
    pub(super) fn compare(&mut self, left: Operand, at: usize, right: Operand, turn: Turn) {
        let time = |operand: Operand| operand.oid.filter(|oid| is_temporal(*oid));
        let is_first = turn != Turn::Later;
        let (left_oid, right_oid) = match (time(left), time(right)) {
            (None, None) => return,
            (Some(oid), _) if right.shape == Shape::Literal => {
                self.store(right.start, oid);
                (Some(oid), Some(oid))
            }
            (_, Some(oid)) if left.shape == Shape::Literal && is_first => {
                self.store(left.start, oid);
                (Some(oid), Some(oid))
            }
            _ => (left.oid, right.oid),
        };
        let to = |oid: Option<u32>| match oid {
            Some(TIMESTAMP) => "pg_timestamp(",
            _ => "pg_timestamptz(",
        };
        match comparison(left_oid, right_oid) {
            Comparison::Intervals if is_first => self.edits.after(left.end - 1, COLLATE),
            Comparison::Texts | Comparison::Intervals => (),
            Comparison::Left if is_first => self.wrap(left, to(right_oid)),
            Comparison::Left => {
                let message = "dates among points in time are not supported; cast them";
                self.fail(at, "0A000", message.to_owned());
            }
            Comparison::Right => self.wrap(right, to(left_oid)),
            // An index of the column stays useful.
            Comparison::Either if right.shape == Shape::Column && turn == Turn::Only => {
                self.wrap(left, to(right_oid));
            }
            Comparison::Either => self.wrap(right, to(left_oid)),
            Comparison::None => {
                let sign = self.tokens.get(at).map_or("=", |token| token.text);
                let (left, right) = (type_name(left_oid), type_name(right_oid));
                let message = format!("operator does not exist: {left} {sign} {right}");
                self.fail(at, "42883", message);
            }
        }
    }

    fn wrap(&mut self, operand: Operand, function: &'static str) {
        self.edits.before(operand.start, function);
        self.edits.after(operand.end - 1, ")");
    }

    /// Translates `x AT TIME ZONE 'UTC'`, of which AT is this token, to a cast.
    pub(super) fn at_zone(&mut self, at: usize) {
        let zone = self.tokens.get(at + 3).map(|token| (token.kind, token.value()));
        let is_utc = zone.as_ref().is_some_and(|(kind, zone)| {
            let at_zone = time_input::read(&format!("2000-01-01 00:00 {zone}"));
            *kind == TokenKind::Text && at_zone.is_ok_and(|parts| parts.shift == Some(0))
        });
        let Some(operand) = self.frame().operands.last_mut() else { return };
        let (function, oid) = match operand.oid {
            Some(TIMESTAMP) => ("pg_timestamptz(", TIMESTAMPTZ),
            _ => ("pg_timestamp(", TIMESTAMP),
        };
        let is_point = matches!(operand.oid, Some(TIMESTAMP | TIMESTAMPTZ));
        let (start, end) = (operand.start, operand.end);
        // An older database may have points in time of other zones.
        let is_stored = operand.oid == Some(TIMESTAMPTZ) && operand.shape == Shape::Column;
        (operand.end, operand.oid, operand.shape) = (at + 4, Some(oid), Shape::Other);
        if !is_utc || !is_point {
            let message = "AT TIME ZONE is supported for timestamps, and for 'UTC' only";
            return self.fail(at, "0A000", message.to_owned());
        }
        if is_stored {
            self.edits.before(start, "pg_timestamptz(");
            self.edits.after(end - 1, ")");
        }
        self.edits.before(start, function);
        self.edits.after(end - 1, ")");
        for token in at..at + 4 {
            self.edits.instead(token, " ");
        }
    }

    /// Returns the type of `CAST(x AS type)`. What is stored of a time may have an older form.
    pub(super) fn cast(&mut self, frame: &Frame, close: usize) -> Option<u32> {
        let target = &self.tokens[..close].last()?;
        let oid = types::by_name(target.text);
        if oid == types::TEXT {
            self.spell(frame);
        }
        Some(oid)
    }

    /// Gives what is stored of a time, and becomes a text, the form of its type.
    fn spell(&mut self, frame: &Frame) {
        let Some(item) = frame.items.first().filter(|item| item.shape == Shape::Column) else {
            return;
        };
        match item.oid {
            Some(types::FLOAT4) => self.wrap(*item, "pg_text_real("),
            Some(INTERVAL) => self.wrap(*item, "pg_interval("),
            Some(TIME) => self.wrap(*item, "pg_time("),
            Some(TIMESTAMPTZ) => self.wrap(*item, "pg_timestamptz("),
            _ => (),
        }
    }

    /// Returns the type of a call, and replaces the functions of intervals.
    pub(super) fn call(&mut self, name: usize, frame: &Frame) -> Option<u32> {
        let function = self.tokens[name].text.to_ascii_lowercase();
        let oids: Vec<_> = frame.items.iter().map(|item| item.oid).collect();
        let oid = |at: usize| oids.get(at).copied().flatten();
        match function.as_str() {
            "pg_text" => self.spell(frame),
            "int2" | "int4" | "int8" if matches!(oid(0), Some(types::FLOAT4 | types::FLOAT8)) => {
                self.wrap(frame.items[0], "ums_even(");
            }
            "round" if oids.len() == 1 && matches!(oid(0), Some(types::FLOAT4 | types::FLOAT8)) => {
                self.edits.instead(name, "ums_even");
                return Some(types::FLOAT8);
            }
            "pg_div" if wider(oid(0), oid(1)) == Some(types::NUMERIC) => {
                self.edits.before(frame.items[0].start, "1.0 * ");
            }
            "greatest" | "least" if oids.contains(&Some(INTERVAL)) => {
                let message = format!("{function} of intervals is not supported");
                self.fail(name, "0A000", message);
            }
            "min" | "max" | "nullif" if oid(0) == Some(INTERVAL) && !frame.is_distinct => {
                self.edits.after(frame.items[0].end - 1, COLLATE);
            }
            "sum" | "avg" => match oid(0) {
                Some(INTERVAL) => self.edits.instead(name, format!("interval_{function}")),
                Some(oid) if is_temporal(oid) => {
                    let message =
                        format!("function {function}({}) does not exist", types::name(oid));
                    self.fail(name, "42883", message);
                }
                _ => (),
            },
            "extract" if oid(1) == Some(INTERVAL) => self.edits.instead(name, "extract_interval"),
            "date_part" if oid(1) == Some(INTERVAL) => self.edits.instead(name, "interval_part"),
            "date_trunc" if matches!(oid(1), Some(INTERVAL | TIME)) => {
                self.edits.instead(name, "interval_trunc");
            }
            "pg_date" | "pg_timestamp" | "pg_time" if oid(0) == Some(TIMESTAMPTZ) => {
                let item = frame.items[0];
                if item.shape == Shape::Column {
                    // An older database may have points in time of other zones.
                    self.wrap(item, "pg_timestamptz(");
                }
            }
            _ => (),
        }
        fixed(&function).or_else(|| call_type(&function, &oids))
    }
}
