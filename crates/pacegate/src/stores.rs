//! The stores a limiter counts in, by name. They outlive limiters: new rules on the same stores find the counters where they were.

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

/// So many commands are worked on before other tasks of the thread run.
const AT_ONCE: usize = 8;

/// One store in this process or elsewhere, and further ones that rules can name.
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
    /// The first is the default one.
    stores: Arc<Vec<(Box<str>, Keeper)>>,
    /// How long all calls for one request may take together, for callers who cannot wait for each in turn.
    pub(crate) budget: Option<Duration>,
}

/// Where counters are. The store in the process is called directly, because its answer is there before a future would be made.
#[derive(Clone, Debug)]
pub(crate) enum Keeper {
    Memory(Arc<MemoryStore>),
    Remote(Arc<GuardedStore>),
}

impl Default for Stores {
    fn default() -> Self {
        Self::memory(Arc::default())
    }
}

impl Stores {
    /// The name of the store for everything that names no other.
    pub const DEFAULT: &'static str = "default";
    /// How long a remote store may take before it counts as failed, unless configured otherwise.
    pub const TIMEOUT: Duration = GuardedStore::DEADLINE;

    /// Counters in this process.
    pub fn memory(store: Arc<MemoryStore>) -> Self {
        Self::of(Self::DEFAULT, Keeper::Memory(store))
    }

    /// Counters elsewhere. A call that takes longer than `timeout` is answered by the failure mode of its limits.
    pub fn remote(store: Arc<dyn Store>, timeout: Duration) -> Self {
        Self::of(Self::DEFAULT, guarded(Self::DEFAULT, store, timeout))
    }

    fn of(name: &str, keeper: Keeper) -> Self {
        Self { stores: Arc::new(vec![(name.into(), keeper)]), budget: None }
    }

    /// The same stores for requests that must be answered within `budget`, whatever it takes to answer them.
    pub(crate) fn within(&self, budget: Duration) -> Self {
        let within = |keeper: &Keeper| match keeper {
            Keeper::Memory(store) => Keeper::Memory(store.clone()),
            Keeper::Remote(store) => Keeper::Remote(store.within(budget)),
        };
        let stores = self.stores.iter().map(|(name, keeper)| (name.clone(), within(keeper)));
        Self { stores: Arc::new(stores.collect()), budget: Some(budget) }
    }

    /// A further store in this process, for rules that name it. The name `default` replaces the default one.
    #[must_use]
    pub fn and_memory(self, name: &str, store: Arc<MemoryStore>) -> Self {
        self.and(name, Keeper::Memory(store))
    }

    /// A further store elsewhere, for rules that name it. The name `default` replaces the default one.
    #[must_use]
    pub fn and_remote(self, name: &str, store: Arc<dyn Store>, timeout: Duration) -> Self {
        self.and(name, guarded(name, store, timeout))
    }

    fn and(mut self, name: &str, keeper: Keeper) -> Self {
        let stores = Arc::make_mut(&mut self.stores);
        match stores.iter_mut().find(|(other, _)| **other == *name) {
            Some((_, store)) => *store = keeper,
            None => stores.push((name.into(), keeper)),
        }
        self
    }

    /// Whether each store can be relied on now.
    pub fn health(&self) -> impl Iterator<Item = (&str, StoreHealth)> {
        self.stores.iter().map(|(name, keeper)| {
            let health = match keeper {
                Keeper::Memory(_) => StoreHealth::Up,
                Keeper::Remote(store) => store.health(),
            };
            (&**name, health)
        })
    }

    /// Whether each store is asked at all; those in this process always are.
    pub fn breakers(&self) -> impl Iterator<Item = (&str, BreakerState)> {
        self.stores.iter().map(|(name, keeper)| {
            let state = match keeper {
                Keeper::Memory(_) => BreakerState::Closed,
                Keeper::Remote(store) => store.breaker(),
            };
            (&**name, state)
        })
    }

    /// What each store has counted about itself, for operators.
    pub fn figures(&self) -> impl Iterator<Item = (&str, Figures)> {
        self.stores.iter().map(|(name, keeper)| (&**name, keeper.as_dyn().figures()))
    }

    /// Whether there is a store of that name.
    pub fn has(&self, name: &str) -> bool {
        self.index(name).is_some()
    }

    /// The store, if there is only one and it is in this process.
    #[inline]
    pub(crate) fn only_memory(&self) -> Option<&MemoryStore> {
        match self.stores.as_slice() {
            [(_, Keeper::Memory(store))] => Some(store),
            _ => None,
        }
    }

    /// The index of a store; the first is the default one.
    pub(crate) fn index(&self, name: &str) -> Option<usize> {
        self.stores.iter().position(|(other, _)| **other == *name)
    }

    /// Where the records of idempotency keys are, whatever limits a check has: in the first store that other nodes
    /// share, so that a repetition is recognised wherever it arrives.
    pub(crate) fn record_store(&self) -> usize {
        (0..self.stores.len()).find(|store| self.is_shared(*store)).unwrap_or_default()
    }

    /// Whether other nodes have the store too.
    pub(crate) fn is_shared(&self, store: usize) -> bool {
        matches!(self.keeper(store), Keeper::Remote(_))
    }

    /// The store at an index that came from [`index`](Self::index).
    #[inline]
    pub(crate) fn keeper(&self, store: usize) -> &Keeper {
        &self.stores[store].1
    }

    /// Applies a command whose charges are kept in `stores`, one for each charge.
    pub(crate) async fn apply(&self, command: &Command<'_>, stores: &[usize]) -> Result<Outcome, StoreError> {
        self.apply_within(command, stores, Duration::MAX).await
    }

    /// As [`apply`](Self::apply), for a caller that has at most this much time left.
    ///
    /// What has to wait is boxed: futures are moved before they are polled, and those of checks in this process should be small.
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

    /// Applies a command without an idempotency key whose charges are in `groups`, in their order.
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
        match self.keeper(store) {
            Keeper::Memory(store) => {
                let _span = in_memory(1).entered();
                store.apply_now(command, None)
            }
            Keeper::Remote(store) => Box::pin(store.apply_within(command, None, at_most)).await,
        }
    }

    /// Applies a command whose charges and record take several steps.
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
        let store = |index: usize| Arc::new(Hurried { keeper: self.keeper(index).clone(), at_most });
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
    /// Indices of charges.
    pub(crate) charges: SmallVec<[usize; 4]>,
}

/// The charges of each store, in the order of the stores, so that all callers charge in the same order.
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

/// A store and the time that is left for it.
#[derive(Debug)]
struct Hurried {
    keeper: Keeper,
    at_most: Duration,
}

impl Store for Hurried {
    fn apply<'a>(&'a self, command: &'a Command<'a>, now: Option<Timestamp>) -> ApplyFuture<'a> {
        match &self.keeper {
            Keeper::Memory(store) => store.apply(command, now),
            Keeper::Remote(store) => Box::pin(store.apply_within(command, now, self.at_most)),
        }
    }

    fn apply_batch<'a>(&'a self, commands: &'a [Command<'a>], now: Option<Timestamp>) -> BatchFuture<'a> {
        match &self.keeper {
            Keeper::Memory(store) => store.apply_batch(commands, now),
            Keeper::Remote(store) => Box::pin(store.apply_batch_within(commands, now, self.at_most)),
        }
    }
}

impl Keeper {
    pub(crate) fn as_dyn(&self) -> &dyn Store {
        match self {
            Self::Memory(store) => &**store,
            Self::Remote(store) => &**store,
        }
    }

    /// Applies a command that the failure mode cannot answer.
    pub(crate) async fn apply_or_fail(&self, command: &Command<'_>) -> Result<Outcome, StoreError> {
        match self {
            Self::Memory(store) => store.apply_now(command, None),
            Self::Remote(store) => store.apply_or_fail(command).await,
        }
    }

    /// Applies commands that have nothing to do with each other, for a caller who has only so much time left.
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
                    between(index).await;
                    outcomes.push(span.in_scope(|| store.apply_now(command, None)));
                }
                outcomes
            }
            Self::Remote(store) => store.apply_batch_within(commands, None, at_most).await,
        }
    }
}

/// Lets other tasks of the thread run, now and then, while work on many commands goes on; `index` counts them.
pub(crate) async fn between(index: usize) {
    if index > 0 && index.is_multiple_of(AT_ONCE) {
        yield_now().await;
    }
}

/// The span of a call of a store in this process, as guarded stores have theirs.
pub(crate) fn in_memory(commands: usize) -> tracing::Span {
    tracing::info_span!(target: TRACES, "store", store = "memory", commands)
}

fn guarded(name: &str, store: Arc<dyn Store>, timeout: Duration) -> Keeper {
    // While the store fails, requests with ad-hoc limits must not use up what rules need.
    let options = MemoryOptions::default().with_ad_hoc_keys(None);
    Keeper::Remote(GuardedStore::new(name, store, Arc::new(MemoryStore::new(options)), timeout))
}
