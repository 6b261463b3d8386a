//! The certificate with which the server proves to clients who it is, and its private key.
//!
//! They can be replaced while the server runs. Streams that are encrypted already keep the old
//! ones.

use std::fmt;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::server::{NoServerSessionStorage, ServerConfig};
use rustls::version::{TLS12, TLS13};
use rustls::{Error, InconsistentKeys};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem};
use ums::lock::Lock;

use super::end_point;

/// The name of the protocol in the handshake (ALPN), which PostgreSQL's clients send since 17.
pub(super) const PROTOCOL: &[u8] = b"postgresql";

/// A certificate and its private key, for [`Settings::tls`](crate::Settings).
///
/// ```
/// let error = umsql::Tls::new(b"no certificate", b"no key").unwrap_err();
/// assert_eq!(error.to_string(), "there is no certificate in PEM format");
/// ```
#[derive(Debug)]
pub struct Tls {
    accepted: Lock<Accepted>,
}

/// What a new encrypted stream uses.
#[derive(Debug, Clone)]
pub(crate) struct Accepted {
    pub(super) config: Arc<ServerConfig>,
    /// What clients may bind their login to; `None` if the certificate allows none.
    pub(super) end_point: Option<Arc<[u8]>>,
}

/// Why a certificate and a key cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TlsError {
    /// The certificate is not usable, with the reason.
    Certificate(String),
    /// The private key is not usable, with the reason.
    Key(String),
    /// The private key is not that of the certificate.
    Pair,
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TlsError::Certificate(why) | TlsError::Key(why) => f.write_str(why),
            TlsError::Pair => f.write_str("the private key is not that of the certificate"),
        }
    }
}

impl std::error::Error for TlsError {}

impl Tls {
    /// Reads a certificate, with those of the authorities between it and the root, and its private
    /// key (PKCS#8, PKCS#1 or SEC1, without a passphrase). Both are texts in PEM format.
    ///
    /// # Errors
    /// If one of them is not usable, or the key is not that of the certificate.
    pub fn new(certificates: &[u8], key: &[u8]) -> Result<Tls, TlsError> {
        let accepted = Lock::new(Accepted::new(certificates, key)?);
        Ok(Tls { accepted })
    }

    /// Uses the certificate and the key of `other` for connections from now on.
    pub fn replace(&self, other: &Tls) {
        let other = other.accepted();
        *self.accepted.lock() = other;
    }

    pub(crate) fn accepted(&self) -> Accepted {
        self.accepted.lock().clone()
    }
}

impl Accepted {
    fn new(certificates: &[u8], key: &[u8]) -> Result<Accepted, TlsError> {
        let certificates = CertificateDer::pem_slice_iter(certificates)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| TlsError::Certificate(format!("it is not in PEM format: {error}")))?;
        let first = certificates
            .first()
            .ok_or_else(|| TlsError::Certificate("there is no certificate in PEM format".into()))?;
        let end_point = end_point::of_certificate(first).map(Arc::from);
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| wrong_key(key, &error))?;
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&[&TLS13, &TLS12])
            .expect("the provider has algorithms for both versions");
        let mut config = builder
            .with_no_client_auth()
            .with_single_cert(certificates, key)
            .map_err(wrong_pair)?;
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        // As in PostgreSQL, no session is taken up again: connections are made seldom, and the
        // server keeps nothing of those that have ended.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Accepted { config: Arc::new(config), end_point })
    }
}

fn wrong_key(text: &[u8], error: &pem::Error) -> TlsError {
    let encrypted = b"ENCRYPTED";
    TlsError::Key(match error {
        pem::Error::NoItemsFound if memchr::memmem::find(text, encrypted).is_some() => {
            "the private key has a passphrase: remove it with openssl pkey".into()
        }
        pem::Error::NoItemsFound => "there is no private key in PEM format".into(),
        // The error may contain a line of the file.
        _ => "it is not in PEM format".into(),
    })
}

fn wrong_pair(error: Error) -> TlsError {
    match error {
        Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => TlsError::Pair,
        Error::InvalidCertificate(why) => {
            TlsError::Certificate(format!("the certificate is not usable: {why}"))
        }
        error => TlsError::Key(format!("the private key is not usable: {error}")),
    }
}
