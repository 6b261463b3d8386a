//! Prints the backtraces of workers on stderr when the process gets SIGUSR2.
//!
//! ```text
//!   kill -USR2 --> handler: writes to an eventfd --> a thread: reads it, looks, writes to stderr
//! ```
//!
//! After its write, the handler passes the signal on to the handler that was installed before. The
//! thread starts with the first node that asks for it, and sleeps until a signal comes.

use std::fs::File;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use libc::c_int;

use super::of_node;
use crate::node::{Node, NodeInner};
use crate::os::linux::handlers;
use crate::os::lock::Lock;
use crate::os::stderr::keep_standard_descriptors_taken;
use crate::os::threads;
use crate::record::plural::counted;
use crate::scheduler::lists::worker_list::State;

const SIGNAL: c_int = libc::SIGUSR2;

/// The nodes whose stacks are printed.
static NODES: Lock<Vec<Weak<NodeInner>>> = Lock::new(Vec::new());
/// Whether the handler is installed. Changed while `NODES` is locked.
static RINGS: AtomicBool = AtomicBool::new(false);

impl Node {
    /// Installs a handler for SIGUSR2: whenever the process gets this signal, the backtrace of
    /// every worker that is not idle is written to stderr.
    ///
    /// # Errors
    /// Fails if the system refuses a thread or a descriptor.
    pub fn print_stacks_on_sigusr2(&self) -> std::io::Result<()> {
        let mut nodes = NODES.lock();
        nodes.retain(|node| node.strong_count() > 0);
        if !RINGS.load(Ordering::Relaxed) {
            be_there()?;
        }
        nodes.push(Arc::downgrade(&self.inner));
        Ok(())
    }
}

fn be_there() -> std::io::Result<()> {
    use rustix::event::{EventfdFlags, eventfd};
    keep_standard_descriptors_taken();
    let mut bell = File::from(eventfd(0, EventfdFlags::CLOEXEC)?);
    let rings = bell.try_clone()?.into();
    threads::start(std::thread::Builder::new().name("ums-stacks".into()), move || {
        let mut count = [0; 8];
        while bell.read_exact(&mut count).is_ok() {
            print();
        }
    })?;
    handlers::ring_on(SIGNAL, rings);
    RINGS.store(true, Ordering::Relaxed);
    Ok(())
}

fn print() {
    let nodes = NODES.lock().clone();
    for node in nodes.iter().filter_map(Weak::upgrade) {
        let stacks = of_node(&node);
        let waiters = node.all().into_iter().flat_map(|s| s.left_over());
        let idle = waiters.filter(|waiter| waiter.is(State::Idle)).count();
        let busy = counted(stacks.len(), "worker");
        let mut text = format!("ums: {busy}, and {idle} idle\n");
        for stack in stacks {
            text += &format!("ums: {stack}\n");
        }
        // An error means that stderr is closed; it is ignored.
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
}
