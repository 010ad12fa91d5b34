//! The servers behave as tests rely on: they respond, are killed, freeze, fail over, move slots and
//! lose replies.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use pacegate_testkit::server::{Fault, FaultProxy, RedisCluster, RedisSentinels, RedisServer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep, timeout};

fn exists(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// Runs a program and returns whether it succeeded, with its output.
fn run(program: &str, arguments: &[&str]) -> (bool, String) {
    let output = Command::new(program).args(arguments).output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Polls every few milliseconds until the condition holds.
fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..1_000 {
        if condition() {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("{what} did not happen");
}

#[test]
fn killed_server_restarts_empty_on_the_same_port() {
    let mut server = RedisServer::start();
    let (port, pid) = (server.port(), server.pid());
    assert_eq!(server.url(), format!("redis://127.0.0.1:{port}"));
    assert_eq!(server.command(&["SET", "key", "value"]), "OK");
    assert!(server.command(&["INFO", "server"]).contains(&format!("process_id:{pid}\r")));

    server.kill();
    assert!(!exists(pid));
    assert_eq!(TcpStream::connect(server.address()).unwrap_err().kind(), ErrorKind::ConnectionRefused);

    server.restart();
    assert_eq!(server.port(), port);
    assert_ne!(server.pid(), pid);
    assert_eq!(server.command(&["EXISTS", "key"]), "0");
    let second = server.pid();
    server.restart();
    assert!(!exists(second));
    assert_eq!(server.command(&["PING"]), "PONG");
}

#[test]
fn restart_keeps_the_arguments_and_the_directory() {
    let arguments = ["--requirepass", "secret", "--appendonly", "yes", "--appendfsync", "always"];
    let mut server = RedisServer::start_with(&arguments);
    assert_eq!(server.command(&["PING"]), "NOAUTH Authentication required.");
    let with_password = ["--no-auth-warning", "-a", "secret"];
    assert_eq!(server.command(&[&with_password[..], &["SET", "key", "value"]].concat()), "OK");
    server.kill();
    server.restart();
    assert_eq!(server.command(&["PING"]), "NOAUTH Authentication required.");
    assert_eq!(server.command(&[&with_password[..], &["GET", "key"]].concat()), "value");
}

#[test]
fn frozen_server_responds_when_thawed() {
    let server = RedisServer::start();
    let mut connection = TcpStream::connect(server.address()).unwrap();
    connection.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    server.freeze();
    server.freeze();
    connection.write_all(b"PING\r\n").unwrap();
    let mut answer = [0; 7];
    assert_eq!(connection.read(&mut answer).unwrap_err().kind(), ErrorKind::WouldBlock);
    server.thaw();
    connection.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    connection.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"+PONG\r\n");
}

#[test]
fn dropped_server_leaves_nothing_even_if_frozen() {
    let mut server = RedisServer::start();
    server.freeze();
    server.restart();
    let directory = server.command(&["CONFIG", "GET", "dir"]).lines().nth(1).unwrap().to_owned();
    let pid = server.pid();
    assert!(exists(pid) && Path::new(&directory).exists());
    server.freeze();
    drop(server);
    assert!(!exists(pid) && !Path::new(&directory).exists());
}

#[test]
#[should_panic(expected = "no-such-option")]
fn failed_start_shows_the_log() {
    RedisServer::start_with(&["--no-such-option", "yes"]);
}

#[test]
#[should_panic(expected = "every port is taken")]
fn taken_port_is_detected_although_another_server_responds() {
    let other = RedisServer::start();
    RedisServer::start_with(&["--port", &other.port().to_string()]);
}

#[test]
#[should_panic(expected = "Connection refused")]
fn command_to_a_killed_server_fails() {
    let mut server = RedisServer::start();
    server.kill();
    server.command(&["PING"]);
}

#[test]
fn tls_needs_the_authority_and_a_client_certificate() {
    let (server, certificates) = RedisServer::start_tls();
    let port = server.port().to_string();
    assert_eq!(server.url(), format!("rediss://localhost:{port}"));
    let authority = certificates.authority.to_str().unwrap();
    let identity = [
        "--cert",
        certificates.client_certificate.to_str().unwrap(),
        "--key",
        certificates.client_key.to_str().unwrap(),
    ];
    let trusting = ["-p", &port, "--tls", "--cacert", authority];
    let ping = |arguments: &[&[&str]]| run("redis-cli", &[&arguments.concat()[..], &["PING"]].concat());
    assert_eq!(ping(&[&trusting, &identity]), (true, "PONG".to_owned()));
    assert!(!ping(&[&trusting]).0, "without a client certificate");
    assert!(!ping(&[&["-p", &port, "--tls"], &identity]).0, "without trusting the authority");
    assert!(!ping(&[&["-p", &port]]).0, "without TLS");

    let certificate = certificates.server_certificate.to_str().unwrap();
    let valid_for = |name: [&str; 2]| {
        let arguments =
            ["verify", "-CAfile", authority, "-purpose", "sslserver", name[0], name[1], certificate];
        run("openssl", &arguments).0
    };
    assert!(valid_for(["-verify_hostname", "localhost"]));
    assert!(valid_for(["-verify_ip", "127.0.0.1"]));
    assert!(!valid_for(["-verify_hostname", "example.com"]));
}

#[test]
fn tls_server_keeps_its_certificates_across_restarts() {
    let (mut server, _) = RedisServer::start_tls();
    server.restart();
    assert_eq!(server.command(&["PING"]), "PONG");
}

#[test]
fn sentinels_fail_over_when_the_primary_is_killed() {
    let mut sentinels = RedisSentinels::start(1, 3);
    let ports = sentinels.sentinel_ports();
    let [first, second, third] = ports[..] else { panic!("{ports:?}") };
    let url = format!("redis+sentinel://127.0.0.1:{first},127.0.0.1:{second},127.0.0.1:{third}/main");
    assert_eq!(sentinels.url(), url);
    assert_eq!(sentinels.primary_port(), sentinels.servers()[0].port());
    let (_, known) = run("redis-cli", &["-p", &third.to_string(), "SENTINEL", "REPLICAS", "main"]);
    assert!(known.contains(&format!("127.0.0.1:{}", sentinels.servers()[1].port())), "{known}");

    let servers = sentinels.servers();
    assert_eq!(servers[0].command(&["SET", "key", "value"]), "OK");
    assert_eq!(servers[0].command(&["WAIT", "1", "5000"]), "1");
    let replica = servers[1].port();
    servers[0].kill();
    eventually("failover", || sentinels.primary_port() == replica);
    let servers = sentinels.servers();
    assert!(servers[1].command(&["INFO", "replication"]).contains("role:master"));
    assert_eq!(servers[1].command(&["GET", "key"]), "value");
    assert_eq!(servers[1].command(&["SET", "key", "other"]), "OK");
}

#[test]
fn slot_moves_with_its_keys_while_clients_are_redirected() {
    const KEYS: [&str; 3] = ["{a}1", "{a}2", r#""{a}\x00 \n\"\xff""#];
    let mut cluster = RedisCluster::start(3, 0);
    let ports: Vec<String> = cluster.servers().iter().map(|server| server.port().to_string()).collect();
    let addresses: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    assert_eq!(cluster.url(), format!("redis+cluster://{}", addresses.join(",")));
    let slot: u16 = cluster.servers()[0].command(&["CLUSTER", "KEYSLOT", "{a}"]).parse().unwrap();
    let from = cluster.owner_of(slot);
    let to = (from + 1) % 3;
    let ask = |server: usize, arguments: &[&str]| {
        run("redis-cli", &[&["-p", &ports[server], "--quoted-input"], arguments].concat()).1
    };
    for key in KEYS {
        assert_eq!(ask(from, &["SET", key, "value"]), "OK");
    }
    assert!(ask(to, &["GET", KEYS[0]]).starts_with("MOVED"));

    thread::scope(|scope| {
        scope.spawn(|| cluster.migrate_slot(slot, to, Duration::from_millis(300)));
        let redirection = format!("ASK {slot} {}", addresses[to]);
        eventually("ASK", || KEYS.iter().any(|key| ask(from, &["GET", key]) == redirection));
        eventually("TRYAGAIN", || ask(from, &["MGET", KEYS[0], KEYS[1], KEYS[2]]).starts_with("TRYAGAIN"));
    });

    assert_eq!(cluster.owner_of(slot), to);
    assert_eq!(cluster.servers()[to].command(&["CLUSTER", "MYID"]), cluster.node_ids()[to]);
    for key in KEYS {
        assert_eq!(ask(to, &["GET", key]), "value");
    }
    assert_eq!(ask(from, &["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()]), "0");
    for other in [from, (from + 2) % 3] {
        assert_eq!(ask(other, &["GET", KEYS[0]]), format!("MOVED {slot} {}", addresses[to]));
    }
}

#[test]
fn replica_takes_over_the_slots_of_a_killed_primary() {
    let mut cluster = RedisCluster::start(3, 1);
    assert_eq!(cluster.owner_of(0), 0);
    assert_eq!(cluster.owner_of(16_383), 2);
    cluster.servers()[0].kill();
    let successor = cluster.owner_of(0);
    assert!(successor >= 3, "server {successor} was not a replica");
    let nodes = cluster.servers()[successor].command(&["CLUSTER", "NODES"]);
    let myself = nodes.lines().find(|line| line.contains("myself")).unwrap();
    assert!(myself.starts_with(&cluster.node_ids()[successor]) && myself.contains("master"), "{myself}");
    cluster.servers()[0].restart();
    eventually("the restart as a replica", || {
        cluster.servers()[0].command(&["INFO", "replication"]).contains("role:slave")
    });
    assert_eq!(cluster.owner_of(0), successor);
}

async fn proxied() -> (RedisServer, FaultProxy) {
    let server = RedisServer::start();
    let proxy = FaultProxy::start(server.address().parse().unwrap()).await;
    (server, proxy)
}

struct Client(tokio::net::TcpStream);

impl Client {
    async fn connect(address: SocketAddr) -> Self {
        Self(tokio::net::TcpStream::connect(address).await.unwrap())
    }

    async fn send(&mut self, command: &str) {
        self.0.write_all(format!("{command}\r\n").as_bytes()).await.unwrap();
    }

    /// The next chunk, which is empty when the connection was closed; `None` when nothing arrives
    /// for a while.
    async fn receive(&mut self) -> Option<String> {
        let mut buffer = [0; 1024];
        match timeout(Duration::from_secs(1), self.0.read(&mut buffer)).await.ok()? {
            Ok(length) => Some(String::from_utf8_lossy(&buffer[..length]).trim().to_owned()),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Some(String::new()),
            Err(error) => panic!("{error}"),
        }
    }

    async fn ask(&mut self, command: &str) -> Option<String> {
        self.send(command).await;
        self.receive().await
    }
}

#[tokio::test]
async fn proxy_without_fault_forwards_everything_until_cut_or_dropped() {
    let (_server, proxy) = proxied().await;
    let mut client = Client::connect(proxy.address()).await;
    assert_eq!(client.ask("INCR key").await.unwrap(), ":1");
    proxy.cut();
    assert_eq!(client.receive().await.unwrap(), "");

    let mut client = Client::connect(proxy.address()).await;
    assert_eq!(client.ask("INCR key").await.unwrap(), ":2");
    assert_eq!(proxy.dropped(), 0);
    let address = proxy.address();
    drop(proxy);
    assert_eq!(client.receive().await.unwrap(), "");
    sleep(Duration::from_millis(100)).await;
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn dropped_reply_is_executed_and_never_arrives() {
    let (server, proxy) = proxied().await;
    let mut client = Client::connect(proxy.address()).await;
    let mut unaffected = Client::connect(proxy.address()).await;
    assert_eq!(client.ask("INCR key").await.unwrap(), ":1");
    proxy.set(Fault::DropReplies);
    assert_eq!(client.ask("INCR key").await, None);
    assert_eq!(server.command(&["GET", "key"]), "2");
    assert_eq!(proxy.dropped(), 1);

    proxy.set(Fault::None);
    assert_eq!(client.receive().await.unwrap(), "", "a connection that lost a reply is closed");
    assert_eq!(unaffected.ask("INCR key").await.unwrap(), ":3");
    assert_eq!(Client::connect(proxy.address()).await.ask("INCR key").await.unwrap(), ":4");
}

#[tokio::test]
async fn delays_do_not_add_up() {
    let (_server, proxy) = proxied().await;
    let mut client = Client::connect(proxy.address()).await;
    proxy.set(Fault::DelayReplies(Duration::from_millis(600)));
    let start = Instant::now();
    client.send("INCR key").await;
    sleep(Duration::from_millis(100)).await;
    client.send("INCR key").await;
    assert_eq!(client.receive().await.unwrap(), ":1");
    assert!(start.elapsed() >= Duration::from_millis(600));
    assert_eq!(client.receive().await.unwrap(), ":2");
    assert!(start.elapsed() >= Duration::from_millis(700));
    assert!(start.elapsed() < Duration::from_millis(1_100), "{:?}", start.elapsed());
    proxy.set(Fault::None);
    let start = Instant::now();
    assert_eq!(client.ask("INCR key").await.unwrap(), ":3");
    assert!(start.elapsed() < Duration::from_millis(600), "{:?}", start.elapsed());
}

#[tokio::test]
async fn cut_replies_are_executed_and_follow_from_the_seed() {
    let (server, proxy) = proxied().await;
    let mut patterns = Vec::new();
    for seed in [7, 7, 8] {
        proxy.set(Fault::CutReplies { one_in: 4, seed });
        let before = proxy.dropped();
        let mut pattern = Vec::new();
        for _ in 0..64 {
            let answer = Client::connect(proxy.address()).await.ask("INCR key").await.unwrap();
            pattern.push(answer.is_empty());
        }
        let cut = pattern.iter().filter(|&&cut| cut).count();
        assert!((4..=32).contains(&cut), "{cut} of 64");
        assert_eq!(proxy.dropped() - before, cut as u64);
        patterns.push(pattern);
    }
    assert_eq!(server.command(&["GET", "key"]), "192");
    assert_eq!(patterns[0], patterns[1]);
    assert_ne!(patterns[0], patterns[2]);
}

#[tokio::test]
async fn refused_connections_are_closed_and_existing_ones_continue() {
    let (server, proxy) = proxied().await;
    let mut present = Client::connect(proxy.address()).await;
    assert_eq!(present.ask("INCR key").await.unwrap(), ":1");
    proxy.set(Fault::Refuse);
    assert_eq!(Client::connect(proxy.address()).await.receive().await.unwrap(), "");
    assert_eq!(present.ask("INCR key").await.unwrap(), ":2");
    assert_eq!(server.command(&["GET", "key"]), "2");
}
