//! The line to a client: its user, its socket, what was received from it ahead, and what the server
//! records about it. It is the part of a connection that a session's calls reach; the session
//! itself is in `client.rs`.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use super::ahead::Ahead;
use super::listener::{Peer, Stream};
use super::memory::ClientMemory;
use super::places::NoPlace;
use super::shared::{ServerShared, tally};
use crate::node::slow::{SlowReader, SlowWait};
use crate::node::user::User;
use crate::os::clock::NEVER;
use crate::os::lock::Lock;

/// The owner of a line: one connection with its session.
pub(super) trait LineOwner: SlowReader {
    /// Returns the line.
    fn line(&self) -> &ClientLine;

    /// Queues another request for the session, which is parked or will park.
    fn resume_again(self: Arc<Self>);
}

/// The line to one client.
pub(super) struct ClientLine {
    pub user: User,
    pub stream: Stream,
    pub peer: Peer,
    pub ahead: Lock<Ahead>,
    /// The connection must close: to make room for a new one, or because it logs in too late.
    pub evicted: AtomicBool,
    /// The client has proved who it is, and has one of the places for those.
    pub established: AtomicBool,
    /// When the client must have logged in.
    login_deadline: u64,
    /// What the connection keeps; made when it first keeps something.
    memory: OnceLock<Arc<ClientMemory>>,
    pub shared: Arc<ServerShared>,
    me: Weak<dyn LineOwner>,
}

impl ClientLine {
    /// Makes the line of a connection that has a place. `me` is its owner.
    pub fn new(
        (user, stream, peer): (User, Stream, Peer),
        shared: Arc<ServerShared>,
        me: Weak<dyn LineOwner>,
    ) -> ClientLine {
        ClientLine {
            login_deadline: shared.logins.add(user.id()),
            user,
            stream,
            peer,
            ahead: Lock::default(),
            evicted: AtomicBool::new(false),
            established: AtomicBool::new(false),
            memory: OnceLock::new(),
            shared,
            me,
        }
    }

    /// Returns a reference to the owner that does not keep it alive.
    pub fn owner(&self) -> Weak<dyn LineOwner> {
        self.me.clone()
    }

    /// Returns whether the connection must end as soon as no request of it runs.
    pub fn is_stopping(&self) -> bool {
        self.evicted.load(Ordering::SeqCst) || self.shared.is_stopping()
    }

    /// Stores input that a completed receive has returned.
    pub fn received(&self, result: i32, bytes: Vec<u8>) {
        self.change_ahead(|ahead| ahead.put(result, bytes));
    }

    /// Reads available input without waiting.
    pub fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        if !buf.is_empty()
            && let Some(read) = self.change_ahead(|ahead| ahead.read(buf))
        {
            return read;
        }
        retry(|| self.stream.read(buf))
    }

    /// Changes what was received ahead. If memory is limited, what it keeps then is counted.
    fn change_ahead<R>(&self, change: impl FnOnce(&mut Ahead) -> R) -> R {
        let mut ahead = self.ahead.lock();
        let before = ahead.kept();
        let result = change(&mut ahead);
        let after = ahead.kept();
        drop(ahead);
        if before != after && self.shared.memory.is_limited() {
            let memory = self.memory();
            if after > before {
                memory.count(after - before);
            } else {
                memory.give_back(before - after);
            }
        }
        result
    }

    /// Returns the sum of what the connection keeps.
    pub fn memory(&self) -> &Arc<ClientMemory> {
        let made = || Arc::new(ClientMemory::new(self.shared.memory.clone()));
        self.memory.get_or_init(made)
    }

    /// Records that the client has proved who it is. Returns false if there is no place for it, or
    /// the connection is being closed.
    pub fn establish(&self) -> bool {
        let user = self.user.id();
        if !self.established.load(Ordering::Relaxed) {
            match self.shared.places.establish(user) {
                Ok(()) => self.established.store(true, Ordering::Relaxed),
                Err(NoPlace::Full) => {
                    tally(&self.shared.tallies.refused);
                    return false;
                }
                Err(NoPlace::Closing) => return false,
            }
            // If the alarm has taken the client as late, it is about to end the connection.
            if !self.shared.logins.pass(self.login_deadline, user) {
                self.evicted.store(true, Ordering::SeqCst);
            }
        }
        !self.evicted.load(Ordering::SeqCst)
    }

    /// Returns when a wait must end because the client has not logged in; [`NEVER`] if it has, in
    /// time.
    pub fn login_deadline(&self) -> u64 {
        let has_logged_in = self.established.load(Ordering::Relaxed);
        let in_time = has_logged_in && !self.evicted.load(Ordering::Relaxed);
        if in_time { NEVER } else { self.login_deadline }
    }

    /// Records that a worker waits for the client to read, until the result is dropped.
    pub fn wait_for_reader(&self) -> Option<SlowWait<'_>> {
        let (slow, max) = self.shared.slow.as_ref()?;
        let me: Arc<dyn LineOwner> = self.me.upgrade()?;
        Some(slow.wait_for(me, *max))
    }

    /// Ends the connection, because the client has not read in time. That is counted unless the
    /// connection was closing, and the client has only missed its last words.
    #[cold]
    pub fn end_slow_write(&self) {
        if !self.is_stopping() {
            tally(&self.shared.tallies.write_limit_ended);
        }
        self.stream.close();
    }

    /// Ends the connection, because a worker that waits for the client to read is needed.
    #[cold]
    pub fn end_for_others(&self) {
        tally(&self.shared.tallies.slow_readers_ended);
        self.stream.close();
    }

    /// Gives back the connection's place, after it has closed.
    pub fn give_back_place(&self) {
        let user = self.user.id();
        self.shared.logins.leave(self.login_deadline, user);
        self.shared.left(self.peer);
        self.shared.places.forget(user, self.established.load(Ordering::Relaxed));
    }
}

impl Drop for ClientLine {
    fn drop(&mut self) {
        self.change_ahead(|ahead| *ahead = Ahead::default());
    }
}

/// Makes a system call again if a signal has interrupted it.
pub(super) fn retry(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}
