//! A server with a bug, under simulation: two clients move money in opposite directions and wait
//! for each other forever.
//!
//! ```text
//! cargo run -p ums --features sim --example sim_lock_order
//! ```
//!
//! Each account has a lock. A client sends `move FROM TO`; the server locks the account FROM,
//! checks it, and then locks the account TO. docs/simulation.md explains how the failing seed is
//! found and used.

use std::io::{BufRead, BufReader, Write};
use std::sync::Arc;
use std::time::Duration;

use ums::net::UnixStream;
use ums::sim::{Check, Faults};
use ums::sync::Mutex;

type Accounts = Arc<[Mutex<i64>; 2]>;

fn transfer(accounts: &Accounts, from: usize, to: usize) {
    let mut from = accounts[from].lock();
    if *from > 0 {
        ums::sim::point("has the first account");
        let mut to = accounts[to].lock();
        *from -= 1;
        *to += 1;
    }
}

/// Serves one connection until its client disconnects.
fn serve(connection: UnixStream, accounts: &Accounts) {
    let mut lines = BufReader::new(&connection).lines();
    while let Some(Ok(line)) = lines.next() {
        let mut words = line.split(' ').skip(1).map(str::parse);
        let (Some(Ok(from)), Some(Ok(to))) = (words.next(), words.next()) else { return };
        transfer(accounts, from, to);
        if writeln!(&connection, "done").is_err() {
            return;
        }
    }
}

/// Asks for the same transfer several times.
fn ask(connection: UnixStream, what: &str) {
    let mut answers = BufReader::new(&connection).lines();
    for _ in 0..20 {
        writeln!(&connection, "{what}").expect("the server is there");
        answers.next().expect("it answers").expect("with a line");
    }
}

/// Runs two clients: one moves money from the first account to the second, the other back.
pub fn story() {
    let node = ums::Node::builder().schedulers(2).max_workers(8).build().expect("a node");
    let accounts: Accounts = Arc::new([Mutex::new(10), Mutex::new(10)]);
    let mut all = Vec::new();
    for what in ["move 0 1", "move 1 0"] {
        let (here, there) = node.run(UnixStream::pair).expect("a connection");
        let theirs = Arc::clone(&accounts);
        all.push(node.spawn(move || serve(there, &theirs)).expect("a server"));
        all.push(node.spawn(move || ask(here, what)).expect("a client"));
    }
    all.into_iter().for_each(|task| task.join().expect("it ends well"));
    assert_eq!(accounts.iter().map(|account| *account.lock()).sum::<i64>(), 20);
    node.shutdown(Duration::from_secs(1));
}

#[allow(dead_code)] // A test runs the story itself.
fn main() {
    let command = "cargo run -p ums --features sim --example sim_lock_order".to_owned();
    ums::sim::check(&Check { seeds: 0..5000, faults: Faults::default(), command }, story);
}
