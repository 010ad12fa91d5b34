//! Functions with the attribute, called over HTTP.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use support::{Example, command};

fn start() -> Example {
    Example::start(&mut command(env!("CARGO_BIN_EXE_attribute"), &["127.0.0.1:0"]))
}

#[tokio::test]
async fn denied_call_is_429_with_retry_after() {
    let program = start();
    for _ in 0..2 {
        let answer = program.send("GET", "/greetings/alice", "").await;
        assert_eq!((answer.status, &*answer.body), (200, "hello alice\n"));
    }
    let answer = program.send("GET", "/greetings/alice", "").await;
    assert_eq!(answer.status, 429);
    assert!(answer.body.starts_with("rate limit `gold` exceeded; retry in "), "{answer:?}");
    assert!((1..=60).contains(&answer.number("retry-after")), "{answer:?}");
    assert_eq!(program.send("GET", "/greetings/bob", "").await.status, 200, "bob has a separate counter");
}

#[tokio::test]
async fn cost_of_an_export_depends_on_its_rows() {
    let program = start();
    let answer = program.send("GET", "/exports/alice?rows=2500", "").await;
    assert_eq!((answer.status, &*answer.body), (200, "2500 rows for alice\n"));
    let answer = program.send("GET", "/exports/alice?rows=2500", "").await;
    assert_eq!(answer.status, 429, "three of five are used");
    assert!(answer.number("retry-after") <= 720, "one is available within twelve minutes: {answer:?}");
    assert_eq!(program.send("GET", "/exports/alice?rows=2000", "").await.status, 200);
    let answer = program.send("GET", "/exports/bob?rows=5001", "").await;
    assert_eq!((answer.status, answer.header("retry-after")), (429, ""), "never");
    assert_eq!(answer.body, "the cost exceeds the capacity of rate limit `exports`\n");
}

#[tokio::test]
async fn invalid_user_name_is_a_client_error() {
    let answer = start().send("GET", "/greetings/a%0Ab", "").await;
    assert_eq!(answer.status, 400);
    assert!(answer.body.contains("rate limit check failed"), "{answer:?}");
}
