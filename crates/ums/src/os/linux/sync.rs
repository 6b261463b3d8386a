//! The synchronous driver: the fallback that needs only `poll(2)`.
//!
//! Each operation is tried at submission, on the submitting thread, and normally completes before
//! `submit` returns. An operation that would block is put on one list, in the order of arrival.
//! `reap` and `wait` call `poll(2)` for all descriptors on the list, and try those operations again
//! whose descriptors are ready.
//!
//! The cost grows with the length of the list, as that of `poll(2)` does. So this driver is for
//! systems that deny everything else, for comparison, and as the simplest description of a driver's
//! work.
//!
//! The driver keeps the rule *One Completion* (see `os/driver`). On each side of a descriptor,
//! operations are carried out in the order of arrival.

use std::io;
use std::os::fd::RawFd;

use super::call::{self, Tried};
use super::waiting::DescriptorMap;
use crate::os::clock;
use crate::os::driver::{Done, Driver, LiveOp, Side, Submitted, Waker};

/// A scheduler that does not sleep polls its list at most this often: every 50 us.
const LOOK_EVERY_NS: u64 = 50_000;

/// The synchronous driver; see the top of this file.
pub struct Sync {
    bell: Waker,
    list: Vec<(u64, LiveOp<'static>)>,
    finished: Vec<Done>,
    looked_at: u64,
    /// Whether the bell was used, and no `wait` has ended because of it yet.
    rung: bool,
    why: String,
}

impl Sync {
    /// Makes a driver with an empty list.
    pub fn new(why: String) -> io::Result<Sync> {
        let bell = Waker::new()?;
        let (list, finished) = (Vec::new(), Vec::new());
        Ok(Sync { bell, list, finished, looked_at: 0, rung: false, why })
    }

    fn due(&self) -> bool {
        !self.list.is_empty() && clock::now().saturating_sub(self.looked_at) >= LOOK_EVERY_NS
    }

    /// Polls every descriptor on the list once, and carries out the operations that can proceed.
    fn look(&mut self, timeout_ns: Option<u64>) {
        let mut asked = DescriptorMap::<i16>::default();
        for (_, op) in &self.list {
            *asked.entry(op.fd()).or_default() |= call::poll_events(op.side());
        }
        let mut set: Vec<libc::pollfd> = Vec::with_capacity(asked.len() + 1);
        set.push(libc::pollfd { fd: self.bell.fd(), events: libc::POLLIN, revents: 0 });
        set.extend(asked.iter().map(|(&fd, &events)| libc::pollfd { fd, events, revents: 0 }));

        let n = call::poll(&mut set, timeout_ns)
            .unwrap_or_else(|errno| panic!("poll failed with errno {errno}"));
        self.looked_at = clock::now();
        if n == 0 {
            return;
        }
        if set[0].revents != 0 {
            self.bell.silence();
            self.rung = true;
        }
        let answers: DescriptorMap<i16> =
            set[1..].iter().filter(|p| p.revents != 0).map(|p| (p.fd, p.revents)).collect();
        if !answers.is_empty() {
            self.serve(answers);
        }
    }

    /// Tries the operations whose descriptors are ready, in the order of the list. If one would
    /// still block, those behind it on the same side are not tried.
    fn serve(&mut self, mut answers: DescriptorMap<i16>) {
        const BROKEN: i16 = libc::POLLHUP | libc::POLLERR;
        let finished = &mut self.finished;
        self.list.retain_mut(|(token, op)| {
            let mut finish = |result| finished.push(Done { token: *token, result });
            let Some(events) = answers.get_mut(&op.fd()) else { return true };
            if *events & libc::POLLNVAL != 0 {
                finish(-libc::EBADF);
                return false;
            }
            if *events & (call::poll_events(op.side()) | BROKEN) == 0 {
                return true;
            }
            match call::try_now(op) {
                Tried::Finished(result) => finish(result),
                Tried::WouldBlock => {
                    *events &= !call::poll_events(op.side());
                    return true;
                }
            }
            false
        });
    }

    /// Returns whether another operation waits for this side of the descriptor.
    fn is_taken(&self, fd: RawFd, side: Side) -> bool {
        self.list.iter().any(|(_, op)| op.fd() == fd && op.side() == side && !op.is_poll())
    }
}

impl Driver for Sync {
    fn name(&self) -> &'static str {
        "sync"
    }

    fn describe(&self) -> String {
        format!("synchronous calls and poll(2): {}", self.why)
    }

    fn submit(&mut self, token: u64, mut op: LiveOp<'static>) -> Submitted {
        debug_assert!(self.list.iter().all(|&(t, _)| t != token), "token {token} is pending");
        if (op.is_poll() || !self.is_taken(op.fd(), op.side()))
            && let Tried::Finished(result) = call::try_now(&mut op)
        {
            return Submitted::Done(result);
        }
        self.list.push((token, op));
        Submitted::Pending
    }

    fn cancel(&mut self, token: u64) {
        if let Some(at) = self.list.iter().position(|&(t, _)| t == token) {
            self.list.remove(at);
            self.finished.push(Done { token, result: -libc::ECANCELED });
        }
    }

    fn ready(&mut self, _now: u64) -> bool {
        !self.finished.is_empty() || self.due()
    }

    fn reap(&mut self, out: &mut Vec<Done>) {
        if self.due() {
            self.look(Some(0));
        }
        out.append(&mut self.finished);
    }

    fn wait(&mut self, timeout_ns: Option<u64>, out: &mut Vec<Done>) {
        if self.finished.is_empty() && !self.rung {
            self.look(timeout_ns);
        }
        self.rung = false;
        out.append(&mut self.finished);
    }

    fn gathers(&mut self, _others_can_run: bool) -> bool {
        false
    }

    fn waker(&self) -> Waker {
        self.bell.clone()
    }

    fn done(&mut self) -> usize {
        self.finished.len()
    }

    fn pending(&self) -> usize {
        self.list.len() + self.finished.len()
    }
}
