//! The `ums` command.
fn main() {}
