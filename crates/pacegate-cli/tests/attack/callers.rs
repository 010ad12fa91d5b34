//! Helpers of the attacks: the memory of the service, and a caller that must not be affected.

#![allow(dead_code, unreachable_pub, reason = "each attack uses only a part")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::process::Service;

/// Held by an attack while it runs, so that measurements do not affect each other.
pub fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lowers the priority of this thread, as if it ran on another machine.
pub(crate) fn yield_to_service() {
    rustix::process::setpriority_process(None, 19).unwrap();
}

/// Resident memory of the process, in bytes.
pub(crate) fn resident_bytes(service: &Service) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", service.process.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// The quantile of the durations.
pub(crate) fn quantile(durations: &mut [Duration], share: f64) -> Duration {
    durations.sort_unstable();
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a few thousand"
    )]
    let index = ((durations.len() as f64 - 1.0) * share).round() as usize;
    durations[index]
}

/// The result of a call, and the time it takes.
#[allow(clippy::disallowed_methods, reason = "measures the service from outside")]
pub(crate) fn timed<T>(call: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let result = call();
    (result, start.elapsed())
}

/// A caller with one connection.
pub struct Caller(BufReader<TcpStream>);

impl Caller {
    pub fn connect(service: &Service) -> Self {
        let stream = TcpStream::connect(service.url.trim_start_matches("http://")).unwrap();
        stream.set_nodelay(true).unwrap();
        Self(BufReader::new(stream))
    }

    /// Sends a request and returns the status of the response.
    pub fn post(&mut self, path: &str, body: &str) -> u16 {
        self.ask(path, body).0
    }

    /// Sends a request and returns the status and the body of the response.
    pub fn ask(&mut self, path: &str, body: &str) -> (u16, String) {
        let head = "host: x\r\ncontent-type: application/json\r\ncontent-length:";
        let request = format!("POST {path} HTTP/1.1\r\n{head} {}\r\n\r\n{body}", body.len());
        self.0.get_mut().write_all(request.as_bytes()).unwrap();
        let (mut status, mut length) = (0, 0);
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).unwrap();
            let line = line.trim_end().to_ascii_lowercase();
            if let Some(rest) = line.strip_prefix("http/1.1 ") {
                status = rest[..3].parse().unwrap();
            } else if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.parse().unwrap();
            } else if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).unwrap();
        (status, String::from_utf8(body).unwrap())
    }
}
