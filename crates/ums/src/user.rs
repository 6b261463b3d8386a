//! The user: a logical connection that holds no worker while it is idle (U30, U31).
//!
//! A user belongs to a scheduler (its home, by placement) and enqueues work requests, each of
//! which one worker carries out from start to end. A user may *hold* something that others wait
//! for across its requests, a transaction's lock for instance; as long as it does, its requests
//! never wait for a worker (rule 7), or sixteen workers that wait for the lock would keep out the
//! request that releases it (G11).

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::error::EnqueueError;
use crate::node::{HiddenScheduler, Node, NodeInner};
use crate::request::UserId;
use crate::scheduler::Shared;
use crate::task::{self, JoinHandle, Running};

/// A logical connection. Dropping it ends its association with its scheduler.
pub struct User {
    id: UserId,
    node: Arc<NodeInner>,
    /// The preferred visible scheduler, or the hidden one it is bound to.
    home: Home,
    holds: AtomicUsize,
    running: Mutex<Option<Running>>,
    /// Counted among the users of its home.
    counted: AtomicBool,
}

enum Home {
    Preferred(usize),
    Bound(Arc<Shared>),
}

impl std::fmt::Debug for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("User").field("id", &self.id).field("home", &self.scheduler()).finish()
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
        User::new(self.inner.clone(), Home::Bound(hidden.shared.clone()))
    }
}

impl User {
    fn new(node: Arc<NodeInner>, home: Home) -> User {
        let id = node.new_user_id();
        let user = User {
            id,
            node,
            home,
            holds: AtomicUsize::new(0),
            running: Mutex::new(None),
            counted: AtomicBool::new(true),
        };
        user.home_scheduler().users.fetch_add(1, Ordering::Relaxed);
        user
    }

    /// Its number, which no other user of this process's node has.
    pub fn id(&self) -> UserId {
        self.id
    }

    /// The number of the scheduler it prefers (and with classic placement never leaves, U24).
    pub fn scheduler(&self) -> usize {
        self.home_scheduler().index
    }

    fn home_scheduler(&self) -> &Arc<Shared> {
        match &self.home {
            Home::Preferred(at) => &self.node.visible[*at],
            Home::Bound(shared) => shared,
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
        let shared = match &self.home {
            Home::Preferred(at) => {
                let to = self.node.placement().for_request(&self.node.visible, *at);
                &self.node.visible[to]
            }
            Home::Bound(shared) => shared,
        };
        let handle = task::spawn_on(shared, self.id, self.is_holding(), f)?;
        *self.running.lock().unwrap_or_else(|e| e.into_inner()) = Some(handle.running());
        Ok(handle)
    }

    /// From now on this user holds something that others may wait for: its requests are served at
    /// once (rule 7). Holds nest; each is ended by one [`User::release`].
    pub fn hold(&self) {
        self.holds.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends one [`User::hold`].
    ///
    /// # Panics
    /// When there is none.
    pub fn release(&self) {
        let held = self.holds.fetch_sub(1, Ordering::Relaxed);
        assert!(held > 0, "a user released what it does not hold");
    }

    /// Whether it holds anything.
    pub fn is_holding(&self) -> bool {
        self.holds.load(Ordering::Relaxed) > 0
    }

    /// Cancels the request that it enqueued last, if that has not ended: its waits fail, its
    /// checkpoints say so (B59). True: there was one.
    pub fn cancel(&self) -> bool {
        let running = self.running.lock().unwrap_or_else(|e| e.into_inner()).clone();
        running.is_some_and(|r| r.cancel())
    }

    /// Whether its last request is queued or being carried out.
    pub fn is_busy(&self) -> bool {
        let running = self.running.lock().unwrap_or_else(|e| e.into_inner());
        running.as_ref().is_some_and(|r| !r.is_done())
    }

    /// Ends its association with its scheduler before it is dropped.
    pub(crate) fn leave(&self) {
        if self.counted.swap(false, Ordering::Relaxed) {
            self.home_scheduler().users.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for User {
    fn drop(&mut self) {
        self.leave();
    }
}
