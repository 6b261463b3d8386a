//! Statistics as text and as JSON.
//!
//! The text is the original's table, row for row. The JSON has everything: an object with one array
//! of objects for each table of a snapshot.

use std::ffi::{CString, c_int};
use std::fmt::Write;

use super::fault::{Fault, guard};
use super::node::ums_node;
use super::object::{self, ConstHandle};
use crate::caller::{GivenText, Out};

/// Returns the statistics of the original: a header, then name and value in each line. The text is
/// the caller's, to be freed by ums_text_free.
#[unsafe(no_mangle)]
pub extern "C" fn ums_node_stats_text(
    node: ConstHandle<ums_node>,
    text: Out<'_, GivenText>,
) -> c_int {
    guard(|| {
        let rows = object::get(node)?.node.umsstats();
        let mut lines = format!("{:<24}{:>16}\n", "Statistic", "Value");
        for (name, value) in rows {
            let _ = writeln!(lines, "{name:<24}{value:>16.1}");
        }
        give(lines, text)
    })
}

/// Returns all statistics of the node, as a JSON object with an array of objects for each
/// table: ums_schedulers, ums_workers, ums_requests, ums_waiting_tasks, ums_wait_stats and others.
/// The caller frees the text with ums_text_free.
#[unsafe(no_mangle)]
pub extern "C" fn ums_node_stats_json(
    node: ConstHandle<ums_node>,
    text: Out<'_, GivenText>,
) -> c_int {
    guard(|| {
        let mut json = object::get(node)?.node.snapshot().to_json();
        json.push('\n');
        give(json, text)
    })
}

/// Frees a text. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn ums_text_free(text: GivenText) {
    text.free();
}

/// Gives a text to the caller.
fn give(text: String, mut out: Out<'_, GivenText>) -> Result<c_int, Fault> {
    if out.is_null() {
        return Err(Fault::null("text"));
    }
    let inside = |_| Fault::new(libc::EILSEQ, "the text has a zero inside");
    out.put(GivenText::new(CString::new(text).map_err(inside)?));
    Ok(0)
}
