//! Nodes: the options of a builder, of the monitor, of servers and of hidden schedulers, and the
//! functions of a node and of a served connection.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc;
use std::time::Duration;

use ums::monitor;
use ums::node::{HiddenOptions, ShutdownReport};
use ums::serve::{Connection, Next, ServeOptions, Server, Session, Why};
use ums::task::JoinError;
use ums::{Builder, Node, WaitReason, WorkerKind, go_preemptive};

use super::On::Thread;
use super::tries::{ENDLESS, OVER, called, panics};
use super::{Entry, common, ms};

const SPANS: [Duration; 4] = [OVER[0], OVER[1], ENDLESS[0], ENDLESS[2]];

pub const TABLE: &[Entry] = &[
    ("Builder::schedulers", Thread, |kind| {
        for n in [0, usize::MAX] {
            assert!(refused(kind, |b| b.schedulers(n)).contains("1 to 1024"), "{n}");
        }
        works(kind, |b| b.schedulers(1));
    }),
    ("Builder::max_workers", Thread, |kind| {
        let text = refused(kind, |b| b.max_workers(usize::MAX));
        assert!(text.contains(&usize::MAX.to_string()), "{text}");
        let text = refused(kind, |b| b.max_workers(0));
        assert!(text.contains("at least"), "{text}");
        // A worker that waits for its own task needs another one.
        works(kind, |b| b.max_workers(2));
    }),
    ("Builder::min_workers", Thread, |kind| {
        [0, 1, usize::MAX]
            .into_iter()
            .for_each(|n| works(kind, |b| b.min_workers(n).max_workers(8)));
    }),
    ("Builder::queue_limit", Thread, |kind| {
        works(kind, |b| b.queue_limit(usize::MAX));
        called();
        let node = common::build(kind, |b| b.schedulers(1).queue_limit(0));
        let error = node.spawn(|| ()).expect_err("nothing may be queued").to_string();
        assert!(error.contains("full"), "{error}");
        ends(node);
    }),
    ("Builder::queue_timeout", Thread, |kind| {
        for span in OVER {
            called();
            let node = common::build(kind, |b| b.schedulers(1).queue_timeout(span));
            let ended = node.spawn(|| ()).unwrap().join();
            // Whether it waits at all depends on the clock.
            assert!(matches!(ended, Ok(()) | Err(JoinError::NeverRan)), "{ended:?}");
            ends(node);
        }
        ENDLESS.into_iter().for_each(|span| works(kind, |b| b.queue_timeout(span)));
    }),
    ("Builder::stack_size", Thread, |kind| {
        for bytes in [0, 1, 1 << 60, usize::MAX] {
            let text = refused(kind, |b| b.stack_size(bytes));
            assert!(text.contains("at least") && text.contains("at most"), "{text}");
        }
    }),
    ("Builder::idle_worker_timeout", Thread, |kind| {
        SPANS.into_iter().for_each(|span| works(kind, |b| b.idle_worker_timeout(span)));
    }),
    ("Builder::idle_spin", Thread, |kind| {
        SPANS.into_iter().for_each(|span| works(kind, |b| b.idle_spin(span)));
    }),
    ("Builder::holder_spin", Thread, |kind| {
        for span in SPANS {
            called();
            let node = common::build(kind, |b| b.schedulers(1).holder_spin(span));
            // Its next request is waited for, and comes.
            let holds = |conn: &mut Connection<'_>, _| {
                conn.user().hold();
                echo(conn)
            };
            let (server, mut client) = serve(&node, ServeOptions::default(), holds);
            assert_eq!([answer(&mut client), answer(&mut client)], [Some(b'x'); 2], "{span:?}");
            node.run(move || ums::sleep(ms(1)).unwrap());
            drop((client, server));
            ends(node);
        }
    }),
    ("Builder::preemptive_limit", Thread, |kind| {
        for n in [0, 1, usize::MAX] {
            works(kind, |b| b.preemptive_limit(n));
        }
    }),
    ("Options::stall", Thread, |kind| monitored(kind, monitor::Options::stall)),
    ("Options::starved", Thread, |kind| monitored(kind, monitor::Options::starved)),
    ("Options::non_yield", Thread, |kind| monitored(kind, monitor::Options::non_yield)),
    ("Options::no_workers", Thread, |kind| monitored(kind, monitor::Options::no_workers)),
    ("Options::not_picked_up", Thread, |kind| monitored(kind, monitor::Options::not_picked_up)),
    ("Options::all_stuck", Thread, |kind| monitored(kind, monitor::Options::all_stuck)),
    ("Options::deadlock", Thread, |kind| monitored(kind, monitor::Options::deadlock)),
    ("Options::repeat", Thread, |kind| monitored(kind, monitor::Options::repeat)),
    ("Options::cancel_after", Thread, |kind| {
        for span in SPANS {
            called();
            let options = monitor::Options::default().stderr(false).cancel_after(span);
            let node = common::build(kind, |b| b.schedulers(1).monitor(options));
            // What does not wait does not hear a cancellation.
            assert_eq!(node.run(|| 7), 7, "{span:?}");
            ends(node);
        }
    }),
    ("Options::per_minute", Thread, |kind| {
        for reports in [0, 1, usize::MAX] {
            let options = monitor::Options::default().stderr(false).per_minute(reports);
            let options = options.stall(ms(1));
            works(kind, move |b| b.monitor(options));
        }
    }),
    ("HiddenOptions::max_workers", Thread, |kind| {
        let options = |n| HiddenOptions { max_workers: Some(n), ready: 0, nice: 0 };
        [0, 1].into_iter().for_each(|n| assert_eq!(hidden(kind, options(n)).unwrap(), 7));
        let text = hidden(kind, options(usize::MAX)).unwrap_err();
        assert!(text.contains("more than this library can number"), "{text}");
    }),
    ("HiddenOptions::ready", Thread, |kind| {
        for ready in [0, 1, usize::MAX] {
            let options = HiddenOptions { max_workers: Some(2), ready, nice: 0 };
            assert_eq!(hidden(kind, options).unwrap(), 7);
        }
    }),
    ("HiddenOptions::nice", Thread, |kind| {
        for nice in [0, 1, u8::MAX] {
            let options = HiddenOptions { max_workers: Some(1), ready: 0, nice };
            assert_eq!(hidden(kind, options).unwrap(), 7);
        }
    }),
    ("ServeOptions::max_connections", Thread, |kind| {
        counts(kind, |n| ServeOptions { max_connections: n, ..ServeOptions::default() });
    }),
    ("ServeOptions::max_new", Thread, |kind| {
        counts(kind, |n| ServeOptions { max_new: n, ..ServeOptions::default() });
    }),
    ("ServeOptions::max_per_address", Thread, |kind| {
        counts(kind, |n| ServeOptions { max_per_address: n, ..ServeOptions::default() });
    }),
    ("ServeOptions::max_rate_per_address", Thread, |kind| {
        counts(kind, |n| ServeOptions {
            max_rate_per_address: n as u32,
            ..ServeOptions::default()
        });
    }),
    ("ServeOptions::max_rate", Thread, |kind| {
        counts(kind, |n| ServeOptions { max_rate: n as u32, ..ServeOptions::default() });
    }),
    ("ServeOptions::reserved_workers", Thread, |kind| {
        counts(kind, |n| ServeOptions { reserved_workers: n, ..ServeOptions::default() });
    }),
    ("ServeOptions::max_memory", Thread, |kind| {
        counts(kind, |n| ServeOptions { max_memory: n, ..ServeOptions::default() });
    }),
    ("ServeOptions::max_connection_memory", Thread, |kind| {
        counts(kind, |n| ServeOptions { max_connection_memory: n, ..ServeOptions::default() });
    }),
    ("ServeOptions::login_limit", Thread, |kind| {
        let limited = |span| ServeOptions { login_limit: Some(span), ..ServeOptions::default() };
        for span in OVER {
            called();
            let node = common::build(kind, |b| b.schedulers(1));
            let (server, mut client) = serve(&node, limited(span), |conn, why| match why {
                Why::Stopping => Next::Close,
                _ => {
                    while conn.read(&mut [0]).is_ok_and(|n| n > 0) {}
                    Next::Wait
                }
            });
            assert_eq!(client.read(&mut [0]).ok().filter(|n| *n > 0), None, "{span:?}: it closes");
            drop((client, server));
            ends(node);
        }
        ENDLESS.into_iter().for_each(|span| serves(kind, limited(span)));
    }),
    ("ServeOptions::write_limit", Thread, |kind| {
        // A write that need not wait has no limit.
        for span in SPANS {
            serves(kind, ServeOptions { write_limit: Some(span), ..ServeOptions::default() });
        }
    }),
    ("Connection::keep_memory", Thread, |kind| {
        let kept = asked(kind, 0, |conn| {
            let all = [0, 1, usize::MAX].map(|bytes| conn.keep_memory(bytes).map(|k| k.bytes()));
            let beyond = conn.keep_memory(usize::MAX).is_ok_and(|_| conn.keep_memory(1).is_ok());
            (all.map(Result::ok), beyond)
        });
        assert_eq!(kept, ([Some(0), Some(1), Some(usize::MAX)], false));
        let kept = asked(kind, 9, |conn| {
            [0, 1, 9, 10, usize::MAX].map(|bytes| conn.keep_memory(bytes).is_ok())
        });
        assert_eq!(kept, [true, true, true, false, false]);
    }),
    ("KeptMemory::resize", Thread, |kind| {
        let kept = asked(kind, 9, |conn| {
            let mut kept = conn.keep_memory(1).unwrap();
            let done = [0, 9, 10, usize::MAX].map(|bytes| kept.resize(bytes).is_ok());
            (done, kept.bytes())
        });
        assert_eq!(kept, ([true, true, false, false], 9));
        let kept = asked(kind, 0, |conn| {
            let (mut kept, mut other) =
                (conn.keep_memory(1).unwrap(), conn.keep_memory(1).unwrap());
            [usize::MAX - 1, usize::MAX]
                .map(|bytes| (kept.resize(bytes).is_ok(), other.resize(2).is_ok()))
        });
        assert_eq!(kept, [(true, false), (false, false)], "the sum cannot be counted");
    }),
    ("Server::stop_and_wait", Thread, |kind| {
        for grace in SPANS {
            called();
            let node = common::build(kind, |b| b.schedulers(1));
            let (server, mut client) = serve(&node, ServeOptions::default(), |conn, _| echo(conn));
            assert_eq!(answer(&mut client), Some(b'x'));
            let ended = server.stop_and_wait(grace);
            assert!(ended || grace < ms(1), "{grace:?}");
            drop((client, server));
            ends(node);
        }
    }),
    ("Node::spawn_on", Thread, |kind| {
        with_node(kind, |node| {
            assert_eq!(node.spawn_on(0, || 7).unwrap().join().unwrap(), 7);
            for number in [1, usize::MAX] {
                panics(|| node.spawn_on(number, || ()).is_ok());
            }
        });
    }),
    ("Node::set_online", Thread, |kind| {
        with_node(kind, |node| {
            for number in [1, usize::MAX] {
                for online in [true, false] {
                    panics(|| node.set_online(number, online));
                }
            }
            assert!(node.set_online(0, true) && !node.set_online(0, false));
        });
    }),
    ("Node::shutdown", Thread, |kind| ends_after(kind, Node::shutdown)),
    ("Node::drain", Thread, |kind| ends_after(kind, Node::drain)),
    ("Node::stack_of", Thread, |kind| {
        with_node(kind, |node| {
            for (scheduler, worker) in [(0, u32::MAX), (1, 0), (usize::MAX, 0)] {
                called();
                assert!(node.stack_of(scheduler, worker).is_none(), "{scheduler}, {worker}");
            }
        });
    }),
    ("Node::record_trace", Thread, |kind| {
        with_node(kind, |node| {
            for span in OVER {
                called();
                node.record_trace(span);
            }
            for span in ENDLESS {
                called();
                let (theirs, (tell, told)) = (node.clone(), mpsc::channel());
                let task = node.spawn(move || {
                    tell.send(()).unwrap();
                    theirs.record_trace(span);
                    ums::is_cancelled()
                });
                let task = task.unwrap();
                told.recv().unwrap();
                std::thread::sleep(ms(1));
                task.cancel();
                assert!(task.join().unwrap(), "{span:?}: it ended before it was cancelled");
            }
        });
    }),
];

/// Returns the sentence with which such a node is refused.
fn refused(kind: WorkerKind, options: impl FnOnce(Builder) -> Builder) -> String {
    called();
    match common::try_build(kind, |b| options(b.schedulers(1))) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("{kind:?} workers: it was not refused"),
    }
}

/// Checks that a node with these options does everything: it runs tasks, waits, goes preemptive
/// and ends.
fn works(kind: WorkerKind, options: impl FnOnce(Builder) -> Builder) {
    called();
    let node = common::build(kind, |b| options(b.schedulers(1)));
    for _ in 0..2 {
        let sum = node.run(|| {
            let task = ums::spawn(|| {
                ums::sleep(ms(1)).unwrap();
                3
            });
            let away = go_preemptive(WaitReason::PREEMPTIVE_EXTERNAL, || 4);
            task.join().unwrap() + away
        });
        assert_eq!(sum, 7, "{kind:?} workers");
    }
    ends(node);
}

fn with_node(kind: WorkerKind, body: impl FnOnce(&Node)) {
    let node = common::build(kind, |b| b.schedulers(1));
    body(&node);
    ends(node);
}

fn ends(node: Node) {
    assert_eq!(node.shutdown(Duration::from_secs(30)), ShutdownReport::default());
}

fn monitored(kind: WorkerKind, set: fn(monitor::Options, Duration) -> monitor::Options) {
    for span in SPANS {
        let options = set(monitor::Options::default().stderr(false), span);
        works(kind, move |b| b.monitor(options));
    }
}

fn hidden(kind: WorkerKind, options: HiddenOptions) -> Result<i32, String> {
    called();
    let node = common::build(kind, |b| b.schedulers(1));
    let result = node.hidden("beside", options).map(|on| on.spawn(|| 7).unwrap().join().unwrap());
    ends(node);
    result.map_err(|error| error.to_string())
}

/// A session that calls a function.
struct Calls<F>(F);

impl<F> Session for Calls<F>
where
    F: FnMut(&mut Connection<'_>, Why) -> Next + Send + 'static,
{
    fn request(&mut self, conn: &mut Connection<'_>, why: Why) -> Next {
        (self.0)(conn, why)
    }
}

/// Serves connections by calling the function, and connects.
fn serve<F>(node: &Node, options: ServeOptions, call: F) -> (Server, TcpStream)
where
    F: FnMut(&mut Connection<'_>, Why) -> Next + Clone + Send + Sync + 'static,
{
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let make = move |_: &_, _| Box::new(Calls(call.clone())) as Box<dyn Session>;
    let server = node.serve(listener, options, make).unwrap();
    (server, TcpStream::connect(address).unwrap())
}

/// Sends back what was received.
fn echo(conn: &mut Connection<'_>) -> Next {
    let mut byte = [0];
    match conn.try_read(&mut byte) {
        Ok(1) if conn.write_all(&byte).is_ok() => Next::Again,
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Next::Wait,
        _ => Next::Close,
    }
}

/// Sends a byte, and returns what comes back; `None` if the connection was closed.
fn answer(client: &mut TcpStream) -> Option<u8> {
    let mut byte = [0];
    client.write_all(b"x").ok()?;
    client.read_exact(&mut byte).ok().map(|()| byte[0])
}

/// Checks that a server with these options answers.
fn serves(kind: WorkerKind, options: ServeOptions) {
    called();
    let node = common::build(kind, |b| b.schedulers(1));
    let (server, mut client) = serve(&node, options, |conn, _| match conn.establish() {
        true => echo(conn),
        false => Next::Close,
    });
    assert_eq!([answer(&mut client), answer(&mut client)], [Some(b'x'); 2]);
    drop((client, server));
    ends(node);
}

/// Tries grace times of a node with a task that ends soon.
fn ends_after(kind: WorkerKind, end: fn(Node, Duration) -> ShutdownReport) {
    for grace in SPANS {
        called();
        let node = common::build(kind, |b| b.schedulers(1));
        let (tell, told) = mpsc::channel();
        let task = node.spawn(move || {
            tell.send(()).unwrap();
            ums::sleep(ms(1))
        });
        told.recv().unwrap();
        let report = end(node, grace);
        assert_eq!(report.left, 0);
        let slept = task.unwrap().join();
        assert!(matches!(slept, Ok(Ok(()))) || grace < ms(1), "{grace:?}: {slept:?}");
    }
}

/// Checks that one client is served, however many there may be.
fn counts(kind: WorkerKind, options: fn(usize) -> ServeOptions) {
    [0, 1, usize::MAX].into_iter().for_each(|n| serves(kind, options(n)));
}

/// Calls a function with a connection that may keep this many bytes; 0 is no limit.
fn asked<R: Send + 'static>(kind: WorkerKind, most: usize, ask: fn(&mut Connection<'_>) -> R) -> R {
    called();
    let node = common::build(kind, |b| b.schedulers(1));
    let options = ServeOptions { max_connection_memory: most, ..ServeOptions::default() };
    let (tell, told) = mpsc::sync_channel(9);
    let (server, mut client) = serve(&node, options, move |conn, why| {
        if why != Why::Stopping && conn.try_read(&mut [0]).is_ok_and(|n| n > 0) {
            tell.send(ask(conn)).unwrap();
        }
        if why == Why::Stopping { Next::Close } else { Next::Wait }
    });
    client.write_all(b"x").unwrap();
    let result = told.recv_timeout(common::PATIENCE).unwrap();
    drop((client, server));
    ends(node);
    result
}

#[test]
fn a_session_waits_as_long_as_it_says() {
    let _turn = common::turn();
    for kind in common::kinds() {
        for span in OVER.into_iter().chain(ENDLESS) {
            let node = common::build(kind, |b| b.schedulers(1));
            let call = move |conn: &mut Connection<'_>, why| match why {
                Why::TimedOut => {
                    let _ = conn.write_all(b"t");
                    Next::Close
                }
                Why::Stopping => Next::Close,
                _ => match conn.try_read(&mut [0]) {
                    Ok(1) if conn.write_all(b"x").is_ok() => Next::WaitAtMost(span),
                    Ok(_) => Next::Close,
                    Err(_) => Next::WaitAtMost(span),
                },
            };
            let (server, mut client) = serve(&node, ServeOptions::default(), call);
            if span < ms(1) {
                let mut all = Vec::new();
                client.read_to_end(&mut all).unwrap();
                assert_eq!(all, b"t", "{kind:?} workers, {span:?}");
            } else {
                let answers = [answer(&mut client), answer(&mut client)];
                assert_eq!(answers, [Some(b'x'); 2], "{kind:?} workers, {span:?}");
            }
            drop((client, server));
            ends(node);
        }
    }
}
