//! The monitor: it finds each condition once, with the right diagnosis and the guilty function. It
//! exonerates the workers of a starved process, and reports nothing about a healthy or idle one
//! (B31-B39, B50, B51).
//!
//! Each test provokes a condition until it is reported, so that a slow computer only makes the test
//! longer. Reports have lines of functions, so this program needs debug information.

#![allow(unsafe_code)] // For the harness.

#[path = "../common/mod.rs"]
mod common;
mod reports;

use std::io::Write;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use common::watching::*;
use common::*;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use ums::monitor::{Condition, Diagnosis, Options, Report, Thief};
use ums::{Builder, Node, WaitReason, WorkerKind};

/// Returns options that look for stalls of 60 ms and nothing else.
fn stalls() -> Options {
    nothing().stall(ms(60))
}

/// Runs the body with the monitor watching, with each kind of worker.
fn both_watched(
    schedulers: usize,
    options: impl Fn() -> Options,
    more: impl Fn(Builder) -> Builder,
    body: impl Fn(&Node, &Told, WorkerKind),
) {
    for kind in kinds() {
        let told = Told::default();
        let build = |b: Builder| watched(more(b.schedulers(schedulers)), options(), &told);
        one_kind(kind, build, |node| body(node, &told, kind));
    }
}

#[track_caller]
fn assert_names(report: &Report, function: &str) {
    let found = report.backtrace.iter().any(|frame| frame.name.contains(function));
    assert!(found, "{function} is not in {report}");
}

#[inline(never)]
fn guilty_computation(stop: &AtomicBool) -> u64 {
    let mut n = 0u64;
    while !stop.load(SeqCst) {
        n = std::hint::black_box(n.wrapping_mul(31).wrapping_add(1));
    }
    n
}

#[test]
fn a_worker_that_computes_is_found_once_and_by_name_b31_b33_b34() {
    both_watched(
        2,
        stalls,
        |b| b,
        |node, told, kind| {
            let stop = Arc::new(AtomicBool::new(false));
            let user = node.user();
            let s = stop.clone();
            let request =
                user.enqueue(move || (guilty_computation(&s), ums::worker::worker_id()).1).unwrap();
            let report = the_only(told);
            stop.store(true, SeqCst);
            assert_eq!(report.condition, Condition::Stall);
            assert_eq!(report.diagnosis, Diagnosis::Computes, "{report}");
            assert!(!report.diagnosis.exonerates());
            assert_names(&report, "guilty_computation");
            assert!(report.lasted >= ms(60));
            assert_eq!((report.user, report.request), (user.id(), request.request_id()));
            let worker = request.join().unwrap();
            assert_eq!(Some((report.scheduler, report.worker.unwrap())), worker, "{kind:?}");
            let thread = report.thread.as_ref().expect("a thread was looked at");
            assert!(thread.user >= thread.kernel && thread.state == 'R', "{report}");
            let counts = node.monitor_counts();
            assert_eq!(counts.iter().map(|c| c.reports).sum::<u64>(), 1);
            assert!(report.to_string().contains("STALL: scheduler"), "{report}");
        },
    );
}

#[inline(never)]
fn guilty_nap(wake: &std::sync::mpsc::Receiver<()>) -> bool {
    // Not the last thing that the function does, so that its frame is still there.
    std::hint::black_box(wake.recv().is_err())
}

/// A request on scheduler 0 that blocks its thread. It is found at any load, because it needs no
/// processor time.
struct Nap {
    wake: std::sync::mpsc::Sender<()>,
    request: ums::JoinHandle<bool>,
}

impl Nap {
    fn start(node: &Node) -> Nap {
        let (wake, woken) = std::sync::mpsc::channel();
        Nap { wake, request: start(node, 0, move || std::hint::black_box(guilty_nap(&woken))) }
    }

    fn end(self) {
        drop(self.wake);
        assert!(self.request.join().unwrap());
    }
}

#[test]
fn a_worker_that_blocks_its_thread_is_told_apart_b34() {
    both_watched(
        1,
        stalls,
        |b| b,
        |node, told, _| {
            let nap = Nap::start(node);
            let report = the_only(told);
            nap.end();
            assert_eq!(report.diagnosis, Diagnosis::Blocked, "{report}");
            assert_names(&report, "guilty_nap");
            assert!(report.function().is_some(), "{report}");
            assert_eq!(report.thread.as_ref().unwrap().state, 'S');
        },
    );
}

#[test]
fn a_worker_that_sleeps_for_a_short_lock_is_diagnosed_as_stuck_on_it_b34_b48() {
    both_watched(
        1,
        stalls,
        |b| b,
        |node, told, kind| {
            let is_stuck = || node.snapshot().workers.iter().any(|worker| worker.is_sick);
            let held = ums::testing::take_a_short_lock();
            let request = start(node, 0, || drop(ums::testing::take_a_short_lock()));
            let report = the_only(told);
            assert_eq!(report.diagnosis, Diagnosis::StuckOnShortLock, "{report}");
            assert!(report.to_string().contains("a lock that is held for moments"), "{report}");
            assert!(is_stuck(), "and is shown as such: {kind:?}");
            drop(held);
            request.join().unwrap();
            // The next block has another cause.
            let nap = Nap::start(node);
            eventually("it is reported", || told.len() == 2);
            assert!(!is_stuck(), "{kind:?}");
            nap.end();
            assert_eq!(told.all()[1].diagnosis, Diagnosis::Blocked, "{:#?}", told.all());
        },
    );
}

#[inline(never)]
fn guilty_reads(stop: &AtomicBool) {
    let mut bytes = vec![0u8; 1 << 20];
    let mut source = std::fs::File::open("/dev/urandom").unwrap();
    while !stop.load(SeqCst) {
        std::io::Read::read_exact(&mut source, &mut bytes).unwrap();
    }
}

#[test]
fn a_worker_that_works_in_the_kernel_is_told_apart_b34() {
    let longer = || stalls().stall(ms(200));
    both_watched(
        1,
        longer,
        |b| b,
        |node, told, _| {
            let stop = Arc::new(AtomicBool::new(false));
            let s = stop.clone();
            let request = start(node, 0, move || guilty_reads(&s));
            let report = the_only(told);
            stop.store(true, SeqCst);
            request.join().unwrap();
            assert_eq!(report.diagnosis, Diagnosis::InKernel, "{report}");
            assert_names(&report, "guilty_reads");
        },
    );
}

#[inline(never)]
fn guilty_executor(awaited: tokio::sync::oneshot::Receiver<u32>) -> u32 {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    std::hint::black_box(runtime.block_on(awaited).unwrap()) + 1
}

/// `block_on` of this crate parks only its worker.
#[test]
fn the_executor_of_another_runtime_that_blocks_a_scheduler_is_named_b34() {
    both_watched(
        1,
        stalls,
        |b| b,
        |node, told, _| {
            let (tell, awaited) = tokio::sync::oneshot::channel();
            let request = start(node, 0, move || guilty_executor(awaited));
            let report = the_only(told);
            tell.send(1).unwrap();
            assert_eq!(request.join().unwrap(), 2);
            assert_eq!(report.diagnosis, Diagnosis::Blocked, "{report}");
            assert_names(&report, "guilty_executor");
            assert_names(&report, "block_on");
        },
    );
}

#[test]
fn a_stall_that_lasts_is_non_yielding_and_reported_again_at_growing_intervals_b32_b38() {
    let options = || stalls().non_yield(ms(1000)).repeat(ms(100));
    both_watched(
        1,
        options,
        |b| b,
        |node, told, _| {
            let nap = Nap::start(node);
            eventually("it is reported four times", || told.len() >= 4);
            nap.end();
            let all = told.all();
            // The first report may come so late on a busy computer that it is already a
            // NON_YIELDING report.
            let in_time = all[0].lasted - all[0].stood_still < ms(1000);
            assert_eq!(all[0].condition == Condition::Stall, in_time, "{all:#?}");
            assert!(all[1..].iter().all(|r| r.condition == Condition::NonYielding), "{all:#?}");
            let gap = |at: usize| all[at + 1].lasted - all[at].lasted;
            assert!(gap(2) >= ms(400) && gap(1) >= ms(200), "{all:#?}");
        },
    );
}

#[test]
fn a_stall_that_is_non_yielding_when_it_is_found_is_reported_once_as_such_b32() {
    // This happens if the limit for stalls is longer than the one for non-yielding, and on a
    // starved computer.
    both_watched(
        1,
        || stalls().stall(ms(200)).non_yield(ms(100)),
        |b| b,
        |node, told, _| {
            let nap = Nap::start(node);
            eventually("it is reported", || told.len() > 0);
            // Long enough for the monitor to look many times and to resolve function names for
            // another report.
            std::thread::sleep(ms(1500));
            let report = the_only(told);
            nap.end();
            assert_eq!(report.condition, Condition::NonYielding, "{report}");
        },
    );
}

#[inline(never)]
fn guilty_routine(stop: &AtomicBool) -> u64 {
    std::hint::black_box(guilty_computation(stop)) + 1
}

#[test]
fn a_completion_routine_that_takes_long_is_found_and_named_b36() {
    both_watched(
        1,
        stalls,
        |b| b,
        |node, told, _| {
            let (reader, mut writer) = std::os::unix::net::UnixStream::pair().unwrap();
            let stop = Arc::new(AtomicBool::new(false));
            let (s, fd) = (stop.clone(), std::os::fd::AsRawFd::as_raw_fd(&reader));
            on(node, 0, move || {
                ums::testing::when_readable(fd, move |_| assert!(guilty_routine(&s) > 0));
            });
            writer.write_all(b"x").unwrap();
            let report = the_only(told);
            stop.store(true, SeqCst);
            assert_eq!(report.condition, Condition::SlowRoutine, "{report}");
            assert_eq!(report.diagnosis, Diagnosis::Computes, "{report}");
            assert_names(&report, "guilty_routine");
            // Once a request is served, the routine has ended.
            on(node, 0, || ());
        },
    );
}

#[test]
fn workers_that_all_wait_while_requests_are_queued_are_reported_with_their_reason_b37() {
    let options = || stalls().no_workers(ms(80));
    both_watched(
        1,
        options,
        |b| b.max_workers(3),
        |node, told, _| {
            let gate = Gate::shut();
            let waiters: Vec<_> = (0..3)
                .map(|_| {
                    let gate = gate.clone();
                    start(node, 0, move || gate.pass())
                })
                .collect();
            eventually("all workers wait", || gate.waiters() == 3);
            std::thread::sleep(ms(300));
            assert_eq!(told.len(), 0, "no request needs a worker: {:#?}", told.all());
            let late = start(node, 0, || ());
            let report = the_only(told);
            gate.open();
            waiters.into_iter().for_each(|w| w.join().unwrap());
            late.join().unwrap();
            assert_eq!(report.condition, Condition::NoWorkers);
            assert_eq!(report.diagnosis, Diagnosis::WaitsFor(WaitReason::LCK_M_X));
            assert_eq!(report.common_wait, Some(WaitReason::LCK_M_X));
            assert_eq!(report.queued, 1);
        },
    );
}

#[test]
fn a_node_whose_schedulers_pick_up_nothing_is_reported_once_as_a_whole_b35() {
    let options = || stalls().all_stuck(ms(200));
    both_watched(
        2,
        options,
        |b| b.max_workers(2),
        |node, told, _| {
            let gate = Gate::shut();
            let pass = |scheduler| {
                let gate = gate.clone();
                start(node, scheduler, move || gate.pass())
            };
            let mut all = vec![pass(0), pass(1)];
            eventually("both workers wait", || gate.waiters() == 2);
            all.push(pass(0));
            std::thread::sleep(ms(500));
            assert_eq!(told.len(), 0, "one scheduler has nothing to do: {:#?}", told.all());
            all.push(pass(1));
            let report = the_only(told);
            gate.open();
            all.into_iter().for_each(|w| w.join().unwrap());
            assert_eq!(report.condition, Condition::AllStuck);
            assert_eq!(report.diagnosis, Diagnosis::WaitsFor(WaitReason::LCK_M_X));
            assert_eq!(report.queued, 2);
        },
    );
}

#[test]
fn a_scheduler_that_cannot_create_workers_is_reported_as_such_b17_b37() {
    if let Some(errand) = child_errand() {
        let kind = kind_named(errand);
        let told = Told::default();
        let options = stalls().not_picked_up(ms(100));
        // Each mapping has room for one stack, and the address space has no room for another
        // mapping.
        let stack = 1 << 30;
        let node = build(kind, |b| watched(b.schedulers(1).stack_size(stack), options, &told));
        let gate = Gate::shut();
        let g = gate.clone();
        let first = start(&node, 0, move || g.pass());
        eventually("the first waits", || gate.waiters() == 1);
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let size = status.lines().find_map(|l| l.strip_prefix("VmSize:")).unwrap();
        let size: u64 = size.trim().trim_end_matches(" kB").trim().parse().unwrap();
        let limit = Some(size * 1024 + stack as u64 / 2);
        let limit = rustix::process::Rlimit { current: limit, maximum: None };
        rustix::process::setrlimit(rustix::process::Resource::As, limit).unwrap();
        let second = start(&node, 0, || ());
        let report = the_only(&told);
        assert_eq!(report.condition, Condition::NotPickedUp, "{report}");
        assert_eq!(report.diagnosis, Diagnosis::CannotCreateWorkers, "{report}");
        gate.open();
        second.join().unwrap();
        first.join().unwrap();
        println!("as expected");
        return;
    }
    for kind in kinds() {
        let me = "a_scheduler_that_cannot_create_workers_is_reported_as_such_b17_b37";
        let output = run_child(me, &format!("{kind:?}"));
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("as expected"), "{kind:?}: {output:?}");
    }
}

/// Other processes that keep this process's processors busy.
struct Hogs(Vec<Child>);

impl Hogs {
    fn start(count: usize) -> Hogs {
        let hog =
            || Command::new("timeout").args(["60", "sh", "-c", "while :; do :; done"]).spawn();
        Hogs((0..count).map(|_| hog().expect("timeout and sh are there")).collect())
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // `timeout` passes the signal on.
            let id = rustix::process::Pid::from_child(child);
            let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
            let _ = child.wait();
        }
    }
}

#[test]
fn a_starved_process_is_exonerated_b34_b39() {
    if let Some(errand) = child_errand() {
        let kind = kind_named(errand);
        // All run on one processor: this process, and two processes of higher priority that
        // compute.
        let mut one = CpuSet::new();
        let allowed = sched_getaffinity(None).unwrap();
        let cpu = (0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).unwrap();
        one.set(cpu);
        sched_setaffinity(None, &one).unwrap();
        let _hogs = Hogs::start(2);
        rustix::process::setpriority_process(None, 5).unwrap();
        let told = Told::default();
        let options = stalls().stall(ms(150)).starved(ms(300));
        let node = build(kind, |b| watched(b.schedulers(1), options, &told));
        let stop = Arc::new(AtomicBool::new(false));
        let s = stop.clone();
        // A worker without fault: it yields after some milliseconds of processor time.
        let request = start(&node, 0, move || {
            while !s.load(SeqCst) {
                let used = || {
                    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
                    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
                };
                let began = used();
                while used() - began < ms(50) {
                    std::hint::spin_loop();
                }
                ums::yield_now();
            }
        });
        eventually("it is reported", || told.len() > 0);
        stop.store(true, SeqCst);
        request.join().unwrap();
        for report in told.all() {
            assert_eq!(report.diagnosis, Diagnosis::Starved(Thief::Others), "{report}");
            assert!(report.diagnosis.exonerates());
            assert!(report.to_string().contains("not its fault"), "{report}");
        }
        println!("as expected");
        return;
    }
    for kind in kinds() {
        let _turn = turn();
        let output = run_child("a_starved_process_is_exonerated_b34_b39", &format!("{kind:?}"));
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("as expected"), "{kind:?}: {output:?}");
    }
}

#[test]
fn workers_that_do_nothing_wrong_are_not_reported_b31() {
    let options = || stalls().stall(ms(300)).no_workers(ms(500)).not_picked_up(ms(800));
    both_watched(
        2,
        options,
        |b| b.max_workers(16),
        |node, told, _| {
            let end = Instant::now() + ms(1000);
            let one = |n: u64| {
                start(node, (n % 2) as usize, move || {
                    while Instant::now() < end {
                        match n % 4 {
                            0 => ums::yield_now(),
                            1 => ums::sleep(ms(3)).unwrap(),
                            2 => {
                                spin(ms(2));
                                ums::yield_now();
                            }
                            _ => ums::go_preemptive(WaitReason::PREEMPTIVE_EXTERNAL, || {
                                std::thread::sleep(ms(400));
                            }),
                        }
                    }
                })
            };
            let all: Vec<_> = (0..12).map(one).collect();
            all.into_iter().for_each(|task| task.join().unwrap());
            assert_eq!(told.len(), 0, "{:#?}", told.all());
        },
    );
}

#[test]
fn workers_that_are_often_preemptive_or_idle_are_not_reported_b31() {
    both_watched(
        1,
        || stalls().stall(ms(100)).starved(ms(500)),
        // A worker that runs the idle loop spins instead of sleeping.
        |b| b.idle_spin(ms(300)),
        |node, told, _| {
            let gate = Gate::shut();
            let g = gate.clone();
            // While the other worker is preemptive, this waiting worker runs the idle loop.
            let waiter = start(node, 0, move || g.pass());
            eventually("it waits", || gate.waiters() == 1);
            let end = Instant::now() + ms(1000);
            on(node, 0, move || {
                while Instant::now() < end {
                    ums::go_preemptive(WaitReason::PREEMPTIVE_EXTERNAL, || ());
                }
            });
            std::thread::sleep(ms(500));
            assert_eq!(told.len(), 0, "{:#?}", told.all());
            gate.open();
            waiter.join().unwrap();
        },
    );
}

#[test]
fn the_monitor_sleeps_while_everything_does_and_wakes_when_something_does_b39() {
    both_watched(
        2,
        stalls,
        |b| b,
        |node, told, _| {
            on(node, 1, || ());
            eventually("it sleeps without waking", || {
                let before = switches_of_the_monitor();
                std::thread::sleep(ms(400));
                switches_of_the_monitor() == before
            });
            // The monitor still finds the next block.
            let nap = Nap::start(node);
            the_only(told);
            nap.end();
        },
    );
}
