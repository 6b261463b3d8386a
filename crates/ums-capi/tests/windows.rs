//! Programs that were written for Windows are compiled with this crate's headers and run on Linux.

mod common;

use common::{Recipe, Workshop};

fn run(source: &str, args: &[&str]) {
    let workshop = Workshop::new();
    let recipe = Recipe { source, include: "windows", by: "cc", is_static: false };
    if let Some(program) = workshop.make(recipe) {
        let said = workshop.run(&program, args);
        assert!(said.ends_with("ok\n"), "{source} said:\n{said}");
    }
}

#[test]
fn handles_events_semaphores_mutexes_and_threads_are_waited_for() {
    run("win_objects.c", &[]);
}

#[test]
fn locks_lists_and_thread_local_values_hold_among_threads() {
    run("win_locks.c", &[]);
}

#[test]
fn heap_clocks_interlocked_operations_attributes_and_layouts_are_as_declared() {
    run("win_rest.c", &[]);
}

#[test]
fn extreme_sizes_counts_and_times_are_refused_or_have_their_literal_meaning() {
    run("win_extremes.c", &[]);
}

#[test]
fn what_windows_programs_use_beside_scheduling_is_there() {
    run("win_more.c", &[]);
}

#[test]
fn every_bad_input_and_every_context_that_cannot_run_has_its_error_w5() {
    run("ums_errors.c", &[]);
}

#[test]
fn a_worker_that_blocks_is_told_and_waits_to_be_executed_again_w1() {
    run("ums_blocks.c", &[]);
}

#[test]
fn a_page_fault_that_blocks_is_told_from_a_system_call_w2() {
    let workshop = Workshop::new();
    let source = "ums_fault.c";
    let recipe = Recipe { source, include: "windows", by: "cc", is_static: false };
    let program = workshop.make(recipe).expect("C");
    // The scheduler of a worker with its own context waits for its page faults.
    let said = workshop.run_with(&program, &[], &[("UMS_WINDOWS_WORKERS", "thread")]);
    assert!(said.ends_with("ok\n"), "{source} said:\n{said}");
}

#[test]
fn workers_end_in_every_way_and_schedulers_leave_for_every_reason_w6_w7() {
    run("ums_ends.c", &[]);
}

#[test]
fn a_lock_that_a_blocked_worker_holds_delays_its_scheduler_and_no_more_w8() {
    run("ums_locks.c", &[]);
}

#[test]
fn two_schedulers_on_one_list_get_each_item_once_w10() {
    run("ums_shared.c", &[]);
}

#[test]
fn a_ring_of_workers_yields_in_cpp() {
    run("ums_ring.cpp", &[]);
}

#[test]
fn many_workers_come_and_go_and_leave_nothing_behind() {
    run("ums_many.c", &[]);
}

/// Without perf events, only interposed calls are noticed: `libums` defines the C library's
/// blocking functions.
#[test]
fn interposed_calls_are_enough_to_notice_and_gate() {
    let workshop = Workshop::new();
    for (source, args) in [("ums_blocks.c", &[][..]), ("ums_ends.c", &[]), ("ums_shared.c", &[])] {
        let recipe = Recipe { source, include: "windows", by: "cc", is_static: false };
        let program = workshop.make(recipe).expect("C");
        let said = workshop.run_with(&program, args, &[("UMS_WATCH", "calls")]);
        assert!(said.ends_with("ok\n"), "{source} said:\n{said}");
    }
}

/// Runs the same programs with workers that are plain threads. By default they have their own
/// context, where the system can do it.
#[test]
fn workers_that_are_plain_threads_are_like_others() {
    let workshop = Workshop::new();
    let sources = ["blocks.c", "ends.c", "errors.c", "locks.c", "many.c", "random.c", "shared.c"];
    for source in sources.into_iter().chain(["ring.cpp"]) {
        let source = format!("ums_{source}");
        let recipe = Recipe { source: &source, include: "windows", by: "cc", is_static: false };
        if let Some(program) = workshop.make(recipe) {
            let said = workshop.run_with(&program, &[], &[("UMS_WINDOWS_WORKERS", "thread")]);
            assert!(said.ends_with("ok\n"), "{source} said:\n{said}");
        }
    }
}

/// A variable with a value that it cannot have makes the call fail, and stderr says why.
#[test]
fn unknown_values_in_the_environment_are_refused() {
    let workshop = Workshop::new();
    let source = "ums_refused.c";
    let recipe = Recipe { source, include: "windows", by: "cc", is_static: false };
    let program = workshop.make(recipe).expect("C");
    for (name, value, says) in [
        ("UMS_WATCH", "trip", "UMS_WATCH=trip: it must be trap, breakpoint or calls"),
        ("UMS_WINDOWS_WORKERS", "fiber", "UMS_WINDOWS_WORKERS=fiber: it must be thread or context"),
    ] {
        let said = workshop.run_with(&program, &[], &[(name, value)]);
        assert!(said.contains(says) && said.ends_with("refused\n"), "{name}: {said}");
        assert_eq!(said.matches("ums: ").count(), 1, "{said}");
    }
    for (name, value) in [("UMS_WATCH", ""), ("UMS_WINDOWS_WORKERS", ""), ("UMS_WATCH", "calls")] {
        let said = workshop.run_with(&program, &[], &[(name, value)]);
        assert_eq!(said, "accepted\n", "{name}={value}");
    }
}

#[test]
fn random_ums_calls_agree_with_a_model() {
    run("ums_random.c", &[]);
}
