//! What each public value with a destructor does if it is forgotten, dropped while a panic unwinds,
//! or dropped on another thread. The scheduler goes on, and what the destructor would have released
//! is released, or stays taken and nothing worse.
//!
//! `every_public_type_with_a_destructor_is_in_the_list` compares the list with the sources, so a
//! new type cannot be left out.

#![allow(unsafe_code)] // For the harness.

mod common;

use std::collections::BTreeSet;
use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::*;
use ums::WaitReason;
use ums::fs::DirectBuffer;
use ums::net::{ByteStream, UnixStream};
use ums::process::{Child, Signals};
use ums::serve::{Connection, Next, ServeOptions, Session, Why};
use ums::sync::channel::{BroadcastError, RecvError, bounded, broadcast, watch};
use ums::sync::{Mutex, RwLock, Semaphore};
use ums::windows::{CompletionList, SchedulerAction, WorkerContext, enter_scheduling_mode};

/// What happens to a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Forgotten,
    Unwound,
    /// Only for values that are `Send`; others are dropped where they are.
    OnAnotherThread,
}
use End::{Forgotten, OnAnotherThread, Unwound};

/// The payload of the panic.
struct Unwinding;

/// Ends a value that stays on its thread.
fn here<T>(how: End, value: T) {
    match how {
        Forgotten => forget(value),
        OnAnotherThread => drop(value),
        Unwound => {
            let unwound = catch_unwind(AssertUnwindSafe(move || {
                let _value = value;
                panic_any(Unwinding);
            }));
            assert!(unwound.is_err_and(|panic| panic.is::<Unwinding>()));
        }
    }
}

/// Ends a value that may be sent to another thread.
fn anywhere<T: Send>(how: End, value: T) {
    match how {
        OnAnotherThread => std::thread::scope(|scope| {
            scope.spawn(move || drop(value)).join().expect("the drop does not panic");
        }),
        _ => here(how, value),
    }
}

const SHORT: Duration = Duration::from_millis(1);

/// A use of one type, whose value ends in this way.
type Use = fn(End);

/// Where a use runs. One that builds a node of its own runs on a plain thread.
#[derive(Clone, Copy, PartialEq, Eq)]
enum On {
    Worker,
    Thread,
}

/// Each type, with a use of it.
const TYPES: &[(&str, On, Use)] = &[
    ("MutexGuard", On::Worker, |how| {
        let mutex = Mutex::new(1);
        here(how, mutex.lock());
        assert_eq!(
            mutex.lock_for(SHORT).is_err(),
            how == Forgotten,
            "a forgotten one stays locked"
        );
        assert_eq!(mutex.into_inner(), 1);
    }),
    ("OwnedMutexGuard", On::Worker, |how| {
        let mutex = Arc::new(Mutex::new(1));
        here(how, mutex.lock_owned());
        assert_eq!(mutex.try_lock().is_none(), how == Forgotten);
    }),
    ("RwLockReadGuard", On::Worker, |how| {
        let lock = RwLock::new(1);
        here(how, lock.read());
        assert!(lock.try_read().is_some(), "others may read in any case");
        assert_eq!(lock.write_for(SHORT).is_err(), how == Forgotten);
    }),
    ("RwLockWriteGuard", On::Worker, |how| {
        let lock = RwLock::new(1);
        here(how, lock.write());
        assert_eq!(lock.read_for(SHORT).is_err(), how == Forgotten);
    }),
    ("OwnedRwLockReadGuard", On::Worker, |how| {
        let lock = Arc::new(RwLock::new(1));
        here(how, lock.read_owned());
        assert_eq!(lock.try_write().is_none(), how == Forgotten);
    }),
    ("OwnedRwLockWriteGuard", On::Worker, |how| {
        let lock = Arc::new(RwLock::new(1));
        here(how, lock.write_owned());
        assert_eq!(lock.try_read().is_none(), how == Forgotten);
    }),
    ("Permit", On::Worker, |how| {
        let seats = Semaphore::new(2);
        anywhere(how, seats.acquire().unwrap());
        assert_eq!(seats.available(), if how == Forgotten { 1 } else { 2 });
    }),
    ("OwnedPermit", On::Worker, |how| {
        let seats = Arc::new(Semaphore::new(2));
        anywhere(how, seats.acquire_owned().unwrap());
        assert_eq!(seats.available(), if how == Forgotten { 1 } else { 2 });
    }),
    ("Sender", On::Worker, |how| {
        let (send, receive) = bounded::<u32>(1);
        anywhere(how, send);
        assert_eq!(
            receive.recv_for(SHORT).is_err_and(|e| e.to_string().contains("time")),
            how == Forgotten
        );
    }),
    ("Receiver", On::Worker, |how| {
        let (send, receive) = bounded(1);
        anywhere(how, receive);
        assert_eq!(send.try_send(1).is_ok(), how == Forgotten);
    }),
    ("BroadcastSender", On::Worker, |how| {
        let (send, mut receive) = broadcast::<u32>(1);
        anywhere(how, send);
        let gone = matches!(receive.recv_for(SHORT), Err(BroadcastError::Disconnected));
        assert_eq!(gone, how != Forgotten);
    }),
    ("BroadcastReceiver", On::Worker, |how| {
        let (send, receive) = broadcast(1);
        anywhere(how, receive);
        assert_eq!(send.send(1).is_ok(), how == Forgotten);
    }),
    ("WatchSender", On::Worker, |how| {
        let (send, mut receive) = watch(1);
        anywhere(how, send);
        assert_eq!(receive.get(), 1);
        let gone = matches!(receive.changed_for(SHORT), Err(RecvError::Disconnected));
        assert_eq!(gone, how != Forgotten);
    }),
    ("FutureTask", On::Worker, |how| {
        let (send, receive) = bounded::<u32>(1);
        let held = Arc::new(());
        let theirs = held.clone();
        let task = ums::future::spawn_future(async move {
            let _held = theirs;
            let _ = receive.recv_async().await;
        });
        anywhere(how, task);
        ums::yield_now();
        assert_eq!(Arc::strong_count(&held), 2, "the task goes on without its handle");
        send.send(1).unwrap();
        eventually("it has ended", || Arc::strong_count(&held) == 1);
    }),
    ("Coupled", On::Worker, |how| {
        if let Ok(away) = ums::worker::couple(WaitReason::PREEMPTIVE_EXTERNAL) {
            here(how, away);
            assert_eq!(ums::worker::is_worker(), how != Forgotten);
        }
    }),
    ("User", On::Thread, |how| {
        let node = ums::Node::builder().schedulers(1).build().unwrap();
        let user = node.user();
        let done = user.enqueue(|| 1).unwrap();
        anywhere(how, user);
        assert_eq!(done.join().unwrap(), 1);
        assert_eq!(node.shutdown(Duration::from_secs(30)), Default::default());
    }),
    ("Node", On::Thread, |how| {
        let node = ums::Node::builder().schedulers(1).build().unwrap();
        let other = node.clone();
        let task = node.spawn(|| 1).unwrap();
        assert_eq!(task.join().unwrap(), 1);
        anywhere(how, node);
        assert_eq!(other.shutdown(Duration::from_secs(30)), Default::default());
    }),
    ("MetricsServer", On::Thread, |how| {
        if how == Forgotten {
            return; // Its thread serves until the process ends, as documented.
        }
        let node = ums::Node::builder().schedulers(1).build().unwrap();
        let server = node.serve_metrics("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = server.local_addr();
        anywhere(how, server);
        assert!(std::net::TcpStream::connect(address).is_err(), "it does not listen any more");
        assert_eq!(node.shutdown(Duration::from_secs(30)), Default::default());
    }),
    ("WriteHalf", On::Worker, |how| {
        let (one, two) = UnixStream::pair().unwrap();
        let (_reads, writes) = one.into_split();
        anywhere(how, writes);
        two.set_read_timeout(Some(SHORT)).unwrap();
        let ended = std::io::Read::read(&mut &two, &mut [0]).is_ok_and(|n| n == 0);
        assert_eq!(ended, how != Forgotten, "the other end reads the end of the stream");
    }),
    ("Child", On::Worker, |how| {
        let mut sleep = std::process::Command::new("sleep");
        let child = Child::spawn(sleep.arg("1000")).unwrap().kill_on_drop();
        let stat = format!("/proc/{}/stat", child.id());
        let id = rustix::process::Pid::from_raw(child.id().cast_signed()).unwrap();
        // It may wait for its parent to ask how it ended.
        let runs = || std::fs::read_to_string(&stat).is_ok_and(|text| !text.contains(") Z"));
        anywhere(how, child);
        if how == Forgotten {
            assert!(runs(), "a forgotten one goes on");
            rustix::process::kill_process(id, rustix::process::Signal::KILL).unwrap();
        }
        eventually("it has ended", || !runs());
    }),
    ("Signals", On::Worker, |how| {
        let signals = Signals::new([libc::SIGUSR2]).unwrap();
        let other = Signals::new([libc::SIGUSR2]).unwrap();
        anywhere(how, signals);
        signal_hook::low_level::raise(libc::SIGUSR2).unwrap();
        assert_eq!(other.wait().unwrap(), libc::SIGUSR2);
    }),
    ("DirectBuffer", On::Worker, |how| anywhere(how, DirectBuffer::new(4096))),
    ("ContextLock", On::Worker, |how| {
        let list = CompletionList::new().unwrap();
        let worker = WorkerContext::builder().own_context(false).spawn(&list, || ()).unwrap();
        anywhere(how, worker.lock());
        drop(list.poll());
    }),
    ("Items", On::Worker, |how| {
        let list = CompletionList::new().unwrap();
        let spawn = || WorkerContext::builder().own_context(false).spawn(&list, || ()).unwrap();
        let _workers = [spawn(), spawn()];
        here(how, list.poll());
        let left = if how == Forgotten { 0 } else { 2 };
        assert_eq!(list.poll().count(), left, "those that were not taken are queued again");
    }),
    ("Claim", On::Thread, |how| {
        let scheduler = std::thread::spawn(move || {
            let list = CompletionList::new().unwrap();
            let builder = WorkerContext::builder().own_context(false);
            let worker = builder.spawn(&list, || ()).unwrap();
            drop(list.poll().collect::<Vec<_>>());
            let mut entered = 0;
            enter_scheduling_mode(|scheduler, _| {
                entered += 1;
                if entered > 1 {
                    return SchedulerAction::Leave;
                }
                here(how, scheduler.claim(&worker).unwrap());
                match scheduler.claim(&worker) {
                    Ok(again) => SchedulerAction::Execute(again),
                    Err(_) => SchedulerAction::Leave,
                }
            })
            .unwrap();
            // A worker whose claim was forgotten cannot be claimed again.
            assert_eq!(entered, if how == Forgotten { 1 } else { 2 });
        });
        scheduler.join().unwrap();
    }),
    ("KeptMemory", On::Thread, |how| {
        let kept = with_a_connection(move |connection| {
            anywhere(how, connection.keep_memory(600).unwrap());
            connection.keep_memory(600).is_ok()
        });
        assert_eq!(kept, how != Forgotten, "what is forgotten stays counted");
    }),
    ("Server", On::Thread, |how| {
        let node = ums::Node::builder().schedulers(1).build().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let options = ServeOptions::default();
        let server =
            node.serve(listener, options, |_, _| Box::new(Asks(Box::new(|_| ())))).unwrap();
        drop(std::net::TcpStream::connect(address).unwrap());
        anywhere(how, server);
        let accepts = || std::net::TcpStream::connect(address).is_ok();
        if how == Forgotten {
            assert!(accepts(), "a forgotten server goes on");
        } else {
            eventually("it does not listen any more", || !accepts());
        }
        let report = node.shutdown(Duration::from_secs(30));
        assert_eq!(report.left, 0);
    }),
];

/// A session that calls a function with its connection at its first request, and ends.
struct Asks(Box<dyn FnMut(&mut Connection<'_>) + Send>);

impl Session for Asks {
    fn request(&mut self, connection: &mut Connection<'_>, why: Why) -> Next {
        if why != Why::Stopping {
            (self.0)(connection);
        }
        Next::Close
    }
}

/// Calls `ask` with a connection that may keep a thousand bytes. Returns its result.
fn with_a_connection<R: Send + 'static>(
    ask: impl Fn(&mut Connection<'_>) -> R + Send + Sync + 'static,
) -> R {
    let node = ums::Node::builder().schedulers(1).build().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let ask = Arc::new(ask);
    let options = ServeOptions { max_connection_memory: 1000, ..ServeOptions::default() };
    let server = node
        .serve(listener, options, move |_, _| {
            let (ask, tell) = (ask.clone(), tell.clone());
            Box::new(Asks(Box::new(move |connection| {
                let _ = tell.send(ask(connection));
            })))
        })
        .unwrap();
    let mut client = std::net::TcpStream::connect(address).unwrap();
    std::io::Write::write_all(&mut client, b"x").unwrap();
    let result = told.recv_timeout(PATIENCE).unwrap();
    drop(server);
    assert_eq!(node.shutdown(Duration::from_secs(30)).left, 0);
    result
}

#[test]
fn whatever_happens_to_a_guard_its_worker_and_its_scheduler_go_on() {
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !info.payload().is::<Unwinding>() {
            quiet(info);
        }
    }));
    for kind in kinds() {
        for how in [Forgotten, Unwound, OnAnotherThread] {
            let node = build(kind, |b| b.schedulers(1));
            for &(name, place, end) in TYPES {
                println!("{kind:?} workers: {name} {how:?}");
                match place {
                    On::Worker => on(&node, 0, move || end(how)),
                    On::Thread => end(how),
                }
                let after = on(&node, 0, || ums::spawn(|| ums::sleep(SHORT)).join().unwrap());
                assert_eq!(after, Ok(()), "{name} {how:?}");
            }
            assert_eq!(node.shutdown(Duration::from_secs(30)), Default::default(), "{how:?}");
        }
    }
}

/// Types with a destructor that only the library itself can have.
const INTERNAL: [&str; 6] = ["Biased", "Chores", "Inside", "Promise", "ShortGuard", "UringDriver"];

#[test]
fn every_public_type_with_a_destructor_is_in_the_list() {
    let mut found = BTreeSet::new();
    collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
    let listed = TYPES.iter().map(|(name, ..)| *name).chain(INTERNAL);
    let listed: BTreeSet<String> = listed.map(str::to_owned).collect();
    assert_eq!(found, listed, "left: in the sources; right: in this file");
}

/// Collects the names of the types that are `pub` and have a destructor.
fn collect(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if name != "tests" && name != "testing" && name != "sim" {
                collect(&path, found);
            }
            continue;
        }
        if !name.ends_with(".rs") || name.contains("tests") || name.contains("loom") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        for line in text.lines().filter(|line| line.starts_with("impl")) {
            let Some((_, of)) = line.split_once(" Drop for ") else { continue };
            let of = of.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
            let is_public = |line: &str| {
                let rest = line.strip_prefix(&format!("pub struct {of}"));
                rest.is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
            };
            if text.lines().any(is_public) {
                found.insert(of.to_owned());
            }
        }
    }
}
