//! TLS with rustls: a server with hyper over tokio-rustls, and a client in plain blocking code.
//!
//! `cargo run -p ums-compat --example tls serve <folder> [thread|fiber|context]` makes a
//! certificate, writes it to `cert.pem` in the folder, and serves `https://localhost`. End it with
//! Ctrl-C.
//!
//! `cargo run -p ums-compat --example tls get <folder> [thread|fiber|context] <port>` gets a page.

mod common;

use std::io::{Read, Write};
use std::sync::Arc;

use common::{Error, argument};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, body::Incoming};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, StreamOwned};
use tokio_rustls::TlsAcceptor;
use ums::net::{TcpListener, TcpStream};
use ums_compat::{Stream, Timer};

fn main() -> Result<(), Error> {
    let (folder, kind) = (argument(2, "."), argument(3, "thread"));
    let certificate = std::path::Path::new(&folder).join("cert.pem");
    match argument(1, "").as_str() {
        "serve" => {
            let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
            std::fs::write(&certificate, made.cert.pem())?;
            let key = PrivateKeyDer::from_pem_slice(made.signing_key.serialize_pem().as_bytes())?;
            let config = ServerConfig::builder()
                .with_no_client_auth()
                .with_single_cert(vec![made.cert.der().clone()], key)?;
            serve(&kind, TlsAcceptor::from(Arc::new(config)))
        }
        "get" => {
            let mut roots = RootCertStore::empty();
            roots.add(CertificateDer::from_pem_file(&certificate)?)?;
            let config =
                ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
            let port = argument(4, "443").parse()?;
            print!("{}", common::node(&kind)?.run(move || get(config, port))?);
            Ok(())
        }
        _ => Err("the first argument is 'serve' or 'get'".into()),
    }
}

fn serve(kind: &str, tls: TlsAcceptor) -> Result<(), Error> {
    common::node(kind)?.run(move || {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        println!("listening on {}", listener.local_addr()?);
        for stream in listener.incoming().flatten() {
            let tls = tls.clone();
            ums::spawn(move || {
                let served = ums::future::block_on(async {
                    let stream = tls.accept(Stream::new(stream)).await?;
                    let stream = hyper_util::rt::TokioIo::new(stream);
                    let mut server = http1::Builder::new();
                    let server = server.timer(Timer).half_close(true);
                    server.serve_connection(stream, service_fn(hello)).await?;
                    Ok::<(), Error>(())
                });
                if let Ok(Err(error)) = served {
                    eprintln!("a connection: {error}");
                }
            });
        }
        Ok(())
    })
}

async fn hello(_: Request<Incoming>) -> Result<Response<String>, hyper::Error> {
    Ok(Response::new("hello over TLS\n".to_owned()))
}

/// rustls asks for `Read` and `Write`, which the sockets of `ums` have: nothing here is async.
fn get(config: ClientConfig, port: u16) -> Result<String, Error> {
    let connection = ClientConnection::new(Arc::new(config), "localhost".try_into()?)?;
    let mut stream = StreamOwned::new(connection, TcpStream::connect(("127.0.0.1", port))?);
    stream.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
    let mut answer = String::new();
    match stream.read_to_string(&mut answer) {
        // hyper ends the connection without the notice that TLS has for that.
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {}
        result => drop(result?),
    }
    let body = answer.split_once("\r\n\r\n").ok_or("the answer has no body")?.1;
    Ok(body.to_owned())
}
