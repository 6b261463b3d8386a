//! Arrays of one dimension: the types, and the binary form of a value, which is made from its text
//! form, such as `{1,NULL,"a b"}`.
//!
//! SQLite has no arrays. What makes one (`ARRAY(SELECT ..)`) returns its text form.

/// The type of the arrays of truth values.
pub(super) const BOOLS: u32 = 1000;

/// The numbers of the types of which there are arrays, each with the type of the array: `bool`,
/// `name`, `int2`, `int4`, `text`, `varchar`, `int8`, `float8` and `oid`.
const TYPES: [(u32, u32); 9] = [
    (16, BOOLS),
    (19, 1003),
    (21, 1005),
    (23, 1007),
    (25, 1009),
    (1043, 1015),
    (20, 1016),
    (701, 1022),
    (26, 1028),
];

/// Returns the type of the arrays of this type.
pub(crate) fn array_of(element: u32) -> Option<u32> {
    TYPES.iter().find(|(one, _)| *one == element).map(|(_, array)| *array)
}

/// Returns the type of the elements of this type; `None` if it is no array.
pub(crate) fn element_of(array: u32) -> Option<u32> {
    TYPES.iter().find(|(_, other)| *other == array).map(|(element, _)| *element)
}

/// Returns the text form of an array in binary form. `element` returns the text of an element.
/// Returns `None` if it is no array of one dimension.
pub(super) fn decode(bytes: &[u8], element: impl Fn(&[u8]) -> Option<String>) -> Option<String> {
    let mut rest = bytes;
    let mut int = || {
        let (first, after) = rest.split_first_chunk::<4>()?;
        rest = after;
        Some(i32::from_be_bytes(*first))
    };
    let dimensions = int()?;
    let (_has_nulls, _element) = (int()?, int()?);
    if dimensions == 0 {
        return Some("{}".to_owned());
    }
    let (count, _first) = (int()?, int()?);
    let mut texts = Vec::new();
    for _ in 0..Some(count).filter(|_| dimensions == 1)? {
        let (first, after) = rest.split_first_chunk::<4>()?;
        let len = i32::from_be_bytes(*first);
        let (value, after) = after.split_at_checked(usize::try_from(len).unwrap_or(0))?;
        rest = after;
        let text = match len {
            ..0 => None,
            _ => Some(element(value)?),
        };
        texts.push(quoted(text));
    }
    rest.is_empty().then(|| format!("{{{}}}", texts.join(",")))
}

/// Returns the elements of the text form of an array as a JSON array: numbers as numbers, all
/// others as texts.
pub(crate) fn json(text: &str) -> Option<String> {
    let text = text.trim();
    // An `int2vector` of the catalogue: `1 2`.
    if text.bytes().all(|byte| byte.is_ascii_digit() || byte == b' ') {
        return Some(format!("[{}]", text.replace(' ', ",")));
    }
    let items = elements(text)?.into_iter().map(|element| match element {
        None => "null".to_owned(),
        Some(text) if is_number(&text) => text,
        Some(text) => json_string(&text),
    });
    Some(format!("[{}]", items.collect::<Vec<_>>().join(",")))
}

/// Returns whether the text is that of a number, which becomes the same text again.
fn is_number(text: &str) -> bool {
    let is_whole = text.parse::<i64>().is_ok_and(|int| int.to_string() == text);
    let is_plain = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'-' | b'.'));
    is_whole || (is_plain && text.parse::<f64>().is_ok_and(|real| real.to_string() == text))
}

pub(crate) fn json_string(text: &str) -> String {
    let mut out = String::from("\"");
    for char in text.chars() {
        match char {
            '"' | '\\' => out.extend(['\\', char]),
            '\0'..' ' => out.push_str(&format!("\\u{:04x}", char as u32)),
            other => out.push(other),
        }
    }
    out + "\""
}

/// Returns an element as it is in the text form of an array.
pub(crate) fn quoted(text: Option<String>) -> String {
    let Some(text) = text else { return "NULL".to_owned() };
    let is_plain = !text.is_empty()
        && !text.eq_ignore_ascii_case("null")
        && !text.contains(|char: char| char.is_whitespace() || "{},\"\\".contains(char));
    if is_plain {
        return text;
    }
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Returns the elements of the text form of an array.
pub(crate) fn elements(text: &str) -> Option<Vec<Option<String>>> {
    let inner = text.strip_prefix('{')?.strip_suffix('}')?;
    let mut found = Vec::new();
    let mut rest = inner.chars().peekable();
    while rest.peek().is_some() {
        let is_quoted = rest.next_if_eq(&'"').is_some();
        let mut element = String::new();
        while let Some(char) = rest.next_if(|char| is_quoted || *char != ',') {
            match char {
                '"' => break,
                '\\' => element.extend(rest.next()),
                other => element.push(other),
            }
        }
        rest.next_if_eq(&',');
        found.push((is_quoted || element != "NULL").then_some(element));
    }
    Some(found)
}

/// Writes the binary form of an `int2vector`, whose text form is `1 2`: an array that is counted
/// from 0.
pub(super) fn encode_vector(out: &mut Vec<u8>, text: &str) -> Option<()> {
    let numbers: Option<Vec<i16>> =
        text.split_ascii_whitespace().map(|number| number.parse().ok()).collect();
    let numbers = numbers?;
    for field in [1, 0, 21, numbers.len() as i32, 0] {
        out.extend(field.to_be_bytes());
    }
    for number in numbers {
        out.extend(2_i32.to_be_bytes());
        out.extend(number.to_be_bytes());
    }
    Some(())
}

/// Returns what is before the elements in the binary form of an array.
pub(super) fn head(elements: &[Option<String>], element: u32) -> Vec<u8> {
    let mut head = Vec::new();
    head.extend(i32::from(!elements.is_empty()).to_be_bytes());
    head.extend(i32::from(elements.contains(&None)).to_be_bytes());
    head.extend(element.to_be_bytes());
    if !elements.is_empty() {
        head.extend((elements.len() as i32).to_be_bytes());
        head.extend(1_i32.to_be_bytes());
    }
    head
}

#[cfg(test)]
mod tests {
    use rusqlite::types::ValueRef;

    use super::super::types::{Column, INT4, encode};
    use super::*;

    #[test]
    fn what_is_quoted_is_read_back() {
        let values = ["a", "", "null", "a b", "{,}", "\"\\", "ä"];
        let texts: Vec<_> = values.iter().map(|text| quoted(Some((*text).to_owned()))).collect();
        assert_eq!(texts.join(" "), r#"a "" "null" "a b" "{,}" "\"\\" ä"#);
        let text = format!("{{{},NULL,7}}", texts.join(","));
        let mut expected: Vec<_> = values.map(|text| Some(text.to_owned())).to_vec();
        expected.extend([None, Some("7".to_owned())]);
        assert_eq!(elements(&text), Some(expected));
        assert_eq!(elements("{}"), Some(Vec::new()));
        assert_eq!(elements("a"), None);
    }

    #[test]
    fn an_array_has_postgresqls_binary_form() {
        let binary = |text: &str| {
            let mut out = Vec::new();
            let column = Column { format: 1, ..Column::new("", 1007) };
            encode(&mut out, ValueRef::Text(text.as_bytes()), &column).unwrap();
            let numbers =
                out[4..].chunks(4).map(|part| u32::from_be_bytes(part.try_into().unwrap()));
            numbers.collect::<Vec<_>>()
        };
        assert_eq!(binary("{}"), [0, 0, INT4]);
        assert_eq!(binary("{7,NULL}"), [1, 1, INT4, 2, 1, 4, 7, u32::MAX]);
    }
}
