//! Stories in which a wait is cancelled at about the time at which it is granted. A value stays
//! with exactly one side, and a permit with exactly one owner, whichever of the two comes first.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ums::sim::below;
use ums::sync::channel::{Receiver, RecvError, SendError, bounded};
use ums::sync::{Condvar, Event, Mutex, Select, Semaphore};
use ums::task::JoinError;
use ums::{Node, WaitError};

use super::mixed::of_some_kind;
use super::{STALLS, check, end, node_with, tally};

/// The index of the task that is always cancelled.
const SURELY: usize = 3;

/// Starts these tasks, cancels some of them at random moments, and last the task at [`SURELY`].
/// Returns the results of the tasks that ran.
fn some_cancelled<T: Send + 'static>(
    node: &Node,
    tasks: impl IntoIterator<Item = Box<dyn FnOnce() -> T + Send>>,
) -> Vec<T> {
    let tasks: Vec<_> = tasks.into_iter().map(|task| node.spawn(task).unwrap()).collect();
    for _ in 0..1 + below(tasks.len() as u64) {
        ums::sim::thread_sleep(Duration::from_micros(below(300)));
        tasks[below(tasks.len() as u64) as usize].cancel();
    }
    tasks[SURELY].cancel();
    let all = tasks.into_iter().map(|task| match task.join() {
        Ok(told) => Some(told),
        Err(JoinError::NeverRan) => None,
        Err(error) => panic!("{error}"),
    });
    all.flatten().collect()
}

/// Each value that was sent, and was not given back to its sender, is received once or is still in
/// the channel.
#[test]
fn no_value_is_lost_when_senders_and_receivers_are_cancelled() {
    check("no_value_is_lost_when_senders_and_receivers_are_cancelled", STALLS, || {
        let node = node_with(2, 4);
        let (sender, receiver) = bounded(below(3) as usize);
        // One side is slow, so that the other side waits for it most of the time.
        let slow_senders = below(2) == 0;
        let (sum, left) = (Arc::new(AtomicU64::new(0)), receiver.clone());
        let work = (0..6_u64).map(|nth| {
            let (sender, receiver, sum) = (sender.clone(), receiver.clone(), sum.clone());
            let add = move |n: u64| sum.fetch_add(n, Ordering::Relaxed);
            let send = move || {
                for value in 1..=15 {
                    match sender.send(value) {
                        Ok(()) => {
                            add(value);
                        }
                        Err(SendError::Wait(back, WaitError::Cancelled)) => {
                            assert!(back == value && ums::is_cancelled());
                            return 0;
                        }
                        Err(error) => panic!("{error}"),
                    }
                    pause(slow_senders);
                }
                0
            };
            let receive = move || received(&receiver, !slow_senders);
            let task: Box<dyn FnOnce() -> u64 + Send> =
                if nth < 3 { Box::new(send) } else { Box::new(receive) };
            task
        });
        let work: Vec<_> = work.collect();
        drop(receiver);
        drop(sender);
        let taker = {
            let left = left.clone();
            node.spawn(move || left.iter().sum::<u64>()).unwrap()
        };
        let got: u64 = some_cancelled(&node, work).into_iter().sum();
        let got = got + taker.join().unwrap() + left.try_iter().sum::<u64>();
        assert_eq!(got, sum.load(Ordering::Relaxed), "each value arrives once");
        end(node);
    });
}

/// Receives until the senders are gone or the caller is cancelled; with or without a select.
fn received(receiver: &Receiver<u64>, slow: bool) -> u64 {
    let (mut got, by_select) = (0, below(2) == 0);
    loop {
        let received = if by_select {
            let select = Select::new().on(receiver, |value| value);
            select.wait().unwrap_or_else(|error| Err(RecvError::Wait(error)))
        } else {
            receiver.recv()
        };
        match received {
            Ok(value) => got += value,
            Err(RecvError::Disconnected) => return got,
            Err(RecvError::Wait(error)) => {
                assert!(error == WaitError::Cancelled && ums::is_cancelled());
                return got;
            }
        }
        pause(slow);
    }
}

/// Lets others run for a while, or not.
fn pause(slow: bool) {
    match below(3) {
        0 => ums::yield_now(),
        1 if slow => drop(ums::sleep(Duration::from_micros(below(100)))),
        _ => {}
    }
}

/// If a request is cancelled when it is about to get a permit, the permit goes to another request.
/// The same holds for a signal and a notification.
#[test]
fn no_permit_or_signal_is_lost_when_waiters_are_cancelled() {
    check("no_permit_or_signal_is_lost_when_waiters_are_cancelled", STALLS, || {
        let node = node_with(2, 8);
        let seats = Arc::new(Semaphore::new(0));
        let signal = Arc::new(Event::auto(false));
        let cards = Arc::new((Mutex::new(0_u64), Condvar::new()));
        let (held, heard) = (tally(), tally());
        let work = (0..8).map(|nth| {
            let (seats, signal, cards) = (seats.clone(), signal.clone(), cards.clone());
            let (held, heard) = (held.clone(), heard.clone());
            let wait = move || match nth % 3 {
                0 => {
                    // There is one permit, so the task that wants two waits until it is cancelled,
                    // and the tasks behind it wait until then.
                    let wanted = 1 + usize::from(nth == SURELY);
                    let Ok(permit) = seats.acquire_many(wanted) else { return };
                    held.fetch_add(permit.permits() as u64, Ordering::Relaxed);
                    pause(true);
                    held.fetch_sub(permit.permits() as u64, Ordering::Relaxed);
                }
                1 => {
                    if signal.wait().is_ok() {
                        heard.fetch_add(1, Ordering::Relaxed);
                        // Passes the signal on to the next waiter.
                        signal.set();
                    }
                }
                _ => {
                    let mut guard = cards.0.lock();
                    if cards.1.wait_while(&mut guard, |cards| *cards == 0).is_ok() {
                        *guard -= 1;
                    }
                }
            };
            let task: Box<dyn FnOnce() + Send> = Box::new(wait);
            task
        });
        let work: Vec<_> = work.collect();
        let (theirs, bell, deck) = (seats.clone(), signal.clone(), cards.clone());
        let giver = node.spawn(move || {
            for round in 0..3 {
                let _ = ums::sleep(Duration::from_micros(below(300)));
                theirs.add_permits(usize::from(round == 0));
                *deck.0.lock() += 1;
                deck.1.notify_one();
            }
            bell.set();
        });
        some_cancelled(&node, work);
        giver.unwrap().join().unwrap();
        assert_eq!((seats.available(), held.load(Ordering::Relaxed)), (1, 0));
        assert!(signal.reset(), "the last one has passed it on");
        end(node);
    });
}

/// The canceller and the enqueuer of a request run at the same time. One of them takes the request
/// out of the queue, where no worker would take it.
#[test]
fn a_request_that_is_cancelled_while_it_is_queued_does_not_stay_in_the_queue() {
    let name = "a_request_that_is_cancelled_while_it_is_queued_does_not_stay_in_the_queue";
    check(name, STALLS, || {
        let builder = Node::builder().schedulers(1).max_workers(1);
        let node = of_some_kind(builder, below(3)).build().unwrap();
        let gate = Arc::new(Event::manual(false));
        let theirs = gate.clone();
        let only = node.spawn(move || theirs.wait()).unwrap();
        let user = Arc::new(node.user());
        let theirs = user.clone();
        let canceller = ums::sim::thread("canceller", move || while !theirs.cancel() {});
        let request = user.enqueue(|| ()).unwrap();
        canceller.unwrap().join().unwrap();
        assert!(request.is_finished(), "it waits for the only worker");
        assert!(matches!(request.join(), Err(JoinError::NeverRan)));
        gate.set();
        only.join().unwrap().unwrap();
        drop(user);
        end(node);
    });
}

/// While a request is being refused, a canceller may find it instead of the one that runs.
#[test]
fn a_cancellation_of_a_user_is_not_lost_with_a_request_that_is_refused() {
    let name = "a_cancellation_of_a_user_is_not_lost_with_a_request_that_is_refused";
    check(name, STALLS, || {
        let builder = Node::builder().schedulers(1).max_workers(1).queue_limit(1);
        let node = of_some_kind(builder, below(3)).build().unwrap();
        let (user, gate) = (Arc::new(node.user()), Arc::new(Event::manual(false)));
        let (running, begun) = (gate.clone(), Arc::new(Event::manual(false)));
        let begins = begun.clone();
        let first = user.enqueue(move || {
            begins.set();
            running.wait()
        });
        begun.wait().unwrap();
        let queued = node.spawn(|| ()).unwrap();
        let theirs = user.clone();
        let canceller = ums::sim::thread("canceller", move || assert!(theirs.cancel()));
        for _ in 0..3 {
            // Refused until the first one is cancelled, because the queue is full.
            let _ = user.enqueue(|| ());
        }
        canceller.unwrap().join().unwrap();
        assert_eq!(first.unwrap().join().unwrap(), Err(WaitError::Cancelled));
        queued.join().unwrap();
        drop(user);
        end(node);
    });
}
