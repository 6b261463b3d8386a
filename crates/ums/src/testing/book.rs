//! The chapters of the book whose programs run as tests of this crate's documentation.
//!
//! The folder `docs` of the repository is the book, and `docs/SUMMARY.md` lists its chapters. Each
//! block of Rust in a chapter is a test, except those that are marked `ignore`: they are quoted
//! from an example, which `tests/readme.rs` compares, or are written for another runtime.
//! Chapters whose programs need hyper or rustls are tests of the crate `ums-compat`.

#[doc = include_str!("../../../../docs/first-program.md")]
mod first_program {}

#[doc = include_str!("../../../../docs/tasks.md")]
mod tasks {}

#[doc = include_str!("../../../../docs/workers.md")]
mod workers {}

#[doc = include_str!("../../../../docs/waits.md")]
mod waits {}

#[doc = include_str!("../../../../docs/files-and-sockets.md")]
mod files_and_sockets {}

#[doc = include_str!("../../../../docs/processes.md")]
mod processes {}

#[doc = include_str!("../../../../docs/coming-from.md")]
mod coming_from {}

#[doc = include_str!("../../../../docs/debugging.md")]
mod debugging {}
