//! SQLite's own mutexes. This file has only one test, so that the server is the first in the
//! process to use SQLite.

use umsql::{Server, Settings};

#[test]
fn sqlites_own_mutexes_park_workers_when_the_server_is_first() {
    let dir = std::env::temp_dir().join(format!("umsql-mutexes-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let server = Server::open(Settings::new(dir.join("db"))).unwrap();
    assert!(server.has_engine_mutexes());
    drop(server);
    std::fs::remove_dir_all(&dir).unwrap();
}
