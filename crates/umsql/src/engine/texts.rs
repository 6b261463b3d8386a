//! Functions of texts that SQLite has, too, replaced because SQLite's hold the scheduler while they
//! compute: for a tenth of a second and more with texts of 16 MiB, or for a time that no limit of a
//! value's length bounds. `length` is one of them because it can be called often without asking for
//! memory. The functions of patterns are in `patterns.rs`.
//!
//! Each lets others run, and looks for a cancellation, at least every millisecond (`steps.rs`).
//! SQLite copies a result of 16 MiB at once, in some milliseconds. They compute what SQLite's own
//! compute; the tests compare them.
//!
//! It has no functions of the server (`functions.rs`).

use std::borrow::Cow;

use rusqlite::functions::Context;
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, Error, Result, ffi};

use super::patterns;
use super::scalar::{deterministic, scalar};
use super::search::Search;
use super::steps::{Steps, failed, look, room};
use super::values::{
    Answer, Counted, PIECE, bytes, chars, each_char, first_bytes, last_bytes, whole,
};
use crate::memory::Room;

/// Registers all functions with `connection`. No result has more than `max` bytes.
pub(super) fn register(connection: &Connection, max: usize) -> Result<()> {
    deterministic(connection, "instr", 2, instr)?;
    deterministic(connection, "replace", 3, move |context| replace(context, max))?;
    deterministic(connection, "length", 1, length)?;
    for (name, ends) in [("trim", (true, true)), ("ltrim", (true, false)), ("rtrim", (false, true))]
    {
        deterministic(connection, name, 1, move |context| trim(context, ends))?;
        deterministic(connection, name, 2, move |context| trim(context, ends))?;
    }
    deterministic(connection, "upper", 1, |context| cased(context, <[u8]>::make_ascii_uppercase))?;
    deterministic(connection, "lower", 1, |context| cased(context, <[u8]>::make_ascii_lowercase))?;
    for (name, arguments) in [("substr", 2), ("substr", 3), ("substring", 2), ("substring", 3)] {
        deterministic(connection, name, arguments, |context| substr(context, Ok))?;
    }
    for arguments in [2, 3] {
        deterministic(connection, "pg_substr", arguments, pg_substr)?;
    }
    deterministic(connection, "hex", 1, move |context| hex(context, max))?;
    for arguments in [1, 2] {
        deterministic(connection, "unhex", arguments, unhex)?;
    }
    scalar(connection, "randomblob", 1, move |context| randomblob(context, max))
}

fn instr(context: &Context<'_>) -> Result<Value> {
    let (whole, part) = (context.get_raw(0), context.get_raw(1));
    let blobs = matches!((whole, part), (ValueRef::Blob(_), ValueRef::Blob(_)));
    let (Some(whole), Some(part)) = (bytes(whole)?, bytes(part)?) else { return Ok(Value::Null) };
    let found = if !blobs && part.first().is_some_and(is_inside) {
        // SQLite looks for a text only where a character begins, and at the beginning.
        whole.starts_with(&part).then_some(0)
    } else {
        Search::new(&whole, &part)?.find_next()?
    };
    let Some(at) = found else { return Ok(Value::Integer(0)) };
    let before = match at {
        0 => 0,
        at if blobs => at as i64,
        // The first byte counts as a character, whatever it is.
        at => 1 + counted(&whole[1..at])?,
    };
    Ok(Value::Integer(before + 1))
}

fn length(context: &Context<'_>) -> Result<Value> {
    let value = context.get_raw(0);
    if let ValueRef::Blob(blob) = value {
        return Ok(Value::Integer(blob.len() as i64));
    }
    let Some(bytes) = bytes(value)? else { return Ok(Value::Null) };
    Ok(Value::Integer(characters(&bytes)?))
}

/// Returns whether this byte goes on with a character.
fn is_inside(byte: &u8) -> bool {
    byte & 0xc0 == 0x80
}

/// Returns how many characters begin in a text.
fn counted(text: &[u8]) -> Result<i64> {
    text.chunks(PIECE).map(|piece| look().map(|()| chars(piece))).sum()
}

fn replace(context: &Context<'_>, max: usize) -> Result<Answer> {
    let arguments = [bytes(context.get_raw(0))?, bytes(context.get_raw(1))?];
    let [Some(whole), Some(part)] = arguments else { return Ok(Answer::Null) };
    // SQLite's patterns end at a zero byte here.
    if part.first().is_none_or(|first| *first == 0) {
        return Ok(Answer::Text(Counted::copy(&whole)?));
    }
    let Some(new) = bytes(context.get_raw(2))? else { return Ok(Answer::Null) };
    let (mut count, mut places) = (0_usize, Search::new(&whole, &part)?);
    while places.find_next()?.is_some() {
        count += 1;
    }
    let len = whole.len() - count * part.len() + count.saturating_mul(new.len());
    let mut result = Counted::new(checked(len, max)?)?;
    let mut at = 0;
    places.restart();
    while let Some(found) = places.find_next()? {
        result.append(&whole[at..found])?;
        result.append(&new)?;
        at = found + part.len();
    }
    result.append(&whole[at..])?;
    Ok(Answer::Text(result))
}

fn trim(context: &Context<'_>, ends: (bool, bool)) -> Result<Answer> {
    let Some(whole) = bytes(context.get_raw(0))? else { return Ok(Answer::Null) };
    let set = if context.len() > 1 { bytes(context.get_raw(1))? } else { Some(Cow::from(b" ")) };
    let Some(set) = set else { return Ok(Answer::Null) };
    Ok(Answer::Text(Counted::copy(trimmed(&whole, until_zero(&set)?, ends)?)?))
}

/// Returns the text without what follows a zero byte, at which SQLite's own function stops.
fn until_zero(text: &[u8]) -> Result<&[u8]> {
    let end = Search::new(text, &[0])?.find_next()?.unwrap_or(text.len());
    Ok(&text[..end])
}

/// Returns `whole` without the characters of `set` at its left end, its right end, or both.
fn trimmed<'a>(whole: &'a [u8], set: &[u8], (left, right): (bool, bool)) -> Result<&'a [u8]> {
    let set = CharSet::of(set)?;
    let mut rest = whole;
    while left && !rest.is_empty() {
        look()?;
        let piece = first_bytes(rest);
        // What is no UTF-8 stays.
        let first = piece.utf8_chunks().next().map_or("", |chunk| chunk.valid());
        let kept = first.trim_start_matches(|char| set.has(char)).len();
        rest = &rest[first.len() - kept..];
        if kept > 0 || first.len() < piece.len() {
            break;
        }
    }
    while right && !rest.is_empty() {
        look()?;
        let piece = last_bytes(rest);
        let last = piece.utf8_chunks().last().filter(|chunk| chunk.invalid().is_empty());
        let last = last.map_or("", |chunk| chunk.valid());
        let kept = last.trim_end_matches(|char| set.has(char)).len();
        rest = &rest[..rest.len() - (last.len() - kept)];
        if kept > 0 || last.len() < piece.len() {
            break;
        }
    }
    Ok(rest)
}

/// A set of characters.
struct CharSet {
    /// A bit for each ASCII character.
    ascii: u128,
    /// A bit for each character, in the statement's memory; only if one is no ASCII.
    all: Option<(Vec<u64>, Room)>,
}

impl CharSet {
    fn of(text: &[u8]) -> Result<CharSet> {
        const WORDS: usize = (char::MAX as usize + 1) / 64;
        let mut set = CharSet { ascii: 0, all: None };
        if !text.is_ascii() {
            let room = room(WORDS * size_of::<u64>())?;
            set.all = Some((vec![0; WORDS], room));
        }
        each_char(text, |char| {
            match (char.map(|char| char as usize), &mut set.all) {
                (Some(number), _) if number < 128 => set.ascii |= 1 << number,
                (Some(number), Some((all, _))) => all[number / 64] |= 1 << (number % 64),
                _ => {}
            }
            true
        })?;
        Ok(set)
    }

    fn has(&self, char: char) -> bool {
        let number = char as usize;
        match &self.all {
            _ if number < 128 => self.ascii >> number & 1 == 1,
            Some((all, _)) => all[number / 64] >> (number % 64) & 1 == 1,
            None => false,
        }
    }
}

/// `upper` and `lower`, which change ASCII letters only.
fn cased(context: &Context<'_>, change: fn(&mut [u8])) -> Result<Answer> {
    let Some(old) = bytes(context.get_raw(0))? else { return Ok(Answer::Null) };
    let mut new = Counted::new(old.len())?;
    for piece in old.chunks(PIECE) {
        look()?;
        let at = new.bytes.len();
        new.bytes.extend_from_slice(piece);
        change(&mut new.bytes[at..]);
    }
    Ok(Answer::Text(new))
}

/// `substr(text, from)` and `substr(text, from, count)`. The first character has the number 1, the
/// last one -1. A negative `count` takes characters before `from`.
fn substr(
    context: &Context<'_>,
    change: impl FnOnce((i64, i64)) -> Result<(i64, i64)>,
) -> Result<Answer> {
    let value = context.get_raw(0);
    let Some(all) = bytes(value)? else { return Ok(Answer::Null) };
    let null = |index| matches!(context.get_raw(index), ValueRef::Null);
    if null(1) || context.len() > 2 && null(2) {
        return Ok(Answer::Null);
    }
    let from = whole(context.get_raw(1))?;
    let count = if context.len() > 2 { whole(context.get_raw(2))? } else { i64::MAX };
    let (from, count) = change((from, count))?;
    if let ValueRef::Blob(blob) = value {
        if blob.is_empty() {
            return Ok(Answer::Null);
        }
        let (from, count) = part(from, count, || Ok(blob.len() as i64))?;
        let rest = &blob[blob.len().min(from as usize)..];
        let taken = &rest[..rest.len().min(count as usize)];
        return Ok(Answer::Blob(Counted::copy(taken)?));
    }
    let (from, count) = part(from, count, || characters(&all))?;
    let rest = &all[width_of(&all, from)?..];
    Ok(Answer::Text(Counted::copy(&rest[..width_of(rest, count)?])?))
}

/// `substr` as PostgreSQL has it: the characters before the first one have numbers, too, and no
/// number counts from the end. A text in place of the number is a regular expression.
fn pg_substr(context: &Context<'_>) -> Result<Answer> {
    if context.len() == 2
        && let ValueRef::Text(_) = context.get_raw(1)
    {
        return patterns::first_match(context);
    }
    for index in 1..context.len() {
        if let ValueRef::Text(text) = context.get_raw(index) {
            let text = String::from_utf8_lossy(&text[..text.len().min(40)]);
            if text.trim().parse::<i64>().is_err() {
                let wrong = format!("invalid input syntax for type integer: \"{text}\"");
                return Err(failed(&wrong));
            }
        }
    }
    substr(context, |(from, count)| {
        if count < 0 {
            return Err(failed("negative substring length not allowed"));
        }
        let end = from.saturating_add(count);
        Ok((from.max(1), end.saturating_sub(from.max(1)).max(0)))
    })
}

/// Returns how many characters, of as many as `all` returns, come before the part, and how many it
/// has at most.
fn part(from: i64, count: i64, all: impl FnOnce() -> Result<i64>) -> Result<(i64, i64)> {
    let (mut from, mut count) = (from, count);
    if from < 0 {
        from = from.saturating_add(all()?);
        if from < 0 {
            count = if count < 0 { 0 } else { count.saturating_add(from).max(0) };
            from = 0;
        }
    } else if from > 0 {
        from -= 1;
    } else if count > 0 {
        count -= 1;
    }
    if count < 0 {
        count = count.saturating_neg().min(from);
        from -= count;
    }
    Ok((from, count))
}

/// Returns how many characters `substr` counts for a negative number. As for SQLite, a byte that is
/// out of place is one, and a zero byte ends the text.
fn characters(text: &[u8]) -> Result<i64> {
    let (mut at, mut count, mut steps) = (0, 0, Steps::default());
    while let Some(first) = text.get(at)
        && *first != 0
    {
        steps.step()?;
        at += if *first >= 0xc0 { width(&text[at..], &mut steps)? } else { 1 };
        count += 1;
    }
    Ok(count)
}

/// Returns how many bytes the first `count` characters have, or all of them if there are fewer. As
/// for SQLite, the first of bytes that are out of place takes those after it, and a zero byte ends
/// the text.
fn width_of(text: &[u8], count: i64) -> Result<usize> {
    let (mut at, mut steps) = (0, Steps::default());
    for _ in 0..count {
        steps.step()?;
        match text.get(at) {
            None | Some(0) => break,
            Some(first) if first.is_ascii() => at += 1,
            Some(_) => at += width(&text[at..], &mut steps)?,
        }
    }
    Ok(at)
}

/// Returns how many bytes belong to the first one.
fn width(text: &[u8], steps: &mut Steps) -> Result<usize> {
    let mut width = 1;
    while text.get(width).is_some_and(|byte| byte & 0xc0 == 0x80) {
        steps.step()?;
        width += 1;
    }
    Ok(width)
}

fn hex(context: &Context<'_>, max: usize) -> Result<Answer> {
    let digit = |half: u8| half + if half < 10 { b'0' } else { b'A' - 10 };
    let bytes = bytes(context.get_raw(0))?.unwrap_or_default();
    let mut digits = Counted::new(checked(2 * bytes.len(), max)?)?;
    for piece in bytes.chunks(PIECE) {
        look()?;
        let at = digits.bytes.len();
        digits.bytes.resize(at + 2 * piece.len(), 0);
        for (pair, byte) in digits.bytes[at..].as_chunks_mut().0.iter_mut().zip(piece) {
            *pair = [digit(byte >> 4), digit(byte & 15)];
        }
    }
    Ok(Answer::Text(digits))
}

fn unhex(context: &Context<'_>) -> Result<Answer> {
    let Some(digits) = bytes(context.get_raw(0))? else { return Ok(Answer::Null) };
    let ignored = if context.len() > 1 { bytes(context.get_raw(1))? } else { Some(Cow::from(b"")) };
    let Some(ignored) = ignored else { return Ok(Answer::Null) };
    let set = CharSet::of(&ignored)?;
    let digits = until_zero(&digits)?;
    let (mut blob, mut high) = (Counted::new(digits.len() / 2)?, None);
    let goes_on = each_char(digits, |char| {
        match (char.and_then(|char| char.to_digit(16)), high.take()) {
            (Some(digit), None) => high = Some(digit),
            (Some(digit), Some(first)) => blob.bytes.push((first << 4 | digit) as u8),
            // The two digits of a byte are not separated.
            (None, None) => return char.is_some_and(|char| set.has(char)),
            (None, Some(_)) => return false,
        }
        true
    })?;
    Ok(if goes_on && high.is_none() { Answer::Blob(blob) } else { Answer::Null })
}

/// `randomblob(count)`: at least one byte, as in SQLite.
fn randomblob(context: &Context<'_>, max: usize) -> Result<Answer> {
    let len = usize::try_from(whole(context.get_raw(0))?.max(1)).unwrap_or(usize::MAX);
    let mut blob = Counted::new(checked(len, max)?)?;
    let mut piece = [0; 4 << 10];
    while blob.bytes.len() < len {
        look()?;
        let piece = &mut piece[..(len - blob.bytes.len()).min(4 << 10)];
        getrandom::fill(piece).map_err(|_| failed("the system gave no random bytes"))?;
        blob.bytes.extend_from_slice(piece);
    }
    Ok(Answer::Blob(blob))
}

/// Returns the length of a result, or an error if it is more than `max`.
fn checked(len: usize, max: usize) -> Result<usize> {
    let too_long = || Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_TOOBIG), None);
    if len <= max { Ok(len) } else { Err(too_long()) }
}

#[cfg(test)]
mod tests {
    use super::PIECE;
    use crate::engine::sameness::{TEXTS, agree, both, code_when_cancelled, looks_in};

    #[test]
    fn texts_are_searched_and_changed_as_sqlite_does() {
        let mut calls = Vec::new();
        for a in TEXTS {
            calls.extend([format!("length({a})"), format!("trim({a})"), format!("unhex({a})")]);
            for b in TEXTS {
                for name in ["instr", "trim", "ltrim", "rtrim", "unhex"] {
                    calls.push(format!("{name}({a}, {b})"));
                }
                calls
                    .extend(["''", "'xx'", "NULL", "7"].map(|c| format!("replace({a}, {b}, {c})")));
            }
        }
        for text in TEXTS {
            calls.extend(["upper", "lower", "hex"].map(|name| format!("{name}({text})")));
        }
        calls.push("unhex('61 62-63', ' -')".into());
        calls.push("unhex('6 1', ' ')".into());
        calls.push("instr(x'c3a4', x'a4')".into());
        calls.push("trim('ääxä', 'ä')".into());
        for a in ["char(0)", "char(97, 0, 98)", "cast(x'c3a4' as text)", "x'a4'", "x'80'"] {
            for b in ["char(0)", "'a'", "char(0) || 'a'", "x'a4'", "'xä'", "char(97, 0, 98)"] {
                calls.push(format!("instr({a}, {b})"));
                // With a part of a character in the set, SQLite takes that part away.
                if b != "x'a4'" {
                    calls.push(format!("unhex('61' || {a} || '62', {b})"));
                    calls.extend(["trim", "ltrim", "rtrim"].map(|f| format!("{f}({a}, {b})")));
                }
                calls.push(format!("replace({a}, {b}, 'x') || replace({a}, {b}, NULL)"));
            }
            calls.push(format!("length({a}) || length(cast({a} as text))"));
            calls.push(format!("instr(cast({a} as text) || 'a', 'a')"));
        }
        calls.push("hex(trim(cast(x'2061ff6220' as text)))".into());
        calls.push("hex(trim(cast(x'61ff6220' as text), 'a '))".into());
        agree(&calls);
    }

    #[test]
    fn parts_are_those_of_sqlite() {
        let numbers = [
            "NULL",
            "0",
            "1",
            "2",
            "3",
            "4",
            "7",
            "-1",
            "-2",
            "-3",
            "-7",
            "2.9",
            "-2.9",
            "'2x'",
            "' -2'",
            "'+1'",
            "''",
            "x'32'",
            "9223372036854775807",
            "-9223372036854775808",
            "1e300",
            "-1e300",
            "'99999999999999999999'",
            "'0000000000000000000000002'",
            "char(10, 11, 12, 13, 32) || '2'",
        ];
        let mut calls = Vec::new();
        for text in TEXTS.iter().chain(&["'aäöb€c'", "x'0102030405'", "x''", "char(97, 0, 98)"])
        {
            for from in numbers {
                calls.push(format!("substr({text}, {from})"));
                calls.extend(numbers.map(|count| format!("substring({text}, {from}, {count})")));
            }
        }
        agree(&calls);
    }

    #[test]
    fn long_texts_are_those_of_sqlite() {
        // Characters of three bytes, so that no piece ends with one, and more than one piece.
        let text = "replace(hex(zeroblob(40000)), '0', '€')";
        let calls = [
            format!("upper({text} || 'a') = {text} || 'A'"),
            format!("lower('A' || {text}) = 'a' || {text}"),
            format!("length(substr({text}, 30001, 40000))"),
            format!("hex(substr({text}, -30000, 29999))"),
            format!("substr({text}, -80000, 1) || substr({text}, 80000, 2)"),
            format!("length(hex({text}))"),
            format!("length({text}) || length({text} || char(0) || 'a')"),
            format!("instr({text}, 'a') || instr({text} || 'a', 'a') || instr({text}, '€€')"),
            format!("instr({text}, {text}) || instr('x' || {text}, {text})"),
            format!("replace({text} || 'a', '€', 'xyz') || replace({text}, '€€€', '')"),
            format!("length(replace('x' || {text} || 'a', {text}, 'b'))"),
            format!("trim({text} || 'a', '€') || ltrim({text} || 'b€', 'x€') || trim({text}, '€')"),
            format!("rtrim('c' || {text}, 'y€') || trim('b' || {text}, {text})"),
            format!("unhex('61' || {text} || '62', '€') || unhex('61' || '€', {text})"),
            "length(randomblob(200000))".into(),
            "length(randomblob(-1)) + length(randomblob('5'))".into(),
            "hex(zeroblob(600000))".into(),
            "randomblob(2000000)".into(),
        ];
        let both = both(&calls);
        for (call, (plain, ours)) in calls.iter().zip(&both[..16]) {
            assert_eq!(plain, ours, "{call}");
        }
        // The limit of the length is the server's.
        assert!(both[16..].iter().all(|(plain, ours)| plain.is_some() && ours.is_none()));
    }

    #[test]
    fn bytes_that_are_no_text_stay_what_they_are() {
        let mut calls = Vec::new();
        for text in ["61ff", "e282", "418042", "80414243", "8080c3", "c341", "ff80ff4180", "c3a4a4"]
        {
            let text = format!("cast(x'{text}' as text)");
            calls.extend(["upper", "lower", "hex"].map(|name| format!("hex({name}({text}))")));
            calls.push(format!("hex(replace({text}, cast(x'80' as text), 'x'))"));
            for from in -4..5 {
                calls.extend((-3..4).map(|count| format!("hex(substr({text}, {from}, {count}))")));
            }
        }
        agree(&calls);
    }

    #[test]
    fn reals_are_spelled_as_sqlite_does() {
        let mut calls = Vec::new();
        let known = [
            "9.87654321098765",
            "5e-324",
            "49.47",
            "0.1+0.2",
            "1e17",
            "123456789012345678.0",
            "9.9999999999999999e22",
            "99999999999999990.0",
            "1.7976931348623157e308",
            "2.2250738585072014e-308",
        ];
        calls.extend(known.map(|real| format!("upper({real})")));
        let mut random = 0x2545_f491_4f6c_dd1d_u64;
        for digits in (1..18).cycle().take(3_000) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let mantissa = random % 10_u64.pow(digits);
            let exponent = (random >> 40) % 60;
            calls.push(format!("upper({mantissa}e{})", exponent as i64 - 40));
        }
        agree(&calls);
    }

    #[test]
    fn large_sets_and_bytes_out_of_place_are_examined_in_steps() {
        let set = "replace(quote(zeroblob(3000)), '0', 'ä')";
        let calls = [format!("trim('ääbä', {set})"), format!("hex(unhex('ä61ä', {set}))")];
        agree(&calls);
        let run = format!("cast(unhex(replace(hex(zeroblob({PIECE})), '00', '80')) as text)");
        let looks = [format!("substr({run}, 1, 1)"), format!("substr(char(192) || {run}, -1)")];
        let looks = looks.each_ref().map(|call| looks_in(call) - looks_in(&run));
        assert!(looks.iter().all(|looks| *looks >= 4), "{looks:?}");
    }

    #[test]
    fn functions_look_after_each_piece() {
        // A text of 10 pieces, made by a function that does not look.
        let long = format!("quote(zeroblob({}))", 5 * PIECE);
        let calls = [
            format!("upper({long})"),
            format!("lower({long})"),
            format!("replace({long}, '', '')"),
            format!("length({long})"),
            format!("instr({long}, 'a')"),
            format!("instr({long} || 'a', {long} || 'b')"),
            format!("replace({long}, 'a', 'b')"),
            format!("replace({long}, substr({long}, 5, 1000), '')"),
            format!("replace('0', '0', {long})"),
            format!("trim('a', {long})"),
            format!("trim({long}, 'X''0')"),
            format!("unhex('', {long})"),
            format!("unhex(hex(zeroblob({})))", 5 * PIECE),
            format!("substr({long}, {})", 10 * PIECE),
            format!("substr({long}, 1, {})", 10 * PIECE),
            format!("substr({long}, -1)"),
            format!("hex(zeroblob({}))", 5 * PIECE),
            format!("randomblob({})", 10 * PIECE),
            format!("randomblob(printf('%{}d', 1))", 10 * PIECE),
            format!("randomblob(printf('%0{}d', 1))", 10 * PIECE),
        ];
        // There are four times as many pieces of steps as of bytes; `-1` counts the characters
        // before it skips them.
        let least = [10, 10, 10, 40, 10, 40, 27, 20, 10, 40, 10, 40, 40, 40, 50, 80, 5, 10, 40, 40];
        let looks = calls.each_ref().map(|call| looks_in(call));
        assert!(looks.iter().zip(least).all(|(looks, least)| *looks >= least), "{looks:?}");
    }

    #[test]
    fn a_long_text_fails_when_its_statement_is_cancelled() {
        let calls = ["upper(quote(zeroblob(200000)))", "hex(zeroblob(9))", "randomblob(9)"];
        assert_eq!(code_when_cancelled(&calls), ["57014"; 3]);
    }
}
