//! How a function of SQL reads its arguments as SQLite's own do, and what it returns.

use std::borrow::Cow;

use rusqlite::Result;
use rusqlite::functions::{SqlFnOutput, SubType};
use rusqlite::types::{ToSqlOutput, ValueRef};

use super::steps::{STEPS, Steps, failed, look, no_memory, room};
use crate::memory::Room;
use crate::vfs;
use crate::wire::types;

/// How many bytes a function changes or copies between two looks: in some tenths of a millisecond.
pub(super) const PIECE: usize = 64 << 10;

/// Returns the bytes of a value as a text; `None` for NULL. Looks first if it is long.
pub(super) fn bytes<'a>(value: ValueRef<'a>) -> Result<Option<Cow<'a, [u8]>>> {
    match value {
        ValueRef::Null => Ok(None),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => {
            if bytes.len() >= STEPS as usize {
                look()?;
            }
            Ok(Some(Cow::Borrowed(bytes)))
        }
        ValueRef::Real(real) => Ok(Some(Cow::Owned(vfs::spelled(real).into_bytes()))),
        number => Ok(Some(Cow::Owned(types::to_text(number).into_bytes()))),
    }
}

/// An argument that is a number.
pub(super) enum Number {
    Whole(i64),
    Real(f64),
}

impl Number {
    /// Reads an argument; `None` is NULL. A text that is no number is an error of this type.
    pub(super) fn read(value: ValueRef<'_>, oid: u32) -> Result<Option<Number>> {
        let text = match value {
            ValueRef::Null => return Ok(None),
            ValueRef::Integer(int) => return Ok(Some(Number::Whole(int))),
            ValueRef::Real(real) => return Ok(Some(Number::Real(real))),
            ValueRef::Text(_) | ValueRef::Blob(_) => types::to_text(value),
        };
        let text = text.trim();
        let whole = text.parse().map(Number::Whole);
        let number = whole.or_else(|_| text.parse().map(Number::Real)).map_err(|_| {
            let (name, text) = (types::name(oid), text.chars().take(40).collect::<String>());
            failed(&format!("invalid input syntax for type {name}: \"{text}\""))
        })?;
        Ok(Some(number))
    }

    pub(super) fn real(&self) -> f64 {
        match self {
            Number::Whole(int) => *int as f64,
            Number::Real(real) => *real,
        }
    }
}

/// Bytes as a text. If they are no UTF-8, the text is a copy, which is counted.
pub(super) struct Lossy<'a> {
    pub(super) text: Cow<'a, str>,
    _room: Option<Room>,
}

impl Lossy<'_> {
    pub(super) fn new(bytes: &[u8]) -> Result<Lossy<'_>> {
        match str::from_utf8(bytes) {
            Ok(text) => Ok(Lossy { text: text.into(), _room: None }),
            Err(_) => {
                let _room = Some(room(3 * bytes.len())?);
                Ok(Lossy { text: String::from_utf8_lossy(bytes), _room })
            }
        }
    }
}

/// Calls `f` with each character of a text, and with `None` for what is no UTF-8, until `f` returns
/// false. Returns false if `f` did.
pub(super) fn each_char(text: &[u8], mut f: impl FnMut(Option<char>) -> bool) -> Result<bool> {
    /// A character that is no ASCII takes as long as so many that are.
    const COST: u32 = 16;
    let (mut rest, mut steps) = (text, Steps::default());
    while !rest.is_empty() {
        let piece = first_bytes(rest);
        for chunk in piece.utf8_chunks() {
            let invalid = (!chunk.invalid().is_empty()).then_some(None);
            for char in chunk.valid().chars().map(Some).chain(invalid) {
                steps.steps(if char.is_some_and(|char| char.is_ascii()) { 1 } else { COST })?;
                if !f(char) {
                    return Ok(false);
                }
            }
        }
        rest = &rest[piece.len()..];
    }
    Ok(true)
}

/// Returns the first bytes of a text, at most [`PIECE`], cut where a character begins.
pub(super) fn first_bytes(text: &[u8]) -> &[u8] {
    if text.len() <= PIECE { text } else { &text[..beginning(text, PIECE)] }
}

/// Returns the last bytes of a text, [`PIECE`] or up to three more, cut where a character begins.
pub(super) fn last_bytes(text: &[u8]) -> &[u8] {
    if text.len() <= PIECE { text } else { &text[beginning(text, text.len() - PIECE)..] }
}

/// Returns where the character at this place of a text begins; the place itself if there is none.
fn beginning(text: &[u8], at: usize) -> usize {
    let begins = |at: &usize| text[*at] & 0xc0 != 0x80;
    (at.saturating_sub(3)..=at).rev().find(begins).unwrap_or(at)
}

/// What a function returns. Its bytes are counted in the statement's memory until SQLite has its
/// own copy. A text may have bytes that are no UTF-8, as SQLite's may.
#[derive(Debug)]
pub(super) enum Answer {
    Null,
    Text(Counted),
    Blob(Counted),
}

impl SqlFnOutput for Answer {
    fn to_sql(&self) -> Result<(ToSqlOutput<'_>, SubType)> {
        let value = match self {
            Answer::Null => ValueRef::Null,
            Answer::Text(text) => ValueRef::Text(&text.bytes),
            Answer::Blob(blob) => ValueRef::Blob(&blob.bytes),
        };
        Ok((ToSqlOutput::Borrowed(value), None))
    }
}

/// Bytes that are counted in the statement's memory.
#[derive(Debug)]
pub(super) struct Counted {
    pub(super) bytes: Vec<u8>,
    /// Counts the steps of [`Counted::append`].
    steps: Steps,
    _room: Room,
}

impl Counted {
    /// Takes memory for `len` bytes.
    pub(super) fn new(len: usize) -> Result<Counted> {
        let _room = room(len)?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).map_err(|_| no_memory())?;
        Ok(Counted { bytes, steps: Steps::default(), _room })
    }

    /// Returns a copy, which is made in pieces.
    pub(super) fn copy(bytes: &[u8]) -> Result<Counted> {
        let mut copy = Counted::new(bytes.len())?;
        copy.append(bytes)?;
        Ok(copy)
    }

    /// Appends bytes in pieces, for which the memory has been taken.
    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<()> {
        for piece in bytes.chunks(PIECE) {
            self.steps.bytes(piece.len())?;
            self.bytes.extend_from_slice(piece);
        }
        Ok(())
    }
}

/// Returns how many characters there are: bytes that do not continue one.
pub(super) fn chars(bytes: &[u8]) -> i64 {
    bytes.iter().filter(|byte| **byte & 0xc0 != 0x80).count() as i64
}

/// Returns the whole number that SQLite takes for a value: of a text, the digits with which it
/// begins; 0 for NULL.
pub(super) fn whole(value: ValueRef<'_>) -> Result<i64> {
    let (ValueRef::Text(bytes) | ValueRef::Blob(bytes)) = value else {
        return Ok(match value {
            ValueRef::Integer(whole) => whole,
            ValueRef::Real(real) => real as i64,
            _ => 0,
        });
    };
    let bytes = without_first(bytes, |byte| matches!(byte, b'\t'..=b'\r' | b' '))?;
    let (negative, digits) = match bytes {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] | digits => (false, digits),
    };
    // After the zeros, twenty digits are more than any number has.
    let digits = without_first(digits, |byte| byte == b'0')?.iter().take(20);
    let add = |number: i64, digit: &u8| {
        let digit = i64::from(digit - b'0');
        let digit = if negative { -digit } else { digit };
        number.saturating_mul(10).saturating_add(digit)
    };
    Ok(digits.take_while(|byte| byte.is_ascii_digit()).fold(0, add))
}

/// Returns what follows the first bytes, as many of them as `goes` returns true for.
fn without_first(bytes: &[u8], goes: impl Fn(u8) -> bool) -> Result<&[u8]> {
    let mut steps = Steps::default();
    let mut rest = bytes;
    while let [first, after @ ..] = rest
        && goes(*first)
    {
        steps.step()?;
        rest = after;
    }
    Ok(rest)
}
