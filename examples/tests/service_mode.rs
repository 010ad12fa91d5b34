//! One program in both modes, the second one with a real service.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use pacegate_config::Config;
use pacegate_server::{AdminKey, App, Listeners};
use support::{Example, command};
use tokio::net::TcpListener;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/service_mode.yaml");

/// Starts the program in a mode, with the service at `url`.
fn start(mode: &str, url: &str) -> Example {
    let mut command = command(env!("CARGO_BIN_EXE_service_mode"), &[FILE, "127.0.0.1:0"]);
    Example::start(command.env("PACEGATE_MODE", mode).env("PACEGATE_SERVICE__URL", url))
}

/// Starts the service with the same file. Returns its gRPC address.
async fn serve() -> String {
    let config = Config::parse(&std::fs::read_to_string(FILE).unwrap()).unwrap();
    let http = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let grpc = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", grpc.local_addr().unwrap());
    let app = App::new(&config, config.limiter().unwrap(), AdminKey::new("secret"));
    tokio::spawn(async move {
        let listeners = Listeners::from(http).grpc(grpc);
        pacegate_server::run(listeners, app, &config.server, std::future::pending()).await;
    });
    url
}

/// Sends a request to each program in turn, and returns their responses.
async fn statuses(programs: [&Example; 2]) -> Vec<(u16, String)> {
    let mut statuses = Vec::new();
    for number in 0..6 {
        let answer = programs[number % 2].send("GET", "/", "").await;
        statuses.push((answer.status, answer.header("x-ratelimit-remaining").to_owned()));
    }
    statuses
}

fn expected(answers: [(u16, &str); 6]) -> Vec<(u16, String)> {
    answers.map(|(status, remaining)| (status, remaining.to_owned())).into()
}

#[tokio::test]
async fn embedded_programs_count_separately() {
    let programs = [start("embedded", "http://127.0.0.1:1"), start("embedded", "http://127.0.0.1:1")];
    let all = [(200, "2"), (200, "2"), (200, "1"), (200, "1"), (200, "0"), (200, "0")];
    assert_eq!(statuses(programs.each_ref()).await, expected(all));
    let answer = programs[0].send("GET", "/", "").await;
    assert_eq!((answer.status, &answer.json()["rule"]), (429, &"public".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_with_a_service_share_counters() {
    let url = serve().await;
    let programs = [start("service", &url), start("service", &url)];
    let three = [(200, "2"), (200, "1"), (200, "0"), (429, "0"), (429, "0"), (429, "0")];
    assert_eq!(statuses(programs.each_ref()).await, expected(three));
    let answer = programs[1].send("GET", "/", "").await;
    assert_eq!((answer.status, &answer.json()["rule"]), (429, &"public".into()));
    assert!((1..=60).contains(&answer.number("retry-after")), "{answer:?}");
}

#[tokio::test]
async fn program_without_its_service_uses_the_failure_mode() {
    let program = start("service", "http://127.0.0.1:1");
    let answer = program.send("GET", "/", "").await;
    assert_eq!((answer.status, answer.header("retry-after")), (503, "1"), "closed: {answer:?}");
}
