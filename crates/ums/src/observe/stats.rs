//! The answers of the statistics socket: one line of JSON for each question line.
//!
//! | question | answer |
//! |---|---|
//! | names of views | these: `{"pid":1,"program":"ums",...,"tables":{"ums_users":[...]}}` |
//! | `*` | all of them |
//! | `?` | the list of views: `..."views":[{"name":"ums_users","help":"...","columns":[{...}]}]` |
//! | `stacks` | every worker's backtrace: `..."stacks":[{"scheduler_id":0,...,"frames":[...]}]` |
//! | `stack S W` | the same for worker W of scheduler S |
//! | `trace chrome 500`, `trace perfetto 0` | a trace of the next 500 ms, or of the event rings |
//! | anything else | `{"error":"a message"}` |
//!
//! `about` is the text of [`Node::describe`]. A row is an object with a member for each column.
//! `now_us` is the time of a monotonic clock; readers use it only for the time between two answers,
//! to compute rates.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::node::Node;
use crate::node::stats_socket::{self, Answer, StatsSocket};
use crate::observe::stacks::{WorkerStack, state};
use crate::observe::trace::{TraceFormat, TraceOrder};
use crate::observe::views::{Cell, Table, View};
use crate::os::clock;
use crate::record::frame::Frame;
use crate::record::reason::WaitReason;
use crate::scheduler::WorkerKind;

impl Node {
    /// Serves the views to other processes of the same operating-system user over a Unix-domain
    /// socket, from a plain thread, until the node shuts down; `ums stats` and `ums top` read it.
    /// Returns the socket's path. A node has one such socket: a second call replaces the first.
    ///
    /// # Errors
    /// Fails if another process listens there, if other users can access the folder, or if the
    /// system refuses a thread.
    ///
    /// ```
    /// use std::io::{Read, Write};
    /// # let dir = std::env::temp_dir().join(format!("ums-doc-{}.sock", std::process::id()));
    /// let node = ums::Node::builder().schedulers(1).build()?;
    /// let path = node.serve_stats(ums::stats::StatsSocket::At(dir))?;
    /// let mut client = std::os::unix::net::UnixStream::connect(path)?;
    /// client.write_all(b"ums_schedulers\n")?;
    /// let mut line = String::new();
    /// client.read_to_string(&mut line)?;
    /// assert!(line.contains(r#""tables":{"ums_schedulers":[{"scheduler_id":0,"#));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn serve_stats(&self, at: StatsSocket) -> io::Result<PathBuf> {
        let mut place = self.inner.stats.lock();
        // The old socket is closed first, because the new one may have the same path.
        drop(place.take());
        let weak = Arc::downgrade(&self.inner);
        let answer = move |question: &str| match weak.upgrade() {
            Some(inner) => match order(question) {
                Some(order) => record(Node::of(inner), order),
                None => Answer::Line(Node::of(inner).tell(question)),
            },
            None => Answer::Line(error("the node is shutting down")),
        };
        let serving = stats_socket::serve(&at, answer)?;
        let path = serving.path().to_owned();
        *place = Some(serving);
        Ok(path)
    }

    /// Returns the answer to one line.
    fn tell(&self, question: &str) -> String {
        let body = match question {
            "?" => {
                let views = View::ALL.map(|view| describe(&view.empty()));
                format!("\"views\":[{}]", views.join(","))
            }
            "*" => tables(&self.snapshot().tables()),
            "stacks" => stacks(&self.stacks()),
            one if one.starts_with("stack ") => match self.named_stack(&one["stack ".len()..]) {
                Ok(stack) => stacks(&[stack]),
                Err(sentence) => return error(&sentence),
            },
            names => match self.named(names) {
                Ok(found) => tables(&found),
                Err(sentence) => return error(&sentence),
            },
        };
        let program = std::env::current_exe().ok();
        let program = program.as_deref().and_then(|path| path.file_name());
        let program = program.map_or(Cell::Null, |name| name.to_string_lossy().as_ref().into());
        let head = [
            ("pid", std::process::id().into()),
            ("program", program),
            ("about", self.inner.about.lock().as_str().into()),
            ("version", env!("CARGO_PKG_VERSION").into()),
            ("now_us", (clock::now() / 1000).into()),
            ("io", self.io_text().into()),
        ];
        let head = head.map(|(name, cell)| format!("\"{name}\":{}", cell.to_json()));
        // The answer must be one line. JSON escapes line ends inside texts, so only the line ends
        // between rows are replaced.
        format!("{{{},{body}}}", head.join(",")).replace('\n', "")
    }

    fn named(&self, names: &str) -> Result<Vec<Table>, String> {
        let view = |name: &str| {
            let view = View::ALL.iter().find(|view| view.empty().name == name);
            let view = view.ok_or_else(|| format!("there is no view \"{name}\""));
            view.map(|view| self.view(*view))
        };
        match names.split_whitespace().map(view).collect::<Result<Vec<_>, _>>()? {
            none if none.is_empty() => Err("name views, or ask with * or ?".into()),
            found => Ok(found),
        }
    }

    fn named_stack(&self, numbers: &str) -> Result<WorkerStack, String> {
        let mut numbers = numbers.split_whitespace().map(str::parse);
        let (Some(Ok(scheduler)), Some(Ok(worker)), None) =
            (numbers.next(), numbers.next(), numbers.next())
        else {
            return Err("name a worker by two numbers: its scheduler's, and its own".into());
        };
        let stack = self.stack_of(scheduler as usize, worker);
        stack.ok_or_else(|| format!("scheduler {scheduler} has no worker {worker}"))
    }
}

fn stacks(stacks: &[WorkerStack]) -> String {
    let all: Vec<_> = stacks.iter().map(stack).collect();
    format!("\"stacks\":[{}]", all.join(","))
}

/// Returns a worker with all its frames as a JSON object.
fn stack(stack: &WorkerStack) -> String {
    let w = &stack.worker;
    let cells: [(&str, Cell); 13] = [
        ("scheduler_id", w.scheduler.into()),
        ("scheduler_name", stack.scheduler_name.as_str().into()),
        ("worker_id", w.id.into()),
        ("is_fiber", (w.kind == WorkerKind::Fiber).into()),
        ("state", state(w).into()),
        ("os_thread_id", w.thread.into()),
        ("wait_type", w.reason.map(WaitReason::name).into()),
        ("wait_duration_us", (w.waited_ns / 1000).into()),
        ("user_id", w.user.into()),
        ("request_id", w.request.into()),
        ("elapsed_us", (w.of_request.elapsed_ns / 1000).into()),
        ("text", stack.to_string().into()),
        ("frames_count", stack.frames.len().into()),
    ];
    let cells = cells.map(|(name, cell)| format!("\"{name}\":{}", cell.to_json()));
    let frame = |frame: &Frame| {
        let place = Cell::from(frame.place.as_deref()).to_json();
        format!("{{\"name\":{},\"place\":{place}}}", Cell::from(frame.name.as_str()).to_json())
    };
    let frames: Vec<_> = stack.frames.iter().map(frame).collect();
    format!("{{{},\"frames\":[{}]}}", cells.join(","), frames.join(","))
}

fn tables(tables: &[Table]) -> String {
    let table = |table: &Table| format!("\"{}\":{}", table.name, table.to_json());
    format!("\"tables\":{{{}}}", tables.iter().map(table).collect::<Vec<_>>().join(","))
}

fn describe(table: &Table) -> String {
    let text = |text: &str| Cell::from(text).to_json();
    let column = |column: &crate::observe::views::Column| {
        let kind = format!("{:?}", column.kind).to_lowercase();
        let help = text(column.help);
        format!("{{\"name\":\"{}\",\"kind\":\"{kind}\",\"help\":{help}}}", column.name)
    };
    let columns = table.columns.iter().map(column).collect::<Vec<_>>().join(",");
    let (name, help, keys) = (table.name, text(table.help), table.keys);
    format!("{{\"name\":\"{name}\",\"help\":{help},\"keys\":{keys},\"columns\":[{columns}]}}")
}

/// Returns the trace that this question asks for, or `None` for another question.
fn order(question: &str) -> Option<TraceOrder> {
    let mut words = question.split_whitespace();
    let format = match (words.next()?, words.next()?) {
        ("trace", "chrome") => TraceFormat::Chrome,
        ("trace", "perfetto") => TraceFormat::Perfetto,
        _ => return None,
    };
    let span = Duration::from_millis(words.next()?.parse().ok()?);
    Some(TraceOrder { format, span })
}

fn record(node: Node, order: TraceOrder) -> Answer {
    Answer::Later(Box::new(move |client, ending| {
        order.carry_out(node, ending, move |bytes| client.send(&bytes)).map_err(error)
    }))
}

fn error(sentence: &str) -> String {
    format!("{{\"error\":{}}}", Cell::from(sentence).to_json())
}
