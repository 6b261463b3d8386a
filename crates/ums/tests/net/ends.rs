//! Waits that are ended from outside: by cancellation, by shutdown, or because no descriptor is
//! left.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit, setrlimit};
use ums::Node;
use ums::net::{TcpStream, UdpSocket, UnixListener, UnixStream};
use ums::sync::Select;

use crate::common::{
    PATIENCE, build, child_errand, eventually, kinds, ms, one_kind, run_child, turn,
};
use crate::{back_ends, everywhere, is_cancelled, kind_of, listener, on_so_many, tcp_pair};

const EMFILE: i32 = rustix::io::Errno::MFILE.raw_os_error();

/// Gives a task time to begin its wait.
fn settle() {
    std::thread::sleep(ms(10));
}

#[test]
fn reads_that_fail_at_once_let_others_run() {
    on_so_many(&[1], |node| {
        let (mut here, _there) = tcp_pair();
        let reads = move || {
            let (ran, begun) = (Arc::new(AtomicBool::new(false)), Instant::now());
            let runs = Arc::clone(&ran);
            drop(ums::spawn(move || runs.store(true, Ordering::Relaxed)));
            ums::with_timeout(Duration::ZERO, || {
                while !ran.load(Ordering::Relaxed) {
                    assert!(begun.elapsed() < PATIENCE, "the other task never runs");
                    assert_eq!(kind_of(here.read(&mut [0])), io::ErrorKind::TimedOut);
                }
            });
        };
        node.spawn_on(0, reads).unwrap().join().unwrap();
    });
}

#[test]
fn cancelling_ends_reads_writes_and_accepts_that_wait_b59() {
    everywhere(|node| {
        let (mut here, there) = tcp_pair();
        let mut full = here.try_clone().unwrap();
        let (listener, _) = listener();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let begun = Arc::new(AtomicUsize::new(0));
        let count = || {
            let begun = begun.clone();
            move || _ = begun.fetch_add(1, Ordering::Relaxed)
        };
        let [a, b, c, d] = [count(), count(), count(), count()];
        let read = move || (a(), is_cancelled(here.read(&mut [0]))).1;
        let write = move || (b(), is_cancelled(full.write_all(&vec![0; 64 << 20]))).1;
        let accept = move || (c(), is_cancelled(listener.accept())).1;
        let receive = move || (d(), is_cancelled(socket.recv_from(&mut [0]))).1;
        let (read, write) = (node.spawn(read).unwrap(), node.spawn(write).unwrap());
        let (accept, receive) = (node.spawn(accept).unwrap(), node.spawn(receive).unwrap());
        // An operation that is cancelled before it begins is not carried out.
        eventually("all have begun", || begun.load(Ordering::Relaxed) == 4);
        settle();
        for task in [read, write, accept, receive] {
            assert!(!task.is_finished());
            task.cancel();
            assert!(task.join().unwrap());
        }
        drop(there);
    });
}

#[test]
fn a_cancelled_request_reads_no_more_but_can_send_a_last_message_b59() {
    everywhere(|node| {
        let (mut here, mut there) = tcp_pair();
        there.write_all(b"there is something to read").unwrap();
        let (begins, begun) = std::sync::mpsc::channel();
        let task = node.spawn(move || {
            begins.send(()).unwrap();
            ums::sleep(Duration::MAX).unwrap_err();
            assert!(is_cancelled(here.read(&mut [0])));
            assert!(is_cancelled(TcpStream::connect(here.peer_addr().unwrap())));
            here.write_all(b"farewell").unwrap();
        });
        begun.recv().unwrap();
        let task = task.unwrap();
        task.cancel();
        task.join().unwrap();
        let mut text = [0; 8];
        there.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"farewell");
    });
}

#[test]
fn a_loop_over_incoming_connections_ends_when_it_is_cancelled() {
    everywhere(|node| {
        let (listener, address) = listener();
        let (begins, begun) = std::sync::mpsc::channel();
        let task = node.spawn(move || {
            begins.send(()).unwrap();
            listener.incoming().filter(Result::is_ok).count()
        });
        let streams: Vec<_> = (0..3).map(|_| TcpStream::connect(address).unwrap()).collect();
        begun.recv().unwrap();
        settle();
        let task = task.unwrap();
        task.cancel();
        assert!(task.join().unwrap() <= streams.len());
    });
}

#[test]
fn a_node_shuts_down_although_workers_wait_for_sockets_g13() {
    for kind in kinds() {
        for io in back_ends(kind) {
            for n in [1, 2] {
                let _turn = turn();
                let node = build(kind, |b| b.schedulers(n).io(io));
                let (listener, address) = listener();
                let folder = tempfile::tempdir().unwrap();
                let unix = UnixListener::bind(folder.path().join("socket")).unwrap();
                let peers: Vec<_> = (0..10).map(|_| TcpStream::connect(address).unwrap()).collect();
                let server = node.spawn(move || {
                    let streams = listener.incoming().map(Result::unwrap);
                    let echo = |s: TcpStream| move || is_cancelled(crate::echo(&s));
                    let tasks: Vec<_> = streams.map(|s| ums::spawn(echo(s))).collect();
                    tasks
                        .into_iter()
                        .filter(|_| true)
                        .map(|t| t.join_uncancellable().unwrap())
                        .filter(|c| *c)
                        .count()
                });
                let other = node.spawn(move || unix.incoming().count());
                peers.iter().for_each(|peer| crate::round(peer, b"alive"));
                let report = node.shutdown(ms(20));
                assert_eq!((report.cancelled, report.left), (12, 0), "{kind:?}, {n}, {io:?}");
                assert_eq!(server.unwrap().join().unwrap(), peers.len());
                assert_eq!(other.unwrap().join().unwrap(), 0);
            }
        }
    }
}

/// While this value lives, the process can open no descriptor.
struct Shortage {
    old: rustix::process::Rlimit,
    _fill: Vec<TcpStream>,
}

impl Shortage {
    fn begin(client: &TcpStream) -> Shortage {
        let old = getrlimit(Resource::Nofile);
        // All descriptor numbers below the new limit are in use.
        let fill = (0..64).map(|_| client.try_clone().unwrap()).collect();
        let open = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
        let tight = rustix::process::Rlimit { current: Some(open / 2), maximum: old.maximum };
        setrlimit(Resource::Nofile, tight).unwrap();
        Shortage { old, _fill: fill }
    }
}

impl Drop for Shortage {
    fn drop(&mut self) {
        setrlimit(Resource::Nofile, self.old).unwrap();
    }
}

#[test]
fn accepting_without_descriptors_fails_pauses_and_recovers() {
    everywhere(|node| {
        let (listener, address) = listener();
        let client = TcpStream::connect(address).unwrap();
        let shortage = Shortage::begin(&client);
        let (errors, waited, listener) = node.run(move || {
            let began = Instant::now();
            let errors: Vec<_> = (0..4).map(|_| listener.accept().err()).collect();
            (errors, began.elapsed(), listener)
        });
        drop(shortage);
        for error in errors {
            assert_eq!(error.unwrap().raw_os_error(), Some(EMFILE));
        }
        assert!(waited >= Duration::from_millis(30), "each but the first pauses");
        let from = node.run(move || listener.accept().unwrap().1);
        assert_eq!(from, client.local_addr().unwrap(), "the connection was still in the queue");
    });
}

#[test]
fn accepting_without_descriptors_says_so_once_on_stderr() {
    const ME: &str = "ends::accepting_without_descriptors_says_so_once_on_stderr";
    let Some(errand) = child_errand() else {
        let _turn = turn(); // a descriptor that closes would end the shortage of another test
        for errand in ["tcp", "unix", "select", "incoming"] {
            let ran = run_child(ME, errand);
            let said = String::from_utf8_lossy(&ran.stderr);
            assert!(ran.status.success(), "{errand}: {said}");
            let lines = said.matches("ums: new connections wait because none can be").count();
            assert_eq!(lines, 1, "{errand}: {said}");
        }
        return;
    };
    let body = |node: &Node| {
        let (listener, address) = listener();
        let client = TcpStream::connect(address).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let unix = UnixListener::bind(&path).unwrap();
        let _peer = UnixStream::connect(&path).unwrap();
        let shortage = Shortage::begin(&client);
        let accepts = |_| match &*errand {
            "tcp" => listener.accept().is_ok(),
            "unix" => unix.accept().is_ok(),
            "select" => Select::new().on(&listener, |accepted| accepted).wait().unwrap().is_ok(),
            _ => ums::with_timeout(ms(30), || listener.incoming().next()).is_some(),
        };
        assert!(!node.run(|| (0..3).any(accepts)));
        drop(shortage);
    };
    one_kind(kinds()[0], |b| b.schedulers(1), body);
}

#[test]
fn incoming_waits_until_there_is_a_descriptor() {
    everywhere(|node| {
        let (listener, address) = listener();
        let client = TcpStream::connect(address).unwrap();
        let shortage = Shortage::begin(&client);
        let pauses = || {
            let rows = node.snapshot().waits;
            let row = rows.iter().find(|row| row.reason == ums::WaitReason::NETWORK_ACCEPT);
            row.map_or(0, |row| row.count)
        };
        let before = pauses();
        let task = node.spawn(move || listener.incoming().next().unwrap()).unwrap();
        eventually("it pauses, or gives up", || pauses() > before + 3 || task.is_finished());
        assert!(!task.is_finished(), "there is no descriptor yet");
        drop(shortage);
        let stream = task.join().unwrap().expect("the connection was in the queue");
        assert_eq!(stream.peer_addr().unwrap(), client.local_addr().unwrap());
    });
}

#[test]
fn a_preemptive_worker_uses_sockets_like_a_plain_thread() {
    everywhere(|node| {
        let (mut here, mut there) = tcp_pair();
        let task = node.spawn(move || {
            ums::go_preemptive(ums::WaitReason::PREEMPTIVE_EXTERNAL, || -> io::Result<u8> {
                let mut byte = [0];
                here.read_exact(&mut byte)?;
                Ok(byte[0])
            })
        });
        settle();
        let task = task.unwrap();
        // Other workers run meanwhile, also on its scheduler.
        assert_eq!((0..2).map(|_| node.run(|| 1)).sum::<i32>(), 2);
        there.write_all(&[7]).unwrap();
        assert_eq!(task.join().unwrap().unwrap(), 7);
        eventually("it runs on its scheduler again", || node.run(ums::worker::is_worker));
    });
}
