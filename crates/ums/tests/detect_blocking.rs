//! Undeclared blocking calls in a program that interposes them. Those of thread workers are noticed
//! with `Builder::detect_blocking`, those of workers with their own context always.
//!
//! Unsafe because the program interposes functions of the C library; see `ums::watch::calls`.

#![allow(unsafe_code)] // Named invariant **Contract**, see there.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ums::node::Placement;
use ums::{Builder, Node};

ums::interpose!();

/// Runs `blocks` on a scheduler, and then gives the same scheduler a short request. Returns whether
/// the request ended before `blocks` returned, and how often a worker went preemptive.
fn beside(detect: bool, blocks: impl FnOnce() + Send + 'static) -> (bool, u64) {
    beside_on(|builder| builder.detect_blocking(detect), blocks)
}

fn beside_on(
    options: impl FnOnce(Builder) -> Builder,
    blocks: impl FnOnce() + Send + 'static,
) -> (bool, u64) {
    let builder = Node::builder().schedulers(1).placement(Placement::AlwaysPreferred);
    let node = options(builder).build().unwrap();
    let (begun, back) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (mine, end) = (begun.clone(), back.clone());
    let blocker = node.spawn_on(0, move || {
        mine.store(true, Ordering::SeqCst);
        blocks();
        end.store(true, Ordering::SeqCst);
        // The worker has rejoined its scheduler: a yield needs the baton.
        ums::yield_now();
    });
    let patience = Instant::now();
    while !begun.load(Ordering::SeqCst) {
        assert!(patience.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(1));
    }
    let seen = back.clone();
    let early = node.spawn_on(0, move || !seen.load(Ordering::SeqCst)).unwrap().join().unwrap();
    blocker.unwrap().join().unwrap();
    let switches = node.snapshot().schedulers[0].counters.preemptive_switches;
    node.shutdown(Duration::from_secs(10));
    (early, switches)
}

const LONG: Duration = Duration::from_millis(300);

#[test]
fn an_undeclared_sleep_hands_the_baton_on_and_the_worker_rejoins() {
    assert_eq!(beside(true, || std::thread::sleep(LONG)), (true, 1));
}

#[test]
fn without_detection_and_taking_over_an_undeclared_sleep_holds_the_scheduler_up() {
    let options = |builder: Builder| builder.take_over_blocked(false);
    assert_eq!(beside_on(options, || std::thread::sleep(LONG)), (false, 0));
}

#[test]
fn an_undeclared_read_that_waits_hands_the_baton_on_and_one_that_does_not_stays() {
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(b"x").unwrap();
    // Created here, because on a busy machine the creation of a thread may block, too.
    let (begun, begins) = std::sync::mpsc::channel();
    let writes = std::thread::spawn(move || {
        begins.recv().unwrap();
        std::thread::sleep(LONG);
        writer.write_all(b"y").unwrap();
    });
    let seen = beside(true, move || {
        begun.send(()).unwrap();
        let mut byte = [0];
        for expected in *b"xy" {
            reader.read_exact(&mut byte).unwrap();
            assert_eq!(byte[0], expected);
        }
    });
    writes.join().unwrap();
    assert_eq!(seen, (true, 1));
}

#[test]
fn the_error_of_an_undeclared_call_survives_the_return_to_the_scheduler() {
    beside(true, || {
        // SAFETY: Contract: there is no such child, so the call fails.
        let waited = unsafe { libc::waitpid(i32::MAX, std::ptr::null_mut(), 0) };
        let error = std::io::Error::last_os_error().raw_os_error();
        assert_eq!((waited, error), (-1, Some(libc::ECHILD)));
        std::thread::sleep(LONG);
    });
}

#[test]
fn workers_with_their_own_context_couple_for_calls_that_will_or_may_block_and_for_no_others() {
    if let Some(why) = ums::probe::own_contexts_are_refused() {
        ums::testing::skipped("own-context", why);
        return;
    }
    let on_own = |blocks: Box<dyn FnOnce() + Send>| beside_on(Builder::own_context_workers, blocks);
    assert_eq!(on_own(Box::new(|| std::thread::sleep(LONG))), (true, 1));
    let child = || {
        let mut child = std::process::Command::new("sleep").arg("0.3").spawn().unwrap();
        assert!(child.wait().unwrap().success());
    };
    let (early, switches) = on_own(Box::new(child));
    assert!(early && switches >= 1, "{switches}");
    let ready = || {
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(b"x").unwrap();
        assert_eq!(reader.read(&mut [0]).unwrap(), 1);
    };
    assert_eq!(on_own(Box::new(ready)).1, 0);
}

extern "C" fn sleeps_a_little(_: i32) {
    // SAFETY: Contract: the argument is a number.
    unsafe { libc::usleep(2000) };
}

/// The signal may have interrupted the allocator, and a turn may allocate.
#[test]
fn a_call_that_blocks_in_a_signal_handler_of_a_thread_worker_takes_no_turn_there() {
    let action = sleeps_a_little as extern "C" fn(i32) as usize;
    // SAFETY: Contract: the handler makes one call, and the only signal is the one that is sent
    // below.
    unsafe { libc::signal(libc::SIGUSR1, action) };
    let node = Node::builder().schedulers(1).detect_blocking(true).build().unwrap();
    let task = node.spawn_on(0, || {
        // SAFETY: Contract: the argument is a number.
        unsafe { libc::raise(libc::SIGUSR1) };
        ums::yield_now();
    });
    task.unwrap().join().unwrap();
    let counters = &node.snapshot().schedulers[0].counters;
    assert_eq!(counters.undeclared_calls, 0, "the handler left by a turn of its own");
    node.shutdown(Duration::from_secs(10));
}
