//! How floating-point numbers are written, and rounded, in decimal digits.
//!
//! A number's digits are the fewest that name it among its neighbours, as in PostgreSQL. A double
//! and a real have an exponent if they are very large or small; a numeric has none.

/// Returns a double as PostgreSQL writes it: `1.5`, `1e+20`, `1e-05`.
pub(crate) fn double(real: f64) -> String {
    written(&format!("{real:e}"), 15, || real.to_string())
}

/// Returns a real as PostgreSQL writes it.
pub(crate) fn single(real: f32) -> String {
    written(&format!("{real:e}"), 6, || real.to_string())
}

/// Returns a numeric as PostgreSQL writes it.
pub(crate) fn numeric(real: f64) -> String {
    match real {
        // A numeric has no negative zero.
        0.0 => "0".to_owned(),
        _ if real.is_finite() => real.to_string(),
        _ => double(real),
    }
}

/// Returns a number whose digits and exponent are `scientific`.
fn written(scientific: &str, digits: i32, plain: impl FnOnce() -> String) -> String {
    match scientific {
        "inf" => return "Infinity".to_owned(),
        "-inf" => return "-Infinity".to_owned(),
        _ => (),
    }
    let parts = scientific.split_once('e');
    let parts = parts.and_then(|(digits, exponent)| Some((digits, exponent.parse().ok()?)));
    match parts {
        Some((mantissa, exponent @ (i32::MIN..-4))) => {
            format!("{mantissa}e-{:02}", exponent.unsigned_abs())
        }
        Some((mantissa, exponent)) if exponent >= digits => format!("{mantissa}e+{exponent:02}"),
        _ => plain(),
    }
}

/// The decimal digits that a double has for sure.
pub(crate) const DIGITS: usize = 15;

/// Returns a double with the digits that are sure: 0.1 + 0.2 is 0.3, and 1.005 * 3 is 3.015.
pub(crate) fn sure(real: f64) -> f64 {
    format!("{real:.*e}", DIGITS - 1).parse().unwrap_or(real)
}

/// Returns whether SQLite keeps all digits of a decimal number: as an integer, or as a double whose
/// own digits are the same.
pub(crate) fn keeps(text: &str) -> bool {
    let digits = text.trim_start_matches(['-', '+']);
    let (mantissa, _) = digits.split_once(['e', 'E']).unwrap_or((digits, ""));
    let is_decimal = mantissa.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    if !is_decimal || digits.len() <= DIGITS || digits.parse::<i64>().is_ok() {
        return true;
    }
    let significant = |mantissa: &str| {
        let all = mantissa.replace('.', "");
        all.trim_matches('0').to_owned()
    };
    let real: f64 = digits.parse().unwrap_or(f64::INFINITY);
    let own = format!("{real:e}");
    let own = own.split_once('e').map_or("", |(mantissa, _)| mantissa);
    real.is_finite() && significant(own) == significant(mantissa)
}

/// Returns the number with so many digits behind the point, halves rounded away from zero; before
/// the point if `places` is negative.
pub(crate) fn rounded(real: f64, places: i64) -> f64 {
    let text = format!("{:e}", real.abs());
    let Some((mantissa, exponent)) = text.split_once('e') else { return real };
    let Ok(exponent) = exponent.parse::<i64>() else { return real };
    let digits = mantissa.replace('.', "");
    let kept = exponent.saturating_add(1).saturating_add(places);
    let Ok(kept) = usize::try_from(kept) else { return 0.0 };
    let Some(next) = digits.as_bytes().get(kept) else { return real };
    let number: u64 = digits[..kept].parse().unwrap_or(0);
    let number = number + u64::from(*next >= b'5');
    let result: f64 = format!("{number}e{}", places.saturating_neg()).parse().unwrap_or(real);
    result.copysign(real)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_postgresql_does() {
        let cases = [
            (1.0, "1"),
            (-1.5, "-1.5"),
            (1e14, "100000000000000"),
            (1e15, "1e+15"),
            (1.25e-5, "1.25e-05"),
            (0.0001, "0.0001"),
            (-1e300, "-1e+300"),
            (f64::NEG_INFINITY, "-Infinity"),
            (-0.0, "-0"),
        ];
        for (real, expected) in cases {
            assert_eq!(double(real), expected);
        }
        assert_eq!(single(123_456_789.0), "1.2345679e+08");
        assert_eq!(single(0.1), "0.1");
        assert_eq!(single(100_000.0), "100000");
        assert_eq!(single(16_777_216.0), "1.6777216e+07");
        assert_eq!(numeric(1e20), "100000000000000000000");
        assert_eq!(numeric(1e-10), "0.0000000001");
        assert_eq!(numeric(-0.0), "0");
    }

    #[test]
    fn digits_that_are_not_sure_are_left_out() {
        assert_eq!([sure(0.1 + 0.2), sure(1.005 * 3.0)], [0.3, 3.015]);
        assert_eq!([sure(1e300), sure(0.0), sure(f64::INFINITY)], [1e300, 0.0, f64::INFINITY]);
    }

    #[test]
    fn digits_are_kept_or_not() {
        for text in [
            "1",
            "9223372036854775807",
            "0.1",
            "123456789012.345",
            "-00012345678901234.5000",
            "1e300",
            "0.000000000000000000001",
            "0x7fffffffffffffffff",
        ] {
            assert!(keeps(text), "{text}");
        }
        for text in
            ["9223372036854775808", "12345678901234567890.5", "0.30000000000000000001", "1e999999"]
        {
            assert_eq!(keeps(text), text.len() <= DIGITS, "{text}");
        }
    }

    #[test]
    fn halves_of_the_written_digits_are_rounded_away_from_zero() {
        let cases = [
            ((1.005, 2), 1.01),
            ((-2.5, 0), -3.0),
            ((2.4, 0), 2.0),
            ((0.5, 0), 1.0),
            ((0.05, 0), 0.0),
            ((1234.5, -2), 1200.0),
            ((1250.0, -2), 1300.0),
            ((99.995, 2), 100.0),
            ((1.25, 300), 1.25),
            ((1e300, -400), 0.0),
            ((7.0, 3), 7.0),
        ];
        for ((real, places), expected) in cases {
            assert_eq!(rounded(real, places), expected, "{real} {places}");
        }
    }
}
