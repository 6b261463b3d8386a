//! `ums trace`: requests a trace from a process, and writes it to a file.
//!
//! It uses the statistics socket, like `ums stats` and `ums top`. With `--from` it uses HTTP
//! instead, for a server on another computer.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::words::counted;
use crate::{asking, listening};

/// Options of `ums trace`.
#[derive(clap::Args)]
pub struct TraceArgs {
    /// The process's number or its socket. Default: the only process; if there are several, they
    /// are listed.
    #[arg(value_name = "PID|SOCKET")]
    process: Option<String>,

    /// Ask over HTTP, at the address of the server's --metrics.
    #[arg(long, value_name = "[ADDR:]PORT", conflicts_with = "process",
          value_parser = listening::address)]
    from: Option<SocketAddr>,

    /// The file to write: in Chrome's format (chrome://tracing) if its name ends in .json,
    /// otherwise for ui.perfetto.dev.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,

    /// Milliseconds to record. 0: only what the server's event rings already hold.
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    ms: u64,
}

/// Runs the command.
pub fn run(args: &TraceArgs) -> ExitCode {
    match record(args) {
        Ok(bytes) => {
            println!("wrote {} to {}", counted(bytes, "byte"), args.out.display());
            if args.out.extension().is_some_and(|end| end == "json") {
                println!("open it in chrome://tracing, or at https://ui.perfetto.dev");
            } else {
                println!("open it at https://ui.perfetto.dev");
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("ums trace: {error}");
            ExitCode::FAILURE
        }
    }
}

fn record(args: &TraceArgs) -> Result<usize, Box<dyn std::error::Error>> {
    let json = args.out.extension().is_some_and(|end| end == "json");
    let takes = Duration::from_millis(args.ms);
    let body = match args.from {
        Some(from) => {
            let path = if json { "/trace.json" } else { "/trace.pftrace" };
            get(from, &format!("{path}?ms={}", args.ms), takes)?
        }
        None => {
            let format = if json { "chrome" } else { "perfetto" };
            let path = asking::find(args.process.as_deref())?;
            asking::ask_for_bytes(&path, &format!("trace {format} {}", args.ms), takes)?
        }
    };
    std::fs::write(&args.out, &body)?;
    Ok(body.len())
}

/// Requests `target` and returns the body of the answer. The server needs this long to record it.
fn get(
    from: SocketAddr,
    target: &str,
    takes: Duration,
) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let mut server = TcpStream::connect(from)
        .map_err(|error| format!("no server serves metrics on {from}: {error}"))?;
    server.set_read_timeout(Some(takes.saturating_add(Duration::from_secs(10))))?;
    write!(server, "GET {target} HTTP/1.0\r\n\r\n")?;
    let mut answer = Vec::new();
    server.read_to_end(&mut answer)?;
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let end = end.ok_or("the answer is cut short: is this a server of ums?")?;
    if !answer.starts_with(b"HTTP/1.0 200 ") {
        let first = String::from_utf8_lossy(&answer).lines().next().unwrap_or("").to_owned();
        return Err(format!("the server says: {first}").into());
    }
    Ok(answer.split_off(end + 4))
}
