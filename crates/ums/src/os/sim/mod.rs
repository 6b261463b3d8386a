//! A simulated world: one thread runs at a time, and a seed decides which.
//!
//! Schedulers, workers and plain threads are real threads, and run the same code as always. But
//! only one of them has the *token*. It passes the token on where it would block, and sometimes at
//! a *point*, a place in the library where another thread could run. Time is a number that grows a
//! little at each point, and jumps to the next deadline when all threads wait. So a run depends on
//! the seed alone, and can be repeated.
//!
//! ```text
//!   thread 0 (the story)   scheduler 0        scheduler 1        a thread worker
//!        |  spawn ----------> blocked            blocked            blocked
//!        |  event.wait
//!        +------ token ------> turn
//!                              point ------ token ------> turn
//!                                                        event.wait
//!                              turn <------ token ---------+
//! ```
//!
//! If no thread can run and no deadline is left, a wake-up was lost or there is a deadlock. Then
//! the world ends, its threads never run again, and the result says what each of them waits for.
//!
//! Invariants. *One Token*: of the threads in a world, only the one whose number is `running` runs;
//! the others are parked. So accesses to shared memory need no further ordering. *No Lock*: no
//! point is passed while a lock of the standard library is held, because the next thread that takes
//! this lock would block while it has the token.
//!
//! What the simulated world does not do: it does not reorder memory accesses (the models in
//! `loom.rs` do), and it does not notice blocking calls of the simulated program itself.

pub mod carry;
pub mod disk;
pub mod driver;
pub mod files;
pub mod lines;
pub mod net;
pub mod noted;
mod pinned;
mod plan;
pub mod sockets;
mod trace;

use std::cell::{Cell, RefCell};
use std::fmt::Write as _;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard};

use super::clock::NEVER;
use super::linux::call;
use crate::os::lock::{Lock, LockCondvar};
pub use plan::{Dice, Faults, Plan};
use trace::PointLog;

/// The most by which time grows from one point to the next, in nanoseconds.
const STEP_MAX_NS: u64 = 4_000;
/// At one of this many points, the token is passed to a thread that is chosen at random.
const CHANGE_IN: u64 = 3;
/// At one of this many points, the descriptors that sleeping schedulers wait for are polled.
const POLL_IN: u64 = 8;
/// When all threads wait, in one of this many cases time jumps to 1 ns before the next deadline.
const EARLY_IN: u64 = 8;
/// A world that passes more points than this counts as one that never ends.
const STEPS_MAX: u64 = 20_000_000;
/// The failure of a world in which no thread will ever run again.
const STUCK: &str = "no thread can run, and none waits with a deadline";

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
enum Condition {
    Ready,
    Blocked { on: On, until: u64, fds: Vec<(RawFd, i16)> },
    Gone,
}

struct Member {
    name: String,
    condition: Condition,
    /// The last point that the thread passed.
    at: &'static str,
    os: Option<std::thread::Thread>,
}

struct State {
    plan: Plan,
    /// Random sequences, which decide which thread runs, when things happen, and which faults
    /// occur, and from which the story and the library take random numbers. They are separate, so
    /// that with fewer faults the rest of a run changes little.
    which: Dice,
    when: Dice,
    luck: Dice,
    asked: Dice,
    picked: Dice,
    now: u64,
    members: Vec<Member>,
    disk: disk::Disk,
    net: net::Net,
    trace: PointLog,
    /// The result, once the world has ended.
    ended: Option<Ended>,
}

/// A simulated world; see the top of this file.
pub struct World {
    state: Lock<State>,
    /// Notified when the world ends.
    over: LockCondvar,
    /// The number of the thread that has the token.
    running: AtomicUsize,
    lines: Lock<Option<lines::Lines>>,
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

/// The calling thread's membership in a world. It is the thread's first thread-local, so it is
/// dropped after all others.
struct Place {
    world: Arc<World>,
    number: usize,
}

thread_local! {
    static PLACE: RefCell<Option<Place>> = const { RefCell::new(None) };
    /// True while no other thread may run between the actions of the calling thread.
    static UNINTERRUPTED: Cell<bool> = const { Cell::new(false) };
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.number != 0 {
            self.world.leave(self.number);
        }
    }
}

/// Returns the caller's world and its number there; `None` for a thread outside every world.
fn place() -> Option<(Arc<World>, usize)> {
    let place = |place: &RefCell<Option<Place>>| {
        place.try_borrow().ok()?.as_ref().map(|p| (Arc::clone(&p.world), p.number))
    };
    PLACE.try_with(place).ok().flatten()
}

/// How many threads a world has room for.
pub const THREADS: u64 = 4096;

/// Returns true if the caller is in a world.
pub fn is_here() -> bool {
    place().is_some()
}

/// Returns the time of the caller's world.
#[inline]
pub fn now() -> Option<u64> {
    place().map(|(world, _)| world.lock().now)
}

/// Lets another thread run here, if the seed decides so.
pub fn point(what: &'static str) {
    if let Some((world, me)) = place()
        && !UNINTERRUPTED.get()
    {
        world.point(me, what);
    }
}

/// Waits until [`wake`] is called with an equal `on`, or until this time. It may return early, so
/// the caller checks its condition again.
pub fn block(on: On, until: u64, what: &'static str) {
    if let Some((world, me)) = place() {
        world.block(me, on, until, Vec::new(), what);
    }
}

/// Makes the threads runnable that wait on this.
pub fn wake(on: On) {
    if let Some((world, _)) = place() {
        world.lock().wake(on);
    }
}

/// Ends the caller's world with this failure, for failures that no assertion can report. In a world
/// it does not return.
pub fn fail(why: &str) {
    if let Some((world, _)) = place() {
        world.fail(world.lock(), why.to_owned());
    }
}

/// Returns a random number below `sides`, from the caller's world; 0 outside every world.
pub fn below(sides: u64) -> u64 {
    place().map_or(0, |(world, _)| world.lock().asked.below(sides))
}

/// Returns a random number below `sides` for the library; `None` outside every world.
pub fn pick(sides: u64) -> Option<u64> {
    place().map(|(world, _)| world.lock().picked.below(sides))
}

/// Makes every operation on a file fail from now on.
pub fn power_off() {
    place().into_iter().for_each(|(world, _)| world.lock().disk.off = true);
}

/// Ends the loss of power. What was not synced is lost, or only a random part of it.
///
/// # Errors
/// An error of the file system.
pub fn power_on() -> std::io::Result<()> {
    let Some((world, _)) = place() else { return Ok(()) };
    let State { disk, luck, .. } = &mut *world.lock();
    disk.power_on(luck)
}

/// Adds a thread that is about to be created. Returns an error if the world refuses the thread, and
/// `None` outside every world.
pub fn enlist(name: &str) -> Option<Result<Enlisted, std::io::Error>> {
    let (world, _) = place()?;
    let mut state = world.lock();
    let cases = state.plan.faults.no_thread;
    if state.happens(cases) {
        return Some(Err(std::io::Error::from_raw_os_error(libc::EAGAIN)));
    }
    let number = state.members.len();
    let (name, condition) = (name.to_owned(), Condition::Ready);
    state.members.push(Member { name, condition, at: "its start", os: None });
    drop(state);
    Some(Ok(Enlisted { world, number }))
}

/// A thread that was added to a world and may not run yet. Other threads can wait for its end.
#[derive(Clone)]
pub struct Enlisted {
    world: Arc<World>,
    number: usize,
}

impl std::fmt::Debug for Enlisted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Enlisted({})", self.number)
    }
}

impl Enlisted {
    /// Makes the calling thread this thread of the world, and waits for the token.
    pub fn enter(self) {
        let Enlisted { world, number } = self;
        world.lock().members[number].os = Some(std::thread::current());
        PLACE.set(Some(Place { world: Arc::clone(&world), number }));
        world.until_running(number);
    }

    /// Removes the thread from the world, because it could not be created.
    pub fn strike(self) {
        self.world.lock().members[self.number].condition = Condition::Gone;
    }

    /// Returns true if the thread has ended.
    pub fn is_gone(&self) -> bool {
        matches!(self.world.lock().members[self.number].condition, Condition::Gone)
    }

    /// Waits until the thread has ended.
    pub fn wait(&self) {
        while !self.is_gone() && is_here() {
            block(On::End(self.number), NEVER, "join");
        }
    }
}

impl State {
    fn wake(&mut self, on: On) {
        for member in &mut self.members {
            if matches!(&member.condition, Condition::Blocked { on: its, .. } if *its == on) {
                member.condition = Condition::Ready;
            }
        }
    }

    fn note(&mut self, thread: usize, what: &'static str) {
        self.members[thread].at = what;
        self.trace.note(self.now, thread, what);
    }

    fn is_wild(&self) -> bool {
        self.plan.wild.contains(&self.trace.steps)
    }

    /// Decides whether a fault that happens in `cases` of ten thousand cases happens now. It always
    /// takes a random number, so that later decisions stay the same if faults are switched off.
    fn happens(&mut self, cases: u64) -> bool {
        self.luck.below(10_000) < cases && self.is_wild()
    }

    /// First delivers the data that is due on the network; then makes the threads runnable whose
    /// descriptors are ready.
    fn look_at_descriptors(&mut self) {
        let is_wild = self.is_wild();
        let State { net, when, luck, plan, now, .. } = self;
        net.look(net::Luck { now: *now, when, luck, faults: plan.faults, is_wild });
        for member in &mut self.members {
            let Condition::Blocked { fds, .. } = &member.condition else { continue };
            let mut set: Vec<libc::pollfd> =
                fds.iter().map(|&(fd, events)| libc::pollfd { fd, events, revents: 0 }).collect();
            if !set.is_empty() && call::poll(&mut set, Some(0)).is_ok_and(|ready| ready > 0) {
                member.condition = Condition::Ready;
            }
        }
    }

    /// Returns one of the runnable threads.
    fn any_ready(&mut self) -> Option<usize> {
        let is_ready = |m: &Member| matches!(m.condition, Condition::Ready);
        let count = self.members.iter().filter(|m| is_ready(m)).count();
        let chosen = self.which.below(count as u64) as usize;
        let all = self.members.iter().enumerate();
        all.filter(|(_, m)| is_ready(m)).map(|(number, _)| number).nth(chosen)
    }

    /// Returns the thread that runs next, or `None` if no thread can ever run again.
    fn next(&mut self) -> Option<usize> {
        loop {
            if let Some(ready) = self.any_ready() {
                return Some(ready);
            }
            self.look_at_descriptors();
            if let Some(ready) = self.any_ready() {
                return Some(ready);
            }
            // All threads wait, so time jumps.
            let until = |m: &Member| match &m.condition {
                Condition::Blocked { until, .. } => *until,
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
            for member in &mut self.members {
                if until(member) <= self.now + early {
                    member.condition = Condition::Ready;
                }
            }
        }
    }

    /// Waits in real time for descriptors, as nothing else can make a thread runnable. A process
    /// that is being started may keep a closed end of a connection open for a moment.
    fn wait_for_descriptors(&mut self) -> Option<usize> {
        let waits =
            |m: &Member| matches!(&m.condition, Condition::Blocked { fds, .. } if !fds.is_empty());
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

    fn end(&mut self, failed: Option<String>) {
        let trace = self.trace.text(|thread| &self.members[thread].name);
        let (steps, now, hash) = (self.trace.steps, self.now, self.trace.hash);
        self.ended.get_or_insert(Ended { steps, now, hash, trace, failed });
    }

    /// Describes what each thread waits for. Addresses and descriptors differ between processes, so
    /// they are replaced by small numbers; threads that wait on the same thing get the same number.
    fn describe(&self) -> String {
        let (mut text, mut seen) = (String::new(), Vec::new());
        for (number, member) in self.members.iter().enumerate() {
            let Member { name, condition, at, .. } = member;
            let does = match condition {
                Condition::Gone => continue,
                Condition::Ready => "can run".to_owned(),
                Condition::Blocked { on, until, fds } => {
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

impl World {
    /// Runs a story in a world of its own, on a thread that has the token first.
    pub fn run(plan: &Plan, story: impl FnOnce() + Send + 'static) -> Ended {
        let world = Arc::new(World::new(plan.clone()));
        let place = Enlisted { world: Arc::clone(&world), number: 0 };
        let thread = std::thread::Builder::new().name("story".into()).spawn(move || {
            pinned::stay_on_one_processor();
            place.enter();
            let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(story));
            if let Some((world, _)) = self::place() {
                world.tell(told.err().map(|panic| text_of(&*panic)));
            }
        });
        let thread = thread.unwrap_or_else(|error| panic!("no thread for a story: {error}"));
        let mut state = world.lock();
        let ended = loop {
            match state.ended.take() {
                Some(ended) => break ended,
                None => state = world.over.wait(state),
            }
        };
        drop(state);
        if ended.failed.is_none() {
            let _ = thread.join();
        }
        ended
    }

    fn new(plan: Plan) -> World {
        let (name, condition) = ("story".into(), Condition::Ready);
        let dice = |which| Dice::of(plan.seed, which);
        let state = State {
            which: dice(1),
            when: dice(2),
            luck: dice(3),
            asked: dice(4),
            picked: dice(5),
            now: 1_000_000_000,
            members: vec![Member { name, condition, at: "its start", os: None }],
            disk: disk::Disk::default(),
            net: net::Net::default(),
            trace: PointLog::new(),
            ended: None,
            plan,
        };
        let (state, over, lines) = (Lock::new(state), LockCondvar::new(), Lock::new(None));
        World { state, running: AtomicUsize::new(0), over, lines }
    }

    /// Ends the world, because the story has returned or panicked.
    fn tell(&self, why: Option<String>) {
        let mut state = self.state.lock();
        let left = |m: &Member| !matches!(m.condition, Condition::Gone);
        let why = why.or_else(|| {
            let any = state.members[1..].iter().any(left);
            any.then(|| format!("threads are left over:\n{}", state.describe()))
        });
        state.end(why);
        self.over.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn point(&self, me: usize, what: &'static str) {
        let mut state = self.lock();
        state.note(me, what);
        let faults = state.plan.faults;
        // In one case of four no time passes, so that a comparison that is off by a nanosecond
        // shows.
        state.now += state.when.below(STEP_MAX_NS) * u64::from(state.when.below(4) > 0);
        if state.happens(faults.jump) {
            state.now += state.when.below(1_000_000_000);
        }
        if state.trace.steps > STEPS_MAX {
            let text = format!("it does not come to an end:\n{}", state.describe());
            return self.fail(state, text);
        }
        if state.happens(faults.stall) {
            let until = state.now + state.when.below(10_000_000);
            let (on, fds) = (On::Time, Vec::new());
            state.members[me].condition = Condition::Blocked { on, until, fds };
            return self.pass_on(state, me);
        }
        if state.which.below(POLL_IN) == 0 {
            state.look_at_descriptors();
        }
        if state.which.below(CHANGE_IN) == 0 && state.is_wild() {
            self.pass_on(state, me);
        }
    }

    fn block(&self, me: usize, on: On, until: u64, fds: Vec<(RawFd, i16)>, what: &'static str) {
        let mut state = self.state.lock();
        if until != NEVER && until <= state.now {
            return;
        }
        state.note(me, what);
        state.members[me].condition = Condition::Blocked { on, until, fds };
        self.pass_on(state, me);
    }

    /// Passes the token to the next thread, and returns when the caller has it again.
    fn pass_on(&self, mut state: MutexGuard<'_, State>, me: usize) {
        let Some(next) = state.next() else {
            let text = format!("{STUCK}:\n{}", state.describe());
            return self.fail(state, text);
        };
        if next != me {
            self.give(state, next);
            self.until_running(me);
        }
    }

    fn give(&self, state: MutexGuard<'_, State>, next: usize) {
        self.running.store(next, Ordering::Release);
        if let Some(thread) = state.members[next].os.clone() {
            drop(state);
            thread.unpark();
        }
    }

    fn until_running(&self, me: usize) {
        while self.running.load(Ordering::Acquire) != me {
            std::thread::park();
        }
    }

    /// Ends the membership of a thread that has ended.
    fn leave(&self, me: usize) {
        let mut state = self.lock();
        state.members[me].condition = Condition::Gone;
        state.note(me, "ends");
        state.wake(On::End(me));
        self.give_on(state);
    }

    /// Passes the token to the next thread, on behalf of a thread that will not wait for it.
    fn give_on(&self, mut state: MutexGuard<'_, State>) {
        match state.next() {
            Some(next) => self.give(state, next),
            None => {
                let text = format!("{STUCK}:\n{}", state.describe());
                state.end(Some(text));
                self.over.notify_all();
            }
        }
    }

    /// Ends the world, and does not return. The state that the world's threads share may be
    /// inconsistent, so no thread may touch it any more.
    fn fail(&self, mut state: MutexGuard<'_, State>, why: String) {
        state.end(Some(why));
        drop(state);
        self.over.notify_all();
        loop {
            std::thread::park();
        }
    }
}

/// Returns the message of a panic.
pub fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
    text.unwrap_or_else(|| "the story panicked".into())
}
