//! A number with its noun, as messages print it: `1 worker`, `2 workers`.

use std::fmt::{Display, Formatter, Result};

/// A number of things.
pub(crate) struct Plural(u64, &'static str);

/// Returns this number of things whose plural ends in `s`.
pub(crate) fn counted(n: usize, noun: &'static str) -> Plural {
    Plural(n as u64, noun)
}

impl Display for Plural {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let Plural(n, noun) = self;
        write!(f, "{n} {noun}{}", if *n == 1 { "" } else { "s" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_has_no_plural() {
        let of = |n| counted(n, "worker").to_string();
        assert_eq!([of(0), of(1), of(2)], ["0 workers", "1 worker", "2 workers"]);
    }
}
