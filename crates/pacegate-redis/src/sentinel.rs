//! Finds the primary through Sentinel, and finds it again when it changes.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pacegate_store::StoreError;
use redis::Value;
use tokio::time::timeout;

use crate::connection::Node;
use crate::connector::Connector;
use crate::url::Address;

/// How long a sentinel may take before the next one is asked.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(250);

/// The primary of a service, as the sentinels last named it.
#[derive(Debug)]
pub(crate) struct Sentinel {
    sentinels: Vec<Address>,
    service: String,
    connector: Arc<Connector>,
    current: Mutex<Option<Arc<Node>>>,
}

impl Sentinel {
    pub(crate) fn new(sentinels: Vec<Address>, service: String, connector: Arc<Connector>) -> Self {
        Self { sentinels, service, connector, current: Mutex::new(None) }
    }

    pub(crate) fn primary(&self) -> Result<Arc<Node>, StoreError> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner).clone();
        current.ok_or_else(|| StoreError::unavailable("no sentinel has named the primary yet"))
    }

    /// Asks the sentinels, one after the other, who the primary is.
    pub(crate) async fn refresh(&self) -> Result<(), StoreError> {
        let mut last = None;
        for sentinel in &self.sentinels {
            let answer = timeout(ANSWER_TIMEOUT, self.ask_one(sentinel)).await;
            match answer
                .unwrap_or_else(|_| Err(StoreError::unavailable(format!("{sentinel} does not answer"))))
            {
                Ok(address) => {
                    self.adopt(address);
                    return Ok(());
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| StoreError::rejected("no sentinel is configured")))
    }

    async fn ask_one(&self, sentinel: &Address) -> Result<Address, StoreError> {
        let mut connected = self.connector.connect_to_sentinel(sentinel).await?;
        let mut question = redis::cmd("SENTINEL");
        question.arg("get-master-addr-by-name").arg(&self.service);
        let answer = question.query_async::<Value>(&mut connected.connection).await;
        connected.driver.abort();
        match answer {
            Ok(Value::Array(parts)) => match parts.as_slice() {
                [Value::BulkString(host), Value::BulkString(port)] => {
                    let port = String::from_utf8_lossy(port).parse().ok();
                    let host = String::from_utf8_lossy(host).into_owned();
                    port.map(|port| Address { host, port })
                        .ok_or_else(|| StoreError::rejected(format!("sentinel {sentinel} names no port")))
                }
                _ => Err(StoreError::rejected(format!("sentinel {sentinel} gives no address"))),
            },
            Ok(_) => {
                Err(StoreError::rejected(format!("sentinel {sentinel} knows no service `{}`", self.service)))
            }
            Err(error) => Err(crate::error::not_connected(sentinel, &error)),
        }
    }

    fn adopt(&self, address: Address) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.as_ref().is_some_and(|node| node.address == address) {
            return;
        }
        let node = Node::new(address, &self.connector);
        if let Some(before) = current.replace(node.clone()) {
            self.connector.figures.primary_changes.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(
                service = self.service,
                before = %before.address,
                now = %node.address,
                "the primary changed; what it had not replicated is lost"
            );
        }
    }
}
