//! Connections for the client of hyper-util, which keeps a pool of them.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::Uri;
use hyper_util::client::legacy::connect;
use ums::net::TcpStream;

use crate::Stream;

/// Connects to the host of a URI, for hyper-util's client. It makes connections without TLS.
///
/// ```
/// use hyper_util::client::legacy::Client;
/// use ums_compat::{Connector, Executor, Timer};
/// type Body = String;
/// let client: Client<Connector, Body> =
///     Client::builder(Executor).timer(Timer).pool_timer(Timer).build(Connector);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Connector;

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
        // A task of its own, because the name is looked up in blocking code.
        Connecting(ums::spawn(move || {
            let refused = |why| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            let port = match (uri.port_u16(), uri.scheme_str()) {
                (Some(port), _) => port,
                (None, Some("http")) => 80,
                _ => return refused(format!("{uri}: only http: is supported without a port")),
            };
            match uri.host() {
                Some(host) => TcpStream::connect((host.trim_matches(['[', ']']), port)),
                None => refused(format!("{uri}: there is no host to connect to")),
            }
        }))
    }
}

/// The future of a connection.
#[derive(Debug)]
pub struct Connecting(ums::JoinHandle<io::Result<TcpStream>>);

impl Future for Connecting {
    type Output = io::Result<Connected>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let ended = ready!(Pin::new(&mut self.0).poll(context));
        let stream = ended.map_err(|error| io::Error::other(error.to_string()))??;
        stream.set_nodelay(true)?;
        Poll::Ready(Ok(Connected(Stream::new(stream))))
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
