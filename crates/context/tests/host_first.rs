//! Tests changes of credentials in a process whose first thread becomes a host before it has
//! created another thread. glibc has not installed its handler by then, so ours cannot be installed
//! yet. It must be installed later, when the first context detaches.
//!
//! The test has no harness, because the harness creates threads.
//!
//! Unsafe code: moves one context. The host switches to it once, after it has been saved, and it
//! switches back once, to the root, which is saved meanwhile.

#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use context::{Context, Host, Post};

// One way to say it for all crates.
#[path = "../../ums/src/testing/skipped.rs"]
mod skipped;

struct Shared {
    worker: Context,
    saved: AtomicU32,
}

fn main() {
    if let Err(why) = context::supported() {
        return skipped::skipped("own-context", why);
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
            // SAFETY: One Place: the root is saved, and releases this context.
            unsafe { mine.worker.switch_to(&*root) };
        };
        // SAFETY: One Place: only the main thread resumes the context, after the post.
        unsafe { mine.worker.detach(&Post::event(&mine.saved), body) }.expect("it detaches");
    });
    while shared.saved.load(Ordering::Acquire) == 0 {
        std::thread::yield_now();
    }
    // SAFETY: One Place: the context is saved. When it has switched back it is saved again. Only
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

/// Called in the context while it is on the host: another thread changes credentials. If glibc's
/// handler, on the host's kernel thread, marked the context's thread as done instead of the host's,
/// glibc would send signals forever. The alarm ends the process then.
fn credentials_change_meanwhile() {
    // SAFETY: Plain Call: sets an alarm, which ends the process by default.
    unsafe { libc::alarm(30) };
    let caller = std::thread::spawn(|| {
        // SAFETY: Plain Call: sets the group that the process has already. glibc signals every
        // thread, and nothing changes.
        assert_eq!(unsafe { libc::setgid(libc::getgid()) }, 0);
    });
    caller.join().expect("credentials change");
}
