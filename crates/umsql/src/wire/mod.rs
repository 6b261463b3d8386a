//! The PostgreSQL wire protocol, version 3: frames, messages, values. Own code, because the codec
//! crates' decoders panic on malformed bodies; here every read is checked and answers with an
//! error.
//!
//! What it does not do: it reads from no socket and knows no session.

pub(crate) mod datetime;
pub(crate) mod message;
pub(crate) mod numeric;
pub(crate) mod out;
pub(crate) mod types;
