//! The names that PostgreSQL gives to the columns of a query.
//!
//! An alias names a column. Without one, a column of a table and a call of a function give their
//! names, a cast gives the name of its type if its operand has no name, and every other expression
//! is called `?column?`. SQLite would name a column after the text of its expression.

use super::rewrite::is_operator_word;
use super::tokens::{Token, TokenKind, closing, items};
use crate::wire::types;

/// One item of a select list.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Title {
    /// `*` or `t.*`: columns whose number the text does not say, with the names of the tables.
    Star,
    Name(String),
}

/// Parts of an expression that are nested more deeply have no name.
const DEPTH_MAX: u32 = 32;

/// Returns the names of the columns of a query, or of the list after RETURNING. Returns none if the
/// statement has no columns, or the names of its tables' columns.
pub(super) fn titles(tokens: &[Token<'_>]) -> Box<[Title]> {
    let list = select_list(tokens).unwrap_or_default();
    list.iter().map(|item| title(item, 0)).collect()
}

/// Replaces the names of the columns by those of the items.
pub(crate) fn entitle(titles: &[Title], mut columns: Vec<&mut String>) {
    let stars = titles.iter().filter(|title| **title == Title::Star).count();
    let named = titles.len() - stars;
    if stars > 1 || named > columns.len() || (stars == 0 && named != columns.len()) {
        return;
    }
    let star = titles.iter().position(|title| *title == Title::Star).unwrap_or(titles.len());
    for (index, title) in titles.iter().enumerate() {
        let Title::Name(name) = title else { continue };
        // What follows the star is counted from the end.
        let at = if index < star { index } else { columns.len() + index - titles.len() };
        columns[at].clone_from(name);
    }
}

/// Returns the items after SELECT or RETURNING.
fn select_list<'t, 'a>(tokens: &'t [Token<'a>]) -> Option<Vec<&'t [Token<'a>]>> {
    let skip = tokens.iter().take_while(|token| token.sign("(")).count();
    let tokens = &tokens[skip..];
    let mut depth = 0usize;
    let mut is_level = |token: &Token<'_>| {
        match token.text {
            "(" => depth += 1,
            ")" => depth = depth.saturating_sub(1),
            _ => return depth == 0,
        }
        false
    };
    let begins = |token: &&Token<'_>| {
        ["select", "insert", "update", "delete", "replace"].iter().any(|word| token.is(word))
    };
    match tokens.first()? {
        first if begins(&first) || first.is("with") => (),
        _ => return None,
    }
    let mut level = tokens.iter().enumerate().filter(|(_, token)| is_level(token));
    let (mut start, verb) = level.find(|(_, token)| begins(token))?;
    if !verb.is("select") {
        start = level.find(|(_, token)| token.is("returning"))?.0;
    }
    let mut list = &tokens[start + 1..];
    match list {
        [distinct, on, rest @ ..] if distinct.is("distinct") && on.is("on") => {
            list = rest.get(closing(rest)? + 1..)?;
        }
        [first, rest @ ..] if first.is("distinct") || first.is("all") => list = rest,
        _ => (),
    }
    let mut depth = 0usize;
    let end = list.iter().enumerate().position(|(index, token)| {
        let is_distinct = index > 0 && list[index - 1].is("distinct");
        let ends = depth == 0 && (token.sign(")") || (ends_list(token) && !is_distinct));
        match token.text {
            "(" => depth += 1,
            ")" => depth = depth.saturating_sub(1),
            _ => (),
        }
        ends
    });
    Some(items(&list[..end.unwrap_or(list.len())]))
}

fn ends_list(token: &Token<'_>) -> bool {
    const WORDS: [&str; 13] = [
        "from",
        "where",
        "group",
        "having",
        "window",
        "order",
        "limit",
        "offset",
        "fetch",
        "for",
        "union",
        "except",
        "intersect",
    ];
    token.kind == TokenKind::Word && WORDS.iter().any(|word| token.is(word))
}

fn title(item: &[Token<'_>], depth: u32) -> Title {
    if item.last().is_some_and(|last| last.sign("*"))
        && matches!(item, [_] | [.., _, _])
        && item.iter().rev().nth(1).is_none_or(|dot| dot.sign("."))
    {
        return Title::Star;
    }
    let name = alias(item).or_else(|| figure(item, depth).map(|(_, name)| name));
    Title::Name(name.unwrap_or_else(|| "?column?".to_owned()))
}

fn alias(item: &[Token<'_>]) -> Option<String> {
    let [.., before, name] = item else { return None };
    if !name.is_name() {
        return None;
    }
    if before.is("as") {
        return Some(name.folded());
    }
    // `a b` names an item. `NOT b`, `x IS NULL` and `double precision` do not.
    const NO_ALIAS: [&str; 10] = [
        "null",
        "true",
        "false",
        "end",
        "precision",
        "varying",
        "zone",
        "isnull",
        "notnull",
        "over",
    ];
    const NO_OPERAND: [&str; 7] = ["not", "is", "null", "collate", "time", "similar", "over"];
    let is_operand = match before.kind {
        TokenKind::Sign => before.sign(")") || before.sign("]"),
        TokenKind::Word => {
            let known = NO_OPERAND.iter().any(|word| before.is(word));
            !is_operator_word(before) && (!known || before.is("null"))
        }
        _ => true,
    };
    let is_name = name.kind == TokenKind::Quoted || !NO_ALIAS.iter().any(|word| name.is(word));
    let is_unit = item.len() > 2 && item[item.len() - 3].is("interval");
    (is_operand && is_name && !is_unit).then(|| name.folded())
}

/// Whether a name may be replaced by that of a cast around it.
#[derive(PartialEq, PartialOrd)]
enum Strength {
    Weak,
    Strong,
}
use Strength::{Strong, Weak};

/// Returns the name of an expression.
fn figure(tokens: &[Token<'_>], depth: u32) -> Option<(Strength, String)> {
    let [first, rest @ ..] = tokens else { return None };
    if depth > DEPTH_MAX {
        return None;
    }
    if first.sign("(") && closing(tokens) == Some(tokens.len() - 1) {
        let inner = &tokens[1..tokens.len() - 1];
        if inner.first().is_some_and(|word| word.is("select") || word.is("with")) {
            return match title(select_list(inner)?.first()?, depth + 1) {
                Title::Name(name) if name != "?column?" => Some((Strong, name)),
                _ => None,
            };
        }
        return match items(inner).len() {
            1 => figure(inner, depth + 1),
            _ => Some((Strong, "row".to_owned())),
        };
    }
    if first.is("case") {
        return case(tokens, depth);
    }
    let mut level = operators(tokens);
    if let Some((at, sign)) = level.pop() {
        // Only a cast, or a collation, of the whole expression leaves it its name.
        let is_cast = |token: &Token<'_>| token.sign("::") || token.is("collate");
        if !is_cast(&sign) || level.iter().any(|(_, other)| !is_cast(other)) {
            let zone = is_at(&sign) && level.is_empty();
            return zone.then(|| (Strong, "timezone".to_owned()));
        }
        let operand = figure(&tokens[..at], depth + 1);
        if sign.is("collate") || operand.as_ref().is_some_and(|(strength, _)| *strength == Strong) {
            return operand;
        }
        return Some((Weak, type_name(&tokens[at + 1..])?));
    }
    match (first.kind, rest) {
        (TokenKind::Word | TokenKind::Quoted, []) => word(first),
        (TokenKind::Word, [text, ..]) if first.is("interval") && text.kind == TokenKind::Text => {
            Some((Weak, first.folded()))
        }
        (TokenKind::Word, [.., last]) if last.kind == TokenKind::Text => {
            Some((Weak, type_name(tokens)?))
        }
        (TokenKind::Word | TokenKind::Quoted, _) => call_or_column(tokens, depth),
        _ => None,
    }
}

/// Returns the name of an expression that is one word.
fn word(token: &Token<'_>) -> Option<(Strength, String)> {
    match token.kind {
        TokenKind::Word if is_constant(token) => None,
        _ => Some((Strong, token.folded())),
    }
}

fn is_constant(token: &Token<'_>) -> bool {
    ["null", "default", "true", "false"].iter().any(|word| token.is(word))
}

/// Returns the name of CASE: that of the expression after ELSE, if that has a strong one.
fn case(tokens: &[Token<'_>], depth: u32) -> Option<(Strength, String)> {
    let (mut cases, mut otherwise) = (0usize, None);
    for (index, token) in tokens.iter().enumerate() {
        if token.is("case") {
            cases += 1;
        } else if token.is("else") && cases == 1 {
            otherwise = Some(index);
        } else if token.is("end") {
            cases = cases.saturating_sub(1);
            if cases == 0 {
                // An operator or a cast follows.
                match tokens.get(index + 1) {
                    Some(cast) if cast.sign("::") => {
                        let name = type_name(&tokens[index + 2..])?;
                        return Some((Weak, name))
                            .filter(|_| operators(&tokens[index + 2..]).is_empty());
                    }
                    Some(_) => return None,
                    None => (),
                }
            }
        }
    }
    // ELSE may be the last word of a text that is no SQL.
    let last = otherwise.and_then(|at| tokens.get(at + 1..tokens.len() - 1));
    let last = last.and_then(|tokens| figure(tokens, depth + 1));
    match last {
        Some((Strong, name)) => Some((Strong, name)),
        _ => Some((Weak, "case".to_owned())),
    }
}

fn is_at(token: &Token<'_>) -> bool {
    token.is("at")
}

/// Returns the operators that are in no parentheses and in no CASE, with their places.
fn operators<'a>(tokens: &[Token<'a>]) -> Vec<(usize, Token<'a>)> {
    const WORDS: [&str; 14] = [
        "and", "or", "not", "is", "isnull", "notnull", "in", "like", "ilike", "similar", "between",
        "collate", "at", "escape",
    ];
    let mut depth = 0usize;
    let mut found = Vec::new();
    for (index, token) in tokens.iter().enumerate() {
        match token.text {
            "(" | "[" => depth += 1,
            ")" | "]" => depth = depth.saturating_sub(1),
            _ if token.is("case") => depth += 1,
            _ if token.is("end") => depth = depth.saturating_sub(1),
            _ if depth > 0 || token.sign(".") => (),
            _ if token.is("at") && !tokens.get(index + 1).is_some_and(|next| next.is("time")) => (),
            _ if token.kind == TokenKind::Sign || WORDS.iter().any(|word| token.is(word)) => {
                found.push((index, *token));
            }
            _ => (),
        }
    }
    found
}

/// Returns the name of a call or a column: the last of the names that dots join.
fn call_or_column(tokens: &[Token<'_>], depth: u32) -> Option<(Strength, String)> {
    let mut at = 0;
    while tokens.get(at + 1).is_some_and(|dot| dot.sign(".")) {
        at += 2;
    }
    let name = tokens.get(at)?;
    let Some(open) = tokens.get(at + 1) else { return Some((Strong, name.folded())) };
    if open.sign("[") {
        return Some((Strong, name.folded()));
    }
    if !open.sign("(") {
        return None;
    }
    let inner = &tokens[at + 2..];
    let is_first = |word| inner.first().is_some_and(|token| token.is(word));
    let function = name.folded();
    if function == "cast" {
        let inner = &inner[..inner.len().checked_sub(1)?];
        let r#as = inner.iter().rposition(|token| token.is("as"))?;
        return match figure(&inner[..r#as], depth + 1) {
            Some((Strong, name)) => Some((Strong, name)),
            _ => Some((Weak, type_name(&inner[r#as + 1..])?)),
        };
    }
    let function = match function.as_str() {
        "trim" if is_first("leading") => "ltrim".to_owned(),
        "trim" if is_first("trailing") => "rtrim".to_owned(),
        "trim" => "btrim".to_owned(),
        _ => function,
    };
    Some((Strong, function))
}

/// Returns the name that PostgreSQL has for a type.
fn type_name(tokens: &[Token<'_>]) -> Option<String> {
    let at = match tokens {
        [schema, dot, ..] if schema.is_name() && dot.sign(".") => 2,
        _ => 0,
    };
    let name = tokens.get(at).filter(|token| token.is_name())?.folded();
    let has = |word| tokens.iter().any(|token| token.is(word));
    let known = match name.as_str() {
        "int" | "integer" => "int4",
        "bigint" => "int8",
        "smallint" => "int2",
        "real" => "float4",
        "float" => match types::by_name(&tokens[at..].iter().map(|t| t.text).collect::<String>()) {
            types::FLOAT4 => "float4",
            _ => "float8",
        },
        "double" => "float8",
        "boolean" => "bool",
        "decimal" | "dec" => "numeric",
        "character" | "char" | "nchar" if has("varying") => "varchar",
        "character" | "char" | "nchar" => "bpchar",
        "bit" if has("varying") => "varbit",
        "timestamp" if has("with") => "timestamptz",
        "time" if has("with") => "timetz",
        _ => return Some(name),
    };
    Some(known.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::tokens::tokens;
    use super::*;

    fn names(source: &str) -> Vec<String> {
        let name = |title: &Title| match title {
            Title::Star => "*".to_owned(),
            Title::Name(name) => name.clone(),
        };
        titles(&tokens(source).unwrap()).iter().map(name).collect()
    }

    fn check(cases: &[(&str, &str)]) {
        for (expression, name) in cases {
            assert_eq!(names(&format!("select {expression} from t")), [*name], "{expression}");
            assert_eq!(names(&format!("select {expression}")), [*name], "{expression}");
        }
    }

    #[test]
    fn an_expression_has_the_name_that_postgresql_gives_it() {
        let cases = [
            ("1", "?column?"),
            ("-1", "?column?"),
            ("null", "?column?"),
            ("true", "?column?"),
            ("'a'", "?column?"),
            ("$1", "?column?"),
            ("a", "a"),
            ("A", "a"),
            ("\"A\"", "A"),
            ("t.a", "a"),
            ("a + 1", "?column?"),
            ("a AS B", "b"),
            ("a b", "b"),
            ("1 as \"One\"", "One"),
            ("a is null", "?column?"),
            ("not a", "?column?"),
            ("a is distinct from b", "?column?"),
            ("count(*)", "count"),
            ("count(*)::int", "count"),
            ("count(*) filter (where a)", "count"),
            ("sum(a) over (order by b)", "sum"),
            ("1::int", "int4"),
            ("a::int", "a"),
            ("(a)::int", "a"),
            ("1::int::text", "text"),
            ("1 + 2::int", "?column?"),
            ("'1'::double precision", "float8"),
            ("'1'::character varying(3)", "varchar"),
            ("'x'::timestamp with time zone", "timestamptz"),
            ("'x'::timestamp with time zone y", "y"),
            ("cast(1 as bigint)", "int8"),
            ("cast(a as bigint)", "a"),
            ("date '2020-01-01'", "date"),
            ("interval '1' day", "interval"),
            ("case a when 1 then 2 end", "case"),
            ("case when a then 1 else b end", "b"),
            ("case when a then 1 else 'x' end", "case"),
            ("(case when a then 1 else)", "case"),
            ("case when a then 1 end::int", "int4"),
            ("case when a then 1 end + 1", "?column?"),
            ("case when a then 1 end c", "c"),
            ("(select max(a) from t)", "max"),
            ("(select 1)", "?column?"),
            ("exists (select 1)", "exists"),
            ("(1, 2)", "row"),
        ];
        check(&cases);
    }

    #[test]
    fn a_function_that_has_a_syntax_of_its_own_gives_its_name() {
        let cases = [
            ("trim(a)", "btrim"),
            ("trim(leading 'x' from a)", "ltrim"),
            ("extract(year from a)", "extract"),
            ("a at time zone 'UTC'", "timezone"),
            ("at::date", "at"),
            ("current_date", "current_date"),
            ("pg_catalog.version()", "version"),
            ("nullif(a, b)", "nullif"),
            ("a[1]", "a"),
            ("array[1, 2]", "array"),
            ("a collate \"C\"", "a"),
        ];
        check(&cases);
    }

    #[test]
    fn the_select_list_is_found_in_every_statement_that_has_columns() {
        let cases = [
            ("select a, (b), c(d, e)", "a b c"),
            ("select distinct on (a, b) c, d from t", "c d"),
            ("select all a union select b", "a"),
            ("(select a) union (select b)", "a"),
            ("with w as (select 1 as x) select y from w", "y"),
            ("insert into t (a) select b from u returning c, *", "c *"),
            ("update t set a = 1 returning t.*, a + 1", "* ?column?"),
            ("delete from t", ""),
            ("create table t as select a", ""),
            ("explain select a", ""),
            ("values (1)", ""),
        ];
        for (source, expected) in cases {
            assert_eq!(names(source).join(" "), expected, "{source}");
        }
    }

    #[test]
    fn names_after_a_star_are_counted_from_the_end() {
        let given = |source: &str, count: usize| {
            let mut columns: Vec<_> = (0..count).map(|n| n.to_string()).collect();
            entitle(&titles(&tokens(source).unwrap()), columns.iter_mut().collect());
            columns.join(" ")
        };
        assert_eq!(given("select a, *, b, c", 6), "a 1 2 3 b c");
        assert_eq!(given("select a, *, *", 5), "0 1 2 3 4");
        assert_eq!(given("select a, b", 3), "0 1 2");
        assert_eq!(given("select a, *, b", 1), "0");
        assert_eq!(given("select *, b", 1), "b");
    }

    #[test]
    fn deep_nesting_ends() {
        let nested = format!("select {}a{}", "(".repeat(5000), ")".repeat(5000));
        assert_eq!(names(&nested), ["?column?"]);
    }
}
