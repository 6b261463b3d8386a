//! The mixed story: a node with two or three schedulers that uses every feature at the same time,
//! with faults.
//!
//! Its requests do *deeds*: each request does a random number of deeds in a random order. A deed
//! uses one feature of the library and checks that the library keeps its promise. The simulation
//! checks the invariants of the library itself in every turn of every scheduler: One List, one
//! baton, counters that add up. The story checks also:
//!
//! * Every request ends exactly once, in the way that its handle reports: the *ledger*.
//! * First come, first served: requests that are bound to a scheduler begin in the order in which
//!   they were queued, and waiters for a lock get it in the order of their arrival.
//! * At the end nothing is left: no request, no worker that waits, no timer, no operation, no
//!   permit.
//!
//! * **Contract**: deeds keep no thread-scoped state across a wait, as fiber workers require.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use ums::node::Placement;
use ums::sim::{Faults, below};
use ums::sync::channel::{Receiver, Sender, bounded};
use ums::sync::{Condvar, Event, Mutex, RwLock, Semaphore};
use ums::task::JoinError;
use ums::user::{UserId, UserLock};
use ums::{Builder, JoinHandle, Node, User};

use super::deeds;

/// The faults of the mixed story.
pub const FAULTS: Faults =
    Faults { short: 1000, fail: 100, cut: 50, no_thread: 200, jump: 2, stall: 20 };

const QUEUED: u64 = 0;
const BEGUN: u64 = 1;
const ENDED: u64 = 2;
const PANICKED: u64 = 3;

/// How far a request has come, and how it ended, as the request itself records it.
#[derive(Clone, Default)]
pub struct Entry(Arc<AtomicU64>);

impl Entry {
    fn goes(&self, from: u64, to: u64) {
        let before = self.0.swap(to, Ordering::Relaxed);
        assert_eq!(before, from, "a request begins once and ends once");
    }

    fn agrees(&self, told: &Result<(), JoinError<JoinHandle<()>>>) {
        let wanted = match told {
            Ok(()) => ENDED,
            Err(JoinError::Panicked(_)) => PANICKED,
            Err(JoinError::NeverRan) => QUEUED,
            Err(JoinError::Wait(..)) => unreachable!("a plain thread is not cancelled"),
        };
        if let Err(JoinError::Panicked(panic)) = told
            && !panic.is::<OnPurpose>()
        {
            let text = panic.downcast_ref::<String>().map_or("no text", |text| text);
            let text = panic.downcast_ref::<&str>().unwrap_or(&text);
            panic!("a deed found what must not be: {text}");
        }
        assert_eq!(self.0.load(Ordering::Relaxed), wanted, "a request ends as its handle says");
    }
}

/// The text that requests panic with on purpose.
pub struct OnPurpose;

/// A waiting line on one scheduler: first come, first served.
#[derive(Default)]
pub struct Line {
    pub lock: Mutex<()>,
    pub came: AtomicU64,
    pub served: AtomicU64,
    /// The number of the bound request that began last.
    begun: AtomicU64,
}

/// The state that the deeds share.
pub struct Day {
    /// A number that only the owner of its lock changes, and how often that happened.
    pub sum: Mutex<u64>,
    pub added: AtomicU64,
    /// Two numbers that are always equal when read under their lock.
    pub pair: RwLock<(u64, u64)>,
    pub permits: Semaphore,
    pub inside: AtomicUsize,
    pub gate: UserLock,
    /// This event is set once during the story, and stays set.
    pub whistle: Event,
    pub cards: Mutex<u64>,
    pub a_card: Condvar,
    pub letters: Sender<(UserId, u64)>,
    pub posted: Receiver<(UserId, u64)>,
    pub lines: Vec<Line>,
    /// The number of completion routines that were submitted, and the number that have run.
    pub routines: [AtomicU64; 2],
}

/// The number of permits of the day's semaphore.
pub const PERMITS: usize = 3;

impl Day {
    fn new(schedulers: usize) -> Day {
        let (letters, posted) = bounded(1 + below(8) as usize);
        Day {
            sum: Mutex::new(0),
            added: AtomicU64::new(0),
            pair: RwLock::new((0, 0)),
            permits: Semaphore::new(PERMITS),
            inside: AtomicUsize::new(0),
            gate: UserLock::near(below(3) as usize),
            whistle: Event::manual(false),
            cards: Mutex::new(0),
            a_card: Condvar::new(),
            letters,
            posted,
            lines: (0..schedulers).map(|_| Line::default()).collect(),
            routines: Default::default(),
        }
    }
}

/// Returns the builder with fiber workers, with workers that have their own context if these are
/// supported, or with threads.
pub fn of_some_kind(builder: Builder, kind: u64) -> Builder {
    match kind {
        // SAFETY: Contract: see the module's text.
        #[allow(unsafe_code)]
        0 => unsafe { builder.fiber_workers() },
        1 if ums::probe::own_contexts_are_refused().is_none() => builder.own_context_workers(),
        _ => builder,
    }
}

/// Returns a node of a random kind. If the simulation refuses a thread, it tries again.
fn node(schedulers: usize) -> Node {
    let placement = [Placement::Hinted, Placement::Classic, Placement::LeastLoaded];
    let (placement, kind) = (placement[below(3) as usize], below(3));
    let workers = schedulers * (6 + below(10) as usize);
    let idle = Duration::from_micros(100 + below(50_000));
    loop {
        let builder = Node::builder()
            .schedulers(schedulers)
            .max_workers(workers)
            .placement(placement)
            .preemptive_limit(2 + below(6) as usize)
            .idle_worker_timeout(idle);
        if let Ok(node) = of_some_kind(builder, kind).build() {
            return node;
        }
    }
}

type Requests = Vec<(Entry, JoinHandle<()>)>;

/// Returns a request's closure: some deeds, and perhaps a panic.
fn work(day: &Arc<Day>, user: UserId, entry: &Entry, deeds: u64) -> impl FnOnce() + Send + use<> {
    let (day, entry) = (Arc::clone(day), entry.clone());
    move || {
        entry.goes(QUEUED, BEGUN);
        // This data on the worker's stack must stay unchanged, whatever runs meanwhile.
        let mine = black_box([user ^ 0x5EED; 24]);
        for _ in 0..deeds {
            deeds::one(&day, user);
            assert!(
                mine.iter().all(|word| *word == user ^ 0x5EED),
                "another thread wrote into a stack"
            );
        }
        if below(12) == 0 {
            entry.goes(BEGUN, PANICKED);
            std::panic::resume_unwind(Box::new(OnPurpose));
        }
        entry.goes(BEGUN, ENDED);
    }
}

/// Starts a request that no other scheduler may take. It takes its place in the line of its
/// scheduler.
fn bound(node: &Node, day: &Arc<Day>, at: usize, number: u64) -> (Entry, JoinHandle<()>) {
    let entry = Entry::default();
    let (theirs, line) = (entry.clone(), Arc::clone(day));
    let task = node.spawn_on(at, move || {
        theirs.goes(QUEUED, BEGUN);
        let before = line.lines[at].begun.swap(number, Ordering::Relaxed);
        assert!(before < number, "request {number} began after {before}");
        deeds::wait_in_line(&line.lines[at]);
        theirs.goes(BEGUN, ENDED);
    });
    (entry, task.expect("the queue has room"))
}

/// Starts one round of requests: of users, without a user, and bound ones.
fn round(node: &Node, day: &Arc<Day>, users: &[User], numbers: &mut u64) -> Requests {
    let mut all = Requests::new();
    for user in users {
        let entry = Entry::default();
        let task = user.enqueue(work(day, user.id(), &entry, 1 + below(5)));
        all.push((entry, task.expect("the queue has room")));
        if below(16) == 0 {
            user.cancel();
        }
    }
    for _ in 0..below(6) {
        let entry = Entry::default();
        let task = node.spawn(work(day, 0, &entry, 1 + below(4)));
        all.push((entry, task.expect("the queue has room")));
    }
    for _ in 0..2 + below(6) {
        *numbers += 1;
        all.push(bound(node, day, below(node.scheduler_count() as u64) as usize, *numbers));
    }
    if below(4) == 0 {
        let (_, task) = &all[below(all.len() as u64) as usize];
        task.cancel();
    }
    if below(4) == 0 {
        let at = below(node.scheduler_count() as u64) as usize;
        node.set_online(at, false);
        ums::sim::thread_sleep(Duration::from_micros(below(300)));
        node.set_online(at, true);
    }
    all
}

fn all_end(requests: Requests) {
    for (entry, task) in requests {
        entry.agrees(&task.join());
    }
}

/// The whole story: some rounds of requests, and a shutdown at a quiet moment or in the middle of
/// the work.
pub fn day() {
    let schedulers = 2 + below(2) as usize;
    let node = node(schedulers);
    let day = Arc::new(Day::new(schedulers));
    let users: Vec<_> = (0..6).map(|_| node.user()).collect();
    let client = a_plain_thread(&day);
    let mut numbers = 0;
    let rounds = 20 + below(10);
    for nth in 0..rounds {
        let requests = round(&node, &day, &users, &mut numbers);
        if nth == 1 {
            day.whistle.set();
        }
        if nth + 1 == rounds && below(3) == 0 {
            return ends_at_any_moment(node, &day, users, requests, client);
        }
        if nth > 0 {
            // In the first round, a deed may wait for the whistle, so the other branch sets it
            // first.
            all_end(requests);
        } else {
            let whistle = Arc::clone(&day);
            node.spawn(move || whistle.whistle.set()).expect("the queue has room");
            all_end(requests);
        }
    }
    drop(users);
    client
        .into_iter()
        .for_each(|thread| thread.join().expect("a plain thread finds all as promised"));
    nothing_is_left(&node, &day);
    let report = node.shutdown(Duration::from_secs(100));
    assert_eq!(report, ums::node::ShutdownReport::default(), "nothing is cancelled or left over");
}

/// Starts a plain thread that uses the same objects as the workers. The simulation may refuse the
/// thread.
fn a_plain_thread(day: &Arc<Day>) -> Option<ums::sim::Thread> {
    let day = Arc::clone(day);
    let main = move || {
        for _ in 0..5 {
            deeds::add(&day);
            deeds::enter(&day);
            deeds::look_at_the_pair(&day);
            ums::sim::thread_sleep(Duration::from_micros(below(500)));
        }
    };
    ums::sim::thread("client", main).ok()
}

fn ends_at_any_moment(
    node: Node,
    day: &Day,
    users: Vec<User>,
    requests: Requests,
    client: Option<ums::sim::Thread>,
) {
    ums::sim::thread_sleep(Duration::from_micros(below(2000)));
    let report = node.shutdown(Duration::from_micros(below(4000)));
    assert_eq!(report.left, 0, "every worker ends");
    all_end(requests);
    drop(users);
    client
        .into_iter()
        .for_each(|thread| thread.join().expect("a plain thread finds all as promised"));
    everything_is_released(day);
}

/// Checks that everything that was taken has been released.
fn everything_is_released(day: &Day) {
    let sum = *day.sum.lock();
    assert_eq!(sum, day.added.load(Ordering::Relaxed), "no update is lost");
    assert_eq!((day.permits.available(), day.inside.load(Ordering::Relaxed)), (PERMITS, 0));
    assert_eq!((day.gate.owner(), day.gate.waiters()), (None, 0));
    let [asked, run] = &day.routines;
    assert_eq!(
        asked.load(Ordering::Relaxed),
        run.load(Ordering::Relaxed),
        "each routine runs once"
    );
}

/// Checks that all work of the schedulers has ended, and that their counters show it.
fn nothing_is_left(node: &Node, day: &Day) {
    everything_is_released(day);
    for at in 0..node.scheduler_count() {
        // A request's result is available a moment before the request has ended.
        let busy = || {
            let seen = ums::testing::scheduler(node, at);
            let c = seen.counters;
            let left = [seen.load as u64, seen.queued as u64, c.runnable, c.waiting, c.preemptive];
            (left.iter().chain(&[c.pending_io, c.timers]).any(|n| *n > 0)).then_some(seen)
        };
        let tries = (0..1000).find(|_| {
            ums::sim::thread_sleep(Duration::from_micros(100));
            busy().is_none()
        });
        assert!(tries.is_some(), "left on scheduler {at}: {:?}", busy());
    }
}

/// Another story: two tasks take two locks in different orders.
#[allow(dead_code)] // Not every program that includes this file uses it.
pub fn two_locks() {
    let node = node(2);
    let locks = Arc::new((Mutex::new(()), Mutex::new(())));
    let task = |n| {
        let locks = Arc::clone(&locks);
        node.spawn(move || {
            let (first, second) = if n == 0 { (&locks.0, &locks.1) } else { (&locks.1, &locks.0) };
            let _first = first.lock();
            ums::yield_now();
            let _second = second.lock();
        })
    };
    let tasks = [task(0).unwrap(), task(1).unwrap()];
    tasks.into_iter().for_each(|task| task.join().unwrap());
    node.shutdown(Duration::from_secs(100));
}
