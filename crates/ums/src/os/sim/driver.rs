//! I/O in a simulated world: a plain system call carries out each operation, at a time that the
//! seed decides.
//!
//! ```text
//!   submit --random--> carried out immediately: Done
//!          --random--> due after a while --> tried --> Done, or it would block: tried again when
//!                                                      its descriptor is ready
//!   cancel --random--> due after a while, in a race with the operation itself
//! ```
//!
//! What is read and written is real: sockets and files of this process. The network of the world
//! (`net.rs`) moves the data between sockets, and its disk (`disk.rs`) decides which content of a
//! file lasts. So the library's code above this driver is unchanged, and only the order, the time
//! and the faults of its operations depend on the seed.
//!
//! The driver keeps the rule *One Completion*. Operations on one side of a descriptor are carried
//! out in the order of arrival.

use std::io;
use std::os::fd::RawFd;

use super::plan::lateness;
use super::{On, World, place, sockets};
use crate::os::clock::{self, NEVER};
use crate::os::driver::{Done, Driver, LiveOp, Op, Side, Submitted, Waker};
use crate::os::linux::call::{self, Tried};

struct Flight {
    token: u64,
    op: LiveOp<'static>,
    /// The time at which the operation is tried first.
    due: u64,
    /// Whether the operation would have blocked when it was tried.
    blocked: bool,
    /// The error with which the operation fails instead of being carried out, if any.
    fails: Option<i32>,
    /// The time at which a cancellation takes effect.
    cancel: u64,
}

/// A simulated driver; see the top of this file.
pub struct Simulated {
    bell: Waker,
    /// Whether an operation that can complete immediately does so, as with a kernel that completes
    /// it synchronously.
    eager: bool,
    flights: Vec<Flight>,
    finished: Vec<Done>,
}

/// Returns a driver of the caller's world, without operations.
pub fn open(eager: bool) -> io::Result<Box<dyn Driver>> {
    let bell = Waker::new()?;
    Ok(Box::new(Simulated { bell, eager, flights: Vec::new(), finished: Vec::new() }))
}

impl Simulated {
    fn world<R>(&self, ask: impl FnOnce(&World) -> R) -> Option<R> {
        place().map(|(world, _)| ask(&world))
    }

    fn lateness(&self) -> u64 {
        self.world(|world| lateness(&mut world.lock().when)).unwrap_or(0)
    }

    /// Returns the operation, perhaps with a shorter transfer, and the error with which it fails,
    /// if any.
    fn fate(&self, mut op: LiveOp<'static>) -> (LiveOp<'static>, Option<i32>) {
        let roll = |world: &World| {
            let mut state = world.lock();
            let (short, fail) = (state.plan.faults.short, state.plan.faults.fail);
            let (short, fail) = (state.happens(short), state.happens(fail));
            let by = state.luck.below(1 << 20);
            (short.then_some(by), fail)
        };
        let (short, fail) = self.world(roll).unwrap_or((None, false));
        if let (
            Some(by),
            Op::Read { len, .. }
            | Op::Write { len, .. }
            | Op::Recv { len, .. }
            | Op::Receive { most: len, .. }
            | Op::Send { len, .. },
        ) = (short, *op)
            && len > 1
            && !len.is_multiple_of(512)
        {
            op.shorten(1 + by as usize % (len - 1));
        }
        let error = match *op {
            _ if !fail => None,
            Op::Read { .. }
            | Op::Write { .. }
            | Op::Readv { .. }
            | Op::Writev { .. }
            | Op::Fsync { .. } => Some(-libc::EIO),
            Op::Recv { .. } | Op::Receive { .. } | Op::Send { .. } => Some(-libc::ECONNRESET),
            _ => None,
        };
        (op, error)
    }

    /// Tries the operations that are due.
    fn look(&mut self) {
        let now = clock::now();
        let mut closed: Vec<(RawFd, bool)> = Vec::new();
        let mut at = 0;
        while at < self.flights.len() {
            let flight = &mut self.flights[at];
            let side = (flight.op.fd(), flight.op.side() == Side::In);
            let in_line = flight.op.is_poll() || flight.op.fd() < 0 || !closed.contains(&side);
            let mut result = None;
            if flight.due <= now && in_line {
                result = flight.fails.take();
                if result == Some(-libc::ECONNRESET) {
                    call::simulated::reset(flight.op.fd());
                }
                if result.is_none() {
                    match carry_out(&mut flight.op) {
                        Tried::Finished(done) => result = Some(done),
                        Tried::WouldBlock => flight.blocked = true,
                    }
                }
            }
            if result.is_none() && flight.cancel <= now {
                result = Some(-libc::ECANCELED);
            }
            match result {
                Some(result) => {
                    let token = self.flights.remove(at).token;
                    self.finished.push(Done { token, result });
                }
                None => {
                    if !self.flights[at].op.is_poll() {
                        closed.push(side);
                    }
                    at += 1;
                }
            }
        }
    }

    fn descriptors(&self) -> Vec<(RawFd, i16)> {
        let blocked = self.flights.iter().filter(|f| f.blocked);
        blocked.map(|f| (f.op.fd(), call::poll_events(f.op.side()))).collect()
    }

    /// Returns when the next operation is due, of those that do not wait for a descriptor.
    fn next_due(&self) -> u64 {
        let due = |f: &Flight| if f.blocked { f.cancel } else { f.due.min(f.cancel) };
        self.flights.iter().map(due).min().unwrap_or(NEVER)
    }
}

/// Carries an operation out, unless the power of the world's disk is off.
fn carry_out(op: &mut LiveOp<'_>) -> Tried {
    let Some((world, _)) = place() else { return Tried::WouldBlock };
    if let Err(error) = world.lock().disk.before(op) {
        return Tried::Finished(error);
    }
    let tried = call::try_now(op);
    if let Tried::Finished(result) = tried {
        world.lock().disk.after(op, result);
        return Tried::Finished(sockets::result(op, result));
    }
    tried
}

impl Driver for Simulated {
    fn name(&self) -> &'static str {
        "simulated"
    }

    fn describe(&self) -> String {
        "simulated: plain calls at the times that a seed says".into()
    }

    fn submit(&mut self, token: u64, op: LiveOp<'static>) -> Submitted {
        let (mut op, fails) = self.fate(op);
        let at_once = self.world(|world| world.lock().when.below(4) == 0).unwrap_or(true);
        let at_once = at_once || self.eager;
        let side = |op: &Op| (op.fd(), op.side() == Side::In);
        let is_first = self.flights.iter().all(|f| side(&f.op) != side(&op));
        if at_once
            && is_first
            && fails.is_none()
            && let Tried::Finished(result) = carry_out(&mut op)
        {
            return Submitted::Done(result);
        }
        let late = self.lateness();
        let (due, blocked, cancel) = (clock::now().saturating_add(late), false, NEVER);
        self.flights.push(Flight { token, op, due, blocked, fails, cancel });
        Submitted::Pending
    }

    fn cancel(&mut self, token: u64) {
        let at = clock::now().saturating_add(self.lateness());
        if let Some(flight) = self.flights.iter_mut().find(|f| f.token == token) {
            flight.cancel = flight.cancel.min(at);
        }
    }

    fn ready(&mut self, _now: u64) -> bool {
        if !self.finished.is_empty() || self.next_due() <= clock::now() {
            return true;
        }
        let mut set: Vec<libc::pollfd> = self
            .descriptors()
            .iter()
            .map(|&(fd, events)| libc::pollfd { fd, events, revents: 0 })
            .collect();
        !set.is_empty() && call::poll(&mut set, Some(0)).is_ok_and(|ready| ready > 0)
    }

    fn reap(&mut self, out: &mut Vec<Done>) {
        self.look();
        out.append(&mut self.finished);
    }

    fn wait(&mut self, timeout_ns: Option<u64>, out: &mut Vec<Done>) {
        let until = timeout_ns.map_or(NEVER, |ns| clock::now().saturating_add(ns));
        // One wait may end without a reason, because the scheduler has to tolerate that.
        for slept in [false, true] {
            self.look();
            let bell = self.bell.fd();
            let mut set = [libc::pollfd { fd: bell, events: libc::POLLIN, revents: 0 }];
            let rung = call::poll(&mut set, Some(0)).is_ok_and(|ready| ready > 0);
            if rung {
                self.bell.silence();
            }
            if slept || rung || !self.finished.is_empty() || until <= clock::now() {
                return out.append(&mut self.finished);
            }
            let Some((world, me)) = place() else { return };
            let due = until.min(self.next_due());
            world.block(me, On::Bell(bell), due, self.descriptors(), "sleeps");
        }
    }

    fn gathers(&mut self, _others_can_run: bool) -> bool {
        self.world(|world| world.lock().when.below(2) == 0).unwrap_or(false)
    }

    fn waker(&self) -> Waker {
        self.bell.clone()
    }

    fn done(&mut self) -> usize {
        self.finished.len()
    }

    fn pending(&self) -> usize {
        self.flights.len() + self.finished.len()
    }
}
