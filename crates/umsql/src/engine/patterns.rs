//! The functions of patterns, `like`, `glob` and `regexp`, which SQLite has, too (the last one only
//! by name): replaced, because SQLite's take time that no limit of a value's length bounds, and
//! because PostgreSQL's LIKE distinguishes upper and lower case, and has an escape character, the
//! backslash, if none is given. ILIKE is `match`, the function of another operator of SQLite.
//!
//! Each lets others run, and looks for a cancellation, every millisecond; a regular expression that
//! may take longer is matched outside the scheduler, and a very large one is refused. GLOB matches
//! what SQLite's own matches; the tests compare them. SQLite uses an index for `GLOB 'a*'`, and for
//! LIKE on a column with COLLATE NOCASE, only with its own functions, so here it reads the table.

use std::borrow::Cow;
use std::cell::RefCell;

use rusqlite::functions::Context;
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, Error, Result};

use super::scalar::deterministic;
use super::steps::{Steps, failed, look, outside, room};
use super::values::{Answer, Counted, Lossy, bytes, chars};

/// The longest pattern of LIKE and GLOB, in bytes.
pub(super) const PATTERN_MAX: usize = 1000;
/// A regular expression is matched at once if the product of its size and of the text's length is
/// at most this: about a millisecond.
const AT_ONCE: usize = 20_000;
/// The largest product: some seconds, outside the scheduler.
const PRODUCT_MAX: usize = 100_000_000;
/// The longest text of a regular expression, in bytes.
const REGEX_TEXT_MAX: usize = 16 << 10;
/// The largest compiled regular expression, in bytes.
const REGEX_MAX: usize = 256 << 10;

/// Registers all functions with `connection`.
pub(super) fn register(connection: &Connection) -> Result<()> {
    for arguments in [2, 3] {
        deterministic(connection, "like", arguments, |context| like(context, false))?;
        deterministic(connection, "match", arguments, |context| like(context, true))?;
    }
    deterministic(connection, "glob", 2, glob)?;
    deterministic(connection, "pg_similar", 1, similar)?;
    let last: RefCell<Option<(String, regex_lite::Regex)>> = RefCell::default();
    deterministic(connection, "regexp", 2, move |context| regexp(context, &last))
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
    /// This byte.
    Byte(u8),
    /// An escape character at the pattern's end.
    Unfinished,
    /// A character in one of these ranges, or in none of them if the first is false.
    Set(bool, Vec<(char, char)>),
}

/// `like(pattern, text)` and `like(pattern, text, escape)`; `folds` if upper and lower case are the
/// same.
fn like(context: &Context<'_>, folds: bool) -> Result<Value> {
    let Some(pattern) = checked_pattern(context.get_raw(0))? else { return Ok(Value::Null) };
    let mut escape = Cow::Borrowed(&b"\\"[..]);
    if context.len() > 2 {
        let Some(given) = bytes(context.get_raw(2))? else { return Ok(Value::Null) };
        if chars(&given) > 1 {
            return Err(failed("invalid escape string"));
        }
        escape = given;
    }
    let Some(text) = bytes(context.get_raw(1))? else { return Ok(Value::Null) };
    let is_ascii = pattern.is_ascii() && text.is_ascii();
    if folds && !is_ascii {
        let lower = |bytes: &[u8]| {
            let lossy = Lossy::new(bytes)?;
            let room = room(2 * lossy.text.len())?;
            Ok::<_, Error>((lossy.text.to_lowercase(), room))
        };
        let ((pattern, _), (text, _room)) = (lower(&pattern)?, lower(&text)?);
        return matches_like(pattern.as_bytes(), text.as_bytes(), &escape, |byte| byte);
    }
    if folds {
        return matches_like(&pattern, &text, &escape, |byte| byte.to_ascii_lowercase());
    }
    matches_like(&pattern, &text, &escape, |byte| byte)
}

/// Matches a text with a pattern of LIKE. An escape character that is empty is none.
fn matches_like(
    pattern: &[u8],
    text: &[u8],
    escape: &[u8],
    fold: impl Fn(u8) -> u8,
) -> Result<Value> {
    let mut items = Vec::with_capacity(pattern.len());
    let mut rest = pattern;
    while let [first, after @ ..] = rest {
        if let Some(escaped) = rest.strip_prefix(escape).filter(|_| !escape.is_empty()) {
            let [byte, after @ ..] = escaped else {
                items.push(Item::Unfinished);
                break;
            };
            items.push(Item::Byte(fold(*byte)));
            rest = after;
            continue;
        }
        items.push(match first {
            b'%' => Item::Any,
            b'_' => Item::One,
            byte => Item::Byte(fold(*byte)),
        });
        rest = after;
    }
    Ok(Value::Integer(matches(&items, text, fold)?.into()))
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
            Some(Item::Unfinished) if at < text.len() => {
                return Err(failed("LIKE pattern must not end with escape character"));
            }
            Some(Item::One) => (at < text.len()).then(|| width(&text[at..])),
            Some(Item::Set(inside, ranges)) => {
                steps.steps(ranges.len() as u32)?;
                char_at(&text[at..]).and_then(|(char, width)| {
                    let listed = ranges.iter().any(|(from, to)| (*from..=*to).contains(&char));
                    (listed == *inside).then_some(width)
                })
            }
            Some(Item::Unfinished) | None => None,
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

/// `regexp(pattern, text)`, which SQLite calls for `text REGEXP pattern`.
fn regexp(
    context: &Context<'_>,
    last: &RefCell<Option<(String, regex_lite::Regex)>>,
) -> Result<Value> {
    let (Some(pattern), Some(text)) = (bytes(context.get_raw(0))?, bytes(context.get_raw(1))?)
    else {
        return Ok(Value::Null);
    };
    let found = with_regex(&pattern, &text, last, |regex, text| regex.is_match(text))?;
    Ok(Value::Integer(found.into()))
}

/// `substring(text from pattern)`: what the pattern's first group matches, or else all of it.
pub(super) fn first_match(context: &Context<'_>) -> Result<Answer> {
    let (Some(text), Some(pattern)) = (bytes(context.get_raw(0))?, bytes(context.get_raw(1))?)
    else {
        return Ok(Answer::Null);
    };
    let found = with_regex(&pattern, &text, &RefCell::default(), |regex, text| {
        let found = regex.captures(text)?;
        let part = if found.len() > 1 { found.get(1) } else { found.get(0) };
        part.map(|part| part.as_str().as_bytes().to_vec())
    })?;
    Ok(match found {
        Some(bytes) => Answer::Text(Counted::copy(&bytes)?),
        None => Answer::Null,
    })
}

/// Calls `f` with the compiled pattern and the text. Its time is proportional to the product of the
/// compiled pattern's size and of the text's length, and nothing interrupts it. So a large product
/// is computed outside the scheduler, and a very large one is refused.
fn with_regex<R: Send>(
    pattern: &[u8],
    text: &[u8],
    last: &RefCell<Option<(String, regex_lite::Regex)>>,
    f: impl FnOnce(&regex_lite::Regex, &str) -> R + Send,
) -> Result<R> {
    // The pattern is parsed at once, and takes many times its length in memory.
    let too_complex = || failed("the regular expression is too complex for a text of this length");
    if pattern.len() > REGEX_TEXT_MAX || pattern.len().saturating_mul(text.len()) > PRODUCT_MAX {
        return Err(too_complex());
    }
    let pattern = String::from_utf8_lossy(pattern);
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
        return Err(too_complex());
    }
    let call = || Ok::<_, Error>(f(&regex, &Lossy::new(text)?.text));
    let result = match product <= AT_ONCE {
        true => call()?,
        false => outside("PREEMPTIVE_REGEXP", call)?,
    };
    look()?;
    Ok(result)
}

/// `pg_similar(pattern)`: the regular expression for a pattern of SIMILAR TO.
fn similar(context: &Context<'_>) -> Result<Value> {
    let Some(pattern) = bytes(context.get_raw(0))? else { return Ok(Value::Null) };
    if pattern.len() > REGEX_TEXT_MAX {
        return Err(failed("the regular expression is too complex for a text of this length"));
    }
    let mut out = String::from("^(?:");
    let lossy = Lossy::new(&pattern)?;
    let (mut chars, mut is_set) = (lossy.text.chars(), false);
    while let Some(char) = chars.next() {
        match char {
            '\\' => {
                let escaped = chars.next().unwrap_or('\\');
                if !escaped.is_alphanumeric() {
                    out.push('\\');
                }
                out.push(escaped);
            }
            '%' if !is_set => out.push_str("(?s:.*)"),
            '_' if !is_set => out.push_str("(?s:.)"),
            '.' | '^' | '$' if !is_set => out.extend(['\\', char]),
            char => {
                is_set = (is_set || char == '[') && char != ']';
                out.push(char);
            }
        }
    }
    out.push_str(")$");
    Ok(Value::Text(out))
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
    use crate::engine::sameness::{TEXTS, agree, both, code_when_cancelled, looks_in};

    #[test]
    fn glob_matches_as_sqlites_does() {
        let globs = [
            "*", "?", "a*", "*b*", "[a-c]*", "[^a]*", "[]]*", "[a", "*[ü]", "a?c*", "[a-]",
            "[^]a]*", "*]b", "[[]a-c]", "[-a]*", "[ä-ü]*", "*abd", "",
        ];
        let calls = TEXTS.iter().flat_map(|text| globs.map(|glob| format!("{text} GLOB '{glob}'")));
        agree(&calls.collect::<Vec<_>>());
    }

    #[test]
    fn like_matches_as_postgresqls_does() {
        let like = [
            ("'abc' LIKE 'a%'", 1),
            ("'abc' LIKE 'A%'", 0),
            ("'abc' LIKE 'a_c'", 1),
            ("'abc' LIKE '%b'", 0),
            ("'abcabd' LIKE '%abd'", 1),
            ("'' LIKE '%'", 1),
            ("'' LIKE '_'", 0),
            ("'äx' LIKE '_x'", 1),
            ("'a%c' LIKE 'a\\%c'", 1),
            ("'abc' LIKE 'a\\%c'", 0),
            ("'a%c' LIKE 'ax%c' ESCAPE 'x'", 1),
            ("'a\\bc' LIKE 'a\\%' ESCAPE ''", 1),
            ("12 LIKE '1%'", 1),
            ("'abc' LIKE 'abc\\'", 0),
            ("match('A%', 'abc')", 1),
            ("match('Ä_c%', 'äbc')", 1),
            ("match('äx%C', 'ä%c', 'x')", 1),
        ];
        let calls: Vec<_> = like.iter().map(|(call, _)| (*call).to_owned()).collect();
        for ((call, expected), (_, ours)) in like.iter().zip(both(&calls)) {
            assert_eq!(ours, Some(Value::Integer(*expected)), "{call}");
        }
        let long = format!("'a' LIKE '{}'", "%".repeat(PATTERN_MAX + 1));
        for wrong in [&long, "'ab' LIKE 'a\\'", "'a' LIKE 'a' ESCAPE 'xx'"] {
            assert_eq!(both(&[wrong.to_owned()])[0].1, None, "{wrong}");
        }
    }

    #[test]
    fn a_long_match_fails_when_its_statement_is_cancelled() {
        // So short that its length is no reason to look.
        let call = format!("quote(zeroblob(8000)) LIKE '%{}1'", "0".repeat(900));
        assert_eq!(code_when_cancelled(&[&call]), ["57014"]);
    }

    #[test]
    fn a_long_regular_expression_is_refused_before_it_is_parsed() {
        let calls = [
            // A class of one character, however often it is named.
            format!("'x' regexp '[{}]'", "x".repeat(REGEX_TEXT_MAX - 2)),
            format!("'x' regexp '[{}]'", "x".repeat(REGEX_TEXT_MAX - 1)),
            "replace(hex(zeroblob(100000)), '0', 'x') regexp 'xx.*y'".into(),
            format!("cast(x'{}' as text) regexp 'y'", "ff".repeat(30_000)),
        ];
        let ours: Vec<_> = both(&calls).into_iter().map(|(_, ours)| ours).collect();
        let found = |found| Some(Value::Integer(found));
        assert_eq!(ours, [found(1), None, found(0), found(0)]);
    }

    #[test]
    fn a_large_set_is_many_steps() {
        let set: String = (0..900)
            .map(|n| char::from(b'!' + n as u8 % 50))
            .filter(|c| !"'[]^-".contains(*c))
            .collect();
        let looks = looks_in(&format!("quote(zeroblob(5000)) GLOB '*[{set}]x'"));
        assert!(looks > 100, "{looks} looks");
    }

    #[test]
    fn repetitions_count_as_states() {
        assert_eq!(states("abc"), 3);
        assert_eq!(states("(a{10}){1,20}"), 13 * 200);
        assert_eq!(states("a{,"), 3);
        assert!(states("((a{1000}){1000}){1000}") > PRODUCT_MAX);
    }
}
