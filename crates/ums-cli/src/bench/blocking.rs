//! `blocking`: an echo server whose handler sometimes sleeps in a plain call of the C library.
//!
//! Each connection sends a byte every few milliseconds, and every hundredth request sleeps for 10
//! ms, undeclared. The metric is how long the *other* requests take, on one scheduler with thread
//! workers, in three cases: without sleeps, with sleeps and `detect_blocking`, and with sleeps but
//! without `detect_blocking`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use ums::Node;
use ums::net::TcpListener;

use super::meter::{BenchArgs, Lines, Ran, Stop, block_10ms};

/// `blocking connections= secs= every=`.
pub fn blocking(args: &BenchArgs) -> Ran {
    let connections = args.number("connections", 50)?;
    let seconds = args.number("secs", 5)?;
    let every = args.number("every", 100)?.max(1);
    // The key `kind` is accepted and has no effect, because `detect_blocking` is measured with
    // thread workers.
    let _ = args.text("kind", "");
    args.all_known()?;
    let lines = Lines { bench: format!("blocking/{connections}"), peer: "ums-thread" };
    let time = Duration::from_secs(seconds.max(1));
    let run = |detect, every| {
        p99_us(connections, time, detect, every).map_err(|error| Stop::Skip(error.to_string()))
    };
    let calm = run(true, u64::MAX)?;
    let detected = run(true, every)?;
    let naive = run(false, every)?;
    lines.metric("p99_without_sleeps_us", calm, "us");
    lines.metric("p99_detected_us", detected, "us");
    lines.metric("p99_undetected_us", naive, "us");
    lines.metric("detected_ratio", detected / calm, "ratio");
    lines.metric("undetected_ratio", naive / calm, "ratio");
    Ok(())
}

type Fallible<T> = Result<T, Box<dyn std::error::Error>>;

/// Returns the 99th percentile of the requests that do not sleep, in microseconds.
fn p99_us(connections: u64, time: Duration, detect: bool, every: u64) -> Fallible<f64> {
    let workers = connections as usize + 16;
    let node =
        Node::builder().schedulers(1).max_workers(workers).detect_blocking(detect).build()?;
    let listener = node.run(|| TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))))?;
    let address = listener.local_addr()?;
    let server = node.spawn_on(0, move || {
        for _ in 0..connections {
            let (stream, _) = listener.accept()?;
            stream.set_nodelay(true)?;
            ums::spawn(move || converse(stream));
        }
        Ok::<(), std::io::Error>(())
    })?;
    let clients: Vec<_> = (0..connections)
        .map(|n| std::thread::spawn(move || client(address, n, time, every)))
        .collect();
    let mut spans = Vec::new();
    for client in clients {
        spans.extend(client.join().map_err(|_| "a client panicked")??);
    }
    server.join().map_err(|error| error.to_string())??;
    node.shutdown(Duration::from_secs(5));
    spans.sort_unstable();
    let at = spans.len() * 99 / 100;
    spans.get(at).map(|ns| *ns as f64 / 1000.0).ok_or_else(|| "no request was served".into())
}

fn converse(mut stream: ums::net::TcpStream) {
    let mut byte = [0];
    while let Ok(1) = stream.read(&mut byte) {
        if byte[0] == 1 {
            block_10ms();
        }
        if stream.write_all(&byte).is_err() {
            return;
        }
    }
}

fn client(address: SocketAddr, n: u64, time: Duration, every: u64) -> std::io::Result<Vec<u64>> {
    const THINK: Duration = Duration::from_millis(5);
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut spans = Vec::with_capacity(4096);
    let began = Instant::now();
    let mut request = n;
    while began.elapsed() < time {
        request += 1;
        let sleeps = request.is_multiple_of(every);
        let asked = Instant::now();
        let mut byte = [u8::from(sleeps)];
        stream.write_all(&byte)?;
        stream.read_exact(&mut byte)?;
        if !sleeps {
            spans.push(asked.elapsed().as_nanos() as u64);
        }
        std::thread::sleep(THINK);
    }
    Ok(spans)
}
