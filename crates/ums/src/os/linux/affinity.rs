//! Sets which processors the calling thread may run on, and its nice value.

use std::cell::Cell;
use std::io;
use std::path::Path;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Pins the calling thread to one processor.
///
/// # Errors
///
/// `InvalidInput` for a number that a mask cannot hold (1024 and above), and for a processor that
/// does not exist or is outside of the cpuset; `PermissionDenied` if a filter forbids the call.
pub fn pin_to(cpu: usize) -> io::Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        let text = format!("processor {cpu} is beyond the {} of a mask", CpuSet::MAX_CPU);
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let mut mask = CpuSet::new();
    mask.set(cpu);
    Ok(sched_setaffinity(None, &mask)?)
}

/// Sets the nice value of the calling thread, and of no other thread of its process.
///
/// # Errors
///
/// `PermissionDenied` if the value is lower than the present one and the process may not lower it.
pub fn set_nice(nice: i32) -> io::Result<()> {
    // Linux takes a thread's number in this call, where POSIX takes that of a process.
    rustix::process::setpriority_process(None, nice)?;
    IS_NICE.set(nice > 0);
    Ok(())
}

thread_local! {
    static IS_NICE: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether [`set_nice`] has given the calling thread a nice value above 0.
pub fn is_nice() -> bool {
    IS_NICE.get()
}

/// Lets the calling thread run on every processor that the process's first thread may run on. If
/// that is not allowed, the mask stays unchanged.
pub fn unpin() {
    if let Ok(mask) = sched_getaffinity(Some(rustix::process::getpid())) {
        let _ = sched_setaffinity(None, &mask);
    }
}

/// Returns the processors in the affinity mask of this thread.
pub(in crate::os) fn affinity(root: &Path) -> Vec<usize> {
    if let Ok(mask) = sched_getaffinity(None) {
        return (0..CpuSet::MAX_CPU).filter(|&cpu| mask.is_set(cpu)).collect();
    }
    // A kernel that is built for more processors than the mask can hold refuses the call. The
    // thread's status contains the same mask, at any length.
    let status = std::fs::read_to_string(root.join("proc/thread-self/status")).unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.and_then(parse_cpu_list).unwrap_or_else(|| vec![0])
}

/// Parses a list such as `0-3,8,10-11`. Returns `None` for any other text. An empty text is an
/// empty list.
pub(super) fn parse_cpu_list(text: &str) -> Option<Vec<usize>> {
    /// Larger than any processor number. The limit keeps a malformed list from filling the memory.
    const CPU_MAX: usize = 1 << 20;
    let mut cpus = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let first = first.trim().parse::<usize>().ok()?;
        let last = last.trim().parse::<usize>().ok()?;
        if first > last || last >= CPU_MAX {
            return None;
        }
        cpus.extend(first..=last);
    }
    cpus.sort_unstable();
    cpus.dedup();
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::super::cpus::Cpus;
    use super::*;

    #[test]
    fn lists_of_processors_are_parsed_or_refused() {
        assert_eq!(parse_cpu_list("0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(parse_cpu_list("\t5,1,5,0-1"), Some(vec![0, 1, 5]));
        assert_eq!(parse_cpu_list(" \n"), Some(vec![]));
        for bad in ["3-1", "a", "0-", "-", "1;2", "0-18446744073709551615"] {
            assert_eq!(parse_cpu_list(bad), None, "{bad}");
        }
    }

    #[test]
    fn pinning_leaves_one_processor_and_refuses_what_does_not_exist() {
        // On a thread of its own, so that no other test is pinned.
        let test = std::thread::spawn(|| {
            let last = *Cpus::read().allowed.last().unwrap();
            pin_to(last).unwrap();
            let cpus = Cpus::read();
            assert_eq!((cpus.allowed, cpus.count), (vec![last], 1));
            assert_eq!(rustix::thread::sched_getcpu(), last);
            assert_eq!(pin_to(1 << 20).unwrap_err().kind(), io::ErrorKind::InvalidInput);
            assert!(pin_to(CpuSet::MAX_CPU - 1).is_err());
        });
        test.join().unwrap();
    }
}
