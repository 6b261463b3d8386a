//! Tests of channels between threads: order, hand-over, ends, and races of deadlines with values.

use super::*;
use crate::sync::testing::{Dice, LONG, SHORT, until};
use crate::wait::error::WaitError;
use std::collections::HashSet;
use std::error::Error;
use std::io;
use std::sync::Mutex;

fn waiting_receivers<T>(rx: &Receiver<T>) -> usize {
    rx.channel.state.lock().receivers.len()
}

fn waiting_senders<T>(tx: &Sender<T>) -> usize {
    tx.channel.state.lock().senders.len()
}

#[test]
fn values_arrive_in_order_through_every_kind() {
    for (tx, rx) in [rendezvous(), bounded(1), bounded(7), unbounded()] {
        std::thread::scope(|s| {
            s.spawn(move || (0..2_000).for_each(|n| tx.send(n).unwrap()));
            assert!(rx.iter().eq(0..2_000));
            assert_eq!(rx.recv(), Err(RecvError::Disconnected));
        });
    }
}

#[test]
fn a_waiting_receiver_gets_the_value_itself_and_in_order() {
    let (tx, rx) = unbounded();
    let got = Mutex::new(Vec::new());
    std::thread::scope(|s| {
        for i in 0..3 {
            let (rx, got) = (&rx, &got);
            s.spawn(move || {
                let value = rx.recv().unwrap();
                got.lock().unwrap().push((i, value));
            });
            until(|| waiting_receivers(rx) == i + 1);
        }
        for value in 0..3 {
            tx.send(value).unwrap();
            assert!(tx.is_empty(), "it did not go through the buffer");
            assert_eq!(rx.try_recv(), Err(TryRecvError::Empty), "no other receiver can take it");
        }
    });
    let mut got = got.into_inner().unwrap();
    got.sort_unstable();
    assert_eq!(got, [(0, 0), (1, 1), (2, 2)]);
}

#[test]
fn room_goes_to_the_first_waiting_sender() {
    let (tx, rx) = bounded(1);
    std::thread::scope(|s| {
        tx.send(0).unwrap();
        for i in 1..=3 {
            let tx = &tx;
            s.spawn(move || tx.send(i).unwrap());
            until(|| waiting_senders(tx) == i);
        }
        for i in 0..=3 {
            assert_eq!(rx.try_recv(), Ok(i));
            let full = tx.try_send(9);
            assert_eq!(full.is_err(), i < 3, "the room is taken already");
        }
    });
    assert_eq!(rx.recv(), Ok(9));
}

#[test]
fn a_rendezvous_needs_both() {
    let (tx, rx) = rendezvous();
    assert_eq!(tx.try_send(1), Err(TrySendError::Full(1)));
    let late = SendError::Wait(1, WaitError::TimedOut);
    assert_eq!(tx.send_for(1, SHORT), Err(late));
    assert_eq!(rx.recv_for(SHORT), Err(RecvError::Wait(WaitError::TimedOut)));
    std::thread::scope(|s| {
        s.spawn(|| tx.send_for(2, LONG).unwrap());
        until(|| waiting_senders(&tx) == 1);
        assert_eq!(rx.try_recv(), Ok(2));
        s.spawn(|| assert_eq!(rx.recv_for(LONG), Ok(3)));
        until(|| waiting_receivers(&rx) == 1);
        assert_eq!(tx.try_send(3), Ok(()));
    });
}

#[test]
fn the_last_sender_ends_it_after_what_is_left() {
    let (tx, rx) = unbounded();
    let second = tx.clone();
    tx.send(1).unwrap();
    drop(tx);
    assert_eq!(rx.recv(), Ok(1));
    assert_eq!(rx.try_recv(), Err(TryRecvError::Empty), "the clone is still there");
    std::thread::scope(|s| {
        let waiters: Vec<_> = (0..2).map(|_| s.spawn(|| rx.recv())).collect();
        until(|| waiting_receivers(&rx) == 2);
        drop(second);
        assert!(waiters.into_iter().all(|w| w.join().unwrap() == Err(RecvError::Disconnected)));
    });
    assert_eq!(rx.try_recv(), Err(TryRecvError::Disconnected));
    assert_eq!(rx.recv_until(Instant::now()), Err(RecvError::Disconnected));
    assert_eq!(rx.try_iter().count(), 0);
}

#[test]
fn the_last_receiver_gives_senders_their_values_back() {
    let (tx, rx) = bounded(1);
    let left = Arc::new(());
    tx.send(left.clone()).unwrap();
    std::thread::scope(|s| {
        let waiter = s.spawn(|| tx.send(Arc::new(())));
        until(|| waiting_senders(&tx) == 1);
        drop(rx.clone());
        drop(rx);
        assert_eq!(waiter.join().unwrap().map_err(|e| Arc::strong_count(&e.into_inner())), Err(1));
    });
    assert_eq!(Arc::strong_count(&left), 1, "what was left in the channel is dropped");
    assert!(matches!(tx.try_send(left), Err(TrySendError::Disconnected(_))));
    let gone = tx.send_until(Arc::default(), Instant::now());
    assert!(matches!(gone, Err(SendError::Disconnected(_))));
}

#[test]
fn a_destructor_may_use_the_channel_it_is_dropped_from() {
    struct Talker(Sender<Talker>);
    impl Drop for Talker {
        fn drop(&mut self) {
            assert!(self.0.is_empty());
        }
    }
    let (tx, rx) = unbounded();
    tx.send(Talker(tx.clone())).unwrap();
    drop(rx);
    assert!(tx.send(Talker(tx.clone())).is_err());
}

/// Every value is boxed, so a value that is lost, doubled or torn also shows as a leak or a crash.
fn race(bound: usize) {
    const SENDERS: u64 = 2;
    const EACH: u64 = 4_000;
    let (tx, rx) = bounded(bound);
    let (sent, got) = (Mutex::new(HashSet::new()), Mutex::new(HashSet::new()));
    std::thread::scope(|s| {
        for sender in 0..SENDERS {
            let (tx, sent) = (tx.clone(), &sent);
            s.spawn(move || {
                let (mut dice, mut mine) = (Dice(sender + 1), HashSet::new());
                for i in 0..EACH {
                    let value = sender * EACH + i;
                    let time = Duration::from_nanos(dice.roll(60_000));
                    if tx.send_for(Box::new(value), time).is_ok() {
                        mine.insert(value);
                    }
                }
                sent.lock().unwrap().extend(mine);
            });
        }
        drop(tx);
        for seed in 5..7 {
            let (rx, got) = (rx.clone(), &got);
            s.spawn(move || {
                let (mut dice, mut mine) = (Dice(seed), HashSet::new());
                loop {
                    match rx.recv_for(Duration::from_nanos(dice.roll(60_000))) {
                        Ok(value) => assert!(mine.insert(*value), "a value arrived twice"),
                        Err(RecvError::Wait(_)) => {}
                        Err(RecvError::Disconnected) => break,
                    }
                }
                got.lock().unwrap().extend(mine);
            });
        }
    });
    assert_eq!(sent.into_inner().unwrap(), got.into_inner().unwrap());
    assert_eq!(waiting_receivers(&rx), 0);
}

#[test]
fn deadlines_race_with_values_and_none_is_lost() {
    race(0);
    race(1);
    race(16);
}

#[test]
fn a_oneshot_carries_one_value() {
    let (tx, rx) = oneshot();
    assert_eq!(rx.try_recv(), Err(TryRecvError::Empty));
    tx.send(5).unwrap();
    assert_eq!(rx.recv(), Ok(5));
    let (tx, rx) = oneshot::<u8>();
    drop(tx);
    assert_eq!(rx.recv_for(LONG), Err(RecvError::Disconnected));
    let (tx, rx) = oneshot();
    assert!(rx.recv_until(Instant::now()).is_err());
    drop(rx);
    assert_eq!(tx.send(5), Err(SendError::Disconnected(5)));
}

#[test]
fn a_failed_wait_is_found_in_the_error_of_a_channel_and_in_what_it_becomes() {
    let timed_out = Some(WaitError::TimedOut);
    let (tx, rx) = bounded(1);
    let received = rx.recv_for(SHORT).unwrap_err();
    assert_eq!(WaitError::of(&received), timed_out);
    tx.send(1).unwrap();
    let sent = tx.send_for(2, SHORT).unwrap_err();
    assert_eq!(WaitError::of(&sent), timed_out);
    let boxed: Box<dyn Error> = Box::new(io::Error::from(sent));
    assert_eq!(WaitError::of(&*boxed), timed_out);
    let inside = io::Error::other(received);
    assert_eq!(WaitError::of(&inside), timed_out);
    assert_eq!(io::Error::from(received).kind(), io::ErrorKind::TimedOut);
    drop(tx);
    assert_eq!(rx.recv(), Ok(1));
    let gone = rx.recv().unwrap_err();
    assert_eq!(WaitError::of(&gone), None);
    assert_eq!(io::Error::from(gone).kind(), io::ErrorKind::UnexpectedEof);
    let (tx, _) = bounded(1);
    let unwanted = io::Error::from(tx.send(Box::new(1)).unwrap_err());
    assert_eq!(unwanted.kind(), io::ErrorKind::BrokenPipe);
}

#[test]
fn a_closed_channel_gives_back_what_waits_and_keeps_what_it_has() {
    let (tx, rx) = bounded(1);
    tx.send(1).unwrap();
    std::thread::scope(|s| {
        let late = s.spawn(|| tx.send(2));
        until(|| waiting_senders(&tx) == 1);
        rx.close();
        assert_eq!(late.join().unwrap(), Err(SendError::Disconnected(2)));
    });
    assert_eq!(tx.try_send(3), Err(TrySendError::Disconnected(3)));
    assert_eq!(rx.try_recv(), Ok(1));
    assert_eq!(rx.try_recv(), Err(TryRecvError::Disconnected));
    let (_tx, rx) = rendezvous::<()>();
    std::thread::scope(|s| {
        let waits = s.spawn(|| rx.recv());
        until(|| waiting_receivers(&rx) == 1);
        rx.close();
        assert_eq!(waits.join().unwrap(), Err(RecvError::Disconnected));
    });
}
