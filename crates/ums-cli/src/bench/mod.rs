//! `ums bench`: runs benchmarks, and prints JSON lines.
//!
//! Each bench does the same work as benches of other schedulers and is called in the same form
//! (`NAME key=value ...`), so that one harness can run all of them. One process runs one bench,
//! because pinning and memory belong to the whole process; `all` runs each bench in a process of
//! its own. The exit status is 0, or 2 for wrong arguments, or 3 after a line that says why the
//! bench was skipped. docs/performance.md has results and says how they were measured.

mod blocking;
mod disk;
mod echo;
mod floor;
mod meter;
mod operations;
mod own;
mod setup;
mod syscalls;
mod tasks;
mod waits;
mod windows;

use std::process::{Command, ExitCode};

use meter::{BenchArgs, Lines, Ran, Stop};

struct Bench {
    name: &'static str,
    keys: &'static str,
    what: &'static str,
    run: fn(&BenchArgs) -> Ran,
    /// The arguments of each run of this bench by `all`. Empty if `all` leaves the bench out.
    short: &'static [&'static str],
}

const BENCHES: [Bench; 16] = [
    Bench {
        name: "switch",
        keys: "tasks=2 total=10000000",
        what: "tasks that yield in turn, on one CPU",
        run: tasks::switch,
        short: &["tasks=2 total=200000", "tasks=1000 total=200000"],
    },
    Bench {
        name: "spawn",
        keys: "cpus=1 n=1000000 workers=auto",
        what: "batches of 1000 empty tasks, spawned and joined",
        run: tasks::spawn,
        short: &["cpus=1 n=20000"],
    },
    Bench {
        name: "pingpong",
        keys: "cpus=1 n=1000000",
        what: "round trips over two channels",
        run: waits::pingpong,
        short: &["cpus=1 n=20000", "cpus=2 n=20000"],
    },
    Bench {
        name: "ring",
        keys: "n=5000000 tasks=503",
        what: "a number passed round a ring of tasks",
        run: waits::ring,
        short: &["n=50000"],
    },
    Bench {
        name: "skynet",
        keys: "cpus=1 leaves=1000000 workers=auto",
        what: "a tree of tasks, ten children each",
        run: tasks::skynet,
        short: &["leaves=10000"],
    },
    Bench {
        name: "mutex",
        keys: "tasks=1000 iters=1000",
        what: "lock, increment, yield while holding, unlock",
        run: waits::mutex,
        short: &["tasks=100 iters=100"],
    },
    Bench {
        name: "timers",
        keys: "n=100000",
        what: "tasks that sleep 1 to 1000 ms: how late they wake",
        run: waits::timers,
        short: &["n=1000"],
    },
    Bench {
        name: "idle_memory",
        keys: "n=100000 of=task|user requests=100",
        what: "memory of tasks that wait, or of users after so many requests (also: idle)",
        run: tasks::idle,
        short: &["n=1000", "n=1000 of=user requests=2"],
    },
    Bench {
        name: "echo",
        keys: "port=7000 block=none|naive|proper style=task|user workers=4096 cpus=1",
        what: "serves on 127.0.0.1 until a signal; a load generator measures it",
        run: echo::echo,
        short: &[],
    },
    Bench {
        name: "disk",
        keys: "path=FILE secs=5 qd=32",
        what: "random reads of 4 KiB with O_DIRECT, qd at a time, on one CPU",
        run: disk::disk,
        short: &[],
    },
    Bench {
        name: "floor",
        keys: "rounds=20",
        what: "a scheduler's switches beside bare ones",
        run: floor::floor,
        short: &["rounds=3"],
    },
    Bench {
        name: "own",
        keys: "rounds=20 tasks=2",
        what: "own-context workers, beside bare switches and kernel threads",
        run: own::own,
        short: &["rounds=3"],
    },
    Bench {
        name: "syscalls",
        keys: "n=1000000",
        what: "system calls for each yield and switch, counted by the kernel",
        run: syscalls::syscalls,
        short: &["n=10000"],
    },
    Bench {
        name: "operations",
        keys: "of=yield n=1000 file=FILE",
        what: "one operation after another, for counting its instructions",
        run: operations::operations,
        short: &[],
    },
    Bench {
        name: "blocking",
        keys: "connections=50 secs=5 every=100",
        what: "an echo server with handlers that sometimes block: how long the others take",
        run: blocking::blocking,
        short: &["connections=10 secs=1"],
    },
    Bench {
        name: "windows",
        keys: "rounds=2000 workers=10 total=100000",
        what: "the Windows layer: yields, and blocks, beside bare switches",
        run: windows::windows,
        short: &["rounds=200 total=5000"],
    },
];

/// Runs `ums bench ARGS`.
pub fn run(args: &[String]) -> ExitCode {
    if args.iter().any(|arg| matches!(arg.as_str(), "--help" | "-h")) {
        print!("{}", help());
        return ExitCode::SUCCESS;
    }
    // Keys may precede the name, so that a harness can use `ums bench kind=thread` as the command.
    let Some(at) = args.iter().position(|arg| !arg.contains('=')) else {
        eprint!("{}", help());
        return ExitCode::from(2);
    };
    let (name, rest) = (&args[at], &[&args[..at], &args[at + 1..]].concat());
    match name.as_str() {
        "help" => print!("{}", help()),
        "--list" => BENCHES.iter().for_each(|bench| println!("{}", bench.name)),
        "all" => return all(rest),
        _ => {
            let name = if name == "idle" { "idle_memory" } else { name };
            let Some(bench) = BENCHES.iter().find(|bench| bench.name == name) else {
                eprintln!("ums bench: there is no bench '{name}'; --list names them");
                return ExitCode::from(2);
            };
            return one(bench, rest);
        }
    }
    ExitCode::SUCCESS
}

fn one(bench: &Bench, args: &[String]) -> ExitCode {
    match BenchArgs::parse(args).and_then(|args| (bench.run)(&args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Stop::Skip(reason)) => {
            Lines { bench: bench.name.to_owned(), peer: "ums" }.skip(&reason);
            ExitCode::from(3)
        }
        Err(Stop::Usage(text)) => {
            eprintln!("ums bench {}: {text}", bench.name);
            ExitCode::from(2)
        }
    }
}

/// Runs every bench briefly, with each kind of worker that applies.
fn all(args: &[String]) -> ExitCode {
    let Ok(program) = std::env::current_exe() else {
        eprintln!("ums bench all: cannot find the program that this process runs");
        return ExitCode::FAILURE;
    };
    let mut ending = ExitCode::SUCCESS;
    for bench in &BENCHES {
        let kinds: &[&str] = if matches!(bench.name, "floor" | "own" | "windows" | "blocking") {
            &[""]
        } else {
            &["kind=fiber", "kind=thread"]
        };
        for (short, kind) in bench.short.iter().flat_map(|s| kinds.iter().map(move |k| (s, k))) {
            let mut child = Command::new(&program);
            child.args(["bench", bench.name]).args(short.split(' ')).args(args);
            child.args((!kind.is_empty()).then_some(kind));
            match child.status().map(|status| status.code()) {
                Ok(Some(0 | 3)) => {}
                other => {
                    eprintln!("ums bench {} {short} {kind}: ended with {other:?}", bench.name);
                    ending = ExitCode::FAILURE;
                }
            }
        }
    }
    ending
}

fn help() -> String {
    let mut text = String::from(
        "Runs benchmarks and prints JSON lines.\n\n\
         Usage: ums bench NAME [key=value ...]\n       \
         ums bench all           a short run of everything but echo and disk\n       \
         ums bench --list        the names alone\n\n\
         Keys of every bench but floor and own, with their defaults first:\n  \
         kind=fiber|thread|context    what workers are made of\n  \
         io=auto|uring|epoll|sync     the I/O back end\n  \
         stack=BYTES                  the size of a worker's stack\n  \
         events=off|on                event rings\n  \
         spin=auto|off|NS             how long idle schedulers poll, in nanoseconds\n  \
         detect=off|on                detect blocked workers\n\n\
         The benches, and their own keys with the defaults for fibers (threads do less):\n\n",
    );
    for Bench { name, keys, what, .. } in &BENCHES {
        text += &format!("  {name:<12} {what}\n               {keys}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bench_is_named_in_the_help() {
        let text = help();
        assert!(BENCHES.iter().all(|bench| text.contains(bench.name) && text.contains(bench.keys)));
    }

    #[test]
    fn an_unknown_bench_is_a_wrong_call() {
        assert_eq!(run(&["swich".into()]), ExitCode::from(2));
        assert_eq!(run(&["switch".into(), "tasks=two".into()]), ExitCode::from(2));
        assert_eq!(run(&["switch".into(), "--help".into()]), ExitCode::SUCCESS);
    }
}
