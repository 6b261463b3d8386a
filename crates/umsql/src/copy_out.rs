//! COPY .. TO STDOUT, in text and CSV format: the rows of a query, each as a line.

use std::sync::Arc;

use rusqlite::OptionalExtension;
use rusqlite::types::ValueRef;

use crate::dialect::{Copy, CopyOut, Forced, Statement};
use crate::error::{Failure, Result, SqlError};
use crate::host::Conn;
use crate::run::{Call, Ran};
use crate::session::Session;
use crate::wire::out::Out;
use crate::wire::types::{self, Column};

impl Session {
    pub(crate) fn copy_out(
        &mut self,
        conn: &mut dyn Conn,
        copy: &CopyOut,
    ) -> std::result::Result<Ran, Failure> {
        self.check_table(&copy.form.table)?;
        let plan = self.plan_within(&copy.query.text, &[], copy.query.at)?;
        let Some(statement @ Statement::Sql(_)) = &plan.statement else {
            return Err(SqlError::unsupported("COPY takes a query").into());
        };
        if !plan.types.is_empty() {
            return Err(SqlError::unsupported("COPY takes no parameters").into());
        }
        if self.columns_of(&Arc::clone(&plan), &[], &[], false)?.flatten().is_none() {
            let message = "COPY query must have a RETURNING clause";
            return Err(SqlError::unsupported(message).into());
        }
        let call = Call { describe: true, copies: Some(&copy.form), ..Call::default() };
        let count = match self.execute(conn, statement, call)? {
            Ran::Complete(tag) => tag.rsplit(' ').next().and_then(|count| count.parse().ok()),
            Ran::Suspended(_) => None,
        };
        Ok(Ran::Complete(format!("COPY {}", count.unwrap_or(0_usize))))
    }

    /// Refuses a view, as PostgreSQL does.
    fn check_table(&mut self, table: &str) -> Result<()> {
        if table.is_empty() {
            return Ok(());
        }
        let view = "SELECT 1 FROM sqlite_schema WHERE type = 'view' AND name = ?1 COLLATE NOCASE";
        let found = self.lease()?.query_row(view, [table], |_| Ok(())).optional()?;
        match found {
            Some(()) => Err(SqlError::new("42809", format!("cannot copy from view \"{table}\""))
                .hint("Write COPY (SELECT ..) TO STDOUT.")),
            None => Ok(()),
        }
    }
}

impl Copy {
    /// Writes what comes before the rows.
    pub(crate) fn begin(&self, out: &mut Out, columns: &[Column]) {
        out.message(b'H', |body| {
            body.push(0);
            body.extend((columns.len() as u16).to_be_bytes());
            body.extend(std::iter::repeat_n(0, columns.len() * 2));
        });
        if self.header {
            let names: Vec<_> = columns.iter().map(|column| column.name.as_bytes()).collect();
            out.message(b'd', |line| {
                for (index, name) in names.iter().enumerate() {
                    self.field(line, index, Some(name), false);
                }
                line.push(b'\n');
            });
        }
    }

    /// Writes a row as a line. After an error the buffer is as it was before.
    pub(crate) fn row<'a>(
        &self,
        out: &mut Out,
        columns: &[Column],
        max: usize,
        mut value: impl FnMut(usize) -> Result<ValueRef<'a>>,
    ) -> Result<()> {
        let (start, mut encoded, mut result) = (out.bytes.len(), Vec::new(), Ok(()));
        out.message(b'd', |line| {
            result = columns.iter().enumerate().try_for_each(|(index, column)| {
                encoded.clear();
                types::encode(&mut encoded, value(index)?, column)?;
                let is_null = encoded.starts_with(&(-1_i32).to_be_bytes());
                let text = (!is_null).then(|| &encoded[4..]);
                let forced = match &self.force_quote {
                    Forced::All => true,
                    Forced::Columns(names) => names.iter().any(|name| **name == *column.name),
                };
                self.field(line, index, text, forced);
                if line.len() - start > max { Err(SqlError::out_of_memory()) } else { Ok(()) }
            });
            line.push(b'\n');
        });
        if result.is_err() {
            out.bytes.truncate(start);
        }
        result
    }

    fn field(&self, line: &mut Vec<u8>, index: usize, text: Option<&[u8]>, forced: bool) {
        if index > 0 {
            line.push(self.delimiter);
        }
        match text {
            None => line.extend(self.null.as_bytes()),
            Some(text) if self.csv => self.csv_field(line, text, forced),
            Some(text) => self.text_field(line, text),
        }
    }

    fn csv_field(&self, line: &mut Vec<u8>, text: &[u8], forced: bool) {
        let is_special = |byte: &u8| [self.delimiter, self.quote, b'\n', b'\r'].contains(byte);
        if !forced && text != self.null.as_bytes() && !text.iter().any(is_special) {
            return line.extend(text);
        }
        line.push(self.quote);
        for byte in text {
            if *byte == self.quote || *byte == self.escape {
                line.push(self.escape);
            }
            line.push(*byte);
        }
        line.push(self.quote);
    }

    fn text_field(&self, line: &mut Vec<u8>, text: &[u8]) {
        for byte in text {
            let letter = match byte {
                b'\n' => b'n',
                b'\r' => b'r',
                b'\t' => b't',
                8 => b'b',
                11 => b'v',
                12 => b'f',
                b'\\' => b'\\',
                other if *other == self.delimiter => *other,
                other => {
                    line.push(*other);
                    continue;
                }
            };
            line.extend([b'\\', letter]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::Edits;
    use crate::dialect::statement::recognise;
    use crate::dialect::tokens::tokens;

    fn line(options: &str, fields: &[Option<&str>]) -> String {
        let source = format!("copy t to stdout {options}");
        let Ok(Statement::CopyOut(copy)) =
            recognise(&tokens(&source).unwrap(), &source, &Edits::default())
        else {
            panic!("{source}")
        };
        let mut out = Out::default();
        let columns: Vec<_> = fields.iter().map(|_| Column::new("a", types::TEXT)).collect();
        let value = |index: usize| {
            Ok(fields[index].map_or(ValueRef::Null, |text| ValueRef::Text(text.as_bytes())))
        };
        copy.form.row(&mut out, &columns, 1000, value).unwrap();
        String::from_utf8(out.bytes[5..].to_vec()).unwrap()
    }

    #[test]
    fn lines_are_written_as_postgresql_does() {
        let some = |text| Some(text);
        assert_eq!(line("", &[some("a\tb"), None, some("c\\\n")]), "a\\tb\t\\N\tc\\\\\\n\n");
        assert_eq!(line("csv", &[some("a,b"), None, some("")]), "\"a,b\",,\"\"\n");
        assert_eq!(line("csv", &[some("say \"x\"")]), "\"say \"\"x\"\"\"\n");
        assert_eq!(line("(format csv, force_quote *)", &[some("1"), None]), "\"1\",\n");
        assert_eq!(line("(format csv, null 'NULL')", &[some(""), None]), ",NULL\n");
        assert_eq!(line("(delimiter '|')", &[some("a|b"), some("c")]), "a\\|b|c\n");
    }
}
