//! The metrics server: views over HTTP, for Prometheus and for scripts.
//!
//! One plain thread waits in `accept`. It answers even if every scheduler is stuck, and costs
//! nothing while there are no clients. Each client has a thread of its own for a few seconds at
//! most, however slow the client is, so silent clients keep no other waiting. There are at most
//! [`CLIENTS_MAX`] such threads; a further client waits until one of them has ended. Recording a
//! trace takes longer, so another thread does that; there are at most four of those. The paths are:
//!
//! * `GET /metrics`: metrics for Prometheus;
//! * `GET /json`: all views as JSON;
//! * `GET /trace.json` and `GET /trace.pftrace`: the contents of the event rings, or with `?ms=500`
//!   the events of the next half second, for Chrome and for Perfetto.
//!
//! The server is not for open networks, because there is no authentication. It speaks HTTP/1.0.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::node::Node;
use crate::observe::trace::{TraceFormat, TraceOrder};
use crate::os::threads;

/// How long one client may take to send its request, and how long to read the answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest request line with headers, in bytes.
const REQUEST_MAX: u64 = 8192;
/// The most clients that are served at the same time.
const CLIENTS_MAX: usize = 64;

/// A server of a node's views over HTTP, until it is dropped. Created by [`Node::serve_metrics`].
#[must_use = "the views are served until this is dropped"]
pub struct MetricsServer {
    address: SocketAddr,
    ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Node {
    /// Serves the views over HTTP from a plain thread: `/metrics` for Prometheus, `/json` for
    /// scripts, and `/trace.json` and `/trace.pftrace` for traces. There is no authentication: use
    /// a local address.
    ///
    /// # Errors
    /// Fails if the address cannot be listened on, or the system refuses a thread.
    ///
    /// ```
    /// use std::io::{Read, Write};
    /// let node = ums::Node::builder().schedulers(1).build()?;
    /// let server = node.serve_metrics("127.0.0.1:0".parse()?)?;
    /// let mut client = std::net::TcpStream::connect(server.local_addr())?;
    /// client.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    /// let mut answer = String::new();
    /// client.read_to_string(&mut answer)?;
    /// assert!(answer.starts_with("HTTP/1.0 200 OK\r\n"));
    /// assert!(answer.contains("# TYPE ums_schedulers_yield_count counter"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn serve_metrics(&self, address: SocketAddr) -> io::Result<MetricsServer> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let ending = Arc::new(AtomicBool::new(false));
        let (node, end) = (self.clone(), ending.clone());
        let builder = std::thread::Builder::new().name("ums-metrics".into());
        let thread = threads::start(builder, move || {
            let taken = Arc::new(AtomicUsize::new(0));
            for client in listener.incoming() {
                if end.load(Ordering::Acquire) {
                    return;
                }
                match client {
                    Ok(client) => serve(&node, client, &end, &taken),
                    // Usually no descriptor is free. The pause prevents a busy loop.
                    Err(_) => std::thread::sleep(Duration::from_millis(100)),
                }
            }
        })?;
        Ok(MetricsServer { address, ending, thread: Some(thread) })
    }
}

impl MetricsServer {
    /// Returns the address that the server listens on.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Release);
        // The connection ends the thread's wait in `accept`. If the connection fails, the thread
        // stays until its next client.
        let reached = TcpStream::connect_timeout(&self.address, PATIENCE).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| reached) {
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for MetricsServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MetricsServer({})", self.address)
    }
}

/// A client with a deadline for the whole exchange. A socket's timeout would not be enough: it
/// applies to each call, and a client that sends single bytes would never exceed it.
struct Hurried<'a> {
    client: &'a TcpStream,
    began: Instant,
}

impl Hurried<'_> {
    fn new(client: &TcpStream) -> Hurried<'_> {
        Hurried { client, began: Instant::now() }
    }

    fn left(&self) -> io::Result<Duration> {
        let left = PATIENCE.saturating_sub(self.began.elapsed());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

impl Read for Hurried<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.client.set_read_timeout(Some(self.left()?))?;
        self.client.read(bytes)
    }
}

impl Write for Hurried<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.client.set_write_timeout(Some(self.left()?))?;
        self.client.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// One of the places for clients; dropping it gives it back.
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Serves a client on a thread of its own, or on this one if the system refuses a thread. Waits
/// first if there are too many such threads.
fn serve(node: &Node, client: TcpStream, ending: &Arc<AtomicBool>, taken: &Arc<AtomicUsize>) {
    while taken.load(Ordering::Acquire) >= CLIENTS_MAX && !ending.load(Ordering::Acquire) {
        std::thread::sleep(Duration::from_millis(20));
    }
    taken.fetch_add(1, Ordering::AcqRel);
    let place = Place(taken.clone());
    let client = Arc::new(client);
    let (its_node, its_client, end) = (node.clone(), client.clone(), ending.clone());
    let builder = std::thread::Builder::new().name("ums-metrics".into());
    let thread = threads::start(builder, move || {
        let _place = place;
        // Errors are ignored: the client has gone away or has sent nonsense.
        let _ = answer(&its_node, &its_client, &end);
    });
    if thread.is_err() {
        let _ = answer(node, &client, ending);
    }
}

fn answer(node: &Node, client: &TcpStream, ending: &Arc<AtomicBool>) -> io::Result<()> {
    let mut lines = BufReader::new(Hurried::new(client).take(REQUEST_MAX)).lines();
    let request = lines.next().unwrap_or(Ok(String::new()))?;
    // The rest of the request must be read. Otherwise closing the socket could reset the connection
    // before the answer arrives.
    for line in lines {
        if line?.is_empty() {
            break;
        }
    }
    let target = request.strip_prefix("GET ").and_then(|rest| rest.split(' ').next());
    let Some(order) = target.and_then(order) else {
        return send(client, &page(node, target));
    };
    let copy = client.try_clone()?;
    let kind = if order.format == TraceFormat::Chrome { JSON } else { BYTES };
    let deliver = move |body| drop(send(&copy, &("200 OK", kind, body)));
    order.carry_out(node.clone(), ending.clone(), deliver).or_else(|sentence| {
        let body = format!("{sentence}\n").into_bytes();
        send(client, &("503 Service Unavailable", PLAIN, body))
    })
}

/// HTTP status, content type and body.
type Page = (&'static str, &'static str, Vec<u8>);

const PLAIN: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json; charset=utf-8";
const BYTES: &str = "application/octet-stream";

fn send(client: &TcpStream, (status, kind, body): &Page) -> io::Result<()> {
    let length = body.len();
    let mut client = Hurried::new(client);
    write!(
        client,
        "HTTP/1.0 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n"
    )?;
    client.write_all(body)
}

/// Returns the trace that this path asks for, or `None` for another path.
fn order(target: &str) -> Option<TraceOrder> {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let format = match path {
        "/trace.json" => TraceFormat::Chrome,
        "/trace.pftrace" => TraceFormat::Perfetto,
        _ => return None,
    };
    let ms = query.strip_prefix("ms=").and_then(|ms| ms.parse().ok()).unwrap_or(0);
    Some(TraceOrder { format, span: Duration::from_millis(ms) })
}

fn page(node: &Node, target: Option<&str>) -> Page {
    let path = target.map(|target| target.split('?').next().unwrap_or(target));
    match path {
        None => ("400 Bad Request", PLAIN, b"Only GET is answered.\n".to_vec()),
        Some("/metrics") => {
            let text = node.snapshot().to_prometheus();
            ("200 OK", "text/plain; version=0.0.4; charset=utf-8", text.into_bytes())
        }
        Some("/json") => ("200 OK", JSON, node.snapshot().to_json().into_bytes()),
        Some(_) => {
            let known = b"There are /metrics, /json, /trace.json and /trace.pftrace.\n";
            ("404 Not Found", PLAIN, known.to_vec())
        }
    }
}
