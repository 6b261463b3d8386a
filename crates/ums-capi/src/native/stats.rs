//! Statistics as text and as JSON, and the statistics socket.
//!
//! The text is the table of the original, row for row. The JSON contains all statistics: an object
//! with one array for each table of a snapshot; an array has an object for each row.

use std::ffi::{CString, c_int};
use std::fmt::Write;

use ums::stats::StatsSocket;

use super::fault::{Fault, guard};
use super::node::{self, ums_node};
use super::object::{self, ConstHandle, Handle};
use crate::caller::{GivenText, Out, Text};

/// Stores the statistics of the original as text: a header, then a name and a value on each line.
/// The caller frees the text with ums_text_free.
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

/// Stores all statistics of the node as JSON: an object with an array for each table
/// (ums_schedulers, ums_workers, ums_requests, ums_waiting_tasks, ums_wait_stats and others); an
/// array has an object for each row. The caller frees the text with ums_text_free.
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

/// Serves the node's statistics to other processes of the same user over a Unix-domain socket with
/// this path; `ums stats` and `ums top` read it. NULL: where these commands find it by the number
/// of the process. A second call replaces the socket. -EADDRINUSE: another process listens there.
#[unsafe(no_mangle)]
pub extern "C" fn ums_node_serve_stats(node: Handle<ums_node>, path: Text<'_>) -> c_int {
    guard(|| {
        let path = node::text(&path, "path")?;
        let at = path.map_or(StatsSocket::ByPid, |path| StatsSocket::At(path.into()));
        object::get(node)?.node.serve_stats(at)?;
        Ok(0)
    })
}

/// Sets what `ums stats` shows beside the program's name where a user must choose among several
/// processes, such as the address that it serves.
#[unsafe(no_mangle)]
pub extern "C" fn ums_node_describe(node: Handle<ums_node>, text: Text<'_>) -> c_int {
    guard(|| {
        let text = node::text(&text, "text")?.ok_or_else(|| Fault::null("text"))?;
        object::get(node)?.node.describe(text);
        Ok(0)
    })
}

/// Frees a text. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn ums_text_free(text: GivenText) {
    text.free();
}

/// Passes a text to the caller, who frees it.
fn give(text: String, mut out: Out<'_, GivenText>) -> Result<c_int, Fault> {
    if out.is_null() {
        return Err(Fault::null("text"));
    }
    let inside = |_| Fault::new(libc::EILSEQ, "the text has a zero inside");
    out.put(GivenText::new(CString::new(text).map_err(inside)?));
    Ok(0)
}
