//! A panic in each place where the library calls the application's code: closures, destructors,
//! `Clone`, `Debug`, conditions, completion routines, futures and wakers. Afterwards everything
//! still works: the object that was being used, the worker, the scheduler and the node.
//!
//! Each *site* uses one part of the interface with code that counts its calls, and the panic comes
//! at the first call, then at the second, and so on, until a run needs no more. So the test need
//! not list the calls. It prints how many places it has found.
//!
//! The panic of a destructor while another panic unwinds ends the process, in Rust as such. So a
//! site has one destructor that may panic at a time.

#![allow(unsafe_code)] // For the harness.

mod common;

use std::future::Future;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use common::*;
use ums::sync::channel::{bounded, broadcast, watch};
use ums::sync::{Condvar, Event, Mutex, OnceCell, RwLock, Select, Semaphore};
use ums::task::RequestLocal;
use ums::{WaitError, WaitReason};

/// Counts the calls of the application's code, and panics at one of them.
#[derive(Debug)]
struct Bomb {
    left: AtomicI64,
}

impl Bomb {
    fn tick(&self) {
        if self.left.fetch_sub(1, SeqCst) == 0 {
            std::panic::panic_any(Injected);
        }
    }

    fn has_gone_off(&self) -> bool {
        self.left.load(SeqCst) < 0
    }
}

/// The payload of the panic.
struct Injected;

/// A value whose destructor, clone and text are the application's code.
struct Fragile(Arc<Bomb>);

impl Drop for Fragile {
    fn drop(&mut self) {
        // A second panic would end the process.
        if !std::thread::panicking() {
            self.0.tick();
        }
    }
}

impl Clone for Fragile {
    fn clone(&self) -> Fragile {
        self.0.tick();
        Fragile(self.0.clone())
    }
}

impl std::fmt::Debug for Fragile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.tick();
        f.write_str("Fragile")
    }
}

/// A waker that is the application's code.
struct FragileWaker(Arc<Bomb>);

impl Wake for FragileWaker {
    fn wake(self: Arc<Self>) {
        self.0.tick();
    }
}

impl Drop for FragileWaker {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.0.tick();
        }
    }
}

/// A future that is ready at its second poll.
struct FragileFuture {
    bomb: Arc<Bomb>,
    polled: bool,
}

impl Future for FragileFuture {
    type Output = u32;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<u32> {
        self.bomb.tick();
        if std::mem::replace(&mut self.polled, true) {
            return Poll::Ready(7);
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Drop for FragileFuture {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.bomb.tick();
        }
    }
}

ums::task::request_local! {
    static LOCAL: Fragile;
}

/// Runs a call that may panic.
fn caught<R>(call: impl FnOnce() -> R) -> Option<R> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => Some(result),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().copied();
            let of_scope = text == Some("a task of the scope panicked and was not joined");
            assert!(panic.is::<Injected>() || of_scope, "another panic: {text:?}");
            None
        }
    }
}

/// A use of one part of the interface.
type Site = fn(&Arc<Bomb>);

/// The sites. Each runs on a worker.
const SITES: &[(&str, Site)] = &[
    ("a task's closure and what it owns", |bomb| {
        let fragile = Fragile(bomb.clone());
        let task = ums::spawn(move || {
            fragile.0.tick();
            drop(fragile);
        });
        let _ = task.join();
    }),
    ("a task's result that is dropped with its handle", |bomb| {
        let bomb = bomb.clone();
        let task = ums::spawn(move || Fragile(bomb));
        eventually("the task has ended", || task.is_finished());
        caught(|| drop(task));
    }),
    ("a task that never runs", |bomb| {
        let fragile = Fragile(bomb.clone());
        let task = ums::spawn(move || drop(fragile));
        caught(|| task.cancel());
        let _ = task.join();
    }),
    ("a scope and its tasks", |bomb| {
        let mut done = [0; 3];
        caught(|| {
            ums::scope(|scope| {
                for place in &mut done {
                    scope.spawn(|| {
                        bomb.tick();
                        *place = 1;
                    });
                }
                bomb.tick();
            });
        });
        // If the scope's own closure has panicked, tasks that had not begun never run.
        assert!(done.iter().sum::<i32>() <= 3);
    }),
    ("a group and its tasks", |bomb| {
        caught(|| {
            ums::task_group(|group| {
                for _ in 0..3 {
                    group.spawn(|| {
                        bomb.tick();
                        Ok::<_, WaitError>(Fragile(bomb.clone()))
                    });
                }
                bomb.tick();
                while let Some(fragile) = group.next()? {
                    drop(fragile);
                }
                Ok(())
            })
        });
    }),
    ("the value of a cell", |bomb| {
        let cell = OnceCell::new();
        caught(|| cell.get_or_init(|| bomb.tick()));
        cell.get_or_init(|| ());
        assert!(cell.get().is_some());
    }),
    ("a mutex: its holder, its text, its value's destructor", |bomb| {
        let mutex = Arc::new(Mutex::new(Some(Fragile(bomb.clone()))));
        caught(|| {
            let _held = mutex.lock();
            bomb.tick();
        });
        caught(|| format!("{mutex:?}"));
        caught(|| drop(mutex.lock().take()));
        let owned = mutex.lock_owned();
        caught(move || {
            let _owned = owned;
            bomb.tick();
        });
        assert!(mutex.try_lock().is_some(), "it is unlocked");
    }),
    ("a reader-writer lock: its holders and its text", |bomb| {
        let lock = Arc::new(RwLock::new(Some(Fragile(bomb.clone()))));
        caught(|| {
            let _held = lock.read();
            bomb.tick();
        });
        caught(|| format!("{lock:?}"));
        caught(|| drop(lock.write().take()));
        let owned = lock.write_owned();
        caught(move || {
            let _owned = owned;
            bomb.tick();
        });
        assert!(lock.try_write().is_some(), "it is unlocked");
    }),
    ("the condition of a wait", |bomb| {
        let (mutex, condvar) = (Mutex::new(0), Condvar::new());
        let condition = |n: &mut i32| {
            bomb.tick();
            *n += 1;
            *n < 3
        };
        let short = Duration::from_millis(1);
        caught(|| condvar.wait_while_for(&mut mutex.lock(), short, condition));
        assert!(mutex.try_lock().is_some(), "it is unlocked");
    }),
    ("a holder of permits", |bomb| {
        let seats = Arc::new(Semaphore::new(2));
        caught(|| {
            let _permit = seats.acquire();
            bomb.tick();
        });
        let owned = seats.acquire_owned().unwrap();
        caught(move || {
            let _owned = owned;
            bomb.tick();
        });
        assert_eq!(seats.available(), 2);
    }),
    ("values in a channel", |bomb| {
        let (send, receive) = bounded(2);
        send.send(Fragile(bomb.clone())).unwrap();
        send.send(Fragile(bomb.clone())).unwrap();
        caught(|| drop(receive.recv()));
        caught(|| drop(receive));
        let refused = send.send(Fragile(bomb.clone()));
        assert!(refused.is_err());
        caught(|| drop(refused));
    }),
    ("a waiting sender whose value is dropped", |bomb| {
        let (send, receive) = bounded(1);
        send.send(Fragile(bomb.clone())).unwrap();
        let value = Fragile(bomb.clone());
        let waits = ums::spawn(move || drop(send.send(value)));
        ums::yield_now();
        caught(|| drop(receive));
        let _ = waits.join();
    }),
    ("values of a broadcast", |bomb| {
        let (send, mut receive) = broadcast(1);
        let mut other = receive.clone();
        caught(|| send.send(Fragile(bomb.clone())));
        caught(|| drop(receive.recv()));
        caught(|| drop(other.recv()));
        caught(|| send.send(Fragile(bomb.clone())));
        caught(|| drop(send.send(Fragile(bomb.clone()))));
        caught(|| drop(receive.recv_for(Duration::ZERO)));
        let _ = caught(|| Select::new().on(&mut other, drop).try_now());
        caught(|| drop(receive));
        caught(|| drop(other));
        caught(|| drop(send));
    }),
    ("the value of a watch", |bomb| {
        let (send, mut receive) = watch(0);
        caught(|| {
            send.modify(|value| {
                *value = 1;
                bomb.tick();
            })
        });
        caught(|| receive.with(|_| bomb.tick()));
        send.send(2);
        assert_eq!(receive.get(), 2);
    }),
    ("the arms of a select", |bomb| {
        let (ready, never) = (Event::manual(true), Event::manual(false));
        let act = |()| bomb.tick();
        let _ = caught(|| Select::new().on(&ready, act).on(&never, act).wait());
        never.set();
        let _ = caught(|| Select::new().on(&never, act).biased().try_now());
    }),
    ("closures with a limit of time, and without cancellation", |bomb| {
        let long = Duration::from_secs(60);
        caught(|| ums::with_timeout(long, || bomb.tick()));
        caught(|| ums::shield(|| ums::with_timeout(long, || bomb.tick())));
        assert_eq!(ums::sleep(Duration::from_micros(1)), Ok(()), "no limit is left behind");
    }),
    ("external code", |bomb| {
        let reason = WaitReason::PREEMPTIVE_EXTERNAL;
        let theirs = bomb.clone();
        caught(move || ums::go_preemptive(reason, move || theirs.tick()));
        let theirs = bomb.clone();
        caught(move || ums::worker::short_external_call(move || theirs.tick()));
    }),
    ("a value of a request", |bomb| {
        let local: &'static RequestLocal<Fragile> = &LOCAL;
        caught(|| local.scope(Fragile(bomb.clone()), || local.with(|fragile| fragile.0.tick())));
        assert!(local.try_with(|_| ()).is_none(), "nothing is left behind");
    }),
    ("a completion routine", |bomb| {
        let (reader, writer) = std::io::pipe().unwrap();
        let done = Arc::new(Event::manual(false));
        let (fragile, tells) = (Fragile(bomb.clone()), done.clone());
        ums::testing::when_readable(reader.as_raw_fd(), move |_| {
            tells.set();
            fragile.0.tick();
        });
        std::io::Write::write_all(&mut &writer, b"x").unwrap();
        done.wait().unwrap();
        // The destructor runs after the routine has told.
        ums::yield_now();
    }),
    ("a future that a worker waits for", |bomb| {
        caught(|| ums::future::block_on(FragileFuture { bomb: bomb.clone(), polled: false }));
    }),
    ("a future that is a task", |bomb| {
        let future = FragileFuture { bomb: bomb.clone(), polled: false };
        let _ = ums::future::spawn_future(future).join();
        let future = FragileFuture { bomb: bomb.clone(), polled: false };
        caught(|| ums::future::spawn_future(future).cancel());
        for _ in 0..3 {
            ums::yield_now();
        }
    }),
    ("the waker of a task's handle", |bomb| {
        let gate = Gate::shut();
        let passes = gate.clone();
        let mut task = ums::spawn(move || passes.pass());
        let waker = Waker::from(Arc::new(FragileWaker(bomb.clone())));
        let mut context = Context::from_waker(&waker);
        assert!(Pin::new(&mut task).poll(&mut context).is_pending());
        gate.open();
        eventually("the task has ended", || task.is_finished());
        assert!(Pin::new(&mut task).poll(&mut context).is_ready());
        caught(|| drop(waker));
    }),
    ("the waker of a channel's future", |bomb| {
        let (send, receive) = bounded(1);
        let mut future = receive.recv_async();
        let waker = Waker::from(Arc::new(FragileWaker(bomb.clone())));
        let mut context = Context::from_waker(&waker);
        assert!(Pin::new(&mut future).poll(&mut context).is_pending());
        caught(|| send.send(1).unwrap());
        caught(|| drop(future));
        caught(|| drop(waker));
        assert!(send.try_send(2).is_ok() || receive.recv().is_ok());
    }),
    ("the closure of a wait of the application's own", |bomb| {
        let wait = ums::sync::Wait::new(WaitReason::OTHER);
        caught(|| {
            let _ = wait.park(|sleeper| {
                bomb.tick();
                sleeper.wake();
            });
        });
        assert_eq!(ums::sleep(Duration::from_micros(1)), Ok(()), "the worker can wait");
    }),
];

/// Uses what a site may have left in disorder.
fn still_works() {
    let mutex = Arc::new(Mutex::new(0));
    let tasks: Vec<_> = (0..3)
        .map(|_| {
            let mutex = mutex.clone();
            ums::spawn(move || {
                let mut held = mutex.lock();
                ums::yield_now();
                *held += 1;
            })
        })
        .collect();
    tasks.into_iter().for_each(|task| task.join().unwrap());
    assert_eq!(*mutex.lock(), 3);
    assert_eq!(ums::sleep(Duration::from_micros(10)), Ok(()));
    assert_eq!(ums::checkpoint(), Ok(()));
}

/// Runs each site until it needs no more panics. Returns how many there were.
fn run_all(run: impl Fn(Site, Arc<Bomb>, &str)) -> u64 {
    let mut places = 0;
    for &(what, site) in SITES {
        for n in 0.. {
            let bomb = Arc::new(Bomb { left: AtomicI64::new(n) });
            run(site, bomb.clone(), what);
            if !bomb.has_gone_off() {
                println!("{n:>3} places: {what}");
                places += n as u64;
                break;
            }
        }
    }
    places
}

#[test]
fn whatever_code_of_the_application_panics_everything_still_works() {
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !info.payload().is::<Injected>() {
            quiet(info);
        }
    }));
    let found = AtomicU64::new(0);
    for kind in kinds() {
        for n in [1, 2] {
            one_kind(
                kind,
                |b| b.schedulers(n),
                |node| {
                    let places = run_all(|site, bomb, what| {
                        // The panic of a site itself is an error; a site catches what may panic.
                        on(node, 0, move || site(&bomb));
                        on(node, n - 1, still_works);
                        eventually(what, || {
                            (0..n).all(|s| ums::testing::scheduler(node, s).load == 0)
                        });
                    });
                    println!("{kind:?} workers on {n} schedulers: {places} places");
                    found.fetch_add(places, SeqCst);
                },
            );
        }
    }
    assert!(found.into_inner() > 6 * 40, "the sites call the application's code");
}

#[cfg(feature = "sim")]
#[test]
fn in_simulation_too_whatever_panics() {
    let places = run_all(|site, bomb, what| {
        let n = bomb.left.load(SeqCst);
        for seed in 0..5 {
            let fresh = Arc::new(Bomb { left: n.into() });
            let theirs = fresh.clone();
            let story = move || {
                let node = ums::Node::builder().schedulers(2).max_workers(8).build().unwrap();
                node.spawn_on(0, move || site(&theirs)).unwrap().join().unwrap();
                node.spawn_on(1, still_works).unwrap().join().unwrap();
                let report = node.shutdown(Duration::from_secs(100));
                assert_eq!(report, ums::node::ShutdownReport::default());
            };
            let ended = ums::sim::run(seed, ums::sim::Faults::default(), story);
            assert_eq!(ended.failed, None, "{what}: seed {seed}");
            if fresh.has_gone_off() {
                bomb.left.store(-1, SeqCst);
            }
        }
    });
    println!("in simulation: {places} places");
}
