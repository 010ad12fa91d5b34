//! A Redis Cluster.

use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use super::process::{Process, READY_WITHIN, wait_until};
use super::redis::RedisServer;

/// A cluster of primaries, each with replicas, that covers all 16384 slots.
pub struct RedisCluster {
    servers: Vec<RedisServer>,
    node_ids: Vec<String>,
}

impl RedisCluster {
    /// Starts at least three primaries; they come first in [`servers`](Self::servers). Returns when
    /// every node reports the cluster as healthy and every replica is in sync.
    pub fn start(primaries: usize, replicas_per_primary: usize) -> Self {
        assert!(primaries >= 3, "redis-cli cannot create a cluster with fewer than three primaries");
        let count = primaries * (1 + replicas_per_primary);
        // Replicas take over quickly. Without them, a node that is slow on a busy machine must not
        // take the cluster down.
        let node_timeout = if replicas_per_primary > 0 { "1000" } else { "60000" };
        let arguments = ["--cluster-enabled", "yes", "--cluster-node-timeout", node_timeout];
        let servers: Vec<RedisServer> = (0..count).map(|_| RedisServer::start_with(&arguments)).collect();
        create(&servers, replicas_per_primary);

        let node_ids = servers.iter().map(|server| server.command(&["CLUSTER", "MYID"])).collect();
        let cluster = Self { servers, node_ids };
        let in_order = |server| cluster.is_healthy(server, primaries);
        let ready = wait_until(READY_WITHIN, || cluster.servers.iter().all(in_order));
        assert!(
            ready,
            "the cluster did not become healthy:\n{}",
            cluster.servers[0].command(&["CLUSTER", "NODES"])
        );
        cluster
    }

    /// `redis+cluster://127.0.0.1:P1,127.0.0.1:P2`, with all nodes.
    pub fn url(&self) -> String {
        let addresses: Vec<String> = self.servers.iter().map(RedisServer::address).collect();
        format!("redis+cluster://{}", addresses.join(","))
    }

    /// All nodes: the initial primaries, then their replicas.
    pub fn servers(&mut self) -> &mut [RedisServer] {
        &mut self.servers
    }

    /// The ids of the nodes, in the order of [`servers`](Self::servers).
    pub fn node_ids(&self) -> Vec<String> {
        self.node_ids.clone()
    }

    /// The index of the server that is currently the primary of a slot. Waits while there is none,
    /// as during a failover; killed and frozen servers are ignored.
    pub fn owner_of(&self, slot: u16) -> usize {
        let mut owner = None;
        wait_until(READY_WITHIN, || {
            let owners = self.node_entries().filter(|(_, node)| node.owns(slot));
            // A primary that returns late still claims its slots for a moment, in an older epoch.
            owner = owners.max_by_key(|(_, node)| node.epoch).map(|(index, _)| index);
            owner.is_some()
        });
        owner.expect("some server owns the slot")
    }

    /// Moves a slot with its keys to another primary, as an operator does while the cluster is in
    /// use.
    ///
    /// There is a pause before the first key moves and after each one. During the move, clients get
    /// `ASK` for keys that are not (or no longer) at the old owner, and `TRYAGAIN` for commands on
    /// keys of both.
    pub fn migrate_slot(&self, slot: u16, to: usize, pause: Duration) {
        let from = self.owner_of(slot);
        assert_ne!(from, to, "slot {slot} is already on the target");
        let (source, target) = (&self.servers[from], &self.servers[to]);
        let slot = slot.to_string();
        let set_slot = |server: &RedisServer, state, node: usize| {
            let answer = server.command(&["CLUSTER", "SETSLOT", &slot, state, &self.node_ids[node]]);
            assert_eq!(answer, "OK", "SETSLOT {slot} {state} on port {}", server.port());
        };
        set_slot(target, "IMPORTING", from);
        set_slot(source, "MIGRATING", to);
        thread::sleep(pause);
        while let Some(key) = quoted_key_in(source, &slot) {
            let port = target.port().to_string();
            let arguments = ["--quoted-input", "MIGRATE", "127.0.0.1", &port, &key, "0", "5000"];
            let answer = source.command(&arguments);
            // A key may expire before it is moved.
            assert!(answer == "OK" || answer == "NOKEY", "MIGRATE {key}: {answer}");
            thread::sleep(pause);
        }
        set_slot(target, "NODE", to);
        set_slot(source, "NODE", to);
        for (index, _) in self.node_entries().filter(|(_, node)| node.primary) {
            if index != from && index != to {
                set_slot(&self.servers[index], "NODE", to);
            }
        }
    }

    /// The node entry of each responsive server, with its index.
    fn node_entries(&self) -> impl Iterator<Item = (usize, Node)> {
        let responsive = self.servers.iter().enumerate().filter(|(_, server)| server.is_responsive());
        responsive.map(|(index, server)| (index, Node::of(server)))
    }

    fn is_healthy(&self, server: &RedisServer, primaries: usize) -> bool {
        let info = server.command(&["CLUSTER", "INFO"]);
        let nodes = server.command(&["CLUSTER", "NODES"]);
        let nodes: Vec<Node> = nodes.lines().map(Node::parse).collect();
        info.contains("cluster_state:ok")
            && nodes.len() == self.servers.len()
            && nodes.iter().all(|node| node.connected)
            && nodes.iter().filter(|node| node.primary).count() == primaries
            && (Node::of(server).primary || server.is_synchronized())
    }
}

/// Forms a cluster of empty servers, of which the first become primaries.
fn create(servers: &[RedisServer], replicas_per_primary: usize) {
    let mut arguments = vec!["--cluster".to_owned(), "create".to_owned()];
    arguments.extend(servers.iter().map(RedisServer::address));
    arguments.extend(["--cluster-replicas".to_owned(), replicas_per_primary.to_string()]);
    arguments.push("--cluster-yes".to_owned());
    let directory = TempDir::new().expect("a temporary directory");
    let mut process = Process::start("redis-cli", &arguments, directory.path());
    // redis-cli waits for the nodes to meet, without a timeout.
    let ended = wait_until(READY_WITHIN, || process.exit_status().is_some());
    let exit = process.exit_status();
    let success = ended && exit.is_some_and(|status| status.success());
    assert!(success, "redis-cli --cluster create: {exit:?}\n{}", process.log_tail());
}

/// A key of the slot, quoted so that `redis-cli --quoted-input` can read it back.
fn quoted_key_in(server: &RedisServer, slot: &str) -> Option<String> {
    let answer = server.command(&["--no-raw", "CLUSTER", "GETKEYSINSLOT", slot, "1"]);
    answer.strip_prefix("1) ").map(str::to_owned)
}

/// A line of `CLUSTER NODES`.
struct Node {
    primary: bool,
    connected: bool,
    epoch: u64,
    slots: Vec<(u16, u16)>,
}

impl Node {
    /// The entry of a server about itself.
    fn of(server: &RedisServer) -> Self {
        let nodes = server.command(&["CLUSTER", "NODES"]);
        let line = nodes.lines().find(|line| line.contains("myself"));
        Self::parse(line.expect("a node knows itself"))
    }

    /// `ID ADDRESS FLAGS PRIMARY PING PONG EPOCH LINK SLOTS...`, where slots are `7`, `0-5460` or,
    /// when they are being moved, `[7->-ID]`.
    fn parse(line: &str) -> Self {
        let fields: Vec<&str> = line.split(' ').collect();
        let range = |text: &str| {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            Some((first.parse().ok()?, last.parse().ok()?))
        };
        Self {
            primary: fields[2].split(',').any(|flag| flag == "master"),
            connected: fields[7] == "connected",
            epoch: fields[6].parse().expect("an epoch is a number"),
            slots: fields[8..].iter().copied().filter_map(range).collect(),
        }
    }

    /// Only primaries list slots.
    fn owns(&self, slot: u16) -> bool {
        self.slots.iter().any(|&(first, last)| (first..=last).contains(&slot))
    }
}
