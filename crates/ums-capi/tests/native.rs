//! The native interface from C and C++, with every kind of workers. Each program in `tests/c`
//! checks one subject, and fails if something differs from what `ums.h` says.

mod common;

use common::{Recipe, Workshop};

fn on_every_kind(source: &str) {
    let workshop = Workshop::new();
    let recipe = Recipe { source, include: "", by: "cc", is_static: false };
    if let Some(program) = workshop.make(recipe) {
        for kind in ["thread", "fiber", "context"] {
            if kind == "context"
                && let Some(why) = ums::probe::own_contexts_are_refused()
            {
                ums::testing::skipped("own-context", why);
                continue;
            }
            let said = workshop.run(&program, &[kind]);
            assert!(said.ends_with("ok\n"), "{source} {kind} said:\n{said}");
        }
    }
}

#[test]
fn nodes_tasks_and_users_and_every_misuse_has_its_error() {
    on_every_kind("native_basics.c");
}

#[test]
fn mutex_condvar_event_and_semaphore_wait_time_out_and_hear_cancellation() {
    on_every_kind("native_waits.c");
}

#[test]
fn a_cancelled_task_waits_only_in_a_shield_and_a_call_that_need_not_wait_succeeds() {
    on_every_kind("native_cancel.c");
}

#[test]
fn reader_writer_locks_and_barriers_let_in_who_may_be_there_and_refuse_misuse() {
    on_every_kind("native_locks.c");
}

#[test]
fn a_channel_hands_each_pointer_to_one_receiver_and_ends_when_it_is_closed() {
    on_every_kind("native_channels.c");
}

#[test]
fn a_select_takes_one_of_its_arms_and_leaves_the_others_as_they_are() {
    on_every_kind("native_select.c");
}

#[test]
fn the_tasks_of_a_group_end_together_and_the_first_failure_cancels_the_others() {
    on_every_kind("native_groups.c");
}

#[test]
fn a_server_calls_a_function_for_each_connection_until_its_node_drains() {
    on_every_kind("native_serve.c");
}

#[test]
fn the_monitor_reports_to_c_and_a_socket_has_the_statistics() {
    on_every_kind("native_options.c");
}

#[test]
fn requests_call_their_routines_once_u60_u63_u66_and_waiting_calls_keep_their_limits() {
    on_every_kind("native_io.c");
}

#[test]
fn a_call_that_need_not_wait_is_made_on_the_host() {
    on_every_kind("native_calls.c");
}

#[test]
fn statistics_are_text_and_json_u92() {
    on_every_kind("native_stats.c");
}

#[test]
fn what_a_user_can_mend_is_said_in_a_sentence_and_flags_turn_that_and_taking_over_off() {
    on_every_kind("native_warnings.c");
}

#[test]
fn every_extreme_of_a_size_or_a_time_is_refused_or_has_its_literal_meaning() {
    on_every_kind("native_extremes.c");
}

/// Numbers of users only name something; what is given out is no parameter.
#[test]
fn every_function_with_a_size_or_a_time_is_called_with_its_extremes() {
    let header = include_str!("../include/ums.h");
    let program = include_str!("c/native_extremes.c");
    let prototypes = header.split(';').filter_map(|text| text.rsplit("*/").next()?.split_once('('));
    let mut seen = 0;
    for (before, parameters) in prototypes {
        let name = before.rsplit([' ', '*', '\n']).next().expect("a word");
        let is_number = |word: &str| ["size_t", "uint64_t", "socklen_t"].contains(&word);
        if name.starts_with("ums_") && parameters.split(' ').any(is_number) {
            seen += 1;
            assert!(program.contains(&format!("{name}(")), "native_extremes.c never calls {name}");
        }
    }
    assert!(seen > 20, "{seen} prototypes were found");
}

#[test]
fn the_header_is_a_header_of_cpp_too() {
    on_every_kind("native_cpp.cpp");
}

#[test]
fn random_calls_agree_with_a_model() {
    on_every_kind("native_random.c");
}

#[test]
fn the_static_library_links() {
    let workshop = Workshop::new();
    let recipe = Recipe { source: "native_basics.c", include: "", by: "cc", is_static: true };
    let program = workshop.make(recipe).expect("C");
    assert!(workshop.run(&program, &["thread"]).ends_with("ok\n"));
}
