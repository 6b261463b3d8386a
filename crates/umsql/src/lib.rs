//! `umsql` is a SQL server that runs on `ums`. Clients use the PostgreSQL wire protocol; SQLite
//! executes the statements. Every wait, for a client, the disk, a lock or a timer, parks the worker
//! on a list of its scheduler.
//!
//! ```text
//! host  <-  error  <-  memory  <-  wire  <-  tls  <-  vfs  <-  dialect  <-  engine  <-  plan
//!       <-  server  <-  session  <-  listen
//! ```
//!
//! A **session** is the server's side of one connection, and a user of the node. It takes a few
//! hundred bytes while it is idle. When input is readable, the host runs [`Session::on_readable`]
//! as one work request. The request consumes exactly one simple query, or one extended cycle up to
//! its Sync, and returns a [`Flow`], which says what the session needs next. Between requests a
//! session has no worker, no stack, no buffer and, outside a transaction of the engine, no database
//! connection.
//!
//! [`listen`] runs a server on a node of `ums`. All other modules call `ums` through [`host`].
#![deny(unsafe_code)]
// Arithmetic of times is checked; clippy.toml says what the lint leaves out.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

pub mod host;

pub mod error;
mod budget;
mod heaps;
mod memory;
mod wire;

mod tls;
mod vfs;

mod dialect;
mod engine;

mod accounts;
mod alter;
mod auth;
mod clock;
mod keys;
mod plan;
mod portal;
mod prepare;
mod sequences;
mod server;
mod known_settings;
mod settings;
mod timeouts;
mod tx_mode;

mod copy;
mod copy_out;
mod cursor;
mod explain;
mod export;
mod extended;
mod identity;
mod keeping;
mod encryption;
mod input;
mod login;
mod numbering;
mod run;
mod session;
mod session_limits;
mod setting_statements;
mod statements;
mod transaction;

pub mod listen;

#[cfg(test)]
mod commit_story;
#[cfg(test)]
mod deferral_tests;
#[cfg(test)]
mod durability_tests;
#[cfg(test)]
mod fruitless_tests;
#[cfg(test)]
mod late_tests;
#[cfg(test)]
mod too_large_tests;

#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;

pub use accounts::{AccountError, Accounts, Role, new_password};
pub use engine::Files;
pub use export::{Exported, export};
pub use heaps::trim_heaps_by;
pub use memory::Limits;
pub use server::{Server, Settings};
pub use session::{Flow, Session};
pub use timeouts::{Timeouts, WrongTime, parse_time};
pub use tls::{Tls, TlsError};
