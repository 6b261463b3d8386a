//! How a numeric is shown that has a scale: always so many digits behind its point.

use rusqlite::types::ValueRef;

use super::floats;

/// Returns a number with this many digits behind its point.
pub(crate) fn with_scale(value: ValueRef<'_>, scale: usize) -> Option<String> {
    match value {
        ValueRef::Integer(int) if scale == 0 => Some(int.to_string()),
        ValueRef::Integer(int) => Some(format!("{int}.{:0<scale$}", "")),
        ValueRef::Real(real) if real.is_finite() => {
            // What is beyond the digits that are sure is filled with zeros.
            let whole = real.abs().log10().floor().max(0.0) as usize + 1;
            let sure = scale.min(floats::DIGITS.saturating_sub(whole));
            let real = floats::rounded(real, sure as i64);
            let point = if sure == 0 && scale > 0 { "." } else { "" };
            let zeros = scale - sure;
            let text = format!("{real:.sure$}{point}{:0<zeros$}", "");
            let is_zero = !text.contains(|digit: char| matches!(digit, '1'..='9'));
            // A numeric has no negative zero.
            Some(if is_zero { text.trim_start_matches('-').to_owned() } else { text })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_numeric_shows_as_many_digits_as_its_scale_says() {
        let shown = |value, scale| with_scale(value, scale);
        let real = |value: f64, scale| shown(ValueRef::Real(value), scale).unwrap();
        assert_eq!(shown(ValueRef::Integer(-7), 2).unwrap(), "-7.00");
        assert_eq!(shown(ValueRef::Integer(7), 0).unwrap(), "7");
        assert_eq!([real(1.5, 2), real(9.875, 1), real(0.1 + 0.2, 1)], ["1.50", "9.9", "0.3"]);
        assert_eq!(
            [real(-0.001, 2), real(0.0, 2), real(1e20, 1)],
            ["0.00", "0.00", "100000000000000000000.0"]
        );
        assert_eq!(real(5.4, 16), "5.4000000000000000");
        assert_eq!(shown(ValueRef::Real(f64::INFINITY), 2), None);
        assert_eq!(shown(ValueRef::Text(b"NaN"), 2), None);
    }
}
