//! The `ums` command: serves SQL on user-mode schedulers, measures them, reports what this computer
//! supports, and inspects a process that uses them. Each subcommand has a file; this file only
//! reads the command line.

// Arithmetic of times is checked; clippy.toml says what the lint leaves out.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod raw;

mod access;
mod asking;
mod bench;
mod connecting;
mod demo;
mod export;
mod limits;
mod listening;
mod modes;
mod probe;
mod serve;
mod stacks;
mod stalls;
mod stats;
mod tables;
mod times;
mod tls;
#[cfg(feature = "top")]
mod top;
mod trace;
mod words;

// With this, a worker that calls a blocking function of the C library gives up its scheduler before
// it blocks.
ums::interpose!();

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "ums", version, about = "User-mode scheduling for Linux", long_about = None)]
struct Line {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve SQL (PostgreSQL wire protocol, SQLite inside) on user-mode schedulers.
    Serve(Box<serve::ServeArgs>),
    /// Write a database as SQL text, also one that `ums serve` refuses: its schema is damaged.
    Export(export::ExportArgs),
    /// Record what a running server's schedulers do, as a trace for Perfetto or Chrome.
    Trace(trace::TraceArgs),
    /// Print what this computer offers, what ums uses of it, and why.
    Probe(probe::ProbeArgs),
    /// Print or draw the stalls of a process's schedulers, by backtrace.
    Stalls(stalls::StallsArgs),
    /// Print the statistics of a process that uses ums: schedulers, workers, waits, users.
    Stats(stats::StatsArgs),
    /// Print the backtrace of every worker of a process that uses ums.
    Stacks(stacks::StacksArgs),
    /// Watch a process that uses ums: schedulers, workers, users, requests, waits.
    #[cfg(feature = "top")]
    Top(top::TopArgs),
    /// Show step by step, with times, what happens when a worker blocks in the kernel.
    Demo(demo::DemoArgs),
    /// Run a benchmark: `ums bench NAME key=value ...`; `ums bench --list` lists them.
    #[command(disable_help_flag = true)]
    Bench {
        /// The bench and its arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
}

fn main() -> ExitCode {
    match Line::parse().command {
        Command::Serve(args) => serve::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Stalls(args) => stalls::run(&args),
        Command::Probe(args) => probe::run(&args),
        Command::Stats(args) => stats::run(&args),
        Command::Stacks(args) => stacks::run(&args),
        #[cfg(feature = "top")]
        Command::Top(args) => top::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Bench { args } => bench::run(&args),
    }
}
