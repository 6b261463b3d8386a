//! Programs for Windows, compiled against the headers for Linux and run.

mod common;

use common::{Recipe, Workshop};

fn run(source: &str, args: &[&str]) {
    let workshop = Workshop::new();
    let recipe = Recipe { source, include: "windows", strict: true, is_static: false };
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
