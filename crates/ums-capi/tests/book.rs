//! The programs of the book's page about C, docs/c-api.md: those that stand in the page, and the
//! example `key_value`, from which it quotes.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Recipe, Workshop};

const PAGE: &str = include_str!("../../../docs/c-api.md");

#[test]
fn the_programs_in_the_page_compile_without_warnings_and_run() {
    let blocks = PAGE.split("```c\n").skip(1).filter_map(|rest| rest.split("```").next());
    let programs: Vec<_> = blocks.filter(|block| block.contains("int main(")).collect();
    assert!(!programs.is_empty(), "the page has a program");
    let (workshop, folder) = (Workshop::new(), tempfile::tempdir().unwrap());
    for (number, text) in programs.into_iter().enumerate() {
        let source = folder.path().join(format!("{number}.c"));
        std::fs::write(&source, text).unwrap();
        let source = source.to_str().unwrap();
        let recipe = Recipe { source, include: "", strict: true, is_static: false };
        let said = workshop.run(&workshop.make(recipe).expect("C"), &[]);
        // What it prints, the program says in a comment.
        assert!(text.contains(&format!("/* {} */", said.trim())), "{said}");
    }
}

#[test]
fn the_key_value_server_keeps_values_and_ends_in_order() {
    let workshop = Workshop::new();
    let source = "examples/c/key_value.c";
    let recipe = Recipe { source, include: "", strict: true, is_static: false };
    let program = workshop.make(recipe).expect("C");
    let mut server = Command::new("timeout")
        .args(["60", program.to_str().unwrap(), "0"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(server.stdout.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    let port: u16 = first.strip_prefix("listening on port ").unwrap().parse().unwrap();

    let mut silent = TcpStream::connect(("127.0.0.1", port)).unwrap();
    silent.write_all(b"get").unwrap();
    let ask = |text: &str| {
        let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        client.write_all(text.as_bytes()).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        // What the server has not read when it ends a connection resets it.
        BufReader::new(client).lines().map_while(Result::ok).collect::<Vec<_>>()
    };
    let answers = ask("get a\nset a one two\nget a\nset a three\nget a\ndelete a\nget a\nset\n\n");
    assert_eq!(answers, ["none", "ok", "one two", "ok", "three", "ok", "none", "error", "error"]);
    assert_eq!(ask("set b 1\nget"), ["ok"]);
    assert_eq!(ask("get b\n"), ["1"]);
    // A line may come in pieces.
    let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut answers = BufReader::new(client.try_clone().unwrap()).lines().map(Result::unwrap);
    client.write_all(b"get b\nset c x").unwrap();
    assert_eq!(answers.next().as_deref(), Some("1"));
    client.write_all(b"y\nget c\n").unwrap();
    assert_eq!([answers.next(), answers.next()].map(Option::unwrap), ["ok", "xy"]);
    drop((client, answers));
    assert!(ask(&"x".repeat(2000)).is_empty(), "a line that is too long ends the connection");

    let id = server.id().to_string();
    assert!(Command::new("kill").arg(id).status().unwrap().success());
    let last = lines.next().unwrap().unwrap();
    assert_eq!(last, "ended; 1 tasks were cancelled", "the silent client's");
    assert!(server.wait().unwrap().success());
}
