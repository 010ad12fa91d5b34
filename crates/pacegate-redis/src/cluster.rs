//! The slot map of a Redis Cluster, and how it is discovered.

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

/// How long a node may take to describe its cluster before the next one is queried.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(250);

/// The nodes of a cluster and their slots.
#[derive(Debug)]
pub(crate) struct Cluster {
    seeds: Vec<Address>,
    connector: Arc<Connector>,
    map: ArcSwap<SlotMap>,
    /// Connections survive changes of the map.
    nodes: Mutex<HashMap<Address, Arc<Node>>>,
}

/// The owner of each slot. Replaced as a whole.
#[derive(Clone, Debug, Default)]
struct SlotMap {
    /// Empty until a node has responded.
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
            self.connector.refresh_needed.notify_one();
            StoreError::unavailable(format!("no cluster node serves slot {slot}"))
        })
    }

    /// The number of nodes with slots.
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

    /// Records that `slot` has moved to `address`, as a node reported.
    pub(crate) fn moved(&self, slot: u16, address: Address) {
        let node = self.node(address);
        self.map.rcu(|map| {
            let mut map = SlotMap::clone(map);
            if let Some(owner) = map.owners.get_mut(usize::from(slot)) {
                *owner = Some(node.clone());
            }
            map
        });
        // If one slot moved, others may have moved too.
        self.connector.refresh_needed.notify_one();
    }

    /// Queries the nodes, one after another, for the slot map.
    pub(crate) async fn refresh(&self) -> Result<(), StoreError> {
        let mut last = StoreError::unavailable("no cluster node responds");
        for address in self.addresses() {
            let silent = StoreError::unavailable(format!("{address} does not respond"));
            match timeout(RESPONSE_TIMEOUT, self.query_slots(self.node(address))).await.unwrap_or(Err(silent))
            {
                Ok(owners) => {
                    self.adopt(owners);
                    return Ok(());
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Known nodes in random order, then the seeds. The order is random so that a hanging node is
    /// not always queried first.
    fn addresses(&self) -> Vec<Address> {
        let mut addresses = Vec::new();
        addresses.extend(primaries(&self.map.load().owners));
        fastrand::shuffle(&mut addresses);
        addresses
            .extend(self.seeds.iter().filter(|seed| !addresses.contains(seed)).cloned().collect::<Vec<_>>());
        addresses
    }

    async fn query_slots(&self, node: Arc<Node>) -> Result<Vec<Option<Arc<Node>>>, StoreError> {
        let mut live = node.connection(0).await?;
        let watch = live.clone();
        let watch = watch.watch();
        let answer = redis::cmd("CLUSTER").arg("SLOTS").query_async::<Value>(&mut live.connection).await;
        watch.answered();
        let ranges = match answer {
            Ok(Value::Array(ranges)) => ranges,
            Ok(_) => {
                return Err(StoreError::rejected(format!(
                    "{}: unexpected reply to CLUSTER SLOTS",
                    node.address
                )));
            }
            Err(error) if error.is_io_error() => {
                live.discard();
                return Err(StoreError::unavailable(format!("{} does not respond", node.address)));
            }
            Err(error) => {
                return Err(StoreError::rejected(format!(
                    "{} is not part of a Redis Cluster: {error}",
                    node.address
                )));
            }
        };
        let mut owners = vec![None; usize::from(SLOTS)];
        for range in ranges {
            let Some((first, last, address)) = range_of(&range, &node.address) else {
                return Err(StoreError::rejected(format!(
                    "{}: unexpected reply to CLUSTER SLOTS",
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
            tracing::warn!(before = %address, "cluster primary changed; charges that it had not replicated are lost");
        }
        // Nodes that left are dropped with their connections.
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

/// Parses `[first, last, [host, port, …], …]`; an unknown host means the queried node itself.
fn range_of(range: &Value, queried: &Address) -> Option<(u16, u16, Address)> {
    let Value::Array(parts) = range else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = parts.as_slice() else {
        return None;
    };
    let [host, Value::Int(port), ..] = primary.as_slice() else { return None };
    let host = match host {
        Value::BulkString(host) if !host.is_empty() && host != b"?" => {
            String::from_utf8_lossy(host).into_owned()
        }
        _ => queried.host.clone(),
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
    fn nodes_that_left_are_dropped_with_their_connections() {
        let options = RedisOptions::new("redis+cluster://127.0.0.1:1".parse().unwrap());
        let connector = Arc::new(Connector::new(&options).unwrap());
        let cluster = Cluster::new(vec![address(1)], connector);
        let owners = |ports: [u16; 2]| ports.map(|port| Some(cluster.node(address(port)))).to_vec();
        cluster.adopt(owners([2, 3]));
        let [left, stays] = [3, 2].map(|port| Arc::downgrade(&cluster.node(address(port))));
        // A redirect may name a node that never has a slot.
        let redirected = Arc::downgrade(&cluster.node(address(5)));
        let seed = Arc::downgrade(&cluster.node(address(1)));
        cluster.adopt(owners([2, 4]));
        assert!(left.upgrade().is_none() && redirected.upgrade().is_none(), "their connections are closed");
        assert!(
            stays.upgrade().is_some() && seed.upgrade().is_some(),
            "connections survive changes of the map"
        );
        assert_eq!(cluster.owner(1).unwrap().address, address(4));
    }
}
