//! Room: for how many workers this system has resources, and which resource sets the limit.
//!
//! A worker needs memory, address space, mappings and perhaps a thread ([`Cost`]). The remaining
//! amount of each is read once, when a node is built ([`Left::read`]). Workers may use a share of
//! that amount: half of the memory, because a stack that is used more deeply than usual takes more
//! memory; and three quarters of each other resource, because when one of those runs out, the
//! system only refuses a request. The smallest result is the limit ([`Room::for_workers`]).
//!
//! What this file does not do: it reserves nothing. If another node or process uses up the resource
//! later, the creation of a worker fails.

use std::fs;
use std::path::Path;

use rustix::process::{Resource, getrlimit};

use super::cgroup::Groups;

/// Returns the largest number of mappings of a process.
pub fn max_map_count() -> Option<u64> {
    number(Path::new("/"), "proc/sys/vm/max_map_count")
}

/// Returns the strictest known limit of the threads that this process can have, and the limit's
/// name.
pub fn threads_left() -> Option<(u64, &'static str)> {
    thread_limits(Path::new("/")).min()
}

/// Returns all known limits of threads, with their names.
fn thread_limits(root: &Path) -> impl Iterator<Item = (u64, &'static str)> {
    let groups = Groups::read(root);
    // RLIMIT_NPROC limits all processes of the user together. The superuser is exempt from it.
    let held = !rustix::process::geteuid().is_root();
    let all = [
        (number(root, "proc/sys/kernel/threads-max"), "kernel.threads-max"),
        (number(root, "proc/sys/kernel/pid_max"), "kernel.pid_max"),
        (smallest(&groups, "pids", &["pids.max"]), "pids.max of the control group"),
        (getrlimit(Resource::Nproc).current.filter(|_| held), "RLIMIT_NPROC"),
    ];
    all.into_iter().filter_map(|(most, what)| most.map(|most| (most, what)))
}

/// Returns the smallest number in the files with these names, in the control group and its
/// ancestors.
pub fn smallest(groups: &Groups, controller: &str, names: &[&str]) -> Option<u64> {
    let chain = groups.chain(controller)?;
    names.iter().filter_map(|name| Some(chain.smallest(name)?.0)).min()
}

fn number(root: &Path, path: &str) -> Option<u64> {
    fs::read_to_string(root.join(path)).ok()?.trim().parse().ok()
}

/// The resources that a worker uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Used {
    Memory,
    AddressSpace,
    Mappings,
    Threads,
}

/// The mappings of a thread: its stack, the guard below that, its signal stack, and the guard below
/// that.
pub const MAPPINGS_OF_THREAD: u64 = 4;

/// What one worker needs of each resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Bytes of memory that are typically touched, including the kernel's own.
    memory: u64,
    address_space: u64,
    mappings: u64,
    threads: u64,
}

impl Cost {
    /// Returns the cost of a thread worker with a stack of this many bytes.
    pub fn of_thread(stack: usize) -> Cost {
        Cost {
            memory: 64 << 10,
            address_space: stack as u64 + (32 << 10),
            mappings: MAPPINGS_OF_THREAD,
            threads: 1,
        }
    }

    /// Returns the cost of a worker with its own context. Its thread runs on a pooled stack, as a
    /// fiber does, and has no other mapping.
    pub fn of_context(stack: usize) -> Cost {
        let mappings = mappings_of_pooled(stack);
        Cost { address_space: stack as u64 + (128 << 10), mappings, ..Cost::of_thread(stack) }
    }

    /// Returns how many mappings it takes.
    pub fn mappings(&self) -> u64 {
        self.mappings
    }

    /// Returns the cost of a fiber worker.
    pub fn of_fiber(stack: usize, precommit: bool) -> Cost {
        let mappings = mappings_of_pooled(stack);
        let memory = if precommit { stack as u64 } else { 32 << 10 };
        Cost { memory, address_space: stack as u64 + (32 << 10), mappings, threads: 0 }
    }
}

/// Returns how many mappings a pooled stack takes. If a guard does not split a mapping, many small
/// stacks share one.
fn mappings_of_pooled(stack: usize) -> u64 {
    match fiber::StackPool::guard_kind() {
        "mprotect" => 2,
        _ => u64::from(stack > 1 << 29),
    }
}

/// The remaining amount of one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    used: Used,
    name: &'static str,
    amount: u64,
}

/// How many workers there is room for, and why not for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// The number.
    pub workers: usize,
    /// The resource that sets the number.
    pub set_by: &'static str,
}

impl Left {
    /// Asks the system, or in a simulated world returns the limit of that world.
    pub fn read() -> Vec<Left> {
        if crate::os::sim::is_here() {
            let amount = crate::os::sim::THREADS;
            return vec![Left { used: Used::Threads, name: "the world", amount }];
        }
        Left::below(Path::new("/"))
    }

    fn below(root: &Path) -> Vec<Left> {
        let mut left = Vec::new();
        let mut add = |used, name, amount: Option<u64>| {
            left.extend(amount.map(|amount| Left { used, name, amount }));
        };
        let meminfo = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
        let kib = |text: &str, name: &str| -> Option<u64> {
            let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
            Some(rest.split_whitespace().next()?.parse::<u64>().ok()?.saturating_mul(1024))
        };
        add(Used::Memory, "the memory that is available", kib(&meminfo, "MemAvailable:"));
        if number(root, "proc/sys/vm/overcommit_memory") == Some(2) {
            let limit = kib(&meminfo, "CommitLimit:");
            let used = kib(&meminfo, "Committed_AS:").unwrap_or(0);
            let amount = limit.map(|limit| limit.saturating_sub(used));
            add(Used::AddressSpace, "vm.overcommit_memory", amount);
        }
        let status = fs::read_to_string(root.join("proc/self/status")).unwrap_or_default();
        let space = getrlimit(Resource::As).current;
        let mapped = kib(&status, "VmSize:").unwrap_or(0);
        add(Used::AddressSpace, "RLIMIT_AS", space.map(|most| most.saturating_sub(mapped)));
        add(Used::Mappings, "vm.max_map_count", number(root, "proc/sys/vm/max_map_count"));
        for (most, name) in thread_limits(root) {
            add(Used::Threads, name, Some(most));
        }
        let groups = Groups::read(root);
        let group = |controller, names: [(&str, &str); 2]| {
            let chain = groups.chain(controller)?;
            let of = |(limit, used): (&str, &str)| {
                let (limit, dir) = chain.smallest(limit)?;
                let used = fs::read_to_string(dir.join(used)).ok();
                let used = used.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
                Some(limit.saturating_sub(used))
            };
            names.into_iter().filter_map(of).min()
        };
        let memory =
            [("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")];
        add(Used::Memory, "the control group's memory limit", group("memory", memory));
        left
    }
}

impl Room {
    /// Returns how many workers of this cost the remaining resources suffice for.
    pub fn for_workers(cost: Cost, left: &[Left]) -> Room {
        let room = |left: &Left| {
            let (cost, share) = match left.used {
                Used::Memory => (cost.memory, left.amount / 2),
                Used::AddressSpace => (cost.address_space, left.amount / 4 * 3),
                Used::Mappings => (cost.mappings, left.amount / 4 * 3),
                Used::Threads => (cost.threads, left.amount / 4 * 3),
            };
            let workers = usize::try_from(share.checked_div(cost)?).unwrap_or(usize::MAX);
            Some(Room { workers, set_by: left.name })
        };
        // A resource that a worker does not use sets no limit.
        let least = left.iter().filter_map(room).min_by_key(|room| room.workers);
        let most =
            Room { workers: crate::os::limits::WORKERS_PER_SCHEDULER_MAX, set_by: "this library" };
        least.filter(|room| room.workers < most.workers).unwrap_or(most)
    }
}

#[cfg(test)]
mod tests {
    use super::super::cgroup::FakeRoot;
    use super::*;

    fn left(used: Used, name: &'static str, amount: u64) -> Left {
        Left { used, name, amount }
    }

    #[test]
    fn the_scarcest_resource_sets_the_limit_b14() {
        let thread = Cost::of_thread(2 << 20);
        let all = [
            left(Used::Memory, "memory", 16 << 30),
            left(Used::Mappings, "mappings", 65_530),
            left(Used::Threads, "threads", 32_768),
        ];
        let room = Room::for_workers(thread, &all);
        assert_eq!(room, Room { workers: 12_286, set_by: "mappings" });
        let few = [&all[..], &[left(Used::Threads, "pids.max", 100)]].concat();
        assert_eq!(Room::for_workers(thread, &few), Room { workers: 75, set_by: "pids.max" });
        let small = [&all[..], &[left(Used::Memory, "group", 128 << 20)]].concat();
        assert_eq!(Room::for_workers(thread, &small), Room { workers: 1024, set_by: "group" });
    }

    #[test]
    fn what_a_worker_does_not_use_sets_no_limit_b14() {
        let fiber = Cost { memory: 32 << 10, address_space: 288 << 10, mappings: 0, threads: 0 };
        let all = [left(Used::Threads, "threads", 1), left(Used::Mappings, "mappings", 1)];
        assert_eq!(Room::for_workers(fiber, &all).set_by, "this library");
        let space = [left(Used::AddressSpace, "RLIMIT_AS", 288 << 20)];
        assert_eq!(Room::for_workers(fiber, &space), Room { workers: 768, set_by: "RLIMIT_AS" });
    }

    #[test]
    fn what_a_control_group_uses_already_is_not_left_b14() {
        let root = FakeRoot::new(&[
            ("proc/self/cgroup", "0::/a\n"),
            ("proc/self/mountinfo", "1 0 0:1 / /cg rw - cgroup2 none rw"),
            ("proc/meminfo", "MemTotal: 9 kB\nMemAvailable:   2048 kB\n"),
            ("cg/a/memory.max", "1000000\n"),
            ("cg/a/memory.current", "400000\n"),
        ]);
        let all = Left::below(root.path());
        let of = |name| all.iter().find(|left| left.name == name).map(|left| left.amount);
        assert_eq!(of("the control group's memory limit"), Some(600_000));
        assert_eq!(of("the memory that is available"), Some(2 << 20));
        assert_eq!(of("vm.max_map_count"), None, "a file that is missing is no limit");
    }
}
