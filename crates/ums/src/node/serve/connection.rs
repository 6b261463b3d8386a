//! A connection: the client on the other end, the session that answers it, and the view that the
//! session has of both.
//!
//! These types are in one file because each refers to the others: a client owns its session, a
//! session is called with its connection, and a connection is a borrowed client.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, Read, Write};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::ahead::Ahead;
use super::listener::{Peer, Stream};
use super::places::Places;
use crate::io::{RECEIVE_MAX, send_bytes, submit_receive, wait_for};
use crate::node::user::User;
use crate::os::clock::{self, NEVER};
use crate::os::driver::LiveOp;
use crate::os::lock::Lock;
use crate::os::panics::contain;
use crate::record::reason::WaitReason;
use crate::record::report::WarningKind;
use crate::scheduler::lists::timer_list::TimerId;
use crate::scheduler::request::UserId;
use crate::scheduler::{Scheduler, here};
use crate::wait::Letter;
use crate::wait::error::EnqueueError;

/// The reason why a session is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The connection was just made.
    Connected,
    /// There is input, or the peer has closed the connection.
    Readable,
    /// The session asked for another request.
    Again,
    /// No input came within the time of [`Next::WaitAtMost`].
    TimedOut,
    /// The server is stopping. This is the session's last call: whatever it returns, the connection
    /// closes.
    Stopping,
}

/// What the server does after a session's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The session is idle until there is input.
    Wait,
    /// The session is idle until there is input, or until this time has passed.
    WaitAtMost(Duration),
    /// The session gets another work request, after those that are queued already.
    Again,
    /// The session is not called, not even for input, until [`Resumer::resume`] is called.
    Park,
    /// The connection closes.
    Close,
}

/// The server's side of one connection. Each call is one work request and runs on a worker.
pub trait Session: Send + 'static {
    /// Carries out one request. It may wait, yield, and go preemptive. A panic closes the
    /// connection. A request that was cancelled while it was queued is carried out, too, so that
    /// the session can answer; `ums::is_cancelled` then returns true from its beginning.
    fn request(&mut self, conn: &mut Connection<'_>, why: Why) -> Next;

    /// Called instead of [`request`](Session::request) if a request is refused, because the work
    /// queue is full, the request has waited too long or the node shuts down. The bytes that it
    /// returns are sent to the client, in one non-blocking write, before the connection closes. It
    /// is called by a completion routine and must not wait.
    fn refused(&mut self, error: EnqueueError) -> Vec<u8> {
        let _ = error;
        Vec::new()
    }
}

/// A session's access to its connection: the socket and the user. Calls of [`Read`] and [`Write`]
/// that must wait suspend the worker.
pub struct Connection<'a> {
    client: &'a Arc<Client>,
    /// The longest time that one read or write waits; `None` means no limit.
    pub timeout: Option<Duration>,
    /// Whether a cancellation of the request ends a write that waits; true when a request begins.
    pub cancellable: bool,
}

impl<'a> Connection<'a> {
    fn of(client: &'a Arc<Client>) -> Connection<'a> {
        Connection { client, timeout: None, cancellable: true }
    }

    /// Returns the connection's user.
    pub fn user(&self) -> &User {
        &self.client.user
    }

    /// Returns the address of the client.
    pub fn peer(&self) -> Peer {
        self.client.peer
    }

    /// Returns the user id of the process that made this connection, as the system reports it
    /// (`SO_PEERCRED`). Returns `None` if the listener is not a Unix-domain socket.
    ///
    /// # Errors
    /// The system's error.
    pub fn peer_uid(&self) -> io::Result<Option<u32>> {
        self.client.stream.peer_uid()
    }

    /// Reads available input without waiting; returns 0 if the peer has closed the connection.
    ///
    /// # Errors
    /// `WouldBlock` if there is no input; otherwise the system's error.
    pub fn try_read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if !buf.is_empty()
            && let Some(read) = self.client.ahead.lock().read(buf)
        {
            return read;
        }
        retry(|| self.client.stream.read(buf))
    }

    /// Writes as many bytes as is possible without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if nothing can be written; otherwise the system's error.
    pub fn try_write(&mut self, buf: &[u8]) -> io::Result<usize> {
        retry(|| self.client.stream.write(buf))
    }

    /// Returns a handle that ends a [`Next::Park`] of this connection, from any thread.
    pub fn resumer(&self) -> Resumer {
        Resumer { client: Arc::downgrade(self.client) }
    }

    /// Returns a handle that says from any thread whether the client is still there.
    pub fn outlook(&self) -> Outlook {
        Outlook { client: Arc::downgrade(self.client) }
    }

    /// Records that the client has proved who it is. From now on it makes no room for new
    /// connections (see [`ServeOptions::max_new`](super::ServeOptions)). Returns false if as many
    /// clients as the server permits have done that; then the session should end.
    pub fn establish(&mut self) -> bool {
        let client = self.client;
        if !client.established.load(Ordering::Relaxed) {
            let others = client.others.upgrade();
            let established = others.is_some_and(|o| o.places.establish(client.user.id()));
            client.established.store(established, Ordering::Relaxed);
        }
        client.established.load(Ordering::Relaxed)
    }

    /// Writes a message about this client to stderr, with its address, unless there was such a
    /// message in the same second.
    pub fn warn(&self, text: fmt::Arguments<'_>) {
        let text = format_args!("{}: {text}", self.client.peer);
        crate::current::warn(WarningKind::Client, text);
    }

    /// Returns whether this is the connection's last request: the server is stopping, or the
    /// connection makes room for a new one.
    pub fn is_closing(&self) -> bool {
        self.client.stopping()
    }

    fn deadline(&self) -> u64 {
        self.timeout.map_or(NEVER, clock::after)
    }
}

/// A handle that ends a [`Next::Park`].
pub struct Resumer {
    client: Weak<Client>,
}

impl Resumer {
    /// Queues a work request with [`Why::Again`] for the session: immediately if the session is
    /// parked, otherwise as soon as it parks. Call it once for each park. It never waits.
    pub fn resume(&self) {
        if let Some(client) = self.client.upgrade() {
            client.resume(Why::Again);
        }
    }
}

impl std::fmt::Debug for Resumer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Resumer")
    }
}

/// A handle that says from any thread whether a client is still there and reads.
#[derive(Clone)]
pub struct Outlook {
    client: Weak<Client>,
}

impl Outlook {
    /// Returns whether a request of the connection is queued or running.
    pub fn is_busy(&self) -> bool {
        self.client.upgrade().is_some_and(|client| client.user.is_busy())
    }

    /// Returns whether the client has closed the connection, or at least its sending side. Input
    /// that was not read yet makes no difference.
    pub fn client_has_gone(&self) -> bool {
        self.client.upgrade().is_none_or(|client| client.stream.has_ended())
    }

    /// Returns whether a write would not wait now, because the client has read enough.
    pub fn has_room(&self) -> bool {
        self.client.upgrade().is_some_and(|client| client.stream.has_room())
    }

    /// Closes the connection; a read or write that waits for the client ends.
    pub fn disconnect(&self) {
        if let Some(client) = self.client.upgrade() {
            client.stream.close();
        }
    }
}

impl fmt::Debug for Outlook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Outlook")
    }
}

impl Read for Connection<'_> {
    /// Reads; suspends the worker until there is input.
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let deadline = self.deadline();
        match self.try_read(buf) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            other => return other,
        }
        wait_for(LiveOp::recv(self.client.fd(), buf, 0), WaitReason::NETWORK_READ, deadline)
    }
}

impl Write for Connection<'_> {
    /// Writes; suspends the worker while the peer does not read.
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let deadline = self.deadline();
        send_bytes(LiveOp::send(self.client.fd(), buf, 0), || deadline, self.cancellable)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn retry(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// One connection. It is kept alive by its pending read, by its running request, and by the server.
pub(super) struct Client {
    pub user: User,
    stream: Stream,
    peer: Peer,
    ahead: Lock<Ahead>,
    /// `None` while a request runs, because the request has taken it out.
    session: Lock<Option<Box<dyn Session>>>,
    /// The pending read: its scheduler, its token there, and its timer.
    armed: Lock<Armed>,
    parked: Lock<Parked>,
    /// The state of its request between `enqueue` and a worker.
    fate: AtomicU8,
    /// The refusal has been sent to the client.
    refused: AtomicBool,
    /// The connection must close, to make room for a new one.
    evicted: AtomicBool,
    /// The client has proved who it is, and has one of the places for those.
    established: AtomicBool,
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

impl Client {
    fn fd(&self) -> RawFd {
        self.stream.fd()
    }

    /// Puts the client's next read on the I/O list of the scheduler that the caller runs on. If the
    /// session has left input unread, it gets another request instead.
    fn arm(self: &Arc<Self>, span: Option<Duration>) {
        let mut ahead = self.ahead.lock();
        if ahead.has_news() {
            // What the system has may change before that request.
            ahead.forget_nothing();
            drop(ahead);
            return self.enqueue(Why::Readable);
        }
        drop(ahead);
        let scheduler = here().expect("a read is armed by a worker");
        if self.user.is_holding() {
            scheduler.with(|core| core.expect_holder(scheduler.options.holder_spin_ns));
        }
        let client = self.clone();
        let mut armed = self.armed.lock();
        let take = move |result, bytes| client.input(result, bytes);
        let token = submit_receive(self.fd(), RECEIVE_MAX, take);
        let Some(token) = token else { return };
        armed.at = Some((Arc::downgrade(&scheduler.arc()), token));
        armed.timer = span.map(|s| scheduler.time_io(clock::after(s), token));
        drop(armed);
        // The server may have begun to stop before this read was recorded, and then has not
        // cancelled it.
        if self.stopping() {
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

    /// Returns whether the connection must end as soon as no request of it runs.
    fn stopping(&self) -> bool {
        self.evicted.load(Ordering::SeqCst)
            || self.others.upgrade().is_none_or(|others| others.is_stopping())
    }

    /// Ends the connection as if the server stopped.
    fn evict(self: &Arc<Self>) {
        self.evicted.store(true, Ordering::SeqCst);
        // A request that ends after the line above sees the flag, and arms no read; so does `arm`
        // itself after it has recorded its read. A read that was recorded before is cancelled here.
        self.disarm();
        self.resume(Why::Stopping);
    }

    /// The completion routine of the pending read.
    fn input(self: &Arc<Self>, result: i32, bytes: Vec<u8>) {
        self.ahead.lock().put(result, bytes);
        // If the receive completed immediately, this runs inside `arm`, which then holds the lock
        // and has recorded nothing yet.
        if let Some(mut armed) = self.armed.try_lock() {
            armed.at = None;
            if let (Some(timer), Some(scheduler)) = (armed.timer.take(), here()) {
                scheduler.untime(timer);
            }
        }
        let why = match result {
            _ if self.stopping() => Why::Stopping,
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
        if resumed || self.stopping() {
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
        match self.user.enqueue_where_input_came(move || turn.run(why)) {
            Err(error) => self.refuse(error),
            Ok(_) if self.fate.swap(QUEUED, Ordering::AcqRel) == DROPPED => self.refuse_late(),
            Ok(_) => {}
        }
    }

    /// Refuses a request that was queued and then dropped.
    fn refuse_late(&self) {
        self.refuse(if self.stopping() || self.user.node_is_closing() {
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
                let _ = self.stream.write(&last_words);
            });
            self.contained("ended", || drop(session));
        }
        self.close();
    }

    /// Calls code of the application. A panic of that code is counted, reported and not passed on.
    fn contained(&self, when: &str, call: impl FnOnce()) {
        if !contain(call)
            && let Some(others) = self.others.upgrade()
        {
            others.report_panic(self.peer, when);
        }
    }

    /// Carries out one work request.
    fn carry_out(self: &Arc<Self>, why: Why) {
        let Some(mut session) = self.session.lock().take() else { return };
        let why = if self.stopping() { Why::Stopping } else { why };
        if why != Why::Readable {
            self.ahead.lock().forget_nothing();
        }
        let mut conn = Connection::of(self);
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
        self.stream.close();
        self.user.leave();
        if let Some(others) = self.others.upgrade() {
            others.forget(self.user.id());
        }
    }
}

/// The connections of one server.
#[derive(Default)]
pub(super) struct Clients {
    by_user: Lock<HashMap<UserId, Arc<Client>>>,
    stopping: AtomicBool,
    pub places: Places,
    panics: AtomicU64,
}

impl Clients {
    /// Makes an empty set of connections, with these places.
    pub fn new(places: Places) -> Clients {
        Clients { places, ..Clients::default() }
    }

    /// Adds a connection that has a place.
    pub fn add(
        self: &Arc<Self>,
        user: User,
        stream: Stream,
        peer: Peer,
        session: Box<dyn Session>,
    ) -> Arc<Client> {
        let client = Arc::new(Client {
            user,
            stream,
            peer,
            ahead: Lock::default(),
            session: Lock::new(Some(session)),
            armed: Lock::default(),
            parked: Lock::default(),
            fate: AtomicU8::new(ENQUEUEING),
            refused: AtomicBool::new(false),
            evicted: AtomicBool::new(false),
            established: AtomicBool::new(false),
            others: Arc::downgrade(self),
        });
        self.by_user.lock().insert(client.user.id(), client.clone());
        let oldest = self.places.add(client.user.id());
        let evicted = oldest.and_then(|oldest| self.by_user.lock().get(&oldest).cloned());
        evicted.into_iter().for_each(|evicted| evicted.evict());
        client
    }

    /// Removes a connection and gives back its place.
    fn forget(&self, user: UserId) {
        let client = self.by_user.lock().remove(&user);
        if let Some(client) = client {
            self.places.forget(user, client.established.load(Ordering::Relaxed));
        }
    }

    /// Returns all connections, ordered by user, so that a simulated run can be repeated. The
    /// caller does not hold the lock, because a client whose last request is refused leaves
    /// immediately and takes the lock for that.
    pub fn all(&self) -> Vec<Arc<Client>> {
        let mut all: Vec<_> = self.by_user.lock().values().cloned().collect();
        all.sort_by_key(|client| client.user.id());
        all
    }

    /// Returns how many bytes were received that no session has read yet.
    pub fn received_ahead(&self) -> usize {
        self.by_user.lock().values().map(|client| client.ahead.lock().len()).sum()
    }

    /// Records that the server is stopping.
    pub fn begin_to_stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
    }

    /// Returns whether the server is stopping.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// Returns how many sessions have panicked.
    pub fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }

    /// Counts and reports the panic of a session.
    #[cold]
    pub fn report_panic(&self, peer: Peer, when: &str) {
        self.panics.fetch_add(1, Ordering::Relaxed);
        let text = format_args!("a session of {peer} panicked when it {when}: it is closed");
        crate::current::warn(WarningKind::Panicked, text);
    }
}
