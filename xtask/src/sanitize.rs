//! Runs the test suites under tools that check memory and threads:
//! `cargo run -p xtask -- sanitize address|thread|valgrind`.
//!
//! ```text
//!   address    AddressSanitizer. Each switch between fibers is reported to it; switches between
//!              own contexts need no report
//!   thread     ThreadSanitizer. Each fiber is reported to it as a thread, and each switch between
//!              own contexts as an ordering: what was done before the switch happens before what
//!              is done after it. The standard library is built with the sanitizer, too, which
//!              needs the component rust-src
//!   valgrind   memcheck, for the fibers only. Their stacks are registered with it
//! ```
//!
//! Sanitizers are not stable in Rust, so `RUSTC_BOOTSTRAP=1` makes the compiler accept them. Each
//! tool builds into a folder of its own below `target`. Each run lists the tests that it leaves
//! out, and why.

use std::path::{Path, PathBuf};
use std::process::Command;

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The tests of one package, without those that do not work under the tool.
struct Run {
    args: &'static str,
    /// The names of the tests that are left out, each with the reason.
    without: &'static [(&'static str, &'static str)],
}

struct Tool {
    name: &'static str,
    flags: &'static str,
    std: bool,
    env: &'static [(&'static str, &'static str)],
    runs: &'static [Run],
}

const CALLS: &str = "counts system calls, of which the tool makes some";

const TOOLS: &[Tool] = &[
    Tool {
        name: "address",
        flags: "-Zsanitizer=address --cfg asan",
        std: false,
        // Some tests die from signals on purpose, and some leak stacks on purpose.
        env: &[(
            "ASAN_OPTIONS",
            "handle_segv=0:handle_abort=0:handle_sigbus=0:use_sigaltstack=0:detect_leaks=0",
        )],
        runs: &[
            Run {
                args: "-p ums-fiber --lib",
                without: &[
                    (
                        "too_many_mappings",
                        "uses up the process's mappings, of which the tool needs some",
                    ),
                    ("without_a_system_call", CALLS),
                ],
            },
            Run { args: "-p ums-context", without: &[] },
            Run { args: "-p ums --lib", without: &[("no_system_call", CALLS)] },
            Run {
                args: "-p ums --test yielding --test own --test preemptive \
                       --test requests --test sync --test io_list --test timers --test waits \
                       --test users --test hidden --test shutdown --test stress --test serving \
                       --test net --test fs",
                without: &[("no_system_call", CALLS)],
            },
        ],
    },
    Tool {
        name: "thread",
        flags: "-Zsanitizer=thread --cfg tsan",
        std: true,
        env: &[],
        runs: &[
            Run {
                args: "-p ums-fiber --lib fiber::tests",
                without: &[
                    ("thousands_of_fibers", "takes more memory than the tool has"),
                    ("a_finished", "the tool itself ends at this panic, for an unknown reason"),
                    ("a_panic_caught", "the tool itself ends at this panic, for an unknown reason"),
                ],
            },
            Run {
                args: "-p ums-context --test campaign",
                without: &[("setgid", "the C library interrupts the tool's own thread for it")],
            },
            Run {
                args: "-p ums --test yielding --test own --test preemptive \
                       --test requests --test sync",
                without: &[
                    (
                        "thousands_of_workers",
                        "waits for stacks to be unmapped, which the tool keeps",
                    ),
                    ("a_short_call", "is not short under the tool"),
                ],
            },
        ],
    },
    Tool {
        name: "valgrind",
        flags: "",
        std: false,
        env: &[(
            "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER",
            "valgrind -q --error-exitcode=9 --leak-check=no",
        )],
        runs: &[
            Run {
                args: "-p ums-fiber --lib pool::tests",
                without: &[
                    ("without_a_system_call", CALLS),
                    ("too_many_mappings", "the tool has mappings of its own"),
                ],
            },
            Run { args: "-p ums-fiber --lib fiber::tests", without: &[] },
        ],
    },
];

/// Runs everything that works under this tool.
///
/// # Errors
/// A message that says what failed.
pub fn run(root: &Path, name: &str) -> Result<(), String> {
    let tool = TOOLS.iter().find(|tool| tool.name == name);
    let tool = tool.ok_or("the tools are address, thread and valgrind")?;
    let mut failed = Vec::new();
    for run in tool.runs {
        say!("== {} {}", tool.name, run.args);
        run.without.iter().for_each(|(name, why)| say!("   without {name}: {why}"));
        let status = tool.command(root, run).status();
        if !status.is_ok_and(|status| status.success()) {
            failed.push(run.args);
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join("; "))) }
}

impl Tool {
    fn command(&self, root: &Path, run: &Run) -> Command {
        let target =
            std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.args(["test", "--locked", "--target", TARGET]).args(run.args.split(' '));
        if self.std {
            command.arg("-Zbuild-std");
        }
        command.arg("--");
        command.args(run.without.iter().flat_map(|(name, _)| ["--skip", name]));
        command.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", self.flags);
        command.env("CARGO_TARGET_DIR", target.join("sanitize").join(self.name));
        command.envs(self.env.iter().copied()).current_dir(root);
        command
    }
}
