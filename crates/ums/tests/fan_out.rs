//! Tests of the channels in which every receiver gets the same: watch and broadcast. In all kinds
//! of workers, and between workers and plain threads.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use common::*;
use ums::WaitError;
use ums::sync::channel::{BroadcastError, RecvError, SendError, broadcast, watch};

#[test]
fn every_watcher_sees_the_last_value_and_none_twice() {
    both_kinds(|node, _, n| {
        let (tx, rx) = watch(0u32);
        let watchers: Vec<_> = (0..4)
            .map(|k| {
                let mut rx = rx.clone();
                start(node, k % n, move || {
                    let mut seen = Vec::new();
                    while rx.changed().is_ok() {
                        seen.push(rx.get());
                    }
                    seen
                })
            })
            .collect();
        drop(rx);
        start(node, n - 1, move || {
            for value in 1..=200 {
                assert_eq!(tx.send(value), value - 1);
                if value % 10 == 0 {
                    ums::yield_now();
                }
            }
        })
        .join()
        .unwrap();
        for watcher in watchers {
            let seen = watcher.join().unwrap();
            assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
            assert_eq!(seen.last(), Some(&200), "the last is seen also when the sender has gone");
        }
    });
}

#[test]
fn a_watcher_knows_what_it_has_seen() {
    let (tx, mut rx) = watch(String::from("a"));
    assert!(rx.has_changed(), "it has not seen the first");
    assert_eq!(rx.changed(), Ok(()));
    assert!(!rx.has_changed());
    let soon = Duration::from_millis(1);
    assert_eq!(rx.changed_for(soon), Err(RecvError::Wait(WaitError::TimedOut)));
    tx.modify(|value| value.push('b'));
    let late = tx.subscribe();
    assert!(rx.has_changed() && late.has_changed());
    assert_eq!(rx.with(String::len), 2);
    assert!(!rx.has_changed() && !rx.clone().has_changed());
    // A change that panics is seen.
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        tx.modify(|value| {
            value.push('c');
            panic!("on purpose");
        })
    }));
    assert!(caught.is_err() && rx.has_changed());
    assert_eq!(rx.get(), "abc");
    drop(tx);
    assert_eq!(rx.changed(), Err(RecvError::Disconnected));
    assert_eq!(rx.get(), "abc");
}

#[test]
fn every_receiver_of_a_broadcast_gets_every_value_in_order() {
    const VALUES: usize = 300;
    both_kinds(|node, _, n| {
        let (tx, rx) = broadcast(VALUES);
        let sum = Arc::new(AtomicUsize::new(0));
        let receivers: Vec<_> = (0..4)
            .map(|k| {
                let (mut rx, sum) = (rx.clone(), sum.clone());
                start(node, k % n, move || {
                    for expected in 0..VALUES {
                        assert_eq!(rx.recv(), Ok(expected));
                        sum.fetch_add(1, SeqCst);
                    }
                    assert_eq!(rx.recv(), Err(BroadcastError::Disconnected));
                })
            })
            .collect();
        drop(rx);
        start(node, n - 1, move || (0..VALUES).for_each(|value| tx.send(value).unwrap()))
            .join()
            .unwrap();
        receivers.into_iter().for_each(|receiver| receiver.join().unwrap());
        assert_eq!(sum.load(SeqCst), 4 * VALUES);
    });
}

#[test]
fn a_slow_receiver_is_told_what_it_has_lost_and_holds_nobody_up() {
    let (tx, mut slow) = broadcast(2);
    let counted = Arc::new(());
    let mut quick = tx.subscribe();
    for value in 0..5 {
        tx.send((value, counted.clone())).unwrap();
        assert_eq!(quick.recv().map(|(value, _)| value), Ok(value));
    }
    assert_eq!(Arc::strong_count(&counted), 3, "only the newest two are kept");
    assert_eq!(slow.recv(), Err(BroadcastError::Lagged(3)));
    let rest = [slow.recv(), slow.recv()].map(|got| got.map(|(value, _)| value));
    assert_eq!(rest, [Ok(3), Ok(4)]);
    let soon = slow.recv_for(Duration::from_millis(1));
    assert_eq!(soon, Err(BroadcastError::Wait(WaitError::TimedOut)));
    let mut late = tx.subscribe();
    let other = tx.clone();
    drop(tx);
    other.send((5, counted.clone())).unwrap();
    assert_eq!(late.recv().map(|(value, _)| value), Ok(5));
    other.send((6, counted.clone())).unwrap();
    drop((slow, quick, late));
    assert_eq!(Arc::strong_count(&counted), 1, "no receiver is left for what is kept");
    assert!(matches!(other.send((6, counted.clone())), Err(SendError::Disconnected((6, _)))));
    drop(other);
    assert_eq!(Arc::strong_count(&counted), 1);
}

#[test]
fn a_cancelled_receiver_loses_nothing() {
    both_kinds(|node, _, n| {
        let ((tx, mut rx), (sender, mut watcher)) = (broadcast(4), watch(0));
        watcher.get();
        let task = start(node, n - 1, move || {
            let cancelled = (rx.recv(), watcher.changed());
            (cancelled, rx, watcher)
        });
        eventually("it waits", || {
            node.snapshot().workers.iter().any(|w| w.reason.is_some() && w.request != 0)
        });
        task.cancel();
        let (cancelled, mut rx, mut watcher) = task.join().unwrap();
        let error = WaitError::Cancelled;
        assert_eq!(cancelled, (Err(BroadcastError::Wait(error)), Err(RecvError::Wait(error))));
        tx.send(1).unwrap();
        sender.send(2);
        assert_eq!((rx.recv(), watcher.changed(), watcher.get()), (Ok(1), Ok(()), 2));
    });
}
