//! The library's reports agree with each other and with an independent count: umsstats, wait
//! statistics, queue times, user accounts and Prometheus are compared with a scripted workload
//! (B44-B47).

#![allow(unsafe_code)] // For the harness.

mod common;

use std::collections::HashMap;
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use common::*;
use ums::node::Placement;
use ums::stats::{Cell, Table, View, WAIT_BUCKETS, WaitClass};
use ums::user::UserLock;
use ums::{Node, WaitReason};

/// Returns the metrics in Prometheus's format, as numbers by `name{labels}`.
fn scrape(node: &Node) -> HashMap<String, f64> {
    let server = node.serve_metrics("127.0.0.1:0".parse().unwrap()).expect("a port and a thread");
    let text = get(&server, "/metrics");
    let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.starts_with("HTTP/1.0 200 OK"), "{head}");
    let lines = body.lines().filter(|line| !line.starts_with('#'));
    let number = |line: &str| {
        let (name, value) = line.rsplit_once(' ').expect("a name and a value");
        (name.to_owned(), value.parse().expect("a number"))
    };
    lines.map(number).collect()
}

fn get(server: &ums::stats::MetricsServer, path: &str) -> String {
    let mut client = std::net::TcpStream::connect(server.local_addr()).expect("it listens");
    write!(client, "GET {path} HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
    let mut text = String::new();
    client.read_to_string(&mut text).expect("a whole answer");
    text
}

/// Returns this column's cell in the first row with this key.
fn cell(table: &Table, key: &Cell, column: &str) -> i64 {
    let at = table.columns.iter().position(|c| c.name == column).expect(column);
    let row = table.rows.iter().find(|row| row[0] == *key).expect("a row with this key");
    match row[at] {
        Cell::Int(n) => n,
        ref other => panic!("{column} is {other:?}"),
    }
}

/// The counts of a script in which users sleep, take turns with a lock, go preemptive and yield.
#[derive(Default)]
struct Script {
    requests: AtomicU64,
    sleeps: AtomicU64,
    externals: AtomicU64,
    yields: AtomicU64,
}

fn external() -> WaitReason {
    WaitReason::register("PREEMPTIVE_SCRIPT", WaitClass::External)
}

const USERS: u64 = 6;
const ROUNDS: u64 = 8;

fn play(node: &Node, script: &Arc<Script>) -> Vec<ums::User> {
    let users: Vec<_> = (0..USERS).map(|_| node.user()).collect();
    let lock = Arc::new(UserLock::new());
    for _ in 0..ROUNDS {
        let one = |user: &ums::User| {
            let (script, lock, id) = (script.clone(), lock.clone(), user.id());
            let request = move || {
                script.requests.fetch_add(1, SeqCst);
                ums::sleep(ms(1)).unwrap();
                script.sleeps.fetch_add(1, SeqCst);
                lock.acquire(id, None).unwrap();
                ums::yield_now();
                script.yields.fetch_add(1, SeqCst);
                lock.release(id);
                ums::go_preemptive(external(), || script.externals.fetch_add(1, SeqCst));
            };
            user.enqueue(request).expect("the node takes work")
        };
        let round: Vec<_> = users.iter().map(one).collect();
        round.into_iter().for_each(|request| request.join().unwrap());
    }
    users
}

#[test]
fn all_statistics_agree_with_each_other_and_with_the_script_b44_b45_b47() {
    both_kinds_with(
        |b| b.max_workers(8).placement(Placement::AlwaysPreferred),
        |node, kind, n| {
            let script = Arc::new(Script::default());
            let before = totals(node);
            node.reset_waits();
            let users = play(node, &script);
            settled(node);

            let seen = node.snapshot();
            let wait = |reason| seen.waits.iter().find(|w| w.reason == reason).expect("it waited");
            // The script counted each of these itself.
            let sleep = wait(WaitReason::SLEEP);
            assert_eq!(script.requests.load(SeqCst), USERS * ROUNDS);
            assert_eq!((sleep.begun, sleep.count), (script.sleeps.load(SeqCst), sleep.begun));
            let outside = wait(external());
            assert_eq!(outside.count, script.externals.load(SeqCst), "{kind:?}");
            let after = totals(node);
            assert!(after.yields - before.yields >= script.yields.load(SeqCst));

            // Each request appears once in the THREADPOOL waits and once in its user's account.
            let pool = wait(WaitReason::THREADPOOL);
            let errands = if kind == ums::WorkerKind::Fiber { outside.count } else { 0 };
            assert_eq!(pool.count, USERS * ROUNDS + errands, "{kind:?}");
            let rows: Vec<_> =
                seen.users.iter().filter(|row| users.iter().any(|u| u.id() == row.id)).collect();
            assert_eq!(rows.len() as u64, USERS);
            assert!(rows.iter().all(|row| row.requests_done == ROUNDS && !row.is_busy));
            let queued: u64 = rows.iter().map(|row| row.queued_ns).sum();
            assert!(queued <= pool.total_ns + USERS, "{queued} of {}", pool.total_ns);
            let longest = rows.iter().map(|row| row.queued_max_ns).max().unwrap();
            assert!(longest <= pool.max_ns + 1);

            // For each reason, the users' waits add up to the schedulers' waits.
            for reason in [WaitReason::SLEEP, WaitReason::LCK_M_X, external()] {
                let all = seen.waits.iter().find(|w| w.reason == reason);
                let mine =
                    rows.iter().flat_map(|row| row.waits.iter().filter(|w| w.reason == reason));
                let (count, total) = mine.fold((0, 0), |(c, t), w| (c + w.count, t + w.total_ns));
                assert_eq!(count, all.map_or(0, |w| w.count), "{reason:?}");
                let off = total.abs_diff(all.map_or(0, |w| w.total_ns));
                assert!(off <= USERS + total / 1000, "{reason:?}: {off} ns of {total}");
            }
            assert_parts_add_up(&seen, n);
            // umsstats says the same, and so does Prometheus.
            compare_texts(node);
            drop(users);
        },
    );
}

/// The buckets of each wait add up to its count, and the causes of context switches to their sum,
/// scheduler by scheduler.
fn assert_parts_add_up(seen: &ums::stats::Snapshot, schedulers: usize) {
    for wait in &seen.waits {
        assert_eq!(wait.buckets.iter().sum::<u64>(), wait.count, "{wait:?}");
        assert!(wait.quantile_ns(0.5) <= wait.quantile_ns(0.99), "{wait:?}");
    }
    for s in &seen.schedulers {
        let causes = seen.switches.iter().filter(|c| c.scheduler == s.id);
        let sum: u64 = causes.map(|c| c.count).sum();
        assert_eq!(sum, s.counters.context_switches, "scheduler {} of {schedulers}", s.id);
    }
}

/// Waits until the node is at rest, so that no counter changes any more.
fn settled(node: &Node) {
    eventually("every scheduler sleeps", || {
        let seen = node.snapshot();
        seen.schedulers.iter().all(|s| s.is_idle && s.load == 0)
    });
}

struct Totals {
    yields: u64,
}

fn totals(node: &Node) -> Totals {
    let yields = node.snapshot().schedulers.iter().map(|s| s.counters.yields).sum();
    Totals { yields }
}

/// Compares the numbers of umsstats, the views and Prometheus, with the node at rest.
fn compare_texts(node: &Node) {
    let metrics = scrape(node);
    let schedulers = node.view(View::Schedulers);
    let mut at = 0;
    for (name, value) in node.umsstats() {
        let column = match name.trim() {
            "Scheduler ID" => {
                at = value as usize;
                continue;
            }
            "num users" => "users",
            "num runnable" => "runnable_tasks_count",
            "num workers" => "current_workers_count",
            "idle workers" => "idle_workers_count",
            "work queued" => "work_queue_count",
            "cntxt switches" => "context_switches_count",
            "cntxt switches(idle)" => "idle_switches_count",
            other => panic!("{other} is no row of the original"),
        };
        assert_eq!(cell(&schedulers, &Cell::from(at), column) as f64, value, "{name}");
        let metric = format!("ums_schedulers_{column}{{scheduler_id=\"{at}\",name=\"{at}\"}}");
        assert_eq!(metrics[&metric], value, "{metric}");
    }
    for wait in node.snapshot().waits {
        let name = wait.reason.name();
        let labels = format!("{{wait_type=\"{name}\"}}");
        let metric = |what: &str| metrics[&format!("{what}{labels}")];
        assert_eq!(metric("ums_wait_stats_completed_waits"), wait.count as f64);
        assert_eq!(metric("ums_wait_seconds_count"), wait.count as f64);
        assert!((metric("ums_wait_seconds_sum") - wait.total_ns as f64 / 1e9).abs() < 1e-4);
        let buckets = metrics.keys().filter(|key| {
            key.starts_with(&format!("ums_wait_seconds_bucket{{wait_type=\"{name}\","))
        });
        assert_eq!(buckets.count(), WAIT_BUCKETS);
        let all = format!("ums_wait_seconds_bucket{{wait_type=\"{name}\",le=\"+Inf\"}}");
        assert_eq!(metrics[&all], wait.count as f64);
    }
}

#[test]
fn a_running_request_shows_what_it_waited_for_b20() {
    both_kinds(|node, _, n| {
        let gate = Gate::shut();
        let g = gate.clone();
        let request = start(node, n - 1, move || {
            ums::sleep(ms(5)).unwrap();
            ums::sleep(ms(5)).unwrap();
            g.pass();
        });
        let mine = || {
            let rows = node.snapshot().requests;
            rows.into_iter().find(|r| r.id == request.request_id())
        };
        let reason = || mine()?.reason;
        eventually("it waits at the gate", || reason() == Some(WaitReason::LCK_M_X));
        let row = mine().expect("it runs");
        let sleeps = row.waits.iter().find(|w| w.reason == WaitReason::SLEEP).expect("it slept");
        assert_eq!(sleeps.count, 2);
        assert!(sleeps.total_ns >= 9_000_000 && sleeps.max_ns <= sleeps.total_ns, "{sleeps:?}");
        assert!(row.elapsed_ns >= sleeps.total_ns, "{row:?}");
        let table = node.view(View::RequestWaits);
        let key = Cell::from(request.request_id());
        assert_eq!(cell(&table, &key, "completed_waits"), 2);
        gate.open();
        request.join().unwrap();
    });
}

#[test]
fn outstanding_io_can_be_seen_and_is_gone_when_it_is_done_b46() {
    both_kinds(|node, _, n| {
        let (reader, mut writer) = std::os::unix::net::UnixStream::pair().unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&reader);
        let mine = move |node: &Node| {
            let rows = node.snapshot().pending_io;
            rows.into_iter().find(|row| row.fd == Some(fd) && row.operation == "POLL IN")
        };
        let done = Arc::new(AtomicU64::new(0));
        let tell = done.clone();
        on(node, n - 1, move || {
            ums::testing::when_readable(fd, move |_| tell.store(1, SeqCst));
        });
        let row = mine(node).expect("it is outstanding");
        assert_eq!((row.scheduler, row.offset), (n - 1, None));
        let table = node.view(View::PendingIo);
        assert!(table.rows.iter().any(|r| r.contains(&Cell::from("POLL IN"))));
        writer.write_all(b"x").unwrap();
        eventually("its routine has run", || done.load(SeqCst) == 1);
        assert_eq!(mine(node), None);
        drop(reader);
    });
}

#[test]
fn the_metrics_server_answers_while_every_worker_is_stuck_b47() {
    one_kind(
        ums::WorkerKind::Thread,
        |b| b.schedulers(1),
        |node| {
            let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
            let s = stop.clone();
            let stuck = start(node, 0, move || {
                while !s.load(SeqCst) {
                    std::hint::spin_loop();
                }
            });
            let server = node.serve_metrics("127.0.0.1:0".parse().unwrap()).unwrap();
            // A client that sends nothing does not delay the others without end.
            let silent = std::net::TcpStream::connect(server.local_addr()).unwrap();
            assert!(get(&server, "/metrics").contains("ums_schedulers_load_factor"));
            drop(silent);
            let json = get(&server, "/json");
            assert!(json.contains("\"ums_schedulers\":[{\"scheduler_id\":0,"), "{json}");
            assert!(get(&server, "/else").starts_with("HTTP/1.0 404"));
            let mut rude = std::net::TcpStream::connect(server.local_addr()).unwrap();
            rude.write_all(b"POST / HTTP/1.0\r\n\r\n").unwrap();
            let mut text = String::new();
            rude.read_to_string(&mut text).unwrap();
            assert!(text.starts_with("HTTP/1.0 400"), "{text}");
            stop.store(true, SeqCst);
            stuck.join().unwrap();
        },
    );
}

#[test]
fn a_client_that_speaks_a_byte_now_and_then_does_not_keep_the_metrics_server_b47() {
    one_kind(
        ums::WorkerKind::Thread,
        |b| b.schedulers(1),
        |node| {
            let server = node.serve_metrics("127.0.0.1:0".parse().unwrap()).unwrap();
            let mut slow = std::net::TcpStream::connect(server.local_addr()).unwrap();
            // Sends a byte from time to time, for far longer than a client may take for its
            // request.
            let cut_off = (0..200).any(|_| {
                std::thread::sleep(ms(100));
                slow.write_all(b"G").is_err()
            });
            assert!(cut_off);
            assert!(get(&server, "/metrics").contains("ums_schedulers_load_factor"));
        },
    );
}

#[test]
fn a_wait_that_was_cancelled_before_it_began_counts_for_the_user_too_b20() {
    each_alone(
        |b| b,
        |node, _, _| {
            let user = node.user();
            let request = user.enqueue(|| {
                while !ums::is_cancelled() {
                    ums::yield_now();
                }
                assert!(ums::sleep(ms(60_000)).is_err());
            });
            let request = request.expect("the node takes work");
            eventually("it runs", || {
                let seen = node.snapshot().requests;
                seen.iter().any(|r| r.id == request.request_id() && r.worker.is_some())
            });
            request.cancel();
            request.join().unwrap();
            let seen = node.snapshot();
            let all = seen.waits.iter().find(|w| w.reason == WaitReason::SLEEP).expect("it slept");
            let mine = seen.users.iter().find(|u| u.id == user.id()).expect("it is alive");
            let mine = mine.waits.iter().find(|w| w.reason == WaitReason::SLEEP);
            assert_eq!((all.count, mine.map(|w| w.count)), (1, Some(1)));
        },
    );
}

#[test]
fn every_view_says_what_its_columns_mean_b44() {
    for view in View::ALL {
        let table = view.empty();
        assert!(table.name.starts_with("ums_") && table.help.ends_with('.'), "{table:?}");
        assert!(table.keys < table.columns.len() && table.rows.is_empty());
        for column in table.columns {
            assert!(column.help.ends_with('.'), "{}.{}", table.name, column.name);
        }
    }
}
