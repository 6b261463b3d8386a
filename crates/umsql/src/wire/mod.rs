//! The PostgreSQL wire protocol, version 3: frames, messages, values. No existing codec crate is
//! used, because their decoders panic on malformed bodies. Here every read is checked and returns
//! an error.
//!
//! It does not read from sockets, and has no sessions.

pub(crate) mod arrays;
pub(crate) mod canonical;
pub(crate) mod datetime;
pub(crate) mod decimal;
pub(crate) mod declaration;
pub(crate) mod floats;
pub(crate) mod hex;
pub(crate) mod interval;
pub(crate) mod message;
pub(crate) mod numeric;
pub(crate) mod out;
pub(crate) mod scales;
pub(crate) mod time_input;
pub(crate) mod types;
