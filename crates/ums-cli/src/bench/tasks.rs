//! Benches of tasks: switching between them, spawning them, and the memory of many of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::meter::{BenchArgs, Lines, Memory, Meter, Ran, Stop, deep_1k};
use super::setup::Setup;

/// Workers beyond those that a bench's tasks need.
const SPARE: u64 = 8;

/// `switch tasks= total=`: the tasks yield in turn, `total` yields in all.
pub fn switch(args: &BenchArgs) -> Ran {
    let setup = Setup::read(args)?;
    let tasks = args.number("tasks", 2)?.max(1);
    let each = args.number("total", setup.size(10_000_000, 1_000_000))? / tasks;
    args.all_known()?;
    let lines = setup.lines(format!("switch/{tasks}"));
    setup.node(1, tasks + SPARE)?.run(move || {
        let meter = Meter::start();
        let yielding = move || {
            for _ in 0..each {
                ums::yield_now();
            }
        };
        let all: Vec<_> = (0..tasks).map(|_| ums::spawn(yielding)).collect();
        all.into_iter().for_each(|task| task.join().expect("a yielding task"));
        lines.per_op(&meter, each * tasks);
    });
    Ok(())
}

/// Reads `workers=`. `None`: as the library decides.
fn workers(args: &BenchArgs) -> Result<Option<u64>, Stop> {
    match args.text("workers", "auto") {
        "auto" => Ok(None),
        _ => Ok(Some(args.number("workers", 0)?)),
    }
}

/// `spawn cpus= n=`: tasks spawn batches of 1000 empty tasks, and join them.
pub fn spawn(args: &BenchArgs) -> Ran {
    let setup = Setup::read(args)?;
    let cpus = cpus(args)?;
    let n = args.number("n", 1_000_000)?;
    let workers = workers(args)?;
    args.all_known()?;
    let lines = setup.lines(format!("spawn/{cpus}cpu"));
    let node = setup.node(cpus, workers)?;
    let batches = move || {
        for _ in 0..n / cpus / 1000 {
            let batch: Vec<_> = (0..1000).map(|_| ums::spawn(|| {})).collect();
            batch.into_iter().for_each(|task| task.join().expect("an empty task"));
        }
    };
    let meter = Meter::start();
    let creators = (0..cpus).map(|at| node.spawn_on(at as usize, batches).expect("a new node"));
    let creators: Vec<_> = creators.collect();
    creators.into_iter().for_each(|creator| creator.join().expect("a creator"));
    lines.per_op(&meter, n);
    Ok(())
}

/// `skynet cpus=`: a tree of 1,111,111 tasks, ten children each.
pub fn skynet(args: &BenchArgs) -> Ran {
    let setup = Setup::read(args)?;
    let cpus = cpus(args)?;
    let leaves = args.number("leaves", 1_000_000)?;
    let workers = workers(args)?;
    args.all_known()?;
    let lines = setup.lines(format!("skynet/{cpus}cpu"));
    let node = setup.node(cpus, workers)?;
    let meter = Meter::start();
    let sum = node.run(move || subtree(0, leaves));
    if sum != leaves * (leaves - 1) / 2 {
        return Err(Stop::Usage(format!("leaves={leaves}: not a power of ten (the sum is {sum})")));
    }
    lines.ms(&meter);
    Ok(())
}

fn subtree(first: u64, leaves: u64) -> u64 {
    if leaves == 1 {
        return first;
    }
    let each = leaves / 10;
    let children = (0..10).map(|i| ums::spawn(move || subtree(first + i * each, each)));
    let children: Vec<_> = children.collect();
    children.into_iter().map(|child| child.join().expect("a subtree")).sum()
}

/// `idle n=`: tasks that touch 1 KiB of their stacks and then wait without end.
pub fn idle(args: &BenchArgs) -> Ran {
    let setup = Setup::read(args)?;
    let n = args.number("n", setup.size(100_000, 10_000))?;
    let of = args.text("of", "task");
    let requests = args.number("requests", 100)?;
    args.all_known()?;
    let lines = setup.lines("idle");
    match of {
        "task" => {}
        "user" => return idle_users(&setup.node(1, SPARE)?, n, requests, lines),
        other => return Err(Stop::Usage(format!("of={other}: task or user"))),
    }
    setup.node(1, n + SPARE)?.run(move || {
        ums::spawn(|| {}).join().expect("an empty task");
        let before = Memory::now();
        let parked = Arc::new(AtomicU64::new(0));
        for i in 0..n {
            let parked = parked.clone();
            ums::spawn(move || {
                std::hint::black_box(deep_1k(i));
                parked.fetch_add(1, Ordering::Relaxed);
                ums::sleep(Duration::MAX)
            });
        }
        while parked.load(Ordering::Relaxed) < n {
            if ums::sleep(Duration::from_millis(1)).is_err() {
                return;
            }
        }
        before.growth(&lines, n);
    });
    // Exits here, because the time in which so many workers end is not measured.
    std::process::exit(0)
}

/// Users each of which has made so many requests. Each request has waited once.
fn idle_users(node: &ums::Node, n: u64, requests: u64, lines: Lines) -> Ran {
    let ask = |user: &ums::User| {
        let request = user.enqueue(|| ums::sleep(Duration::from_nanos(1)));
        let ended = request.expect("the queue has room").join().expect("it runs");
        ended.expect("nothing cancels it");
    };
    (0..SPARE).for_each(|_| ask(&node.user()));
    let before = Memory::now();
    let users: Vec<_> = (0..n).map(|_| node.user()).collect();
    for user in &users {
        (0..requests).for_each(|_| ask(user));
    }
    before.growth(&lines, n);
    Ok(())
}

/// `cpus=1` or `cpus=2`.
pub fn cpus(args: &BenchArgs) -> Result<u64, Stop> {
    match args.number("cpus", 1)? {
        cpus @ 1..=2 => Ok(cpus),
        cpus => Err(Stop::Usage(format!("cpus={cpus}: 1 or 2"))),
    }
}
