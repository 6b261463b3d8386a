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
//! A variable for which this build has no feature has no effect, and a line on stderr says that.
//!
//! The second node of a process has `-2` at the end of the name of its file or socket, and so on.

#[cfg(feature = "traces")]
mod begin;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::node::stats_socket::StatsSocket;
use crate::node::{Builder, Node};
use crate::observe::trace::TraceFormat;
use crate::record::report;
use crate::wait::error::BuildError;

/// The variables, each with the feature that it needs, and whether this build has that.
const VARIABLES: [(&str, &str, bool); 3] = [
    ("UMS_MONITOR", "monitor", cfg!(feature = "monitor")),
    ("UMS_STATS", "metrics", cfg!(feature = "metrics")),
    ("UMS_TRACE", "traces", cfg!(feature = "traces")),
];

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
        #[cfg(feature = "traces")]
        environment.begin(&node);
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
        for (name, feature, is_there) in VARIABLES {
            if !is_there && set(name).is_some() {
                report::say(format_args!(
                    "{name} has no effect: the program was built without the feature `{feature}` \
                     of ums"
                ));
            }
        }
        Ok(read)
    }
}
