//! The processor time of a thread, the process and the computer, as the kernel counts it.
//!
//! The figures are read twice, and only when a stall is suspected; the diagnosis is made from the
//! difference. A figure that cannot be read counts as zero.

use std::path::Path;
use std::time::Duration;

use rustix::time::ClockId;

use crate::os::clock;
use crate::os::linux::cgroup::Groups;

/// What a thread used between two looks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ThreadUse {
    /// The kernel's id of the thread.
    pub id: u32,
    /// How long ago the thread was started.
    pub age: Duration,
    /// The thread's state: `R` runs or is ready, `S` sleeps, `D` sleeps uninterruptibly.
    pub state: char,
    /// Processor time in user mode.
    pub user: Duration,
    /// Processor time in the kernel.
    pub kernel: Duration,
    /// Time for which the thread was ready to run and had no processor.
    pub ready: Duration,
    /// How often the thread gave the processor up voluntarily.
    pub voluntary: u64,
    /// How often the processor was taken from the thread.
    pub involuntary: u64,
    /// The functions in the kernel that the thread sleeps in, the innermost first; empty if the
    /// kernel does not allow reading them.
    pub kernel_stack: Vec<String>,
}

/// What the process and the computer used between two looks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProcessUse {
    /// The time between the looks.
    pub interval: Duration,
    /// Processors of the computer that are online.
    pub processors: u32,
    /// How many of them the process may use, by its affinity.
    pub allowed: u32,
    /// Processor time of the whole process.
    pub used: Duration,
    /// Idle time of all processors together.
    pub idle: Duration,
    /// Time that the hypervisor took, of all processors together.
    pub stolen: Duration,
    /// Time for which the control group's quota kept the process from running.
    pub throttled: Duration,
}

impl ProcessUse {
    /// Returns the processor time that the process used, in per cent of all processors.
    pub fn percent_used(&self) -> u128 {
        self.percent(self.used)
    }

    /// Returns the processor time that was idle, in per cent of all processors.
    pub fn percent_idle(&self) -> u128 {
        self.percent(self.idle).min(100)
    }

    fn percent(&self, part: Duration) -> u128 {
        let all = self.interval.as_nanos() * u128::from(self.processors.max(1));
        part.as_nanos() * 100 / all.max(1)
    }
}

/// The figures read at one look.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    /// The time of the look, in nanoseconds of the clock.
    pub at: u64,
    thread: ThreadFigures,
    process_ns: u64,
    idle_ns: u64,
    stolen_ns: u64,
    throttled_ns: u64,
    processors: u32,
}

#[derive(Clone, Debug, Default)]
struct ThreadFigures {
    id: u32,
    age: Duration,
    state: char,
    user_ns: u64,
    kernel_ns: u64,
    /// Exact, in contrast to the two times above, which are counted in ticks of a hundredth of a
    /// second.
    ran_ns: u64,
    ready_ns: u64,
    voluntary: u64,
    involuntary: u64,
}

impl Figures {
    /// Reads the figures of this thread, the process and the computer.
    pub fn read(thread: u32) -> Figures {
        let stat = read("/proc/stat");
        let (idle_ns, stolen_ns) = machine(&stat);
        Figures {
            at: clock::now(),
            thread: ThreadFigures::read(thread),
            process_ns: time_ns(ClockId::ProcessCPUTime),
            idle_ns,
            stolen_ns,
            throttled_ns: throttled_ns(),
            processors: stat.lines().filter(|l| is_processor(l)).count() as u32,
        }
    }

    /// Returns the amounts that were used since `before`.
    pub fn since(&self, before: &Figures) -> (ThreadUse, ProcessUse) {
        let process = ProcessUse {
            interval: ns(self.at, before.at),
            processors: self.processors,
            allowed: allowed().min(self.processors),
            used: ns(self.process_ns, before.process_ns),
            idle: ns(self.idle_ns, before.idle_ns),
            stolen: ns(self.stolen_ns, before.stolen_ns),
            throttled: ns(self.throttled_ns, before.throttled_ns),
        };
        (self.thread.since(&before.thread, process.interval), process)
    }
}

impl ThreadFigures {
    fn read(id: u32) -> ThreadFigures {
        let file = |name: &str| read(&format!("/proc/self/task/{id}/{name}"));
        let (stat, status) = (file("stat"), file("status"));
        // The thread's name, which is in parentheses, may contain spaces and parentheses itself.
        let fields: Vec<&str> =
            stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
        let tick = |at: usize| number(fields.get(at)).saturating_mul(ns_per_tick());
        let since_boot = Duration::from_nanos(time_ns(ClockId::Boottime));
        let schedstat = file("schedstat");
        let mut times = schedstat.split_whitespace();
        let switches = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            number(line.map(str::trim).as_ref())
        };
        ThreadFigures {
            id,
            age: since_boot.saturating_sub(Duration::from_nanos(tick(19))),
            state: fields.first().and_then(|f| f.chars().next()).unwrap_or('?'),
            user_ns: tick(11),
            kernel_ns: tick(12),
            ran_ns: number(times.next().as_ref()),
            ready_ns: number(times.next().as_ref()),
            voluntary: switches("voluntary_ctxt_switches"),
            involuntary: switches("nonvoluntary_ctxt_switches"),
        }
    }

    fn since(&self, before: &ThreadFigures, interval: Duration) -> ThreadUse {
        let user = self.user_ns.saturating_sub(before.user_ns);
        let kernel = self.kernel_ns.saturating_sub(before.kernel_ns);
        let ran = self.ran_ns.saturating_sub(before.ran_ns);
        let (user, kernel) = split(ran, user, kernel);
        let asleep = matches!(self.state, 'S' | 'D');
        // The kernel adds the time that a thread was ready only when the thread runs again. So for
        // a thread that still waits for a processor the count has not grown yet. But if the thread
        // was ready at both looks and did not sleep in between, it waited for a processor whenever
        // it did not run.
        let stayed_awake = (self.id, self.state, before.state) == (before.id, 'R', 'R')
            && self.voluntary == before.voluntary;
        let at_least = if stayed_awake {
            interval.saturating_sub(user.saturating_add(kernel))
        } else {
            ns(0, 0)
        };
        ThreadUse {
            id: self.id,
            age: self.age,
            state: self.state,
            user,
            kernel,
            ready: ns(self.ready_ns, before.ready_ns).max(at_least),
            voluntary: self.voluntary.saturating_sub(before.voluntary),
            involuntary: self.involuntary.saturating_sub(before.involuntary),
            kernel_stack: if asleep { kernel_stack(self.id) } else { Vec::new() },
        }
    }
}

/// Splits the exact time into user and kernel time by their share of the ticks, in nanoseconds. If
/// there are fewer than three ticks, the time is too short to split and counts as user time: a
/// single tick may have come while the kernel switched threads. If there is no exact time, the
/// ticks are returned.
fn split(ran: u64, user_ticks: u64, kernel_ticks: u64) -> (Duration, Duration) {
    let ticks = user_ticks + kernel_ticks;
    if ran == 0 {
        return (Duration::from_nanos(user_ticks), Duration::from_nanos(kernel_ticks));
    }
    let kernel = match ticks < 3 * ns_per_tick() {
        true => 0,
        false => (u128::from(ran) * u128::from(kernel_ticks) / u128::from(ticks)) as u64,
    };
    (Duration::from_nanos(ran - kernel), Duration::from_nanos(kernel))
}

/// Returns where in the kernel a thread sleeps: its kernel stack if that may be read, otherwise the
/// innermost function.
fn kernel_stack(thread: u32) -> Vec<String> {
    let file = |name: &str| read(&format!("/proc/self/task/{thread}/{name}"));
    let stack = file("stack");
    // "[<0>] do_epoll_wait+0x5c/0xd0"
    let name = |line: &str| Some(line.split_whitespace().nth(1)?.split('+').next()?.to_owned());
    let frames: Vec<String> = stack.lines().filter_map(name).take(8).collect();
    if !frames.is_empty() {
        return frames;
    }
    let channel = file("wchan");
    let known = !channel.is_empty() && channel != "0";
    if known { vec![channel] } else { Vec::new() }
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn ns(now: u64, before: u64) -> Duration {
    Duration::from_nanos(now.saturating_sub(before))
}

fn number(text: Option<&&str>) -> u64 {
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn ns_per_tick() -> u64 {
    1_000_000_000 / rustix::param::clock_ticks_per_second().max(1)
}

/// Returns the number of processors in this thread's affinity. The thread inherited the affinity
/// from the thread that built the first node.
fn allowed() -> u32 {
    rustix::thread::sched_getaffinity(None).map_or(u32::MAX, |set| set.count())
}

fn is_processor(line: &str) -> bool {
    line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// Returns idle and stolen time of all processors together, from `/proc/stat`.
fn machine(stat: &str) -> (u64, u64) {
    let line = stat.lines().find(|line| line.starts_with("cpu ")).unwrap_or_default();
    let fields: Vec<&str> = line.split_whitespace().skip(1).collect();
    let tick = |at: usize| number(fields.get(at)).saturating_mul(ns_per_tick());
    // user nice system idle iowait irq softirq steal
    (tick(3) + tick(4), tick(7))
}

fn time_ns(clock: ClockId) -> u64 {
    let time = rustix::time::clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns for how long the process's control group, or one above it, was throttled.
fn throttled_ns() -> u64 {
    let Some(chain) = Groups::read(Path::new("/")).chain("cpu") else { return 0 };
    let of = |text: &str| {
        let named =
            |line: &str, name: &str| line.strip_prefix(name).map(str::trim).map(str::to_owned);
        text.lines().find_map(|line| {
            let us = named(line, "throttled_usec ").and_then(|n| n.parse::<u64>().ok());
            let ns = named(line, "throttled_time ").and_then(|n| n.parse::<u64>().ok());
            us.map(|us| us * 1000).or(ns)
        })
    };
    chain.texts("cpu.stat").filter_map(|(_, text)| of(&text)).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_computes_uses_processor_time_b33() {
        let me = crate::os::thread_number();
        let before = Figures::read(me);
        let began = std::time::Instant::now();
        while began.elapsed() < Duration::from_millis(60) {
            std::hint::spin_loop();
        }
        let (thread, process) = Figures::read(me).since(&before);
        assert_eq!(thread.id, me);
        assert_eq!(thread.state, 'R');
        let all = thread.user + thread.kernel + thread.ready;
        assert!(all >= Duration::from_millis(40), "{thread:?}");
        assert!(process.interval >= Duration::from_millis(60) && process.processors > 0);
        // The kernel brings the time of one thread up to date only at its ticks.
        let tick = Duration::from_nanos(ns_per_tick());
        assert!(process.used + tick >= thread.user, "{process:?}, {thread:?}");
    }

    #[test]
    fn a_thread_that_always_waits_for_a_processor_was_ready_all_the_time_b33_b34() {
        let ms = Duration::from_millis;
        let before = ThreadFigures { id: 7, state: 'R', ran_ns: 5_000_000, ..Default::default() };
        // No figure has changed: the thread has been waiting for a processor, and the kernel has
        // not counted that time yet.
        let used = before.since(&before, ms(80));
        assert_eq!((used.ready, used.user + used.kernel), (ms(80), ms(0)));
        let after = ThreadFigures { ran_ns: 35_000_000, ..before.clone() };
        assert_eq!(after.since(&before, ms(80)).ready, ms(50));
        // For a thread that slept meanwhile, or sleeps now, only the kernel's count is valid.
        for after in [
            ThreadFigures { voluntary: 1, ..before.clone() },
            ThreadFigures { state: 'S', ..before.clone() },
            ThreadFigures { id: 8, ..before.clone() },
        ] {
            assert_eq!(after.since(&before, ms(80)).ready, ms(0), "{after:?}");
        }
        let asleep = ThreadFigures { state: 'S', ..before.clone() };
        assert_eq!(before.since(&asleep, ms(80)).ready, ms(0));
    }

    #[test]
    fn exact_time_is_split_by_the_share_of_ticks_b33() {
        let ns = Duration::from_nanos;
        let tick = ns_per_tick();
        assert_eq!(split(900, 2 * tick, tick), (ns(600), ns(300)));
        assert_eq!(split(900, 0, 3 * tick), (ns(0), ns(900)));
        assert_eq!(split(900, 0, 2 * tick), (ns(900), ns(0)), "two ticks are too few");
        assert_eq!(split(900, 0, 0), (ns(900), ns(0)));
        assert_eq!(split(0, 20, 10), (ns(20), ns(10)));
    }

    #[test]
    fn the_line_of_all_processors_is_found_b33() {
        let stat = "cpu  10 0 5 70 30 0 0 9 0 0\ncpu0 1 2\ncpu1 1 2\nintr 5\n";
        let tick = ns_per_tick();
        assert_eq!(machine(stat), (100 * tick, 9 * tick));
        assert_eq!(stat.lines().filter(|line| is_processor(line)).count(), 2);
    }
}
