//! The deeds of the stories: each uses one feature of the library, and checks that the library
//! keeps its promise. A wait may be cancelled and a connection may break; then the deed ends.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ums::sim::{below, now, thread_sleep};
use ums::task::JoinError;
use ums::user::UserId;
use ums::{JoinHandle, WaitError, WaitReason, yield_now};

use super::mixed::{Day, Line, PERMITS};

/// Does one random deed for a request of this user; `user` is 0 for a request without a user.
pub fn one(day: &Day, user: UserId) {
    match below(14) {
        0 => add(day),
        1 => look_at_the_pair(day),
        2 => enter(day),
        3 if user != 0 => pass_the_gate(day, user),
        4 => drop(hear_the_whistle(day)),
        5 => play_cards(day),
        6 => post(day, user),
        7 => sleep(),
        8 => talk(),
        9 => ask_for_a_routine(day),
        10 => go_outside(),
        11 => have_children(),
        12 => have_borrowing_children(),
        _ => (0..below(6)).for_each(|_| yield_now()),
    }
}

/// A lock has one owner, whether it is granted immediately, after a while, or not in time.
pub fn add(day: &Day) {
    let span = Duration::from_micros(below(3000));
    let guard = if below(2) == 0 { Some(day.sum.lock()) } else { day.sum.lock_for(span).ok() };
    let Some(mut guard) = guard else { return };
    let before = *guard;
    if ums::worker::is_worker() {
        yield_now();
    }
    *guard = before + 1;
    day.added.fetch_add(1, Ordering::Relaxed);
}

/// Readers see only what writers have finished.
pub fn look_at_the_pair(day: &Day) {
    if below(3) > 0 {
        let pair = day.pair.read();
        assert_eq!(pair.0, pair.1, "a reader sees half of what a writer did");
        return;
    }
    let Ok(mut pair) = day.pair.write_for(Duration::from_micros(below(3000))) else { return };
    pair.0 += 1;
    if ums::worker::is_worker() {
        yield_now();
    }
    pair.1 += 1;
}

/// There are never more requests inside than there are permits.
pub fn enter(day: &Day) {
    let span = Duration::from_micros(below(3000));
    let permit = if below(2) == 0 { day.permits.acquire() } else { day.permits.acquire_for(span) };
    let Ok(_permit) = permit else { return };
    assert!(day.inside.fetch_add(1, Ordering::Relaxed) < PERMITS, "more are inside than may be");
    if ums::worker::is_worker() && below(2) == 0 {
        let _ = ums::sleep(Duration::from_micros(below(200)));
    }
    day.inside.fetch_sub(1, Ordering::Relaxed);
}

fn pass_the_gate(day: &Day, user: UserId) {
    let span = [None, Some(Duration::from_micros(below(3000)))][below(2) as usize];
    if day.gate.acquire(user, span).is_err() {
        return;
    }
    assert_eq!(day.gate.owner(), Some(user), "the gate has one owner");
    let _ = ums::sleep(Duration::from_micros(below(200)));
    day.gate.release(user);
}

/// No request waits for an event that is set.
fn hear_the_whistle(day: &Day) -> Result<(), ums::WaitError> {
    let hour = Duration::from_secs(3600);
    let heard = if below(2) == 0 { day.whistle.wait() } else { day.whistle.wait_for(hour) };
    assert_ne!(heard, Err(ums::WaitError::TimedOut), "the whistle was not heard for an hour");
    heard
}

/// A notification wakes one waiter.
fn play_cards(day: &Day) {
    let mut cards = day.cards.lock();
    if below(2) == 0 {
        *cards += 1;
        drop(cards);
        return day.a_card.notify_one();
    }
    let span = Duration::from_micros(below(2000));
    if day.a_card.wait_while_for(&mut cards, span, |cards| *cards == 0).is_ok() {
        *cards -= 1;
    }
}

/// A letter arrives unchanged.
fn post(day: &Day, user: UserId) {
    let span = Duration::from_micros(below(1000));
    if below(2) == 0 {
        let _ = day.letters.send_for((user, user * 3), span);
    } else if let Ok((from, what)) = day.posted.recv_for(span) {
        assert_eq!(what, from * 3, "a letter was changed on its way");
    }
}

fn sleep() {
    let span = Duration::from_nanos(below([50_000, 20_000_000][below(2) as usize]));
    let began = now();
    if ums::sleep(span).is_ok() {
        let slept = now() - began;
        assert!(slept >= span.as_nanos() as u64, "slept {slept} ns instead of {span:?}");
    }
}

/// Bytes come back unchanged, or the connection is broken.
fn talk() {
    let Ok((mut here, mut there)) = ums::net::UnixStream::pair() else { return };
    // A node that is shutting down accepts no more requests.
    let Ok(echo) = ums::task::try_spawn(move || {
        let mut buf = [0; 32];
        while let Ok(n @ 1..) = there.read(&mut buf) {
            if there.write_all(&buf[..n]).is_err() {
                break;
            }
        }
    }) else {
        return;
    };
    for round in 0..1 + below(2) as u8 {
        let (said, mut heard) = ([round; 48], [0xff; 48]);
        if here.write_all(&said).and_then(|()| here.read_exact(&mut heard)).is_err() {
            break;
        }
        assert_eq!(said, heard, "bytes were changed on their way");
    }
    drop(here);
    let echoed = echo.join();
    let ended = matches!(echoed, Ok(()) | Err(JoinError::NeverRan)) || gave_up(&echoed);
    assert!(ended, "an echo ends");
}

/// A completion routine runs once, even if it panics; a panic does not affect other routines.
fn ask_for_a_routine(day: &Day) {
    let Ok((here, there)) = std::os::unix::net::UnixStream::pair() else { return };
    let [asked, run] = &day.routines;
    asked.fetch_add(1, Ordering::Relaxed);
    let (fd, panics) = (there.as_raw_fd(), below(3) == 0);
    let (done, told) = std::sync::mpsc::channel();
    ums::testing::when_readable(fd, move |_| {
        // The descriptor stays open until its routine runs.
        drop(there);
        let _ = done.send(());
        if panics {
            std::panic::resume_unwind(Box::new("on purpose"));
        }
    });
    yield_now();
    let _ = (&here).write(b"!");
    while told.try_recv().is_err() {
        if ums::sleep(Duration::from_micros(100)).is_err() {
            // If this request is cancelled, `sleep` returns immediately, and the node's shutdown
            // runs the routine.
            yield_now();
        }
    }
    run.fetch_add(1, Ordering::Relaxed);
}

/// A preemptive call that blocks delays no other worker, and its result is returned.
fn go_outside() {
    let number = below(1000);
    let back = ums::go_preemptive(WaitReason::PREEMPTIVE_EXTERNAL, || {
        thread_sleep(Duration::from_micros(below(800)));
        number + 1
    });
    assert_eq!(back, number + 1);
}

/// A join never waits for a free worker: a child that has not begun gets a worker in any case.
fn have_children() {
    let children: Vec<_> = (0..1 + below(3)).map(|n| ums::task::try_spawn(move || n)).collect();
    for (n, child) in (0..).zip(children) {
        // A node that is shutting down accepts no more requests.
        let Ok(child) = child else { continue };
        yield_now();
        match child.join() {
            Ok(told) => assert_eq!(told, n),
            Err(JoinError::NeverRan) => {}
            told => assert!(gave_up(&told), "{told:?}"),
        }
    }
}

/// Returns whether the join was ended because the caller's own request was cancelled.
fn gave_up<T>(joined: &Result<T, JoinError<JoinHandle<T>>>) -> bool {
    matches!(joined, Err(JoinError::Wait(_, WaitError::Cancelled))) && ums::is_cancelled()
}

fn have_borrowing_children() {
    let mut halves = [0, 0];
    let (left, right) = halves.split_at_mut(1);
    let scope = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        ums::scope(|scope| {
            scope.spawn(|| left[0] = 20);
            yield_now();
            right[0] = 22;
        });
    }));
    match scope {
        Ok(()) => assert!(halves[1] == 22 && [0, 20].contains(&halves[0]), "{halves:?}"),
        // A node that is shutting down accepts no more requests.
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map_or("", |text| text);
            assert!(text.contains("was not accepted"), "{text}");
        }
    }
}

/// First come, first served: on one scheduler, no other request runs between taking a number and
/// beginning to wait.
pub fn wait_in_line(line: &Line) {
    for _ in 0..2 {
        let number = line.came.fetch_add(1, Ordering::Relaxed);
        let guard = line.lock.lock();
        let served = line.served.fetch_add(1, Ordering::Relaxed);
        assert_eq!(number, served, "a later waiter was served before an earlier one");
        yield_now();
        drop(guard);
    }
}
