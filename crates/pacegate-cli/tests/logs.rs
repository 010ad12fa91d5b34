//! The log: denials as machine-readable lines that callers cannot forge, at a bounded rate.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod process;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Stdio};

use process::{file, pacegate, signal, started};
use serde_json::Value;
use tempfile::TempDir;

const RULES: &str = "
default_limit: none
rules: [{name: few, dimension: user, algorithm: fixed_window, limit: 2, window: 1d}]
";

/// A service that logs to a file.
struct Logged {
    process: Child,
    url: String,
    directory: TempDir,
}

impl Logged {
    fn start(settings: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = file(directory.path(), &format!("{RULES}{settings}"));
        let log = fs::File::create(directory.path().join("log")).unwrap();
        let (process, _output, line) = started(
            pacegate()
                .args(["serve", "--http", "127.0.0.1:0", "--config", &config])
                .env("PACEGATE_ADMIN_KEY", "correct-horse")
                .stderr(log),
        );
        let url = line.split_whitespace().find(|word| word.starts_with("http://")).unwrap();
        Self { url: url.trim_start_matches("http://").to_owned(), process, directory }
    }

    /// Sends a request with these headers, each of which ends with a line break.
    fn send(&self, request: &str, headers: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(&self.url).unwrap();
        let length = body.len();
        let head = "host: x\r\nconnection: close\r\ncontent-type: application/json\r\n";
        write!(stream, "{request} HTTP/1.1\r\n{head}{headers}content-length: {length}\r\n\r\n{body}")
            .unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        response
    }

    fn check(&self, user: &str, headers: &str) -> String {
        let body = format!(r#"{{"user_id": "{user}", "endpoint": "/orders"}}"#);
        self.send("POST /v1/rate-limit/check", headers, &body)
    }

    /// Stops the service and returns the whole log.
    fn stop(mut self) -> String {
        signal(&self.process, "TERM");
        self.process.wait().unwrap();
        fs::read_to_string(self.directory.path().join("log")).unwrap()
    }
}

impl Drop for Logged {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The log lines of decisions, as JSON.
fn decisions(log: &str) -> Vec<Value> {
    let lines =
        log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap_or_else(|_| panic!("{line}")));
    lines.filter(|line| line["target"] == "pacegate::decision").collect()
}

#[test]
fn denial_is_logged_with_its_fields() {
    let service = Logged::start("log: {format: json}");
    for _ in 0..2 {
        service.check("alice", "");
    }
    service.check("alice", "x-request-id: from-the-caller\r\n");
    let log = service.stop();
    let lines = decisions(&log);
    assert_eq!(lines.len(), 1, "allowed checks are not logged by default\n{log}");
    let line = &lines[0];
    assert_eq!(line["message"], "denied");
    assert_eq!(line["request_id"], "from-the-caller");
    assert_eq!(line["rule"], "few");
    assert_eq!(line["reason"], "LIMIT_EXCEEDED");
    assert_eq!(line["endpoint"], "/orders");
    assert_eq!(line["remaining"], 0);
    assert!(line["latency_us"].is_u64(), "{line}");
    // The start of the SHA-256 of `alice`.
    assert_eq!(line["key"], "user:2bd806c97f0e00af");
    assert!(!log.contains("alice"), "{log}");
}

#[test]
fn state_change_line_names_key_and_request() {
    for (keys, expected) in [("hashed", "user:2bd806c97f0e00af"), ("plain", "user:alice")] {
        let service = Logged::start(&format!("log: {{format: json, keys: {keys}}}"));
        for id in ["first", "second"] {
            service.check("alice", &format!("x-request-id: {id}\r\n"));
        }
        let log = service.stop();
        let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let line =
            lines.into_iter().find(|line| line["to"] == "throttled").unwrap_or_else(|| panic!("{log}"));
        assert_eq!(line["request_id"], "second");
        assert_eq!(line["key"], expected);
        assert_eq!(line["rule"], "few");
    }
}

#[test]
fn log_settings_select_decisions_and_plain_keys() {
    let service = Logged::start("log: {format: json, keys: plain, decisions: all}");
    for _ in 0..3 {
        service.check("bob \\\" ünï", "");
    }
    let lines = decisions(&service.stop());
    let messages: Vec<&str> = lines.iter().map(|line| line["message"].as_str().unwrap()).collect();
    assert_eq!(messages, ["allowed", "allowed", "denied"]);
    assert_eq!(lines[0]["key"], "user:bob \" ünï");
    let service = Logged::start("log: {format: json, decisions: none}");
    for _ in 0..3 {
        service.check("bob", "");
    }
    assert_eq!(decisions(&service.stop()).len(), 0);
}

#[test]
fn attack_does_not_fill_the_disk() {
    let service = Logged::start("log: {format: json, lines_per_second: 3}");
    for _ in 0..200 {
        service.check("mallory", "");
    }
    let log = service.stop();
    let lines = decisions(&log);
    // They arrive within a few seconds, with three lines in each.
    assert!((3..100).contains(&lines.len()), "{}", lines.len());
    assert!(lines.len() <= 3 * seconds(&lines), "{log}");
}

/// Number of different seconds of the lines.
fn seconds(lines: &[Value]) -> usize {
    let mut seconds: Vec<&str> =
        lines.iter().map(|line| &line["timestamp"].as_str().unwrap()[..19]).collect();
    seconds.dedup();
    seconds.len()
}

/// Some characters outside ASCII control terminals too, or reverse the text direction.
#[test]
fn text_of_callers_is_escaped() {
    for format in ["json", "pretty"] {
        let service = Logged::start(&format!("log: {{format: {format}, keys: plain}}"));
        for _ in 0..3 {
            let body = r#"{"user_id": "eve\u202eve", "endpoint": "/q\u009b31mEVIL\u2028x"}"#;
            service.send("POST /v1/rate-limit/check", "", body);
        }
        let log = service.stop();
        assert!(log.contains("EVIL"), "{log}");
        let steers = |character: char| {
            (character.is_control() && character != '\n') || "\u{202e}\u{2028}".contains(character)
        };
        assert!(!log.contains(steers), "{}", log.escape_debug());
        if format == "json" {
            assert_eq!(decisions(&log)[0]["key"], "user:eve\u{202e}ve", "the parsed value is unchanged");
        }
    }
}

/// Errors of other servers can contain any text.
#[test]
fn other_servers_cannot_forge_log_lines() {
    for format in ["pretty", "json"] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // A Redis that responds to everything with an error full of control characters.
        let forger = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(b"-ERR \x1b[2J\x07FORGED \x1b[31m\x0b red\r\n".repeat(8).as_slice());
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest);
        });
        let mut process = pacegate()
            .args([
                "serve",
                "--http",
                "127.0.0.1:0",
                "--wait-for-store",
                "--store",
                &format!("redis://{address}"),
            ])
            .env("PACEGATE_LOG__FORMAT", format)
            .env("PACEGATE_LOG__LEVEL", "trace")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut errors = BufReader::new(process.stderr.take().unwrap());
        let mut line = Vec::new();
        while !line.windows(6).any(|part| part == b"FORGED") {
            line.clear();
            assert_ne!(errors.read_until(b'\n', &mut line).unwrap(), 0, "the error is not logged");
        }
        process.kill().unwrap();
        process.wait().unwrap();
        forger.join().unwrap();
        let control = |byte: &&u8| byte.is_ascii_control() && **byte != b'\n';
        assert_eq!(
            line.iter().filter(control).count(),
            0,
            "{}",
            String::from_utf8_lossy(&line).escape_debug()
        );
    }
}

#[test]
fn secrets_are_not_logged_at_any_level() {
    let service = Logged::start("log: {format: pretty, level: trace, decisions: all}");
    service.check("u1", "x-api-key: correct-horse\r\n");
    service.check("u1", "authorization: Bearer battery-staple\r\n");
    let created = service.send(
        "POST /api/v1/keys",
        "x-api-key: correct-horse\r\n",
        r#"{"role": "checker", "name": "c"}"#,
    );
    let (_, body) = created.split_once("\r\n\r\n").unwrap();
    let created: Value = serde_json::from_str(body).unwrap();
    let key = created["secret"].as_str().unwrap();
    service.check("u1", &format!("x-api-key: {key}\r\n"));
    let log = service.stop();
    for secret in ["correct-horse", "battery-staple", key] {
        assert!(!log.contains(secret), "{secret}");
    }
    assert!(log.lines().count() > 3, "{log}");
}
