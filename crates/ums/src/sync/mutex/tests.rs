//! Tests of the mutex as its users see it. The states of its word are tested in `raw_mutex.rs`.

use super::*;
use crate::current;
use crate::sync::testing::{Dice, LONG, SHORT, until};
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn waiters_get_it_in_the_order_they_came_u53() {
    let order = Mutex::new(Vec::new());
    std::thread::scope(|s| {
        let held = order.lock();
        for i in 0..5 {
            s.spawn({
                let order = &order;
                move || order.lock().push(i)
            });
            until(|| order.waiting() == i + 1);
        }
        drop(held);
    });
    assert_eq!(order.into_inner(), [0, 1, 2, 3, 4]);
}

#[test]
fn release_hands_over_and_no_other_caller_locks_in_between_u54() {
    let m = Mutex::new(0);
    std::thread::scope(|s| {
        let held = m.lock();
        s.spawn(|| *m.lock() += 1);
        until(|| m.waiting() == 1);
        drop(held);
        // Whether the waiter has run yet or not, the mutex was not free before the waiter had it.
        assert_eq!(*m.lock(), 1);
    });
}

#[test]
fn a_cancelled_or_late_waiter_owns_nothing_b59() {
    let m = Mutex::new(());
    let held = m.lock();
    std::thread::scope(|s| {
        let (tell, told) = std::sync::mpsc::channel();
        let m = &m;
        let waiting = s.spawn(move || {
            tell.send(current::waiter()).unwrap();
            let failed = m.lock_for(LONG).err();
            current::waiter().cancelled.store(false, Ordering::Relaxed);
            failed
        });
        let waiter = told.recv().unwrap();
        until(|| m.waiting() == 1);
        current::ready(waiter.cancel().unwrap());
        assert_eq!(waiting.join().unwrap(), Some(WaitError::Cancelled));
        let late = s.spawn(move || m.lock_until(Instant::now() + SHORT).err());
        assert_eq!(late.join().unwrap(), Some(WaitError::TimedOut));
    });
    drop(held);
    assert!(m.try_lock().is_some());
}

#[test]
fn a_plain_lock_ignores_cancellation_b59() {
    let m = Mutex::new(());
    std::thread::scope(|s| {
        let held = m.lock();
        let (tell, told) = std::sync::mpsc::channel();
        let m = &m;
        s.spawn(move || {
            tell.send(current::waiter()).unwrap();
            drop(m.lock());
            current::waiter().cancelled.store(false, Ordering::Relaxed);
        });
        let waiter = told.recv().unwrap();
        until(|| m.waiting() == 1);
        assert!(waiter.cancel().is_none());
        drop(held);
    });
}

#[test]
fn deadlines_race_with_grants_and_nothing_is_lost() {
    const EACH: usize = 3_000;
    let (m, got) = (Mutex::new(0_usize), AtomicUsize::new(0));
    std::thread::scope(|s| {
        for seed in 1..=4 {
            let (m, got) = (&m, &got);
            s.spawn(move || {
                let mut dice = Dice(seed);
                for _ in 0..EACH {
                    let patience = Duration::from_nanos(dice.roll(40_000));
                    if let Ok(mut count) = m.lock_for(patience) {
                        *count += 1;
                        got.fetch_add(1, Ordering::Relaxed);
                        if dice.roll(8) == 0 {
                            std::thread::yield_now();
                        }
                    }
                }
            });
        }
    });
    assert!(!m.is_locked());
    assert_eq!(m.waiting(), 0);
    assert_eq!(m.into_inner(), got.into_inner());
}

#[test]
fn a_panic_in_the_critical_section_unlocks() {
    let m = Mutex::new(1);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _held = m.lock();
        panic!("in the critical section");
    }));
    assert!(result.is_err());
    assert_eq!(*m.lock(), 1);
}

#[test]
#[should_panic(expected = "would wait for itself")]
fn locking_twice_panics() {
    let m = Mutex::new(());
    let _held = m.lock();
    let _again = m.lock();
}

#[test]
fn it_looks_like_stds() {
    static GLOBAL: Mutex<u32> = Mutex::new(7);
    assert_eq!(*GLOBAL.lock(), 7);
    let mut m = Mutex::from(vec![1]);
    m.get_mut().push(2);
    assert_eq!(format!("{m:?}"), "Mutex { data: [1, 2] }");
    let held = m.lock();
    assert_eq!(format!("{held:?} {m:?}"), "[1, 2] Mutex { data: <locked> }");
    drop(held);
    let unsized_: &Mutex<[i32]> = &Mutex::new([1, 2, 3]);
    assert_eq!(unsized_.lock().len(), 3);
    assert_eq!(Mutex::<u8>::default().into_inner(), 0);
}

#[test]
fn an_owned_guard_keeps_its_mutex_alive_and_unlocks_it_once() {
    struct Told(Arc<AtomicUsize>);
    impl Drop for Told {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let drops = Arc::new(AtomicUsize::new(0));
    let mutex = Arc::new(Mutex::new(Told(drops.clone())));
    let mut guard = mutex.lock_owned();
    assert!(mutex.try_lock_owned().is_none());
    let waiting = std::thread::spawn({
        let mutex = mutex.clone();
        move || mutex.lock_owned_for(LONG).map(drop)
    });
    until(|| mutex.waiting() == 1);
    drop(guard);
    assert_eq!(waiting.join().unwrap(), Ok(()));
    guard = mutex.lock_owned();
    drop(mutex);
    guard.0.fetch_add(10, Ordering::Relaxed);
    assert_eq!(drops.load(Ordering::Relaxed), 10, "the guard keeps it alive");
    drop(guard);
    assert_eq!(drops.load(Ordering::Relaxed), 11);
}
