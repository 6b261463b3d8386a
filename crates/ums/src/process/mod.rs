//! Child processes and signals, as waits: other workers run while a worker waits for them.
//!
//! ```text
//!   Child      a process: its end, its pipes, its signals       status, output: run one to its end
//!   PipeReader, PipeWriter    the near end of a pipe to it
//!   Signals    signals of this process, each received once
//! ```
//!
//! What a child runs is said with [`std::process::Command`]. Like all waits, these end when the
//! work request is cancelled or its time is over, and they work on plain threads, too.
//!
//! ```
//! use std::process::Command;
//!
//! let node = ums::Node::builder().schedulers(1).build()?;
//! let text = node.run(|| ums::process::output(Command::new("echo").arg("hello")))?.stdout;
//! assert_eq!(text, b"hello\n");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod child;
mod pipe;
mod signals;

pub use child::{Child, output, status};
pub use pipe::{PipeReader, PipeWriter};
pub use signals::Signals;
