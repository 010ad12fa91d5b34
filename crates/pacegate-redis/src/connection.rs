//! Reconnecting connections: one attempt is shared by all waiting callers, failures are followed by
//! a backoff, and silent connections are dropped.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pacegate_store::StoreError;
use redis::aio::MultiplexedConnection;
use redis::{RedisError, Value};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

use crate::connector::Connector;
use crate::url::Address;

/// The backoff after a failed connection attempt: doubled each time up to the maximum, with jitter.
const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// Number of consecutive callers that stop waiting for a reply before the connection is verified.
const ABANDONED_MAX: u32 = 5;

/// How long a server may take to report its role.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(250);

/// A server, by its address, and the connections to it.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) address: Address,
    links: Vec<Link>,
}

impl Node {
    pub(crate) fn new(address: Address, connector: &Arc<Connector>) -> Arc<Self> {
        let links =
            (0..connector.connections).map(|_| Link::new(address.clone(), connector.clone())).collect();
        Arc::new(Self { address, links })
    }

    /// The connection for commands of `slot`: always the same one, so that they stay in order.
    pub(crate) async fn connection(&self, slot: u16) -> Result<Live, StoreError> {
        self.links[usize::from(slot) % self.links.len()].live().await
    }

    /// The established connections.
    pub(crate) fn present(&self) -> Vec<Live> {
        self.links.iter().filter_map(Link::present).collect()
    }

    /// Discards the connections to the server. Callers get `error` until the backoff is over.
    pub(crate) fn disconnect(&self, error: &StoreError) {
        for link in &self.links {
            link.disconnect(error.without_source());
        }
        tracing::debug!(address = %self.address, %error, "disconnected from the server");
    }
}

/// One connection through its stages.
struct Link {
    address: Address,
    connector: Arc<Connector>,
    state: Arc<Mutex<State>>,
}

struct State {
    stage: Stage,
    /// Number of consecutive failed attempts.
    failures: u32,
}

impl State {
    /// Starts a backoff.
    fn back_off(&mut self, error: StoreError) {
        let rest = (BACKOFF_MIN * 2u32.saturating_pow(self.failures)).min(BACKOFF_MAX);
        let until = Instant::now() + rest.mul_f64(0.5 + fastrand::f64() / 2.0);
        self.failures = (self.failures + 1).min(16);
        self.stage = Stage::BackingOff { until, error };
    }
}

enum Stage {
    Absent,
    Connecting(watch::Receiver<bool>),
    Live(Live),
    /// Waiting after a failure; callers get the last error.
    BackingOff {
        until: Instant,
        error: StoreError,
    },
}

/// A connection that worked when it was last used.
#[derive(Clone)]
pub(crate) struct Live {
    pub(crate) connection: MultiplexedConnection,
    health: Arc<Health>,
}

struct Health {
    /// Set when the driver ends, so that nothing is sent into a dead connection.
    gone: AtomicBool,
    /// Number of consecutive callers that stopped waiting for a reply.
    abandoned: AtomicU32,
    /// Whether a PING is in progress; there is at most one.
    verifying: AtomicBool,
    driver: AbortHandle,
    connector: Arc<Connector>,
}

impl Drop for Health {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Live {
    fn is_gone(&self) -> bool {
        self.health.gone.load(Ordering::Acquire)
    }

    /// Marks the connection as unusable.
    pub(crate) fn discard(&self) {
        self.health.discard();
    }

    /// Watches one request: if it is dropped before [`Watch::answered`], its caller stopped
    /// waiting.
    pub(crate) fn watch(&self) -> Watch<'_> {
        Watch { live: self, answered: false }
    }

    /// Whether the server is the primary; `None` when it does not report it, for example for lack
    /// of permission.
    pub(crate) async fn is_primary(&self) -> Option<bool> {
        let mut connection = self.connection.clone();
        match timeout(RESPONSE_TIMEOUT, role(&mut connection)).await {
            Ok(answer) => answer.ok().flatten(),
            Err(_) => {
                self.verify();
                None
            }
        }
    }

    /// Sends a PING and discards the connection if there is no reply. Callers that stop waiting say
    /// nothing about the server: others on this connection may wait longer.
    fn verify(&self) {
        // Without a runtime, the process is about to end.
        let Ok(runtime) = Handle::try_current() else { return };
        if self.health.verifying.swap(true, Ordering::AcqRel) {
            return;
        }
        let (mut connection, health) = (self.connection.clone(), Arc::downgrade(&self.health));
        let silence = self.health.connector.silence_max();
        runtime.spawn(async move {
            let ping = redis::cmd("PING");
            let reply = timeout(silence, connection.send_packed_command(&ping)).await;
            let Some(health) = health.upgrade() else { return };
            // An error reply, for example for lack of permission, is a reply too.
            match reply {
                Ok(Ok(_)) => health.abandoned.store(0, Ordering::Relaxed),
                Ok(Err(_)) | Err(_) => health.discard(),
            }
            health.verifying.store(false, Ordering::Release);
        });
    }
}

impl Health {
    fn discard(&self) {
        self.gone.store(true, Ordering::Release);
        self.driver.abort();
        self.connector.refresh_needed.notify_one();
    }
}

/// See [`Live::watch`].
pub(crate) struct Watch<'a> {
    live: &'a Live,
    answered: bool,
}

impl Watch<'_> {
    pub(crate) fn answered(mut self) {
        self.answered = true;
        self.live.health.abandoned.store(0, Ordering::Relaxed);
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if !self.answered && self.live.health.abandoned.fetch_add(1, Ordering::Relaxed) + 1 >= ABANDONED_MAX {
            self.live.verify();
        }
    }
}

/// Whether a server reports that it is the primary; `None` when it may not report it.
///
/// # Errors
/// When there is no reply.
pub(crate) async fn role(connection: &mut MultiplexedConnection) -> Result<Option<bool>, RedisError> {
    match connection.send_packed_command(&redis::cmd("ROLE")).await? {
        Value::Array(parts) => Ok(match parts.first() {
            Some(Value::BulkString(name)) => Some(name == b"master"),
            _ => None,
        }),
        _ => Ok(None),
    }
}

impl Link {
    fn new(address: Address, connector: Arc<Connector>) -> Self {
        Self { address, connector, state: Arc::new(Mutex::new(State { stage: Stage::Absent, failures: 0 })) }
    }

    fn present(&self) -> Option<Live> {
        match &lock(&self.state).stage {
            Stage::Live(live) if !live.is_gone() => Some(live.clone()),
            _ => None,
        }
    }

    fn disconnect(&self, error: StoreError) {
        let mut state = lock(&self.state);
        if let Stage::Live(live) = &state.stage {
            live.discard();
            state.back_off(error);
        }
    }

    /// Returns the connection, established anew if necessary. All waiting callers share one
    /// attempt.
    async fn live(&self) -> Result<Live, StoreError> {
        loop {
            let mut made = {
                let mut state = lock(&self.state);
                match &state.stage {
                    Stage::Live(live) if !live.is_gone() => return Ok(live.clone()),
                    Stage::BackingOff { until, error } if Instant::now() < *until => {
                        return Err(error.without_source());
                    }
                    Stage::Connecting(made) => made.clone(),
                    _ => self.start(&mut state),
                }
            };
            // Either way, the attempt is over.
            let _ = made.wait_for(|made| *made).await;
            if let Stage::BackingOff { error, .. } = &lock(&self.state).stage {
                return Err(error.without_source());
            }
        }
    }

    /// Connects in a separate task, so that a caller that stops waiting does not cancel the
    /// attempt.
    fn start(&self, state: &mut State) -> watch::Receiver<bool> {
        let (done, made) = watch::channel(false);
        state.stage = Stage::Connecting(made.clone());
        let (address, connector, shared) = (self.address.clone(), self.connector.clone(), self.state.clone());
        tokio::spawn(async move {
            let connected = connector.connect(&address).await;
            let mut state = lock(&shared);
            match connected {
                Ok(connected) => {
                    let health = Arc::new(Health {
                        gone: AtomicBool::new(false),
                        abandoned: AtomicU32::new(0),
                        verifying: AtomicBool::new(false),
                        driver: connected.driver.abort_handle(),
                        connector: connector.clone(),
                    });
                    let noticed = Arc::downgrade(&health);
                    tokio::spawn(async move {
                        let _ = connected.driver.await;
                        if let Some(health) = noticed.upgrade() {
                            health.gone.store(true, Ordering::Release);
                            health.connector.refresh_needed.notify_one();
                        }
                    });
                    state.failures = 0;
                    state.stage = Stage::Live(Live { connection: connected.connection, health });
                }
                Err(error) => {
                    state.back_off(error);
                    connector.refresh_needed.notify_one();
                }
            }
            drop(state);
            let _ = done.send(true);
        });
        made
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Link").field("address", &self.address).finish_non_exhaustive()
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // A state is replaced as a whole and never left half-changed.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
