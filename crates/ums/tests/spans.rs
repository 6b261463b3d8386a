//! Spans: tokio-console shows workers and requests as tasks, and a span is entered exactly while
//! its worker or request runs.

#![allow(unsafe_code)] // For the harness.

mod common;

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::ThreadId;

use ums::lock::Lock;

use common::*;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Everything that the test's subscriber has collected.
#[derive(Default)]
struct Seen {
    spans: HashMap<u64, Kept>,
    /// For each thread, the spans that it is inside, the innermost last.
    inside: HashMap<ThreadId, Vec<u64>>,
    /// For each span, the operations on its waker.
    wakers: HashMap<u64, Vec<String>>,
    wrong: Vec<String>,
}

struct Kept {
    fields: HashMap<String, String>,
    parent: Option<u64>,
    entered: u64,
    closed: bool,
}

struct Collector;

static SEEN: Lock<Option<Seen>> = Lock::new(None);
static NEXT: AtomicU64 = AtomicU64::new(1);

fn seen<R>(f: impl FnOnce(&mut Seen) -> R) -> R {
    f(SEEN.lock().get_or_insert_default())
}

struct Fields(HashMap<String, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().into(), format!("{value:?}").trim_matches('"').into());
    }
}

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("tokio::task")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut fields = Fields(HashMap::new());
        span.record(&mut fields);
        let parent = span.parent().map(Id::into_u64);
        let kept = Kept { fields: fields.0, parent, entered: 0, closed: false };
        seen(|seen| {
            if span.metadata().name() != "runtime.spawn" {
                seen.wrong.push(format!("a span called {}", span.metadata().name()));
            }
            seen.spans.insert(id, kept);
        });
        Id::from_u64(id)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields(HashMap::new());
        event.record(&mut fields);
        let id = fields.0["task.id"].parse().expect("a span's number");
        seen(|seen| seen.wakers.entry(id).or_default().push(fields.0["op"].clone()));
    }

    fn enter(&self, span: &Id) {
        let (me, id) = (std::thread::current().id(), span.into_u64());
        seen(|seen| {
            seen.inside.entry(me).or_default().push(id);
            seen.spans.get_mut(&id).expect("it was made").entered += 1;
        });
    }

    fn exit(&self, span: &Id) {
        let (me, id) = (std::thread::current().id(), span.into_u64());
        seen(|seen| {
            let last = seen.inside.entry(me).or_default().pop();
            if last != Some(id) {
                seen.wrong.push(format!("left {id} while inside {last:?}"));
            }
        });
    }

    fn try_close(&self, span: Id) -> bool {
        seen(|seen| seen.spans.get_mut(&span.into_u64()).expect("it was made").closed = true);
        true
    }
}

/// Returns the fields of the spans that the calling thread is inside, the outermost first.
fn around() -> Vec<HashMap<String, String>> {
    let me = std::thread::current().id();
    seen(|seen| {
        let ids = seen.inside.get(&me).cloned().unwrap_or_default();
        ids.iter().map(|id| seen.spans[id].fields.clone()).collect()
    })
}

#[test]
fn workers_and_requests_are_tasks_that_are_entered_exactly_while_they_run() {
    tracing::subscriber::set_global_default(Collector).expect("there is no other");
    both_kinds(|node, kind, n| {
        let before = NEXT.load(Ordering::Relaxed);
        let users: Vec<_> = (0..3 * n).map(|_| node.user()).collect();
        let tasks: Vec<_> = users
            .iter()
            .map(|user| {
                let id = user.id();
                user.enqueue(move || {
                    for round in 0..20 {
                        match round % 3 {
                            0 => ums::yield_now(),
                            1 => ums::sleep(ms(1)).unwrap(),
                            _ => ums::go_preemptive(ums::WaitReason::PREEMPTIVE_EXTERNAL, || ()),
                        }
                        let around = around();
                        let names: Vec<_> =
                            around.iter().map(|fields| fields["task.name"].as_str()).collect();
                        assert_eq!(names.len(), 2, "a worker and its request: {names:?}");
                        assert!(names[0].starts_with("ums-"), "{names:?}");
                        assert_eq!(names[1], format!("user {id}"));
                        assert_eq!(around[1]["kind"], "request");
                        assert_eq!(around[1]["user.id"], id.to_string());
                    }
                })
                .unwrap()
            })
            .collect();
        tasks.into_iter().for_each(|task| task.join().unwrap());
        eventually("all requests are over", || node.stacks().is_empty());
        seen(|seen| {
            let ours = || seen.spans.iter().filter(|(id, _)| **id >= before);
            let requests = || ours().filter(|(_, span)| span.fields["kind"] == "request");
            let of_users = requests().filter(|(_, span)| span.fields["user.id"] != "0");
            // A fiber that goes preemptive makes a further request, so a user can have several.
            let names: std::collections::HashSet<_> =
                of_users.map(|(_, span)| span.fields["task.name"].clone()).collect();
            assert_eq!(names.len(), users.len());
            for (id, request) in requests() {
                assert!(request.closed && request.entered > 0, "{:?}", request.fields);
                let worker = &seen.spans[&request.parent.expect("inside its worker's")];
                let fiber = worker.fields["kind"] == "fiber worker";
                assert!(!fiber || kind == ums::WorkerKind::Fiber);
                assert_eq!(seen.wakers[id][0], "waker.clone");
            }
            let woken = |id: &u64| seen.wakers[id].iter().any(|op| op == "waker.wake_by_ref");
            assert!(requests().any(|(id, _)| woken(id)), "waits end by wakes");
        });
    });
    seen(|seen| {
        assert_eq!(seen.wrong, Vec::<String>::new());
        assert!(seen.inside.values().all(Vec::is_empty), "no thread is inside a span any more");
        assert!(seen.spans.values().all(|span| span.closed), "every worker's span is closed");
    });
}
