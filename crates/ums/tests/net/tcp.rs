//! TCP: echoes, timeouts, ends of connections, big transfers, clones, options.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Ipv4Addr, Shutdown};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_linger;
use ums::net::{TcpListener, TcpStream, UnixStream};

use crate::common::ms;
use crate::{echo, everywhere, kind_of, listener, on_so_many, round, tcp_pair};

#[test]
fn two_hundred_connections_echo() {
    const CLIENTS: usize = 200;
    everywhere(|node| {
        let (listener, address) = listener();
        let server = node.spawn(move || {
            let streams = listener.incoming().take(CLIENTS).map(Result::unwrap);
            let tasks: Vec<_> = streams.map(|s| ums::spawn(move || echo(&s).unwrap())).collect();
            tasks.into_iter().map(|t| t.join().unwrap()).sum::<u64>()
        });
        node.run(move || {
            let client = move |i: usize| {
                let stream = TcpStream::connect(address).unwrap();
                stream.set_nodelay(true).unwrap();
                (0..5).for_each(|n| round(&stream, format!("client {i}, round {n}").as_bytes()));
                500
            };
            let tasks: Vec<_> = (0..CLIENTS).map(|i| ums::spawn(move || client(i))).collect();
            assert_eq!(tasks.into_iter().map(|t| t.join().unwrap()).sum::<usize>(), CLIENTS * 500);
        });
        assert!(server.unwrap().join().unwrap() > (CLIENTS * 5 * 16) as u64);
    });
}

#[test]
fn connections_that_wait_together_are_accepted_in_fewer_turns_than_there_are_of_them() {
    const CLIENTS: usize = 100;
    // One scheduler, so the other worker runs only when this one yields or waits.
    on_so_many(&[1], |node| {
        let (listener, address) = listener();
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| std::net::TcpStream::connect(address).expect("the backlog takes so many"))
            .collect();
        let stop = Arc::new(AtomicBool::new(false));
        let (asked, turns) = (stop.clone(), Arc::new(AtomicUsize::new(0)));
        let taken = turns.clone();
        let accept = move || {
            let busy = ums::spawn(move || {
                while !asked.load(Ordering::Relaxed) {
                    taken.fetch_add(1, Ordering::Relaxed);
                    ums::yield_now();
                }
            });
            ums::yield_now();
            let before = turns.load(Ordering::Relaxed);
            let streams: Vec<_> = listener.incoming().take(CLIENTS).map(Result::unwrap).collect();
            let between = turns.load(Ordering::Relaxed) - before;
            stop.store(true, Ordering::Relaxed);
            busy.join().unwrap();
            (streams.len(), between)
        };
        let (accepted, between) = node.run(accept);
        assert_eq!(accepted, CLIENTS);
        let text = "turns of another worker while connections were waiting to be accepted";
        assert!(between < CLIENTS / 2, "{between} {text}");
        drop(clients);
    });
}

#[test]
fn plain_threads_and_workers_talk_to_each_other() {
    everywhere(|node| {
        let (listener, address) = listener();
        let listener = Arc::new(listener);
        // A worker and a plain thread accept from the same listener.
        let serve = |listener: Arc<TcpListener>| {
            move || (0..8).map(|_| echo(&listener.accept().unwrap().0).unwrap()).sum::<u64>()
        };
        let worker = node.spawn(serve(listener.clone())).unwrap();
        let plain = thread::spawn(serve(listener));
        let client = move || round(&TcpStream::connect(address).unwrap(), &[7; 10_000]);
        let threads: Vec<_> = (0..8).map(|_| thread::spawn(client)).collect();
        let workers: Vec<_> = (0..8).map(|_| node.spawn(client).unwrap()).collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        workers.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!((worker.join().unwrap(), plain.join().unwrap()), (80_000, 80_000));
    });
}

#[test]
fn a_stream_is_handed_from_a_thread_to_workers_of_any_scheduler() {
    everywhere(|node| {
        let (mut here, mut there) = tcp_pair();
        for i in 0..8u8 {
            let reader = move || {
                let mut byte = [0];
                there.read_exact(&mut byte).unwrap();
                (there, byte[0])
            };
            let on = usize::from(i) % node.scheduler_count();
            let task = node.spawn_on(on, reader).unwrap();
            here.write_all(&[i]).unwrap();
            let (back, byte) = task.join().unwrap();
            assert_eq!(byte, i);
            there = back;
        }
    });
}

/// Writes until a write fails because it would have to wait; returns how many bytes were written.
fn fill(mut stream: &TcpStream) -> io::Result<u64> {
    let block = vec![0; 1 << 16];
    let mut sum = 0;
    loop {
        match stream.write(&block) {
            Ok(n) => sum += n as u64,
            Err(error) if sum == 0 => return Err(error),
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::TimedOut);
                return Ok(sum);
            }
        }
    }
}

fn timeouts() {
    let (mut here, mut there) = tcp_pair();
    assert_eq!(here.read_timeout().unwrap(), None);
    assert_eq!(kind_of(here.set_read_timeout(Some(Duration::ZERO))), io::ErrorKind::InvalidInput);
    here.set_read_timeout(Some(ms(20))).unwrap();
    here.set_write_timeout(Some(ms(30))).unwrap();
    assert_eq!(here.try_clone().unwrap().write_timeout().unwrap(), Some(ms(30)));

    let began = Instant::now();
    assert_eq!(kind_of(here.read(&mut [0])), io::ErrorKind::TimedOut);
    assert!(began.elapsed() >= ms(20));
    there.write_all(b"x").unwrap();
    here.set_read_timeout(Some(ms(60_000))).unwrap();
    assert_eq!(here.read(&mut [0; 9]).unwrap(), 1, "a stream can be used after a timeout");

    let began = Instant::now();
    let mut sent = fill(&here).unwrap();
    assert!(began.elapsed() >= ms(30));
    here.set_write_timeout(None).unwrap();
    here.set_deadline(Some(Instant::now() + ms(20)));
    // Meanwhile the kernel may have sent some bytes, so that there is room for a little more.
    sent += fill(&here).unwrap_or_else(|error| {
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        0
    });
    assert_eq!(kind_of(here.read(&mut [0])), io::ErrorKind::TimedOut, "the deadline is past");
    here.set_deadline(None);
    here.shutdown(Shutdown::Write).unwrap();
    assert_eq!(io::copy(&mut there, &mut io::sink()).unwrap(), sent);

    let (listener, _) = listener();
    assert_eq!(kind_of(listener.accept_timeout(ms(5))), io::ErrorKind::TimedOut);
}

#[test]
fn reads_writes_and_accepts_end_at_their_timeouts() {
    everywhere(|node| {
        node.run(timeouts);
        timeouts();
    });
}

fn connecting() {
    let (listener, address) = listener();
    drop(listener);
    let refused = io::ErrorKind::ConnectionRefused;
    assert_eq!(kind_of(TcpStream::connect(address)), refused);
    assert_eq!(kind_of(TcpStream::connect_timeout(&address, ms(60_000))), refused);
    assert_eq!(kind_of(TcpStream::connect_timeout(&address, ms(0))), io::ErrorKind::InvalidInput);
    // The first address is refused, the second answers.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let both = [address, listener.local_addr().unwrap()];
    assert_eq!(TcpStream::connect(&both[..]).unwrap().peer_addr().unwrap(), both[1]);

    // A listener whose queue is full does not answer further connects.
    rustix::net::listen(&listener, 0).unwrap();
    let connect = || TcpStream::connect_timeout(&both[1], ms(50));
    let attempts: Vec<_> = (0..4).map(|_| connect()).collect();
    assert_eq!(
        kind_of(attempts.into_iter().collect::<io::Result<Vec<_>>>()),
        io::ErrorKind::TimedOut
    );
}

#[test]
fn connecting_is_refused_timed_out_or_tried_at_the_next_address() {
    everywhere(|node| {
        node.run(connecting);
        connecting();
    });
}

#[test]
fn names_are_resolved_preemptively_and_addresses_are_not() {
    everywhere(|node| {
        let away = |node: &ums::Node| {
            let rows = node.snapshot().schedulers;
            rows.iter().map(|row| row.counters.preemptive_switches).sum::<u64>()
        };
        node.run(|| {
            let (listener, address) = listener();
            let tasks = [format!("127.0.0.1:{}", address.port()), address.to_string()];
            tasks.iter().for_each(|name| drop(TcpStream::connect(name.as_str()).unwrap()));
            drop(listener);
        });
        assert_eq!(away(node), 0);
        node.run(|| {
            let (_listener, address) = listener();
            drop(TcpStream::connect(("localhost", address.port())).unwrap());
        });
        assert!(away(node) > 0);
    });
}

#[test]
fn a_reset_is_an_error_on_both_sides_of_a_stream() {
    everywhere(|node| {
        let (mut here, there) = tcp_pair();
        let task = node.spawn(move || kind_of(here.read(&mut [0]))).unwrap();
        thread::sleep(ms(5));
        set_socket_linger(&there, Some(Duration::ZERO)).unwrap();
        drop(there);
        assert_eq!(task.join().unwrap(), io::ErrorKind::ConnectionReset);

        let (mut here, there) = tcp_pair();
        drop(there);
        // The first write provokes the reset. A later write fails with an error, without a signal.
        let task = node.spawn(move || {
            (0..1000).find_map(|_| {
                ums::sleep(ms(1)).unwrap();
                here.write(b"x").err()
            })
        });
        let error = task.unwrap().join().unwrap().unwrap().kind();
        assert!(matches!(error, io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset));
    });
}

#[test]
fn a_connection_reset_in_the_queue_is_not_handed_out() {
    everywhere(|node| {
        node.run(|| {
            let (listener, address) = listener();
            let gone = TcpStream::connect(address).unwrap();
            set_socket_linger(&gone, Some(Duration::ZERO)).unwrap();
            drop(gone);
            let good = TcpStream::connect(address).unwrap();
            assert_eq!(listener.accept().unwrap().1, good.local_addr().unwrap());
        });
    });
}

#[test]
fn one_direction_ends_and_the_other_continues() {
    everywhere(|node| {
        let (mut here, mut there) = tcp_pair();
        let server = node.spawn(move || {
            let mut question = String::new();
            there.read_to_string(&mut question).unwrap();
            there.write_all(question.to_uppercase().as_bytes()).unwrap();
        });
        let answer = node.run(move || {
            here.write_all(b"question").unwrap();
            here.shutdown(Shutdown::Write).unwrap();
            let mut answer = String::new();
            here.read_to_string(&mut answer).unwrap();
            answer
        });
        assert_eq!(answer, "QUESTION");
        server.unwrap().join().unwrap();
    });
}

#[test]
fn sixteen_mebibytes_pass_a_slow_reader_unharmed() {
    const SIZE: usize = 16 << 20;
    everywhere(|node| {
        let (mut here, mut there) = tcp_pair();
        let data: Vec<u8> =
            (0..SIZE as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let data = Arc::new(data);
        let sent = data.clone();
        let writer = node.spawn(move || here.write_all(&sent).unwrap()).unwrap();
        let same = node.run(move || {
            let mut got = Vec::with_capacity(SIZE);
            let mut block = vec![0; 100_000];
            loop {
                match there.read(&mut block).unwrap() {
                    0 => break got == *data,
                    n => got.extend_from_slice(&block[..n]),
                }
                if got.len() % 7 == 0 {
                    ums::sleep(ms(1)).unwrap();
                }
            }
        });
        assert!(same, "what arrived is what was sent");
        writer.join().unwrap();
    });
}

#[test]
fn vectored_peeked_and_empty_transfers_behave_as_std_s() {
    everywhere(|node| {
        node.run(|| {
            let (mut here, mut there) = tcp_pair();
            assert_eq!(here.read(&mut []).unwrap(), 0, "no place, no wait");
            let parts = [IoSlice::new(b"one "), IoSlice::new(b""), IoSlice::new(b"two")];
            assert_eq!(here.write_vectored(&parts).unwrap(), 7);
            let mut start = [0; 3];
            assert_eq!(there.peek(&mut start).unwrap(), 3);
            assert_eq!(&start, b"one");
            let (mut a, mut b) = ([0; 5], [0; 5]);
            let mut parts = [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)];
            assert_eq!(there.read_vectored(&mut parts).unwrap(), 7);
            assert_eq!((&a, &b), (b"one t", b"wo\0\0\0"));
            drop(here);
            assert_eq!(there.read(&mut a).unwrap(), 0);
        });
    });
}

/// Reads and writes through two views that do not wait. `arrives` waits until `there` has input.
fn without_waits<V: Read + Write + Copy>(mut here: V, mut there: V, arrives: impl FnOnce()) {
    let mut text = [0; 8];
    assert_eq!(there.read(&mut []).unwrap(), 0);
    assert_eq!(kind_of(there.read(&mut text)), io::ErrorKind::WouldBlock);
    let parts = [IoSlice::new(b"he"), IoSlice::new(b"llo")];
    assert_eq!(here.write_vectored(&parts).unwrap(), 5);
    arrives();
    let mut copy = there;
    assert_eq!(copy.read(&mut text).unwrap(), 5);
    assert_eq!(&text, b"hello\0\0\0");
    let full = (0..10_000).find_map(|_| here.write(&[0; 1 << 16]).err());
    assert_eq!(full.unwrap().kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn a_view_of_a_stream_says_would_block_instead_of_waiting() {
    everywhere(|node| {
        node.run(|| {
            let (here, there) = tcp_pair();
            let arrives = || _ = there.peek(&mut [0]).unwrap();
            without_waits(here.non_blocking(), there.non_blocking(), arrives);
            let (here, there) = UnixStream::pair().unwrap();
            let arrives = || _ = there.peek(&mut [0]).unwrap();
            without_waits(here.non_blocking(), there.non_blocking(), arrives);
        });
    });
}

#[test]
fn options_are_those_of_the_socket() {
    everywhere(|node| {
        node.run(|| {
            let (here, there) = tcp_pair();
            assert_eq!(here.peer_addr().unwrap(), there.local_addr().unwrap());
            assert!(!here.nodelay().unwrap());
            here.set_nodelay(true).unwrap();
            here.set_ttl(42).unwrap();
            let clone = here.try_clone().unwrap();
            assert!(clone.nodelay().unwrap() && clone.ttl().unwrap() == 42);
            assert!(here.take_error().unwrap().is_none());
            assert!(format!("{here:?}").contains("TcpStream"));
        });
    });
}

#[test]
fn streams_come_from_std_and_go_back() {
    everywhere(|node| {
        let (listener, address) = listener();
        let std = std::net::TcpStream::connect(address).unwrap();
        let (there, _) = listener.accept().unwrap();
        let mut std = node.run(move || {
            let stream = TcpStream::from(std);
            let peer = ums::spawn(move || echo(&there).unwrap());
            round(&stream, b"as ours");
            stream.shutdown(Shutdown::Write).unwrap();
            assert_eq!(peer.join().unwrap(), 7);
            std::net::TcpStream::from(stream)
        });
        assert_eq!(std.read(&mut [0]).unwrap(), 0, "std's stream blocks until the end is there");
    });
}

#[test]
fn dropping_a_stream_does_not_end_waits_on_its_clone() {
    everywhere(|node| {
        let (here, mut there) = tcp_pair();
        let mut clone = here.try_clone().unwrap();
        let reader = node.spawn(move || {
            let mut byte = [0];
            clone.read_exact(&mut byte).unwrap();
            (byte[0], clone)
        });
        thread::sleep(ms(5));
        node.run(move || drop(here));
        there.write_all(b"!").unwrap();
        let (byte, mut clone) = reader.unwrap().join().unwrap();
        assert_eq!(byte, b'!');
        // Shutting one clone down ends the waits on the others.
        let other = clone.try_clone().unwrap();
        let reader = node.spawn(move || clone.read(&mut [0]).unwrap());
        thread::sleep(ms(5));
        other.shutdown(Shutdown::Both).unwrap();
        assert_eq!(reader.unwrap().join().unwrap(), 0);
    });
}

#[test]
fn several_workers_wait_on_both_sides_of_one_stream() {
    everywhere(|node| {
        let (here, there) = tcp_pair();
        let (here, there) = (Arc::new(here), Arc::new(there));
        let readers: Vec<_> = (0..4)
            .map(|_| {
                let there = there.clone();
                node.spawn(move || {
                    let mut byte = [0];
                    (&*there).read_exact(&mut byte).unwrap();
                    byte[0]
                })
            })
            .collect();
        let writers = (0..4u8).map(|i| {
            let here = here.clone();
            node.spawn(move || (&*here).write_all(&[i]).unwrap()).unwrap()
        });
        writers.for_each(|t| t.join().unwrap());
        let mut got: Vec<_> = readers.into_iter().map(|t| t.unwrap().join().unwrap()).collect();
        got.sort_unstable();
        assert_eq!(got, [0, 1, 2, 3]);
    });
}

#[test]
fn a_busy_connection_does_not_keep_its_scheduler_to_itself_b8() {
    everywhere(|node| {
        let done = Arc::new(AtomicBool::new(false));
        let seen = done.clone();
        // Each step finds its byte already there, so this worker never waits.
        let busy = node.spawn_on(0, move || {
            let (mut here, mut there) = tcp_pair();
            while !seen.load(Ordering::Relaxed) {
                here.write_all(&[1; 4]).unwrap();
                there.read_exact(&mut [0; 4]).unwrap();
            }
        });
        thread::sleep(ms(5));
        let other = node.spawn_on(0, move || done.store(true, Ordering::Relaxed));
        other.unwrap().join().unwrap();
        busy.unwrap().join().unwrap();
    });
}
