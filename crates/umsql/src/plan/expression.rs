//! The type of an expression in a select list, by simple rules that look at its tokens only. Where
//! no rule says it, the type is that of the value in the first row.
//!
//! A number with a point is a numeric, as in PostgreSQL, and has a *scale*: how many digits are
//! shown behind its point. SQLite computes with floating point numbers, which have none, so the
//! rules carry the scale beside the type.

use super::names::{Names, number, type_at};
use crate::dialect::tokens::{Token, TokenKind, closing, items};
use crate::wire::types;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Typed {
    pub(super) oid: u32,
    /// The digits behind the point of a numeric, if all values have the same number of them.
    pub(super) scale: Option<u16>,
}

impl Typed {
    fn new(oid: u32) -> Typed {
        let is_whole = matches!(oid, types::INT2 | types::INT4 | types::INT8);
        Typed { oid, scale: is_whole.then_some(0) }
    }

    fn numeric(scale: Option<u16>) -> Typed {
        Typed { oid: types::NUMERIC, scale }
    }

    /// Returns the type of `one sign operand`.
    fn of_operation(one: Typed, sign: &str, operand: Typed) -> Option<Typed> {
        let widest = one.widest(operand)?;
        if widest.oid == types::FLOAT4 && one.oid != operand.oid {
            return Some(Typed::new(types::FLOAT8));
        }
        if widest.oid != types::NUMERIC {
            return Some(widest);
        }
        let scales = one.scale.zip(operand.scale);
        Some(Typed::numeric(match sign {
            "*" => scales.and_then(|(one, other)| one.checked_add(other)),
            "/" => None,
            _ => scales.map(|(one, other)| one.max(other)),
        }))
    }

    /// Returns the type that arithmetic, or a choice, gives to this and another type.
    fn widest(self, other: Typed) -> Option<Typed> {
        let rank = |oid: u32| match oid {
            types::INT2 => Some(0),
            types::INT4 => Some(1),
            types::INT8 => Some(2),
            types::NUMERIC => Some(3),
            types::FLOAT4 => Some(4),
            types::FLOAT8 => Some(5),
            _ => None,
        };
        Some(if rank(other.oid)? > rank(self.oid)? { other } else { self })
    }
}

/// The digits behind the point that PostgreSQL shows of an average.
const AVERAGE: u16 = 16;

/// The statement in which an expression is.
#[derive(Clone, Copy)]
struct Within<'w> {
    parameters: &'w [u32],
    names: &'w Names<'w>,
}

/// Returns the type of an expression if a simple rule determines it.
pub(super) fn expression(
    item: &[Token<'_>],
    parameters: &[u32],
    names: &Names<'_>,
) -> Option<Typed> {
    Within { parameters, names }.expression(item)
}

impl Within<'_> {
    fn expression(self, item: &[Token<'_>]) -> Option<Typed> {
        if item.is_empty() || item[0].is("select") {
            return None;
        }
        let mut depth = 0usize;
        let mut sum: Option<Typed> = None;
        let mut sign = None;
        let mut start = 0;
        for (index, token) in item.iter().enumerate() {
            match token.text {
                "(" => depth += 1,
                ")" => depth = depth.saturating_sub(1),
                // An operator inside CASE does not determine the type of the whole expression.
                _ if token.is("case") => depth += 1,
                _ if token.is("end") => depth = depth.saturating_sub(1),
                _ if depth > 0 => (),
                "=" | "<" | ">" | "<=" | ">=" | "<>" | "!=" | "==" => {
                    return Some(Typed::new(types::BOOL));
                }
                "||" => return Some(Typed::new(types::TEXT)),
                "+" | "-" | "*" | "/" | "%" | "<<" | ">>" | "&" | "|" => {
                    if index > start {
                        sum = Some(self.join(sum, sign, &item[start..index])?);
                        sign = Some(token.text);
                    }
                    start = index + 1;
                }
                _ if [
                    "and", "or", "not", "is", "in", "like", "between", "match", "exists", "regexp",
                ]
                .iter()
                .any(|word| token.is(word)) =>
                {
                    return Some(Typed::new(types::BOOL));
                }
                _ => (),
            }
        }
        self.join(sum, sign, &item[start..])
    }

    /// Returns the type of an operation on what is before the sign and this operand.
    fn join(self, sum: Option<Typed>, sign: Option<&str>, tokens: &[Token<'_>]) -> Option<Typed> {
        let operand = self.operand(tokens)?;
        let (Some(sum), Some(sign)) = (sum, sign) else { return Some(operand) };
        Typed::of_operation(sum, sign, operand)
    }

    /// Returns the type of one operand: a literal, a column, a parameter, a cast, or a call.
    fn operand(self, tokens: &[Token<'_>]) -> Option<Typed> {
        let known = match tokens {
            [one] if one.kind == TokenKind::Param => {
                *self.parameters.get(number(one)?.checked_sub(1)?)?
            }
            [one] if one.is("true") || one.is("false") => types::BOOL,
            [one] if one.is("current_timestamp") => types::TIMESTAMPTZ,
            [one] if one.is("current_date") => types::DATE,
            [one] if one.is("null") => types::TEXT,
            [one] if one.kind == TokenKind::Number => return literal(one.text),
            [one] if one.kind == TokenKind::Text => types::TEXT,
            [one] if one.is_name() => return self.column(&one.name()),
            [.., dot, last] if dot.sign(".") => return self.column(&last.name()),
            [inner @ .., collate, _] if collate.is("collate") => return self.expression(inner),
            [cast, open, inner @ .., close]
                if cast.is("cast") && open.sign("(") && close.sign(")") =>
            {
                let r#as = inner.iter().rposition(|token| token.is("as"))?;
                type_at(&inner[r#as + 1..])?
            }
            [open, inner @ .., close] if open.sign("(") && close.sign(")") => {
                return self.expression(inner);
            }
            [case, inner @ .., end] if case.is("case") && end.is("end") => {
                return self.choice(branches(inner));
            }
            [function, open, rest @ ..] if open.sign("(") => {
                let close = closing(&tokens[1..])?;
                let after = &rest[close..];
                if !after.first().is_none_or(|word| word.is("over") || word.is("filter")) {
                    return None;
                }
                let name = function.text.to_ascii_lowercase();
                let inner = &rest[..close - 1];
                return call(&name).map(Typed::new).or_else(|| self.call(&name, inner));
            }
            _ => return None,
        };
        Some(Typed::new(known))
    }

    fn column(self, name: &str) -> Option<Typed> {
        let oid = self.names.column(name)?;
        let scale = types::scale(self.names.modifier(name));
        Some(if oid == types::NUMERIC { Typed::numeric(scale) } else { Typed::new(oid) })
    }

    /// Returns the type of a call that depends on its arguments.
    fn call(self, function: &str, inner: &[Token<'_>]) -> Option<Typed> {
        let arguments = items(inner);
        let first = || self.expression(arguments.first()?);
        let second = || arguments.get(1)?.first()?.text.parse().ok();
        Some(match function {
            "greatest" | "least" => self.choice(arguments)?,
            "gcd" | "lcm" => first()?.widest(self.expression(arguments.get(1)?)?)?,
            "div" => match first()?.oid {
                types::FLOAT4 | types::FLOAT8 => return None,
                _ => Typed::numeric(Some(0)),
            },
            // Of a whole number, PostgreSQL computes the function of doubles.
            "sqrt" | "ln" | "exp" | "power" | "pow" | "log" | "log10" => Typed::new(types::FLOAT8),
            "max" | "min" | "abs" | "nullif" | "lag" | "lead" | "first_value" | "last_value"
            | "nth_value" => first()?,
            "coalesce" | "ifnull" => self.choice(arguments)?,
            "sum" => match first()? {
                Typed { oid: types::INT2 | types::INT4, .. } => Typed::new(types::INT8),
                Typed { oid: types::INT8, .. } => Typed::numeric(Some(0)),
                other => other,
            },
            "avg" => match first()?.oid {
                types::FLOAT4 | types::FLOAT8 => Typed::new(types::FLOAT8),
                _ => Typed::numeric(Some(AVERAGE)),
            },
            "round" | "trunc" if arguments.len() == 2 => Typed::numeric(second()),
            "round" | "trunc" | "ceil" | "ceiling" | "floor" | "sign" => match first()?.oid {
                types::NUMERIC => Typed::numeric(Some(0)),
                _ => Typed::new(types::FLOAT8),
            },
            "pg_div" | "pg_mod" => {
                let sign = if function == "pg_div" { "/" } else { "%" };
                Typed::of_operation(first()?, sign, self.expression(arguments.get(1)?)?)?
            }
            "pg_numeric" => first()?,
            "extract" | "extract_interval" => {
                let field = arguments.first()?.first()?.value();
                extracted(&field, self.expression(arguments.get(1)?).map(|typed| typed.oid))?
            }
            "date_part" => Typed::new(types::FLOAT8),
            "date_trunc" => Typed::new(match self.expression(arguments.get(1)?)?.oid {
                types::DATE => types::TIMESTAMPTZ,
                other => other,
            }),
            "numeric" => match arguments.len() {
                1 => match arguments[0] {
                    // The digits of a literal in quotes.
                    [text] if text.kind == TokenKind::Text => literal(text.value().trim())
                        .map_or(Typed::numeric(None), |typed| Typed::numeric(typed.scale)),
                    _ => Typed::numeric(None),
                },
                2 => Typed::numeric(Some(0)),
                _ => Typed::numeric(arguments.get(2)?.first()?.text.parse().ok()),
            },
            _ => return None,
        })
    }

    /// Returns the type of one of these expressions. A literal in quotes has that of the others.
    fn choice(self, items: Vec<&[Token<'_>]>) -> Option<Typed> {
        let is_open = |item: &[Token<'_>]| {
            let [one] = item else { return false };
            one.is("null") || one.kind == TokenKind::Text
        };
        let mut types =
            items.into_iter().filter(|item| !is_open(item)).map(|item| self.expression(item));
        let Some(first) = types.next() else { return Some(Typed::new(types::TEXT)) };
        types.try_fold(first?, |all, one| {
            let one = one?;
            let widest = if all.oid == one.oid { all } else { all.widest(one)? };
            let scale = all.scale.filter(|scale| Some(*scale) == one.scale);
            Some(Typed { scale, ..widest })
        })
    }
}

/// Returns the type of a field of a time of this type.
fn extracted(field: &str, of: Option<u32>) -> Option<Typed> {
    Some(Typed::numeric(match field {
        "second" => Some(6),
        "millisecond" | "milliseconds" => Some(3),
        "epoch" if of? == types::DATE => Some(0),
        "epoch" => Some(6),
        _ => Some(0),
    }))
}

/// Returns the type of a number.
fn literal(text: &str) -> Option<Typed> {
    if text.contains(['e', 'E']) {
        return Some(Typed::numeric(None));
    }
    if let Some((_, fraction)) = text.split_once('.') {
        return Some(Typed::numeric(u16::try_from(fraction.len()).ok()));
    }
    Some(match text.parse::<i64>() {
        Ok(int) if i32::try_from(int).is_ok() => Typed::new(types::INT4),
        _ => Typed::new(types::INT8),
    })
}

/// Returns the expressions after THEN and ELSE.
fn branches<'t, 'a>(inner: &'t [Token<'a>]) -> Vec<&'t [Token<'a>]> {
    let (mut depth, mut start, mut found) = (0usize, None, Vec::new());
    for (index, token) in inner.iter().enumerate() {
        match token.text {
            "(" => depth += 1,
            ")" => depth = depth.saturating_sub(1),
            _ if token.is("case") => depth += 1,
            _ if token.is("end") => depth = depth.saturating_sub(1),
            _ if depth == 0 && ["when", "then", "else"].iter().any(|word| token.is(word)) => {
                found.extend(start.take().map(|start| &inner[start..index]));
                start = (!token.is("when")).then_some(index + 1);
            }
            _ => (),
        }
    }
    found.extend(start.map(|start| &inner[start..]));
    found
}

/// Returns the type of a call whose arguments do not matter.
pub(super) fn call(function: &str) -> Option<u32> {
    Some(match function {
        "count" | "row_number" | "rank" | "dense_rank" | "random" | "changes" => types::INT8,
        "length" | "ntile" | "instr" | "unicode" | "preemptive_sleep" | "ascii" | "char_length"
        | "character_length" | "bit_length" | "octet_length" | "strpos" => types::INT4,
        "total" | "julianday" | "cbrt" | "sin" | "cos" | "tan" | "asin" | "acos" | "atan"
        | "atan2" | "sinh" | "cosh" | "tanh" | "degrees" | "radians" | "pi" => types::FLOAT8,
        "left" | "right" | "lpad" | "rpad" | "repeat" | "split_part" | "translate" | "initcap"
        | "reverse" | "chr" | "to_hex" | "quote_literal" | "quote_ident" | "btrim" | "ltrim"
        | "rtrim" | "lower" | "upper" | "substr" | "pg_substr" | "pg_text" | "substring"
        | "trim" | "replace" | "hex" | "quote" | "typeof" | "group_concat" | "string_agg"
        | "printf" | "format" | "pg_format" | "version" | "current_database" | "current_user"
        | "current_schema" | "strftime" | "time" => types::TEXT,
        "date" => types::DATE,
        "datetime" => types::TIMESTAMP,
        "now" | "clock_timestamp" | "statement_timestamp" | "transaction_timestamp" => {
            types::TIMESTAMPTZ
        }
        "int2" => types::INT2,
        "int4" => types::INT4,
        "int8" => types::INT8,
        "float4" => types::FLOAT4,
        "float8" => types::FLOAT8,
        "varchar" => types::VARCHAR,
        "bpchar" => types::BPCHAR,
        "bytea" => types::BYTEA,
        "pg_date" | "make_date" | "date_pli" | "date_mii" | "integer_pl_date" => types::DATE,
        "pg_timestamp"
        | "make_timestamp"
        | "date_pl_interval"
        | "date_mi_interval"
        | "interval_pl_date"
        | "timestamp_pl_interval"
        | "timestamp_mi_interval"
        | "interval_pl_timestamp"
        | "datetime_pl"
        | "timedate_pl" => types::TIMESTAMP,
        "pg_timestamptz"
        | "to_timestamp"
        | "timestamptz_pl_interval"
        | "timestamptz_mi_interval"
        | "interval_pl_timestamptz" => types::TIMESTAMPTZ,
        "pg_time" | "make_time" | "time_pl_interval" | "time_mi_interval" | "interval_pl_time" => {
            types::TIME
        }
        "pg_interval" | "timestamp_mi" | "timestamptz_mi" | "time_mi_time" | "interval_pl"
        | "interval_mi" | "interval_um" | "interval_mul" | "mul_d_interval" | "interval_div"
        | "interval_sum" | "interval_avg" | "interval_trunc" | "justify_hours" | "justify_days"
        | "justify_interval" | "make_interval" | "age" => types::INTERVAL,
        "date_mi" => types::INT4,
        "interval_part" => types::FLOAT8,
        "starts_with" | "pg_bool" | "isfinite" | "pg_is_in_recovery" | "pg_table_is_visible" => {
            types::BOOL
        }
        "pg_sleep" | "pg_advisory_unlock_all" => types::VOID,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::tokens::tokens;

    #[test]
    fn expressions_have_the_types_and_scales_that_postgresql_gives_them() {
        let db = rusqlite::Connection::open_in_memory().unwrap();
        db.execute_batch("create table t(n int, b bigint, p numeric(8,2), f float8, s text)")
            .unwrap();
        let numeric = |scale| Some(Typed::numeric(scale));
        let plain = |oid| Some(Typed::new(oid));
        let cases = [
            ("1", plain(types::INT4)),
            ("3000000000", plain(types::INT8)),
            ("1.50", numeric(Some(2))),
            ("1e3", numeric(None)),
            ("p", numeric(Some(2))),
            ("p * 1.5", numeric(Some(3))),
            ("p + 1.555", numeric(Some(3))),
            ("p - n", numeric(Some(2))),
            ("p / 2", numeric(None)),
            ("-p", numeric(Some(2))),
            ("p + f", plain(types::FLOAT8)),
            ("n + b", plain(types::INT8)),
            ("sum(n)", plain(types::INT8)),
            ("sum(b)", numeric(Some(0))),
            ("sum(p)", numeric(Some(2))),
            ("avg(n)", numeric(Some(16))),
            ("avg(f)", plain(types::FLOAT8)),
            ("round(p, 1)", numeric(Some(1))),
            ("round(f)", plain(types::FLOAT8)),
            ("coalesce(p, 0.00)", numeric(Some(2))),
            ("coalesce(p, 0)", numeric(None)),
            ("coalesce(s, 'x')", plain(types::TEXT)),
            ("coalesce(null, 'x')", plain(types::TEXT)),
            ("case when n = 1 then 1 else b end", plain(types::INT8)),
            ("case n when 1 then (case when true then 'x' end) else 'y' end", plain(types::TEXT)),
            ("case when n = 1 then 'x' else n end", plain(types::INT4)),
            ("case when n = 1 then s else n end", None),
            ("n > 1", plain(types::BOOL)),
            ("s || 'x'", plain(types::TEXT)),
            ("unknown(n)", None),
            ("lag(p) over (order by n, b)", numeric(Some(2))),
            ("sum(n) over w", plain(types::INT8)),
            ("max(p) filter (where n > 1)", numeric(Some(2))),
            ("sum(p) over w - p", numeric(Some(2))),
            ("n << 2", plain(types::INT4)),
            ("sign(p)", numeric(Some(0))),
            ("numeric(n, 10, 2)", numeric(Some(2))),
            ("numeric(n, 10)", numeric(Some(0))),
            ("numeric(n)", numeric(None)),
        ];
        for (text, expected) in cases {
            let source = format!("select {text} from t");
            let tokens = tokens(&source).unwrap();
            let item = &tokens[1..tokens.len() - 2];
            assert_eq!(expression(item, &[], &Names::new(&db, &tokens)), expected, "{text}");
        }
    }
}
