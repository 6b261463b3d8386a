//! Gets a page with hyper, in three ways.
//!
//! `cargo run -p ums-compat --example hyper_client <url> [thread|fiber|context] [hyper|pool|tokio]`
//!
//! * `hyper`: a connection of hyper's own client.
//! * `pool`: hyper-util's client, which keeps connections, on the schedulers of `ums`.
//! * `tokio`: the same client on a runtime of tokio beside the schedulers.

mod common;

use common::{Error, argument};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::handshake;
use hyper::{Request, Response, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use ums::net::TcpStream;
use ums_compat::{Connector, Executor, Stream, Timer, Tokio};

fn main() -> Result<(), Error> {
    let uri: Uri = argument(1, "").parse()?;
    let way = argument(3, "hyper");
    let text = common::node(&argument(2, "thread"))?.run(move || match way.as_str() {
        "hyper" => with_a_connection(&uri),
        "pool" => with_a_pool(&uri),
        "tokio" => with_tokio(uri),
        _ => Err(format!("no way is '{way}': use hyper, pool or tokio").into()),
    })?;
    print!("{text}");
    Ok(())
}

async fn text_of(answer: Response<Incoming>) -> Result<String, Error> {
    let body = answer.into_body().collect().await?.to_bytes();
    Ok(String::from_utf8(body.to_vec())?)
}

fn with_a_connection(uri: &Uri) -> Result<String, Error> {
    let host = uri.host().ok_or("the URL has no host")?;
    let stream = TcpStream::connect((host, uri.port_u16().unwrap_or(80)))?;
    ums::future::block_on(async {
        let (mut sender, connection) = handshake(Stream::new(stream)).await?;
        // It carries the bytes until the sender is dropped.
        let connection = ums::future::spawn_future(connection);
        let request = Request::get(uri.path()).header("host", host).body(Empty::<Bytes>::new())?;
        let text = text_of(sender.send_request(request).await?).await?;
        drop(sender);
        connection.await.map_err(|error| error.to_string())??;
        Ok(text)
    })?
}

fn with_a_pool(uri: &Uri) -> Result<String, Error> {
    let mut client = Client::builder(Executor);
    let client: Client<_, Empty<Bytes>> =
        client.timer(Timer).pool_timer(Timer).build(Connector::new());
    // Two requests at once: these futures are `Send`, so each can be a task without a stack.
    let tasks = [uri, uri].map(|uri| ums::future::spawn_future(client.get(uri.clone())));
    let mut texts = Vec::new();
    for task in tasks {
        let answer = task.join().map_err(|error| error.to_string())??;
        texts.push(ums::future::block_on(text_of(answer))??);
    }
    Ok(texts.concat())
}

fn with_tokio(uri: Uri) -> Result<String, Error> {
    let tokio = Tokio::new()?;
    tokio.block_on(async move {
        // Its connections are tokio's own.
        let connector = HttpConnector::new();
        let client: Client<_, Empty<Bytes>> =
            Client::builder(TokioExecutor::new()).build(connector);
        text_of(client.get(uri).await?).await
    })?
}
