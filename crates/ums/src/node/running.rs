//! What a node that ends waits for, in words.

use std::time::Duration;

use super::handle::Node;

/// How long the end of a node takes before this is said.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

/// Returns what the node's tasks do: "a task still runs (it waits for SLEEP)". `None` if there is
/// none.
pub(crate) fn what_runs(node: &Node) -> Option<String> {
    let errands = node.inner.errands().map(|scheduler| scheduler.index);
    let workers = node.snapshot().workers;
    let busy =
        || workers.iter().filter(|worker| worker.request != 0 && Some(worker.scheduler) != errands);
    let does = busy().next()?.reason;
    let does = does.map_or("runs code of its own".to_owned(), |why| format!("waits for {why:?}"));
    Some(match busy().count() {
        1 => format!("a task still runs (it {does})"),
        n => format!("{n} tasks still run (one {does})"),
    })
}
