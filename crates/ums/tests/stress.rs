//! Everything at the same time, at random, from a seed: workers that yield, sleep, spawn, join,
//! cancel, panic, borrow and go preemptive. Each worker kind runs on 1, 2 and 4 schedulers, with
//! limits so small that every limit is reached. The test looks for lost wake-ups: after one a run
//! never ends, and the watchdog reports it.
//!
//! `UMS_STRESS_SECS` sets the length of each run (half a second by default). `UMS_STRESS_SEED`
//! repeats a run's seed. A seed fixes what each worker does, not how the system interleaves the
//! workers.

#![allow(unsafe_code)] // For the harness.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::dice::Dice;
use common::*;
use ums::node::{HiddenOptions, HiddenScheduler};
use ums::task::JoinError;
use ums::{Builder, Node, WaitError, WaitReason};

/// The state that the players share.
struct Game {
    node: Node,
    hidden: HiddenScheduler,
    schedulers: usize,
    over: AtomicBool,
    moves: AtomicU64,
}

/// How many levels of children a move may still create: children make smaller moves.
#[derive(Clone, Copy)]
struct Depth(u32);

fn play(game: &Arc<Game>, seed: u64) {
    let mut dice = Dice(seed);
    while !game.over.load(Ordering::Relaxed) {
        make_a_move(game, &mut dice, Depth(2));
    }
}

fn make_a_move(game: &Arc<Game>, dice: &mut Dice, depth: Depth) {
    game.moves.fetch_add(1, Ordering::Relaxed);
    let kinds = if depth.0 == 0 { 6 } else { 14 };
    match dice.roll(kinds) {
        0 | 1 => ums::yield_now(),
        2 => drop(ums::sleep(dice.micros(1_500))),
        3 => drop(ums::sleep(Duration::ZERO)),
        4 => spin(dice.micros(40)),
        5 => go_outside(dice),
        6 => family(game, dice, depth),
        7 => elsewhere(game, dice, depth),
        8 => cancelled(game, dice),
        9 => impatient(dice),
        10 => borrowing(dice),
        11 => panicking(dice),
        12 => hidden(game, dice),
        _ => raced(dice),
    }
}

fn go_outside(dice: &mut Dice) {
    let span = dice.micros(300);
    ums::go_preemptive(WaitReason::PREEMPTIVE_EXTERNAL, || std::thread::sleep(span));
}

/// Starts a few children, each with a move of its own, and joins all of them.
fn family(game: &Arc<Game>, dice: &mut Dice, depth: Depth) {
    let children: Vec<_> = (0..=dice.roll(3))
        .map(|_| {
            let (game, seed) = (game.clone(), dice.roll(u64::MAX));
            ums::spawn(move || make_a_move(&game, &mut Dice(seed), Depth(depth.0 - 1)))
        })
        .collect();
    for child in children {
        child.join().expect("a child that is not cancelled succeeds");
    }
}

/// Starts a child on a random scheduler.
fn elsewhere(game: &Arc<Game>, dice: &mut Dice, depth: Depth) {
    let (to, seed, g) = (dice.roll(game.schedulers as u64), dice.roll(u64::MAX), game.clone());
    let work = move || make_a_move(&g, &mut Dice(seed), Depth(depth.0 - 1));
    let child = game.node.spawn_on(to as usize, work).expect("the queue has room");
    child.join().expect("a child that is not cancelled succeeds");
}

/// Starts a child that waits, and cancels it at a random moment.
fn cancelled(game: &Arc<Game>, dice: &mut Dice) {
    let child = match dice.roll(2) {
        0 => ums::spawn(|| ums::sleep(Duration::MAX)),
        _ => {
            let to = dice.roll(game.schedulers as u64) as usize;
            game.node.spawn_on(to, || ums::sleep(Duration::MAX)).expect("the queue has room")
        }
    };
    match dice.roll(3) {
        0 => ums::yield_now(),
        1 => drop(ums::sleep(dice.micros(200))),
        _ => {}
    }
    child.cancel();
    match child.join() {
        Ok(Err(WaitError::Cancelled)) | Err(JoinError::NeverRan) => {}
        other => panic!("a cancelled wait ended as {other:?}"),
    }
}

/// Joins a child with a timeout that often ends before the child.
fn impatient(dice: &mut Dice) {
    let (long, short) = (dice.micros(500), dice.micros(500));
    let mut child = ums::spawn(move || ums::sleep(long));
    match child.join_for(short) {
        Err(JoinError::Wait(..)) => drop(child.join().expect("it ran, later")),
        joined => drop(joined.expect("it ran")),
    }
}

/// A child joins another child and is cancelled meanwhile, so three events race to end one wait:
/// the other child's end, the timeout and the cancellation.
fn raced(dice: &mut Dice) {
    let (long, short, pause) = (dice.micros(60), dice.micros(400), dice.micros(60));
    let child = ums::spawn(move || {
        let mut inner = ums::spawn(move || spin(long));
        loop {
            match inner.join_for(short) {
                Ok(_) => return,
                Err(JoinError::Wait((), WaitError::TimedOut)) => {}
                Err(_) => return drop(inner.join_uncancellable()),
            }
        }
    });
    ums::yield_now();
    spin(pause);
    child.cancel();
    drop(child.join());
}

fn borrowing(dice: &mut Dice) {
    let mut places = [0u64; 3];
    let seed = dice.roll(1_000);
    ums::scope(|s| {
        for (i, place) in places.iter_mut().enumerate() {
            s.spawn(move || {
                ums::yield_now();
                *place = seed + i as u64;
            });
        }
    });
    assert_eq!(places, [seed, seed + 1, seed + 2]);
}

fn panicking(dice: &mut Dice) {
    struct YieldsWhenDropped;
    impl Drop for YieldsWhenDropped {
        fn drop(&mut self) {
            ums::yield_now();
        }
    }
    let nasty = dice.roll(2) == 0;
    let child = ums::spawn(move || {
        let _guard = nasty.then_some(YieldsWhenDropped);
        std::panic::resume_unwind(Box::new("on purpose"));
    });
    assert!(matches!(child.join(), Err(JoinError::Panicked(_))));
}

fn hidden(game: &Arc<Game>, dice: &mut Dice) {
    let span = dice.micros(100);
    let work = move || {
        ums::yield_now();
        spin(span);
        ums::worker::scheduler_id()
    };
    let child = game.hidden.spawn(work).expect("the queue has room");
    assert_eq!(child.join().expect("it ran"), Some(game.hidden.id()));
}

/// Runs one game with this many players at the same time, for the stress test's length.
fn game(node: &Node, schedulers: usize, players: u64, seed: u64) {
    let hidden = node.hidden("stress", HiddenOptions::default()).expect("it can be made");
    let game = Arc::new(Game {
        node: node.clone(),
        hidden,
        schedulers,
        over: AtomicBool::new(false),
        moves: AtomicU64::new(0),
    });
    let players: Vec<_> = (0..players)
        .map(|i| {
            let game = game.clone();
            let start = seed.wrapping_add(i << 32);
            node.spawn(move || play(&game, start)).expect("the queue has room")
        })
        .collect();
    let mut before = 0;
    let end = Instant::now() + stress_time(0.5);
    while Instant::now() < end {
        std::thread::sleep(ms(100));
        let now = game.moves.load(Ordering::Relaxed);
        if now == before {
            eprintln!("seed {seed}: nothing moved for 100 ms after {now} moves");
        }
        before = now;
    }
    game.over.store(true, Ordering::Relaxed);
    for mut player in players {
        match player.join_for(PATIENCE) {
            Err(JoinError::Wait(..)) => hung(node, seed),
            joined => joined.expect("a player ends well"),
        }
    }
}

/// Prints the workers that hang.
fn hung(node: &Node, seed: u64) -> ! {
    for s in node.snapshot().schedulers {
        eprintln!("{s:?}");
    }
    for w in node.snapshot().workers {
        eprintln!("{w:?}");
    }
    eprintln!("seed {seed}: hung, process {}", std::process::id());
    std::process::abort();
}

fn seed() -> u64 {
    let text = std::env::var("UMS_STRESS_SEED").unwrap_or_default();
    text.parse().unwrap_or_else(|_| {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.map_or(1, |d| d.as_nanos() as u64)
    })
}

fn stress(players: u64, options: impl Fn(Builder) -> Builder) {
    let seed = seed();
    eprintln!("UMS_STRESS_SEED={seed}");
    both_kinds_with(options, |node, _, n| game(node, n, players, seed));
}

#[test]
fn many_players_with_room_for_all_leave_nothing_behind_g13() {
    stress(40, |b| b);
}

#[test]
fn many_players_on_few_workers_leave_nothing_behind_g11() {
    stress(12, |b| b.max_workers(8));
}

#[test]
fn workers_begin_and_end_at_once_u39() {
    stress(12, |b| b.max_workers(16).idle_worker_timeout(Duration::ZERO));
}

#[test]
fn few_may_be_preemptive_b30() {
    stress(24, |b| b.preemptive_limit(1));
}

#[test]
fn the_classic_profile_holds_g13() {
    stress(24, Builder::classic);
}

#[test]
fn the_synchronous_back_end_holds_u58() {
    stress(24, |b| b.io(ums::node::IoChoice::Sync));
}
