//! gRPC with tonic: an echo service over hyper's HTTP/2, and a client of it.
//!
//! `cargo run -p ums-compat --example grpc [address] [thread|fiber|context]` serves. End it with
//! Ctrl-C.
//!
//! `cargo run -p ums-compat --example grpc ask [thread|fiber|context] <url> <text>` asks.
//!
//! The types and the service are what tonic's code generator would write from an interface file.

mod common;

use std::convert::Infallible;
use std::pin::Pin;

use common::{Error, argument};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Uri, body::Incoming};
use hyper_util::client::legacy::Client;
use tonic::body::Body;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::server::UnaryService;
use tonic::{Response, Status};
use tonic_prost::ProstCodec;
use ums_compat::{Connector, Executor, Stream, Timer};

#[derive(Clone, PartialEq, prost::Message)]
struct Text {
    #[prost(string, tag = "1")]
    text: String,
}

type Codec = ProstCodec<Text, Text>;
const ECHO: &str = "/echo.Echo/Say";

#[derive(Clone)]
struct Echo;

impl UnaryService<Text> for Echo {
    type Response = Text;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Text>, Status>> + Send>>;

    fn call(&mut self, request: tonic::Request<Text>) -> Self::Future {
        Box::pin(async {
            // A stream of HTTP/2 is a task of its own, which may block in plain code.
            ums::sleep(std::time::Duration::from_millis(1)).ok();
            Ok(Response::new(request.into_inner()))
        })
    }
}

async fn answer(request: Request<Incoming>) -> Result<hyper::Response<Body>, Infallible> {
    Ok(match request.uri().path() {
        ECHO => tonic::server::Grpc::new(Codec::default()).unary(Echo, request).await,
        path => Status::unimplemented(format!("there is no {path}")).into_http(),
    })
}

fn main() -> Result<(), Error> {
    if argument(1, "") == "ask" {
        let (uri, text) = (argument(3, "").parse()?, argument(4, "hello"));
        let answer = common::node(&argument(2, "thread"))?.run(move || ask(uri, text))?;
        println!("{answer}");
        return Ok(());
    }
    common::serve(|stream| {
        let mut server = http2::Builder::new(Executor);
        let connection =
            server.timer(Timer).serve_connection(Stream::new(stream), service_fn(answer));
        Ok(ums::future::block_on(connection)??)
    })
}

fn ask(uri: Uri, text: String) -> Result<String, Error> {
    let mut client = Client::builder(Executor);
    let client: Client<_, Body> = client.http2_only(true).timer(Timer).build(Connector::new());
    let mut client = tonic::client::Grpc::with_origin(client, uri);
    let echo = PathAndQuery::from_static(ECHO);
    let answer = ums::future::block_on(async {
        client.ready().await?;
        client
            .unary(tonic::Request::new(Text { text }), echo, Codec::default())
            .await
            .map_err(Error::from)
    })??;
    Ok(answer.into_inner().text)
}
