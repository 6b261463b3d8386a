//! Backtraces of workers: whatever a worker waits for or does, its own functions are named. The
//! statistics socket and SIGUSR2 show the same (B40). This program needs debug information.

#![allow(unsafe_code)] // For the harness.

mod common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::*;
use ums::monitor::Frame;
use ums::stats::{StatsSocket, WorkerStack, WorkerState};
use ums::{Node, WaitReason, WorkerKind};

#[inline(never)]
fn waits_at_the_gate(gate: &Gate) {
    gate.pass();
    std::hint::black_box(gate);
}

#[inline(never)]
fn its_caller(gate: &Gate) {
    waits_at_the_gate(gate);
    std::hint::black_box(gate);
}

#[inline(never)]
fn computes_until(told: &AtomicBool) -> u64 {
    let mut turns = 0;
    while !told.load(Ordering::Relaxed) {
        turns += 1;
    }
    turns
}

#[inline(never)]
fn blocks_outside(told: &AtomicBool) {
    while !told.load(Ordering::Relaxed) {
        std::thread::sleep(ms(1));
    }
    std::hint::black_box(told);
}

/// Returns the only stack whose text names this function.
#[track_caller]
fn with<'a>(stacks: &'a [WorkerStack], function: &str) -> &'a WorkerStack {
    let names = |stack: &&WorkerStack| {
        stack.of_the_application().iter().any(|frame| frame.name.ends_with(function))
    };
    let mut found = stacks.iter().filter(names);
    let texts = || stacks.iter().map(|stack| format!("{stack}\n{:#?}", stack.frames));
    let first = found.next();
    let first = first.unwrap_or_else(|| panic!("{function} in {}", texts().collect::<String>()));
    assert!(found.next().is_none(), "{function} twice");
    first
}

#[test]
fn a_worker_that_waits_and_one_that_computes_are_seen_in_their_own_functions_b40() {
    each_alone(
        |b| b,
        |node, kind, n| {
            let (gate, told) = (Gate::shut(), Arc::new(AtomicBool::new(false)));
            let waiters: Vec<_> = (0..n)
                .map(|at| {
                    let gate = gate.clone();
                    start(node, at, move || its_caller(&gate))
                })
                .collect();
            eventually("all wait", || gate.waiters() == n);
            let (flag, begun) = (told.clone(), Arc::new(AtomicBool::new(false)));
            let begins = begun.clone();
            let computer = start(node, 0, move || {
                begins.store(true, Ordering::Release);
                computes_until(&flag)
            });
            eventually("it computes", || begun.load(Ordering::Acquire));

            let stacks = node.stacks();
            let running = with(&stacks, "computes_until");
            assert_eq!(running.worker.state, WorkerState::Running);
            assert_eq!(running.worker.scheduler, 0);
            let waiting: Vec<_> = stacks
                .iter()
                .filter(|stack| stack.worker.reason == Some(WaitReason::LCK_M_X))
                .collect();
            assert_eq!(waiting.len(), n);
            for stack in waiting {
                let names: Vec<_> =
                    stack.of_the_application().iter().map(|frame| frame.name.as_str()).collect();
                let at = |name: &str| names.iter().position(|other| other.ends_with(name));
                let (inner, outer) = (at("waits_at_the_gate"), at("its_caller"));
                assert!(inner.is_some() && inner < outer, "{names:?} of {:#?}", stack.frames);
                assert!(!names.iter().any(|name| name.contains("scheduler::")), "{names:?}");
                assert_eq!(stack.worker.kind, kind);
                let text = stack.to_string();
                assert!(text.contains(": WAITING LCK_M_X for "), "{text}");
                assert!(text.contains("; request "), "{text}");
            }
            let one = &stacks[0].worker;
            let again = node.stack_of(one.scheduler, one.id).expect("it is there");
            assert_eq!(again.worker.request, one.request);
            assert!(node.stack_of(0, 999).is_none() && node.stack_of(99, 1).is_none());

            told.store(true, Ordering::Release);
            computer.join().unwrap();
            gate.open();
            waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
            eventually("none is busy", || node.stacks().is_empty());
        },
    );
}

#[test]
fn a_worker_that_is_preemptive_is_seen_where_it_blocks_and_a_fiber_where_it_left_b40() {
    both_kinds(|node, kind, _| {
        let told = Arc::new(AtomicBool::new(false));
        let flag = told.clone();
        let away = start(node, 0, move || {
            ums::go_preemptive(WaitReason::PREEMPTIVE_PROCESS, || blocks_outside(&flag));
        });
        let is_out = |stack: &WorkerStack| stack.worker.state == WorkerState::Preemptive;
        eventually("it is out", || node.stacks().iter().any(is_out));
        eventually("it blocks", || {
            node.stacks().iter().any(|stack| stack.to_string().contains("blocks_outside"))
        });
        let stacks = node.stacks();
        let outside = with(&stacks, "blocks_outside");
        let goes_itself = if kind == WorkerKind::Fiber { WorkerKind::Thread } else { kind };
        assert_eq!(outside.worker.kind, goes_itself);
        let inside = stacks.iter().filter(|stack| stack.worker.kind == WorkerKind::Fiber).count();
        assert_eq!(inside, usize::from(kind == WorkerKind::Fiber));
        told.store(true, Ordering::Release);
        away.join().unwrap();
    });
}

#[inline(never)]
fn turns(gate: &Gate, until: &AtomicBool, rounds: usize) {
    for _ in 0..rounds {
        ums::yield_now();
        let _ = ums::sleep(Duration::from_micros(50));
        if !until.load(Ordering::Relaxed) {
            deeper(gate, 8);
        }
    }
}

#[inline(never)]
fn deeper(gate: &Gate, levels: usize) {
    if levels > 0 {
        deeper(gate, levels - 1);
    } else {
        ums::yield_now();
    }
    std::hint::black_box(gate);
}

/// While workers begin, end, wait and run all the time, no stack shows functions of another worker.
#[test]
fn stacks_of_workers_that_never_stand_still_are_their_own_b40() {
    both_kinds_with(
        |b| b.idle_worker_timeout(ms(5)),
        |node, _, n| {
            let (gate, until) = (Gate::shut(), Arc::new(AtomicBool::new(false)));
            let feeder = {
                let (node, gate, until) = (node.clone(), gate.clone(), until.clone());
                std::thread::spawn(move || {
                    for batch in 1.. {
                        if until.load(Ordering::Relaxed) {
                            return;
                        }
                        let tasks: Vec<_> = (0..16)
                            .map(|at| {
                                let (gate, until) = (gate.clone(), until.clone());
                                start(&node, at % n, move || turns(&gate, &until, 20))
                            })
                            .collect();
                        tasks.into_iter().for_each(|task| task.join().unwrap());
                        if batch % 8 == 0 {
                            std::thread::sleep(ms(12)); // Long enough to be trimmed.
                        }
                    }
                })
            };
            // Every stack is complete down to its outermost function, except those of the few
            // workers that were interrupted in the middle of a switch of stacks.
            const ROOTS: [&str; 3] = ["worker_main", "thread_seat", "fiber_root"];
            let (mut whole, mut broken) = (0, Vec::new());
            let began = std::time::Instant::now();
            while whole < 40 && began.elapsed() < PATIENCE {
                for stack in node.stacks() {
                    let is_root = |f: &Frame| ROOTS.iter().any(|root| f.name.contains(root));
                    match stack.frames.iter().any(is_root) {
                        true => whole += 1,
                        false if stack.frames.is_empty() => {}
                        false => broken.push(stack),
                    }
                }
            }
            assert!(whole >= 40, "{whole} stacks in {:?}", began.elapsed());
            assert!(broken.len() * 5 <= whole, "{:#?}", broken[0].frames);
            until.store(true, Ordering::Relaxed);
            feeder.join().unwrap();
        },
    );
}

#[test]
fn the_statistics_socket_returns_stacks_and_one_stack_b40() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let ask = |question: &str| {
        let mut client = UnixStream::connect(&path).expect("it listens");
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        writeln!(client, "{question}").unwrap();
        let mut line = String::new();
        client.read_to_string(&mut line).expect("a whole answer");
        line
    };
    each_alone(
        |b| b,
        |node, _, _| {
            node.serve_stats(StatsSocket::At(path.clone())).unwrap();
            let gate = Gate::shut();
            let inside = gate.clone();
            let waiter = start(node, 0, move || its_caller(&inside));
            eventually("it waits", || gate.waiters() == 1);
            let all = ask("stacks");
            assert!(all.contains("\"stacks\":[{\"scheduler_id\":0,"), "{all}");
            assert!(all.contains("waits_at_the_gate\",\"place\":\"stacks.rs:"), "{all}");
            let id = node.stacks()[0].worker.id;
            let one = ask(&format!("stack 0 {id}"));
            assert!(one.contains("waits_at_the_gate"), "{one}");
            let error = "{\"error\":\"scheduler 0 has no worker 999\"}\n";
            assert_eq!(ask("stack 0 999"), error);
            assert!(ask("stack 0").starts_with("{\"error\":\"name a worker by two numbers"));
            gate.open();
            waiter.join().unwrap();
        },
    );
}

#[test]
fn sigusr2_writes_stacks_to_stderr_and_the_process_continues_b40() {
    const NAME: &str = "sigusr2_writes_stacks_to_stderr_and_the_process_continues_b40";
    if child_errand().is_some() {
        return be_asked_by_signal();
    }
    let exe = std::env::current_exe().unwrap();
    let mut child = Command::new(exe)
        .args(["--exact", NAME, "--nocapture", "--test-threads=1"])
        .env("UMS_TEST_CHILD", "wait")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The pipes are kept open, because the child continues to write.
    let (mut stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    read_until(&mut stdout, "ready");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::USR2).unwrap();
    let text = read_until(&mut stderr, "its_caller");
    assert!(text.contains("ums: 1 worker, and "), "{text}");
    assert!(text.contains(": WAITING LCK_M_X for "), "{text}");
    assert!(text.contains("at stacks::waits_at_the_gate (stacks.rs:"), "{text}");
    drop(child.stdin.take());
    let told = read_until_end(&mut stdout);
    assert!(child.wait().unwrap().success(), "{told}");
}

fn be_asked_by_signal() {
    let _watch = Watchdog::start("to be asked by a signal".into());
    let node: Node = build(WorkerKind::Fiber, |b| b.schedulers(1));
    node.print_stacks_on_sigusr2().unwrap();
    let gate = Gate::shut();
    let inside = gate.clone();
    let waiter = start(&node, 0, move || its_caller(&inside));
    eventually("it waits", || gate.waiters() == 1);
    println!("ready");
    let mut end = String::new();
    std::io::stdin().read_line(&mut end).unwrap();
    gate.open();
    waiter.join().unwrap();
}

/// Returns the output up to this text. The child's watchdog limits the wait.
fn read_until(from: &mut impl Read, what: &str) -> String {
    let (mut text, mut part) = (Vec::new(), [0; 4096]);
    while !String::from_utf8_lossy(&text).contains(what) {
        let count = from.read(&mut part).unwrap();
        assert!(count > 0, "it ended before {what}: {}", String::from_utf8_lossy(&text));
        text.extend_from_slice(&part[..count]);
    }
    String::from_utf8_lossy(&text).into_owned()
}

fn read_until_end(from: &mut impl Read) -> String {
    let mut text = String::new();
    from.read_to_string(&mut text).unwrap();
    text
}
