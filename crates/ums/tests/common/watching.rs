//! A node that the monitor watches, and its reports.

use std::time::Duration;

use ums::Builder;
use ums::monitor::{Options, Report};
use ums::node::Placement;

use super::{Log, eventually, ms};

/// A limit that no test reaches.
pub const NEVER: Duration = Duration::from_secs(3600);

/// Returns monitor options that look for nothing and report nothing. A test adds the condition that
/// it is about.
pub fn nothing() -> Options {
    Options::default()
        .stall(NEVER)
        .starved(NEVER)
        .non_yield(NEVER)
        .no_workers(NEVER)
        .not_picked_up(NEVER)
        .all_stuck(NEVER)
        .deadlock(NEVER)
        .stderr(false)
}

/// The monitor's reports.
pub type Told = Log<Report>;

/// Lets the monitor watch the node. Every request stays where it was spawned, and a worker that
/// blocks keeps its scheduler, because otherwise there would be no stall.
pub fn watched(builder: Builder, options: Options, told: &Told) -> Builder {
    let log = told.clone();
    let builder = builder.placement(Placement::AlwaysPreferred).take_over_blocked(false);
    builder.monitor(options.on_report(move |report| {
        log.push(report.clone());
    }))
}

/// Waits for a report, and checks that it stays the only one for a while. Returns it.
#[track_caller]
pub fn the_only(told: &Told) -> Report {
    eventually("it is reported", || told.len() > 0);
    std::thread::sleep(ms(200));
    let mut all = told.all();
    assert_eq!(all.len(), 1, "reported once: {all:#?}");
    all.remove(0)
}
