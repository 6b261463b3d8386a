//! The event ring, traces made from it, and the events printed after a crash (B43).
//!
//! Named invariant **Signal**: the address that is written to belongs to no object.

#![allow(unsafe_code)] // For the harness, and one fault.

mod common;

use std::collections::HashMap;
use std::io::Read;
use std::process::Stdio;
use std::sync::Arc;

use common::*;
use ums::stats::{Cell, RingEvent, Trace, TraceEvent, View};
use ums::sync::Mutex;
use ums::{Node, WaitReason, WorkerKind};

fn of(events: &[TraceEvent], event: RingEvent) -> usize {
    events.iter().filter(|e| e.event == event).count()
}

#[test]
fn a_scheduler_records_what_it_does_in_order_b43() {
    for kind in kinds() {
        one_kind(
            kind,
            |b| b.schedulers(1),
            |node| {
                let request = start(node, 0, || {
                    let sibling = ums::spawn(ums::yield_now);
                    ums::yield_now();
                    ums::sleep(ms(2)).unwrap();
                    ums::go_preemptive(WaitReason::PREEMPTIVE_EXTERNAL, || ());
                    sibling.join().unwrap();
                });
                let id = request.request_id();
                request.join().unwrap();
                eventually("it sleeps", || node.snapshot().schedulers[0].is_idle);
                let trace = node.last_events();
                assert_eq!(trace.lost, 0);
                let mine: Vec<_> =
                    trace.events.iter().copied().filter(|e| e.scheduler == 0).collect();
                assert!(mine.is_sorted_by_key(|e| e.number), "{mine:#?}");
                assert!(mine.is_sorted_by_key(|e| e.at_ns), "{mine:#?}");
                let begun = mine
                    .iter()
                    .position(|e| e.event == RingEvent::Start && u64::from(e.detail) == id);
                let worker = mine[begun.expect("the request has begun")].worker;
                let sleep = WaitReason::SLEEP.index() as u32;
                let slept = mine.iter().position(|e| {
                    (e.event, e.worker, e.detail) == (RingEvent::Wait, worker, sleep)
                });
                assert!(begun < slept, "{mine:#?}");
                let woken = mine
                    .iter()
                    .skip(slept.unwrap())
                    .find(|e| e.event == RingEvent::Wake && e.worker == worker);
                assert!(woken.is_some(), "{mine:#?}");
                // Each switch that the scheduler itself counts is recorded.
                let counted = node.snapshot().schedulers[0].counters.context_switches as usize;
                assert!(of(&mine, RingEvent::Switch) >= counted, "{counted}: {mine:#?}");
                assert_eq!(of(&mine, RingEvent::Finish), 2);
                if kind == WorkerKind::Thread {
                    assert_eq!(of(&mine, RingEvent::Leave), 1);
                    assert_eq!(of(&mine, RingEvent::Home), 1);
                }
                assert!(of(&mine, RingEvent::Sleep) >= 1);
                let table = node.view(View::Ring);
                assert!(table.rows.iter().any(|row| row.contains(&Cell::from("SLEEP"))));
            },
        );
    }
}

#[test]
fn schedulers_record_unless_that_is_turned_off_b43() {
    let events = |options: fn(ums::Builder) -> ums::Builder, some: bool| {
        both_kinds_with(options, |node, _, _| {
            node.run(|| ums::sleep(ms(1))).unwrap();
            assert_eq!(!node.last_events().events.is_empty(), some);
            assert_eq!(!node.view(View::Ring).rows.is_empty(), some);
        });
    };
    events(|b| b, true);
    events(|b| b.event_ring(false), false);
}

#[test]
fn a_trace_of_a_process_that_does_nothing_has_its_schedulers_and_one_without_rings_is_refused_b43()
{
    use std::io::{Read, Write};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let ask = |format: &str| {
        let mut client = std::os::unix::net::UnixStream::connect(&path).unwrap();
        writeln!(client, "trace {format} 30").unwrap();
        let mut bytes = Vec::new();
        client.read_to_end(&mut bytes).expect("a whole answer");
        String::from_utf8_lossy(&bytes).into_owned()
    };
    for ring in [true, false] {
        let at = ums::stats::StatsSocket::At(path.clone());
        let options = |b: ums::Builder| b.schedulers(2).event_ring(ring);
        one_kind(WorkerKind::Thread, options, |node| {
            node.serve_stats(at).unwrap();
            let asleep = || node.snapshot().schedulers.iter().all(|s| s.is_idle);
            eventually("all sleep", asleep);
            for format in ["perfetto", "chrome"] {
                let answer = ask(format);
                let refused = answer.contains("{\"error\":") && answer.contains("rings are off");
                let named = (0..2).all(|n| answer.contains(&format!("scheduler {n}")));
                assert_eq!((named, refused), (ring, !ring), "{format}: {answer}");
            }
        });
    }
}

/// Two workers on two schedulers lock a mutex in turn.
fn contend(node: &Node) {
    let mutex = Arc::new(Mutex::new(0u32));
    let one = |scheduler| {
        let mutex = mutex.clone();
        start(node, scheduler, move || {
            for _ in 0..60 {
                let mut held = mutex.lock();
                *held += 1;
                ums::sleep(ms(1)).unwrap();
                drop(held);
                ums::yield_now();
            }
        })
    };
    let both = [one(0), one(1)];
    both.into_iter().for_each(|task| task.join().unwrap());
}

/// Returns how many wakes have their two ends in different processes of the trace; each process
/// stands for a scheduler.
fn wakes_across(trace: &Trace) -> usize {
    let json = trace.to_chrome_json();
    let ends = |phase: &str| {
        let start = format!("{{\"ph\":\"{phase}\",\"pid\":");
        let lines = json.lines().filter_map(|line| {
            let rest = line.strip_prefix(&start)?;
            let id = rest.split("\"id\":").nth(1)?.split(',').next()?;
            Some((id.to_owned(), rest.split(',').next()?.to_owned()))
        });
        lines.collect::<HashMap<_, _>>()
    };
    let (from, to) = (ends("s"), ends("f"));
    to.iter().filter(|(id, pid)| from.get(*id).is_some_and(|other| other != *pid)).count()
}

#[test]
fn a_trace_shows_how_a_contended_mutex_goes_from_scheduler_to_scheduler_b43() {
    for kind in kinds() {
        one_kind(
            kind,
            |b| b.schedulers(2),
            |node| {
                // On a busy computer little happens in a short time.
                let record = |span: &u64| {
                    let (recorder, span) = (node.clone(), ms(*span));
                    let recording = std::thread::spawn(move || recorder.record_trace(span));
                    contend(node);
                    Some(recording.join().unwrap()).filter(|trace| wakes_across(trace) > 5)
                };
                let trace = [150, 1_500, 15_000].iter().find_map(record);
                let trace = trace.expect("more than five wakes from scheduler to scheduler");
                let json = trace.to_chrome_json();
                assert!(json.contains("\"name\":\"waits MUTEX\""), "{kind:?}: {json}");
                assert!(!trace.to_perfetto().is_empty());
            },
        );
    }
}

/// Dies of a signal on a thread whose thread-local data cannot be read.
fn die_without_thread_locals() -> ! {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: Signal: the process dies of it, on purpose, before anything reads a thread-local.
    unsafe {
        const ARCH_SET_FS: i64 = 0x1002;
        std::arch::asm!(
            "syscall",
            "ud2",
            in("rax") libc::SYS_arch_prctl,
            in("rdi") ARCH_SET_FS,
            in("rsi") 0,
            options(noreturn),
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("not asked for here");
}

/// Dies with events of eight schedulers, whose lines are more than a small pipe holds.
fn die_with_many_events() -> ! {
    ums::stats::print_last_events_on_crash();
    let node = build(WorkerKind::Fiber, |b| b.schedulers(8));
    for i in 0..8 {
        (0..8).for_each(|_| on(&node, i, || ums::sleep(ms(1)).unwrap()));
    }
    std::process::abort();
}

#[test]
fn a_process_that_dies_gives_the_reader_of_its_stderr_some_time_b43() {
    if child_errand().is_some() {
        die_with_many_events();
    }
    // Returns how many events the reader has got, which begins late, or after the death.
    let events = |begins_late: bool| {
        let me = "a_process_that_dies_gives_the_reader_of_its_stderr_some_time_b43";
        let (mut reader, writer) = std::io::pipe().unwrap();
        rustix::pipe::fcntl_setpipe_size(&writer, 4096).unwrap();
        let mut command = child(me, "");
        let mut process = command.stdout(Stdio::null()).stderr(writer).spawn().unwrap();
        drop(command);
        match begins_late {
            true => std::thread::sleep(ms(100)),
            false => assert!(!process.wait().unwrap().success()),
        }
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        process.wait().unwrap();
        text.lines().filter(|line| line.starts_with("ums: scheduler ")).count()
    };
    // On a busy computer the reader may be too late. There is a hidden scheduler, too.
    assert!((0..10).any(|_| events(true) > 8 * 16), "a reader gets all events");
    let kept = events(false);
    assert!((1..8 * 16).contains(&kept), "{kept} events fit into the pipe");
}

#[test]
fn a_process_that_dies_prints_the_last_events_of_its_schedulers_b43() {
    if let Some(errand) = child_errand() {
        ums::stats::print_last_events_on_crash();
        let node = build(WorkerKind::Fiber, |b| b.schedulers(2));
        on(&node, 1, || ums::sleep(ms(1)).unwrap());
        on(&node, 0, move || {
            ums::sleep(ms(1)).unwrap();
            match errand.as_str() {
                "abort" => std::process::abort(),
                "no thread-locals" => die_without_thread_locals(),
                // SAFETY: Signal: the write kills the process, on purpose.
                _ => unsafe { std::ptr::null_mut::<u8>().write_volatile(1) },
            }
        });
        return;
    }
    // Without thread-locals the C library faults when it raises the signal again.
    for (errand, signal) in [("abort", 6), ("fault", 11), ("no thread-locals", 11)] {
        // A simulated world is found by a thread-local; and only there is it known how to hide one.
        let possible = cfg!(all(target_arch = "x86_64", not(feature = "sim")));
        if errand == "no thread-locals" && !possible {
            continue;
        }
        let me = "a_process_that_dies_prints_the_last_events_of_its_schedulers_b43";
        let output = run_child(me, errand);
        let text = String::from_utf8_lossy(&output.stderr);
        let died = std::os::unix::process::ExitStatusExt::signal(&output.status);
        assert_eq!(died, Some(signal), "{errand}: {text}");
        for scheduler in 0..2 {
            let start = format!("ums: scheduler {scheduler}, ");
            let lines = text.lines().filter(|line| line.starts_with(&start));
            let said: Vec<_> = lines.collect();
            assert!((3..=16).contains(&said.len()), "{errand}: {text}");
            assert!(said.iter().any(|line| line.contains("us ago: WAIT worker 1 SLEEP")), "{text}");
        }
    }
}

#[test]
fn a_trace_that_is_being_recorded_delays_no_other_client_b43_b47() {
    use std::io::{Read, Write};
    fn all_of(mut from: impl Read + Write, question: &str) -> String {
        from.write_all(question.as_bytes()).unwrap();
        let mut text = String::new();
        from.read_to_string(&mut text).expect("a whole answer");
        text
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let at = ums::stats::StatsSocket::At(path.clone());
    one_kind(
        WorkerKind::Thread,
        |b| b.schedulers(1),
        |node| {
            node.serve_stats(at).unwrap();
            node.run(|| ums::sleep(ms(1))).unwrap();
            let server = node.serve_metrics("127.0.0.1:0".parse().unwrap()).unwrap();
            let address = server.local_addr();
            let http = || std::net::TcpStream::connect(address).unwrap();
            let unix = || std::os::unix::net::UnixStream::connect(&path).unwrap();
            std::thread::scope(|scope| {
                // These traces take longer than the test lasts, so they end because the server
                // does.
                let (client, other) = (http(), unix());
                let slow = scope
                    .spawn(move || all_of(client, "GET /trace.json?ms=60000 HTTP/1.0\r\n\r\n"));
                let also = scope.spawn(move || all_of(other, "trace chrome 60000\n"));
                for _ in 0..3 {
                    std::thread::sleep(ms(50));
                    let metrics = all_of(http(), "GET /metrics HTTP/1.0\r\n\r\n");
                    assert!(metrics.starts_with("HTTP/1.0 200 OK"), "{metrics}");
                    assert!(all_of(unix(), "ums_monitor\n").starts_with("{\"pid\":"));
                }
                assert!(!slow.is_finished() && !also.is_finished());
                // With 0 ms, both servers return the contents of the rings immediately.
                let held = all_of(unix(), "trace chrome 0\n");
                assert!(
                    held.starts_with("{\"displayTimeUnit\"") && held.contains("waits SLEEP"),
                    "{held}"
                );
                let held = all_of(http(), "GET /trace.json HTTP/1.0\r\n\r\n");
                assert!(
                    held.contains("application/json") && held.contains("waits SLEEP"),
                    "{held}"
                );
                drop(server);
                assert!(slow.join().unwrap().contains("\"traceEvents\":["));
                node.serve_stats(ums::stats::StatsSocket::At(dir.path().join("another"))).unwrap();
                assert!(also.join().unwrap().contains("\"traceEvents\":["));
            });
        },
    );
}
