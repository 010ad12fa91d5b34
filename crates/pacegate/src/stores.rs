//! The stores of a limiter, by name. Stores outlive rule sets, so counters survive a change of
//! rules.

use std::sync::Arc;
use std::time::Duration;

use pacegate_core::Timestamp;
use pacegate_memory::{MemoryOptions, MemoryStore};
use pacegate_store::{
    ApplyFuture, BatchFuture, BreakerState, Command, Figures, GuardedStore, Outcome, Part, Store, StoreError,
    StoreHealth, TRACES, apply_in_parts,
};
use smallvec::SmallVec;
use tokio::task::yield_now;

/// Number of commands after which a batch yields to other tasks of the thread.
const COMMANDS_PER_YIELD: usize = 8;

/// A default store, in this process or remote, and further stores that rules can name.
///
/// ```
/// use std::sync::Arc;
/// use pacegate::{Limit, Limiter, MemoryStore, Rule, Stores};
///
/// let stores = Stores::memory(Arc::new(MemoryStore::default())).and_memory("hot", Arc::default());
/// let rule = Rule::builder("logins", "ip", Limit::per_minute(5)).store("hot");
/// let limiter = Limiter::builder().stores(stores).rule(rule).build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Stores {
    /// The first one is the default store.
    stores: Arc<Vec<(Box<str>, Backend)>>,
    /// Time limit for all calls of one request together, for callers that cannot wait for each call
    /// in turn.
    pub(crate) budget: Option<Duration>,
}

/// Where counters are kept. The store in this process is called directly, because it answers faster
/// than a boxed future can be created.
#[derive(Clone, Debug)]
pub(crate) enum Backend {
    Memory(Arc<MemoryStore>),
    Remote(Arc<GuardedStore>),
}

impl Default for Stores {
    fn default() -> Self {
        Self::memory(Arc::default())
    }
}

impl Stores {
    /// The name of the default store.
    pub const DEFAULT: &'static str = "default";
    /// Default time after which a call of a remote store counts as failed.
    pub const TIMEOUT: Duration = GuardedStore::DEADLINE;

    /// Returns a single store in this process.
    pub fn memory(store: Arc<MemoryStore>) -> Self {
        Self::of(Self::DEFAULT, Backend::Memory(store))
    }

    /// Returns a single remote store. If a call takes longer than `timeout`, the failure mode of
    /// its limits decides.
    pub fn remote(store: Arc<dyn Store>, timeout: Duration) -> Self {
        Self::of(Self::DEFAULT, guarded(Self::DEFAULT, store, timeout))
    }

    fn of(name: &str, backend: Backend) -> Self {
        Self { stores: Arc::new(vec![(name.into(), backend)]), budget: None }
    }

    /// Returns the same stores for requests that must be decided within `budget`.
    pub(crate) fn within(&self, budget: Duration) -> Self {
        let within = |backend: &Backend| match backend {
            Backend::Memory(store) => Backend::Memory(store.clone()),
            Backend::Remote(store) => Backend::Remote(store.within(budget)),
        };
        let stores = self.stores.iter().map(|(name, backend)| (name.clone(), within(backend)));
        Self { stores: Arc::new(stores.collect()), budget: Some(budget) }
    }

    /// Adds a store in this process for rules that name it. The name `default` replaces the default
    /// store.
    #[must_use]
    pub fn and_memory(self, name: &str, store: Arc<MemoryStore>) -> Self {
        self.and(name, Backend::Memory(store))
    }

    /// Adds a remote store for rules that name it. The name `default` replaces the default store.
    #[must_use]
    pub fn and_remote(self, name: &str, store: Arc<dyn Store>, timeout: Duration) -> Self {
        self.and(name, guarded(name, store, timeout))
    }

    fn and(mut self, name: &str, backend: Backend) -> Self {
        let stores = Arc::make_mut(&mut self.stores);
        match stores.iter_mut().find(|(other, _)| **other == *name) {
            Some((_, store)) => *store = backend,
            None => stores.push((name.into(), backend)),
        }
        self
    }

    /// Returns the health of each store.
    pub fn health(&self) -> impl Iterator<Item = (&str, StoreHealth)> {
        self.stores.iter().map(|(name, backend)| {
            let health = match backend {
                Backend::Memory(_) => StoreHealth::Up,
                Backend::Remote(store) => store.health(),
            };
            (&**name, health)
        })
    }

    /// Returns the state of the circuit breaker of each store. It is always closed for stores in
    /// this process.
    pub fn breakers(&self) -> impl Iterator<Item = (&str, BreakerState)> {
        self.stores.iter().map(|(name, backend)| {
            let state = match backend {
                Backend::Memory(_) => BreakerState::Closed,
                Backend::Remote(store) => store.breaker(),
            };
            (&**name, state)
        })
    }

    /// Returns the metrics that each store reports about itself.
    pub fn figures(&self) -> impl Iterator<Item = (&str, Figures)> {
        self.stores.iter().map(|(name, backend)| (&**name, backend.as_dyn().figures()))
    }

    /// Whether there is a store with this name.
    pub fn has(&self, name: &str) -> bool {
        self.index(name).is_some()
    }

    /// Returns the store if there is only one and it is in this process.
    #[inline]
    pub(crate) fn only_memory(&self) -> Option<&MemoryStore> {
        match self.stores.as_slice() {
            [(_, Backend::Memory(store))] => Some(store),
            _ => None,
        }
    }

    /// Returns the index of a store; the default store has index 0.
    pub(crate) fn index(&self, name: &str) -> Option<usize> {
        self.stores.iter().position(|(other, _)| **other == *name)
    }

    /// The store for the records of idempotency keys, whatever limits a check has: the first store
    /// that nodes share, so that a repeated request is recognised on every node.
    pub(crate) fn record_store(&self) -> usize {
        (0..self.stores.len()).find(|store| self.is_shared(*store)).unwrap_or_default()
    }

    /// Whether other nodes use the store too.
    pub(crate) fn is_shared(&self, store: usize) -> bool {
        matches!(self.backend(store), Backend::Remote(_))
    }

    /// Returns the store at an index returned by [`index`](Self::index).
    #[inline]
    pub(crate) fn backend(&self, store: usize) -> &Backend {
        &self.stores[store].1
    }

    /// Applies a command. `stores` contains the index of the store of each charge.
    pub(crate) async fn apply(&self, command: &Command<'_>, stores: &[usize]) -> Result<Outcome, StoreError> {
        self.apply_within(command, stores, Duration::MAX).await
    }

    /// Like [`apply`](Self::apply), for a caller with at most this much time left.
    ///
    /// Calls that wait are boxed: a future is moved before it is polled, and the futures of checks
    /// in this process should be small.
    pub(crate) async fn apply_within(
        &self,
        command: &Command<'_>,
        stores: &[usize],
        at_most: Duration,
    ) -> Result<Outcome, StoreError> {
        let record = command.idempotency().map(|_| self.record_store());
        let first = stores.iter().copied().chain(record).next().unwrap_or_default();
        if stores.iter().copied().chain(record).all(|store| store == first) {
            return self.apply_in(first, command, at_most).await;
        }
        Box::pin(self.apply_apart(command, &by_store(stores), record, at_most)).await
    }

    /// Applies a command without an idempotency key, in the order of its `groups`.
    pub(crate) async fn apply_groups(
        &self,
        command: &Command<'_>,
        groups: &[Group],
        at_most: Duration,
    ) -> Result<Outcome, StoreError> {
        match groups {
            [only] => self.apply_in(only.store, command, at_most).await,
            groups => Box::pin(self.apply_apart(command, groups, None, at_most)).await,
        }
    }

    async fn apply_in(
        &self,
        store: usize,
        command: &Command<'_>,
        at_most: Duration,
    ) -> Result<Outcome, StoreError> {
        match self.backend(store) {
            Backend::Memory(store) => {
                let _span = in_memory(1).entered();
                store.apply_now(command, None)
            }
            Backend::Remote(store) => Box::pin(store.apply_within(command, None, at_most)).await,
        }
    }

    /// Applies a command whose charges and idempotency record need several steps.
    async fn apply_apart(
        &self,
        command: &Command<'_>,
        groups: &[Group],
        record: Option<usize>,
        at_most: Duration,
    ) -> Result<Outcome, StoreError> {
        let record = record.filter(|record| groups.last().is_none_or(|group| group.store != *record));
        let steps = groups.len() + usize::from(record.is_some());
        let at_most = at_most / u32::try_from(steps).unwrap_or(u32::MAX);
        let store =
            |index: usize| Arc::new(TimeLimitedStore { backend: self.backend(index).clone(), at_most });
        let part = |group: &Group| Part { store: store(group.store), charges: group.charges.clone() };
        let mut parts: Vec<Part> = groups.iter().map(part).collect();
        parts.extend(record.map(|index| Part { store: store(index), charges: SmallVec::new() }));
        apply_in_parts(parts, command, None).await
    }
}

/// Charges of a command that one store applies in one step.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) store: usize,
    /// The indices of the charges.
    pub(crate) charges: SmallVec<[usize; 4]>,
}

/// Groups charges by store, in the order of the stores, so that all callers charge in the same
/// order.
fn by_store(stores: &[usize]) -> Vec<Group> {
    let mut used: SmallVec<[usize; 4]> = stores.into();
    used.sort_unstable();
    used.dedup();
    let group = |store: usize| {
        let own = stores.iter().enumerate().filter(|(_, other)| **other == store);
        Group { store, charges: own.map(|(charge, _)| charge).collect() }
    };
    used.into_iter().map(group).collect()
}

/// A store with a time limit for its calls.
#[derive(Debug)]
struct TimeLimitedStore {
    backend: Backend,
    at_most: Duration,
}

impl Store for TimeLimitedStore {
    fn apply<'a>(&'a self, command: &'a Command<'a>, now: Option<Timestamp>) -> ApplyFuture<'a> {
        match &self.backend {
            Backend::Memory(store) => store.apply(command, now),
            Backend::Remote(store) => Box::pin(store.apply_within(command, now, self.at_most)),
        }
    }

    fn apply_batch<'a>(&'a self, commands: &'a [Command<'a>], now: Option<Timestamp>) -> BatchFuture<'a> {
        match &self.backend {
            Backend::Memory(store) => store.apply_batch(commands, now),
            Backend::Remote(store) => Box::pin(store.apply_batch_within(commands, now, self.at_most)),
        }
    }
}

impl Backend {
    pub(crate) fn as_dyn(&self) -> &dyn Store {
        match self {
            Self::Memory(store) => &**store,
            Self::Remote(store) => &**store,
        }
    }

    /// Applies a command that has no answer by failure mode.
    pub(crate) async fn apply_or_fail(&self, command: &Command<'_>) -> Result<Outcome, StoreError> {
        match self {
            Self::Memory(store) => store.apply_now(command, None),
            Self::Remote(store) => store.apply_or_fail(command).await,
        }
    }

    /// Applies independent commands, for a caller with at most this much time left.
    pub(crate) async fn apply_each(
        &self,
        commands: &[Command<'_>],
        at_most: Duration,
    ) -> Vec<Result<Outcome, StoreError>> {
        match self {
            Self::Memory(store) => {
                let span = in_memory(commands.len());
                let mut outcomes = Vec::with_capacity(commands.len());
                for (index, command) in commands.iter().enumerate() {
                    yield_after_batch(index).await;
                    outcomes.push(span.in_scope(|| store.apply_now(command, None)));
                }
                outcomes
            }
            Self::Remote(store) => store.apply_batch_within(commands, None, at_most).await,
        }
    }
}

/// Yields to other tasks of the thread after every few commands; `index` counts the commands.
pub(crate) async fn yield_after_batch(index: usize) {
    if index > 0 && index.is_multiple_of(COMMANDS_PER_YIELD) {
        yield_now().await;
    }
}

/// The span of a call of a store in this process, like those of guarded stores.
pub(crate) fn in_memory(commands: usize) -> tracing::Span {
    tracing::info_span!(target: TRACES, "store", store = "memory", commands)
}

fn guarded(name: &str, store: Arc<dyn Store>, timeout: Duration) -> Backend {
    // While the store is unavailable, ad-hoc limits must not use up the local memory that rules
    // need.
    let options = MemoryOptions::default().with_ad_hoc_keys(None);
    Backend::Remote(GuardedStore::new(name, store, Arc::new(MemoryStore::new(options)), timeout))
}
