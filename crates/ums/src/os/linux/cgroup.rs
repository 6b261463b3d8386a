//! Control groups: finds the directories that contain the limits of this process.
//!
//! A *controller* (`cpu`, `cpuset`, `memory`, `pids`) is in exactly one *hierarchy*: in one of its
//! own (version 1) or in the unified one (version 2). A system may use both versions. Two files
//! together say which directories limit us:
//!
//! ```text
//! /proc/self/cgroup      5:cpu,cpuacct:/a/b     the process is in group /a/b of that hierarchy
//!                        0::/a/b                version 2 has number 0 and names no controller
//! /proc/self/mountinfo   ... /a /sys/fs/cgroup/cpu ... - cgroup cgroup rw,cpu,cpuacct
//!                             |  mount point: where the group "/a" of the hierarchy can be seen
//! so the chain is        /sys/fs/cgroup/cpu/b, /sys/fs/cgroup/cpu
//! ```
//!
//! A limit holds for everything below its directory. So the *chain* contains every directory from
//! our own group up to the mount point, innermost first, and a caller takes the smallest limit of
//! all of them. For example, the quota of a container is often set above the group of its
//! processes.
//!
//! Directories above the mount point cannot be seen from inside a container. The kernel enforces
//! their limits, but we cannot read them. A file that is missing or unreadable means no limit. All
//! paths are below a given root, so that a test can use its own tree. Nothing here is ever written.

use std::fs;
use std::path::{Component, Path, PathBuf};

/// Which of the two layouts of files a chain has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// One hierarchy for each set of controllers.
    One,
    /// The unified hierarchy.
    Two,
}

/// The directories that limit this process for one controller, innermost first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Which files to look for.
    pub version: Version,
    /// Our own group, its parent, and so on up to the mount point.
    pub dirs: Vec<PathBuf>,
}

/// The texts from which chains are made, read once.
#[derive(Clone, Debug)]
pub struct Groups {
    root: PathBuf,
    cgroup: String,
    mounts: Vec<Mount>,
}

/// One mounted hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mount {
    version: Version,
    /// The group that is visible at `point`.
    group: String,
    point: String,
    /// The mount options. In version 1 they name the controllers.
    options: String,
}

impl Groups {
    /// Reads `proc/self/cgroup` and `proc/self/mountinfo` below `root`, which is `/` except in
    /// tests. If they are missing, there are no groups.
    pub fn read(root: &Path) -> Groups {
        let cgroup = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let mountinfo = fs::read_to_string(root.join("proc/self/mountinfo")).unwrap_or_default();
        Groups {
            root: root.to_path_buf(),
            cgroup,
            mounts: mountinfo.lines().filter_map(parse_mount).collect(),
        }
    }

    /// Returns the chain for a controller, or `None` if no mounted hierarchy has it.
    ///
    /// If version 1 has the controller, version 2 cannot have it, so version 1 is looked up first.
    pub fn chain(&self, controller: &str) -> Option<Chain> {
        let one = self.group_of(controller).and_then(|group| {
            let has = |m: &&Mount| m.version == Version::One && lists(&m.options, controller);
            self.below(group, self.mounts.iter().filter(has))
        });
        one.or_else(|| {
            let unified = |m: &&Mount| m.version == Version::Two;
            self.below(self.group_of("")?, self.mounts.iter().filter(unified))
        })
    }

    /// Returns the path of our group in the hierarchy with this controller; `""` means version 2.
    fn group_of(&self, controller: &str) -> Option<&str> {
        self.cgroup.lines().find_map(|line| {
            let (number, rest) = line.split_once(':')?;
            let (controllers, group) = rest.split_once(':')?;
            let unified = number == "0" && controllers.is_empty();
            let found =
                if controller.is_empty() { unified } else { lists(controllers, controller) };
            found.then_some(group)
        })
    }

    /// Returns the chain through that mount which shows the smallest part around our group: the
    /// mount with the longest group path.
    fn below<'a>(&self, group: &str, mounts: impl Iterator<Item = &'a Mount>) -> Option<Chain> {
        let depth = |m: &Mount| inside(group, &m.group).map(|_| m.group.len());
        let mount = mounts.max_by_key(|m| depth(m))?;
        // If our group is not below the mounted one (in a container that sees only its own part
        // under another name), the chain is the mount point alone, which is our group or a parent
        // of it.
        let inner = inside(group, &mount.group).unwrap_or_default();
        let point = self.root.join(mount.point.trim_start_matches('/'));
        let own = point.join(&inner);
        let dirs = own.ancestors().take(inner.components().count() + 1);
        Some(Chain { version: mount.version, dirs: dirs.map(Path::to_path_buf).collect() })
    }
}

impl Chain {
    /// Returns the text of `name` in each directory of the chain that has it, innermost first.
    pub fn texts<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (&'a Path, String)> {
        self.dirs.iter().filter_map(move |dir| {
            let text = fs::read_to_string(dir.join(name)).ok()?;
            Some((dir.as_path(), text.trim().to_string()))
        })
    }

    /// Returns the smallest number in the files with this name, and the directory of that file.
    /// Files that contain `max`, or nearly 2^63, which means "no limit" in version 1, do not count.
    pub fn smallest(&self, name: &str) -> Option<(u64, PathBuf)> {
        self.texts(name)
            .filter_map(|(dir, text)| Some((text.parse::<u64>().ok()?, dir.to_path_buf())))
            .filter(|&(limit, _)| limit < 1 << 62)
            .min_by_key(|&(limit, _)| limit)
    }
}

/// Returns whether a comma-separated list contains a word.
fn lists(list: &str, word: &str) -> bool {
    list.split(',').any(|item| item == word)
}

/// Returns the path of `group` relative to `top`, or `None` if it is not inside.
fn inside(group: &str, top: &str) -> Option<PathBuf> {
    let rest = Path::new(group).strip_prefix(top).ok()?;
    // The kernel shows a group above the namespace's root with "..", which must not be followed.
    rest.components().all(|c| matches!(c, Component::Normal(_))).then(|| rest.to_path_buf())
}

/// Parses one line of mountinfo, if it mounts a hierarchy:
/// `31 23 0:28 GROUP POINT rw,nosuid shared:9 - TYPE SOURCE OPTIONS`.
fn parse_mount(line: &str) -> Option<Mount> {
    let (place, kind) = line.split_once(" - ")?;
    let mut place = place.split(' ').skip(3);
    let (group, point) = (place.next()?, place.next()?);
    let mut kind = kind.split(' ');
    let version = match kind.next()? {
        "cgroup" => Version::One,
        "cgroup2" => Version::Two,
        _ => return None,
    };
    let options = kind.nth(1).unwrap_or_default().to_string();
    Some(Mount { version, group: unescape(group), point: unescape(point), options })
}

/// Replaces each backslash with three octal digits, by which the kernel writes blanks and
/// backslashes in paths.
fn unescape(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut out = parts.next().unwrap_or_default().to_string();
    for part in parts {
        match part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                out.push(byte as char);
                out.push_str(&part[3..]);
            }
            None => {
                out.push('\\');
                out.push_str(part);
            }
        }
    }
    out
}

/// A tree of files that replaces `/` in tests.
#[cfg(test)]
pub(crate) struct FakeRoot(tempfile::TempDir);

#[cfg(test)]
impl FakeRoot {
    pub(crate) fn new(files: &[(&str, &str)]) -> FakeRoot {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let file = dir.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        FakeRoot(dir)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the chain of a controller, as paths below the fake root.
    fn chain(cgroup: &str, mountinfo: &str, controller: &str) -> Option<(Version, Vec<String>)> {
        let files = [("proc/self/cgroup", cgroup), ("proc/self/mountinfo", mountinfo)];
        let root = FakeRoot::new(&files);
        let chain = Groups::read(root.path()).chain(controller)?;
        let strip = |dir: &PathBuf| dir.strip_prefix(root.path()).unwrap().display().to_string();
        Some((chain.version, chain.dirs.iter().map(strip).collect()))
    }

    #[test]
    fn the_unified_chain_goes_from_our_group_to_the_mount_point_b55() {
        let mounts = "22 1 0:5 / /proc rw - proc proc rw\n\
                      30 23 0:26 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw,nsdelegate";
        let (version, dirs) = chain("0::/user.slice/a/b\n", mounts, "cpu").unwrap();
        assert_eq!(version, Version::Two);
        let top = "sys/fs/cgroup";
        let expected = ["/user.slice/a/b", "/user.slice/a", "/user.slice", ""];
        assert_eq!(dirs, expected.map(|group| format!("{top}{group}")));
    }

    #[test]
    fn version_one_is_asked_first_and_only_for_its_own_controllers_b55() {
        let cgroup = "5:cpuacct,cpu:/x\n3:cpuset:/\n1:name=systemd:/s\n0::/u/v\n";
        let mounts = "1 0 0:1 / /cg/cpu rw - cgroup cgroup rw,cpuacct,cpu\n\
                      2 0 0:2 / /cg/cpuset rw - cgroup none rw,cpuset\n\
                      3 0 0:3 / /cg/unified rw - cgroup2 none rw";
        let cpu = chain(cgroup, mounts, "cpu").unwrap();
        assert_eq!(cpu, (Version::One, vec!["cg/cpu/x".into(), "cg/cpu".into()]));
        assert_eq!(chain(cgroup, mounts, "cpuset").unwrap().1, ["cg/cpuset"]);
        let memory = chain(cgroup, mounts, "memory").unwrap();
        assert_eq!((memory.0, memory.1.len()), (Version::Two, 3));
    }

    #[test]
    fn a_container_sees_only_its_own_part_b55() {
        let cgroup = "5:cpu:/docker/abc/inner\n";
        let part = "1 0 0:1 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu";
        let dirs = chain(cgroup, part, "cpu").unwrap().1;
        assert_eq!(dirs, ["sys/fs/cgroup/cpu/inner", "sys/fs/cgroup/cpu"]);
        // Our group may be outside of the mounted part, under another name or beside it.
        for group in ["/", "/..", "/../other", "/docker/abcdef", "/kubepods/x"] {
            let dirs = chain(&format!("5:cpu:{group}\n"), part, "cpu").unwrap().1;
            assert_eq!(dirs, ["sys/fs/cgroup/cpu"], "{group}");
        }
        // In a namespace, the kernel shows a group beside the namespace's root with dots. They lead
        // out of the mount and are not followed.
        let whole = "1 0 0:1 / /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu";
        assert_eq!(chain("5:cpu:/../other\n", whole, "cpu").unwrap().1, ["sys/fs/cgroup/cpu"]);
        // Of two mounts of a hierarchy, the one that shows our group is used, whatever the order.
        let both = format!("{part}\n9 0 0:1 /elsewhere /mnt/cpu rw - cgroup cgroup rw,cpu");
        assert_eq!(chain(cgroup, &both, "cpu").unwrap().1.len(), 2);
    }

    #[test]
    fn odd_or_missing_texts_give_no_chain_and_never_a_panic() {
        assert_eq!(chain("", "", "cpu"), None);
        assert_eq!(chain("0::/a\n", "", "cpu"), None);
        assert_eq!(chain("garbage\n:\n::\n7\n", "a b - c\n - \n- -\n", "cpu"), None);
        let spaces = "1 0 0:1 / /my\\040groups\\134x rw - cgroup2 none rw";
        assert_eq!(chain("0::/\n", spaces, "cpu").unwrap().1, ["my groups\\x"]);
        assert_eq!(unescape("a\\9z\\"), "a\\9z\\");
        assert!(Groups::read(Path::new("/nonexistent")).chain("cpu").is_none());
    }

    #[test]
    fn the_smallest_limit_of_all_ancestors_counts_b55() {
        let root = FakeRoot::new(&[
            ("proc/self/cgroup", "0::/a/b/c\n"),
            ("proc/self/mountinfo", "1 0 0:1 / /cg rw - cgroup2 none rw"),
            ("cg/a/b/c/memory.max", "max\n"),
            ("cg/a/b/memory.max", "9223372036854771712\n"),
            ("cg/a/memory.max", "2097152\n"),
            ("cg/memory.max", "1048576\n"),
        ]);
        let chain = Groups::read(root.path()).chain("memory").unwrap();
        assert_eq!(chain.smallest("memory.max"), Some((1_048_576, root.path().join("cg"))));
        assert_eq!(chain.smallest("pids.max"), None);
        let huge = Chain { dirs: chain.dirs[..2].to_vec(), ..chain };
        assert_eq!(huge.smallest("memory.max"), None, "nearly 2^63 means no limit");
    }
}
