//! A process in which io_uring is denied, as in many containers: files work in the same way, over
//! epoll.

use ums::fs::File;

use super::*;
use crate::common::seccomp::{Verdict, filter};

#[test]
fn a_process_without_io_uring_has_the_same_files_u58() {
    const ME: &str = "denied::a_process_without_io_uring_has_the_same_files_u58";
    const CALLS: [libc::c_long; 3] =
        [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];
    let denied = match common::child_errand().as_deref() {
        Some("all") => &CALLS[..],
        Some("enter") => &CALLS[1..2],
        _ => {
            let _turn = common::turn();
            for errand in ["all", "enter"] {
                let output = common::run_child(ME, errand);
                assert!(output.status.success(), "{errand}: {output:?}");
            }
            return;
        }
    };
    filter(Verdict::AllButThese, denied);
    assert!(!back_ends(WorkerKind::Fiber).contains(&IoChoice::Uring));
    for kind in kinds() {
        one_kind(
            kind,
            |b| b.schedulers(2),
            |node| {
                assert!(node.io_text().starts_with("epoll"), "{}", node.io_text());
                let tasks: Vec<_> = (0..32).map(|at| common::start(node, at % 2, story)).collect();
                tasks.into_iter().for_each(|task| task.join().unwrap());
            },
        );
    }
}

/// Uses some of every operation.
fn story() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let file = File::create_new(&path).unwrap();
    file.write_all_at(&[5; 10_000], 0).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let mut bytes = vec![0; 10_000];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 5));
    file.close().unwrap();
    ums::fs::rename(&path, folder.path().join("other")).unwrap();
    assert_eq!(ums::fs::read_dir(folder.path()).unwrap().count(), 1);
}
