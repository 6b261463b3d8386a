//! What the examples share: a node with workers of the kind that the user chooses, and the loop
//! that accepts connections.

// Named invariant **Contract**: workers run hyper and what is built on it, with the sockets and
// timers of `ums`. It keeps no thread-scoped state across a wait.
#![allow(unsafe_code, dead_code)]

use ums::Node;
use ums::net::{TcpListener, TcpStream};

pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// Returns the argument with this number, or the default.
pub fn argument(number: usize, default: &str) -> String {
    std::env::args().nth(number).unwrap_or(default.to_owned())
}

/// Builds a node with workers of this kind: `thread`, `fiber` or `context`.
pub fn node(kind: &str) -> Result<Node, Error> {
    let builder = Node::builder();
    let builder = match kind {
        "thread" => builder,
        // SAFETY: Contract.
        "fiber" => unsafe { builder.fiber_workers() },
        "context" => builder.own_context_workers(),
        _ => Err(format!("no kind of worker is '{kind}': use thread, fiber or context"))?,
    };
    Ok(builder.build()?)
}

/// Listens on the address that is the first argument, and serves each connection in a task of its
/// own, on workers of the kind that is the second argument.
pub fn serve<F>(connection: F) -> Result<(), Error>
where
    F: Fn(TcpStream) -> Result<(), Error> + Clone + Send + 'static,
{
    let address = argument(1, "127.0.0.1:0");
    node(&argument(2, "thread"))?.run(move || {
        let listener = TcpListener::bind(&address)?;
        println!("listening on {}", listener.local_addr()?);
        for stream in listener.incoming().flatten() {
            let connection = connection.clone();
            ums::spawn(move || {
                stream.set_nodelay(true).ok();
                if let Err(error) = connection(stream) {
                    eprintln!("a connection: {error}");
                }
            });
        }
        Ok(())
    })
}
