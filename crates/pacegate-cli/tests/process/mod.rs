//! The `pacegate` command as a process.

#![allow(dead_code, missing_docs, unreachable_pub, reason = "each test file uses only a part")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

pub fn pacegate() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pacegate"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("PACEGATE_")) {
        command.env_remove(name);
    }
    // Each service has its own catalog in memory.
    command.env("PACEGATE_CATALOG__URL", "sqlite::memory:");
    // Any free port, and no delay at shutdown.
    command.env("PACEGATE_SERVER__GRPC", "127.0.0.1:0");
    command.env("PACEGATE_SERVER__DRAIN_DELAY", "0s");
    // Tests send more requests than the default limits allow.
    command.env("PACEGATE_MANAGEMENT__READS_PER_MINUTE", "1000000");
    command.env("PACEGATE_MANAGEMENT__WRITES_PER_MINUTE", "1000000");
    command
}

pub fn run(arguments: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = pacegate().args(arguments).output().unwrap();
    (status.code().unwrap(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

/// Starts a command. Returns the process, its output, and the first line of that.
pub fn started(command: &mut Command) -> (Child, BufReader<ChildStdout>, String) {
    let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(process.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    (process, output, line)
}

/// The address of one API in the line that `pacegate serve` prints first.
pub fn address(line: &str, api: &str) -> String {
    let (start, _) = line.split_once(&format!(" ({api})")).unwrap();
    start.rsplit(' ').next().unwrap().to_owned()
}

/// A running service, killed when the test ends.
pub struct Service {
    pub process: Child,
    pub output: BufReader<ChildStdout>,
    pub url: String,
    /// The gRPC address.
    pub grpc: String,
}

impl Service {
    /// Starts on any free port.
    pub fn start(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        Self::start_at(&[&["--http", "127.0.0.1:0"], arguments].concat(), environment)
    }

    /// Starts with exactly these arguments.
    pub fn start_at(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut command = pacegate();
        command.arg("serve").args(arguments).envs(environment.iter().copied()).stderr(Stdio::null());
        Self::from_command(&mut command)
    }

    /// Runs `command`, which is `pacegate serve` with its arguments.
    pub fn from_command(command: &mut Command) -> Self {
        let (process, output, line) = started(command);
        let [url, grpc] = [address(&line, "REST"), address(&line, "gRPC")];
        assert!(url.starts_with("http://127.0.0.1:"), "{line}");
        Self { process, output, url, grpc }
    }

    pub fn terminate(&self) {
        signal(&self.process, "TERM");
    }

    /// Sends a request with the admin key `secret`. An incomplete response is an error.
    pub fn ask(&self, method: &str, path: &str, body: &str) -> std::io::Result<(u16, serde_json::Value)> {
        ask(&self.url, method, path, body)
    }

    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    pub fn post(&self, path: &str, key: &str, body: &str) -> String {
        let address = self.url.trim_start_matches("http://");
        let mut stream = TcpStream::connect(address).unwrap();
        let length = body.len();
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\nx-api-key: {key}\r\ncontent-length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        response
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Sends a signal to a process of this test.
pub fn signal(process: &Child, name: &str) {
    let command = format!("kill -{name} {}", process.id());
    assert!(Command::new("sh").args(["-c", &command]).status().unwrap().success());
}

/// Sends a request to `url` with the admin key `secret`. An incomplete response is an error.
pub fn ask(url: &str, method: &str, path: &str, body: &str) -> std::io::Result<(u16, serde_json::Value)> {
    let mut stream = TcpStream::connect(url.trim_start_matches("http://"))?;
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\nx-api-key: secret\r\ncontent-length: {length}\r\n\r\n{body}"
    )?;
    let mut response = String::new();
    stream.read_to_string(&mut response)?;
    let incomplete = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
    let (head, body) = response.split_once("\r\n\r\n").ok_or_else(incomplete)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(incomplete)?;
    if body.is_empty() {
        return Ok((status, serde_json::Value::Null));
    }
    Ok((status, serde_json::from_str(body).map_err(|_| incomplete())?))
}

pub fn file(directory: &Path, text: &str) -> String {
    let path = directory.join("pacegate.yaml");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}
