//! One PgBouncer in front of a PostgreSQL server.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use super::ports;
use super::postgres::{POSTGRES, Postgres};
use super::process::{Process, READY_WITHIN, wait_until};

/// A `pgbouncer` process, killed when dropped. All settings except the address and the pool have
/// their defaults.
///
/// ```
/// use pacegate_testkit::server::{PgBouncer, Postgres};
///
/// let server = Postgres::start();
/// let bouncer = PgBouncer::start(&server, "transaction", 2);
/// assert_ne!(bouncer.url(), server.url());
/// ```
pub struct PgBouncer {
    // Before the directory, so that the process has ended when its files are removed.
    _process: Process,
    _directory: TempDir,
    port: u16,
}

impl PgBouncer {
    /// Starts it with `pool_mode` (`session`, `transaction` or `statement`) and at most
    /// `connections` to each database of `server`. Returns when it is listening.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start(server: &Postgres, pool_mode: &str, connections: u16) -> Self {
        Self::start_with(server, pool_mode, connections, "")
    }

    /// Like [`start`](Self::start), with additional configuration lines.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start_with(server: &Postgres, pool_mode: &str, connections: u16, settings: &str) -> Self {
        let mut attempts = 0;
        loop {
            let directory = TempDir::new().expect("a temporary directory");
            let port = ports::free();
            let mut process = spawn(directory.path(), server.port(), port, pool_mode, connections, settings);
            let settled = wait_until(READY_WITHIN, || {
                process.exit_status().is_some() || TcpStream::connect(("127.0.0.1", port)).is_ok()
            });
            if settled && process.exit_status().is_none() {
                return Self { _process: process, _directory: directory, port };
            }
            let log = process.log_tail();
            assert!(log.contains("Address already in use"), "pgbouncer on port {port}:\n{log}");
            attempts += 1;
            assert!(attempts < 20, "no free port found");
        }
    }

    /// The port it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `postgres://pacegate:secret@127.0.0.1:PORT/pacegate`, like [`Postgres::url`] but through the
    /// pool.
    pub fn url(&self) -> String {
        format!("postgres://pacegate:secret@127.0.0.1:{}/pacegate", self.port)
    }
}

fn spawn(directory: &Path, target: u16, port: u16, pool_mode: &str, connections: u16, more: &str) -> Process {
    let users = directory.join("users");
    let settings = format!(
        "[databases]\n* = host=127.0.0.1 port={target}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
         unix_socket_dir =\nauth_type = scram-sha-256\nauth_file = {}\npool_mode = {pool_mode}\n\
         default_pool_size = {connections}\n{more}\n",
        users.display()
    );
    let file = directory.join("pgbouncer.ini");
    fs::write(&users, "\"pacegate\" \"secret\"\n").expect("a file in a temporary directory");
    fs::write(&file, settings).expect("a file in a temporary directory");
    let usual = Path::new("/usr/sbin/pgbouncer");
    let mut command = Command::new(if usual.exists() { usual } else { Path::new("pgbouncer") });
    command.arg(file);
    // PgBouncer does not run as root.
    if let Some((user, group)) = *POSTGRES {
        chown(directory, Some(user), Some(group)).expect("root gives files to others");
        command.uid(user).gid(group);
    }
    Process::spawn(command, directory)
}
