//! Child processes and signals, as waits of workers.

mod common;

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use common::{both_kinds, child_errand, eventually, ms, on, run_child, start};
use ums::process::{Child, Signals, output, status};
use ums::sync::Select;
use ums::{Node, WaitError};

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.arg("-c").arg(script);
    command
}

/// Whether there is a process with this number that has not been reaped.
fn exists(process: u32) -> bool {
    std::path::Path::new(&format!("/proc/{process}")).exists()
}

#[test]
fn others_run_while_a_worker_waits_for_the_end_of_a_child() {
    both_kinds(|node, _, n| {
        let waits = start(node, n - 1, || {
            let mut child = Child::spawn(shell("read line; exit 7").stdin(Stdio::piped()))?;
            let go = child.stdin.take().unwrap();
            let other = ums::spawn(move || {
                // Runs only if the parent does not keep the scheduler.
                (&go).write_all(b"go\n")
            });
            let status = child.wait()?;
            other.join().unwrap()?;
            assert_eq!(child.try_wait()?, Some(status), "the status is kept");
            std::io::Result::Ok(status.code())
        });
        assert_eq!(waits.join().unwrap().unwrap(), Some(7));
    });
}

#[test]
fn the_output_of_a_child_is_read_from_both_pipes_at_once() {
    // More than a pipe holds, first to one and then to the other.
    const SCRIPT: &str =
        "head -c 300000 /dev/zero; head -c 300000 /dev/zero >&2; head -c 5 /dev/zero";
    both_kinds(|node, _, n| {
        let read = on(node, n - 1, || output(&mut shell(SCRIPT))).unwrap();
        assert!(read.status.success());
        assert_eq!((read.stdout.len(), read.stderr.len()), (300_005, 300_000));
    });
    let read = output(&mut shell(SCRIPT)).unwrap();
    assert_eq!((read.stdout.len(), read.stderr.len()), (300_005, 300_000), "on a plain thread");
}

#[test]
fn what_is_written_to_a_child_waits_for_room() {
    both_kinds(|node, _, n| {
        let counted = on(node, n - 1, || {
            let mut wc = Command::new("wc");
            let mut child =
                Child::spawn(wc.arg("-c").stdin(Stdio::piped()).stdout(Stdio::piped()))?;
            let mut to = child.stdin.take().unwrap();
            let wrote = ums::spawn(move || to.write_all(&vec![1; 1_000_000]));
            let mut text = String::new();
            child.stdout.take().unwrap().read_to_string(&mut text)?;
            wrote.join().unwrap()?;
            assert!(child.wait()?.success());
            std::io::Result::Ok(text)
        });
        assert_eq!(counted.unwrap().trim(), "1000000");
    });
}

#[test]
fn a_cancelled_wait_leaves_the_child_and_a_dropped_output_kills_it() {
    both_kinds(|node, _, n| {
        on(node, n - 1, || {
            let mut child = Child::spawn(Command::new("sleep").arg("600")).unwrap();
            let waited = ums::with_timeout(ms(5), || child.wait());
            assert_eq!(waited.unwrap_err().kind(), ErrorKind::TimedOut);
            assert_eq!(child.try_wait().unwrap(), None, "it goes on");
            let none = child.signal(0).unwrap_err();
            assert!(none.to_string().contains("which `try_wait` answers"), "{none}");
            child.signal(15).unwrap();
            assert_eq!(child.wait().unwrap().signal(), Some(15));
            let none = child.signal(1000).unwrap_err();
            assert_eq!(none.kind(), ErrorKind::InvalidInput);
            assert_eq!(
                none.to_string(),
                "signal 1000 cannot be sent: it is none of the signals that have names"
            );
        });
        let begun = Instant::now();
        let told = on(node, n - 1, || {
            ums::with_timeout(ms(50), || output(&mut shell("echo $$ >&2; exec sleep 600")))
        });
        let late = told.unwrap_err();
        assert_eq!(late.kind(), ErrorKind::TimedOut);
        assert_eq!(late.to_string(), "the wait for CHILD timed out");
        assert!(begun.elapsed() < Duration::from_secs(300));
        let child = on(node, n - 1, || {
            let child = Child::spawn(Command::new("sleep").arg("600")).unwrap().kill_on_drop();
            child.id()
        });
        eventually("a killed child is reaped", || !exists(child));
        let left = on(node, n - 1, || {
            let mut script = shell("sleep 600 & echo up; wait");
            let mut child = Child::spawn(script.process_group(0).stdout(Stdio::piped())).unwrap();
            let mut output = BufReader::new(child.stdout.take().unwrap());
            output.read_line(&mut String::new()).unwrap();
            drop(child.kill_on_drop());
            output.read_to_end(&mut Vec::new())
        });
        assert_eq!(left.unwrap(), 0, "its process group has ended, too");
    });
}

#[test]
fn a_child_that_is_dropped_while_it_runs_is_reaped_when_it_ends() {
    both_kinds(|node, _, n| {
        let short = || Child::spawn(&mut shell("sleep 0.05")).unwrap().id();
        let by_worker = on(node, n - 1, short);
        eventually("no other child is started for that", || !exists(by_worker));
        let by_thread = short();
        eventually("another child is started", || {
            let _ = status(&mut Command::new("true"));
            !exists(by_thread)
        });
    });
    let node = Node::builder().schedulers(1).build().unwrap();
    let long = |seconds: &'static str| {
        on(&node, 0, move || Child::spawn(Command::new("sleep").arg(seconds)).unwrap().id())
    };
    let (left, ends) = (long("600"), long("0.05"));
    let report = node.shutdown(ms(1000));
    assert_eq!(report.left, 0, "nothing waits for the children");
    assert!(exists(left), "the child goes on");
    eventually("a child whose scheduler has ended is reaped when another is started", || {
        let _ = status(&mut Command::new("true"));
        !exists(ends)
    });
    let kill = Command::new("kill").arg(left.to_string()).status();
    assert!(kill.unwrap().success());
}

/// Runs the body in a task that is cancelled already.
fn when_cancelled<T: Send + 'static>(
    (node, s): (&Node, usize),
    body: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (begins, begun) = std::sync::mpsc::channel();
    let task = start(node, s, move || {
        begins.send(()).unwrap();
        ums::sleep(Duration::MAX).unwrap_err();
        body()
    });
    begun.recv().unwrap(); // a task that is cancelled before it begins never runs
    task.cancel();
    task.join().unwrap()
}

#[track_caller]
fn assert_cancelled<T: std::fmt::Debug>(result: std::io::Result<T>) {
    let error = result.unwrap_err();
    assert_eq!(WaitError::of(&error), Some(WaitError::Cancelled), "{error}");
}

#[test]
fn a_cancelled_task_reads_no_more_of_a_child_but_writes_a_last_line() {
    both_kinds(|node, _, n| {
        let mut cat = Command::new("cat");
        let cat = cat.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = Child::spawn(cat).unwrap().kill_on_drop();
        child.stdin.as_mut().unwrap().write_all(b"first ").unwrap();
        let mut output = child.stdout.take().unwrap();
        output.read_exact(&mut [0]).unwrap(); // there is more to read
        let (mut output, child) = when_cancelled((node, n - 1), move || {
            assert_cancelled(output.read(&mut [0; 8]));
            child.stdin.take().unwrap().write_all(b"last").unwrap();
            (output, child)
        });
        let mut text = String::new();
        output.read_to_string(&mut text).unwrap();
        assert_eq!(text, "irst last");
        drop(child);
    });
}

#[test]
fn a_cancelled_task_starts_no_program() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    let script = format!("echo x > {}", trace.display());
    both_kinds(|node, _, n| {
        let script = script.clone();
        when_cancelled((node, n - 1), move || {
            assert_cancelled(status(&mut shell(&script)));
            assert_cancelled(output(&mut shell(&script)));
        });
        // It would have needed a moment.
        std::thread::sleep(ms(50));
        assert!(!trace.exists());
        assert_eq!(on(node, n - 1, || status(&mut Command::new("true"))).unwrap().code(), Some(0));
    });
}

#[test]
fn a_signal_to_a_child_that_was_waited_for_says_so() {
    let mut child = Child::spawn(&mut Command::new("true")).unwrap();
    eventually("it has ended", || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        stat.contains(") Z ")
    });
    child.signal(15).unwrap(); // its number is still its own
    child.kill().unwrap();
    assert!(child.wait().unwrap().success());
    child.kill().unwrap();
    let late = child.signal(15).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::NotFound);
    assert!(late.to_string().contains("was waited for"), "{late}");
}

#[test]
fn a_signal_to_the_group_of_a_child_reaches_the_processes_that_it_has_left_behind() {
    both_kinds(|node, _, n| {
        on(node, n - 1, || {
            let mut script = shell("sleep 600 & echo $!; wait");
            script.process_group(0).stdout(Stdio::piped());
            let mut child = Child::spawn(&mut script).unwrap();
            let mut output = BufReader::new(child.stdout.take().unwrap());
            let mut sleeper = String::new();
            output.read_line(&mut sleeper).unwrap();
            child.kill().unwrap();
            Select::new().on(child.ended(), |ended| ended).wait().unwrap().unwrap();
            assert!(exists(sleeper.trim().parse().unwrap()), "only the shell was killed");
            child.signal_group(15).unwrap();
            assert_eq!(output.read_to_string(&mut sleeper).unwrap(), 0, "none has the pipe");
            assert_eq!(child.wait().unwrap().signal(), Some(9));
            let late = child.signal_group(15).unwrap_err();
            assert_eq!(late.kind(), ErrorKind::NotFound, "{late}");

            let mut other = Child::spawn(Command::new("sleep").arg("600")).unwrap().kill_on_drop();
            let refused = other.signal_group(15).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidInput);
            assert!(refused.to_string().contains("process_group(0)"), "{refused}");
            assert_eq!(other.try_wait().unwrap(), None, "a refused call changes nothing");
        });
    });
}

#[test]
fn a_select_waits_for_a_child_beside_other_things() {
    both_kinds(|node, _, n| {
        let code = on(node, n - 1, || {
            let mut child = Child::spawn(&mut shell("exit 3")).unwrap();
            let ended = Select::new()
                .on(child.ended(), |ended| ended.map(|()| true))
                .on(Duration::from_secs(600), |()| Ok(false))
                .wait();
            assert!(ended.unwrap().unwrap());
            child.try_wait().unwrap().unwrap().code()
        });
        assert_eq!(code, Some(3));
    });
}

#[test]
fn a_program_that_is_not_there_is_an_error_on_every_kind_of_worker() {
    both_kinds(|node, _, n| {
        let refused = on(node, n - 1, || status(&mut Command::new("/nowhere/program")));
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::NotFound);
    });
}

fn raise(signal: i32) {
    signal_hook::low_level::raise(signal).unwrap();
}

#[test]
fn each_signal_is_received_once_by_one_of_the_waiters() {
    const NAME: &str = "each_signal_is_received_once_by_one_of_the_waiters";
    if child_errand().is_none() {
        let run = run_child(NAME, "run");
        return assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    }
    both_kinds(|node, _, n| {
        let signals = Arc::new(Signals::new([libc::SIGUSR1, libc::SIGUSR2]).unwrap());
        assert_eq!(signals.try_wait(), None);
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let signals = signals.clone();
                start(node, n - 1, move || signals.wait().unwrap())
            })
            .collect();
        raise(libc::SIGUSR1);
        raise(libc::SIGUSR2);
        let mut received: Vec<_> = waiters.into_iter().map(|w| w.join().unwrap()).collect();
        received.sort_unstable();
        assert_eq!(received, [libc::SIGUSR1, libc::SIGUSR2]);
        assert_eq!(signals.try_wait(), None, "each once");

        raise(libc::SIGUSR1);
        raise(libc::SIGUSR1);
        assert_eq!(signals.wait().unwrap(), libc::SIGUSR1, "a plain thread may wait, too");
        assert_eq!(signals.try_wait(), None, "two of the same kind are one");

        let timed_out = on(node, n - 1, {
            let signals = signals.clone();
            move || ums::with_timeout(ms(5), || signals.wait())
        });
        assert_eq!(timed_out.unwrap_err().kind(), ErrorKind::TimedOut);
        raise(libc::SIGUSR2);
        let arrived = on(node, n - 1, {
            let signals = signals.clone();
            move || Select::new().on(signals.arrived(), |arrived| arrived).wait().unwrap()
        });
        arrived.unwrap();
        assert_eq!(signals.try_wait(), Some(libc::SIGUSR2));
    });
}

#[test]
fn ctrl_c_ends_a_server_by_a_wait() {
    const NAME: &str = "ctrl_c_ends_a_server_by_a_wait";
    if let Some(errand) = child_errand() {
        let node = ums::Node::builder().schedulers(1).build().unwrap();
        let stop = Signals::termination().unwrap();
        let goes_on = Arc::new(AtomicBool::new(true));
        let works = goes_on.clone();
        let server = node.spawn(move || {
            while works.load(SeqCst) {
                ums::sleep(ms(1)).unwrap();
            }
        });
        println!("ready");
        let signal = node.run(|| stop.wait()).unwrap();
        println!("signal {signal}");
        if errand == "is slow to end" {
            std::thread::sleep(Duration::from_secs(600));
        }
        goes_on.store(false, SeqCst);
        server.unwrap().join().unwrap();
        common::end(node);
        return;
    }
    for errand in ["run", "is slow to end"] {
        let mut program = common::child(NAME, errand);
        let mut child = Child::spawn(program.stdout(Stdio::piped())).unwrap().kill_on_drop();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.by_ref().any(|line| line.unwrap().ends_with("ready")));
        child.signal(libc::SIGINT).unwrap();
        assert!(lines.by_ref().any(|line| line.unwrap() == "signal 2"));
        if errand == "run" {
            assert!(child.wait().unwrap().success());
        } else {
            child.signal(libc::SIGTERM).unwrap();
            assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGTERM), "at once");
        }
    }
}

#[test]
fn a_signal_that_cannot_be_received_is_refused() {
    for number in [libc::SIGKILL, libc::SIGSEGV, 1000, 0, -1, 32] {
        let refused = Signals::new([number]).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
        let begin = format!("signal {number} cannot be received: ");
        assert!(refused.to_string().starts_with(&begin), "{refused}");
    }
}

#[test]
fn a_refused_list_of_signals_changes_nothing_and_a_signal_named_twice_comes_once() {
    const NAME: &str =
        "a_refused_list_of_signals_changes_nothing_and_a_signal_named_twice_comes_once";
    match child_errand().as_deref() {
        None => {
            let twice = run_child(NAME, "twice");
            assert!(twice.status.success(), "{}", String::from_utf8_lossy(&twice.stderr));
            assert_eq!(run_child(NAME, "refused").status.signal(), Some(libc::SIGUSR1));
        }
        Some("twice") => {
            let signals = Signals::new([libc::SIGUSR1, libc::SIGUSR1]).unwrap();
            raise(libc::SIGUSR1);
            assert_eq!(signals.try_wait(), Some(libc::SIGUSR1));
            assert_eq!(signals.try_wait(), None);
        }
        Some(_) => {
            Signals::new([libc::SIGUSR1, 999]).unwrap_err();
            raise(libc::SIGUSR1); // ends the process, as if there had been no call
        }
    }
}
