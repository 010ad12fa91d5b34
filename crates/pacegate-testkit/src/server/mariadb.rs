//! One MariaDB server.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use rustix::process::geteuid;
use tempfile::TempDir;

use super::certificates::Certificates;
use super::database::{Database, Kind, database_server};
use super::template::{Template, run};

static KIND: Kind =
    Kind { name: "mariadbd", listening: "ready for connections", template: || &TEMPLATE, server, client };

/// An initialized data directory: initializing one takes longer than a start.
static TEMPLATE: LazyLock<Template> = LazyLock::new(|| {
    let directory = TempDir::new().expect("a temporary directory");
    let path = directory.path();
    let mut install = Command::new("mariadb-install-db");
    install.args(["--no-defaults", "--skip-test-db", "--skip-name-resolve"]);
    install.arg("--auth-root-authentication-method=normal").args(as_root());
    run(install.arg(option("--datadir", &path.join("data"))).stdin(Stdio::null()).stdout(Stdio::piped()));

    let sql = path.join("sql");
    fs::write(&sql, SETUP).expect("a file in a temporary directory");
    let mut setup = mariadbd(path);
    run(setup.arg("--bootstrap").stdin(File::open(&sql).expect("written above")));
    fs::remove_file(sql).expect("written above");
    Template::of(path)
});

/// One statement per line. Anonymous users would take precedence over `pacegate` for local
/// connections.
const SETUP: &str = "\
FLUSH PRIVILEGES;
DELETE FROM mysql.global_priv WHERE User = '';
FLUSH PRIVILEGES;
CREATE DATABASE pacegate;
CREATE USER pacegate@'%' IDENTIFIED VIA mysql_native_password USING PASSWORD('secret');
GRANT ALL ON pacegate.* TO pacegate@'%';
";

/// A `mariadbd` process, killed when dropped. It reads no configuration file of the machine.
///
/// ```
/// let server = pacegate_testkit::server::MariaDb::start();
/// assert_eq!(server.query("SELECT 1, 'one'"), "1\tone");
/// ```
pub struct MariaDb(Database);

impl MariaDb {
    /// Arguments of a server that waits for the disk, for measurements. See
    /// [`Postgres::DURABLE`](super::Postgres::DURABLE).
    pub const DURABLE: &[&str] = &["--innodb-flush-log-at-trx-commit=1"];

    /// Starts a server with an empty database `pacegate`, and returns when it responds.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with additional command-line arguments, such as `["--max-connections=20"]`.
    /// They come last and override the others.
    pub fn start_with(arguments: &[&str]) -> Self {
        Self(Database::start(&KIND, arguments))
    }

    /// Starts a server that accepts only TLS, and with `client_certificate` only clients with a
    /// certificate.
    pub fn start_tls(client_certificate: bool) -> (Self, Certificates) {
        let certificates = Certificates::generate();
        let server = Self::start_with(&[
            "--require-secure-transport=ON",
            &option("--ssl-ca", &certificates.authority),
            &option("--ssl-cert", &certificates.server_certificate),
            &option("--ssl-key", &certificates.server_key),
        ]);
        if client_certificate {
            server.query("ALTER USER pacegate@'%' REQUIRE X509");
        }
        (server, certificates)
    }
}

database_server!(MariaDb, "mysql");

fn server(directory: &Path, port: u16) -> Command {
    let mut command = mariadbd(directory);
    command.args(["--bind-address=127.0.0.1", "--skip-name-resolve", &format!("--port={port}")]);
    command.args(["--innodb-buffer-pool-size=64M", "--innodb-flush-log-at-trx-commit=2"]);
    command.arg(option("--socket", &directory.join("socket")));
    command.arg(option("--pid-file", &directory.join("pid")));
    command
}

fn client(directory: &Path, _port: u16, sql: &str) -> Command {
    let mut command = Command::new("mariadb");
    command.args(["--no-defaults", "--user=root", "--batch", "--skip-column-names"]);
    command.arg(option("--socket", &directory.join("socket")));
    command.args(["--execute", sql, "pacegate"]);
    command
}

/// The server with its files in this directory. It is found even if `/usr/sbin` is not on the
/// `PATH`.
fn mariadbd(directory: &Path) -> Command {
    let usual = Path::new("/usr/sbin/mariadbd");
    let mut command = Command::new(if usual.exists() { usual } else { Path::new("mariadbd") });
    command.arg("--no-defaults").args(as_root());
    command.arg(option("--datadir", &directory.join("data"))).arg(option("--tmpdir", directory));
    command
}

/// MariaDB runs as root only with this option.
fn as_root() -> Option<&'static str> {
    geteuid().is_root().then_some("--user=root")
}

fn option(name: &str, path: &Path) -> String {
    format!("{name}={}", path.display())
}
