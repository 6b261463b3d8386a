//! The chapters of the book whose programs run as tests of this crate's documentation.
//!
//! The folder `docs` of the repository is the book. The other chapters are tests of the crate
//! `ums`; `testing/book.rs` there says what is compiled.

#[doc = include_str!("../../../docs/http.md")]
mod http {}

#[doc = include_str!("../../../docs/beside-tokio.md")]
mod beside_tokio {}
