//! Compares whole screens with those in `golden/`: under load, and out of workers, at 80x24 and at
//! 160x50. After an intended change, `UMS_GOLDEN=write cargo test -p ums-cli top` writes the files
//! again; review them by eye.

use std::path::PathBuf;
use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde_json::{Value, json};

use super::draw::draw;
use super::model::Model;
use super::reading::Reading;
use super::state::State;

fn reading(now_s: i64, tables: Value) -> Reading {
    let answer =
        json!({"pid": 4711, "program": "ums", "now_us": now_s * 1_000_000, "tables": tables});
    match answer {
        Value::Object(answer) => Reading::of(answer),
        other => panic!("{other}"),
    }
}

fn scheduler(id: i64, idle_us: i64, switches: i64, done: i64, queued: i64, waiting: i64) -> Value {
    json!({
        "scheduler_id": id, "name": if id == 2 { "admin".to_owned() } else { id.to_string() },
        "status": if id == 2 { "HIDDEN ONLINE" } else { "VISIBLE ONLINE" }, "workers": "Thread",
        "max_workers": if id == 2 { 3 } else { 8 },
        "current_workers_count": if id == 2 { 3 } else { 8 },
        "idle_workers_count": if id == 2 { 3 } else { (7 - waiting).max(0) },
        "runnable_tasks_count": i64::from(waiting == 1), "waiting_tasks_count": waiting,
        "work_queue_count": queued, "pending_io_count": 2 * (1 - id / 2),
        "context_switches_count": switches, "requests_done": done, "idle_time_us": idle_us,
    })
}

fn worker(scheduler: i64, id: i64, state: &str, wait: &str, ms: i64, user: i64) -> Value {
    json!({
        "scheduler_id": scheduler, "worker_id": id, "state": state, "wait_type": wait,
        "last_wait_type": "LCK_M_X", "wait_duration_ms": ms, "user_id": user,
        "request_id": user * 100, "tasks_processed_count": 1200 + id,
        "context_switch_count": 5000 + id, "os_thread_id": 5000 + id,
        "stack_bytes": 1 << 20, "stack_bytes_used": 20480,
    })
}

fn wait(name: &str, begun: i64, done: i64, us: i64) -> Value {
    json!({
        "wait_type": name, "class": "RESOURCE", "waiting_tasks_count": begun,
        "completed_waits": done, "wait_time_us": us, "signal_wait_time_us": us / 10,
        "max_wait_time_us": 91_000,
    })
}

fn finding(condition: &str, reports: i64) -> Value {
    json!({"condition": condition, "reports_count": reports, "suppressed_count": 0})
}

/// Returns the model of a server that is busy and has no problem.
fn under_load() -> Model {
    let at = |now: i64| {
        let workers = vec![
            worker(0, 1, "RUNNING", "", 0, 11),
            worker(0, 2, "RUNNABLE", "", 0, 12),
            worker(0, 3, "WAITING", "WRITELOG", 3, 13),
            worker(0, 4, "IDLE", "", 0, 0),
            worker(1, 1, "RUNNING", "", 0, 14),
            worker(1, 2, "WAITING", "LCK_M_X", 12, 15),
            worker(1, 3, "PREEMPTIVE", "PREEMPTIVE_OS_OPEN", 1, 16),
        ];
        let user = |id: i64| {
            json!({"user_id": id, "scheduler_id": id % 2, "is_busy": id % 3 / 2,
                "is_holding": id / 16, "requests_done": id * 1000,
                "queueing_time_us": id * 42_000, "max_queueing_time_us": 9_000,
                "elapsed_us": id * 300_000, "waits_count": id * 700, "wait_time_us": id * 120_000})
        };
        reading(
            now,
            json!({
                "ums_schedulers": [
                    scheduler(0, 1_000_000 + now * 120_000, now * 43_210, now * 5_120, 1, 1),
                    scheduler(1, 1_000_000 + now * 380_000, now * 29_876, now * 3_907, 0, 1),
                    scheduler(2, now * 1_000_000, 0, 0, 0, 0)],
                "ums_workers": workers,
                "ums_users": (11..17).map(user).collect::<Vec<_>>(),
                "ums_wait_stats": [
                    wait("WRITELOG", now * 4000 + 1, now * 4000, now * 1_800_000),
                    wait("LCK_M_X", now * 900 + 1, now * 900, now * 2_400_000),
                    wait("NETWORK_IO", now * 90, now * 90, now * 9_000)],
                "ums_monitor": [finding("STALL", 0), finding("NO WORKERS", 0)],
            }),
        )
    };
    let mut model = Model::default();
    model.read(at(9));
    model.read(at(10));
    model
}

fn report(n: i64, what: &str, worker: Option<i64>, ms: i64, at: &str, why: &str) -> Value {
    json!({"report_id": n, "age_ms": 4000 - n * 1000, "condition": what, "diagnosis": why,
        "scheduler_id": 0, "worker_id": worker, "request_id": 7, "user_id": 1,
        "lasted_ms": ms, "function": at, "text": "..."})
}

/// Returns the model of a server whose workers all wait for a lock of an idle client.
fn out_of_workers() -> Model {
    let at = |now: i64| {
        let workers: Vec<_> = (0..16)
            .map(|n| worker(n / 8, n % 8 + 1, "WAITING", "LCK_M_X", now * 1000 - n * 40, 11 + n))
            .collect();
        let waiting = |n: i64| {
            json!({"scheduler_id": n / 8, "worker_id": n % 8 + 1, "wait_type": "LCK_M_X",
                "wait_duration_ms": now * 1000 - n * 40, "resource": 140_234,
                "blocking_user_id": 99})
        };
        let pending = |n: i64| {
            json!({"request_id": 9000 + n, "user_id": 200 + n, "scheduler_id": n % 2,
                "worker_id": null, "task_state": "PENDING", "wait_type": "THREADPOOL",
                "queueing_time_microseconds": now * 900_000 - n * 100_000})
        };
        let running = |n: i64| {
            json!({"request_id": (11 + n) * 100, "user_id": 11 + n, "scheduler_id": n / 8,
                "worker_id": n % 8 + 1, "task_state": "WAITING", "wait_type": "LCK_M_X",
                "queueing_time_microseconds": 42, "elapsed_us": now * 1_000_000,
                "context_switches_count": 1})
        };
        reading(
            now,
            json!({
                "ums_schedulers": [
                    scheduler(0, now * 999_000, 100, 50, 17, 8),
                    scheduler(1, now * 999_000, 100, 50, 12, 8)],
                "ums_workers": workers,
                "ums_waiting_tasks": (0..16).map(waiting).collect::<Vec<_>>(),
                "ums_requests": (0..16).map(running).chain((0..5).map(pending)).collect::<Vec<_>>(),
                "ums_wait_stats": [wait("LCK_M_X", 16, 0, 0), wait("THREADPOOL", 29, 0, 0)],
                "ums_monitor": [finding("STALL", 0), finding("NO WORKERS", now / 6)],
                "ums_reports": [
                    report(0, "STALL", Some(3), 204, "umsql::engine::functions::busy_loop",
                        "it computes and does not yield"),
                    report(1, "NO WORKERS", None, 1009, "", "most workers wait for LCK_M_X")],
            }),
        )
    };
    let mut model = Model::default();
    model.read(at(11));
    model.read(at(12));
    model
}

fn screen(model: &Model, state: &State, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| _ = draw(frame, model, state)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |row: u16| {
        let line: String = (0..width).map(|column| buffer[(column, row)].symbol()).collect();
        line.trim_end().to_owned() + "\n"
    };
    (0..height).map(line).collect()
}

#[track_caller]
fn expect(name: &str, text: &str) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/top/golden");
    let path = folder.join(format!("{name}.txt"));
    if std::env::var_os("UMS_GOLDEN").is_some_and(|how| how == "write") {
        std::fs::write(&path, text).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(golden == text, "{name} is\n{golden}but was drawn as\n{text}");
}

fn state() -> State {
    State::new(Duration::from_secs(1))
}

fn press(state: &mut State, model: &Model, keys: &[KeyCode]) {
    for key in keys {
        assert!(state.press(KeyEvent::new(*key, KeyModifiers::NONE), model));
    }
}

#[test]
fn under_load_at_both_sizes() {
    let model = under_load();
    expect("load-80x24", &screen(&model, &state(), 80, 24));
    expect("load-160x50", &screen(&model, &state(), 160, 50));
}

#[test]
fn of_many_schedulers_those_with_work_are_shown() {
    let one =
        |id: i64| scheduler(10 + id, 0, 1, 1, if id == 17 { 3 } else { 0 }, i64::from(id == 9));
    let mut model = Model::default();
    model.read(reading(1, json!({"ums_schedulers": (0..20).map(one).collect::<Vec<_>>()})));
    let shown = screen(&model, &state(), 80, 24);
    let bars: Vec<_> = shown.lines().skip(2).take(9).collect();
    assert!(bars[0].contains("+12 idler"), "{shown}");
    let first: Vec<_> = bars[1..].iter().map(|line| line[..3].trim()).collect();
    assert_eq!(first, ["10", "11", "12", "13", "14", "15", "19", "27"], "{shown}");
}

#[test]
fn out_of_workers_at_both_sizes() {
    let model = out_of_workers();
    expect("exhaustion-80x24", &screen(&model, &state(), 80, 24));
    expect("exhaustion-160x50", &screen(&model, &state(), 160, 50));
    let mut requests = state();
    press(&mut requests, &model, &[KeyCode::Char('2')]);
    // Moves the sort column from the running time to the queueing time.
    press(&mut requests, &model, &[KeyCode::Char('s'); 9]);
    expect("exhaustion-requests-80x24", &screen(&model, &requests, 80, 24));
}

#[test]
fn a_worker_is_shown_with_its_wait_and_the_holder() {
    let model = out_of_workers();
    let mut state = state();
    press(&mut state, &model, &[KeyCode::Down, KeyCode::Enter]);
    assert_eq!(state.detail, Some((0, 2)), "the second longest wait");
    assert_eq!(state.wants_stack.take(), Some((0, 2)), "requested once");
    let mut model = model;
    let text = "worker 2 of scheduler 0, thread 5002: WAITING LCK_M_X for 12.0 s\n    at \
                umsql::vfs::locks::Locks::wait (locks.rs:120)\n    at \
                umsql::run::statement (run.rs:88)";
    let answer = json!({"stacks": [{"text": text}]});
    let answer = answer.as_object().cloned().ok_or_else(String::new);
    model.read_stack((0, 2), answer);
    expect("worker-80x24", &screen(&model, &state, 80, 24));
    press(&mut state, &model, &[KeyCode::Char('b')]);
    assert_eq!(state.wants_stack.take(), Some((0, 2)), "and again");
    model.read_stack((0, 2), Err("no answer".into()));
    assert!(screen(&model, &state, 80, 24).contains("in          no answer"));
    press(&mut state, &model, &[KeyCode::Esc, KeyCode::Char('b')]);
    assert_eq!(state.wants_stack, None);
    assert_eq!(state.detail, None);
}

#[test]
fn a_small_screen_cuts_nothing_that_is_needed() {
    let model = under_load();
    let text = screen(&model, &state(), 80, 24);
    let last = text.lines().last().unwrap_or_default();
    assert!(last.ends_with(" q quit"), "{text}");
    assert!(text.contains("WRITELOG: 1 now, 1.80 s/s  +1\n"), "waits that do not fit: {text}");
    assert!(text.contains("switches: 5002   thread: 5002\n"), "of the chosen line: {text}");

    let mut model = out_of_workers();
    let mut state = state();
    press(&mut state, &model, &[KeyCode::Char('7'), KeyCode::Down]);
    let reports = screen(&model, &state, 80, 24);
    assert!(reports.contains("because: it computes and does not yield   user: 1"), "{reports}");
    press(&mut state, &model, &[KeyCode::Enter]);
    let long = format!("app::{}", "deeper_".repeat(20));
    let frames: Vec<_> = (0..40).map(|n| format!("    at {long}::level_{n}")).collect();
    let answer = json!({"stacks": [{"text": format!("worker 3\n{}", frames.join("\n"))}]});
    model.read_stack((0, 3), answer.as_object().cloned().ok_or_else(String::new));
    let first = screen(&model, &state, 80, 24);
    assert!(first.contains("::level_0\n") && !first.contains("::level_39"), "{first}");
    assert!(first.contains(" ↓ 113 more\n"), "{first}");
    press(&mut state, &model, &[KeyCode::End]);
    let end = screen(&model, &state, 80, 24);
    assert!(end.contains("::level_39\n") && !end.contains(" more\n"), "{end}");
}

#[test]
fn each_report_of_the_monitor_has_its_line_the_last_one_first() {
    let model = out_of_workers();
    let mut state = state();
    press(&mut state, &model, &[KeyCode::Char('7')]);
    expect("reports-80x24", &screen(&model, &state, 80, 24));
    press(&mut state, &model, &[KeyCode::Down, KeyCode::Enter]);
    assert_eq!(state.detail, Some((0, 3)), "the worker that was reported");
}

#[test]
fn every_list_at_every_size_is_drawn_without_a_panic() {
    for model in [Model::default(), under_load(), out_of_workers()] {
        for (width, height) in [(1, 1), (20, 5), (40, 10), (80, 24), (131, 20), (132, 6), (250, 80)]
        {
            let mut state = state();
            for tab in '1'..='7' {
                press(&mut state, &model, &[KeyCode::Char(tab), KeyCode::End]);
                drop(screen(&model, &state, width, height));
                press(
                    &mut state,
                    &model,
                    &[KeyCode::Char('s'), KeyCode::Char('r'), KeyCode::Enter],
                );
                drop(screen(&model, &state, width, height));
            }
        }
    }
}

#[test]
fn keys_sort_hide_pause_and_quit() {
    let model = under_load();
    let mut state = state();
    let first = |state: &State| {
        state.sheet(&model).lines[0].cells.iter().map(|c| c.text()).collect::<Vec<_>>()
    };
    assert_eq!(first(&state)[1], "2", "the longest wait, worker 2 of scheduler 1");
    assert_eq!(state.sheet(&model).lines.len(), 6, "idle workers are left out");
    press(&mut state, &model, &[KeyCode::Char('i')]);
    assert_eq!(state.sheet(&model).lines.len(), 7);
    press(&mut state, &model, &[KeyCode::Char('s'), KeyCode::Char('r')]);
    assert_eq!(state.sort(), (5, false));
    assert_eq!(first(&state)[5], "", "no user, ascending");
    press(&mut state, &model, &[KeyCode::Char(' '), KeyCode::Char('+')]);
    assert!(state.paused && state.every == Duration::from_secs(2));
    assert!(screen(&model, &state, 80, 24).contains("PAUSED"));
    assert!(!state.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL), &model));
    assert!(!state.press(KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE), &model));
}
