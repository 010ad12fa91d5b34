//! External stores: starting with and without them, and several services that share one.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a test fails by panicking, reports by printing, and waits for a process"
)]

mod process;
mod scrape;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pacegate_testkit::effort;
use pacegate_testkit::server::{MariaDb, Postgres, RedisCluster, RedisServer};
use process::{Service, file, pacegate, run, started};

/// Runs `serve`, which must exit with code 1 and print nothing to stdout. Returns its stderr.
fn not_started(arguments: &[&str]) -> String {
    let mut command = pacegate();
    command.args(["serve", "--http", "127.0.0.1:0"]).args(arguments).stderr(Stdio::piped());
    let (mut process, _, line) = started(&mut command);
    if !line.is_empty() {
        // Otherwise it would keep running after the test.
        process.kill().unwrap();
        process.wait().unwrap();
        panic!("it started: {line}");
    }
    let ended = process.wait_with_output().unwrap();
    let errors = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(1), "{errors}");
    errors
}

/// Expects exit code 1, one line on stderr, and nothing on stdout.
fn assert_rejected(arguments: &[&str], reason: &str) {
    let errors = not_started(arguments);
    assert_eq!(errors.trim().lines().count(), 1, "{errors}");
    assert!(errors.contains(reason), "{errors}");
}

#[test]
fn error_about_the_store_is_one_line() {
    assert_rejected(&["--store", "carrier-pigeon:"], "must be memory: or start with redis://");
    assert_rejected(&["--store", "redis://"], "is not a valid host");
    assert_rejected(&["--store", "redis+sentinel://127.0.0.1:1"], "requires a service name");
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert_rejected(&["--store", &format!("redis://{closed}")], "Connection refused");
    assert_rejected(&["--store", &format!("redis+cluster://{closed}")], "Connection refused");
    assert_rejected(&["--store", &format!("redis+sentinel://{closed}/main")], "Connection refused");
    let server = RedisServer::start_with(&["--requirepass", "right"]);
    let with_password = format!("redis://:hunter2@{}", server.address());
    assert_rejected(&["--store", &with_password], "rejected the user name or password");
    let errors = not_started(&["--store", &with_password]);
    assert!(!errors.contains("hunter2"), "{errors}");
    assert_rejected(
        &["--store", &format!("redis+cluster://:right@{}", server.address())],
        "is not part of a Redis Cluster",
    );
}

#[test]
fn serve_does_not_start_with_an_unusable_redis() {
    let renamed = RedisServer::start_with(&["--rename-command", "EVALSHA", ""]);
    assert_rejected(&["--store", &renamed.url()], "EVALSHA");
    let primary = RedisServer::start();
    let port = primary.port().to_string();
    let replica = RedisServer::start_with(&["--replicaof", "127.0.0.1", &port]);
    assert_rejected(&["--store", &replica.url()], "is a replica");
}

#[test]
fn error_about_the_database_is_one_line() {
    let database = Postgres::start();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert_rejected(&["--store", &format!("mysql://u:p@{closed}/d")], "Connection refused");
    assert_rejected(&["--store", &format!("postgres://u:p@{closed}/d")], "Connection refused");
    assert_rejected(&["--store", "postgres://u:p@localhost:99999/d"], "expected a URL such as");
    assert_rejected(&["--store", &database.url().replacen(":secret@", ":hunter2@", 1)], "access denied");
    assert_rejected(&["--store", &database.url().replacen("/pacegate", "/nowhere", 1)], "nowhere");
    database.query("REVOKE CREATE ON SCHEMA public FROM PUBLIC; ALTER SCHEMA public OWNER TO postgres; ALTER DATABASE pacegate OWNER TO postgres");
    assert_rejected(&["--store", &database.url()], "permission denied");
    database.query("CREATE TABLE pacegate_schema (version integer); INSERT INTO pacegate_schema VALUES (99); GRANT ALL ON pacegate_schema TO pacegate; GRANT ALL ON SCHEMA public TO pacegate");
    assert_rejected(&["--store", &database.url()], "this program supports versions up to");
}

#[test]
fn serve_does_not_start_with_a_read_only_postgres() {
    let database = Postgres::start();
    // A user with all rights creates the tables.
    drop(Service::start(&["--store", &database.url(), "--catalog", &database.url()], &[]));
    database.query(
        "CREATE ROLE limited LOGIN PASSWORD 'secret'; GRANT USAGE, CREATE ON SCHEMA public TO limited",
    );
    database.query("GRANT SELECT ON ALL TABLES IN SCHEMA public TO limited");
    let limited = database.url().replacen("pacegate:secret@", "limited:secret@", 1);
    assert_rejected(&["--store", &limited], "permission denied");
    let errors = not_started(&["--catalog", &limited]);
    assert!(errors.contains("error: catalog:") && errors.contains("permission denied"), "{errors}");
    database.query("GRANT INSERT ON pacegate_state TO limited");
    assert_rejected(&["--store", &limited], "permission denied");
    database.query("GRANT UPDATE ON pacegate_state TO limited");
    assert_rejected(&["--store", &limited], "permission denied");
    database.query("GRANT DELETE ON pacegate_state TO limited");
    drop(Service::start(&["--store", &limited], &[]));
}

#[test]
fn serve_does_not_start_with_a_read_only_mariadb() {
    let database = MariaDb::start();
    // A user with all rights creates the tables.
    drop(Service::start(&["--store", &database.url(), "--catalog", &database.url()], &[]));
    database.query("CREATE USER limited@'%' IDENTIFIED VIA mysql_native_password USING PASSWORD('secret')");
    database.query("GRANT SELECT, CREATE, ALTER, INDEX ON pacegate.* TO limited@'%'");
    let limited = database.url().replacen("pacegate:secret@", "limited:secret@", 1);
    assert_rejected(&["--store", &limited], "denied");
    let (code, output, errors) = run(&["serve", "--http", "127.0.0.1:0", "--catalog", &limited]);
    assert_eq!((code, output.as_str()), (1, ""), "{errors}");
    assert!(errors.contains("error: catalog:") && errors.contains("denied"), "{errors}");
    database.query("GRANT INSERT ON pacegate.* TO limited@'%'");
    assert_rejected(&["--store", &limited], "denied");
    database.query("GRANT UPDATE ON pacegate.* TO limited@'%'");
    assert_rejected(&["--store", &limited], "denied");
    database.query("GRANT DELETE ON pacegate.* TO limited@'%'");
    drop(Service::start(&["--store", &limited], &[]));
}

/// Uses a disk of 1 MiB that only the service sees. Skipped where mounts are not allowed.
#[test]
fn catalog_on_a_full_disk_is_not_ready() {
    let own_mounts = ["--user", "--map-root-user", "--mount"];
    let mut mount = Command::new("unshare");
    mount.args(own_mounts).args(["mount", "-t", "tmpfs", "tmpfs", "/mnt"]).stderr(Stdio::null());
    if !mount.status().is_ok_and(|status| status.success()) {
        println!("SKIPPED catalog_on_a_full_disk_is_noticed: no mount of its own is allowed here");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    let inner = pacegate();
    let mut command = Command::new("unshare");
    command.args(own_mounts).args([
        "sh",
        "-c",
        "mount -t tmpfs -o size=1m tmpfs \"$0\" && exec \"$@\"",
        path,
    ]);
    command.arg(inner.get_program()).args(["serve", "--http", "127.0.0.1:0"]);
    command.args(["--catalog", &format!("sqlite://{path}/catalog.db")]);
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.env("PACEGATE_ADMIN_KEY", "secret").stderr(Stdio::null());
    let service = Service::from_command(&mut command);
    let becomes = |wanted: u16| {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let (status, response) = service.ask("GET", "/readyz", "").unwrap();
            if status == wanted {
                return response;
            }
            assert!(Instant::now() < deadline, "not noticed: {response}");
            thread::sleep(Duration::from_millis(100));
        }
    };
    becomes(200);
    let rest = std::path::PathBuf::from(format!("/proc/{}/root{path}/rest", service.process.id()));
    let mut file = std::fs::File::create(&rest).unwrap();
    while file.write_all(&[1; 512]).is_ok() {}
    assert_eq!(becomes(503)["error"]["message"], "catalog is not writable");
    assert_eq!(scrape::scrape(&service.url).get("pacegate_catalog_up", &[]), Some(0.0));
    let rule = r#"{"name": "r", "dimension": "user", "algorithm": "fixed_window", "limit": 5, "window_seconds": 60}"#;
    assert_eq!(service.ask("POST", "/api/v1/rules", rule).unwrap().0, 503);
    drop(file);
    std::fs::remove_file(rest).unwrap();
    becomes(200);
    assert_eq!(service.ask("POST", "/api/v1/rules", rule).unwrap().0, 201);
}

/// A catalog that becomes read-only while the service runs.
#[test]
fn read_only_catalog_is_not_ready() {
    let database = Postgres::start();
    let service = Service::start(&["--catalog", &database.url()], &[]);
    assert_eq!(service.ask("GET", "/readyz", "").unwrap().0, 200);
    database.query("ALTER DATABASE pacegate SET default_transaction_read_only = on");
    database.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'pacegate'");
    let deadline = Instant::now() + Duration::from_secs(60);
    let response = loop {
        let (status, response) = service.ask("GET", "/readyz", "").unwrap();
        if status == 503 && response["error"]["message"] == "catalog is not writable" {
            break response;
        }
        assert!(Instant::now() < deadline, "not noticed: {response}");
        thread::sleep(Duration::from_millis(100));
    };
    assert_eq!(response["error"]["code"], "SERVICE_UNAVAILABLE");
    assert_eq!(scrape::scrape(&service.url).get("pacegate_catalog_up", &[]), Some(0.0));
}

#[test]
fn ignored_settings_are_logged_and_the_ready_line_counts_all_rules() {
    let directory = tempfile::tempdir().unwrap();
    let config = file(
        directory.path(),
        "mode: service\nservice: {url: \"http://127.0.0.1:1\"}\nrules: [{name: r, dimension: user, algorithm: fixed_window, limit: 1, window: 1m}]\n",
    );
    let catalog = format!("sqlite://{}", directory.path().join("catalog.db").display());
    let log = directory.path().join("log");
    for rules in [1, 2] {
        let mut command = pacegate();
        command.args(["serve", "--http", "127.0.0.1:0", "--config", &config, "--catalog", &catalog]);
        command.env("PACEGATE_ADMIN_KEY", "secret").stderr(std::fs::File::create(&log).unwrap());
        let service = Service::from_command(&mut command);
        let rule = r#"{"name": "other", "dimension": "user", "algorithm": "fixed_window", "limit": 5, "window_seconds": 60}"#;
        if rules == 1 {
            assert_eq!(service.ask("POST", "/api/v1/rules", rule).unwrap().0, 201);
        }
        // A service that responds has logged that it is ready.
        assert_eq!(service.ask("GET", "/healthz", "").unwrap().0, 200);
        drop(service);
        let log = std::fs::read_to_string(&log).unwrap();
        assert!(log.lines().any(|line| line.contains("WARN") && line.contains("mode: service")), "{log}");
        assert!(
            log.lines().any(|line| line.contains("ready") && line.contains(&format!("rules={rules}"))),
            "{log}"
        );
    }
}

#[test]
fn server_that_is_not_redis_is_reported() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let mut request = [0; 1024];
            let _ = stream.read(&mut request);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    assert_rejected(&["--store", &format!("redis://{address}")], "does not speak the Redis protocol");
}

#[test]
fn serve_waits_for_an_unavailable_store() {
    let mut server = RedisServer::start();
    server.kill();
    let mut process = pacegate()
        .args(["serve", "--http", "127.0.0.1:0", "--wait-for-store", "--store", &server.url()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut errors = BufReader::new(process.stderr.take().unwrap()).lines();
    let waiting = errors.next().unwrap().unwrap();
    assert!(waiting.contains("retrying in") && waiting.contains("Connection refused"), "{waiting}");
    server.restart();
    let mut line = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("listening on"), "{line}");
    process.kill().unwrap();
    process.wait().unwrap();
}

#[test]
fn config_check_validates_store_urls_and_shows_no_password() {
    let directory = tempfile::tempdir().unwrap();
    let bad = file(directory.path(), "stores: {hot: {url: \"redis://user:hunter2@a,b\"}}");
    let (code, _, errors) = run(&["config", "check", &bad]);
    assert_eq!(code, 2);
    assert!(errors.contains("line 1: stores.hot.url: redis:// takes one host"), "{errors}");
    assert!(!errors.contains("hunter2"), "{errors}");
}

#[test]
fn rule_is_counted_in_its_store() {
    let server = RedisServer::start();
    let directory = tempfile::tempdir().unwrap();
    let config = file(
        directory.path(),
        &format!(
            "stores: {{hot: {{url: \"{}\"}}}}\nrules:\n  - {{name: here, dimension: user, algorithm: gcra, limit: 9, window: 1d}}\n  - {{name: there, dimension: user, algorithm: gcra, limit: 9, window: 1d, store: hot}}\n",
            server.url()
        ),
    );
    let service = Service::start(&["--config", &config], &[]);
    let response = service.post("/v1/rate-limit/check", "", r#"{"user_id": "u", "endpoint": "/x"}"#);
    assert!(response.contains("200 OK") && response.contains("\"degraded\":false"), "{response}");
    let keys = server.command(&["KEYS", "*"]);
    assert!(
        keys.starts_with("rl:{user:u}:there:") && keys.lines().count() == 1,
        "only that rule is in Redis: {keys}"
    );
}

/// Sends checks over one connection until `attempts` have a decision. Returns how many were
/// allowed.
fn allowed_of(address: &str, attempts: usize, body: &str) -> u64 {
    let mut stream = BufReader::new(TcpStream::connect(address).unwrap());
    let request = format!(
        "POST /v1/rate-limit/check HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let (mut allowed, mut decided, mut unavailable) = (0, 0, 0);
    while decided < attempts {
        stream.get_mut().write_all(request.as_bytes()).unwrap();
        let (mut status, mut length) = (String::new(), 0);
        stream.read_line(&mut status).unwrap();
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).unwrap();
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.trim().parse().unwrap();
            }
            if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).unwrap();
        match status.split(' ').nth(1) {
            Some("200") => allowed += 1,
            Some("429") => {}
            // On a busy machine a row can stay locked longer than the store waits. That charges
            // nothing, and clients retry.
            Some("503") if unavailable < 1_000 => {
                unavailable += 1;
                continue;
            }
            _ => panic!("{status}{}", String::from_utf8_lossy(&body)),
        }
        decided += 1;
    }
    allowed
}

/// 4 services and 64 clients, limits from 1 to 1,000 with every algorithm: exactly the limit is
/// allowed.
fn admits_exactly(name: &str, arguments: &[&str]) {
    // Fails closed, so that only the store can allow. Long timeouts, because this is about
    // counting.
    let patient = [
        ("PACEGATE_FAILURE__MODE", "closed"),
        ("PACEGATE_FAILURE__TIMEOUT", "5s"),
        ("PACEGATE_AD_HOC__MAX_WINDOW", "366d"),
    ];
    let services: Vec<Service> = (0..4).map(|_| Service::start(arguments, &patient)).collect();
    let addresses: Vec<&str> =
        services.iter().map(|service| service.url.trim_start_matches("http://")).collect();
    let strategies =
        ["token_bucket", "leaky_bucket", "fixed_window", "sliding_log", "sliding_counter", "gcra"];
    let mut requests = 0;
    for strategy in strategies {
        for limit in [1, 7, 100, 1_000] {
            let attempts = (limit * 2 / 64 + 2).max(effort(2, 50));
            let body = format!(
                r#"{{"user_id": "{name}", "endpoint": "/{limit}", "strategy": "{strategy}", "limit": {limit}, "window_seconds": 31622400}}"#
            );
            let allowed = AtomicU64::new(0);
            thread::scope(|scope| {
                for client in 0..64 {
                    let (address, body, allowed) = (addresses[client % addresses.len()], &body, &allowed);
                    scope.spawn(move || {
                        allowed.fetch_add(allowed_of(address, attempts, body), Ordering::Relaxed)
                    });
                }
            });
            assert_eq!(allowed.into_inner(), limit as u64, "{strategy}");
            requests += attempts * 64;
        }
    }
    println!(
        "PASS fleet-{name} processes=4 clients=64 limits=1,7,100,1000 algorithms=6 requests={requests} over=0 under=0"
    );
}

#[test]
fn four_services_admit_exactly_the_limit_on_redis() {
    let server = RedisServer::start();
    admits_exactly("standalone", &["--store", &server.url()]);
}

#[test]
fn four_services_admit_exactly_the_limit_on_mariadb() {
    let database = MariaDb::start();
    admits_exactly("mariadb", &["--store", &database.url()]);
}

#[test]
fn four_services_admit_exactly_the_limit_on_postgresql() {
    let database = Postgres::start();
    admits_exactly("postgresql", &["--store", &database.url()]);
}

#[test]
fn four_services_admit_exactly_the_limit_on_two_shards() {
    let databases = [MariaDb::start(), MariaDb::start()];
    let directory = tempfile::tempdir().unwrap();
    let config = file(
        directory.path(),
        &format!("stores: {{default: {{shards: [\"{}\", \"{}\"]}}}}", databases[0].url(), databases[1].url()),
    );
    admits_exactly("shards", &["--config", &config]);
    let service = Service::start(&["--config", &config], &[("PACEGATE_FAILURE__TIMEOUT", "5s")]);
    for number in 0..40 {
        let body =
            format!(r#"{{"keys": {{"user": "u{number}", "ip": "10.0.0.{number}"}}, "endpoint": "/x"}}"#);
        let response = service.post("/v1/rate-limit/check", "", &body);
        assert!(response.contains("200 OK") && response.contains("\"degraded\":false"), "{response}");
    }
    let rows = |database: &MariaDb| -> u32 {
        database.query("SELECT COUNT(*) FROM pacegate_state WHERE k LIKE 'c:%:default:%'").parse().unwrap()
    };
    let spread = databases.each_ref().map(rows);
    assert!(spread[0] >= 20 && spread[1] >= 20, "identities are spread: {spread:?}");
    assert_eq!(spread[0] + spread[1], 80, "each in one place");
}

#[test]
fn four_services_admit_exactly_the_limit_on_a_cluster() {
    let cluster = RedisCluster::start(3, 0);
    admits_exactly("cluster", &["--store", &cluster.url()]);
}

#[test]
fn unavailable_store_is_noticed_without_traffic() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let mut redis = RedisServer::start();
    let url = format!("redis://{}", redis.address());
    let mut command = pacegate();
    command.args(["serve", "--http", "127.0.0.1:0", "--store", &url]);
    command.stderr(std::fs::File::create(&log).unwrap());
    let service = Service::from_command(&mut command);
    assert_eq!(service.ask("GET", "/readyz", "").unwrap().0, 200);
    redis.kill();
    // The documented bound of 3 s is tested in paused time. A busy machine may need longer here.
    let deadline = Instant::now() + Duration::from_secs(30);
    while service.ask("GET", "/readyz", "").unwrap().0 != 503 {
        assert!(Instant::now() < deadline, "not noticed");
        thread::sleep(Duration::from_millis(50));
    }
    let metrics = scrape::scrape(&service.url);
    assert_eq!(metrics.get("pacegate_store_up", &[("store", "default")]), Some(0.0));
    assert!(metrics.get("pacegate_breaker_state", &[("caller", "any")]).unwrap() > 0.0);
    let log = std::fs::read_to_string(&log).unwrap();
    let errors: Vec<&str> = log.lines().filter(|line| line.contains("ERROR")).collect();
    assert!(matches!(errors.as_slice(), [line] if line.contains("store unavailable")), "{log}");
    redis.restart();
    while service.ask("GET", "/readyz", "").unwrap().0 != 200 {
        assert!(Instant::now() < deadline + Duration::from_secs(30), "not back");
        thread::sleep(Duration::from_millis(50));
    }
}
