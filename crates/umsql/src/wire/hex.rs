//! Bytes as texts: the hexadecimal form of `bytea`, its older form with backslashes, and `uuid`.

/// Returns the two hexadecimal digits of a byte.
pub(super) fn hex(byte: u8) -> [u8; 2] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]
}

fn unhex(digits: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
    let (pairs, []) = digits.as_chunks::<2>() else { return None };
    pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect()
}

/// Reads a `bytea`: `\x` and hexadecimal digits, or bytes among which `\\` is a backslash and
/// `\ooo` a byte in octal digits.
pub(super) fn bytea(text: &str) -> Option<Vec<u8>> {
    if let Some(digits) = text.strip_prefix("\\x") {
        return unhex(digits.as_bytes());
    }
    let (mut rest, mut out) = (text.as_bytes(), Vec::new());
    loop {
        rest = match rest {
            [] => return Some(out),
            [b'\\', b'\\', after @ ..] => {
                out.push(b'\\');
                after
            }
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] => {
                out.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                after
            }
            [b'\\', ..] => return None,
            [byte, after @ ..] => {
                out.push(*byte);
                after
            }
        };
    }
}

/// Reads a `uuid`.
pub(super) fn uuid(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> = text.bytes().filter(|b| !b"-{}".contains(b)).collect();
    unhex(&digits)?.try_into().ok()
}

/// Returns the text of a `uuid`.
pub(crate) fn uuid_text(bytes: &[u8; 16]) -> String {
    let digits: String = bytes.iter().flat_map(|b| hex(*b)).map(char::from).collect();
    let (a, b, c) = (&digits[..8], &digits[8..12], &digits[12..16]);
    format!("{a}-{b}-{c}-{}-{}", &digits[16..20], &digits[20..])
}

/// Returns the text of the `uuid` that this text spells.
pub(crate) fn uuid_of(text: &str) -> Option<String> {
    uuid(text.trim()).map(|bytes| uuid_text(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_in_both_forms() {
        assert_eq!(bytea("\\x00fF"), Some(vec![0, 255]));
        assert_eq!(bytea("a\\000\\\\\\377"), Some(vec![b'a', 0, b'\\', 255]));
        for wrong in ["\\x0", "\\xg0", "\\", "\\1", "\\400", "a\\b"] {
            assert_eq!(bytea(wrong), None, "{wrong}");
        }
    }
}
