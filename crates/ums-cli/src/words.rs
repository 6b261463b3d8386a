//! Numbers with their nouns, and how wide the terminal is.

/// The width of text where there is no terminal, in characters.
const USUAL_WIDTH: usize = 80;

/// Returns, for example, `1 scheduler` or `2 schedulers`.
pub fn counted(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

/// Returns how many characters a line of standard output may have.
pub fn width() -> usize {
    let window = rustix::termios::tcgetwinsize(std::io::stdout());
    let columns = window.map_or(0, |window| usize::from(window.ws_col));
    if columns == 0 { USUAL_WIDTH } else { columns.max(40) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_has_no_plural() {
        assert_eq!(counted(1, "scheduler"), "1 scheduler");
        assert_eq!(counted(0, "worker") + &counted(2, "row"), "0 workers2 rows");
    }
}
