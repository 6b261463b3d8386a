//! Any sequence of file operations has the same results as with std.

use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use ums::fs::File;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    ReadAt(usize, u64),
    Read(usize),
    WriteAt(Vec<u8>, u64),
    Write(Vec<u8>),
    Seek(i64),
    SetLen(u64),
    Sync,
    Forget,
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = || proptest::collection::vec(any::<u8>(), 0..9000);
    prop_oneof![
        (0..9000usize, 0..20_000u64).prop_map(|(n, at)| Step::ReadAt(n, at)),
        (0..9000usize).prop_map(Step::Read),
        (bytes(), 0..20_000u64).prop_map(|(b, at)| Step::WriteAt(b, at)),
        bytes().prop_map(Step::Write),
        (0..20_000i64).prop_map(Step::Seek),
        (0..20_000u64).prop_map(Step::SetLen),
        Just(Step::Sync),
        Just(Step::Forget),
    ]
}

/// Reads until the buffer is full or the file ends, because a single read may stop earlier.
fn fill(mut read: impl Read, n: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    read.by_ref().take(n as u64).read_to_end(&mut bytes).unwrap();
    bytes
}

/// Applies one step to both files, and returns the bytes that each has read.
fn both(step: &Step, ours: &File, theirs: &std::fs::File) -> (Vec<u8>, Vec<u8>) {
    match step {
        Step::ReadAt(n, at) => {
            let (mut a, mut b) = (vec![0; *n], vec![0; *n]);
            let got = ours.read_full_at(&mut a, *at).unwrap();
            a.truncate(got);
            let end = theirs.metadata().unwrap().len().saturating_sub(*at).min(*n as u64);
            theirs.read_exact_at(&mut b[..end as usize], *at).unwrap();
            b.truncate(end as usize);
            return (a, b);
        }
        Step::Read(n) => return (fill(ours, *n), fill(theirs, *n)),
        Step::WriteAt(bytes, at) => {
            ours.write_all_at(bytes, *at).unwrap();
            theirs.write_all_at(bytes, *at).unwrap();
        }
        Step::Write(bytes) => {
            (&mut &*ours).write_all(bytes).unwrap();
            (&mut &*theirs).write_all(bytes).unwrap();
        }
        Step::Seek(by) => {
            let (a, b) = (SeekFrom::Start(*by as u64), SeekFrom::Start(*by as u64));
            assert_eq!((&mut &*ours).seek(a).unwrap(), (&mut &*theirs).seek(b).unwrap());
        }
        Step::SetLen(len) => {
            ours.set_len(*len).unwrap();
            theirs.set_len(*len).unwrap();
        }
        Step::Sync => ours.sync_data().unwrap(),
        Step::Forget => {
            ours.sync_data().unwrap();
            rustix::fs::fadvise(ours, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        }
    }
    let len = |m: std::io::Result<std::fs::Metadata>| m.unwrap().len().to_le_bytes().to_vec();
    (len(ours.metadata()), len(theirs.metadata()))
}

#[test]
fn any_sequence_of_operations_gives_what_std_gives() {
    everywhere(|node| {
        let mut runner = TestRunner::new(Config { cases: 12, ..Config::default() });
        let steps = proptest::collection::vec(step(), 1..20);
        let result = runner.run(&steps, |steps| {
            node.run(move || {
                let ours = File::from(tempfile::tempfile().unwrap());
                let theirs = tempfile::tempfile().unwrap();
                for step in &steps {
                    let (a, b) = both(step, &ours, &theirs);
                    prop_assert!(a == b, "{step:?} of {steps:?}");
                }
                Ok(())
            })
        });
        result.unwrap();
    });
}
