//! What PostgreSQL refuses because of types: operators and functions that it does not have for
//! them, conditions that are no truth values, branches that do not match, and literals in quotes
//! that are no values of the type that their place asks for.
//!
//! A literal that is one becomes the number or the truth value that it means, because SQLite
//! compares texts with numbers differently.
//!
//! Only what is certain is refused: both types must be known.

use super::analysis::Analysis;
use super::expression::{Category, Typed, choice, fixed};
use super::operator_rules::{self, Arithmetic, Beside, beside};
use super::parts::TypedOperand;
use crate::dialect::tokens::TokenKind;
use crate::wire::canonical::is_temporal;
use crate::wire::types;

/// The number of characters of a literal that an error shows.
const SHOWN: usize = 40;

/// Functions whose first argument is a text.
const OF_TEXT: &str = "upper lower initcap length char_length character_length octet_length trim \
                       btrim ltrim rtrim substr substring replace reverse left right lpad rpad \
                       repeat strpos starts_with split_part md5 ascii translate";
/// Functions whose first argument is a number.
const OF_NUMBERS: &str = "sum avg abs round trunc ceil ceiling floor sign sqrt exp ln";
/// Functions to which a literal in quotes is a floating point number.
const OF_REALS: &str = "abs round trunc ceil ceiling floor sign sqrt exp ln";
/// Functions whose second argument is a length.
const OF_LENGTHS: &str = "substr substring left right lpad rpad repeat";

fn has(list: &str, name: &str) -> bool {
    list.split_ascii_whitespace().any(|word| word == name)
}

fn name(typed: Typed) -> &'static str {
    if typed.is_open() { "unknown" } else { types::name(typed.oid) }
}

impl Analysis<'_, '_> {
    /// Gives a literal in quotes the type that its place asks for.
    pub(super) fn coerce(&mut self, operand: TypedOperand, to: Typed) {
        let Some(at) = operand.literal else { return };
        let value = self.tokens[at].value();
        match to.category() {
            Some(Category::Number) => match number(&value, to.oid) {
                Ok(true) => self.found.marks.push((at, TokenKind::Digits)),
                Ok(false) => (),
                Err(code) => self.no_value(at, code, to, &value),
            },
            Some(Category::Truth) if types::truth(&value).is_some() => {
                self.found.marks.push((at, TokenKind::Truth));
            }
            Some(Category::Truth) => self.no_value(at, "22P02", to, &value),
            _ => (),
        }
    }

    fn no_value(&mut self, at: usize, code: &'static str, to: Typed, value: &str) {
        let (shown, name): (String, _) = (value.chars().take(SHOWN).collect(), name(to));
        let message = match code {
            "22003" => format!("value \"{shown}\" is out of range for type {name}"),
            _ => format!("invalid input syntax for type {name}: \"{shown}\""),
        };
        self.refuse(at, code, message);
    }

    /// Refuses what SQLite would carry out in another way.
    pub(super) fn unsupported(&mut self, at: usize, message: &'static str, hint: &'static str) {
        self.refuse(at, "0A000", message.to_owned());
        if let Some(error) = self.found.error.take() {
            self.found.error = Some(if error.code == "0A000" { error.hint(hint) } else { error });
        }
    }

    /// Refuses a number with more digits than SQLite keeps. Beside a double it becomes one, as in
    /// PostgreSQL.
    pub(super) fn keep(&mut self, operand: TypedOperand, beside: Option<Typed>) {
        let is_double = |typed: Typed| matches!(typed.oid, types::FLOAT4 | types::FLOAT8);
        if let Some(place) = operand.long.filter(|_| !beside.is_some_and(is_double)) {
            self.unsupported(
                place,
                "a number of more than 15 digits is not supported",
                "Cast it to double precision.",
            );
        }
    }

    fn no_operator(&mut self, at: usize, one: Typed, sign: &str, other: Typed) {
        let message = format!("operator does not exist: {} {sign} {}", name(one), name(other));
        self.refuse(at, "42883", message);
    }

    /// Checks a comparison, whose sign is at `at`.
    pub(super) fn compare(
        &mut self,
        at: usize,
        sign: &str,
        one: TypedOperand,
        other: TypedOperand,
    ) {
        self.keep(one, other.typed);
        self.keep(other, one.typed);
        let (Some(left), Some(right)) = (one.typed, other.typed) else { return };
        let (Some(kind), Some(second)) = (left.category(), right.category()) else { return };
        match (kind, second) {
            (Category::Open, _) => self.coerce(one, right),
            (_, Category::Open) => self.coerce(other, left),
            _ if kind == second => (),
            _ => self.no_operator(at, left, sign, right),
        }
    }

    /// Checks the operands of LIKE and of its kin.
    pub(super) fn text_operator(
        &mut self,
        at: usize,
        sign: &str,
        one: TypedOperand,
        other: TypedOperand,
    ) {
        let (Some(left), Some(right)) = (one.typed, other.typed) else { return };
        let is_other = |typed: Typed| {
            matches!(typed.category(), Some(Category::Number | Category::Truth | Category::Time))
        };
        if is_other(left) || is_other(right) {
            self.no_operator(at, left, sign, right);
        }
    }

    /// Checks arithmetic, and returns its type.
    pub(super) fn arithmetic(
        &mut self,
        at: usize,
        sign: &str,
        one: TypedOperand,
        other: TypedOperand,
    ) -> Option<Typed> {
        self.keep(one, other.typed);
        self.keep(other, one.typed);
        let (left, right) = (one.typed?, other.typed?);
        if is_temporal(left.oid) || is_temporal(right.oid) {
            return of_times(left.oid, sign, right.oid);
        }
        match (left.category()?, right.category()?) {
            (Category::Number, Category::Number) => left.arithmetic(sign, right),
            (Category::Open, Category::Number) => {
                self.coerce(one, right);
                right.arithmetic(sign, Typed { scale: None, ..right })
            }
            (Category::Number, Category::Open) => {
                self.coerce(other, left);
                left.arithmetic(sign, Typed { scale: None, ..left })
            }
            (Category::Open, Category::Open) => {
                let message = format!("operator is not unique: unknown {sign} unknown");
                self.refuse(at, "42725", message);
                None
            }
            _ => {
                self.no_operator(at, left, sign, right);
                None
            }
        }
    }

    /// Checks the operand of a sign before a number.
    pub(super) fn negation(
        &mut self,
        at: usize,
        sign: &str,
        operand: TypedOperand,
    ) -> TypedOperand {
        let Some(typed) = operand.typed else { return TypedOperand::default() };
        match typed.category() {
            Some(Category::Number) => TypedOperand::of(Some(typed)),
            None if typed.oid == types::INTERVAL => TypedOperand::of(Some(typed)),
            Some(Category::Text | Category::Truth) => {
                let message = format!("operator does not exist: {sign} {}", name(typed));
                self.refuse(at, "42883", message);
                TypedOperand::default()
            }
            _ => TypedOperand::default(),
        }
    }

    /// Checks `||`, which needs a text on one side.
    pub(super) fn concatenation(
        &mut self,
        at: usize,
        one: TypedOperand,
        other: TypedOperand,
    ) -> Typed {
        if let (Some(left), Some(right)) = (one.typed, other.typed)
            && let (Some(kind), Some(second)) = (left.category(), right.category())
            && ![kind, second].iter().any(|kind| matches!(kind, Category::Text | Category::Open))
        {
            self.no_operator(at, left, "||", right);
        }
        let is_truth = |operand: TypedOperand| {
            operand.typed.and_then(Typed::category) == Some(Category::Truth)
        };
        if is_truth(one) || is_truth(other) {
            self.unsupported(at, "|| of a truth value is not supported", "Cast it to text.");
        }
        Typed::new(types::TEXT)
    }

    /// Checks that the argument of `what`, which begins at `at`, is a truth value.
    pub(super) fn condition(&mut self, at: usize, what: &str, operand: TypedOperand) {
        let Some(typed) = operand.typed else { return };
        match typed.category() {
            Some(Category::Open) => self.coerce(operand, Typed::new(types::BOOL)),
            Some(Category::Number | Category::Text | Category::Time) => {
                let name = name(typed);
                let message = format!("argument of {what} must be type boolean, not type {name}");
                self.refuse(at, "42804", message);
            }
            _ => (),
        }
    }

    /// Returns the type of a value that is one of several, and checks that they match.
    pub(super) fn common(&mut self, what: &str, items: &[(usize, TypedOperand)]) -> Option<Typed> {
        let mut known: Option<Typed> = None;
        for (at, item) in items {
            let Some(typed) = item.typed.filter(|typed| !typed.is_open()) else { continue };
            let Some(kind) = typed.category() else { continue };
            match known {
                Some(first) if first.category() != Some(kind) => {
                    let (one, other) = (name(first), name(typed));
                    let message = format!("{what} types {one} and {other} cannot be matched");
                    self.refuse(*at, "42804", message);
                    return None;
                }
                Some(_) => (),
                None => known = Some(typed),
            }
        }
        let found = choice(items.iter().map(|(_, item)| item.typed))?;
        for (_, item) in items {
            self.keep(*item, Some(found));
            self.coerce(*item, found);
        }
        Some(found)
    }

    /// Checks the arguments of a call. `at` is the name of the function.
    pub(super) fn call(&mut self, at: usize, function: &str, arguments: &[TypedOperand]) {
        let takes_doubles = fixed(function).map(Typed::new);
        if !["coalesce", "greatest", "least", "nullif"].contains(&function) {
            arguments.iter().for_each(|argument| self.keep(*argument, takes_doubles));
        }
        let kind = arguments.first().and_then(|first| first.typed?.category());
        let is_refused = match function {
            "min" | "max" => kind == Some(Category::Truth) && arguments.len() == 1,
            _ if has(OF_TEXT, function) => {
                matches!(kind, Some(Category::Number | Category::Truth | Category::Time))
            }
            _ if has(OF_NUMBERS, function) => {
                matches!(kind, Some(Category::Text | Category::Truth | Category::Time))
            }
            _ => false,
        };
        if is_refused {
            let name = |operand: &TypedOperand| operand.typed.map_or("unknown", name);
            let types: Vec<_> = arguments.iter().map(name).collect();
            let message = format!("function {function}({}) does not exist", types.join(", "));
            self.refuse(at, "42883", message);
        } else if kind == Some(Category::Open) && has(OF_REALS, function) {
            self.coerce(arguments[0], Typed::new(types::FLOAT8));
        } else if function == "count" && arguments.is_empty() {
            let message = "count(*) must be used to call a parameterless aggregate function";
            self.refuse(at, "42809", message.to_owned());
        }
        let is_truth = |operand: &TypedOperand| {
            operand.typed.and_then(Typed::category) == Some(Category::Truth)
        };
        if function.starts_with("concat") && arguments.iter().any(is_truth) {
            self.unsupported(at, "concat of a truth value is not supported", "Cast it to text.");
        }
        // `substring(text, pattern)` has a text there.
        let skip = if function == "substring" { 2 } else { 1 };
        if has(OF_LENGTHS, function)
            && let Some(length) = arguments.get(skip)
        {
            self.coerce(*length, Typed::new(types::INT4));
        }
    }
}

/// Returns the type of an operation of which one side is a time. What there is no operator for is
/// refused by `operators`.
fn of_times(left: u32, sign: &str, right: u32) -> Option<Typed> {
    let known = |oid: u32, other: u32| match beside(sign, other) {
        Beside::Type(implied) if oid == types::UNKNOWN => implied,
        _ => oid,
    };
    match operator_rules::arithmetic(sign, Some(known(left, right)), Some(known(right, left))) {
        Arithmetic::Call(_, oid) => oid.map(Typed::new),
        Arithmetic::None | Arithmetic::Unsure => None,
    }
}

/// Returns whether SQLite reads the text as the same number, and an error's code if it is no number
/// of the type.
fn number(text: &str, oid: u32) -> Result<bool, &'static str> {
    let text = text.trim();
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if !matches!(oid, types::INT2 | types::INT4 | types::INT8) {
        let real: f64 = text.parse().map_err(|_| "22P02")?;
        return Ok(real.is_finite() && digits.starts_with(|first: char| first.is_ascii_digit()));
    }
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("22P02");
    }
    let int: i64 = text.parse().map_err(|_| "22003")?;
    let fits = match oid {
        types::INT2 => i16::try_from(int).is_ok(),
        types::INT4 => i32::try_from(int).is_ok(),
        _ => int != i64::MIN,
    };
    if fits { Ok(true) } else { Err("22003") }
}
