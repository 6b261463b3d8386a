//! The server of the example `hyper_server` on tokio's runtime, to be measured beside it
//! (`benches/hyper.py`). End it with Ctrl-C.
//!
//! `cargo run -p ums-compat --example hyper_tokio [address]`

use std::convert::Infallible;
use std::time::Duration;

use http_body_util::{Either, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};

type Body = Either<Full<Bytes>, Incoming>;

async fn answer(request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    const MILLISECOND: Duration = Duration::from_millis(1);
    match request.uri().path() {
        "/nap" => tokio::time::sleep(MILLISECOND).await,
        "/block" => std::thread::sleep(MILLISECOND),
        "/echo" => return Ok(Response::new(Either::Right(request.into_body()))),
        _ => {}
    }
    Ok(Response::new(Either::Left("hello\n".into())))
}

fn main() -> std::io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:0".to_owned());
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let listener = tokio::net::TcpListener::bind(&address).await?;
        println!("listening on {}", listener.local_addr()?);
        loop {
            let Ok((stream, _)) = listener.accept().await else { continue };
            stream.set_nodelay(true).ok();
            tokio::spawn(async move {
                let mut server = http1::Builder::new();
                let server = server.timer(TokioTimer::new()).half_close(true);
                let connection = server.serve_connection(TokioIo::new(stream), service_fn(answer));
                if let Err(error) = connection.await {
                    eprintln!("a connection: {error}");
                }
            });
        }
    })
}
