//! The number of schedulers: one for each processor that the process may really use.
//!
//! Three limits apply, and the smallest one decides:
//!
//! * the *affinity* mask of the calling thread (`taskset`, `sched_setaffinity`);
//! * the *cpuset* of the control group: the processors that a container may use;
//! * the *quota* of the control group or of any of its ancestors: processor time per period,
//!   rounded up to whole processors. For example, with two schedulers and a quota of 1.5
//!   processors, the second scheduler can still use its half. With eight schedulers, the kernel
//!   would stop all of them for most of each period.
//!
//! Processor numbers may begin above 0 and have gaps, so the processors to pin to are taken from
//! [`Cpus::allowed`], and never counted from 0.
//!
//! The limits are read once, at the start. A later change is not noticed.

use std::fmt;
use std::path::{Path, PathBuf};

pub use super::affinity::pin_to;
use super::affinity::{affinity, parse_cpu_list};
use super::cgroup::{Chain, Groups, Version};

/// Which limit decided the number of schedulers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// The affinity mask of the thread.
    Affinity,
    /// The processors of the control group.
    Cpuset,
    /// The processor time of the control group or of an ancestor.
    Quota,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Limit::Affinity => "affinity",
            Limit::Cpuset => "cpuset",
            Limit::Quota => "cgroup quota",
        })
    }
}

/// Processor time that a control group may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Microseconds of processor time in each period.
    pub quota_us: u64,
    /// The period in microseconds.
    pub period_us: u64,
    /// The group that has this limit.
    pub group: PathBuf,
}

impl Quota {
    /// Returns the quota in processors, rounded up; never 0.
    pub fn cpus(&self) -> usize {
        let cpus = self.quota_us.div_ceil(self.period_us).max(1);
        usize::try_from(cpus).unwrap_or(usize::MAX)
    }
}

/// The processors that this process may use, and why not more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpus {
    /// How many schedulers to create: the smallest of the limits, at least 1.
    pub count: usize,
    /// The limit that is equal to `count`. If several are, the first in the order of [`Limit`].
    pub decided_by: Limit,
    /// Processors in the affinity mask.
    pub affinity: usize,
    /// Processors in the cpuset, if there is one.
    pub cpuset: Option<usize>,
    /// The tightest quota of the control group and its ancestors, if there is one.
    pub quota: Option<Quota>,
    /// The numbers of the processors that are both in the mask and in the cpuset, ascending. If a
    /// quota decides, there are more of them than `count`.
    pub allowed: Vec<usize>,
}

impl Cpus {
    /// Reads the limits from the system, for the calling thread.
    ///
    /// ```text
    /// let cpus = Cpus::read();
    /// assert!(cpus.count >= 1 && cpus.count <= cpus.affinity);
    /// ```
    pub fn read() -> Cpus {
        if crate::os::sim::is_here() {
            return Cpus::simulated();
        }
        let root = Path::new("/");
        Cpus::from_limits(&affinity(root), &Groups::read(root))
    }

    /// Returns the processors of a simulated world: two, however many the computer has.
    fn simulated() -> Cpus {
        let (cpuset, quota, allowed) = (None, None, affinity(Path::new("/")));
        Cpus { count: 2, decided_by: Limit::Affinity, affinity: 2, cpuset, quota, allowed }
    }

    /// Combines the limits. Separate from [`Cpus::read`] so that a test can pass its own.
    fn from_limits(mask: &[usize], groups: &Groups) -> Cpus {
        let cpuset = groups.chain("cpuset").and_then(|chain| cpuset(&chain));
        let quota = groups.chain("cpu").and_then(|chain| quota(&chain));

        let mut allowed = mask.to_vec();
        if let Some(cpuset) = &cpuset {
            allowed.retain(|cpu| cpuset.contains(cpu));
        }
        // If the mask and the cpuset have no processor in common, one of them changed after the
        // other was read. Then the mask alone is used, because the kernel enforces it.
        if allowed.is_empty() {
            allowed = mask.to_vec();
        }
        let by_mask = mask.len().max(1);
        let by_cpuset = allowed.len().max(1);
        let by_quota = quota.as_ref().map_or(usize::MAX, Quota::cpus);
        let limits =
            [(by_mask, Limit::Affinity), (by_cpuset, Limit::Cpuset), (by_quota, Limit::Quota)];
        // `min_by_key` returns the first of equals.
        let (count, decided_by) = limits.into_iter().min_by_key(|&(n, _)| n).unwrap_or(limits[0]);
        Cpus {
            count,
            decided_by,
            affinity: by_mask,
            cpuset: cpuset.map(|set| set.len()),
            quota,
            allowed,
        }
    }
}

/// Returns the processors of the innermost group that names any.
///
/// The ancestors need not be intersected, because the kernel has done so already. It would even be
/// wrong: an ancestor's *effective* set lacks the processors that the ancestor has given to a
/// partition below it, which may be ours.
fn cpuset(chain: &Chain) -> Option<Vec<usize>> {
    let names: &[&str] = match chain.version {
        Version::One => &["cpuset.effective_cpus", "cpuset.cpus"],
        Version::Two => &["cpuset.cpus.effective"],
    };
    let sets = names.iter().flat_map(|name| chain.texts(name));
    sets.filter_map(|(_, text)| parse_cpu_list(&text)).find(|set| !set.is_empty())
}

/// Returns the tightest quota of our group and all its ancestors.
fn quota(chain: &Chain) -> Option<Quota> {
    let quotas = chain.dirs.iter().filter_map(|dir| {
        let read = |name: &str| std::fs::read_to_string(dir.join(name)).ok();
        let (quota_us, period_us) = match chain.version {
            Version::One => parse_quota(&read("cpu.cfs_quota_us")?, &read("cpu.cfs_period_us")?)?,
            Version::Two => {
                let text = read("cpu.max")?;
                // The period may be left out; the kernel's default is 100 ms.
                let (quota, period) = text.trim().split_once(' ').unwrap_or((&text, "100000"));
                parse_quota(quota, period)?
            }
        };
        Some(Quota { quota_us, period_us, group: dir.clone() })
    });
    // Compares a/b with c/d by a*d and c*b, without rounding. 128 bits hold every product.
    quotas.min_by(|x, y| {
        let left = u128::from(x.quota_us) * u128::from(y.period_us);
        left.cmp(&(u128::from(y.quota_us) * u128::from(x.period_us)))
    })
}

/// Parses a quota and its period. Returns `None` if there is no limit (`max` or -1) or no number.
fn parse_quota(quota: &str, period: &str) -> Option<(u64, u64)> {
    let quota = quota.trim().parse::<u64>().ok()?;
    let period = period.trim().parse::<u64>().ok().filter(|&us| us > 0)?;
    Some((quota, period))
}

#[cfg(test)]
mod tests {
    use super::super::cgroup::FakeRoot;
    use super::*;

    const TWO: &str = "1 0 0:1 / /cg rw - cgroup2 none rw";
    const ONE: &str = "1 0 0:1 / /cg/cpu rw - cgroup none rw,cpu,cpuacct\n\
                       2 0 0:2 / /cg/cpuset rw - cgroup none rw,cpuset";

    /// Returns the processors for this mask, in group /a/b of a fake file tree.
    fn cpus(mask: &[usize], mounts: &str, files: &[(&str, &str)]) -> Cpus {
        let mut all = vec![
            ("proc/self/cgroup", "2:cpuset:/a/b\n1:cpu,cpuacct:/a/b\n0::/a/b\n"),
            ("proc/self/mountinfo", mounts),
        ];
        all.extend_from_slice(files);
        let root = FakeRoot::new(&all);
        let mut cpus = Cpus::from_limits(mask, &Groups::read(root.path()));
        if let Some(quota) = &mut cpus.quota {
            quota.group = quota.group.strip_prefix(root.path()).unwrap().to_path_buf();
        }
        cpus
    }

    #[test]
    fn without_groups_the_affinity_mask_decides_b55() {
        let cpus = cpus(&[0, 1, 2, 3], "", &[]);
        assert_eq!((cpus.count, cpus.decided_by, cpus.affinity), (4, Limit::Affinity, 4));
        assert_eq!((cpus.cpuset, cpus.quota), (None, None));
    }

    #[test]
    fn the_quota_is_rounded_up_and_the_tightest_ancestor_counts_b55() {
        let mask: Vec<usize> = (0..8).collect();
        let files = [
            ("cg/a/b/cpu.max", "max 100000\n"),
            ("cg/a/cpu.max", "250000 100000\n"),
            ("cg/cpu.max", "600000 100000\n"),
        ];
        let two = cpus(&mask, TWO, &files);
        assert_eq!((two.count, two.decided_by), (3, Limit::Quota));
        let quota = two.quota.unwrap();
        assert_eq!((quota.quota_us, quota.group.to_str()), (250_000, Some("cg/a")));
        assert_eq!(two.allowed.len(), 8, "a quota takes no particular processor away");

        let files = [
            ("cg/cpu/a/b/cpu.cfs_quota_us", "-1\n"),
            ("cg/cpu/a/b/cpu.cfs_period_us", "100000\n"),
            ("cg/cpu/a/cpu.cfs_quota_us", "10000\n"),
            ("cg/cpu/a/cpu.cfs_period_us", "100000\n"),
        ];
        let one = cpus(&mask, ONE, &files);
        assert_eq!((one.count, one.decided_by), (1, Limit::Quota), "a tenth of one is one");
    }

    #[test]
    fn periods_are_compared_as_fractions_and_not_by_their_quota_b55() {
        let files = [("cg/a/b/cpu.max", "50000 10000\n"), ("cg/a/cpu.max", "200000 100000\n")];
        assert_eq!(cpus(&[0, 1, 2, 3, 4, 5], TWO, &files).count, 2);
    }

    #[test]
    fn odd_quota_files_are_no_limit_b55() {
        for text in ["max", "max 100000", "", "garbage", "100000 0", "-1 100000", "1 2 3"] {
            let cpus = cpus(&[0, 1, 2], TWO, &[("cg/a/b/cpu.max", text)]);
            assert_eq!((cpus.count, cpus.quota), (3, None), "{text:?}");
        }
        let alone = cpus(&[0, 1, 2], TWO, &[("cg/a/b/cpu.max", "150000\n")]);
        assert_eq!(alone.count, 2, "without a period it is 100 ms");
    }

    #[test]
    fn the_innermost_cpuset_decides_and_odd_numbers_are_kept_b55() {
        let mask = [1, 3, 5, 7, 64, 130];
        // The parent has given 3, 64 and 130 to our partition, so its own set lacks them.
        let files = [
            ("cg/a/b/cpuset.cpus.effective", "3,64,128-131\n"),
            ("cg/a/cpuset.cpus.effective", "0-2\n"),
        ];
        let two = cpus(&mask, TWO, &files);
        assert_eq!((two.count, two.decided_by, two.cpuset), (3, Limit::Cpuset, Some(6)));
        assert_eq!(two.allowed, [3, 64, 130]);

        let one = cpus(
            &mask,
            ONE,
            &[("cg/cpuset/a/b/cpuset.cpus", "\n"), ("cg/cpuset/a/cpuset.cpus", "5,7\n")],
        );
        assert_eq!(one.allowed, [5, 7], "an empty set means that of the parent");
    }

    #[test]
    fn a_tie_names_the_mask_and_a_mask_outside_of_the_cpuset_stands_b55() {
        let files = [("cg/a/b/cpuset.cpus.effective", "0-1"), ("cg/a/b/cpu.max", "200000 100000")];
        assert_eq!(cpus(&[0, 1], TWO, &files).decided_by, Limit::Affinity);
        let moved = cpus(&[6, 7], TWO, &files);
        assert_eq!((moved.count, moved.allowed), (2, vec![6, 7]));
    }

    #[test]
    fn the_count_of_processors_agrees_with_the_status_file_u15() {
        let cpus = Cpus::read();
        let list = affinity(Path::new("/"));
        assert_eq!(cpus.affinity, list.len());
        assert!(cpus.count >= 1 && cpus.count <= list.len());
        assert!(cpus.allowed.iter().all(|cpu| list.contains(cpu)));
    }
}
