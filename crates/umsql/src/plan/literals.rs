//! Literals in quotes, which have the type of the column beside them.
//!
//! ```text
//!   insert into q values ('t')     boolean column    ──▶  true
//!   where c = 'ab   '              char column       ──▶  'ab', as it is stored
//!   where n = 'x'                  integer column         refused: 22P02
//! ```
//!
//! Only literals beside a column of a table are read. The column must be certain: a name that the
//! statement itself gives, or that two tables declare differently, changes nothing.

use rusqlite::Connection;
use rusqlite::types::{Value, ValueRef};

use super::names::Names;
use super::parameters::implied;
use crate::dialect::Edits;
use crate::dialect::tokens::{Token, TokenKind};
use crate::engine::assigned;
use crate::error::{Result, SqlError};
use crate::wire::types;

/// Returns whether [`read_literals`] could change something in the statement, or refuse it.
pub(super) fn has_literals(tokens: &[Token<'_>]) -> bool {
    let verbs = ["insert", "update", "select", "delete", "with"];
    verbs.iter().any(|word| tokens[0].is(word))
        && tokens.iter().any(|token| token.kind == TokenKind::Text)
}

/// Marks the literals of the statement that mean a truth value. Returns what is written in place of
/// others.
///
/// # Errors
/// 22P02 or 22003 if a literal beside a column is no value of the column's type.
pub(super) fn read_literals(tokens: &mut [Token<'_>], db: &Connection) -> Result<Edits> {
    let names = Names::certain(db, tokens);
    let (mut truths, mut edits, mut refused) = (Vec::new(), Edits::default(), None);
    implied(tokens, &names, TokenKind::Text, |index, implied| {
        let token = &tokens[index];
        match implied().filter(|_| refused.is_none()) {
            None => (),
            Some(types::BOOL) => truths.push(index),
            Some(oid) => match (read(&token.value(), oid), is_compared(tokens, index)) {
                // In a list, or between two values.
                (Ok(Some(text)), false) if is_time(oid) && !is_part(tokens, index) => {
                    edits.instead(token, text);
                }
                (Ok(Some(text)), true) => edits.instead(token, text),
                (Err(error), true) => {
                    refused = Some(SqlError { offset: Some(token.at), ..error });
                }
                _ => (),
            },
        }
    });
    if let Some(error) = refused {
        return Err(error);
    }
    for index in truths {
        let token = &mut tokens[index];
        let value = token.value();
        if types::truth(&value).is_none() {
            let message = format!("invalid input syntax for type boolean: \"{value:.40}\"");
            let error = SqlError::new("22P02", message);
            return Err(SqlError { offset: Some(token.at), ..error });
        }
        token.kind = TokenKind::Truth;
    }
    Ok(edits)
}

fn is_time(oid: u32) -> bool {
    matches!(oid, types::DATE | types::TIMESTAMP | types::TIMESTAMPTZ)
}

/// Returns whether this literal is a part of an expression or a cast.
fn is_part(tokens: &[Token<'_>], index: usize) -> bool {
    tokens.get(index + 1).is_some_and(|next| {
        next.is("as") || ["::", "||", "->", "->>"].iter().any(|sign| next.sign(sign))
    })
}

/// Returns whether this literal is compared with one name. In `n || 'x' = 'y'` that is not `n`.
fn is_compared(tokens: &[Token<'_>], index: usize) -> bool {
    const SIGNS: [&str; 7] = ["=", "<", ">", "<=", ">=", "<>", "!="];
    let is_sign = |at: Option<usize>| {
        at.and_then(|at| tokens.get(at)).is_some_and(|t| SIGNS.iter().any(|sign| t.sign(sign)))
    };
    let stands = |token: &Token<'_>, bracket: &str| {
        token.sign(bracket) || token.sign(",") || token.kind == TokenKind::Word
    };
    let begins = |at: usize| {
        let before = at.checked_sub(1).map(|before| &tokens[before]);
        // A name of a type, as in `date '2026-01-01'`, is a part of the literal.
        before
            .is_none_or(|before| stands(before, "(") && types::by_name(before.text) == types::TEXT)
    };
    let ends = |at: usize| tokens.get(at + 1).is_none_or(|next| stands(next, ")"));
    let is_dot = |at: usize| tokens.get(at).is_some_and(|token| token.sign("."));
    if is_sign(index.checked_sub(1)) && index >= 2 {
        let mut name = index - 2;
        while name >= 2 && is_dot(name - 1) {
            name -= 2;
        }
        return tokens[name].is_name() && begins(name) && ends(index);
    }
    let mut name = index + 2;
    while is_dot(name + 1) {
        name += 2;
    }
    is_sign(Some(index + 1)) && begins(index) && ends(name)
}

/// Returns the literal with which a value of this type is compared, if it is another one.
fn read(literal: &str, oid: u32) -> Result<Option<String>> {
    let value = || Ok::<_, SqlError>(assigned(ValueRef::Text(literal.as_bytes()), oid, -1)?);
    Ok(match oid {
        types::INT2 | types::INT4 | types::INT8 | types::NUMERIC => {
            value()?;
            None
        }
        types::FLOAT4 | types::FLOAT8 => match value()? {
            Value::Real(real) if real.is_infinite() => {
                Some(if real > 0.0 { "9e999" } else { "-9e999" }.to_owned())
            }
            Value::Real(real) => (literal.trim().parse() != Ok(real)).then(|| format!("{real:?}")),
            _ => None,
        },
        types::BPCHAR => {
            let kept = literal.trim_end_matches(' ');
            (kept.len() < literal.len()).then(|| format!("'{}'", kept.replace('\'', "''")))
        }
        types::UUID | types::DATE | types::TIMESTAMP | types::TIMESTAMPTZ => match value()? {
            Value::Text(text) if text != literal => Some(format!("'{text}'")),
            _ => None,
        },
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::statement::recognise;
    use crate::dialect::tokens::tokens;
    use crate::dialect::{Sql, Statement};

    fn read_all(source: &str) -> std::result::Result<String, &'static str> {
        let db = Connection::open_in_memory().unwrap();
        db.execute_batch(
            "create table t(n int, r real, f float8, c char(5), u uuid, k boolean,
                 d date, z timestamptz)",
        )
        .unwrap();
        let mut list = tokens(source).unwrap();
        let edits = read_literals(&mut list, &db).map_err(|error| error.code)?;
        match recognise(&list, source, &edits).unwrap() {
            Statement::Sql(Sql { texts, .. }) => Ok(texts.into_iter().next().unwrap()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_literal_beside_a_column_is_read_as_a_value_of_its_type() {
        for (from, to) in [
            ("select 1 from t where c = 'a''  '", "select 1 from t where c = 'a'''"),
            ("select 1 from t where f = 'inf'", "select 1 from t where f = 9e999"),
            ("delete from t where r > '0.1'", "delete from t where r > 0.10000000149011612"),
            (
                "select 1 from t where u = '{A0EEBC999C0B4EF8BB6D6BB9BD380A11}'",
                "select 1 from t where u = 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'",
            ),
            (
                "select 1 from t where z = '2026-01-05 10:00+02' and d < '2026-01-05 10:00'",
                "select 1 from t where z = '2026-01-05 08:00:00+00' and d < '2026-01-05'",
            ),
            (
                "delete from t where z between '2026-01-05' and '2026-01-06' or d in ('x')",
                "delete from t where z between '2026-01-05 00:00:00+00' and \
                 '2026-01-06 00:00:00+00' or d in ('x')",
            ),
            ("select 1 from t where k = 'yes'", "select 1 from t where k = TRUE"),
            ("select 1 from t where n = ' 7 '", "select 1 from t where n = ' 7 '"),
            ("select 1 from t where c = 'a ' || c", "select 1 from t where c = 'a ' || c"),
        ] {
            assert_eq!(read_all(from).as_deref(), Ok(to));
        }
        for (source, code) in [
            ("select 1 from t where n = 'x'", "22P02"),
            ("update t set n = 1 where (t.n = '1.5')", "22P02"),
            ("select case when 'x' <> t.n then 1 end from t", "22P02"),
            ("delete from t where n < '99999999999'", "22003"),
            ("select 1 from t where f = 'x'", "22P02"),
            ("select 1 from t where u = 'x'", "22P02"),
            ("select 1 from t where k = 'x'", "22P02"),
            ("select 1 from t where d = 'someday'", "22007"),
        ] {
            assert_eq!(read_all(source), Err(code), "{source}");
        }
        for source in [
            "select 'x' as n from t where n = 'x'",
            "select 1 from t where c || n = 'x'",
            "select 1 from t where 'x' = n || c",
            "select date '2026-01-01' + n from t where date '2026-01-02' > n",
        ] {
            assert!(read_all(source).is_ok(), "{source}");
        }
    }
}
