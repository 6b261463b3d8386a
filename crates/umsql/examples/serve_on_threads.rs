//! Serves a database with one thread per connection, to try clients by hand:
//! `cargo run -p umsql --example serve_on_threads -- 127.0.0.1:5433 /path/to/db [password]`.

use std::net::TcpListener;

#[path = "../tests/common/mod.rs"]
mod common;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:5433".into());
    let database = arguments.next().ok_or("give the address and the database file")?;
    let mut settings = umsql::Settings::new(database);
    settings.password = arguments.next();
    common::serve(umsql::Server::open(settings)?, TcpListener::bind(address)?);
    Ok(())
}
