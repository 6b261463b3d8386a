//! The bytes of a stream: none is lost, doubled or moved, whatever sizes are read, and whichever
//! object, worker or thread reads them.

use std::net::Shutdown;
use std::os::fd::OwnedFd;

use super::*;
use crate::common::PATIENCE;
use crate::common::dice::Dice;

/// How many bytes the sender sends.
const BYTES: usize = 40_000;

fn byte(at: usize) -> u8 {
    (at % 251) as u8
}

/// What has been read so far, and the choices to come.
struct Reader {
    dice: Dice,
    at: usize,
}

impl Reader {
    fn check(&self, bytes: &[u8]) {
        let wrong = bytes.iter().enumerate().find(|(n, b)| **b != byte(self.at + n));
        assert_eq!(wrong, None, "after {} bytes", self.at);
    }

    /// Reads a few times, in random ways. Returns false at the end of the stream.
    fn some(&mut self, stream: &TcpStream) -> bool {
        for _ in 0..self.dice.roll(6) {
            let mut buf = vec![0; self.dice.size()];
            let short = self.dice.roll(3) == 0;
            stream.set_read_timeout(short.then_some(Duration::from_micros(200))).unwrap();
            let peeks = self.dice.roll(4) == 0;
            let read = match self.dice.roll(3) {
                _ if peeks => stream.peek(&mut buf),
                0 => {
                    let (a, b) = buf.split_at_mut(self.at % 2);
                    (&mut &*stream)
                        .read_vectored(&mut [io::IoSliceMut::new(a), io::IoSliceMut::new(b)])
                }
                _ => (&mut &*stream).read(&mut buf),
            };
            stream.set_read_timeout(None).unwrap();
            match read {
                Ok(0) => return false,
                Ok(count) => {
                    self.check(&buf[..count]);
                    self.at += if peeks { 0 } else { count };
                }
                Err(error) if error.kind() == io::ErrorKind::TimedOut => assert!(short),
                Err(error) => panic!("{error}"),
            }
        }
        true
    }
}

/// Passes the stream on in a random way. Returns what reads from now on.
fn pass_on(stream: TcpStream, dice: &mut Dice) -> TcpStream {
    match dice.roll(5) {
        0 => stream.try_clone().unwrap(),
        1 => std::net::TcpStream::from(stream).into(),
        2 => OwnedFd::from(stream).into(),
        _ => stream,
    }
}

/// Reads everything, each time for a while, on this task, on another one, and on a plain thread.
fn read_all(mut stream: TcpStream, seed: u64) -> usize {
    let mut reader = Reader { dice: Dice(seed), at: 0 };
    loop {
        stream = pass_on(stream, &mut reader.dice);
        let place = reader.dice.roll(8);
        let more;
        (stream, reader, more) = call_at(place, move || {
            let more = reader.some(&stream);
            (stream, reader, more)
        });
        if !more {
            return reader.at;
        }
    }
}

/// Calls the step in another task, on a plain thread, or here.
fn call_at<T: Send + 'static>(place: u64, step: impl FnOnce() -> T + Send + 'static) -> T {
    match place {
        0 => ums::spawn(step).join().unwrap(),
        1 => {
            let thread = std::thread::spawn(step);
            ums::go_preemptive(ums::WaitReason::PREEMPTIVE_EXTERNAL, || thread.join().unwrap())
        }
        _ => step(),
    }
}

fn send_all(mut stream: std::net::TcpStream, seed: u64) {
    let (mut dice, mut at) = (Dice(seed), 0);
    while at < BYTES {
        let end = BYTES.min(at + dice.size());
        let piece: Vec<u8> = (at..end).map(byte).collect();
        stream.write_all(&piece).unwrap();
        at = end;
        if dice.roll(30) == 0 {
            std::thread::sleep(Duration::from_micros(300));
        }
    }
    stream.shutdown(Shutdown::Write).unwrap();
}

#[test]
fn no_byte_of_a_stream_is_lost_or_moved_by_any_way_of_reading_it() {
    everywhere(|node| {
        let pairs = 1..4u64;
        let mut ends = Vec::new();
        for seed in pairs {
            let (here, there) = tcp_pair();
            let seed = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let there = std::net::TcpStream::from(there);
            there.set_write_timeout(Some(PATIENCE)).unwrap();
            let sender = std::thread::spawn(move || send_all(there, seed));
            ends.push((node.spawn(move || read_all(here, seed)).unwrap(), sender));
        }
        for (reader, sender) in ends {
            assert_eq!(reader.join().unwrap(), BYTES);
            sender.join().unwrap();
        }
    });
}

#[test]
fn what_has_arrived_is_read_in_small_pieces_without_a_turn_for_each() {
    const PIECES: u64 = 1000;
    on_so_many(&[1], |node| {
        let (mut here, mut there) = tcp_pair();
        there.write_all(&[7; PIECES as usize]).unwrap();
        let turns = || ums::testing::scheduler(node, 0).counters.turns;
        let before = turns();
        let read = move || (0..PIECES).try_for_each(|_| here.read_exact(&mut [0]));
        node.spawn(read).unwrap().join().unwrap().unwrap();
        let taken = turns() - before;
        assert!(taken < PIECES / 10, "{taken} turns for {PIECES} pieces");
    });
}
