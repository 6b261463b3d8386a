//! The types of PostgreSQL that this server supports: their numbers (oids) and names, and how a
//! value of one of SQLite's five storage classes is encoded as each type, in text or in binary
//! form.
//!
//! In SQLite values have types, and columns do not. So a column is *described* with a type, which
//! comes from its declaration or from its first value. A later value that does not fit this type
//! causes an error, and is never converted to a wrong value.

use rusqlite::types::{Value, ValueRef};

use super::canonical::{self, canonical, is_temporal};
use super::hex::{bytea, hex, uuid, uuid_text};
use super::{arrays, datetime, floats, message::utf8, numeric, scales};
use crate::error::{MORE_DIGITS, Result, SqlError};

pub(crate) use super::canonical::{DATE, INTERVAL, TIME, TIMESTAMP, TIMESTAMPTZ};
pub(crate) use super::hex::uuid_of;
pub(crate) const BOOL: u32 = 16;
pub(crate) const BYTEA: u32 = 17;
pub(crate) const CHAR: u32 = 18;
pub(crate) const NAME: u32 = 19;
pub(crate) const INT8: u32 = 20;
/// The numbers of columns in the catalogue.
pub(crate) const INT2VECTOR: u32 = 22;
pub(crate) const INT2: u32 = 21;
pub(crate) const INT4: u32 = 23;
pub(crate) const TEXT: u32 = 25;
pub(crate) const OID: u32 = 26;
pub(crate) const JSON: u32 = 114;
pub(crate) const FLOAT4: u32 = 700;
pub(crate) const FLOAT8: u32 = 701;
pub(crate) const UNKNOWN: u32 = 705;
pub(crate) const BPCHAR: u32 = 1042;
pub(crate) const VARCHAR: u32 = 1043;
pub(crate) const NUMERIC: u32 = 1700;
pub(crate) const VOID: u32 = 2278;
pub(crate) const UUID: u32 = 2950;
pub(crate) const JSONB: u32 = 3802;

/// A column of a result, as it is described to the client.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) oid: u32,
    /// What a declaration adds to the type, as PostgreSQL encodes it (`modifier`); -1 for nothing.
    pub(crate) modifier: i32,
    /// How many digits are shown behind the point of a numeric, if that is known.
    pub(crate) scale: Option<u16>,
    pub(crate) format: u16,
}

impl Column {
    pub(crate) fn new(name: impl Into<String>, oid: u32) -> Column {
        Column { name: name.into(), oid, modifier: -1, scale: None, format: 0 }
    }
}

/// The number that PostgreSQL adds to a length, and to the digits of a numeric.
const MODIFIER: i32 = 4;

/// Returns the length in `varchar(3)`, or the digits in `numeric(5, 2)` and `timestamp(0)`, as
/// PostgreSQL encodes them; -1 for other types.
pub(crate) fn modifier(declared: &str) -> i32 {
    let within = declared.split_once('(').and_then(|(_, rest)| Some(rest.split_once(')')?.0));
    let numbers: Option<Vec<u16>> =
        within.and_then(|text| text.split(',').map(|number| number.trim().parse().ok()).collect());
    let encoded = match (by_name(declared), numbers.as_deref()) {
        // `char` is `char(1)`, and `bpchar` has no length.
        (BPCHAR, None) if is_char(declared) => 1,
        (VARCHAR | BPCHAR, Some([length])) => i32::from(*length),
        // The digits of a second have no number added.
        (TIME | TIMESTAMP | TIMESTAMPTZ, Some([digits])) => return i32::from(*digits).min(6),
        (NUMERIC, Some([digits])) => i32::from(*digits) << 16,
        (NUMERIC, Some([digits, scale])) => i32::from(*digits) << 16 | i32::from(*scale),
        _ => return -1,
    };
    encoded.checked_add(MODIFIER).unwrap_or(-1)
}

fn is_char(declared: &str) -> bool {
    ["char", "character"].iter().any(|name| declared.trim().eq_ignore_ascii_case(name))
}

/// Returns the length in the modifier of a `varchar(n)` or `char(n)`.
pub(crate) fn length(modifier: i32) -> Option<usize> {
    usize::try_from(modifier.checked_sub(MODIFIER)?).ok()
}

/// Returns the number of all digits and of those behind the point in a numeric's modifier.
pub(crate) fn digits(modifier: i32) -> Option<(u16, u16)> {
    let encoded = modifier.checked_sub(MODIFIER).filter(|encoded| *encoded >= 0)?;
    Some(((encoded >> 16) as u16, encoded as u16))
}

/// Returns the number of digits behind the point in a numeric's modifier.
pub(crate) fn scale(modifier: i32) -> Option<u16> {
    (modifier >= MODIFIER).then_some((modifier - MODIFIER) as u16)
}

/// Returns the type that a name in a declaration or a cast stands for. For a name that only SQLite
/// uses, returns the type of its affinity; for any other name, text.
pub(crate) fn by_name(declared: &str) -> u32 {
    let lower = declared.trim().to_ascii_lowercase();
    // `float(n)` has n binary digits at least.
    let digits = lower.strip_prefix("float").and_then(|rest| rest.trim().strip_prefix('('));
    if let Some(digits) = digits.and_then(|rest| rest.strip_suffix(')')) {
        return if digits.trim().parse().unwrap_or(53) <= 24 { FLOAT4 } else { FLOAT8 };
    }
    if let Some(element) = lower.strip_suffix("[]") {
        return arrays::array_of(by_name(element)).unwrap_or(TEXT);
    }
    let name = match (lower.find('('), lower.rfind(')')) {
        (Some(open), Some(close)) if open < close => {
            format!("{}{}", lower[..open].trim_end(), &lower[close + 1..])
        }
        _ => lower,
    };
    match name.as_str() {
        "int" | "integer" | "int4" | "serial" | "mediumint" => INT4,
        "bigint" | "int8" | "bigserial" => INT8,
        "smallint" | "int2" | "tinyint" | "smallserial" => INT2,
        "oid" | "regclass" | "regtype" => OID,
        "double precision" | "float" | "float8" | "double" => FLOAT8,
        "real" | "float4" => FLOAT4,
        "numeric" | "decimal" => NUMERIC,
        "bool" | "boolean" => BOOL,
        "bytea" | "blob" => BYTEA,
        "varchar" | "character varying" => VARCHAR,
        "char" | "character" | "bpchar" => BPCHAR,
        "\"char\"" => CHAR,
        "name" => NAME,
        "json" => JSON,
        "jsonb" => JSONB,
        "uuid" => UUID,
        "date" => DATE,
        "time" | "time without time zone" => TIME,
        other if other == "interval" || other.starts_with("interval ") => INTERVAL,
        "timestamp" | "timestamp without time zone" | "datetime" => TIMESTAMP,
        "timestamptz" | "timestamp with time zone" => TIMESTAMPTZ,
        "void" => VOID,
        other if other.contains("int") => INT8,
        _ => TEXT,
    }
}

/// Returns the name PostgreSQL prints for a type.
pub(crate) fn name(oid: u32) -> &'static str {
    match oid {
        BOOL => "boolean",
        BYTEA => "bytea",
        CHAR => "\"char\"",
        NAME => "name",
        INT8 => "bigint",
        INT2 => "smallint",
        INT4 => "integer",
        OID => "oid",
        JSON => "json",
        FLOAT4 => "real",
        FLOAT8 => "double precision",
        BPCHAR => "character",
        VARCHAR => "character varying",
        DATE => "date",
        TIME => "time without time zone",
        INTERVAL => "interval",
        TIMESTAMP => "timestamp without time zone",
        TIMESTAMPTZ => "timestamp with time zone",
        NUMERIC => "numeric",
        UUID => "uuid",
        JSONB => "jsonb",
        VOID => "void",
        _ => "text",
    }
}

/// Returns the width of a type in bytes; -1 when it varies.
pub(crate) fn size(oid: u32) -> i16 {
    match oid {
        BOOL | CHAR => 1,
        INT2 => 2,
        INT4 | FLOAT4 | OID | DATE => 4,
        INT8 | FLOAT8 | TIME | TIMESTAMP | TIMESTAMPTZ => 8,
        UUID | INTERVAL => 16,
        NAME => 64,
        _ => -1,
    }
}

/// Returns the type of an undeclared expression, derived from one of its values.
pub(crate) fn of_value(value: ValueRef<'_>) -> Option<u32> {
    match value {
        ValueRef::Null => None,
        ValueRef::Integer(_) => Some(INT8),
        ValueRef::Real(_) => Some(FLOAT8),
        ValueRef::Text(_) => Some(TEXT),
        ValueRef::Blob(_) => Some(BYTEA),
    }
}

/// Writes `value`, preceded by its length, in the type and format of `column`.
pub(crate) fn encode(out: &mut Vec<u8>, value: ValueRef<'_>, column: &Column) -> Result<()> {
    if value == ValueRef::Null {
        out.extend((-1i32).to_be_bytes());
        return Ok(());
    }
    if let ValueRef::Text(text) = value
        && text.contains(&0)
    {
        // Clients end a text at its first zero byte.
        return Err(nul().hint("SQLite stores it; cast the expression to blob to read it."));
    }
    let at = out.len();
    out.extend([0; 4]);
    let scaled = column.scale.and_then(|scale| scales::with_scale(value, scale.into()));
    let value = scaled.as_ref().map_or(value, |text| ValueRef::Text(text.as_bytes()));
    if column.format == 0 {
        encode_text(out, value, column)?;
    } else {
        encode_binary(out, value, column)?;
    }
    let len = (out.len() - at - 4) as u32;
    out[at..at + 4].copy_from_slice(&len.to_be_bytes());
    Ok(())
}

fn encode_text(out: &mut Vec<u8>, value: ValueRef<'_>, column: &Column) -> Result<()> {
    let oid = column.oid;
    match oid {
        BOOL => out.push(if boolean(value)? { b't' } else { b'f' }),
        INT2 | INT4 | INT8 | OID => {
            let int = integer(value, oid)?;
            out.extend(int.to_string().bytes());
        }
        arrays::BOOLS => {
            // The elements are SQLite's numbers.
            let text = to_text(value);
            let elements = arrays::elements(&text).unwrap_or_default().into_iter();
            let shown = elements.map(|element| match element.as_deref() {
                None => "NULL".to_owned(),
                Some(text) => if truth(text) == Some(true) { "t" } else { "f" }.to_owned(),
            });
            out.extend(format!("{{{}}}", shown.collect::<Vec<_>>().join(",")).bytes());
        }
        TIMESTAMPTZ => {
            plain(out, value);
            if let ValueRef::Text(text) = value
                && !datetime::has_zone(text)
            {
                out.extend(b"+00");
            }
        }
        TIME | INTERVAL => match canonical(&to_text(value), oid, None) {
            Ok(text) => out.extend(text.bytes()),
            Err(_) => plain(out, value),
        },
        BYTEA => {
            let bytes = value.as_bytes().map_err(|_| misfit(value, oid))?;
            out.extend(b"\\x");
            bytes.iter().for_each(|byte| out.extend(hex(*byte)));
        }
        FLOAT4 | NUMERIC => match value {
            ValueRef::Real(real) if oid == FLOAT4 => {
                out.extend(floats::single(real as f32).bytes());
            }
            ValueRef::Real(real) => out.extend(floats::numeric(real).bytes()),
            other => plain(out, other),
        },
        VOID => (),
        BPCHAR => padded(out, value, column.modifier),
        _ => plain(out, value),
    }
    Ok(())
}

fn encode_binary(out: &mut Vec<u8>, value: ValueRef<'_>, column: &Column) -> Result<()> {
    let oid = column.oid;
    match oid {
        BOOL => out.push(boolean(value)?.into()),
        INT2 => out.extend((integer(value, oid)? as i16).to_be_bytes()),
        INT4 | OID => out.extend((integer(value, oid)? as i32).to_be_bytes()),
        INT8 => out.extend(integer(value, oid)?.to_be_bytes()),
        FLOAT4 => out.extend((float(value, oid)? as f32).to_be_bytes()),
        FLOAT8 => out.extend(float(value, oid)?.to_be_bytes()),
        NUMERIC => {
            let text = match value {
                ValueRef::Real(real) => floats::numeric(real),
                other => to_text(other),
            };
            numeric::encode(out, &text).ok_or_else(|| misfit(value, oid))?;
        }
        DATE | TIME | TIMESTAMP | TIMESTAMPTZ | INTERVAL => {
            canonical::encode(out, &to_text(value), oid).ok_or_else(|| misfit(value, oid))?;
        }
        UUID => out.extend(uuid(&to_text(value)).ok_or_else(|| misfit(value, oid))?),
        BYTEA => out.extend(value.as_bytes().map_err(|_| misfit(value, oid))?),
        JSONB => {
            out.push(1);
            plain(out, value);
        }
        VOID => (),
        BPCHAR => padded(out, value, column.modifier),
        INT2VECTOR => {
            let text = to_text(value);
            arrays::encode_vector(out, &text).ok_or_else(|| misfit(value, oid))?;
        }
        _ if arrays::element_of(oid).is_some() => write_array(out, value, oid)?,
        _ => plain(out, value),
    }
    Ok(())
}

/// Writes a `char(n)` with blanks up to its length. They are not stored.
fn padded(out: &mut Vec<u8>, value: ValueRef<'_>, modifier: i32) {
    let begin = out.len();
    plain(out, value);
    let chars = out[begin..].iter().filter(|byte| **byte & 0xc0 != 0x80).count();
    let length = length(modifier).unwrap_or(0);
    out.extend(std::iter::repeat_n(b' ', length.saturating_sub(chars)));
}

fn write_array(out: &mut Vec<u8>, value: ValueRef<'_>, oid: u32) -> Result<()> {
    let found = arrays::element_of(oid).zip(arrays::elements(&to_text(value)));
    let (element, elements) = found.ok_or_else(|| misfit(value, oid))?;
    out.extend(arrays::head(&elements, element));
    let column = Column { format: 1, ..Column::new("", element) };
    for text in &elements {
        let value = text.as_ref().map_or(ValueRef::Null, |text| ValueRef::Text(text.as_bytes()));
        encode(out, value, &column)?;
    }
    Ok(())
}

/// Writes the value in the text form that does not depend on a type.
fn plain(out: &mut Vec<u8>, value: ValueRef<'_>) {
    match value {
        ValueRef::Text(text) => out.extend(text),
        other => out.extend(to_text(other).bytes()),
    }
}

/// Returns the value as a cast to text would return it.
pub(crate) fn to_text(value: ValueRef<'_>) -> String {
    match value {
        ValueRef::Null => String::new(),
        ValueRef::Integer(int) => int.to_string(),
        ValueRef::Real(real) => floats::double(real),
        ValueRef::Text(text) => String::from_utf8_lossy(text).into_owned(),
        ValueRef::Blob(blob) => {
            let digits = blob.iter().flat_map(|byte| hex(*byte)).map(char::from);
            "\\x".chars().chain(digits).collect()
        }
    }
}

/// Returns the error for a text with a zero byte.
pub(crate) fn nul() -> SqlError {
    SqlError::new("22021", "invalid byte sequence for encoding \"UTF8\": 0x00")
}

fn misfit(value: ValueRef<'_>, oid: u32) -> SqlError {
    let shown: String = to_text(value).chars().take(40).collect();
    SqlError::new("22P02", format!("value \"{shown}\" does not fit type {}", name(oid))).hint(
        "SQLite columns hold values of any type; cast the expression to text to read this one.",
    )
}

fn boolean(value: ValueRef<'_>) -> Result<bool> {
    match value {
        ValueRef::Integer(int) => Ok(int != 0),
        ValueRef::Real(real) => Ok(real != 0.0),
        ValueRef::Text(text) => utf8(text).ok().and_then(truth).ok_or_else(|| misfit(value, BOOL)),
        _ => Err(misfit(value, BOOL)),
    }
}

/// Returns the truth value that a text means, in any of PostgreSQL's spellings.
pub(crate) fn truth(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "t" | "true" | "y" | "yes" | "on" | "1" => Some(true),
        "f" | "false" | "n" | "no" | "off" | "0" => Some(false),
        _ => None,
    }
}

fn integer(value: ValueRef<'_>, oid: u32) -> Result<i64> {
    let int = match value {
        ValueRef::Integer(int) => int,
        ValueRef::Real(real) if real.fract() == 0.0 && real.abs() < 9e18 => real as i64,
        ValueRef::Text(text) => {
            utf8(text).ok().and_then(|t| t.trim().parse().ok()).ok_or_else(|| misfit(value, oid))?
        }
        _ => return Err(misfit(value, oid)),
    };
    let fits = match oid {
        INT2 => i16::try_from(int).is_ok(),
        INT4 => i32::try_from(int).is_ok(),
        OID => u32::try_from(int).is_ok(),
        _ => true,
    };
    if fits { Ok(int) } else { Err(SqlError::new("22003", format!("{} out of range", name(oid)))) }
}

fn float(value: ValueRef<'_>, oid: u32) -> Result<f64> {
    match value {
        ValueRef::Integer(int) => Ok(int as f64),
        ValueRef::Real(real) => Ok(real),
        ValueRef::Text(text) => {
            utf8(text).ok().and_then(|t| t.trim().parse().ok()).ok_or_else(|| misfit(value, oid))
        }
        _ => Err(misfit(value, oid)),
    }
}

/// Decodes a parameter of type `oid` that was sent in `format`.
pub(crate) fn decode(bytes: Option<&[u8]>, oid: u32, format: u16) -> Result<Value> {
    match (bytes, format) {
        (None, _) => Ok(Value::Null),
        (Some(bytes), 0) => decode_text(utf8(bytes)?, oid),
        (Some(bytes), _) => decode_binary(bytes, oid),
    }
}

fn decode_text(text: &str, oid: u32) -> Result<Value> {
    let invalid = || {
        if text.contains('\0') {
            return nul();
        }
        let message = format!("invalid input syntax for type {}: \"{text}\"", name(oid));
        SqlError::new("22P02", message)
    };
    let trimmed = text.trim();
    match oid {
        INT2 | INT4 | INT8 | OID => {
            let int = trimmed.parse().map_err(|_| invalid())?;
            integer(ValueRef::Integer(int), oid).map(Value::Integer)
        }
        FLOAT4 | FLOAT8 => trimmed.parse().map(Value::Real).map_err(|_| invalid()),
        NUMERIC => match trimmed.parse() {
            Ok(int) => Ok(Value::Integer(int)),
            Err(_) if !floats::keeps(trimmed) => Err(SqlError::unsupported(MORE_DIGITS)),
            Err(_) => trimmed.parse().map(Value::Real).map_err(|_| invalid()),
        },
        BOOL => truth(text).map(|truth| Value::Integer(truth.into())).ok_or_else(invalid),
        _ if text.contains('\0') => Err(nul()),
        BYTEA => bytea(text).map(Value::Blob).ok_or_else(invalid),
        _ if is_temporal(oid) => canonical(text, oid, None).map(Value::Text),
        _ => Ok(Value::Text(text.into())),
    }
}

fn decode_binary(bytes: &[u8], oid: u32) -> Result<Value> {
    let wrong =
        || SqlError::new("22P03", format!("incorrect binary data format for type {}", name(oid)));
    fn array<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
        bytes.try_into().ok()
    }
    let value = match oid {
        BOOL => array(bytes).map(|[byte]| Value::Integer((byte != 0).into())),
        INT2 => array(bytes).map(|b| Value::Integer(i16::from_be_bytes(b).into())),
        INT4 => array(bytes).map(|b| Value::Integer(i32::from_be_bytes(b).into())),
        OID => array(bytes).map(|b| Value::Integer(u32::from_be_bytes(b).into())),
        INT8 => array(bytes).map(|b| Value::Integer(i64::from_be_bytes(b))),
        FLOAT4 => array(bytes).map(|b| Value::Real(f32::from_be_bytes(b).into())),
        FLOAT8 => array(bytes).map(|b| Value::Real(f64::from_be_bytes(b))),
        NUMERIC => return decode_text(&numeric::decode(bytes).ok_or_else(wrong)?, NUMERIC),
        DATE | TIME | TIMESTAMP | TIMESTAMPTZ | INTERVAL => {
            return canonical::decode(bytes, oid).ok_or_else(wrong)?.map(Value::Text);
        }
        UUID => array::<16>(bytes).map(|b| Value::Text(uuid_text(&b))),
        BYTEA => Some(Value::Blob(bytes.into())),
        JSONB => return decode_text(utf8(bytes.get(1..).ok_or_else(wrong)?)?, TEXT),
        TEXT | VARCHAR | BPCHAR | NAME | CHAR | JSON | UNKNOWN => {
            return decode_text(utf8(bytes)?, TEXT);
        }
        other => {
            let Some(element) = arrays::element_of(other) else {
                let message = format!("no binary input function available for type {other}");
                return Err(SqlError::new("42883", message));
            };
            let text =
                |value: &[u8]| Some(to_text(ValueRef::from(&decode_binary(value, element).ok()?)));
            arrays::decode(bytes, text).map(Value::Text)
        }
    };
    value.ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(value: Value, oid: u32, format: u16) -> Value {
        let column = Column { format, ..Column::new("", oid) };
        let mut out = Vec::new();
        encode(&mut out, ValueRef::from(&value), &column).unwrap();
        decode(Some(&out[4..]), oid, format).unwrap()
    }

    #[test]
    fn a_modifier_is_encoded_as_postgresql_does() {
        let cases = [
            ("numeric(8,2)", (8 << 16 | 2) + 4),
            ("decimal ( 5 )", (5 << 16) + 4),
            ("varchar(3)", 7),
            ("char(84)", 88),
            ("Character", 5),
            ("bpchar", -1),
            ("timestamp(0) with time zone", 0),
            ("time(3)", 3),
            ("date(3)", -1),
            ("numeric", -1),
            ("int", -1),
            ("varchar(x)", -1),
            ("numeric(1,2,3)", -1),
        ];
        for (declared, expected) in cases {
            assert_eq!(modifier(declared), expected, "{declared}");
        }
        assert_eq!([scale((8 << 16 | 2) + 4), scale(4), scale(-1)], [Some(2), Some(0), None]);
        assert_eq!([length(7), length(-1)], [Some(3), None]);
        assert_eq!([digits((8 << 16 | 2) + 4), digits(-1)], [Some((8, 2)), None]);
    }

    #[test]
    fn a_char_is_shown_with_blanks_and_a_real_with_its_own_digits() {
        let shown = |value, oid, modifier| {
            let mut out = Vec::new();
            encode(&mut out, value, &Column { modifier, ..Column::new("", oid) }).unwrap();
            String::from_utf8(out[4..].to_vec()).unwrap()
        };
        let text =
            |text: &'static str, modifier| shown(ValueRef::Text(text.as_bytes()), BPCHAR, modifier);
        assert_eq!([text("äb", 9), text("abc", 7), text("abc", -1)], ["äb   ", "abc", "abc"]);
        let real = |real| shown(ValueRef::Real(real), FLOAT4, -1);
        assert_eq!(real(f64::from(0.1_f32)), "0.1");
        assert_eq!([real(2.0), real(f64::INFINITY)], ["2", "Infinity"]);
        assert_eq!([real(1e6), real(-1e-5), real(123456.0)], ["1e+06", "-1e-05", "123456"]);
    }

    #[test]
    fn values_survive_the_way_out_and_back_in_both_formats() {
        let text = |text: &str| Value::Text(text.into());
        let values = [
            (Value::Integer(-7), INT2),
            (Value::Integer(-70_000), INT4),
            (Value::Integer(i64::MIN), INT8),
            (Value::Real(1.5), FLOAT4),
            (Value::Real(-1e300), FLOAT8),
            (Value::Integer(1), BOOL),
            (text("öäü"), TEXT),
            (text("x"), VARCHAR),
            (Value::Blob(vec![0, 255, 7]), BYTEA),
            (text("2024-02-29 23:59:59.000001"), TIMESTAMP),
            (text("1969-12-31"), DATE),
            (text("infinity"), DATE),
            (text("2024-02-29 23:59:59+00"), TIMESTAMPTZ),
            (text("24:00:00"), TIME),
            (text("10:30:15.5"), TIME),
            (text("1 year 2 mons -3 days +04:05:06.7"), INTERVAL),
            (Value::Real(12_345.678), NUMERIC),
            (Value::Integer(-100_000), NUMERIC),
            (text("00112233-4455-6677-8899-aabbccddeeff"), UUID),
            (text("{\"a\":1}"), JSONB),
        ];
        for (value, oid) in values {
            for format in [0, 1] {
                assert_eq!(round_trip(value.clone(), oid, format), value, "{oid} {format}");
            }
        }
    }

    #[test]
    fn a_value_that_does_not_fit_its_column_is_an_error() {
        let column = |oid, format| Column { format, ..Column::new("", oid) };
        let mut out = Vec::new();
        for format in [0, 1] {
            let error = encode(&mut out, ValueRef::Integer(1 << 40), &column(INT4, format));
            assert_eq!(error.unwrap_err().code, "22003");
            let error = encode(&mut out, ValueRef::Text(b"x"), &column(INT8, format));
            assert_eq!(error.unwrap_err().code, "22P02");
        }
        assert_eq!(decode(Some(b"x"), INT4, 0).unwrap_err().code, "22P02");
        assert_eq!(decode(Some(b"123"), INT4, 1).unwrap_err().code, "22P03");
        assert_eq!(decode(Some(b"\xff"), TEXT, 0).unwrap_err().code, "22021");
        for oid in [TEXT, INT4, FLOAT8, NUMERIC, BOOL, BYTEA] {
            assert_eq!(decode(Some(b"1\0"), oid, 0).unwrap_err().code, "22021", "{oid}");
        }
        assert_eq!(decode(Some(b"1\0"), TEXT, 1).unwrap_err().code, "22021");
        assert_eq!(decode(Some(b"abc"), 99_999, 1).unwrap_err().code, "42883");
    }
}
