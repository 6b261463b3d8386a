//! Tests of behaviour that the present kernel does not show by itself. They simulate the answers of
//! older kernels.

#![allow(unsafe_code)] // Named invariant "Frozen Buffer": each test keeps its buffers to the end.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::pipe::{PipeFlags, pipe_with};

use super::*;

/// Returns a ring and a pipe. If the system has no ring, prints a message and returns `None`.
fn ring() -> Option<(UringDriver, OwnedFd, OwnedFd)> {
    let (reader, writer) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC).unwrap();
    match UringDriver::new() {
        Ok(ring) => Some((ring, reader, writer)),
        Err(error) => {
            crate::testing::skipped("ring", error);
            None
        }
    }
}

fn read_op(reader: &OwnedFd, buf: &mut [u8]) -> Op {
    let (fd, len) = (reader.as_raw_fd(), buf.len());
    Op::Read { fd, buf: buf.as_mut_ptr(), len, offset: crate::os::driver::CURRENT }
}

fn flight(op: Op, polling: bool) -> Flight {
    // SAFETY: Frozen Buffer: each test keeps its buffers until it has taken the completion.
    Flight { op: unsafe { LiveOp::of(op) }, polling, cancelled: false }
}

/// Adds a read to which the kernel has just answered `-EAGAIN`.
fn refuse(ring: &mut UringDriver, token: u64, op: Op) {
    ring.flights.insert(token, flight(op, false));
    let mut out = Vec::new();
    ring.land(token, -libc::EAGAIN, 0, &mut out);
    assert_eq!(out, [], "it goes round again");
    assert!(ring.flights.get(token).unwrap().polling);
}

fn wait_for_one(ring: &mut UringDriver) -> Done {
    let mut out = Vec::new();
    for _ in 0..200 {
        ring.wait(Some(100_000_000), &mut out);
        if let Some(&done) = out.first() {
            return done;
        }
    }
    panic!("nothing completed");
}

#[test]
fn what_would_block_is_polled_and_tried_again() {
    let Some((mut ring, reader, writer)) = ring() else { return };
    let mut buf = [0; 8];
    refuse(&mut ring, 1, read_op(&reader, &mut buf));
    let mut out = Vec::new();
    ring.wait(Some(2_000_000), &mut out);
    assert_eq!(out, []);
    rustix::io::write(&writer, b"abc").unwrap();
    assert_eq!(wait_for_one(&mut ring), Done { token: 1, result: 3 });
    assert_eq!(&buf[..3], b"abc");
    assert_eq!(ring.pending(), 0);
}

#[test]
fn a_cancel_between_the_poll_and_the_next_try_counts() {
    let Some((mut ring, reader, _writer)) = ring() else { return };
    let mut buf = [0; 8];
    let op = read_op(&reader, &mut buf);
    // The poll has completed and its completion is not reaped yet, so the cancellation finds
    // nothing.
    ring.flights.insert(1, flight(op, true));
    ring.cancel(1);
    let mut out = Vec::new();
    ring.land(1, i32::from(libc::POLLIN), 0, &mut out);
    assert_eq!(out, [Done { token: 1, result: -libc::ECANCELED }]);
    assert_eq!(ring.pending(), 0);
}

#[test]
fn a_bell_whose_poll_ended_is_armed_again() {
    let Some((mut ring, _reader, _writer)) = ring() else { return };
    let mut out = Vec::new();
    ring.wait(Some(0), &mut out);
    ring.push(opcode::AsyncCancel::new(BELL).build().user_data(CANCEL));
    (0..3).for_each(|_| ring.wait(Some(1_000_000), &mut out));
    let waker = ring.waker();
    waker.wake();
    ring.wait(Some(20_000_000_000), &mut out);
    let start = std::time::Instant::now();
    waker.wake();
    ring.wait(Some(20_000_000_000), &mut out);
    assert!(start.elapsed() < Duration::from_secs(19), "the wake was not heard");
}

#[test]
fn the_backlog_reaches_the_kernel_in_order() {
    let Some((mut ring, reader, writer)) = ring() else { return };
    let op = Op::PollIn { fd: reader.as_raw_fd() };
    for token in 0..2_000 {
        ring.flights.insert(token, flight(op, false));
        ring.backlog.push_back(entry(&op).user_data(token));
    }
    (0..1_000).for_each(|token| ring.cancel(token));
    rustix::io::write(&writer, b"x").unwrap();
    let mut out = Vec::new();
    for _ in 0..200 {
        if ring.pending() > 0 {
            ring.wait(Some(100_000_000), &mut out);
        }
    }
    assert_eq!((out.len(), ring.pending(), ring.backlog.len()), (2_000, 0, 0));
}

#[test]
fn an_old_entry_is_flushed_at_the_first_look() {
    let Some((mut ring, reader, writer)) = ring() else { return };
    clock::start();
    std::thread::sleep(Duration::from_millis(2)); // Until then its age is not known.
    let mut out = Vec::new();
    ring.wait(Some(0), &mut out);
    rustix::io::write(&writer, b"abc").unwrap();
    let mut buf = [0; 8];
    // SAFETY: Frozen Buffer: `buf` is used again only after the completion.
    let op = unsafe { LiveOp::of(read_op(&reader, &mut buf)) };
    let _ = ring.submit(1, op);
    std::thread::sleep(Duration::from_millis(1));
    assert!(ring.ready(0), "one look, one entry, and a worker that seldom yields");
    ring.reap(&mut out);
    assert_eq!(out, [Done { token: 1, result: 3 }]);
}

/// Returns a file of 8192 bytes, open for reading and writing, whose name was removed already.
fn file() -> std::fs::File {
    let path = std::env::temp_dir().join(format!("ums-uring-{:?}", std::thread::current().id()));
    let mut options = std::fs::OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    file.set_len(8192).unwrap();
    file
}

/// Writes a page of sevens at position 4096 and reads it back, both with this buffer.
fn write_and_read_back(ring: &mut UringDriver, file: &std::fs::File, buf: &mut [u8]) {
    buf.fill(7);
    let (fd, offset) = (file.as_raw_fd(), 4096);
    // SAFETY: Frozen Buffer: `buf` is used again only after the completion.
    let op = unsafe { LiveOp::write(fd, buf, offset).untied() };
    let _ = ring.submit(1, op);
    assert_eq!(wait_for_one(ring), Done { token: 1, result: 4096 });
    buf.fill(0);
    // SAFETY: Frozen Buffer: as above.
    let op = unsafe { LiveOp::read(fd, buf, offset).untied() };
    let _ = ring.submit(2, op);
    assert_eq!(wait_for_one(ring), Done { token: 2, result: 4096 });
    assert!(buf.iter().all(|byte| *byte == 7));
}

fn piece() -> &'static mut [u8] {
    let start = arena::carve(4096).expect("there is room");
    // SAFETY: Frozen Buffer: a piece belongs to the caller for the rest of the process, and is
    // zeroed.
    unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), 4096) }
}

#[test]
fn buffers_in_the_arena_are_registered_with_the_first_and_others_are_not() {
    let Some((mut ring, ..)) = ring() else { return };
    let file = file();
    write_and_read_back(&mut ring, &file, &mut [0; 4096]);
    assert_eq!(ring.arena, Registered::NotYet);
    let piece = piece();
    write_and_read_back(&mut ring, &file, piece);
    assert_eq!(ring.arena, Registered::Yes);
    let of = |ring: &mut UringDriver, buf: &mut [u8]| {
        let entry = ring.entry(&Op::Read { fd: 0, buf: buf.as_mut_ptr(), len: 4096, offset: 0 });
        entry.get_opcode()
    };
    assert_eq!(of(&mut ring, piece), u32::from(opcode::ReadFixed::CODE));
    assert_eq!(of(&mut ring, &mut [0; 4096]), u32::from(opcode::Read::CODE));
}

#[test]
fn without_lockable_memory_the_arena_is_memory_like_any_other() {
    let Some((mut ring, ..)) = ring() else { return };
    ring.arena = Registered::Refused;
    write_and_read_back(&mut ring, &file(), piece());
    assert_eq!(ring.arena, Registered::Refused);
}

/// Returns the number of looks after which the ring wants to be reaped.
fn looks_until_ready(ring: &mut UringDriver) -> u32 {
    (1..1000).find(|_| ring.ready(0)).expect("it is ready some time")
}

#[test]
fn entries_and_deferred_completions_wait_for_a_bounded_number_of_looks() {
    let Some((mut ring, reader, writer)) = ring() else { return };
    let mut out = Vec::new();
    ring.wait(Some(0), &mut out);
    ring.age_max = u64::MAX / 8;
    let (mut buf, file) = ([0; 8], file());
    // SAFETY: Frozen Buffer: `buf` is used again only after the completion.
    let op = unsafe { LiveOp::of(read_op(&reader, &mut buf)) };
    let _ = ring.submit(1, op);
    assert_eq!(looks_until_ready(&mut ring), PATIENCE);
    ring.reap(&mut out);
    assert!(!ring.ready(0) && out.is_empty(), "the entry was flushed");

    rustix::io::write(&writer, b"abc").unwrap();
    if ring.mode.contains("DEFER_TASKRUN") {
        // The first look notices that the kernel has something.
        assert_eq!(looks_until_ready(&mut ring), PATIENCE + 1);
    }
    ring.reap(&mut out);
    assert_eq!(out, [Done { token: 1, result: 3 }]);

    let _ = ring.submit(2, LiveOp::fsync(file.as_raw_fd(), true));
    assert_eq!(looks_until_ready(&mut ring), PATIENCE_FOR_FILES, "a disk works meanwhile");
    ring.reap(&mut out);
    wait_until_empty(&mut ring);
}

#[test]
fn an_entry_that_comes_when_the_queue_is_full_is_flushed_without_a_wait() {
    let Some((mut ring, reader, writer)) = ring() else { return };
    let mut out = Vec::new();
    ring.wait(Some(0), &mut out);
    rustix::io::write(&writer, b"x").unwrap();
    let count = ring.ring.submission().capacity() as u64 + 1;
    for token in 0..count {
        let _ = ring.submit(token, LiveOp::poll(reader.as_raw_fd(), crate::os::driver::Side::In));
    }
    for _ in 0..10 * PATIENCE {
        if ring.ready(0) {
            ring.reap(&mut out);
        }
    }
    assert_eq!((out.len() as u64, ring.pending()), (count, 0));
}

fn wait_until_empty(ring: &mut UringDriver) {
    let mut out = Vec::new();
    while ring.pending() > 0 {
        ring.wait(Some(100_000_000), &mut out);
    }
}

#[test]
fn small_operations_are_gathered_unless_batches_are_late() {
    let Some((mut ring, reader, _writer)) = ring() else { return };
    let mut out = Vec::new();
    // No batch is late yet, whatever else this computer does.
    ring.age_max = u64::MAX / 8;
    ring.wait(Some(0), &mut out);
    assert!(ring.gathers(true), "others can run: there will be a batch");
    assert!(!ring.gathers(false), "nothing would be gained");
    let poll = || LiveOp::poll(reader.as_raw_fd(), crate::os::driver::Side::In);
    let _ = ring.submit(1, poll());
    assert!(ring.gathers(false), "there is a batch already");
    ring.wait(Some(0), &mut out);

    let _ = ring.submit(2, poll());
    ring.age_max = 1;
    std::thread::sleep(Duration::from_millis(1));
    ring.wait(Some(0), &mut out);
    for _ in 0..SHY {
        assert!(!ring.gathers(true), "the last batch was late");
    }
    assert!(ring.gathers(true), "it is tried again");
    [1, 2].into_iter().for_each(|token| ring.cancel(token));
    wait_until_empty(&mut ring);
}
