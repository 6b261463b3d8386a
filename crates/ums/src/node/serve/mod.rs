//! Serving: a listener accepts connections; each connection is a user with a session, whose code
//! workers call for each of its requests.
//!
//! A connection is a [`User`]. While it is idle its next read is on the I/O list of the scheduler
//! where its last request ran, and it occupies nothing else but the session's own state: no worker,
//! no stack, no read buffer. When input arrives, the driver has a buffer for it, and the completion
//! routine of that read queues one work request, which calls the session.
//!
//! ```text
//!   listener readable -> accept request -> new user, session, request(Connected)
//!                                              |
//!        +-------------------------------------+<-------------------+
//!        v                                                          |
//!   session.request(..) --Wait--> readable on the I/O list --> work request
//!        |---Again--> work request at once                 --timed out--> request(TimedOut)
//!        +---Close--> the user leaves, the socket closes
//! ```
//!
//! Accepting is a work request like any other: while a scheduler has no free worker, it accepts no
//! connection.
//!
//! The code here implements no protocol. It keeps only the bytes that the read of an idle
//! connection has received, until the session reads them (`ahead`).

// A file uses only files that are declared above it.
mod ahead;
mod places;
mod listener;
mod arrivals;
mod logins;
mod memory;
mod options;
mod shared;
mod line;
mod connection;
mod session;
mod client;
mod server;

pub use connection::{Connection, Outlook, Resumer};
pub use listener::{Listener, Peer};
pub use memory::{KeptMemory, MemoryRefused};
pub use options::ServeOptions;
pub use server::Server;
pub use session::{Next, Session, Why};
pub use shared::ServerCounters;
