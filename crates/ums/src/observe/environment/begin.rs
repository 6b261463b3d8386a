//! Begins what the environment asks for: the statistics socket, and a trace of the node's first
//! seconds.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use super::Environment;
use crate::node::Node;
#[cfg(feature = "metrics")]
use crate::node::stats_socket::StatsSocket;
use crate::observe::trace::TraceFormat;
use crate::os::threads;
use crate::record::report;

/// How much of a node's life is recorded.
const RECORD_FOR: Duration = Duration::from_secs(10);
/// How many events are recorded at most: 48 MiB of them.
const RECORD_EVENTS: usize = 1_000_000;

impl Environment {
    /// Begins to observe the node.
    pub(super) fn begin(self, node: &Node) {
        static NODES: AtomicUsize = AtomicUsize::new(0);
        if self.stats.is_none() && self.trace.is_none() {
            return;
        }
        let number = NODES.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        #[cfg(feature = "metrics")]
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
    let thread = threads::start(std::thread::Builder::new().name("ums-trace".into()), work)?;
    *node.inner.recording.lock() = Some(Box::new(move || {
        ending.store(true, Ordering::Release);
        let _ = thread.join();
    }));
    Ok(())
}
