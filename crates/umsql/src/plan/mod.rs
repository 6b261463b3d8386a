//! A prepared statement: what was recognised in its text, and the types of its parameters.
//!
//! SQLite gives types to values only. What a client must know before it sends a parameter or reads
//! a result is therefore found in this order: what the client declared, a cast, the declaration of
//! a column next to it, the rules for operators and functions below, and last (for results) a
//! value.
//!
//! What it does not do: execute.

mod results;

use std::sync::OnceLock;

use rusqlite::Connection;
use rusqlite::types::Value;

use crate::dialect::Statement;
use crate::dialect::statement;
use crate::dialect::tokens::{Kind, Token, statements, tokens};
use crate::error::{Result, SqlError};
use crate::wire::types::{self, Column};

pub(crate) use results::columns;

/// The most parameters a statement can have on the wire.
const PARAMETERS_MAX: usize = 65_535;

/// A statement that is ready to be bound.
#[derive(Debug)]
pub(crate) struct Plan {
    /// None for an empty text.
    pub(crate) statement: Option<Statement>,
    /// The types of its parameters.
    pub(crate) types: Box<[u32]>,
    /// Its columns as they were described before it was bound; executions keep to that.
    pub(crate) described: OnceLock<Box<[Column]>>,
    /// How long its text was: about the memory that it takes.
    pub(crate) size: usize,
}

impl Plan {
    /// Makes the plan for `text`; `declared` are the types the client gave, zero where it gave
    /// none.
    pub(crate) fn new(text: &str, declared: &[u32], db: &Connection) -> Result<Plan> {
        let list = tokens(text)?;
        let all = statements(&list);
        let [tokens] = all[..] else {
            if all.is_empty() {
                return Ok(Plan {
                    statement: None,
                    types: declared.into(),
                    described: OnceLock::new(),
                    size: text.len(),
                });
            }
            return Err(SqlError::syntax(
                "cannot insert multiple commands into a prepared statement",
            ));
        };
        let statement = statement::recognise(tokens, text)?;
        let types = parameter_types(tokens, declared, &Names::new(db, tokens))?;
        let (described, size) = (OnceLock::new(), text.len());
        Ok(Plan { statement: Some(statement), types, described, size })
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
        // The parenthesis that opened the list of literals and parameters we are in.
        let mut list = None;
        for (index, token) in tokens.iter().enumerate() {
            if token.sign("(") {
                list = Some(index);
            } else if !(token.sign(",") || matches!(token.kind, Kind::Number | Kind::Param)) {
                list = None;
            }
            let Some(number) = number(token) else { continue };
            if found[number - 1] == 0 {
                let here = inserted.binary_search_by_key(&index, |(at, _)| *at);
                let here = here.ok().map(|at| inserted[at].1);
                found[number - 1] =
                    here.or_else(|| beside(tokens, index, list, names)).unwrap_or(0);
            }
        }
    }
    found.iter_mut().filter(|oid| **oid == 0).for_each(|oid| *oid = types::TEXT);
    Ok(found.into())
}

/// The type of a parameter by what stands beside it; `list` is where the list begins that it is in.
fn beside(tokens: &[Token<'_>], at: usize, list: Option<usize>, names: &Names<'_>) -> Option<u32> {
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
    // `x IN ($1, 2)` and `f($1)`.
    let open = list.filter(|open| *open > 0)?;
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

/// For `INSERT INTO t (a, b) VALUES ($1, $2), ..`: the parameters that stand alone, each with the
/// type of the column it goes to.
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

/// Columns of the catalogue views that psql reads as truth values. A view's columns have no
/// declaration.
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
