//! The native interface from C and C++, with thread workers and with fiber workers. Each program in
//! `tests/c` checks one subject, and fails if something differs from what `ums.h` says.

mod common;

use common::{Recipe, Workshop};

fn on_both_kinds(source: &str) {
    let workshop = Workshop::new();
    let recipe = Recipe { source, include: "", strict: true, is_static: false };
    if let Some(program) = workshop.make(recipe) {
        for kind in ["thread", "fiber"] {
            let said = workshop.run(&program, &[kind]);
            assert!(said.ends_with("ok\n"), "{source} {kind} said:\n{said}");
        }
    }
}

#[test]
fn nodes_tasks_and_users_and_every_misuse_has_its_error() {
    on_both_kinds("native_basics.c");
}

#[test]
fn mutex_condvar_event_and_semaphore_wait_time_out_and_hear_cancellation() {
    on_both_kinds("native_waits.c");
}

#[test]
fn requests_call_their_routines_once_u60_u63_u66_and_waiting_calls_keep_their_limits() {
    on_both_kinds("native_io.c");
}

#[test]
fn statistics_are_text_and_json_u92() {
    on_both_kinds("native_stats.c");
}

#[test]
fn what_a_user_can_mend_is_said_in_a_sentence_and_flags_turn_that_and_taking_over_off() {
    on_both_kinds("native_warnings.c");
}

#[test]
fn every_extreme_of_a_size_or_a_time_is_refused_or_has_its_literal_meaning() {
    on_both_kinds("native_extremes.c");
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
    on_both_kinds("native_cpp.cpp");
}

#[test]
fn random_calls_agree_with_a_model() {
    on_both_kinds("native_random.c");
}

#[test]
fn the_static_library_links() {
    let workshop = Workshop::new();
    let recipe = Recipe { source: "native_basics.c", include: "", strict: true, is_static: true };
    let program = workshop.make(recipe).expect("C");
    assert!(workshop.run(&program, &["thread"]).ends_with("ok\n"));
}
