//! One PostgreSQL server.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use rustix::process::geteuid;
use tempfile::TempDir;

use super::certificates::Certificates;
use super::database::{Database, Kind, database_server};
use super::template::{Template, run};

static KIND: Kind = Kind {
    name: "postgres",
    listening: "database system is ready to accept connections",
    template: || &TEMPLATE,
    server,
    client,
};

/// An initialized data directory: initializing one takes longer than a start.
static TEMPLATE: LazyLock<Template> = LazyLock::new(|| {
    let directory = TempDir::new().expect("a temporary directory");
    let path = directory.path();
    if let Some((user, group)) = *POSTGRES {
        chown(path, Some(user), Some(group)).expect("root gives files to others");
    }
    let mut initdb = as_postgres("initdb");
    initdb.args(["--username=postgres", "--auth-local=trust", "--auth-host=scram-sha-256"]);
    initdb.args(["--encoding=UTF8", "--locale=C", "--no-sync", "--pgdata"]).arg(path.join("data"));
    run(initdb.current_dir(path).stdin(Stdio::null()).stdout(Stdio::piped()));

    let sql = path.join("sql");
    fs::write(&sql, SETUP).expect("a file in a temporary directory");
    let mut setup = as_postgres("postgres");
    setup.args(["--single", "-j", "-F", "-D"]).arg(path.join("data")).arg("postgres");
    run(setup.current_dir(path).stdin(File::open(&sql).expect("written above")).stdout(Stdio::piped()));
    fs::remove_file(sql).expect("written above");
    Template::of(path)
});

/// Statements end with an empty line.
const SETUP: &str = "\
CREATE ROLE pacegate LOGIN PASSWORD 'secret';

CREATE DATABASE pacegate OWNER pacegate;

";

/// The user and group to run as instead of root, which PostgreSQL rejects; `None` when this is not
/// root.
pub(super) static POSTGRES: LazyLock<Option<(u32, u32)>> = LazyLock::new(|| {
    let id = |which| {
        let printed = run(Command::new("id").args([which, "postgres"]).stdout(Stdio::piped()));
        printed.parse().expect("id prints a number")
    };
    geteuid().is_root().then(|| (id("-u"), id("-g")))
});

/// The directory of the programs of the newest installed version.
static PROGRAMS: LazyLock<PathBuf> = LazyLock::new(|| {
    let versions = fs::read_dir("/usr/lib/postgresql").expect("PostgreSQL must be installed");
    let paths = versions.filter_map(|version| Some(version.ok()?.path()));
    let usable = paths.filter(|path| path.join("bin/postgres").exists());
    let newest = usable.max_by_key(|path| path.file_name()?.to_str()?.parse::<u32>().ok());
    newest.expect("PostgreSQL must be installed").join("bin")
});

/// A PostgreSQL server with all its processes, killed when dropped.
///
/// ```
/// let server = pacegate_testkit::server::Postgres::start();
/// assert_eq!(server.query("SELECT 1, 'one'"), "1\tone");
/// ```
pub struct Postgres(Database);

impl Postgres {
    /// Arguments of a server that waits for the disk, for measurements. Others do not: a killed
    /// server loses nothing without it, and a disk can be busy for longer than a test waits.
    pub const DURABLE: &[&str] = &["-c", "fsync=on"];

    /// Starts a server with an empty database `pacegate`, and returns when it responds.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with additional command-line arguments, such as `["-c",
    /// "max_connections=20"]`. They come last and override the others.
    pub fn start_with(arguments: &[&str]) -> Self {
        Self(Database::start(&KIND, arguments))
    }

    /// Starts a server that accepts only TLS, and with `client_certificate` only clients with a
    /// certificate.
    pub fn start_tls(client_certificate: bool) -> (Self, Certificates) {
        let certificates = Certificates::generate();
        let directory = certificates.authority.parent().expect("a file in a directory");
        let access = directory.join("pg_hba.conf");
        let demand = if client_certificate { "clientcert=verify-ca" } else { "" };
        fs::write(&access, format!("local all all trust\nhostssl all all all scram-sha-256 {demand}\n"))
            .expect("a file in a temporary directory");
        // PostgreSQL reads these files itself, and rejects a key that is readable by others.
        fs::set_permissions(&certificates.server_key, Permissions::from_mode(0o600)).expect("our own file");
        for path in [directory, &certificates.server_key] {
            if let Some((user, group)) = *POSTGRES {
                chown(path, Some(user), Some(group)).expect("root gives files to others");
            }
        }
        let setting = |name: &str, path: &Path| format!("{name}={}", path.display());
        let server = Self::start_with(&[
            "-c",
            "ssl=on",
            "-c",
            &setting("hba_file", &access),
            "-c",
            &setting("ssl_ca_file", &certificates.authority),
            "-c",
            &setting("ssl_cert_file", &certificates.server_certificate),
            "-c",
            &setting("ssl_key_file", &certificates.server_key),
        ]);
        (server, certificates)
    }
}

database_server!(Postgres, "postgres");

impl Drop for Postgres {
    /// A killed server leaves a shared memory segment that would persist until a reboot.
    fn drop(&mut self) {
        self.0.kill();
        let lock = fs::read_to_string(self.0.directory().join("data/postmaster.pid")).unwrap_or_default();
        // The seventh line has the key and the id of the segment.
        if let Some(id) = lock.lines().nth(6).and_then(|line| line.split_whitespace().nth(1)) {
            let _ = Command::new("ipcrm").args(["-m", id]).stderr(Stdio::null()).status();
        }
    }
}

fn server(directory: &Path, port: u16) -> Command {
    let mut command = as_postgres("postgres");
    command.arg("-D").arg(directory.join("data")).args(["-p", &port.to_string()]);
    let sockets = format!("unix_socket_directories={}", directory.display());
    let settings = ["listen_addresses=127.0.0.1", &sockets, "shared_buffers=32MB", "max_connections=100"];
    // The last setting keeps shared memory in the data directory, where it does not outlive a
    // killed server.
    for setting in settings.into_iter().chain(["fsync=off", "dynamic_shared_memory_type=mmap"]) {
        command.args(["-c", setting]);
    }
    command
}

fn client(directory: &Path, port: u16, sql: &str) -> Command {
    let mut command = Command::new(PROGRAMS.join("psql"));
    command.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--field-separator=\t"]);
    command.args(["--username=postgres", "--dbname=pacegate", "--set=ON_ERROR_STOP=1"]);
    command.arg("--host").arg(directory).args(["--port", &port.to_string(), "--command", sql]);
    command
}

/// A PostgreSQL program, run as a user that it accepts.
fn as_postgres(program: &str) -> Command {
    let mut command = Command::new(PROGRAMS.join(program));
    if let Some((user, group)) = *POSTGRES {
        command.uid(user).gid(group);
    }
    command
}
