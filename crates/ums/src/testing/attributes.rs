//! What `#[ums::main]` and `#[ums::test]` expand to calls of. Not for programs to call.

use std::process::{ExitCode, Termination};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use crate::node::{Builder, Node, ShutdownReport, running};
use crate::record::report;

/// How long tasks may run on after the function has returned.
const GRACE: Duration = Duration::from_secs(10);

/// Runs `body` on a worker of a new node, which shuts down afterwards.
///
/// The result is reported on the worker, because many errors cannot be sent to another thread.
pub fn run_main<R: Termination>(builder: Builder, body: fn() -> R) -> ExitCode {
    match builder.build() {
        Ok(node) => {
            let code = node.run(|| body().report());
            end(node);
            code
        }
        Err(error) => {
            report::say(format_args!("the node of #[ums::main] cannot be built: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Ends the node of `main`. If that takes long, another thread says why.
fn end(node: Node) {
    let (ended, wait) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let watched = node.clone();
        let watch = move || {
            if wait.recv_timeout(running::PATIENCE) == Err(RecvTimeoutError::Timeout) {
                say_what_runs(&watched);
            }
        };
        let name = "ums-main-ends".to_owned();
        let _ = std::thread::Builder::new().name(name).spawn_scoped(scope, watch);
        node.shutdown(GRACE);
        drop(ended);
    });
}

#[cold]
fn say_what_runs(node: &Node) {
    let Some(runs) = running::what_runs(node) else { return };
    report::say(format_args!(
        "`main` has returned, and {runs}. After 10 seconds in all, tasks are cancelled. Join a \
         task, or cancel one that never ends by itself: `JoinHandle::cancel`"
    ));
}

/// Runs `body` on a worker of a new node, which must have nothing to do afterwards.
///
/// # Panics
/// As `body` does; if the node cannot be built; if tasks still run after 10 seconds.
pub fn run_test<R: Termination>(builder: Builder, body: fn() -> R) -> ExitCode {
    run_in(builder.build().expect("the node of the test can be built"), body)
}

fn run_in<R: Termination>(node: Node, body: fn() -> R) -> ExitCode {
    let code = node.run(|| body().report());
    let ShutdownReport { cancelled, left } = node.shutdown(GRACE);
    assert!(cancelled == 0 && left == 0, "the test has returned, and its tasks still run");
    code
}

/// Runs `body` as [`run_test`] does, in a simulated world for each of so many seeds.
///
/// # Panics
/// If a seed fails; the message says how to repeat it.
#[cfg(feature = "sim")]
pub fn run_simulated<R: Termination + 'static>(
    builder: Builder,
    body: fn() -> R,
    seeds: u64,
    faults: super::sim::Faults,
) -> ExitCode {
    let test = std::thread::current().name().unwrap_or_default().to_owned();
    let command = format!("cargo test -- --exact {test}");
    let check = super::sim::Check { seeds: 0..seeds, faults, command };
    super::sim::check(&check, move || {
        let node = builder.clone().build().expect("the node of the test can be built");
        let failed = run_in(node, body) != ExitCode::SUCCESS;
        assert!(!failed, "the test has returned an error");
    });
    ExitCode::SUCCESS
}

/// Nothing implements this: without the feature `sim` there is no simulation.
#[cfg(not(feature = "sim"))]
#[diagnostic::on_unimplemented(
    message = "`#[ums::test(sim)]` needs the feature `sim` of the crate `ums`",
    label = "add `features = [\"sim\"]` to `ums` under [dev-dependencies] of Cargo.toml"
)]
pub trait Simulated {}

/// Says what is missing, when it is compiled.
#[cfg(not(feature = "sim"))]
pub fn run_simulated<R: Simulated, F>(_: Builder, _: fn() -> R, _: u64, _: F) -> ExitCode {
    ExitCode::FAILURE
}
