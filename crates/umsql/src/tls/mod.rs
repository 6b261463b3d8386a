//! TLS: the server's certificate, and the stream of a client that is plain or encrypted.
//!
//! It knows nothing of sessions: `encryption` decides when a stream begins to be encrypted.

// A file uses only files that are declared above it.
mod end_point;
mod certificate;
mod stream;

pub use certificate::{Tls, TlsError};
pub(crate) use stream::{Encryption, Stream};
