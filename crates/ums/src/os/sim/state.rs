//! What a simulated world knows: its threads, its time, its disk and its network, and which thread
//! runs next. All of it is guarded by the world's lock.

use std::fmt::Write as _;
use std::os::fd::RawFd;
use std::sync::Arc;

use super::order::Order;
use super::plan::{Dice, Plan};
use super::trace::PointLog;
use super::{disk, net};
use crate::os;
use crate::os::clock::NEVER;
use crate::os::linux::call;
use crate::os::lock::Lock;

/// At one of this many points, the descriptors that sleeping schedulers wait for are polled.
pub(super) const POLL_IN: u64 = 8;
/// When all threads wait, in one of this many cases time jumps to 1 ns before the next deadline.
const EARLY_IN: u64 = 8;

/// The thing that a thread of the world waits on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// The thread waits for a time only.
    Time,
    /// An event, by its address.
    Event(usize),
    /// A driver's waker, by its descriptor.
    Bell(RawFd),
    /// The end of a thread.
    End(usize),
    /// The worker's own kernel thread waits until its worker, which runs on another thread,
    /// returns.
    Home,
}

#[derive(Debug)]
pub(super) enum ThreadState {
    Ready,
    Blocked { on: On, until: u64, fds: Vec<(RawFd, i16)> },
    Gone,
}

pub(super) struct WorldThread {
    pub name: String,
    pub condition: ThreadState,
    /// The last point that the thread passed.
    pub at: &'static str,
    pub os: Option<std::thread::Thread>,
    /// The kernel's number of the thread; 0 before it has entered the world.
    pub id: u32,
}

impl WorldThread {
    /// Returns a thread that has not entered its world yet.
    pub fn new(name: String) -> WorldThread {
        WorldThread { name, condition: ThreadState::Ready, at: "its start", os: None, id: 0 }
    }

    /// Notes that the calling thread is this thread of the world.
    pub fn runs_here(&mut self) {
        self.os = Some(std::thread::current());
        self.id = os::thread_number();
    }
}

pub(super) struct WorldState {
    pub plan: Plan,
    /// Random sequences, which decide which thread runs, when things happen, and which faults
    /// occur, and from which the story and the library take random numbers. They are separate, so
    /// that with fewer faults the rest of a run changes little.
    pub which: Dice,
    pub when: Dice,
    pub luck: Dice,
    pub asked: Dice,
    pub picked: Dice,
    pub now: u64,
    pub members: Vec<WorldThread>,
    pub disk: disk::Disk,
    pub net: net::Net,
    pub order: Order,
    pub trace: PointLog,
    /// The text of the first panic.
    pub panicked: Arc<Lock<Option<String>>>,
    /// Set if a thread has blocked outside of the world. It has the token, and stops at its next
    /// point, if it comes to one.
    pub is_abandoned: bool,
    /// The result, once the world has ended.
    pub ended: Option<Ended>,
}

/// Returns true if a thread of this process sleeps in the kernel.
fn sleeps(thread: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
    // The state follows the name, which is in parentheses and may contain any character.
    stat.is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S')))
}

/// The result of running a world.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// How many points were passed.
    pub steps: u64,
    /// The world's time at the end, in nanoseconds.
    pub now: u64,
    /// A hash of all points. It is equal for two runs only if they passed the same points.
    pub hash: u64,
    /// The last points, with one line for each time that a thread had the token.
    pub trace: String,
    /// The failure, if there was one.
    pub failed: Option<String>,
}

/// Why a world failed.
pub(super) enum Failure {
    /// Threads wait, or run on, for something that will not happen.
    Waits(String),
    /// Anything else.
    Other(String),
}

impl WorldState {
    pub(super) fn wake(&mut self, on: On) {
        for member in &mut self.members {
            if matches!(&member.condition, ThreadState::Blocked { on: its, .. } if *its == on) {
                member.condition = ThreadState::Ready;
            }
        }
    }

    pub(super) fn note(&mut self, thread: usize, what: &'static str) {
        self.members[thread].at = what;
        self.trace.note(self.now, thread, what);
    }

    pub(super) fn is_wild(&self) -> bool {
        self.plan.wild.contains(&self.trace.steps)
    }

    /// Decides whether a fault that happens in `cases` of ten thousand cases happens now. It always
    /// takes a random number, so that later decisions stay the same if faults are switched off.
    pub(super) fn happens(&mut self, cases: u64) -> bool {
        self.luck.below(10_000) < cases && self.is_wild()
    }

    /// First delivers the data that is due on the network; then makes the threads runnable whose
    /// descriptors are ready.
    pub(super) fn look_at_descriptors(&mut self) {
        let is_wild = self.is_wild();
        let WorldState { net, when, luck, plan, now, .. } = self;
        net.look(net::Luck { now: *now, when, luck, faults: plan.faults, is_wild });
        for member in &mut self.members {
            let ThreadState::Blocked { fds, .. } = &member.condition else { continue };
            let mut set: Vec<libc::pollfd> =
                fds.iter().map(|&(fd, events)| libc::pollfd { fd, events, revents: 0 }).collect();
            if !set.is_empty() && call::poll(&mut set, Some(0)).is_ok_and(|ready| ready > 0) {
                member.condition = ThreadState::Ready;
            }
        }
    }

    /// Returns one of the runnable threads.
    fn any_ready(&mut self) -> Option<usize> {
        let is_ready = |m: &WorldThread| matches!(m.condition, ThreadState::Ready);
        let all = self.members.iter().enumerate();
        let ready = all.filter(|(_, m)| is_ready(m)).map(|(number, _)| number);
        self.order.choose(&mut self.which, ready)
    }

    /// Returns true if all threads of the world sleep in the kernel.
    pub(super) fn all_sleep(&self) -> bool {
        let is_asleep = |member: &WorldThread| match member.condition {
            // The worker of such a thread runs on another one.
            ThreadState::Gone | ThreadState::Blocked { on: On::Home, .. } => true,
            _ => member.id != 0 && sleeps(member.id),
        };
        self.members.iter().all(is_asleep)
    }

    /// Adds a thread. Returns its number.
    pub(super) fn add(&mut self, name: &str) -> usize {
        self.members.push(WorldThread::new(name.to_owned()));
        self.order.add();
        self.members.len() - 1
    }

    /// Returns whether another thread runs at this point of the thread.
    pub(super) fn is_preempted(&mut self, thread: usize) -> bool {
        let (step, is_wild) = (self.trace.steps, self.is_wild());
        self.order.is_preempted(&mut self.which, thread, step) && is_wild
    }

    /// Returns the thread that runs next, or `None` if no thread can ever run again.
    pub(super) fn next(&mut self) -> Option<usize> {
        self.end_waits(0);
        loop {
            if let Some(ready) = self.any_ready() {
                return Some(ready);
            }
            self.look_at_descriptors();
            if let Some(ready) = self.any_ready() {
                return Some(ready);
            }
            // All threads wait, so time jumps.
            let until = |m: &WorldThread| match &m.condition {
                ThreadState::Blocked { until, .. } => *until,
                _ => NEVER,
            };
            let earliest = self.members.iter().map(until).min().unwrap_or(NEVER);
            let earliest = earliest.min(self.net.next_due());
            if earliest == NEVER {
                return self.wait_for_descriptors();
            }
            // Sometimes waits end early, as they may.
            let early = u64::from(self.when.below(EARLY_IN) == 0 && earliest > self.now + 1);
            self.now = self.now.max(earliest - early);
            self.end_waits(early);
        }
    }

    /// Makes the threads runnable whose time has come, or comes within `early` nanoseconds.
    fn end_waits(&mut self, early: u64) {
        for member in &mut self.members {
            match member.condition {
                ThreadState::Blocked { until, .. } if until <= self.now + early => {
                    member.condition = ThreadState::Ready;
                }
                _ => {}
            }
        }
    }

    /// Waits in real time for descriptors, as nothing else can make a thread runnable. A process
    /// that is being started may keep a closed end of a connection open for a moment.
    fn wait_for_descriptors(&mut self) -> Option<usize> {
        let waits = |thread: &WorldThread| match &thread.condition {
            ThreadState::Blocked { fds, .. } => !fds.is_empty(),
            _ => false,
        };
        for _ in 0..100 {
            if !self.members.iter().any(waits) {
                return None;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
            self.look_at_descriptors();
            if let Some(ready) = self.any_ready() {
                return Some(ready);
            }
        }
        None
    }

    /// Ends the world. If it failed because its threads wait for something that will not happen,
    /// and a task has panicked, the panic is the failure.
    pub(super) fn end(&mut self, failed: Option<Failure>) {
        let panicked = self.panicked.lock().take();
        let failed = failed.map(|why| match (why, panicked) {
            (Failure::Waits(then), Some(panic)) => format!("{panic}\nthen {then}"),
            (Failure::Waits(why) | Failure::Other(why), _) => why,
        });
        let trace = self.trace.text(|thread| &self.members[thread].name);
        let (steps, now, hash) = (self.trace.steps, self.now, self.trace.hash);
        self.ended.get_or_insert(Ended { steps, now, hash, trace, failed });
    }

    /// Describes what each thread waits for. Addresses and descriptors differ between processes, so
    /// they are replaced by small numbers; threads that wait on the same thing get the same number.
    pub(super) fn describe(&self) -> String {
        let (mut text, mut seen) = (String::new(), Vec::new());
        for (number, member) in self.members.iter().enumerate() {
            let WorldThread { name, condition, at, .. } = member;
            let does = match condition {
                ThreadState::Gone => continue,
                ThreadState::Ready => "can run".to_owned(),
                ThreadState::Blocked { on, until, fds } => {
                    let nth = seen.iter().position(|other| other == on).unwrap_or_else(|| {
                        seen.push(*on);
                        seen.len() - 1
                    });
                    let what = match on {
                        On::Time => "the time".to_owned(),
                        On::Event(_) => format!("event {nth}"),
                        On::Bell(_) => format!("bell {nth}, and {} descriptors", fds.len()),
                        On::End(thread) => format!("the end of thread {thread}"),
                        On::Home => "its worker, which runs elsewhere".to_owned(),
                    };
                    let until = if *until == NEVER { "ever".into() } else { until.to_string() };
                    format!("waits for {what}, until {until},")
                }
            };
            let _ = writeln!(text, "  {number} {name}: {does} at {at}");
        }
        text
    }
}
