//! What the database servers have in common.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::ports;
use super::process::{Process, wait_until};
use super::template::{Template, run};

const READY_WITHIN: Duration = Duration::from_secs(20);

/// How long processes may take to obey a signal, busy as their disk may be.
const OBEYED_WITHIN: Duration = Duration::from_secs(20);

/// What differs from one database to the other.
pub(super) struct Kind {
    pub(super) name: &'static str,
    /// What a server writes to its log when it listens.
    pub(super) listening: &'static str,
    /// The files a new server starts with.
    pub(super) template: fn() -> &'static Template,
    /// The server in this directory and on this port, not started yet.
    pub(super) server: fn(&Path, u16) -> Command,
    /// The client that runs this SQL as administrator.
    pub(super) client: fn(&Path, u16, &str) -> Command,
}

/// A database server that tests do things to, whichever it is.
pub trait DatabaseServer {
    /// See the method of that name of the server, as for all of these.
    fn url(&self) -> String;
    /// The port it listens on.
    fn port(&self) -> u16;
    /// Ends it at once.
    fn kill(&mut self);
    /// Starts it again with the same data.
    fn restart(&mut self);
    /// Makes it stand still.
    fn freeze(&self);
    /// Lets it go on.
    fn thaw(&self);
}

/// What both servers offer, written once: a tuple struct around a [`Database`], and the scheme of its URLs.
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

            /// The id of its main process, or of its last one when it was killed.
            pub fn pid(&self) -> u32 {
                self.0.pid()
            }

            /// Ends it at once, without any chance to save or say goodbye. Does nothing when it was killed already.
            pub fn kill(&mut self) {
                self.0.kill();
            }

            /// Starts it again on the same port, with the same data and the same arguments; kills it first if it
            /// runs. Returns when it answers.
            pub fn restart(&mut self) {
                self.0.restart();
            }

            /// Makes it stand still: its connections stay open, and nothing is answered until
            /// [`thaw`](Self::thaw).
            pub fn freeze(&self) {
                self.0.freeze();
            }

            /// Lets it go on after [`freeze`](Self::freeze).
            pub fn thaw(&self) {
                self.0.thaw();
            }

            /// Runs SQL in the database `pacegate` as administrator, and returns the rows without headers, their
            /// columns separated by tabs. Do not ask a frozen server: the answer comes when it is thawed.
            ///
            /// # Panics
            ///
            /// When the server cannot be reached, or refuses.
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
    // Before the directory, so that the process is gone when its files are removed.
    process: Process,
    directory: TempDir,
    port: u16,
    kind: &'static Kind,
    arguments: Vec<String>,
}

impl Database {
    /// Another process may take a port between the moment it is found free and the start of the server; then
    /// another port is tried.
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

    /// Ends the children first, while the server stands still and can neither replace nor reap them: their
    /// ids are nobody else's, and none is left behind when the server is gone.
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

    /// The server first, so that it starts no more children.
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

    /// Waits until it answers; `false` when it ended because the port was taken.
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

/// Signals all of them and waits until each is in one of these states or gone.
fn signal(processes: impl IntoIterator<Item = Pid>, signal: Signal, states: &str) {
    let processes: Vec<Pid> = processes.into_iter().collect();
    for &process in &processes {
        // Fails only when it has ended already.
        let _ = kill_process(process, signal);
    }
    let obeyed = wait_until(OBEYED_WITHIN, || {
        processes
            .iter()
            .all(|&process| state_and_parent(process).is_none_or(|(state, _)| states.contains(state)))
    });
    assert!(obeyed, "{processes:?} did not obey {signal:?}");
}

/// The children of a process; what `/proc` lists as such.
fn children(parent: u32) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").expect("a system with /proc").filter_map(Result::ok);
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).map(process_id);
    ids.filter(|&id| state_and_parent(id).is_some_and(|(_, of)| of == parent)).collect()
}

/// The state letter of a process and the id of its parent; `None` when there is no such process.
fn state_and_parent(process: Pid) -> Option<(char, u32)> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_pid())).ok()?;
    // The name before it is in parentheses, and may contain some too.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

fn process_id(number: u32) -> Pid {
    i32::try_from(number).ok().and_then(Pid::from_raw).expect("a process has a small positive id")
}
