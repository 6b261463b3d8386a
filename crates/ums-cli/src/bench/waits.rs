//! Benches of waits: channels, a lock, timers.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ums::Node;
use ums::stats::SchedulerCounters;
use ums::sync::{Mutex, channel};

use super::meter::{BenchArgs, Lines, Meter, Ran, Stop, delay_ms};
use super::setup::{Setup, pin_to};
use super::tasks::cpus;

/// Workers beyond those that a bench's tasks need.
const SPARE: u64 = 8;

/// `pingpong cpus= n=`: two tasks, two channels of capacity 1; one operation is a round trip. With
/// two CPUs it also prints how long two bare threads that poll one word take, just before and
/// after.
pub fn pingpong(args: &BenchArgs) -> Ran {
    let setup = Setup::read(args)?;
    let cpus = cpus(args)?;
    let n = args.number("n", setup.size(1_000_000, 200_000))?;
    args.all_known()?;
    let lines = setup.lines(format!("pingpong/{cpus}cpu"));
    let node = setup.node(cpus, SPARE)?;
    let (ping, pinged) = channel::bounded(1);
    let (pong, ponged) = channel::bounded(1);
    let bare = if cpus == 2 { bare_round_trip()? } else { [0.0; 2] };
    let meter = Meter::start();
    let here = node.spawn_on(0, move || {
        for i in 0..n {
            ping.send(i).expect("the partner is there");
            black_box(ponged.recv().expect("the partner is there"));
        }
    });
    let there = node.spawn_on(cpus as usize - 1, move || {
        for _ in 0..n {
            pong.send(pinged.recv().expect("the partner is there")).expect("as above");
        }
    });
    for task in [here, there] {
        task.expect("a new node").join().expect("a task");
    }
    lines.per_op(&meter, n);
    if cpus == 2 {
        polls(&lines, &node, meter.read().0);
        let [wall, cpu] = bare_round_trip()?;
        lines.metric("bare_spin_ns", bare[0].min(wall), "ns");
        lines.metric("bare_spin_cpu_ns", bare[1].min(cpu), "ns");
    }
    Ok(())
}

/// Prints how often the schedulers polled before they slept, how many polls found something, and
/// the share of the processors' time that was charged for it.
fn polls(lines: &Lines, node: &Node, wall_ns: f64) {
    let all = node.snapshot().schedulers;
    let sum = |of: fn(&SchedulerCounters) -> u64| all.iter().map(|s| of(&s.counters)).sum::<u64>();
    lines.metric("sleeps", sum(|c| c.idle_switches) as f64, "count");
    lines.metric("polls", sum(|c| c.idle_spins) as f64, "count");
    lines.metric("polls_paid", sum(|c| c.idle_spins_paid) as f64, "count");
    let charged = sum(|c| c.idle_spin_charged_ns) as f64 / all.len() as f64;
    lines.metric("polls_charged", 100.0 * charged / wall_ns, "per cent");
}

/// Returns the time of a round trip between two threads, each on a CPU of its own, that do nothing
/// but poll one word: in nanoseconds of the clock, and of the processors.
fn bare_round_trip() -> Result<[f64; 2], Stop> {
    const TRIPS: u64 = 200_000;
    let word = Arc::new(AtomicU64::new(0));
    let player = |mine: u64| {
        let word = word.clone();
        move || {
            pin_to(mine as usize)?;
            for at in (mine..2 * TRIPS).step_by(2) {
                while word.load(Ordering::Acquire) != at {
                    std::hint::spin_loop();
                }
                word.store(at + 1, Ordering::Release);
            }
            Ok(())
        }
    };
    let meter = Meter::start();
    for player in [0, 1].map(|mine| std::thread::spawn(player(mine))) {
        player.join().expect("a player")?;
    }
    let (wall, cpu) = meter.read();
    Ok([wall / TRIPS as f64, cpu / TRIPS as f64])
}

/// `ring n= tasks=`: a number is passed around a ring of tasks and counted down.
pub fn ring(args: &BenchArgs) -> Ran {
    let setup = Setup::read(args)?;
    let n = args.number("n", setup.size(5_000_000, 500_000))?;
    let tasks = args.number("tasks", 503)?.max(2) as usize;
    args.all_known()?;
    let lines = setup.lines("ring");
    let node = setup.node(1, tasks as u64 + SPARE)?;
    let last = node.run(move || {
        let (senders, receivers): (Vec<_>, Vec<_>) =
            (0..tasks).map(|_| channel::bounded(1)).unzip();
        let first = senders[0].clone();
        let (done, finished) = channel::bounded(1);
        let meter = Meter::start();
        for (at, receiver) in receivers.into_iter().enumerate() {
            let (next, done) = (senders[(at + 1) % tasks].clone(), done.clone());
            ums::spawn(move || {
                // The loop ends when the previous task has ended, because that task has the
                // channel's only sender.
                while let Ok(left) = receiver.recv() {
                    if left == 0 {
                        let _ = done.send(at as u64 + 1);
                        return;
                    }
                    let _ = next.send(left - 1);
                }
            });
        }
        drop(senders);
        first.send(n).expect("the ring is there");
        drop(first);
        let last = finished.recv().expect("the ring comes to its end");
        lines.per_op(&meter, n);
        last
    });
    assert_eq!(last, n % tasks as u64 + 1, "the number was not passed in order");
    Ok(())
}

/// `mutex tasks= iters=`: lock, increment, yield while holding, unlock.
pub fn mutex(args: &BenchArgs) -> Ran {
    let setup = Setup::read(args)?;
    let tasks = args.number("tasks", 1000)?;
    let iters = args.number("iters", setup.size(1000, 100))?;
    args.all_known()?;
    let lines = setup.lines("mutex");
    setup.node(1, tasks + SPARE)?.run(move || {
        let sum = Arc::new(Mutex::new(0u64));
        let meter = Meter::start();
        let adders = (0..tasks).map(|_| {
            let sum = sum.clone();
            ums::spawn(move || {
                for _ in 0..iters {
                    let mut sum = sum.lock();
                    *sum += 1;
                    ums::yield_now();
                }
            })
        });
        let adders: Vec<_> = adders.collect();
        adders.into_iter().for_each(|adder| adder.join().expect("an adder"));
        lines.per_op(&meter, tasks * iters);
        assert_eq!(*sum.lock(), tasks * iters, "the lock let two in");
    });
    Ok(())
}

/// `timers n=`: task `i` sleeps `delay_ms(i)`. The metric is how late the tasks wake.
pub fn timers(args: &BenchArgs) -> Ran {
    let setup = Setup::read(args)?;
    let n = args.number("n", setup.size(100_000, 10_000))?;
    args.all_known()?;
    let lines = setup.lines("timers");
    setup.node(1, n + SPARE)?.run(move || {
        let meter = Meter::start();
        let sleepers = (0..n).map(|i| {
            ums::spawn(move || {
                let span = Duration::from_millis(delay_ms(i));
                let began = Instant::now();
                ums::sleep(span).expect("it is not cancelled");
                began.elapsed().as_nanos() as f64 - span.as_nanos() as f64
            })
        });
        let sleepers: Vec<_> = sleepers.collect();
        let late = sleepers.into_iter().map(|s| s.join().expect("a sleeper")).collect();
        let (wall, cpu) = meter.read();
        lines.metric("tasks", n as f64, "count");
        lines.metric("cpu_ms", cpu / 1e6, "ms");
        lines.metric("wall_ms", wall / 1e6, "ms");
        lateness(&lines, late);
    });
    Ok(())
}

fn lateness(lines: &Lines, mut late_ns: Vec<f64>) {
    late_ns.sort_unstable_by(f64::total_cmp);
    let last = late_ns.len().saturating_sub(1) as f64;
    for (metric, share) in
        [("late_p50", 0.5), ("late_p99", 0.99), ("late_max", 1.0), ("late_min", 0.0)]
    {
        lines.metric(metric, late_ns[(last * share) as usize] / 1000.0, "us");
    }
}
