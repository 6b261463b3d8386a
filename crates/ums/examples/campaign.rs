//! Runs the mixed story with many seeds, on every processor, until one fails.
//!
//! ```text
//! cargo run --release -p ums --features sim --example campaign -- --seeds 100000
//! ```
//!
//! It prints its progress. When a seed fails, it prints the failure, the shortest schedule found
//! that leads to it, and the commands that replay both. `--from N` begins with another seed,
//! `--jobs N` sets the number of processors.

#[path = "../tests/sim/deeds.rs"]
mod deeds;
#[path = "../tests/sim/mixed.rs"]
mod mixed;

use std::process::ExitCode;

use ums::sim::{Campaign, Check, campaign};

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let (mut from, mut count) = (0, 10_000);
    let mut jobs = std::thread::available_parallelism().map_or(1, usize::from);
    while let Some(arg) = args.next() {
        let number = args.next().and_then(|number| number.parse().ok());
        match (arg.as_str(), number) {
            ("--seeds", Some(number)) => count = number,
            ("--from", Some(number)) => from = number,
            ("--jobs", Some(number)) => jobs = number as usize,
            _ => {
                eprintln!("usage: campaign [--seeds N] [--from N] [--jobs N]");
                return ExitCode::from(2);
            }
        }
    }
    let command = "cargo run --release -p ums --features sim --example campaign".to_owned();
    let check = Check { seeds: from..from + count, faults: mixed::FAULTS, command };
    campaign(&Campaign { check, jobs }, mixed::day)
}
