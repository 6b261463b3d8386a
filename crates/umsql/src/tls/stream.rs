//! The stream of one client: plain, or encrypted from some moment on.
//!
//! All waits are those of the plain stream below it ([`Conn`]), so that the limits of time and the
//! handling of clients that do not read are the same for both. The handshake is no wait: its
//! packets are input of a session that has not logged in, and between them it holds no worker.
//!
//! What a client can make this file keep or do without sending data is bounded: by
//! [`HANDSHAKE_MAX`], and after the handshake by [`FRUITLESS_MAX`]. rustls counts changes of keys
//! and empty records, too, but each of them ends its count of the other.

use std::fmt;
use std::io::{self, Read};
use std::sync::Arc;

use rustls::{ProtocolVersion, ServerConnection};

use super::certificate::{Accepted, PROTOCOL};
use crate::host::{self, Conn};

/// The most bytes that a client may send until the handshake ends.
const HANDSHAKE_MAX: usize = 16 << 10;
/// The most bytes that a client may send after the handshake without data in them: changes of keys,
/// empty records, parts of a record (which has at most 16.3 KiB) or of a message of a handshake.
const FRUITLESS_MAX: usize = 32 << 10;
/// Answers are encrypted in pieces of at most this many bytes.
const PIECE: usize = 64 << 10;

/// The bytes of one client in both directions.
#[derive(Debug, Default)]
pub(crate) enum Stream {
    #[default]
    Plain,
    Encrypted(Box<Encrypted>),
}

/// An encrypted stream. It begins with the handshake.
#[derive(Debug)]
pub(crate) struct Encrypted {
    tls: ServerConnection,
    end_point: Option<Arc<[u8]>>,
    /// Whether the client must have named the protocol, because it has not asked before.
    is_direct: bool,
    /// How many bytes the client has sent since its last data, or since the handshake began or
    /// ended.
    fruitless: usize,
    /// How many bytes are decrypted and not read yet.
    readable: usize,
    /// What is encrypted and not sent yet. It comes before everything else.
    unsent: Vec<u8>,
    /// Whether the client has said that it sends nothing more.
    has_ended: bool,
    /// Whether a part of a record may be lost, so that nothing can be sent after it.
    has_failed: bool,
}

/// What encrypts a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Encryption {
    /// As PostgreSQL writes it: `TLSv1.3`.
    pub(crate) version: &'static str,
    /// Its name in the standard: `TLS_AES_256_GCM_SHA384`.
    pub(crate) cipher: String,
    /// The length of the key.
    pub(crate) bits: i64,
}

impl Stream {
    /// What an encrypted stream keeps at most, in bytes: input before it is decrypted, 16 KiB of
    /// data, a piece of an answer before and after it is encrypted, and its keys.
    pub(crate) const ENCRYPTED: usize = FRUITLESS_MAX + (16 << 10) + 2 * PIECE + (8 << 10);

    /// Begins a handshake, of which the client has sent `begun` already. With `is_direct` the
    /// client must name the protocol in it.
    ///
    /// # Errors
    /// As for `try_read`.
    pub(crate) fn encrypt(
        &mut self,
        conn: &mut dyn Conn,
        accepted: Accepted,
        is_direct: bool,
        begun: &[u8],
    ) -> io::Result<()> {
        let mut tls = ServerConnection::new(accepted.config).map_err(io::Error::other)?;
        // `write_all` bounds what is encrypted at once.
        tls.set_buffer_limit(None);
        let mut encrypted = Box::new(Encrypted {
            tls,
            end_point: accepted.end_point,
            is_direct,
            fruitless: 0,
            readable: 0,
            unsent: Vec::new(),
            has_ended: false,
            has_failed: false,
        });
        let mut begun = begun;
        while !begun.is_empty() {
            encrypted.receive(conn, |tls, _| tls.read_tls(&mut begun))?;
        }
        *self = Stream::Encrypted(encrypted);
        Ok(())
    }

    pub(crate) fn is_plain(&self) -> bool {
        matches!(self, Stream::Plain)
    }

    /// Reads what has arrived, without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if nothing has arrived; any other error ends the connection.
    pub(crate) fn try_read(&mut self, conn: &mut dyn Conn, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain => conn.try_read(buf),
            Stream::Encrypted(stream) => stream.read(conn, buf, |conn, buf| conn.try_read(buf)),
        }
    }

    /// Reads bytes. Parks the worker until some have arrived.
    ///
    /// # Errors
    /// Those of [`Conn::read`].
    pub(crate) fn read(&mut self, conn: &mut dyn Conn, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain => conn.read(buf),
            Stream::Encrypted(stream) => stream.read(conn, buf, |conn, buf| conn.read(buf)),
        }
    }

    /// Writes all of `bytes`, a part of an answer. Parks the worker while the client does not read.
    ///
    /// # Errors
    /// Any error ends the connection.
    pub(crate) fn write_all(&mut self, conn: &mut dyn Conn, bytes: &[u8]) -> io::Result<()> {
        conn.begin_part();
        match self {
            Stream::Plain => conn.write_all(bytes),
            Stream::Encrypted(stream) => stream.write(conn, bytes, all).map(drop),
        }
    }

    /// Writes `bytes` for a statement that goes on afterwards. Returns how many need not be written
    /// again: all, or fewer if the request is cancelled while the client does not read.
    ///
    /// # Errors
    /// Any error ends the connection.
    pub(crate) fn write_until_cancelled(
        &mut self,
        conn: &mut dyn Conn,
        bytes: &[u8],
    ) -> io::Result<usize> {
        conn.begin_part();
        match self {
            Stream::Plain => conn.write_until_cancelled(bytes),
            Stream::Encrypted(stream) => {
                stream.write(conn, bytes, |conn, sealed| conn.write_until_cancelled(sealed))
            }
        }
    }

    /// Returns whether there is input that no event of the socket will announce: it is decrypted
    /// already.
    pub(crate) fn holds_input(&self) -> bool {
        match self {
            Stream::Plain => false,
            Stream::Encrypted(stream) => stream.readable > 0 || stream.has_ended,
        }
    }

    /// Tells the client that nothing more follows.
    pub(crate) fn end(&mut self, conn: &mut dyn Conn) {
        if let Stream::Encrypted(stream) = self {
            stream.tls.send_close_notify();
            // The connection ends also if the client does not take this.
            let _ = stream.send(conn);
        }
    }

    /// Returns `bytes` as they must be sent, without sending them; nothing before the end of the
    /// handshake.
    pub(crate) fn seal(&mut self, bytes: Vec<u8>) -> Vec<u8> {
        match self {
            Stream::Plain => bytes,
            Stream::Encrypted(stream) => match stream.seal(&bytes) {
                Ok(_) => std::mem::take(&mut stream.unsent),
                Err(_) => Vec::new(),
            },
        }
    }

    /// Returns what the client can bind its login to, if anything.
    pub(crate) fn end_point(&self) -> Option<&[u8]> {
        match self {
            Stream::Plain => None,
            Stream::Encrypted(stream) => stream.end_point.as_deref(),
        }
    }

    /// Returns what encrypts the stream; `None` if nothing does.
    pub(crate) fn encryption(&self) -> Option<Encryption> {
        let Stream::Encrypted(stream) = self else { return None };
        let suite = format!("{:?}", stream.tls.negotiated_cipher_suite()?.suite());
        let version = match stream.tls.protocol_version()? {
            ProtocolVersion::TLSv1_3 => "TLSv1.3",
            _ => "TLSv1.2",
        };
        let bits = if suite.contains("AES_128") { 128 } else { 256 };
        Some(Encryption { version, cipher: suite.replacen("TLS13_", "TLS_", 1), bits })
    }
}

type ReadPlain = fn(&mut dyn Conn, &mut [u8]) -> io::Result<usize>;
type WritePlain = fn(&mut dyn Conn, &[u8]) -> io::Result<usize>;

/// Writes all of `bytes` to the stream below.
fn all(conn: &mut dyn Conn, bytes: &[u8]) -> io::Result<usize> {
    conn.write_all(bytes).map(|()| bytes.len())
}

/// The stream below, as rustls reads it.
struct Below<'a> {
    conn: &'a mut dyn Conn,
    read: ReadPlain,
}

impl Read for Below<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        (self.read)(self.conn, buf)
    }
}

impl Encrypted {
    fn read(&mut self, conn: &mut dyn Conn, buf: &mut [u8], read: ReadPlain) -> io::Result<usize> {
        loop {
            if self.readable > 0 {
                let read = self.tls.reader().read(buf)?;
                self.readable -= read;
                return Ok(read);
            }
            if self.has_ended {
                return Ok(0);
            }
            let received =
                self.receive(conn, |tls, conn| tls.read_tls(&mut Below { conn, read }))?;
            if received == 0 {
                return Ok(0);
            }
            host::yield_if_due();
        }
    }

    /// Takes bytes of the client by `read`, and processes them. Returns how many came.
    fn receive(
        &mut self,
        conn: &mut dyn Conn,
        read: impl FnOnce(&mut ServerConnection, &mut dyn Conn) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let received = read(&mut self.tls, conn)?;
        let tls = &mut self.tls;
        let shakes_hands = tls.is_handshaking();
        self.fruitless += received;
        if shakes_hands && self.fruitless > HANDSHAKE_MAX {
            return Err(refused(conn, "the handshake is too long"));
        }
        if self.fruitless > FRUITLESS_MAX {
            return Err(refused(conn, "the client sends much and no data"));
        }
        let outcome = if shakes_hands {
            // A signature takes about a millisecond, in which other workers run.
            host::go_preemptive("PREEMPTIVE_TLS", || tls.process_new_packets())
        } else {
            tls.process_new_packets()
        };
        // What is sent after an error is an alert, which names it.
        let sent = self.send(conn);
        let state = outcome.map_err(|error| refused(conn, error))?;
        sent?;
        self.readable = state.plaintext_bytes_to_read();
        self.has_ended = state.peer_has_closed();
        let has_begun = shakes_hands && !self.tls.is_handshaking();
        if has_begun || self.readable > 0 {
            self.fruitless = 0;
        }
        if has_begun && self.is_direct && self.tls.alpn_protocol() != Some(PROTOCOL) {
            return Err(refused(conn, "the client began without naming the protocol (ALPN)"));
        }
        Ok(received)
    }

    /// Encrypts `bytes` and writes them, in pieces. Returns how many are encrypted: fewer than all
    /// if `write` has not written a piece wholly.
    fn write(&mut self, conn: &mut dyn Conn, bytes: &[u8], write: WritePlain) -> io::Result<usize> {
        self.send_sealed(conn, write)?;
        let mut pieces = bytes.chunks(PIECE);
        let mut sealed = 0;
        while self.unsent.is_empty()
            && let Some(piece) = pieces.next()
        {
            if !self.seal(piece)? {
                return Err(refused(conn, "the keys have encrypted as much as they may"));
            }
            sealed += piece.len();
            self.send_sealed(conn, write)?;
            host::yield_if_due();
        }
        Ok(sealed)
    }

    /// Encrypts `bytes`. Returns false if the keys may encrypt no more: those of TLS 1.2 cannot be
    /// changed, and rustls says that the stream ends and drops what follows.
    fn seal(&mut self, bytes: &[u8]) -> io::Result<bool> {
        if self.tls.is_handshaking() || self.has_failed {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let before = self.unsent.len();
        io::Write::write_all(&mut self.tls.writer(), bytes)?;
        self.take_sealed()?;
        // A record is longer than its data.
        Ok(self.unsent.len() - before > bytes.len())
    }

    /// Takes what rustls has encrypted.
    fn take_sealed(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.unsent)?;
        }
        Ok(())
    }

    /// Sends what rustls has to say: the handshake, changes of keys, alerts.
    fn send(&mut self, conn: &mut dyn Conn) -> io::Result<()> {
        self.take_sealed()?;
        if self.has_failed { Ok(()) } else { self.send_sealed(conn, all) }
    }

    /// Sends what is encrypted. Keeps what `write` does not write.
    fn send_sealed(&mut self, conn: &mut dyn Conn, write: WritePlain) -> io::Result<()> {
        if self.unsent.is_empty() {
            return Ok(());
        }
        let mut sealed = std::mem::take(&mut self.unsent);
        let written = write(conn, &sealed).inspect_err(|_| self.has_failed = true)?;
        if written < sealed.len() {
            self.unsent = sealed.split_off(written);
        }
        Ok(())
    }
}

/// Returns the error of a client that does not speak TLS as it must, and writes it to the log.
#[cold]
fn refused(conn: &dyn Conn, why: impl fmt::Display) -> io::Error {
    conn.warn(format_args!("TLS failed: {why}"));
    io::ErrorKind::InvalidData.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::crypto::ring::{self, cipher_suite};
    use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig};
    use rustls::{SupportedCipherSuite, Tls12CipherSuite};
    use rustls_pki_types::PrivateKeyDer;

    /// What one side sends and the other has not read yet.
    #[derive(Default)]
    struct Both {
        input: Vec<u8>,
        output: Vec<u8>,
    }

    impl Conn for Both {
        fn user(&self) -> u64 {
            1
        }

        fn try_read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            let read = (&self.input[..]).read(buf)?;
            self.input.drain(..read);
            if read == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(read) }
        }

        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            self.try_read(buf)
        }

        fn resume(&self) -> Box<dyn FnOnce() + Send> {
            Box::new(|| ())
        }

        fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
            self.output.extend(bytes);
            Ok(())
        }
    }

    /// Returns the two ends of a stream in TLS 1.2, whose keys encrypt this many records.
    fn ends(records: u64) -> (Stream, ClientConnection, Both) {
        let suite = cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256;
        let SupportedCipherSuite::Tls12(suite) = suite else { panic!("a suite of TLS 1.2") };
        let common = rustls::CipherSuiteCommon {
            confidentiality_limit: records,
            suite: suite.common.suite,
            hash_provider: suite.common.hash_provider,
        };
        let suite = Tls12CipherSuite {
            common,
            prf_provider: suite.prf_provider,
            kx: suite.kx,
            sign: suite.sign,
            aead_alg: suite.aead_alg,
        };
        let suite = SupportedCipherSuite::Tls12(Box::leak(Box::new(suite)));
        let provider = rustls::crypto::CryptoProvider {
            cipher_suites: vec![suite],
            ..ring::default_provider()
        };
        let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&[&rustls::version::TLS12])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone()).unwrap();
        let client = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let name = "localhost".try_into().unwrap();
        let client = ClientConnection::new(Arc::new(client), name).unwrap();
        let (mut stream, mut conn) = (Stream::Plain, Both::default());
        let accepted = Accepted { config: Arc::new(config), end_point: None };
        stream.encrypt(&mut conn, accepted, false, &[]).unwrap();
        (stream, client, conn)
    }

    #[test]
    fn a_stream_whose_keys_are_used_up_ends_and_is_not_silent() {
        let (mut stream, mut client, mut conn) = ends(10);
        while client.wants_write() {
            client.write_tls(&mut conn.input).unwrap();
            stream.try_read(&mut conn, &mut [0]).unwrap_err();
            client.read_tls(&mut &std::mem::take(&mut conn.output)[..]).unwrap();
            client.process_new_packets().unwrap();
        }
        assert!(!client.is_handshaking());
        let sent = (0..20).position(|_| stream.write_all(&mut conn, &[7; 100]).is_err());
        let sent = sent.expect("an error");
        stream.end(&mut conn);
        client.read_tls(&mut &conn.output[..]).unwrap();
        let state = client.process_new_packets().unwrap();
        assert_eq!(state.plaintext_bytes_to_read(), 100 * sent, "what was sent has arrived");
        assert!(state.peer_has_closed());
    }
}
