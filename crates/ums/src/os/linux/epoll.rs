//! The epoll driver: the kernel reports which descriptors are ready, and the driver makes the
//! calls.
//!
//! It serves schedulers of thread workers, whose baton moves between threads (a ring belongs to one
//! thread), and all schedulers where io_uring is denied. An operation is *tried first*: most sends
//! and many receives complete at submission, without a registration in the kernel. An operation
//! that would block is put into a line, a first-in first-out queue; each side of a descriptor has
//! one. It is tried again when the kernel reports the side ready.
//!
//! ```text
//!   submit --try--> Done
//!      | would block
//!      v                      epoll: ready                  try
//!   in line at (fd, side) ------------------> first in line -----> Done, next in line
//!      ^                                          | would block
//!      +------------------------------------------+
//! ```
//!
//! There are two ways to register a descriptor:
//! * An *adopted* descriptor (see `owned`) is registered once, edge-triggered, so a wait for it
//!   costs no system call. The watch (the driver's record of the descriptor) marks a side as
//!   *perhaps ready* from an edge on, until a call would block or a short read shows that the
//!   stream is drained. On a connection that is polled repeatedly, an echo round takes three calls:
//!   `epoll_pwait2`, `recv`, `send`.
//! * Any other descriptor is registered one-shot, and armed again for each wait, which costs one
//!   more call. By the error `ENOENT` of that call the driver recognises a number that was reused.
//!
//! Level-triggered registration of adopted descriptors was considered, too. It needs no mark for
//! readiness. But the kernel would report a connection again and again while its request waits in
//! the work queue, and switching the registration off and on takes two calls.
//!
//! Rules: *One Completion* (see `os/driver`). *Fresh Event*: an event counts only if it contains
//! the serial number of the watch's present registration. A registration of a closed descriptor may
//! still report events, if its file is open as a duplicate; they must not affect the file that has
//! the number now.
//!
//! epoll counts regular files as always ready, although they may be slow. So some operations go to
//! the file helpers: those that are certainly on a file (on an adopted file, at a position, or a
//! sync), and those on a descriptor that epoll refuses to watch.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use rustix::event::epoll;

use super::call::{self, Tried};
use super::helpers::Chores;
use super::owned::{self, Stamp};
use super::waiting::{DescriptorMap, OpQueue, Waiting};
use crate::os::clock;
use crate::os::driver::{Done, Driver, LiveOp, Op, Side, Submitted, Waker};
use crate::os::stderr::keep_standard_descriptors_taken;

/// A scheduler that does not sleep asks epoll at most this often: every 50 us.
const LOOK_EVERY_NS: u64 = 50_000;
/// How many events one call of epoll returns at most.
const EVENTS: usize = 256;
/// The event data of the bell, which wakes the driver.
const BELL: u64 = u64::MAX;

const IN: u32 = libc::EPOLLIN as u32 | libc::EPOLLRDHUP as u32;
const OUT: u32 = libc::EPOLLOUT as u32;
const BROKEN: u32 = libc::EPOLLHUP as u32 | libc::EPOLLERR as u32;
const ONESHOT: u32 = libc::EPOLLONESHOT as u32;
const EDGE: u32 = libc::EPOLLET as u32;

/// A watch: the driver's record of one descriptor number.
struct Watch {
    /// The operations that wait to read, and those that wait to write.
    queues: [OpQueue; 2],
    /// The adoption under which the descriptor was registered; `NONE` for a one-shot registration.
    stamp: Stamp,
    /// The serial number of this registration, which its events contain (*Fresh Event*).
    serial: u32,
    /// Whether the kernel has a registration, as far as the driver can tell.
    known: bool,
    /// The events for which the kernel is armed now.
    armed: u32,
    /// Of an adopted descriptor: the sides that may be ready although no operation was told so.
    perhaps: u32,
    /// Of an adopted descriptor: whether a hang-up was reported. Then its sides stay *perhaps
    /// ready*.
    closed: bool,
}

impl Watch {
    fn new(serial: u32) -> Watch {
        Watch {
            queues: [OpQueue::new(); 2],
            stamp: Stamp::NONE,
            serial,
            known: false,
            armed: 0,
            perhaps: IN | OUT,
            closed: false,
        }
    }

    /// Returns the events that the operations in the queues wait for.
    fn wanted(&self) -> u32 {
        let [reads, writes] = &self.queues;
        (if reads.is_empty() { 0 } else { IN }) | (if writes.is_empty() { 0 } else { OUT })
    }
}

fn events_of(side: Side) -> u32 {
    match side {
        Side::In => IN,
        Side::Out => OUT,
    }
}

/// The epoll driver; see the top of this file.
pub struct Epoll {
    epoll: OwnedFd,
    bell: Waker,
    watches: DescriptorMap<Watch>,
    waiting: Waiting,
    chores: Chores,
    finished: Vec<Done>,
    events: Vec<libc::epoll_event>,
    serial: u32,
    looked_at: u64,
    /// Whether the bell was used, and no `wait` has ended because of it yet.
    rung: bool,
    has_pwait2: bool,
    why: String,
}

impl Epoll {
    /// Opens an epoll set and registers the bell in it.
    pub fn new(why: String) -> io::Result<Epoll> {
        keep_standard_descriptors_taken();
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let bell = Waker::new()?;
        // Edge-triggered: each wake is a new edge, so the eventfd's counter never needs to be read.
        let events = libc::EPOLLIN as u32 | EDGE;
        call::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, bell.fd(), events, BELL)
            .map_err(io::Error::from_raw_os_error)?;
        let mut driver = Epoll {
            epoll,
            chores: Chores::new(bell.clone()),
            bell,
            watches: HashMap::default(),
            waiting: Waiting::default(),
            finished: Vec::new(),
            events: vec![libc::epoll_event { events: 0, u64: 0 }; EVENTS],
            serial: 0,
            looked_at: 0,
            rung: false,
            has_pwait2: true,
            why,
        };
        // This call finds out whether epoll_pwait2 exists, for `describe`.
        driver.look(Some(0));
        Ok(driver)
    }

    fn due(&self) -> bool {
        !self.waiting.is_empty() && clock::now().saturating_sub(self.looked_at) >= LOOK_EVERY_NS
    }

    /// Returns the watch of a number. If the number means another descriptor now, the watch is
    /// reset.
    fn watch(&mut self, fd: RawFd) -> &mut Watch {
        let stamp = owned::stamp(fd);
        if self.watches.get(&fd).is_none_or(|watch| watch.stamp != stamp) {
            self.serial = self.serial.wrapping_add(1);
            let fresh = Watch { stamp, ..Watch::new(self.serial) };
            if let Some(stale) = self.watches.insert(fd, fresh) {
                self.evict(stale.queues);
            }
        }
        self.watches.get_mut(&fd).expect("it was just put there")
    }

    /// Ends operations whose descriptor was closed while they waited.
    fn evict(&mut self, queues: [OpQueue; 2]) {
        for mut queue in queues {
            while let Some(token) = queue.first() {
                self.waiting.remove(&mut queue, token);
                self.finished.push(Done { token, result: -libc::EBADF });
            }
        }
    }

    /// Returns whether an operation should be tried immediately: no other is in the line before it,
    /// and the side may be ready. A poll, or a receive that has no buffer, is tried only if its
    /// side is armed already; otherwise the call that arms the side makes epoll report its
    /// readiness.
    fn worth_trying(watch: &Watch, op: &Op) -> bool {
        let side = op.side();
        let alone = watch.queues[side as usize].is_empty();
        let armed = watch.armed & events_of(side) != 0;
        let adopted = watch.stamp.is_owned();
        let perhaps = !(adopted && armed) || watch.perhaps & events_of(side) != 0;
        match op {
            Op::PollIn { .. } | Op::PollOut { .. } => adopted && armed && perhaps,
            Op::Receive { .. } => adopted && armed && perhaps && alone,
            _ => alone && perhaps,
        }
    }

    /// Tries an operation. From the result, records whether its descriptor may still be ready.
    fn attempt(watch: &mut Watch, op: &mut LiveOp<'_>) -> Tried {
        let tried = call::try_now(op);
        let drained = match tried {
            Tried::WouldBlock => true,
            Tried::Finished(n) => watch.stamp.is_stream() && is_short(op, n),
        };
        if drained && !watch.closed {
            watch.perhaps &= !events_of(op.side());
        }
        tried
    }

    /// Makes the kernel report when a side of `fd` whose queue has operations, or `side`, is ready.
    fn arm(&mut self, fd: RawFd, side: Option<Side>) -> Result<(), i32> {
        let epoll = self.epoll.as_raw_fd();
        let watch = self.watches.get_mut(&fd).expect("a watch is made before it is armed");
        let wanted = watch.wanted() | side.map_or(0, events_of);
        let adopted = watch.stamp.is_owned();
        if adopted && watch.armed & wanted == wanted {
            return Ok(());
        }
        let events = if adopted { watch.armed | wanted } else { wanted };
        let mask = events | if adopted { EDGE } else { ONESHOT };
        let data = |serial: u32| u64::from(serial) << 32 | u64::from(fd as u32);
        let ctl = |op, serial| call::epoll_ctl(epoll, op, fd, mask, data(serial));

        let mut gone = false;
        let mut result = match watch.known {
            true => ctl(libc::EPOLL_CTL_MOD, watch.serial),
            false => ctl(libc::EPOLL_CTL_ADD, watch.serial),
        };
        match result {
            // The number was closed and means another file now. The operations in the queues wait
            // for the closed file.
            Err(libc::ENOENT) => {
                gone = true;
                self.serial = self.serial.wrapping_add(1);
                watch.serial = self.serial;
                result = ctl(libc::EPOLL_CTL_ADD, watch.serial);
            }
            // The registration of an earlier watch still exists. This watch takes it over.
            Err(libc::EEXIST) => result = ctl(libc::EPOLL_CTL_MOD, watch.serial),
            _ => {}
        }
        watch.known = result.is_ok();
        watch.armed = if result.is_ok() { events } else { 0 };
        if gone {
            let stale = std::mem::replace(&mut watch.queues, [OpQueue::new(); 2]);
            self.evict(stale);
        }
        result
    }

    /// Asks the kernel for events, waits for them at most this long, and handles them.
    fn look(&mut self, timeout_ns: Option<u64>) {
        let epoll = self.epoll.as_raw_fd();
        let mut events = std::mem::take(&mut self.events);
        let n = match self.has_pwait2 {
            true => match call::epoll_wait_ns(epoll, &mut events, timeout_ns) {
                Err(libc::ENOSYS | libc::EPERM) => {
                    self.has_pwait2 = false;
                    call::epoll_wait_ms(epoll, &mut events, timeout_ns)
                }
                n => n,
            },
            false => call::epoll_wait_ms(epoll, &mut events, timeout_ns),
        };
        let n = n.unwrap_or_else(|errno| panic!("epoll_wait failed with errno {errno}"));
        // If the array is full there may be more events, so the next look is due immediately.
        self.looked_at = if n < EVENTS { clock::now() } else { 0 };
        for event in &events[..n] {
            let (mask, data) = (event.events, event.u64);
            match data {
                BELL => self.rung = true,
                _ => self.on_event(data as u32 as RawFd, (data >> 32) as u32, mask),
            }
        }
        self.events = events;
    }

    fn on_event(&mut self, fd: RawFd, serial: u32, mask: u32) {
        let Some(watch) = self.watches.get_mut(&fd) else { return };
        if watch.serial != serial {
            return; // Fresh Event.
        }
        if watch.stamp.is_owned() {
            watch.closed |= mask & (BROKEN | libc::EPOLLRDHUP as u32) != 0;
        } else {
            watch.armed = 0;
        }
        if mask & (IN | BROKEN) != 0 {
            self.serve(fd, Side::In, mask);
        }
        if mask & (OUT | BROKEN) != 0 {
            self.serve(fd, Side::Out, mask);
        }
        let watch = self.watches.get_mut(&fd).expect("serving removes no watch");
        if watch.wanted() != 0
            && let Err(errno) = self.arm(fd, None)
        {
            self.fail(fd, errno);
        }
    }

    /// Carries out the operations that wait for a side which is ready, in order, until one would
    /// block.
    fn serve(&mut self, fd: RawFd, side: Side, mask: u32) {
        let watch = self.watches.get_mut(&fd).expect("only a watched descriptor is served");
        watch.perhaps |= events_of(side);
        let mut untouched = true;
        while let Some(token) = watch.queues[side as usize].first() {
            let op = self.waiting.get(token).expect("what stands in line is waiting");
            let tried = if op.is_poll() && untouched {
                Tried::Finished(mask as i32) // epoll's event bits are those of poll(2).
            } else {
                untouched = false;
                Epoll::attempt(watch, op)
            };
            let Tried::Finished(result) = tried else { return };
            self.waiting.remove(&mut watch.queues[side as usize], token);
            self.finished.push(Done { token, result });
        }
    }

    /// Ends all operations that wait for this descriptor, because it cannot be watched any more.
    #[cold]
    fn fail(&mut self, fd: RawFd, errno: i32) {
        let watch = self.watches.get_mut(&fd).expect("only a watched descriptor fails");
        for queue in &mut watch.queues {
            while let Some(token) = queue.first() {
                self.waiting.remove(queue, token);
                self.finished.push(Done { token, result: -errno });
            }
        }
    }

    /// Hands an operation to the file helpers.
    fn send_out(&mut self, token: u64, op: LiveOp<'static>) -> Submitted {
        self.chores.send(token, op);
        Submitted::Pending
    }
}

/// Returns whether a stream's answer shows that the stream is drained: it is shorter than asked
/// for.
fn is_short(op: &Op, n: i32) -> bool {
    match op {
        Op::Recv { len, flags: 0, .. } | Op::Receive { most: len, .. } | Op::Send { len, .. } => {
            n > 0 && (n as usize) < *len
        }
        _ => false,
    }
}

impl Driver for Epoll {
    fn name(&self) -> &'static str {
        "epoll"
    }

    fn describe(&self) -> String {
        let wait = if self.has_pwait2 { "epoll_pwait2" } else { "epoll_wait, whole milliseconds" };
        format!("epoll (speculative calls, {wait}): {}", self.why)
    }

    fn submit(&mut self, token: u64, mut op: LiveOp<'static>) -> Submitted {
        let (fd, side) = (op.fd(), op.side());
        if op.blocks() || (owned::stamp(fd).is_file() && !op.is_poll()) {
            return self.send_out(token, op);
        }
        let watch = self.watch(fd);
        if Epoll::worth_trying(watch, &op)
            && let Tried::Finished(result) = Epoll::attempt(watch, &mut op)
        {
            return Submitted::Done(result);
        }
        match self.arm(fd, Some(side)) {
            Ok(()) => {}
            Err(libc::EPERM) if op.is_poll() => return Submitted::Done(call::poll_one(fd, side)),
            Err(libc::EPERM) => return self.send_out(token, op),
            Err(errno) => return Submitted::Done(-errno),
        }
        let watch = self.watches.get_mut(&fd).expect("it was armed just now");
        self.waiting.push(&mut watch.queues[side as usize], token, op);
        Submitted::Pending
    }

    fn cancel(&mut self, token: u64) {
        if let Some((fd, side)) = self.waiting.get(token).map(|op| (op.fd(), op.side())) {
            let watch = self.watches.get_mut(&fd);
            let watch = watch.expect("an operation that waits is in line at a watch");
            self.waiting.remove(&mut watch.queues[side as usize], token);
        } else if !self.chores.cancel(token) {
            return;
        }
        self.finished.push(Done { token, result: -libc::ECANCELED });
    }

    fn ready(&mut self, _now: u64) -> bool {
        !self.finished.is_empty() || self.chores.has_news() || self.due()
    }

    fn reap(&mut self, out: &mut Vec<Done>) {
        if self.due() {
            self.look(Some(0));
        }
        self.chores.collect(out);
        out.append(&mut self.finished);
    }

    fn wait(&mut self, timeout_ns: Option<u64>, out: &mut Vec<Done>) {
        if self.finished.is_empty() && !self.rung && self.chores.may_sleep() {
            self.look(timeout_ns);
        }
        self.chores.awake();
        self.rung = false;
        self.chores.collect(out);
        out.append(&mut self.finished);
    }

    fn gathers(&mut self, _others_can_run: bool) -> bool {
        false
    }

    fn waker(&self) -> Waker {
        self.bell.clone()
    }

    fn done(&mut self) -> usize {
        self.chores.done() + self.finished.len()
    }

    fn pending(&self) -> usize {
        self.waiting.len() + self.chores.pending() + self.finished.len()
    }
}
