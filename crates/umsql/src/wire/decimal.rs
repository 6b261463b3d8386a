//! Numbers as decimal digits, as far as a `numeric` needs them. The digits of a number are rounded,
//! because the floating point number that SQLite stores may be a little less: `2.005` is.

/// Returns a number with at most `scale` digits behind its point, rounded half away from zero, and
/// without needless zeros behind the point. `text` is digits with an optional sign and point.
pub(crate) fn rounded(text: &str, scale: usize) -> String {
    let (sign, digits) = signed(text);
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let kept = &fraction[..fraction.len().min(scale)];
    let up = fraction.as_bytes().get(scale).is_some_and(|digit| *digit >= b'5');
    let mut all: Vec<u8> = whole.bytes().chain(kept.bytes()).collect();
    if up {
        let nines = all.iter().rev().take_while(|digit| **digit == b'9').count();
        let end = all.len() - nines;
        all[end..].fill(b'0');
        match end.checked_sub(1) {
            Some(at) => all[at] += 1,
            None => all.insert(0, b'1'),
        }
    }
    let text: String = all.iter().map(|digit| char::from(*digit)).collect();
    let (whole, fraction) = text.split_at(text.len() - kept.len());
    let (whole, fraction) = (whole.trim_start_matches('0'), fraction.trim_end_matches('0'));
    let point = if fraction.is_empty() { "" } else { "." };
    let whole = if whole.is_empty() { "0" } else { whole };
    let is_zero = whole == "0" && fraction.is_empty();
    format!("{}{whole}{point}{fraction}", if is_zero { "" } else { sign })
}

/// Returns how many digits are before the point, without zeros at the beginning.
pub(crate) fn whole_digits(text: &str) -> usize {
    let (_, digits) = signed(text);
    let whole = digits.split('.').next().unwrap_or_default();
    whole.trim_start_matches('0').len()
}

/// Returns the sign, which is empty or a minus, and the rest.
fn signed(text: &str) -> (&str, &str) {
    match text.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_rounded_in_its_digits() {
        for (text, scale, expected) in [
            ("2.005", 2, "2.01"),
            ("2.004", 2, "2"),
            ("-2.5", 0, "-3"),
            ("999.995", 2, "1000"),
            ("0.5", 0, "1"),
            (".5", 1, "0.5"),
            ("-0.4", 0, "0"),
            ("+007.10", 3, "7.1"),
            ("100", 2, "100"),
            ("5.", 2, "5"),
        ] {
            assert_eq!(rounded(text, scale), expected, "{text}");
        }
        assert_eq!([whole_digits("-012.5"), whole_digits("0.5"), whole_digits("1000")], [2, 0, 4]);
    }
}
