//! The PostgreSQL wire protocol, version 3: frames, messages, values. No codec crate is used,
//! because their decoders panic on malformed bodies; here every read is checked and returns an
//! error.
//!
//! What it does not do: it reads from no socket and has no session.

pub(crate) mod datetime;
pub(crate) mod message;
pub(crate) mod numeric;
pub(crate) mod out;
pub(crate) mod types;
