//! A primary and its replicas, monitored by sentinels.

use super::process::{READY_WITHIN, wait_until};
use super::redis::RedisServer;

/// One primary, its replicas, and the sentinels that promote a replica when the primary fails. The
/// service is called `main`.
pub struct RedisSentinels {
    servers: Vec<RedisServer>,
    sentinels: Vec<RedisServer>,
}

impl RedisSentinels {
    /// Returns when replicas are in sync, and every sentinel knows all replicas and all other
    /// sentinels.
    pub fn start(replicas: usize, sentinels: usize) -> Self {
        let primary = RedisServer::start();
        let port = primary.port().to_string();
        let mut servers = vec![primary];
        servers.extend((0..replicas).map(|_| RedisServer::start_with(&["--replicaof", "127.0.0.1", &port])));
        // A sentinel discovers replicas only every ten seconds, so they are attached before it
        // starts.
        let synchronized = wait_until(READY_WITHIN, || servers[1..].iter().all(RedisServer::is_synchronized));
        assert!(synchronized, "replicas of port {port} did not synchronize");

        let configuration = format!(
            "sentinel monitor main 127.0.0.1 {port} {quorum}\n\
             sentinel down-after-milliseconds main 500\n\
             sentinel failover-timeout main 3000\n\
             sentinel parallel-syncs main 1\n",
            quorum = sentinels / 2 + 1
        );
        let sentinels: Vec<_> = (0..sentinels).map(|_| RedisServer::start_sentinel(&configuration)).collect();
        let acquainted = wait_until(READY_WITHIN, || {
            sentinels.iter().all(|sentinel| knows_all(sentinel, replicas, sentinels.len()))
        });
        assert!(
            acquainted,
            "sentinels did not find each other: {}",
            sentinels[0].command(&["INFO", "sentinel"])
        );
        Self { servers, sentinels }
    }

    /// `redis+sentinel://127.0.0.1:P1,127.0.0.1:P2/main`, with the ports of the sentinels.
    pub fn url(&self) -> String {
        let addresses: Vec<String> = self.sentinels.iter().map(RedisServer::address).collect();
        format!("redis+sentinel://{}/main", addresses.join(","))
    }

    /// The port of the primary according to most sentinels; waits while they disagree.
    pub fn primary_port(&self) -> u16 {
        let mut majority = None;
        wait_until(READY_WITHIN, || {
            let votes: Vec<u16> = self.sentinels.iter().map(named_primary).collect();
            let count = |port: u16| votes.iter().filter(|&&vote| vote == port).count();
            majority = votes.iter().copied().find(|&port| count(port) > votes.len() / 2);
            majority.is_some()
        });
        majority.expect("most sentinels agree on the primary")
    }

    /// The data servers; the first one is the initial primary.
    pub fn servers(&mut self) -> &mut [RedisServer] {
        &mut self.servers
    }

    /// The ports of the sentinels.
    pub fn sentinel_ports(&self) -> Vec<u16> {
        self.sentinels.iter().map(RedisServer::port).collect()
    }
}

/// Whether a sentinel can fail over: it has a link to every other sentinel, and the state of every
/// replica.
fn knows_all(sentinel: &RedisServer, replicas: usize, sentinels: usize) -> bool {
    let quorum = sentinel.command(&["SENTINEL", "CKQUORUM", "main"]);
    let answer = sentinel.command(&["SENTINEL", "REPLICAS", "main"]);
    let lines: Vec<&str> = answer.lines().collect();
    let with = |name, value| lines.windows(2).filter(|pair| pair[0] == name && pair[1] == value).count();
    quorum.starts_with(&format!("OK {sentinels} usable"))
        && with("flags", "slave") == replicas
        && with("master-link-status", "ok") == replicas
}

fn named_primary(sentinel: &RedisServer) -> u16 {
    let address = sentinel.command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main"]);
    let port = address.lines().nth(1).expect("a host and a port");
    port.parse().expect("a port is a number")
}
