//! Request-locals: each request sees its own values and no other's, whatever runs between.

use std::panic::{catch_unwind, panic_any};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc;

use ums::io::{CURRENT, Request};
use ums::node::HiddenOptions;
use ums::sync::channel::{bounded, unbounded};
use ums::task::{JoinError, Locals, request_local, with_locals};
use ums::{WaitError, WaitReason, WorkerKind};

use super::common::{both_kinds, both_kinds_with, each_alone, eventually, on, start};
use super::{HOUR, SHORT};

const EXTERNAL: WaitReason = WaitReason::PREEMPTIVE_EXTERNAL;

request_local! {
    static TRACE: usize;
    static NAME: String;
    static COUNTED: Counted;
}

/// What the calling code sees.
fn seen() -> (Option<usize>, Option<String>) {
    (TRACE.get(), NAME.get())
}

/// Calls `f` with both values.
fn as_request<R>(n: usize, f: impl FnOnce() -> R) -> R {
    TRACE.scope(n, || NAME.scope(n.to_string(), f))
}

fn own(n: usize) -> (Option<usize>, Option<String>) {
    (Some(n), Some(n.to_string()))
}

const NOTHING: (Option<usize>, Option<String>) = (None, None);

#[test]
fn each_of_many_requests_sees_its_own_values() {
    both_kinds(|node, _, n| {
        let (to, from) = unbounded();
        let tasks: Vec<_> = (0..24)
            .map(|i| {
                let (to, from) = (to.clone(), from.clone());
                let task = move || {
                    assert_eq!(seen(), NOTHING);
                    as_request(i, || {
                        for round in 0..24 {
                            match (i + round) % 5 {
                                0 => ums::yield_now(),
                                1 => ums::sleep(SHORT).unwrap(),
                                2 => to.send(i).unwrap(),
                                3 => drop(from.recv_for(SHORT)),
                                _ => assert_eq!(ums::go_preemptive(EXTERNAL, seen), own(i)),
                            }
                            assert_eq!(seen(), own(i));
                            TRACE.with(|trace| {
                                ums::yield_now();
                                assert_eq!(*trace, i);
                            });
                        }
                    });
                    seen()
                };
                start(node, i % n, task)
            })
            .collect();
        tasks.into_iter().for_each(|task| assert_eq!(task.join().unwrap(), NOTHING));
    });
}

#[test]
fn values_end_with_their_request_although_it_panics() {
    both_kinds_with(
        |b| b.schedulers(1).max_workers(1),
        |node, _, _| {
            let begin = |panics| {
                let task = move || {
                    as_request(7, || {
                        ums::yield_now();
                        if panics {
                            panic_any(seen());
                        }
                        seen()
                    })
                };
                start(node, 0, task).join()
            };
            assert_eq!(begin(false).unwrap(), own(7));
            // One worker carries them all out.
            assert_eq!(on(node, 0, seen), NOTHING);
            let Err(JoinError::Panicked(panic)) = begin(true) else { panic!("it panics") };
            assert_eq!(panic.downcast_ref(), Some(&own(7)));
            assert_eq!(on(node, 0, seen), NOTHING);
        },
    );
}

#[test]
fn a_value_inside_hides_the_one_outside_until_its_closure_ends() {
    let nested = || {
        assert_eq!(seen(), NOTHING);
        let (returned, panicked) = TRACE.scope(1, || {
            let returned = as_request(2, || (seen(), TRACE.scope(3, seen)));
            assert_eq!(seen(), (Some(1), None));
            let panicked = catch_unwind(|| {
                as_request(4, || {
                    ums::yield_now();
                    panic_any(seen())
                })
            });
            assert_eq!(seen(), (Some(1), None));
            (returned, panicked)
        });
        assert_eq!(returned, (own(2), (Some(3), Some("2".into()))));
        assert_eq!(panicked.unwrap_err().downcast_ref(), Some(&own(4)));
        assert_eq!(seen(), NOTHING);
        assert_eq!(TRACE.try_with(|_| panic!("there is no value")), None);
        let text = catch_unwind(|| TRACE.with(|trace| *trace)).unwrap_err();
        let expected = "structured::locals::TRACE has no value here: call this inside its `scope`";
        assert_eq!(text.downcast_ref::<String>().unwrap(), expected);
    };
    nested();
    both_kinds(|node, _, n| on(node, n - 1, nested));
}

#[test]
fn tasks_of_a_scope_inherit_and_spawned_ones_do_on_request() {
    both_kinds(|node, _, _| {
        on(node, 0, || {
            as_request(1, || {
                assert_eq!(ums::spawn(seen).join().unwrap(), NOTHING);
                let child = ums::spawn(with_locals(|| {
                    ums::yield_now();
                    let grandchild = TRACE.scope(2, || ums::spawn(with_locals(seen)));
                    (seen(), ums::spawn(seen).join().unwrap(), grandchild.join().unwrap())
                }));
                let own_child = (own(1), NOTHING, (Some(2), Some("1".into())));
                assert_eq!(child.join().unwrap(), own_child);
                let (a, b, deep) = ums::scope(|s| {
                    let a = s.spawn(seen);
                    let b = TRACE.scope(2, || s.spawn(seen));
                    let deep = s.spawn(|| ums::scope(|s| s.spawn(seen).join().unwrap()));
                    (a.join().unwrap(), b.join().unwrap(), deep.join().unwrap())
                });
                assert_eq!((a, b, deep), (own(1), (Some(2), Some("1".into())), own(1)));
                let of_group = ums::task_group(|group| {
                    group.spawn(|| Ok::<_, WaitError>(seen()));
                    group.next()
                });
                assert_eq!(of_group, Ok(Some(own(1))));
                // What a task sets is its own.
                ums::scope(|s| drop(s.spawn(|| as_request(9, ums::yield_now))));
                assert_eq!(seen(), own(1));
                let none = Locals::default().scope(seen);
                assert_eq!((none, seen()), (NOTHING, own(1)));
            });
        });
        // A plain thread is its own request.
        as_request(3, || {
            assert_eq!(node.run(seen), NOTHING);
            assert_eq!(node.run(with_locals(seen)), own(3));
            assert_eq!(node.spawn(with_locals(seen)).unwrap().join().unwrap(), own(3));
            assert_eq!(std::thread::spawn(seen).join().unwrap(), NOTHING);
            assert_eq!(std::thread::spawn(with_locals(seen)).join().unwrap(), own(3));
            assert_eq!(seen(), own(3));
        });
    });
}

#[test]
fn a_future_sees_its_values_in_each_poll() {
    both_kinds(|node, _, n| {
        on(node, n - 1, || {
            let (to, from) = bounded::<usize>(1);
            let reads = async |times: usize| {
                let mut all = Vec::new();
                for _ in 0..times {
                    from.recv_async().await.unwrap();
                    all.push(seen());
                }
                all
            };
            let (theirs, other) = (from.clone(), to.clone());
            let task = as_request(1, || {
                let future = async move {
                    let mut all = vec![seen()];
                    while theirs.recv_async().await.is_ok_and(|n| n > 0) {
                        all.push(seen());
                    }
                    all
                };
                ums::future::spawn_future(Locals::capture().future(future))
            });
            // A request that polls it on the same worker, or runs between two polls.
            as_request(2, || {
                for left in (0..4).rev() {
                    to.send(left).unwrap();
                    ums::yield_now();
                    assert_eq!(seen(), own(2));
                }
            });
            assert_eq!(task.join().unwrap(), vec![own(1); 4]);
            let forgets = as_request(3, || ums::future::spawn_future(async { seen() }));
            assert_eq!(forgets.join().unwrap(), NOTHING);
            let sender = ums::spawn(move || (0..2).for_each(|n| other.send(n).unwrap()));
            let read = as_request(4, || ums::future::block_on(reads(2)));
            assert_eq!(read, Ok(vec![own(4); 2]));
            sender.join().unwrap();
        });
    });
}

#[test]
fn preemptive_code_sees_the_values_of_its_request() {
    both_kinds(|node, kind, n| {
        let (begun, begins) = mpsc::channel();
        let (go, goes) = mpsc::channel::<()>();
        let away = start(node, n - 1, move || {
            as_request(1, || {
                let inside = ums::go_preemptive(EXTERNAL, move || {
                    begun.send(()).unwrap();
                    goes.recv().unwrap();
                    let nested = TRACE.scope(2, || (ums::sleep(SHORT), seen()).1);
                    [nested, seen()]
                });
                let away = ums::worker::couple(EXTERNAL);
                assert_eq!(away.is_ok(), kind != WorkerKind::Fiber);
                if let Ok(away) = away {
                    assert_eq!(seen(), own(1));
                    TRACE.scope(3, || drop(away));
                }
                (inside, seen())
            })
        });
        begins.recv().unwrap();
        // The scheduler runs others while it is away.
        let other = on(node, n - 1, || (seen(), as_request(4, seen)));
        assert_eq!(other, (NOTHING, own(4)));
        go.send(()).unwrap();
        let inside = [(Some(2), Some("1".into())), own(1)];
        assert_eq!(away.join().unwrap(), (inside, own(1)));
        let hidden = node.hidden("own", HiddenOptions::default()).unwrap();
        let of_hidden = on(node, n - 1, move || {
            as_request(5, || (hidden.run(seen), hidden.run(with_locals(seen)), seen()))
        });
        assert_eq!(of_hidden, (NOTHING, own(5), own(5)));
        // The next closures that a hidden scheduler runs for fibers.
        on(node, n - 1, || assert_eq!(ums::go_preemptive(EXTERNAL, seen), NOTHING));
    });
}

#[test]
fn a_completion_routine_sees_nothing_of_the_worker_whose_stack_it_runs_on() {
    both_kinds(|node, _, n| {
        on(node, n - 1, || {
            let (read, write) = rustix::pipe::pipe().unwrap();
            rustix::fs::fcntl_setfl(&read, rustix::fs::OFlags::NONBLOCK).unwrap();
            let (tell, told) = mpsc::channel();
            let routine = move |_: std::io::Result<usize>, _: Vec<u8>| {
                tell.send([seen(), as_request(5, seen), seen()]).unwrap();
            };
            as_request(1, || {
                Request::read(read, vec![0; 1], CURRENT, routine).submit();
                rustix::io::write(&write, b"x").unwrap();
                let mut got = None;
                eventually("the routine has run", || {
                    got = told.try_recv().ok();
                    assert_eq!(seen(), own(1));
                    got.is_some()
                });
                assert_eq!(got, Some([NOTHING, own(5), NOTHING]));
            });
        });
    });
}

/// Submits a read whose routine tells what it sees. The byte that it reads is there already.
fn read_at_once(tell: &mpsc::Sender<(Option<usize>, Option<String>)>) {
    let (read, write) = rustix::pipe::pipe().unwrap();
    rustix::fs::fcntl_setfl(&read, rustix::fs::OFlags::NONBLOCK).unwrap();
    rustix::io::write(&write, b"x").unwrap();
    let tell = tell.clone();
    let routine = move |result: std::io::Result<usize>, _: Vec<u8>| {
        assert_eq!(result.unwrap(), 1);
        tell.send(seen()).unwrap();
    };
    Request::read(read, vec![0; 1], CURRENT, routine).submit();
}

#[test]
fn a_completion_routine_sees_nothing_of_the_code_that_submits_it() {
    let on_this_thread = || {
        let (tell, told) = mpsc::channel();
        as_request(1, || {
            read_at_once(&tell);
            assert_eq!((told.try_recv(), seen()), (Ok(NOTHING), own(1)));
        });
    };
    on_this_thread();
    both_kinds(|node, kind, n| {
        on(node, n - 1, move || {
            ums::go_preemptive(EXTERNAL, on_this_thread);
            let away = as_request(2, || ums::worker::couple(EXTERNAL));
            assert_eq!(away.is_ok(), kind != WorkerKind::Fiber);
            away.into_iter().for_each(|_away| on_this_thread());
            // One that another routine submits.
            let (tell, told) = mpsc::channel();
            let (read, write) = rustix::pipe::pipe().unwrap();
            rustix::fs::fcntl_setfl(&read, rustix::fs::OFlags::NONBLOCK).unwrap();
            let routine = move |_: std::io::Result<usize>, _: Vec<u8>| {
                as_request(3, || {
                    read_at_once(&tell);
                    tell.send(seen()).unwrap();
                });
                tell.send(seen()).unwrap();
            };
            as_request(1, || {
                Request::read(read, vec![0; 1], CURRENT, routine).submit();
                rustix::io::write(&write, b"x").unwrap();
                let mut got = Vec::new();
                eventually("both routines have run", || {
                    got.extend(told.try_iter());
                    assert_eq!(seen(), own(1));
                    got.len() == 3
                });
                got.sort();
                assert_eq!(got, [NOTHING, NOTHING, own(3)]);
            });
        });
    });
}

/// A value that is counted, and whose destructor may do something.
struct Counted {
    alive: &'static AtomicUsize,
    last_words: fn(),
}

impl Counted {
    fn new(alive: &'static AtomicUsize, last_words: fn()) -> Counted {
        alive.fetch_add(1, SeqCst);
        Counted { alive, last_words }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, SeqCst);
        (self.last_words)();
    }
}

#[test]
fn a_value_ends_with_its_last_user_and_its_destructor_may_wait() {
    static ALIVE: AtomicUsize = AtomicUsize::new(0);
    let alive = || ALIVE.load(SeqCst);
    let value = || Counted::new(&ALIVE, || ());
    each_alone(
        |b| b,
        |node, _, _| {
            on(node, 0, move || {
                let (to, from) = bounded::<()>(1);
                let task = COUNTED.scope(value(), || {
                    ums::spawn(with_locals(move || {
                        let _ = from.recv();
                        COUNTED.with(|counted| counted.alive.load(SeqCst))
                    }))
                });
                assert_eq!(alive(), 1, "the task still sees it");
                drop(to);
                assert_eq!((task.join().unwrap(), alive()), (1, 0));
                // It waits, among the values outside.
                let waits = || assert_eq!((ums::sleep(SHORT), seen()), (Ok(()), own(1)));
                as_request(1, || COUNTED.scope(Counted::new(&ALIVE, waits), || ()));
                assert_eq!(alive(), 0);
                // A task that never runs.
                let never = COUNTED.scope(value(), || ums::spawn(with_locals(|| ())));
                never.cancel();
                assert!(matches!(never.join(), Err(JoinError::NeverRan)));
                assert_eq!(alive(), 0);
                COUNTED.scope(value(), || {
                    let future = Locals::capture().future(std::future::pending::<()>());
                    let task = ums::future::spawn_future(future);
                    ums::yield_now();
                    task.cancel();
                });
                eventually("the future is dropped", || alive() == 0);
            });
            // Its panic is that of its user.
            let panics = || panic_any(seen());
            let task = move || as_request(1, || COUNTED.scope(Counted::new(&ALIVE, panics), || ()));
            let Err(JoinError::Panicked(panic)) = start(node, 0, task).join() else {
                panic!("it panics")
            };
            assert_eq!(panic.downcast_ref(), Some(&own(1)));
            let cancelled = move || {
                COUNTED.scope(value(), || {
                    ums::scope(|s| {
                        s.spawn(|| COUNTED.with(|_| ums::sleep(HOUR)));
                        ums::yield_now();
                        s.cancel();
                    });
                });
            };
            on(node, 0, cancelled);
            assert_eq!((alive(), on(node, 0, seen)), (0, NOTHING));
        },
    );
}
