//! Large nodes: users and requests are spread evenly over them, and what a request costs in shared
//! memory does not depend on the number of schedulers.
//!
//! The schedulers of a simulated world run the code that they run always, and the world counts what
//! they do with the cache lines that they share (`ums::sim::line_counts`).
//!
//! * **Contract**: as in `main.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ums::node::Placement;
use ums::sim::{Faults, LineCounts};
use ums::sync::Latch;
use ums::{Node, User};

/// How many users there are for each scheduler, and how many requests each of them makes.
const USERS: usize = 4;
const REQUESTS: u64 = 12;

/// Users, each of which makes one request after the other.
struct Clients {
    users: Vec<User>,
    done: Latch,
    /// How many requests have ended.
    ended: AtomicU64,
    /// The counts when a third and when two thirds of the requests had ended.
    counts: [[AtomicU64; 3]; 2],
}

impl Clients {
    /// Counts a request that ends. The users are all at work in the middle third of the requests.
    fn one_more(&self) {
        let ended = self.ended.fetch_add(1, Ordering::Relaxed) + 1;
        let third = self.users.len() as u64 * REQUESTS / 3;
        if ended.is_multiple_of(third) && ended < 3 * third {
            let of = |counts: LineCounts| [counts.changes, counts.taken, counts.fetched];
            let now = of(ums::sim::line_counts());
            let then = &self.counts[(ended / third - 1) as usize];
            then.iter().zip(now).for_each(|(then, now)| then.store(now, Ordering::Relaxed));
        }
    }
}

/// Makes so many more requests of a user. Each spawns a task, which an idle scheduler may take, and
/// yields meanwhile. The first one also starts two other users, so that all start soon.
fn next(clients: &Arc<Clients>, user: usize, left: u64) {
    let theirs = Arc::clone(clients);
    let request = move || {
        if left == REQUESTS {
            let others = [2 * user + 1, 2 * user + 2];
            let others = others.into_iter().filter(|other| *other < theirs.users.len());
            others.for_each(|other| next(&theirs, other, REQUESTS));
        }
        let task = ums::spawn(ums::yield_now);
        (0..user % 4).for_each(|_| ums::yield_now());
        task.join().unwrap();
        theirs.one_more();
        match left {
            1 => theirs.done.count_down(),
            left => next(&theirs, user, left - 1),
        }
    };
    drop(clients.users[user].enqueue(request).unwrap());
}

/// Runs the users, and returns how many times in a thousand requests something was done.
fn cost(schedulers: usize, placement: Placement, seed: u64) -> [u64; 3] {
    let found = Arc::new([const { AtomicU64::new(0) }; 3]);
    let theirs = Arc::clone(&found);
    let ended = ums::sim::run(seed, Faults::default(), move || {
        let builder = Node::builder().schedulers(schedulers).max_workers(4 * schedulers);
        let builder = builder.placement(placement).idle_spin(Duration::ZERO);
        // SAFETY: the contract at the top of this file.
        #[allow(unsafe_code)]
        let node = unsafe { builder.fiber_workers() }.build().unwrap();
        let count = USERS * schedulers;
        let users = (0..count).map(|_| node.user()).collect();
        let counts = [const { [const { AtomicU64::new(0) }; 3] }; 2];
        let (done, ended) = (Latch::new(count), AtomicU64::new(0));
        let clients = Arc::new(Clients { users, done, ended, counts });
        ums::sim::line_counts();
        next(&clients, 0, REQUESTS);
        clients.done.wait().unwrap();
        let [begun, after] = &clients.counts;
        for (found, (begun, after)) in theirs.iter().zip(begun.iter().zip(after)) {
            let counted = after.load(Ordering::Relaxed) - begun.load(Ordering::Relaxed);
            found.store(counted * 3000 / (count as u64 * REQUESTS), Ordering::Relaxed);
        }
        drop(clients);
        super::end(node);
    });
    assert_eq!(ended.failed, None, "{}", ended.trace);
    std::array::from_fn(|at| found[at].load(Ordering::Relaxed))
}

/// Returns the mean of some worlds.
fn mean(schedulers: usize, placement: Placement, worlds: u64) -> [u64; 3] {
    // By priorities, one scheduler may run for long while others wait, which costs something else.
    let seeds = (0..).filter(|seed| ums::sim::walks_at_random(*seed)).take(worlds as usize);
    let costs: Vec<_> = seeds.map(|seed| cost(schedulers, placement, seed)).collect();
    std::array::from_fn(|at| costs.iter().map(|cost| cost[at]).sum::<u64>() / worlds)
}

#[test]
fn a_request_costs_the_same_at_8_and_at_256_schedulers() {
    // Among 8 schedulers, the least loaded one is exact, and few others are idle. Of two choices
    // the better one is not always the best, so with `LeastLoaded` more are idle and take requests.
    for (placement, least) in [(Placement::Hinted, 8), (Placement::LeastLoaded, 64)] {
        let costs = [(2, 32), (8, 16), (64, 4), (256, 1)].map(|(schedulers, worlds)| {
            let cost = mean(schedulers, placement, worlds);
            let [changes, taken, fetched] = cost;
            println!(
                "{placement:?}, {schedulers} schedulers, for 1000 requests: {changes} shared \
                 read-modify-writes, {taken} lines taken, {fetched} fetched"
            );
            (schedulers, cost)
        });
        let (_, limit) = costs.into_iter().find(|(schedulers, _)| *schedulers == least).unwrap();
        for (schedulers, cost) in costs.into_iter().filter(|(schedulers, _)| *schedulers > least) {
            let flat = cost.into_iter().zip(limit).all(|(now, limit)| now * 100 <= limit * 110);
            assert!(flat, "{placement:?}: {cost:?} at {schedulers}, {limit:?} at {least}");
        }
    }
}

/// Returns how many of these users prefer each scheduler, in a node without load whose first
/// schedulers are offline.
fn users_of(
    (schedulers, offline): (usize, usize),
    count: usize,
    placement: Placement,
    seed: u64,
) -> Vec<u64> {
    let found: Arc<[AtomicU64]> = (0..schedulers).map(|_| AtomicU64::new(0)).collect();
    let theirs = Arc::clone(&found);
    let ended = ums::sim::run(seed, Faults::default(), move || {
        let builder = Node::builder().schedulers(schedulers).max_workers(schedulers);
        let node = builder.placement(placement).build().unwrap();
        (0..offline).for_each(|at| assert!(node.set_online(at, false)));
        let users: Vec<_> = (0..count).map(|_| node.user()).collect();
        for user in &users {
            theirs[user.scheduler()].fetch_add(1, Ordering::Relaxed);
        }
        drop(users);
        super::end(node);
    });
    assert_eq!(ended.failed, None, "{}", ended.trace);
    found.iter().map(|users| users.load(Ordering::Relaxed)).collect()
}

#[test]
fn two_choices_spread_users_nearly_evenly_over_a_large_node_b4() {
    for seed in 0..4 {
        let spread = users_of((64, 0), 640, Placement::Hinted, seed);
        assert!(spread.iter().all(|users| (6..=13).contains(users)), "{seed}: {spread:?}");
    }
    // No online scheduler gets those that a draw would have given to its offline neighbours.
    for seed in 0..4 {
        let spread = users_of((64, 32), 640, Placement::Hinted, seed);
        assert_eq!(spread[..32], [0; 32]);
        assert!(spread[32..].iter().all(|users| (15..=24).contains(users)), "{seed}: {spread:?}");
    }
    assert_eq!(
        users_of((64, 0), 640, Placement::Classic, 0),
        [10; 64],
        "the fewest users, exactly"
    );
    assert_eq!(users_of((8, 0), 80, Placement::Hinted, 0), [10; 8], "the least loaded, exactly");
}
