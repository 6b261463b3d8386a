//! The sources and destinations of reports: slow I/O that workers notice themselves; and reports as
//! events, as text and as calls of the program's function.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ums::monitor::Condition;
use ums::node::IoChoice;
use ums::{Builder, Node, WorkerKind};

use super::common::watching::*;
use super::common::*;
use super::{Nap, assert_names, both_watched, stalls};

#[test]
fn slow_io_and_a_submission_that_blocks_are_reported_with_their_caller_b50_b51() {
    for (io, condition) in
        [(IoChoice::Epoll, Condition::SlowIo), (IoChoice::Sync, Condition::SlowSubmission)]
    {
        let told = Told::default();
        // Longer than this block, so that the block itself is not reported as a stall.
        let options = stalls().stall(ms(100));
        let build = |b: Builder| watched(b.schedulers(1).io(io), options, &told);
        one_kind(WorkerKind::Thread, build, |node| {
            ums::io::set_slow_after(ms(10));
            guilty_open(node, ms(250));
            ums::io::set_slow_after(Duration::from_secs(15));
            eventually("it is reported", || told.all().iter().any(|r| r.condition == condition));
            std::thread::sleep(ms(200));
            let all: Vec<_> = told.all().into_iter().filter(|r| r.condition == condition).collect();
            assert_eq!(all.len(), 1, "{all:#?}");
            assert!(all[0].lasted >= ms(100), "{}", all[0]);
            assert_names(&all[0], "opens_a_slow_file");
            assert!(all[0].diagnosis.exonerates());
        });
    }
}

#[test]
fn what_happens_while_the_monitor_is_held_up_is_counted_b38_b51() {
    let (go, held) = std::sync::mpsc::channel::<()>();
    let held = Mutex::new(held);
    let options = stalls().stall(ms(20)).on_report(move |_| {
        let _ = held.lock().unwrap().recv();
    });
    let build = |b: Builder| b.schedulers(1).io(IoChoice::Sync).monitor(options);
    one_kind(WorkerKind::Thread, build, |node| {
        let slow = || {
            let counts = node.monitor_counts();
            let of = |c: &ums::monitor::ConditionCount| c.reports + c.suppressed;
            counts.iter().filter(|c| c.condition == Condition::SlowSubmission).map(of).sum::<u64>()
        };
        let opened = 45;
        for _ in 0..opened {
            guilty_open(node, ms(60));
        }
        drop(go);
        // A few opens may not have been slow, because the other side was already there.
        eventually("all are counted", || slow() > opened - 5);
        assert!(slow() <= opened);
    });
}

#[inline(never)]
fn opens_a_slow_file(path: &std::path::Path) {
    drop(std::hint::black_box(ums::fs::File::open(path).unwrap()));
}

/// Opens a named pipe whose other side a plain thread opens after this time.
fn guilty_open(node: &Node, after: Duration) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let there = path.clone();
    let other = std::thread::spawn(move || {
        std::thread::sleep(after);
        std::fs::OpenOptions::new().write(true).open(there).unwrap();
    });
    on(node, 0, move || opens_a_slow_file(&path));
    other.join().unwrap();
}

/// Records the fields of the monitor's events, and panics at reports.
struct Collector(Arc<Mutex<Vec<HashMap<String, String>>>>);

impl tracing::Subscriber for Collector {
    fn enabled(&self, about: &tracing::Metadata<'_>) -> bool {
        about.target() == "ums::monitor"
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Fields(HashMap<String, String>);
        impl tracing::field::Visit for Fields {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0.insert(field.name().to_owned(), format!("{value:?}"));
            }
        }
        let mut fields = Fields(HashMap::new());
        event.record(&mut fields);
        let is_report = fields.0.contains_key("condition");
        self.0.lock().unwrap().push(fields.0);
        assert!(!is_report, "on purpose");
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn a_report_is_an_event_and_text_and_panics_of_its_receivers_do_no_harm_b38() {
    if child_errand().is_some() {
        let events = Arc::default();
        tracing::subscriber::set_global_default(Collector(Arc::clone(&events))).unwrap();
        let calls = Arc::new(AtomicU64::new(0));
        let c = calls.clone();
        let options = stalls().stderr(true).on_report(move |_| {
            c.fetch_add(1, SeqCst);
            panic!("on purpose");
        });
        let node = build(WorkerKind::Thread, |b| {
            b.schedulers(1).take_over_blocked(false).monitor(options)
        });
        for round in 1..=2 {
            let nap = Nap::start(&node);
            eventually("the callback was called", || calls.load(SeqCst) == round);
            nap.end();
        }
        let events = events.lock().unwrap();
        let stalls: Vec<_> = events.iter().filter(|e| e.contains_key("condition")).collect();
        assert_eq!(stalls.len(), 2, "{events:#?}");
        assert_eq!(stalls[0]["condition"], "\"STALL\"");
        assert_eq!(stalls[0]["scheduler"], "0");
        assert!(stalls[0]["message"].contains("guilty_nap"), "{stalls:#?}");
        println!("as expected");
        return;
    }
    let me = "reports::a_report_is_an_event_and_text_and_panics_of_its_receivers_do_no_harm_b38";
    let output = run_child(me, "go");
    assert!(String::from_utf8_lossy(&output.stdout).contains("as expected"), "{output:?}");
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().find(|line| line.starts_with("ums: STALL: scheduler 0, worker 1 has"));
    assert!(
        line.is_some_and(
            |line| line.contains("it sleeps in a system call, which should go preemptive, in ")
        ),
        "{text}"
    );
    assert!(text.contains("ums:   at ") && text.contains("guilty_nap"), "{text}");
}

#[test]
fn too_many_reports_are_counted_and_not_delivered_b38() {
    both_watched(
        1,
        || stalls().stall(ms(30)).per_minute(2),
        |b| b,
        |node, told, _| {
            let count = |what: fn(&ums::monitor::ConditionCount) -> u64| {
                node.monitor_counts().iter().map(what).sum::<u64>()
            };
            for n in 1..=4 {
                let nap = Nap::start(node);
                eventually("it is found", || count(|c| c.reports + c.suppressed) == n);
                nap.end();
            }
            assert_eq!((count(|c| c.reports), count(|c| c.suppressed)), (2, 2));
            assert_eq!(told.len(), 2);
        },
    );
}
