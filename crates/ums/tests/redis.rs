//! Runs the example `redis` as a process, with clients that send what no client library sends.
//!
//! Cargo builds examples for `cargo test` of the whole package.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The longest line, in bytes.
const LINE_MAX: usize = 64 << 10;

/// The most bytes in the arguments of a command.
const BYTES_MAX: usize = 16 << 20;

/// A running server. Dropping it kills the process.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start() -> Server {
        let exe = std::env::current_exe().unwrap();
        let program = exe.parent().and_then(|deps| deps.parent()).unwrap().join("examples/redis");
        assert!(program.exists(), "build it first: cargo build -p ums --example redis");
        let mut child =
            Command::new(program).arg("127.0.0.1:0").stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim_end().strip_prefix("listening on ").expect("its address");
        Server { address: address.to_owned(), child }
    }

    /// Returns all that it answers to a client that sends this and no more.
    fn answers(&self, bytes: &[u8]) -> String {
        let mut client = TcpStream::connect(&self.address).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        client.write_all(bytes).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        text
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[test]
fn a_line_that_is_too_long_or_has_no_end_is_not_carried_out() {
    let server = Server::start();
    assert_eq!(server.answers(b"SET key 1\r\nGET key\r\n"), "+OK\r\n$1\r\n1\r\n");
    assert_eq!(server.answers(b"DEL key"), "", "the client may have meant another key");
    let before = "the command before it is carried out and answered";
    assert_eq!(server.answers(b"GET key\nDEL key"), "$1\r\n1\r\n", "{before}");
    assert_eq!(server.answers(b"GET key\n\n"), "$1\r\n1\r\n");

    let mut line = b"DEL key ".to_vec();
    line.resize(LINE_MAX, b'x');
    assert_eq!(server.answers(&line), "-ERR Protocol error: the line is too long\r\n");
    assert_eq!(server.answers(b"GET key\n"), "$1\r\n1\r\n");
    *line.last_mut().unwrap() = b'\n';
    assert_eq!(server.answers(&line), ":1\r\n", "a line may be so long with its end");
}

#[test]
fn a_command_has_an_end_and_blank_lines_are_no_commands() {
    let server = Server::start();
    assert_eq!(server.answers(b"  \n*0\r\nPING\n"), "+PONG\r\n");
    let mut command = format!("*2\r\n${}\r\n", BYTES_MAX).into_bytes();
    command.resize(command.len() + BYTES_MAX, b'x');
    command.extend(b"\r\n$1\r\n");
    let answer = "-ERR Protocol error: invalid length\r\n";
    assert_eq!(server.answers(&command), answer, "one more byte is too many");
}
