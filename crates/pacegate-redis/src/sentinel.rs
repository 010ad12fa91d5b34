//! Discovers the primary through Sentinel, and follows its changes.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pacegate_store::StoreError;
use redis::{Pipeline, Value};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::connection::Node;
use crate::connector::Connector;
use crate::error::not_connected;
use crate::url::Address;

/// How long a sentinel may take to respond.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(250);

/// The primary of a service, as the sentinels last reported it.
#[derive(Debug)]
pub(crate) struct Sentinel {
    sentinels: Vec<Address>,
    service: String,
    connector: Arc<Connector>,
    current: Mutex<Option<Current>>,
}

#[derive(Debug)]
struct Current {
    node: Arc<Node>,
    epoch: u64,
}

impl Sentinel {
    pub(crate) fn new(sentinels: Vec<Address>, service: String, connector: Arc<Connector>) -> Self {
        Self { sentinels, service, connector, current: Mutex::new(None) }
    }

    pub(crate) fn primary(&self) -> Result<Arc<Node>, StoreError> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current
            .as_ref()
            .map(|current| current.node.clone())
            .ok_or_else(|| StoreError::unavailable("no sentinel has reported the primary yet"))
    }

    /// Queries all sentinels for the primary and uses the response with the latest configuration. A
    /// sentinel that is partitioned from the others, perhaps together with the old primary, keeps
    /// reporting the old one.
    pub(crate) async fn refresh(&self) -> Result<(), StoreError> {
        let mut queries: JoinSet<(usize, Result<Named, StoreError>)> = JoinSet::new();
        for (index, sentinel) in self.sentinels.iter().enumerate() {
            let (sentinel, connector) = (sentinel.clone(), self.connector.clone());
            let service = self.service.clone();
            queries.spawn(async move {
                let answer = timeout(RESPONSE_TIMEOUT, query_primary(&connector, &sentinel, &service)).await;
                let silent = |_| Err(StoreError::unavailable(format!("{sentinel} does not respond")));
                (index, answer.unwrap_or_else(silent))
            });
        }
        let mut answers = Vec::with_capacity(self.sentinels.len());
        while let Some(answer) = queries.join_next().await {
            answers.extend(answer.ok());
        }
        answers.sort_by_key(|(index, _)| *index);
        let (mut latest, mut answered, mut failure) = (None::<Named>, 0, None);
        for (_, answer) in answers {
            match answer {
                Ok(named) => {
                    answered += 1;
                    if latest.as_ref().is_none_or(|latest| latest.epoch < named.epoch) {
                        latest = Some(named);
                    }
                }
                Err(error) => failure = Some(error),
            }
        }
        match latest {
            Some(named) => {
                self.adopt(named, answered * 2 > self.sentinels.len());
                Ok(())
            }
            None => Err(failure.unwrap_or_else(|| StoreError::rejected("no sentinels configured"))),
        }
    }

    /// The response of a majority is always current. A minority may be partitioned, so its response
    /// is ignored if its configuration is older than the current one.
    fn adopt(&self, named: Named, by_most: bool) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let before = match &mut *current {
            Some(present) if !by_most && named.epoch < present.epoch => return,
            Some(present) if present.node.address == named.address => {
                present.epoch = named.epoch;
                return;
            }
            Some(present) => Some(present.node.address.clone()),
            None => None,
        };
        if let Some(before) = before {
            self.connector.figures.primary_changes.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(
                service = self.service,
                %before,
                now = %named.address,
                "primary changed; charges that it had not replicated are lost"
            );
        }
        let node = Node::new(named.address, &self.connector);
        *current = Some(Current { node, epoch: named.epoch });
    }
}

/// The primary as one sentinel reports it.
struct Named {
    address: Address,
    /// The configuration epoch, which every failover that a majority agreed on increases; 0 if it
    /// is not reported.
    epoch: u64,
}

async fn query_primary(
    connector: &Connector,
    sentinel: &Address,
    service: &str,
) -> Result<Named, StoreError> {
    let mut connected = connector.connect_to_sentinel(sentinel).await?;
    let mut queries = Pipeline::with_capacity(2);
    queries.cmd("SENTINEL").arg("get-master-addr-by-name").arg(service);
    queries.cmd("SENTINEL").arg("master").arg(service);
    let answers = connected.connection.send_packed_commands(&queries, 0, 2).await;
    connected.driver.abort();
    let mut answers = answers.map_err(|error| not_connected(sentinel, &error))?.into_iter();
    let address = match answers.next() {
        Some(Value::Array(parts)) => match parts.as_slice() {
            [Value::BulkString(host), Value::BulkString(port)] => {
                let port = String::from_utf8_lossy(port).parse().ok();
                let host = String::from_utf8_lossy(host).into_owned();
                port.map(|port| Address { host, port }).ok_or_else(|| {
                    StoreError::rejected(format!("sentinel {sentinel} returned no valid port"))
                })
            }
            _ => Err(StoreError::rejected(format!("sentinel {sentinel} returned no address"))),
        },
        Some(Value::ServerError(error)) => Err(not_connected(sentinel, &error.into())),
        _ => Err(StoreError::rejected(format!("sentinel {sentinel}: unknown service `{service}`"))),
    }?;
    Ok(Named { address, epoch: answers.next().and_then(|master| epoch(&master)).unwrap_or_default() })
}

/// `config-epoch` among the fields that describe a primary.
fn epoch(master: &Value) -> Option<u64> {
    let Value::Array(fields) = master else { return None };
    let named = |pair: &&[Value]| matches!(&pair[0], Value::BulkString(name) if name == b"config-epoch");
    match fields.chunks_exact(2).find(named)? {
        [_, Value::BulkString(number)] => String::from_utf8_lossy(number).parse().ok(),
        _ => None,
    }
}
