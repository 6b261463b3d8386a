//! Checks before a release: `cargo run -p xtask -- release-check [--since REV] [CHECK..]`.
//!
//! ```text
//!   features   the library compiles with each pair of its features
//!   minimal    the packages compile with the oldest dependencies that they permit
//!   advisories known weaknesses of dependencies
//!   semver     what changed for users since a revision: the newest tag v*, or REV
//!   abort      a program with `panic = "abort"` runs
//!   musl       tests of fiber and thread workers with another C library
//!   aarch64    tests of fibers, contexts and workers on another processor, under an emulator
//!   miri       tests of data structures in an interpreter that finds undefined behaviour
//! ```
//!
//! These take too long for the gate, or need tools that few computers have. (The gate itself
//! compiles with the oldest compiler, and asks for licences.) A check is not run if what it needs
//! is missing, and the report says how to get it. Everything runs in a clone of what is committed,
//! in `target/release-check`, so nothing here changes the caller's files.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// The packages whose interface users compile against.
const LIBRARIES: &str =
    "-p ums -p ums-fiber -p ums-context -p ums-macros -p ums-compat -p ums-capi";

/// One check. The commands are for a shell. In them, the word `LIBRARIES` stands for those
/// packages, and `SINCE` for the revision that users have.
struct Check {
    name: &'static str,
    /// Commands that succeed if a tool is there, each with how to get the tool.
    needs: &'static [(&'static str, &'static str)],
    env: &'static [(&'static str, &'static str)],
    /// Run one after the other, until one fails.
    commands: &'static [&'static str],
}

const CHECKS: &[Check] = &[
    Check {
        name: "features",
        needs: &[("cargo hack --version", "cargo install cargo-hack")],
        env: &[],
        commands: &[
            "cargo hack check --feature-powerset --depth 2 --no-dev-deps --lib -p ums",
            "cargo hack check --feature-powerset --no-dev-deps --lib -p ums-compat -p ums-capi",
        ],
    },
    Check {
        name: "minimal",
        needs: &[],
        // The option of `update` is not stable.
        env: &[("RUSTC_BOOTSTRAP", "1")],
        commands: &[
            "cargo update -q -Z direct-minimal-versions",
            "cargo check --lib LIBRARIES",
            "git checkout -q Cargo.lock",
        ],
    },
    Check {
        name: "advisories",
        needs: &[
            ("cargo deny --version", "cargo install cargo-deny --locked"),
            (
                "timeout 60 git ls-remote -q https://github.com/rustsec/advisory-db HEAD",
                "https://github.com/rustsec/advisory-db, which git cannot reach \
                 (`git config --global url.COPY.insteadOf` with this address takes a copy)",
            ),
        ],
        env: &[],
        commands: &["cargo deny --workspace check advisories"],
    },
    Check {
        name: "semver",
        needs: &[
            ("cargo semver-checks --version", "cargo install cargo-semver-checks --locked"),
            ("git rev-parse -q --verify SINCE^{commit}", "git tag v0.1.0, or --since REV"),
        ],
        env: &[],
        // Without the feature `console`, for an example, which brings a hundred packages along.
        commands: &[
            "cargo semver-checks --baseline-rev SINCE --default-features --features sim,spans \
             -p ums",
            "cargo semver-checks --baseline-rev SINCE --default-features -p ums-fiber \
             -p ums-context -p ums-compat -p ums-capi -p umsql",
        ],
    },
    Check {
        name: "abort",
        needs: &[],
        env: &[("CARGO_PROFILE_DEV_PANIC", "abort")],
        commands: &["cargo run -q --locked -p ums --example first"],
    },
    Check {
        name: "musl",
        needs: &[(
            "ls $(rustc --print target-libdir --target x86_64-unknown-linux-musl)",
            "rustup target add x86_64-unknown-linux-musl",
        )],
        env: &[],
        // Without the unit tests of the library: of sampled threads the monitor finds no functions
        // there. One test of fibers counts mappings, of which this C library makes others.
        commands: &[
            "cargo test -q --locked --target x86_64-unknown-linux-musl -p ums --test yielding \
             --test requests --test sync --test timers --test users --test net --test fs",
            "cargo test -q --locked --target x86_64-unknown-linux-musl -p ums-fiber --lib -- \
             --skip too_many_mappings",
        ],
    },
    Check {
        name: "aarch64",
        needs: &[
            (
                "ls $(rustc --print target-libdir --target aarch64-unknown-linux-gnu)",
                "rustup target add aarch64-unknown-linux-gnu",
            ),
            (
                "aarch64-linux-gnu-gcc --version",
                "apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
            ),
            ("qemu-aarch64 --version", "apt-get install qemu-user"),
        ],
        env: &[
            ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc"),
            (
                "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER",
                "qemu-aarch64 -L /usr/aarch64-linux-gnu",
            ),
        ],
        // Without the tests of fibers that start their program again, which the kernel cannot,
        // that count system calls, that reserve more than the emulator can note, and that give
        // advice which it ignores.
        commands: &[
            "cargo test -q --locked --target aarch64-unknown-linux-gnu -p ums-context",
            "cargo test -q --locked --target aarch64-unknown-linux-gnu -p ums-fiber --lib -- \
             --skip overflow:: --skip a_panic_at_the_root --skip a_suspended_fiber_that_is_dropped \
             --skip too_many_mappings --skip a_thread_that_panics --skip without_a_system_call \
             --skip an_absurd_size --skip precommitted --skip is_resident_only",
            "cargo test -q --locked --target aarch64-unknown-linux-gnu -p ums \
             --no-default-features --test yielding --test requests --test sync",
        ],
    },
    Check {
        name: "miri",
        needs: &[(
            "cargo +nightly miri --version",
            "rustup toolchain install nightly --component miri,rust-src",
        )],
        // The pools never free what they have made. Miri makes no stack switches, few system calls
        // and no fences of the kernel, and a loop of a hundred thousand steps takes it minutes:
        // what is left are lists, words and statistics.
        env: &[("MIRIFLAGS", "-Zmiri-disable-isolation -Zmiri-ignore-leaks")],
        commands: &["cargo +nightly miri test -q --locked -p ums --no-default-features --lib -- \
             lists::io_ lists::siblings wait_stats watch::word os::asleep os::atomic_ref way_out \
             block::memory closure_and_result"],
    },
];

/// How a check ended.
enum End {
    Passed,
    Failed,
    /// It needs this, which is missing.
    NotRun(String),
}

/// Runs the checks that `args` names, or all.
///
/// # Errors
/// A sentence with the checks that failed, or what went wrong.
pub fn run(root: &Path, args: &[&str]) -> Result<(), String> {
    let (since, names) = match args {
        ["--since", revision, names @ ..] => (revision.to_string(), names),
        ["--since"] => return Err("--since needs a revision".into()),
        names => (newest_tag(root), names),
    };
    if let Some(name) = names.iter().find(|name| CHECKS.iter().all(|check| check.name != **name)) {
        let known: Vec<_> = CHECKS.iter().map(|check| check.name).collect();
        return Err(format!("there is no check {name}: the checks are {}", known.join(", ")));
    }
    let spell = |text: &str| text.replace("LIBRARIES", LIBRARIES).replace("SINCE", &since);
    let clone = clone(root)?;
    let (mut report, mut failed) = (String::new(), Vec::new());
    let (mut passed, mut not_run) = (0, 0);
    for check in CHECKS.iter().filter(|check| names.is_empty() || names.contains(&check.name)) {
        say!("== {}", check.name);
        let (begin, before) = (Instant::now(), processor_seconds());
        let end = check.run(&clone, &spell);
        let (seconds, spent) = (begin.elapsed().as_secs(), processor_seconds() - before);
        let said = match end {
            End::Passed => {
                passed += 1;
                format!("passed in {seconds} s, of processors {spent} s")
            }
            End::Failed => {
                failed.push(check.name);
                format!("FAILED after {seconds} s, of processors {spent} s")
            }
            End::NotRun(install) => {
                not_run += 1;
                format!("not run: it needs {install}")
            }
        };
        report += &format!("{:<11} {said}\n", check.name);
    }
    say!("\n{report}{passed} passed, {} failed, {not_run} not run", failed.len());
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}

/// Returns the processor time in seconds of all commands that have ended.
fn processor_seconds() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The second field is a name, which may contain spaces. The 16th and 17th are the times of
    // ended children in user and kernel mode, in hundredths of a second.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(13).take(2).filter_map(|field| field.parse::<u64>().ok()).sum::<u64>() / 100
}

impl Check {
    fn run(&self, clone: &Path, spell: &impl Fn(&str) -> String) -> End {
        for (probe, install) in self.needs {
            let mut probe = shell(clone, &spell(probe));
            probe.stdout(Stdio::null()).stderr(Stdio::null());
            if !probe.status().is_ok_and(|status| status.success()) {
                return End::NotRun(spell(install));
            }
        }
        for command in self.commands {
            let command = spell(command);
            say!("   {command}");
            let mut run = shell(clone, &command);
            run.env("CARGO_TARGET_DIR", clone.with_file_name(self.name));
            if !run.envs(self.env.iter().copied()).status().is_ok_and(|status| status.success()) {
                return End::Failed;
            }
        }
        End::Passed
    }
}

/// A command for a shell. It chooses its own toolchain, not the one that runs this program.
fn shell(folder: &Path, command: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).current_dir(folder);
    for variable in ["CARGO", "RUSTUP_TOOLCHAIN", "RUSTC_WORKSPACE_WRAPPER"] {
        shell.env_remove(variable);
    }
    shell
}

/// Clones what is committed. Returns the clone's folder.
fn clone(root: &Path) -> Result<std::path::PathBuf, String> {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), Into::into);
    let clone = target.join("release-check/clone");
    if clone.exists() {
        std::fs::remove_dir_all(&clone).map_err(|error| format!("{}: {error}", clone.display()))?;
    }
    let mut git = Command::new("git");
    git.args(["clone", "-q"]).arg(root).arg(&clone);
    match git.status() {
        Ok(status) if status.success() => Ok(clone),
        Ok(status) => Err(format!("git clone failed: {status}")),
        Err(error) => Err(format!("git cannot be run: {error}")),
    }
}

/// The newest tag of a release; a name that does not exist if there is none.
fn newest_tag(root: &Path) -> String {
    let mut git = Command::new("git");
    git.args(["describe", "--tags", "--abbrev=0", "--match", "v*"]).current_dir(root);
    let tag = git.stderr(Stdio::null()).output().map(|output| output.stdout).unwrap_or_default();
    let tag = String::from_utf8_lossy(&tag).trim().to_string();
    if tag.is_empty() { "refs/tags/v-none".into() } else { tag }
}
