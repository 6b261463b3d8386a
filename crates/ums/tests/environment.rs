//! What the environment of a process says about observing its nodes: `UMS_MONITOR`, `UMS_STATS`,
//! `UMS_TRACE`. Each test runs a program of its own.

mod common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Output;

use common::{child, child_errand, ms};
use ums::Node;

fn run(test: &str, variables: &[(&str, &Path)]) -> (Output, String) {
    let mut command = child(test, "run");
    for name in ["UMS_MONITOR", "UMS_STATS", "UMS_TRACE"] {
        command.env_remove(name);
    }
    let output = command.envs(variables.iter().copied()).output().unwrap();
    let said = String::from_utf8(output.stderr.clone()).unwrap();
    (output, said)
}

/// A program with two nodes, one after the other, each of which waits and then asks its own socket,
/// if it has one.
fn two_nodes(socket: &Path) {
    for number in 1..=2 {
        let node = Node::builder().schedulers(1).build().unwrap();
        node.run(|| ums::sleep(ms(1))).unwrap();
        let path = match number {
            1 => socket.to_owned(),
            _ => socket.with_file_name("it-2.sock"),
        };
        if let Ok(mut client) = UnixStream::connect(path) {
            client.write_all(b"ums_schedulers\n").unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).unwrap();
            assert!(answer.contains("\"ums_schedulers\":[{"), "{answer}");
            println!("node {number} answered");
        }
        assert_eq!(node.shutdown(ms(1000)).left, 0);
    }
}

#[test]
fn statistics_are_served_where_the_environment_says() {
    const NAME: &str = "statistics_are_served_where_the_environment_says";
    if child_errand().is_some() {
        return two_nodes(Path::new(&std::env::var_os("UMS_STATS").unwrap()));
    }
    let folder = tempfile::tempdir().unwrap();
    let (output, said) = run(NAME, &[("UMS_STATS", &folder.path().join("it.sock"))]);
    assert!(output.status.success(), "{said}");
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.contains("node 1 answered"), "{printed}");
    assert!(printed.contains("node 2 answered"), "{printed}");
    assert_eq!(said.matches("ums: statistics on ").count(), 2, "{said}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the sockets are removed");
}

#[test]
fn a_trace_is_written_when_the_node_shuts_down() {
    const NAME: &str = "a_trace_is_written_when_the_node_shuts_down";
    if child_errand().is_some() {
        return two_nodes(Path::new("/nowhere/it.sock"));
    }
    let folder = tempfile::tempdir().unwrap();
    let (output, said) = run(NAME, &[("UMS_TRACE", &folder.path().join("it.json"))]);
    assert!(output.status.success(), "{said}");
    for name in ["it.json", "it-2.json"] {
        let text = std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert!(text.contains("waits SLEEP"), "{text}");
        assert!(said.contains(name), "{said}");
    }
    let (output, said) = run(NAME, &[("UMS_TRACE", Path::new("/nowhere/it.pftrace"))]);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("ums: UMS_TRACE: nothing is recorded: "), "{said}");
}

#[test]
fn the_monitor_watches_what_the_program_left_to_it() {
    const NAME: &str = "the_monitor_watches_what_the_program_left_to_it";
    if child_errand().is_some() {
        let watched = |builder: ums::Builder| {
            let node = builder.schedulers(1).build().unwrap();
            let counts = node.monitor_counts().len();
            assert_eq!(node.shutdown(ms(1000)).left, 0);
            counts > 0
        };
        let options = ums::monitor::Options::default().stderr(false);
        println!(
            "nothing chosen: {}, without warnings: {}, chosen: {}",
            watched(Node::builder()),
            watched(Node::builder().warnings(false)),
            watched(Node::builder().monitor(options))
        );
        return;
    }
    for (value, expected) in [
        ("", "nothing chosen: true, without warnings: false, chosen: true"),
        ("on", "nothing chosen: true, without warnings: true, chosen: true"),
        ("off", "nothing chosen: false, without warnings: false, chosen: true"),
    ] {
        let (output, said) = run(NAME, &[("UMS_MONITOR", Path::new(value))]);
        assert!(output.status.success(), "{said}");
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(printed.contains(expected), "UMS_MONITOR={value}: {printed}");
    }
}

#[test]
fn a_value_that_means_nothing_is_refused_in_one_sentence() {
    const NAME: &str = "a_value_that_means_nothing_is_refused_in_one_sentence";
    if child_errand().is_some() {
        println!("refused: {}", Node::builder().build().unwrap_err());
        return;
    }
    for (name, value, sentence) in [
        ("UMS_MONITOR", "yes", "refused: UMS_MONITOR=yes: it must be on or off\n"),
        ("UMS_STATS", "1", "refused: UMS_STATS=1: it must be on, or a path with a folder\n"),
        ("UMS_TRACE", "it", "refused: UMS_TRACE=it: it must be a path that ends in .json or"),
    ] {
        let (output, said) = run(NAME, &[(name, Path::new(value))]);
        assert!(output.status.success(), "{said}");
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(printed.contains(sentence), "{printed}");
    }
}
