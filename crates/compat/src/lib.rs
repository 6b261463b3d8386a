//! Libraries that are written with `async`, on the schedulers of [`ums`].
//!
//! ```text
//!   library              takes                      give it
//!   hyper                hyper::rt::Read, Write     Stream (a socket of ums::net)
//!                        hyper::rt::Timer           Timer
//!                        hyper::rt::Executor        Executor
//!   axum, tonic          a connection of hyper      the same
//!   hyper-util's client  a connector                Connector
//!   tokio-rustls, ...    tokio's AsyncRead, Write   Stream
//!   reqwest, sqlx, ...   a runtime of tokio         Tokio, which has one on a thread of its own
//! ```
//!
//! Two ways to run a connection:
//!
//! * [`ums::future::block_on`] in a task of its own. The connection has a worker, and a handler may
//!   block in plain code: other connections go on.
//! * [`ums::future::spawn_future`]. The connection has neither a worker nor a stack while it waits.
//!   A handler that blocks in plain code keeps the worker of its poll meanwhile.
//!
//! ```
//! use std::convert::Infallible;
//! use hyper::server::conn::http1;
//! use hyper::service::service_fn;
//! use hyper::{Request, Response, body::Incoming};
//! use ums::net::{TcpListener, TcpStream};
//!
//! async fn hello(_: Request<Incoming>) -> Result<Response<String>, Infallible> {
//!     ums::sleep(std::time::Duration::from_millis(1)).ok(); // plain blocking code
//!     Ok(Response::new("hello".into()))
//! }
//!
//! let node = ums::Node::builder().build()?;
//! let listener = TcpListener::bind("127.0.0.1:0")?;
//! let address = listener.local_addr()?;
//! node.spawn(move || {
//!     for stream in listener.incoming().flatten() {
//!         ums::spawn(move || {
//!             let stream = ums_compat::Stream::new(stream);
//!             let mut server = http1::Builder::new();
//!             let server = server.timer(ums_compat::Timer).half_close(true);
//!             ums::future::block_on(server.serve_connection(stream, service_fn(hello)))
//!         });
//!     }
//! })?;
//! # use std::io::{Read, Write};
//! # let mut client = TcpStream::connect(address)?;
//! # client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")?;
//! # let mut answer = String::new();
//! # client.read_to_string(&mut answer)?;
//! # assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("hello"), "{answer}");
//! node.drain(std::time::Duration::from_secs(5)); // ends the loop, and lets connections end
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The programs in the folder `examples` serve and ask with hyper, axum, rustls, tonic, and
//! hyper-util's client.
//!
//! What it does not do: a future that creates tokio's own sockets or timers needs tokio's runtime
//! around it; run such a future with [`Tokio`].

#![forbid(unsafe_code)]
// Arithmetic of times is checked; clippy.toml says what the lint leaves out.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

#[cfg(doctest)]
mod book;
mod rt;
mod stream;
#[cfg(feature = "client")]
mod connector;
#[cfg(feature = "runtime")]
mod runtime;

#[cfg(feature = "client")]
pub use connector::{Connected, Connecting, Connector};
pub use rt::{Executor, Timer};
#[cfg(feature = "runtime")]
pub use runtime::{Tokio, TokioError};
pub use stream::{Socket, Stream};
