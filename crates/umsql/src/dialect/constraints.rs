//! The constraints in the text of a CREATE TABLE, for the catalogue: SQLite keeps them there, and
//! tells neither their names nor their conditions.

use super::identity::UNNAMED;
use super::keys::{definitions, is_constraint};
use super::tokens::{Token, closing, items, tokens};

/// One constraint of a table.
#[derive(Debug, PartialEq)]
pub(crate) struct Constraint {
    /// As in `pg_constraint.contype`: `p`, `u`, `f` or `c`.
    pub(crate) kind: char,
    pub(crate) name: String,
    /// The name of the index that a key of these columns has without a name of its own.
    pub(crate) index: String,
    pub(crate) columns: Vec<String>,
    /// The table to which a foreign key refers, and its columns if they are named.
    pub(crate) refers: Option<(String, Vec<String>)>,
    /// A condition with its parentheses, or the actions of a foreign key.
    pub(crate) rest: String,
}

/// Returns the constraints of the table that `text` creates.
pub(crate) fn constraints(table: &str, text: &str) -> Vec<Constraint> {
    let Ok(list) = tokens(text) else { return Vec::new() };
    let mut found = Vec::new();
    for item in definitions(&list).unwrap_or_default() {
        let column = (!is_constraint(item)).then(|| item[0].name());
        let mut at = usize::from(column.is_some());
        let mut named = None;
        while at < item.len() {
            let is =
                |ahead: usize, word: &str| item.get(at + ahead).is_some_and(|token| token.is(word));
            if is(0, "constraint") {
                named = item.get(at + 1).map(Token::name);
                at += 2;
                continue;
            }
            if is(0, "not") && is(1, "null") {
                // Its name is not that of the next constraint.
                named = None;
            }
            let after = if is(0, "primary") && is(1, "key") {
                Some(('p', at + 2))
            } else if is(0, "unique") {
                Some(('u', at + 1))
            } else if is(0, "check") {
                Some(('c', at + 1))
            } else if is(0, "foreign") && is(1, "key") {
                Some(('f', at + 2))
            } else if is(0, "references") {
                Some(('f', at))
            } else {
                None
            };
            let Some((kind, start)) = after else {
                at += item[at..]
                    .first()
                    .filter(|token| token.sign("("))
                    .map_or(1, |_| closing(&item[at..]).map_or(item.len(), |len| len + 1));
                continue;
            };
            // The key of a numbered column is the client's only when it has got a name.
            let is_unnamed = named.as_deref() == Some(UNNAMED);
            let (constraint, end) = one(text, table, kind, column.as_deref(), &item[start..]);
            let constraint =
                Constraint { name: named.take().unwrap_or(constraint.name), ..constraint };
            found.extend((!is_unnamed).then_some(constraint));
            at = (start + end).max(at + 1);
        }
    }
    found
}

/// Reads a constraint from what follows its first words. Returns also how many tokens it takes.
fn one(
    text: &str,
    table: &str,
    kind: char,
    column: Option<&str>,
    rest: &[Token<'_>],
) -> (Constraint, usize) {
    let listed = |tokens: &[Token<'_>]| -> Option<(Vec<String>, usize)> {
        let len = tokens.first().filter(|token| token.sign("(")).and_then(|_| closing(tokens))?;
        let list = items(&tokens[1..len]);
        Some((list.iter().filter_map(|item| item.first()).map(Token::name).collect(), len + 1))
    };
    let mut end = 0;
    let mut columns: Vec<String> = column.into_iter().map(str::to_owned).collect();
    let (mut refers, mut more) = (None, String::new());
    if kind == 'c' {
        end = closing(rest).map_or(rest.len(), |len| len + 1);
        if let [first, .., last] = in_one_pair(&rest[..end]) {
            text[first.at..last.end()].clone_into(&mut more);
        }
    } else {
        if column.is_none()
            && let Some((list, len)) = listed(rest)
        {
            (columns, end) = (list, len);
        }
        if kind == 'f' && rest.get(end).is_some_and(|token| token.is("references")) {
            let target = rest.get(end + 1).map(Token::name).unwrap_or_default();
            end += 2;
            let list = listed(&rest[end.min(rest.len())..]);
            end += list.as_ref().map_or(0, |(_, len)| *len);
            refers = Some((target, list.map(|(names, _)| names).unwrap_or_default()));
            let tail = &rest[end.min(rest.len())..];
            let ends = ["constraint", "unique", "check", "default", "not", "null", "primary"];
            let len = tail.iter().enumerate().position(|(at, token)| {
                // `ON DELETE SET NULL`, `ON DELETE SET DEFAULT`
                let is_action = at > 0 && tail[at - 1].is("set");
                !is_action && ends.iter().any(|word| token.is(word))
            });
            let tail = &tail[..len.unwrap_or(tail.len())];
            if let [first, .., last] = tail {
                more = format!(" {}", text[first.at..last.end()].to_ascii_uppercase());
            }
            end += tail.len();
        }
    }
    let index = own_name(table, kind, &columns);
    (Constraint { kind, name: index.clone(), index, columns, refers, rest: more }, end)
}

/// Returns a condition in one pair of parentheses: of `((a > 0))`, one is enough.
fn in_one_pair<'t, 'a>(mut condition: &'t [Token<'a>]) -> &'t [Token<'a>] {
    while let [_, inner @ .., _] = condition
        && inner.first().is_some_and(|token| token.sign("("))
        && closing(inner).is_some_and(|close| close + 1 == inner.len())
    {
        condition = inner;
    }
    condition
}

/// Returns the name that a constraint has if it is given none.
fn own_name(table: &str, kind: char, columns: &[String]) -> String {
    let joined = columns.join("_");
    let suffix = match kind {
        'p' => "pkey",
        'u' => "key",
        'f' => "fkey",
        _ => "check",
    };
    match (kind, joined.is_empty()) {
        ('p', _) | (_, true) => format!("{table}_{suffix}"),
        _ => format!("{table}_{joined}_{suffix}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_constraints_of_a_table_are_found_with_their_names() {
        let text = "create table t(id integer primary key autoincrement not null, \
            a int unique check (a > (0)) references s on delete set null, b numeric(6,2), \
            constraint both unique (a, b), check (((a) < (b))), check (a), \
            constraint up foreign key (a, b) references r(x, y) on update cascade)";
        let shown: Vec<String> = constraints("t", text)
            .into_iter()
            .map(|c| {
                let refers = c.refers.map_or(String::new(), |(table, columns)| {
                    format!(" -> {table}({})", columns.join(","))
                });
                format!("{} {} ({}){refers}{}", c.kind, c.name, c.columns.join(","), c.rest)
            })
            .collect();
        let expected = [
            "p t_pkey (id)",
            "u t_a_key (a)",
            "c t_a_check (a)(a > (0))",
            "f t_a_fkey (a) -> s() ON DELETE SET NULL",
            "u both (a,b)",
            "c t_check ()((a) < (b))",
            "c t_check ()(a)",
            "f up (a,b) -> r(x,y) ON UPDATE CASCADE",
        ];
        assert_eq!(shown, expected);
        assert!(constraints("t", "create table t as select 1").is_empty());
        let unnamed = "create table t(id integer constraint ums_identity primary key)";
        assert!(constraints("t", unnamed).is_empty());
        let always = "create table t(id int constraint ums_always not null primary key)";
        assert_eq!(constraints("t", always)[0].name, "t_pkey");
    }
}
