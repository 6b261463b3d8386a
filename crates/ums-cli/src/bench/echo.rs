//! The echo server: reads up to 1024 bytes and writes them back, until a signal ends it.
//!
//! There are two styles. `style=task`: each connection has a task, which waits in `read`.
//! `style=user`: each connection is a user and each message is a work request, so an idle
//! connection has no worker, stack or buffer.
//!
//! With `block=`, a message that begins with the byte 1 first sleeps for 10 ms in a system call.
//! `naive` makes the call directly and so blocks its scheduler; `proper` goes preemptive for the
//! call.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;

use ums::WaitReason;
use ums::net::{TcpListener, TcpStream};
use ums::serve::{Connection, Next, ServeOptions, Session, Why};

use super::meter::{BenchArgs, Ran, Stop, block_10ms};
use super::setup::Setup;

#[derive(Clone, Copy)]
enum Block {
    Never,
    Naive,
    Proper,
}

impl Block {
    fn read(args: &BenchArgs) -> Result<Block, Stop> {
        match args.text("block", "none") {
            "none" => Ok(Block::Never),
            "naive" => Ok(Block::Naive),
            "proper" => Ok(Block::Proper),
            other => Err(Stop::Usage(format!("block={other}: none, naive or proper"))),
        }
    }

    /// Does the work of a message, before the answer is sent.
    fn handle(self, message: &[u8]) {
        match self {
            Block::Naive if message[0] == 1 => block_10ms(),
            Block::Proper if message[0] == 1 => {
                ums::go_preemptive(WaitReason::PREEMPTIVE_EXTERNAL, block_10ms);
            }
            _ => {}
        }
    }
}

/// `echo port= block= style= workers= cpus=`.
pub fn echo(args: &BenchArgs) -> Ran {
    let setup = Setup::read(args)?;
    let block = Block::read(args)?;
    let port = args.number("port", 7000)? as u16;
    let workers = args.number("workers", 4096)?;
    let style = args.text("style", "task").to_owned();
    let cpus = args.number("cpus", 1)?;
    args.all_known()?;
    let node = setup.node(cpus, workers)?;
    let at = SocketAddr::from(([127, 0, 0, 1], port));
    let system = |error: std::io::Error| Stop::Skip(format!("{at}: {error}"));
    match style.as_str() {
        "task" => node.run(move || accept(at, block)).map_err(system),
        "user" => {
            let listener = std::net::TcpListener::bind(at).map_err(system)?;
            let options = ServeOptions::default();
            let make = move |_: &ums::User, _| Box::new(Echo(block)) as Box<dyn Session>;
            let _server = node.serve(listener, options, make).map_err(system)?;
            loop {
                std::thread::park();
            }
        }
        other => Err(Stop::Usage(format!("style={other}: task or user"))),
    }
}

fn accept(at: SocketAddr, block: Block) -> std::io::Result<()> {
    let listener = TcpListener::bind(at)?;
    loop {
        let (stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        ums::spawn(move || converse(stream, block));
    }
}

/// Serves one connection as a task.
fn converse(mut stream: TcpStream, block: Block) {
    let mut buffer = [0; 1024];
    while let Ok(n @ 1..) = stream.read(&mut buffer) {
        block.handle(&buffer[..n]);
        if stream.write_all(&buffer[..n]).is_err() {
            return;
        }
    }
}

/// One connection as a user.
struct Echo(Block);

impl Session for Echo {
    fn request(&mut self, conn: &mut Connection<'_>, _: Why) -> Next {
        let mut buffer = [0; 1024];
        match conn.try_read(&mut buffer) {
            Ok(0) => Next::Close,
            Ok(n) => {
                self.0.handle(&buffer[..n]);
                if conn.write_all(&buffer[..n]).is_ok() { Next::Wait } else { Next::Close }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Next::Wait,
            Err(_) => Next::Close,
        }
    }
}
