//! A cancellation ends a deferred statement, at whichever moment of the deferral it arrives.
//!
//! The connection of the test cancels its user's request when the session calls it: so each moment
//! is reached without a second thread.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ums::{Node, User};

use crate::engine::Files;
use crate::host::Conn;
use crate::server::{Server, Settings};
use crate::session::{Flow, Session};
use crate::vfs::testing::{LossyDisk, lossy};

/// When the cancellation arrives.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Moment {
    Never,
    /// The request reads the statement, which is not deferred yet.
    Running,
    /// It is deferred, and its user not in the gate's queue yet.
    Deferred,
    /// Its user is in the queue, and the request that deferred it has not ended.
    Queued,
    /// That request has ended.
    Left,
}

struct Client {
    server: Arc<Server>,
    user: u64,
    input: VecDeque<u8>,
    output: Vec<u8>,
    cancel: Moment,
    /// The session's next request was asked for.
    resumed: Arc<AtomicBool>,
}

impl Client {
    fn reach(&self, moment: Moment) {
        if self.cancel == moment {
            assert!(self.server.cancel_user(self.user), "{moment:?}");
        }
    }
}

impl Conn for Client {
    fn user(&self) -> u64 {
        self.user
    }

    fn try_read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.reach(Moment::Running);
        let len = buf.len().min(self.input.len());
        if len == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        for (byte, read) in buf.iter_mut().zip(self.input.drain(..len)) {
            *byte = read;
        }
        Ok(len)
    }

    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.try_read(buf)
    }

    fn resume(&self) -> Box<dyn FnOnce() + Send> {
        self.reach(Moment::Deferred);
        let resumed = Arc::clone(&self.resumed);
        Box::new(move || assert!(!resumed.swap(true, Ordering::Relaxed), "once for each park"))
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.output.extend(bytes);
        Ok(())
    }
}

/// A session with its client.
struct Talk(Session, Client);

impl Talk {
    /// Passes these bytes to the session, in one request of the user.
    fn send(mut self, user: &User, bytes: &[u8], cancel: Moment) -> (Talk, Flow) {
        self.1.input.extend(bytes);
        self.1.cancel = cancel;
        let request = move || {
            let Talk(session, client) = &mut self;
            let mut flow = Flow::More;
            while flow == Flow::More {
                flow = session.on_readable(client);
            }
            client.reach(Moment::Queued);
            (self, flow)
        };
        user.enqueue(request).unwrap().join().unwrap()
    }
}

fn query(sql: &str) -> Vec<u8> {
    [b"Q", &(sql.len() as u32 + 5).to_be_bytes()[..], sql.as_bytes(), b"\0"].concat()
}

/// Cancels a deferred statement at that moment.
fn cancel(moment: Moment) {
    let mut settings = Settings::new(Path::new("/db"));
    settings.files = Files::On(lossy(&LossyDisk::default()));
    let server = Server::open(settings).unwrap();
    let node = Node::builder().schedulers(1).build().unwrap();
    let (user, writer) = (node.user(), node.user().id());
    let client = Client {
        server: Arc::clone(&server),
        user: user.id(),
        input: VecDeque::new(),
        output: Vec::new(),
        cancel: Moment::Never,
        resumed: Arc::default(),
    };
    let talk = Talk(server.session(user.id()), client);
    let startup = b"\0\0\0\x10\0\x03\0\0user\0u\0\0";
    let (talk, _) = talk.send(&user, startup, Moment::Never);
    let (talk, flow) = talk.send(&user, &query("create table t(n int)"), Moment::Never);
    assert_eq!(flow, Flow::Idle);

    server.limit_waiting_writers(0);
    server.engine.gate.acquire(writer, None).unwrap();
    let (mut talk, mut flow) = talk.send(&user, &query("insert into t values (1)"), moment);
    // A statement that was cancelled before it began is not deferred.
    assert_eq!(flow, if moment == Moment::Running { Flow::Idle } else { Flow::Later });
    if flow == Flow::Later {
        talk.1.reach(Moment::Left);
        assert!(talk.1.resumed.swap(false, Ordering::Relaxed), "{moment:?}: it waits for the gate");
        talk.1.output.clear();
        (talk, flow) = talk.send(&user, b"", Moment::Never);
    }
    assert_eq!(flow, Flow::Idle);
    let output = String::from_utf8_lossy(&talk.1.output);
    assert!(output.contains("C57014\0"), "{moment:?}: {output:?}");

    server.engine.gate.release(writer);
    let (mut talk, flow) = talk.send(&user, &query("insert into t values (2)"), Moment::Never);
    assert_eq!(flow, Flow::Idle);
    let output = String::from_utf8_lossy(&talk.1.output);
    assert!(output.contains("INSERT 0 1\0"), "{moment:?}: {output:?}");
    talk.1.output.clear();
    assert_eq!(server.engine.gate.owner(), None);
}

#[test]
fn a_statement_that_is_cancelled_before_it_is_deferred_does_not_wait_for_the_gate() {
    cancel(Moment::Running);
}

#[test]
fn a_statement_that_is_cancelled_before_it_is_queued_does_not_wait_for_the_gate() {
    cancel(Moment::Deferred);
}

#[test]
fn a_queued_statement_is_cancelled_although_the_request_that_deferred_it_still_runs() {
    cancel(Moment::Queued);
}

#[test]
fn a_queued_statement_is_cancelled_although_its_user_has_no_request() {
    cancel(Moment::Left);
}
