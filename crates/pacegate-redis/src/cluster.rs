//! Which node of a Cluster has a slot, as far as is known, and how that is found out.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use pacegate_store::StoreError;
use redis::Value;
use tokio::time::timeout;

use crate::connection::Node;
use crate::connector::Connector;
use crate::keys::SLOTS;
use crate::url::Address;

/// How long a node may take to describe its Cluster before the next one is asked.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(250);

/// The nodes of a Cluster and their slots.
#[derive(Debug)]
pub(crate) struct Cluster {
    seeds: Vec<Address>,
    connector: Arc<Connector>,
    map: ArcSwap<SlotMap>,
    /// Connections are kept through changes of the map.
    nodes: Mutex<HashMap<Address, Arc<Node>>>,
}

/// Who has which slot. It is replaced as a whole.
#[derive(Clone, Debug, Default)]
struct SlotMap {
    /// Empty until a node has told.
    owners: Vec<Option<Arc<Node>>>,
}

impl Cluster {
    pub(crate) fn new(seeds: Vec<Address>, connector: Arc<Connector>) -> Self {
        Self { seeds, connector, map: ArcSwap::default(), nodes: Mutex::new(HashMap::new()) }
    }

    /// The primary of `slot`.
    pub(crate) fn owner(&self, slot: u16) -> Result<Arc<Node>, StoreError> {
        let owner = self.map.load().owners.get(usize::from(slot)).cloned().flatten();
        owner.ok_or_else(|| {
            self.connector.trouble.notify_one();
            StoreError::unavailable("no node of the Cluster has the slot")
        })
    }

    /// How many nodes have slots.
    pub(crate) fn primaries(&self) -> usize {
        primaries(&self.map.load().owners).len()
    }

    /// One slot of each primary.
    pub(crate) fn slot_of_each_primary(&self) -> Vec<u16> {
        let map = self.map.load();
        let mut found: Vec<(&Arc<Node>, u16)> = Vec::new();
        for (slot, owner) in (0..).zip(&map.owners) {
            if let Some(owner) = owner
                && !found.iter().any(|(other, _)| Arc::ptr_eq(other, owner))
            {
                found.push((owner, slot));
            }
        }
        found.into_iter().map(|(_, slot)| slot).collect()
    }

    /// The node at `address`, with its connections.
    pub(crate) fn node(&self, address: Address) -> Arc<Node> {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.entry(address.clone()).or_insert_with(|| Node::new(address, &self.connector)).clone()
    }

    /// A node said that `slot` is at `address` now.
    pub(crate) fn moved(&self, slot: u16, address: Address) {
        let node = self.node(address);
        self.map.rcu(|map| {
            let mut map = SlotMap::clone(map);
            if let Some(owner) = map.owners.get_mut(usize::from(slot)) {
                *owner = Some(node.clone());
            }
            map
        });
        // Where one slot moved, others may have.
        self.connector.trouble.notify_one();
    }

    /// Asks the nodes, one after the other, who has what.
    pub(crate) async fn refresh(&self) -> Result<(), StoreError> {
        let mut last = StoreError::unavailable("no node of the Cluster answers");
        for address in self.addresses() {
            let silent = StoreError::unavailable(format!("{address} does not answer"));
            match timeout(ANSWER_TIMEOUT, self.ask(self.node(address))).await.unwrap_or(Err(silent)) {
                Ok(owners) => {
                    self.adopt(owners);
                    return Ok(());
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Nodes that are known, in any order, then the seeds: the same one is not asked first every time, in case it is the one that hangs.
    fn addresses(&self) -> Vec<Address> {
        let mut addresses = Vec::new();
        addresses.extend(primaries(&self.map.load().owners));
        fastrand::shuffle(&mut addresses);
        addresses
            .extend(self.seeds.iter().filter(|seed| !addresses.contains(seed)).cloned().collect::<Vec<_>>());
        addresses
    }

    async fn ask(&self, node: Arc<Node>) -> Result<Vec<Option<Arc<Node>>>, StoreError> {
        let mut live = node.connection(0).await?;
        let watch = live.clone();
        let watch = watch.watch();
        let answer = redis::cmd("CLUSTER").arg("SLOTS").query_async::<Value>(&mut live.connection).await;
        watch.answered();
        let ranges = match answer {
            Ok(Value::Array(ranges)) => ranges,
            Ok(_) => {
                return Err(StoreError::rejected(format!("{} does not describe its Cluster", node.address)));
            }
            Err(error) if error.is_io_error() => {
                live.discard();
                return Err(StoreError::unavailable(format!("{} does not answer", node.address)));
            }
            Err(error) => {
                return Err(StoreError::rejected(format!(
                    "{} is not part of a Cluster: {error}",
                    node.address
                )));
            }
        };
        let mut owners = vec![None; usize::from(SLOTS)];
        for range in ranges {
            let Some((first, last, address)) = range_of(&range, &node.address) else {
                return Err(StoreError::rejected(format!(
                    "{} describes its Cluster in another form",
                    node.address
                )));
            };
            let primary = self.node(address);
            for owner in owners.iter_mut().take(usize::from(last) + 1).skip(usize::from(first)) {
                *owner = Some(primary.clone());
            }
        }
        Ok(owners)
    }

    fn adopt(&self, owners: Vec<Option<Arc<Node>>>) {
        let before = primaries(&self.map.load().owners);
        let now = primaries(&owners);
        self.map.store(Arc::new(SlotMap { owners }));
        for address in before.difference(&now).filter(|_| !now.is_empty()) {
            self.connector.figures.primary_changes.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(before = %address, "a primary of the Cluster changed; what it had not replicated is lost");
        }
        // Nodes that left are forgotten with their connections.
        let keep = |address: &Address| now.contains(address) || self.seeds.contains(address);
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner).retain(|address, _| keep(address));
    }
}

fn primaries(owners: &[Option<Arc<Node>>]) -> HashSet<Address> {
    let mut addresses = HashSet::new();
    let mut last: Option<&Arc<Node>> = None;
    for owner in owners.iter().flatten() {
        if !last.is_some_and(|last| Arc::ptr_eq(last, owner)) {
            addresses.insert(owner.address.clone());
            last = Some(owner);
        }
    }
    addresses
}

/// `[first, last, [host, port, …], …]`; a host that the node does not know is its own.
fn range_of(range: &Value, asked: &Address) -> Option<(u16, u16, Address)> {
    let Value::Array(parts) = range else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = parts.as_slice() else {
        return None;
    };
    let [host, Value::Int(port), ..] = primary.as_slice() else { return None };
    let host = match host {
        Value::BulkString(host) if !host.is_empty() && host != b"?" => {
            String::from_utf8_lossy(host).into_owned()
        }
        _ => asked.host.clone(),
    };
    let (first, last) = (u16::try_from(*first).ok()?, u16::try_from(*last).ok()?);
    (first <= last && last < SLOTS).then_some((
        first,
        last,
        Address { host, port: u16::try_from(*port).ok()? },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connector::RedisOptions;

    fn address(port: u16) -> Address {
        Address { host: "127.0.0.1".to_owned(), port }
    }

    #[test]
    fn nodes_that_left_are_forgotten_with_their_connections() {
        let options = RedisOptions::new("redis+cluster://127.0.0.1:1".parse().unwrap());
        let connector = Arc::new(Connector::new(&options).unwrap());
        let cluster = Cluster::new(vec![address(1)], connector);
        let owners = |ports: [u16; 2]| ports.map(|port| Some(cluster.node(address(port)))).to_vec();
        cluster.adopt(owners([2, 3]));
        let [left, stays] = [3, 2].map(|port| Arc::downgrade(&cluster.node(address(port))));
        // A redirect may name a node that never has a slot.
        let asked = Arc::downgrade(&cluster.node(address(5)));
        let seed = Arc::downgrade(&cluster.node(address(1)));
        cluster.adopt(owners([2, 4]));
        assert!(left.upgrade().is_none() && asked.upgrade().is_none(), "their connections are closed");
        assert!(
            stays.upgrade().is_some() && seed.upgrade().is_some(),
            "connections are kept through changes"
        );
        assert_eq!(cluster.owner(1).unwrap().address, address(4));
    }
}
