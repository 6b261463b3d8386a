//! Deadlocks: finds waits that wait for each other in a circle, and breaks the circle.
//!
//! ```text
//!   wait of A --owner?--> B --its wait--> owner? --> C --its wait--> owner? --> A: a circle
//! ```
//!
//! *When the monitor looks.* The wait that began last closes a circle, because no waiter becomes an
//! owner while it waits. So the monitor looks at each wait once, when the wait is as old as
//! [`Options::deadlock`](super::Options::deadlock) says. There is one exception: a wait that leads
//! to a plain thread which does not wait is looked at again later, because that thread could close
//! the circle, and the monitor does not start from the waits of plain threads. One search follows
//! each wait and each owner once, however they are linked.
//!
//! *Every reported circle is real.* Every link is checked twice. The number of a wait only grows,
//! so a wait that is found both times has lasted from the first check to the second, and all waits
//! of the circle existed together between the checks. A waiter does not run, so what it owns at the
//! second check it has owned, without interruption, since its wait began. A lock that a user owns
//! could be released by another request of that user. So a user counts as waiting only while the
//! waiting request is its last and only one.
//!
//! *The victim* is the wait that is ended. It is the wait that began last among those that can fail
//! with an error. If no wait can fail, the victim is the one that began last among those whose call
//! can only panic. If there is none of these either, no wait is ended, and the report says so. The
//! monitor ends the wait in the same way as a thread that grants it, by claiming its outcome (One
//! Outcome). The other waits end when the victim has released what it holds.
//!
//! These waits are not detected: waits for things without an owner (events, semaphores, channels,
//! condition variables), readers of a lock unless locks are traced, and those of a preemptive
//! worker.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::ptr::from_ref;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Diagnosis;
use super::report::{Condition, Report};
use crate::backtrace::looker::Looker;
use crate::backtrace::unwind;
use crate::current::ready;
use crate::os::clock;
use crate::record::reason::WaitReason;
use crate::scheduler::Scheduler;
use crate::scheduler::request::{RequestId, UserId};
use crate::sync::traced;
use crate::wait::deadlock::{self, Deadlock, DeadlockId, DeadlockWaiter};
use crate::wait::{AsVictim, Outcome, Owner, Ticket, Waiter};

/// Number of waiters of one circle for which functions are named. The number is limited because
/// naming them takes long.
const NAMED: usize = 32;

/// Returns the request of a user that was enqueued last.
pub(super) type LastRequest = dyn Fn(UserId) -> Option<RequestId> + Send;

/// A wait, and the owner of what it waits for. The wait of that owner is in the next link of the
/// circle, or in the first link after the last one.
#[derive(Clone, Copy)]
struct Link {
    wait: Ticket,
    owner: Owner,
}

/// The key of a wait in a table: the waiter's address and the wait's number.
type Name = (usize, u64);

fn name(wait: Ticket) -> Name {
    (from_ref(wait.waiter).addr(), wait.number())
}

/// The state of the search in a node's waits, which the monitor keeps from one look to the next.
#[derive(Default)]
pub(super) struct Deadlocks {
    /// Waits that need not be looked at again.
    examined: HashSet<Name>,
    /// The monitor looks at no wait before this time.
    next: u64,
}

/// A circle that was found.
pub(super) struct Circle {
    links: Vec<Link>,
    /// The scheduler of the wait from which it was found.
    pub at: Arc<Scheduler>,
}

impl Deadlocks {
    /// Looks at all waits that have become old enough, and returns the circles that they are part
    /// of.
    pub fn look(
        &mut self,
        all: &[Arc<Scheduler>],
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
        let fresh = |wait: &Ticket| !self.examined.contains(&name(*wait));
        let old = waits.into_iter().map(|(_, wait)| wait);
        let due: Vec<_> = old.filter(|wait| fresh(wait) && age(wait.waiter) >= limit).collect();
        let graph = Graph::of(all, last);
        let mut search = Search::over(&graph);
        due.iter().for_each(|wait| search.from(*wait));
        self.examined
            .extend(due.iter().map(|wait| name(*wait)).filter(|wait| search.is_over(wait)));
        let is_real = |links: &Vec<Link>| is_still_so(links, &Graph::of(all, last));
        let mut circles = Vec::new();
        for links in std::mem::take(&mut search.circles).into_iter().filter(is_real) {
            // A circle without a worker of this node is the business of another node, or of none.
            let Some(at) = links.iter().find_map(|link| home_of(link.wait.waiter, all)) else {
                continue;
            };
            let circle = Circle { links, at: at.clone() };
            if circle.victim().is_none() {
                // This circle remains, and is reported once. Any other circle is searched again
                // after it was broken, because its waits may be in several circles.
                self.examined.extend(circle.links.iter().map(|link| name(link.wait)));
            }
            circles.push(circle);
        }
        circles
    }

    /// Returns when the next wait will be old enough to look at, if nothing changes. Usually there
    /// is none, and the result is [`clock::NEVER`].
    pub fn due(&self, all: &[Arc<Scheduler>], limit: Duration) -> u64 {
        if limit == Duration::MAX {
            return clock::NEVER;
        }
        let unexamined = askable(all).filter(|(_, wait)| !self.examined.contains(&name(*wait)));
        let left = unexamined.map(|(_, wait)| limit.saturating_sub(age(wait.waiter)));
        // A wait that leads to a plain thread is old enough already, and is looked at again after a
        // while.
        let a_while = limit.checked_div(4).unwrap_or_default();
        left.min().map_or(clock::NEVER, |left| clock::after(left.max(a_while)))
    }
}

/// Returns the waits of a node's workers for resources that have owners.
fn askable(all: &[Arc<Scheduler>]) -> impl Iterator<Item = (&Arc<Scheduler>, Ticket)> {
    let busy = all.iter().filter(|s| s.counters.waiting.load(Ordering::Relaxed) > 0);
    busy.flat_map(|s| {
        s.left_over().into_iter().filter_map(move |waiter| Some((s, waiter.askable_wait()?)))
    })
}

fn age(waiter: &Waiter) -> Duration {
    let began = waiter.began.load(Ordering::Relaxed);
    Duration::from_nanos(clock::ticks_to_ns(clock::ticks().saturating_sub(began)))
}

/// The graph of which waiter waits for which. Each waiter has its own wait; the waits of users are
/// collected here.
struct Graph<'a> {
    all: &'a [Arc<Scheduler>],
    last: &'a LastRequest,
    users: OnceCell<HashMap<UserId, Ticket>>,
}

impl<'a> Graph<'a> {
    fn of(all: &'a [Arc<Scheduler>], last: &'a LastRequest) -> Graph<'a> {
        Graph { all, last, users: OnceCell::new() }
    }

    /// Returns the wait of each user whose only activity is that wait. The table is made at the
    /// first call, so only if a user is an owner.
    fn users(&self) -> &HashMap<UserId, Ticket> {
        self.users.get_or_init(|| {
            let mut busy: HashMap<UserId, Vec<&'static Waiter>> = HashMap::new();
            for waiter in self.all.iter().flat_map(|s| s.left_over()) {
                let user = waiter.record.view.user.load(Ordering::Relaxed);
                if user != 0 {
                    busy.entry(user).or_default().push(waiter);
                }
            }
            let the_wait = |(user, waiters): (UserId, Vec<&'static Waiter>)| {
                let &[waiter] = &waiters[..] else { return None };
                let wait = waiter.askable_wait()?;
                let request = waiter.record.view.request.load(Ordering::Relaxed);
                ((self.last)(user) == Some(request)).then_some((user, wait))
            };
            busy.into_iter().filter_map(the_wait).collect()
        })
    }

    /// Returns the wait that the owner itself is in, if any.
    fn wait_of(&self, owner: Owner) -> Option<Ticket> {
        match owner {
            Owner::Waiter(waiter) => waiter.askable_wait(),
            Owner::User(user) => self.users().get(&user).copied(),
        }
    }
}

/// A search for circles that looks at each wait once, however many waits lead to it. It keeps its
/// path in a vector and does not recurse, because a chain of waits may be longer than the depth of
/// calls that a thread's stack allows.
struct Search<'a> {
    graph: &'a Graph<'a>,
    path: Vec<Step>,
    seen: HashMap<Name, Seen>,
    circles: Vec<Vec<Link>>,
}

/// A wait on the path, and how many of its owners have been followed.
struct Step {
    wait: Ticket,
    owners: Vec<Owner>,
    followed: usize,
    open: bool,
}

/// The state of a wait in the search.
#[derive(Clone, Copy)]
enum Seen {
    /// The wait is on the path, at this index.
    OnPath(usize),
    /// Everything that the wait leads to was looked at. The wait is *open* if a way from it leads
    /// to a circle, or to a plain thread that could close a circle later. The monitor looks at an
    /// open wait again at the next search.
    Done { open: bool },
}

impl<'a> Search<'a> {
    fn over(graph: &'a Graph<'a>) -> Search<'a> {
        Search { graph, path: Vec::new(), seen: HashMap::new(), circles: Vec::new() }
    }

    /// Returns true if the monitor need not look at this wait again.
    fn is_over(&self, wait: &Name) -> bool {
        matches!(self.seen.get(wait), Some(Seen::Done { open: false }))
    }

    /// Looks at everything that this wait leads to, except what this search has looked at before.
    fn from(&mut self, start: Ticket) {
        if !self.seen.contains_key(&name(start)) {
            self.enter(start);
        }
        while let Some(step) = self.path.last_mut() {
            let Some(owner) = step.owners.get(step.followed).copied() else {
                self.leave();
                continue;
            };
            step.followed += 1;
            match self.graph.wait_of(owner) {
                Some(next) => self.follow(next),
                None => {
                    let outside = |waiter: &Waiter| waiter.inbox().is_none();
                    step.open |= matches!(owner, Owner::Waiter(waiter) if outside(waiter));
                }
            }
        }
    }

    fn enter(&mut self, wait: Ticket) {
        self.seen.insert(name(wait), Seen::OnPath(self.path.len()));
        let owners = wait.owners().unwrap_or_default();
        self.path.push(Step { wait, owners, followed: 0, open: false });
    }

    fn follow(&mut self, next: Ticket) {
        let open = match self.seen.get(&name(next)) {
            None => return self.enter(next),
            Some(Seen::Done { open }) => *open,
            Some(Seen::OnPath(first)) => {
                let link = |s: &Step| Link { wait: s.wait, owner: s.owners[s.followed - 1] };
                self.circles.push(self.path[*first..].iter().map(link).collect());
                true
            }
        };
        self.mark_last(open);
    }

    fn leave(&mut self) {
        let Some(Step { wait, open, .. }) = self.path.pop() else { return };
        self.seen.insert(name(wait), Seen::Done { open });
        self.mark_last(open);
    }

    fn mark_last(&mut self, open: bool) {
        if let Some(step) = self.path.last_mut() {
            step.open |= open;
        }
    }
}

/// The second check: returns true if each wait still lasts, and its owner is still the next waiter.
fn is_still_so(links: &[Link], graph: &Graph<'_>) -> bool {
    links.iter().enumerate().all(|(at, link)| {
        let next = links[(at + 1) % links.len()].wait;
        let owns = link.wait.owners().is_some_and(|owners| owners.contains(&link.owner));
        owns && graph.wait_of(link.owner) == Some(next)
    })
}

/// Returns the scheduler of a waiter, if the waiter is a worker of this node.
fn home_of<'a>(waiter: &Waiter, all: &'a [Arc<Scheduler>]) -> Option<&'a Arc<Scheduler>> {
    let inbox = waiter.inbox()?;
    all.iter().find(|s| std::ptr::eq(s.inbox, inbox))
}

impl Circle {
    /// Ends one of the circle's waits, and returns the report. Returns `None` if the circle has
    /// ended by itself. Without `with_names` the functions are not named: the caller passes false
    /// if the names would not be printed, because finding them costs more than everything else.
    pub fn break_up(
        &self,
        all: &[Arc<Scheduler>],
        last: &LastRequest,
        with_names: bool,
    ) -> Option<Report> {
        if !is_still_so(&self.links, &Graph::of(all, last)) {
            return None;
        }
        let (id, victim) = (DeadlockId::next(), self.victim());
        let mut looker = with_names.then(Looker::new);
        let waiter = |(at, link)| {
            let looker = if at < NAMED { looker.as_mut() } else { None };
            describe(link, all, looker)
        };
        let waiters = self.links.iter().enumerate().map(waiter).collect();
        let deadlock = Arc::new(Deadlock { id, waiters, victim });
        // Naming the functions took a while, so the circle is checked again.
        if !is_still_so(&self.links, &Graph::of(all, last)) {
            return None;
        }
        deadlock::keep(deadlock.clone());
        if let Some(at) = victim {
            let wait = self.links[at].wait;
            wait.waiter.deadlock.store(id.number() as u32, Ordering::Relaxed);
            ready(wait.claim(Outcome::Deadlock)?);
        }
        Some(self.report(deadlock))
    }

    /// Returns the wait that began last among those of the highest rank: waits that can fail rank
    /// above waits that can only panic.
    fn victim(&self) -> Option<usize> {
        let links = self.links.iter().enumerate();
        let could = links.filter_map(|(at, link)| {
            let waiter = link.wait.waiter;
            let rank = match link.wait.as_victim()? {
                AsVictim::Fails => 1,
                AsVictim::Panics => 0,
                AsVictim::Never => return None,
            };
            let began = waiter.began.load(Ordering::Relaxed);
            Some(((rank, began, number_of(waiter)), at))
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

/// Returns the numbers of the waiter's scheduler and worker, or `None` for a plain thread.
fn number_of(waiter: &Waiter) -> Option<(u32, u32)> {
    let inbox = waiter.inbox()?;
    Some((inbox.number.load(Ordering::Relaxed), waiter.worker.load(Ordering::Relaxed)))
}

/// Describes a link, with the names of functions if there is a looker.
fn describe(link: &Link, all: &[Arc<Scheduler>], looker: Option<&mut Looker>) -> DeadlockWaiter {
    let waiter = link.wait.waiter;
    let resource = waiter.record.view.resource.load(Ordering::Relaxed);
    let taken_at = match link.owner {
        Owner::Waiter(owner) if looker.is_some() => traced::taken_at(resource as usize, owner),
        _ => Vec::new(),
    };
    let worker = number_of(waiter);
    let waits_at = looker.zip(home_of(waiter, all)).map(|(looker, home)| looker.look(home, waiter));
    DeadlockWaiter {
        worker,
        request: waiter.record.view.request.load(Ordering::Relaxed),
        user: waiter.record.view.user.load(Ordering::Relaxed),
        reason: WaitReason::from_index(waiter.reason.load(Ordering::Relaxed).into()),
        resource,
        waited: age(waiter),
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
    fn a_circle_that_ended_between_two_looks_is_not_reported_and_has_no_victim() {
        let node = crate::Node::builder().schedulers(1).build().unwrap();
        let (a, b) = (Arc::new(Mutex::new(())), Arc::new(Mutex::new(())));
        let users = [node.user(), node.user()];
        let holders = Arc::new(AtomicUsize::new(0));
        let task = |user: &crate::User, mine: &Arc<Mutex<()>>, other: &Arc<Mutex<()>>| {
            let (mine, other, holders) = (mine.clone(), other.clone(), holders.clone());
            let run = move || {
                let _mine = mine.lock();
                holders.fetch_add(1, Ordering::Relaxed);
                // The first worker may reach this line long before the second one is enqueued.
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
        assert!(circle.victim().is_some() && is_still_so(&circle.links, &Graph::of(&all, last)));

        assert!(users[0].cancel());
        assert_eq!(first.join().unwrap(), Err(WaitError::Cancelled));
        assert_eq!(second.join().unwrap(), Ok(()));
        assert!(!is_still_so(&circle.links, &Graph::of(&all, last)));
        assert!(circle.break_up(&all, last, false).is_none());
    }
}
