//! Serving: a listener, its connections as users, their sessions as what workers call.
//!
//! A connection is a [`User`]. While it is idle its next read is on the I/O list of the scheduler
//! where its last request ran, and nothing else of it exists but the session's own state: no
//! worker, no stack, no read buffer. When input comes, the completion routine turns it into one
//! work request, which calls the session (U31, U52).
//!
//! ```text
//!   listener readable -> accept request -> new user, session, request(Connected)
//!                                              |
//!        +-------------------------------------+<-------------------+
//!        v                                                          |
//!   session.request(..) --Wait--> readable on the I/O list --> work request
//!        |---Again--> work request at once                 --timed out--> request(TimedOut)
//!        +---Close--> the user leaves, the socket closes
//! ```
//!
//! Accepting is a work request like any other: when a scheduler is out of workers it accepts
//! nobody until one is free, as in the original.
//!
//! What it does not do: it knows no protocol and keeps no buffers.

mod connection;
mod listener;

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use crate::io::submit_poll;
use crate::net::{is_shortage, tell_shortage};
use crate::node::user::User;
use crate::node::{HiddenScheduler, Node};
use crate::os::clock;
use crate::record::report::Kind;
use crate::scheduler::inbox::Letter;
use crate::scheduler::lists::timer_list::TimerId;
use crate::scheduler::request::UserId;
use crate::scheduler::{Scheduler, contain, here};
use crate::wait::error::EnqueueError;

pub use connection::{Connection, Resumer};
use listener::Stream;
pub use listener::{Listener, Peer};

/// Why a session is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The connection was just made.
    Connected,
    /// There is input, or the other side has closed.
    Readable,
    /// The session asked for another request.
    Again,
    /// Nothing came within the time that the session gave.
    TimedOut,
    /// The server is stopping: say goodbye. Whatever the session answers, the connection closes.
    Stopping,
}

/// What a session wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Be idle until there is input.
    Wait,
    /// Be idle until there is input, but not for longer than this.
    WaitAtMost(Duration),
    /// Another work request, behind those that wait already.
    Again,
    /// Nothing, not even input, until somebody calls [`Resumer::resume`].
    Park,
    /// The end.
    Close,
}

/// One connection's side of a protocol. Each call is one work request, on a worker.
pub trait Session: Send + 'static {
    /// Carries out one request. It may wait, yield, and go preemptive.
    fn request(&mut self, conn: &mut Connection<'_>, why: Why) -> Next;

    /// The work queue was full: what to tell the client in one non-blocking write before the
    /// connection closes (G2). Called by a completion routine: it must not wait.
    fn refused(&mut self, error: EnqueueError) -> Vec<u8> {
        let _ = error;
        Vec::new()
    }
}

/// One connection. Kept alive by its pending read, by its running request, and by the server.
struct Client {
    user: User,
    stream: Stream,
    peer: Peer,
    /// Taken out by the request that runs.
    session: Mutex<Option<Box<dyn Session>>>,
    /// Where its next read is armed, and under which token: 0 when it is not.
    armed: Mutex<Armed>,
    parked: Mutex<Parked>,
    /// What became of its request between `enqueue` and a worker.
    fate: AtomicU8,
    /// It was told that it is refused.
    told: AtomicBool,
    server: Weak<Inner>,
}

/// On its way into a work queue.
const GOING: u8 = 0;
/// In a queue, or with a worker.
const TAKEN: u8 = 1;
/// Dropped before it ran: refused at once, waited too long, or its node shut down.
const DROPPED: u8 = 2;

/// A request of a client. If it is dropped unrun, the client is told: by whoever comes second, the
/// one that queued it or this.
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
        if !self.ran && self.client.fate.swap(DROPPED, Ordering::AcqRel) == TAKEN {
            self.client.refuse_late();
        }
    }
}

/// A park and its end may come in either order.
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

    /// Puts its next read on the I/O list of the scheduler that the caller runs on.
    fn arm(self: &Arc<Self>, span: Option<Duration>) {
        let scheduler = here().expect("a read is armed by a worker");
        if self.user.is_holding() {
            scheduler.with(|core| core.expect_holder(scheduler.options.holder_spin_ns));
        }
        let client = self.clone();
        let mut armed = self.lock_armed();
        let token = submit_poll(self.fd(), Box::new(move |result| client.input(result)));
        let Some(token) = token else { return };
        armed.at = Some((Arc::downgrade(&scheduler.arc()), token));
        armed.timer = span.map(|s| scheduler.time_io(clock::after(s), token));
        drop(armed);
        // The server may have begun to stop before it could see what we armed.
        if self.stopping() {
            self.disarm();
        }
    }

    /// Asks for the end of its pending read; the completion routine then runs.
    fn disarm(&self) {
        if let Some((scheduler, token)) = &self.lock_armed().at
            && let Some(scheduler) = scheduler.upgrade()
        {
            scheduler.inbox.send(Letter::CancelIo(*token));
        }
    }

    fn lock_armed(&self) -> std::sync::MutexGuard<'_, Armed> {
        self.armed.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn stopping(&self) -> bool {
        self.server.upgrade().is_none_or(|s| s.stopping.load(Ordering::SeqCst))
    }

    /// The completion routine of its read.
    fn input(self: &Arc<Self>, result: i32) {
        // When the poll completed at once we are inside `arm`, which holds the lock and has
        // nothing to take back.
        if let Ok(mut armed) = self.armed.try_lock() {
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

    /// The session is in its place again and waits to be resumed; it may have been already.
    fn park(self: &Arc<Self>) {
        let mut parked = self.parked.lock().unwrap_or_else(|e| e.into_inner());
        parked.parked = true;
        let resumed = std::mem::take(&mut parked.resumed);
        drop(parked);
        if resumed || self.stopping() {
            self.resume(Why::Again);
        }
    }

    fn resume(self: &Arc<Self>, why: Why) {
        let mut parked = self.parked.lock().unwrap_or_else(|e| e.into_inner());
        let was_parked = std::mem::take(&mut parked.parked);
        // A stop is seen by whoever parks later.
        parked.resumed = !was_parked && why != Why::Stopping;
        drop(parked);
        if was_parked {
            self.enqueue(why);
        }
    }

    fn enqueue(self: &Arc<Self>, why: Why) {
        self.fate.store(GOING, Ordering::Relaxed);
        let turn = Turn { client: self.clone(), ran: false };
        match self.user.enqueue_where_input_came(move || turn.run(why)) {
            Err(error) => self.refuse(error),
            Ok(_) if self.fate.swap(TAKEN, Ordering::AcqRel) == DROPPED => self.refuse_late(),
            Ok(_) => {}
        }
    }

    /// Its request was queued and then never carried out.
    fn refuse_late(&self) {
        self.refuse(if self.stopping() || self.user.node_is_closing() {
            EnqueueError::ShuttingDown
        } else {
            EnqueueError::WaitedTooLong
        });
    }

    fn refuse(&self, error: EnqueueError) {
        // A request may have run, and the next one been queued, before whoever queued it has noted
        // that: then both find the next one's fate.
        if self.told.swap(true, Ordering::AcqRel) {
            return;
        }
        let session = self.lock_session().take();
        if let Some(mut session) = session {
            self.contained("was refused a request", || {
                let last_words = session.refused(error);
                let _ = self.stream.write(&last_words);
            });
            self.contained("ended", || drop(session));
        }
        self.close();
    }

    /// Calls code of the application's that must not keep the connection open, whatever it does.
    fn contained(&self, when: &str, call: impl FnOnce()) {
        if !contain(call)
            && let Some(server) = self.server.upgrade()
        {
            server.tell_panic(self.peer, when);
        }
    }

    /// One work request.
    fn carry_out(self: &Arc<Self>, why: Why) {
        let Some(mut session) = self.lock_session().take() else { return };
        let why = if self.stopping() { Why::Stopping } else { why };
        let mut conn = Connection::of(self);
        let mut next = Next::Close;
        self.contained("carried out a request", || next = session.request(&mut conn, why));
        if next == Next::Close || why == Why::Stopping {
            // Dropped here, on a worker: a session's end may wait.
            self.contained("ended", || drop(session));
            return self.close();
        }
        *self.lock_session() = Some(session);
        match next {
            Next::Again => self.enqueue(Why::Again),
            Next::Park => self.park(),
            Next::WaitAtMost(span) => self.arm(Some(span)),
            _ => self.arm(None),
        }
    }

    fn lock_session(&self) -> std::sync::MutexGuard<'_, Option<Box<dyn Session>>> {
        self.session.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn close(&self) {
        self.stream.close();
        self.user.leave();
        if let Some(server) = self.server.upgrade() {
            server.forget(self.user.id());
        }
    }
}

type MakeSession = Box<dyn Fn(&User, Peer) -> Box<dyn Session> + Send + Sync>;

struct Inner {
    node: Node,
    listener: Listener,
    bound: Option<HiddenScheduler>,
    limit: usize,
    make: MakeSession,
    clients: Mutex<HashMap<UserId, Arc<Client>>>,
    stopping: AtomicBool,
    accepts: Mutex<Vec<(Weak<Scheduler>, u64)>>,
    accepted: AtomicU64,
    refused: AtomicU64,
    accept_errors: AtomicU64,
    panics: AtomicU64,
    /// Connections that have a place: claimed before a connection gets anything else.
    open: AtomicUsize,
}

/// How a server accepts.
#[derive(Clone, Default)]
pub struct ServeOptions {
    /// The hidden scheduler that serves it; None: the visible ones.
    pub on: Option<HiddenScheduler>,
    /// Most connections at once; more are closed as soon as they are accepted. 0: no limit.
    pub max_connections: usize,
}

/// A listener and its connections. Dropping it stops it without waiting.
pub struct Server {
    inner: Arc<Inner>,
}

/// What a server has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerCounters {
    /// Connections that are open now.
    pub open: usize,
    /// Connections that were accepted.
    pub accepted: u64,
    /// Connections closed at once because there were too many.
    pub refused: u64,
    /// Failed accepts, for want of descriptors mostly.
    pub accept_errors: u64,
    /// Panics of sessions, and of what makes them: each closed its own connection.
    pub panics: u64,
}

impl Node {
    /// Serves a listener: `make` gives a session for each connection.
    ///
    /// # Errors
    /// When the listener cannot be made non-blocking, or the node shuts down.
    ///
    /// ```
    /// use std::io::{Read, Write};
    /// use ums::Node;
    /// use ums::serve::{Connection, Next, ServeOptions, Session, Why};
    ///
    /// struct Echo;
    /// impl Session for Echo {
    ///     fn request(&mut self, conn: &mut Connection<'_>, _: Why) -> Next {
    ///         let mut buf = [0; 1024];
    ///         match conn.try_read(&mut buf) {
    ///             Ok(0) => Next::Close,
    ///             Ok(n) if conn.write_all(&buf[..n]).is_ok() => Next::Again,
    ///             Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => Next::Wait,
    ///             _ => Next::Close,
    ///         }
    ///     }
    /// }
    ///
    /// let node = Node::builder().schedulers(1).build()?;
    /// let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    /// let server = node.serve(listener, ServeOptions::default(), |_, _| Box::new(Echo))?;
    ///
    /// let mut client = std::net::TcpStream::connect(server.local_addr()?)?;
    /// client.write_all(b"hello")?;
    /// let mut answer = [0; 5];
    /// client.read_exact(&mut answer)?;
    /// assert_eq!(&answer, b"hello");
    /// server.stop();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn serve(
        &self,
        listener: impl Into<Listener>,
        options: ServeOptions,
        make: impl Fn(&User, Peer) -> Box<dyn Session> + Send + Sync + 'static,
    ) -> io::Result<Server> {
        let listener = listener.into();
        listener.set_nonblocking()?;
        let inner = Arc::new(Inner {
            node: self.clone(),
            listener,
            limit: if options.max_connections == 0 { usize::MAX } else { options.max_connections },
            bound: options.on,
            make: Box::new(make),
            clients: Mutex::default(),
            stopping: AtomicBool::new(false),
            accepts: Mutex::default(),
            accepted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            accept_errors: AtomicU64::new(0),
            panics: AtomicU64::new(0),
            open: AtomicUsize::new(0),
        });
        // Dropped on an error: what listens already stops.
        let server = Server { inner: inner.clone() };
        let other = io::Error::other;
        match inner.bound.clone() {
            Some(hidden) => {
                let inner = inner.clone();
                hidden.spawn(move || inner.arm()).map_err(other)?;
            }
            // Everybody listens: a scheduler whose worker does not yield keeps nobody out.
            None => {
                for scheduler in 0..self.scheduler_count() {
                    let inner = inner.clone();
                    self.spawn_on(scheduler, move || inner.arm()).map_err(other)?;
                }
            }
        }
        Ok(server)
    }
}

impl Inner {
    /// Puts the listener on the I/O list of the scheduler that the caller runs on.
    fn arm(self: Arc<Self>) {
        if self.stopping.load(Ordering::SeqCst) {
            return;
        }
        let scheduler = here().expect("a listener is armed by a worker").arc();
        let (inner, at) = (self.clone(), Arc::downgrade(&scheduler));
        let token = submit_poll(
            self.listener.fd(),
            Box::new(move |_| {
                if inner.stopping.load(Ordering::SeqCst) {
                    return;
                }
                let home = at.upgrade().expect("its routine runs on the scheduler");
                // Refused only when the node shuts down: then nobody needs to be accepted.
                let _ = crate::task::spawn_surely(&home, move || inner.accept());
            }),
        );
        let Some(token) = token else { return };
        let mut accepts = self.accepts.lock().unwrap_or_else(|e| e.into_inner());
        accepts.retain(|(at, _)| !std::ptr::eq(at.as_ptr(), Arc::as_ptr(&scheduler)));
        accepts.push((Arc::downgrade(&scheduler), token));
        drop(accepts);
        if self.stopping.load(Ordering::SeqCst) {
            self.disarm();
        }
    }

    fn disarm(&self) {
        for (scheduler, token) in self.accepts.lock().unwrap_or_else(|e| e.into_inner()).drain(..) {
            if let Some(scheduler) = scheduler.upgrade() {
                scheduler.inbox.send(Letter::CancelIo(token));
            }
        }
    }

    /// The accept request: takes every connection that waits, then listens again.
    fn accept(self: Arc<Self>) {
        while !self.stopping.load(Ordering::SeqCst) {
            match self.listener.accept() {
                Ok((stream, peer)) => self.welcome(stream, peer),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if is_shortage(&e) => {
                    // The connection stays in the backlog. Not at once again, or this would be a
                    // busy loop.
                    tell_shortage(&e);
                    self.accept_errors.fetch_add(1, Ordering::Relaxed);
                    if crate::current::sleep(Duration::from_millis(100)).is_err() {
                        break;
                    }
                }
                // The client gave up, or the network did: the next one may be well.
                Err(_) => drop(self.accept_errors.fetch_add(1, Ordering::Relaxed)),
            }
            crate::current::yield_if_due();
        }
        self.arm();
    }

    fn welcome(self: &Arc<Self>, stream: Stream, peer: Peer) {
        // The place is claimed first: schedulers accept side by side, and making a session may
        // wait.
        let claim = |open| (open < self.limit).then_some(open + 1);
        if self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, claim).is_err() {
            self.refused.fetch_add(1, Ordering::Relaxed);
        } else if !self.begin(stream, peer) {
            self.open.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Serves a connection that has a place. False: it was closed, and needs none.
    fn begin(self: &Arc<Self>, stream: Stream, peer: Peer) -> bool {
        if stream.prepare().is_err() {
            return false;
        }
        let user = match &self.bound {
            Some(hidden) => self.node.user_on(hidden),
            None => self.node.user(),
        };
        let mut session = None;
        contain(|| session = Some((self.make)(&user, peer)));
        let Some(session) = session else {
            self.tell_panic(peer, "was made");
            user.leave();
            return false;
        };
        let client = Arc::new(Client {
            user,
            stream,
            peer,
            session: Mutex::new(Some(session)),
            armed: Mutex::default(),
            parked: Mutex::default(),
            fate: AtomicU8::new(GOING),
            told: AtomicBool::new(false),
            server: Arc::downgrade(self),
        });
        self.accepted.fetch_add(1, Ordering::Relaxed);
        let mut clients = self.clients.lock().unwrap_or_else(|e| e.into_inner());
        clients.insert(client.user.id(), client.clone());
        drop(clients);
        client.enqueue(Why::Connected);
        true
    }

    #[cold]
    fn tell_panic(&self, peer: Peer, when: &str) {
        self.panics.fetch_add(1, Ordering::Relaxed);
        let text = format_args!("a session of {peer} panicked when it {when}: it is closed");
        crate::current::warn(Kind::Panicked, text);
    }

    fn forget(&self, user: UserId) {
        let mut clients = self.clients.lock().unwrap_or_else(|e| e.into_inner());
        if clients.remove(&user).is_some() {
            self.open.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Server {
    /// The address it listens on.
    ///
    /// # Errors
    /// The system's; `Unsupported` for a Unix-domain listener.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.listener.local_addr()
    }

    /// What it has counted.
    pub fn counters(&self) -> ServerCounters {
        let i = &self.inner;
        ServerCounters {
            open: i.open.load(Ordering::Relaxed),
            accepted: i.accepted.load(Ordering::Relaxed),
            refused: i.refused.load(Ordering::Relaxed),
            accept_errors: i.accept_errors.load(Ordering::Relaxed),
            panics: i.panics.load(Ordering::Relaxed),
        }
    }

    /// Cancels the request that this user has running. False: there is no such user, or it has
    /// none.
    pub fn cancel(&self, user: UserId) -> bool {
        let clients = self.inner.clients.lock().unwrap_or_else(|e| e.into_inner());
        let client = clients.get(&user).cloned();
        drop(clients);
        client.is_some_and(|c| c.user.cancel())
    }

    /// Accepts no more, and lets every idle session say goodbye. Running requests go on to their
    /// end and then say goodbye too; `Node::shutdown` bounds that.
    pub fn stop(&self) {
        self.inner.stopping.store(true, Ordering::SeqCst);
        self.inner.disarm();
        let clients = self.inner.clients.lock().unwrap_or_else(|e| e.into_inner());
        let mut all: Vec<_> = clients.values().cloned().collect();
        // A client that is refused its last request leaves at once, and takes this lock.
        drop(clients);
        // In an order that a simulated world can have again.
        all.sort_by_key(|client| client.user.id());
        for client in all {
            client.disarm();
            client.resume(Why::Stopping);
        }
    }

    /// Stops, and waits until every connection has said goodbye or the grace time is over. True:
    /// all have.
    pub fn stop_and_wait(&self, grace: Duration) -> bool {
        self.stop();
        crate::os::threads::wait_until(grace, || self.inner.open.load(Ordering::Acquire) == 0)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("counters", &self.counters()).finish()
    }
}
