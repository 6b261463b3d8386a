//! The keys of the sessions that have logged in: with a key the requests of its session can be
//! cancelled, by a client, by `KILL`, and by the clock.
//!
//! A *deferred* statement waits for the write gate without a worker, so its user has no request
//! that could be cancelled. A cancellation then sets a flag here, and takes the user out of the
//! gate's queue; the session's next request answers the client.
//!
//! No lock of this file is held while code of a session runs.

use std::collections::HashMap;
use std::sync::Arc;

use subtle::ConstantTimeEq;

use crate::auth;
use crate::error::SqlError;
use crate::host::{Peer, UserLock};
use ums::lock::Lock;

/// The reason why a statement is cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Cause {
    /// It ran longer than `statement_timeout`.
    StatementTimeout,
    /// It waited for the write gate longer than `lock_timeout`.
    LockTimeout,
    /// It is a COPY without progress that kept others from writing.
    GateHeld,
    /// Its client has gone.
    ClientGone,
}

impl Cause {
    /// Returns the error that the client gets; `None` if there is no client.
    pub(crate) fn error(self) -> Option<SqlError> {
        Some(match self {
            Cause::StatementTimeout => {
                SqlError::new("57014", "canceling statement due to statement timeout")
            }
            Cause::LockTimeout => SqlError::new("55P03", "canceling statement due to lock timeout"),
            Cause::GateHeld => gate_was_held(),
            Cause::ClientGone => return None,
        })
    }
}

/// Returns the error of a session that was idle for too long while others waited for it.
pub(crate) fn gate_was_held() -> SqlError {
    SqlError::fatal("25P03", "terminating connection: others waited to write, and it did nothing")
        .hint("End transactions that write soon. The server's option --gate-idle sets the limit.")
}

/// Cancels the running request of a user, if it has one.
pub(crate) type CancelRequest<'a> = &'a dyn Fn(u64) -> bool;
/// Asks for the next request of a user that was taken out of the gate's queue.
pub(crate) type Resume = Box<dyn FnOnce() + Send>;

/// The key of a session.
#[derive(Debug)]
struct Key {
    secret: u32,
    user: u64,
    peer: Option<Arc<dyn Peer>>,
    /// Why the clock has cancelled the session's statement; `None` if it has not.
    cause: Option<Cause>,
    /// Whether a statement of the session is deferred. Then a cancellation sets `cancelled`.
    deferred: bool,
    /// Whether the deferred statement has been cancelled.
    cancelled: bool,
    /// How often a statement of the session was deferred.
    deferrals: u64,
}

impl Key {
    /// Returns whether this is the secret. The duration does not depend on how much of it is right.
    fn has_secret(&self, secret: u32) -> bool {
        self.secret.ct_eq(&secret).into()
    }
}

/// The keys of a server, by the numbers that clients know.
#[derive(Debug)]
pub(crate) struct Keys {
    keys: Lock<HashMap<u32, Key>>,
    gate: Arc<UserLock>,
}

impl Keys {
    pub(crate) fn new(gate: Arc<UserLock>) -> Keys {
        Keys { keys: Lock::default(), gate }
    }

    /// Creates the secret with which the requests of `user` can be cancelled.
    pub(crate) fn create(&self, user: u64, peer: Option<Arc<dyn Peer>>) -> (u32, u32) {
        let (pid, secret) = (user as u32, u32::from_be_bytes(auth::random()));
        let (deferred, cancelled, deferrals) = (false, false, 0);
        let key = Key { secret, user, peer, cause: None, deferred, cancelled, deferrals };
        self.keys.lock().insert(pid, key);
        (pid, secret)
    }

    pub(crate) fn forget(&self, user: u64) {
        self.keys.lock().remove(&(user as u32));
    }

    /// Returns the user of the session with this number if the secret is right.
    pub(crate) fn user(&self, pid: u32, secret: u32) -> Option<u64> {
        self.keys.lock().get(&pid).filter(|key| key.has_secret(secret)).map(|key| key.user)
    }

    fn with<R>(&self, user: u64, f: impl FnOnce(&mut Key) -> R) -> Option<R> {
        self.keys.lock().get_mut(&(user as u32)).filter(|key| key.user == user).map(f)
    }

    /// Cancels the request of `user`, or its deferred statement. Returns false if it has neither.
    /// The caller must call what is returned beside that, without holding a lock.
    pub(crate) fn cancel(&self, user: u64, request: CancelRequest<'_>) -> (bool, Option<Resume>) {
        loop {
            let deferrals = self.deferrals(user);
            if let (true, resume) = self.end_cancelled_deferral(user, true) {
                return (true, resume);
            }
            let found = request(user);
            if self.deferrals(user) == deferrals {
                return (found, None);
            }
            // A statement was deferred meanwhile. The request that was cancelled may have deferred
            // it after its last check for a cancellation, so look again.
        }
    }

    /// The same, for a reason other than the wish of a client.
    pub(crate) fn cancel_because(
        &self,
        user: u64,
        cause: Cause,
        request: CancelRequest<'_>,
    ) -> Option<Resume> {
        self.with(user, |key| key.cause = Some(cause));
        self.cancel(user, request).1
    }

    /// Returns why the clock has cancelled the statement of `user`, and forgets it.
    pub(crate) fn take_cause(&self, user: u64) -> Option<Cause> {
        self.with(user, |key| key.cause.take()).flatten()
    }

    fn deferrals(&self, user: u64) -> u64 {
        self.with(user, |key| key.deferrals).unwrap_or(0)
    }

    /// Takes the user of a cancelled deferred statement out of the gate's queue. With `cancel` the
    /// statement is cancelled first. Returns false if no cancelled statement of `user` is deferred.
    /// The caller must call what is returned beside that, without holding a lock: it asks for the
    /// user's next request, which answers the client.
    pub(crate) fn end_cancelled_deferral(&self, user: u64, cancel: bool) -> (bool, Option<Resume>) {
        let cancelled = self.with(user, |key| {
            key.cancelled |= cancel && key.deferred;
            key.deferred && key.cancelled
        });
        let cancelled = cancelled.unwrap_or(false);
        // If the user is not in the queue, its session is about to look for a cancellation, or owns
        // the gate. In the second case its next request finds the cancellation.
        (cancelled, if cancelled { self.gate.give_up(user) } else { None })
    }

    /// Records that the statement of `user` is deferred.
    pub(crate) fn defer(&self, user: u64) {
        self.with(user, |key| {
            key.deferred = true;
            key.deferrals += 1;
        });
    }

    /// Records that the statement of `user` is no longer deferred. Returns true if it was cancelled
    /// meanwhile.
    pub(crate) fn end_deferral(&self, user: u64) -> bool {
        let ended = self.with(user, |key| {
            key.deferred = false;
            std::mem::take(&mut key.cancelled)
        });
        ended.unwrap_or(false)
    }

    /// Returns the sessions that have something to do: each user, with its client.
    pub(crate) fn at_work(&self) -> Vec<(u64, Arc<dyn Peer>)> {
        let keys = self.keys.lock();
        let clients = keys.values().filter_map(|key| Some((key, key.peer.as_ref()?)));
        let at_work = clients.filter(|(key, peer)| key.deferred || peer.is_busy());
        at_work.map(|(key, peer)| (key.user, Arc::clone(peer))).collect()
    }

    /// Returns whether a user waits for the write gate.
    pub(crate) fn someone_waits_to_write(&self) -> bool {
        self.gate.waiters() > 0
    }
}
