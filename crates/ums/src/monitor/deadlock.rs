//! Deadlocks: waits that wait for each other in a circle, found and broken.
//!
//! ```text
//!   wait of A --owner?--> B --its wait--> owner? --> C --its wait--> owner? --> A: a circle
//! ```
//!
//! *When.* A circle is closed by the wait in it that began last, for nobody is made an owner while
//! it waits. So each wait is looked at once, when it is as old as
//! [`Options::deadlock`](super::Options::deadlock) says; while none is, nothing is done. A wait that leads to a
//! plain thread which does not wait is looked at again, since nobody looks at waits of plain threads.
//!
//! *No circle is found that is none.* Every link is looked at twice. The number of a wait only
//! grows, so one that is going on at both looks has gone on in between, and all waits of the circle
//! at once from the end of the first look to the start of the second. Who waits does not run, so
//! whatever it owns at the second look it has owned, and kept, since its wait began. A user's lock
//! could be given back by another request of that user: it counts as waiting only as long as the
//! waiting request is its last and only one.
//!
//! *The victim* is the wait that began last among those that can fail with an error; if there is
//! none, the last among those whose verb can only panic; if there is none, nobody, and the report
//! says so. It is claimed as by a granter (One Outcome); the others go on when the victim has let go.
//!
//! What it does not see: waits for things without an owner (events, semaphores, channels, condition
//! variables), readers of a lock unless locks are traced, and what a worker that is preemptive waits for.

use std::collections::{HashMap, HashSet};
use std::ptr::from_ref;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::looker::Looker;
use super::{Condition, Diagnosis, Report, unwind};
use crate::current::ready;
use crate::deadlock::{self, Deadlock, DeadlockId, DeadlockWaiter};
use crate::door::Door;
use crate::os::clock;
use crate::reason::WaitReason;
use crate::request::{RequestId, UserId};
use crate::scheduler::Shared;
use crate::sync::traced;
use crate::wait::{AsVictim, Outcome, Owner, Party, Ticket};

/// Says which request of a user was enqueued last.
pub(super) type LastRequest = dyn Fn(UserId) -> Option<RequestId> + Send;

/// A wait, and who has what it is for: the wait of the next link, or of the first.
#[derive(Clone, Copy)]
struct Link {
    wait: Ticket,
    owner: Owner,
}

/// What names a wait in a table.
type Name = (usize, u64);

fn name(wait: Ticket) -> Name {
    (from_ref(wait.party).addr(), wait.number())
}

/// What was seen of a node's waits.
#[derive(Default)]
pub(super) struct Deadlocks {
    /// Waits that need not be looked at again.
    examined: HashSet<Name>,
    /// Before this time nothing is looked at.
    next: u64,
}

/// A circle that was found, and where.
pub(super) struct Circle {
    links: Vec<Link>,
    /// The scheduler of the wait from which it was found.
    pub at: Arc<Shared>,
}

impl Deadlocks {
    /// Looks at all waits that have become old enough.
    pub fn look(
        &mut self,
        all: &[Arc<Shared>],
        limit: Duration,
        last: &LastRequest,
        now: u64,
    ) -> Vec<Circle> {
        if now < self.next || limit == Duration::MAX {
            return Vec::new();
        }
        self.next = now.saturating_add(super::slow::ns(limit) / 4);
        if all.iter().all(|s| s.counters.waiting.load(Ordering::Relaxed) == 0) {
            self.examined.clear();
            return Vec::new();
        }
        let waits: Vec<_> = askable(all).collect();
        let there: HashSet<_> = waits.iter().map(|(_, wait)| name(*wait)).collect();
        self.examined.retain(|wait| there.contains(wait));
        let mut circles = Vec::new();
        for (s, wait) in waits {
            if self.examined.contains(&name(wait)) || age(wait.party) < limit {
                continue;
            }
            let graph = Graph::of(all, last);
            let (found, ends_outside) = graph.circle_from(wait);
            match found.filter(|links| is_still_so(links, all, last)) {
                Some(links) => {
                    let circle = Circle { links, at: s.clone() };
                    if circle.victim().is_none() {
                        // It will be there for ever, and is told once. Any other is looked for again
                        // when it has been broken: its waits may be in more than one.
                        self.examined.extend(circle.links.iter().map(|link| name(link.wait)));
                    }
                    circles.push(circle);
                }
                None if ends_outside => (),
                None => drop(self.examined.insert(name(wait))),
            }
        }
        circles
    }

    /// When there will be something to look at, if nothing changes: never, mostly.
    pub fn due(&self, all: &[Arc<Shared>], limit: Duration) -> u64 {
        if limit == Duration::MAX {
            return clock::NEVER;
        }
        let unexamined = askable(all).filter(|(_, wait)| !self.examined.contains(&name(*wait)));
        let left = unexamined.map(|(_, wait)| limit.saturating_sub(age(wait.party)));
        // One that leads outside is old already, and looked at again after a while.
        left.min().map_or(clock::NEVER, |left| clock::after(left.max(limit / 4)))
    }
}

/// The waits of a node's workers that can be asked whom they are for.
fn askable(all: &[Arc<Shared>]) -> impl Iterator<Item = (&Arc<Shared>, Ticket)> {
    let busy = all.iter().filter(|s| s.counters.waiting.load(Ordering::Relaxed) > 0);
    busy.flat_map(|s| {
        s.left_over().into_iter().filter_map(move |party| Some((s, party.askable_wait()?)))
    })
}

fn age(party: &Party) -> Duration {
    let began = party.began.load(Ordering::Relaxed);
    Duration::from_nanos(clock::ticks_to_ns(clock::ticks().saturating_sub(began)))
}

/// Who waits for whom, as far as users are concerned: parties say it themselves.
struct Graph {
    /// The one wait of a user that does nothing else.
    users: HashMap<UserId, Ticket>,
}

impl Graph {
    fn of(all: &[Arc<Shared>], last: &LastRequest) -> Graph {
        let mut busy: HashMap<UserId, Vec<&'static Party>> = HashMap::new();
        for party in all.iter().flat_map(|s| s.left_over()) {
            let user = party.view.user.load(Ordering::Relaxed);
            if user != 0 {
                busy.entry(user).or_default().push(party);
            }
        }
        let the_wait = |(user, parties): (UserId, Vec<&'static Party>)| {
            let &[party] = &parties[..] else { return None };
            let wait = party.askable_wait()?;
            let is_last = last(user) == Some(party.view.request.load(Ordering::Relaxed));
            is_last.then_some((user, wait))
        };
        Graph { users: busy.into_iter().filter_map(the_wait).collect() }
    }

    /// What the owner waits for itself.
    fn wait_of(&self, owner: Owner) -> Option<Ticket> {
        match owner {
            Owner::Party(party) => party.askable_wait(),
            Owner::User(user) => self.users.get(&user).copied(),
        }
    }

    /// A circle that leads from this wait back to it; and whether a way leads to a plain thread
    /// that could close one unseen.
    fn circle_from(&self, start: Ticket) -> (Option<Vec<Link>>, bool) {
        let (path, seen) = (Vec::new(), HashSet::new());
        let mut search = Search { graph: self, start, path, seen, ends_outside: false };
        let found = search.follow(start);
        (found.then_some(search.path), search.ends_outside)
    }
}

/// A search for a way back to its start.
struct Search<'a> {
    graph: &'a Graph,
    start: Ticket,
    path: Vec<Link>,
    seen: HashSet<Name>,
    ends_outside: bool,
}

impl Search<'_> {
    /// True: the path leads from this wait to the start.
    fn follow(&mut self, wait: Ticket) -> bool {
        for owner in wait.owners().unwrap_or_default() {
            let Some(next) = self.graph.wait_of(owner) else {
                let outside = |party: &Party| party.home.load(Ordering::Relaxed).is_null();
                self.ends_outside |= matches!(owner, Owner::Party(party) if outside(party));
                continue;
            };
            self.path.push(Link { wait, owner });
            if next == self.start || (self.seen.insert(name(next)) && self.follow(next)) {
                return true;
            }
            self.path.pop();
        }
        false
    }
}

/// The second look: each wait goes on, and its owner is the one who waits next.
fn is_still_so(links: &[Link], all: &[Arc<Shared>], last: &LastRequest) -> bool {
    let graph = Graph::of(all, last);
    links.iter().enumerate().all(|(at, link)| {
        let next = links[(at + 1) % links.len()].wait;
        let owns = link.wait.owners().is_some_and(|owners| owners.contains(&link.owner));
        owns && graph.wait_of(link.owner) == Some(next)
    })
}

impl Circle {
    /// Ends one of its waits, and says what it was. None: it came apart by itself. Names of functions
    /// cost more than all else, so they are left out where nobody would read them.
    pub fn break_up(
        &self,
        all: &[Arc<Shared>],
        last: &LastRequest,
        with_names: bool,
    ) -> Option<Report> {
        if !is_still_so(&self.links, all, last) {
            return None;
        }
        let (id, victim) = (DeadlockId::next(), self.victim());
        let mut looker = with_names.then(Looker::new);
        let waiter = |link| describe(link, all, looker.as_mut());
        let waiters = self.links.iter().map(waiter).collect();
        let deadlock = Arc::new(Deadlock { id, waiters, victim });
        // Naming functions took its time.
        if !is_still_so(&self.links, all, last) {
            return None;
        }
        deadlock::keep(deadlock.clone());
        if let Some(at) = victim {
            let wait = self.links[at].wait;
            wait.party.deadlock.store(id.number(), Ordering::Relaxed);
            ready(wait.claim(Outcome::Deadlock)?);
        }
        Some(self.report(deadlock))
    }

    /// The wait that began last among those that can fail best.
    fn victim(&self) -> Option<usize> {
        let links = self.links.iter().enumerate();
        let could = links.filter_map(|(at, link)| {
            let party = link.wait.party;
            let rank = match link.wait.as_victim()? {
                AsVictim::Fails => 1,
                AsVictim::Panics => 0,
                AsVictim::Never => return None,
            };
            let began = party.began.load(Ordering::Relaxed);
            Some(((rank, began, number_of(party)), at))
        });
        could.max().map(|(_, at)| at)
    }

    fn report(&self, deadlock: Arc<Deadlock>) -> Report {
        let newest = deadlock.waiters.iter().map(|w| w.waited).min().unwrap_or_default();
        let ns = u64::try_from(newest.as_nanos()).unwrap_or(u64::MAX);
        let mut report = Report::new(Condition::Deadlock, Diagnosis::Circle, ns, &self.at);
        let here = deadlock
            .waiters
            .iter()
            .find(|w| w.worker.is_some_and(|(scheduler, _)| scheduler as usize == self.at.index));
        if let Some(waiter) = here {
            report.worker = waiter.worker.map(|(_, worker)| worker);
            (report.request, report.user) = (waiter.request, waiter.user);
        }
        report.deadlock = Some(deadlock);
        report
    }
}

/// Scheduler and worker; None for a plain thread.
fn number_of(party: &Party) -> Option<(u32, u32)> {
    let door = Door::of(party)?;
    Some((door.number.load(Ordering::Relaxed), party.worker.load(Ordering::Relaxed)))
}

/// With names, if there is somebody to look for them.
fn describe(link: &Link, all: &[Arc<Shared>], looker: Option<&mut Looker>) -> DeadlockWaiter {
    let party = link.wait.party;
    let resource = party.resource.load(Ordering::Relaxed);
    let taken_at = match link.owner {
        Owner::Party(owner) if looker.is_some() => traced::taken_at(resource as usize, owner),
        _ => Vec::new(),
    };
    let worker = number_of(party);
    let home = worker.and_then(|(number, _)| all.iter().find(|s| s.index == number as usize));
    let waits_at = looker.zip(home).map(|(looker, home)| looker.look(home, party));
    DeadlockWaiter {
        worker,
        request: party.view.request.load(Ordering::Relaxed),
        user: party.view.user.load(Ordering::Relaxed),
        reason: WaitReason::from_index(party.reason.load(Ordering::Relaxed).into()),
        resource,
        waited: age(party),
        can_fail: link.wait.as_victim().is_some_and(|how| how != AsVictim::Never),
        waits_at: waits_at.unwrap_or_default(),
        taken_at: unwind::frames_of(&taken_at),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::WaitError;
    use crate::sync::Mutex;

    #[test]
    fn a_circle_that_came_apart_between_two_looks_is_none_and_nobody_is_its_victim() {
        let node = crate::Node::builder().schedulers(1).build().unwrap();
        let (a, b) = (Arc::new(Mutex::new(())), Arc::new(Mutex::new(())));
        let users = [node.user(), node.user()];
        let holders = Arc::new(AtomicUsize::new(0));
        let task = |user: &crate::User, mine: &Arc<Mutex<()>>, other: &Arc<Mutex<()>>| {
            let (mine, other, holders) = (mine.clone(), other.clone(), holders.clone());
            let run = move || {
                let _mine = mine.lock();
                holders.fetch_add(1, Ordering::Relaxed);
                // The first may come here long before the second is enqueued.
                while holders.load(Ordering::Relaxed) < 2 {
                    crate::yield_now();
                }
                other.lock_for(Duration::MAX).map(drop)
            };
            user.enqueue(run).unwrap()
        };
        let (first, second) = (task(&users[0], &a, &b), task(&users[1], &b, &a));
        let all = node.inner.all();
        let last: &LastRequest = &|_| None;
        let look = || Deadlocks::default().look(&all, Duration::ZERO, last, 1);
        let mut circles = look();
        while circles.is_empty() {
            std::thread::yield_now();
            circles = look();
        }
        let circle = circles.pop().unwrap();
        assert!(circle.victim().is_some() && is_still_so(&circle.links, &all, last));

        assert!(users[0].cancel());
        assert_eq!(first.join().unwrap(), Err(WaitError::Cancelled));
        assert_eq!(second.join().unwrap(), Ok(()));
        assert!(!is_still_so(&circle.links, &all, last));
        assert!(circle.break_up(&all, last, false).is_none());
    }
}
