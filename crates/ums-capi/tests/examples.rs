//! The programs in `examples/c`: each is compiled with gcc and with clang, as far as they are
//! installed, and does what its header says.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use common::{Recipe, Workshop};

/// Compiles an example with each compiler, and calls `check` with each program.
fn with_each_compiler(example: &str, include: &str, check: impl Fn(&Workshop, &Path)) {
    let (workshop, source) = (Workshop::new(), format!("examples/c/{example}"));
    let recipe = |by| Recipe { source: &source, include, by, is_static: false };
    let programs = ["gcc", "clang"].map(|by| workshop.make(recipe(by)));
    let programs: Vec<PathBuf> = programs.into_iter().flatten().collect();
    assert!(!programs.is_empty(), "these tests need gcc or clang");
    programs.iter().for_each(|program| check(&workshop, program));
}

#[test]
fn the_programs_that_schedule_themselves_say_what_they_should() {
    for (example, says) in [
        ("round_robin.c", "all 4 workers have ended\n"),
        ("priority.c", "all 6 workers have ended\n"),
        ("shared_list.c", "12 workers did 240 rounds on 2 schedulers\n"),
        ("pipe_and_compute.c", "was told at least once that a worker blocked in a system call\n"),
    ] {
        with_each_compiler(example, "windows", |workshop, program| {
            let said = workshop.run(program, &[]);
            assert!(said.ends_with(says), "{example} said:\n{said}");
        });
    }
}

/// A running server. It is killed when this is dropped.
struct KeyValue {
    child: Child,
    said: BufReader<ChildStdout>,
    port: u16,
}

impl KeyValue {
    fn start(program: &Path, kind: &str, idle_ms: &str) -> KeyValue {
        let mut command = Command::new(program);
        command.args(["0", idle_ms, kind]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let mut said = BufReader::new(child.stdout.take().expect("its output"));
        let mut line = String::new();
        said.read_line(&mut line).expect("it says where it listens");
        let port = line.trim().rsplit(':').next().and_then(|port| port.parse().ok());
        KeyValue { child, said, port: port.unwrap_or_else(|| panic!("it said {line:?}")) }
    }

    fn connect(&self) -> BufReader<TcpStream> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it accepts");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a time limit");
        BufReader::new(stream)
    }

    /// Sends SIGTERM, and returns what the server says at its end.
    fn end(mut self) -> String {
        let kill = format!("kill -TERM {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().expect("a shell").success());
        let mut rest = String::new();
        self.said.read_to_string(&mut rest).expect("it ends");
        assert!(self.child.wait().expect("our child").success(), "{rest}");
        rest
    }
}

impl Drop for KeyValue {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a text and returns the line with which it is answered.
fn ask(client: &mut BufReader<TcpStream>, text: &str) -> String {
    client.get_mut().write_all(text.as_bytes()).expect("it is connected");
    line(client)
}

/// Returns the next line; an empty one if the connection was closed.
fn line(client: &mut BufReader<TcpStream>) -> String {
    let mut line = String::new();
    client.read_line(&mut line).expect("an answer, or the end");
    line.trim_end().to_owned()
}

fn talk(server: &KeyValue) {
    let (mut one, mut two) = (server.connect(), server.connect());
    assert_eq!(ask(&mut one, "GET colour\n"), "NONE");
    assert_eq!(ask(&mut one, "SET colour dark blue\n"), "OK");
    assert_eq!(ask(&mut two, "GET colour\r\n"), "VALUE dark blue");
    assert_eq!(ask(&mut two, "SET colour red\nGET col"), "OK");
    assert_eq!(ask(&mut two, "our\n"), "VALUE red", "a line may come in parts");
    assert_eq!(ask(&mut one, "DEL colour\n"), "OK");
    assert_eq!(ask(&mut one, "DEL colour\n"), "NONE");
    for nonsense in ["SET colour\n", "GET\n", "\n", "get colour\n"] {
        assert_eq!(ask(&mut one, nonsense), "ERROR unknown command");
    }
    assert_eq!(ask(&mut one, "QUIT\n"), "BYE");
    assert_eq!(line(&mut one), "");
    assert_eq!(ask(&mut two, &"x".repeat(2000)), "ERROR the line is too long");
    // Many clients at once.
    std::thread::scope(|scope| {
        for client in 0..8 {
            scope.spawn(move || {
                let mut stream = server.connect();
                for n in 0..50 {
                    let key = format!("{client}.{n}");
                    assert_eq!(ask(&mut stream, &format!("SET {key} {n}\n")), "OK");
                    assert_eq!(ask(&mut stream, &format!("GET {key}\n")), format!("VALUE {n}"));
                }
            });
        }
    });
}

/// Sends requests without a pause until the server ends the connection. Returns its last line.
fn flood(mut client: BufReader<TcpStream>) -> String {
    let mut sender = client.get_ref().try_clone().expect("a second descriptor");
    let requests = "GET nothing\n".repeat(100);
    std::thread::scope(|scope| {
        scope.spawn(move || while sender.write_all(requests.as_bytes()).is_ok() {});
        let mut last = String::new();
        loop {
            match line(&mut client) {
                next if next.is_empty() => break,
                next => last = next,
            }
        }
        let _ = client.get_ref().shutdown(Shutdown::Both); // the sender fails, and ends
        last
    })
}

#[test]
fn the_key_value_server_answers_closes_idle_connections_and_ends_in_order() {
    with_each_compiler("keyvalue.c", "", |_, program| {
        for kind in ["thread", "fiber", "context"] {
            if kind == "context"
                && let Some(why) = ums::probe::own_contexts_are_refused()
            {
                ums::testing::skipped("own-context", why);
                continue;
            }
            let server = KeyValue::start(program, kind, "60000");
            talk(&server);
            let mut idle = server.connect();
            assert_eq!(ask(&mut idle, "GET nothing\n"), "NONE");
            assert_eq!(server.end(), "stopped: 0 connections were cut off\n");
            assert_eq!(line(&mut idle), "BYE the server stops");

            let server = KeyValue::start(program, kind, "60000");
            let busy = [(); 3].map(|()| server.connect());
            let busy = busy.map(|client| std::thread::spawn(|| flood(client)));
            std::thread::sleep(Duration::from_millis(50));
            assert_eq!(server.end(), "stopped: 0 connections were cut off\n");
            for client in busy {
                assert_eq!(client.join().expect("no reset"), "BYE the server stops");
            }

            let server = KeyValue::start(program, kind, "50");
            let mut idle = server.connect();
            assert_eq!(line(&mut idle), "BYE this connection was idle");
            assert_eq!(line(&mut idle), "");
            server.end();
        }
    });
}
