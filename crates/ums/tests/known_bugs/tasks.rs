//! Bugs in the use of channels, tasks and cancellation.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use ums::sim::sync::{AtomicBool, AtomicUsize};
use ums::sync::channel::bounded;
use ums::sync::{Mutex, OnceCell, Select};
use ums::task::CancelToken;

use super::{Form, Story, together};

pub const PROGRAMS: &[(&str, Story)] = &[
    ("missed cancellation: a task that registers during the shutdown", missed_cancellation),
    ("torn shutdown: the flag is set before the last item is sent", torn_shutdown),
    ("double initialisation: look, make, store", double_initialisation),
    ("a reply for a request that was given up goes to the next one", stale_reply),
];

/// The shutdown cancels all tasks that are registered; a task that has looked at the flag before
/// and registers later is never cancelled.
fn missed_cancellation(form: Form) {
    struct Server {
        stopping: AtomicBool,
        tokens: Mutex<Vec<CancelToken>>,
    }
    let server = Arc::new(Server { stopping: AtomicBool::new(false), tokens: Mutex::default() });
    let (starts, stops) = (Arc::clone(&server), server);
    together(vec![
        Box::new(move || {
            if starts.stopping.load(SeqCst) {
                return;
            }
            let token = CancelToken::new();
            let mut tokens = starts.tokens.lock();
            if !form.is_broken() && starts.stopping.load(SeqCst) {
                return;
            }
            tokens.push(token.clone());
            drop(tokens);
            Select::new().on(&token, |()| ()).wait().expect("it ends by the token only");
        }),
        Box::new(move || {
            stops.stopping.store(true, SeqCst);
            let tokens = std::mem::take(&mut *stops.tokens.lock());
            tokens.iter().for_each(CancelToken::cancel);
        }),
    ]);
}

fn torn_shutdown(form: Form) {
    let (send, receive) = bounded(4);
    let (done, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (ends, counts) = (Arc::clone(&done), Arc::clone(&seen));
    together(vec![
        Box::new(move || {
            send.send(1).expect("it is there");
            if form.is_broken() {
                ends.store(true, SeqCst);
                let _ = send.send(2);
            } else {
                let _ = send.send(2);
                ends.store(true, SeqCst);
            }
        }),
        Box::new(move || {
            loop {
                let last = done.load(SeqCst);
                while receive.try_recv().is_ok() {
                    counts.fetch_add(1, SeqCst);
                }
                if last {
                    return;
                }
                ums::yield_now();
            }
        }),
    ]);
    assert_eq!(seen.load(SeqCst), 2, "an item is lost");
}

fn double_initialisation(form: Form) {
    let made = Arc::new(AtomicUsize::new(0));
    let (slot, cell) = (Arc::new(Mutex::new(None)), Arc::new(OnceCell::new()));
    let one = |_| -> Box<dyn FnOnce() + Send> {
        let (slot, cell, made) = (Arc::clone(&slot), Arc::clone(&cell), Arc::clone(&made));
        Box::new(move || {
            let make = || made.fetch_add(1, SeqCst);
            if form.is_broken() {
                let there = slot.lock().is_some();
                if !there {
                    let value = make();
                    *slot.lock() = Some(value);
                }
            } else {
                cell.get_or_init(make);
            }
        })
    };
    together((0..2).map(one).collect());
    assert_eq!(made.load(SeqCst), 1, "made once");
}

/// A client asks twice over one connection, and gives up the first time. The reply to the first
/// request may be taken for that to the second.
fn stale_reply(form: Form) {
    let (ask, asked) = bounded::<u32>(4);
    let (reply, replied) = bounded::<u32>(4);
    together(vec![
        Box::new(move || {
            while let Ok(number) = asked.recv() {
                if reply.send(number).is_err() {
                    return;
                }
            }
        }),
        Box::new(move || {
            ask.send(1).expect("the server is there");
            let first = replied.try_recv();
            ask.send(2).expect("the server is there");
            let mut second = replied.recv().expect("a reply");
            if !form.is_broken() && first.is_err() {
                second = replied.recv().expect("another one");
            }
            assert_eq!(second, 2, "the reply to another request");
        }),
    ]);
}
