//! DELETE .. USING, which SQLite does not have.
//!
//! ```text
//!   delete from bill b using customer c where c.id = b.owner
//!     ──▶ delete from bill WHERE rowid IN (SELECT b.rowid FROM bill AS b, customer c
//!                                          where c.id = b.owner)
//! ```

use super::edits::Edits;
use super::returning::target;
use super::tokens::Token;

/// Returns what is written into a DELETE with USING.
pub(crate) fn delete_using(tokens: &[Token<'_>]) -> Edits {
    let mut edits = Edits::default();
    let is_delete = tokens[0].is("delete") && tokens.get(1).is_some_and(|from| from.is("from"));
    let using = tokens.iter().take(8).position(|token| token.is("using"));
    let (Some(using), Some(names)) = (using.filter(|_| is_delete), target(tokens)) else {
        return edits;
    };
    let mut depth = 0usize;
    let end = tokens.iter().position(|token| {
        match token.text {
            "(" => depth += 1,
            ")" => depth = depth.saturating_sub(1),
            _ => (),
        }
        depth == 0 && token.is("returning")
    });
    let (first, last) = (&names[0], end.unwrap_or(tokens.len()) - 1);
    let alias = names.get(1).unwrap_or(first);
    if names.len() > 1 {
        let start = if tokens[using - 2].is("as") { using - 2 } else { using - 1 };
        tokens[start..using].iter().for_each(|token| edits.instead(token, ""));
    }
    let (table, alias) = (quoted(first), quoted(alias));
    let text = format!("WHERE rowid IN (SELECT {alias}.rowid FROM {table} AS {alias},");
    edits.instead(&tokens[using], text);
    edits.after(&tokens[last], ")");
    edits
}

fn quoted(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}

#[cfg(test)]
mod tests {
    use super::super::rewrite::rewrite;
    use super::super::tokens::tokens;
    use super::*;

    #[test]
    fn the_rows_are_those_that_a_query_finds() {
        for (from, to) in [
            (
                "delete from t using s where s.a = t.a",
                "delete from t WHERE rowid IN (SELECT `t`.rowid FROM `t` AS `t`, s \
                 where s.a = t.a)",
            ),
            (
                "delete from t as x using s join r on true where x.a = 1 returning a",
                "delete from t WHERE rowid IN (SELECT `x`.rowid FROM `t` AS `x`, s join r \
                 on true where x.a = 1) returning a",
            ),
            ("delete from t where a in (select 1)", "delete from t where a in (select 1)"),
        ] {
            let list = tokens(from).unwrap();
            let text = rewrite(from, &list, &delete_using(&list));
            assert_eq!(text.split_whitespace().collect::<Vec<_>>().join(" "), to);
        }
    }
}
