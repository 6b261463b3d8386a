//! A server on a node of its own, for one test.
#![allow(dead_code, missing_docs)]

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use postgres::{Client, SimpleQueryMessage};
use ums::Node;
use ums::serve::ServeOptions;
use umsql::listen::{self, Patience};
use umsql::{Server, Settings};

/// Runs statements that do not fail.
pub fn run(client: &mut Client, sql: &str) {
    client.batch_execute(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
}

/// Returns the rows of simple queries, as text.
pub fn rows(client: &mut Client, sql: &str) -> Vec<Vec<Option<String>>> {
    let messages = client.simple_query(sql).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    let row = |message| match message {
        SimpleQueryMessage::Row(row) => {
            Some((0..row.len()).map(|index| row.get(index).map(str::to_owned)).collect())
        }
        _ => None,
    };
    messages.into_iter().filter_map(row).collect()
}

/// Returns the first value of the first row, as text.
pub fn one(client: &mut Client, sql: &str) -> String {
    rows(client, sql).remove(0).remove(0).unwrap_or_else(|| "NULL".into())
}

/// Limits of a statement's time, in milliseconds, to be tried in turn: on a busy computer the first
/// is over before the statement has returned a row.
pub const SLOW_LIMITS: [u64; 3] = [1500, 6000, 24_000];

/// Waits until a statement with this limit has returned rows, which the client does not read.
/// Returns false if its time is over before.
pub fn has_sent_rows(client: &TcpStream, limit_ms: u64) -> bool {
    let end = Instant::now() + Duration::from_millis(limit_ms + 500);
    // The answer without rows is shorter.
    while client.peek(&mut [0; 1000]).unwrap() < 1000 {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

pub struct TestServer {
    pub address: SocketAddr,
    pub dir: PathBuf,
    server: Option<ums::serve::Server>,
    node: Option<Node>,
    engine: Option<Arc<Server>>,
}

impl TestServer {
    pub fn start() -> TestServer {
        TestServer::with(|_| ())
    }

    pub fn with(change: impl FnOnce(&mut Settings)) -> TestServer {
        TestServer::on(Node::builder().schedulers(2).max_workers(32).build().unwrap(), change)
    }

    pub fn on(node: Node, change: impl FnOnce(&mut Settings)) -> TestServer {
        TestServer::patient(node, Patience::default(), change)
    }

    pub fn patient(
        node: Node,
        patience: Patience,
        change: impl FnOnce(&mut Settings),
    ) -> TestServer {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("umsql-test-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let mut settings = Settings::new(dir.join("db"));
        settings.folders = vec![dir.clone()];
        change(&mut settings);
        let engine = Server::open(settings).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let options = ServeOptions::default();
        let server = listen::serve(&node, listener, options, engine.clone(), patience).unwrap();
        TestServer { address, dir, server: Some(server), node: Some(node), engine: Some(engine) }
    }

    pub fn config(&self) -> postgres::Config {
        let mut config = postgres::Config::new();
        config.host("127.0.0.1").port(self.address.port()).user("me").dbname("ums");
        config
    }

    pub fn client(&self) -> postgres::Client {
        self.config().connect(postgres::NoTls).unwrap()
    }
}

impl TestServer {
    /// Serves an administrator's port, too, until the result is dropped.
    pub fn administrate(&self, patience: Patience) -> (SocketAddr, ums::serve::Server) {
        let (node, engine) = (self.node.as_ref().unwrap(), self.engine.clone().unwrap());
        let hidden = ums::node::HiddenOptions { max_workers: Some(2), ..Default::default() };
        let on = Some(node.hidden("DAC", hidden).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let options = ServeOptions { on, ..Default::default() };
        (address, listen::serve(node, listener, options, engine, patience).unwrap())
    }

    /// Stops the server, as a signal would.
    pub fn stop(&mut self) {
        let grace = Duration::from_secs(5);
        self.stop_after(grace, grace);
    }

    /// Stops the server. Requests have both times to end before they are cancelled. Then they have
    /// the grace time once more, to answer.
    pub fn stop_after(&mut self, patience: Duration, grace: Duration) {
        if let Some(server) = self.server.take() {
            server.stop_and_wait(patience);
        }
        if let Some(node) = self.node.take() {
            node.shutdown(grace);
        }
        drop(self.engine.take());
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.stop();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
