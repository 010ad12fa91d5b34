//! Finds the primary through Sentinel, and finds it again when it changes.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use redis::Value;
use tollgate_store::StoreError;

use crate::connection::Node;
use crate::connector::Connector;
use crate::url::Address;

/// The primary of a service, as the sentinels last named it.
#[derive(Debug)]
pub(crate) struct Sentinel {
    sentinels: Vec<Address>,
    service: String,
    connector: Arc<Connector>,
    current: Mutex<Option<Arc<Node>>>,
    /// Those who ask at the same time share one round of questions.
    asking: tokio::sync::Mutex<()>,
}

impl Sentinel {
    pub(crate) fn new(sentinels: Vec<Address>, service: String, connector: Arc<Connector>) -> Self {
        Self { sentinels, service, connector, current: Mutex::new(None), asking: tokio::sync::Mutex::new(()) }
    }

    pub(crate) async fn primary(&self) -> Result<Arc<Node>, StoreError> {
        if let Some(node) = self.current() {
            return Ok(node);
        }
        let _turn = self.asking.lock().await;
        if let Some(node) = self.current() {
            return Ok(node);
        }
        self.ask().await
    }

    /// `node` failed or is not the primary any more: the sentinels are asked who is.
    pub(crate) async fn suspect(&self, node: &Arc<Node>) -> Result<(), StoreError> {
        let _turn = self.asking.lock().await;
        match self.current() {
            // Somebody else asked while this caller waited for its turn.
            Some(current) if !Arc::ptr_eq(&current, node) => Ok(()),
            _ => self.ask().await.map(drop),
        }
    }

    fn current(&self) -> Option<Arc<Node>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn ask(&self) -> Result<Arc<Node>, StoreError> {
        let mut last = None;
        for sentinel in &self.sentinels {
            match self.ask_one(sentinel).await {
                Ok(address) => return Ok(self.adopt(address)),
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

    fn adopt(&self, address: Address) -> Arc<Node> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(node) = current.as_ref().filter(|node| node.address == address) {
            return node.clone();
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
        node
    }
}
