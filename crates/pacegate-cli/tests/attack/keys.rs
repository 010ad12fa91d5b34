//! A caller guesses API keys from the same address as valid callers.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use pacegate_testkit::effort;
use tempfile::TempDir;

use crate::callers::{alone, timed};
use crate::process::{Service, file, pacegate};

/// A weak admin key.
const SHORT: &str = "changeme1";
const GUESSERS: usize = 4;

/// A service that logs to a file.
fn start(directory: &TempDir, admin_key: &str) -> Service {
    let config = file(directory.path(), "server: {require_key: true}\n");
    let log = File::create(directory.path().join("log")).unwrap();
    Service::from_command(
        pacegate()
            .args(["serve", "--http", "127.0.0.1:0", "--config", &config])
            .env("PACEGATE_ADMIN_KEY", admin_key)
            .stderr(log),
    )
}

/// A client with one connection.
struct Client(BufReader<TcpStream>);

impl Client {
    fn new(service: &Service) -> Self {
        let stream = TcpStream::connect(service.url.trim_start_matches("http://")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        Self(BufReader::new(stream))
    }

    /// Sends a request and returns the status and the body of the response.
    fn ask(&mut self, method: &str, path: &str, key: &str, body: &str) -> (u16, String) {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\nx-api-key: {key}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        self.0.get_mut().write_all(format!("{head}{body}").as_bytes()).unwrap();
        let (mut line, mut status, mut length) = (String::new(), 0, 0);
        while line != "\r\n" {
            line.clear();
            self.0.read_line(&mut line).unwrap();
            if line.starts_with("HTTP/") {
                status = line.split(' ').nth(1).unwrap().parse().unwrap();
            } else if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        std::io::Read::read_exact(&mut self.0, &mut body).unwrap();
        (status, String::from_utf8(body).unwrap())
    }

    fn created_key(&mut self, admin_key: &str, role: &str) -> String {
        let (status, body) = self.ask("POST", "/api/v1/keys", admin_key, &format!("{{\"role\":\"{role}\"}}"));
        assert_eq!(status, 201, "{body}");
        serde_json::from_str::<serde_json::Value>(&body).unwrap()["secret"].as_str().unwrap().to_owned()
    }
}

#[test]
fn guessing_keys_is_bounded_and_does_not_lock_out_valid_keys() {
    let _alone = alone();
    let directory = TempDir::new().unwrap();
    let service = start(&directory, SHORT);
    let mut admin = Client::new(&service);
    let mut checkers: Vec<String> = (0..10).map(|_| admin.created_key(SHORT, "checker")).collect();
    let check = r#"{"user_id":"u","endpoint":"/","limit":1000000,"window_seconds":60}"#;
    let (done, tried, guessed) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let (mut served, mut rejected) = (0, Vec::new());
    let ((), took) = timed(|| {
        thread::scope(|scope| {
            for guesser in 0..GUESSERS {
                let (service, done, tried, guessed) = (&service, &done, &tried, &guessed);
                scope.spawn(move || {
                    let mut client = Client::new(service);
                    for guess in 0_u64.. {
                        if done.load(Ordering::Relaxed) {
                            break;
                        }
                        // Some guesses have the format of keys, some are words, and one of those is
                        // right.
                        let key = match guess % 3 {
                            0 => format!("pgk_{guesser:016x}_{guess:064x}"),
                            1 => format!("changeme-{guess}"),
                            _ => SHORT.to_owned(),
                        };
                        // Guesses before the lock-out are not bounded by it.
                        let key = if guess < 20 { format!("guess-{guesser}-{guess}") } else { key };
                        let (status, _) = client.ask("GET", "/api/v1/rules", &key, "");
                        tried.fetch_add(1, Ordering::Relaxed);
                        guessed.fetch_add(u64::from(status != 429), Ordering::Relaxed);
                    }
                });
            }
            // The lock-out begins before a valid key is used for the first time.
            while tried.load(Ordering::Relaxed) < 200 {
                thread::sleep(Duration::from_millis(10));
            }
            let mut client = Client::new(&service);
            let rounds = effort(10, 100);
            for round in 0..rounds {
                for key in &checkers {
                    let (status, body) = client.ask("POST", "/v1/rate-limit/check", key, check);
                    served += u64::from(status == 200);
                    if status != 200 {
                        rejected.push(format!("round {round}: {status} {body}"));
                    }
                }
            }
            done.store(true, Ordering::Relaxed);
        });
    });
    let (tried, guessed) = (tried.into_inner(), guessed.into_inner());
    assert!(rejected.is_empty(), "{} of {} were rejected: {:?}", rejected.len(), served, rejected.first());
    // 20 in any minute, and requests that are concurrent with the last one.
    let minutes = took.as_secs() / 60 + 1;
    let allowed = minutes * 20 + GUESSERS as u64;
    assert!(
        guessed <= allowed,
        "{guessed} of {tried} guesses were tried against the catalog, expected at most {allowed}"
    );
    let log = std::fs::read_to_string(directory.path().join("log")).unwrap();
    let lines = log.lines().filter(|line| line.contains("API key rejected")).count() as u64;
    assert!((1..=took.as_secs() + 2).contains(&lines), "{lines} lines in {took:?}");
    checkers.push(SHORT.to_owned());
    assert!(checkers.iter().all(|key| !log.contains(key.as_str())), "the log contains no key");
    let (_, metrics) = Client::new(&service).ask("GET", "/metrics", &checkers[0], "");
    let locked =
        metrics.lines().find(|line| line.starts_with("pacegate_refused_keys_total{reason=\"locked_out\"}"));
    let locked: u64 = locked.unwrap().rsplit(' ').next().unwrap().parse().unwrap();
    assert_eq!(locked, tried - guessed);
    println!(
        "PASS attack_keys guesses={tried} tried={guessed} valid_served={served} valid_rejected=0 log_lines={lines} seconds={}",
        took.as_secs()
    );
}
