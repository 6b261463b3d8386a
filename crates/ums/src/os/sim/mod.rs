//! A world in which one thread runs at a time, and a seed says which.
//!
//! Schedulers, workers and plain threads are real threads, and run the code that they always run. But only one has the
//! *token*; it gives the token on where it would block, and now and then at a *point*, a place in the machine where
//! another thread could come in between. Time is a number that goes on by a little at each point, and jumps to
//! the next deadline when everybody waits. So a run depends on the seed and nothing else, and can be had again.
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
//! Nobody can run and no deadline is left: a wake-up was lost, or there is a deadlock. The world ends, its threads never
//! run again, and who began it is told what each of them waits for.
//!
//! Invariants. *One Token*: of the threads in a world, the one whose number is `running` runs, the others are parked.
//! So what the threads share needs no order but theirs. *No Lock*: no point is passed with a lock of the
//! standard library held, for who wants it next would block with the token in his hand.
//!
//! What it does not do: it does not reorder memory accesses (the models in `loom.rs` do), and it does not see
//! blocking calls that come from the story itself.

pub mod driver;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::clock::NEVER;
use super::linux::call;

/// How much later it is at a point than at the one before, at most, in nanoseconds.
const STEP_MAX_NS: u64 = 4_000;
/// At one point in so many the token goes to a thread that is chosen anew.
const CHANGE_IN: u64 = 3;
/// At one point in so many the descriptors are looked at that sleeping schedulers wait for.
const POLL_IN: u64 = 8;
/// How many events the trace keeps: those of the end.
const TRACE_MAX: usize = 1 << 16;
/// A world in which so much happens does not come to an end.
const STEPS_MAX: u64 = 20_000_000;

/// What goes wrong in a world, each in so many of ten thousand cases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// I/O operations that move only a part.
    pub short: u64,
    /// Operations on files and sockets that fail: `EIO` on a file, a reset on a socket.
    pub fail: u64,
    /// Threads that the system refuses.
    pub no_thread: u64,
    /// Points after which the clock has jumped by up to a second.
    pub jump: u64,
    /// Points at which a thread stands still for up to ten milliseconds.
    pub stall: u64,
}

/// A random sequence (splitmix64), the same for the same seed.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// The sequence of this seed.
    pub fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    /// A number below `sides`.
    pub fn below(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % sides.max(1)
    }

    /// True in so many of ten thousand cases.
    pub fn in_10_000(&mut self, cases: u64) -> bool {
        cases > 0 && self.below(10_000) < cases
    }
}

/// What a thread waits on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// Nothing but the time.
    Time,
    /// An event, by its address.
    Event(usize),
    /// A driver's bell, by its descriptor.
    Bell(RawFd),
    /// The end of a thread.
    End(usize),
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
    /// Where it was seen last.
    at: &'static str,
    os: Option<std::thread::Thread>,
}

/// One line of the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Line {
    now: u64,
    thread: usize,
    what: &'static str,
}

struct State {
    dice: Dice,
    faults: Faults,
    now: u64,
    steps: u64,
    members: Vec<Member>,
    trace: VecDeque<Line>,
    hash: u64,
    /// The world is over.
    ended: Option<Ended>,
}

/// See the module's text.
pub struct World {
    state: Mutex<State>,
    /// Told at the end.
    over: Condvar,
    /// Who has the token.
    running: AtomicUsize,
}

/// What became of a world.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Points passed.
    pub steps: u64,
    /// Its time, in nanoseconds.
    pub now: u64,
    /// A number that two runs share only if they were the same.
    pub hash: u64,
    /// What happened last, a line each.
    pub trace: String,
    /// What failed.
    pub failed: Option<String>,
}

/// The calling thread's place in a world. Dropped when the thread ends, after everything else that is the thread's:
/// it was made first.
struct Place {
    world: Arc<World>,
    number: usize,
}

thread_local! {
    static PLACE: RefCell<Option<Place>> = const { RefCell::new(None) };
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.number != 0 {
            self.world.leave(self.number);
        }
    }
}

/// The caller's world and number. None: a thread of the real one.
fn place() -> Option<(Arc<World>, usize)> {
    let place = |place: &RefCell<Option<Place>>| {
        place.try_borrow().ok()?.as_ref().map(|p| (Arc::clone(&p.world), p.number))
    };
    PLACE.try_with(place).ok().flatten()
}

/// Whether the caller is in a world.
pub fn is_here() -> bool {
    place().is_some()
}

/// The time of the caller's world.
#[inline]
pub fn now() -> Option<u64> {
    place().map(|(world, _)| world.lock().now)
}

/// Another thread may come in between here.
pub fn point(what: &'static str) {
    if let Some((world, me)) = place() {
        world.point(me, what);
    }
}

/// Waits until `wake` with the same, or until this time. The caller looks again: it may end early.
pub fn block(on: On, until: u64, what: &'static str) {
    if let Some((world, me)) = place() {
        world.block(me, on, until, Vec::new(), what);
    }
}

/// Lets those run that wait on this.
pub fn wake(on: On) {
    if let Some((world, _)) = place() {
        world.lock().wake(on);
    }
}

/// Something is wrong that no code could have noticed. In a world it does not come back.
pub fn fail(why: &str) {
    if let Some((world, _)) = place() {
        let state = world.lock();
        world.fail(state, why.to_owned());
    }
}

/// A throw of the caller's world's dice; 0 in the real one.
pub fn below(sides: u64) -> u64 {
    place().map_or(0, |(world, _)| world.lock().dice.below(sides))
}

/// A thread that is about to be made: its number, or None when the world refuses it.
pub fn enlist(name: &str) -> Option<Result<Enlisted, std::io::Error>> {
    let (world, _) = place()?;
    let mut state = world.lock();
    let cases = state.faults.no_thread;
    if state.dice.in_10_000(cases) {
        return Some(Err(std::io::Error::from_raw_os_error(libc::EAGAIN)));
    }
    let number = state.members.len();
    let (name, condition) = (name.to_owned(), Condition::Ready);
    state.members.push(Member { name, condition, at: "its start", os: None });
    drop(state);
    Some(Ok(Enlisted { world, number }))
}

/// A thread of a world that is not there yet, and by which it can be waited for.
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
    /// The calling thread is it. Waits for the token.
    pub fn enter(self) {
        let Enlisted { world, number } = self;
        world.lock().members[number].os = Some(std::thread::current());
        PLACE.set(Some(Place { world: Arc::clone(&world), number }));
        world.until_running(number);
    }

    /// It was not made after all.
    pub fn strike(self) {
        self.world.lock().members[self.number].condition = Condition::Gone;
    }

    /// Whether it has ended.
    pub fn is_gone(&self) -> bool {
        matches!(self.world.lock().members[self.number].condition, Condition::Gone)
    }

    /// Waits until it has ended.
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
        self.steps += 1;
        for word in [self.now, thread as u64, what.len() as u64] {
            self.hash = (self.hash ^ word).wrapping_mul(0x0000_0100_0000_01B3);
        }
        for byte in what.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3);
        }
        if self.trace.len() == TRACE_MAX {
            self.trace.pop_front();
        }
        self.trace.push_back(Line { now: self.now, thread, what });
    }

    /// Whose descriptors are ready may run.
    fn look_at_descriptors(&mut self) {
        for member in &mut self.members {
            let Condition::Blocked { fds, .. } = &member.condition else { continue };
            let mut set: Vec<libc::pollfd> =
                fds.iter().map(|&(fd, events)| libc::pollfd { fd, events, revents: 0 }).collect();
            if !set.is_empty() && call::poll(&mut set, Some(0)).is_ok_and(|ready| ready > 0) {
                member.condition = Condition::Ready;
            }
        }
    }

    fn ready(&self) -> Vec<usize> {
        let is_ready = |m: &Member| matches!(m.condition, Condition::Ready);
        let all = self.members.iter().enumerate();
        all.filter(|(_, m)| is_ready(m)).map(|(number, _)| number).collect()
    }

    /// Who runs next. None: nobody ever.
    fn next(&mut self) -> Option<usize> {
        loop {
            let mut ready = self.ready();
            if ready.is_empty() {
                self.look_at_descriptors();
                ready = self.ready();
            }
            if !ready.is_empty() {
                return Some(ready[self.dice.below(ready.len() as u64) as usize]);
            }
            // Everybody waits: it is later.
            let until = |m: &Member| match &m.condition {
                Condition::Blocked { until, .. } => *until,
                _ => NEVER,
            };
            let earliest = self.members.iter().map(until).min().filter(|at| *at != NEVER)?;
            self.now = self.now.max(earliest);
            for member in &mut self.members {
                if until(member) <= self.now {
                    member.condition = Condition::Ready;
                }
            }
        }
    }

    fn end(&mut self, failed: Option<String>) {
        let mut trace = String::new();
        for line in &self.trace {
            let name = &self.members[line.thread].name;
            let _ = writeln!(trace, "{:>14} {:>2} {name} {}", line.now, line.thread, line.what);
        }
        let (steps, now, hash) = (self.steps, self.now, self.hash);
        self.ended.get_or_insert(Ended { steps, now, hash, trace, failed });
    }

    fn describe(&self) -> String {
        let mut text = String::new();
        for (number, member) in self.members.iter().enumerate() {
            let Member { name, condition, at, .. } = member;
            if !matches!(condition, Condition::Gone) {
                let _ = writeln!(text, "  {number} {name}: {condition:?} at {at}");
            }
        }
        text
    }
}

impl World {
    /// Runs a story in a world of its own, on a thread that has the token first.
    pub fn run(seed: u64, faults: Faults, story: impl FnOnce() + Send + 'static) -> Ended {
        let story_of_it =
            Member { name: "story".into(), condition: Condition::Ready, at: "its start", os: None };
        let state = State {
            dice: Dice::new(seed),
            faults,
            now: 1_000_000_000,
            steps: 0,
            members: vec![story_of_it],
            trace: VecDeque::new(),
            hash: 0xCBF2_9CE4_8422_2325,
            ended: None,
        };
        let (state, running) = (Mutex::new(state), AtomicUsize::new(0));
        let world = Arc::new(World { state, running, over: Condvar::new() });
        let place = Enlisted { world: Arc::clone(&world), number: 0 };
        let thread = std::thread::Builder::new().name("story".into()).spawn(move || {
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
                None => state = world.over.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        };
        drop(state);
        if ended.failed.is_none() {
            let _ = thread.join();
        }
        ended
    }

    /// The story's thread has come to its end.
    fn tell(&self, why: Option<String>) {
        let mut state = self.lock();
        let left = |m: &Member| !matches!(m.condition, Condition::Gone);
        let why = why.or_else(|| {
            let any = state.members[1..].iter().any(left);
            any.then(|| format!("threads are left over:\n{}", state.describe()))
        });
        state.end(why);
        self.over.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn point(&self, me: usize, what: &'static str) {
        let mut state = self.lock();
        state.note(me, what);
        state.members[me].at = what;
        let faults = state.faults;
        state.now += state.dice.below(STEP_MAX_NS);
        if state.dice.in_10_000(faults.jump) {
            state.now += state.dice.below(1_000_000_000);
        }
        if state.steps > STEPS_MAX {
            let text = format!("it does not come to an end:\n{}", state.describe());
            return self.fail(state, text);
        }
        if state.dice.in_10_000(faults.stall) {
            let until = state.now + state.dice.below(10_000_000);
            let (on, fds) = (On::Time, Vec::new());
            state.members[me].condition = Condition::Blocked { on, until, fds };
            return self.pass_on(state, me);
        }
        if state.dice.below(POLL_IN) == 0 {
            state.look_at_descriptors();
        }
        if state.dice.below(CHANGE_IN) == 0 {
            self.pass_on(state, me);
        }
    }

    fn block(&self, me: usize, on: On, until: u64, fds: Vec<(RawFd, i16)>, what: &'static str) {
        let mut state = self.lock();
        if until != NEVER && until <= state.now {
            return;
        }
        state.note(me, what);
        state.members[me].at = what;
        state.members[me].condition = Condition::Blocked { on, until, fds };
        self.pass_on(state, me);
    }

    /// Gives the token to whoever is next, and comes back with it.
    fn pass_on(&self, mut state: MutexGuard<'_, State>, me: usize) {
        let Some(next) = state.next() else {
            let text = format!("nobody can run, and nothing is waited for:\n{}", state.describe());
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

    /// The thread has ended.
    fn leave(&self, me: usize) {
        let mut state = self.lock();
        state.members[me].condition = Condition::Gone;
        state.note(me, "ends");
        state.wake(On::End(me));
        match state.next() {
            Some(next) => self.give(state, next),
            None => {
                let text =
                    format!("nobody can run, and nothing is waited for:\n{}", state.describe());
                state.end(Some(text));
                self.over.notify_all();
            }
        }
    }

    /// Ends the world, and does not come back: what its threads have in hand is broken, and is left alone.
    fn fail(&self, mut state: MutexGuard<'_, State>, why: String) {
        state.end(Some(why));
        drop(state);
        self.over.notify_all();
        loop {
            std::thread::park();
        }
    }
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
    text.unwrap_or_else(|| "the story panicked".into())
}
