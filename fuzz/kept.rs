//! The inputs below `kept/`: those found by fuzzers that reach the most code. The tests of the
//! fuzzed crates include this file, so every test run tries all of them.

/// Runs each input that is kept for this target.
pub fn each(name: &str, target: fn(&[u8])) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/kept/");
    let files = std::fs::read_dir(folder.to_owned() + name).expect("inputs are kept");
    let inputs = files.map(|file| std::fs::read(file.unwrap().path()).unwrap());
    let count = inputs.inspect(|input| target(input)).count();
    assert!(count >= 10, "{count} inputs are kept");
}
