//! Tests of selects between threads: exactly one arm happens, and nothing of the others is lost.

use super::*;
use crate::sync::channel::{
    RecvError, SendError, bounded, broadcast, rendezvous, unbounded, watch,
};
use crate::sync::testing::{Dice, LONG, SHORT, until};
use crate::sync::{Event, Latch, Semaphore};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

#[test]
fn select_takes_the_first_that_has_something() {
    let (number_tx, numbers) = unbounded::<u32>();
    let (text_tx, texts) = rendezvous::<String>();
    let pick = || Select::new().on(&numbers, |n| n.map(|n| n.to_string())).on(&texts, |t| t);
    assert_eq!(pick().try_now(), None);
    assert_eq!(pick().wait_for(SHORT), Err(WaitError::TimedOut));
    assert_eq!(pick().wait_until(Instant::now()), Err(WaitError::TimedOut));
    number_tx.send(3).unwrap();
    assert_eq!(pick().try_now(), Some(Ok("3".into())));
    std::thread::scope(|s| {
        let picker = s.spawn(|| pick().wait());
        // A rendezvous channel has room only while a receiver waits.
        until(|| text_tx.try_send("hello".into()).is_ok());
        assert_eq!(picker.join().unwrap(), Ok(Ok("hello".into())));
        number_tx.send(4).unwrap();
        assert_eq!(numbers.try_recv(), Ok(4), "it has left the other channel");
        let picker = s.spawn(|| pick().wait());
        drop(number_tx);
        assert_eq!(picker.join().unwrap(), Ok(Err(RecvError::Disconnected)));
    });
}

#[test]
fn select_races_with_deadlines_and_nothing_is_lost_or_doubled() {
    const EACH: u64 = 3_000;
    let channels = [bounded(0), bounded(1), unbounded()];
    let receivers: Vec<_> = channels.iter().map(|(_, rx)| rx.clone()).collect();
    let sums = Mutex::new((0, 0));
    std::thread::scope(|s| {
        for (seed, (tx, _)) in channels.into_iter().enumerate() {
            s.spawn(move || (1..=EACH).for_each(|n| tx.send(n * (seed as u64 + 1)).unwrap()));
        }
        for seed in 1..=2 {
            let (receivers, sums) = (&receivers, &sums);
            s.spawn(move || {
                let (mut dice, mut open) = (Dice(seed), vec![true; 3]);
                while open.contains(&true) {
                    let mut select = Select::new();
                    for (i, rx) in receivers.iter().enumerate().filter(|(i, _)| open[*i]) {
                        select = select.on(rx, move |value| (i, value));
                    }
                    match select.wait_for(Duration::from_nanos(dice.roll(40_000))) {
                        Ok((_, Ok(value))) => {
                            let mut sums = sums.lock().unwrap();
                            *sums = (sums.0 + 1, sums.1 + value);
                        }
                        Ok((i, Err(_))) => open[i] = false,
                        Err(e) => assert_eq!(e, WaitError::TimedOut),
                    }
                }
            });
        }
    });
    let sum_of_one = EACH * (EACH + 1) / 2;
    assert_eq!(sums.into_inner().unwrap(), (3 * EACH, 6 * sum_of_one));
}

#[test]
fn each_arm_happens_when_its_source_is_ready_before_and_during_the_wait() {
    let (tx, rx) = bounded::<u32>(1);
    let (auto, manual, latch) = (Event::auto(false), Event::manual(false), Latch::new(1));
    let seats = Semaphore::new(0);
    let pick = || {
        Select::new()
            .on(&rx, |n| format!("{n:?}"))
            .on(&auto, |()| "auto".into())
            .on(&manual, |()| "manual".into())
            .on(&latch, |()| "latch".into())
            .on(&seats, |permit| {
                permit.forget();
                "permit".into()
            })
            .on(LONG, |()| "time".into())
    };
    let steps: [(&str, &dyn Fn()); 5] = [
        ("Ok(5)", &|| tx.send(5).unwrap()),
        ("auto", &|| auto.set()),
        ("permit", &|| seats.add_permits(1)),
        ("manual", &|| manual.set()),
        ("latch", &|| latch.count_down()),
    ];
    for (name, step) in steps {
        assert_eq!(pick().try_now(), None, "before {name}");
        std::thread::scope(|s| {
            let picker = s.spawn(|| pick().wait_for(LONG));
            std::thread::sleep(SHORT);
            step();
            assert_eq!(picker.join().unwrap().as_deref(), Ok(name));
        });
        if name == "manual" {
            manual.reset();
        } else if name != "latch" {
            step();
            assert_eq!(pick().wait().as_deref(), Ok(name));
        }
    }
    assert!(latch.is_open() && !auto.is_set() && seats.available() == 0 && rx.is_empty());
}

#[test]
fn a_send_arm_sends_when_there_is_room_and_gives_the_value_back_when_the_receivers_go() {
    for bound in [0, 1] {
        let (tx, rx) = bounded(bound);
        (0..bound).for_each(|n| tx.send(n).unwrap());
        let send = |n| Select::new().on(tx.sending(n), |sent| sent).wait_for(LONG).unwrap();
        std::thread::scope(|s| {
            let sender = s.spawn(|| send(7));
            (0..bound).for_each(|n| assert_eq!(rx.recv(), Ok(n)));
            assert_eq!(rx.recv(), Ok(7));
            assert_eq!(sender.join().unwrap(), Ok(()));
            (0..bound).for_each(|n| tx.send(n).unwrap());
            let sender = s.spawn(|| send(8));
            std::thread::sleep(SHORT);
            drop(rx);
            assert_eq!(sender.join().unwrap(), Err(SendError::Disconnected(8)));
        });
        assert_eq!(send(9), Err(SendError::Disconnected(9)));
    }
}

#[test]
fn both_ends_of_one_channel_in_a_select_do_not_meet_each_other() {
    let (tx, rx) = rendezvous::<u32>();
    let pick = || Select::new().on(&rx, |_| "received").on(tx.sending(3), |_| "sent");
    assert_eq!(pick().wait_for(SHORT), Err(WaitError::TimedOut));
    std::thread::scope(|s| {
        let picker = s.spawn(|| pick().wait());
        assert_eq!(rx.recv(), Ok(3));
        assert_eq!(picker.join().unwrap(), Ok("sent"));
        let picker = s.spawn(|| pick().wait());
        tx.send(4).unwrap();
        assert_eq!(picker.join().unwrap(), Ok("received"));
    });
}

#[test]
fn of_several_ready_arms_any_happens_unless_the_select_is_biased() {
    let (tx, rx) = unbounded();
    let (set, seats) = (Event::manual(true), Semaphore::new(1));
    tx.send(0).unwrap();
    let pick = |select: Select<'_, usize>| {
        select
            .on(&set, |()| 0)
            .on(&seats, |_| 1)
            .on(&rx, |n| {
                tx.send(n.unwrap()).unwrap();
                2
            })
            .wait()
            .unwrap()
    };
    let mut chosen = [0; 3];
    (0..3_000).for_each(|_| chosen[pick(Select::new())] += 1);
    assert!(chosen.iter().all(|times| (800..1200).contains(times)), "{chosen:?}");
    assert!((0..100).all(|_| pick(Select::new().biased()) == 0));
}

#[test]
fn times_end_a_select_in_their_order_and_before_its_own_limit() {
    let pick = || {
        let soon = Instant::now() + SHORT;
        Select::new().on(LONG, |()| "long").on(soon, |()| "soon").on(Duration::MAX, |()| "never")
    };
    assert_eq!(pick().wait(), Ok("soon"));
    assert_eq!(pick().wait_for(LONG), Ok("soon"));
    let limited = Select::new().on(None::<Instant>, |()| "never");
    assert_eq!(limited.on(Some(Instant::now() + SHORT), |()| "soon").wait(), Ok("soon"));
    assert_eq!(pick().wait_for(Duration::ZERO), Err(WaitError::TimedOut));
    assert_eq!(Select::new().on(Duration::ZERO, |()| 1).try_now(), Some(1));
}

#[test]
fn a_select_leaves_the_rows_in_which_it_was_not_served() {
    let (seats, baton) = (Semaphore::new(0), Event::auto(false));
    let select = Select::new().on(&seats, drop).on(&baton, drop);
    assert_eq!(select.wait_for(SHORT), Err(WaitError::TimedOut));
    assert_eq!([seats.waiting(), baton.waiting()], [0, 0]);
}

#[test]
#[should_panic = "a select has at most 256 arms"]
fn more_arms_than_there_are_numbers_are_refused() {
    let mut select = Select::new();
    for n in 0..=ARMS_MAX {
        select = select.on(LONG, move |()| n);
    }
}

#[test]
fn the_last_of_256_arms_gets_its_own_value() {
    let channels: Vec<_> = (0..ARMS_MAX).map(|_| unbounded()).collect();
    std::thread::scope(|s| {
        let picker = s.spawn(|| {
            let mut select = Select::new();
            for (n, (_, rx)) in channels.iter().enumerate() {
                select = select.on(rx, move |value| (n, value));
            }
            select.wait_for(LONG)
        });
        std::thread::sleep(SHORT);
        channels[ARMS_MAX - 1].0.send(9).unwrap();
        assert_eq!(picker.join().unwrap(), Ok((ARMS_MAX - 1, Ok(9))));
    });
}

#[test]
fn selects_race_for_permits_tokens_and_room_and_nothing_is_lost() {
    const PERMITS: usize = 2;
    let (seats, baton) = (Semaphore::new(PERMITS), Event::auto(true));
    let (tx, rx) = bounded(1);
    let (sent, received) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|s| {
        for seed in 1..=4 {
            let (seats, baton, tx, rx) = (&seats, &baton, &tx, &rx);
            let (sent, received) = (&sent, &received);
            s.spawn(move || {
                let mut dice = Dice(seed);
                for _ in 0..3_000 {
                    let (value, limit) = (dice.roll(100), dice.roll(30_000));
                    let select = Select::new()
                        .on(seats, drop)
                        .on(baton, |()| baton.set())
                        .on(rx, |n| _ = received.fetch_add(n.unwrap(), Ordering::Relaxed))
                        .on(tx.sending(value), |done| {
                            done.unwrap();
                            sent.fetch_add(value, Ordering::Relaxed);
                        });
                    let _ = select.wait_for(Duration::from_nanos(limit));
                    // Held for a moment, so that the others wait.
                    if dice.roll(2) == 0 {
                        let _held = (seats.try_acquire(), seats.try_acquire());
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
    received.fetch_add(rx.try_iter().sum(), Ordering::Relaxed);
    assert_eq!(sent.into_inner(), received.into_inner(), "each value arrives once");
    assert_eq!(seats.available(), PERMITS);
    assert!(baton.is_set());
}

#[test]
fn selects_race_with_the_senders_of_a_watch_and_a_broadcast_and_miss_nothing() {
    const VALUES: u64 = 3_000;
    let ((newest, mut watcher), (tx, rx)) = (watch(0), broadcast(VALUES as usize));
    watcher.get();
    std::thread::scope(|s| {
        for seed in 1..=3 {
            let (mut watcher, mut rx) = (watcher.clone(), rx.clone());
            s.spawn(move || {
                let (mut dice, mut last, mut next) = (Dice(seed), 0, 1);
                while last < VALUES || next <= VALUES {
                    let select = Select::new()
                        .on(&mut watcher, |changed| changed.map(|()| None).unwrap())
                        .on(&mut rx, |value| Some(value.unwrap()));
                    let got = match dice.roll(2) {
                        0 => Ok(select.wait_for(LONG).unwrap()),
                        _ => select.wait_for(Duration::from_nanos(dice.roll(40_000))),
                    };
                    match got {
                        Ok(Some(value)) => {
                            assert_eq!(value, next);
                            next += 1;
                        }
                        Ok(None) => {
                            let now = watcher.get();
                            assert!(now > last, "{now} after {last}");
                            last = now;
                        }
                        Err(error) => assert_eq!(error, WaitError::TimedOut),
                    }
                }
            });
        }
        for value in 1..=VALUES {
            newest.send(value);
            tx.send(value).unwrap();
        }
    });
}
