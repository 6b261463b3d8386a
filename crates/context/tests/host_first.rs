//! A process whose first thread becomes a host before it has made another. glibc then has no
//! handler yet for changes of credentials, and ours must be installed before it nevertheless.
//!
//! The test has no harness, because that makes threads.
//!
//! Unsafe code to move a context: it is switched to once, saved, and switches back once, to the
//! root that waits for it.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use context::{Context, Host, Post};

struct Shared {
    worker: Context,
    saved: AtomicU32,
}

fn main() {
    if let Err(why) = context::supported() {
        println!("skipped: {why}");
        return;
    }
    let host = Host::here().expect("a host");
    let shared = Arc::new(Shared { worker: Context::new(), saved: AtomicU32::new(0) });
    let root = std::ptr::from_ref(host.root()).expose_provenance();
    let mine = shared.clone();
    let thread = std::thread::spawn(move || {
        let root = std::ptr::with_exposed_provenance::<Context>(root);
        let body = || {
            assert_eq!(Host::here().err(), Some(context::Refused::Hosted));
            credentials_change_meanwhile();
            // SAFETY: One Place: the root is saved, and releases this.
            unsafe { mine.worker.switch_to(&*root) };
        };
        // SAFETY: One Place.
        unsafe { mine.worker.detach(&Post::event(&mine.saved), body) }.expect("it detaches");
    });
    while shared.saved.load(Ordering::Acquire) == 0 {
        std::thread::yield_now();
    }
    // SAFETY: One Place: it is saved; when it has switched back it is saved again, and only
    // this thread resumes it.
    unsafe {
        host.root().switch_to(&shared.worker);
        shared.worker.release();
    }
    thread.join().expect("it ends");
    println!(
        "a host that was made before any other thread takes part in changes of credentials ... ok"
    );
}

/// In the context, on the host: another thread changes credentials. If the host's kernel thread
/// marked the context's thread as done and never its own, signals would come forever; the alarm
/// would end that.
fn credentials_change_meanwhile() {
    // SAFETY: Plain Call: an alarm whose default ends the process.
    unsafe { libc::alarm(30) };
    let caller = std::thread::spawn(|| {
        // SAFETY: Plain Call: the group that the process has; every thread is asked, and nothing
        // changes.
        assert_eq!(unsafe { libc::setgid(libc::getgid()) }, 0);
    });
    caller.join().expect("credentials change");
}
