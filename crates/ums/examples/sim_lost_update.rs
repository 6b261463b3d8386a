//! A server with a bug, under simulation: two clients add to one number, and one of the additions
//! is lost.
//!
//! ```text
//! cargo run -p ums --features sim --example sim_lost_update
//! ```
//!
//! The server keeps numbers under names. A client sends `add NAME BY` and gets the sum. The server
//! reads the number, writes a line about it to its journal, and only then writes the number back:
//! while it waits for the journal, another client's request runs. docs/simulation.md explains how
//! the failing seed is found and used.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::sync::Arc;
use std::time::Duration;

use ums::net::UnixStream;
use ums::sim::{Check, Faults};
use ums::sync::Mutex;

type Numbers = Arc<Mutex<BTreeMap<String, i64>>>;

fn add(numbers: &Numbers, name: &str, by: i64) -> i64 {
    let before = *numbers.lock().entry(name.to_owned()).or_default();
    ums::sim::point("has read the number");
    // The journal takes some time. The lock is free meanwhile: that is the bug.
    let _ = ums::sleep(Duration::from_micros(ums::sim::below(100)));
    numbers.lock().insert(name.to_owned(), before + by);
    ums::sim::point("has written the number");
    before + by
}

/// Serves one connection until its client disconnects.
fn serve(connection: UnixStream, numbers: &Numbers) {
    let mut lines = BufReader::new(&connection).lines();
    while let Some(Ok(line)) = lines.next() {
        let mut words = line.split(' ').skip(1);
        let (Some(name), Some(Ok(by))) = (words.next(), words.next().map(str::parse)) else {
            return;
        };
        let sum = add(numbers, name, by);
        if writeln!(&connection, "{sum}").is_err() {
            return;
        }
    }
}

/// Adds one to a number several times.
fn ask(connection: UnixStream, times: i64) {
    let mut answers = BufReader::new(&connection).lines();
    for _ in 0..times {
        writeln!(&connection, "add apples 1").expect("the server is there");
        answers.next().expect("it answers").expect("with a line");
    }
}

/// Runs two clients, each of which adds one three times.
pub fn story() {
    let node = ums::Node::builder().schedulers(2).max_workers(8).build().expect("a node");
    let numbers = Numbers::default();
    let mut all = Vec::new();
    for _ in 0..2 {
        let (here, there) = node.run(UnixStream::pair).expect("a connection");
        let theirs = Arc::clone(&numbers);
        all.push(node.spawn(move || serve(there, &theirs)).expect("a server"));
        all.push(node.spawn(move || ask(here, 3)).expect("a client"));
    }
    all.into_iter().for_each(|task| task.join().expect("it ends well"));
    assert_eq!(numbers.lock().get("apples"), Some(&6), "six apples were added");
    node.shutdown(Duration::from_secs(1));
}

#[allow(dead_code)] // A test runs the story itself.
fn main() {
    let command = "cargo run -p ums --features sim --example sim_lost_update".to_owned();
    ums::sim::check(&Check { seeds: 0..1000, faults: Faults::default(), command }, story);
}
