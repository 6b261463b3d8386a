//! An echo server: plain blocking code, a worker for each connection. End it with Ctrl-C.
//!
//! `cargo run -p ums --example echo [address] [thread|fiber|context]`
//!
//! Named invariant **Contract**: workers run `io::copy` between sockets of `ums`, and no
//! other code that waits. It keeps no thread-scoped state across a wait.

use ums::Builder;
use ums::net::TcpListener;

fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:0".to_owned());
    let node = builder(std::env::args().nth(2).as_deref())?.build()?;
    node.run(move || {
        let listener = TcpListener::bind(&address)?;
        println!("listening on {}", listener.local_addr()?);
        for stream in listener.incoming().flatten() {
            ums::spawn(move || std::io::copy(&mut &stream, &mut &stream));
        }
        Ok(())
    })
}

/// Returns a builder for workers of this kind. Without an argument, the default: threads.
#[allow(unsafe_code)]
fn builder(kind: Option<&str>) -> Result<Builder, String> {
    let builder = ums::Node::builder();
    match kind {
        None | Some("thread") => Ok(builder),
        // SAFETY: Contract.
        Some("fiber") => Ok(unsafe { builder.fiber_workers() }),
        Some("context") => Ok(builder.own_context_workers()),
        Some(other) => Err(format!("no kind of worker is '{other}': use thread, fiber or context")),
    }
}
