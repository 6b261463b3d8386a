//! Tests in child processes under a system call filter: what happens if a call is denied, and which
//! calls are not made at all.
//!
//! A test starts its own binary again, with only itself selected. The child sets the filter and
//! does the work.

use std::process::Command;

use super::*;

const CHILD: &str = "UMS_TEST_CHILD";

/// Returns whether this process is the child that the test `name` started.
fn is_child(name: &str) -> bool {
    std::env::var(CHILD).is_ok_and(|child| child == name)
}

/// Runs the test `name` in a child. Returns its output, and whether it was successful.
fn run_child(name: &str, env: &[(&str, &str)]) -> (String, bool) {
    let path = format!("{}::{name}", module_path!().split_once("::").unwrap().1);
    let output = Command::new(std::env::current_exe().unwrap())
        .args([&path, "--exact", "--nocapture", "--test-threads=1"])
        .env_remove("UMS_IO")
        .env(CHILD, name)
        .envs(env.iter().copied())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (text.into_owned(), output.status.success())
}

const fn step(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

/// Sets a filter for this thread: system call `number` gets the action `hit`, every other one
/// `miss`.
fn filter(number: libc::c_long, hit: u32, miss: u32) {
    let mut program = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0), // The number comes first.
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, number as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, hit),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, miss),
    ];
    let program = libc::sock_fprog { len: 4, filter: program.as_mut_ptr() };
    // SAFETY: Plain Call: the program is well formed and lives through the calls.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program), 0);
    }
}

fn deny(number: libc::c_long, errno: i32) {
    filter(number, libc::SECCOMP_RET_ERRNO | errno as u32, libc::SECCOMP_RET_ALLOW);
}

/// Checks that a driver works: one byte through a socket.
fn prove(io: Box<dyn Driver>) {
    let mut rig = Rig { io, adopt: false, done: Vec::new() };
    let (a, b) = rig.pair();
    let mut buf = [0; 8];
    rig.submit(1, a.recv(&mut buf));
    rig.quiet();
    b.write(b"x");
    assert_eq!(rig.take(1), 1);
    rig.finish();
}

#[test]
fn a_filter_that_denies_io_uring_gives_epoll_and_says_why_u58() {
    const NAME: &str = "a_filter_that_denies_io_uring_gives_epoll_and_says_why_u58";
    if !is_child(NAME) {
        let (text, good) = run_child(NAME, &[]);
        assert!(good && text.contains("child ran"), "{text}");
        return;
    }
    deny(libc::SYS_io_uring_setup, libc::EPERM);
    let io = open(Choice::Auto, DriverThreads::OneThread).unwrap();
    assert_eq!(io.name(), "epoll");
    assert!(io.describe().contains("denied (seccomp"), "{}", io.describe());
    prove(io);
    let forced = open(Choice::Uring, DriverThreads::OneThread).err().unwrap();
    assert!(forced.to_string().contains("denied (seccomp"), "{forced}");
    deny(libc::SYS_epoll_pwait2, libc::ENOSYS);
    let io = open(Choice::Auto, DriverThreads::ManyThreads).unwrap();
    assert!(io.describe().contains("whole milliseconds"), "{}", io.describe());
    let (mut io, start) = (io, Instant::now());
    io.wait(Some(1_700_000), &mut Vec::new());
    assert!(start.elapsed() >= Duration::from_nanos(1_700_000), "rounded up, not down");
    prove(io);
    deny(libc::SYS_epoll_create1, libc::EPERM);
    let io = open(Choice::Auto, DriverThreads::OneThread).unwrap();
    assert_eq!(io.name(), "sync");
    assert!(io.describe().contains("io_uring: denied"), "{}", io.describe());
    prove(io);
    println!("child ran");
}

#[test]
fn the_environment_forces_a_driver() {
    const NAME: &str = "the_environment_forces_a_driver";
    if !is_child(NAME) {
        for name in ["epoll", "sync"] {
            let (text, good) = run_child(NAME, &[("UMS_IO", name)]);
            assert!(good && text.contains(&format!("child ran {name}")), "{text}");
        }
        let (text, good) = run_child(NAME, &[("UMS_IO", "kqueue")]);
        assert!(!good && text.contains("no I/O driver is called"), "{text}");
        return;
    }
    println!("child ran {}", open(Choice::Auto, DriverThreads::OneThread).unwrap().name());
}

#[test]
fn looking_at_nothing_makes_no_system_call_u59() {
    const NAME: &str = "looking_at_nothing_makes_no_system_call_u59";
    if !is_child(NAME) {
        let (text, good) = run_child(NAME, &[]);
        assert!(good, "a driver called the kernel: {text}");
        return;
    }
    let mut drivers: Vec<_> = [Choice::Uring, Choice::Epoll, Choice::Sync]
        .into_iter()
        .filter_map(|choice| open_as(choice, DriverThreads::OneThread).ok())
        .collect();
    let mut done = Vec::new();
    for io in &mut drivers {
        io.wait(Some(0), &mut done); // Flushes what the opening has queued.
        io.wait(Some(0), &mut done);
    }
    // From here on every system call but the last kills the process.
    filter(libc::SYS_exit_group, libc::SECCOMP_RET_ALLOW, libc::SECCOMP_RET_KILL_PROCESS);
    let mut wrong = 0;
    for _ in 0..10_000 {
        for io in &mut drivers {
            wrong += i32::from(io.ready(0));
            io.reap(&mut done);
        }
    }
    // SAFETY: Plain Call: ends the process immediately; this child has nothing to clean up.
    unsafe { libc::_exit(wrong.min(1)) }
}

#[test]
fn a_scheduler_with_many_threads_gets_no_ring() {
    for choice in [Choice::Auto, Choice::Uring] {
        let io = open_as(choice, DriverThreads::ManyThreads).unwrap();
        assert_eq!(io.name(), "epoll");
        assert!(io.describe().contains("a ring belongs to one thread"));
    }
}
