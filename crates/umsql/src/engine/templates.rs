//! `pg_format(template, ..)`, PostgreSQL's `format`: `%s`, `%I` and `%L`, with positions and
//! widths. SQLite's function of that name is that of C.

use rusqlite::functions::Context;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Result};

use super::scalar::deterministic;
use super::steps::failed;
use super::strings::{quoted_literal, quoted_name};
use super::values::{Answer, Counted, bytes};
use crate::wire::types;

/// The longest template, in bytes, and the largest width.
const TEMPLATE_MAX: usize = 64 << 10;
const WIDTH_MAX: usize = 10_000;

/// Registers the function with `connection`. No result has more than `max` bytes.
pub(super) fn register(connection: &Connection, max: usize) -> Result<()> {
    deterministic(connection, "pg_format", -1, move |context| format(context, max))
}

fn format(context: &Context<'_>, max: usize) -> Result<Answer> {
    if context.is_empty() {
        return Err(failed("wrong number of arguments to function format()"));
    }
    let Some(template) = bytes(context.get_raw(0))? else { return Ok(Answer::Null) };
    if template.len() > TEMPLATE_MAX {
        return Err(failed("the template of format() is too long"));
    }
    let template = String::from_utf8_lossy(&template);
    let mut out = String::new();
    let mut rest = &*template;
    let mut last = 0;
    while let Some((before, after)) = rest.split_once('%') {
        out.push_str(before);
        if let Some(after) = after.strip_prefix('%') {
            out.push('%');
            rest = after;
            continue;
        }
        let mut place = Place::read(after)?;
        last = place.position.unwrap_or(last + 1);
        if last == 0 || last >= context.len() {
            return Err(failed("too few arguments for format()"));
        }
        place.write(&mut out, context.get_raw(last))?;
        if out.len() > max {
            return Err(failed("string or blob too big"));
        }
        rest = place.rest;
    }
    out.push_str(rest);
    Ok(Answer::Text(Counted::copy(out.as_bytes())?))
}

/// What follows a percent sign.
struct Place<'a> {
    position: Option<usize>,
    is_left: bool,
    width: usize,
    kind: char,
    rest: &'a str,
}

impl Place<'_> {
    fn read(text: &str) -> Result<Place<'_>> {
        let (number, after) = digits(text);
        let position = after.strip_prefix('$').and_then(|after| Some((number?, after)));
        let (position, rest) = match position {
            Some((position, after)) => (Some(position), after),
            None => (None, text),
        };
        let is_left = rest.starts_with('-');
        let (width, rest) = digits(rest.trim_start_matches('-'));
        let mut chars = rest.chars();
        let Some(kind) = chars.next() else {
            return Err(failed("unterminated format() type specifier"));
        };
        let width = width.unwrap_or(0);
        if width > WIDTH_MAX {
            return Err(failed("the width in format() is too large"));
        }
        Ok(Place { position, is_left, width, kind, rest: chars.as_str() })
    }

    fn write(&mut self, out: &mut String, value: ValueRef<'_>) -> Result<()> {
        let is_null = value == ValueRef::Null;
        let text = types::to_text(value);
        let text = match self.kind {
            's' => text,
            'L' if is_null => "NULL".to_owned(),
            'L' => quoted_literal(&text),
            'I' if is_null => {
                return Err(failed("null values cannot be formatted as an SQL identifier"));
            }
            'I' => quoted_name(&text),
            kind => {
                return Err(failed(&format!("unrecognized format() type specifier \"{kind}\"")));
            }
        };
        let blanks = " ".repeat(self.width.saturating_sub(text.chars().count()));
        let (before, after) = if self.is_left { ("", &*blanks) } else { (&*blanks, "") };
        out.extend([before, &text, after]);
        Ok(())
    }
}

/// Reads a number. Returns it, if there is one, and what follows.
fn digits(text: &str) -> (Option<usize>, &str) {
    let end = text.find(|char: char| !char.is_ascii_digit()).unwrap_or(text.len());
    let number = (end > 0).then(|| text[..end].parse().unwrap_or(usize::MAX));
    (number, &text[end..])
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    fn value(sql: &str) -> String {
        let db = Connection::open_in_memory().unwrap();
        super::register(&db, 100_000).unwrap();
        let result = db.query_row(&format!("select pg_format({sql})"), [], |row| row.get(0));
        result.unwrap_or_else(|error| error.to_string())
    }

    #[test]
    fn arguments_replace_their_places() {
        let cases = [
            ("'a%%b'", "a%b"),
            ("'%s-%s', 1, null", "1-"),
            ("'%2$s %1$s %s', 'a', 'b'", "b a b"),
            ("'%I = %L', 'col name', 'it''s'", "\"col name\" = 'it''s'"),
            ("'%I, %L', 'a1', null", "a1, NULL"),
            ("'[%5s][%-5s]', 'ab', 'ab'", "[   ab][ab   ]"),
            ("'%L', 'a\\b'", "E'a\\\\b'"),
            ("'%s'", "too few arguments for format()"),
            ("'%x', 1", "unrecognized format() type specifier \"x\""),
            ("'%', 1", "unterminated format() type specifier"),
            ("'%0$s', 1", "too few arguments for format()"),
            ("'%99999999999999999999s', 1", "the width in format() is too large"),
            ("'%I', null", "null values cannot be formatted as an SQL identifier"),
        ];
        for (sql, expected) in cases {
            assert_eq!(value(sql), expected, "{sql}");
        }
    }
}
