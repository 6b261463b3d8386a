//! Spans of the application follow its workers: whatever runs between, each event is seen inside
//! the spans that its own code has entered, and inside no others.

#![allow(unsafe_code)] // For the harness.

mod common;

use std::collections::HashMap;
use std::fmt::Debug;
use std::panic::panic_any;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread::ThreadId;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Span, Subscriber, info, info_span};
use tracing_subscriber::Registry;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

use ums::future::{block_on, spawn_future};
use ums::io::{CURRENT, Request};
use ums::lock::Lock;
use ums::stats::SpanLayer;
use ums::sync::channel::bounded;
use ums::{WaitReason, WorkerKind};

use common::*;

const EXTERNAL: WaitReason = WaitReason::PREEMPTIVE_EXTERNAL;

/// What the recording layer has seen.
#[derive(Default)]
struct Recorded {
    /// For each event, by its number: the spans around it, and which of them it is in.
    events: HashMap<u64, (Vec<String>, Option<String>)>,
    /// For each thread, the spans that it is inside, the innermost last.
    inside: HashMap<ThreadId, Vec<u64>>,
    /// The spans that are open.
    open: HashMap<u64, String>,
    wrong: Vec<String>,
}

static RECORDED: Lock<Option<Recorded>> = Lock::new(None);

/// What the layer calls when a span named `calls` is exited the next time.
static CALL: Lock<Option<Box<dyn FnOnce() + Send>>> = Lock::new(None);

fn recorded<R>(f: impl FnOnce(&mut Recorded) -> R) -> R {
    f(RECORDED.lock().get_or_insert_default())
}

/// The value of the field `n`, and no other.
struct Number(Option<u64>);

impl Visit for Number {
    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "n" {
            self.0 = Some(value);
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}
}

struct Recorder;

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Recorder {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, _: Context<'_, S>) {
        let mut number = Number(None);
        attributes.record(&mut number);
        let name = attributes.metadata().name();
        let name = number.0.map_or_else(|| name.to_owned(), |n| format!("{name} {n}"));
        recorded(|seen| seen.open.insert(id.into_u64(), name));
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut number = Number(None);
        event.record(&mut number);
        let Some(number) = number.0 else { return };
        recorded(|seen| {
            let name = |id: Id| seen.open[&id.into_u64()].clone();
            let scope = context.event_scope(event).into_iter().flat_map(|s| s.from_root());
            let scope = scope.map(|span| name(span.id())).collect();
            let innermost = context.lookup_current().map(|span| name(span.id()));
            seen.events.insert(number, (scope, innermost));
        });
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        assert!(context.span(id).is_some(), "a span is entered after its end");
        let me = std::thread::current().id();
        recorded(|seen| seen.inside.entry(me).or_default().push(id.into_u64()));
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        assert!(context.span(id).is_some(), "a span is exited after its end");
        let (me, id) = (std::thread::current().id(), id.into_u64());
        recorded(|seen| {
            let list = seen.inside.entry(me).or_default();
            let at = list.iter().rposition(|inside| *inside == id);
            match at.map(|at| (list.remove(at), list.len() == at)) {
                Some((_, true)) => {}
                // Its guards are dropped in an order of their own.
                Some((id, false)) if seen.open[&id].starts_with("odd") => {}
                _ => seen.wrong.push(format!("{} is exited", seen.open[&id])),
            }
        });
        let calls = recorded(|seen| seen.open[&id] == "calls");
        let call = CALL.lock().take_if(|_| calls);
        call.into_iter().for_each(|call| call());
    }

    fn on_close(&self, id: Id, _: Context<'_, S>) {
        recorded(|seen| seen.open.remove(&id.into_u64()));
    }
}

/// Sets the program's subscriber. Waits until no other test runs.
fn record() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        fn set(layer: impl Layer<Registry> + Send + Sync) {
            let subscriber = tracing_subscriber::registry().with(layer).with(Recorder);
            tracing::subscriber::set_global_default(subscriber).expect("there is no other");
        }
        match child_errand().as_deref() {
            Some("option") => set(Some(SpanLayer::new())),
            Some("vec") => set(vec![SpanLayer::new()]),
            _ => set(SpanLayer::new()),
        }
    });
}

/// Returns the spans around the caller: those of an event, without the library's own.
#[track_caller]
fn around() -> Vec<String> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, SeqCst);
    info!(n = number);
    let (scope, innermost) = recorded(|seen| seen.events.remove(&number)).expect("it is seen");
    assert_eq!(scope.last(), innermost.as_ref(), "it is in the innermost span");
    // A worker and its request, which are the outermost.
    let own = scope.iter().take_while(|name| *name == "runtime.spawn").count();
    assert_eq!(own, if ums::worker::is_worker() { 2 } else { own }, "{scope:?}");
    scope[own..].to_vec()
}

/// Checks, when no node is there, that no span is left.
fn nothing_is_left() {
    recorded(|seen| {
        assert_eq!(seen.wrong, Vec::<String>::new());
        assert!(seen.inside.values().all(Vec::is_empty), "a thread is inside a span");
        assert!(seen.open.is_empty(), "{:?}", seen.open);
    });
}

/// Runs the body with each kind of workers, and checks that no span is left.
fn followed(body: impl Fn(&ums::Node, usize)) {
    each_followed(|node, _, n| body(node, n));
}

fn each_followed(body: impl Fn(&ums::Node, WorkerKind, usize)) {
    record();
    for kind in kinds() {
        for n in COUNTS {
            one_kind(kind, |b| b.schedulers(n), |node| body(node, kind, n));
            let _turn = turn();
            nothing_is_left();
        }
    }
}

#[test]
fn each_event_is_in_the_spans_of_its_own_worker() {
    followed(|node, n| {
        let tasks: Vec<_> = (0..8 * n as u64)
            .map(|i| {
                let task = move || {
                    assert_eq!(around(), [""; 0]);
                    let outer = info_span!("outer", n = i);
                    let _outer = outer.enter();
                    for round in 0..12 {
                        match (i + round) % 4 {
                            0 => ums::yield_now(),
                            1 => ums::sleep(ms(1)).unwrap(),
                            2 => {
                                let of = ums::go_preemptive(EXTERNAL, || {
                                    info_span!("away", n = i).in_scope(around)
                                });
                                assert_eq!(of.last(), Some(&format!("away {i}")));
                                assert_eq!(of[of.len() - 2], format!("outer {i}"));
                            }
                            _ => {
                                let inner = info_span!("inner", n = round).entered();
                                ums::yield_now();
                                let expected = [format!("outer {i}"), format!("inner {round}")];
                                assert_eq!(around(), expected);
                                drop(inner);
                            }
                        }
                        assert_eq!(around(), [format!("outer {i}")]);
                        assert_eq!(Span::current().id(), outer.id());
                    }
                };
                start(node, i as usize % n, task)
            })
            .collect();
        tasks.into_iter().for_each(|task| task.join().unwrap());
    });
}

#[test]
fn a_request_leaves_no_span_to_the_next_one_of_its_worker() {
    record();
    for kind in kinds() {
        let one = |b: ums::Builder| b.schedulers(1).max_workers(1);
        one_kind(kind, one, |node| {
            let forgets = |panics: bool| {
                let task = move || {
                    let first = info_span!("odd first").entered();
                    let last = info_span!("last");
                    std::mem::forget(last.enter());
                    ums::yield_now();
                    assert_eq!(around(), ["odd first", "last"]);
                    // The span's handle is gone, too.
                    drop(last);
                    ums::sleep(ms(1)).unwrap();
                    assert_eq!(around(), ["odd first", "last"]);
                    if panics {
                        panic_any(7);
                    }
                    drop(first);
                };
                start(node, 0, task).join()
            };
            assert!(forgets(true).is_err());
            assert_eq!(on(node, 0, around), [""; 0]);
            assert!(forgets(false).is_ok());
            assert_eq!(on(node, 0, around), [""; 0]);
        });
        let _turn = turn();
        nothing_is_left();
    }
}

#[test]
fn guards_may_be_dropped_in_any_order() {
    followed(|node, n| {
        on(node, n - 1, || {
            let odd = info_span!("odd").entered();
            let even = info_span!("even").entered();
            ums::yield_now();
            assert_eq!(around(), ["odd", "even"]);
            // `odd` is the parent of `even`, but the thread is not inside it.
            drop(odd);
            ums::sleep(ms(1)).unwrap();
            assert_eq!(around(), ["odd", "even"]);
            drop(even);
            assert_eq!(around(), [""; 0]);
            // The same span twice.
            let span = info_span!("twice");
            let (_one, _two) = (span.enter(), span.enter());
            ums::yield_now();
            assert_eq!(around(), ["twice"]);
        });
    });
}

#[test]
fn a_worker_that_leaves_its_scheduler_keeps_its_spans_and_lets_others_have_theirs() {
    each_followed(|node, kind, n| {
        let (begun, begins) = std::sync::mpsc::channel();
        let (go, goes) = std::sync::mpsc::channel::<()>();
        let away = start(node, n - 1, move || {
            let _span = info_span!("request").entered();
            let inside = ums::go_preemptive(EXTERNAL, move || {
                begun.send(()).unwrap();
                goes.recv().unwrap();
                let _away = info_span!("away").entered();
                ums::sleep(ms(1)).unwrap();
                around()
            });
            let coupled = ums::worker::couple(EXTERNAL).map(|_away| around());
            assert_eq!(coupled.is_ok(), kind != WorkerKind::Fiber);
            coupled.into_iter().for_each(|around| assert_eq!(around, ["request"]));
            assert_eq!(around(), ["request"]);
            inside
        });
        begins.recv().unwrap();
        assert_eq!(on(node, n - 1, around), [""; 0]);
        on(node, n - 1, || {
            let _span = info_span!("other").entered();
            ums::yield_now();
            assert_eq!(around(), ["other"]);
            assert_eq!(ums::spawn(around).join().unwrap(), [""; 0]);
        });
        go.send(()).unwrap();
        // Where a hidden scheduler runs the closure, its own spans are outside.
        let mut inside = away.join().unwrap();
        inside.retain(|name| name != "runtime.spawn");
        assert_eq!(inside, ["request", "away"]);
        let panics = start(node, n - 1, || {
            let _span = info_span!("odd request").entered();
            ums::go_preemptive(EXTERNAL, || {
                let away = info_span!("away");
                std::mem::forget(away.enter());
                panic_any(around())
            })
        });
        assert!(panics.join().is_err());
        let after = on(node, n - 1, || (around(), ums::go_preemptive(EXTERNAL, around)));
        assert_eq!(after.0, [""; 0]);
        assert_eq!(after.1, [""; 0]);
    });
}

#[test]
fn a_future_is_in_its_spans_while_it_is_polled() {
    use tracing::instrument::Instrument;
    followed(|node, n| {
        on(node, n - 1, || {
            let (to, from) = bounded::<u64>(1);
            let reads = async move {
                let mut all = vec![around()];
                while from.recv_async().await.is_ok() {
                    all.push(around());
                }
                all
            };
            let task = spawn_future(reads.instrument(info_span!("future")));
            let _span = info_span!("sender").entered();
            for i in 0..3 {
                to.send(i).unwrap();
                ums::yield_now();
                assert_eq!(around(), ["sender"]);
            }
            drop(to);
            let read = task.join().unwrap();
            assert!(read.iter().all(|around| *around == ["future"]), "{read:?}");
            let here = block_on(async { around() }.instrument(info_span!("here")));
            assert_eq!(here.unwrap(), ["sender", "here"]);
        });
    });
}

/// Returns the innermost span that the calling thread is inside.
fn current() -> Option<&'static str> {
    Span::current().metadata().map(|of| of.name())
}

#[test]
fn a_layer_in_an_option_or_a_list_finds_its_subscriber() {
    for how in ["option", "vec"] {
        let out = run_child("each_event_is_in_the_spans_of_its_own_worker", how);
        assert!(out.status.success(), "{how}: {}", String::from_utf8_lossy(&out.stderr));
    }
}

#[test]
fn a_yield_that_panics_leaves_the_worker_in_its_spans() {
    followed(|node, n| {
        on(node, n - 1, || {
            let _span = info_span!("outer").entered();
            let inner = info_span!("inner").entered();
            #[cfg(debug_assertions)]
            {
                let _held = ums::sync::foreign(());
                assert!(std::panic::catch_unwind(ums::yield_now).is_err());
            }
            assert_eq!(around(), ["outer", "inner"]);
            let (tell, told) = std::sync::mpsc::channel();
            let (read, write) = rustix::pipe::pipe().unwrap();
            rustix::fs::fcntl_setfl(&read, rustix::fs::OFlags::NONBLOCK).unwrap();
            rustix::io::write(&write, b"x").unwrap();
            let routine = move |_: std::io::Result<usize>, _: Vec<u8>| {
                tell.send(std::panic::catch_unwind(ums::yield_now).is_err()).unwrap();
            };
            Request::read(read, vec![0; 1], CURRENT, routine).submit();
            let mut refused = None;
            eventually("the routine has run", || {
                refused = told.try_recv().ok();
                assert_eq!(around(), ["outer", "inner"]);
                refused.is_some()
            });
            assert_eq!(refused, Some(true));
            drop(inner);
            assert_eq!(around(), ["outer"]);
        });
    });
}

#[test]
fn a_routine_runs_outside_the_spans_of_a_worker_that_leaves() {
    followed(|node, n| {
        on(node, n - 1, || {
            let (tell, told) = std::sync::mpsc::channel();
            let (read, write) = rustix::pipe::pipe().unwrap();
            rustix::fs::fcntl_setfl(&read, rustix::fs::OFlags::NONBLOCK).unwrap();
            let routine = move |_: std::io::Result<usize>, _: Vec<u8>| {
                tell.send(current()).unwrap();
            };
            let _span = info_span!("request").entered();
            Request::read(read, vec![0; 1], CURRENT, routine).submit();
            rustix::io::write(&write, b"x").unwrap();
            let mut seen = None;
            eventually("the routine has run", || {
                ums::go_preemptive(EXTERNAL, || ());
                seen = told.try_recv().ok();
                seen.is_some()
            });
            assert_eq!((seen, around()), (Some(None), vec!["request".to_owned()]));
        });
    });
}

#[test]
fn a_result_that_is_dropped_after_its_request_leaves_no_span() {
    struct Forgets;
    impl Drop for Forgets {
        fn drop(&mut self) {
            let span = info_span!("forgotten");
            std::mem::forget(span.enter());
        }
    }
    record();
    for kind in kinds() {
        let one = |b: ums::Builder| b.schedulers(1).max_workers(1);
        one_kind(kind, one, |node| {
            let (go, goes) = std::sync::mpsc::channel::<()>();
            let task = start(node, 0, move || {
                goes.recv().unwrap();
                Forgets
            });
            drop(task);
            go.send(()).unwrap();
            assert_eq!(on(node, 0, || (current(), around())).1, [""; 0]);
        });
        let _turn = turn();
        nothing_is_left();
    }
}

#[test]
fn a_wait_may_end_while_its_spans_are_exited() {
    followed(|node, n| {
        on(node, n - 1, || {
            let event = std::sync::Arc::new(ums::sync::Event::manual(false));
            let theirs = event.clone();
            *CALL.lock() = Some(Box::new(move || {
                std::thread::spawn(move || theirs.set()).join().unwrap();
            }));
            let _span = info_span!("calls").entered();
            assert_eq!(event.wait(), Ok(()));
            assert!(CALL.lock().is_none(), "it was called");
            assert_eq!(around(), ["calls"]);
        });
    });
}
