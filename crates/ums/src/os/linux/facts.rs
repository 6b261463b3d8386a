//! Facts about this system, and what follows from them: the text of `ums probe`.
//!
//! Whatever can be tried is tried, and not concluded from a version number: rings are set up with
//! each flag, events are opened, a page is guarded. The kernel's answer is kept. Each [`Fact`] has
//! a *name*, a *value* and a *consequence*, which says what ums does because of the value. If the
//! system refuses something, the consequence says why, and what would change that.
//!
//! Reading the facts takes a few milliseconds and leaves nothing behind: every descriptor and
//! mapping is closed on return. The probes do not disturb the process: no event is enabled, and no
//! I/O is submitted. This file does not choose the I/O back end; it only reports what is available.

use std::fmt;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;

use rustix::process::{Resource, getrlimit};

use super::cgroup::Groups;
use super::cpus::{Cpus, Limit};
use super::room::{Cost, Left, MAPPINGS_OF_THREAD, Room, smallest};
use super::trial;
use super::uring_probe::{OPERATIONS, Uring, under_seccomp};
use crate::os::limits;

/// One line of `ums probe`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// The name of the fact; stable, for programs.
    pub name: &'static str,
    /// The system's answer.
    pub value: String,
    /// What follows from the value; empty if nothing does.
    pub consequence: String,
}

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, value) = (self.name, &self.value);
        match self.consequence.as_str() {
            "" => write!(f, "{name:<24} {value}"),
            consequence => write!(f, "{name:<24} {value:<24} {consequence}"),
        }
    }
}

/// Whether the events of block watch can be opened. An error is the error number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Perf {
    /// `/proc/sys/kernel/perf_event_paranoid`.
    pub paranoid: Option<i64>,
    /// Whether an event can be opened that sends SIGTRAP at each context switch. By that event
    /// block watch notices that a worker blocks, and stops the worker before it runs its own code
    /// again.
    pub gate: Result<(), i32>,
    /// Whether a ring of context switch records can be opened. It only notices that a worker
    /// blocks, and needs no privilege.
    pub notify: Result<(), i32>,
}

/// Everything that `ums probe` finds about a system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The release of the kernel.
    pub kernel: String,
    /// The processors, and the limit that decides how many there are.
    pub cpus: Cpus,
    /// The number of bytes in a page.
    pub page_size: usize,
    /// The clock source of the kernel.
    pub clocksource: Option<String>,
    /// The flags and operations of io_uring, or the reason why it is refused.
    pub uring: Uring,
    /// Which perf events can be opened.
    pub perf: Perf,
    /// Whether `MADV_GUARD_INSTALL` works (6.13).
    pub guard_install: Result<(), i32>,
    /// Whether user code may set the FS base (bit 1 of `AT_HWCAP2` on x86-64).
    pub fsgsbase: bool,
    /// The largest number of mappings of a process.
    pub max_map_count: Option<u64>,
    /// The soft and the hard limit of open files; `None` is unlimited.
    pub open_files: (Option<u64>, Option<u64>),
    /// The soft limit of locked memory, in bytes; `None` is unlimited.
    pub locked_memory: Option<u64>,
    /// The largest number of threads of the whole system.
    pub threads_max: Option<u64>,
    /// The largest number of threads of our control group, by its limit and those of its ancestors.
    pub group_threads: Option<u64>,
    /// The largest memory of our control group, in bytes, by its limit and those of its ancestors.
    pub group_memory: Option<u64>,
    /// For each kind of worker, how many with default stacks a node creates at most, and which
    /// resource sets that limit.
    pub workers: [(&'static str, usize, &'static str); 3],
    /// Whether this process has a seccomp filter.
    pub seccomp: bool,
}

impl Facts {
    /// Reads all facts from the system.
    ///
    /// ```
    /// # use ums::probe::Facts;
    /// let lines = Facts::read().lines();
    /// for fact in &lines {
    ///     println!("{fact}");
    /// }
    /// assert!(ums::probe::facts_to_json(&lines).contains("\"kernel\""));
    /// ```
    pub fn read() -> Facts {
        let groups = Groups::read(Path::new("/"));
        let open_files = getrlimit(Resource::Nofile);
        Facts {
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            cpus: Cpus::read(),
            page_size: rustix::param::page_size(),
            clocksource: text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            uring: Uring::read(),
            perf: Perf {
                paranoid: text("/proc/sys/kernel/perf_event_paranoid").and_then(|t| t.parse().ok()),
                gate: trial::perf_gate().map_err(errno),
                notify: trial::perf_notify().map_err(errno),
            },
            guard_install: trial::guard_install().map_err(errno),
            fsgsbase: cfg!(target_arch = "x86_64") && rustix::param::linux_hwcap().1 & 2 != 0,
            max_map_count: super::room::max_map_count(),
            open_files: (open_files.current, open_files.maximum),
            locked_memory: getrlimit(Resource::Memlock).current,
            threads_max: number("/proc/sys/kernel/threads-max"),
            group_threads: smallest(&groups, "pids", &["pids.max"]),
            group_memory: smallest(&groups, "memory", &["memory.max", "memory.limit_in_bytes"]),
            workers: workers(),
            seccomp: under_seccomp(),
        }
    }

    /// Returns the facts in the order in which they are printed.
    pub fn lines(&self) -> Vec<Fact> {
        let mut lines = vec![fact("kernel", self.kernel.clone(), "")];
        self.cpu_lines(&mut lines);
        self.uring_lines(&mut lines);
        self.perf_lines(&mut lines);
        self.memory_lines(&mut lines);
        self.limit_lines(&mut lines);
        lines.extend(BUILD.map(|(name, is_there, without)| {
            fact(name, yes(is_there), if is_there { "" } else { without })
        }));
        lines
    }

    fn cpu_lines(&self, lines: &mut Vec<Fact>) {
        let cpus = &self.cpus;
        let schedulers = match cpus.count {
            1 => "1 scheduler".to_string(),
            n => format!("{n} schedulers"),
        };
        let others = format!("{schedulers}; decided by: {}", cpus.decided_by);
        lines.push(fact("cpus", cpus.count.to_string(), &others));
        lines.push(fact("cpus.affinity", cpus.affinity.to_string(), ""));
        let cpuset = cpus.cpuset.map_or("none".to_string(), |n| n.to_string());
        lines.push(fact("cpus.cpuset", cpuset, ""));
        let (quota, consequence) = match &cpus.quota {
            None => ("none".to_string(), String::new()),
            Some(quota) => {
                let value = format!("{} us in {} us", quota.quota_us, quota.period_us);
                let whole = match quota.cpus() {
                    1 => "1 processor".to_string(),
                    n => format!("{n} processors"),
                };
                let by = quota.group.display();
                let stops = match cpus.decided_by {
                    Limit::Quota => "rounded up",
                    _ => "does not bind",
                };
                (value, format!("{whole}, {stops}; set by {by}"))
            }
        };
        lines.push(fact("cpus.quota", quota, &consequence));
        let source = self.clocksource.clone();
        let consequence = match source.as_deref() {
            Some("tsc" | "kvm-clock" | "arch_sys_counter" | "hyperv_clocksource_tsc_page") => {
                "the time is read without a system call"
            }
            Some(_) => "reading the time is a system call: expect slow turns while timers wait",
            None => "not readable here",
        };
        lines.push(fact("clocksource", source.unwrap_or("unknown".into()), consequence));
    }

    fn uring_lines(&self, lines: &mut Vec<Fact>) {
        let flags = match &self.uring {
            Uring::Works(flags) => flags,
            Uring::Refused { errno, cause } => {
                let value = format!("refused ({})", errno_name(*errno));
                lines.push(fact("io_uring", value, &format!("sockets use epoll; {cause}")));
                return;
            }
        };
        let consequence = match flags.defer_taskrun {
            true => "fiber schedulers own a ring; the kernel works on it only at their turns",
            false => "fiber schedulers own a ring; the kernel may interrupt them to work on it",
        };
        lines.push(fact("io_uring", "allowed".to_string(), consequence));
        let tried = [
            ("io_uring.single_issuer", flags.single_issuer, "6.0"),
            ("io_uring.defer_taskrun", flags.defer_taskrun, "6.1"),
            ("io_uring.coop_taskrun", flags.coop_taskrun, "5.19"),
            ("io_uring.taskrun_flag", flags.taskrun_flag, "5.19"),
        ];
        for (name, works, since) in tried {
            let consequence = if works { String::new() } else { format!("needs Linux {since}") };
            lines.push(fact(name, yes(works), &consequence));
        }
        let known = OPERATIONS.len() - flags.missing_ops.len();
        let value = format!("{known} of {}", OPERATIONS.len());
        let consequence = match flags.missing_ops.as_slice() {
            [] => String::new(),
            missing => format!("done by other means: {}", missing.join(", ")),
        };
        lines.push(fact("io_uring.operations", value, &consequence));
    }

    fn perf_lines(&self, lines: &mut Vec<Fact>) {
        let perf = &self.perf;
        let paranoid = perf.paranoid.map_or("unknown".to_string(), |n| n.to_string());
        lines.push(fact("perf.paranoid", paranoid, ""));
        let hint = match perf.gate {
            Ok(()) => String::new(),
            Err(libc::EACCES) => "; CAP_PERFMON or perf_event_paranoid <= 1 would allow it".into(),
            Err(_) if self.seccomp => "; a seccomp filter is active: allow perf_event_open".into(),
            Err(_) => "; needs Linux 5.13".to_string(),
        };
        let consequence = match perf.gate {
            Ok(()) => "block watch can notice and gate blocking workers".to_string(),
            Err(_) => format!("no gate for blocking workers by this means{hint}"),
        };
        lines.push(fact("perf.gate", outcome(perf.gate), &consequence));
        let consequence = match perf.notify {
            Ok(()) => "context switches of a worker can be read from a ring",
            Err(_) => "block watch reads the state of workers from /proc instead",
        };
        lines.push(fact("perf.notify", outcome(perf.notify), consequence));
    }

    fn memory_lines(&self, lines: &mut Vec<Fact>) {
        lines.push(fact("page_size", self.page_size.to_string(), ""));
        let maps = self.max_map_count;
        let value = maps.map_or("unknown".to_string(), |n| n.to_string());
        let guard = match self.guard_install {
            // `MADV_GUARD_INSTALL` does not split the mapping; a guard made by `mprotect` does.
            Ok(()) => "fiber stacks share mappings",
            Err(_) => "each fiber stack needs two mappings",
        };
        lines.push(fact("guard_install", outcome(self.guard_install), guard));
        let of_thread = format!("each thread worker takes {MAPPINGS_OF_THREAD} mappings");
        lines.push(fact("max_map_count", value, &of_thread));
        let consequence = match self.fsgsbase {
            true => "a worker's thread context can be switched in user mode",
            false => "switching a thread context needs a system call",
        };
        lines.push(fact("fsgsbase", yes(self.fsgsbase), consequence));
        let memory = self.group_memory.map_or("none".to_string(), |n| n.to_string());
        lines.push(fact("memory_limit", memory, ""));
    }

    fn limit_lines(&self, lines: &mut Vec<Fact>) {
        let (soft, hard) = self.open_files;
        let value = format!("{} of {}", limit(soft), limit(hard));
        let consequence = match soft {
            Some(files) => format!("about {} connections", files.saturating_sub(64)),
            None => String::new(),
        };
        lines.push(fact("open_files", value, &consequence));
        let small = self.locked_memory.is_some_and(|bytes| bytes < 8 << 20);
        let consequence = if small { "registered buffers stay small" } else { "" };
        lines.push(fact("locked_memory", limit(self.locked_memory), consequence));
        lines.push(fact("threads_max", limit_or_unknown(self.threads_max), ""));
        let consequence = match self.group_threads {
            Some(n) => format!("at most {n} threads in this control group, all workers included"),
            None => String::new(),
        };
        lines.push(fact("group_threads", limit(self.group_threads), &consequence));
        for (name, workers, set_by) in self.workers {
            lines.push(fact(name, workers.to_string(), &format!("set by: {set_by}")));
        }
        lines.push(fact("seccomp", yes(self.seccomp), ""));
    }
}

/// The features of this crate that a program can leave out, whether this program has them, and what
/// it lacks without them.
const BUILD: [(&str, bool, &str); 5] = [
    (
        "build.monitor",
        cfg!(feature = "monitor"),
        "workers that do not yield, stuck schedulers and deadlocks are not noticed",
    ),
    (
        "build.metrics",
        cfg!(feature = "metrics"),
        "ums top, ums stats and Prometheus cannot read this program",
    ),
    ("build.traces", cfg!(feature = "traces"), "traces cannot be written to files"),
    ("build.symbols", cfg!(feature = "symbols"), "backtraces have addresses instead of names"),
    ("build.windows", cfg!(feature = "windows"), "Windows' interface is missing"),
];

/// Returns the facts as one JSON object: each name with its value and consequence.
pub fn to_json(lines: &[Fact]) -> String {
    let mut json = String::from("{");
    for (n, fact) in lines.iter().enumerate() {
        json.push_str(if n == 0 { "\n  " } else { ",\n  " });
        push_quoted(&mut json, fact.name);
        json.push_str(": {\"value\": ");
        push_quoted(&mut json, &fact.value);
        json.push_str(", \"consequence\": ");
        push_quoted(&mut json, &fact.consequence);
        json.push('}');
    }
    json.push_str("\n}\n");
    json
}

fn push_quoted(json: &mut String, text: &str) {
    json.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => json.extend(['\\', c]),
            c if c < ' ' => {
                // Writing to a String cannot fail.
                let _ = write!(json, "\\u{:04x}", c as u32);
            }
            c => json.push(c),
        }
    }
    json.push('"');
}

fn workers() -> [(&'static str, usize, &'static str); 3] {
    let left = Left::read();
    let kinds = [
        ("workers.thread", Cost::of_thread(limits::THREAD_STACK)),
        ("workers.fiber", Cost::of_fiber(limits::FIBER_STACK, false)),
        ("workers.context", Cost::of_context(limits::THREAD_STACK)),
    ];
    kinds.map(|(name, cost)| {
        let room = Room::for_workers(cost, &left);
        (name, room.workers, room.set_by)
    })
}

fn fact(name: &'static str, value: String, consequence: &str) -> Fact {
    Fact { name, value, consequence: consequence.to_string() }
}

fn yes(yes: bool) -> String {
    if yes { "yes" } else { "no" }.to_string()
}

fn outcome(result: Result<(), i32>) -> String {
    match result {
        Ok(()) => "works".to_string(),
        Err(errno) => format!("refused ({})", errno_name(errno)),
    }
}

fn limit(limit: Option<u64>) -> String {
    limit.map_or("unlimited".to_string(), |n| n.to_string())
}

fn limit_or_unknown(limit: Option<u64>) -> String {
    limit.map_or("unknown".to_string(), |n| n.to_string())
}

fn text(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_string())
}

fn number(path: &str) -> Option<u64> {
    text(path)?.parse().ok()
}

fn errno(error: io::Error) -> i32 {
    error.raw_os_error().unwrap_or(0)
}

/// Returns the name of an error number that a probe may see.
fn errno_name(errno: i32) -> String {
    let name = match errno {
        libc::EPERM => "EPERM",
        libc::EACCES => "EACCES",
        libc::ENOSYS => "ENOSYS",
        libc::EINVAL => "EINVAL",
        libc::ENOENT => "ENOENT",
        libc::ENODEV => "ENODEV",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        libc::ENOMEM => "ENOMEM",
        libc::EMFILE => "EMFILE",
        libc::ENFILE => "ENFILE",
        libc::E2BIG => "E2BIG",
        other => return format!("error {other}"),
    };
    name.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(facts: &Facts, name: &str) -> Fact {
        facts.lines().into_iter().find(|fact| fact.name == name).unwrap()
    }

    #[test]
    fn every_fact_of_this_system_has_a_value_and_a_name_of_its_own() {
        let lines = Facts::read().lines();
        let mut names: Vec<_> = lines.iter().map(|fact| fact.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), lines.len(), "names are keys");
        assert!(lines.iter().all(|fact| !fact.value.is_empty()));
    }

    #[test]
    fn probing_leaves_no_descriptor_behind() {
        let test = std::thread::spawn(|| {
            trial::unshare_descriptors();
            let open = || fs::read_dir("/proc/thread-self/fd").unwrap().count();
            let before = open();
            let _ = Facts::read();
            assert_eq!(open(), before);
        });
        test.join().unwrap();
    }

    #[test]
    fn a_refused_ring_says_that_sockets_use_epoll() {
        let mut facts = Facts::read();
        let cause = "a seccomp filter denies it".to_string();
        facts.uring = Uring::Refused { errno: libc::EPERM, cause };
        let fact = line(&facts, "io_uring");
        assert_eq!(fact.value, "refused (EPERM)");
        assert!(fact.consequence.starts_with("sockets use epoll; a seccomp filter"));
        assert!(!facts.lines().iter().any(|fact| fact.name.starts_with("io_uring.")));
    }

    #[test]
    fn a_binding_quota_is_the_consequence_of_its_group_b55() {
        let mut facts = Facts::read();
        let group = "/sys/fs/cgroup/a".into();
        facts.cpus.quota =
            Some(super::super::cpus::Quota { quota_us: 150_000, period_us: 100_000, group });
        facts.cpus.count = 2;
        facts.cpus.decided_by = Limit::Quota;
        assert_eq!(line(&facts, "cpus").consequence, "2 schedulers; decided by: cgroup quota");
        let quota = line(&facts, "cpus.quota");
        assert_eq!(quota.value, "150000 us in 100000 us");
        assert_eq!(quota.consequence, "2 processors, rounded up; set by /sys/fs/cgroup/a");
    }

    #[test]
    fn without_guards_by_advice_mappings_limit_fibers_too() {
        let mut facts = Facts::read();
        facts.max_map_count = Some(65_530);
        let of_thread = line(&facts, "max_map_count");
        assert_eq!(of_thread.value, "65530");
        assert_eq!(of_thread.consequence, "each thread worker takes 4 mappings");
        facts.guard_install = Ok(());
        assert_eq!(line(&facts, "guard_install").consequence, "fiber stacks share mappings");
        facts.guard_install = Err(libc::EINVAL);
        let refused = line(&facts, "guard_install");
        assert_eq!(refused.value, "refused (EINVAL)");
        assert_eq!(refused.consequence, "each fiber stack needs two mappings");
    }

    #[test]
    fn json_escapes_what_must_be_escaped() {
        let fact = fact("kernel", "a \"b\" \\ \n".to_string(), "");
        let json = to_json(&[fact]);
        let expected = r#"{"value": "a \"b\" \\ \u000a", "consequence": ""}"#;
        assert_eq!(json, format!("{{\n  \"kernel\": {expected}\n}}\n"));
    }

    #[test]
    fn a_line_without_consequence_has_no_trailing_blanks() {
        let text = fact("seccomp", "no".to_string(), "").to_string();
        assert_eq!(text, "seccomp                  no");
    }
}
