//! With the default options, no request waits for a worker forever. A request beyond the soft limit
//! of workers gets a worker, whether the other workers wait or are busy.

#![allow(unsafe_code)] // For the harness.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use common::*;
use ums::Builder;
use ums::net::TcpListener;
use ums::node::Placement;

/// More than the soft limit of workers of a computer with up to four processors.
const MANY: usize = 600;

#[test]
fn a_request_is_carried_out_while_600_others_wait() {
    for kind in kinds() {
        for n in [1, 2] {
            one_kind(
                kind,
                |b| b.schedulers(n).placement(Placement::AlwaysPreferred),
                |node| {
                    let gate = Gate::shut();
                    let wait = |_| {
                        let gate = gate.clone();
                        start(node, 0, move || gate.pass())
                    };
                    let tasks: Vec<_> = (0..MANY).map(wait).collect();
                    eventually("600 wait", || gate.waiters() == MANY);
                    assert_eq!(on(node, 0, || "PONG"), "PONG");
                    gate.open();
                    tasks.into_iter().for_each(|task| task.join().unwrap());
                },
            );
        }
    }
}

#[test]
fn a_request_gets_a_worker_while_600_others_run_and_never_end() {
    for kind in kinds() {
        one_kind(
            kind,
            |b| b.schedulers(1),
            |node| {
                let enough = Arc::new(AtomicBool::new(false));
                let begun = Arc::new(AtomicUsize::new(0));
                let run = |_| {
                    let (enough, begun) = (enough.clone(), begun.clone());
                    start(node, 0, move || {
                        begun.fetch_add(1, SeqCst);
                        while !enough.load(SeqCst) {
                            ums::sleep(ms(1)).unwrap();
                        }
                    })
                };
                let tasks: Vec<_> = (0..MANY).map(run).collect();
                eventually("600 have begun", || begun.load(SeqCst) == MANY);
                enough.store(true, SeqCst);
                tasks.into_iter().for_each(|task| task.join().unwrap());
            },
        );
    }
}

/// Runs the README's program with clients that stay connected.
fn echo(kind: ums::WorkerKind, connections: usize, options: impl FnOnce(Builder) -> Builder) {
    one_kind(kind, options, |node| {
        let (tell, told) = std::sync::mpsc::channel();
        let server = node.spawn(move || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            tell.send(listener.local_addr().unwrap()).unwrap();
            for stream in listener.incoming().flatten().take(connections) {
                ums::spawn(move || std::io::copy(&mut &stream, &mut &stream));
            }
        });
        let at = told.recv().unwrap();
        let mut clients = Vec::new();
        for number in 0..connections as u32 {
            let mut client = TcpStream::connect(at).unwrap();
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            client.write_all(&number.to_le_bytes()).unwrap();
            clients.push(client);
        }
        for (number, client) in clients.iter_mut().enumerate() {
            let mut answer = [0; 4];
            client.read_exact(&mut answer).unwrap_or_else(|e| panic!("{kind:?}, {number}: {e}"));
            assert_eq!(answer, (number as u32).to_le_bytes());
        }
        drop(clients);
        server.unwrap().join().unwrap();
    });
}

#[test]
fn the_echo_program_answers_a_thousand_connections_that_stay() {
    for kind in kinds() {
        echo(kind, 1000, |b| b);
    }
}

#[test]
fn a_pool_whose_workers_all_wait_for_a_queued_request_says_so() {
    if let Some(kind) = child_errand() {
        return pool_of_four(kind_named(kind), true);
    }
    for kind in kinds() {
        let test = "a_pool_whose_workers_all_wait_for_a_queued_request_says_so";
        let output = run_child(test, &format!("{kind:?}"));
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{text}");
        assert!(text.contains("scheduler '0' stands still: all of its workers (4) wait"), "{text}");
        // Without the limit, the producer gets a worker.
        pool_of_four(kind, false);
    }
}

/// Four tasks that receive, and the producer, whose request is queued behind them.
fn pool_of_four(kind: ums::WorkerKind, limited: bool) {
    let options = |b: Builder| {
        let b = b.schedulers(1);
        if limited { b.max_workers(4) } else { b }
    };
    one_kind(kind, options, |node| {
        let (tx, rx) = ums::sync::channel::unbounded::<u32>();
        let patience = if limited { ms(1500) } else { PATIENCE };
        let receive = |_| {
            let rx = rx.clone();
            node.spawn(move || rx.recv_for(patience)).unwrap()
        };
        let tasks: Vec<_> = (0..4).map(receive).collect();
        let producer = node.spawn(move || (0..4).try_for_each(|n| tx.send(n))).unwrap();
        let got = tasks.into_iter().map(|task| task.join().unwrap());
        let got = got.filter(Result::is_ok).count();
        // If all receivers have given up, sending the last value fails.
        let _ = producer.join().unwrap();
        // With the limit, the producer begins only when the first receiver has given up.
        assert!(limited || got == 4, "{got} have received");
    });
}
