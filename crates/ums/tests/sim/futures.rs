//! Stories of futures: each value arrives once, or stays with its sender, whenever the waker is
//! called, and whether or not the waiting request is cancelled, or the future dropped, at the same
//! time.

use std::future::poll_fn;
use std::io::ErrorKind;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use ums::WaitError;
use ums::future::{FutureTask, Sleep, block_on, block_on_for, sleep, spawn_future};
use ums::io::Watch;
use ums::lock::Lock;
use ums::net::UnixStream;
use ums::sim::below;
use ums::sync::channel::{Receiver, Sender, bounded};
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

/// Sends in a future. Returns the sum of what was sent.
fn sender(sender: Sender<u64>) -> FutureTask<u64> {
    spawn_future(async move {
        let mut sum = 0;
        for value in 1..=1 + below(10) {
            // A task in a future's poll, which keeps no worker.
            let value =
                if below(4) == 0 { ums::spawn(move || value).await.unwrap() } else { value };
            let sent = match below(2) {
                0 => sender.try_send(value).is_ok(),
                _ => sender.send_async(value).await.is_ok(),
            };
            sum += if sent { value } else { 0 };
        }
        sum
    })
}

/// Receives in a future, which may be dropped at any await. Adds up what it got.
fn receiver(receiver: Receiver<u64>, got: Arc<AtomicU64>) -> FutureTask<()> {
    spawn_future(async move {
        while let Ok(value) = receiver.recv_async().await {
            got.fetch_add(value, Ordering::Relaxed);
        }
    })
}

/// Two workers wait, so that one may be left for the polls. A wake-up that is lost, or room in the
/// channel of which no future is told, is a standstill.
#[test]
fn futures_and_workers_pass_each_value_once() {
    check("futures_and_workers_pass_each_value_once", STALLS, || {
        let node = node_with(2, 3);
        let got = tally();
        let (tx, rx) = bounded(1 + below(3) as usize);
        let (plain, total) = (rx.clone(), got.clone());
        let (sent, receivers) = node.run(move || {
            let receivers: Vec<_> = (0..3).map(|_| receiver(rx.clone(), total.clone())).collect();
            let senders: Vec<_> = (0..3).map(|_| sender(tx.clone())).collect();
            let reader = ums::spawn(move || {
                plain.iter().for_each(|value| _ = total.fetch_add(value, Ordering::Relaxed));
            });
            let mut receivers = receivers.into_iter();
            if below(2) == 0 {
                receivers.next().into_iter().for_each(FutureTask::cancel);
            }
            drop((tx, rx));
            let mut sent = 0;
            for sender in senders {
                sent += match below(2) {
                    0 => sender.join().unwrap(),
                    _ => block_on(sender).unwrap().unwrap(),
                };
            }
            reader.join().unwrap();
            (sent, receivers)
        });
        receivers.for_each(|receiver| receiver.join().unwrap());
        assert_eq!(got.load(Ordering::Relaxed), sent, "each value arrives once");
        end(node);
    });
}

/// Reads what has arrived, or waits for it.
async fn read(watch: &Watch<UnixStream>, buf: &mut [u8]) -> usize {
    loop {
        match watch.get_ref().try_read(buf) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                poll_fn(|context| watch.poll_readable(context)).await.unwrap();
            }
            result => return result.unwrap(),
        }
    }
}

/// Writes the numbers from 0 to `last`, one byte each, in pieces, and sleeps in between.
async fn write_numbers(watch: Watch<UnixStream>, last: u8) {
    let numbers: Vec<u8> = (0..=last).collect();
    let mut left = &numbers[..];
    while !left.is_empty() {
        let piece = &left[..left.len().min(1 + below(4) as usize)];
        match watch.get_ref().try_write(piece) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                poll_fn(|context| watch.poll_writable(context)).await.unwrap();
            }
            written => left = &left[written.unwrap()..],
        }
        match below(4) {
            0 => sleep(Duration::from_micros(below(300))).await,
            1 => drop(poll_once(&mut sleep(Duration::from_micros(below(300)))).await),
            _ => {}
        }
    }
}

/// Polls a sleep once, so that it has a timer, and returns whether it was ready.
async fn poll_once(sleep: &mut Sleep) -> bool {
    poll_fn(|context| Poll::Ready(Pin::new(&mut *sleep).poll(context).is_ready())).await
}

/// The futures of reads are dropped at random, while they wait, when their time is over or another
/// future is ready. The bytes stay in the socket, and arrive once and in order. A wake-up that is
/// lost is a standstill.
#[test]
fn reads_that_are_dropped_lose_no_byte_and_sleeps_leave_no_timer() {
    const LAST: u8 = 40;
    check("reads_that_are_dropped_lose_no_byte_and_sleeps_leave_no_timer", STALLS, || {
        let node = node_with(2, 4);
        let got = node.run(|| {
            let (here, there) = UnixStream::pair().unwrap();
            let writer = spawn_future(write_numbers(Watch::new(there), LAST));
            let reader = ums::spawn(move || {
                let (mut watch, mut got) = (Watch::new(here), Vec::<u8>::new());
                let mut pause = sleep(Duration::from_micros(below(300)));
                loop {
                    let mut buf = [0; 3];
                    let read = match below(3) {
                        0 => {
                            block_on_for(Duration::from_micros(below(200)), read(&watch, &mut buf))
                        }
                        1 => match block_on(first(&mut pause, read(&watch, &mut buf))) {
                            Ok(first) => first.ok_or(WaitError::TimedOut),
                            Err(error) => Err(error),
                        },
                        _ => block_on(read(&watch, &mut buf)),
                    };
                    match read {
                        Ok(0) => return got,
                        Ok(n) => got.extend_from_slice(&buf[..n]),
                        Err(WaitError::TimedOut) => {
                            let soon = Duration::from_micros(below(300));
                            pause.reset(Instant::now() + soon);
                        }
                        Err(error) => panic!("{error}"),
                    }
                    if below(5) == 0 {
                        watch = Watch::new(watch.into_inner());
                    }
                }
            });
            writer.join().unwrap();
            reader.join().unwrap()
        });
        assert_eq!(got, (0..=LAST).collect::<Vec<_>>(), "each byte arrives once");
        end(node);
    });
}

/// Returns what was read, or `None` if the sleep was over first.
async fn first(pause: &mut Sleep, read: impl Future<Output = usize>) -> Option<usize> {
    let mut read = pin!(read);
    poll_fn(|context| match read.as_mut().poll(context) {
        Poll::Ready(n) => Poll::Ready(Some(n)),
        Poll::Pending => Pin::new(&mut *pause).poll(context).map(|()| None),
    })
    .await
}
