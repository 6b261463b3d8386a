//! COPY: what a client has written. `crate::copy` carries it out, and `crate::copy_out` for
//! `TO STDOUT`.
//!
//! ```text
//!   COPY table (columns) FROM STDIN WITH (FORMAT csv, HEADER)
//!   COPY table (columns) TO STDOUT
//!   COPY (SELECT ..) TO STDOUT WITH (FORMAT csv, FORCE_QUOTE *)
//! ```

use super::prepare::text_of;
use super::reader::{Reader, near};
use super::tokens::{Token, closing};
use super::translate::quote;
use crate::error::{Result, SqlError};

/// The table of a COPY, and the form of its lines.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Copy {
    /// Empty for a query.
    pub(crate) table: String,
    pub(crate) columns: Vec<String>,
    pub(crate) csv: bool,
    pub(crate) header: bool,
    pub(crate) delimiter: u8,
    pub(crate) quote: u8,
    /// What is before a quote inside quotes.
    pub(crate) escape: u8,
    pub(crate) null: String,
    /// The columns whose values are always in quotes, if they are not NULL.
    pub(crate) force_quote: Forced,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Forced {
    All,
    Columns(Vec<String>),
}

/// `COPY .. TO STDOUT`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CopyOut {
    pub(crate) form: Copy,
    pub(crate) query: Query,
}

/// The query whose rows are copied.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Query {
    pub(crate) text: String,
    /// Where the text is in the client's query.
    pub(crate) at: usize,
}

/// Reads what follows COPY in the query `source`. Returns the query, if its rows go to the client.
pub(super) fn read(mut r: Reader<'_, '_>, source: &str) -> Result<(Copy, Option<Query>)> {
    let mut query = None;
    let (mut table, mut columns) = (String::new(), Vec::new());
    if let Some(open) = r.rest.first().filter(|token| token.sign("(")) {
        let close = closing(r.rest).ok_or_else(|| near(open))?;
        let inner = &r.rest[1..close];
        let Some(first) = inner.first() else { return Err(near(&r.rest[close])) };
        query = Some(Query { text: text_of(inner, source).to_owned(), at: first.at });
        r.rest = &r.rest[close + 1..];
    } else {
        table = r.table()?;
        if r.take(&["("]) {
            columns = names(&mut r)?;
        }
    }
    if r.take(&["to", "stdout"]) {
        query = query.or_else(|| Some(of_table(&table, &columns)));
    } else if query.is_some() || !r.take(&["from", "stdin"]) {
        return Err(SqlError::unsupported("COPY from or to a file is not supported")
            .hint("Write COPY .. FROM STDIN or TO STDOUT; psql's \\copy reads and writes files."));
    }
    let csv = is_csv(r.rest);
    let mut copy = Copy {
        table,
        columns,
        csv,
        header: false,
        delimiter: if csv { b',' } else { b'\t' },
        quote: b'"',
        escape: 0,
        null: if csv { String::new() } else { "\\N".into() },
        force_quote: Forced::Columns(Vec::new()),
    };
    while let Some((token, rest)) = r.rest.split_first() {
        r.rest = rest;
        option(&mut copy, token, &mut r, query.is_some())?;
    }
    if copy.escape == 0 {
        copy.escape = copy.quote;
    }
    Ok((copy, query))
}

fn of_table(table: &str, columns: &[String]) -> Query {
    let table = quote(table);
    // A name in quotes that is no column would be a text for SQLite, without its table.
    let columns: Vec<_> = columns.iter().map(|name| format!("{table}.{}", quote(name))).collect();
    let selected = if columns.is_empty() { "*".to_owned() } else { columns.join(", ") };
    Query { text: format!("SELECT {selected} FROM {table}"), at: 0 }
}

/// Returns whether an option says that the form is CSV, in quotes or without.
fn is_csv(options: &[Token<'_>]) -> bool {
    let named =
        |pair: &[Token<'_>]| pair[0].is("format") && pair[1].value().eq_ignore_ascii_case("csv");
    options.iter().any(|token| token.is("csv")) || options.windows(2).any(named)
}

/// Reads names up to a closing parenthesis, after the opening one.
fn names(r: &mut Reader<'_, '_>) -> Result<Vec<String>> {
    let mut names = vec![r.name()?];
    while r.take(&[","]) {
        names.push(r.name()?);
    }
    if !r.take(&[")"]) {
        return Err(r.end().err().unwrap_or_else(|| SqlError::syntax("syntax error in COPY")));
    }
    Ok(names)
}

fn option(copy: &mut Copy, token: &Token<'_>, r: &mut Reader<'_, '_>, is_out: bool) -> Result<()> {
    let one_byte = |r: &mut Reader<'_, '_>| {
        r.take(&["as"]);
        match r.next()?.value().as_bytes() {
            [byte] => Ok(*byte),
            _ => Err(SqlError::unsupported("COPY takes single one-byte characters for its signs")),
        }
    };
    let in_csv = |what: &str| match copy.csv {
        true => Ok(()),
        false => Err(SqlError::unsupported(format!("COPY {what} available only in CSV mode"))),
    };
    match token.text.to_ascii_lowercase().as_str() {
        "with" | "(" | ")" | "," | "csv" | "text" => (),
        "format" => check_format(&r.next()?.value())?,
        "header" if r.take(&["match"]) => {
            return Err(SqlError::unsupported("COPY HEADER MATCH is not supported"));
        }
        "freeze" | "header" => {
            let off = match r.rest.first().and_then(|t| crate::wire::types::truth(&t.value())) {
                Some(on) => {
                    r.next()?;
                    !on
                }
                None => false,
            };
            copy.header |= token.is("header") && !off;
        }
        "delimiter" | "delimiters" => copy.delimiter = one_byte(r)?,
        "quote" => {
            in_csv("quote")?;
            copy.quote = one_byte(r)?;
        }
        "escape" => {
            in_csv("escape")?;
            copy.escape = one_byte(r)?;
        }
        "null" => {
            r.take(&["as"]);
            copy.null = r.next()?.value();
        }
        "force_quote" if is_out => {
            in_csv("force quote")?;
            copy.force_quote = forced(r)?;
        }
        "force" | "force_null" | "force_not_null" | "force_quote" => {
            let what = token.text.to_ascii_uppercase();
            return Err(SqlError::unsupported(format!("COPY {what} is not supported")));
        }
        "encoding" => {
            r.next()?;
        }
        _ => return Err(near(token)),
    }
    Ok(())
}

fn check_format(format: &str) -> Result<()> {
    match format.to_ascii_lowercase().as_str() {
        "csv" | "text" => Ok(()),
        "binary" => Err(SqlError::unsupported("COPY in binary format is not supported")),
        _ => Err(SqlError::new("22023", format!("COPY format \"{format}\" not recognized"))),
    }
}

/// Reads `*`, or names in parentheses.
fn forced(r: &mut Reader<'_, '_>) -> Result<Forced> {
    if r.take(&["*"]) {
        Ok(Forced::All)
    } else if r.take(&["("]) {
        Ok(Forced::Columns(names(r)?))
    } else {
        Err(near(r.next()?))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tokens::tokens;
    use super::*;

    fn of(source: &str) -> Result<(Copy, Option<Query>)> {
        let tokens = tokens(source).unwrap();
        read(Reader::new(&tokens[1..]), source)
    }

    #[test]
    fn options_of_pgbench_psql_and_psycopg_are_read() {
        let (copy, _) = of("copy pgbench_accounts from stdin with (freeze on)").unwrap();
        assert_eq!((&*copy.table, copy.csv, copy.delimiter), ("pgbench_accounts", false, b'\t'));
        let sql =
            "COPY public.t (a, \"B\") FROM STDIN (FORMAT csv, HEADER, DELIMITER ';', NULL 'x')";
        let (copy, query) = of(sql).unwrap();
        assert_eq!((copy.columns, query), (vec!["a".to_owned(), "B".to_owned()], None));
        assert_eq!((copy.csv, copy.header, copy.delimiter, &*copy.null), (true, true, b';', "x"));
        let (copy, _) = of("copy t from stdin (format 'csv', escape '\\')").unwrap();
        assert_eq!((copy.csv, copy.quote, copy.escape), (true, b'"', b'\\'));
        for (sql, code) in [
            ("copy t from stdin (format binary)", "0A000"),
            ("copy t from stdin (format nosuch)", "22023"),
            ("copy t from 'file'", "0A000"),
            ("copy (select 1) from stdin", "0A000"),
            ("copy t from stdin (header match)", "0A000"),
            ("copy t from stdin (quote 'x')", "0A000"),
            ("copy t from stdin nonsense", "42601"),
        ] {
            assert_eq!(of(sql).unwrap_err().code, code, "{sql}");
        }
    }

    #[test]
    fn what_is_copied_to_the_client_is_a_query() {
        let query = |sql| of(sql).unwrap().1.unwrap();
        assert_eq!(
            query("copy t (a, b) to stdout").text,
            "SELECT \"t\".\"a\", \"t\".\"b\" FROM \"t\""
        );
        let found = query("copy (select 1 from (t)) to stdout csv");
        assert_eq!((&*found.text, found.at), ("select 1 from (t)", 6));
        let (copy, _) = of("copy t to stdout with (format csv, force_quote *)").unwrap();
        assert_eq!(copy.force_quote, Forced::All);
    }
}
