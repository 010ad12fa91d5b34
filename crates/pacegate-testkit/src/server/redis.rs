//! One Redis server.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use super::certificates::Certificates;
use super::ports;
use super::process::{Process, READY_WITHIN, wait_until};

/// A `redis-server` process, killed when dropped.
///
/// ```
/// let server = pacegate_testkit::server::RedisServer::start();
/// assert_eq!(server.command(&["SET", "key", "value"]), "OK");
/// ```
pub struct RedisServer {
    // Before the directory, so that the process has ended when its files are removed.
    process: Process,
    directory: TempDir,
    port: u16,
    kind: Kind,
    arguments: Vec<String>,
}

/// The role of a `redis-server` process.
enum Kind {
    Data,
    Tls(Certificates),
    /// Monitors data servers, as in its configuration file.
    Sentinel(PathBuf),
}

impl RedisServer {
    /// Starts a server that keeps everything in memory, and returns when it responds.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with additional command-line arguments, such as `["--requirepass",
    /// "secret"]`. They come last and override the others.
    pub fn start_with(arguments: &[&str]) -> Self {
        Self::launch(new_directory(), Kind::Data, arguments)
    }

    /// Starts a server that accepts only TLS and only clients with a certificate.
    pub fn start_tls() -> (Self, Certificates) {
        let certificates = Certificates::generate();
        (Self::launch(new_directory(), Kind::Tls(certificates.clone()), &[]), certificates)
    }

    /// Starts a sentinel with these configuration lines.
    pub(super) fn start_sentinel(configuration: &str) -> Self {
        let directory = new_directory();
        let path = directory.path().join("sentinel.conf");
        fs::write(&path, configuration).expect("a file in a temporary directory");
        Self::launch(directory, Kind::Sentinel(path), &[])
    }

    /// Another process may take the port between the check that it is free and the start of the
    /// server; then another port is tried.
    fn launch(directory: TempDir, kind: Kind, arguments: &[&str]) -> Self {
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        let port = ports::free();
        let process = spawn(&kind, directory.path(), port, &arguments);
        let mut server = Self { process, directory, port, kind, arguments };
        let mut attempts = 1;
        while !server.becomes_ready() {
            attempts += 1;
            assert!(attempts <= 20, "every port is taken:\n{}", server.process.log_tail());
            server.port = ports::free();
            server.process = server.spawn();
        }
        server
    }

    /// The port it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The address that it listens on, as `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// `redis://127.0.0.1:PORT`, or `rediss://localhost:PORT` with TLS.
    pub fn url(&self) -> String {
        match self.kind {
            Kind::Data | Kind::Sentinel(_) => format!("redis://{}", self.address()),
            Kind::Tls(_) => format!("rediss://localhost:{}", self.port),
        }
    }

    /// The id of its process, also after it was killed.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Kills it without a chance to save. Does nothing if it was already killed.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Restarts it on the same port, in the same directory and with the same arguments; kills it
    /// first if it is running. Returns when it responds.
    pub fn restart(&mut self) {
        self.kill();
        self.process = self.spawn();
        assert!(self.becomes_ready(), "port {} was taken while its server was down", self.port);
    }

    /// Stops its process with a signal: connections stay open, and nothing is answered until
    /// [`thaw`](Self::thaw).
    pub fn freeze(&self) {
        self.process.freeze();
    }

    /// Resumes it after [`freeze`](Self::freeze).
    pub fn thaw(&self) {
        self.process.thaw();
    }

    /// Runs `redis-cli` on it and returns what it prints, including an error reply.
    ///
    /// Do not call it on a frozen server: it blocks until the server is thawed.
    ///
    /// # Panics
    /// When the server cannot be reached.
    pub fn command(&self, arguments: &[&str]) -> String {
        let output = self.redis_cli(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "redis-cli -p {} {arguments:?}: {errors}", self.port);
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Whether it can respond: neither killed nor frozen.
    pub(super) fn is_responsive(&self) -> bool {
        self.process.is_responsive()
    }

    /// Whether it is a replica in sync with its primary.
    pub(super) fn is_synchronized(&self) -> bool {
        self.command(&["INFO", "replication"]).contains("master_link_status:up")
    }

    fn spawn(&self) -> Process {
        spawn(&self.kind, self.directory.path(), self.port, &self.arguments)
    }

    fn redis_cli(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new("redis-cli");
        command.args(["-h", "127.0.0.1", "-p", &self.port.to_string()]);
        if let Kind::Tls(certificates) = &self.kind {
            command.arg("--tls").arg("--cacert").arg(&certificates.authority);
            command.arg("--cert").arg(&certificates.client_certificate);
            command.arg("--key").arg(&certificates.client_key);
        }
        command.args(arguments).stdin(Stdio::null());
        command.output().expect("redis-cli must be installed")
    }

    /// Waits until it responds; `false` if it ended because the port was taken.
    fn becomes_ready(&mut self) -> bool {
        let settled = wait_until(READY_WITHIN, || self.process.exit_status().is_some() || self.answers());
        let exit = self.process.exit_status();
        if exit.is_some() && self.process.log().contains("already in use") {
            return false;
        }
        let log = self.process.log_tail();
        assert!(settled && exit.is_none(), "redis-server on port {}: {exit:?}\n{log}", self.port);
        true
    }

    /// Whether it is listening and responds. The log is checked too, because another server may
    /// have taken the port and respond there.
    fn answers(&self) -> bool {
        let listening = match self.kind {
            Kind::Data | Kind::Tls(_) => "Ready to accept connections",
            Kind::Sentinel(_) => "Sentinel ID is",
        };
        self.process.log().contains(listening) && {
            let answer = self.redis_cli(&["PING"]).stdout;
            answer.starts_with(b"PONG") || answer.starts_with(b"NOAUTH")
        }
    }
}

fn new_directory() -> TempDir {
    TempDir::new().expect("a temporary directory")
}

fn spawn(kind: &Kind, directory: &Path, port: u16, arguments: &[String]) -> Process {
    let mut all = Vec::new();
    let mut add = |more: &[&str]| all.extend(more.iter().map(ToString::to_string));
    let port = port.to_string();
    match kind {
        Kind::Data => add(&["--port", &port]),
        Kind::Tls(certificates) => {
            add(&["--port", "0", "--tls-port", &port, "--tls-auth-clients", "yes"]);
            add(&["--tls-ca-cert-file", text(&certificates.authority)]);
            add(&["--tls-cert-file", text(&certificates.server_certificate)]);
            add(&["--tls-key-file", text(&certificates.server_key)]);
        }
        Kind::Sentinel(configuration) => add(&[text(configuration), "--sentinel", "--port", &port]),
    }
    add(&["--bind", "127.0.0.1", "--dir", text(directory)]);
    if !matches!(kind, Kind::Sentinel(_)) {
        // Without the last option a replica waits five seconds for others before the
        // synchronization starts.
        add(&["--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0"]);
    }
    all.extend_from_slice(arguments);
    Process::start("redis-server", &all, directory)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("the path of a temporary directory is UTF-8")
}
