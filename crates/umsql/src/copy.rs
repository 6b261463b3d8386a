//! COPY table FROM STDIN, in text and CSV format.
//!
//! A COPY is one statement and so one work request: its worker waits in reads here until the client
//! sends CopyDone or CopyFail.

use rusqlite::types::{Value, ValueRef};

use crate::dialect::{Copy, sequence::sequence_name, translate::quote};
use crate::engine::{Lease, assigned, null_refused};
use crate::error::{Failure, Result, SqlError};
use crate::host::{self, Conn};
use crate::plan::{Table, Target, numbered_column};
use crate::run::Ran;
use crate::session::{Session, Tx};
use crate::wire::message::{Body, utf8};
use crate::wire::types;

/// A COPY makes progress if it brings this many bytes within the time that a session may be idle
/// while others wait to write.
const PROGRESS: usize = 64 << 10;

impl Session {
    pub(crate) fn copy_in(
        &mut self,
        conn: &mut dyn Conn,
        copy: &Copy,
    ) -> std::result::Result<Ran, Failure> {
        self.with_lease(|me, lease| {
            me.begin_statement(lease)?;
            me.own_gate(lease)
        })?;
        let own_transaction = self.tx == Tx::Idle;
        if own_transaction {
            self.lease()?.execute_batch("BEGIN")?;
        }
        let outcome = self.copy_rows(conn, copy);
        self.forget_numbers(copy);
        if own_transaction {
            self.tx = Tx::Implicit;
            if outcome.is_ok() {
                self.end_implicit()?;
            }
        }
        Ok(Ran::Complete(format!("COPY {}", outcome?)))
    }

    fn copy_rows(
        &mut self,
        conn: &mut dyn Conn,
        copy: &Copy,
    ) -> std::result::Result<usize, Failure> {
        let target = self.copy_target(copy)?;
        self.out.copy_in(target.columns.len());
        self.flush(conn)?;

        let mut lines = Lines::new(copy);
        let (mut count, mut arrived) = (0, 0);
        self.expect_progress();
        // After an error the rest of the client's data is read and discarded, because the client
        // sends all of it.
        let mut failed: Option<Failure> = None;
        loop {
            let (tag, body) = match self.await_frame(conn) {
                Err(Failure::Sql(error)) => return Err(failed.unwrap_or(error.into())),
                frame => frame?,
            };
            arrived = self.count_progress(arrived + body.len());
            match tag {
                b'd' if failed.is_none() => {
                    lines.push(&body);
                    match self.copy_lines(&target, &mut lines) {
                        Ok(rows) => count += rows,
                        Err(error) => failed = Some(error),
                    }
                    if lines.unread() > self.server.max_message {
                        lines = Lines::new(copy);
                        let error = SqlError::new("54000", "a line of the COPY data is too long");
                        failed = Some(failed.unwrap_or(error.into()));
                    }
                }
                b'd' | b'H' | b'S' => (),
                b'c' => break,
                b'f' => {
                    let reason = Body::new(&body).string().unwrap_or_default().to_owned();
                    return Err(SqlError::new(
                        "57014",
                        format!("COPY from stdin failed: {reason}"),
                    )
                    .into());
                }
                b'X' => return Err(Failure::Gone),
                _ => {
                    return Err(SqlError::fatal(
                        "08P01",
                        "unexpected message during COPY from stdin",
                    )
                    .into());
                }
            }
        }
        if let Some(failure) = failed {
            return Err(failure);
        }
        lines.end();
        Ok(count + self.copy_lines(&target, &mut lines)?)
    }

    /// Forgets what the session has got from the sequence of the table, if the lines do not give
    /// its numbers: which ones the rows have taken is not known.
    fn forget_numbers(&mut self, copy: &Copy) {
        if self.config.sequences.is_none() || copy.columns.is_empty() {
            return;
        }
        let Ok(lease) = self.lease() else { return };
        let Some((column, _)) = numbered_column(lease, &copy.table) else { return };
        if !copy.columns.iter().any(|name| name.eq_ignore_ascii_case(&column))
            && let Some(sequences) = &mut self.config.sequences
        {
            sequences.forget(&sequence_name(&copy.table, &column));
        }
    }

    /// Takes the number of bytes that have arrived since the last progress, and returns how many
    /// there are since the next.
    fn count_progress(&mut self, arrived: usize) -> usize {
        if arrived < PROGRESS {
            return arrived;
        }
        self.expect_progress();
        0
    }

    /// Returns where the lines are stored.
    fn copy_target(&mut self, copy: &Copy) -> Result<CopyTarget> {
        let lease = self.lease()?;
        let table = Table::named(&copy.table);
        let listed = &copy.columns;
        let own: Vec<String> = match listed.is_empty() {
            true => table.columns(lease).iter().map(|column| quote(&column.name)).collect(),
            false => listed.iter().map(|name| quote(name)).collect(),
        };
        let selected = if own.is_empty() { "*".to_owned() } else { own.join(", ") };
        let from = quote(&table.name);
        let prepared = lease.prepare(&format!("SELECT {selected} FROM {from}"))?;
        for (index, name) in listed.iter().enumerate() {
            if listed[..index].iter().any(|other| other.eq_ignore_ascii_case(name)) {
                let message = format!("column \"{name}\" specified more than once");
                return Err(SqlError::new("42701", message));
            }
        }
        let target = |column: rusqlite::Column<'_>| {
            let of_view = || Target::of_view(column.name(), column.decl_type().unwrap_or_default());
            table.column(lease, column.name()).unwrap_or_else(of_view)
        };
        let columns: Vec<Target> = prepared.columns().map(target).collect();
        let names: Vec<String> = columns.iter().map(|column| quote(&column.name)).collect();
        let marks = vec!["?"; names.len()].join(", ");
        let insert = format!("INSERT INTO {from} ({}) VALUES ({marks})", names.join(", "));
        Ok(CopyTarget { table: table.name, columns, insert })
    }

    fn copy_lines(
        &mut self,
        target: &CopyTarget,
        lines: &mut Lines<'_>,
    ) -> std::result::Result<usize, Failure> {
        let copied = self.with_lease(|me, lease| {
            lease.lend(&mut me.config);
            let copied = insert_lines(lease, target, lines);
            lease.lend(&mut me.config);
            Ok(copied?)
        });
        self.after_settings()?;
        copied
    }
}

/// Where the lines of a COPY are stored.
struct CopyTarget {
    table: String,
    columns: Vec<Target>,
    /// The statement that stores one line.
    insert: String,
}

fn insert_lines(lease: &Lease, target: &CopyTarget, lines: &mut Lines<'_>) -> Result<usize> {
    let mut prepared = lease.prepare_cached(&target.insert)?;
    let columns = &target.columns;
    let mut count = 0;
    while let Some(fields) = lines.next()? {
        if host::cancelled() {
            return Err(host::Interrupted.into());
        }
        host::yield_if_due();
        if fields.len() < columns.len() {
            return Err(SqlError::new(
                "22P04",
                format!("missing data for column {}", fields.len() + 1),
            ));
        }
        if fields.len() > columns.len() {
            return Err(SqlError::new("22P04", "extra data after last expected column"));
        }
        for (index, (field, column)) in fields.iter().zip(columns).enumerate() {
            let value = match field {
                None if column.keyed => {
                    return Err(null_refused(&column.name, &target.table).into());
                }
                None => Value::Null,
                Some(field) => {
                    let text = types::decode(Some(field), types::TEXT, 0)?;
                    assigned(ValueRef::from(&text), column.oid, column.modifier)?
                }
            };
            prepared.raw_bind_parameter(index + 1, value)?;
        }
        prepared.raw_execute()?;
        count += 1;
    }
    Ok(count)
}

/// Cuts the data into lines and the lines into fields.
struct Lines<'a> {
    copy: &'a Copy,
    data: Vec<u8>,
    at: usize,
    /// Whether the data has ended. Then the rest is a line even if it has no line end.
    ended: bool,
    skip_header: bool,
}

type Fields = Vec<Option<Vec<u8>>>;

impl<'a> Lines<'a> {
    fn new(copy: &'a Copy) -> Lines<'a> {
        Lines { copy, data: Vec::new(), at: 0, ended: false, skip_header: copy.header }
    }

    fn push(&mut self, data: &[u8]) {
        self.data.drain(..self.at);
        self.at = 0;
        self.data.extend(data);
    }

    /// Returns the number of bytes of an incomplete line.
    fn unread(&self) -> usize {
        self.data.len() - self.at
    }

    fn end(&mut self) {
        self.ended = true;
    }

    fn next(&mut self) -> Result<Option<Fields>> {
        loop {
            let Some(line) = self.line()? else { return Ok(None) };
            if line == b"\\." {
                self.at = self.data.len();
                return Ok(None);
            }
            if !std::mem::take(&mut self.skip_header) {
                let fields =
                    if self.copy.csv { self.csv_fields(&line) } else { self.text_fields(&line) };
                return Ok(Some(fields));
            }
        }
    }

    /// Returns the next complete line without its line end.
    fn line(&mut self) -> Result<Option<Vec<u8>>> {
        let rest = &self.data[self.at..];
        // Whether the place is in quotes, and whether an escape is before it.
        let (mut quoted, mut escaped) = (false, false);
        let has_escape = self.copy.csv && self.copy.escape != self.copy.quote;
        let end = rest.iter().position(|byte| {
            if std::mem::take(&mut escaped) {
                return false;
            }
            escaped = has_escape && quoted && *byte == self.copy.escape;
            quoted ^= self.copy.csv && *byte == self.copy.quote;
            *byte == b'\n' && !quoted
        });
        let (len, skip) = match end {
            Some(end) => (end, end + 1),
            None if self.ended && !rest.is_empty() => (rest.len(), rest.len()),
            None => return Ok(None),
        };
        let line = rest[..len].strip_suffix(b"\r").unwrap_or(&rest[..len]).to_vec();
        self.at += skip;
        if utf8(&line)?.contains('\0') {
            return Err(types::nul());
        }
        Ok(Some(line))
    }

    fn text_fields(&self, line: &[u8]) -> Fields {
        let mut fields = vec![Vec::new()];
        let mut starts = vec![0];
        let mut bytes = line.iter().copied().enumerate().peekable();
        while let Some((index, byte)) = bytes.next() {
            let field = fields.last_mut().expect("there is always a last field");
            if byte == self.copy.delimiter {
                fields.push(Vec::new());
                starts.push(index + 1);
            } else if byte == b'\\' {
                match bytes.next().map(|(_, next)| next) {
                    Some(b'n') => field.push(b'\n'),
                    Some(b't') => field.push(b'\t'),
                    Some(b'r') => field.push(b'\r'),
                    Some(b'b') => field.push(8),
                    Some(b'f') => field.push(12),
                    Some(b'v') => field.push(11),
                    Some(octal @ b'0'..=b'7') => {
                        let mut byte = octal - b'0';
                        for _ in 0..2 {
                            let next = bytes.next_if(|(_, next)| (b'0'..=b'7').contains(next));
                            let Some((_, digit)) = next else { break };
                            byte = byte << 3 | (digit - b'0');
                        }
                        field.push(byte);
                    }
                    // Hexadecimal digits, at most two; without one, the letter itself.
                    Some(b'x') => {
                        let is_digit = |next: &(usize, u8)| next.1.is_ascii_hexdigit();
                        let digit = |(_, digit): (usize, u8)| (digit as char).to_digit(16);
                        let mut byte = bytes.next_if(is_digit).and_then(digit);
                        if let Some(high) = byte
                            && let Some(low) = bytes.next_if(is_digit).and_then(digit)
                        {
                            byte = Some(high << 4 | low);
                        }
                        field.push(byte.map_or(b'x', |byte| byte as u8));
                    }
                    Some(other) => field.push(other),
                    None => field.push(b'\\'),
                }
            } else {
                field.push(byte);
            }
        }
        // Null is recognised by the field's raw text, before backslashes are interpreted.
        let ends: Vec<usize> =
            starts.iter().skip(1).map(|start| start - 1).chain([line.len()]).collect();
        let null = self.copy.null.as_bytes();
        let raw = starts.iter().zip(ends).map(|(start, end)| &line[*start..end]);
        raw.zip(fields).map(|(raw, field)| (raw != null).then_some(field)).collect()
    }

    fn csv_fields(&self, line: &[u8]) -> Fields {
        let (quote, escape, null) = (self.copy.quote, self.copy.escape, self.copy.null.as_bytes());
        let is_escaped = |byte: &u8| *byte == quote || *byte == escape;
        let mut fields = Vec::new();
        let (mut field, mut was_quoted, mut quoted) = (Vec::new(), false, false);
        let mut bytes = line.iter().copied().peekable();
        loop {
            match bytes.next() {
                Some(byte) if byte == escape && quoted && bytes.peek().is_some_and(is_escaped) => {
                    field.extend(bytes.next());
                }
                Some(byte) if byte == quote => {
                    quoted = !quoted;
                    was_quoted = true;
                }
                Some(byte) if byte != self.copy.delimiter || quoted => field.push(byte),
                end => {
                    let is_null = !was_quoted && field == null;
                    fields.push((!is_null).then(|| std::mem::take(&mut field)));
                    field.clear();
                    was_quoted = false;
                    if end.is_none() {
                        return fields;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(csv: bool) -> Copy {
        let (delimiter, null) = if csv { (b',', String::new()) } else { (b'\t', "\\N".into()) };
        Copy {
            table: "t".into(),
            columns: vec![],
            csv,
            header: false,
            delimiter,
            quote: b'"',
            escape: b'"',
            null,
            force_quote: crate::dialect::Forced::All,
        }
    }

    fn all(csv: bool, pieces: &[&str]) -> Vec<Vec<Option<String>>> {
        let copy = copy(csv);
        let mut lines = Lines::new(&copy);
        let mut found = Vec::new();
        let mut take = |lines: &mut Lines<'_>| {
            while let Some(fields) = lines.next().unwrap() {
                let text = |field: Vec<u8>| String::from_utf8(field).unwrap();
                found.push(fields.into_iter().map(|field| field.map(text)).collect());
            }
        };
        for piece in pieces {
            lines.push(piece.as_bytes());
            take(&mut lines);
        }
        lines.end();
        take(&mut lines);
        found
    }

    fn row(fields: &[&str]) -> Vec<Option<String>> {
        fields.iter().map(|field| (*field != "NULL").then(|| (*field).to_owned())).collect()
    }

    #[test]
    fn text_lines_may_come_in_pieces() {
        let rows = all(false, &["1\ta\\tb\t\\", "N\n2\t\\\\N", "\tc\r\n\\.\n3"]);
        assert_eq!(rows[0], row(&["1", "a\tb", "NULL"]));
        assert_eq!(rows[1], row(&["2", "\\N", "c"]));
        let rows = all(false, &["\\101\\0\\758\t\\8"]);
        assert_eq!(rows[0], row(&["A\0=8", "8"]));
        let rows = all(false, &["\\x41\\x4g\\xg\\x414"]);
        assert_eq!(rows[0], row(&["A\u{4}gxgA4"]));
    }

    #[test]
    fn a_line_with_a_zero_byte_is_refused() {
        let copy = copy(true);
        let mut lines = Lines::new(&copy);
        lines.push(b"1,a\0b\n");
        assert_eq!(lines.next().unwrap_err().code, "22021");
    }

    #[test]
    fn quoted_csv_fields_may_hold_anything() {
        let rows = all(true, &["1,\"a,\"\"b\"\"\n", "c\",\n2,\"\",x"]);
        assert_eq!(rows, [row(&["1", "a,\"b\"\nc", "NULL"]), row(&["2", "", "x"])]);
    }
}
