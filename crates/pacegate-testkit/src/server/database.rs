//! Shared parts of the database servers.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::ports;
use super::process::{Process, READY_WITHIN, wait_until};
use super::template::{Template, run};

/// Time within which processes must react to a signal, even with a busy disk.
const SIGNALLED_WITHIN: Duration = Duration::from_secs(60);

/// The differences between the databases.
pub(super) struct Kind {
    pub(super) name: &'static str,
    /// The log line of a server that is listening.
    pub(super) listening: &'static str,
    /// The files a new server starts with.
    pub(super) template: fn() -> &'static Template,
    /// The command of the server in this directory and on this port.
    pub(super) server: fn(&Path, u16) -> Command,
    /// The command of a client that runs this SQL as administrator.
    pub(super) client: fn(&Path, u16, &str) -> Command,
}

/// The operations that both database servers offer.
pub trait DatabaseServer {
    /// The URL of the database; see the server's method of the same name.
    fn url(&self) -> String;
    /// The port it listens on.
    fn port(&self) -> u16;
    /// Kills it.
    fn kill(&mut self);
    /// Restarts it with the same data.
    fn restart(&mut self);
    /// Stops its processes with a signal.
    fn freeze(&self);
    /// Resumes its processes.
    fn thaw(&self);
}

/// Implements the methods that both servers offer, for a tuple struct around a [`Database`] and the
/// scheme of its URLs.
macro_rules! database_server {
    ($server:ident, $scheme:literal) => {
        impl $server {
            /// The port it listens on.
            pub fn port(&self) -> u16 {
                self.0.port()
            }

            #[doc = concat!("`", $scheme, "://pacegate:secret@127.0.0.1:PORT/pacegate`; the user owns the database.")]
            pub fn url(&self) -> String {
                format!("{}://pacegate:secret@127.0.0.1:{}/pacegate", $scheme, self.port())
            }

            /// The id of its main process, also after it was killed.
            pub fn pid(&self) -> u32 {
                self.0.pid()
            }

            /// Kills it without a chance to save. Does nothing if it was already killed.
            pub fn kill(&mut self) {
                self.0.kill();
            }

            /// Restarts it on the same port, with the same data and arguments; kills it first if it
            /// is running. Returns when it responds.
            pub fn restart(&mut self) {
                self.0.restart();
            }

            /// Stops its processes with a signal: connections stay open, and nothing is answered
            /// until [`thaw`](Self::thaw).
            pub fn freeze(&self) {
                self.0.freeze();
            }

            /// Resumes it after [`freeze`](Self::freeze).
            pub fn thaw(&self) {
                self.0.thaw();
            }

            /// Runs SQL in the database `pacegate` as administrator, and returns the rows without
            /// headers, with columns separated by tabs.
            ///
            /// Do not call it on a frozen server: it blocks until the server is thawed.
            ///
            /// # Panics
            /// When the server cannot be reached, or returns an error.
            pub fn query(&self, sql: &str) -> String {
                self.0.query(sql)
            }
        }

        impl super::database::DatabaseServer for $server {
            fn url(&self) -> String {
                self.url()
            }

            fn port(&self) -> u16 {
                self.port()
            }

            fn kill(&mut self) {
                self.kill();
            }

            fn restart(&mut self) {
                self.restart();
            }

            fn freeze(&self) {
                self.freeze();
            }

            fn thaw(&self) {
                self.thaw();
            }
        }
    };
}
pub(super) use database_server;

/// A database server, killed with all its processes when dropped.
pub(super) struct Database {
    // Before the directory, so that the process has ended when its files are removed.
    process: Process,
    directory: TempDir,
    port: u16,
    kind: &'static Kind,
    arguments: Vec<String>,
}

impl Database {
    /// Another process may take the port between the check that it is free and the start of the
    /// server; then another port is tried.
    pub(super) fn start(kind: &'static Kind, arguments: &[&str]) -> Self {
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        let directory = TempDir::new().expect("a temporary directory");
        (kind.template)().unpack(directory.path());
        let port = ports::free();
        let process = spawn(kind, directory.path(), port, &arguments);
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

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Kills the children first, while the server is stopped and can neither replace nor reap them:
    /// their ids cannot be reused, and none is left behind.
    pub(super) fn kill(&mut self) {
        if self.process.is_running() {
            let server = process_id(self.pid());
            signal([server], Signal::STOP, "TZ");
            signal(children(self.pid()), Signal::KILL, "Z");
        }
        self.process.kill();
    }

    pub(super) fn restart(&mut self) {
        self.kill();
        self.process = self.spawn();
        assert!(self.becomes_ready(), "port {} was taken while its server was down", self.port);
    }

    /// Stops the server first, so that it starts no more children.
    pub(super) fn freeze(&self) {
        self.process.freeze();
        signal(children(self.pid()), Signal::STOP, "TZ");
    }

    pub(super) fn thaw(&self) {
        signal(children(self.pid()), Signal::CONT, "RSDZ");
        self.process.thaw();
    }

    pub(super) fn query(&self, sql: &str) -> String {
        run(&mut self.client(sql))
    }

    fn client(&self, sql: &str) -> Command {
        let mut client = (self.kind.client)(self.directory.path(), self.port, sql);
        client.stdin(Stdio::null()).stdout(Stdio::piped());
        client
    }

    fn spawn(&self) -> Process {
        spawn(self.kind, self.directory.path(), self.port, &self.arguments)
    }

    /// Waits until it responds; `false` if it ended because the port was taken.
    fn becomes_ready(&mut self) -> bool {
        let settled = wait_until(READY_WITHIN, || self.process.exit_status().is_some() || self.answers());
        let exit = self.process.exit_status();
        let log = self.process.log();
        if exit.is_some() && log.contains("Address already in use") {
            return false;
        }
        let (name, tail) = (self.kind.name, self.process.log_tail());
        assert!(settled && exit.is_none(), "{name} on port {}: {exit:?}\n{tail}", self.port);
        true
    }

    fn answers(&self) -> bool {
        self.process.log().contains(self.kind.listening)
            && self.client("SELECT 1").output().is_ok_and(|output| output.status.success())
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(kind: &Kind, directory: &Path, port: u16, arguments: &[String]) -> Process {
    let mut command = (kind.server)(directory, port);
    command.args(arguments);
    Process::spawn(command, directory)
}

/// Signals all of them and waits until each is in one of these states or has ended.
fn signal(processes: impl IntoIterator<Item = Pid>, signal: Signal, states: &str) {
    let processes: Vec<Pid> = processes.into_iter().collect();
    for &process in &processes {
        // Fails only when it has already ended.
        let _ = kill_process(process, signal);
    }
    let reacted = wait_until(SIGNALLED_WITHIN, || {
        processes
            .iter()
            .all(|&process| state_and_parent(process).is_none_or(|(state, _)| states.contains(state)))
    });
    assert!(reacted, "{processes:?} did not react to {signal:?}");
}

/// The children of a process, from `/proc`.
fn children(parent: u32) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").expect("a system with /proc").filter_map(Result::ok);
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).map(process_id);
    ids.filter(|&id| state_and_parent(id).is_some_and(|(_, of)| of == parent)).collect()
}

/// The state letter of a process and the id of its parent; `None` if the process does not exist.
fn state_and_parent(process: Pid) -> Option<(char, u32)> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_pid())).ok()?;
    // The process name before it is in parentheses, and may contain parentheses itself.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

fn process_id(number: u32) -> Pid {
    i32::try_from(number).ok().and_then(Pid::from_raw).expect("a process has a small positive id")
}
