//! The goals of ums: a program is written like one for std's threads, and works over any I/O that
//! the host offers (U4, U5).

mod common;

use common::*;
use ums::WorkerKind;
use ums::node::IoChoice;

/// The same program twice: once with std, once with this crate. The texts differ only in the name
/// of the crate.
macro_rules! program {
    ($thread:path, $sync:path, $net:path, $rw:path) => {{
        use std::io::{Read, Write};
        use std::sync::Arc;
        use std::time::Duration;
        use $net as net;
        use $rw as rw;
        use $sync as sync;
        use $thread as thread;

        let mut parts = vec![0u32; 4];
        thread::scope(|s| {
            for (at, part) in parts.iter_mut().enumerate() {
                s.spawn(move || {
                    thread::yield_now();
                    let _ = thread::sleep(Duration::from_millis(1));
                    *part = at as u32;
                });
            }
        });

        let gate = Arc::new(sync::Barrier::new(2));
        let listener = net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let other = gate.clone();
        let server = thread::spawn(move || {
            let _ = other.wait();
            let (mut stream, _) = listener.accept().unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            stream.write_all(text.to_uppercase().as_bytes()).unwrap();
            text.len() as u32
        });
        let _ = gate.wait();
        let mut stream = net::TcpStream::connect(address).unwrap();
        stream.write_all(b"hello").unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        parts.push(server.join().unwrap());

        let panicked = thread::spawn(|| std::panic::panic_any(7u32)).join();
        parts.push(rw::payload(panicked));
        (parts, answer)
    }};
}

/// The one difference between the two programs is what a failed join returns: std returns the
/// panic's payload, this crate an error that contains it.
mod of_std {
    pub fn payload(joined: std::thread::Result<()>) -> u32 {
        *joined.unwrap_err().downcast::<u32>().unwrap()
    }
}

mod of_ums {
    pub fn payload(joined: Result<(), ums::task::JoinError<ums::JoinHandle<()>>>) -> u32 {
        match joined {
            Err(ums::task::JoinError::Panicked(panic)) => *panic.downcast::<u32>().unwrap(),
            other => panic!("{other:?} instead of a panic"),
        }
    }
}

type Told = (Vec<u32>, String);

fn told_by_std() -> Told {
    program!(std::thread, std::sync, std::net, crate::of_std)
}

fn told_by_ums() -> Told {
    // `spawn`, `scope`, `sleep` and `yield_now` are in the root of `ums`.
    program!(ums, ums::sync, ums::net, crate::of_ums)
}

#[test]
fn a_program_for_std_is_a_program_for_ums_u5() {
    let expected = told_by_std();
    assert_eq!(expected, (vec![0, 1, 2, 3, 5, 7], "HELLO".to_owned()));
    both_kinds(move |node, _, _| assert_eq!(node.run(told_by_ums), expected));
}

#[test]
fn the_same_code_runs_over_every_io_back_end_u4() {
    let expected = told_by_std();
    for choice in [IoChoice::Auto, IoChoice::Epoll, IoChoice::Sync] {
        both_kinds_with(
            |b| b.io(choice),
            |node, kind, _| {
                let text = node.io_text();
                let name = text.split_whitespace().next().unwrap_or_default().to_owned();
                match (choice, kind) {
                    (IoChoice::Sync, _) => assert!(name.starts_with("sync"), "{text}"),
                    (IoChoice::Epoll, _) => assert!(name.starts_with("epoll"), "{text}"),
                    // A ring belongs to one thread, so thread workers have none.
                    (_, WorkerKind::Thread) => assert!(!name.starts_with("io_uring"), "{text}"),
                    _ => {}
                }
                assert_eq!(node.run(told_by_ums), expected, "over {text}");
            },
        );
    }
}
