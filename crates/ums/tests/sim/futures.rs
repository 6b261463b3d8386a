//! Stories of futures: each value arrives once, or stays with its sender, whenever the waker is
//! called, and whether or not the waiting request is cancelled at the same time.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Poll, Waker};
use std::time::Duration;

use ums::WaitError;
use ums::future::{block_on, block_on_for};
use ums::lock::Lock;
use ums::sim::below;
use ums::task::JoinError;

use super::{STALLS, check, end, node_with, tally};

/// Values that have come, and the waker of the future that waits for the next.
#[derive(Default)]
struct Mail {
    values: Vec<u64>,
    waker: Option<Waker>,
}

fn put(mail: &Lock<Mail>, value: u64) {
    let waker = {
        let mut mail = mail.lock();
        mail.values.push(value);
        mail.waker.take()
    };
    waker.into_iter().for_each(Waker::wake);
}

fn next(mail: &Lock<Mail>) -> impl Future<Output = u64> {
    poll_fn(|context| {
        let mut mail = mail.lock();
        mail.waker = Some(context.waker().clone());
        mail.values.pop().map_or(Poll::Pending, Poll::Ready)
    })
}

#[test]
fn each_value_is_awaited_once_or_stays() {
    check("each_value_is_awaited_once_or_stays", STALLS, || {
        let node = node_with(2, 6);
        let boxes: Vec<_> = (0..3).map(|_| Arc::new(Lock::new(Mail::default()))).collect();
        let got = tally();
        let receivers: Vec<_> = boxes
            .iter()
            .map(|mail| {
                let (mail, got, short) = (mail.clone(), got.clone(), below(2) == 0);
                let receive = move || {
                    for _ in 0..10 {
                        let waited = match short {
                            true => block_on_for(Duration::from_micros(below(200)), next(&mail)),
                            false => block_on(next(&mail)),
                        };
                        match waited {
                            Ok(value) => drop(got.fetch_add(value, Ordering::Relaxed)),
                            Err(WaitError::TimedOut) => assert!(short),
                            Err(WaitError::Cancelled) => return assert!(ums::is_cancelled()),
                            Err(error) => panic!("{error}"),
                        }
                    }
                };
                node.spawn(receive).unwrap()
            })
            .collect();
        let senders: Vec<_> = (0..3)
            .map(|nth: u64| {
                let mail = boxes[nth as usize].clone();
                let send = move || {
                    for value in 1..=10 {
                        if below(3) == 0 {
                            let _ = ums::sleep(Duration::from_micros(below(100)));
                        }
                        put(&mail, value);
                    }
                };
                node.spawn(send).unwrap()
            })
            .collect();
        ums::sim::thread_sleep(Duration::from_micros(below(300)));
        receivers[0].cancel();
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        for receiver in receivers {
            assert!(matches!(receiver.join(), Ok(()) | Err(JoinError::NeverRan)));
        }
        let left: u64 = boxes.iter().map(|mail| mail.lock().values.iter().sum::<u64>()).sum();
        assert_eq!(got.load(Ordering::Relaxed) + left, 3 * 55, "each value arrives once");
        end(node);
    });
}
