//! Stories of selects that wait for everything at once, and are cancelled at random moments.
//! Exactly one arm happens, and nothing of the others is lost: each value arrives once or stays
//! with its sender, each permit comes back, and the one baton is there at the end.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ums::future::polled;
use ums::net::{TcpListener, TcpStream};
use ums::sim::below;
use ums::sync::channel::{Receiver, Sender, bounded, broadcast, watch};
use ums::sync::{Event, Select, Semaphore};
use ums::task::{CancelToken, JoinError};
use ums::{JoinHandle, WaitError};

use super::{STALLS, check, end, node_with};

const PERMITS: usize = 2;

struct World {
    permits: Semaphore,
    /// Set whenever no task has it.
    baton: Event,
    sender: Sender<u64>,
    receiver: Receiver<u64>,
    sent: AtomicU64,
    received: AtomicU64,
    accepted: AtomicU64,
    children: AtomicU64,
    listener: TcpListener,
    stop: CancelToken,
}

impl World {
    /// Selects a few times, each time among some of the arms.
    fn work(&self) -> Result<(), WaitError> {
        let mut child: Option<JoinHandle<u64>> = None;
        let mut worked = Ok(());
        for _ in 0..1 + below(6) {
            if child.is_none() && below(3) == 0 {
                self.children.fetch_add(1, Ordering::Relaxed);
                child = Some(ums::spawn(|| {
                    let _ = ums::sleep(micros(100));
                    7
                }));
            }
            worked = self.select(&mut child);
            if worked == Err(WaitError::Cancelled) {
                break;
            }
            if below(3) == 0 {
                ums::yield_now();
            }
        }
        if let Some(child) = child {
            match child.join_uncancellable() {
                Ok(7) | Err(JoinError::NeverRan) => self.child_ended(),
                other => panic!("{other:?}"),
            }
        }
        worked
    }

    fn child_ended(&self) {
        self.children.fetch_sub(1, Ordering::Relaxed);
    }

    fn select(&self, child: &mut Option<JoinHandle<u64>>) -> Result<(), WaitError> {
        let (mut joined, mut polls, ready_at) = (false, 0, below(3));
        let mut future = pin!(std::future::poll_fn(|context| {
            polls += 1;
            if polls > ready_at {
                return std::task::Poll::Ready(());
            }
            let waker = context.waker().clone();
            drop(ums::spawn(move || waker.wake()));
            std::task::Poll::Pending
        }));
        let mut select = Select::new();
        if below(2) == 0 {
            select = select.biased();
        }
        if let Some(child) = child {
            select = select.on(child, |ended| {
                joined = true;
                assert!(matches!(ended, Ok(7) | Err(JoinError::NeverRan)));
            });
        }
        select = self.with_channels(self.with_permits(select));
        if below(3) == 0 {
            select = select.on(polled(future.as_mut()), drop);
        }
        let done = select.on(micros(200), drop).wait();
        if joined {
            *child = None;
            self.child_ended();
        }
        done
    }

    /// Adds some arms for what has one owner at a time, and perhaps the token.
    fn with_permits<'a>(&'a self, mut select: Select<'a, ()>) -> Select<'a, ()> {
        if below(2) == 0 {
            select = select.on(&self.permits, |permit| {
                let _ = ums::sleep(micros(50));
                drop(permit);
            });
        }
        if below(2) == 0 {
            select = select.on(&self.baton, |()| {
                ums::yield_now();
                self.baton.set();
            });
        }
        if below(3) == 0 {
            select = select.on(&self.stop, drop);
        }
        select
    }

    /// Adds some arms that receive, send or accept.
    fn with_channels<'a>(&'a self, mut select: Select<'a, ()>) -> Select<'a, ()> {
        let value = 1 + below(100);
        if below(2) == 0 {
            select = select.on(&self.receiver, |value| {
                self.received.fetch_add(value.unwrap(), Ordering::Relaxed);
            });
        }
        if below(2) == 0 {
            select = select.on(self.sender.sending(value), move |sent| {
                sent.unwrap();
                self.sent.fetch_add(value, Ordering::Relaxed);
            });
        }
        if below(3) == 0 {
            select = select.on(&self.listener, |accepted| {
                drop(accepted.unwrap());
                self.accepted.fetch_add(1, Ordering::Relaxed);
            });
        }
        select
    }
}

fn micros(most: u64) -> Duration {
    Duration::from_micros(below(most))
}

#[test]
fn exactly_one_arm_happens_and_nothing_of_the_others_is_lost() {
    check("exactly_one_arm_happens_and_nothing_of_the_others_is_lost", STALLS, || {
        let node = node_with(1 + below(2) as usize, 6);
        let listener = node.run(|| TcpListener::bind("127.0.0.1:0").unwrap());
        let address = listener.local_addr().unwrap();
        let (sender, receiver) = bounded(below(3) as usize);
        let world = Arc::new(World {
            permits: Semaphore::new(PERMITS),
            baton: Event::auto(true),
            sender,
            receiver,
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            children: AtomicU64::new(0),
            listener,
            stop: CancelToken::new(),
        });
        let tasks: Vec<_> = (0..6)
            .map(|_| {
                let world = world.clone();
                node.spawn(move || _ = world.work()).unwrap()
            })
            .collect();
        let connects = below(3);
        let clients = node.spawn(move || {
            let connect = |_| TcpStream::connect(address).unwrap();
            (0..connects).map(connect).collect::<Vec<_>>()
        });
        for _ in 0..below(4) {
            ums::sim::thread_sleep(micros(300));
            tasks[below(6) as usize].cancel();
        }
        if below(3) == 0 {
            world.stop.cancel();
        }
        for task in tasks {
            assert!(matches!(task.join(), Ok(()) | Err(JoinError::NeverRan)));
        }
        let clients = clients.unwrap().join().unwrap();
        let world = Arc::into_inner(world).expect("no task is left");
        let left: u64 = world.receiver.try_iter().sum();
        let received = world.received.into_inner() + left;
        assert_eq!(world.sent.into_inner(), received, "each value arrives once");
        assert_eq!(world.permits.available(), PERMITS);
        assert!(world.baton.is_set(), "the baton is lost");
        assert_eq!(world.children.into_inner(), 0, "each child is joined once");
        let accepted = world.accepted.into_inner();
        assert!(accepted <= clients.len() as u64);
        // A connection that no arm has taken is still in the queue.
        let (listener, rest) = (world.listener, clients.len() as u64 - accepted);
        let taken = node.run(move || (0..rest).filter(|_| listener.accept().is_ok()).count());
        assert_eq!(taken as u64, rest);
        drop(clients);
        end(node);
    });
}

#[test]
fn a_select_misses_neither_the_last_value_of_a_watch_nor_one_of_a_broadcast() {
    const NAME: &str = "a_select_misses_neither_the_last_value_of_a_watch_nor_one_of_a_broadcast";
    const LAST: u64 = 5;
    check(NAME, STALLS, || {
        let node = node_with(1 + below(2) as usize, 6);
        let ((newest, mut watcher), (sender, receiver)) = (watch(0), broadcast(LAST as usize));
        watcher.get();
        let tasks: Vec<_> = (0..3)
            .map(|_| {
                let (mut watcher, mut receiver) = (watcher.clone(), receiver.clone());
                let hear = move || {
                    let (mut last, mut next) = (0, 1);
                    while last < LAST || next <= LAST {
                        let select = Select::new()
                            .on(&mut watcher, |changed| changed.map(|()| None).unwrap())
                            .on(&mut receiver, |value| Some(value.unwrap()));
                        match select.wait().unwrap() {
                            Some(value) => {
                                assert_eq!(value, next);
                                next += 1;
                            }
                            None => last = watcher.get(),
                        }
                    }
                };
                node.spawn(hear).unwrap()
            })
            .collect();
        let send = move || {
            for value in 1..=LAST {
                newest.send(value);
                sender.send(value).unwrap();
                if below(3) == 0 {
                    let _ = ums::sleep(micros(100));
                }
            }
            (newest, sender)
        };
        let senders = node.spawn(send).unwrap().join().unwrap();
        tasks.into_iter().for_each(|task| task.join().unwrap());
        drop(senders);
        end(node);
    });
}
