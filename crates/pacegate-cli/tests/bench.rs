//! `pacegate bench` against running services: its figures, its output and its exit codes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod process;

use std::process::{Child, Stdio};

use pacegate_testkit::server::{Authority, Validity};
use process::{Service, address, file, pacegate, run, signal, started};
use serde_json::Value;

const HUNDRED: &str =
    "rules: [{name: hundred, dimension: user, algorithm: fixed_window, limit: 100, window: 1d}]\n";

/// A service that allows each user 100 requests.
fn service(more: &str) -> (Service, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let config = file(directory.path(), &format!("{HUNDRED}{more}"));
    (Service::start(&["--config", &config], &[("PACEGATE_ADMIN_KEY", "secret")]), directory)
}

/// Runs a load test and returns its JSON.
fn figures(arguments: &[&str]) -> Value {
    let (code, output, errors) = run(&[&["bench", "--json", "-"], arguments].concat());
    assert_eq!(code, 0, "{errors}");
    serde_json::from_str(&output).unwrap()
}

#[test]
fn every_protocol_counts_exactly() {
    let (service, _directory) = service("");
    let rest = service.url.as_str();
    let grpc = service.grpc.as_str();
    let ways: [(&str, &[&str]); 6] = [
        ("rest", &[rest]),
        ("rest", &[rest, "--rate", "2000"]),
        ("rest_http2", &[rest, "--http2", "--connections", "2"]),
        ("grpc", &[grpc, "--grpc"]),
        ("grpc_stream", &[grpc, "--grpc", "--stream"]),
        ("grpc_stream", &[grpc, "--grpc", "--stream", "--rate", "2000", "--connections", "1"]),
    ];
    for (number, (protocol, way)) in ways.into_iter().enumerate() {
        let prefix = format!("way-{number}-");
        let common = ["--requests", "450", "--keys", "2", "--concurrency", "8", "--user-prefix", &prefix];
        let figures = figures(&[way, &common].concat());
        assert_eq!(figures["protocol"], protocol, "{figures}");
        assert_eq!(figures["allowed"], 200, "{figures}");
        assert_eq!(figures["blocked"], 250, "{figures}");
        assert_eq!((&figures["requests"], &figures["error_count"]), (&450.into(), &0.into()), "{figures}");
        assert_eq!((&figures["concurrency"], &figures["keys"]), (&8.into(), &2.into()), "{figures}");
        let open = way.contains(&"--rate");
        assert_eq!(figures["loop"], if open { "open" } else { "closed" });
        assert_eq!(figures["rate_asked"], if open { Value::from(2_000) } else { Value::Null });
        for times in ["latency_ms", "service_time_ms"] {
            let at = |name: &str| figures[times][name].as_f64().unwrap();
            assert!(0.0 < at("p50") && at("p50") <= at("p90") && at("p90") <= at("p99"), "{figures}");
            assert!(at("p99") <= at("p99_9") && at("p99_9") <= at("max"), "{figures}");
        }
    }
}

#[test]
fn options_set_the_fields_of_checks() {
    let (service, _directory) = service("");
    let common = ["--requests", "30", "--keys", "1"];
    let own = ["--user-prefix", "u", "--endpoint", "/other", "--cost", "10"];
    let counted = figures(&[&[service.url.as_str()], &common[..], &own[..]].concat());
    assert_eq!(counted["allowed"], 10, "each check costs 10 of 100: {counted}");
    let (_, status) = service.ask("GET", "/v1/rate-limit/status/u0/other", "").unwrap();
    assert_eq!(status["current_count"], 100, "{status}");
    let other =
        figures(&[&[service.grpc.as_str(), "--grpc", "--dimension", "ip"], &common[..], &own[..]].concat());
    assert_eq!(other["allowed"], 10, "the default limit is 100 as well: {other}");
}

#[test]
fn method_selects_the_rules_of_that_method() {
    let directory = tempfile::tempdir().unwrap();
    let rule = "rules: [{name: posts, dimension: user, method: POST, algorithm: fixed_window, limit: 7, window: 1d}]\ndefault_limit: none\n";
    let service = Service::start(&["--config", &file(directory.path(), rule)], &[]);
    for way in [&[service.url.as_str()][..], &[&service.grpc, "--grpc"]] {
        let prefix = if way.len() == 1 { "rest-" } else { "grpc-" };
        let common = ["--requests", "10", "--keys", "1", "--user-prefix", prefix];
        assert_eq!(figures(&[way, &common, &["--method", "POST"]].concat())["allowed"], 7);
        assert_eq!(figures(&[way, &common, &["--method", "GET"]].concat())["allowed"], 10);
        let exhausted = figures(&[way, &common].concat());
        assert_eq!(exhausted["allowed"], 0, "without a method, the rule applies: {exhausted}");
    }
}

#[test]
fn summary_is_printed_and_json_is_written_to_a_file() {
    let (service, directory) = service("");
    let path = directory.path().join("figures.json");
    let (code, output, errors) =
        run(&["bench", &service.url, "--requests", "200", "--keys", "1", "--json", path.to_str().unwrap()]);
    assert_eq!(code, 0, "{errors}");
    assert!(
        errors.starts_with(&format!("load-testing {} (REST over HTTP/1.1) with 64 callers", service.url)),
        "{errors}"
    );
    for part in [
        "REST over HTTP/1.1, 64 connections, 64 callers, 1 keys (uniform), closed loop",
        "  requests                200  in ",
        "  allowed                 100   50.0 %",
        "  blocked                 100   50.0 %",
        "  errors                    0    0.0 %",
        "p50       p90       p99     p99.9       max",
        "  corrected  ",
        "  as measured  ",
    ] {
        assert!(output.contains(part), "{part} is not in:\n{output}");
    }
    let figures: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(figures["allowed"], 100);
    let (code, output, _) = run(&["bench", &service.url, "--requests", "20", "--rate", "1000"]);
    assert_eq!(code, 0);
    for part in ["open loop, 1,000 requests/s", "of 1,000/s requested", "  latency  ", "  service time  "] {
        assert!(output.contains(part), "{part} is not in:\n{output}");
    }
}

#[test]
fn rate_that_is_not_reached_is_reported() {
    let (service, _directory) = service("");
    let (code, output, _) = run(&[
        "bench",
        &service.url,
        "--rate",
        "1000000",
        "--concurrency",
        "1",
        "--duration",
        "200ms",
        "--warmup",
        "0",
    ]);
    assert_eq!(code, 0);
    assert!(output.contains("warning: the rate was not reached"), "{output}");
    assert!(output.contains("of 1,000,000 requests/s"), "{output}");
}

/// A running load test. At least one of its callers has received a response.
fn running(service: &Service, callers: u64, arguments: &[&str]) -> Child {
    let mut child = pacegate()
        .args(["bench", "--keys", "1", "--warmup", "0", "--json", "-", "--concurrency", &callers.to_string()])
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let counted =
        || service.ask("GET", "/v1/rate-limit/status/bench-0/", "").unwrap().1["current_count"].clone();
    while counted().as_u64().unwrap() <= callers {
        assert!(child.try_wait().unwrap().is_none(), "it must still be running");
        std::thread::yield_now();
    }
    child
}

fn ended(child: Child) -> (i32, Value, String) {
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    let figures = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("no figures: {errors}"));
    (output.status.code().unwrap(), figures, errors)
}

#[test]
fn requests_to_a_killed_service_are_errors() {
    let dies = |way: &[&str]| {
        let (mut service, _directory) = service("");
        let address = if way.contains(&"--grpc") { service.grpc.clone() } else { service.url.clone() };
        let common = [address.as_str(), "--rate", "300", "--duration", "4s"];
        let child = running(&service, 8, &[&common, way].concat());
        service.kill();
        let (code, figures, errors) = ended(child);
        assert_eq!(code, 0, "{errors}");
        assert!(figures["allowed"].as_u64().unwrap() > 0, "{figures}");
        assert!(figures["errors"]["connect"].as_u64().unwrap() > 0, "{figures}");
        assert_eq!(figures["interrupted"], false);
        // Callers wait after a failed connection: 8 callers fail about 80 times per second, not
        // 300.
        assert!(figures["error_count"].as_u64().unwrap() < 600, "{figures}");
    };
    let ways: [&[&str]; 4] = [&[], &["--http2"], &["--grpc"], &["--grpc", "--stream"]];
    std::thread::scope(|scope| {
        for way in ways {
            scope.spawn(move || dies(way));
        }
    });
}

#[test]
fn interrupt_stops_the_test_with_a_summary() {
    for name in ["INT", "TERM"] {
        let (service, _directory) = service("");
        let child = running(&service, 8, &[&service.url, "--duration", "1h"]);
        signal(&child, name);
        let (code, figures, errors) = ended(child);
        assert_eq!((code, &figures["interrupted"]), (0, &true.into()), "{errors}");
        assert!(figures["requests"].as_u64().unwrap() > 0 && errors.contains("interrupted"), "{errors}");
    }
}

#[test]
fn api_key_is_sent_and_a_wrong_one_is_reported() {
    for way in [&[][..], &["--grpc"], &["--grpc", "--stream"]] {
        let (service, _directory) = service("server: {require_key: true}\n");
        let address = if way.is_empty() { &service.url } else { &service.grpc };
        let common = [&[address.as_str(), "--requests", "10", "--concurrency", "2"], way].concat();
        assert_eq!(figures(&[&common[..], &["--api-key", "secret"]].concat())["allowed"], 10);
        let mut command = pacegate();
        command.env("PACEGATE_API_KEY", "secret").arg("bench").args(&common);
        assert!(command.output().unwrap().status.success());
        for key in ["guess", ""] {
            let (code, output, errors) = run(&[&["bench"], &common[..], &["--api-key", key]].concat());
            assert_eq!((code, output.as_str()), (2, ""), "{errors}");
            let line = errors.lines().last().unwrap().to_lowercase();
            assert!(line.contains("rejected the checks: ") && line.contains("key"), "{errors}");
            assert!(line.contains("401") || line.contains("unauthenticated"), "{errors}");
        }
    }
}

#[test]
fn invalid_options_are_rejected_by_name() {
    let cases: [(&[&str], &str); 16] = [
        (&["--rate", "0"], "--rate"),
        (&["--rate", "1000001"], "--rate"),
        (&["--connections", "10001"], "--connections"),
        (&["--concurrency", "0"], "--concurrency"),
        (&["--duration", "2h"], "--duration"),
        (&["--duration", "ten"], "--duration"),
        (&["--timeout", "0s"], "--timeout"),
        (&["--keys", "0"], "--keys"),
        (&["--distribution", "normal"], "--distribution"),
        (&["--cost", "0"], "--cost"),
        (&["--stream"], "--grpc"),
        (&["--requests", "5", "--warmup", "1s"], "--warmup"),
        (&["--connections", "5", "--concurrency", "10"], "--connections"),
        (&["--grpc", "--connections", "1", "--concurrency", "251"], "--concurrency"),
        (&["--json", "/nonexistent/figures.json"], "--json"),
        (&["--api-key", "line\nbreak"], "--api-key"),
    ];
    for (options, name) in cases {
        let (code, output, errors) = run(&[&["bench"], options].concat());
        assert_eq!((code, output.as_str()), (2, ""), "{options:?}: {errors}");
        assert!(errors.starts_with("error: ") && errors.contains(name), "{options:?}: {errors}");
    }
    for (url, reason) in [("ftp://x", "must start with http://"), ("http://a@b", "must not contain a user")] {
        let (code, _, errors) = run(&["bench", url]);
        assert!(code == 2 && errors.contains(reason), "{errors}");
    }
}

#[test]
fn unreachable_service_is_a_failure() {
    let (code, output, errors) = run(&["bench", "http://127.0.0.1:1"]);
    assert_eq!((code, output.as_str()), (1, ""));
    assert!(errors.contains("error: could not reach http://127.0.0.1:1: Connection refused"), "{errors}");
    let (service, _directory) = service("");
    let (code, _, errors) = run(&["bench", &service.url, "--grpc", "--requests", "5"]);
    assert_eq!(code, 1);
    assert!(errors.contains("responded to no check"), "{errors}");
    let (code, _, errors) = run(&["bench", &service.grpc, "--requests", "5"]);
    assert_eq!(code, 1);
    assert!(errors.contains("REST and gRPC have different addresses"), "{errors}");
}

#[test]
fn closed_output_is_not_a_failure() {
    let (service, _directory) = service("");
    let mut child = pacegate()
        .args(["bench", &service.url, "--requests", "100"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(!String::from_utf8(output.stderr).unwrap().contains("panicked"));
}

/// A service with TLS, killed when the test ends.
struct Encrypted {
    process: Child,
    http: String,
    grpc: String,
}

impl Drop for Encrypted {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn services_with_tls_need_a_trusted_certificate() {
    let (authority, directory) = (Authority::new(), tempfile::tempdir().unwrap());
    let path = directory.path();
    authority.server(&["localhost"], Validity::Now).save(path, "server");
    std::fs::write(path.join("ca.pem"), authority.certificate()).unwrap();
    let tls = format!("server: {{tls: {{cert: {0}/server.pem, key: {0}/server.key}}}}\n", path.display());
    let config = file(path, &format!("{HUNDRED}{tls}"));
    let (process, _output, line) = started(
        pacegate().args(["serve", "--http", "127.0.0.1:0", "--config", &config]).stderr(Stdio::null()),
    );
    let port = |address: &str| format!("https://localhost:{}", address.rsplit(':').next().unwrap());
    let service =
        Encrypted { process, http: port(&address(&line, "REST")), grpc: port(&address(&line, "gRPC")) };
    let ca = path.join("ca.pem");
    let ca = ca.to_str().unwrap();
    let common = ["--requests", "20", "--concurrency", "4"];
    for way in [&[service.http.as_str()][..], &[&service.http, "--http2"], &[&service.grpc, "--grpc"]] {
        let figures = figures(&[way, &common, &["--ca", ca]].concat());
        assert_eq!(figures["allowed"], 20, "{figures}");
        let (code, _, errors) = run(&[&["bench"], way, &common].concat());
        assert!(code == 1 && errors.contains("certificate"), "{errors}");
    }
    let check = ["check", "--server", &service.http, "--ca", ca, "--user", "u", "--endpoint", "/"];
    let (code, output, errors) = run(&check);
    assert!(code == 0 && output.starts_with("allowed: user u, /,"), "{output}{errors}");
    std::fs::write(path.join("empty.pem"), "nothing").unwrap();
    let (code, _, errors) = run(&["bench", &service.http, "--ca", path.join("empty.pem").to_str().unwrap()]);
    assert!(code == 2 && errors.contains("--ca: ") && errors.contains("contains no certificate"), "{errors}");
    let (code, _, errors) = run(&["bench", "http://127.0.0.1:1", "--ca", ca]);
    assert!(code == 2 && errors.contains("--ca requires an https:// address"), "{errors}");
}
