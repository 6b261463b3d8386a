//! Tests of time, wake-ups and large numbers of operations.

use super::*;
use crate::os::lock::Lock;
use std::sync::atomic::{AtomicBool, Ordering};

pub fn a_wait_lasts_as_long_as_its_timeout_u72(mut rig: Rig) {
    let (a, _b) = rig.pair();
    rig.submit(1, a.poll_in());
    for timeout in [1, 300_000, 5_000_000, 1_000_000] {
        let start = Instant::now();
        rig.io.wait(Some(timeout), &mut rig.done);
        let waited = start.elapsed();
        assert!(waited >= Duration::from_nanos(timeout), "{waited:?} of {timeout} ns");
    }
    rig.io.wait(Some(0), &mut rig.done);
    assert_eq!(rig.done, []);
    rig.io.cancel(1);
    assert_eq!(rig.take(1), -libc::ECANCELED);
    rig.finish();
}

pub fn a_wake_from_another_thread_ends_the_wait_u74(mut rig: Rig) {
    for _ in 0..20 {
        let waker = rig.io.waker();
        let woken = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(1));
                woken.store(true, Ordering::SeqCst);
                waker.wake();
            });
            while !woken.load(Ordering::SeqCst) {
                rig.io.wait(None, &mut rig.done);
            }
            // The wait may have returned early and seen the flag. Then the wake-up is still to
            // come.
        });
        rig.io.wait(Some(1_000_000), &mut rig.done);
        assert_eq!(rig.done, [], "a wake is no completion");
    }
}

pub fn a_wake_before_the_wait_is_kept(mut rig: Rig) {
    let waker = rig.io.waker();
    let (a, _b) = rig.pair();
    rig.submit(1, a.poll_in());
    for round in 0..100 {
        waker.wake();
        if round % 2 == 0 {
            // A `reap` in between does not consume the wake-up.
            std::thread::sleep(Duration::from_micros(100));
            rig.io.reap(&mut rig.done);
        }
        rig.io.wait(None, &mut rig.done);
    }
    (0..3).for_each(|_| rig.io.wait(Some(0), &mut rig.done));
    let start = Instant::now();
    rig.io.wait(Some(3_000_000), &mut rig.done);
    assert!(start.elapsed() >= Duration::from_millis(3), "a wake does not end a later wait, too");
    rig.io.cancel(1);
    assert_eq!(rig.take(1), -libc::ECANCELED);
    rig.finish();
}

pub fn many_wakes_end_many_waits(mut rig: Rig) {
    // Ping-pong with a thread that wakes the driver only after it has seen the answer to its last
    // wake.
    let waker = rig.io.waker();
    let (ping, pong) = (AtomicBool::new(false), AtomicBool::new(true));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..5_000 {
                while !pong.swap(false, Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                ping.store(true, Ordering::SeqCst);
                waker.wake();
            }
        });
        for _ in 0..5_000 {
            while !ping.swap(false, Ordering::SeqCst) {
                rig.io.wait(None, &mut rig.done);
            }
            pong.store(true, Ordering::SeqCst);
        }
    });
    assert_eq!(rig.done, []);
}

pub fn completion_and_timeout_end_the_wait_in_either_order_u75(mut rig: Rig) {
    let (a, b) = rig.pair();
    rig.submit(1, a.poll_in());
    rig.io.wait(Some(2_000_000), &mut rig.done);
    assert_eq!(rig.done, [], "the timeout came first");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(2));
            b.write(b"x");
        });
        let start = Instant::now();
        while rig.done.is_empty() && start.elapsed() < Duration::from_secs(50) {
            rig.io.wait(Some(60_000_000_000), &mut rig.done);
        }
    });
    assert_eq!(rig.done.len(), 1, "the completion came first");
    assert!(rig.take(1) > 0);
    rig.finish();
}

pub fn a_busy_scheduler_sees_completions_without_waiting_u62(mut rig: Rig) {
    let (a, b) = rig.pair();
    let mut buf = [0; 8];
    for round in 0..50 {
        rig.submit(1, a.recv(&mut buf));
        if round % 2 == 0 {
            rig.io.wait(Some(0), &mut rig.done); // The kernel has it before the byte comes.
        }
        b.write(b"x");
        let start = Instant::now();
        while rig.done.is_empty() {
            assert!(start.elapsed() < Duration::from_secs(20), "a turn never saw the completion");
            if rig.io.ready(0) {
                rig.io.reap(&mut rig.done);
            }
        }
        assert_eq!(rig.take(1), 1);
    }
    rig.finish();
}

pub fn nine_thousand_polls_all_complete(mut rig: Rig) {
    // Only one test at a time opens so many descriptors, because the process has a limit.
    static TURN: Lock<()> = Lock::new(());
    let _turn = TURN.lock();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let most = limit.current.map_or(20_000, |n| n as usize);
    let count = (most.saturating_sub(1_000) / 2).min(9_000);
    let pairs: Vec<_> = (0..count).map(|_| rig.pair()).collect();
    for (token, (a, _)) in pairs.iter().enumerate() {
        rig.submit(token as u64, a.poll_in());
    }
    rig.quiet();
    assert_eq!(rig.io.pending(), count);
    pairs.iter().for_each(|(_, b)| b.write(b"x"));
    let mut seen = vec![false; count];
    while rig.io.pending() > 0 {
        rig.io.wait(Some(1_000_000_000), &mut rig.done);
        for done in rig.done.drain(..) {
            assert!(done.result > 0);
            assert!(!std::mem::replace(&mut seen[done.token as usize], true), "twice");
        }
    }
    assert!(seen.iter().all(|&seen| seen));
    rig.finish();
}

pub fn a_hundred_thousand_operations_lose_none(mut rig: Rig) {
    // The completion queue is far smaller, so this also tests its overflow.
    let count: u64 = if rig.io.name() == "sync" { 2_000 } else { 100_000 };
    let (a, b) = rig.pair();
    for token in 0..count {
        rig.submit(token, a.poll_in());
    }
    rig.quiet();
    (0..3_000.min(count)).for_each(|token| rig.io.cancel(token));
    b.write(b"x");
    let mut seen = vec![false; count as usize];
    let start = Instant::now();
    while rig.io.pending() > 0 {
        assert!(start.elapsed() < Duration::from_secs(50), "{} lost", rig.io.pending());
        if rig.io.ready(0) {
            rig.io.reap(&mut rig.done);
        }
        for done in rig.done.drain(..) {
            assert!(done.result > 0 || (done.result == -libc::ECANCELED && done.token < 3_000));
            assert!(!std::mem::replace(&mut seen[done.token as usize], true), "twice");
        }
    }
    assert!(seen.iter().all(|&seen| seen));
    rig.finish();
}

pub fn a_signal_does_no_harm(mut rig: Rig) {
    extern "C" fn nothing(_: i32) {}
    let (a, b) = rig.pair();
    let mut buf = [0; 8];
    rig.submit(1, a.recv(&mut buf));
    // SAFETY: Plain Call: the handler does nothing; the signal is otherwise unused and goes to this
    // thread.
    let thread = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(i32) as usize;
        libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut());
        libc::pthread_self() as usize // a pointer with some C libraries
    };
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for _ in 0..20 {
                std::thread::sleep(Duration::from_micros(300));
                // SAFETY: Plain Call: the scope keeps the thread alive.
                unsafe { libc::pthread_kill(thread as libc::pthread_t, libc::SIGUSR1) };
            }
        });
        for _ in 0..20 {
            rig.io.wait(Some(1_000_000), &mut rig.done);
        }
    });
    assert_eq!(rig.done, []);
    b.write(b"x");
    assert_eq!(rig.take(1), 1);
    rig.finish();
}
