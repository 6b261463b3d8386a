//! The binary form of `numeric`: the number of digits to base 10,000, the weight of the first
//! digit, a sign, the number of decimal places, and then the digits.

const NEGATIVE: u16 = 0x4000;
const BASE_DIGITS: usize = 4;

/// Appends the binary form of the number in `text` to `out`. Returns `None` if the text is not a
/// number.
pub(crate) fn encode(out: &mut Vec<u8>, text: &str) -> Option<()> {
    let text = text.trim();
    let text =
        if text.contains(['e', 'E']) { text.parse::<f64>().ok()?.to_string() } else { text.into() };
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.as_str()),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let all_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if (whole.is_empty() && fraction.is_empty()) || !all_digits(whole) || !all_digits(fraction) {
        return None;
    }
    // Both sides are padded to whole groups of four digits, counted from the decimal point.
    let lead = whole.len().div_ceil(BASE_DIGITS) * BASE_DIGITS;
    let tail = fraction.len().div_ceil(BASE_DIGITS) * BASE_DIGITS;
    let filled = format!("{whole:0>lead$}{fraction:0<tail$}");
    let mut groups: Vec<u16> = filled
        .as_bytes()
        .chunks(BASE_DIGITS)
        .map(|group| group.iter().fold(0, |sum, digit| sum * 10 + u16::from(digit - b'0')))
        .collect();
    let mut weight = (lead / BASE_DIGITS) as i16 - 1;
    while groups.first() == Some(&0) {
        groups.remove(0);
        weight -= 1;
    }
    while groups.last() == Some(&0) {
        groups.pop();
    }
    let sign = if negative { NEGATIVE } else { 0 };
    let header = [groups.len() as u16, weight as u16, sign, fraction.len() as u16];
    header.iter().chain(&groups).for_each(|field| out.extend(field.to_be_bytes()));
    Some(())
}

/// Returns the text of a number in binary form.
pub(crate) fn decode(bytes: &[u8]) -> Option<String> {
    let (fields, []) = bytes.as_chunks::<2>() else { return None };
    let mut fields = fields.iter().map(|field| u16::from_be_bytes(*field));
    let (count, weight) = (fields.next()?, fields.next()? as i16);
    let (sign, scale) = (fields.next()?, usize::from(fields.next()?));
    let groups: Vec<u16> = fields.collect();
    let sane = groups.len() == usize::from(count) && groups.iter().all(|g| *g < 10_000);
    if !sane || sign & !NEGATIVE != 0 || weight > 1000 || scale > 1000 {
        return None;
    }
    let group = |place: i32| {
        let index = usize::try_from(i32::from(weight) - place).ok();
        index.and_then(|index| groups.get(index)).copied().unwrap_or(0)
    };
    let mut text = String::from(if sign == NEGATIVE { "-" } else { "" });
    let whole: String =
        (0..=i32::from(weight)).rev().map(|place| format!("{:04}", group(place))).collect();
    let whole = whole.trim_start_matches('0');
    text.push_str(if whole.is_empty() { "0" } else { whole });
    if scale > 0 {
        let places = scale.div_ceil(BASE_DIGITS) as i32;
        let fraction: String = (1..=places).map(|place| format!("{:04}", group(-place))).collect();
        text.push('.');
        text.push_str(&fraction[..scale]);
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_both_ways() {
        for text in
            ["0", "1", "-1", "10000", "0.0001", "12345.678", "-99999999.99", "0.50", "100000000"]
        {
            let mut out = Vec::new();
            encode(&mut out, text).unwrap();
            assert_eq!(decode(&out).as_deref(), Some(text));
        }
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for text in ["", ".", "x", "1.2.3", "--1", "1 2"] {
            assert_eq!(encode(&mut Vec::new(), text), None, "{text}");
        }
        assert_eq!(decode(b""), None);
        assert_eq!(decode(&[0, 9, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(decode(&[0, 0, 0x7f, 0xff, 0, 0, 0, 0]), None);
    }
}
