//! Undeclared blocks of workers with their own context (`Builder::detect_blocking`) in system
//! calls. Without detection, such a call would block the kernel thread that hosts the worker, and
//! with it all other workers of the scheduler.
//!
//! Nothing is interposed here. Page faults are in `undeclared_own_faults.rs`.

mod common;

use std::io::{PipeReader, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::dice::Dice;
use common::{
    PATIENCE, bare_read, can_be_had, end, eventually, kernel_thread, open_descriptors, stress_time,
    turn,
};
use ums::node::Placement;
use ums::stats::SchedulerCounters;
use ums::{Node, WaitReason, WorkerKind};

fn node(detects: bool) -> Option<Node> {
    let builder = Node::builder().schedulers(1).placement(Placement::AlwaysPreferred);
    let builder = builder.own_context_workers().max_workers(64).detect_blocking(detects);
    can_be_had(WorkerKind::OwnContext).then(|| builder.build().unwrap())
}

fn counters(node: &Node) -> SchedulerCounters {
    node.snapshot().schedulers[0].counters
}

/// Returns the kernel thread that belongs to the calling worker. At other times the worker runs on
/// its host: the thread that carries its scheduler at that moment.
fn own_kernel_thread() -> i32 {
    let _away = ums::worker::couple(WaitReason::PREEMPTIVE_EXTERNAL).unwrap();
    kernel_thread()
}

/// Returns whether another task runs while one blocks in `read`, and the scheduler's counters.
fn beside_a_read(detects: bool) -> Option<(bool, SchedulerCounters)> {
    let node = node(detects)?;
    let (reader, mut writer) = std::io::pipe().unwrap();
    let begun = Arc::new(AtomicBool::new(false));
    let mine = begun.clone();
    let blocker = node.spawn_on(0, move || {
        let own = own_kernel_thread();
        mine.store(true, SeqCst);
        assert_eq!(bare_read(&reader), b'x');
        assert_ne!(kernel_thread(), own, "back on the host before its next instruction");
        ums::yield_now();
    });
    eventually("it has begun", || begun.load(SeqCst));
    let other = node.spawn_on(0, || ()).unwrap();
    let began = Instant::now();
    while !other.is_finished() && began.elapsed() < Duration::from_millis(500) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let early = other.is_finished();
    writer.write_all(b"x").unwrap();
    blocker.unwrap().join().unwrap();
    other.join().unwrap();
    eventually("it is back", || counters(&node).preemptive == 0);
    let seen = counters(&node);
    end(node);
    Some((early, seen))
}

#[test]
fn a_bare_read_lets_others_run_and_without_detection_it_does_not() {
    let _turn = turn();
    let Some((early, seen)) = beside_a_read(true) else { return };
    assert!(early, "the other did not run before the read came back");
    assert!(seen.undeclared_blocks >= 1, "{seen:?}");
    assert_eq!(seen.undeclared_calls, 0);
    // Without detection the other task does not run: the harness notices a block.
    let (early, seen) = beside_a_read(false).unwrap();
    assert!(!early && seen.undeclared_blocks == 0, "{seen:?}");
}

#[test]
fn a_lock_that_a_worker_of_the_same_scheduler_holds_over_a_wait_is_no_deadlock() {
    let _turn = turn();
    let Some(node) = node(true) else { return };
    let (lock, held) = (Arc::new(Mutex::new(0)), Arc::new(AtomicBool::new(false)));
    let (mine, theirs, tell) = (lock.clone(), lock.clone(), held.clone());
    let holder = node.spawn_on(0, move || {
        let mut count = mine.lock().unwrap();
        tell.store(true, SeqCst);
        let blocked = || counters(&Node::current().unwrap()).undeclared_blocks;
        while blocked() == 0 {
            ums::sleep(Duration::from_millis(1)).unwrap();
        }
        *count += 1;
    });
    eventually("it is held", || held.load(SeqCst));
    // Blocks the host, which the lock's holder needs to continue.
    let waiter = node.spawn_on(0, move || *theirs.lock().unwrap() += 1);
    holder.unwrap().join().unwrap();
    waiter.unwrap().join().unwrap();
    assert_eq!(*lock.lock().unwrap(), 2);
    assert!(counters(&node).undeclared_blocks >= 1);
    end(node);
}

fn one_step(dice: &mut Dice, pipe: &PipeReader) -> rustix::io::Result<()> {
    let nanoseconds = 1000 * (20 + dice.roll(200)) as i64;
    let short = rustix::time::Timespec { tv_sec: 0, tv_nsec: nanoseconds };
    match dice.roll(6) {
        0 => assert_eq!(bare_read(pipe), b'x'),
        1 => {
            use rustix::thread::NanosleepRelativeResult as Slept;
            match rustix::thread::nanosleep(&short) {
                Slept::Ok => {}
                Slept::Interrupted(_) => return Err(rustix::io::Errno::INTR),
                Slept::Err(error) => panic!("{error}"),
            }
        }
        2 => {
            let mut fds = [rustix::event::PollFd::new(pipe, rustix::event::PollFlags::PRI)];
            rustix::event::poll(&mut fds, Some(&short))?;
        }
        3 => ums::sleep(Duration::from_micros(dice.roll(300))).unwrap(),
        4 => ums::go_preemptive(WaitReason::PREEMPTIVE_EXTERNAL, || {
            assert_eq!(rustix::io::read(pipe, &mut [0]), Ok(1));
        }),
        _ => ums::yield_now(),
    }
    Ok(())
}

/// How many blocks a run without leaks must notice.
const ENOUGH: u64 = 100;

/// Many workers block in system calls at random. Between any two steps, each checks that it runs on
/// the host. Returns how often a worker was not on the host, how often a call was interrupted, and
/// how many blocks were noticed. With `leaks`, workers leave the host on purpose.
fn stress(time: Duration, leaks: bool) -> Option<(u64, u64, u64)> {
    const TASKS: u64 = 24;
    let node = node(true)?;
    let (stop, counts) = (Arc::new(AtomicBool::new(false)), Arc::<[AtomicU64; 3]>::default());
    let mut feeds = Vec::new();
    let tasks: Vec<_> = (0..TASKS)
        .map(|me| {
            let (pipe, feed) = std::io::pipe().unwrap();
            feeds.push(feed);
            let (stop, counts) = (stop.clone(), counts.clone());
            let work = move || {
                let [steps, violations, interrupted] = &*counts;
                let own = own_kernel_thread();
                let look = || violations.fetch_add((kernel_thread() == own).into(), SeqCst);
                let mut dice = Dice(me * 77 + 1);
                while !stop.load(SeqCst) {
                    look();
                    if one_step(&mut dice, &pipe).is_err() {
                        interrupted.fetch_add(1, SeqCst);
                    }
                    look();
                    if leaks {
                        let _away = ums::worker::couple(WaitReason::PREEMPTIVE_EXTERNAL).unwrap();
                        look();
                    }
                    (0..dice.roll(2000)).for_each(|_| std::hint::spin_loop());
                    look();
                    steps.fetch_add(1, SeqCst);
                }
            };
            node.spawn_on(0, work).unwrap()
        })
        .collect();
    let began = Instant::now();
    let mut dice = Dice(5);
    // On a busy computer few blocks are noticed in the time.
    let is_enough = || leaks || counters(&node).undeclared_blocks > ENOUGH;
    while began.elapsed() < time || (began.elapsed() < PATIENCE && !is_enough()) {
        let n = dice.roll(TASKS) as usize;
        let _ = feeds[n].write_all(b"x");
        std::thread::sleep(Duration::from_micros(100));
    }
    stop.store(true, SeqCst);
    // Feeds the workers that still read; the others have ended.
    for feed in &mut feeds {
        let _ = feed.write_all(&[b'x'; 4]);
    }
    tasks.into_iter().for_each(|task| task.join().unwrap());
    // The counter is updated at the next turn.
    eventually("no worker is preemptive", || counters(&node).preemptive == 0);
    let seen = counters(&node);
    end(node);
    let [steps, violations, interrupted] = [0, 1, 2].map(|n: usize| counts[n].load(SeqCst));
    let blocks = seen.undeclared_blocks;
    println!(
        "{steps} steps, {blocks} blocks noticed, {violations} violations, {interrupted} EINTR"
    );
    assert!(steps > 0);
    Some((violations, interrupted, blocks))
}

#[test]
fn no_instruction_off_the_host_except_where_it_was_asked_for() {
    let _turn = turn();
    let before = open_descriptors();
    let time = stress_time(2.0);
    let Some((violations, interrupted, blocks)) = stress(time, false) else { return };
    assert_eq!(violations, 0);
    assert!(blocks > ENOUGH, "{blocks}");
    // The signal for a blocked call may come so late that it interrupts the worker's next call,
    // which then fails with EINTR. That is rare, but less so where the processors are busy.
    assert!(interrupted * 10 < blocks, "{interrupted} of {blocks}");
    let (violations, ..) = stress(Duration::from_secs(1), true).unwrap();
    assert!(violations > 0, "the harness does not notice");
    eventually("descriptors are closed", || open_descriptors() <= before);
}
