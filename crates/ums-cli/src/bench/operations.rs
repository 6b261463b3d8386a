//! One operation after another on one scheduler, whose ends a debugger can see.
//!
//! `tests/clients/counts.py` single-steps the scheduler's thread and counts the instructions from
//! one call of [`mark`] to the next: those of one operation and of the loop around it. Where two
//! tasks take turns, only the first has marks, so an operation is what both do in one round. The
//! bench prints the function's address and the number of the thread before it begins.

use std::sync::Arc;
use std::time::Duration;

use ums::fs::{DirectBuffer, File};
use ums::sync::{Event, Mutex, Semaphore, channel};

use super::meter::{BenchArgs, Lines, Ran, Stop};
use super::setup::Setup;

/// Long enough that the scheduler sleeps in the kernel, even if it is single-stepped.
const SLEEP: Duration = Duration::from_millis(300);
/// Longer than any run.
const LIMIT: Duration = Duration::from_secs(3600);
const BLOCK: u64 = 4096;
/// The tasks of a batch.
const BATCH: usize = 100;
/// How often the operation is done before it is counted. After that, the library has learnt which
/// scheduler uses a lock.
const WARM_UP: u64 = 100;

/// `operations of= n= file=`.
pub fn operations(args: &BenchArgs) -> Ran {
    let setup = Setup::read(args)?.without_warnings();
    let of = args.text("of", "yield").to_owned();
    let n = args.number("n", 1000)?;
    let file = args.text("file", "").to_owned();
    args.all_known()?;
    let Some((_, run)) = OPERATIONS.iter().find(|(name, _)| *name == of) else {
        let names: Vec<_> = OPERATIONS.iter().map(|(name, _)| *name).collect();
        return Err(Stop::Usage(format!("of={of}: one of {}", names.join(", "))));
    };
    let lines = setup.lines(format!("operations/{of}"));
    setup.node(1, 16)?.run(move || run(&Loop { n, file, lines }))
}

type Operation = fn(&Loop) -> Ran;

const OPERATIONS: [(&str, Operation); 11] = [
    ("yield", yields),
    ("spawn", spawns),
    ("spawn-batch", spawn_batches),
    ("channel", round_trips),
    ("mutex-free", free_mutex),
    ("mutex-handed", handed_mutex),
    ("event", events),
    ("semaphore", semaphores),
    ("sleep", sleeps),
    ("timer-cancelled", cancelled_timers),
    ("read-direct", direct_reads),
];

/// How often an operation is repeated, and what it needs.
struct Loop {
    n: u64,
    file: String,
    lines: Lines,
}

impl Loop {
    /// Warms up, says where the marks are, and repeats the operation.
    fn each(&self, mut operation: impl FnMut()) {
        (0..WARM_UP).for_each(|_| operation());
        self.each_counted(operation);
    }

    /// Says where the marks are, and repeats the operation.
    fn each_counted(&self, mut operation: impl FnMut()) {
        self.lines.metric("mark", mark as fn() as usize as f64, "address");
        self.lines.metric("thread", rustix::thread::gettid().as_raw_pid().into(), "id");
        for _ in 0..self.n {
            operation();
            mark();
        }
    }

    /// Does the same while a second task repeats `other`.
    fn each_beside(&self, other: impl Fn() + Send + 'static, mine: impl Fn()) {
        let n = self.n + WARM_UP;
        let beside = ums::spawn(move || (0..n).for_each(|_| other()));
        self.each(mine);
        beside.join().expect("the task beside");
    }
}

/// The end of an operation.
#[inline(never)]
fn mark() {
    std::hint::black_box(0);
}

/// Two tasks yield to each other: two yields.
fn yields(of: &Loop) -> Ran {
    of.each_beside(ums::yield_now, ums::yield_now);
    Ok(())
}

/// A task is spawned and joined.
fn spawns(of: &Loop) -> Ran {
    of.each(|| ums::spawn(|| {}).join().expect("an empty task"));
    Ok(())
}

/// A hundred tasks are spawned, and then joined in that order.
fn spawn_batches(of: &Loop) -> Ran {
    let mut tasks = Vec::new();
    of.each(|| {
        tasks.extend((0..BATCH).map(|_| ums::spawn(|| {})));
        tasks.drain(..).for_each(|task| task.join().expect("an empty task"));
    });
    Ok(())
}

/// A round trip over two channels. Both receives wait.
fn round_trips(of: &Loop) -> Ran {
    let (ping, pinged) = channel::bounded(1);
    let (pong, ponged) = channel::bounded(1);
    let other = move || pong.send(pinged.recv().unwrap_or(0)).unwrap_or(());
    of.each_beside(other, || {
        ping.send(1).expect("the other task receives");
        ponged.recv().expect("the other task sends");
    });
    Ok(())
}

/// A mutex is locked and unlocked, and no other task wants it.
fn free_mutex(of: &Loop) -> Ran {
    let mutex = Mutex::new(0);
    of.each(|| *mutex.lock() += 1);
    Ok(())
}

/// Two tasks want one mutex at any time: two locks that wait, and two unlocks that hand it over.
fn handed_mutex(of: &Loop) -> Ran {
    let mutex = Arc::new(Mutex::new(0));
    let theirs = mutex.clone();
    let first = mutex.lock();
    let n = of.n + WARM_UP;
    let beside = ums::spawn(move || (0..n).for_each(|_| *theirs.lock() += 1));
    // The other task begins to wait for the mutex.
    ums::yield_now();
    drop(first);
    of.each(|| *mutex.lock() += 1);
    beside.join().expect("the task beside");
    Ok(())
}

/// Two tasks set an event for each other: two sets, and two waits that wait.
fn events(of: &Loop) -> Ran {
    let (mine, theirs) = (Arc::new(Event::auto(false)), Arc::new(Event::auto(false)));
    let (set, wait) = (mine.clone(), theirs.clone());
    let other = move || {
        wait.wait().expect("no task is cancelled");
        set.set();
    };
    of.each_beside(other, || {
        theirs.set();
        mine.wait().expect("no task is cancelled");
    });
    Ok(())
}

/// The same with semaphores.
fn semaphores(of: &Loop) -> Ran {
    let (mine, theirs) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (give, take) = (mine.clone(), theirs.clone());
    let other = move || {
        take.acquire().expect("no task is cancelled").forget();
        give.add_permits(1);
    };
    of.each_beside(other, || {
        theirs.add_permits(1);
        mine.acquire().expect("no task is cancelled").forget();
    });
    Ok(())
}

/// A task sleeps, and the scheduler sleeps in the kernel until the timer fires.
fn sleeps(of: &Loop) -> Ran {
    of.each_counted(|| ums::sleep(SLEEP).expect("no task is cancelled"));
    Ok(())
}

/// As `events`, with waits that arm a timer and cancel it.
fn cancelled_timers(of: &Loop) -> Ran {
    let (mine, theirs) = (Arc::new(Event::auto(false)), Arc::new(Event::auto(false)));
    let (set, wait) = (mine.clone(), theirs.clone());
    let other = move || {
        wait.wait_for(LIMIT).expect("the event is set in time");
        set.set();
    };
    of.each_beside(other, || {
        theirs.set();
        mine.wait_for(LIMIT).expect("the event is set in time");
    });
    Ok(())
}

/// A block of a file is read with `O_DIRECT`.
fn direct_reads(of: &Loop) -> Ran {
    let path = &of.file;
    let skip = |error: std::io::Error| Stop::Skip(format!("{path}: {error}"));
    if path.is_empty() {
        return Err(Stop::Usage("file=FILE is needed: a file of 64 KiB or more".into()));
    }
    let file = File::options().read(true).direct(true).open(path).map_err(skip)?;
    let mut buffer = DirectBuffer::new(BLOCK as usize);
    let mut at = 0;
    file.read_exact_at(&mut buffer, 0).map_err(skip)?;
    of.each(|| {
        at = (at + 1) % 16;
        file.read_exact_at(&mut buffer, at * BLOCK).expect("the first block could be read");
    });
    Ok(())
}
