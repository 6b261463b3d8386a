//! Cursors: what a client has written. `crate::cursor` carries it out.
//!
//! ```text
//!   DECLARE c NO SCROLL CURSOR WITHOUT HOLD FOR SELECT ..
//!   FETCH FORWARD 10 FROM c
//!   CLOSE c
//! ```

use super::prepare::text_of;
use super::reader::{Reader, near};
use super::tokens::Token;
use crate::error::{Result, SqlError};

/// `DECLARE name CURSOR FOR query`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Declare {
    pub(crate) name: String,
    pub(crate) text: String,
    /// Where the text is in the client's query.
    pub(crate) at: usize,
}

/// `FETCH count FROM name`, or `MOVE count FROM name`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Fetch {
    pub(crate) name: String,
    /// The most rows; zero means all.
    pub(crate) limit: usize,
    /// Whether it passes over the rows and sends none.
    pub(crate) moves: bool,
}

/// A statement about a cursor.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Cursor {
    Declare(Declare),
    Fetch(Fetch),
    /// `CLOSE name`; `None` is `CLOSE ALL`.
    Close(Option<String>),
}

impl Cursor {
    /// Reads a statement that begins with `verb` in the query `source`. Returns None for another
    /// verb.
    pub(super) fn read(verb: &Token<'_>, r: Reader<'_, '_>, source: &str) -> Result<Option<Self>> {
        Ok(Some(if verb.is("declare") {
            Cursor::Declare(Declare::read(r, source)?)
        } else if verb.is("fetch") || verb.is("move") {
            Cursor::Fetch(Fetch { moves: verb.is("move"), ..Fetch::read(r)? })
        } else if verb.is("close") {
            Cursor::Close(close(r)?)
        } else {
            return Ok(None);
        }))
    }
}

impl Declare {
    fn read(mut r: Reader<'_, '_>, source: &str) -> Result<Declare> {
        let name = r.folded_name()?;
        while !r.take(&["cursor"]) {
            let word = r.next()?;
            if word.is("binary") || word.is("scroll") {
                let word = word.text.to_ascii_uppercase();
                return Err(SqlError::unsupported(format!("a {word} cursor is not supported")));
            }
            let is_default = word.is("asensitive") || word.is("insensitive");
            if !(is_default || word.is("no") && r.take(&["scroll"])) {
                return Err(near(word));
            }
        }
        if r.take(&["with", "hold"]) {
            return Err(SqlError::unsupported("a cursor WITH HOLD is not supported")
                .hint("A cursor ends with its transaction."));
        }
        let _ = r.take(&["without", "hold"]);
        if !r.take(&["for"]) {
            return Err(near(r.next()?));
        }
        let Some(first) = r.rest.first() else { return Err(r.next().unwrap_err()) };
        if !["select", "values", "with", "table"].iter().any(|verb| first.is(verb)) {
            return Err(near(first));
        }
        Ok(Declare { name, at: first.at, text: text_of(r.rest, source).to_owned() })
    }
}

impl Fetch {
    fn read(mut r: Reader<'_, '_>) -> Result<Fetch> {
        let is_between = |token: &Token<'_>| token.is("from") || token.is("in");
        // A cursor may have the name of a direction.
        let _ = r.rest.len() > 1 && (r.take(&["next"]) || r.take(&["forward"]));
        let mut limit = 1;
        if let [first, _, ..] = r.rest
            && !is_between(first)
        {
            limit = match first.text.parse::<usize>() {
                Ok(count) if count > 0 => count,
                _ if first.is("all") => 0,
                _ => {
                    return Err(SqlError::unsupported(
                        "FETCH goes forward only, by one row or more",
                    )
                    .hint("Write FETCH number FROM cursor."));
                }
            };
            r.next()?;
        }
        if r.rest.first().is_some_and(is_between) {
            r.next()?;
        }
        let name = r.folded_name()?;
        r.end()?;
        Ok(Fetch { name, limit, moves: false })
    }
}

fn close(mut r: Reader<'_, '_>) -> Result<Option<String>> {
    let name = if r.take(&["all"]) { None } else { Some(r.folded_name()?) };
    r.end()?;
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::super::edits::Edits;
    use super::super::statement::{Statement, recognise};
    use super::super::tokens::tokens;
    use super::*;

    fn read(source: &str) -> std::result::Result<Cursor, &'static str> {
        match recognise(&tokens(source).unwrap(), source, &Edits::default()) {
            Ok(Statement::Cursor(cursor)) => Ok(cursor),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.code),
        }
    }

    #[test]
    fn the_parts_of_statements_about_cursors_are_found() {
        let source = "declare C no scroll cursor without hold for select 1 -- end";
        let text = "select 1".to_owned();
        let declared = Declare { name: "c".into(), text, at: 44 };
        assert_eq!(read(source), Ok(Cursor::Declare(declared)));
        let named = |name: &str, limit, moves| Fetch { name: name.into(), limit, moves };
        let fetch = |name: &str, limit| Ok(Cursor::Fetch(named(name, limit, false)));
        assert_eq!(read("fetch c"), fetch("c", 1));
        assert_eq!(read("fetch next from c"), fetch("c", 1));
        assert_eq!(read("fetch forward 20 from _psql_cursor"), fetch("_psql_cursor", 20));
        assert_eq!(read("fetch forward in c"), fetch("c", 1));
        assert_eq!(read("fetch all c"), fetch("c", 0));
        assert_eq!(read("fetch 3 from c"), fetch("c", 3));
        assert_eq!(read("move 3 c"), Ok(Cursor::Fetch(named("c", 3, true))));
        assert_eq!(read("close all"), Ok(Cursor::Close(None)));
        assert_eq!(read("close c"), Ok(Cursor::Close(Some("c".into()))));
    }

    #[test]
    fn what_a_cursor_cannot_do_is_refused() {
        for source in [
            "declare c scroll cursor for select 1",
            "declare c binary cursor for select 1",
            "declare c cursor with hold for select 1",
            "fetch prior from c",
            "fetch 0 from c",
            "fetch backward 2 from c",
            "fetch absolute 1 from c",
            "move backward 1 from c",
        ] {
            assert_eq!(read(source), Err("0A000"), "{source}");
        }
        for source in ["declare c cursor for insert into t values (1)", "fetch 1 from", "close"] {
            assert_eq!(read(source), Err("42601"), "{source}");
        }
    }
}
