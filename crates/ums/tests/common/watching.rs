//! A node that the monitor watches, and its reports.

use std::time::Duration;

use ums::Builder;
use ums::monitor::{Options, Report};
use ums::node::Placement;

use super::{Log, eventually, ms};

/// Never, as far as a test is concerned.
pub const NEVER: Duration = Duration::from_secs(3600);

/// Options that look for nothing and report nothing: a test adds what it is about.
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

/// Has the monitor watch, and every request stay where it was spawned. A worker that blocks keeps
/// its scheduler, so that there is a stall.
pub fn watched(builder: Builder, options: Options, told: &Told) -> Builder {
    let log = told.clone();
    let builder = builder.placement(Placement::AlwaysPreferred).take_over_blocked(false);
    builder.monitor(options.on_report(move |report| {
        log.push(report.clone());
    }))
}

/// The one report there is, also a while after it came.
#[track_caller]
pub fn the_only(told: &Told) -> Report {
    eventually("it is reported", || told.len() > 0);
    std::thread::sleep(ms(200));
    let mut all = told.all();
    assert_eq!(all.len(), 1, "reported once: {all:#?}");
    all.remove(0)
}
