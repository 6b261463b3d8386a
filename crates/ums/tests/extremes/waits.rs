//! Waits and locks: each function of `sync`, `task` and `future` that takes a time or a count, and
//! those of the caller itself.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use ums::WaitError::TimedOut;
use ums::future::{block_on_for, block_on_until, sleep as future_sleep, sleep_until, spawn_future};
use ums::lock::Lock;
use ums::sync::channel::{self, bounded, broadcast, oneshot, watch};
use ums::sync::{
    Barrier, Condvar, Event, Latch, Mutex, RawMutex, RawRwLock, RwLock, Select, Semaphore, Share,
    Wait,
};
use ums::task::{CancelToken, Interval, task_group};
use ums::user::UserLock;
use ums::{WaitError, WaitReason, with_deadline, with_timeout};

use super::On::{Both, Worker};
use super::tries::{
    ENDLESS, Limits, OVER, called, came, moments, never, panics, past, released, spans, woken,
};
use super::{Entry, common};

const SOON: Duration = Duration::from_millis(1);

pub const TABLE: &[Entry] = &[
    ("Event::wait_for", Both, |_| event(spans(), |e, t| came(e.wait_for(t)))),
    ("Event::wait_until", Both, |_| event(moments(), |e, t| came(e.wait_until(t)))),
    ("Latch::wait_for", Both, |_| latch(spans(), |l, t| came(l.wait_for(t)))),
    ("Latch::wait_until", Both, |_| latch(moments(), |l, t| came(l.wait_until(t)))),
    ("Barrier::wait_for", Both, |_| barrier(spans(), |b, t| came(b.wait_for(t)))),
    ("Barrier::wait_until", Both, |_| barrier(moments(), |b, t| came(b.wait_until(t)))),
    ("Semaphore::acquire_for", Both, |_| permits(spans(), |s, t| came(s.acquire_for(t)))),
    ("Semaphore::acquire_until", Both, |_| permits(moments(), |s, t| came(s.acquire_until(t)))),
    ("Semaphore::acquire_many_for", Both, |_| {
        permits(spans(), |s, t| came(s.acquire_many_for(1, t)));
        for n in [Semaphore::MAX + 1, usize::MAX] {
            called();
            assert_eq!(Semaphore::new(9).acquire_many_for(n, SOON).err(), Some(TimedOut));
        }
        let none = Semaphore::new(0);
        drop(none.acquire_many_for(0, Duration::ZERO).expect("nothing is always free"));
    }),
    ("Semaphore::acquire_many_until", Both, |_| {
        permits(moments(), |s, t| came(s.acquire_many_until(1, t)));
        let nine = Semaphore::new(9);
        let ended = nine.acquire_many_until(usize::MAX, Instant::now() + SOON);
        assert_eq!(ended.err(), Some(TimedOut));
    }),
    ("CancelToken::wait_for", Both, |_| {
        woken(spans(), CancelToken::new, |c, t| came(c.wait_for(t)), CancelToken::cancel);
    }),
    ("Condvar::wait_for", Both, |_| {
        condition(spans(), |(m, c), t| came(c.wait_for(&mut m.lock(), t)));
    }),
    ("Condvar::wait_until", Both, |_| {
        condition(moments(), |(m, c), t| came(c.wait_until(&mut m.lock(), t)));
    }),
    ("Condvar::wait_while_for", Both, |_| {
        condition(spans(), |(m, c), t| came(c.wait_while_for(&mut m.lock(), t, |set| !*set)));
    }),
    ("Select::wait_for", Both, |_| {
        event(spans(), |e, t| came(Select::new().on(e, |()| ()).wait_for(t)));
    }),
    ("Select::wait_until", Both, |_| {
        event(moments(), |e, t| came(Select::new().on(e, |()| ()).wait_until(t)));
    }),
    ("Wait::until", Both, |_| {
        let wait = |list: &Lock<Vec<_>>, t| {
            came(Wait::new(WaitReason::OTHER).until(t).park(|me| list.lock().push(me)))
        };
        let wake = |list: &Lock<Vec<ums::sync::Sleeper>>| {
            list.lock().drain(..).for_each(|sleeper| _ = sleeper.wake());
        };
        woken(moments(), || Lock::new(Vec::new()), wait, wake);
    }),
    ("sync::bounded", Both, |_| {
        for bound in [0, 1, usize::MAX] {
            called();
            let (send, receive) = bounded(bound);
            assert_eq!(send.try_send(1).is_ok(), bound > 0, "{bound}");
            assert_eq!(send.try_send(2).is_ok(), bound > 1, "{bound}");
            assert_eq!(receive.try_iter().count(), bound.min(2));
        }
    }),
    ("Sender::send_for", Both, |_| sends(spans(), |(s, _), t| came(s.send_for(1, t)))),
    ("Sender::send_until", Both, |_| sends(moments(), |(s, _), t| came(s.send_until(1, t)))),
    ("Receiver::recv_for", Both, |_| receives(spans(), |(_, r), t| came(r.recv_for(t)))),
    ("Receiver::recv_until", Both, |_| receives(moments(), |(_, r), t| came(r.recv_until(t)))),
    ("OneReceiver::recv_for", Both, |_| one(spans(), |(_, r), t| came(r.recv_for(t)))),
    ("OneReceiver::recv_until", Both, |_| one(moments(), |(_, r), t| came(r.recv_until(t)))),
    ("sync::broadcast", Both, |_| {
        assert!(panics(|| broadcast::<u8>(0)).contains("at least one"));
        for bound in [1, usize::MAX] {
            called();
            let (send, mut receive) = broadcast(bound);
            (0..2).for_each(|n| send.send(n).unwrap());
            assert_eq!(receive.recv().is_err(), bound == 1, "it has missed one, or not");
        }
    }),
    ("BroadcastReceiver::recv_for", Both, |_| {
        heard(spans(), |(_, r), t| came(r.lock().recv_for(t)));
    }),
    ("BroadcastReceiver::recv_until", Both, |_| {
        heard(moments(), |(_, r), t| came(r.lock().recv_until(t)));
    }),
    ("WatchReceiver::changed_for", Both, |_| {
        seen(spans(), |(_, r), t| came(r.lock().changed_for(t)));
    }),
    ("WatchReceiver::changed_until", Both, |_| {
        seen(moments(), |(_, r), t| came(r.lock().changed_until(t)));
    }),
    ("Mutex::lock_for", Both, |_| mutex(spans(), |m, t| came(m.lock_for(t)))),
    ("Mutex::lock_until", Both, |_| mutex(moments(), |m, t| came(m.lock_until(t)))),
    ("Mutex::lock_owned_for", Both, |_| mutex(spans(), |m, t| came(m.lock_owned_for(t)))),
    ("RawMutex::lock_for", Both, |_| {
        let wait = |m: &RawMutex, t| {
            let came = came(m.lock_for(WaitReason::OTHER, t));
            came.then(|| m.unlock());
            came
        };
        released(spans(), RawMutex::new, wait, |m, then| {
            m.lock(WaitReason::OTHER);
            then();
            m.unlock();
        });
    }),
    ("RawRwLock::lock_for", Both, |_| {
        for share in [Share::Shared, Share::Exclusive] {
            let wait = |l: &RawRwLock, t| {
                let came = came(l.lock_for(share, t));
                came.then(|| assert!(l.release()));
                came
            };
            released(spans(), RawRwLock::new, wait, |l, then| {
                assert!(l.try_lock(Share::Exclusive));
                then();
                assert!(l.release());
            });
        }
    }),
    ("RwLock::read_for", Both, |_| shared(spans(), |l, t| came(l.read_for(t)))),
    ("RwLock::read_until", Both, |_| shared(moments(), |l, t| came(l.read_until(t)))),
    ("RwLock::read_owned_for", Both, |_| shared(spans(), |l, t| came(l.read_owned_for(t)))),
    ("RwLock::write_for", Both, |_| shared(spans(), |l, t| came(l.write_for(t)))),
    ("RwLock::write_until", Both, |_| shared(moments(), |l, t| came(l.write_until(t)))),
    ("RwLock::write_owned_for", Both, |_| shared(spans(), |l, t| came(l.write_owned_for(t)))),
    ("UserLock::acquire", Both, |_| {
        let make = || {
            let lock = UserLock::new();
            lock.acquire(1, Some(Duration::ZERO)).expect("it is free");
            lock
        };
        let wake = |lock: &UserLock| {
            if lock.owner() == Some(1) {
                lock.release(1);
            }
        };
        woken(spans(), make, |lock, t| came(lock.acquire(2, Some(t))), wake);
    }),
    ("UserLock::near", Both, |_| {
        for passes in [0, 1, usize::MAX] {
            called();
            let lock = UserLock::near(passes);
            lock.acquire(1, None).unwrap();
            assert_eq!(lock.acquire(2, Some(Duration::ZERO)), Err(TimedOut));
            lock.release(1);
            lock.acquire(2, Some(Duration::ZERO)).unwrap();
            lock.release(2);
        }
    }),
    ("Barrier::new", Both, |_| {
        for callers in [0, 1, 2, usize::MAX] {
            called();
            let passed = came(Barrier::new(callers).wait_for(Duration::ZERO));
            assert_eq!(passed, callers <= 1, "{callers}");
        }
    }),
    ("Latch::new", Both, |_| {
        for count in [0, 1, usize::MAX] {
            called();
            let latch = Latch::new(count);
            assert_eq!(latch.is_open(), count == 0);
            latch.count_down();
            assert_eq!(latch.is_open(), count <= 1);
        }
    }),
    ("Semaphore::new", Both, |_| {
        for permits in [0, 1, Semaphore::MAX] {
            called();
            assert_eq!(Semaphore::new(permits).available(), permits);
        }
        for permits in [Semaphore::MAX + 1, usize::MAX] {
            assert!(panics(|| Semaphore::new(permits)).contains("at most"));
        }
    }),
    ("Semaphore::acquire_many", Both, |_| {
        for n in [0, 1, Semaphore::MAX] {
            called();
            let all = Semaphore::new(Semaphore::MAX);
            let taken = all.acquire_many(n).unwrap();
            assert_eq!((taken.permits(), all.available()), (n, Semaphore::MAX - n));
        }
        let ended = with_timeout(SOON, || Semaphore::new(9).acquire_many(usize::MAX).err());
        assert_eq!(ended, Some(TimedOut));
    }),
    ("Semaphore::try_acquire_many", Both, |_| {
        for n in [0, 1, 2, Semaphore::MAX + 1, usize::MAX] {
            called();
            assert_eq!(Semaphore::new(1).try_acquire_many(n).is_some(), n <= 1, "{n}");
        }
    }),
    ("Semaphore::add_permits", Both, |_| {
        for n in [0, 1, Semaphore::MAX - 1] {
            called();
            let permits = Semaphore::new(1);
            permits.add_permits(n);
            assert_eq!(permits.available(), n + 1);
        }
        for n in [Semaphore::MAX, usize::MAX] {
            let permits = Semaphore::new(1);
            assert!(panics(|| permits.add_permits(n)).contains("at most"));
            assert_eq!(permits.available(), 1, "a refused call changes nothing");
        }
    }),
    ("TaskGroup::max_running", Worker, |_| {
        for tasks in [1, usize::MAX] {
            called();
            let sum = task_group(|group| {
                group.max_running(tasks);
                (0..3).for_each(|n| group.spawn(move || Ok::<_, WaitError>(n)));
                Ok([group.next()?, group.next()?, group.next()?].into_iter().flatten().sum())
            });
            assert_eq!(sum, Ok(3));
        }
        let refused = task_group(|group| {
            group.spawn(|| Ok::<_, WaitError>(()));
            Ok::<_, WaitError>(panics(|| group.max_running(0)))
        });
        assert!(refused.unwrap().contains("at least one"));
    }),
    ("JoinHandle::join_for", Worker, |_| {
        let make = || {
            let event = Arc::new(Event::manual(false));
            let theirs = event.clone();
            (event, Lock::new(ums::spawn(move || theirs.wait())))
        };
        woken(spans(), make, |(_, task), t| came(task.lock().join_for(t)), |(e, _)| e.set());
    }),
    ("FutureTask::join_for", Worker, |_| {
        let make = || {
            let (send, receive) = bounded::<u8>(9);
            (send, Lock::new(spawn_future(async move { receive.recv_async().await })))
        };
        let wake = |(send, _): &(channel::Sender<u8>, _)| _ = send.try_send(1);
        woken(spans(), make, |(_, task), t| came(task.lock().join_for(t)), wake);
    }),
    ("future::block_on_for", Both, |_| {
        receives(spans(), |(_, r), t| came(block_on_for(t, r.recv_async())));
    }),
    ("future::block_on_until", Both, |_| {
        receives(moments(), |(_, r), t| came(block_on_until(t, r.recv_async())));
    }),
    ("current::with_timeout", Both, |_| {
        event(spans(), |e, t| with_timeout(t, || came(e.wait())));
    }),
    ("current::with_deadline", Both, |_| {
        event(moments(), |e, t| with_deadline(t, || came(e.wait())));
    }),
    ("current::sleep", Both, |_| sleeps(ums::sleep)),
    ("current::sleep_as", Both, |_| sleeps(|t| ums::worker::sleep_as(WaitReason::OTHER, t))),
    ("thread::sleep", Both, |_| {
        sleeps(|t| {
            ums::thread::sleep(t);
            ums::checkpoint()
        });
    }),
    ("thread::park_timeout", Both, |_| {
        let make = || {
            // The last try has unparked it more than once.
            ums::thread::park_timeout(Duration::ZERO);
            ums::thread::current()
        };
        let park = |_: &ums::thread::Thread, t| {
            let began = Instant::now();
            ums::thread::park_timeout(t);
            began.elapsed() < t
        };
        woken(spans(), make, park, ums::thread::Thread::unpark);
    }),
    ("current::yield_after", Both, |_| {
        for time in ENDLESS {
            called();
            assert!(!ums::worker::yield_after(time), "{time:?} has not passed");
        }
        let is_worker = ums::worker::is_worker();
        called();
        ums::worker::yield_after(Duration::ZERO);
        assert_eq!(ums::worker::yield_after(Duration::ZERO), is_worker);
    }),
    ("future::sleep", Worker, |_| {
        OVER.into_iter().for_each(|t| block_on_for(common::PATIENCE, future_sleep(t)).unwrap());
        ENDLESS.into_iter().for_each(|t| lasts(future_sleep(t)));
    }),
    ("future::sleep_until", Worker, |_| {
        past().into_iter().for_each(|t| block_on_for(common::PATIENCE, sleep_until(t)).unwrap());
        never().into_iter().for_each(|t| lasts(sleep_until(t)));
    }),
    ("Sleep::reset", Worker, |_| {
        for t in never() {
            let mut sleep = future_sleep(Duration::ZERO);
            sleep.reset(t);
            lasts(&mut sleep);
            // The timer of the endless sleep is set.
            for over in past() {
                called();
                sleep.reset(over);
                assert!(sleep.is_elapsed());
                block_on_for(common::PATIENCE, &mut sleep).unwrap();
                sleep.reset(t);
                assert!(!sleep.is_elapsed());
            }
        }
    }),
    ("Interval::new", Both, |_| {
        assert!(panics(|| Interval::new(Duration::ZERO)).contains("zero"));
        called();
        assert!(Interval::new(Duration::from_nanos(1)).tick().unwrap() >= 1);
        for period in ENDLESS {
            called();
            let mut interval = Interval::new(period);
            assert_eq!(with_timeout(SOON, || interval.tick()), Err(TimedOut), "{period:?}");
        }
    }),
    ("timeouts!::set_read_timeout", Worker, |_| {
        let read = |(ours, _): &Streams, t| {
            ours.set_read_timeout(Some(t)).unwrap();
            came((&mut &*ours).read(&mut [0]))
        };
        refuses_zero(|ours| ours.set_read_timeout(Some(Duration::ZERO)));
        woken(super::tries::spans_above_zero(), streams, read, |(_, theirs)| {
            _ = (&mut &*theirs).write(b"x");
        });
    }),
    ("timeouts!::set_write_timeout", Worker, |_| {
        let write = |(ours, _): &Streams, t| {
            ours.set_write_timeout(Some(t)).unwrap();
            came((&mut &*ours).write(b"x"))
        };
        refuses_zero(|ours| ours.set_write_timeout(Some(Duration::ZERO)));
        woken(super::tries::spans_above_zero(), full_streams, write, drain);
    }),
    ("timeouts!::set_deadline", Worker, |_| {
        let read = |(ours, _): &Streams, t| {
            ours.set_deadline(Some(t));
            came((&mut &*ours).read(&mut [0]))
        };
        woken(moments(), streams, read, |(_, theirs)| _ = (&mut &*theirs).write(b"x"));
        let write = |(ours, _): &Streams, t| {
            ours.set_deadline(Some(t));
            came((&mut &*ours).write(b"x"))
        };
        woken(moments(), full_streams, write, drain);
    }),
];

fn event<L: Copy + std::fmt::Debug>(limits: Limits<L>, wait: impl Fn(&Event, L) -> bool) {
    woken(limits, || Event::manual(false), wait, Event::set);
}

fn latch<L: Copy + std::fmt::Debug>(limits: Limits<L>, wait: impl Fn(&Latch, L) -> bool) {
    woken(limits, || Latch::new(1), wait, Latch::count_down);
}

fn barrier<L: Copy + std::fmt::Debug>(limits: Limits<L>, wait: impl Fn(&Barrier, L) -> bool) {
    woken(limits, || Barrier::new(2), wait, |other| _ = other.wait_for(SOON));
}

fn permits<L: Copy + std::fmt::Debug>(limits: Limits<L>, wait: impl Fn(&Semaphore, L) -> bool) {
    woken(limits, || Semaphore::new(0), wait, |permits| permits.add_permits(1));
}

type Condition = (Mutex<bool>, Condvar);

fn condition<L: Copy + std::fmt::Debug>(limits: Limits<L>, wait: impl Fn(&Condition, L) -> bool) {
    let wake = |(set, changed): &Condition| {
        *set.lock() = true;
        changed.notify_all();
    };
    woken(limits, || (Mutex::new(false), Condvar::new()), wait, wake);
}

type Channel = (channel::Sender<u8>, channel::Receiver<u8>);

fn sends<L: Copy + std::fmt::Debug>(limits: Limits<L>, wait: impl Fn(&Channel, L) -> bool) {
    woken(limits, || bounded(0), wait, |(_, receive)| _ = receive.try_recv());
}

fn receives<L: Copy + std::fmt::Debug>(limits: Limits<L>, wait: impl Fn(&Channel, L) -> bool) {
    woken(limits, || bounded(9), wait, |(send, _)| _ = send.try_send(1));
}

type One = (Lock<Option<channel::OneSender<u8>>>, channel::OneReceiver<u8>);

fn one<L: Copy + std::fmt::Debug>(limits: Limits<L>, wait: impl Fn(&One, L) -> bool) {
    let make = || {
        let (send, receive) = oneshot();
        (Lock::new(Some(send)), receive)
    };
    // The lock is not held while the value is sent.
    woken(limits, make, wait, |(send, _)| {
        let send = send.lock().take();
        send.into_iter().for_each(|send| send.send(1).unwrap());
    });
}

type Station = (channel::BroadcastSender<u8>, Lock<channel::BroadcastReceiver<u8>>);

fn heard<L: Copy + std::fmt::Debug>(limits: Limits<L>, wait: impl Fn(&Station, L) -> bool) {
    let make = || {
        let (send, receive) = broadcast(usize::MAX); // It is woken more than once.
        (send, Lock::new(receive))
    };
    woken(limits, make, wait, |(send, _)| _ = send.send(1));
}

type Watched = (channel::WatchSender<u8>, Lock<channel::WatchReceiver<u8>>);

fn seen<L: Copy + std::fmt::Debug>(limits: Limits<L>, wait: impl Fn(&Watched, L) -> bool) {
    let make = || {
        let (send, mut receive) = watch(1);
        receive.get(); // The first value counts as a change.
        (send, Lock::new(receive))
    };
    woken(limits, make, wait, |(send, _)| _ = send.send(2));
}

fn mutex<L: Copy + std::fmt::Debug>(limits: Limits<L>, wait: impl Fn(&Arc<Mutex<u8>>, L) -> bool) {
    released(
        limits,
        || Arc::new(Mutex::new(1)),
        wait,
        |mutex, then| {
            let _held = mutex.lock();
            then();
        },
    );
}

fn shared<L: Copy + std::fmt::Debug>(
    limits: Limits<L>,
    wait: impl Fn(&Arc<RwLock<u8>>, L) -> bool,
) {
    released(
        limits,
        || Arc::new(RwLock::new(1)),
        wait,
        |lock, then| {
            let _held = lock.write();
            then();
        },
    );
}

fn sleeps(sleep: impl Fn(Duration) -> Result<(), WaitError>) {
    for time in OVER {
        called();
        assert_eq!(sleep(time), Ok(()));
    }
    for time in ENDLESS {
        called();
        assert_eq!(with_timeout(SOON, || sleep(time)), Err(TimedOut), "{time:?}");
    }
}

/// Tries a future that is not ready while a test runs.
fn lasts(future: impl Future<Output = ()>) {
    called();
    let mut polls = 0;
    let mut future = std::pin::pin!(future);
    let counted = std::future::poll_fn(|context| {
        polls += 1;
        let poll = future.as_mut().poll(context);
        assert!(poll.is_pending(), "it is ready at poll {polls}");
        Poll::<()>::Pending
    });
    assert_eq!(block_on_for(SOON, counted), Err(TimedOut));
}

type Streams = (ums::net::UnixStream, std::os::unix::net::UnixStream);

fn streams() -> Streams {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    (OwnedFd::from(ours).into(), theirs)
}

/// Returns streams into the first of which no more can be written.
fn full_streams() -> Streams {
    let (ours, theirs) = streams();
    while ours.try_write(&[0; 4096]).is_ok() {}
    while ours.try_write(&[0]).is_ok() {}
    (ours, theirs)
}

fn drain((_, theirs): &Streams) {
    while (&mut &*theirs).read(&mut [0; 4096]).is_ok_and(|n| n > 0) {}
}

fn refuses_zero(set: impl Fn(&ums::net::UnixStream) -> std::io::Result<()>) {
    called();
    let error = set(&streams().0).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    assert!(error.to_string().contains("None means no timeout"), "{error}");
}
