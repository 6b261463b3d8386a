//! A server with one thread per connection: the smallest host that can run sessions.
#![allow(dead_code, missing_docs)]

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use umsql::host::{self, Conn};
use umsql::{Flow, Server, Settings};

struct Stream {
    user: u64,
    stream: TcpStream,
}

impl Conn for Stream {
    fn user(&self) -> u64 {
        self.user
    }

    fn try_read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.stream.set_nonblocking(true)?;
        let read = self.stream.read(buf);
        self.stream.set_nonblocking(false)?;
        read
    }

    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.stream.read(buf)
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }
}

static NEXT_USER: AtomicU64 = AtomicU64::new(1);

/// Serves one connection to its end.
fn serve_one(server: &Arc<Server>, stream: TcpStream) {
    let user = NEXT_USER.fetch_add(1, Ordering::Relaxed);
    let _ = stream.set_nodelay(true);
    let _ = stream.set_write_timeout(Some(Duration::from_secs(20)));
    let mut conn = Stream { user, stream };
    let mut session = server.session(user);
    let mut flow = Flow::Idle;
    while flow != Flow::Close {
        if flow == Flow::Idle && conn.stream.peek(&mut [0]).is_err() {
            break;
        }
        host::begin_request(user);
        flow = session.on_readable(&mut conn);
        host::end_request(user);
    }
}

/// Accepts connections for ever.
pub fn serve(server: Arc<Server>, listener: TcpListener) {
    for stream in listener.incoming().flatten() {
        let server = Arc::clone(&server);
        std::thread::spawn(move || serve_one(&server, stream));
    }
}

/// A server for one test, on a database of its own.
pub struct TestServer {
    pub address: SocketAddr,
    pub server: Arc<Server>,
    pub dir: PathBuf,
}

impl TestServer {
    pub fn start() -> TestServer {
        TestServer::with(|_| ())
    }

    pub fn with(change: impl FnOnce(&mut Settings)) -> TestServer {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("umsql-test-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let mut settings = Settings::new(dir.join("db"));
        change(&mut settings);
        let server = Server::open(settings).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let serving = Arc::clone(&server);
        std::thread::spawn(move || serve(serving, listener));
        TestServer { address, server, dir }
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

impl Drop for TestServer {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
