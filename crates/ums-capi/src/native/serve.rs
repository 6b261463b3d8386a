//! Serving: accepts connections, and runs a function of the program for each.
//!
//! A connection is a session of the library's server. Its first request calls the program's
//! function, which does its own I/O, and whose end closes the connection. So a connection has a
//! worker for as long as it is open.

use std::ffi::c_int;
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixListener;

use ums::serve::{Connection, Listener, Next, ServeOptions, Server, Session, Why};

use super::fault::{Fault, answer, guard};
use super::io::lend;
use super::node::ums_node;
use super::object::{self, ConstHandle, Handle, give, objects};
use super::options::record;
use crate::caller::{Argument, Descriptor, Out, Record};

/// Called on a worker for each connection, with its descriptor, which is in non-blocking mode. The
/// connection is closed when the function returns; it must not close the descriptor itself. If
/// there is unread input then, TCP resets the connection, and the client may lose what was written
/// last: call shutdown(fd, SHUT_WR), and read to the end for a limited time.
pub type ums_connection_function = Option<extern "C-unwind" fn(arg: Argument, fd: c_int)>;

/// A listening socket whose connections are served.
pub struct ums_server {
    _opaque: [u8; 0],
}

objects! {
    ums_server = b"ums serv": Server;
}

/// The limits of a server. Set `size` to sizeof(ums_serve_options), and all other fields to zero
/// for no limits. Connections beyond a limit are closed as soon as they are accepted.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ums_serve_options {
    /// sizeof(ums_serve_options).
    pub size: usize,
    /// How many connections may be open.
    pub max_connections: usize,
    /// How many connections from one address, or from one IPv6 network of 64 bits, may be open.
    pub max_per_address: usize,
    /// How many connections in a second one address may make, on average.
    pub max_rate_per_address: u32,
    /// How many connections in a second all addresses together may make, on average.
    pub max_rate: u32,
}

/// One connection.
struct Calling {
    function: extern "C-unwind" fn(Argument, c_int),
    arg: Argument,
}

impl Session for Calling {
    fn request(&mut self, conn: &mut Connection<'_>, why: Why) -> Next {
        // The server may have been stopped before a worker was free.
        if why == Why::Connected {
            (self.function)(self.arg, conn.as_fd().as_raw_fd());
        }
        Next::Close
    }
}

/// Returns the listener, which is another descriptor of the caller's socket.
fn listener(fd: Descriptor) -> Result<Listener, Fault> {
    let own = || Ok::<_, Fault>(lend(fd)?.as_fd().try_clone_to_owned()?);
    let tcp = TcpListener::from(own()?);
    if tcp.local_addr().is_ok() {
        return Ok(Listener::Tcp(tcp));
    }
    let unix = UnixListener::from(own()?);
    unix.local_addr()?;
    Ok(Listener::Unix(unix))
}

/// Accepts connections of a listening socket, TCP or Unix-domain, and calls the function for each
/// on a worker. `options` may be NULL. The server uses a duplicate of the descriptor; close yours,
/// so that the system refuses clients when the server has stopped. The socket may be in blocking
/// mode: the call sets O_NONBLOCK. ums_node_drain stops the
/// servers of its node, and gives their connections the grace time. -EINVAL: the socket does not
/// listen.
#[unsafe(no_mangle)]
pub extern "C" fn ums_serve(
    node: Handle<ums_node>,
    fd: Descriptor,
    options: Record<'_, ums_serve_options>,
    function: ums_connection_function,
    arg: Argument,
    server: Out<'_, Handle<ums_server>>,
) -> c_int {
    guard(|| {
        let function = function.ok_or_else(|| Fault::null("the function"))?;
        if server.is_null() {
            return Err(Fault::null("server"));
        }
        let given = record(&options, "ums_serve_options")?;
        let options = ServeOptions {
            max_connections: given.max_connections,
            max_per_address: given.max_per_address,
            max_rate_per_address: given.max_rate_per_address,
            max_rate: given.max_rate,
            ..ServeOptions::default()
        };
        let owned = object::get(node)?;
        let made = owned
            .node
            .serve(listener(fd)?, options, move |_, _| Box::new(Calling { function, arg }))?;
        give(server, made)
    })
}

/// Stops accepting connections. The functions that are running continue.
#[unsafe(no_mangle)]
pub extern "C" fn ums_server_stop(server: Handle<ums_server>) -> c_int {
    guard(|| {
        object::get(server)?.stop();
        Ok(0)
    })
}

/// Stops the server as ums_server_stop does, and frees it. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn ums_server_free(server: Handle<ums_server>) -> c_int {
    guard(|| {
        if !server.is_null() {
            object::retire(&object::get(server)?);
        }
        Ok(0)
    })
}

/// Returns how many connections are open; 0 for a bad pointer.
#[unsafe(no_mangle)]
pub extern "C" fn ums_server_connections(server: ConstHandle<ums_server>) -> usize {
    answer(0, || Ok(object::get(server)?.counters().open))
}
