//! A server with axum, whose handlers block in plain code. End it with Ctrl-C.
//!
//! `cargo run -p ums-compat --example axum_server [address] [thread|fiber|context]`
//!
//! `GET /visits/{name}` counts the visits of a name; `POST /echo` answers with its body.

mod common;

use std::collections::HashMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::routing::{get, post};
use hyper::server::conn::http1;
use hyper_util::service::TowerToHyperService;
use ums::sync::Mutex;
use ums_compat::{Stream, Timer};

/// Only the worker that waits for this lock is suspended.
type Visits = Arc<Mutex<HashMap<String, u64>>>;

async fn visit(State(visits): State<Visits>, Path(name): Path<String>) -> String {
    let mut visits = visits.lock();
    let count = visits.entry(name.clone()).or_default();
    *count += 1;
    format!("{name}: {count}\n")
}

fn main() -> Result<(), common::Error> {
    let app = Router::new()
        .route("/visits/{name}", get(visit))
        .route("/echo", post(async |body: String| body))
        .with_state(Visits::default());
    common::serve(move |stream| {
        let service = TowerToHyperService::new(app.clone());
        let connection = http1::Builder::new()
            .timer(Timer)
            .half_close(true)
            .serve_connection(Stream::new(stream), service)
            .with_upgrades();
        Ok(ums::future::block_on(connection)??)
    })
}
