//! The clock of a server: a thread that cancels statements whose time is over, and those whose
//! client has gone.
//!
//! A session tells the clock when a statement with a time limit begins and ends. The limit also
//! holds while the statement waits, with a worker or without. Statements without a limit cost one
//! load of an atomic.
//!
//! Clients are looked at every second, by default, as long as a session has something to do. On a
//! server without work the clock sleeps, and nothing wakes it.
//!
//! ```text
//!            a request begins, and the clock sleeps
//!   sleeps ─────────────────────────────────────────▶ looks every second
//!      ▲                                                 │ no session has a request
//!      └─────── still none ◀── looks once more ◀─────────┘
//! ```

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::host::{Event, after};
use crate::keys::{CancelRequest, Cause, Keys, Resume};
use ums::lock::Lock;

/// How long the clock waits before it looks again whether others wait for the write gate.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Clock {
    state: Lock<State>,
    /// Set when the thread has something to do earlier than it knew.
    changed: Event,
    /// Whether clients are looked at. Set by requests, cleared by the clock.
    looks: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    due: BTreeSet<(Instant, u64, Cause)>,
    at: HashMap<(u64, Cause), Instant>,
    started: bool,
    ended: bool,
}

impl State {
    fn put(&mut self, user: u64, cause: Cause, at: Instant) {
        self.remove(user, cause);
        self.due.insert((at, user, cause));
        self.at.insert((user, cause), at);
    }

    fn remove(&mut self, user: u64, cause: Cause) {
        if let Some(at) = self.at.remove(&(user, cause)) {
            self.due.remove(&(at, user, cause));
        }
    }
}

/// When the clock looks at the clients.
#[derive(Debug, Default)]
struct Looks {
    next: Option<Instant>,
}

impl Default for Clock {
    fn default() -> Clock {
        Clock { state: Lock::default(), changed: Event::auto(false), looks: AtomicBool::new(false) }
    }
}

impl Clock {
    /// Starts the thread, unless it has been started. With `every`, it looks at the clients of
    /// statements as often as that.
    pub(crate) fn start(
        self: &Arc<Clock>,
        keys: &Arc<Keys>,
        every: Option<Duration>,
        cancel: impl Fn(u64) -> bool + Send + 'static,
    ) -> io::Result<()> {
        if std::mem::replace(&mut self.state.lock().started, true) {
            return Ok(());
        }
        if every.is_none() {
            self.looks.store(true, Ordering::Relaxed);
        }
        let (clock, keys) = (Arc::clone(self), Arc::clone(keys));
        let builder = std::thread::Builder::new().name("ums-clock".into());
        builder.spawn(move || clock.run(&keys, every, &cancel))?;
        Ok(())
    }

    /// Ends the thread.
    pub(crate) fn end(&self) {
        self.state.lock().ended = true;
        self.changed.set();
    }

    /// Records that a request has begun.
    pub(crate) fn notice(&self) {
        if !self.looks.load(Ordering::Relaxed) {
            self.begin_to_look();
        }
    }

    #[cold]
    fn begin_to_look(&self) {
        self.looks.store(true, Ordering::Relaxed);
        self.changed.set();
    }

    /// Cancels the statement of `user` at this time, unless [`Clock::disarm`] is called before.
    pub(crate) fn arm(&self, user: u64, cause: Cause, at: Instant) {
        let mut state = self.state.lock();
        state.put(user, cause, at);
        let is_first = state.due.first().is_some_and(|first| first.1 == user);
        drop(state);
        if is_first {
            self.changed.set();
        }
    }

    /// Takes back [`Clock::arm`]. The clock cancels while it holds the same lock, so afterwards it
    /// has either cancelled the caller's statement already, or will not.
    pub(crate) fn disarm(&self, user: u64, cause: Cause) {
        self.state.lock().remove(user, cause);
    }

    fn run(&self, keys: &Keys, every: Option<Duration>, cancel: CancelRequest<'_>) {
        let mut looks = Looks::default();
        loop {
            let mut state = self.state.lock();
            if state.ended {
                return;
            }
            let resumed = fire(&mut state, keys, cancel);
            let next = state.due.first().map(|first| first.0);
            drop(state);
            // A request that is refused ends its session, which may call this clock.
            resumed.into_iter().for_each(|resume| resume());
            if let Some(every) = every {
                if looks.next.is_some_and(|next| next <= Instant::now()) {
                    let at_work = look(keys, cancel);
                    self.plan(&mut looks, every, at_work);
                } else if looks.next.is_none() && self.looks.load(Ordering::Relaxed) {
                    looks.next = Some(after(Instant::now(), every));
                }
            }
            // The event stays set if the state has changed since it was read.
            let _ = match next.into_iter().chain(looks.next).min() {
                Some(next) => self.changed.wait_until(next),
                None => self.changed.wait(),
            };
        }
    }

    /// Plans the next look at the clients, after one that found a session at work or none.
    fn plan(&self, looks: &mut Looks, every: Duration, at_work: bool) {
        let again = at_work || self.looks.load(Ordering::Relaxed);
        looks.next = again.then(|| after(Instant::now(), every));
        // A request that found the flag set, just before it is cleared here, does not set it. By
        // the look that follows, its user has been busy for long, so that look finds it.
        self.looks.store(at_work, Ordering::Relaxed);
    }
}

/// Cancels the statements whose time is over.
fn fire(state: &mut State, keys: &Keys, cancel: CancelRequest<'_>) -> Vec<Resume> {
    let mut resumed = Vec::new();
    let now = Instant::now();
    while let Some((at, user, cause)) = state.due.first().copied().filter(|first| first.0 <= now) {
        if cause == Cause::GateHeld && !keys.someone_waits_to_write() {
            state.put(user, cause, after(at.max(now), LOOK_AGAIN));
            continue;
        }
        state.remove(user, cause);
        resumed.extend(keys.cancel_because(user, cause, cancel));
    }
    resumed
}

/// Cancels the statements whose client has gone. Returns whether any session has something to do.
fn look(keys: &Keys, cancel: CancelRequest<'_>) -> bool {
    let at_work = keys.at_work();
    for (user, peer) in &at_work {
        if peer.has_gone()
            && let Some(resume) = keys.cancel_because(*user, Cause::ClientGone, cancel)
        {
            resume();
        }
    }
    !at_work.is_empty()
}
