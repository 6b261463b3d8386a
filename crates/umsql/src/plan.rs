//! A prepared statement: what was recognised in its text, and the types of its parameters.
//!
//! SQLite gives types to values only. What a client must know before it sends a parameter or reads a
//! result is therefore found in this order: what the client declared, a cast, the declaration of a column
//! next to it, the rules for operators and functions below, and last (for results) a value.
//!
//! What it does not do: execute.

use rusqlite::types::Value;
use rusqlite::{Connection, Statement as Prepared};

use crate::dialect::Statement;
use crate::dialect::tokens::{Kind, Token, statements, tokens};
use crate::dialect::{statement, tokens as lexer};
use crate::error::{Result, SqlError};
use crate::wire::types::{self, Column};

/// The most parameters a statement can have on the wire.
const PARAMETERS_MAX: usize = 65_535;

/// A statement that is ready to be bound.
#[derive(Debug)]
pub(crate) struct Plan {
    /// None for an empty text.
    pub(crate) statement: Option<Statement>,
    /// The types of its parameters.
    pub(crate) types: Box<[u32]>,
}

impl Plan {
    /// Makes the plan for `text`; `declared` are the types the client gave, zero where it gave none.
    pub(crate) fn new(text: &str, declared: &[u32], db: &Connection) -> Result<Plan> {
        let list = tokens(text)?;
        let all = statements(&list);
        let [tokens] = all[..] else {
            if all.is_empty() {
                return Ok(Plan { statement: None, types: declared.into() });
            }
            return Err(SqlError::syntax(
                "cannot insert multiple commands into a prepared statement",
            ));
        };
        let statement = statement::recognise(tokens, text)?;
        let types = parameter_types(tokens, declared, &Names::new(db, tokens))?;
        Ok(Plan { statement: Some(statement), types })
    }
}

/// The number of a `$n` token.
fn number(token: &Token<'_>) -> Option<usize> {
    if token.kind == Kind::Param { token.text[1..].parse().ok() } else { None }
}

fn parameter_types(
    tokens: &[Token<'_>],
    declared: &[u32],
    names: &Names<'_>,
) -> Result<Box<[u32]>> {
    let count = tokens.iter().filter_map(number).max().unwrap_or(0).max(declared.len());
    if count > PARAMETERS_MAX
        || tokens.iter().any(|t| t.kind == Kind::Param && number(t) == Some(0))
    {
        return Err(SqlError::new("42P02", "there is no such parameter"));
    }
    let mut found = vec![0; count];
    found[..declared.len()].copy_from_slice(declared);
    found.iter_mut().filter(|oid| **oid == types::UNKNOWN).for_each(|oid| *oid = types::TEXT);
    if found.contains(&0) {
        let inserted = inserted_columns(tokens, names);
        for (index, token) in tokens.iter().enumerate() {
            let Some(number) = number(token) else { continue };
            if found[number - 1] == 0 {
                let here = inserted.iter().find(|(at, _)| *at == index).map(|(_, oid)| *oid);
                found[number - 1] = here.or_else(|| beside(tokens, index, names)).unwrap_or(0);
            }
        }
    }
    found.iter_mut().filter(|oid| **oid == 0).for_each(|oid| *oid = types::TEXT);
    Ok(found.into())
}

/// The type of a parameter by what stands beside it.
fn beside(tokens: &[Token<'_>], at: usize, names: &Names<'_>) -> Option<u32> {
    let back = |steps: usize| at.checked_sub(steps).and_then(|index| tokens.get(index));
    let after = |steps: usize| tokens.get(at + steps);
    if after(1).is_some_and(|token| token.sign("::"))
        || after(1).is_some_and(|token| token.is("as"))
    {
        let cast = after(1)?.sign("::") || back(2).is_some_and(|token| token.is("cast"));
        return cast.then(|| type_at(&tokens[at + 2..])).flatten();
    }
    let before = back(1)?;
    if before.is("limit") || before.is("offset") {
        return Some(types::INT8);
    }
    if before.is("between") {
        return names.operand(back(2)?);
    }
    if before.is("and") && back(3).is_some_and(|token| token.is("between")) {
        return names.operand(back(4)?);
    }
    if is_operator(before) {
        return names.operand(back(2)?);
    }
    if let Some(sign) = after(1).filter(|sign| is_operator(sign)) {
        // A qualified name ends at its last part.
        let mut index = at + 2;
        while tokens.get(index + 1).is_some_and(|token| token.sign(".")) {
            index += 2;
        }
        return if sign.text.is_empty() { None } else { names.operand(tokens.get(index)?) };
    }
    // `x IN ($1, $2)` and `f($1)`.
    let open = (0..at)
        .rev()
        .find(|index| !tokens[*index].sign(",") && number(&tokens[*index]).is_none())?;
    if !tokens[open].sign("(") || open == 0 {
        return None;
    }
    match tokens[open - 1].text.to_ascii_lowercase().as_str() {
        "in" => {
            let not = usize::from(open >= 2 && tokens[open - 2].is("not"));
            names.operand(tokens.get(open.checked_sub(2 + not)?)?)
        }
        "pg_sleep" => Some(types::FLOAT8),
        "preemptive_sleep" | "generate_series" => Some(types::INT4),
        _ => None,
    }
}

fn is_operator(token: &Token<'_>) -> bool {
    const SIGNS: [&str; 13] =
        ["=", "<", ">", "<=", ">=", "<>", "!=", "+", "-", "*", "/", "%", "=="];
    SIGNS.iter().any(|sign| token.sign(sign)) || token.is("like") || token.is("ilike")
}

/// The type whose name the tokens begin with.
fn type_at(tokens: &[Token<'_>]) -> Option<u32> {
    let skip = if tokens.first()?.is("pg_catalog") { 2 } else { 0 };
    let first = tokens.get(skip).filter(|token| token.is_name())?;
    let zoned = tokens.get(skip + 1).is_some_and(|token| token.is("with"));
    Some(match first.text.to_ascii_lowercase().as_str() {
        "double" => types::FLOAT8,
        "timestamp" if zoned => types::TIMESTAMPTZ,
        name => types::by_name(name),
    })
}

/// For `INSERT INTO t (a, b) VALUES ($1, $2), ..`: the parameters that stand alone, each with the type of
/// the column it goes to.
fn inserted_columns(tokens: &[Token<'_>], names: &Names<'_>) -> Vec<(usize, u32)> {
    let mut found = Vec::new();
    let into = tokens.iter().position(|token| token.is("into"));
    let values = tokens.iter().position(|token| token.is("values"));
    let (Some(into), Some(values)) = (into, values) else { return found };
    if !tokens[0].is("insert") || values < into + 2 {
        return found;
    }
    let Some(open) = tokens[into..values].iter().position(|token| token.sign("(")) else {
        return match tokens[into + 1..values].iter().rfind(|token| token.is_name()) {
            Some(table) => place(tokens, values, &names.columns_of(&table.name())),
            None => found,
        };
    };
    let listed = tokens[into + open..values].iter().filter(|token| token.is_name());
    let columns: Vec<u32> =
        listed.map(|t| names.column(&t.name()).unwrap_or(types::TEXT)).collect();
    found.extend(place(tokens, values, &columns));
    found
}

fn place(tokens: &[Token<'_>], values: usize, columns: &[u32]) -> Vec<(usize, u32)> {
    let (mut depth, mut column) = (0usize, 0);
    let mut found = Vec::new();
    for (index, token) in tokens.iter().enumerate().skip(values) {
        match token.text {
            "(" => {
                depth += 1;
                column = if depth == 1 { 0 } else { column };
            }
            ")" => depth = depth.saturating_sub(1),
            "," if depth == 1 => column += 1,
            _ if depth == 1 && token.kind == Kind::Param => {
                let alone = |side: Option<&Token<'_>>| side.is_some_and(|t| "(,)".contains(t.text));
                if alone(tokens.get(index - 1)) && alone(tokens.get(index + 1)) {
                    found.extend(columns.get(column).map(|oid| (index, *oid)));
                }
            }
            _ => (),
        }
    }
    found
}

/// Columns of the catalogue views that psql reads as truth values. A view's columns have no declaration.
const CATALOG_FLAGS: [&str; 26] = [
    "relhasindex",
    "relhasrules",
    "relhastriggers",
    "relrowsecurity",
    "relforcerowsecurity",
    "relispartition",
    "relhasoids",
    "attnotnull",
    "atthasdef",
    "attisdropped",
    "indisunique",
    "indisprimary",
    "indisclustered",
    "indisvalid",
    "indisreplident",
    "condeferrable",
    "condeferred",
    "rolsuper",
    "rolinherit",
    "rolcreaterole",
    "rolcreatedb",
    "rolcanlogin",
    "rolreplication",
    "rolbypassrls",
    "datallowconn",
    "datistemplate",
];

/// Looks names up among the columns of the tables a statement mentions.
struct Names<'a> {
    db: &'a Connection,
    tables: Vec<String>,
}

impl<'a> Names<'a> {
    fn new(db: &'a Connection, tokens: &[Token<'_>]) -> Names<'a> {
        let mut tables: Vec<String> = Vec::new();
        for (index, token) in tokens.iter().enumerate().skip(1) {
            let before = &tokens[index - 1];
            let introduces =
                ["from", "join", "into", "update", "only"].iter().any(|word| before.is(word));
            let lists = before.sign(",") || before.sign(".");
            let name = token.name();
            if token.is_name()
                && (introduces || lists)
                && !tables.contains(&name)
                && matches!(db.table_exists(None, name.as_str()), Ok(true))
            {
                tables.push(name);
            }
        }
        Names { db, tables }
    }

    fn column(&self, name: &str) -> Option<u32> {
        let found = self.tables.iter().find_map(|table| {
            let found = self.db.column_metadata(None, table.as_str(), name).ok()?;
            Some(types::by_name(found.0?.to_str().ok()?))
        });
        found.or_else(|| CATALOG_FLAGS.contains(&name).then_some(types::BOOL))
    }

    fn columns_of(&self, table: &str) -> Vec<u32> {
        let text = format!("SELECT * FROM \"{}\"", table.replace('"', "\"\""));
        let Ok(prepared) = self.db.prepare_cached(&text) else { return Vec::new() };
        prepared.columns().map(|c| c.decl_type().map_or(types::TEXT, types::by_name)).collect()
    }

    /// The type of an operand that is one token.
    fn operand(&self, token: &Token<'_>) -> Option<u32> {
        match token.kind {
            Kind::Number if token.text.contains(['.', 'e']) => Some(types::FLOAT8),
            Kind::Number => match token.text.parse::<i64>() {
                Ok(int) if i32::try_from(int).is_ok() => Some(types::INT4),
                _ => Some(types::INT8),
            },
            Kind::Word | Kind::Quoted => self.column(&token.name()),
            Kind::Text => Some(types::TEXT),
            _ => None,
        }
    }
}

/// The columns of a prepared statement: their names, and their types where those are known without a value.
pub(crate) fn columns(
    prepared: &Prepared<'_>,
    text: &str,
    parameters: &[u32],
    db: &Connection,
) -> Vec<(String, Option<u32>)> {
    let mut columns: Vec<(String, Option<u32>)> = prepared
        .columns()
        .map(|column| (column.name().to_owned(), column.decl_type().map(types::by_name)))
        .collect();
    if columns.iter().any(|(_, oid)| oid.is_none())
        && let Ok(tokens) = lexer::tokens(text)
    {
        let names = Names::new(db, &tokens);
        let items = result_items(&tokens);
        let known = items.len() == columns.len();
        for (index, column) in columns.iter_mut().enumerate() {
            if column.1.is_none() {
                column.1 = match items.get(index).filter(|_| known) {
                    Some(item) => expression(without_alias(item), parameters, &names),
                    None => names.column(&column.0),
                };
            }
            // SQLite names a column after its text; PostgreSQL names it after the function.
            if let Some(item) = items.get(index).filter(|_| known) {
                rename(&mut column.0, item);
            }
        }
    }
    columns
}

fn rename(name: &mut String, item: &[Token<'_>]) {
    if item.iter().map(|token| token.text.len()).sum::<usize>() > name.len() || item.len() < 2 {
        if item.len() == 1 && !item[0].is_name() && name.as_str() == item[0].text {
            "?column?".clone_into(name);
        }
        return;
    }
    if without_alias(item).len() != item.len() {
        return;
    }
    *name = match item {
        [first, open, ..] if first.is("cast") && open.sign("(") => match item.get(2..4) {
            Some([inner, r#as]) if inner.is_name() && r#as.is("as") => inner.name(),
            _ => item.iter().rev().nth(1).map_or_else(String::new, |token| token.text.to_owned()),
        },
        [function, open, ..] if function.kind == Kind::Word && open.sign("(") => {
            function.text.to_ascii_lowercase()
        }
        [.., dot, last] if dot.sign(".") => last.name(),
        _ => "?column?".to_owned(),
    };
}

/// The items between SELECT and FROM, or behind RETURNING. Empty when an item is a star.
fn result_items<'t, 'a>(tokens: &'t [Token<'a>]) -> Vec<&'t [Token<'a>]> {
    let mut depth = 0usize;
    let mut items = Vec::new();
    let mut start = None;
    for (index, token) in tokens.iter().enumerate() {
        match token.text {
            "(" => depth += 1,
            ")" => depth = depth.saturating_sub(1),
            _ if depth > 0 => (),
            _ if start.is_none() && (token.is("select") || token.is("returning")) => {
                let skip = tokens.get(index + 1).is_some_and(|t| t.is("distinct") || t.is("all"));
                start = Some(index + 1 + usize::from(skip));
            }
            "," => {
                if let Some(from) = start {
                    items.push(&tokens[from.min(index)..index]);
                    start = Some(index + 1);
                }
            }
            _ if ends_items(token) => {
                if let Some(from) = start {
                    items.push(&tokens[from.min(index)..index]);
                    return star_free(items);
                }
            }
            _ => (),
        }
    }
    items.extend(start.filter(|from| *from < tokens.len()).map(|from| &tokens[from..]));
    star_free(items)
}

fn ends_items(token: &Token<'_>) -> bool {
    const WORDS: [&str; 9] =
        ["from", "where", "group", "having", "order", "limit", "union", "except", "intersect"];
    WORDS.iter().any(|word| token.is(word))
}

fn star_free<'t, 'a>(items: Vec<&'t [Token<'a>]>) -> Vec<&'t [Token<'a>]> {
    let star = |item: &&[Token<'_>]| match item {
        [.., last] => last.sign("*"),
        [] => true,
    };
    if items.iter().any(star) { Vec::new() } else { items }
}

fn without_alias<'t, 'a>(item: &'t [Token<'a>]) -> &'t [Token<'a>] {
    match item {
        [rest @ .., r#as, name] if r#as.is("as") && name.is_name() => rest,
        [rest @ .., last, name]
            if name.is_name()
                && !name.is("end")
                && (last.sign(")")
                    || last.is_name()
                    || matches!(last.kind, Kind::Number | Kind::Text)) =>
        {
            // `a b` names an item; `NOT b` does not.
            if last.is("not") || last.is("is") || last.is("null") {
                item
            } else {
                &item[..rest.len() + 1]
            }
        }
        _ => item,
    }
}

/// The type of an expression, where a simple rule tells it.
fn expression(item: &[Token<'_>], parameters: &[u32], names: &Names<'_>) -> Option<u32> {
    if item.is_empty() || item[0].is("case") || item[0].is("select") {
        return None;
    }
    let mut depth = 0usize;
    let mut operands = Vec::new();
    let mut start = 0;
    for (index, token) in item.iter().enumerate() {
        match token.text {
            "(" => depth += 1,
            ")" => depth = depth.saturating_sub(1),
            _ if depth > 0 => (),
            "=" | "<" | ">" | "<=" | ">=" | "<>" | "!=" | "==" => return Some(types::BOOL),
            "||" => return Some(types::TEXT),
            "+" | "-" | "*" | "/" | "%" => {
                if index > start {
                    operands.push(&item[start..index]);
                }
                start = index + 1;
            }
            _ if ["and", "or", "not", "is", "in", "like", "between", "exists", "regexp"]
                .iter()
                .any(|word| token.is(word)) =>
            {
                return Some(types::BOOL);
            }
            _ => (),
        }
    }
    operands.push(&item[start..]);
    let mut kinds = operands.iter().map(|tokens| operand(tokens, parameters, names));
    if operands.len() == 1 {
        return kinds.next()?;
    }
    // Arithmetic: the widest of the operands.
    let rank = |oid: u32| match oid {
        types::INT2 => Some(0),
        types::INT4 => Some(1),
        types::INT8 => Some(2),
        types::NUMERIC => Some(3),
        types::FLOAT4 => Some(4),
        types::FLOAT8 => Some(5),
        _ => None,
    };
    kinds.try_fold(types::INT2, |widest, kind| {
        let kind = kind?;
        if rank(kind)? > rank(widest)? { Some(kind) } else { Some(widest) }
    })
}

/// The type of one operand: a literal, a column, a parameter, a cast, or a call.
fn operand(tokens: &[Token<'_>], parameters: &[u32], names: &Names<'_>) -> Option<u32> {
    match tokens {
        [one] if one.kind == Kind::Param => parameters.get(number(one)?.checked_sub(1)?).copied(),
        [one] if one.is("true") || one.is("false") => Some(types::BOOL),
        [one] if one.is("current_timestamp") => Some(types::TIMESTAMPTZ),
        [one] if one.is("current_date") => Some(types::DATE),
        [one] if one.is("null") => Some(types::TEXT),
        [one] => names.operand(one),
        [.., dot, last] if dot.sign(".") => names.column(&last.name()),
        [cast, open, inner @ .., close] if cast.is("cast") && open.sign("(") && close.sign(")") => {
            let r#as = inner.iter().rposition(|token| token.is("as"))?;
            type_at(&inner[r#as + 1..])
        }
        [open, inner @ .., close] if open.sign("(") && close.sign(")") => {
            expression(inner, parameters, names)
        }
        [function, open, inner @ .., _] if open.sign("(") => {
            let inner = inner.split(|token| token.sign(",")).next().unwrap_or(inner);
            call(&function.text.to_ascii_lowercase(), || expression(inner, parameters, names))
        }
        _ => None,
    }
}

fn call(function: &str, first: impl Fn() -> Option<u32>) -> Option<u32> {
    match function {
        "count" | "row_number" | "rank" | "dense_rank" | "ntile" | "random" | "changes" => {
            Some(types::INT8)
        }
        "length" | "instr" | "unicode" | "sign" | "preemptive_sleep" => Some(types::INT4),
        "avg" | "total" | "julianday" | "sqrt" | "ln" | "exp" | "power" => Some(types::FLOAT8),
        "lower" | "upper" | "substr" | "substring" | "trim" | "replace" | "hex" | "quote"
        | "typeof" | "group_concat" | "string_agg" | "printf" | "format" | "version"
        | "current_database" | "current_user" | "current_schema" | "strftime" | "time" => {
            Some(types::TEXT)
        }
        "date" => Some(types::DATE),
        "datetime" => Some(types::TIMESTAMP),
        "now" | "clock_timestamp" | "statement_timestamp" | "transaction_timestamp" => {
            Some(types::TIMESTAMPTZ)
        }
        "pg_bool" | "pg_is_in_recovery" | "pg_table_is_visible" => Some(types::BOOL),
        "pg_sleep" => Some(types::VOID),
        "max" | "min" | "coalesce" | "ifnull" | "nullif" | "abs" | "lag" | "lead" => first(),
        "sum" => first().map(|oid| match oid {
            types::INT2 | types::INT4 => types::INT8,
            other => other,
        }),
        _ => None,
    }
}

/// A value of that type, to try a statement with.
pub(crate) fn sample(oid: u32) -> Value {
    match oid {
        types::INT2 | types::INT4 | types::INT8 | types::OID | types::BOOL => Value::Integer(1),
        types::FLOAT4 | types::FLOAT8 | types::NUMERIC => Value::Real(1.0),
        types::BYTEA => Value::Blob(Vec::new()),
        _ => Value::Text(String::new()),
    }
}

/// Gives every column a type and a format; `value` is the first row's, where there is one.
pub(crate) fn settle(
    columns: Vec<(String, Option<u32>)>,
    formats: &[u16],
    mut value: impl FnMut(usize) -> Option<u32>,
) -> Vec<Column> {
    let typed = columns.into_iter().enumerate().map(|(index, (name, oid))| Column {
        name,
        oid: oid.or_else(|| value(index)).unwrap_or(types::TEXT),
        format: crate::wire::message::format_of(formats, index),
    });
    typed.collect()
}
