//! umsstats: the table of SQL Server 2000's `dbcc sqlperf(umsstats)`, with the same rows. All other
//! statistics are in `views`.

use std::sync::atomic::Ordering;

use crate::node::Node;

impl Node {
    /// Returns the statistics of SQL Server 2000's `dbcc sqlperf(umsstats)`: name and value, eight
    /// rows for each visible scheduler. The values are meant to be printed with one decimal.
    ///
    /// ```
    /// let node = ums::Node::builder().schedulers(1).build()?;
    /// let rows = node.umsstats();
    /// assert_eq!(rows[0], ("Scheduler ID".to_string(), 0.0));
    /// assert_eq!(rows[1].0, "  num users");
    /// # Ok::<(), ums::BuildError>(())
    /// ```
    pub fn umsstats(&self) -> Vec<(String, f64)> {
        let mut rows = Vec::new();
        for s in &self.inner.visible {
            let c = s.counters.read();
            let users = s.users.load(Ordering::Relaxed);
            rows.push(("Scheduler ID".to_string(), s.index as f64));
            for (name, value) in [
                ("num users", users as u64),
                ("num runnable", c.runnable),
                ("num workers", c.workers),
                ("idle workers", c.idle),
                ("work queued", s.queue.len() as u64),
                ("cntxt switches", c.context_switches),
                ("cntxt switches(idle)", c.idle_switches),
            ] {
                rows.push((format!("  {name}"), value as f64));
            }
        }
        rows
    }
}
