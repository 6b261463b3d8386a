//! An echo server: plain blocking code, a worker for each connection. Ends with Ctrl-C.
//!
//! `cargo run -p ums --example echo [address]`

use ums::net::TcpListener;

fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:0".to_owned());
    let node = ums::Node::builder().build()?;
    node.run(move || {
        let listener = TcpListener::bind(&address)?;
        println!("listening on {}", listener.local_addr()?);
        for stream in listener.incoming().flatten() {
            ums::spawn(move || std::io::copy(&mut &stream, &mut &stream));
        }
        Ok(())
    })
}
