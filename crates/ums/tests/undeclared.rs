//! Undeclared blocks of ordinary thread workers: direct system calls and page faults
//! (`Builder::detect_blocking`).
//!
//! Nothing is interposed here, so only the block watch can notice a block. The tests run with the
//! mechanism that this system offers, and again with the mechanism that needs no privilege.
//!
//! Unsafe because of direct system calls. Named invariant **Own Memory**: they get memory that the
//! test allocated and keeps.

#![allow(unsafe_code)]

mod common;
#[path = "common/faults.rs"]
mod faults;

use std::io::{PipeReader, Read, Write};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::dice::Dice;
use common::{Computing, bare_read, end, eventually, open_descriptors, spin, stress_time, turn};
use ums::node::Placement;
use ums::stats::SchedulerCounters;
use ums::watch::{Mechanism, mechanism};
use ums::{Builder, Node, WaitReason};

/// Returns whether this system can notice interposed calls only; if so, the test prints that it is
/// skipped.
fn only_calls() -> bool {
    let only = mechanism().unwrap() == Mechanism::Calls;
    if only {
        ums::testing::skipped("perf", "only interposed calls are noticed");
    }
    only
}

fn node(schedulers: usize, options: impl FnOnce(Builder) -> Builder) -> Node {
    let builder = Node::builder().schedulers(schedulers).detect_blocking(true);
    options(builder.placement(Placement::AlwaysPreferred)).build().unwrap()
}

fn counters(node: &Node, scheduler: usize) -> SchedulerCounters {
    node.snapshot().schedulers[scheduler].counters
}

/// Runs `blocks` on a scheduler. Calls `unblocks` when another task has run there, or after a
/// while. Returns whether the other task ran during the block, and the scheduler's counters.
fn beside(
    blocks: impl FnOnce() + Send + 'static,
    unblocks: impl FnOnce() + Send + 'static,
) -> (bool, SchedulerCounters) {
    let node = node(1, |b| b);
    let (begun, back) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (mine, over) = (begun.clone(), back.clone());
    let blocker = node.spawn_on(0, move || {
        mine.store(true, SeqCst);
        blocks();
        over.store(true, SeqCst);
        // The worker has rejoined its scheduler: a yield needs the baton.
        ums::yield_now();
        ums::sleep(Duration::from_millis(1)).unwrap();
    });
    eventually("it has begun", || begun.load(SeqCst));
    let other = node.spawn_on(0, move || !back.load(SeqCst)).unwrap();
    let patience = Instant::now();
    while !other.is_finished() && patience.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(1));
    }
    unblocks();
    let early = other.join().unwrap();
    blocker.unwrap().join().unwrap();
    let seen = counters(&node, 0);
    end(node);
    (early, seen)
}

#[test]
fn a_bare_read_of_an_empty_pipe_hands_the_baton_on_and_the_worker_rejoins() {
    let _turn = turn();
    if only_calls() {
        return;
    }
    let (reader, mut writer) = std::io::pipe().unwrap();
    let (early, seen) = beside(
        move || assert_eq!(bare_read(&reader), b'x'),
        move || writer.write_all(b"x").unwrap(),
    );
    assert!(early, "the other did not run before the read came back");
    assert!(seen.undeclared_blocks >= 1, "{seen:?}");
    assert_eq!((seen.undeclared_calls, seen.unwatched_workers), (0, 0));
    assert_eq!(seen.preemptive, 0, "it is back");
}

#[test]
fn a_page_fault_that_waits_hands_the_baton_on_and_is_counted_apart() {
    let _turn = turn();
    if only_calls() {
        return;
    }
    let Some(page) = faults::Page::new() else {
        ums::testing::skipped("userfaultfd", "the kernel refuses it");
        return;
    };
    let base = page.base();
    let (early, seen) =
        beside(move || assert_eq!(faults::Page::touch(base), 0), move || page.resolve());
    assert!(early, "the other did not run before the fault was over");
    assert!(seen.undeclared_faults >= 1, "{seen:?}");
}

#[test]
fn a_cold_mapping_is_read_right_whether_its_faults_are_noticed_or_not() {
    let _turn = turn();
    const PAGES: usize = 64;
    let mut file = tempfile::NamedTempFile::new_in(".").unwrap();
    file.write_all(&[7; PAGES * 4096]).unwrap();
    file.as_file().sync_all().unwrap();
    let node = node(1, |b| b);
    let read = node.spawn_on(0, move || {
        let fd = file.as_raw_fd();
        let size = PAGES * 4096;
        let mut sum = 0_u64;
        for _ in 0..20 {
            // SAFETY: Own Memory: a new mapping of our own file, unmapped at the end.
            unsafe {
                let at = std::ptr::null_mut();
                libc::posix_fadvise(fd, 0, size as i64, libc::POSIX_FADV_DONTNEED);
                let base = libc::mmap(at, size, libc::PROT_READ, libc::MAP_SHARED, fd, 0);
                assert_ne!(base, libc::MAP_FAILED);
                libc::madvise(base, size, libc::MADV_RANDOM);
                for page in 0..PAGES {
                    sum += u64::from(base.cast::<u8>().add(page * 4096).read_volatile());
                }
                libc::munmap(base, size);
            }
            ums::yield_now();
        }
        sum
    });
    assert_eq!(read.unwrap().join().unwrap(), 20 * 7 * PAGES as u64);
    println!("faults noticed: {}", counters(&node, 0).undeclared_faults);
    end(node);
}

/// Worker A blocks in a `read` that is not interposed, and is woken while worker B computes.
/// Returns whether A ran before B had yielded.
fn runs_without_the_baton() -> bool {
    let node = node(1, |b| b);
    let (reader, mut writer) = std::io::pipe().unwrap();
    let [read, begun] = std::array::from_fn(|_| Arc::new(AtomicBool::new(false)));
    let (mine, tell) = (read.clone(), begun.clone());
    let a = node.spawn_on(0, move || {
        tell.store(true, SeqCst);
        bare_read(&reader);
        mine.store(true, SeqCst);
        ums::yield_now();
    });
    eventually("the reader has begun", || begun.load(SeqCst));
    let b = Computing::on(&node);
    writer.write_all(b"x").unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let early = read.load(SeqCst);
    b.end();
    a.unwrap().join().unwrap();
    assert!(read.load(SeqCst));
    end(node);
    early
}

#[test]
fn a_woken_worker_runs_nothing_before_it_has_the_baton_and_would_without_its_gate() {
    let _turn = turn();
    if only_calls() {
        return;
    }
    assert!(!runs_without_the_baton(), "the gate leaks");
    // The positive control: with the gate switched off, the same harness must report a leak.
    ums::watch::switch_gate(false);
    let leaked = runs_without_the_baton();
    ums::watch::switch_gate(true);
    assert!(leaked, "the harness does not notice a missing gate");
}

/// The worker that runs on a scheduler, as its tasks report. A task that returns from a block
/// writes its number here, computes for a moment, and must still find its number.
#[derive(Default)]
struct Owner(AtomicUsize);

impl Owner {
    fn compute(&self, me: usize, loops: u64) -> u64 {
        self.0.store(me, SeqCst);
        (0..loops).filter(|_| self.0.load(SeqCst) != me).take(1).count() as u64
    }
}

/// Does one random thing between two computations.
fn step(dice: &mut Dice, pipe: &PipeReader, lock: &ums::sync::Mutex<u64>, plain: &Mutex<u64>) {
    let short = Duration::from_micros(20 + dice.roll(200));
    match dice.roll(9) {
        0 => assert_eq!(bare_read(pipe), b'x'),
        1 | 2 => std::thread::sleep(short),
        3 => ums::sleep(short).unwrap(),
        4 => {
            *lock.lock() += 1;
            ums::yield_now();
        }
        5 => {
            // The lock is held during a block, so other tasks that lock it block undeclared, too.
            let mut count = plain.lock().unwrap();
            std::thread::sleep(short);
            *count += 1;
        }
        6 => {
            let reason = WaitReason::PREEMPTIVE_EXTERNAL;
            ums::go_preemptive(reason, || std::thread::sleep(short));
        }
        7 => assert_eq!(ums::spawn(|| 1).join().unwrap(), 1),
        _ => ums::yield_now(),
    }
}

/// Runs many tasks that block in every way. Returns the number of violations and the number of
/// blocks that were noticed.
fn stress(schedulers: usize, tasks: usize, time: Duration) -> (u64, u64) {
    let node = node(schedulers, |b| b.max_workers(schedulers * 40));
    let owners: Arc<Vec<Owner>> = Arc::new((0..schedulers).map(|_| Owner::default()).collect());
    let (lock, plain) = (Arc::new(ums::sync::Mutex::new(0)), Arc::new(Mutex::new(0)));
    let (violations, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let mut feeds = Vec::new();
    let tasks: Vec<_> = (0..tasks)
        .map(|me| {
            let (reader, writer) = std::io::pipe().unwrap();
            feeds.push(writer);
            let (owners, lock, plain) = (owners.clone(), lock.clone(), plain.clone());
            let (violations, stop) = (violations.clone(), stop.clone());
            let work = move || {
                let mut dice = Dice(me as u64 * 77 + 1);
                while !stop.load(SeqCst) {
                    step(&mut dice, &reader, &lock, &plain);
                    let at = ums::worker::scheduler_id().expect("a worker on its scheduler");
                    violations.fetch_add(owners[at].compute(me, dice.roll(500)), SeqCst);
                }
            };
            node.spawn_on(me % schedulers, work).unwrap()
        })
        .collect();
    let began = Instant::now();
    let mut dice = Dice(5);
    let all = || (0..schedulers).map(|at| counters(&node, at));
    let noticed = || all().map(|c| c.undeclared_blocks + c.undeclared_faults).sum::<u64>();
    // On a busy computer the watcher thread may get no processor for a while.
    let patience = time + Duration::from_secs(30);
    while tasks.iter().any(|task| !task.is_finished()) {
        let enough = || began.elapsed() >= patience || noticed() > 0;
        stop.store(began.elapsed() >= time && enough(), SeqCst);
        let n = dice.roll(feeds.len() as u64) as usize;
        let _ = feeds[n].write_all(b"x");
        std::thread::sleep(Duration::from_micros(100));
        assert!(began.elapsed() < patience + Duration::from_secs(60), "a worker was lost");
    }
    for task in tasks {
        task.join().unwrap();
    }
    all().for_each(|c| assert_eq!((c.preemptive, c.unwatched_workers), (0, 0)));
    let noticed = noticed();
    end(node);
    (violations.load(SeqCst), noticed)
}

/// For a longer run: `UMS_STRESS_SECS=60 cargo test -p ums --test undeclared no_instruction --
/// --nocapture`.
#[test]
fn no_instruction_without_the_baton_whatever_blocks_with_1_and_2_schedulers() {
    let _turn = turn();
    if only_calls() {
        return;
    }
    let time = stress_time(1.0);
    let before = open_descriptors();
    for (schedulers, tasks) in [(1, 6), (2, 32)] {
        let (violations, noticed) = stress(schedulers, tasks, time);
        println!(
            "{}: {tasks} tasks on {schedulers} schedulers, {noticed} undeclared blocks, \
             {violations} violations",
            mechanism().unwrap().name()
        );
        assert_eq!(violations, 0);
        assert!(noticed > 0, "nothing was noticed");
    }
    eventually("no descriptor is left", || open_descriptors() <= before);
}

#[test]
fn a_request_that_is_cancelled_while_it_blocks_sees_that_when_it_rejoins() {
    let _turn = turn();
    if only_calls() {
        return;
    }
    let node = node(1, |b| b);
    let (reader, mut writer) = std::io::pipe().unwrap();
    let task = node
        .spawn_on(0, move || {
            let before = ums::is_cancelled();
            bare_read(&reader);
            (before, ums::is_cancelled(), ums::sleep(Duration::from_secs(60)).is_err())
        })
        .unwrap();
    eventually("it blocks", || counters(&node, 0).preemptive == 1);
    task.cancel();
    writer.write_all(b"x").unwrap();
    assert_eq!(task.join().unwrap(), (false, true, true));
    end(node);
}

#[test]
fn a_shutdown_waits_for_a_blocked_worker_and_gives_up_one_that_never_rejoins() {
    let _turn = turn();
    if only_calls() {
        return;
    }
    let blocked = || {
        let node = node(1, |b| b);
        let (reader, writer) = std::io::pipe().unwrap();
        let back = Arc::new(AtomicBool::new(false));
        let mine = back.clone();
        let task = node.spawn_on(0, move || {
            bare_read(&reader);
            ums::yield_now();
            mine.store(true, SeqCst);
        });
        drop(task.unwrap());
        eventually("it blocks", || counters(&node, 0).preemptive == 1);
        (node, writer, back)
    };
    let (node, mut writer, back) = blocked();
    let later = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        writer.write_all(b"x").unwrap();
    });
    end(node);
    assert!(back.load(SeqCst));
    later.join().unwrap();

    let (node, mut writer, back) = blocked();
    let report = node.shutdown(Duration::from_millis(50));
    assert_eq!(report.left, 1);
    assert!(!back.load(SeqCst));
    writer.write_all(b"x").unwrap();
    eventually("it ends after all", || back.load(SeqCst));
}

#[test]
fn a_panic_after_rejoining_is_the_requests_own() {
    let _turn = turn();
    if only_calls() {
        return;
    }
    let node = node(1, |b| b);
    let (reader, mut writer) = std::io::pipe().unwrap();
    let task = node.spawn_on(0, move || {
        bare_read(&reader);
        panic!("after rejoining");
    });
    eventually("it blocks", || counters(&node, 0).preemptive == 1);
    writer.write_all(b"x").unwrap();
    assert!(task.unwrap().join().is_err());
    // The scheduler serves other requests as before.
    assert_eq!(node.spawn_on(0, || 3).unwrap().join().unwrap(), 3);
    end(node);
}

#[test]
fn an_undeclared_block_does_not_lift_the_limit_of_preemptive_workers_b30() {
    let _turn = turn();
    if only_calls() {
        return;
    }
    let node = node(1, |b| b.preemptive_limit(1));
    let (reader, mut writer) = std::io::pipe().unwrap();
    let blocker = node.spawn_on(0, move || bare_read(&reader));
    eventually("it blocks", || counters(&node, 0).preemptive == 1);
    let away = Arc::new(AtomicBool::new(false));
    let mine = away.clone();
    let declared = node.spawn_on(0, move || {
        ums::go_preemptive(WaitReason::PREEMPTIVE_EXTERNAL, || mine.store(true, SeqCst));
    });
    std::thread::sleep(Duration::from_millis(50));
    assert!(!away.load(SeqCst), "one is away already");
    writer.write_all(b"x").unwrap();
    blocker.unwrap().join().unwrap();
    declared.unwrap().join().unwrap();
    assert!(away.load(SeqCst));
    end(node);
}

#[test]
fn a_lock_that_a_worker_at_its_gate_holds_delays_a_routine_and_no_more() {
    let _turn = turn();
    if only_calls() {
        return;
    }
    let node = node(1, |b| b);
    let lock = Arc::new(Mutex::new(0));
    let (pipe, mut feed) = std::io::pipe().unwrap();
    let (holder, routines) = (lock.clone(), lock.clone());
    let (mut blocks, mut wakes) = std::io::pipe().unwrap();
    let [held, computes, fed] = std::array::from_fn(|_| Arc::new(AtomicBool::new(false)));
    let tell = held.clone();
    let task = node.spawn_on(0, move || {
        let fd = pipe.as_raw_fd();
        // The routine runs inside another worker's turn, and waits there for a lock that this
        // worker holds.
        ums::testing::when_readable(fd, move |_| *routines.lock().unwrap() += 1);
        let mut count = holder.lock().unwrap();
        tell.store(true, SeqCst);
        blocks.read_exact(&mut [0]).unwrap();
        *count += 10;
        drop(count);
        drop(pipe);
        ums::yield_now();
    });
    let (tell, told) = (computes.clone(), fed.clone());
    // The other task runs when the first has blocked. No worker looks for completion routines until
    // it yields.
    let other = node.spawn_on(0, move || {
        tell.store(true, SeqCst);
        while !told.load(SeqCst) {
            std::hint::spin_loop();
        }
        wakes.write_all(b"x").unwrap();
        // Meanwhile the first task gets to its gate. Then the yield runs the routine.
        spin(Duration::from_millis(20));
        ums::yield_now();
    });
    eventually("the lock is held", || held.load(SeqCst));
    eventually("the other computes", || computes.load(SeqCst));
    feed.write_all(b"x").unwrap();
    fed.store(true, SeqCst);
    other.unwrap().join().unwrap();
    task.unwrap().join().unwrap();
    eventually("the routine has run", || *lock.lock().unwrap() == 11);
    let seen = counters(&node, 0);
    assert!(seen.workers_lent >= 1, "{seen:?}");
    end(node);
}

#[test]
fn workers_that_are_not_detected_are_not_watched() {
    let _turn = turn();
    let node = Node::builder().schedulers(1).build().unwrap();
    let watched = node.spawn_on(0, || {
        std::thread::sleep(Duration::from_millis(5));
        ums::watch::calls::is_watched()
    });
    assert!(!watched.unwrap().join().unwrap());
    let seen = counters(&node, 0);
    assert_eq!(seen.undeclared_blocks + seen.undeclared_faults + seen.undeclared_calls, 0);
    end(node);
}

/// Runs all tests of this file again, with the mechanism that needs no privilege.
#[test]
fn the_same_holds_with_the_breakpoint_gate() {
    if std::env::var_os("UMS_WATCH").is_some() {
        return;
    }
    let _turn = turn();
    if let Err(text) = Mechanism::Breakpoint.try_here() {
        ums::testing::skipped("breakpoint", text);
        return;
    }
    let exe = std::env::current_exe().unwrap();
    let output = std::process::Command::new(exe).env("UMS_WATCH", "breakpoint").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
}
