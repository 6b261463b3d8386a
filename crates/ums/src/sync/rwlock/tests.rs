//! Tests of the reader-writer lock: groups, order, and which shares can be held together.

use super::*;
use crate::sync::testing::{Dice, SHORT, until};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn a_leaving_writer_moves_the_readers_at_the_head_together_u54() {
    let (lock, inside) = (RwLock::new(()), AtomicUsize::new(0));
    let wrote = AtomicUsize::new(usize::MAX);
    std::thread::scope(|s| {
        let held = lock.write();
        for i in 0..3 {
            s.spawn(|| {
                let _read = lock.read();
                inside.fetch_add(1, Ordering::SeqCst);
                // Ends only when all three hold the lock, so they were let in together.
                until(|| inside.load(Ordering::SeqCst) >= 3);
            });
            until(|| lock.raw.waiting() == i + 1);
        }
        s.spawn(|| {
            let _write = lock.write();
            wrote.store(inside.load(Ordering::SeqCst), Ordering::SeqCst);
        });
        until(|| lock.raw.waiting() == 4);
        s.spawn(|| {
            let _read = lock.read();
            inside.fetch_add(1, Ordering::SeqCst);
        });
        until(|| lock.raw.waiting() == 5);
        drop(held);
    });
    assert_eq!(wrote.into_inner(), 3, "the writer came after the group and before the last reader");
    assert_eq!(inside.into_inner(), 4);
    assert!(lock.raw.is_free());
}

#[test]
fn the_last_reader_moves_one_writer_u54() {
    let (lock, order) = (RwLock::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|s| {
        let (one, two) = (lock.read(), lock.read());
        for i in 0..2 {
            s.spawn({
                let (lock, order) = (&lock, &order);
                move || {
                    *lock.write() += 1;
                    order.lock().unwrap().push(i);
                }
            });
            until(|| lock.raw.waiting() == i + 1);
        }
        assert!(lock.try_read().is_none(), "a waiting writer is not passed by new readers");
        drop(one);
        assert_eq!(lock.raw.waiting(), 2, "a reader is still inside");
        drop(two);
    });
    assert_eq!(order.into_inner().unwrap().len(), 2);
    assert_eq!(lock.into_inner(), 2);
}

#[test]
fn a_writer_that_gives_up_lets_the_readers_behind_it_in() {
    let lock = RwLock::new(());
    std::thread::scope(|s| {
        let held = lock.read();
        let write = || assert_eq!(lock.write_for(SHORT * 20).err(), Some(WaitError::TimedOut));
        let writer = s.spawn(write);
        // On a busy computer it may have given up already.
        until(|| lock.raw.waiting() == 1 || writer.is_finished());
        // This reader waits behind the writer, and is let in while `held` still reads.
        drop(lock.read());
        drop(held);
    });
    assert!(lock.raw.is_free());
}

#[test]
fn downgrading_keeps_writers_out_and_lets_readers_in() {
    let lock = RwLock::new(1);
    std::thread::scope(|s| {
        let mut held = lock.write();
        *held = 2;
        let reader = s.spawn(|| *lock.read());
        until(|| lock.raw.waiting() == 1);
        let scheduler = RwLockWriteGuard::downgrade(held);
        assert_eq!(reader.join().unwrap(), 2);
        assert!(lock.try_write().is_none());
        assert!(lock.read_until(Instant::now()).is_ok());
        drop(scheduler);
    });
    assert!(lock.write_until(Instant::now()).is_ok());
}

#[test]
fn writers_are_alone_and_nothing_is_lost_when_deadlines_race() {
    const EACH: usize = 3_000;
    let (lock, readers) = (RwLock::new(0_usize), AtomicUsize::new(0));
    let wrote = AtomicUsize::new(0);
    std::thread::scope(|s| {
        for seed in 1..=4 {
            let (lock, readers, wrote) = (&lock, &readers, &wrote);
            s.spawn(move || {
                let mut dice = Dice(seed);
                for _ in 0..EACH {
                    let time = Duration::from_nanos(dice.roll(50_000));
                    let read = |guard: RwLockReadGuard<'_, usize>| {
                        readers.fetch_add(1, Ordering::SeqCst);
                        std::hint::black_box(*guard);
                        readers.fetch_sub(1, Ordering::SeqCst);
                    };
                    let write = |guard| {
                        let mut guard: RwLockWriteGuard<'_, usize> = guard;
                        assert_eq!(readers.load(Ordering::SeqCst), 0);
                        *guard += 1;
                        wrote.fetch_add(1, Ordering::Relaxed);
                        RwLockWriteGuard::downgrade(guard)
                    };
                    match dice.roll(6) {
                        0 => read(lock.read()),
                        1 => read(write(lock.write())),
                        2 => lock.try_read().into_iter().for_each(read),
                        3 => lock.try_write().into_iter().map(write).for_each(read),
                        4 => lock.read_for(time).into_iter().for_each(read),
                        _ => lock.write_for(time).into_iter().map(write).for_each(read),
                    }
                }
            });
        }
    });
    assert!(lock.raw.is_free());
    assert_eq!(lock.raw.waiting(), 0);
    assert_eq!(lock.into_inner(), wrote.into_inner());
}

#[test]
#[should_panic(expected = "would wait for itself")]
fn a_writer_that_reads_panics() {
    let lock = RwLock::new(());
    let _held = lock.write();
    let _again = lock.read();
}

#[test]
fn it_looks_like_stds() {
    let mut lock = RwLock::from(vec![1]);
    lock.get_mut().push(2);
    assert_eq!(format!("{lock:?}"), "RwLock { data: [1, 2] }");
    let held = lock.write();
    assert_eq!(format!("{held:?} {lock:?}"), "[1, 2] RwLock { data: <locked> }");
    drop(held);
    assert_eq!(format!("{:?}", lock.read()), "[1, 2]");
    assert_eq!(*RwLock::<u8>::default().read(), 0);
}

#[test]
fn owned_guards_keep_their_lock_alive_and_unlock_it_once() {
    struct Told(Arc<AtomicUsize>);
    impl Drop for Told {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let dropped = Arc::new(AtomicUsize::new(0));
    let lock = Arc::new(RwLock::new((0, Told(dropped.clone()))));
    let (one, two) = (lock.read_owned(), lock.read_owned_for(SHORT).unwrap());
    assert_eq!(one.0 + two.0, 0);
    assert!(lock.write_owned_for(SHORT).is_err());
    drop((one, two));
    let mut written = lock.write_owned();
    written.0 = 7;
    assert!(lock.read_owned_for(SHORT).is_err() && lock.try_read().is_none());
    drop(written);
    let last = lock.write_owned_for(SHORT).unwrap();
    assert_eq!((last.0, Arc::strong_count(&lock)), (7, 2));
    drop(lock);
    assert_eq!(dropped.load(Ordering::SeqCst), 0, "the guard keeps it alive");
    drop(last);
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
}
