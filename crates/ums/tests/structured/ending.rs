//! The end of a node on which everything waits: each wait ends, and no worker is left.

use std::future::pending;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ums::future::{block_on, spawn_future};
use ums::net::{TcpListener, TcpStream, UdpSocket, UnixStream};
use ums::sync::channel::{bounded, broadcast, oneshot, watch};
use ums::sync::{Barrier, Condvar, Event, Latch, Mutex, RwLock, Select, Semaphore};
use ums::task::Interval;
use ums::{Node, WaitReason};

use super::common::{each_end, eventually};
use super::{HOUR, SHORT};

struct Waits(Vec<Box<dyn FnOnce() + Send>>);

impl Waits {
    /// Adds a wait, whose result does not matter.
    fn add<T>(&mut self, wait: impl FnOnce() -> T + Send + 'static) {
        self.0.push(Box::new(move || _ = wait()));
    }
}

/// Every wait that a request can be in. Each ends only by its cancellation, or after the end of
/// another.
fn waits() -> Waits {
    let mut waits = Waits(Vec::new());
    waits.add(|| ums::sleep(HOUR));
    waits.add(|| Interval::new(HOUR).tick());
    waits.add(|| {
        let (_tx, rx) = bounded::<()>(1);
        rx.recv().map(drop)
    });
    waits.add(|| {
        let (tx, _rx) = bounded(0);
        tx.send(()).map(drop)
    });
    waits.add(|| {
        let (_tx, rx) = oneshot::<()>();
        rx.recv().map(drop)
    });
    waits.add(|| {
        let (_tx, mut rx) = watch(());
        rx.get();
        rx.changed().map(drop)
    });
    waits.add(|| {
        let (_tx, mut rx) = broadcast::<()>(1);
        rx.recv().map(drop)
    });
    waits.add(|| Event::manual(false).wait());
    waits.add(|| Latch::new(1).wait());
    waits.add(|| Barrier::new(2).wait());
    waits.add(|| Semaphore::new(0).acquire().is_ok());
    waits.add(|| {
        let mutex = Mutex::new(());
        Condvar::new().wait(&mut mutex.lock()).map(drop)
    });
    waits.add(|| {
        let (_tx, rx) = bounded::<()>(1);
        let never = Event::manual(false);
        Select::new().on(&rx, drop).on(&never, drop).on(HOUR, drop).wait().map(drop)
    });
    waits_for_tasks(&mut waits);
    waits_for_sockets(&mut waits);
    waits_for_locks(&mut waits);
    waits
}

fn waits_for_tasks(waits: &mut Waits) {
    waits.add(|| block_on(pending::<()>()));
    waits.add(|| block_on(ums::future::sleep(HOUR)));
    waits.add(|| spawn_future(pending::<()>()).join());
    waits.add(|| ums::spawn(|| ums::sleep(HOUR)).join());
    waits.add(|| ums::scope(|scope| _ = scope.spawn(|| ums::sleep(HOUR))));
    waits.add(|| {
        ums::task_group(|group| {
            group.spawn(|| ums::sleep(HOUR));
            group.next().map(drop)
        })
    });
}

fn waits_for_sockets(waits: &mut Waits) {
    waits.add(|| TcpListener::bind("127.0.0.1:0").unwrap().accept());
    waits.add(|| UdpSocket::bind("127.0.0.1:0").unwrap().recv_from(&mut [0]));
    waits.add(|| {
        let (mut here, _there) = UnixStream::pair().unwrap();
        here.read(&mut [0]).is_ok()
    });
    waits.add(|| {
        let (mut here, _there) = UnixStream::pair().unwrap();
        here.write_all(&vec![0; 8 << 20]).map(drop)
    });
    waits.add(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        ums::io::Watch::new(client).wait_readable().map(drop)
    });
}

/// Locks are held for moments, so their waits are deaf. Their holders are not.
fn waits_for_locks(waits: &mut Waits) {
    let (mutex, lock) = (Arc::new(Mutex::new(())), Arc::new(RwLock::new(())));
    for nth in 0..3 {
        let (mutex, lock) = (mutex.clone(), lock.clone());
        waits.add(move || {
            let _held = mutex.lock();
            ums::sleep(HOUR)
        });
        waits.add(move || {
            let _held = (nth == 0).then(|| lock.write());
            let _read = (nth > 0).then(|| lock.read());
            ums::sleep(HOUR)
        });
    }
}

fn waiting(node: &Node) -> usize {
    let waits = |w: &&ums::stats::WorkerRow| w.state == ums::stats::WorkerState::Waiting;
    node.snapshot().workers.iter().filter(waits).count()
}

#[test]
fn a_node_on_which_everything_waits_ends_with_nothing_left() {
    each_end(
        |b| b,
        |node, kind, n| {
            let all = waits().0;
            let count = all.len();
            let begun = Instant::now();
            for wait in all {
                drop(node.spawn(wait).unwrap());
            }
            eventually("all wait", || waiting(&node) >= count);
            // Within the grace time nothing ends by itself, so everything is cancelled after it. On
            // a busy computer all need more time to begin, and to end.
            let report = node.shutdown(20 * SHORT + 5 * begun.elapsed());
            assert_eq!(report.left, 0, "{kind:?} on {n}: {report:?}");
            assert!(report.cancelled >= count, "{kind:?} on {n}: {report:?}");
        },
    );
}

/// A request that computes ends by its own check, one that is shielded when its shield is over, and
/// one that blocks outside when the call returns.
#[test]
fn what_does_not_hear_a_cancellation_at_once_ends_within_the_time_after_it() {
    each_end(
        |b| b,
        |node, kind, n| {
            let node_spawn = |wait: fn()| drop(node.spawn(wait).unwrap());
            node_spawn(|| while ums::checkpoint().is_ok() {});
            node_spawn(|| {
                ums::shield(|| ums::sleep(Duration::from_millis(200))).unwrap();
                ums::sleep(HOUR).unwrap_err();
            });
            node_spawn(|| {
                ums::go_preemptive(WaitReason::PREEMPTIVE_EXTERNAL, || {
                    std::thread::sleep(Duration::from_millis(200));
                });
                ums::sleep(HOUR).unwrap_err();
            });
            eventually("they have begun", || {
                node.snapshot().workers.iter().filter(|w| w.request != 0).count() >= 3
            });
            let report = node.shutdown(SHORT);
            // A fiber sends preemptive code to a hidden scheduler, as a request of its own.
            assert!(report.cancelled >= 3 && report.left == 0, "{kind:?} on {n}: {report:?}");
        },
    );
}
