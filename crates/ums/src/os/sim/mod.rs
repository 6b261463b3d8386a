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
//! If the thread with the token blocks outside the world, for example for a lock of the standard
//! library, the world ends after two seconds of real time, and the result has the thread's stack.
//!
//! What the simulated world does not do: it does not reorder memory accesses (the models in
//! `loom.rs` do).

pub mod carry;
pub mod disk;
pub mod driver;
pub mod files;
pub mod lines;
pub mod net;
pub mod noted;
mod order;
mod pinned;
mod plan;
pub mod sockets;
mod state;
mod trace;

use std::cell::{Cell, RefCell};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard, Once};
use std::time::Duration;

use super::clock::NEVER;
use crate::os;
use crate::os::lock::{Lock, LockCondvar};
use order::Order;
pub use plan::{Dice, Faults, Plan};
pub use state::{Ended, On};
use state::{Failure, POLL_IN, ThreadState, WorldState, WorldThread};
use trace::PointLog;

/// The most by which time grows from one point to the next, in nanoseconds.
const STEP_MAX_NS: u64 = 4_000;
/// A world that passes more points than this counts as one that never ends.
const STEPS_MAX: u64 = 20_000_000;
/// The most by which time grows at an operation on a lock or the like, in nanoseconds.
const OPERATION_MAX_NS: u64 = 64;
/// A thread that has the token and passes no point for this long is looked at.
const LOOK_AFTER: Duration = Duration::from_millis(100);
/// After how many looks in succession that find it asleep in the kernel it counts as blocked.
const LOOKS: u32 = 20;
/// A part of the failure of a world in which a thread has blocked outside.
pub const OUTSIDE: &str = "waits outside the simulated world";
/// The failure of a world in which no thread will ever run again.
const STUCK: &str = "no thread can run, and none waits with a deadline";

/// A simulated world; see the top of this file.
pub struct World {
    state: Lock<WorldState>,
    /// Notified when the world ends.
    over: LockCondvar,
    /// The number of the thread that has the token.
    running: AtomicUsize,
    lines: Lock<Option<lines::Lines>>,
    /// As in the state. It has a lock of its own, because the world's code may panic, too.
    panicked: Arc<Lock<Option<String>>>,
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

/// Lets another thread run here, before an operation on a lock, a channel or the like, if the seed
/// decides so. It takes nearly no time of the world.
pub fn operation(what: &'static str) {
    if let Some((world, me)) = place()
        && !UNINTERRUPTED.get()
    {
        world.operation(me, what);
    }
}

/// Runs `call` while no other thread of the world runs. `call` must not wait.
pub fn uninterrupted<R>(call: impl FnOnce() -> R) -> R {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            UNINTERRUPTED.set(self.0);
        }
    }
    let _before = Before(UNINTERRUPTED.replace(true));
    call()
}

/// Makes worlds note the panics of their threads. If a world then fails because others wait for
/// what the panic has prevented, the panic is the failure.
fn note_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if let Some((world, me)) = place() {
                let text = os::panics::text_of(info.payload()).unwrap_or("a panic without a text");
                let at = info.location().map(|at| format!(", at {at}")).unwrap_or_default();
                let text = format!("thread {me} panicked: {text}{at}");
                world.panicked.lock().get_or_insert(text);
            }
            before(info);
        }));
    });
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
        world.fail(world.lock(), Failure::Other(why.to_owned()));
    }
}

/// Returns whether a seed runs the threads of its world by a random walk.
pub fn walks_at_random(seed: u64) -> bool {
    Order::of(seed).walks_at_random()
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
    let WorldState { disk, luck, .. } = &mut *world.lock();
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
    let number = state.add(name);
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
        os::linux::sample::this_thread_is_on(fiber::StackRange::of_this_thread());
        world.lock().members[number].runs_here();
        PLACE.set(Some(Place { world: Arc::clone(&world), number }));
        world.until_running(number);
    }

    /// Removes the thread from the world, because it could not be created.
    pub fn strike(self) {
        self.world.lock().members[self.number].condition = ThreadState::Gone;
    }

    /// Returns true if the thread has ended.
    pub fn is_gone(&self) -> bool {
        matches!(self.world.lock().members[self.number].condition, ThreadState::Gone)
    }

    /// Waits until the thread has ended.
    pub fn wait(&self) {
        while !self.is_gone() && is_here() {
            block(On::End(self.number), NEVER, "join");
        }
    }
}

impl World {
    /// Runs a story in a world of its own, on a thread that has the token first. `describe` returns
    /// the stack of a thread of the kernel that has blocked outside the world.
    pub fn run(
        plan: &Plan,
        describe: impl Fn(u32) -> String,
        story: impl FnOnce() + Send + 'static,
    ) -> Ended {
        note_panics();
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
        let ended = world.until_over(describe);
        if ended.failed.is_none() {
            let _ = thread.join();
        }
        ended
    }

    /// Waits until the world has ended. If the thread with the token blocks outside the world, that
    /// ends it.
    fn until_over(&self, describe: impl Fn(u32) -> String) -> Ended {
        let (mut before, mut looks) = ((0, 0), 0);
        let mut state = self.lock();
        loop {
            if let Some(ended) = state.ended.take() {
                return ended;
            }
            state = self.over.wait_timeout(state, LOOK_AFTER).0;
            let holder = self.running.load(Ordering::Acquire);
            let now = (state.trace.steps, holder);
            looks = if now == before && state.all_sleep() { looks + 1 } else { 0 };
            before = now;
            if looks == LOOKS && state.ended.is_none() {
                let WorldThread { name, at, id, .. } = &state.members[holder];
                let text = format!(
                    "thread {holder} {name} {OUTSIDE}, after {at}. It may wait for a lock of the \
                     standard library that another thread of the story holds; a story must wait \
                     through ums only. Its stack:\n{}",
                    describe(*id)
                );
                state.is_abandoned = true;
                state.end(Some(Failure::Other(text)));
            }
        }
    }

    fn new(plan: Plan) -> World {
        let dice = |which| Dice::of(plan.seed, which);
        let mut state = WorldState {
            which: dice(1),
            when: dice(2),
            luck: dice(3),
            asked: dice(4),
            picked: dice(5),
            now: 1_000_000_000,
            members: Vec::new(),
            disk: disk::Disk::default(),
            net: net::Net::default(),
            order: Order::of(plan.seed),
            trace: PointLog::new(),
            panicked: Arc::default(),
            is_abandoned: false,
            ended: None,
            plan,
        };
        state.add("story");
        let panicked = Arc::clone(&state.panicked);
        let (state, over, lines) = (Lock::new(state), LockCondvar::new(), Lock::new(None));
        World { state, running: AtomicUsize::new(0), over, lines, panicked }
    }

    /// Ends the world, because the story has returned or panicked.
    fn tell(&self, why: Option<String>) {
        let mut state = self.state.lock();
        let left = |m: &WorldThread| !matches!(m.condition, ThreadState::Gone);
        let why = why.map(Failure::Other).or_else(|| {
            let any = state.members[1..].iter().any(left);
            any.then(|| Failure::Waits(format!("threads are left over:\n{}", state.describe())))
        });
        state.end(why);
        self.over.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, WorldState> {
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
        if state.happens(faults.stall) {
            let until = state.now + state.when.below(10_000_000);
            let (on, fds) = (On::Time, Vec::new());
            state.members[me].condition = ThreadState::Blocked { on, until, fds };
            return self.pass_on(state, me);
        }
        if state.which.below(POLL_IN) == 0 {
            state.look_at_descriptors();
        }
        self.go_on(state, me);
    }

    fn operation(&self, me: usize, what: &'static str) {
        let mut state = self.lock();
        state.note(me, what);
        // Time passes, so that other threads reach their deadlines while this one polls.
        state.now += state.when.below(OPERATION_MAX_NS);
        self.go_on(state, me);
    }

    /// Ends a point of a thread. Another thread runs then, if the seed decides so.
    fn go_on(&self, mut state: MutexGuard<'_, WorldState>, me: usize) {
        if state.is_abandoned {
            drop(state);
            return stop_for_ever();
        }
        if state.trace.steps > STEPS_MAX {
            let text = format!("it does not come to an end:\n{}", state.describe());
            return self.fail(state, Failure::Waits(text));
        }
        if state.is_preempted(me) {
            self.pass_on(state, me);
        }
    }

    fn block(&self, me: usize, on: On, until: u64, fds: Vec<(RawFd, i16)>, what: &'static str) {
        let mut state = self.state.lock();
        if state.is_abandoned {
            drop(state);
            return stop_for_ever();
        }
        if until != NEVER && until <= state.now {
            return;
        }
        state.note(me, what);
        state.members[me].condition = ThreadState::Blocked { on, until, fds };
        self.pass_on(state, me);
    }

    /// Passes the token to the next thread, and returns when the caller has it again.
    fn pass_on(&self, mut state: MutexGuard<'_, WorldState>, me: usize) {
        let Some(next) = state.next() else {
            let text = format!("{STUCK}:\n{}", state.describe());
            return self.fail(state, Failure::Waits(text));
        };
        if next != me {
            self.give(state, next);
            self.until_running(me);
        }
    }

    fn give(&self, state: MutexGuard<'_, WorldState>, next: usize) {
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
        state.members[me].condition = ThreadState::Gone;
        state.note(me, "ends");
        state.wake(On::End(me));
        self.give_on(state);
    }

    /// Passes the token to the next thread, on behalf of a thread that will not wait for it.
    fn give_on(&self, mut state: MutexGuard<'_, WorldState>) {
        match state.next() {
            Some(next) => self.give(state, next),
            None => {
                let text = format!("{STUCK}:\n{}", state.describe());
                state.end(Some(Failure::Waits(text)));
                self.over.notify_all();
            }
        }
    }

    /// Ends the world, and does not return. The state that the world's threads share may be
    /// inconsistent, so no thread may touch it any more.
    fn fail(&self, mut state: MutexGuard<'_, WorldState>, why: Failure) {
        state.end(Some(why));
        drop(state);
        self.over.notify_all();
        stop_for_ever()
    }
}

/// Does not return.
fn stop_for_ever() {
    loop {
        std::thread::park();
    }
}

/// Returns the message of a panic.
pub fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    os::panics::text_of(panic).unwrap_or("the story panicked").to_owned()
}
