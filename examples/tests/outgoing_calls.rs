//! The client that limits itself, observed by the server that it calls.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use support::command;
use tokio::net::TcpListener;
use tokio::time::Instant;

const CALLS: usize = 15;
const RATE: f64 = 20.0;
const BURST: f64 = 5.0;
/// Maximum difference between the clocks of the two processes, with a margin.
const CLOCKS: Duration = Duration::from_millis(2);

#[tokio::test]
async fn no_window_exceeds_the_limit_and_all_calls_are_made() {
    let arrivals = Arc::new(Mutex::new(vec![Instant::now()]));
    let record = arrivals.clone();
    let answer = async move || {
        record.lock().unwrap().push(Instant::now());
        "thank you"
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let server = tokio::spawn(axum::serve(listener, Router::new().route("/", get(answer))).into_future());
    let calls = CALLS.to_string();
    let run = move || command(env!("CARGO_BIN_EXE_outgoing_calls"), &[&url, &calls]).output().unwrap();
    let output = tokio::task::spawn_blocking(run).await.unwrap();
    server.abort();
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(printed.lines().filter(|line| line.ends_with(": 200 OK")).count(), CALLS, "{printed}");

    // The first entry is the start. A call is allowed between the arrival of the previous call and
    // its own arrival. So the window that the limit saw lies between the arrival before its first
    // call and the arrival of its last call.
    let arrivals = arrivals.lock().unwrap();
    assert_eq!(arrivals.len(), 1 + CALLS);
    for first in 1..=CALLS {
        for last in first..=CALLS {
            let window = arrivals[last] - arrivals[first - 1] + CLOCKS;
            let calls = (last - first + 1) as f64;
            assert!(calls <= BURST + RATE * window.as_secs_f64(), "{calls} calls within {window:?}");
        }
    }
}

#[test]
fn missing_argument_is_reported() {
    let output = command(env!("CARGO_BIN_EXE_outgoing_calls"), &[]).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8(output.stderr).unwrap().contains("missing argument: the URL to call"));
}
