//! Tests of operations that drivers hand to the file helpers: calls, and file operations without a
//! ring.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread::{self, ThreadId};

use super::*;
use crate::os::lock::Lock;

/// The number of calls that occupy all helpers of a pool.
const BLOCKERS: usize = crate::os::linux::helpers::HELPERS_MAX as usize;

fn is_sync(rig: &Rig) -> bool {
    rig.io.name() == "sync"
}

pub fn a_call_runs_elsewhere_and_its_result_comes_back(mut rig: Rig) {
    let mut helper: Option<ThreadId> = None;
    let mut call = || {
        helper = Some(thread::current().id());
        42
    };
    let op = *LiveOp::call(&mut call);
    assert_eq!(rig.run(1, op), 42);
    let here = helper == Some(thread::current().id());
    assert_eq!(here, is_sync(&rig), "the submitter is not held up");
    rig.finish();
}

pub fn many_calls_each_come_back_once(mut rig: Rig) {
    let count = AtomicUsize::new(0);
    let mut calls: Vec<_> = (0..1000)
        .map(|at| {
            let count = &count;
            move || {
                count.fetch_add(1, SeqCst);
                at
            }
        })
        .collect();
    for (at, call) in calls.iter_mut().enumerate() {
        rig.submit(at as u64, *LiveOp::call(call));
    }
    (0..1000).for_each(|at| assert_eq!(rig.take(at), at as i32));
    assert_eq!(count.load(SeqCst), 1000);
    rig.finish();
}

/// A chore that is cancelled before it begins never begins, and calls that hang do not prevent
/// reads of files.
pub fn a_call_that_has_not_begun_never_begins_when_cancelled(mut rig: Rig) {
    if is_sync(&rig) {
        return; // There they end at submission.
    }
    // Two tests of this kind at the same time would wait for each other's helpers.
    static ALL_HELPERS: Lock<()> = Lock::new(());
    let _mine = ALL_HELPERS.lock();
    let (begun, open) = (AtomicUsize::new(0), AtomicBool::new(false));
    let blocker = || {
        begun.fetch_add(1, SeqCst);
        while !open.load(SeqCst) {
            thread::sleep(Duration::from_micros(100));
        }
        1
    };
    let mut blockers = [(); BLOCKERS].map(|()| blocker);
    for (at, call) in blockers.iter_mut().enumerate() {
        rig.submit(at as u64, *LiveOp::call(call));
    }
    let start = Instant::now();
    while begun.load(SeqCst) < BLOCKERS {
        assert!(start.elapsed() < Duration::from_secs(20), "{begun:?} helpers");
        thread::sleep(Duration::from_millis(1));
    }
    let ran = AtomicBool::new(false);
    let mut late = || {
        ran.store(true, SeqCst);
        0
    };
    rig.submit(100, *LiveOp::call(&mut late));
    rig.quiet();
    let file = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut &file, b"0123").unwrap();
    let mut buf = [0; 4];
    let op = Op::Read { fd: file.as_raw_fd(), buf: buf.as_mut_ptr(), len: 4, offset: 0 };
    assert_eq!(rig.run(101, op), 4, "files have helpers of their own");
    rig.io.cancel(0);
    rig.io.cancel(100);
    assert_eq!(rig.take(100), -libc::ECANCELED);
    open.store(true, SeqCst);
    (0..BLOCKERS as u64)
        .for_each(|at| assert_eq!(rig.take(at), 1, "begun calls end by themselves"));
    assert!(!ran.load(SeqCst));
    rig.finish();
}

pub fn a_dropped_driver_waits_for_the_call_that_has_begun(rig: Rig) {
    let Rig { mut io, .. } = rig;
    let (begun, ended) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (note, done) = (begun.clone(), ended.clone());
    let mut call = move || {
        note.store(true, SeqCst);
        thread::sleep(Duration::from_millis(20));
        done.store(true, SeqCst);
        0
    };
    // SAFETY: Frozen Buffer: `call` lives on until the driver has been dropped.
    let op = unsafe { LiveOp::call(&mut call).untied() };
    let _ = io.submit(1, op);
    while !begun.load(SeqCst) {
        thread::yield_now();
    }
    drop(io);
    assert!(ended.load(SeqCst), "it borrows from this frame");
}

pub fn a_file_is_not_read_by_its_submitter(mut rig: Rig) {
    let file = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut &file, b"0123456789").unwrap();
    let fd = file.as_raw_fd();
    let mut buf = [0; 4];
    // SAFETY: Frozen Buffer: `buf` is used again only after the completion.
    let op = unsafe { LiveOp::read(fd, &mut buf, 3).untied() };
    match rig.io.submit(1, op) {
        Submitted::Done(result) => assert!(is_sync(&rig) && result == 4),
        Submitted::Pending => assert!(!is_sync(&rig) && rig.take(1) == 4),
    }
    assert_eq!(&buf, b"3456");
    owned::adopt(fd, DescriptorKind::File);
    let op = Op::Read { fd, buf: buf.as_mut_ptr(), len: 4, offset: CURRENT };
    assert_eq!(rig.run(2, op), 0, "the position is the end");
    assert_eq!(rig.run(3, Op::PollIn { fd }) & i32::from(libc::POLLIN), i32::from(libc::POLLIN));
    assert_eq!(rig.run(4, Op::Fsync { fd, data_only: true }), 0);
    owned::release(fd);
    rig.finish();
}
