//! The types of expressions, by the rules of PostgreSQL: of a number, of arithmetic, of a choice
//! between values, and of what a function returns. [`super::operand`] finds the parts of an
//! expression, and asks this file.
//!
//! A number with a point is a numeric, as in PostgreSQL, and has a *scale*: how many digits are
//! shown behind its point. SQLite computes with floating point numbers, which have none, so the
//! rules carry the scale beside the type.
//!
//! A literal in quotes, NULL, and a parameter without a type are *open* (`types::UNKNOWN`): they
//! have the type that their neighbours ask for. Where no rule says a type, there is none, and
//! nothing is checked.

use crate::dialect::tokens::Token;
use crate::wire::{arrays, types};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Typed {
    pub(super) oid: u32,
    /// The digits behind the point of a numeric, if all values have the same number of them.
    pub(super) scale: Option<u16>,
}

/// What types can be compared with each other, and what an operator takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Category {
    Number,
    Text,
    Truth,
    Time,
    /// The type is open.
    Open,
}

impl Typed {
    pub(super) const OPEN: Typed = Typed { oid: types::UNKNOWN, scale: None };

    pub(super) fn new(oid: u32) -> Typed {
        let is_whole = matches!(oid, types::INT2 | types::INT4 | types::INT8);
        Typed { oid, scale: is_whole.then_some(0) }
    }

    pub(super) fn numeric(scale: Option<u16>) -> Typed {
        Typed { oid: types::NUMERIC, scale }
    }

    /// Returns the type that a declaration says, if it is one of PostgreSQL's names.
    pub(super) fn declared(declared: &str) -> Option<Typed> {
        if declared.trim().eq_ignore_ascii_case("regclass") {
            // Of a text it is the number of a table, of a number the name.
            return None;
        }
        let scale = types::scale(types::modifier(declared));
        Some(match types::by_name(declared) {
            // A name that is not known is a text, too.
            types::TEXT if !declared.trim().eq_ignore_ascii_case("text") => return None,
            types::NUMERIC => Typed::numeric(scale),
            oid => Typed::new(oid),
        })
    }

    /// Returns the category of this type. The rules of all other types are not known here.
    pub(super) fn category(self) -> Option<Category> {
        Some(match self.oid {
            types::INT2
            | types::INT4
            | types::INT8
            | types::NUMERIC
            | types::FLOAT4
            | types::FLOAT8 => Category::Number,
            types::TEXT | types::VARCHAR | types::BPCHAR | types::NAME => Category::Text,
            types::BOOL => Category::Truth,
            types::DATE | types::TIMESTAMP | types::TIMESTAMPTZ => Category::Time,
            types::UNKNOWN => Category::Open,
            _ => return None,
        })
    }

    /// Returns the type of a value of this type that is cast to another one.
    pub(super) fn cast(self, to: Typed) -> Typed {
        // A numeric without a declared scale keeps the digits that it has.
        let keeps = to == Typed::numeric(None);
        Typed { scale: if keeps { self.scale } else { to.scale }, ..to }
    }

    /// Returns the type of an array of this type.
    pub(super) fn array(self) -> Option<Typed> {
        arrays::array_of(self.oid).map(Typed::new)
    }

    pub(super) fn is_open(self) -> bool {
        self.oid == types::UNKNOWN
    }

    /// Returns the type that arithmetic, or a choice, gives to this and another type.
    pub(super) fn widest(self, other: Typed) -> Option<Typed> {
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

    /// Returns the type of a value that is either this or the other. A name, an open type and a
    /// text of any length become what the other is.
    pub(super) fn or(self, other: Typed) -> Option<Typed> {
        if other.is_open() || self == other {
            return Some(self);
        }
        if self.is_open() {
            return Some(other);
        }
        let oid = match (self.category()?, other.category()?) {
            (Category::Number, Category::Number) => self.widest(other)?.oid,
            (Category::Text, Category::Text) if self.oid == types::NAME => other.oid,
            (Category::Text, Category::Text) => self.oid,
            // In the order of their numbers.
            (Category::Time, Category::Time) => self.oid.max(other.oid),
            (one, two) if one == two => self.oid,
            _ => return None,
        };
        let scale = self.scale.filter(|scale| Some(*scale) == other.scale);
        Some(Typed { oid, scale })
    }

    /// Returns the type of arithmetic on this and another number.
    pub(super) fn arithmetic(self, sign: &str, other: Typed) -> Option<Typed> {
        let widest = self.widest(other)?;
        if sign == "^" || (widest.oid == types::FLOAT4 && self.oid != other.oid) {
            return Some(Typed::new(types::FLOAT8));
        }
        if widest.oid != types::NUMERIC {
            return Some(widest);
        }
        let scales = self.scale.zip(other.scale);
        Some(Typed::numeric(match sign {
            "*" => scales.and_then(|(one, other)| one.checked_add(other)),
            "/" => None,
            _ => scales.map(|(one, other)| one.max(other)),
        }))
    }
}

/// The digits behind the point that PostgreSQL shows of an average.
const AVERAGE: u16 = 16;

/// An argument of a call.
pub(super) struct Argument<'t, 'a> {
    pub(super) typed: Option<Typed>,
    pub(super) tokens: &'t [Token<'a>],
}

/// Returns the type of a call. `function` is its name in lower case.
pub(super) fn call(function: &str, arguments: &[Argument<'_, '_>]) -> Option<Typed> {
    if let Some(oid) = fixed(function) {
        return Some(Typed::new(oid));
    }
    let typed = |index: usize| arguments.get(index)?.typed;
    let first = || typed(0);
    let number = |index: usize| arguments.get(index)?.tokens.first()?.text.parse().ok();
    Some(match function {
        "max" | "min" => match first()?.oid {
            types::VARCHAR => Typed::new(types::TEXT),
            _ => first()?,
        },
        "abs" | "lag" | "lead" | "first_value" | "last_value" | "nth_value" => first()?,
        "nullif" => {
            let (one, other) = (first()?, typed(1)?);
            match (one.oid, one.or(other)) {
                (types::VARCHAR, _) => Typed::new(types::TEXT),
                (oid, Some(both)) if both.oid != oid => both,
                _ => one,
            }
        }
        "coalesce" | "ifnull" => choice(arguments.iter().map(|argument| argument.typed))?,
        "array_agg" => first()?.array()?,
        "sum" => match first()? {
            Typed { oid: types::INT2 | types::INT4, .. } => Typed::new(types::INT8),
            Typed { oid: types::INT8, .. } => Typed::numeric(Some(0)),
            other => other,
        },
        "avg" => match first()?.oid {
            types::FLOAT4 | types::FLOAT8 => Typed::new(types::FLOAT8),
            types::INTERVAL => first()?,
            _ => Typed::numeric(Some(AVERAGE)),
        },
        "gcd" | "lcm" => first()?.widest(typed(1)?)?,
        "mod" => first()?.arithmetic("%", typed(1)?)?,
        "div" => match first()?.oid {
            types::FLOAT4 | types::FLOAT8 => return None,
            _ => Typed::numeric(Some(0)),
        },
        "round" | "trunc" if arguments.len() == 2 => Typed::numeric(number(1)),
        "round" | "trunc" | "ceil" | "ceiling" | "floor" | "sign" => match first()?.oid {
            types::NUMERIC => Typed::numeric(Some(0)),
            _ => Typed::new(types::FLOAT8),
        },
        "extract" => {
            let field = arguments.first()?.tokens.first()?.value().to_ascii_lowercase();
            extracted(&field, typed(1).map(|typed| typed.oid))?
        }
        "date_part" => Typed::new(types::FLOAT8),
        "date_trunc" => Typed::new(match typed(1)?.oid {
            types::DATE => types::TIMESTAMPTZ,
            types::TIME => types::INTERVAL,
            other => other,
        }),
        _ => return None,
    })
}

/// Returns the type of one of several values. Those that are open have the type of the others.
pub(super) fn choice(mut types: impl Iterator<Item = Option<Typed>>) -> Option<Typed> {
    let found = types.try_fold(Typed::OPEN, |all, one| all.or(one?))?;
    Some(if found.is_open() { Typed::new(types::TEXT) } else { found })
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
pub(super) fn number(text: &str) -> Option<Typed> {
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

/// Functions that return a text, whatever their arguments are.
const OF_TEXTS: &str = "\
    left right lpad rpad repeat split_part translate initcap reverse chr to_hex \
    quote_literal quote_ident btrim ltrim rtrim lower upper substr pg_substr pg_text \
    pg_text_real substring overlay trim replace md5 concat concat_ws hex quote typeof \
    group_concat string_agg printf format pg_format version strftime pg_get_indexdef \
    pg_get_viewdef pg_get_constraintdef pg_get_expr format_type time pg_encoding_to_char \
    obj_description shobj_description col_description array_to_string \
    pg_get_serial_sequence";

/// Returns the type of a call whose arguments do not matter.
pub(super) fn fixed(function: &str) -> Option<u32> {
    Some(match function {
        "count" | "row_number" | "rank" | "dense_rank" | "changes" | "nextval" | "setval"
        | "currval" | "lastval" => types::INT8,
        "length" | "ntile" | "instr" | "unicode" | "preemptive_sleep" | "ascii" | "char_length"
        | "character_length" | "bit_length" | "octet_length" | "position" | "strpos" => types::INT4,
        // Of a whole number, PostgreSQL computes the function of doubles.
        "sqrt" | "ln" | "exp" | "power" | "pow" | "log" | "log10" | "total" | "julianday"
        | "cbrt" | "sin" | "cos" | "tan" | "asin" | "acos" | "atan" | "atan2" | "sinh" | "cosh"
        | "tanh" | "degrees" | "radians" | "pi" | "random" | "float8pl" | "float8mi"
        | "float8mul" => types::FLOAT8,
        _ if OF_TEXTS.split_ascii_whitespace().any(|name| name == function) => types::TEXT,
        "current_database" | "current_user" | "current_schema" | "session_user" => types::NAME,
        "current_schemas" => arrays::array_of(types::NAME)?,
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
        "gen_random_uuid" => types::UUID,
        "pg_backend_pid" => types::INT4,
        "bool_and"
        | "bool_or"
        | "every"
        | "starts_with"
        | "pg_bool"
        | "isfinite"
        | "pg_is_in_recovery"
        | "pg_table_is_visible" => types::BOOL,
        "pg_sleep" | "pg_advisory_unlock_all" => types::VOID,
        _ => return of_times(function),
    })
}

/// Returns the type of a function of times. Operators of times are such functions, too.
fn of_times(function: &str) -> Option<u32> {
    Some(match function {
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
        _ => return None,
    })
}
