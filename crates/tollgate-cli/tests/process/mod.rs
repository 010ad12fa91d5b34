//! The `tollgate` command as a process, for all tests of it.

#![allow(dead_code, missing_docs, unreachable_pub, reason = "each test file uses a part of it")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

pub fn tollgate() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TOLLGATE_")) {
        command.env_remove(name);
    }
    command
}

pub fn run(arguments: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = tollgate().args(arguments).output().unwrap();
    (status.code().unwrap(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

/// A running service, stopped when the test ends.
pub struct Service {
    pub process: Child,
    pub output: BufReader<ChildStdout>,
    pub url: String,
}

impl Service {
    pub fn start(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut process = tollgate()
            .args(["serve", "--http", "127.0.0.1:0"])
            .args(arguments)
            .envs(environment.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let url = line.trim().rsplit(' ').next().unwrap().to_owned();
        assert!(url.starts_with("http://127.0.0.1:"), "{line}");
        Self { process, output, url }
    }

    pub fn terminate(&self) {
        let id = self.process.id().to_string();
        let command = format!("kill -TERM {id}");
        assert!(Command::new("sh").args(["-c", &command]).status().unwrap().success());
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

pub fn file(directory: &Path, text: &str) -> String {
    let path = directory.join("tollgate.yaml");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}
