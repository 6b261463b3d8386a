//! A server with hyper, whose handlers block in plain code. End it with Ctrl-C.
//!
//! `cargo run -p ums-compat --example hyper_server [address] [thread|fiber|context] [nap]`
//!
//! * `/` answers at once.
//! * `/nap` sleeps for a millisecond first, in the scheduler's own sleep.
//! * `/block` sleeps for a millisecond in the system, as code does that knows nothing of `ums`.
//! * `/echo` answers with the body of the request.

// Named invariant **Contract**: `ums::watch::calls` defines it for interposed functions.
#![allow(unsafe_code)]

mod common;

use std::convert::Infallible;
use std::time::Duration;

use http_body_util::{Either, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use ums_compat::{Stream, Timer};

// Functions of the C library that block let other workers with their own context run meanwhile.
ums::interpose!();

type Body = Either<Full<Bytes>, Incoming>;

async fn answer(request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    const MILLISECOND: Duration = Duration::from_millis(1);
    match request.uri().path() {
        "/nap" => drop(ums::sleep(MILLISECOND)),
        "/block" => std::thread::sleep(MILLISECOND),
        "/echo" => return Ok(Response::new(Either::Right(request.into_body()))),
        _ => {}
    }
    Ok(Response::new(Either::Left("hello\n".into())))
}

fn main() -> Result<(), common::Error> {
    common::serve(|stream| {
        let mut server = http1::Builder::new();
        // Without `half_close`, hyper takes the end of a request's input for the end of its client.
        let server = server.timer(Timer).half_close(true);
        let connection = server.serve_connection(Stream::new(stream), service_fn(answer));
        Ok(ums::future::block_on(connection)??)
    })
}
