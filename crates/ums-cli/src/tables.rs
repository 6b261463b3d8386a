//! Tables of text that fit a terminal.
//!
//! ```text
//!   narrow enough      id  name      wide, few rows   id    0   1      wide, many rows   id  name
//!                       0  a                          name  a   b                         0  a
//!                       1  b                          io    7   9                        (blank)
//!                                                                                        id  io
//!                                                                                         0   7
//! ```
//!
//! A table that is too wide is printed in bands, each with the first column; or with a line for
//! each column, if it has few rows and that takes fewer lines. Texts of several words are wrapped.
//!
//! Invariant: no line is longer than the width, unless one word or number is.

/// The narrowest column in which words are wrapped.
const WRAPPED_MIN: usize = 24;
/// The most rows that are printed with a line for each column.
const UPRIGHT_ROWS_MAX: usize = 12;
/// The spaces before each column.
const GAP: usize = 2;

/// Formats rows of cells under heads.
pub fn table(heads: &[String], rows: &[Vec<String>], width: usize) -> String {
    let lines: Vec<Vec<String>> =
        std::iter::once(heads.to_vec()).chain(rows.iter().cloned()).collect();
    let flat = bands(&lines, width, is_number);
    if flat.lines().count() == lines.len() || rows.len() > UPRIGHT_ROWS_MAX {
        return flat;
    }
    let upright: Vec<Vec<String>> = (0..heads.len())
        .map(|at| lines.iter().map(|line| line.get(at).cloned().unwrap_or_default()).collect())
        .collect();
    let upright = bands(&upright, width, |_| false);
    if flat.lines().count() <= upright.lines().count() { flat } else { upright }
}

/// Aligns lines of cells in columns; numbers are right-aligned.
pub fn columns(lines: &[Vec<String>], width: usize) -> String {
    bands(lines, width, is_number)
}

fn is_number(text: &str) -> bool {
    text.parse::<i64>().is_ok()
}

fn bands(lines: &[Vec<String>], width: usize, is_right: fn(&str) -> bool) -> String {
    let count = lines.iter().map(Vec::len).max().unwrap_or(0);
    let widths = widths(lines, count, width);
    let mut text = String::new();
    let mut next = 0;
    while next < count {
        let mut shown = if next == 0 { vec![] } else { vec![0] };
        let mut room = width;
        shown.iter().for_each(|at: &usize| room = room.saturating_sub(GAP + widths[*at]));
        while next < count && (room >= GAP + widths[next] || shown.last().is_none_or(|at| *at == 0))
        {
            room = room.saturating_sub(GAP + widths[next]);
            shown.push(next);
            next += 1;
        }
        if !text.is_empty() {
            text.push('\n');
        }
        for line in lines {
            text += &aligned(line, &shown, &widths, is_right);
        }
    }
    text
}

/// Returns the width of each column. A column of texts with several words takes what the others
/// leave, and is wrapped.
fn widths(lines: &[Vec<String>], count: usize, width: usize) -> Vec<usize> {
    let cells = |at: usize| lines.iter().filter_map(move |line| line.get(at));
    let longest = |at: usize| cells(at).map(|cell| length(cell)).max().unwrap_or(0);
    let whole: Vec<usize> = (0..count).map(longest).collect();
    let word = |at: usize| {
        cells(at).flat_map(|cell| cell.split(' ')).map(length).max().unwrap_or(0).max(WRAPPED_MIN)
    };
    let wraps: Vec<usize> = (0..count).filter(|at| whole[*at] > word(*at)).collect();
    let fixed: usize = (0..count).filter(|at| !wraps.contains(at)).map(|at| whole[at] + GAP).sum();
    let left = width.saturating_sub(fixed) / wraps.len().max(1);
    let of = |at: usize| match wraps.contains(&at) {
        true => left.saturating_sub(GAP).clamp(word(at), whole[at]),
        false => whole[at],
    };
    (0..count).map(of).collect()
}

/// Formats one row: as many lines as its longest cell needs.
fn aligned(
    cells: &[String],
    shown: &[usize],
    widths: &[usize],
    is_right: fn(&str) -> bool,
) -> String {
    let wrapped: Vec<Vec<String>> = shown
        .iter()
        .map(|at| wrap(cells.get(*at).map_or("", String::as_str), widths[*at]))
        .collect();
    let height = wrapped.iter().map(Vec::len).max().unwrap_or(0);
    let part = |(parts, at): (&Vec<String>, &usize), n: usize| {
        let (text, width) = (parts.get(n).map_or("", String::as_str), widths[*at]);
        let pad = " ".repeat(width.saturating_sub(length(text)));
        if is_right(text) { format!("  {pad}{text}") } else { format!("  {text}{pad}") }
    };
    let line = |n: usize| -> String {
        let parts = wrapped.iter().zip(shown).map(|pair| part(pair, n));
        parts.collect::<String>().trim_end().to_owned() + "\n"
    };
    (0..height).map(line).collect()
}

/// Breaks a text between words into lines of this width.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.last_mut().expect("there is always one");
        if last.is_empty() {
            last.push_str(word);
        } else if length(last) + 1 + length(word) <= width {
            *last += &format!(" {word}");
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

fn length(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(cells: &[&str]) -> Vec<String> {
        cells.iter().map(|cell| (*cell).to_owned()).collect()
    }

    #[test]
    fn a_narrow_table_has_a_line_for_each_row() {
        let text = table(&row(&["id", "name"]), &[row(&["7", "a"]), row(&["10", "bc"])], 80);
        assert_eq!(text, "  id  name\n   7  a\n  10  bc\n");
    }

    #[test]
    fn a_wide_table_with_few_rows_stands_upright_and_one_with_many_is_in_bands() {
        let names: Vec<String> = (0..20).map(|n| format!("a_long_column_{n}")).collect();
        let values = |of: usize| (0..20).map(|n| (of * n).to_string()).collect::<Vec<_>>();
        let few = table(&names, &[values(1), values(2)], 80);
        assert_eq!(few.lines().count(), 20, "{few}");
        assert!(few.contains("  a_long_column_19  19  38\n"), "{few}");
        let many: Vec<_> = (0..90).map(|of| values(of)[..6].to_vec()).collect();
        let many = table(&names[..6], &many, 80);
        assert_eq!(many.lines().count(), 2 * 91 + 1, "{many}");
        let heads: Vec<_> = many.lines().filter(|line| line.contains("a_long_column_0")).collect();
        assert_eq!(heads.len(), 2, "each band has the first column");
        assert!([few, many].iter().all(|text| text.lines().all(|line| line.len() <= 80)));
    }

    #[test]
    fn words_are_wrapped_in_the_room_that_the_other_columns_leave() {
        let help = "one two three four five six seven eight nine ten eleven twelve";
        let text = columns(&[row(&["name", "kind", help]), row(&["n", "k", "short"])], 50);
        assert!(text.lines().all(|line| line.len() <= 50), "{text}");
        assert!(text.contains("\n              "), "the second line is below the first: {text}");
        assert!(text.ends_with("  n     k     short\n"), "{text}");
    }
}
