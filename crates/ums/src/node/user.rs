//! The user: a logical connection that holds no worker while it is idle (U30, U31).
//!
//! A user belongs to a scheduler (its home, by placement) and enqueues work requests, each of
//! which one worker carries out from start to end. A user may *hold* something that others wait
//! for across its requests, a transaction's lock for instance; as long as it does, its requests
//! never wait for a worker (rule 7), or sixteen workers that wait for the lock would keep out the
//! request that releases it (G11).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::current::{begin, park, ready, waiter};
use crate::node::placement::Placement;
use crate::node::{HiddenScheduler, Node, NodeInner};
use crate::os::clock::{self, NEVER};
use crate::os::short_lock::{ShortGuard, ShortLock};
use crate::record::reason::WaitReason;
use crate::scheduler::inbox::Inbox;
use crate::scheduler::request::{Holds, UserId};
use crate::scheduler::{Scheduler, here};
use crate::task::{self, JoinHandle, UserState};
use crate::wait::error::{EnqueueError, WaitError};
use crate::wait::{AsVictim, Outcome, Owned, Owner, Ticket, What};

/// A logical connection. Dropping it ends its association with its scheduler.
pub struct User {
    state: Arc<UserState>,
    node: Arc<NodeInner>,
    home: Home,
    /// Counted among the users of its home.
    counted: AtomicBool,
}

/// Numbers of users are unique in the process.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

enum Home {
    /// A visible scheduler, preferred.
    Preferred(usize),
    /// A hidden one, for good.
    Bound(Arc<Scheduler>),
}

impl std::fmt::Debug for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("User").field("id", &self.state.id).field("home", &self.scheduler()).finish()
    }
}

impl Node {
    /// A new user, on the scheduler that the placement policy chooses (U23).
    ///
    /// ```
    /// let node = ums::Node::builder().schedulers(2).build()?;
    /// let user = node.user();
    /// let answer = user.enqueue(|| 6 * 7).unwrap();
    /// assert_eq!(answer.join().unwrap(), 42);
    /// # Ok::<(), ums::BuildError>(())
    /// ```
    pub fn user(&self) -> User {
        let node = self.inner.clone();
        let home = node.placement().for_user(&node.visible);
        User::new(node, Home::Preferred(home))
    }

    /// A new user that is bound to a hidden scheduler: an administrator, for instance (B18).
    pub fn user_on(&self, hidden: &HiddenScheduler) -> User {
        User::new(self.inner.clone(), Home::Bound(hidden.scheduler.clone()))
    }
}

impl User {
    fn new(node: Arc<NodeInner>, home: Home) -> User {
        let at = match &home {
            Home::Preferred(at) => *at,
            Home::Bound(scheduler) => scheduler.index,
        };
        let state = Arc::new(UserState::new(NEXT_ID.fetch_add(1, Ordering::Relaxed), at));
        let mut users = node.users.lock().unwrap_or_else(|e| e.into_inner());
        users.insert(state.id, Arc::downgrade(&state));
        drop(users);
        let user = User { state, node, home, counted: AtomicBool::new(true) };
        user.home_scheduler().users.fetch_add(1, Ordering::Relaxed);
        user
    }

    /// Its number, which no other user of this process's node has.
    pub fn id(&self) -> UserId {
        self.state.id
    }

    /// The number of the scheduler it prefers (and with classic placement never leaves, U24).
    pub fn scheduler(&self) -> usize {
        self.home_scheduler().index
    }

    fn home_scheduler(&self) -> &Arc<Scheduler> {
        match &self.home {
            Home::Preferred(at) => &self.node.visible[*at],
            Home::Bound(scheduler) => scheduler,
        }
    }

    /// Enqueues a work request; a worker of the scheduler that the placement policy chooses
    /// carries it out (U27..U29).
    ///
    /// # Errors
    /// [`EnqueueError`], when the work queue is full or the node shuts down.
    pub fn enqueue<F, T>(&self, f: F) -> Result<JoinHandle<T>, EnqueueError>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        self.enqueue_with(|home| home, f)
    }

    /// As [`User::enqueue`], for a user whose input has come on the caller's scheduler: with hinted
    /// placement, that is the preferred one. Its last request ran there, taken from its home
    /// perhaps, and there it finds who is awake.
    pub(crate) fn enqueue_where_input_came<F, T>(&self, f: F) -> Result<JoinHandle<T>, EnqueueError>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let node = &self.node;
        let is_ours =
            |s: &crate::scheduler::Here| node.visible.get(s.index).is_some_and(|v| s.is(v));
        let came = here().filter(|_| node.placement() == Placement::Hinted).filter(is_ours);
        self.enqueue_with(|home| came.map_or(home, |s| s.index), f)
    }

    fn enqueue_with<F, T>(
        &self,
        preferred: impl FnOnce(usize) -> usize,
        f: F,
    ) -> Result<JoinHandle<T>, EnqueueError>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let scheduler = match &self.home {
            Home::Preferred(at) => {
                let visible = &self.node.visible;
                let to = self.node.placement().for_request(visible, preferred(*at));
                &visible[to]
            }
            Home::Bound(scheduler) => scheduler,
        };
        task::spawn_for(scheduler, &self.state, f)
    }

    /// From now on this user holds something that others may wait for: its requests are served at
    /// once (rule 7). Holds nest; each is ended by one [`User::release`].
    pub fn hold(&self) {
        self.state.hold();
    }

    /// Ends one [`User::hold`].
    ///
    /// # Panics
    /// When there is none.
    pub fn release(&self) {
        assert!(self.state.release(), "user {} holds nothing that it could release", self.id());
    }

    /// Whether it holds anything.
    pub fn is_holding(&self) -> bool {
        self.state.is_holding()
    }

    /// Cancels the request that it enqueued last, if that has not ended: its waits fail, its
    /// checkpoints say so (B59). True: there was one.
    pub fn cancel(&self) -> bool {
        self.state.cancel()
    }

    /// Whether its last request is queued or being carried out.
    pub fn is_busy(&self) -> bool {
        self.state.is_busy()
    }

    /// Whether its node takes no more work.
    pub(crate) fn node_is_closing(&self) -> bool {
        self.node.closing.load(Ordering::Relaxed)
    }

    /// Ends its association with its scheduler before it is dropped.
    pub(crate) fn leave(&self) {
        if self.counted.swap(false, Ordering::Relaxed) {
            self.home_scheduler().users.fetch_sub(1, Ordering::Relaxed);
            let mut users = self.node.users.lock().unwrap_or_else(|e| e.into_inner());
            users.remove(&self.id());
        }
    }
}

impl Drop for User {
    fn drop(&mut self) {
        self.leave();
    }
}

/// A lock that a *user* owns, across its work requests: a database's write lock, for instance.
///
/// First come, first served, with direct hand-over (but see [`UserLock::near`]). While a user owns
/// it, its requests never wait for a worker (rule 7). Waits show as `LCK_M_X`, with the owner as
/// the blocking user (B22).
///
/// ```
/// let node = ums::Node::builder().schedulers(1).build()?;
/// let lock = std::sync::Arc::new(ums::user::UserLock::new());
/// let user = node.user();
/// let (id, l) = (user.id(), lock.clone());
/// user.enqueue(move || l.acquire(id, None)).unwrap().join().unwrap().unwrap();
/// assert_eq!(lock.owner(), Some(user.id())); // no worker is busy, and the user still owns it
/// let l = lock.clone();
/// user.enqueue(move || l.release(id)).unwrap().join().unwrap();
/// assert_eq!(lock.owner(), None);
/// # Ok::<(), ums::BuildError>(())
/// ```
#[derive(Default)]
pub struct UserLock {
    state: ShortLock<LockState>,
    /// How often in a row the first in line may be passed.
    passes: usize,
}

#[derive(Default)]
struct LockState {
    owner: Option<(UserId, Option<Arc<Holds>>)>,
    waiters: VecDeque<LockWaiter>,
    /// How often in a row the first was passed.
    passed: usize,
    /// How many of the waiters are workers.
    workers: usize,
}

struct LockWaiter {
    user: UserId,
    state: Option<Arc<Holds>>,
    how: How,
}

/// How a waiter learns that it owns the lock.
enum How {
    /// A worker waits.
    Parked(Ticket),
    /// Nobody does; this enqueues the user's next request.
    Away(Box<dyn FnOnce() + Send>),
}

/// What became of [`UserLock::acquire_or_leave`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// The user owns the lock.
    Now,
    /// It has a place in the line; it owns the lock when the callback has been called.
    Later,
}

impl Owned for UserLock {
    fn owners(&self, _waiter: Ticket, tell: &mut dyn FnMut(Owner)) {
        self.owner().map(Owner::User).into_iter().for_each(tell);
    }
}

impl UserLock {
    /// A lock that nobody owns.
    pub fn new() -> UserLock {
        UserLock::default()
    }

    /// A lock that nobody owns and that, so many times in a row at most, goes to the first who
    /// waits on the releaser's scheduler, before others that came earlier: that scheduler is awake,
    /// and waking another one is dear. Each waiter is passed a bounded number of times.
    pub fn near(passes: usize) -> UserLock {
        UserLock { passes, ..UserLock::default() }
    }

    /// Makes the user the owner; waits while another is, for at most this long.
    ///
    /// # Errors
    /// [`WaitError`]: then the user is not the owner.
    ///
    /// # Panics
    /// When the user is the owner already.
    pub fn acquire(&self, user: UserId, span: Option<Duration>) -> Result<(), WaitError> {
        self.join(user, span, None).map(drop)
    }

    /// As [`UserLock::acquire`]; but when `crowd` workers wait already, the caller keeps its
    /// worker: the user gets its place in the line without one, and `granted` is called (by the
    /// releaser, it must not wait) when the lock is the user's. So a lock, however popular, never
    /// takes all workers, and requests that do not need it go on.
    ///
    /// # Errors
    /// [`WaitError`]: then the user is not the owner, and has no place.
    ///
    /// # Panics
    /// When the user is the owner already.
    pub fn acquire_or_leave(
        &self,
        user: UserId,
        crowd: usize,
        granted: impl FnOnce() + Send + 'static,
    ) -> Result<Acquired, WaitError> {
        self.join(user, None, Some((crowd, Box::new(granted))))
    }

    fn join(
        &self,
        user: UserId,
        span: Option<Duration>,
        leave: Option<(usize, Box<dyn FnOnce() + Send>)>,
    ) -> Result<Acquired, WaitError> {
        let state = Node::current().and_then(|node| node.inner.user(user));
        let state = state.map(|state| state.holds.clone());
        let mut lock = self.lock();
        let Some((owner, _)) = &lock.owner else {
            state.iter().for_each(|s| s.hold());
            lock.owner = Some((user, state));
            return Ok(Acquired::Now);
        };
        assert_ne!(*owner, user, "user {user} owns the lock already");
        let owner = *owner;
        // A callback that is not kept is dropped after the lock is free: it is not ours.
        let crowded = leave.as_ref().is_some_and(|(crowd, _)| lock.workers >= *crowd);
        if crowded && let Some((_, granted)) = leave {
            lock.waiters.push_back(LockWaiter { user, state, how: How::Away(granted) });
            return Ok(Acquired::Later);
        }
        let asked = waiter().will_wait_for(self, AsVictim::Fails);
        let ticket = begin(What::new(WaitReason::LCK_M_X).on(self).blocked_by_user(owner));
        lock.waiters.push_back(LockWaiter { user, state, how: How::Parked(ticket) });
        lock.workers += 1;
        drop(lock);
        // From here the releaser makes us the owner before it claims our wait.
        let outcome = ticket.result(park(ticket, span.map_or(NEVER, clock::after)));
        drop(asked);
        if outcome.is_err() {
            let mut lock = self.lock();
            let is_it = |w: &LockWaiter| matches!(w.how, How::Parked(t) if t == ticket);
            if let Some(at) = lock.waiters.iter().position(is_it) {
                lock.waiters.remove(at);
                lock.workers -= 1;
            }
        }
        outcome.map(|()| Acquired::Now)
    }

    /// Hands the lock to whoever has waited longest.
    ///
    /// # Panics
    /// When the user is not the owner.
    pub fn release(&self, user: UserId) {
        let mut lock = self.lock();
        let is_owner = |(owner, _): &mut (UserId, _)| *owner == user;
        let (_, state) = lock
            .owner
            .take_if(is_owner)
            .unwrap_or_else(|| panic!("user {user} does not own the lock"));
        // Its hold may have been ended already, by a `User::release` too many.
        let _ = state.is_some_and(|state| state.release());
        let (claimed, granted) = loop {
            let Some(LockWaiter { user, state, how }) = self.next(&mut lock) else { return };
            let next = match how {
                How::Away(granted) => (None, Some(granted)),
                How::Parked(ticket) => {
                    lock.workers -= 1;
                    // One whose deadline has passed is claimed already, and gets nothing.
                    let Some(claimed) = ticket.claim(Outcome::Granted) else { continue };
                    (Some(claimed), None)
                }
            };
            state.iter().for_each(|s| s.hold());
            lock.owner = Some((user, state));
            // Views show the rest who they wait for now.
            for waiter in &lock.waiters {
                if let How::Parked(ticket) = waiter.how {
                    ticket.waiter.blocking_user.store(user, Ordering::Relaxed);
                }
            }
            break next;
        };
        drop(lock);
        claimed.into_iter().for_each(ready);
        granted.into_iter().for_each(|granted| granted());
    }

    /// Takes the one that is next out of the line.
    fn next(&self, lock: &mut LockState) -> Option<LockWaiter> {
        let inbox = here().map(|here| here.inbox).filter(|_| lock.passed < self.passes);
        let is_near = |w: &LockWaiter| match w.how {
            How::Parked(ticket) => Inbox::of(ticket.waiter)
                .is_some_and(|d| inbox.is_some_and(|inbox| std::ptr::eq(d, inbox))),
            How::Away(_) => false,
        };
        let near = inbox.and_then(|_| lock.waiters.iter().position(is_near)).unwrap_or(0);
        lock.passed = if near > 0 { lock.passed + 1 } else { 0 };
        lock.waiters.remove(near)
    }

    /// Takes back the place of a user that left (see [`UserLock::acquire_or_leave`]) and gives its
    /// callback, uncalled. None: it has no place (any more).
    pub fn give_up(&self, user: UserId) -> Option<Box<dyn FnOnce() + Send>> {
        let mut lock = self.lock();
        let is_it = |w: &LockWaiter| w.user == user && matches!(w.how, How::Away(_));
        let at = lock.waiters.iter().position(is_it)?;
        match lock.waiters.remove(at)?.how {
            How::Away(granted) => Some(granted),
            How::Parked(_) => None,
        }
    }

    /// How many workers wait.
    pub fn waiting_workers(&self) -> usize {
        self.lock().workers
    }

    /// The user that owns it.
    pub fn owner(&self) -> Option<UserId> {
        self.lock().owner.as_ref().map(|o| o.0)
    }

    /// How many users wait, with a worker or without.
    pub fn waiters(&self) -> usize {
        self.lock().waiters.len()
    }

    fn lock(&self) -> ShortGuard<'_, LockState> {
        self.state.lock()
    }
}

impl std::fmt::Debug for UserLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "UserLock(owner {:?}, {} waiting)", self.owner(), self.waiters())
    }
}
