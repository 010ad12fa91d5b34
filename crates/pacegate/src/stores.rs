//! The stores a limiter counts in, by name. They outlive limiters: new rules on the same stores find the counters where they were.

use std::sync::Arc;
use std::time::Duration;

use pacegate_core::Timestamp;
use pacegate_memory::{MemoryOptions, MemoryStore};
use pacegate_store::{
    ApplyFuture, BreakerState, Command, Figures, GuardedStore, Outcome, Part, Store, StoreError, StoreHealth,
    TRACES, apply_in_parts,
};
use smallvec::SmallVec;
use tokio::task::yield_now;

use crate::config::AdHocConfig;

/// The name of the store for everything that names no other.
pub(crate) const DEFAULT_STORE: &str = "default";

/// So many commands are worked on before other tasks of the thread run.
const AT_ONCE: usize = 32;

/// One store in this process or elsewhere, and further ones that rules can name.
///
/// ```
/// use std::sync::Arc;
/// use pacegate::{Limit, Limiter, MemoryStore, Rule, Stores};
///
/// let stores = Stores::memory(Arc::new(MemoryStore::default())).and_memory("hot", Arc::default());
/// let mut rule = Rule::new("logins", "ip", Limit::per_minute(5)?);
/// rule.store = Some("hot".into());
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
    Elsewhere(Arc<GuardedStore>),
}

impl Default for Stores {
    fn default() -> Self {
        Self::memory(Arc::default())
    }
}

impl Stores {
    /// Counters in this process.
    pub fn memory(store: Arc<MemoryStore>) -> Self {
        Self::of(DEFAULT_STORE, Keeper::Memory(store))
    }

    /// Counters elsewhere. A call that takes longer than `timeout` is answered by the failure mode of its limits.
    pub fn remote(store: Arc<dyn Store>, timeout: Duration) -> Self {
        Self::of(DEFAULT_STORE, guarded(DEFAULT_STORE, store, timeout))
    }

    fn of(name: &str, keeper: Keeper) -> Self {
        Self { stores: Arc::new(vec![(name.into(), keeper)]), budget: None }
    }

    /// The same stores for requests that must be answered within `budget`, whatever it takes to answer them.
    pub(crate) fn within(&self, budget: Duration) -> Self {
        let within = |keeper: &Keeper| match keeper {
            Keeper::Memory(store) => Keeper::Memory(store.clone()),
            Keeper::Elsewhere(store) => Keeper::Elsewhere(store.within(budget)),
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
                Keeper::Elsewhere(store) => store.health(),
            };
            (&**name, health)
        })
    }

    /// Whether each store is asked at all; those in this process always are.
    pub fn breakers(&self) -> impl Iterator<Item = (&str, BreakerState)> {
        self.stores.iter().map(|(name, keeper)| {
            let state = match keeper {
                Keeper::Memory(_) => BreakerState::Closed,
                Keeper::Elsewhere(store) => store.breaker(),
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
        self.place(name).is_some()
    }

    /// The store, if there is only one and it is in this process.
    #[inline]
    pub(crate) fn only_memory(&self) -> Option<&MemoryStore> {
        match self.stores.as_slice() {
            [(_, Keeper::Memory(store))] => Some(store),
            _ => None,
        }
    }

    /// The place of a store; the first is the default one.
    pub(crate) fn place(&self, name: &str) -> Option<usize> {
        self.stores.iter().position(|(other, _)| **other == *name)
    }

    /// Where the records of idempotency keys are, whatever limits a check has: in the first store that other nodes
    /// share, so that a repetition is recognised wherever it arrives.
    pub(crate) fn record_place(&self) -> usize {
        (0..self.stores.len()).find(|place| self.is_shared(*place)).unwrap_or_default()
    }

    /// Whether other nodes have the store at `place` too.
    pub(crate) fn is_shared(&self, place: usize) -> bool {
        matches!(self.keeper(place), Keeper::Elsewhere(_))
    }

    /// The store at `place`, which came from [`place`](Self::place).
    #[inline]
    pub(crate) fn keeper(&self, place: usize) -> &Keeper {
        &self.stores[place].1
    }

    /// Applies a command whose charges are kept in `places`, one for each charge.
    pub(crate) async fn apply(&self, command: &Command<'_>, places: &[usize]) -> Result<Outcome, StoreError> {
        self.apply_within(command, places, Duration::MAX).await
    }

    /// As [`apply`](Self::apply), for a caller who has only so much time left.
    ///
    /// What has to wait is put into a box: futures are moved before they are polled, and those of checks in this process had better be small.
    pub(crate) async fn apply_within(
        &self,
        command: &Command<'_>,
        places: &[usize],
        at_most: Duration,
    ) -> Result<Outcome, StoreError> {
        let record = command.idempotency().map(|_| self.record_place());
        let first = places.iter().copied().chain(record).next().unwrap_or_default();
        if places.iter().copied().chain(record).all(|place| place == first) {
            return match self.keeper(first) {
                Keeper::Memory(store) => {
                    let _span = in_memory(1).entered();
                    store.apply_now(command, None)
                }
                Keeper::Elsewhere(store) => Box::pin(apply_elsewhere(store, command, at_most)).await,
            };
        }
        Box::pin(self.apply_apart(command, places, record, at_most)).await
    }

    /// Applies a command whose charges and record are kept in several stores.
    async fn apply_apart(
        &self,
        command: &Command<'_>,
        places: &[usize],
        record: Option<usize>,
        at_most: Duration,
    ) -> Result<Outcome, StoreError> {
        // By the place of the store, so that all callers charge in the same order.
        let mut used: SmallVec<[usize; 4]> = places.into();
        used.sort_unstable();
        used.dedup();
        let record = record.filter(|record| used.last() != Some(record));
        let at_most = at_most / u32::try_from(used.len() + usize::from(record.is_some())).unwrap_or(u32::MAX);
        let store = |place: usize| Arc::new(Hurried { keeper: self.keeper(place).clone(), at_most });
        let part = |place: usize| {
            let own = places.iter().enumerate().filter(|(_, other)| **other == place);
            Part { store: store(place), places: own.map(|(charge, _)| charge).collect() }
        };
        let mut parts: Vec<Part> = used.into_iter().map(part).collect();
        parts.extend(record.map(|place| Part { store: store(place), places: SmallVec::new() }));
        apply_in_parts(parts, command, None).await
    }
}

/// A store and the time that is left for it.
#[derive(Debug)]
struct Hurried {
    keeper: Keeper,
    at_most: Duration,
}

impl Store for Hurried {
    fn apply<'a>(&'a self, commands: &'a [Command<'a>], now: Option<Timestamp>) -> ApplyFuture<'a> {
        match &self.keeper {
            Keeper::Memory(store) => store.apply(commands, now),
            Keeper::Elsewhere(store) => Box::pin(store.apply_within(commands, now, self.at_most)),
        }
    }
}

impl Keeper {
    pub(crate) fn as_dyn(&self) -> &dyn Store {
        match self {
            Self::Memory(store) => &**store,
            Self::Elsewhere(store) => &**store,
        }
    }

    /// Applies a command that the failure mode cannot answer.
    pub(crate) async fn apply_or_fail(&self, command: &Command<'_>) -> Result<Outcome, StoreError> {
        match self {
            Self::Memory(store) => store.apply_now(command, None),
            Self::Elsewhere(store) => store.apply_or_fail(command).await,
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
            Self::Elsewhere(store) => store.apply_within(commands, None, at_most).await,
        }
    }
}

/// Lets other tasks of the thread run, now and then, while work on many commands goes on; `index` counts them.
pub(crate) async fn between(index: usize) {
    if index > 0 && index.is_multiple_of(AT_ONCE) {
        yield_now().await;
    }
}

async fn apply_elsewhere(
    store: &GuardedStore,
    command: &Command<'_>,
    at_most: Duration,
) -> Result<Outcome, StoreError> {
    let outcome = store.apply_within(std::slice::from_ref(command), None, at_most).await.pop();
    outcome.unwrap_or_else(|| Err(StoreError::unanswered()))
}

/// The span of a call of a store in this process, as guarded stores have theirs.
pub(crate) fn in_memory(commands: usize) -> tracing::Span {
    tracing::info_span!(target: TRACES, "store", store = "memory", commands)
}

fn guarded(name: &str, store: Arc<dyn Store>, timeout: Duration) -> Keeper {
    // While the store fails, requests with ad-hoc limits must not use up what rules need.
    let options = AdHocConfig::default().bound(MemoryOptions::default());
    Keeper::Elsewhere(GuardedStore::new(name, store, Arc::new(MemoryStore::new(options)), timeout))
}
