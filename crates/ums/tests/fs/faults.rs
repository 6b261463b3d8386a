//! Faults injected between the library and its I/O drivers: late and reordered completions, short
//! transfers, errors, cancellations that race. Each seed is a separate run, and is printed.

use std::cell::RefCell;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use ums::fs::{DirectBuffer, File};
use ums::io::Request;
use ums::testing::{DriverFaults, inject, lists};

use super::*;

const SEEDS: u64 = 6;

/// Runs the body on every kind of node, with these faults, for each seed.
fn with_faults(faults: DriverFaults, body: impl Fn(&Node, u64)) {
    for seed in 0..SEEDS {
        for kind in kinds() {
            for io in back_ends(kind) {
                eprintln!("{kind:?} workers, {io:?}, seed {seed}");
                let installed = RefCell::new(None);
                let options = |b: ums::Builder| {
                    *installed.borrow_mut() = Some(inject(DriverFaults { seed, ..faults }));
                    b.schedulers(1 + seed as usize % 2).io(io)
                };
                one_kind(kind, options, |node| {
                    installed.take();
                    body(node, seed);
                });
            }
        }
    }
}

const ALL_ERRORS: [i32; 4] = [libc::EIO, libc::ENOSPC, libc::EINTR, libc::EAGAIN];

/// Returns a file for direct I/O, all of whose operations go to the driver. Returns `None` where
/// direct I/O is not supported.
fn direct_file() -> Option<File> {
    let folder = tempfile::tempdir().unwrap();
    let mut options = File::options();
    options.read(true).write(true).create(true).direct(true);
    options.open(folder.path().join("direct")).ok()
}

fn page_of(byte: u8) -> DirectBuffer {
    let mut page = DirectBuffer::new(8192);
    page.fill(byte);
    page
}

#[test]
fn late_and_short_transfers_are_not_noticed() {
    with_faults(DriverFaults { late: 500, short: 500, ..DriverFaults::default() }, |node, _| {
        let Some(file) = direct_file() else { return eprintln!("not run: no direct I/O here") };
        let file = Arc::new(file);
        let tasks: Vec<_> = (0..16u8)
            .map(|at| {
                let file = file.clone();
                let body = move || {
                    let place = u64::from(at) * 8192;
                    file.write_all_at(&page_of(at + 1), place).unwrap();
                    file.sync_data().unwrap();
                    let mut back = DirectBuffer::new(8192);
                    file.read_exact_at(&mut back, place).unwrap();
                    back.iter().all(|byte| *byte == at + 1)
                };
                common::start(node, usize::from(at) % node.scheduler_count(), body)
            })
            .collect();
        assert!(tasks.into_iter().all(|task| task.join().unwrap()));
    });
}

#[test]
fn errors_are_reported_once_and_to_the_right_caller() {
    let faults = DriverFaults { fail: 300, late: 300, short: 300, errors: ALL_ERRORS, seed: 0 };
    with_faults(faults, |node, _| {
        node.run(|| {
            // An injected fault may make opening fail as well.
            let Some(file) = (0..100).find_map(|_| direct_file()) else {
                return eprintln!("not run: no direct I/O here");
            };
            let (mut good, mut bad) = (0, 0);
            let mut count = |result: io::Result<()>| match result {
                Ok(()) => good += 1,
                Err(error) => {
                    let errno = error.raw_os_error().expect("an injected error is a number");
                    assert!(ALL_ERRORS.contains(&errno), "{error}");
                    assert_ne!(error.kind(), ErrorKind::Interrupted, "interrupted: retried");
                    bad += 1;
                }
            };
            let mut back = DirectBuffer::new(8192);
            for round in 0..60u8 {
                let written = file.write_all_at(&page_of(round), 0);
                let whole = written.is_ok();
                count(written);
                count(file.sync_all());
                let read = file.read_exact_at(&mut back, 0);
                if whole && read.is_ok() {
                    assert!(back.iter().all(|byte| *byte == round));
                }
                if whole || read.is_ok() {
                    count(read);
                }
            }
            assert!(good > 0 && bad > 0, "{good} good, {bad} bad");
            assert_eq!(lists().io, 0);
        });
    });
}

#[test]
fn requests_end_once_under_faults_and_cancellations() {
    let faults = DriverFaults { fail: 200, late: 400, short: 200, errors: ALL_ERRORS, seed: 0 };
    with_faults(faults, |node, seed| {
        const MANY: usize = 400;
        let plain = File::from(tempfile::tempfile().unwrap());
        plain.write_all_at(&[7; 4096], 0).unwrap();
        let file = Arc::new(plain);
        let ran = Arc::new(AtomicUsize::new(0));
        let count = ran.clone();
        common::on(node, 0, move || {
            let mut pending = Vec::new();
            for at in 0..MANY {
                let count = count.clone();
                let routine = move |result: io::Result<usize>, bytes: Vec<u8>| {
                    let n = result.unwrap_or(0);
                    assert!(bytes.len() == 64 && bytes[..n].iter().all(|byte| *byte == 7));
                    count.fetch_add(1, SeqCst);
                };
                let request = Request::read(file.clone(), vec![0; 64], at as u64, routine);
                pending.push(request.submit());
                if (at as u64 + seed).is_multiple_of(3) {
                    pending[at / 2].cancel();
                }
                if at.is_multiple_of(5) {
                    ums::yield_now();
                }
            }
            // Half of the runs leave outstanding requests to the shutdown.
            if seed.is_multiple_of(2) {
                common::eventually("all ended", || count.load(SeqCst) == MANY);
                assert_eq!(lists().io, 0);
            }
        });
        assert_eq!(node.clone().shutdown(common::PATIENCE), ums::node::ShutdownReport::default());
        assert_eq!(ran.load(SeqCst), MANY);
    });
}
