//! Encodes the messages that a server sends, into one output buffer.

use rusqlite::types::ValueRef;

use super::types::{self, Column};
use crate::error::{Result, SqlError};

/// The transaction status that ReadyForQuery carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    Idle = b'I' as isize,
    Block = b'T' as isize,
    Failed = b'E' as isize,
}

/// The longest DataRow. The protocol permits 2 GiB; PostgreSQL itself permits half of it.
const ROW_MAX: usize = (1 << 30) - 1;
/// How much an empty buffer keeps.
const KEPT: usize = 64 << 10;

/// Bytes to be sent to a client.
#[derive(Debug, Default)]
pub(crate) struct Out {
    pub(crate) bytes: Vec<u8>,
}

impl Out {
    /// Writes one message; `fill` writes its body.
    pub(crate) fn message(&mut self, tag: u8, fill: impl FnOnce(&mut Vec<u8>)) {
        self.bytes.push(tag);
        let at = self.bytes.len();
        self.bytes.extend([0; 4]);
        fill(&mut self.bytes);
        self.patch(at);
    }

    fn patch(&mut self, at: usize) {
        let len = (self.bytes.len() - at) as u32;
        self.bytes[at..at + 4].copy_from_slice(&len.to_be_bytes());
    }

    /// Writes a message without a body.
    pub(crate) fn bare(&mut self, tag: u8) {
        self.message(tag, |_| ());
    }

    /// Writes an authentication message: a code and its data.
    pub(crate) fn authentication(&mut self, code: u32, data: &[u8]) {
        self.message(b'R', |body| {
            body.extend(code.to_be_bytes());
            body.extend(data);
        });
    }

    pub(crate) fn parameter_status(&mut self, name: &str, value: &str) {
        self.message(b'S', |body| {
            string(body, name);
            string(body, value);
        });
    }

    pub(crate) fn backend_key(&mut self, pid: u32, secret: u32) {
        self.message(b'K', |body| {
            body.extend(pid.to_be_bytes());
            body.extend(secret.to_be_bytes());
        });
    }

    pub(crate) fn ready(&mut self, status: Status) {
        self.message(b'Z', |body| body.push(status as u8));
    }

    pub(crate) fn complete(&mut self, tag: &str) {
        self.message(b'C', |body| string(body, tag));
    }

    pub(crate) fn error(&mut self, error: &SqlError, position: Option<usize>) {
        let severity = if error.fatal { "FATAL" } else { "ERROR" };
        self.report(b'E', severity, error, position);
    }

    pub(crate) fn warning(&mut self, code: &'static str, message: &'static str) {
        self.report(b'N', "WARNING", &SqlError::new(code, message), None);
    }

    fn report(&mut self, tag: u8, severity: &str, error: &SqlError, position: Option<usize>) {
        self.message(tag, |body| {
            let mut field = |name: u8, value: &str| {
                body.push(name);
                string(body, value);
            };
            field(b'S', severity);
            field(b'V', severity);
            field(b'C', error.code);
            field(b'M', &error.message);
            if let Some(hint) = error.hint {
                field(b'H', hint);
            }
            if let Some(position) = position {
                field(b'P', &position.to_string());
            }
            body.push(0);
        });
    }

    pub(crate) fn parameter_description(&mut self, oids: &[u32]) {
        self.message(b't', |body| {
            body.extend((oids.len() as u16).to_be_bytes());
            oids.iter().for_each(|oid| body.extend(oid.to_be_bytes()));
        });
    }

    pub(crate) fn row_description(&mut self, columns: &[Column]) {
        self.message(b'T', |body| {
            body.extend((columns.len() as u16).to_be_bytes());
            for column in columns {
                string(body, &column.name);
                body.extend([0; 6]); // no table, no column number
                body.extend(column.oid.to_be_bytes());
                body.extend(types::size(column.oid).to_be_bytes());
                body.extend(column.modifier.to_be_bytes());
                body.extend(column.format.to_be_bytes());
            }
        });
    }

    /// Empties the buffer, and frees it if it is large.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(KEPT);
    }

    /// Makes room for this value of a row that begins at `start`, with at most `max` bytes.
    fn make_room(&mut self, start: usize, value: ValueRef<'_>, max: usize) -> Result<()> {
        let (ValueRef::Text(bytes) | ValueRef::Blob(bytes)) = value else { return Ok(()) };
        // As text, each byte of a bytea has two digits.
        let more = 2 * bytes.len() + 64;
        let row = self.bytes.len() - start + more;
        if row > ROW_MAX {
            let message = format!("a row is longer than {ROW_MAX} bytes");
            return Err(SqlError::new("54000", message).hint("Select fewer or shorter columns."));
        }
        if row > max || self.bytes.try_reserve(more).is_err() {
            return Err(SqlError::out_of_memory());
        }
        Ok(())
    }

    /// Writes a DataRow of at most `max` bytes. After an error the buffer is as it was before.
    pub(crate) fn data_row<'a>(
        &mut self,
        columns: &[Column],
        max: usize,
        mut value: impl FnMut(usize) -> Result<ValueRef<'a>>,
    ) -> Result<()> {
        let start = self.bytes.len();
        self.bytes.extend([b'D', 0, 0, 0, 0]);
        self.bytes.extend((columns.len() as u16).to_be_bytes());
        for (index, column) in columns.iter().enumerate() {
            let written = value(index).and_then(|value| {
                self.make_room(start, value, max)?;
                types::encode(&mut self.bytes, value, column)
            });
            if let Err(error) = written {
                self.bytes.truncate(start);
                self.bytes.shrink_to(start.max(KEPT));
                return Err(error);
            }
        }
        self.patch(start + 1);
        Ok(())
    }

    pub(crate) fn copy_in(&mut self, columns: usize) {
        self.message(b'G', |body| {
            body.push(0);
            body.extend((columns as u16).to_be_bytes());
            body.extend(std::iter::repeat_n(0, columns * 2));
        });
    }
}

/// Writes a text and its zero byte. A zero byte inside would end it early, so it is left out.
fn string(body: &mut Vec<u8>, text: &str) {
    body.extend(text.bytes().filter(|byte| *byte != 0));
    body.push(0);
}
