//! Connections for the client of hyper-util, which keeps a pool of them.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::Uri;
use hyper_util::client::legacy::connect;
use ums::net::TcpStream;

use crate::Stream;

/// Connects to the host of a URI, for hyper-util's client. What is sent is not encrypted, so it
/// refuses other schemes than `http`, unless [`any_scheme`](Connector::any_scheme) allows them.
///
/// ```
/// use hyper_util::client::legacy::Client;
/// use ums_compat::{Connector, Executor, Timer};
/// type Body = String;
/// let client: Client<Connector, Body> =
///     Client::builder(Executor).timer(Timer).pool_timer(Timer).build(Connector::new());
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Connector {
    any_scheme: bool,
}

impl Connector {
    /// Connects for `http` alone.
    pub fn new() -> Connector {
        Connector::default()
    }

    /// Connects for every scheme. The default port of `https` is 443. This is for a layer that
    /// encrypts what it sends over these connections.
    pub fn any_scheme(self) -> Connector {
        Connector { any_scheme: true }
    }

    /// Returns the host and the port of a URI.
    fn target(self, uri: &Uri) -> io::Result<(String, u16)> {
        let refused = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
        let scheme = uri.scheme_str().unwrap_or("http");
        if scheme != "http" && !self.any_scheme {
            let why = format!("a connection for '{scheme}' would not be encrypted: use 'http'");
            return Err(refused(why));
        }
        let host = uri.host().ok_or_else(|| refused("the URI has no host".to_owned()))?;
        let port = match (uri.port_u16(), scheme) {
            (Some(port), _) => port,
            (None, "http") => 80,
            (None, "https") => 443,
            (None, _) => return Err(refused(format!("a URI of '{scheme}' needs a port"))),
        };
        Ok((host.trim_matches(['[', ']']).to_owned(), port))
    }
}

impl tower_service::Service<Uri> for Connector {
    type Response = Connected;
    type Error = io::Error;
    type Future = Connecting;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// # Panics
    /// Panics on a plain thread and in preemptive code.
    fn call(&mut self, uri: Uri) -> Connecting {
        let target = self.target(&uri);
        // A task of its own, because the name is looked up in blocking code.
        Connecting(Some(ums::spawn(move || TcpStream::connect(target?))))
    }
}

/// The future of a connection. Dropping it ends the attempt.
#[derive(Debug)]
pub struct Connecting(Option<ums::JoinHandle<io::Result<TcpStream>>>);

impl Future for Connecting {
    type Output = io::Result<Connected>;

    /// # Panics
    /// Panics if the connection was taken before.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let task = self.0.as_mut().expect("the connection was taken already");
        let ended = ready!(Pin::new(task).poll(context));
        self.0 = None;
        let stream = ended.map_err(|error| io::Error::other(error.to_string()))??;
        stream.set_nodelay(true)?;
        Poll::Ready(Ok(Connected(Stream::new(stream))))
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(|attempt| attempt.cancel());
    }
}

/// A connection of [`Connector`].
#[derive(Debug)]
pub struct Connected(pub Stream);

impl connect::Connection for Connected {
    fn connected(&self) -> connect::Connected {
        connect::Connected::new()
    }
}

impl hyper::rt::Read for Connected {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        hyper::rt::Read::poll_read(Pin::new(&mut self.0), context, buf)
    }
}

impl hyper::rt::Write for Connected {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        hyper::rt::Write::poll_write(Pin::new(&mut self.0), context, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        hyper::rt::Write::poll_write_vectored(Pin::new(&mut self.0), context, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        hyper::rt::Write::poll_flush(Pin::new(&mut self.0), context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        hyper::rt::Write::poll_shutdown(Pin::new(&mut self.0), context)
    }
}
