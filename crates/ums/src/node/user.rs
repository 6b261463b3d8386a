//! The user: a logical client, such as a connection, that holds no worker while it is idle.
//!
//! A user belongs to a scheduler (its home, chosen by placement) and enqueues work requests. One
//! worker carries out each request from start to end. Across its requests, a user may *hold*
//! something that others wait for, such as a transaction's lock. As long as it does, its requests
//! never wait for a free worker (rule 7 of ARCHITECTURE.md). Otherwise all workers could wait for
//! the lock, and the request that releases it would never get a worker.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::current::{before_short_lock, begin, park, ready, waiter};
use crate::node::placement::Placement;
use crate::node::{HiddenScheduler, Node, NodeInner};
use crate::os::clock::{self, NEVER};
use crate::os::counted::{AtomicBool, AtomicU64};
use crate::os::short_lock::{ShortGuard, ShortLock};
use crate::record::reason::WaitReason;
use crate::scheduler::request::{Holds, UserId};
use crate::scheduler::{Scheduler, here};
use crate::task::{self, JoinHandle, UserState};
use crate::wait::error::{EnqueueError, WaitError};
use crate::wait::{AsVictim, Outcome, Owned, Owner, Ticket, What};

/// A user: a logical client, which enqueues work requests and holds no worker while it is idle.
/// Created by [`Node::user`]. Dropping it ends its association with its scheduler.
pub struct User {
    state: Arc<UserState>,
    node: Arc<NodeInner>,
    home: Home,
    /// Whether the user is counted among the users of its home scheduler.
    counted: AtomicBool,
}

/// Numbers of users are unique in the process.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

enum Home {
    /// The preferred one of the visible schedulers.
    Preferred(usize),
    /// A hidden scheduler, which carries out all requests of the user.
    Bound(Arc<Scheduler>),
}

impl std::fmt::Debug for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("User").field("id", &self.state.id).field("home", &self.scheduler()).finish()
    }
}

impl Node {
    /// Creates a user, on the scheduler that the placement policy chooses.
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

    /// Creates a user that is bound to a hidden scheduler, for administration for example.
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
        let mut users = node.users.lock();
        users.insert(state.id, Arc::downgrade(&state));
        drop(users);
        let user = User { state, node, home, counted: AtomicBool::new(true) };
        user.home_scheduler().users.fetch_add(1, Ordering::Relaxed);
        user
    }

    /// Returns the user's number, which is unique in the process.
    pub fn id(&self) -> UserId {
        self.state.id
    }

    /// Returns the number of the scheduler that the user prefers. With classic placement the user
    /// never leaves it.
    pub fn scheduler(&self) -> usize {
        self.home_scheduler().index
    }

    fn home_scheduler(&self) -> &Arc<Scheduler> {
        match &self.home {
            Home::Preferred(at) => &self.node.visible[*at],
            Home::Bound(scheduler) => scheduler,
        }
    }

    /// Enqueues a work request on the scheduler that the placement policy chooses. A worker there
    /// carries it out.
    ///
    /// # Errors
    /// [`EnqueueError`] if the work queue is full or the node shuts down.
    pub fn enqueue<F, T>(&self, f: F) -> Result<JoinHandle<T>, EnqueueError>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        self.enqueue_with(|home| home, false, f)
    }

    /// As [`User::enqueue`], for a user whose input has arrived on the caller's scheduler. With
    /// hinted placement, that scheduler is preferred to the user's home. It ran the user's last
    /// request (which it may have stolen from the home), and it is awake.
    /// A request that is cancelled while it is queued is carried out all the same, and can answer
    /// that it was cancelled.
    pub(crate) fn enqueue_where_input_came<F, T>(&self, f: F) -> Result<JoinHandle<T>, EnqueueError>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let node = &self.node;
        let is_ours =
            |s: &crate::scheduler::Here| node.visible.get(s.index).is_some_and(|v| s.is(v));
        let came = here().filter(|_| node.placement() == Placement::Hinted).filter(is_ours);
        self.enqueue_with(|home| came.map_or(home, |s| s.index), true, f)
    }

    fn enqueue_with<F, T>(
        &self,
        preferred: impl FnOnce(usize) -> usize,
        starts_cancelled: bool,
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
        task::spawn_for(scheduler, &self.state, starts_cancelled, f)
    }

    /// Records that this user holds something that others may wait for. From now on its requests do
    /// not wait for a free worker. Holds nest; one [`User::release`] ends one hold.
    pub fn hold(&self) {
        self.state.holds.hold();
    }

    /// Ends one [`User::hold`].
    ///
    /// # Panics
    /// Panics if there is no hold.
    pub fn release(&self) {
        assert!(
            self.state.holds.release(),
            "user {} holds nothing that it could release",
            self.id()
        );
    }

    /// Returns whether the user holds anything.
    pub fn is_holding(&self) -> bool {
        self.state.holds.is_some()
    }

    /// Cancels the request that the user enqueued last: its waits and checkpoints fail. Returns
    /// false if there is no such request or it has ended.
    pub fn cancel(&self) -> bool {
        self.state.cancel()
    }

    /// Returns whether the user's last request is queued or running.
    pub fn is_busy(&self) -> bool {
        self.state.is_busy()
    }

    /// Returns whether the node accepts no more work.
    pub(crate) fn node_is_closing(&self) -> bool {
        self.node.closing.load(Ordering::Relaxed)
    }

    /// Ends the association with the scheduler. Called before the user is dropped, or by the drop.
    pub(crate) fn leave(&self) {
        if self.counted.swap(false, Ordering::Relaxed) {
            self.home_scheduler().users.fetch_sub(1, Ordering::Relaxed);
            let mut users = self.node.users.lock();
            users.remove(&self.id());
        }
    }
}

impl Drop for User {
    fn drop(&mut self) {
        self.leave();
    }
}

/// A lock that a *user* owns across its work requests, such as a database's write lock.
///
/// The first user that waits gets the lock next, by direct hand-over (except with
/// [`UserLock::near`]). While a user owns the lock, its requests never wait for a free worker. In
/// views, a wait for the lock has the reason `LCK_M_X` and the owner as the blocking user.
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
    /// How many times in a row later waiters may overtake the first one.
    passes: usize,
}

#[derive(Default)]
struct LockState {
    owner: Option<(UserId, Option<Arc<Holds>>)>,
    waiters: VecDeque<LockWaiter>,
    /// How many times in a row the first waiter has been overtaken.
    passed: usize,
    /// How many of the waiters are workers.
    workers: usize,
}

impl LockState {
    /// Returns the owner, if there is one. Panics if `user` is the owner already.
    fn owner_before(&self, user: UserId) -> Option<UserId> {
        let owner = self.owner.as_ref().map(|(owner, _)| *owner);
        assert_ne!(owner, Some(user), "user {user} owns the lock already");
        owner
    }

    fn belong_to(&mut self, user: UserId, holds: Option<Arc<Holds>>) {
        holds.iter().for_each(|holds| holds.hold());
        self.owner = Some((user, holds));
    }
}

/// Returns the counter of the things that this user holds, if the user belongs to the calling
/// worker's node.
fn holds_of(user: UserId) -> Option<Arc<Holds>> {
    Some(Node::current()?.inner.user(user)?.holds.clone())
}

struct LockWaiter {
    user: UserId,
    holds: Option<Arc<Holds>>,
    how: How,
}

/// How a waiter is notified that it owns the lock.
enum How {
    /// A worker waits, under this ticket.
    Parked(Ticket),
    /// No worker waits. This callback enqueues the user's next request.
    Away(Box<dyn FnOnce() + Send>),
}

impl Owned for UserLock {
    fn owners(&self, _waiter: Ticket, tell: &mut dyn FnMut(Owner)) {
        self.owner().map(Owner::User).into_iter().for_each(tell);
    }
}

impl UserLock {
    /// Creates a lock without an owner.
    pub fn new() -> UserLock {
        UserLock::default()
    }

    /// Creates a lock without an owner that prefers waiters on the releaser's scheduler to earlier
    /// waiters elsewhere, because that scheduler is awake, and waking another one is expensive. It
    /// does so at most `passes` times in a row, so each waiter is overtaken a bounded number of
    /// times.
    pub fn near(passes: usize) -> UserLock {
        UserLock { passes, ..UserLock::default() }
    }

    /// Makes the user the owner. Waits while another user owns the lock, for at most this time
    /// (`None` means no limit).
    ///
    /// # Errors
    /// [`WaitError`] if the time has passed, the work request was cancelled, or this wait was
    /// chosen to break a deadlock. The user is not the owner then.
    ///
    /// # Panics
    /// Panics if the user is the owner already.
    pub fn acquire(&self, user: UserId, span: Option<Duration>) -> Result<(), WaitError> {
        let holds = holds_of(user);
        let mut lock = self.lock();
        let Some(owner) = lock.owner_before(user) else {
            lock.belong_to(user, holds);
            return Ok(());
        };
        let (ticket, outcome) = waiter().in_wait_for(self, AsVictim::Fails, || {
            let ticket = begin(What::new(WaitReason::LCK_M_X).on(self).blocked_by_user(owner));
            lock.waiters.push_back(LockWaiter { user, holds, how: How::Parked(ticket) });
            lock.workers += 1;
            drop(lock);
            // From here on, a releaser that chooses this wait makes this user the owner before it
            // wakes the worker.
            (ticket, ticket.result(park(ticket, span.map_or(NEVER, clock::after))))
        });
        if outcome.is_err() {
            let mut lock = self.lock();
            let is_it = |w: &LockWaiter| matches!(w.how, How::Parked(t) if t == ticket);
            if let Some(at) = lock.waiters.iter().position(is_it) {
                lock.waiters.remove(at);
                lock.workers -= 1;
            }
        }
        outcome
    }

    /// Makes the user the owner and returns true if no user owns the lock. Otherwise queues the
    /// user without a worker and returns false. When the user has become the owner, the releaser
    /// calls `granted`, which must not wait. This way a contended lock never blocks all workers,
    /// and requests that do not need it continue. This call does not wait.
    ///
    /// # Panics
    /// Panics if the user is the owner already.
    pub fn acquire_or_leave(&self, user: UserId, granted: impl FnOnce() + Send + 'static) -> bool {
        // If the lock is free, `granted` is not kept. Dropping it runs code of the caller, so it is
        // dropped after the short lock is released.
        let granted = Box::new(granted);
        let holds = holds_of(user);
        let mut lock = self.lock();
        let is_free = lock.owner_before(user).is_none();
        if is_free {
            lock.belong_to(user, holds);
        } else {
            lock.waiters.push_back(LockWaiter { user, holds, how: How::Away(granted) });
        }
        is_free
    }

    /// Passes the lock to the user that has waited longest (except with [`UserLock::near`]).
    ///
    /// # Panics
    /// Panics if the user is not the owner.
    pub fn release(&self, user: UserId) {
        let mut lock = self.lock();
        let is_owner = |(owner, _): &mut (UserId, _)| *owner == user;
        let (_, holds) = lock
            .owner
            .take_if(is_owner)
            .unwrap_or_else(|| panic!("user {user} does not own the lock"));
        // The hold may have ended already, by one call of `User::release` too many.
        let _ = holds.is_some_and(|holds| holds.release());
        let (claimed, granted) = loop {
            let Some(LockWaiter { user, holds, how }) = self.next(&mut lock) else { return };
            let next = match how {
                How::Away(granted) => (None, Some(granted)),
                How::Parked(ticket) => {
                    lock.workers -= 1;
                    // If a waiter's deadline has passed, its wait is claimed already, and it does
                    // not get the lock.
                    let Some(claimed) = ticket.claim(Outcome::Granted) else { continue };
                    (Some(claimed), None)
                }
            };
            lock.belong_to(user, holds);
            // Updates the blocker that views show for the other waiters.
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

    /// Removes and returns the next waiter.
    fn next(&self, lock: &mut LockState) -> Option<LockWaiter> {
        let inbox = here().map(|here| here.inbox).filter(|_| lock.passed < self.passes);
        let is_near = |w: &LockWaiter| match w.how {
            How::Parked(ticket) => ticket
                .waiter
                .inbox()
                .is_some_and(|d| inbox.is_some_and(|inbox| std::ptr::eq(d, inbox))),
            How::Away(_) => false,
        };
        let near = inbox.and_then(|_| lock.waiters.iter().position(is_near)).unwrap_or(0);
        lock.passed = if near > 0 { lock.passed + 1 } else { 0 };
        lock.waiters.remove(near)
    }

    /// Removes a user that waits without a worker (see [`UserLock::acquire_or_leave`]) from the
    /// queue and returns its callback, uncalled. Returns `None` if the user is not in the queue.
    pub fn give_up(&self, user: UserId) -> Option<Box<dyn FnOnce() + Send>> {
        let mut lock = self.lock();
        let is_it = |w: &LockWaiter| w.user == user && matches!(w.how, How::Away(_));
        let at = lock.waiters.iter().position(is_it)?;
        match lock.waiters.remove(at)?.how {
            How::Away(granted) => Some(granted),
            How::Parked(_) => None,
        }
    }

    /// Returns how many workers wait.
    pub fn waiting_workers(&self) -> usize {
        self.lock().workers
    }

    /// Returns the user that owns the lock.
    pub fn owner(&self) -> Option<UserId> {
        self.lock().owner.as_ref().map(|o| o.0)
    }

    /// Returns how many users wait, with a worker or without.
    pub fn waiters(&self) -> usize {
        self.lock().waiters.len()
    }

    fn lock(&self) -> ShortGuard<'_, LockState> {
        let _settled = before_short_lock();
        self.state.lock()
    }
}

impl std::fmt::Debug for UserLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "UserLock(owner {:?}, {} waiting)", self.owner(), self.waiters())
    }
}
