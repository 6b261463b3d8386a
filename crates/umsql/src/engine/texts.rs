//! Functions of texts that SQLite has, too, replaced where SQLite's take time that no limit of a
//! value's length bounds: `instr`, `replace`, `like`, `glob`, `trim`, `unhex`, `regexp`; and
//! `length`, which can be called often without asking for memory.
//!
//! Each looks at the quantum and for a cancellation every millisecond, or goes outside the
//! scheduler before it examines a long text (`steps.rs`). They compute what SQLite's own compute;
//! the tests compare them. SQLite uses an index for `GLOB 'a*'`, and for LIKE on a column with
//! COLLATE NOCASE, only with its own functions, so here it reads the table.
//!
//! It has no functions of the server (`functions.rs`).

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeSet;

use memchr::memmem;
use rusqlite::functions::Context;
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, Error, Result, ffi};

use super::scalar::deterministic;
use super::steps::{STEPS, Steps, failed, look, outside_if_long, room};
use crate::host;
use crate::wire::types;

/// The longest pattern of LIKE and GLOB, in bytes.
pub(super) const PATTERN_MAX: usize = 1000;
/// A regular expression is matched at once if the product of its size and of the text's length is
/// at most this: some milliseconds.
const AT_ONCE: usize = 100_000;
/// The largest product: some seconds, outside the scheduler.
const PRODUCT_MAX: usize = 100_000_000;
/// The largest compiled regular expression, in bytes.
const REGEX_MAX: usize = 256 << 10;

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
    for arguments in [1, 2] {
        deterministic(connection, "unhex", arguments, unhex)?;
    }
    for arguments in [2, 3] {
        deterministic(connection, "like", arguments, like)?;
    }
    deterministic(connection, "glob", 2, glob)?;
    let last: RefCell<Option<(String, regex_lite::Regex)>> = RefCell::default();
    deterministic(connection, "regexp", 2, move |context| regexp(context, &last))
}

/// Returns the bytes of a value as a text; `None` for NULL. Looks at the quantum first if it is
/// long.
fn bytes<'a>(value: ValueRef<'a>) -> Result<Option<Cow<'a, [u8]>>> {
    match value {
        ValueRef::Null => Ok(None),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => {
            if bytes.len() >= STEPS as usize {
                look()?;
            }
            Ok(Some(Cow::Borrowed(bytes)))
        }
        ValueRef::Real(real) => Ok(Some(Cow::Owned(real_text(real).into_bytes()))),
        number => Ok(Some(Cow::Owned(types::to_text(number).into_bytes()))),
    }
}

/// Spells a number as SQLite does: 1.0, 1.0e+17, Inf. It has 15 digits if they say the number
/// exactly, and otherwise 17.
fn real_text(real: f64) -> String {
    if !real.is_finite() {
        return if real > 0.0 { "Inf".into() } else { "-Inf".into() };
    }
    let mut rounded = format!("{:.14e}", real.abs());
    if rounded.parse() != Ok(real.abs()) {
        rounded = format!("{:.16e}", real.abs());
    }
    let (digits, exponent) = rounded.split_once('e').expect("that format has an exponent");
    let exponent: i32 = exponent.parse().expect("its exponent is a number");
    let digits = digits.replace('.', "");
    let digits = digits.trim_end_matches('0');
    let sign = if real < 0.0 { "-" } else { "" };
    let or_zero = |digits: &str| if digits.is_empty() { "0".into() } else { digits.to_owned() };
    if !(-4..17).contains(&exponent) {
        let (first, rest) = digits.split_at(1);
        let direction = if exponent < 0 { '-' } else { '+' };
        return format!("{sign}{first}.{}e{direction}{:02}", or_zero(rest), exponent.abs());
    }
    if exponent < 0 {
        return format!("{sign}0.{}{digits}", "0".repeat((-exponent - 1) as usize));
    }
    let whole = exponent as usize + 1;
    let digits = format!("{digits:0<whole$}");
    format!("{sign}{}.{}", &digits[..whole], or_zero(&digits[whole..]))
}

/// Returns a text as a result. Bytes that are no text are refused, so that none is changed.
fn text(bytes: Vec<u8>) -> Result<Value> {
    String::from_utf8(bytes).map(Value::Text).map_err(|_| failed(NO_TEXT))
}

const NO_TEXT: &str = "the argument is no text in UTF-8: this function takes no other bytes";

/// Returns how many characters there are: bytes that do not continue one.
fn chars(bytes: &[u8]) -> i64 {
    bytes.iter().filter(|byte| **byte & 0xc0 != 0x80).count() as i64
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

fn replace(context: &Context<'_>, max: usize) -> Result<Value> {
    let arguments = [bytes(context.get_raw(0))?, bytes(context.get_raw(1))?];
    let [Some(whole), Some(part)] = arguments else { return Ok(Value::Null) };
    if part.is_empty() {
        let _room = room(whole.len())?;
        return outside_if_long(whole.len(), || text(whole.into_owned()));
    }
    let Some(new) = bytes(context.get_raw(2))? else { return Ok(Value::Null) };
    let finder = memmem::Finder::new(&part);
    let count = outside_if_long(whole.len(), || {
        let mut steps = Steps::default();
        finder.find_iter(&whole).try_fold(0_usize, |count, _| steps.step().map(|()| count + 1))
    })?;
    let len = whole.len() - count * part.len() + count.saturating_mul(new.len());
    if len > max {
        return Err(Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_TOOBIG), None));
    }
    let _room = room(len)?;
    outside_if_long(whole.len().max(len), || {
        let mut steps = Steps::default();
        let mut result = Vec::with_capacity(len);
        let mut at = 0;
        for found in finder.find_iter(&whole) {
            steps.step()?;
            result.extend_from_slice(&whole[at..found]);
            result.extend_from_slice(&new);
            at = found + part.len();
        }
        result.extend_from_slice(&whole[at..]);
        text(result)
    })
}

fn trim(context: &Context<'_>, ends: (bool, bool)) -> Result<Value> {
    let Some(whole) = bytes(context.get_raw(0))? else { return Ok(Value::Null) };
    let set = if context.len() > 1 { bytes(context.get_raw(1))? } else { Some(Cow::from(b" ")) };
    let Some(set) = set else { return Ok(Value::Null) };
    let _room = room(whole.len())?;
    outside_if_long(whole.len() + set.len(), || trimmed(&whole, &set, ends))
}

/// Returns `whole` without the characters of `set` at its left end, its right end, or both.
fn trimmed(whole: &[u8], set: &[u8], (left, right): (bool, bool)) -> Result<Value> {
    let whole = str::from_utf8(whole).map_err(|_| failed(NO_TEXT))?;
    let set = String::from_utf8_lossy(set);
    let ascii: [bool; 128] = std::array::from_fn(|code| set.as_bytes().contains(&(code as u8)));
    let others: BTreeSet<char> = set.chars().filter(|char| !char.is_ascii()).collect();
    let goes = |char: char| match ascii.get(char as usize) {
        Some(listed) => *listed,
        None => others.contains(&char),
    };
    let mut rest: &str = whole;
    if left {
        rest = rest.trim_start_matches(goes);
    }
    if right {
        rest = rest.trim_end_matches(goes);
    }
    Ok(Value::Text(rest.to_owned()))
}

fn unhex(context: &Context<'_>) -> Result<Value> {
    let Some(digits) = bytes(context.get_raw(0))? else { return Ok(Value::Null) };
    let ignored = if context.len() > 1 { bytes(context.get_raw(1))? } else { Some(Cow::from(b"")) };
    let Some(ignored) = ignored else { return Ok(Value::Null) };
    let _room = room(digits.len() / 2)?;
    outside_if_long(digits.len() + ignored.len(), || unhexed(&digits, &ignored))
}

/// Returns the bytes of which these are the digits, without what is ignored between them.
fn unhexed(digits: &[u8], ignored: &[u8]) -> Result<Value> {
    let ignored: BTreeSet<char> = String::from_utf8_lossy(ignored).chars().collect();
    let digits = String::from_utf8_lossy(digits);
    let mut blob = Vec::with_capacity(digits.len() / 2);
    let (mut high, mut steps) = (None, Steps::default());
    for char in digits.chars() {
        steps.step()?;
        match (char.to_digit(16), high) {
            (Some(digit), None) => high = Some(digit),
            (Some(digit), Some(first)) => {
                blob.push((first << 4 | digit) as u8);
                high = None;
            }
            // The two digits of a byte are not separated.
            (None, None) if ignored.contains(&char) => {}
            (None, _) => return Ok(Value::Null),
        }
    }
    Ok(if high.is_some() { Value::Null } else { Value::Blob(blob) })
}

fn checked_pattern<'a>(value: ValueRef<'a>) -> Result<Option<Cow<'a, [u8]>>> {
    let pattern = bytes(value)?;
    if pattern.as_ref().is_some_and(|pattern| pattern.len() > PATTERN_MAX) {
        return Err(failed("LIKE or GLOB pattern too complex"));
    }
    Ok(pattern)
}

/// One element of a pattern.
enum Item {
    /// Any text.
    Any,
    /// Any character.
    One,
    /// This byte; LIKE does not distinguish the cases of ASCII letters.
    Byte(u8),
    /// A character in one of these ranges, or in none of them if the first is false.
    Set(bool, Vec<(char, char)>),
}

/// `like(pattern, text)` and `like(pattern, text, escape)`.
fn like(context: &Context<'_>) -> Result<Value> {
    let Some(pattern) = checked_pattern(context.get_raw(0))? else { return Ok(Value::Null) };
    let mut escape = None;
    if context.len() > 2 {
        let Some(given) = bytes(context.get_raw(2))? else { return Ok(Value::Null) };
        if chars(&given) != 1 {
            return Err(failed("ESCAPE expression must be a single character"));
        }
        escape = Some(given);
    }
    let Some(text) = bytes(context.get_raw(1))? else { return Ok(Value::Null) };
    let mut items = Vec::with_capacity(pattern.len());
    let mut rest: &[u8] = &pattern;
    while let [first, after @ ..] = rest {
        if let Some(escaped) = escape.as_ref().and_then(|escape| rest.strip_prefix(&**escape)) {
            // An escape at the end matches nothing.
            let [byte, after @ ..] = escaped else { return Ok(Value::Integer(0)) };
            items.push(Item::Byte(byte.to_ascii_lowercase()));
            rest = after;
            continue;
        }
        items.push(match first {
            b'%' => Item::Any,
            b'_' => Item::One,
            byte => Item::Byte(byte.to_ascii_lowercase()),
        });
        rest = after;
    }
    Ok(Value::Integer(matches(&items, &text, |byte| byte.to_ascii_lowercase())?.into()))
}

/// `glob(pattern, text)`.
fn glob(context: &Context<'_>) -> Result<Value> {
    let Some(pattern) = checked_pattern(context.get_raw(0))? else { return Ok(Value::Null) };
    let Some(text) = bytes(context.get_raw(1))? else { return Ok(Value::Null) };
    let pattern = String::from_utf8_lossy(&pattern);
    let mut items = Vec::with_capacity(pattern.len());
    let mut rest = pattern.chars();
    while let Some(char) = rest.next() {
        match char {
            '*' => items.push(Item::Any),
            '?' => items.push(Item::One),
            '[' => match set(&mut rest) {
                Some(set) => items.push(set),
                // A set without an end matches nothing.
                None => return Ok(Value::Integer(0)),
            },
            char => items.extend(char.encode_utf8(&mut [0; 4]).bytes().map(Item::Byte)),
        }
    }
    Ok(Value::Integer(matches(&items, &text, |byte| byte)?.into()))
}

/// Reads a set of characters after its opening bracket.
fn set(rest: &mut std::str::Chars<'_>) -> Option<Item> {
    let mut ranges = Vec::new();
    let mut char = rest.next()?;
    let inside = char != '^';
    if !inside {
        char = rest.next()?;
    }
    if char == ']' {
        ranges.push((']', ']'));
        char = rest.next()?;
    }
    // The character before, from which a range may go on.
    let mut from = None;
    while char != ']' {
        let next = rest.clone().next();
        if char == '-' && next.is_some_and(|next| next != ']') && from.is_some() {
            let to = rest.next()?;
            ranges.extend(from.take().map(|from| (from, to)));
        } else {
            ranges.push((char, char));
            from = Some(char);
        }
        char = rest.next()?;
    }
    Some(Item::Set(inside, ranges))
}

/// Returns whether the whole text matches. If an item does not match, only the last `Any` before it
/// takes one more character: an earlier one could not help.
fn matches(items: &[Item], text: &[u8], fold: impl Fn(u8) -> u8) -> Result<bool> {
    let mut steps = Steps::default();
    let (mut item, mut at) = (0, 0);
    // The item after the last `Any`, and where the text that it takes ends.
    let mut last = None;
    loop {
        steps.step()?;
        let found = match items.get(item) {
            Some(Item::Any) => {
                item += 1;
                if item == items.len() {
                    return Ok(true);
                }
                last = Some((item, at));
                continue;
            }
            None if at == text.len() => return Ok(true),
            Some(Item::Byte(byte)) => {
                text.get(at).filter(|found| fold(**found) == *byte).map(|_| 1)
            }
            Some(Item::One) => (at < text.len()).then(|| width(&text[at..])),
            Some(Item::Set(inside, ranges)) => char_at(&text[at..]).and_then(|(char, width)| {
                let listed = ranges.iter().any(|(from, to)| (*from..=*to).contains(&char));
                (listed == *inside).then_some(width)
            }),
            None => None,
        };
        match (found, &mut last) {
            (Some(width), _) => {
                item += 1;
                at += width;
            }
            (None, Some((after, end))) if *end < text.len() => {
                *end += width(&text[*end..]);
                (item, at) = (*after, *end);
            }
            (None, _) => return Ok(false),
        }
    }
}

/// Returns how many bytes the first character has.
fn width(text: &[u8]) -> usize {
    1 + text[1..].iter().take(3).take_while(|byte| **byte & 0xc0 == 0x80).count()
}

fn char_at(text: &[u8]) -> Option<(char, usize)> {
    let width = width(text.get(..1).map(|_| text)?);
    let char = std::str::from_utf8(&text[..width]).ok().and_then(|text| text.chars().next());
    Some((char.unwrap_or(char::REPLACEMENT_CHARACTER), width))
}

/// `regexp(pattern, text)`, which SQLite calls for `text REGEXP pattern`. Its time is proportional
/// to the product of the compiled pattern's size and of the text's length, and nothing interrupts
/// it. So a large product is computed outside the scheduler, and a very large one is refused.
fn regexp(
    context: &Context<'_>,
    last: &RefCell<Option<(String, regex_lite::Regex)>>,
) -> Result<Value> {
    let (Some(pattern), Some(text)) = (bytes(context.get_raw(0))?, bytes(context.get_raw(1))?)
    else {
        return Ok(Value::Null);
    };
    let (pattern, text) = (String::from_utf8_lossy(&pattern), String::from_utf8_lossy(&text));
    let known = last.borrow().as_ref().filter(|(known, _)| *known == pattern).map(|l| l.1.clone());
    let regex = match known {
        Some(regex) => regex,
        None => {
            let mut builder = regex_lite::RegexBuilder::new(&pattern);
            let regex = builder.size_limit(REGEX_MAX).build();
            let regex = regex.map_err(|_| failed("invalid regular expression"))?;
            *last.borrow_mut() = Some((pattern.clone().into_owned(), regex.clone()));
            regex
        }
    };
    let product = states(&pattern).saturating_mul(text.len());
    if product > PRODUCT_MAX {
        return Err(failed("the regular expression is too complex for a text of this length"));
    }
    let found = if product <= AT_ONCE {
        regex.is_match(&text)
    } else {
        host::go_preemptive("PREEMPTIVE_REGEXP", || regex.is_match(&text))
    };
    look()?;
    Ok(Value::Integer(found.into()))
}

/// Returns an upper estimate of how many states a pattern has: its length, times each number of a
/// repetition in it.
fn states(pattern: &str) -> usize {
    let repetitions = pattern.split('{').skip(1).filter_map(|after| {
        let inside = after.split('}').next()?;
        inside.split(',').filter_map(|number| number.trim().parse::<usize>().ok()).max()
    });
    repetitions.fold(pattern.len().max(1), |states, times| states.saturating_mul(times.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what SQLite's own functions compute, and what these compute.
    fn both(calls: &[String]) -> Vec<(Option<Value>, Option<Value>)> {
        let plain = Connection::open_in_memory().unwrap();
        let ours = Connection::open_in_memory().unwrap();
        register(&ours, 1 << 20).unwrap();
        let value = |connection: &Connection, call: &String| {
            connection.query_row(&format!("SELECT {call}"), [], |row| row.get::<_, Value>(0)).ok()
        };
        calls.iter().map(|call| (value(&plain, call), value(&ours, call))).collect()
    }

    fn agree(calls: &[String]) {
        for (call, (plain, ours)) in calls.iter().zip(both(calls)) {
            assert_eq!(plain, ours, "{call}");
        }
    }

    const TEXTS: [&str; 31] = [
        "NULL",
        "''",
        "'a'",
        "'abcabc'",
        "'äöü'",
        "'a%b_c'",
        "12",
        "1.5",
        "x'61'",
        "x'6162'",
        "1.0",
        "-0.0",
        "1e20",
        "-1e15",
        "1e14",
        "123456789012345.6",
        "0.1+0.2",
        "0.1",
        "1e16",
        "1e17",
        "12345678901234567.0",
        "1e400",
        "-1e400",
        "0.0001",
        "0.00001",
        "-2.5e-10",
        "100.0",
        "'[a-c]'",
        "' ab '",
        "'-'",
        "'a]b'",
    ];

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
        calls.push("unhex('61 62-63', ' -')".into());
        calls.push("unhex('6 1', ' ')".into());
        calls.push("instr(x'c3a4', x'a4')".into());
        calls.push("trim('ääxä', 'ä')".into());
        agree(&calls);
    }

    #[test]
    fn like_and_glob_match_as_sqlites_do() {
        let likes = [
            "%",
            "_",
            "a%",
            "%a",
            "%b%",
            "A_C%",
            "%_",
            "_%_",
            "%%c",
            "\\%",
            "a\\%b\\_c",
            "%\\",
            "ä%",
            "Ä%",
            "%ü",
            "__ü",
            "%abcabd",
        ];
        let globs = [
            "*", "?", "a*", "*b*", "[a-c]*", "[^a]*", "[]]*", "[a", "*[ü]", "a?c*", "[a-]",
            "[^]a]*", "*]b", "[[]a-c]", "[-a]*", "[ä-ü]*", "*abd", "",
        ];
        let mut calls = Vec::new();
        for text in TEXTS {
            for pattern in likes.iter().chain(&globs) {
                calls.push(format!("{text} LIKE '{pattern}'"));
                calls.push(format!("{text} LIKE '{pattern}' ESCAPE '\\'"));
                calls.push(format!("{text} GLOB '{pattern}'"));
            }
        }
        calls.push("'a' LIKE 'a' ESCAPE 'xx'".into());
        agree(&calls);
        let long = format!("'a' LIKE '{}'", "%".repeat(PATTERN_MAX + 1));
        assert_eq!(both(&[long])[0].1, None);
    }

    #[test]
    fn a_long_match_fails_when_its_statement_is_cancelled() {
        let node = ums::Node::builder().schedulers(1).build().unwrap();
        let user = node.user();
        let id = user.id();
        let request = move || {
            let ours = Connection::open_in_memory().unwrap();
            register(&ours, 1 << 20).unwrap();
            assert!(host::cancel_request(id));
            let sql = format!("SELECT hex(zeroblob(100000)) LIKE '%{}1'", "0".repeat(900));
            let error = ours.query_row(&sql, [], |_| Ok(())).unwrap_err();
            crate::error::SqlError::from(error).code
        };
        assert_eq!(user.enqueue(request).unwrap().join().unwrap(), "57014");
    }

    #[test]
    fn repetitions_count_as_states() {
        assert_eq!(states("abc"), 3);
        assert_eq!(states("(a{10}){1,20}"), 13 * 200);
        assert_eq!(states("a{,"), 3);
        assert!(states("((a{1000}){1000}){1000}") > PRODUCT_MAX);
    }
}
