//! The server: accepts connections and counts them.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::client::Clients;
use super::listener::{Listener, Peer, Stream};
use super::options::ServeOptions;
use super::session::{Session, Why};
use super::shared::{ServerCounters, ServerShared, tally};
use crate::io::{submit, submit_poll};
use crate::net::{is_shortage, report_shortage};
use crate::node::acceptors::Acceptor;
use crate::node::slow::{SlowReaders, slow_readers_max};
use crate::node::user::User;
use crate::node::{HiddenScheduler, Node};
use crate::os::clock;
use crate::os::driver::{LiveOp, Side};
use crate::os::lock::Lock;
use crate::os::panics::contain;
use crate::scheduler::{Scheduler, here};
use crate::wait::Letter;

type MakeSession = Box<dyn Fn(&User, Peer) -> Box<dyn Session> + Send + Sync>;

struct Inner {
    node: Node,
    listener: Listener,
    bound: Option<HiddenScheduler>,
    make: MakeSession,
    clients: Arc<Clients>,
    accepts: Lock<Vec<(Weak<Scheduler>, u64)>>,
}

/// A listener and its connections, created by [`Node::serve`]. Dropping it stops the server without
/// waiting.
pub struct Server {
    inner: Arc<Inner>,
}

impl Node {
    /// Serves a listener: accepts connections and calls `make` for the session of each.
    ///
    /// # Errors
    /// Fails if the socket does not listen (`InvalidInput`) or cannot be made non-blocking, or if
    /// the node shuts down.
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
        listener.check()?;
        listener.set_nonblocking()?;
        let shared = ServerShared::new(&options, slow_readers(self, &options));
        let inner = Arc::new(Inner {
            node: self.clone(),
            listener,
            bound: options.on,
            make: Box::new(make),
            clients: Arc::new(Clients::new(shared)),
            accepts: Lock::default(),
        });
        // If a call below fails, this is dropped, which stops the schedulers that listen already.
        let server = Server { inner: inner.clone() };
        let acceptor: Weak<dyn Acceptor> = Arc::downgrade(&inner) as _;
        self.inner.acceptors.add(acceptor);
        let other = io::Error::other;
        match inner.bound.clone() {
            Some(hidden) => {
                let inner = inner.clone();
                hidden.spawn(move || inner.arm()).map_err(other)?;
            }
            // All schedulers listen, so that a scheduler whose worker does not yield delays no
            // connection.
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
        if self.clients.shared.is_stopping() {
            return;
        }
        let scheduler = here().expect("a listener is armed by a worker").arc();
        let (inner, at) = (self.clone(), Arc::downgrade(&scheduler));
        let token = submit_poll(
            self.listener.fd(),
            Box::new(move |_| {
                if inner.clients.shared.is_stopping() {
                    return;
                }
                let home = at.upgrade().expect("its routine runs on the scheduler");
                // The call fails only if the node shuts down; then no connection needs to be
                // accepted.
                let _ = crate::task::spawn_even_if_full(&home, move || inner.accept());
            }),
        );
        let Some(token) = token else { return };
        let mut accepts = self.accepts.lock();
        accepts.retain(|(at, _)| !std::ptr::eq(at.as_ptr(), Arc::as_ptr(&scheduler)));
        accepts.push((Arc::downgrade(&scheduler), token));
        drop(accepts);
        if self.clients.shared.is_stopping() {
            self.disarm();
        }
    }

    fn disarm(&self) {
        let alarm = self.clients.shared.logins.alarm();
        for (scheduler, token) in self.accepts.lock().drain(..).chain(alarm) {
            if let Some(scheduler) = scheduler.upgrade() {
                scheduler.inbox.send(Letter::CancelIo(token));
            }
        }
    }

    /// The accept request: accepts every waiting connection, then listens again.
    fn accept(self: Arc<Self>) {
        while !self.clients.shared.is_stopping() {
            match self.listener.accept() {
                Ok((stream, peer)) => self.welcome(stream, peer),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) if is_shortage(&e) => {
                    // The connection stays in the backlog. A pause prevents a busy loop.
                    report_shortage(&e);
                    tally(&self.clients.shared.tallies.accept_errors);
                    if crate::current::sleep(Duration::from_millis(100)).is_err() {
                        break;
                    }
                }
                // The client or the network has ended this connection; the next one may succeed.
                Err(_) => tally(&self.clients.shared.tallies.accept_errors),
            }
            crate::current::yield_if_due();
        }
        self.arm();
    }

    fn welcome(self: &Arc<Self>, stream: Stream, peer: Peer) {
        // The place is claimed first, because schedulers accept in parallel, and making a session
        // may wait.
        let shared = &self.clients.shared;
        if shared.admit(peer) && !self.begin(stream, peer) {
            shared.give_back(peer);
        }
    }

    /// Serves a connection that has a place. Returns false if the connection was closed and its
    /// place must be given back.
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
            self.clients.shared.report_panic(peer, "was made");
            user.leave();
            return false;
        };
        tally(&self.clients.shared.tallies.accepted);
        self.clients.add(user, stream, peer, session).enqueue(Why::Connected);
        self.set_alarm();
        true
    }

    /// Sets the alarm for the clients that have not logged in, unless it is set, or there is no
    /// such client. To be called by a worker.
    ///
    /// The alarm is the time limit of a request that never completes: a listener never has room
    /// for output. If the request is cancelled before its time, its scheduler ends, or the server
    /// stops; then the alarm is not set again.
    fn set_alarm(self: &Arc<Self>) {
        let logins = &self.clients.shared.logins;
        let Some((deadline, number)) = logins.begin_alarm() else { return };
        let scheduler = here().expect("an alarm is set by a worker");
        let inner = self.clone();
        let token = submit(
            LiveOp::poll(self.listener.fd(), Side::Out),
            Box::new(move |result| {
                if let (Some(timer), Some(scheduler)) = (inner.clients.evict_late(), here()) {
                    scheduler.untime(timer);
                }
                // If the listener is broken, the alarm is set when the next connection comes.
                let is_due = result == -libc::ECANCELED && clock::now() >= deadline;
                if is_due && !inner.clients.shared.is_stopping() {
                    inner.set_alarm();
                }
            }),
        );
        let Some(token) = token else { return };
        let timer = scheduler.time_io(deadline, token);
        logins.set_alarm(number, (Arc::downgrade(&scheduler.arc()), token), timer);
        if self.clients.shared.is_stopping() {
            self.disarm();
        }
    }
}

impl Acceptor for Inner {
    fn stop(&self) {
        self.clients.shared.begin_to_stop();
        self.disarm();
        for client in self.clients.all() {
            client.disarm();
            client.resume(Why::Stopping);
        }
    }

    fn has_ended(&self) -> bool {
        self.clients.shared.places.open() == 0
    }
}

/// Returns where peers that do not read are counted, and how many they may be; `None` if they are
/// not counted.
fn slow_readers(node: &Node, options: &ServeOptions) -> Option<(Arc<SlowReaders>, usize)> {
    if options.reserved_workers == 0 {
        return None;
    }
    let most = |scheduler: &Arc<Scheduler>| scheduler.options.limit.hard;
    let hidden = options.on.as_ref().map(|hidden| &hidden.scheduler);
    let workers = match hidden {
        Some(hidden) => most(hidden),
        None => node.inner.visible.iter().map(most).min().unwrap_or(1),
    };
    let of = hidden.map(|hidden| hidden.options.name.as_str());
    Some((node.inner.slow.on(of), slow_readers_max(workers, options.reserved_workers)))
}

impl Server {
    /// Returns the address that the server listens on.
    ///
    /// # Errors
    /// The system's error; `Unsupported` for a Unix-domain listener.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.listener.local_addr()
    }

    /// Returns the server's counters.
    pub fn counters(&self) -> ServerCounters {
        let clients = &self.inner.clients;
        clients.shared.counters(clients.received_ahead())
    }

    /// Stops accepting, and calls every idle session with [`Why::Stopping`]. Running requests
    /// continue to their end, and their sessions are then called in the same way.
    /// [`Node::shutdown`] limits how long that takes.
    pub fn stop(&self) {
        self.inner.stop();
    }

    /// Stops the server, and waits until every connection has closed or the grace time is over.
    /// Returns whether all have closed.
    pub fn stop_and_wait(&self, grace: Duration) -> bool {
        self.stop();
        crate::os::threads::wait_until(grace, || self.inner.has_ended())
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
