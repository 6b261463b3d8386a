//! Undeclared page faults of workers with their own context (`Builder::detect_blocking`), and calls
//! that no signal interrupts. They block the kernel thread that hosts the worker, and its scheduler
//! still continues.
//!
//! There are two kinds of page faults. A signal interrupts a fault that a thread of this process
//! resolves: then the worker continues on its own kernel thread. A signal does not interrupt a
//! fault on a file: then the scheduler continues on another carrier.
//!
//! Unsafe because of `errno` and `vfork`. Named invariant **Own Memory**: direct calls get memory
//! that the test allocated and keeps.

#![allow(unsafe_code)]

mod common;
#[path = "common/slow.rs"]
mod slow;

use std::cell::Cell;
use std::io::{PipeReader, Write};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::dice::Dice;
use common::{
    Computing, bare_read, can_be_had, end, eventually, kernel_thread, open_descriptors,
    stress_time, turn,
};
use slow::{Slow, SlowFile, child, file, file_page, user_page};
use ums::node::Placement;
use ums::stats::SchedulerCounters;
use ums::{JoinHandle, Node, WaitReason, WorkerKind};

fn node(schedulers: usize, detects: bool) -> Option<Node> {
    let builder = Node::builder().schedulers(schedulers).placement(Placement::AlwaysPreferred);
    let builder = builder.own_context_workers().max_workers(64 * schedulers);
    can_be_had(WorkerKind::OwnContext).then(|| builder.detect_blocking(detects).build().unwrap())
}

fn counters(node: &Node, scheduler: usize) -> SchedulerCounters {
    node.snapshot().schedulers[scheduler].counters
}

thread_local! {
    static MARK: Cell<u64> = const { Cell::new(0) };
}

fn errno() -> *mut i32 {
    // SAFETY: Own Memory: it is the calling thread's own.
    unsafe { libc::__errno_location() }
}

/// Touches slow memory in the middle of a request, and checks that the worker's thread-local and
/// register state is unchanged.
fn block(slow: &dyn Slow, mark: u64, expects_errno: bool) {
    let me = std::thread::current().id();
    MARK.set(mark);
    // SAFETY: Own Memory: as above.
    unsafe { *errno() = 4711 };
    let sum: f64 = (1..100).map(f64::from).map(f64::sqrt).sum();
    assert_eq!(slow.touch(), slow.holds());
    // SAFETY: Own Memory: as above.
    assert!(!expects_errno || unsafe { *errno() } == 4711);
    assert_eq!(sum, (1..100).map(f64::from).map(f64::sqrt).sum::<f64>());
    assert_eq!((MARK.get(), std::thread::current().id()), (mark, me));
    assert!(!std::thread::panicking() && ums::worker::is_worker());
}

/// Returns whether on each scheduler another task runs while one blocks there, and the counters of
/// the first scheduler.
fn beside(
    make: fn() -> Option<Arc<dyn Slow>>,
    schedulers: usize,
    detects: bool,
) -> Option<(bool, SchedulerCounters)> {
    let node = node(schedulers, detects)?;
    let slows: Option<Vec<_>> = (0..schedulers).map(|_| make()).collect();
    let slows = slows?;
    let begun = Arc::new(AtomicUsize::new(0));
    let blockers: Vec<_> = slows
        .iter()
        .enumerate()
        .map(|(at, slow)| {
            let (slow, begun) = (slow.clone(), begun.clone());
            node.spawn_on(at, move || {
                let own = own_kernel_thread();
                begun.fetch_add(1, SeqCst);
                block(&*slow, at as u64 + 1, false);
                assert_ne!(kernel_thread(), own, "back on the host before its next instruction");
                ums::yield_now();
                ums::sleep(Duration::from_millis(1)).unwrap();
                assert_eq!(MARK.get(), at as u64 + 1);
            })
            .unwrap()
        })
        .collect();
    eventually("they have begun", || begun.load(SeqCst) == schedulers);
    let others: Vec<_> = (0..schedulers).map(|at| node.spawn_on(at, || ()).unwrap()).collect();
    let began = Instant::now();
    let all_are_finished = |others: &[JoinHandle<()>]| others.iter().all(JoinHandle::is_finished);
    while !all_are_finished(&others) && began.elapsed() < Duration::from_millis(1500) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let early = all_are_finished(&others);
    slows.iter().for_each(|slow| slow.resolve());
    blockers.into_iter().for_each(|task| task.join().unwrap());
    others.into_iter().for_each(|task| task.join().unwrap());
    eventually("they are back", || counters(&node, 0).preemptive == 0);
    let seen = counters(&node, 0);
    end(node);
    Some((early, seen))
}

/// Returns the kernel thread that belongs to the calling worker.
fn own_kernel_thread() -> i32 {
    let _away = ums::worker::couple(WaitReason::PREEMPTIVE_EXTERNAL).unwrap();
    kernel_thread()
}

fn lets_others_run(make: fn() -> Option<Arc<dyn Slow>>, faults: bool) {
    let _turn = turn();
    let before = open_descriptors();
    for schedulers in [1, 2] {
        let Some((early, seen)) = beside(make, schedulers, true) else { return };
        assert!(early, "the others did not run before it was over: {seen:?}");
        let counted = if faults { seen.undeclared_faults } else { seen.undeclared_blocks };
        assert!(counted >= 1, "{seen:?}");
    }
    // Without detection the other task does not run: the harness notices a block.
    let (early, seen) = beside(make, 1, false).unwrap();
    assert!(!early && seen.undeclared_faults + seen.undeclared_blocks == 0, "{seen:?}");
    eventually("descriptors are closed", || open_descriptors() <= before);
}

#[test]
fn a_fault_that_a_thread_resolves_lets_others_run() {
    lets_others_run(user_page, true);
}

#[test]
fn a_fault_that_no_signal_ends_lets_others_run() {
    lets_others_run(file_page, true);
}

#[test]
fn a_call_that_no_signal_ends_lets_others_run() {
    lets_others_run(child, false);
}

#[test]
fn a_threads_own_state_is_the_same_after_a_fault() {
    let _turn = turn();
    for make in [user_page, file_page] {
        let (Some(node), Some(slow)) = (node(1, true), make()) else { continue };
        let mine = slow.clone();
        let task = node.spawn_on(0, move || block(&*mine, 5, true)).unwrap();
        eventually("it is away", || counters(&node, 0).preemptive == 1);
        slow.resolve();
        task.join().unwrap();
        end(node);
    }
}

struct Touches(Arc<dyn Slow>);

impl Drop for Touches {
    fn drop(&mut self) {
        assert_eq!(self.0.touch(), self.0.holds());
        assert!(std::thread::panicking());
    }
}

#[test]
fn a_fault_in_a_destructor_during_a_panic_lets_others_run_and_the_panic_continues() {
    let _turn = turn();
    let (Some(node), Some(slow)) = (node(1, true), file_page()) else { return };
    let mine = slow.clone();
    let task = node.spawn_on(0, move || {
        let panics = || {
            let _touches = Touches(mine);
            panic!("on purpose");
        };
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics));
        caught.is_err() && !std::thread::panicking()
    });
    eventually("it is away", || counters(&node, 0).preemptive == 1);
    assert!(!node.spawn_on(0, std::thread::panicking).unwrap().join().unwrap());
    slow.resolve();
    assert!(task.unwrap().join().unwrap());
    end(node);
}

#[test]
fn several_workers_may_be_in_faults_at_once_and_one_too_many_waits_for_one_of_them() {
    let _turn = turn();
    let (Some(node), Some(file)) = (node(1, true), file(64)) else { return };
    let base = file.base();
    let fault = |page| {
        node.spawn_on(0, move || assert_eq!(SlowFile::touch(base, page), SlowFile::holds(page)))
            .unwrap()
    };
    let mut tasks: Vec<_> = [0, 8, 16].map(fault).into();
    eventually("all are away", || counters(&node, 0).preemptive == 3);
    node.spawn_on(0, || ()).unwrap().join().unwrap();
    tasks.push(fault(40));
    eventually("one more blocks", || file.asked() >= 1 && counters(&node, 0).runnable == 0);
    let other = node.spawn_on(0, || ()).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert!(!other.is_finished(), "there are more carriers than this test knows of");
    file.resolve();
    tasks.into_iter().for_each(|task| task.join().unwrap());
    other.join().unwrap();
    end(node);
}

#[test]
fn a_fault_in_a_signal_handler_of_the_applications_holds_up_the_host() {
    static BASE: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn touches(_: i32) {
        assert_eq!(SlowFile::touch(BASE.load(SeqCst), 3), SlowFile::holds(3));
    }
    let _turn = turn();
    let (Some(node), Some(file)) = (node(1, true), file(8)) else { return };
    BASE.store(file.base(), SeqCst);
    // SAFETY: Own Memory: a handler that reads mapped memory. Its signal is blocked while it runs.
    unsafe { libc::signal(libc::SIGUSR1, touches as extern "C" fn(i32) as usize) };
    let task = node.spawn_on(0, || {
        // SAFETY: Own Memory: numbers. `raise` is not used, because it sends the signal to the
        // worker's own kernel thread.
        let here = || unsafe {
            libc::syscall(libc::SYS_tgkill, libc::getpid(), kernel_thread(), libc::SIGUSR1)
        };
        assert_eq!(here(), 0);
    });
    eventually("it is in its handler", || file.asked() > 0);
    let other = node.spawn_on(0, || ()).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let early = other.is_finished();
    file.resolve();
    task.unwrap().join().unwrap();
    other.join().unwrap();
    assert!(!early && counters(&node, 0).undeclared_faults == 0);
    end(node);
}

/// Worker A is in a page fault that is resolved while worker B computes. Returns whether A ran
/// before B had yielded.
fn runs_without_the_baton(make: fn() -> Option<Arc<dyn Slow>>) -> Option<bool> {
    let (node, slow) = (node(1, true)?, make()?);
    let read = Arc::new(AtomicBool::new(false));
    let (mine, tell) = (slow.clone(), read.clone());
    let a = node.spawn_on(0, move || {
        assert_eq!(mine.touch(), mine.holds());
        tell.store(true, SeqCst);
    });
    eventually("it is away", || counters(&node, 0).preemptive == 1);
    let b = Computing::on(&node);
    slow.resolve();
    std::thread::sleep(Duration::from_millis(100));
    let early = read.load(SeqCst);
    b.end();
    a.unwrap().join().unwrap();
    end(node);
    Some(early)
}

#[test]
fn after_its_fault_a_worker_runs_nothing_before_it_is_chosen() {
    let _turn = turn();
    for make in [user_page, file_page] {
        assert_ne!(runs_without_the_baton(make), Some(true));
    }
}

#[test]
fn a_request_that_is_cancelled_in_a_fault_sees_that_when_it_rejoins() {
    let _turn = turn();
    for make in [user_page, file_page] {
        let (Some(node), Some(slow)) = (node(1, true), make()) else { continue };
        let mine = slow.clone();
        let task = node.spawn_on(0, move || {
            let before = ums::is_cancelled();
            mine.touch();
            (before, ums::is_cancelled(), ums::sleep(Duration::from_secs(60)).is_err())
        });
        eventually("it is away", || counters(&node, 0).preemptive == 1);
        let task = task.unwrap();
        task.cancel();
        slow.resolve();
        assert_eq!(task.join().unwrap(), (false, true, true));
        end(node);
    }
}

#[test]
fn a_shutdown_waits_for_a_worker_in_a_fault_and_gives_up_one_that_never_rejoins() {
    let _turn = turn();
    for make in [user_page, file_page] {
        for waits in [true, false] {
            let (Some(node), Some(slow)) = (node(1, true), make()) else { continue };
            let back = Arc::new(AtomicBool::new(false));
            let (mine, tell) = (slow.clone(), back.clone());
            let task = node.spawn_on(0, move || {
                mine.touch();
                ums::yield_now();
                tell.store(true, SeqCst);
            });
            drop(task.unwrap());
            eventually("it is away", || counters(&node, 0).preemptive == 1);
            if waits {
                let later = std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(100));
                    slow.resolve();
                });
                end(node);
                assert!(back.load(SeqCst));
                later.join().unwrap();
            } else {
                assert_eq!(node.shutdown(Duration::from_millis(50)).left, 1);
                assert!(!back.load(SeqCst));
                slow.resolve();
                eventually("it ends after all", || back.load(SeqCst));
            }
        }
    }
}

/// The state that the workers of a stress run share.
struct Field {
    file: SlowFile,
    page: AtomicUsize,
    /// A lock that a completion routine wants, so a turn of the scheduler may wait for it.
    lock: Mutex<u64>,
    /// For each scheduler, the worker that runs there, as its tasks report.
    owners: [AtomicUsize; 2],
    stop: AtomicBool,
    violations: AtomicU64,
}

const PAGES: usize = 1 << 17;

impl Field {
    /// Does one random thing between two computations.
    fn step(self: &Arc<Field>, dice: &mut Dice, pipe: &PipeReader) {
        match dice.roll(64) {
            0..23 => self.touch(),
            23 => self.touch_with_a_lock_that_a_routine_wants(),
            24..32 => assert_eq!(bare_read(pipe), b'x'),
            32..40 => std::thread::sleep(Duration::from_micros(20 + dice.roll(200))),
            40..48 => ums::sleep(Duration::from_micros(dice.roll(300))).unwrap(),
            48..56 => drop(own_kernel_thread()),
            // `vfork` waits like a page fault, but with all signals blocked, so that no signal
            // could act as the gate.
            56 => assert!(std::process::Command::new("/bin/true").status().unwrap().success()),
            _ => ums::yield_now(),
        }
    }

    fn touch(&self) {
        let page = self.page.fetch_add(1, SeqCst) % PAGES;
        assert_eq!(SlowFile::touch(self.file.base(), page), SlowFile::holds(page));
    }

    /// If a turn runs the routine meanwhile, it waits inside the library for this worker's lock. So
    /// this worker, when it rejoins, must be allowed to run without the baton.
    fn touch_with_a_lock_that_a_routine_wants(self: &Arc<Field>) {
        let (reads, mut writes) = std::io::pipe().unwrap();
        let (fd, field) = (reads.as_raw_fd(), self.clone());
        ums::testing::when_readable(fd, move |_| {
            *field.lock.lock().unwrap() += 1;
            drop(reads);
        });
        let mut count = self.lock.lock().unwrap();
        writes.write_all(b"x").unwrap();
        self.touch();
        *count += 1;
    }

    /// A task that returns from a fault writes its number here and computes for a moment. Its
    /// number must still be there, and the task must not be on its own kernel thread.
    fn compute(&self, me: usize, own: i32, loops: u64) {
        let owner = &self.owners[ums::worker::scheduler_id().expect("a worker on its scheduler")];
        owner.store(me, SeqCst);
        let others = (0..loops).any(|_| owner.load(SeqCst) != me);
        let away = kernel_thread() == own;
        self.violations.fetch_add((others || away || MARK.get() != me as u64).into(), SeqCst);
    }
}

fn stress(schedulers: usize, tasks: usize, time: Duration) -> Option<(u64, u64)> {
    let (node, file) = (node(schedulers, true)?, file(PAGES)?);
    file.delay(Duration::from_micros(150));
    file.resolve();
    let field = Arc::new(Field {
        file,
        page: AtomicUsize::new(0),
        lock: Mutex::default(),
        owners: Default::default(),
        stop: AtomicBool::new(false),
        violations: AtomicU64::new(0),
    });
    let mut feeds = Vec::new();
    let tasks: Vec<_> = (0..tasks)
        .map(|me| {
            let (pipe, feed) = std::io::pipe().unwrap();
            feeds.push(feed);
            let field = field.clone();
            let work = move || {
                let (own, mut dice) = (own_kernel_thread(), Dice(me as u64 * 77 + 1));
                MARK.set(me as u64);
                while !field.stop.load(SeqCst) {
                    field.step(&mut dice, &pipe);
                    field.compute(me, own, dice.roll(500));
                }
            };
            node.spawn_on(me % schedulers, work).unwrap()
        })
        .collect();
    let began = Instant::now();
    let mut dice = Dice(5);
    let all = || (0..schedulers).map(|at| counters(&node, at));
    // On a busy computer the watcher thread may get no processor for a while.
    let patience = time + Duration::from_secs(30);
    while !tasks.iter().all(JoinHandle::is_finished) {
        let enough = || began.elapsed() >= patience || all().any(|c| c.undeclared_faults > 0);
        field.stop.store(began.elapsed() >= time && enough(), SeqCst);
        let n = dice.roll(feeds.len() as u64) as usize;
        let _ = feeds[n].write_all(b"x");
        std::thread::sleep(Duration::from_micros(100));
        assert!(began.elapsed() < patience + Duration::from_secs(60), "a worker was lost");
    }
    tasks.into_iter().for_each(|task| task.join().unwrap());
    eventually("no worker is preemptive", || all().all(|seen| seen.preemptive == 0));
    let (faults, blocks, lent) = all().fold((0, 0, 0), |(faults, blocks, lent), seen| {
        let (seen_faults, seen_blocks) = (seen.undeclared_faults, seen.undeclared_blocks);
        (faults + seen_faults, blocks + seen_blocks, lent + seen.workers_lent)
    });
    end(node);
    let (pages, violations) = (field.page.load(SeqCst), field.violations.load(SeqCst));
    println!(
        "{schedulers} schedulers: {pages} pages, {faults} faults and {blocks} calls noticed, \
         lent {lent} times, {violations} violations"
    );
    Some((violations, faults))
}

/// For a longer run: `UMS_STRESS_SECS=60 cargo test -p ums --test undeclared_own_faults
/// no_instruction -- --nocapture`.
#[test]
fn no_instruction_without_the_baton_whatever_faults_with_1_and_2_schedulers() {
    let _turn = turn();
    let before = open_descriptors();
    let time = stress_time(2.0);
    for schedulers in [1, 2] {
        let Some((violations, faults)) = stress(schedulers, 12 * schedulers, time) else { return };
        assert_eq!(violations, 0);
        assert!(faults > 0, "nothing was noticed");
    }
    eventually("descriptors are closed", || open_descriptors() <= before);
}

/// Returns the time from a fault until the next worker runs its own code: the median of the faults
/// that were noticed, in nanoseconds.
fn until_the_next_worker(kind: WorkerKind) -> Option<u64> {
    const FAULTS: usize = 25;
    let (node, file) = match kind {
        WorkerKind::OwnContext => (node(1, true)?, file(FAULTS * 8)?),
        _ => {
            let builder = Node::builder().schedulers(1).placement(Placement::AlwaysPreferred);
            (builder.detect_blocking(true).build().unwrap(), file(FAULTS * 8)?)
        }
    };
    // Each fault lasts so long that the watchdog notices it even if the watcher thread gets no
    // processor.
    file.delay(Duration::from_millis(40));
    file.resolve();
    let began = Instant::now();
    let (faulted, base) = (Arc::new(AtomicU64::new(0)), file.base());
    let now = move || began.elapsed().as_nanos() as u64;
    let (mine, over) = (faulted.clone(), Arc::new(AtomicBool::new(false)));
    let tell = over.clone();
    let faults = node.spawn_on(0, move || {
        for page in 0..FAULTS {
            mine.store(now(), SeqCst);
            assert_eq!(SlowFile::touch(base, page * 8), SlowFile::holds(page * 8));
            mine.store(0, SeqCst);
            ums::yield_now();
        }
        tell.store(true, SeqCst);
    });
    let runs = node.spawn_on(0, move || {
        let mut spans = Vec::new();
        while !over.load(SeqCst) {
            let at = faulted.swap(0, SeqCst);
            if at > 0 {
                spans.push(now() - at);
            }
            ums::yield_now();
        }
        spans
    });
    faults.unwrap().join().unwrap();
    let mut spans = runs.unwrap().join().unwrap();
    end(node);
    spans.sort_unstable();
    println!("{kind:?}: {} of {FAULTS} faults let the next worker run", spans.len());
    spans.get(spans.len() / 2).copied()
}

#[test]
fn the_next_worker_runs_long_before_a_fault_is_over() {
    let _turn = turn();
    if node(1, true).is_none() || file(1).is_none() {
        return;
    }
    let own = until_the_next_worker(WorkerKind::OwnContext);
    let threads = until_the_next_worker(WorkerKind::Thread);
    println!("own contexts {own:?} ns, threads {threads:?} ns");
    assert!(own.is_some_and(|own| own < 40_000_000), "{own:?} ns");
}
