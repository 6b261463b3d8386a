//! Small programs with known concurrency bugs: the simulation finds each bug soon, and reports
//! nothing about the same programs without it.
//!
//! Each program runs in both forms. Those with public forerunners name them. The table in
//! docs/simulation.md is printed by
//!
//! ```text
//! UMS_FINDS=100 cargo test --release -p ums --features sim --test known_bugs -- --nocapture again
//! ```
//!
//! `UMS_SEEDS` says with how many seeds each repaired program runs, and `UMS_PROGRAM=word` chooses
//! the programs whose bug contains the word.

mod atomics;
mod locks;
mod tasks;

use std::sync::Arc;
use std::time::Instant;

use ums::sim::{Ended, Faults};
use ums::task::JoinHandle;

/// A program, in its broken and in its repaired form.
pub struct Program {
    /// The bug, in a few words.
    bug: &'static str,
    /// Runs the program. It panics, or never ends, if the bug shows.
    run: Story,
}

/// A program in one of its forms.
pub type Story = fn(Form);

/// The form of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// With the bug.
    Broken,
    /// Without it.
    Repaired,
}
use Form::{Broken, Repaired};

impl Form {
    fn is_broken(self) -> bool {
        self == Broken
    }
}

/// The most seeds until a bug counts as not found.
const SEEDS_MAX: u64 = 20_000;

/// Returns the programs, or those whose bug contains the word in `UMS_PROGRAM`.
fn programs() -> Vec<Program> {
    let word = std::env::var("UMS_PROGRAM").unwrap_or_default();
    let all = [locks::PROGRAMS, atomics::PROGRAMS, tasks::PROGRAMS].into_iter().flatten();
    let chosen = all.filter(|(bug, _)| bug.contains(&word));
    chosen.map(|&(bug, run)| Program { bug, run }).collect()
}

/// Runs these bodies at the same time, on two schedulers, and waits for their ends. If one panics,
/// this panics, too.
pub fn together(bodies: Vec<Box<dyn FnOnce() + Send>>) {
    let node = ums::Node::builder().schedulers(2).max_workers(16).build().expect("a node");
    let start = |(at, body): (usize, Box<dyn FnOnce() + Send>)| -> JoinHandle<()> {
        node.spawn_on(at % 2, body).expect("there is room")
    };
    let tasks: Vec<_> = bodies.into_iter().enumerate().map(start).collect();
    tasks.into_iter().for_each(|task| task.join().expect("it ends well"));
    let report = node.shutdown(std::time::Duration::from_secs(100));
    assert_eq!(report, ums::node::ShutdownReport::default(), "nothing is left over");
}

/// Runs `body` on `count` workers at the same time, with the number of each.
pub fn each(count: usize, body: impl Fn(usize) + Send + Sync + 'static) {
    let body = Arc::new(body);
    let one = |at| -> Box<dyn FnOnce() + Send> {
        let body = Arc::clone(&body);
        Box::new(move || body(at))
    };
    together((0..count).map(one).collect());
}

fn run(program: &Program, form: Form, seed: u64) -> Ended {
    let story = program.run;
    ums::sim::run(seed, Faults::default(), move || story(form))
}

/// Returns the first seed that finds the bug, and how the run ended.
fn find(program: &Program) -> Option<(u64, Ended)> {
    (0..SEEDS_MAX)
        .map(|seed| (seed, run(program, Broken, seed)))
        .find(|(_, ended)| ended.failed.is_some())
}

fn seeds() -> u64 {
    std::env::var("UMS_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(100)
}

#[test]
fn each_bug_is_found_and_its_seed_finds_it_again() {
    for program in programs() {
        let Some((seed, ended)) = find(&program) else { panic!("not found: {}", program.bug) };
        assert_eq!(run(&program, Broken, seed), ended, "{}: seed {seed} repeats", program.bug);
    }
}

#[test]
fn the_repaired_programs_do_not_fail() {
    for program in programs() {
        for seed in 0..seeds() {
            let ended = run(&program, Repaired, seed);
            assert_eq!(ended.failed, None, "{}: seed {seed}", program.bug);
        }
    }
}

/// Prints how soon each bug is found: the median and the most of the numbers of seeds up to one
/// that finds it, and the time for one. `UMS_FINDS` says how often each is to be found.
#[test]
fn each_bug_is_found_again_and_again() {
    let finds = std::env::var("UMS_FINDS").ok().and_then(|n| n.parse().ok()).unwrap_or(3);
    for program in programs() {
        let began = Instant::now();
        let (mut counts, mut seed) = (Vec::new(), 0);
        while counts.len() < finds {
            let first = seed;
            while run(&program, Broken, seed).failed.is_none() {
                seed += 1;
                assert!(seed - first < SEEDS_MAX, "not found: {}", program.bug);
            }
            seed += 1;
            counts.push(seed - first);
        }
        counts.sort_unstable();
        let (median, most) = (counts[counts.len() / 2], counts[counts.len() - 1]);
        let each = began.elapsed().as_secs_f64() * 1000.0 / counts.len() as f64;
        println!("| {} | {median} | {most} | {each:.1} |", program.bug);
    }
}

#[test]
fn a_lock_of_the_standard_library_that_is_held_over_a_wait_is_reported_with_its_stack() {
    #[inline(never)]
    fn needs_the_lock(lock: &std::sync::Mutex<u32>) {
        *lock.lock().expect("no panic") += 1;
        std::hint::black_box(lock);
    }
    let story = || {
        let lock = Arc::new(std::sync::Mutex::new(0));
        each(2, move |_| {
            needs_the_lock(&lock);
            let held = lock.lock().expect("no panic");
            let _ = ums::sleep(std::time::Duration::from_millis(1));
            drop(held);
        });
    };
    let failed = (0..50).find_map(|seed| ums::sim::run(seed, Faults::default(), story).failed);
    let text = failed.expect("some order of the two blocks");
    assert!(text.contains("waits outside the simulated world"), "{text}");
    println!("{text}");
    assert!(text.contains("needs_the_lock"), "{text}");
}

#[test]
fn the_panic_of_a_task_for_which_others_wait_is_the_failure() {
    let story = || {
        let done = Arc::new(ums::sync::Event::manual(false));
        each(2, move |at| {
            if at == 0 {
                assert!(done.is_set(), "a task lost its number");
                done.set();
            } else {
                done.wait().expect("no cancellation");
            }
        });
    };
    let ended = ums::sim::run(1, Faults::default(), story);
    let text = ended.failed.expect("the event is never set");
    let first = text.lines().next().unwrap_or_default();
    assert_eq!(first, "it ends well: Panicked(\"a task lost its number\")", "{text}");
    // The story waits first for the task that waits for the other one.
    let story = || {
        let done = Arc::new(ums::sync::Event::manual(false));
        let sets = done.clone();
        together(vec![
            Box::new(move || done.wait().expect("no cancellation")),
            Box::new(move || {
                assert!(sets.is_set(), "a task lost its number");
                sets.set();
            }),
        ]);
    };
    let ended = ums::sim::run(1, Faults::default(), story);
    let text = ended.failed.expect("the event is never set");
    let first = text.lines().next().unwrap_or_default();
    assert!(first.contains("panicked: a task lost its number, at "), "{text}");
    assert!(text.contains("no thread can run"), "{text}");
}

#[test]
fn a_shrunk_run_is_never_longer_than_the_first() {
    for program in programs() {
        let Some((seed, ended)) = find(&program) else { panic!("not found: {}", program.bug) };
        let (plan, story) = (ums::sim::Plan::new(seed, Faults::default()), program.run);
        let (_, shrunk) = ums::sim::shrink(&plan, &ended, &(Arc::new(move || story(Broken)) as _));
        assert!(shrunk.failed.is_some() && shrunk.steps <= ended.steps, "{}", program.bug);
    }
}

#[test]
fn a_thread_that_polls_does_not_keep_others_asleep() {
    let story = || {
        let set = Arc::new(ums::sim::sync::AtomicBool::new(false));
        let sets = set.clone();
        let sleeper = ums::sim::thread("sleeper", move || {
            ums::sim::thread_sleep(std::time::Duration::from_micros(20));
            sets.store(true, std::sync::atomic::Ordering::SeqCst);
        });
        each(2, move |_| while !set.load(std::sync::atomic::Ordering::SeqCst) {});
        sleeper.expect("a thread").join().expect("it ends well");
    };
    for seed in 0..20 {
        let ended = ums::sim::run(seed, Faults::default(), story);
        assert_eq!(ended.failed, None, "seed {seed}");
    }
}

#[test]
fn a_lock_is_printed_without_a_point() {
    let story = || {
        // As an output stream, which is locked while its arguments are formatted.
        let stream = Arc::new(std::sync::Mutex::new(String::new()));
        each(2, move |_| {
            let (mutex, seats) = (ums::sync::Mutex::new(1), ums::sync::Semaphore::new(1));
            let (lock, token) = (ums::sync::RwLock::new(1), ums::task::CancelToken::new());
            let text = stream.lock().expect("no panic");
            let line = format!("{mutex:?} {lock:?} {seats:?} {token:?}");
            drop(text);
            assert!(line.starts_with("Mutex { data: 1 } RwLock { data: 1 }"), "{line}");
        });
    };
    for seed in 0..50 {
        let ended = ums::sim::run(seed, Faults::default(), story);
        assert_eq!(ended.failed, None, "seed {seed}");
    }
}
