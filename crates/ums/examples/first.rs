//! The first program of the README. `cargo run -p ums --example first` prints three lines.

use std::time::Duration;

fn main() -> Result<(), ums::BuildError> {
    let node = ums::Node::builder().build()?; // a scheduler for each processor
    node.run(|| {
        let (letters, mailbox) = ums::sync::channel::bounded(1);
        let reader = ums::spawn(move || {
            while let Ok(letter) = mailbox.recv() {
                println!("received {letter}"); // the wait parks this worker, and others run
            }
        });
        for letter in ["first", "second", "third"] {
            ums::sleep(Duration::from_millis(10)).expect("this task is not cancelled");
            letters.send(letter).expect("the reader is there");
        }
        drop(letters);
        reader.join().expect("the reader does not panic");
    });
    Ok(())
}
