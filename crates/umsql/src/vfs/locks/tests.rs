//! Tests of the lock table: what excludes what, the order of arrival, promises, and revocation.

use super::*;

const WRITE: u8 = 1;
const LONG: Duration = Duration::from_secs(60);

fn until(condition: impl Fn() -> bool) {
    let limit = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < limit, "a condition that must come about did not");
        std::thread::yield_now();
    }
}

fn take(locks: &Locks, member: Member, mask: u8, exclusive: bool) {
    while !locks.lock_slots(member, mask, exclusive) {
        let waited = locks.wait(member, Instant::now() + LONG);
        assert!(matches!(waited, Waited::LookAgain), "{waited:?}");
    }
}

#[test]
fn a_promise_stays_valid_while_its_member_takes_another_lock_first() {
    let (read, write) = (1 << 3, 1);
    let locks = Locks::default();
    assert!(locks.lock_slots(1, write, true));
    std::thread::scope(|s| {
        assert!(!locks.lock_slots(2, write, true));
        let second = s.spawn(|| locks.wait(2, Instant::now() + LONG));
        until(|| locks.waiting() == 1);
        locks.unlock_slots(1, write);
        assert_eq!(second.join().unwrap(), Waited::LookAgain);
    });
    assert!(locks.lock_slots(2, read, false), "as SQLite does first");
    assert!(!locks.lock_slots(1, write, true), "it is still promised to the other");
    assert!(locks.lock_slots(2, write, true));
}

#[test]
fn the_levels_of_the_file_exclude_each_other_as_sqlite_says() {
    use Level::{Exclusive, None, Pending, Reserved, Shared};
    let locks = Locks::default();
    assert!(locks.lock_file(1, Shared) && locks.lock_file(2, Shared));
    assert!(locks.lock_file(1, Reserved));
    assert!(!locks.lock_file(2, Reserved) && locks.is_reserved());
    assert!(locks.lock_file(3, Shared), "readers may still come");
    assert!(!locks.lock_file(1, Exclusive));
    assert_eq!(locks.level(1), Pending);
    assert!(!locks.lock_file(4, Shared), "none may come any more");
    locks.unlock_file(2, None);
    locks.leave(3);
    assert!(locks.lock_file(1, Exclusive));
    assert!(!locks.lock_file(2, Shared));
    locks.unlock_file(1, Shared);
    assert!(locks.lock_file(2, Shared));
    // To roll back a hot journal, SQLite goes from SHARED to EXCLUSIVE, and keeps SHARED if
    // that is refused.
    assert!(!locks.lock_file(1, Exclusive));
    assert_eq!(locks.level(1), Shared);
}

#[test]
fn slots_are_shared_or_exclusive_and_several_are_taken_together() {
    let locks = Locks::default();
    assert!(locks.lock_slots(1, 0b1000, false) && locks.lock_slots(2, 0b1000, false));
    assert!(!locks.lock_slots(3, 0b1111_1000, true));
    assert!(locks.lock_slots(3, 0b0001_0000, true), "refused, it has taken none of them");
    locks.unlock_slots(1, 0b1000);
    assert!(!locks.lock_slots(4, 0b1000, true));
    locks.leave(2);
    assert!(locks.lock_slots(4, 0b1000, true));
    assert!(!locks.lock_slots(1, 0b1000, false));
}

#[test]
fn waiters_get_the_lock_in_the_order_of_arrival() {
    let locks = Locks::default();
    let order = Lock::new(Vec::new());
    take(&locks, 0, WRITE, true);
    std::thread::scope(|s| {
        for member in 1..=6 {
            let (locks, order) = (&locks, &order);
            s.spawn(move || {
                take(locks, member, WRITE, true);
                order.lock().push(member);
                locks.unlock_slots(member, WRITE);
            });
            until(|| locks.waiting() == member as usize);
        }
        locks.unlock_slots(0, WRITE);
        // The releasing thread still runs, and gets the lock after the waiters.
        take(&locks, 0, WRITE, true);
        order.lock().push(0);
    });
    assert_eq!(*order.lock(), [1, 2, 3, 4, 5, 6, 0]);
}

#[test]
fn an_unused_promise_expires() {
    let locks = Locks::default();
    take(&locks, 0, WRITE, true);
    std::thread::scope(|s| {
        s.spawn(|| {
            assert!(!locks.lock_slots(1, WRITE, true));
            assert_eq!(locks.wait(1, Instant::now() + LONG), Waited::LookAgain);
            // This waiter never tries to lock again.
        });
        until(|| locks.waiting() == 1);
        let second = s.spawn(|| take(&locks, 2, WRITE, true));
        until(|| locks.waiting() == 2);
        locks.unlock_slots(0, WRITE);
        second.join().unwrap();
    });
    assert_eq!(locks.waiting(), 0);
}

#[test]
fn a_member_that_raises_its_lock_passes_the_waiters() {
    let locks = Locks::default();
    assert!(locks.lock_file(1, Level::Shared) && locks.lock_file(1, Level::Reserved));
    assert!(locks.lock_file(2, Level::Shared) && !locks.lock_file(2, Level::Reserved));
    locks.unlock_file(2, Level::None);
    assert!(locks.lock_file(3, Level::Shared));
    std::thread::scope(|s| {
        let behind = s.spawn(|| locks.wait(2, Instant::now() + LONG));
        until(|| locks.waiting() == 1);
        assert!(!locks.lock_file(1, Level::Exclusive));
        let writer = s.spawn(|| locks.wait(1, Instant::now() + LONG));
        until(|| locks.waiting() == 2);
        locks.leave(3);
        assert_eq!(writer.join().unwrap(), Waited::LookAgain);
        assert!(locks.lock_file(1, Level::Exclusive));
        locks.leave(1);
        assert_eq!(behind.join().unwrap(), Waited::LookAgain);
    });
}

#[test]
fn a_promised_reader_and_a_writer_that_waits_for_readers_do_not_wait_for_each_other() {
    let locks = Locks::default();
    for level in [Level::Shared, Level::Reserved, Level::Exclusive] {
        assert!(locks.lock_file(1, level));
    }
    assert!(!locks.lock_file(2, Level::Shared));
    std::thread::scope(|s| {
        let reader = s.spawn(|| locks.wait(2, Instant::now() + LONG));
        until(|| locks.waiting() == 1);
        locks.leave(1);
        // The next writer arrives before the reader has used its promise.
        assert!(locks.lock_file(3, Level::Shared) && locks.lock_file(3, Level::Reserved));
        assert!(!locks.lock_file(3, Level::Exclusive));
        assert_eq!(reader.join().unwrap(), Waited::LookAgain);
    });
    assert_eq!(locks.level(3), Level::Pending);
    assert!(!locks.lock_file(4, Level::Shared));
    assert!(locks.lock_file(2, Level::Shared));
    locks.leave(2);
    assert!(locks.lock_file(3, Level::Exclusive));
}

#[test]
fn a_wait_ends_at_its_deadline_and_leaves_no_waiter_behind() {
    let locks = Locks::default();
    take(&locks, 0, WRITE, true);
    assert!(!locks.lock_slots(1, WRITE, true));
    let waited = locks.wait(1, Instant::now() + Duration::from_millis(250));
    assert_eq!((waited, locks.waiting()), (Waited::Failed, 0));
    assert_eq!(locks.wait(1, Instant::now()), Waited::NotHere);
}

/// The writer's slot is 0; readers have slots 3 to 7.
#[test]
fn the_readers_of_an_earlier_era_lose_their_slots_and_no_other_member_does() {
    let locks = Locks::default();
    assert!(locks.lock_slots(1, 1 << 3, false) && locks.lock_slots(1, WRITE, true));
    assert!(locks.lock_slots(2, 1 << 7, false));
    assert!(locks.lock_slots(3, 1 << 4, true), "it sets the mark of a reader's slot");
    locks.begin_era();
    assert!(locks.lock_slots(4, 1 << 3, false));
    locks.revoke_old_readers();
    assert_eq!([1, 2, 3, 4].map(|member| locks.is_revoked(member)), [true, true, false, false]);
    assert!(locks.lock_slots(5, 1 << 7, true), "the slot is free");
    assert!(!locks.lock_slots(5, 1 << 4, false) && !locks.lock_slots(5, 1 << 3, true));
    assert!(!locks.lock_slots(5, WRITE, true), "the writer's slot is never revoked");
}

#[test]
fn a_revoked_reader_stays_revoked_until_it_gives_a_readers_slot_back() {
    let locks = Locks::default();
    assert!(locks.lock_slots(1, 1 << 3, false) && locks.lock_slots(1, WRITE, true));
    locks.begin_era();
    locks.revoke_old_readers();
    locks.unlock_slots(1, WRITE);
    assert!(locks.is_revoked(1), "its transaction still reads");
    locks.unlock_slots(1, 1 << 3);
    assert!(!locks.is_revoked(1));
}
