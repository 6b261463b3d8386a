//! A client of TLS 1.3 that sends what no library sends: empty records, records that end in the
//! middle of a message, changes of keys at any moment. The handshake is rustls's.

use std::sync::Arc;

use hmac::{Hmac, Mac};
use rustls::crypto::cipher::{AeadKey, Iv, MessageEncrypter, OutboundChunks, OutboundPlainMessage};
use rustls::crypto::ring::{self, cipher_suite};
use rustls::{
    ClientConfig, ClientConnection, ContentType, KeyLog, ProtocolVersion, RootCertStore,
    SupportedCipherSuite, version,
};
use sha2::Sha256;
use ums::lock::Lock;

/// A message that says that the sender changes its keys.
pub(crate) const KEY_UPDATE: &[u8] = &[24, 0, 0, 1, 0];

/// The only suite that these clients offer: its hash is SHA-256, its key has 32 bytes.
const SUITE: SupportedCipherSuite = cipher_suite::TLS13_CHACHA20_POLY1305_SHA256;

/// Keeps the secret of the client's keys.
#[derive(Debug, Default)]
struct Secret(Lock<Vec<u8>>);

impl KeyLog for Secret {
    fn log(&self, label: &str, _client: &[u8], secret: &[u8]) {
        if label == "CLIENT_TRAFFIC_SECRET_0" {
            *self.0.lock() = secret.to_vec();
        }
    }
}

/// What encrypts the client's records.
pub(crate) struct Records {
    secret: Vec<u8>,
    encrypter: Box<dyn MessageEncrypter>,
    sent: u64,
}

/// Shakes hands with a server: passes bytes to `send`, which returns the answer.
pub(crate) fn handshake(roots: RootCertStore, mut send: impl FnMut(&[u8]) -> Vec<u8>) -> Records {
    let secret = Arc::new(Secret::default());
    let provider =
        rustls::crypto::CryptoProvider { cipher_suites: vec![SUITE], ..ring::default_provider() };
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&version::TLS13])
        .expect("a version that the suite has")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.key_log = secret.clone();
    let name = "localhost".try_into().expect("a name");
    let mut tls = ClientConnection::new(Arc::new(config), name).expect("a client");
    while tls.wants_write() {
        let mut out = Vec::new();
        tls.write_tls(&mut out).expect("memory");
        let answer = send(&out);
        tls.read_tls(&mut &answer[..]).expect("memory");
        tls.process_new_packets().expect("a handshake");
    }
    assert!(!tls.is_handshaking());
    let secret = secret.0.lock().clone();
    Records { encrypter: encrypter(&secret), secret, sent: 0 }
}

impl Records {
    /// Returns a record of data.
    pub(crate) fn data(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.record(ContentType::ApplicationData, bytes)
    }

    /// Returns a record with a message of a handshake, or a part of one.
    pub(crate) fn handshake(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.record(ContentType::Handshake, bytes)
    }

    /// Returns a record that says that the keys change, and changes them.
    pub(crate) fn change_keys(&mut self) -> Vec<u8> {
        let record = self.handshake(KEY_UPDATE);
        self.secret = expand(&self.secret, "traffic upd", 32);
        self.encrypter = encrypter(&self.secret);
        self.sent = 0;
        record
    }

    fn record(&mut self, typ: ContentType, bytes: &[u8]) -> Vec<u8> {
        let payload = OutboundChunks::Single(bytes);
        let message = OutboundPlainMessage { typ, version: ProtocolVersion::TLSv1_2, payload };
        let record = self.encrypter.encrypt(message, self.sent).expect("a short record");
        self.sent += 1;
        record.encode()
    }
}

fn encrypter(secret: &[u8]) -> Box<dyn MessageEncrypter> {
    let suite = SUITE.tls13().expect("a suite of TLS 1.3");
    let key: [u8; 32] = expand(secret, "key", 32).try_into().expect("32 bytes");
    let iv: [u8; 12] = expand(secret, "iv", 12).try_into().expect("12 bytes");
    suite.aead_alg.encrypter(AeadKey::from(key), Iv::from(iv))
}

/// `HKDF-Expand-Label` of RFC 8446 without a context, for at most 32 bytes.
fn expand(secret: &[u8], label: &str, len: u8) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("any length is right");
    mac.update(&[0, len, label.len() as u8 + 6]);
    mac.update(b"tls13 ");
    mac.update(label.as_bytes());
    mac.update(&[0, 1]);
    mac.finalize().into_bytes()[..usize::from(len)].to_vec()
}
