//! Functions of texts that PostgreSQL has and SQLite has not: `left`, `lpad`, `split_part`,
//! `regexp_replace` and others.
//!
//! A call with long arguments is computed outside the scheduler. No result is longer than a value
//! may be, which is known before it is computed.

use rusqlite::functions::Context;
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, Result};

use super::scalar::deterministic;
use super::steps::{failed, look, outside, room};
use super::values::{Answer, Counted, bytes};
use crate::wire::types;

/// Calls whose arguments and result have at most so many bytes are computed at once.
const AT_ONCE: usize = 64 << 10;

/// Registers the functions with `connection`. No result has more than `max` bytes.
pub(super) fn register(connection: &Connection, max: usize) -> Result<()> {
    let text = |name, arguments, f: fn(&Arguments) -> Result<String>| {
        deterministic(connection, name, arguments, move |context| {
            match Arguments::read(context, max)? {
                Some(arguments) => arguments.compute(f),
                None => Ok(Answer::Null),
            }
        })
    };
    text("left", 2, left)?;
    text("right", 2, right)?;
    text("lpad", 2, |all| padded(all, " ", true))?;
    text("lpad", 3, |all| padded(all, &all.texts[2], true))?;
    text("rpad", 2, |all| padded(all, " ", false))?;
    text("rpad", 3, |all| padded(all, &all.texts[2], false))?;
    text("repeat", 2, repeat)?;
    text("split_part", 3, split_part)?;
    text("translate", 3, translate)?;
    text("initcap", 1, |all| Ok(initcap(&all.texts[0])))?;
    text("reverse", 1, |all| Ok(all.texts[0].chars().rev().collect()))?;
    text("chr", 1, chr)?;
    text("to_hex", 1, |all| Ok(format!("{:x}", all.number(0)?)))?;
    text("quote_literal", 1, |all| Ok(quoted_literal(&all.texts[0])))?;
    text("quote_ident", 1, |all| Ok(quoted_name(&all.texts[0])))?;
    let number = |name, arguments, f: fn(&Arguments) -> i64| {
        deterministic(connection, name, arguments, move |context| {
            let arguments = Arguments::read(context, max)?;
            Ok(arguments.map_or(Value::Null, |all| Value::Integer(f(&all))))
        })
    };
    number("ascii", 1, |all| {
        all.texts[0].chars().next().map_or(0, |first| u32::from(first).into())
    })?;
    for name in ["char_length", "character_length"] {
        number(name, 1, |all| all.texts[0].chars().count() as i64)?;
    }
    number("bit_length", 1, |all| 8 * all.texts[0].len() as i64)?;
    number("starts_with", 2, |all| all.texts[0].starts_with(&*all.texts[1]).into())?;
    number("strpos", 2, |all| {
        let (text, part) = (&all.texts[0], &all.texts[1]);
        text.find(&**part).map_or(0, |at| text[..at].chars().count() as i64 + 1)
    })
}

/// The arguments of a call, none of which is NULL.
struct Arguments {
    texts: Vec<String>,
    max: usize,
}

impl Arguments {
    fn read(context: &Context<'_>, max: usize) -> Result<Option<Arguments>> {
        let mut texts = Vec::with_capacity(context.len());
        for index in 0..context.len() {
            let value = context.get_raw(index);
            if value == ValueRef::Null {
                return Ok(None);
            }
            let bytes = bytes(value)?.unwrap_or_default();
            let _room = room(2 * bytes.len())?;
            texts.push(match value {
                ValueRef::Text(_) => String::from_utf8_lossy(&bytes).into_owned(),
                other => types::to_text(other),
            });
        }
        Ok(Some(Arguments { texts, max }))
    }

    fn compute(self, f: fn(&Arguments) -> Result<String>) -> Result<Answer> {
        let length: usize = self.texts.iter().map(String::len).sum();
        let text = if length <= AT_ONCE {
            f(&self)?
        } else {
            look()?;
            outside("PREEMPTIVE_TEXT", move || f(&self))?
        };
        Ok(Answer::Text(Counted::copy(text.as_bytes())?))
    }

    /// Returns an argument that is a whole number.
    fn number(&self, index: usize) -> Result<i64> {
        let text = self.texts[index].trim();
        text.parse().map_err(|_| {
            let text: String = text.chars().take(40).collect();
            failed(&format!("invalid input syntax for type integer: \"{text}\""))
        })
    }

    /// Refuses a result of so many bytes, if that is too long.
    fn check(&self, length: usize) -> Result<()> {
        if length > self.max {
            return Err(failed("requested length too large"));
        }
        Ok(())
    }
}

/// Returns how many of so many characters a count means: without the rest, if it is negative.
fn taken(count: i64, all: usize) -> usize {
    let size = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
    if count < 0 { all.saturating_sub(size) } else { size.min(all) }
}

fn left(all: &Arguments) -> Result<String> {
    let text = &all.texts[0];
    Ok(text.chars().take(taken(all.number(1)?, text.chars().count())).collect())
}

fn right(all: &Arguments) -> Result<String> {
    let text = &all.texts[0];
    let count = text.chars().count();
    Ok(text.chars().skip(count - taken(all.number(1)?, count)).collect())
}

fn padded(all: &Arguments, fill: &str, before: bool) -> Result<String> {
    let (text, width) = (&all.texts[0], usize::try_from(all.number(1)?).unwrap_or(0));
    let count = text.chars().count();
    if width <= count || fill.is_empty() {
        return Ok(text.chars().take(width).collect());
    }
    all.check(width.saturating_mul(4))?;
    let fill: String = fill.chars().cycle().take(width - count).collect();
    Ok(if before { fill + text } else { text.clone() + &fill })
}

fn repeat(all: &Arguments) -> Result<String> {
    let (text, times) = (&all.texts[0], usize::try_from(all.number(1)?).unwrap_or(0));
    all.check(text.len().saturating_mul(times))?;
    Ok(text.repeat(times))
}

fn split_part(all: &Arguments) -> Result<String> {
    let (text, sign, field) = (&all.texts[0], &all.texts[1], all.number(2)?);
    if field == 0 {
        return Err(failed("field position must not be zero"));
    }
    let at = usize::try_from(field.unsigned_abs() - 1).unwrap_or(usize::MAX);
    let part = if sign.is_empty() {
        (at == 0).then_some(&**text)
    } else if field > 0 {
        text.split(&**sign).nth(at)
    } else {
        text.rsplit(&**sign).nth(at)
    };
    Ok(part.unwrap_or_default().to_owned())
}

fn translate(all: &Arguments) -> Result<String> {
    let [text, from, to] = &all.texts[..] else { return Ok(String::new()) };
    if from.len() > AT_ONCE {
        return Err(failed("requested length too large"));
    }
    let mut map = std::collections::HashMap::new();
    let mut to = to.chars();
    for char in from.chars() {
        let new = to.next();
        map.entry(char).or_insert(new);
    }
    Ok(text.chars().filter_map(|char| map.get(&char).copied().unwrap_or(Some(char))).collect())
}

fn initcap(text: &str) -> String {
    let (mut out, mut inside) = (String::with_capacity(text.len()), false);
    for char in text.chars() {
        if inside {
            out.extend(char.to_lowercase())
        } else {
            out.extend(char.to_uppercase())
        }
        inside = char.is_alphanumeric();
    }
    out
}

fn chr(all: &Arguments) -> Result<String> {
    let code = all.number(0)?;
    if code == 0 {
        return Err(failed("null character not permitted"));
    }
    let char = u32::try_from(code).ok().and_then(char::from_u32);
    let char = char.ok_or_else(|| failed("requested character too large for encoding"))?;
    Ok(char.into())
}

/// Returns a text as a literal.
pub(super) fn quoted_literal(text: &str) -> String {
    let escape = if text.contains('\\') { "E" } else { "" };
    format!("{escape}'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

/// The keywords of PostgreSQL 15 that are no names without quotes, or not of everything.
const KEYWORDS: &str = "\
    all analyse analyze and any array as asc asymmetric authorization between bigint binary \
    bit boolean both case cast char character check coalesce collate collation column \
    concurrently constraint create cross current_catalog current_date current_role \
    current_schema current_time current_timestamp current_user dec decimal default \
    deferrable desc distinct do else end except exists extract false fetch float for \
    foreign freeze from full grant greatest group grouping having ilike in initially inner \
    inout int integer intersect interval into is isnull join lateral leading least left \
    like limit localtime localtimestamp national natural nchar none normalize not notnull \
    null nullif numeric offset on only or order out outer overlaps overlay placing position \
    precision primary real references returning right row select session_user setof similar \
    smallint some substring symmetric table tablesample then time timestamp to trailing \
    treat trim true union unique user using values varchar variadic verbose when where \
    window with xmlattributes xmlconcat xmlelement xmlexists xmlforest xmlnamespaces \
    xmlparse xmlpi xmlroot xmlserialize xmltable";

/// Returns a text as a name, in quotes if it needs them.
pub(super) fn quoted_name(text: &str) -> String {
    let is_plain = |(at, char): (usize, char)| {
        matches!(char, 'a'..='z' | '_') || (at > 0 && char.is_ascii_digit())
    };
    let is_word = || KEYWORDS.split(' ').any(|word| word == text);
    if !text.is_empty() && text.char_indices().all(is_plain) && !is_word() {
        return text.to_owned();
    }
    format!("\"{}\"", text.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    fn value(sql: &str) -> String {
        let db = Connection::open_in_memory().unwrap();
        super::register(&db, 100_000).unwrap();
        let result = db.query_row(&format!("select quote({sql})"), [], |row| row.get(0));
        result.unwrap_or_else(|error| error.to_string())
    }

    #[test]
    fn texts_are_computed_as_postgresql_does() {
        let cases = [
            ("left('äbc', 2)", "'äb'"),
            ("left('abc', -1)", "'ab'"),
            ("left('abc', -9223372036854775808)", "''"),
            ("right('abc', 2)", "'bc'"),
            ("right('abc', -1)", "'bc'"),
            ("lpad('5', 3, '0')", "'005'"),
            ("lpad('abc', 2)", "'ab'"),
            ("rpad('a', 4, 'xy')", "'axyx'"),
            ("rpad('a', -1)", "''"),
            ("lpad('a', 1000000)", "requested length too large"),
            ("repeat('ab', 2)", "'abab'"),
            ("repeat('ab', -1)", "''"),
            ("repeat('ab', 9223372036854775807)", "requested length too large"),
            ("split_part('a,b,c', ',', 2)", "'b'"),
            ("split_part('a,b,c', ',', -1)", "'c'"),
            ("split_part('a,b,c', ',', 9)", "''"),
            ("split_part('a,b', ',', 0)", "field position must not be zero"),
            ("translate('abcd', 'abc', 'xy')", "'xyd'"),
            ("initcap('hello WORLD 2x')", "'Hello World 2x'"),
            ("initcap('äpfel ÄPFEL')", "'Äpfel Äpfel'"),
            ("reverse('aä')", "'äa'"),
            ("chr(8364)", "'€'"),
            ("chr(0)", "null character not permitted"),
            ("chr(-1)", "requested character too large for encoding"),
            ("ascii('é')", "233"),
            ("to_hex(255)", "'ff'"),
            ("strpos('äbc', 'c')", "3"),
            ("starts_with('abc', 'ab')", "1"),
            ("char_length('äö')", "2"),
            ("left(null, 1)", "NULL"),
            ("left('abc', 'x')", "invalid input syntax for type integer: \"x\""),
            ("quote_ident('A b')", "'\"A b\"'"),
            ("quote_literal('it''s')", "'''it''''s'''"),
        ];
        for (sql, expected) in cases {
            assert_eq!(value(sql), expected, "{sql}");
        }
    }
}
