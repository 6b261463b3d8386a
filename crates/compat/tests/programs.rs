//! Runs the examples as processes, in every kind of worker: servers that are asked by curl and by
//! the examples' own clients, and clients of servers.
//!
//! Cargo builds examples for `cargo test` of the whole package. Without curl, only the examples'
//! own clients ask.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

fn program(example: &str) -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let target = exe.parent().and_then(Path::parent).unwrap();
    let program = target.join("examples").join(example);
    assert!(program.exists(), "build it first: cargo build -p ums-compat --example {example}");
    program
}

/// The kinds of workers that this computer can have.
fn kinds() -> impl Iterator<Item = &'static str> {
    let own = ums::probe::own_contexts_are_refused().is_none();
    ["thread", "fiber", "context"].into_iter().filter(move |kind| own || *kind != "context")
}

/// A running server. Dropping it kills the process.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    fn start(example: &str, arguments: &[&str]) -> Server {
        let mut command = Command::new(program(example));
        let child = command.args(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut server = Server { child, address: SocketAddr::from(([0; 4], 0)) };
        let mut line = String::new();
        BufReader::new(server.child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on ").expect("its first line");
        server.address = address.parse().unwrap();
        server
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns what the command prints. It gets this input, and a minute.
fn said_with(command: &mut Command, input: &[u8]) -> Vec<u8> {
    let mut limited = Command::new("timeout");
    limited.arg("60").arg(command.get_program()).args(command.get_args());
    let mut child = limited
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let feeder = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    let _ = feeder.join().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} ended with {}: {errors}", output.status);
    output.stdout
}

fn said(command: &mut Command) -> String {
    String::from_utf8(said_with(command, b"")).unwrap()
}

/// curl without its progress, or `None` if there is none.
fn curl() -> Option<Command> {
    if Command::new("curl").arg("--version").output().is_err() {
        ums::testing::skipped("curl", "the program is not installed");
        return None;
    }
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--fail"]);
    Some(curl)
}

#[test]
fn hyper_answers_curl_on_kept_connections_and_echoes_a_large_body() {
    for kind in kinds() {
        let server = Server::start("hyper_server", &["127.0.0.1:0", kind]);
        let Some(mut curl) = curl() else { return };
        for path in ["/", "/nap", "/block", "/"] {
            curl.arg(server.url(path));
        }
        curl.args(["--write-out", "%{num_connects}\n"]);
        let answers = said(&mut curl);
        assert_eq!(answers, "hello\n1\nhello\n0\nhello\n0\nhello\n0\n", "{kind}");
        let body: Vec<u8> = (0..1 << 20).map(|n: u32| (n % 251) as u8).collect();
        let mut curl = self::curl().unwrap();
        curl.args(["--data-binary", "@-"]).arg(server.url("/echo"));
        assert!(said_with(&mut curl, &body) == body, "{kind}: the body comes back");
    }
}

#[test]
fn hyper_serves_hundreds_of_clients_whose_handlers_block() {
    const CLIENTS: usize = 200;
    for kind in kinds() {
        let server = Server::start("hyper_server", &["127.0.0.1:0", kind]);
        let clients: Vec<TcpStream> =
            (0..CLIENTS).map(|_| TcpStream::connect(server.address).unwrap()).collect();
        for round in 0..3 {
            for mut client in &clients {
                client.write_all(b"GET /nap HTTP/1.1\r\nhost: here\r\n\r\n").unwrap();
            }
            for client in &clients {
                client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
                let (mut answer, mut client) = (Vec::new(), BufReader::new(client));
                while !answer.ends_with(b"hello\n") {
                    let n = client.read_until(b'\n', &mut answer).unwrap();
                    assert!(n > 0, "{kind}, {round}: {}", String::from_utf8_lossy(&answer));
                }
            }
        }
    }
}

/// The answer to a request comes although its client sends no more; half a request gets none.
#[test]
fn hyper_ends_a_connection_whose_client_sends_no_more() {
    for kind in kinds() {
        let server = Server::start("hyper_server", &["127.0.0.1:0", kind]);
        for request in
            ["GET /nap HTTP/1.1\r\nhost: here\r\n", "GET /nap HTTP/1.1\r\nhost: x\r\n\r\n"]
        {
            let mut client = TcpStream::connect(server.address).unwrap();
            client.write_all(request.as_bytes()).unwrap();
            client.shutdown(std::net::Shutdown::Write).unwrap();
            client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).unwrap(); // the server ends it
            assert_eq!(answer.ends_with("hello\n"), request.ends_with("\r\n\r\n"), "{kind}");
        }
    }
}

#[test]
fn clients_of_hyper_get_pages_on_the_schedulers_and_beside_tokio() {
    for kind in kinds() {
        let server = Server::start("hyper_server", &["127.0.0.1:0", kind]);
        for (way, answer) in
            [("hyper", "hello\n"), ("pool", "hello\nhello\n"), ("tokio", "hello\n")]
        {
            let mut client = Command::new(program("hyper_client"));
            client.args([&server.url("/"), kind, way]);
            assert_eq!(said(&mut client), answer, "{kind}, {way}");
        }
        let mut lost = Command::new(program("hyper_client"));
        let lost = lost.args(["http://127.0.0.1:1/", kind, "pool"]).output().unwrap();
        assert!(!lost.status.success() && !lost.stderr.is_empty(), "{kind}: an error, no panic");
        assert!(!String::from_utf8_lossy(&lost.stderr).contains("panicked"), "{kind}");
    }
}

#[test]
fn axum_answers_curl() {
    for kind in kinds() {
        let server = Server::start("axum_server", &["127.0.0.1:0", kind]);
        let Some(mut curl) = curl() else { return };
        curl.args([
            server.url("/visits/ann"),
            server.url("/visits/ann"),
            server.url("/visits/bob"),
        ]);
        assert_eq!(said(&mut curl), "ann: 1\nann: 2\nbob: 1\n", "{kind}");
        let mut curl = self::curl().unwrap();
        curl.args(["--data", "hello"]).arg(server.url("/echo"));
        assert_eq!(said(&mut curl), "hello", "{kind}");
        let mut curl = self::curl().unwrap();
        curl.args(["--write-out", "%{http_code}"]).arg(server.url("/nothing"));
        assert!(!curl.output().unwrap().status.success(), "{kind}: there is no such page");
    }
}

#[test]
fn rustls_serves_curl_and_a_client_in_blocking_code() {
    for kind in kinds() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap();
        let server = Server::start("tls", &["serve", path, kind]);
        let port = server.address.port().to_string();
        let mut client = Command::new(program("tls"));
        assert_eq!(said(client.args(["get", path, kind, &port])), "hello over TLS\n", "{kind}");
        let Some(mut curl) = curl() else { return };
        let url = format!("https://localhost:{port}/");
        curl.args(["--cacert", &format!("{path}/cert.pem"), &url, &url]);
        assert_eq!(said(&mut curl), "hello over TLS\nhello over TLS\n", "{kind}");
    }
}

#[test]
fn tonic_answers_its_own_client_and_curl() {
    for kind in kinds() {
        let server = Server::start("grpc", &["127.0.0.1:0", kind]);
        let mut client = Command::new(program("grpc"));
        assert_eq!(said(client.args(["ask", kind, &server.url(""), "tonic"])), "tonic\n", "{kind}");
        let Some(mut curl) = curl() else { return };
        curl.args(["--http2-prior-knowledge", "--header", "content-type: application/grpc"]);
        curl.args(["--header", "te: trailers", "--data-binary", "@-"]);
        curl.arg(server.url("/echo.Echo/Say"));
        // A message of gRPC: no compression, its length, and field 1 with the text "abc".
        let message = b"\0\0\0\0\x05\x0a\x03abc";
        assert_eq!(said_with(&mut curl, message), message, "{kind}");
    }
}
