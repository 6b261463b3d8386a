//! Runs the example `proxy` as a process, between clients and targets on plain threads.
//!
//! Cargo builds examples for `cargo test` of the whole package.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A time limit that is far longer than any of these tests takes.
const LATE: Duration = Duration::from_secs(60);
/// An idle time that no test reaches.
const BUSY: &str = "600";

fn program() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let program = exe.parent().and_then(|deps| deps.parent()).unwrap().join("examples/proxy");
    assert!(program.exists(), "build it first: cargo build -p ums --example proxy");
    program
}

/// A running proxy. Dropping it kills the process.
struct Proxy {
    child: Child,
    address: SocketAddr,
    output: BufReader<std::process::ChildStdout>,
}

impl Proxy {
    fn start(target: SocketAddr, options: &[&str]) -> Proxy {
        let mut proxy = Command::new(program());
        Proxy::of(proxy.args(["127.0.0.1:0", &target.to_string()]).args(options))
    }

    fn of(command: &mut Command) -> Proxy {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on ").expect("its first line");
        Proxy { address: address.parse().unwrap(), child, output }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(LATE)).unwrap();
        stream
    }

    fn terminate(&self) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    }

    /// Waits until the process ends; returns its status and the rest of its output.
    fn end(mut self) -> (ExitStatus, String) {
        let (mut rest, late) = (String::new(), Instant::now() + LATE);
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < late, "the proxy does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
        self.output.read_to_string(&mut rest).unwrap();
        (self.child.wait().unwrap(), rest)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a target: it calls `serve` on a thread for each connection.
fn target(serve: fn(TcpStream)) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve(stream));
        }
    });
    address
}

fn echo(stream: TcpStream) {
    let _ = std::io::copy(&mut &stream, &mut &stream);
}

/// Sends five bytes, and returns whether they come back.
fn echoes(stream: &mut TcpStream) -> bool {
    let mut answer = [0; 5];
    stream.write_all(b"hello").is_ok() && stream.read_exact(&mut answer).is_ok()
}

/// Returns whether the other side has closed the connection.
fn is_over(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0; 1]) {
        Ok(n) => n == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

#[test]
fn a_megabyte_passes_in_both_directions_at_once() {
    let proxy = Proxy::start(target(echo), &[BUSY]);
    let sent: Vec<u8> = (0..1_000_000_u32).map(|i| (i.wrapping_mul(40_503) >> 8) as u8).collect();
    let mut stream = proxy.connect();
    let mut received = vec![0; sent.len()];
    std::thread::scope(|s| {
        s.spawn(|| (&stream).write_all(&sent).unwrap());
        (&stream).read_exact(&mut received).unwrap();
    });
    assert!(received == sent);
    stream.shutdown(Shutdown::Write).unwrap();
    assert!(is_over(&mut stream), "the end passes through the proxy and back");
}

#[test]
fn a_side_that_has_ended_still_gets_the_other_sides_answer() {
    let count = |mut stream: TcpStream| {
        let mut text = Vec::new();
        let n = stream.read_to_end(&mut text).unwrap();
        stream.write_all(format!("{n} bytes").as_bytes()).unwrap();
    };
    let proxy = Proxy::start(target(count), &[BUSY]);
    let mut stream = proxy.connect();
    stream.write_all(&[7; 300_000]).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "300000 bytes");
}

#[test]
fn only_a_connection_that_is_idle_in_both_directions_is_ended() {
    let drain = |mut stream: TcpStream| drop(std::io::copy(&mut stream, &mut std::io::sink()));
    let proxy = Proxy::start(target(drain), &["1"]);
    let (mut idle, mut busy) = (proxy.connect(), proxy.connect());
    let began = Instant::now();
    busy.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    let mut over = false;
    // While the busy client sends, its target sends nothing for three idle times.
    while began.elapsed() < Duration::from_secs(3) {
        busy.write_all(b"x").expect("the connection is not idle");
        over |= is_over(&mut busy);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!over, "one direction is enough");
    assert!(is_over(&mut idle));
    busy.set_read_timeout(Some(LATE)).unwrap();
    assert!(is_over(&mut busy), "now it is idle");
}

#[test]
fn a_target_that_refuses_ends_only_its_client() {
    // Port 1 belongs to a protocol that is no longer used, so no program listens there.
    let refusing = SocketAddr::from(([127, 0, 0, 1], 1));
    let proxy = Proxy::start(refusing, &[BUSY]);
    for _ in 0..3 {
        assert!(is_over(&mut proxy.connect()));
    }
    proxy.terminate();
    assert!(proxy.end().0.success());
}

#[test]
fn a_client_beyond_the_limit_waits_until_another_has_ended() {
    let proxy = Proxy::start(target(echo), &[BUSY, "1"]);
    let (mut first, mut second) = (proxy.connect(), proxy.connect());
    assert!(echoes(&mut first));
    second.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    assert!(!echoes(&mut second), "there is one seat");
    drop(first);
    second.set_read_timeout(Some(LATE)).unwrap();
    second.read_exact(&mut [0; 5]).unwrap();
}

#[test]
fn after_sigterm_open_connections_are_served_for_the_grace_time_and_no_new_ones() {
    let proxy = Proxy::start(target(echo), &[BUSY]);
    let (mut one, mut two) = (proxy.connect(), proxy.connect());
    assert!(echoes(&mut one) && echoes(&mut two));
    proxy.terminate();
    let late = Instant::now() + LATE;
    while TcpStream::connect(proxy.address).is_ok() {
        assert!(Instant::now() < late, "the listener is not closed");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(echoes(&mut one), "it still has the grace time");
    drop(one);
    assert!(is_over(&mut two), "its grace time is over");
    let (status, printed) = proxy.end();
    assert!(status.success(), "{status}");
    assert_eq!(printed, "ended; 2 tasks were cancelled\n", "one for each direction");
}

#[test]
fn sigterm_without_connections_cancels_no_task() {
    let proxy = Proxy::start(target(echo), &[BUSY]);
    assert!(echoes(&mut proxy.connect()));
    proxy.terminate();
    let (status, printed) = proxy.end();
    assert!(status.success(), "{status}");
    assert_eq!(printed, "ended; 0 tasks were cancelled\n");
}

#[test]
fn systemd_passes_the_socket_and_is_told_when_the_proxy_is_ready_and_stops() {
    let folder = tempfile::tempdir().unwrap();
    let told = UnixDatagram::bind(folder.path().join("told")).unwrap();
    told.set_read_timeout(Some(LATE)).unwrap();
    let hears = || {
        let mut text = [0; 64];
        let n = told.recv(&mut text).unwrap();
        String::from_utf8_lossy(&text[..n]).trim().to_owned()
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let mut waits = TcpStream::connect(address).unwrap(); // before the proxy runs
    waits.set_read_timeout(Some(LATE)).unwrap();
    // The shell moves the socket to descriptor 3, and becomes the proxy.
    let script = r#"exec 3<&0 0</dev/null; export LISTEN_PID=$$ LISTEN_FDS=1; exec "$@""#;
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).arg(program()).args(["systemd", &target(echo).to_string()]);
    command.stdin(OwnedFd::from(listener)).env("NOTIFY_SOCKET", folder.path().join("told"));
    let proxy = Proxy::of(&mut command);
    assert_eq!(proxy.address, address);
    assert_eq!(hears(), "READY=1");
    assert!(echoes(&mut waits), "the client that came before");
    proxy.terminate();
    assert_eq!(hears(), "STOPPING=1");
    drop(waits);
    let (status, rest) = proxy.end();
    assert!(status.success(), "{rest}");
}
