//! How a session begins to be encrypted: by a request (SSLRequest) that is answered first, or with
//! the first byte of the connection, as PostgreSQL's clients can since 17.
//!
//! A Unix-domain socket is never encrypted: what passes through it stays in the kernel.

use crate::error::{Failure, Result, SqlError};
use crate::host::Conn;
use crate::session::{Phase, Session};
use crate::tls::Stream;

/// The bit of [`Startup::Encrypt`](crate::wire::message::Startup) for TLS.
const TLS: u8 = 1;
/// The bits of all kinds of encryption.
const ALL: u8 = 3;
/// The first byte of a handshake of TLS: the type of its record.
const HANDSHAKE: u8 = 0x16;

impl Session {
    /// Answers a request for encryption. Returns false if the connection must be closed.
    pub(crate) fn answer_encryption(&mut self, conn: &mut dyn Conn, kind: u8) -> Result<bool> {
        if self.asked_for & kind != 0 {
            let message = "the same encryption was requested twice on one connection";
            return Err(SqlError::fatal("08P01", message));
        }
        self.asked_for |= kind;
        if kind != TLS || !self.offers_tls(conn) {
            self.out.bytes.push(b'N');
            return Ok(true);
        }
        // An attacker between client and server may have inserted these bytes.
        if self.consumed < self.input.len() {
            return Err(SqlError::fatal("08P01", "received unencrypted data after SSL request")
                .hint("This is an error of the client's, or an attack from the network between."));
        }
        Ok(conn.write_all(b"S").is_ok() && self.encrypt(conn, false, &[]))
    }

    /// Begins an encrypted session if the client's first bytes are a handshake, which are in the
    /// input, and no packet. Otherwise returns `error`, which describes the wrong packet.
    #[cold]
    pub(crate) fn encrypt_directly(
        &mut self,
        conn: &mut dyn Conn,
        error: SqlError,
    ) -> std::result::Result<(), Failure> {
        let is_first = matches!(self.phase, Phase::Startup) && self.asked_for == 0;
        let begins = is_first && self.input[self.consumed..].first() == Some(&HANDSHAKE);
        if !begins || !self.offers_tls(conn) {
            return Err(error.into());
        }
        let begun = self.input.split_off(self.consumed);
        if self.encrypt(conn, true, &begun) { Ok(()) } else { Err(Failure::Gone) }
    }

    /// Sends and receives nothing unencrypted from here on. Returns false if the client has sent
    /// something wrong.
    fn encrypt(&mut self, conn: &mut dyn Conn, is_direct: bool, begun: &[u8]) -> bool {
        let Some(tls) = &self.server.tls else { return false };
        self.asked_for = ALL;
        self.kept.stream = Stream::ENCRYPTED;
        self.stream.encrypt(conn, tls.accepted(), is_direct, begun).is_ok()
    }

    fn offers_tls(&self, conn: &dyn Conn) -> bool {
        self.server.tls.is_some() && conn.peer_uid().is_none()
    }

    /// Returns an error if the client must use TLS and does not. `uid` is the user id of its
    /// process, if it came by a Unix-domain socket.
    pub(crate) fn check_encrypted(&self, uid: Option<u32>) -> Result<()> {
        if !self.server.tls_only || uid.is_some() || !self.stream.is_plain() {
            return Ok(());
        }
        let message = "this server accepts no connection without TLS";
        Err(SqlError::fatal("28000", message).hint("Connect with sslmode=require or stricter."))
    }

    /// Tells the client of an encrypted connection that it ends here and was not cut off.
    pub(crate) fn end_stream(&mut self, conn: &mut dyn Conn) {
        self.stream.end(conn);
    }
}
