//! Reads the views: one table, or all tables of a snapshot.

use super::columns;
use super::rows::Snapshot;
use super::snapshot;
use super::table::{Table, View};
use crate::node::Node;

impl View {
    /// Returns the table without rows: its name, its columns and their meaning.
    pub fn empty(self) -> Table {
        columns::table(self, &Snapshot::default())
    }
}

impl Node {
    /// Reads one table.
    ///
    /// ```
    /// use ums::Node;
    /// use ums::stats::{Cell, View};
    /// let node = Node::builder().schedulers(2).build()?;
    /// let table = node.view(View::Schedulers);
    /// assert_eq!((table.name, table.rows.len()), ("ums_schedulers", 2));
    /// assert_eq!(table.columns[0].name, "scheduler_id");
    /// assert_eq!(table.rows[1][0], Cell::Int(1));
    /// # Ok::<(), ums::BuildError>(())
    /// ```
    pub fn view(&self, view: View) -> Table {
        columns::table(view, &snapshot::for_view(&self.inner, view))
    }
}

impl Snapshot {
    /// Returns the snapshot as tables, in the order of [`View::ALL`].
    pub fn tables(&self) -> Vec<Table> {
        View::ALL.iter().map(|view| columns::table(*view, self)).collect()
    }
}
