//! What the environment of the process says about observing its nodes. So a user can look into a
//! program that has no option for it.
//!
//! | variable | values | effect |
//! |---|---|---|
//! | `UMS_MONITOR` | `on`, `off` | all checks of the monitor, or none, for nodes without options |
//! | `UMS_STATS` | `on`, a path | a statistics socket by process number, or at the path |
//! | `UMS_TRACE` | `*.json`, `*.pftrace` | a file gets the events of the first 10 seconds |
//!
//! A value that is none of these is refused when a node is built. If the system refuses a socket or
//! a file, a line on stderr says so, and the program goes on: it did not ask for them.
//!
//! The second node of a process has `-2` at the end of the name of its file or socket, and so on.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::node::stats_socket::StatsSocket;
use crate::node::{Builder, Node};
use crate::observe::trace::TraceFormat;
use crate::record::report;
use crate::wait::error::BuildError;

/// How much of a node's life is recorded.
const RECORD_FOR: Duration = Duration::from_secs(10);
/// How many events are recorded at most: 48 MiB of them.
const RECORD_EVENTS: usize = 1_000_000;

impl Builder {
    /// Builds the node and starts its schedulers. If stdin, stdout or stderr is closed, `/dev/null`
    /// is opened in its place, so that nothing that is printed gets into a descriptor of the node.
    ///
    /// The environment variables `UMS_MONITOR`, `UMS_STATS` and `UMS_TRACE` let a user look into
    /// the node; the page `docs/diagnosing.md` in the repository describes them.
    ///
    /// # Errors
    /// [`BuildError`], which names the option or the variable that is out of range, or the request
    /// that the system refused.
    pub fn build(mut self) -> Result<Node, BuildError> {
        if crate::os::sim::is_here() {
            return self.start();
        }
        let environment = Environment::read(|name| std::env::var_os(name))?;
        environment.monitor.into_iter().for_each(|yes| self.watch_by_default(yes));
        let node = self.start()?;
        environment.observe(&node);
        Ok(node)
    }
}

/// What the environment asks for.
#[derive(Debug, Default, PartialEq)]
struct Environment {
    monitor: Option<bool>,
    stats: Option<StatsSocket>,
    trace: Option<(PathBuf, TraceFormat)>,
}

impl Environment {
    fn read(get: impl Fn(&str) -> Option<OsString>) -> Result<Environment, BuildError> {
        let set = |name: &'static str| get(name).filter(|value| !value.is_empty());
        let refused = |name: &str, value: &OsString, values: &str| {
            let text = format!("{name}={}: it must be {values}", value.display());
            Err(BuildError::Option(text))
        };
        let mut read = Environment::default();
        if let Some(value) = set("UMS_MONITOR") {
            read.monitor = match value.to_str() {
                Some("on") => Some(true),
                Some("off") => Some(false),
                _ => return refused("UMS_MONITOR", &value, "on or off"),
            };
        }
        if let Some(value) = set("UMS_STATS") {
            read.stats = match value.to_str() {
                Some("on") => Some(StatsSocket::ByPid),
                _ if Path::new(&value).components().count() > 1 => {
                    Some(StatsSocket::At(value.into()))
                }
                _ => return refused("UMS_STATS", &value, "on, or a path with a folder"),
            };
        }
        if let Some(value) = set("UMS_TRACE") {
            let format = match Path::new(&value).extension().and_then(|end| end.to_str()) {
                Some("json") => TraceFormat::Chrome,
                Some("pftrace") => TraceFormat::Perfetto,
                _ => return refused("UMS_TRACE", &value, "a path that ends in .json or .pftrace"),
            };
            read.trace = Some((value.into(), format));
        }
        Ok(read)
    }

    /// Begins to observe the node.
    fn observe(self, node: &Node) {
        static NODES: AtomicUsize = AtomicUsize::new(0);
        if self.stats.is_none() && self.trace.is_none() {
            return;
        }
        let number = NODES.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if let Some(at) = self.stats {
            let at = match at {
                StatsSocket::At(path) => StatsSocket::At(numbered(&path, number)),
                by_pid => by_pid,
            };
            match node.serve_stats(at) {
                Ok(path) => report::say(format_args!("statistics on {}", path.display())),
                Err(error) => report::say(format_args!("UMS_STATS: no statistics: {error}")),
            }
        }
        if let Some((path, format)) = self.trace {
            let path = numbered(&path, number);
            if let Err(error) = record(node, path, format) {
                report::say(format_args!("UMS_TRACE: nothing is recorded: {error}"));
            }
        }
    }
}

/// Returns the path for the process's node with this number, counted from 1.
fn numbered(path: &Path, number: usize) -> PathBuf {
    if number == 1 {
        return path.to_owned();
    }
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!("-{number}"));
    if let Some(end) = path.extension() {
        name.push(".");
        name.push(end);
    }
    path.with_file_name(name)
}

/// Records the node's events on a thread of its own, which writes them to the file when the time is
/// over, when there are many of them, or when the node shuts down. The file is created at once, so
/// that an error is known at once.
fn record(node: &Node, path: PathBuf, format: TraceFormat) -> io::Result<()> {
    let mut file = std::fs::File::create(&path)?;
    let ending = Arc::new(AtomicBool::new(false));
    let (recorded, ends) = (Node::of(node.inner.clone()), ending.clone());
    let work = move || {
        let goes_on = |events| events < RECORD_EVENTS && !ends.load(Ordering::Acquire);
        let trace = recorded.record_from_start(RECORD_FOR, goes_on);
        drop(recorded);
        let (events, path) = (trace.events.len(), path.display());
        match file.write_all(&trace.in_format(format)) {
            Ok(()) => report::say(format_args!("a trace of {events} events is in {path}")),
            Err(error) => report::say(format_args!("UMS_TRACE: {path}: {error}")),
        }
    };
    let thread = std::thread::Builder::new().name("ums-trace".into()).spawn(work)?;
    *node.inner.recording.lock() = Some(Box::new(move || {
        ending.store(true, Ordering::Release);
        let _ = thread.join();
    }));
    Ok(())
}
