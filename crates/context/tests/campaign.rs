//! The campaign: many contexts on few hosts. Each context checks after every switch that its
//! thread-locals, `errno`, locks and panic count are still its own.
//!
//! The tests have a small scheduler, [`Crew`]: one queue of saved contexts for all hosts, so that
//! contexts move from host to host. A context cannot queue itself before it is saved. So when a
//! context has switched away, the context that runs next on that host queues it: the host's
//! [`Seat`] remembers the one that left. A context that has decoupled is on the list [`FERRY`]
//! until its post has arrived; then a host queues it.
//!
//! Unsafe code: moves contexts. **One Place**: a context is in the queue, on a host, in a seat as
//! the one that left, or on the ferry's list. A host's seat and root are in the frame of
//! [`Crew::host`], which exists while workers live.
//!
//! The environment variable `CONTEXT_SWITCHES` sets the total number of switches; the default is
//! 400,000.

#![cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_env = "gnu"))]
#![allow(unsafe_code)]

use std::arch::asm;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::thread::JoinHandle;

use context::{Context, Host, Post};

/// A context, with the host that it is on.
struct Worker {
    context: Context,
    post: AtomicU32,
    /// The seat of the host that it runs on.
    at: AtomicPtr<Seat>,
    ended: AtomicBool,
}

/// Belongs to a host: the context that ran there before the current one, until it is queued.
struct Seat {
    root: *const Context,
    left: Cell<Option<Arc<Worker>>>,
}

#[derive(Default)]
struct Crew {
    queue: Mutex<VecDeque<Arc<Worker>>>,
    alive: AtomicUsize,
    switches: AtomicU64,
}

thread_local! {
    static ME: RefCell<Option<Arc<Worker>>> = const { RefCell::new(None) };
    static CREW: RefCell<Option<Arc<Crew>>> = const { RefCell::new(None) };
}

fn me() -> Arc<Worker> {
    ME.with_borrow(|me| me.clone().expect("a worker"))
}

fn crew() -> Arc<Crew> {
    CREW.with_borrow(|crew| crew.clone().expect("a worker"))
}

fn futex_sleep(word: &AtomicU32) {
    while word.compare_exchange(1, 0, Ordering::AcqRel, Ordering::Acquire).is_err() {
        let _ = word.compare_exchange(0, 2, Ordering::AcqRel, Ordering::Acquire);
        // SAFETY: Plain Call: the word outlives the call.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), 128, 2, null_mut::<u8>()) };
    }
}

impl Crew {
    /// Called by the context that has begun to run on a host: queues the context that ran there
    /// before, or releases it if it has ended.
    fn arrived(&self, seat: &Seat) {
        let Some(left) = seat.left.take() else { return };
        if left.ended.load(Ordering::Relaxed) {
            self.alive.fetch_sub(1, Ordering::Release);
            // SAFETY: One Place: it has switched to the caller, so it is saved, and it is in no
            // queue.
            unsafe { left.context.release() };
        } else {
            self.queue.lock().unwrap().push_back(left);
        }
    }

    /// Switches to the next context of the queue, if there is one.
    fn pass(&self) {
        let me = me();
        let Some(next) = self.queue.lock().unwrap().pop_front() else { return };
        self.switches.fetch_add(1, Ordering::Relaxed);
        let seat = me.at.load(Ordering::Relaxed);
        next.at.store(seat, Ordering::Relaxed);
        // SAFETY: One Place: the next context comes from the queue, which has saved contexts, each
        // once. The seat belongs to the caller's host, which exists while contexts are on it.
        unsafe {
            (*seat).left.set(Some(me.clone()));
            me.context.switch_to(&next.context);
            self.arrived(&*me.at.load(Ordering::Relaxed));
        }
    }

    /// Runs `call` coupled, and rejoins the queue.
    fn coupled(&self, call: impl FnOnce()) {
        let me = me();
        // SAFETY: One Place: the root of the caller's host is saved. After `decouple` the caller is
        // saved, and only the ferry queues it.
        unsafe {
            let seat = me.at.load(Ordering::Relaxed);
            me.context.leave_for(&*(*seat).root);
            call();
            me.post.store(0, Ordering::Relaxed);
            FERRY.lock().unwrap().push(me.clone());
            me.context.decouple(&Post::event(&me.post));
            self.arrived(&*me.at.load(Ordering::Relaxed));
        }
    }

    /// Runs a host until all workers have ended.
    fn host(&self) {
        let host = Host::here().expect("a host");
        let seat = Seat { root: host.root(), left: Cell::new(None) };
        while self.alive.load(Ordering::Acquire) > 0 {
            self.ferry();
            let Some(next) = self.queue.lock().unwrap().pop_front() else {
                std::thread::yield_now();
                continue;
            };
            next.at.store(std::ptr::from_ref(&seat).cast_mut(), Ordering::Relaxed);
            // SAFETY: One Place: as in `pass`. The seat and the root live in this frame.
            unsafe { host.root().switch_to(&next.context) };
            self.arrived(&seat);
        }
    }

    /// Queues the contexts that have decoupled and whose post has arrived.
    fn ferry(&self) {
        let mut waiting = FERRY.lock().unwrap();
        waiting.retain(|worker| {
            let there = worker.post.load(Ordering::Acquire) == 1;
            if there {
                self.queue.lock().unwrap().push_back(worker.clone());
            }
            !there
        });
    }

    fn worker(self: &Arc<Crew>, body: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
        let worker = Arc::new(Worker {
            context: Context::new(),
            post: AtomicU32::new(0),
            at: AtomicPtr::new(null_mut()),
            ended: AtomicBool::new(false),
        });
        self.alive.fetch_add(1, Ordering::Release);
        let (crew, mine) = (self.clone(), worker.clone());
        let number = self.alive.load(Ordering::Relaxed);
        let thread = std::thread::Builder::new().name(format!("worker {number}"));
        let thread = thread.stack_size(256 * 1024).spawn(move || {
            ME.set(Some(mine.clone()));
            CREW.set(Some(crew.clone()));
            let whole = || {
                // SAFETY: One Place: the seat belongs to the host that it runs on.
                crew.arrived(unsafe { &*mine.at.load(Ordering::Relaxed) });
                body();
                mine.ended.store(true, Ordering::Relaxed);
                // SAFETY: One Place: the root of its host is saved, and releases it afterwards.
                unsafe {
                    let seat = mine.at.load(Ordering::Relaxed);
                    (*seat).left.set(Some(mine.clone()));
                    mine.context.switch_to(&*(*seat).root);
                }
            };
            // SAFETY: One Place: the context is in an Arc that this closure owns. The test relies
            // on no state of a kernel thread.
            unsafe { mine.context.detach(&Post::event(&mine.post), whole) }.expect("it detaches");
        });
        futex_sleep(&worker.post);
        self.queue.lock().unwrap().push_back(worker);
        thread.expect("a thread")
    }

    fn finish(self: &Arc<Crew>, hosts: usize, workers: Vec<JoinHandle<()>>) {
        let hosts: Vec<_> = (0..hosts)
            .map(|_| {
                let crew = self.clone();
                std::thread::spawn(move || crew.host())
            })
            .collect();
        hosts.into_iter().for_each(|host| host.join().expect("a host"));
        workers.into_iter().for_each(|worker| worker.join().expect("a worker"));
    }
}

static FERRY: Mutex<Vec<Arc<Worker>>> = Mutex::new(Vec::new());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|e| e.into_inner())
}

fn switches() -> u64 {
    std::env::var("CONTEXT_SWITCHES").ok().and_then(|n| n.parse().ok()).unwrap_or(400_000)
}

thread_local! {
    static CELL: Cell<u64> = const { Cell::new(0) };
    static LAZY: RefCell<Vec<u64>> = RefCell::new(vec![7]);
}

fn errno() -> *mut i32 {
    // SAFETY: Plain Call: returns an address.
    unsafe { libc::__errno_location() }
}

fn cpu_time_of(thread: libc::pthread_t) -> i32 {
    let mut clock = 0;
    // SAFETY: Plain Call: the clock outlives the call.
    unsafe { libc::pthread_getcpuclockid(thread, &mut clock) }
}

/// Changes and checks, around each switch, everything that must be a thread's own.
#[test]
fn everything_that_belongs_to_a_thread_stays_its_own_over_switches_and_hosts() {
    let _alone = alone();
    const WORKERS: u64 = 48;
    let crew = Arc::new(Crew::default());
    let rounds = switches() / WORKERS;
    let moved = Arc::new(AtomicU64::new(0));
    let workers = (0..WORKERS)
        .map(|n| {
            let moved = moved.clone();
            crew.clone().worker(move || one_life(n, rounds, &moved))
        })
        .collect();
    crew.finish(3, workers);
    let (done, moved) = (crew.switches.load(Ordering::Relaxed), moved.load(Ordering::Relaxed));
    println!("{done} switches, {moved} onto another host");
    assert!(moved > 100, "contexts went from host to host: {moved} times");
    assert!(done > rounds, "{done} switches");
}

fn one_life(n: u64, rounds: u64, moved: &AtomicU64) {
    let crew = crew();
    let (me, id) = (me(), std::thread::current().id());
    // SAFETY: Plain Call: returns a number.
    let pthread = unsafe { libc::pthread_self() };
    let kept = Rc::new(Cell::new(n));
    let other = kept.clone();
    let name = std::thread::current().name().map(str::to_owned);
    let mut text = String::new();
    for round in 0..rounds {
        let stamp = n << 32 | round;
        CELL.set(stamp);
        LAZY.with_borrow_mut(|lazy| lazy.push(stamp));
        kept.set(stamp);
        text.clear();
        text.push_str(&format!("{n}/{round}"));
        let boxed = Box::new([stamp; 9]);
        let before = me.at.load(Ordering::Relaxed);
        // SAFETY: Plain Call: the calling thread's errno.
        unsafe { *errno() = (stamp % 120) as i32 + 1 };
        let held = LAZY.with(|lazy| {
            let held = lazy.borrow_mut();
            pass_keeping_errno(&crew, (stamp % 120) as i32 + 1);
            held.len()
        });
        assert_eq!(CELL.get(), stamp, "a thread-local without a destructor");
        assert_eq!(LAZY.with_borrow_mut(|lazy| lazy.pop()), Some(stamp), "one with");
        assert!(held >= 2 && other.get() == stamp && *boxed == [stamp; 9]);
        assert_eq!(text, format!("{n}/{round}"));
        assert_eq!(std::thread::current().id(), id, "current()");
        // SAFETY: Plain Call: returns a number.
        assert_eq!(unsafe { libc::pthread_self() }, pthread, "pthread_self()");
        moved.fetch_add(u64::from(before != me.at.load(Ordering::Relaxed)), Ordering::Relaxed);
        if round % 97 == 0 {
            panics_and_traces(&crew, n);
        }
        if round % 997 == 0 {
            coupled_it_is_on_its_own_kernel_thread(&crew);
            assert_eq!(cpu_time_of(pthread), 0);
        }
    }
    assert_eq!(std::thread::current().name(), name.as_deref());
}

fn pass_keeping_errno(crew: &Crew, expected: i32) {
    let me = me();
    // Taking the queue's lock may wait in the kernel, which changes errno. So errno is set and read
    // right before and after the switch.
    let Some(next) = crew.queue.lock().unwrap().pop_front() else { return };
    crew.switches.fetch_add(1, Ordering::Relaxed);
    let seat = me.at.load(Ordering::Relaxed);
    next.at.store(seat, Ordering::Relaxed);
    // SAFETY: One Place: as in `Crew::pass`.
    unsafe {
        (*seat).left.set(Some(me.clone()));
        *errno() = expected;
        me.context.switch_to(&next.context);
        assert_eq!(*errno(), expected, "errno");
        crew.arrived(&*me.at.load(Ordering::Relaxed));
    }
}

fn panics_and_traces(crew: &Crew, n: u64) {
    quiet_panics();
    let caught = catch_unwind(AssertUnwindSafe(|| {
        struct Passes<'a>(&'a Crew);
        impl Drop for Passes<'_> {
            fn drop(&mut self) {
                assert!(std::thread::panicking());
                // Other contexts run while this one unwinds. Each of them checks that it is not
                // panicking itself.
                self.0.pass();
                assert!(std::thread::panicking());
            }
        }
        let _passes = Passes(crew);
        assert!(!std::thread::panicking(), "another's panic");
        std::panic::panic_any(n);
    }));
    assert_eq!(caught.expect_err("it panicked").downcast_ref(), Some(&n));
    assert!(!std::thread::panicking());
    let trace = std::backtrace::Backtrace::force_capture().to_string();
    let outer = trace.contains("one_life") && trace.contains("beyond_the_gap");
    assert!(outer && trace.contains("thread_start"), "up to where the thread began: {trace}");
}

fn quiet_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if info.payload().downcast_ref::<u64>().is_none() {
                before(info);
            }
        }));
    });
}

fn kernel_thread() -> libc::pid_t {
    // SAFETY: Plain Call: returns a number.
    unsafe { libc::gettid() }
}

fn blocked_signals() -> bool {
    // SAFETY: Plain Call: the set outlives both calls.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut set);
        libc::sigismember(&set, libc::SIGTERM) == 1
    }
}

fn coupled_it_is_on_its_own_kernel_thread(crew: &Crew) {
    thread_local!(static OWN: Cell<libc::pid_t> = const { Cell::new(0) });
    crew.coupled(|| {
        if OWN.get() == 0 {
            OWN.set(kernel_thread());
        }
        assert_eq!(OWN.get(), kernel_thread(), "always the same");
        assert!(!blocked_signals(), "with its own signal mask");
    });
    assert_ne!(OWN.get(), kernel_thread(), "on a host again");
}

#[test]
fn locks_that_know_their_thread_are_held_over_switches_and_hosts() {
    let _alone = alone();
    let crew = Arc::new(Crew::default());
    let workers = (0..16u64)
        .map(|n| {
            crew.clone().worker(move || {
                let crew = self::crew();
                for kind in [libc::PTHREAD_MUTEX_RECURSIVE, libc::PTHREAD_MUTEX_ERRORCHECK] {
                    held_over_switches(&crew, kind, n.is_multiple_of(2));
                }
                let std_lock = Mutex::new(n);
                for _ in 0..500 {
                    let mut guard = std_lock.lock().unwrap();
                    let out = std::io::stdout().lock();
                    drop(out);
                    crew.pass();
                    *guard += 1;
                }
                assert_eq!(*std_lock.lock().unwrap(), n + 500);
            })
        })
        .collect();
    crew.finish(3, workers);
}

fn held_over_switches(crew: &Crew, kind: i32, robust: bool) {
    // SAFETY: Plain Call: the mutex is in this frame. It is initialised, used by this thread only,
    // and destroyed.
    unsafe {
        let mut kinds: libc::pthread_mutexattr_t = std::mem::zeroed();
        assert_eq!(libc::pthread_mutexattr_init(&mut kinds), 0);
        assert_eq!(libc::pthread_mutexattr_settype(&mut kinds, kind), 0);
        if robust {
            let how = libc::PTHREAD_MUTEX_ROBUST;
            assert_eq!(libc::pthread_mutexattr_setrobust(&mut kinds, how), 0);
        }
        let mut mutex: libc::pthread_mutex_t = std::mem::zeroed();
        assert_eq!(libc::pthread_mutex_init(&mut mutex, &kinds), 0);
        for _ in 0..200 {
            assert_eq!(libc::pthread_mutex_lock(&mut mutex), 0);
            crew.pass();
            let again = libc::pthread_mutex_lock(&mut mutex);
            if kind == libc::PTHREAD_MUTEX_RECURSIVE {
                assert_eq!(again, 0, "its owner locks it again");
                assert_eq!(libc::pthread_mutex_unlock(&mut mutex), 0);
            } else {
                assert_eq!(again, libc::EDEADLK, "its owner is known");
            }
            crew.pass();
            assert_eq!(libc::pthread_mutex_unlock(&mut mutex), 0, "and unlocks it");
        }
        assert_eq!(libc::pthread_mutex_destroy(&mut mutex), 0);
    }
}

#[test]
fn destructors_of_thread_locals_run_at_the_end_on_their_own_kernel_thread() {
    let _alone = alone();
    static RIGHT: AtomicUsize = AtomicUsize::new(0);
    struct Last(Cell<libc::pid_t>, std::thread::ThreadId);
    impl Drop for Last {
        fn drop(&mut self) {
            let right = self.0.get() == kernel_thread()
                && self.1 == std::thread::current().id()
                && !blocked_signals();
            RIGHT.fetch_add(usize::from(right), Ordering::Relaxed);
        }
    }
    thread_local!(static LAST: Last = Last(Cell::new(0), std::thread::current().id()));
    let crew = Arc::new(Crew::default());
    let workers = (0..64)
        .map(|_| {
            crew.clone().worker(|| {
                let crew = self::crew();
                LAST.with(|_| crew.pass());
                crew.coupled(|| LAST.with(|last| last.0.set(kernel_thread())));
                crew.pass();
            })
        })
        .collect();
    crew.finish(2, workers);
    assert_eq!(RIGHT.load(Ordering::Relaxed), 64);
}

/// Returns the rounding bits of both control words.
#[cfg(target_arch = "x86_64")]
fn control_words() -> (u32, u16) {
    let (mut sse, mut x87) = (0u32, 0u16);
    // SAFETY: Plain Call: both words outlive the instructions.
    unsafe {
        asm!("stmxcsr [{}]", "fnstcw [{}]", in(reg) &mut sse, in(reg) &mut x87, options(nostack));
    }
    (sse & 0x6000, x87 & 0xc00)
}

#[cfg(target_arch = "x86_64")]
fn set_control_words(sse: u32, x87: u16) {
    let (sse, x87) = (0x1f80 | sse, 0x37f | x87);
    // SAFETY: Plain Call: these are the words that the processor starts with, except for the
    // rounding, on which no computation here depends.
    unsafe { asm!("ldmxcsr [{}]", "fldcw [{}]", in(reg) &sse, in(reg) &x87, options(nostack)) };
}

/// Returns two parts of the one control word of aarch64 as if they were two words: the rounding,
/// and the treatment of tiny numbers.
#[cfg(target_arch = "aarch64")]
fn control_words() -> (u32, u16) {
    let fpcr: u64;
    // SAFETY: Plain Call: reads a register.
    unsafe { asm!("mrs {}, fpcr", out(reg) fpcr, options(nomem, nostack)) };
    ((fpcr >> 22 & 3) as u32 * 0x2000, (fpcr >> 24 & 3) as u16 * 0x400)
}

#[cfg(target_arch = "aarch64")]
fn set_control_words(rounding: u32, tiny: u16) {
    let fpcr = u64::from(rounding / 0x2000) << 22 | u64::from(tiny / 0x400) << 24;
    // SAFETY: Plain Call: the word that the processor starts with, except for bits on which no
    // computation here depends.
    unsafe { asm!("msr fpcr, {}", in(reg) fpcr, options(nomem, nostack)) };
}

#[test]
fn control_words_of_the_processor_are_a_contexts_own() {
    let _alone = alone();
    const WAYS: [(u32, u16); 4] = [(0, 0), (0x2000, 0), (0, 0x400), (0x4000, 0x800)];
    let crew = Arc::new(Crew::default());
    let workers = (0..8)
        .map(|n: usize| {
            crew.clone().worker(move || {
                let (crew, mine) = (self::crew(), WAYS[n % 4]);
                set_control_words(mine.0, mine.1);
                for round in 0..500 {
                    crew.pass();
                    assert_eq!(control_words(), mine, "round {round}");
                    if round % 50 == 0 {
                        crew.coupled(|| assert_eq!(control_words(), mine, "coupled"));
                    }
                }
                set_control_words(0, 0);
            })
        })
        .collect();
    crew.finish(2, workers);
}

fn pin_to(cpu: usize) {
    // SAFETY: Plain Call: the set outlives the call.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &set), 0);
    }
}

fn cpus() -> Vec<usize> {
    // SAFETY: Plain Call: the set outlives the call.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&set), &mut set), 0);
        (0..1024).filter(|cpu| libc::CPU_ISSET(*cpu, &set)).collect()
    }
}

/// If restartable sequences were registered, glibc would read the processor's number from the
/// thread control block, where the kernel has written that of the context's own kernel thread.
#[test]
fn the_processors_number_is_that_of_the_host() {
    let _alone = alone();
    let [home, away, ..] = cpus()[..] else { return };
    let crew = Arc::new(Crew::default());
    let worker = crew.worker(move || {
        let crew = self::crew();
        crew.coupled(|| pin_to(home));
        // SAFETY: Plain Call: returns a number.
        crew.coupled(|| assert_eq!(unsafe { libc::sched_getcpu() }, home as i32));
        // SAFETY: Plain Call: returns a number.
        assert_eq!(unsafe { libc::sched_getcpu() }, away as i32);
    });
    let host = crew.clone();
    std::thread::spawn(move || {
        pin_to(away);
        host.host();
    });
    worker.join().expect("a worker");
}

#[test]
fn another_threads_setgid_reaches_hosts_and_sleeping_kernel_threads_alike() {
    let _alone = alone();
    let crew = Arc::new(Crew::default());
    let (stop, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let workers: Vec<_> = (0..8)
        .map(|_| {
            let (stop, seen) = (stop.clone(), seen.clone());
            crew.clone().worker(move || {
                let crew = self::crew();
                while !stop.load(Ordering::Relaxed) {
                    crew.pass();
                }
                crew.coupled(|| {
                    seen.fetch_add(1, Ordering::Relaxed);
                });
            })
        })
        .collect();
    let caller = std::thread::spawn(move || {
        for _ in 0..20 {
            // SAFETY: Plain Call: sets the group that the process has already. glibc signals every
            // thread, and nothing changes.
            assert_eq!(unsafe { libc::setgid(libc::getgid()) }, 0);
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        stop.store(true, Ordering::Relaxed);
    });
    crew.finish(2, workers);
    caller.join().expect("credentials change and do not hang");
    assert_eq!(seen.load(Ordering::Relaxed), 8);
}
