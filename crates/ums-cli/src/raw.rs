//! The unsafe code of the binary, as safe functions.
//!
//! Choosing fiber workers is unsafe, because not all code may run on them. The workers of this
//! binary run only `umsql` with SQLite, and the benches. None of that code keeps a thread-owned
//! lock, or a borrow of a thread-local, across a wait: SQLite is opened without connection mutexes.
//!
//! For the server it sets the C library's allocator, whose functions need no more than a call. The
//! other functions are for benches: bare fibers and contexts, a register, the kernel's counters.

#![allow(unsafe_code)]

use std::fs::File;
use std::hint::black_box;
use std::io;
use std::os::fd::FromRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::time::Instant;

use context::{Context, Host, Post};
use fiber::{Fiber, Stack};
use rustix::thread::futex;
use ums::{Builder, WorkerKind};

/// Chooses the kind of workers, for nodes that run the SQL server or benches.
pub fn workers_of(kind: WorkerKind, builder: Builder) -> Builder {
    match kind {
        WorkerKind::Thread => builder,
        // SAFETY: Contract: the code that runs on workers of this binary keeps no thread-scoped
        // state across a wait, as the header says.
        WorkerKind::Fiber => unsafe { builder.fiber_workers() },
        WorkerKind::OwnContext => builder.own_context_workers(),
    }
}

/// Makes the allocator map each block of 4 MiB or more by itself, and unmap it when it is freed. By
/// default it takes blocks of up to 32 MiB from its heaps as soon as one was freed, and what is
/// free between two small blocks of a heap stays with the process. A smaller size would make values
/// of a megabyte take half as much time again, for page faults.
pub fn keep_large_blocks_apart() {
    #[cfg(target_env = "gnu")]
    {
        const LARGE: i32 = 4 << 20;
        const END: i32 = 3 << 20;
        // SAFETY: Plain Call.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
            // How much may be free at the end of a heap. A trim does not touch that, and there is a
            // heap for each of several threads.
            libc::mallopt(libc::M_TRIM_THRESHOLD, END);
        }
    }
}

/// Gives the free memory of the heaps back to the system. Takes some milliseconds, in which threads
/// that allocate may wait.
pub fn trim_heaps() {
    #[cfg(target_env = "gnu")]
    // SAFETY: Plain Call.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Returns a fiber that calls `beside` and suspends itself, this many times.
pub fn suspending(stack: Stack, times: u64, beside: impl Fn() + 'static) -> Fiber {
    Fiber::new(stack, "floor", move |me| {
        for _ in 0..times {
            beside();
            // SAFETY: Contract: this closure is the one that `me` was passed to, and it holds
            // nothing here.
            unsafe { me.suspend() };
        }
    })
}

/// Opens a counter of the hits of this tracepoint by the calling thread and by all threads that it
/// creates from now on.
pub fn count_tracepoint(id: u64) -> io::Result<File> {
    // perf_event_attr, first version: type, size, config, four words, flags, and the rest 0.
    const TRACEPOINT: u32 = 2;
    const INHERIT: u64 = 1 << 1;
    let mut record = [0u64; 8];
    record[0] = u64::from(TRACEPOINT) | 64 << 32;
    record[1] = id;
    record[5] = INHERIT;
    // SAFETY: Plain Call: the record outlives the call and has 64 bytes, as its size field says.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, &record, 0, -1, -1, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: Own Memory: the kernel has just created this descriptor for the caller.
    Ok(unsafe { File::from_raw_fd(fd as i32) })
}

/// Writes the FS base register (thread-locals) with the value that it already has.
#[inline(always)]
pub fn write_base() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: Plain Call: the register gets the value that it already has.
    unsafe {
        std::arch::asm!("mov {0}, fs:[0]", "wrfsbase {0}", out(reg) _, options(nostack));
    }
}

/// A thread whose context switches to and from the root context of a host thread.
struct Player {
    context: Context,
    post: AtomicU32,
    root: AtomicPtr<Context>,
    stop: AtomicBool,
}

impl Player {
    /// Waits until the context is posted to this thread, that is, until `post` is 1.
    fn wait(&self) {
        while self.post.compare_exchange(1, 0, Ordering::AcqRel, Ordering::Acquire).is_err() {
            let asleep =
                self.post.compare_exchange(0, 2, Ordering::AcqRel, Ordering::Acquire) != Err(1);
            if asleep {
                let _ = futex::wait(&self.post, futex::Flags::PRIVATE, 2, None);
            }
        }
    }

    fn play(&self, couples: bool) {
        while !self.stop.load(Ordering::Relaxed) {
            // SAFETY: One Place: the root switched to this context, and is saved since then.
            unsafe {
                let root = &*self.root.load(Ordering::Relaxed);
                if couples {
                    self.context.leave_for(root);
                    let _ = black_box(rustix::process::getppid());
                    self.context.decouple(&Post::event(&self.post));
                } else {
                    self.context.switch_to(root);
                }
            }
        }
        // SAFETY: One Place: as above; the root releases this context afterwards.
        unsafe { self.context.switch_to(&*self.root.load(Ordering::Relaxed)) };
    }
}

/// Returns the time of one switch, in nanoseconds. With `couples`: of leaving for the own kernel
/// thread, one system call and returning.
pub fn bare(times: u64, couples: bool) -> f64 {
    let player = Arc::new(Player {
        context: Context::new(),
        post: AtomicU32::new(0),
        root: AtomicPtr::default(),
        stop: AtomicBool::new(false),
    });
    let mine = player.clone();
    let thread = std::thread::spawn(move || {
        // SAFETY: One Place: `play` ends by switching to the root, which releases it.
        unsafe { mine.context.detach(&Post::event(&mine.post), || mine.play(couples)) }
    });
    player.wait();
    let host = Host::here().expect("it is not refused");
    player.root.store(std::ptr::from_ref(host.root()).cast_mut(), Ordering::Relaxed);
    let step = || {
        // SAFETY: One Place: the context is saved: it was posted, or it has switched here.
        unsafe { host.root().switch_to(&player.context) };
        if couples && !player.stop.load(Ordering::Relaxed) {
            player.wait();
        }
    };
    let began = Instant::now();
    let steps = if couples { times } else { times / 2 };
    (0..steps).for_each(|_| step());
    let each = began.elapsed().as_nanos() as f64 / times as f64;
    player.stop.store(true, Ordering::Relaxed);
    step();
    // SAFETY: One Place: the context has switched here for the last time.
    unsafe { player.context.release() };
    let _ = thread.join();
    each
}

/// Makes the system calls that coupling makes between its two hand-offs: restores the thread's
/// signal mask, makes the call, and blocks all signals again.
pub fn call_with_own_mask() {
    let (own, all) = (0u64, !(1u64 << 32));
    let set = |mask: &u64| {
        let (how, size) = (libc::SIG_SETMASK, size_of::<u64>());
        let nothing = std::ptr::null_mut::<u64>();
        // SAFETY: Plain Call: the set outlives the call, and no other code uses this thread's mask.
        unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, mask, nothing, size) };
    };
    set(&own);
    let _ = black_box(rustix::process::getppid());
    set(&all);
}
