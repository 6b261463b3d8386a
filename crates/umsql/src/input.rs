//! The input of a session: what has arrived, as units and frames.
//!
//! A *frame* is one message of the protocol. A *unit* is what one work request consumes: a simple
//! query, or the messages of an extended cycle up to its Sync or Flush. Lengths are checked before
//! memory is taken for a message. A message for which there is no memory is skipped, and then
//! answered with an error.

use std::io;

use crate::dialect::tokens::Token;
use crate::error::{Failure, Result, SqlError};
use crate::host::{self, Conn};
use crate::session::{CHUNK, Fill, Phase, Session};
use crate::wire::message::{frame_len, startup_len};

/// The longest message before login, in bytes.
const LOGIN_MESSAGE_MAX: usize = 10 << 10;
/// An extended cycle of this many bytes is begun although its Sync has not arrived.
const UNIT_MAX: usize = 64 << 10;
/// How often a request reads before it leaves the rest to the next one, although more has arrived:
/// 512 KiB, if each read has [`CHUNK`] bytes.
const READS_MAX: usize = 64;

impl Session {
    /// Reads until a unit is complete or no more input has arrived; or [`READS_MAX`] times, so that
    /// a client that sends small parts without a pause keeps its worker only for so long. Its time
    /// limits are looked at between two requests.
    pub(crate) fn fill(&mut self, conn: &mut dyn Conn) -> std::result::Result<Fill, Failure> {
        if self.input.capacity() == 0 {
            self.input = self.server.take_buffer();
        }
        let mut reads = 0;
        loop {
            match self.find_unit() {
                Ok(true) => return Ok(Fill::Unit),
                Ok(false) => (),
                Err(error) => self.encrypt_directly(conn, error)?,
            }
            // No event of the socket would announce what is decrypted already.
            if reads >= READS_MAX && !self.stream.holds_input() {
                return Ok(Fill::Part);
            }
            reads += 1;
            let len = match self.make_room() {
                Err(_) if self.skips_message() => continue,
                room => room?,
            };
            let most = if self.unread > 0 { CHUNK.min(self.unread) } else { CHUNK };
            let read = self.stream.try_read(conn, &mut self.input[len..len + most]);
            let count = *read.as_ref().unwrap_or(&0);
            let skipped = count.min(self.unread);
            self.unread -= skipped;
            self.input.truncate(len + count - skipped);
            match read {
                Ok(0) => return Ok(Fill::End),
                Ok(_) => (),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Fill::Part),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                Err(error) => return Err(Failure::gone(error)),
            }
        }
    }

    /// Cuts off the message at the end of the input, for which there is no memory. What has not
    /// arrived of it is skipped later. Returns false if there is no such message.
    fn skips_message(&mut self) -> bool {
        if !self.is_logged_in() {
            return false;
        }
        let max = self.max_message();
        let mut start = self.consumed;
        loop {
            let rest = &self.input[start..];
            let Ok(Some(len)) = frame_len(rest, max) else { return false };
            if len > rest.len() {
                self.too_large = Some(rest[0]);
                self.unread = len - rest.len();
                break;
            }
            start += len;
        }
        // The cycle is not carried out as a whole.
        self.several |= start > self.consumed;
        self.input.truncate(start);
        // So the next read needs no more memory.
        self.input.shrink_to(start + CHUNK);
        self.kept.input = self.input.capacity();
        // It is less than was counted before.
        let _ = self.count();
        true
    }

    pub(crate) fn max_message(&self) -> usize {
        if self.is_logged_in() { self.server.max_message } else { LOGIN_MESSAGE_MAX }
    }

    /// Returns whether there is a complete unit at the front of the input, and stores its end.
    pub(crate) fn find_unit(&mut self) -> Result<bool> {
        let rest = &self.input[self.consumed..];
        if matches!(self.phase, Phase::Startup) {
            let len = startup_len(rest, LOGIN_MESSAGE_MAX)?.filter(|len| *len <= rest.len());
            self.unit_end = self.consumed + len.unwrap_or(0);
            return Ok(len.is_some());
        }
        if self.too_large.is_some() {
            self.unit_end = self.input.len();
            return Ok(self.unread == 0);
        }
        let (mut end, mut executes, mut closed) = (0, 0, false);
        while let Some(len) = frame_len(&rest[end..], self.max_message())? {
            if rest.len() - end < len {
                break;
            }
            let tag = rest[end];
            let extends = matches!(tag, b'P' | b'B' | b'D' | b'E' | b'C' | b'S' | b'H');
            if !extends && end > 0 {
                closed = true;
                break;
            }
            end += len;
            executes += usize::from(tag == b'E');
            closed = !extends || matches!(tag, b'S' | b'H') || end >= UNIT_MAX;
            if closed {
                // If the cycle continues after this unit, both parts are one transaction.
                self.several = extends && (self.several || executes > 1 || tag != b'S');
                break;
            }
        }
        self.unit_end = self.consumed + end;
        Ok(closed)
    }

    /// Returns the tag of the next message of this unit.
    pub(crate) fn peek_tag(&self) -> Option<u8> {
        self.input[self.consumed..self.unit_end].first().copied()
    }

    /// Returns the body of the next message of this unit.
    pub(crate) fn peek_body(&self) -> &[u8] {
        let rest = &self.input[self.consumed..self.unit_end];
        match frame_len(rest, self.server.max_message) {
            Ok(Some(len)) => rest.get(5..len).unwrap_or_default(),
            _ => &[],
        }
    }

    /// Takes the complete frame at the front of the input.
    ///
    /// # Errors
    /// 53200 if there is no memory to carry it out. Then it is consumed.
    pub(crate) fn take_frame(&mut self) -> Result<(u8, Vec<u8>)> {
        let rest = &self.input[self.consumed..];
        let len = frame_len(rest, self.max_message())?.filter(|len| *len <= rest.len());
        let len = len.ok_or_else(|| SqlError::protocol("a message ends before its length"))?;
        let tag = rest[0];
        if len > CHUNK {
            // The body is copied here, and once more in pieces: a text of SQL as tokens.
            let copies = if matches!(tag, b'Q' | b'P') { size_of::<Token<'_>>() } else { 2 };
            self.kept.input = self.input.capacity() + copies * len;
            if let Err(error) = self.count() {
                self.kept.input = self.input.capacity();
                self.consumed += len;
                return Err(error);
            }
        }
        let body = self.input[self.consumed + 5..self.consumed + len].to_vec();
        self.consumed += len;
        Ok((tag, body))
    }

    /// Takes the next frame, and parks the worker until it has arrived. Only COPY reads like this.
    ///
    /// A cancelled request takes no more frames, because it cannot wait for them. Later requests
    /// ignore the rest of the data.
    pub(crate) fn await_frame(
        &mut self,
        conn: &mut dyn Conn,
    ) -> std::result::Result<(u8, Vec<u8>), Failure> {
        loop {
            // A client that sends without a pause lets no read wait, which would notice this.
            if host::cancelled() {
                return Err(host::Interrupted.into());
            }
            let rest = &self.input[self.consumed..];
            if frame_len(rest, self.max_message())?.is_some_and(|len| len <= rest.len()) {
                return Ok(self.take_frame()?);
            }
            // What follows was skipped.
            if self.too_large.is_some() {
                return Err(SqlError::out_of_memory().into());
            }
            self.input.drain(..self.consumed);
            self.unit_end = self.unit_end.saturating_sub(self.consumed);
            self.consumed = 0;
            let len = self.make_room()?;
            let read = self.stream.read(conn, &mut self.input[len..]);
            self.input.truncate(len + *read.as_ref().unwrap_or(&0));
            if read.map_err(Failure::of_read)? == 0 {
                return Err(Failure::Gone);
            }
        }
    }
}
