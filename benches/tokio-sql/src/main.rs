//! A small SQL server on tokio: the PostgreSQL protocol on SQLite, as `ums serve`, with the files
//! of `umsql` that encode and decode messages. `benches/pgbench.py` compares the two.
//!
//! Each client has a task, and a connection of SQLite with a cache of statements. The task reads
//! until a *unit* is complete: a simple query, or the messages up to a Sync. It carries the unit
//! out in one call of `spawn_blocking`, because SQLite blocks, and sends the answer in one write.
//!
//! It has what a client's read-only statements need. It has no passwords, cancellation, limits or
//! catalogue, and the types of parameters that a client does not declare are text, which SQLite
//! converts.

mod client;
mod host;

#[allow(dead_code)]
#[path = "../../../crates/umsql/src/error.rs"]
mod error;
#[allow(dead_code)]
#[path = "../../../crates/umsql/src/wire/mod.rs"]
mod wire;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use client::Client;
use error::SqlError;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use wire::message::{Startup, frame_len, startup_len};
use wire::out::{Out, Status};

/// The longest message, in bytes.
const MESSAGE_MAX: usize = 64 << 20;

fn main() -> io::Result<()> {
    let mut args = std::env::args().skip(1);
    let (Some(db), Some(address)) = (args.next(), args.next()) else {
        eprintln!("usage: tokio-sql DATABASE ADDRESS [WORKERS]");
        std::process::exit(2);
    };
    let workers = args.next().map_or(1, |text| text.parse().expect("WORKERS is a number"));
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(workers).enable_io().build()?.block_on(async move {
        let listener = TcpListener::bind(&address).await?;
        let db: Arc<Path> = PathBuf::from(db).into();
        loop {
            let (stream, _) = listener.accept().await?;
            let db = Arc::clone(&db);
            // A task of a worker, as all later ones.
            tokio::spawn(async move {
                if let Err(error) = serve(stream, db).await {
                    eprintln!("tokio-sql: {error}");
                }
            });
        }
    })
}

/// Serves one client until it goes.
async fn serve(mut stream: TcpStream, db: Arc<Path>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut input = Vec::with_capacity(8 << 10);
    if !greet(&mut stream, &mut input).await? {
        return Ok(());
    }
    let opened = tokio::task::spawn_blocking(move || Client::open(&db)).await?;
    let mut client = opened.map_err(io::Error::other)?;
    client.out.ready(Status::Idle);
    stream.write_all(&client.out.bytes).await?;
    client.out.clear();
    loop {
        let end = match unit_end(&input).map_err(io::Error::other)? {
            Some(end) => end,
            None if stream.read_buf(&mut input).await? == 0 => return Ok(()),
            None => continue,
        };
        if input[0] == b'X' {
            return Ok(());
        }
        let run = move || {
            let done = client.unit(&input[..end]);
            input.drain(..end);
            (client, input, done)
        };
        let done;
        (client, input, done) = tokio::task::spawn_blocking(run).await?;
        done.map_err(io::Error::other)?;
        stream.write_all(&client.out.bytes).await?;
        client.out.clear();
    }
}

/// Answers the first packets. Returns false if the client has gone.
async fn greet(stream: &mut TcpStream, input: &mut Vec<u8>) -> io::Result<bool> {
    loop {
        let Some(len) = startup_len(input, MESSAGE_MAX).map_err(io::Error::other)? else {
            if stream.read_buf(input).await? == 0 {
                return Ok(false);
            }
            continue;
        };
        if input.len() < len {
            if stream.read_buf(input).await? == 0 {
                return Ok(false);
            }
            continue;
        }
        let packet = Startup::decode(&input[..len]).map_err(io::Error::other)?;
        input.drain(..len);
        match packet {
            Startup::Encrypt { .. } => stream.write_all(b"N").await?,
            Startup::Cancel { .. } => return Ok(false),
            Startup::Begin { .. } => break,
        }
    }
    let mut out = Out::default();
    out.authentication(0, &[]);
    for (name, value) in [
        ("server_version", "15.0 (tokio-sql)"),
        ("server_encoding", "UTF8"),
        ("client_encoding", "UTF8"),
        ("standard_conforming_strings", "on"),
        ("integer_datetimes", "on"),
    ] {
        out.parameter_status(name, value);
    }
    out.backend_key(0, 0);
    stream.write_all(&out.bytes).await?;
    Ok(true)
}

/// Returns the end of the unit at the front of the input, if it is complete.
fn unit_end(input: &[u8]) -> Result<Option<usize>, SqlError> {
    let mut end = 0;
    while let Some(len) = frame_len(&input[end..], MESSAGE_MAX)? {
        if input.len() - end < len {
            break;
        }
        let tag = input[end];
        end += len;
        if !matches!(tag, b'P' | b'B' | b'D' | b'E' | b'C') {
            return Ok(Some(end));
        }
    }
    Ok(None)
}
