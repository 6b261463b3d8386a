//! Streams, timers and runtimes in this process, in every kind of worker: what the examples do not
//! reach.

#[path = "../examples/common/mod.rs"]
mod common;

use std::convert::Infallible;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream as StdTcp};
use std::os::unix::net::UnixStream as StdStream;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, Uri, body::Incoming};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};
use tower_service::Service;
use ums::future::{block_on, spawn_future};
use ums::net::{TcpListener, TcpStream, UnixStream};
#[cfg(debug_assertions)]
use ums::task::JoinError;
use ums::{Node, WaitError};
use ums_compat::{Connector, Stream, Timer, Tokio, TokioError};

/// Calls the body for a node of each kind of workers, and checks that the node ends with nothing
/// left.
fn each_kind(body: impl Fn(&Node, &'static str)) {
    for kind in kinds() {
        let node = common::node(kind).unwrap();
        body(&node, kind);
        end(node, kind);
    }
}

fn kinds() -> impl Iterator<Item = &'static str> {
    let own = ums::probe::own_contexts_are_refused().is_none();
    ["thread", "fiber", "context"].into_iter().filter(move |kind| own || *kind != "context")
}

fn end(node: Node, kind: &str) {
    let report = node.shutdown(Duration::from_secs(20));
    assert_eq!((report.cancelled, report.left), (0, 0), "{kind}");
}

/// A stream whose other end is an ordinary socket.
fn pair() -> (Stream<UnixStream>, StdStream) {
    let (here, there) = StdStream::pair().unwrap();
    (Stream::new(UnixStream::from(here)), there)
}

/// The halves of a stream share a lock of std. A poll that let others run inside would block the
/// thread on which both halves are used.
#[test]
fn the_halves_of_a_stream_are_used_by_two_tasks_of_one_scheduler() {
    const BYTES: usize = 1 << 20;
    each_kind(|node, kind| {
        let (stream, mut there) = pair();
        let echo = std::thread::spawn(move || {
            let mut copy = there.try_clone().unwrap();
            io::copy(&mut copy, &mut there).unwrap();
            there.shutdown(Shutdown::Write).unwrap();
        });
        let got = node.run(move || {
            let (mut reader, mut writer) = tokio::io::split(stream);
            let writes = ums::spawn(move || {
                block_on(async {
                    for _ in 0..BYTES / 1024 {
                        writer.write_all(&[7; 1024]).await.unwrap();
                    }
                    writer.shutdown().await.unwrap();
                })
            });
            let others: Vec<_> =
                (0..3).map(|_| ums::spawn(|| (0..1000).for_each(|_| ums::yield_now()))).collect();
            let mut got = Vec::new();
            block_on(reader.read_to_end(&mut got)).unwrap().unwrap();
            writes.join().unwrap().unwrap();
            others.into_iter().for_each(|other| other.join().unwrap());
            got.len()
        });
        assert_eq!(got, BYTES, "{kind}");
        echo.join().unwrap();
    });
}

#[derive(Default)]
struct Calls(AtomicUsize);

impl Wake for Calls {
    fn wake(self: Arc<Calls>) {
        self.0.fetch_add(1, SeqCst);
    }
}

#[test]
fn a_stream_that_is_always_ready_lets_others_run_and_then_goes_on() {
    each_kind(|node, kind| {
        let (mut stream, mut there) = pair();
        there.write_all(&[1; 1000]).unwrap();
        let (read, paused, woken) = node.run(move || {
            let calls = Arc::new(Calls::default());
            let waker = Waker::from(calls.clone());
            let (mut read, mut paused) = (0, 0);
            while read < 1000 {
                let (mut byte, mut context) = ([0], Context::from_waker(&waker));
                match Pin::new(&mut stream).poll_read(&mut context, &mut ReadBuf::new(&mut byte)) {
                    Poll::Ready(result) => {
                        result.unwrap();
                        read += 1;
                    }
                    Poll::Pending => paused += 1,
                }
            }
            (read, paused, calls.0.load(SeqCst))
        });
        assert_eq!(read, 1000, "{kind}");
        assert!(paused >= 10 && woken == paused, "{kind}: {paused} pauses, {woken} calls");
    });
}

#[test]
fn a_stream_gives_its_socket_back_with_all_that_has_arrived() {
    each_kind(|node, kind| {
        let (mut stream, mut there) = pair();
        there.write_all(b"hello").unwrap();
        let texts = node.run(move || {
            let mut two = [0; 2];
            block_on(stream.read_exact(&mut two)).unwrap().unwrap();
            drop(there);
            let (mut rest, mut socket) = (String::new(), stream.into_inner());
            socket.read_to_string(&mut rest).unwrap();
            (two, rest)
        });
        assert_eq!(texts, (*b"he", "llo".to_owned()), "{kind}");
    });
}

#[test]
fn a_stream_without_a_worker_reads_what_has_arrived_and_refuses_to_wait() {
    let (mut stream, mut there) = pair();
    there.write_all(b"hello").unwrap();
    let mut byte = [0];
    assert_eq!(block_on(stream.read(&mut byte)).unwrap().unwrap(), 1);
    let mut rest = [0; 8];
    assert_eq!(block_on(stream.read(&mut rest)).unwrap().unwrap(), 4);
    there.write_all(b"!").unwrap();
    assert_eq!(block_on(stream.read(&mut rest)).unwrap().unwrap(), 1);
    let refused = block_on(stream.read(&mut rest)).unwrap().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
}

async fn hello(_: Request<Incoming>) -> Result<Response<String>, Infallible> {
    Ok(Response::new("hello".to_owned()))
}

/// The timeout is one timer, which is moved from request to request.
#[test]
fn hyper_ends_a_connection_that_sends_no_request_in_time() {
    each_kind(|node, kind| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = node.spawn(move || {
            let stream = Stream::new(listener.accept().unwrap().0);
            let mut server = http1::Builder::new();
            let server = server.timer(Timer).header_read_timeout(Duration::from_secs(3));
            block_on(server.serve_connection(stream, service_fn(hello))).unwrap()
        });
        let mut client = TcpStream::connect(address).unwrap();
        for _ in 0..3 {
            client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
            let mut answer = Vec::new();
            while !answer.ends_with(b"hello") {
                let mut byte = [0];
                client.read_exact(&mut byte).unwrap();
                answer.push(byte[0]);
            }
        }
        client.write_all(b"GET / HT").unwrap();
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).unwrap(); // hyper ends it
        let ended = server.unwrap().join().unwrap();
        assert!(ended.unwrap_err().is_timeout(), "{kind}");
    });
}

/// Their futures have timers and polls under way, some of them two timers.
#[test]
fn a_node_ends_while_connections_without_a_stack_are_open() {
    for kind in kinds() {
        let node = common::node(kind).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let clients: Vec<_> = (0..20).map(|_| StdTcp::connect(address).unwrap()).collect();
        node.run(move || {
            for _ in 0..20 {
                let stream = Stream::new(listener.accept().unwrap().0);
                let mut server = http1::Builder::new();
                let server = server.timer(Timer).half_close(true);
                let sleepy = service_fn(async |_: Request<Incoming>| {
                    ums::future::sleep(Duration::from_secs(3600)).await;
                    Ok::<_, Infallible>(Response::new("late".to_owned()))
                });
                drop(spawn_future(server.serve_connection(stream, sleepy)));
            }
        });
        for mut client in clients.iter().step_by(2) {
            client.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        }
        end(node, kind);
        for mut client in clients {
            let mut rest = Vec::new();
            // The server's end is closed, with what it has not read.
            assert!(client.read_to_end(&mut rest).map_or(true, |n| n == 0), "{kind}");
        }
    }
}

#[test]
fn a_future_on_tokio_is_awaited_and_its_errors_are_told() {
    each_kind(|node, kind| {
        let tokio = Arc::new(Tokio::new().unwrap());
        let theirs = tokio.clone();
        node.run(move || {
            let short = Duration::from_millis(1);
            let slow = async || tokio::time::sleep(Duration::from_secs(3600)).await;
            let limited = ums::with_timeout(short, || theirs.block_on(slow()));
            assert_eq!(limited, Err(TokioError::Wait(WaitError::TimedOut)), "{kind}");
            let nested = theirs.clone();
            let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                theirs.block_on(async move { nested.block_on(async {}) })
            }));
            let text = *refused.unwrap_err().downcast::<String>().unwrap();
            assert!(text.contains("await the future instead"), "{kind}: {text}");
            assert_eq!(theirs.block_on(async { 7 }), Ok(7), "{kind}: it still runs");
        });
        let waiter = node.spawn(move || {
            let other = tokio.handle().clone();
            let waiting = tokio.block_on(std::future::pending::<()>());
            drop(other);
            waiting
        });
        let waiter = waiter.unwrap();
        waiter.cancel();
        let _ = waiter.join().map(|ended| {
            assert_eq!(ended, Err(TokioError::Wait(WaitError::Cancelled)), "{kind}");
        });
    });
}

#[test]
#[cfg(debug_assertions)]
fn a_worker_that_waits_inside_tokios_context_is_told_where_it_entered() {
    each_kind(|node, kind| {
        let waits = node.spawn(|| {
            let tokio = Tokio::new().unwrap();
            let _inside = tokio.enter();
            ums::yield_now();
        });
        let Err(JoinError::Panicked(panic)) = waits.unwrap().join() else {
            panic!("{kind}: it may not wait")
        };
        let text = panic.downcast::<String>().unwrap();
        assert!(text.contains("streams.rs"), "{kind}: {text}");
    });
}

#[test]
fn a_connector_refuses_what_it_would_not_encrypt_and_what_it_cannot_reach() {
    each_kind(|node, _| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        node.run(move || {
            let ask = |connector: Connector, uri: String| {
                let uri: Uri = uri.parse().unwrap();
                let mut connector = connector;
                block_on(connector.call(uri)).unwrap().map(drop).map_err(|error| error.kind())
            };
            let plain = Connector::new();
            assert_eq!(ask(plain, format!("http://127.0.0.1:{port}/")), Ok(()));
            let secret = format!("https://127.0.0.1:{port}/");
            assert_eq!(ask(plain, secret.clone()), Err(ErrorKind::InvalidInput));
            assert_eq!(ask(plain.any_scheme(), secret), Ok(()));
            assert_eq!(ask(plain, "/path".to_owned()), Err(ErrorKind::InvalidInput));
            assert_eq!(ask(plain, "http://127.0.0.1:1/".into()), Err(ErrorKind::ConnectionRefused));
        });
    });
}
