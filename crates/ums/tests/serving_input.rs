//! The input of served connections: no byte is lost, doubled or moved, whatever sizes a session
//! reads, whether or not its reads wait, and whatever it does between them.

#![allow(unsafe_code)] // For the harness.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

use common::dice::Dice;
use common::*;
use ums::Node;
use ums::serve::{Connection, Next, ServeOptions, Session, Why};

/// How many bytes each client sends.
const BYTES: usize = 60_000;

/// Echoes what it reads, in a random way.
struct Odd(Dice);

impl Session for Odd {
    fn request(&mut self, conn: &mut Connection<'_>, why: Why) -> Next {
        if why == Why::Stopping {
            return Next::Close;
        }
        for _ in 0..self.0.roll(4) {
            let mut buffer = vec![0; self.0.size()];
            let waits = self.0.roll(3) == 0;
            conn.timeout = Some(ms(self.0.roll(3)));
            let read = if waits { conn.read(&mut buffer) } else { conn.try_read(&mut buffer) };
            conn.timeout = None;
            match read {
                Ok(0) => return Next::Close,
                Ok(count) => {
                    if conn.write_all(&buffer[..count]).is_err() {
                        return Next::Close;
                    }
                }
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) => panic!("{error}"),
            }
        }
        match self.0.roll(4) {
            0 => Next::Wait,
            1 => Next::WaitAtMost(ms(self.0.roll(3))),
            2 => Next::Again,
            _ => {
                conn.resumer().resume();
                Next::Park
            }
        }
    }
}

fn byte(at: usize) -> u8 {
    (at % 251) as u8
}

/// Sends the pattern in random pieces and reads it back.
fn converse(to: std::net::SocketAddr, seed: u64) {
    let mut reader = TcpStream::connect(to).unwrap();
    reader.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut writer = reader.try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        let (mut dice, mut at) = (Dice(seed), 0);
        while at < BYTES {
            let end = BYTES.min(at + dice.size());
            let piece: Vec<u8> = (at..end).map(byte).collect();
            writer.write_all(&piece).unwrap();
            at = end;
            if dice.roll(20) == 0 {
                std::thread::sleep(ms(1));
            }
        }
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let mut back = Vec::new();
    reader.read_to_end(&mut back).unwrap();
    sender.join().unwrap();
    assert_eq!(back.len(), BYTES, "every byte comes back");
    assert_eq!(back.iter().enumerate().find(|(at, b)| **b != byte(*at)), None, "in order");
}

fn serve_and_converse(node: &Node) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let seeds = std::sync::atomic::AtomicU64::new(1);
    let make = move |_: &ums::User, _| -> Box<dyn Session> {
        let seed = seeds.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Box::new(Odd(Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15))))
    };
    let server = node.serve(listener, ServeOptions::default(), make).unwrap();
    let to = server.local_addr().unwrap();
    std::thread::scope(|s| {
        for seed in 1..5 {
            s.spawn(move || converse(to, seed));
        }
    });
    eventually("all connections have closed", || server.counters().open == 0);
    assert_eq!(server.counters().panics, 0);
    assert!(server.stop_and_wait(PATIENCE));
}

#[test]
fn no_byte_of_a_served_connection_is_lost_or_moved() {
    for kind in kinds() {
        for io in back_ends(kind) {
            for n in [1, 2] {
                eprintln!("{kind:?} workers, {n} schedulers, {io:?}");
                one_kind(kind, |b| b.schedulers(n).io(io), serve_and_converse);
            }
        }
    }
}
