//! Futures that wait for descriptors and for time: [`Watch`] and [`sleep`], on workers of every
//! kind and with every back end of I/O.

use std::future::poll_fn;
use std::io::{self, ErrorKind, Read, Write};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use ums::future::{Sleep, block_on, sleep, sleep_until, spawn_future};
use ums::io::Watch;
use ums::net::{TcpListener, TcpStream, UnixStream};
use ums::sync::Select;
use ums::{Node, WaitError};

use super::common::{back_ends, both_kinds, each_end, eventually, kinds, on, one_kind, start};
use super::waiting;

const HOUR: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_millis(1);

/// Counts its calls.
#[derive(Default)]
struct Calls(AtomicUsize);

impl Wake for Calls {
    fn wake(self: Arc<Calls>) {
        self.0.fetch_add(1, SeqCst);
    }
}

fn counted() -> (Arc<Calls>, Waker) {
    let calls = Arc::new(Calls::default());
    (calls.clone(), Waker::from(calls))
}

async fn read(watch: &Watch<UnixStream>, buf: &mut [u8]) -> io::Result<usize> {
    loop {
        match watch.get_ref().try_read(buf) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                poll_fn(|context| watch.poll_readable(context)).await?;
            }
            result => return result,
        }
    }
}

async fn write_all(watch: &Watch<UnixStream>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match watch.get_ref().try_write(bytes) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                poll_fn(|context| watch.poll_writable(context)).await?;
            }
            written => bytes = &bytes[written?..],
        }
    }
    Ok(())
}

/// Timers that futures have set and that are still there.
fn timers(node: &Node) -> usize {
    node.snapshot().schedulers.iter().map(|scheduler| scheduler.counters.timers as usize).sum()
}

#[test]
fn bytes_pass_through_futures_that_wait_for_input_and_for_room() {
    const BYTES: usize = 1 << 20;
    for kind in kinds() {
        for io in back_ends(kind) {
            one_kind(
                kind,
                |builder| builder.schedulers(2).io(io),
                |node| {
                    let (one, two) = UnixStream::pair().unwrap();
                    let passed = on(node, 0, move || {
                        let writer = spawn_future(async move {
                            let watch = Watch::new(one);
                            write_all(&watch, &vec![7; BYTES]).await
                        });
                        let watch = Watch::new(two);
                        let (mut passed, mut buf) = (0, [0; 4096]);
                        let reader = async {
                            loop {
                                match read(&watch, &mut buf).await? {
                                    0 => return io::Result::Ok(passed),
                                    n => passed += n,
                                }
                            }
                        };
                        let passed = block_on(reader).unwrap().unwrap();
                        writer.join().unwrap().unwrap();
                        passed
                    });
                    assert_eq!(passed, BYTES);
                },
            );
        }
    }
}

#[test]
fn a_watch_waits_for_a_pipe_and_is_an_arm_of_a_select() {
    both_kinds(|node, _, _| {
        let (reader, mut writer) = io::pipe().unwrap();
        let waiter = start(node, 0, move || {
            let mut watch = Watch::new(reader);
            watch.wait_readable().unwrap();
            let mut byte = [0];
            watch.get_ref().read_exact(&mut byte).unwrap();
            let never = Select::new().on(watch.readable(), |_| "input").on(SHORT, |()| "time");
            let never = never.wait();
            watch = Watch::new(watch.into_inner());
            drop(watch);
            (byte[0], never)
        });
        let _ = writer.write_all(b"!");
        assert_eq!(waiter.join().unwrap(), (b'!', Ok("time")));
    });
}

#[test]
fn a_wait_of_a_watch_hears_a_cancellation() {
    both_kinds(|node, _, _| {
        let (reader, _writer) = io::pipe().unwrap();
        let waiter = start(node, 0, move || Watch::new(reader).wait_readable().unwrap_err());
        let reason = ums::WaitReason::NETWORK_READ;
        eventually("it waits", || super::waiting_for(node, reason) == 1);
        waiter.cancel();
        assert_eq!(WaitError::of(&waiter.join().unwrap()), Some(WaitError::Cancelled));
    });
}

#[test]
fn only_the_last_waker_of_a_watch_is_called_and_none_after_it_was_dropped() {
    both_kinds(|node, _, _| {
        let (reader, mut writer) = io::pipe().unwrap();
        let (dropped, open) = io::pipe().unwrap();
        let ((first, one), (last, two), (none, three)) = (counted(), counted(), counted());
        let watch = on(node, 0, move || {
            let watch = Watch::new(reader);
            for waker in [one, two.clone(), two] {
                assert!(watch.poll_readable(&mut Context::from_waker(&waker)).is_pending());
            }
            let gone = Watch::new(dropped);
            assert!(gone.poll_readable(&mut Context::from_waker(&three)).is_pending());
            assert_eq!(Arc::strong_count(&none), 3, "the watch has one of them");
            drop(gone);
            drop(three);
            assert_eq!(Arc::strong_count(&none), 1, "a dropped watch keeps no waker");
            watch
        });
        drop(open);
        writer.write_all(b"!").unwrap();
        eventually("there is input", || last.0.load(SeqCst) == 1);
        assert_eq!(first.0.load(SeqCst), 0);
        on(node, 0, move || {
            let waker = counted().1;
            let ready = watch.poll_readable(&mut Context::from_waker(&waker));
            assert!(matches!(ready, Poll::Ready(Ok(()))));
        });
    });
}

#[test]
fn a_watch_that_would_wait_where_no_worker_is_says_so() {
    let (reader, _writer) = io::pipe().unwrap();
    let watch = Watch::new(reader);
    let (_, waker) = counted();
    let polled = watch.poll_readable(&mut Context::from_waker(&waker));
    assert!(matches!(polled, Poll::Ready(Err(error)) if error.kind() == ErrorKind::Unsupported));
}

#[test]
fn what_has_not_arrived_is_not_waited_for() {
    both_kinds(|node, _, _| {
        on(node, 0, || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (server, _) = listener.accept().unwrap();
            let mut buf = [0; 8];
            assert_eq!(server.try_read(&mut []).unwrap(), 0);
            assert_eq!(server.try_read(&mut buf).unwrap_err().kind(), ErrorKind::WouldBlock);
            let (hello, all) = (io::IoSlice::new(b"he"), io::IoSlice::new(b"llo"));
            assert_eq!(client.try_write_vectored(&[hello, all]).unwrap(), 5);
            Watch::new(&server).wait_readable().unwrap();
            assert_eq!(server.try_read(&mut buf).unwrap(), 5);
            assert_eq!(&buf[..5], b"hello");
            let full = loop {
                if let Err(error) = client.try_write(&[0; 65536]) {
                    break error;
                }
            };
            assert_eq!(full.kind(), ErrorKind::WouldBlock);
        });
    });
}

#[test]
fn thousands_of_futures_sleep_without_a_worker_and_leave_no_timer() {
    each_end(
        |builder| builder,
        |node, _, n| {
            let slept = on(&node, n - 1, || {
                let sleepers: Vec<_> = (0..2000)
                    .map(|n| {
                        let time = Duration::from_micros(n % 50 * 100);
                        spawn_future(async move {
                            sleep(time).await;
                            sleep_until(Instant::now() + time).await;
                        })
                    })
                    .collect();
                sleepers.into_iter().all(|sleeper| sleeper.join().is_ok())
            });
            assert!(slept);
            let workers = node.snapshot().workers.len();
            assert!(workers < 1000, "{workers} workers for 2,000 futures");
            eventually("no timer is left", || timers(&node) == 0);
            super::common::end(node);
        },
    );
}

/// Polls once.
fn poll(sleep: &mut Sleep, waker: &Waker) -> bool {
    Pin::new(sleep).poll(&mut Context::from_waker(waker)).is_ready()
}

#[test]
fn a_sleep_that_is_moved_keeps_its_timer_for_later_and_sets_another_for_sooner() {
    both_kinds(|node, _, _| {
        let (calls, waker) = counted();
        let waked = waker.clone();
        let moved = on(node, 0, move || {
            let mut moved = sleep(HOUR);
            assert!(!poll(&mut moved, &waked) && !moved.is_elapsed());
            moved.reset(Instant::now() + 2 * HOUR);
            assert!(!poll(&mut moved, &waked));
            moved
        });
        eventually("it has one timer", || timers(node) == 1);
        let moved = on(node, 0, move || {
            let mut moved = moved;
            moved.reset(Instant::now() + 50 * SHORT);
            poll(&mut moved, &waker);
            moved
        });
        eventually("the waker is called in time", || calls.0.load(SeqCst) == 1);
        assert!(moved.is_elapsed());
        eventually("no timer is left", || timers(node) == 0);
    });
}

#[test]
fn a_sleep_that_is_dropped_takes_its_timer_away_on_any_thread() {
    both_kinds(|node, _, n| {
        let (calls, waker) = counted();
        for place in [Some(0), Some(n - 1), None] {
            let waker = waker.clone();
            let sleeps: Vec<Sleep> = on(node, 0, move || {
                let begun = (0..100).map(|_| {
                    let mut begun = sleep(HOUR);
                    assert!(!poll(&mut begun, &waker));
                    begun
                });
                begun.collect()
            });
            eventually("the timers are set", || timers(node) >= 100);
            match place {
                Some(place) => on(node, place, move || drop(sleeps)),
                None => drop(sleeps),
            }
            eventually("no timer is left", || timers(node) == 0);
        }
        drop(waker);
        assert_eq!((calls.0.load(SeqCst), Arc::strong_count(&calls)), (0, 1));
    });
}

#[test]
fn a_sleep_wakes_the_waker_with_which_it_was_polled_last() {
    both_kinds(|node, _, _| {
        let ((first, one), (last, two)) = (counted(), counted());
        let sleep = on(node, 0, move || {
            let mut sleep = sleep(50 * SHORT);
            let polled = (poll(&mut sleep, &one), poll(&mut sleep, &two));
            (polled == (false, false)).then_some(sleep)
        });
        // A machine that is very slow polls too late.
        if sleep.is_some() {
            eventually("it wakes", || last.0.load(SeqCst) == 1);
            assert_eq!(first.0.load(SeqCst), 0);
        }
    });
}

#[test]
fn a_node_that_ends_wakes_what_sleeps_and_keeps_nothing() {
    each_end(
        |builder| builder,
        |node, _, _| {
            let (reader, _writer) = io::pipe().unwrap();
            let (calls, waker) = counted();
            let sleeps = on(&node, 0, move || {
                let mut left = sleep(HOUR);
                assert!(!poll(&mut left, &waker));
                // A task that nothing awaits: its future is dropped with its last waker.
                // It has two timers, and drops the second one because of the first.
                drop(spawn_future(async move {
                    let _waker = waker;
                    let (mut one, mut two) = (pin!(sleep(HOUR)), pin!(sleep(2 * HOUR)));
                    poll_fn(|context| {
                        assert!(one.as_mut().poll(context).is_pending());
                        two.as_mut().poll(context)
                    })
                    .await;
                }));
                // Another waits for input, so the end waits for I/O, too.
                drop(spawn_future(async move {
                    let watch = Watch::new(reader);
                    let _ = poll_fn(|context| watch.poll_readable(context)).await;
                }));
                left
            });
            let dropped: Vec<Sleep> = on(&node, 0, || {
                let begun = (0..1000).map(|_| {
                    let mut begun = sleep(HOUR);
                    poll(&mut begun, &counted().1);
                    begun
                });
                begun.collect()
            });
            let dropper = std::thread::spawn(move || drop(dropped));
            let report = node.shutdown(Duration::from_secs(20));
            assert_eq!((report.cancelled, report.left), (0, 0));
            dropper.join().unwrap();
            assert_eq!(calls.0.load(SeqCst), 1);
            drop(sleeps);
            assert_eq!(Arc::strong_count(&calls), 1);
        },
    );
}

#[test]
fn a_cancelled_wait_ends_a_sleep() {
    both_kinds(|node, _, _| {
        let sleeper = start(node, 0, || {
            let pinned = pin!(sleep(HOUR));
            block_on(pinned)
        });
        eventually("it waits", || waiting(node) == 1);
        sleeper.cancel();
        assert_eq!(sleeper.join().unwrap(), Err(WaitError::Cancelled));
        eventually("no timer is left", || timers(node) == 0);
    });
}

#[test]
#[should_panic(expected = "a timer of a future is set on a worker")]
fn a_sleep_on_a_plain_thread_says_what_is_wrong() {
    let _ = block_on(sleep(HOUR));
}
