//! The inputs below `kept/`: what fuzzers found that reaches code which nothing else reaches. Tests
//! of the crates that are fuzzed include this file, so that each of them is tried in every run.

/// Tries each input that was kept for this target.
pub fn each(name: &str, target: fn(&[u8])) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/kept/");
    let files = std::fs::read_dir(folder.to_owned() + name).expect("inputs are kept");
    let inputs = files.map(|file| std::fs::read(file.unwrap().path()).unwrap());
    let count = inputs.inspect(|input| target(input)).count();
    assert!(count >= 10, "{count} inputs are kept");
}
