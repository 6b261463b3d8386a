//! Functions of texts that SQLite has, too, replaced because SQLite's hold the scheduler while they
//! compute: for a tenth of a second and more with texts of 16 MiB, or for a time that no limit of a
//! value's length bounds. `length` is one of them because it can be called often without asking for
//! memory. The functions of patterns are in `patterns.rs`.
//!
//! Each lets others run, and looks for a cancellation, at least every millisecond, or goes outside
//! the scheduler before it searches a long text (`steps.rs`). SQLite copies a result of 16 MiB at
//! once, in some milliseconds. They compute what SQLite's own compute; the tests compare them.
//!
//! It has no functions of the server (`functions.rs`).

use std::borrow::Cow;
use std::collections::BTreeSet;

use memchr::memmem;
use rusqlite::functions::Context;
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, Error, Result, ffi};

use super::scalar::{deterministic, scalar};
use super::steps::{Steps, failed, look, outside_if_long};
use super::values::{Answer, Counted, Lossy, PIECE, bytes, chars, whole};

/// A byte of a set of characters takes as long as so many bytes of a text.
const SET_COST: usize = 64;

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
        deterministic(connection, name, arguments, substr)?;
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
    let found = outside_if_long(whole.len(), || {
        let at = memmem::find(&whole, &part)?;
        Some(if blobs { at as i64 } else { chars(&whole[..at]) })
    });
    Ok(Value::Integer(found.map_or(0, |at| at + 1)))
}

fn length(context: &Context<'_>) -> Result<Value> {
    let value = context.get_raw(0);
    if let ValueRef::Blob(blob) = value {
        return Ok(Value::Integer(blob.len() as i64));
    }
    let Some(bytes) = bytes(value)? else { return Ok(Value::Null) };
    // SQLite's texts end at a zero byte here.
    Ok(Value::Integer(outside_if_long(bytes.len(), || {
        let end = memchr::memchr(0, &bytes).unwrap_or(bytes.len());
        chars(&bytes[..end])
    })))
}

fn replace(context: &Context<'_>, max: usize) -> Result<Answer> {
    let arguments = [bytes(context.get_raw(0))?, bytes(context.get_raw(1))?];
    let [Some(whole), Some(part)] = arguments else { return Ok(Answer::Null) };
    if part.is_empty() {
        return Ok(Answer::Text(Counted::copy(&whole)?));
    }
    let Some(new) = bytes(context.get_raw(2))? else { return Ok(Answer::Null) };
    let finder = memmem::Finder::new(&part);
    let count = outside_if_long(whole.len(), || {
        let mut steps = Steps::default();
        finder.find_iter(&whole).try_fold(0_usize, |count, _| steps.step().map(|()| count + 1))
    })?;
    let len = whole.len() - count * part.len() + count.saturating_mul(new.len());
    let mut result = Counted::new(checked(len, max)?)?;
    outside_if_long(whole.len().max(len), || -> Result<()> {
        let mut steps = Steps::default();
        let mut at = 0;
        for found in finder.find_iter(&whole) {
            steps.step()?;
            result.bytes.extend_from_slice(&whole[at..found]);
            result.bytes.extend_from_slice(&new);
            at = found + part.len();
        }
        result.bytes.extend_from_slice(&whole[at..]);
        Ok(())
    })?;
    Ok(Answer::Text(result))
}

fn trim(context: &Context<'_>, ends: (bool, bool)) -> Result<Answer> {
    let Some(whole) = bytes(context.get_raw(0))? else { return Ok(Answer::Null) };
    let set = if context.len() > 1 { bytes(context.get_raw(1))? } else { Some(Cow::from(b" ")) };
    let Some(set) = set else { return Ok(Answer::Null) };
    let rest = outside_if_long(whole.len() + SET_COST * set.len(), || trimmed(&whole, &set, ends))?;
    Ok(Answer::Text(Counted::copy(rest.as_bytes())?))
}

/// Returns `whole` without the characters of `set` at its left end, its right end, or both.
fn trimmed<'a>(whole: &'a [u8], set: &[u8], (left, right): (bool, bool)) -> Result<&'a str> {
    let whole = str::from_utf8(whole).map_err(|_| failed("the text is no UTF-8"))?;
    let set = Lossy::new(set)?;
    let mut ascii = [false; 128];
    set.text.bytes().filter(u8::is_ascii).for_each(|byte| ascii[usize::from(byte)] = true);
    let others: BTreeSet<char> = set.text.chars().filter(|char| !char.is_ascii()).collect();
    let goes = |char: char| match ascii.get(char as usize) {
        Some(listed) => *listed,
        None => others.contains(&char),
    };
    let mut rest = whole;
    if left {
        rest = rest.trim_start_matches(goes);
    }
    if right {
        rest = rest.trim_end_matches(goes);
    }
    Ok(rest)
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
fn substr(context: &Context<'_>) -> Result<Answer> {
    let value = context.get_raw(0);
    let Some(all) = bytes(value)? else { return Ok(Answer::Null) };
    let null = |index| matches!(context.get_raw(index), ValueRef::Null);
    if null(1) || context.len() > 2 && null(2) {
        return Ok(Answer::Null);
    }
    let from = whole(context.get_raw(1))?;
    let count = if context.len() > 2 { whole(context.get_raw(2))? } else { i64::MAX };
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
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let bytes = bytes(context.get_raw(0))?.unwrap_or_default();
    let mut digits = Counted::new(checked(2 * bytes.len(), max)?)?;
    for piece in bytes.chunks(PIECE) {
        look()?;
        let both = piece.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        digits.bytes.extend(both.map(|digit| DIGITS[usize::from(digit)]));
    }
    Ok(Answer::Text(digits))
}

fn unhex(context: &Context<'_>) -> Result<Answer> {
    let Some(digits) = bytes(context.get_raw(0))? else { return Ok(Answer::Null) };
    let ignored = if context.len() > 1 { bytes(context.get_raw(1))? } else { Some(Cow::from(b"")) };
    let Some(ignored) = ignored else { return Ok(Answer::Null) };
    let mut blob = Counted::new(digits.len() / 2)?;
    let len = digits.len() + SET_COST * ignored.len();
    let whole = outside_if_long(len, || unhexed(&digits, &ignored, &mut blob.bytes))?;
    Ok(if whole { Answer::Blob(blob) } else { Answer::Null })
}

/// Appends the bytes of which these are the digits, without what is ignored between them. Returns
/// false if something else is between them.
fn unhexed(digits: &[u8], ignored: &[u8], blob: &mut Vec<u8>) -> Result<bool> {
    let (ignored, digits) = (Lossy::new(ignored)?, Lossy::new(digits)?);
    let ignored: BTreeSet<char> = ignored.text.chars().collect();
    let (mut high, mut steps) = (None, Steps::default());
    for char in digits.text.chars() {
        steps.step()?;
        match (char.to_digit(16), high) {
            (Some(digit), None) => high = Some(digit),
            (Some(digit), Some(first)) => {
                blob.push((first << 4 | digit) as u8);
                high = None;
            }
            // The two digits of a byte are not separated.
            (None, None) if ignored.contains(&char) => {}
            (None, _) => return Ok(false),
        }
    }
    Ok(high.is_none())
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
            "length(randomblob(200000))".into(),
            "length(randomblob(-1)) + length(randomblob('5'))".into(),
            "hex(zeroblob(600000))".into(),
            "randomblob(2000000)".into(),
        ];
        let both = both(&calls);
        for (call, (plain, ours)) in calls.iter().zip(&both[..8]) {
            assert_eq!(plain, ours, "{call}");
        }
        // The limit of the length is the server's.
        assert!(both[8..].iter().all(|(plain, ours)| plain.is_some() && ours.is_none()));
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
    fn large_sets_and_bytes_out_of_place_are_examined_outside_or_in_steps() {
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
        let least = [10, 10, 10, 40, 50, 80, 5, 10, 40, 40];
        let looks = calls.each_ref().map(|call| looks_in(call));
        assert!(looks.iter().zip(least).all(|(looks, least)| *looks >= least), "{looks:?}");
    }

    #[test]
    fn a_long_text_fails_when_its_statement_is_cancelled() {
        let calls = ["upper(quote(zeroblob(200000)))", "hex(zeroblob(9))", "randomblob(9)"];
        assert_eq!(code_when_cancelled(&calls), ["57014"; 3]);
    }
}
