//! Functions with the attribute, called over HTTP.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use support::{Example, command};

fn start() -> Example {
    Example::start(&mut command(env!("CARGO_BIN_EXE_attribute"), &["127.0.0.1:0"]))
}

#[tokio::test]
async fn a_denied_call_is_429_and_says_when_to_come_back() {
    let program = start();
    for _ in 0..2 {
        let answer = program.send("GET", "/greetings/alice", "").await;
        assert_eq!((answer.status, &*answer.body), (200, "hello alice\n"));
    }
    let answer = program.send("GET", "/greetings/alice", "").await;
    assert_eq!(answer.status, 429);
    assert!(answer.body.starts_with("rate limited by `gold`: try again in "), "{answer:?}");
    assert!((1..=60).contains(&answer.number("retry-after")), "{answer:?}");
    assert_eq!(program.send("GET", "/greetings/bob", "").await.status, 200, "bob is counted apart");
}

#[tokio::test]
async fn an_export_costs_its_rows() {
    let program = start();
    let answer = program.send("GET", "/exports/alice?rows=2500", "").await;
    assert_eq!((answer.status, &*answer.body), (200, "2500 rows for alice\n"));
    let answer = program.send("GET", "/exports/alice?rows=2500", "").await;
    assert_eq!(answer.status, 429, "three of five are taken");
    assert!(answer.number("retry-after") <= 720, "one comes back within twelve minutes: {answer:?}");
    assert_eq!(program.send("GET", "/exports/alice?rows=2000", "").await.status, 200);
    let answer = program.send("GET", "/exports/bob?rows=5001", "").await;
    assert_eq!((answer.status, answer.header("retry-after")), (429, ""), "never");
    assert_eq!(answer.body, "rate limited by `exports`\n");
}

#[tokio::test]
async fn invalid_user_id_is_an_error() {
    let answer = start().send("GET", "/greetings/a%0Ab", "").await;
    assert_eq!(answer.status, 400);
    assert!(answer.body.contains("could not be checked"), "{answer:?}");
}
