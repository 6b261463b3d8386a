//! One connection: the line to its client, its session, its pending read, and its requests from the
//! queue to their end; and the connections of a server.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::connection::Connection;
use super::line::{ClientLine, LineOwner};
use super::listener::{Peer, Stream};
use super::session::{Next, Session, Why};
use super::shared::{ServerShared, tally};
use crate::io::{RECEIVE_MAX, submit_receive};
use crate::node::slow::SlowReader;
use crate::node::user::User;
use crate::os::clock;
use crate::os::lock::Lock;
use crate::os::panics::contain;
use crate::scheduler::lists::timer_list::TimerId;
use crate::scheduler::request::UserId;
use crate::scheduler::{Scheduler, here};
use crate::wait::Letter;
use crate::wait::error::EnqueueError;

/// One connection. It is kept alive by its pending read, by its running request, and by the server.
pub(super) struct Client {
    line: ClientLine,
    /// `None` while a request runs, because the request has taken it out.
    session: Lock<Option<Box<dyn Session>>>,
    /// The pending read: its scheduler, its token there, and its timer.
    armed: Lock<Armed>,
    parked: Lock<Parked>,
    /// The state of its request between `enqueue` and a worker.
    fate: AtomicU8,
    /// The refusal has been sent to the client.
    refused: AtomicBool,
    others: Weak<Clients>,
}

/// The request is about to be queued.
const ENQUEUEING: u8 = 0;
/// The request is in a queue, or with a worker.
const QUEUED: u8 = 1;
/// The request was dropped before it ran: it was refused at once, it waited too long, or its node
/// shut down.
const DROPPED: u8 = 2;

/// A request of a client. If it is dropped before it ran, the refusal is sent to the client, either
/// by `enqueue` or by this type's drop, whichever comes later.
struct Turn {
    client: Arc<Client>,
    ran: bool,
}

impl Turn {
    fn run(mut self, why: Why) {
        self.ran = true;
        self.client.carry_out(why);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.ran && self.client.fate.swap(DROPPED, Ordering::AcqRel) == QUEUED {
            self.client.refuse_late();
        }
    }
}

/// The state of a park. The calls that park and resume may come in either order.
#[derive(Default)]
struct Parked {
    parked: bool,
    resumed: bool,
}

#[derive(Default)]
struct Armed {
    at: Option<(Weak<Scheduler>, u64)>,
    timer: Option<TimerId>,
}

impl SlowReader for Client {
    fn has_room(&self) -> bool {
        self.line.stream.has_room()
    }

    fn end_for_others(&self) {
        self.line.end_for_others();
    }
}

impl LineOwner for Client {
    fn line(&self) -> &ClientLine {
        &self.line
    }

    fn resume_again(self: Arc<Self>) {
        self.resume(Why::Again);
    }
}

impl Client {
    /// Puts the client's next read on the I/O list of the scheduler that the caller runs on. If the
    /// session has left input unread, it gets another request instead.
    fn arm(self: &Arc<Self>, span: Option<Duration>) {
        let mut ahead = self.line.ahead.lock();
        if ahead.has_news() {
            // What the system has may change before that request.
            ahead.forget_nothing();
            drop(ahead);
            return self.enqueue(Why::Readable);
        }
        drop(ahead);
        let scheduler = here().expect("a read is armed by a worker");
        if self.line.user.is_holding() {
            scheduler.with(|core| core.expect_holder(scheduler.options.holder_spin_ns));
        }
        let client = self.clone();
        let mut armed = self.armed.lock();
        let take = move |result, bytes| client.input(result, bytes);
        let token = submit_receive(self.line.stream.fd(), RECEIVE_MAX, take);
        let Some(token) = token else { return };
        armed.at = Some((Arc::downgrade(&scheduler.arc()), token));
        armed.timer = span.map(|s| scheduler.time_io(clock::after(s), token));
        drop(armed);
        // The server may have begun to stop before this read was recorded, and then has not
        // cancelled it.
        if self.line.is_stopping() {
            self.disarm();
        }
    }

    /// Cancels the pending read; its completion routine then runs.
    pub fn disarm(&self) {
        if let Some((scheduler, token)) = &self.armed.lock().at
            && let Some(scheduler) = scheduler.upgrade()
        {
            scheduler.inbox.send(Letter::CancelIo(*token));
        }
    }

    /// Ends the connection as if the server stopped.
    fn evict(self: &Arc<Self>) {
        self.line.evicted.store(true, Ordering::SeqCst);
        // A request that ends after the line above sees the flag, and arms no read; so does `arm`
        // itself after it has recorded its read. A read that was recorded before is cancelled here.
        self.disarm();
        self.resume(Why::Stopping);
    }

    /// The completion routine of the pending read.
    fn input(self: &Arc<Self>, result: i32, bytes: Vec<u8>) {
        self.line.received(result, bytes);
        // If the receive completed immediately, this runs inside `arm`, which then holds the lock
        // and has recorded nothing yet.
        if let Some(mut armed) = self.armed.try_lock() {
            armed.at = None;
            if let (Some(timer), Some(scheduler)) = (armed.timer.take(), here()) {
                scheduler.untime(timer);
            }
        }
        let why = match result {
            _ if self.line.is_stopping() => Why::Stopping,
            r if r == -libc::ECANCELED => Why::TimedOut,
            _ => Why::Readable,
        };
        self.enqueue(why);
    }

    /// Parks the session, which has been put back. [`Resumer::resume`] may have been called
    /// already.
    fn park(self: &Arc<Self>) {
        let mut parked = self.parked.lock();
        parked.parked = true;
        let resumed = std::mem::take(&mut parked.resumed);
        drop(parked);
        if resumed || self.line.is_stopping() {
            self.resume(Why::Again);
        }
    }

    pub fn resume(self: &Arc<Self>, why: Why) {
        let mut parked = self.parked.lock();
        let was_parked = std::mem::take(&mut parked.parked);
        // If the server is stopping, a later park detects that itself.
        parked.resumed = !was_parked && why != Why::Stopping;
        drop(parked);
        if was_parked {
            self.enqueue(why);
        }
    }

    pub fn enqueue(self: &Arc<Self>, why: Why) {
        self.fate.store(ENQUEUEING, Ordering::Relaxed);
        let turn = Turn { client: self.clone(), ran: false };
        match self.line.user.enqueue_where_input_came(move || turn.run(why)) {
            Err(error) => self.refuse(error),
            Ok(_) if self.fate.swap(QUEUED, Ordering::AcqRel) == DROPPED => self.refuse_late(),
            Ok(_) => {}
        }
    }

    /// Refuses a request that was queued and then dropped.
    fn refuse_late(&self) {
        self.refuse(if self.line.is_stopping() || self.line.user.node_is_closing() {
            EnqueueError::ShuttingDown
        } else {
            EnqueueError::WaitedTooLong
        });
    }

    fn refuse(&self, error: EnqueueError) {
        // A request may run, and queue the next one, before the `enqueue` that queued it has set
        // `fate`. Then both calls of `enqueue` see the fate of the next request, and only the first
        // of them continues here.
        if self.refused.swap(true, Ordering::AcqRel) {
            return;
        }
        let session = self.session.lock().take();
        if let Some(mut session) = session {
            self.contained("was refused a request", || {
                let last_words = session.refused(error);
                let _ = self.line.stream.write(&last_words);
            });
            self.contained("ended", || drop(session));
        }
        self.close();
    }

    /// Calls code of the application. A panic of that code is counted, reported and not passed on.
    fn contained(&self, when: &str, call: impl FnOnce()) {
        if !contain(call) {
            self.line.shared.report_panic(self.line.peer, when);
        }
    }

    /// Carries out one work request.
    fn carry_out(self: &Arc<Self>, why: Why) {
        let Some(mut session) = self.session.lock().take() else { return };
        let why = if self.line.is_stopping() { Why::Stopping } else { why };
        if why != Why::Readable {
            self.line.ahead.lock().forget_nothing();
        }
        let mut conn = Connection::of(&self.line);
        let mut next = Next::Close;
        self.contained("carried out a request", || next = session.request(&mut conn, why));
        if next == Next::Close || why == Why::Stopping {
            // The session is dropped here, on a worker, because its destructor may wait.
            self.contained("ended", || drop(session));
            return self.close();
        }
        *self.session.lock() = Some(session);
        match next {
            Next::Again => self.enqueue(Why::Again),
            Next::Park => self.park(),
            Next::WaitAtMost(span) => self.arm(Some(span)),
            _ => self.arm(None),
        }
    }

    fn close(&self) {
        self.line.stream.close();
        self.line.user.leave();
        if let Some(others) = self.others.upgrade() {
            others.forget(self.line.user.id());
        }
    }
}

/// The connections of one server.
pub(super) struct Clients {
    by_user: Lock<HashMap<UserId, Arc<Client>>>,
    pub shared: Arc<ServerShared>,
}

impl Clients {
    /// Makes an empty set of connections.
    pub fn new(shared: ServerShared) -> Clients {
        Clients { by_user: Lock::default(), shared: Arc::new(shared) }
    }

    /// Adds a connection that has a place.
    pub fn add(
        self: &Arc<Self>,
        user: User,
        stream: Stream,
        peer: Peer,
        session: Box<dyn Session>,
    ) -> Arc<Client> {
        let id = user.id();
        let client = Arc::new_cyclic(|me: &Weak<Client>| Client {
            line: ClientLine::new((user, stream, peer), self.shared.clone(), me.clone()),
            session: Lock::new(Some(session)),
            armed: Lock::default(),
            parked: Lock::default(),
            fate: AtomicU8::new(ENQUEUEING),
            refused: AtomicBool::new(false),
            others: Arc::downgrade(self),
        });
        self.by_user.lock().insert(id, client.clone());
        // The alarm may have taken it as late before it could be found here.
        if clock::now() >= client.line.login_deadline() {
            client.evict();
        }
        if let Some(oldest) = self.shared.places.add(id) {
            tally(&self.shared.tallies.made_room);
            self.evict(oldest);
        }
        client
    }

    fn evict(&self, user: UserId) {
        let client = self.by_user.lock().get(&user).cloned();
        client.into_iter().for_each(|client| client.evict());
    }

    /// Ends the connections whose clients have not logged in in time. Returns the timer of the
    /// alarm, which is off from then on.
    pub fn evict_late(&self) -> Option<TimerId> {
        let (late, timer) = self.shared.logins.take_late();
        late.into_iter().for_each(|user| self.evict(user));
        timer
    }

    /// Removes a connection and gives back its place.
    fn forget(&self, user: UserId) {
        let client = self.by_user.lock().remove(&user);
        client.into_iter().for_each(|client| client.line.give_back_place());
    }

    /// Returns all connections, ordered by user, so that a simulated run can be repeated. The
    /// caller does not hold the lock, because a client whose last request is refused leaves
    /// immediately and takes the lock for that.
    pub fn all(&self) -> Vec<Arc<Client>> {
        let mut all: Vec<_> = self.by_user.lock().values().cloned().collect();
        all.sort_by_key(|client| client.line.user.id());
        all
    }

    /// Returns how many bytes were received that no session has read yet.
    pub fn received_ahead(&self) -> usize {
        self.by_user.lock().values().map(|client| client.line.ahead.lock().len()).sum()
    }
}
