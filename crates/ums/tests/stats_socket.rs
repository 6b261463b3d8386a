//! The statistics socket: its answers agree with the views, whatever the schedulers do meanwhile
//! (B47).

#![allow(unsafe_code)] // For the harness.

mod common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use common::*;
use ums::stats::{StatsSocket, View};

fn ask(path: &Path, question: &str) -> String {
    let mut client = UnixStream::connect(path).expect("it listens");
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    writeln!(client, "{question}").unwrap();
    let mut line = String::new();
    client.read_to_string(&mut line).expect("a whole answer");
    assert_eq!(line.find('\n'), Some(line.len() - 1), "one line: {line}");
    line
}

#[test]
fn the_statistics_socket_agrees_with_the_views_and_ends_with_the_node_b47() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    both_kinds(|node, _, n| {
        node.serve_stats(StatsSocket::At(path.clone())).unwrap();
        let sleeper = start(node, n - 1, || ums::sleep(Duration::from_secs(600)));
        eventually("it sleeps", || !node.view(View::WaitingTasks).rows.is_empty());
        let all = ask(&path, "*");
        for view in View::ALL {
            assert!(all.contains(&format!("\"{}\":[", view.empty().name)), "{all}");
        }
        let switches = node.view(View::ContextSwitches).to_json().replace('\n', "");
        let told = ask(&path, "ums_context_switches");
        assert!(told.contains(&format!("\"tables\":{{\"ums_context_switches\":{switches}}}")));
        let two = ask(&path, "ums_users ums_waiting_tasks");
        assert!(two.contains("\"ums_users\":[],\"ums_waiting_tasks\":[{"), "{two}");
        assert!(ask(&path, "?").contains("{\"name\":\"ums_monitor\",\"help\":"));
        assert_eq!(ask(&path, "ums_x"), "{\"error\":\"there is no view \\\"ums_x\\\"\"}\n");
        assert!(ask(&path, "").starts_with("{\"error\":"));
        sleeper.cancel();
        drop(sleeper.join());
    });
    assert!(!path.exists(), "the socket's file is removed with the node");
}

#[test]
fn the_statistics_socket_answers_when_every_scheduler_is_stuck_b47() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    each_alone(
        |b| b,
        |node, _, n| {
            node.serve_stats(StatsSocket::At(path.clone())).unwrap();
            let gates: Vec<_> = (0..n).map(|_| std::sync::Arc::new(StuckGate::default())).collect();
            let stuck: Vec<_> = gates
                .iter()
                .enumerate()
                .map(|(at, gate)| {
                    let gate = gate.clone();
                    start(node, at, move || gate.spin())
                })
                .collect();
            eventually("all run", || gates.iter().all(|gate| gate.has_begun()));
            let workers = ask(&path, "ums_workers");
            assert!(workers.contains("\"state\":\"RUNNING\""), "{workers}");
            gates.iter().for_each(|gate| gate.open());
            stuck.into_iter().for_each(|task| drop(task.join()));
        },
    );
}

/// Keeps a worker running, without a yield, until the gate is opened.
#[derive(Default)]
struct StuckGate {
    begun: std::sync::atomic::AtomicBool,
    open: std::sync::atomic::AtomicBool,
}

impl StuckGate {
    fn spin(&self) {
        self.begun.store(true, std::sync::atomic::Ordering::Release);
        while !self.open.load(std::sync::atomic::Ordering::Acquire) {
            // Keeps its scheduler, on purpose. A sleep would be detected, with its own context.
            std::thread::yield_now();
        }
    }

    fn has_begun(&self) -> bool {
        self.begun.load(std::sync::atomic::Ordering::Acquire)
    }

    fn open(&self) {
        self.open.store(true, std::sync::atomic::Ordering::Release);
    }
}

#[test]
fn idle_time_grows_while_a_scheduler_sleeps_and_stands_while_it_works_b47() {
    both_kinds(|node, _, n| {
        let idle = |at: usize| node.snapshot().schedulers[at].idle_ns;
        eventually("it sleeps", || node.snapshot().schedulers[n - 1].is_idle);
        let before = idle(n - 1);
        // Long enough for the rate of the ticks to be known.
        eventually("asleep, its time grows", || idle(n - 1) > before + 20_000_000);
        let (begun, ended) = on(node, n - 1, move || {
            let node = ums::Node::current().expect("on a worker");
            let idle = || node.snapshot().schedulers[n - 1].idle_ns;
            let begun = idle();
            spin(Duration::from_millis(20));
            (begun, idle())
        });
        assert_eq!(begun, ended, "awake");
    });
}
