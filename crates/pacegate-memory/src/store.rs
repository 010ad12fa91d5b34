//! The store: which locks a command takes, and in what order.

use std::collections::HashMap;
use std::future::ready;
use std::hash::BuildHasher as _;
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use foldhash::quality::RandomState;
use pacegate_core::{Answers, AsDemand, ChainDecision, Fit, Origin, State, States, Taken, Timestamp, chain};
use pacegate_store::{
    Action, ApplyFuture, BatchFuture, Charge, Clock, Command, Figure, Figures, Idempotency, Outcome, Store,
    StoreError,
};
use smallvec::SmallVec;

use crate::clock::SystemClock;
use crate::idempotency::{Admissions, Earlier, digest};
use crate::index::POSITIONS_MAX;
use crate::shard::{Dropped, Entry, Lookup, Probe, Shard};
use crate::sync::{AtomicUsize, Mutex, MutexGuard, Ordering};

/// Number of shards in which a full store searches for expired keys before a new key uses the
/// overflow counter.
const SEARCHED_SHARDS: usize = 2;
/// Maximum number of overflow counters besides the keys. Configured rules, of which there can be
/// 100,000, have one each. Those that callers invent share a smaller number.
const CONFIGURED_OVERFLOW_MAX: usize = 1 << 17;
const CALLERS_OVERFLOW_MAX: usize = 4_096;
/// Minimum number of keys per shard; fewer do not need a lock of their own.
const KEYS_PER_SHARD_MIN: usize = 64;
const SHARDS_MAX: usize = 1 << 12;
/// Idempotency keys are rarer than checks and stay locked for a whole take.
const ADMISSION_SHARDS: usize = 64;

/// The bounds of a [`MemoryStore`].
///
/// ```
/// use pacegate_memory::{MemoryOptions, MemoryStore};
///
/// let store = MemoryStore::new(MemoryOptions { max_keys: 10_000, ..MemoryOptions::default() });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryOptions {
    /// Maximum number of keys; beyond it, new keys share an overflow counter per rule while all
    /// others are live.
    pub max_keys: usize,
    /// Maximum number of keys of ad-hoc limits; further ones share overflow counters.
    pub max_ad_hoc_keys: usize,
    /// Maximum number of idempotency keys, each kept for five minutes. Beyond it, a take is decided
    /// as if it had none.
    pub max_idempotency_keys: usize,
    /// Number of shards, rounded up to a power of two. More shards mean less contention between
    /// threads and shorter pauses when the table of one shard grows.
    pub shards: usize,
}

impl MemoryOptions {
    /// The largest valid `max_keys`.
    pub const KEYS_MAX: usize = 1 << 30;

    /// The same options with at most `max` keys of ad-hoc limits; a tenth of all keys if it is
    /// `None`.
    #[must_use]
    pub fn with_ad_hoc_keys(self, max: Option<usize>) -> Self {
        let max = max.unwrap_or((self.max_keys / 10).max(1));
        Self { max_ad_hoc_keys: max.min(self.max_keys), ..self }
    }
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self { max_keys: 1_000_000, max_ad_hoc_keys: usize::MAX, max_idempotency_keys: 262_144, shards: 128 }
    }
}

/// A store with counters in this process. See the crate documentation.
///
/// ```
/// use pacegate_memory::MemoryStore;
///
/// let store = MemoryStore::default();
/// ```
#[derive(Debug)]
pub struct MemoryStore {
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    admissions: Box<[Mutex<Admissions>]>,
    hasher: RandomState,
    /// Number of keys in all shards, and of those about to be inserted.
    keys: CachePadded<AtomicUsize>,
    /// The same for keys of ad-hoc limits.
    ad_hoc_keys: CachePadded<AtomicUsize>,
    /// The same for overflow counters.
    overflow: CachePadded<OverflowPools>,
    /// Number of commands with a limit that got no counter, so that its failure mode applied.
    uncounted: AtomicUsize,
    /// Number of takes whose idempotency key was not recorded.
    unrecorded: AtomicUsize,
    /// The next shard to search for expired keys.
    hand: AtomicUsize,
    options: MemoryOptions,
    clock: StoreClock,
}

/// The number of overflow counters by origin: those that callers invent do not use up those of
/// rules.
#[derive(Debug)]
struct OverflowPools {
    configured: AtomicUsize,
    callers: AtomicUsize,
}

impl OverflowPools {
    /// The number of overflow counters of this origin, and their maximum.
    fn of(&self, origin: Origin) -> (&AtomicUsize, usize) {
        match origin {
            Origin::Configured => (&self.configured, CONFIGURED_OVERFLOW_MAX),
            Origin::CallersDimension | Origin::AdHoc => (&self.callers, CALLERS_OVERFLOW_MAX),
        }
    }

    fn is_empty(&self) -> bool {
        [&self.configured, &self.callers].iter().all(|pool| pool.load(Ordering::Relaxed) == 0)
    }
}

/// The bound that a new key exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bound {
    Keys,
    AdHocKeys,
}

/// The machine's clock is the common case and is read without dynamic dispatch.
#[derive(Debug)]
enum StoreClock {
    System(SystemClock),
    Other(Arc<dyn Clock>),
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new(MemoryOptions::default())
    }
}

impl MemoryStore {
    /// An empty store on the machine's clock.
    pub fn new(options: MemoryOptions) -> Self {
        Self::build(options, StoreClock::System(SystemClock::new()))
    }

    /// An empty store. `clock` is read when a command does not specify a time.
    pub fn with_clock(options: MemoryOptions, clock: Arc<dyn Clock>) -> Self {
        Self::build(options, StoreClock::Other(clock))
    }

    fn build(options: MemoryOptions, clock: StoreClock) -> Self {
        // A store with few keys has few shards, so that a search for expired keys covers all of
        // them.
        let useful = options.max_keys.div_ceil(KEYS_PER_SHARD_MIN);
        // A shard can index so many keys, and keys are not spread evenly.
        let needed = options.max_keys.div_ceil(POSITIONS_MAX / 2);
        let shards = options.shards.min(useful).clamp(needed.max(1), SHARDS_MAX).next_power_of_two();
        Self {
            shards: (0..shards).map(|_| CachePadded::new(Mutex::new(Shard::default()))).collect(),
            admissions: (0..ADMISSION_SHARDS).map(|_| Mutex::new(Admissions::default())).collect(),
            hasher: RandomState::default(),
            keys: CachePadded::new(AtomicUsize::new(0)),
            ad_hoc_keys: CachePadded::new(AtomicUsize::new(0)),
            overflow: CachePadded::new(OverflowPools {
                configured: AtomicUsize::new(0),
                callers: AtomicUsize::new(0),
            }),
            uncounted: AtomicUsize::new(0),
            unrecorded: AtomicUsize::new(0),
            hand: AtomicUsize::new(0),
            options: MemoryOptions { shards, ..options },
            clock,
        }
    }

    /// The current number of keys.
    pub fn keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    /// Charges one limit without waiting. `None` for `now` is the store's own time.
    ///
    /// # Errors
    /// Never fails at present: a limit that gets no counter, not even an overflow counter, is
    /// decided by its failure mode.
    pub fn take(&self, charge: &Charge<'_>, now: Option<Timestamp>) -> Result<ChainDecision, StoreError> {
        let lookup = Lookup::new(&charge.key);
        let probe = lookup.probe(&self.hasher);
        let mut shard = self.shards[self.shard_of(probe.hash)].lock();
        let Some(position) = shard.find(&probe) else {
            drop(shard);
            return self.decide(&Command::take(std::slice::from_ref(charge)), now, true);
        };
        let moment = self.moment(now);
        let due = shard.pass();
        let answer = shard.entry_mut(position).take(&charge.demand(), moment.now);
        drop(shard);
        if due {
            self.sweep_next(moment);
        }
        Ok(ChainDecision::new(answer.allowed || charge.shadow, moment.now, Answers::from_buf([answer])))
    }

    /// The fast path for the common case: one enforced limit that fits, under a known key. Returns
    /// the time and the result of the charge. `None` means that nothing was charged and the caller
    /// has to call [`take`](Self::take). An invalid key is never known, so a caller has to validate
    /// it only then.
    #[inline(always)]
    pub fn take_known(&self, charge: &Charge<'_>) -> Option<(Timestamp, Taken)> {
        let probe = Probe::of_plain(&charge.key, &self.hasher)?;
        if charge.fit != Fit::Whole {
            return None;
        }
        // Read before the lock, which is 70 ns faster with many keys. This is safe because only
        // refunds of a log depend on the exact time, and logs are not charged here.
        let moment = self.moment(None);
        let mut shard = self.shards[self.shard_of(probe.hash)].lock();
        let position = shard.find(&probe)?;
        let entry = shard.entry_mut(position);
        let taken = entry.state.take(charge.limit, moment.now, charge.cost)?;
        entry.set_fresh_at(Some(taken.reset_at()));
        // Counted last, because a take that fails here is counted on the general path.
        let due = shard.pass();
        drop(shard);
        if due {
            self.sweep_next(moment);
        }
        Some((moment.now, taken))
    }

    /// Applies one command without waiting.
    ///
    /// # Errors
    /// [`StoreError`] when there are too many idempotency keys to record one without an identity.
    pub fn apply_now(&self, command: &Command<'_>, now: Option<Timestamp>) -> Result<Outcome, StoreError> {
        match (command.charges, &command.action) {
            ([charge], Action::Take { idempotency: None }) => self.take(charge, now).map(Outcome::Decided),
            _ => self.execute(command, now),
        }
    }

    /// The time of a command. Read under the locks wherever the time of a key has to advance in the
    /// order of its commands.
    #[inline(always)]
    fn moment(&self, now: Option<Timestamp>) -> Moment {
        match now {
            Some(now) => Moment { now, own: false },
            None => {
                let now = match &self.clock {
                    StoreClock::System(clock) => clock.now(),
                    StoreClock::Other(clock) => clock.now(),
                };
                Moment { now, own: true }
            }
        }
    }

    fn execute(&self, command: &Command<'_>, now: Option<Timestamp>) -> Result<Outcome, StoreError> {
        match command.action {
            Action::Take { idempotency: None } => self.decide(command, now, true).map(Outcome::Decided),
            Action::Take { idempotency: Some(idempotency) } => self.once(command, &idempotency, now, true),
            Action::Peek { idempotency: Some(idempotency) } => self.once(command, &idempotency, now, false),
            Action::Peek { idempotency: None } => self.decide(command, now, false).map(Outcome::Decided),
            Action::Refund => Ok(Outcome::Decided(self.refund(command, now))),
            Action::ResetVariants => {
                self.reset_variants(command);
                Ok(Outcome::Reset { at: self.reset(command, now) })
            }
            _ => Ok(Outcome::Reset { at: self.reset(command, now) }),
        }
    }

    /// Decides any number of limits at once, and charges them if `take` is set.
    fn decide(
        &self,
        command: &Command<'_>,
        now: Option<Timestamp>,
        take: bool,
    ) -> Result<ChainDecision, StoreError> {
        let mut lookups = self.lookups(command);
        loop {
            let mut locked = Locked::new(self, &lookups);
            let moment = self.moment(now);
            let now = moment.now;
            let missing = |lookup: &Lookup| locked.find(lookup).is_none();
            let needs_key = |lookup: &Lookup| !lookup.is_overflow() && missing(lookup);
            let ad_hoc = |lookup: &Lookup| lookup.origin() == Origin::AdHoc && needs_key(lookup);
            let own = lookups.iter().filter(|lookup| needs_key(lookup)).count();
            let own_ad_hoc = lookups.iter().filter(|lookup| ad_hoc(lookup)).count();
            if let Err(bound) = self.reserve_keys(own, own_ad_hoc, take) {
                // Limits of the configuration get the free slots before ad-hoc ones.
                let index = lookups.iter().position(ad_hoc).or_else(|| lookups.iter().position(needs_key));
                // Expired keys are dropped without holding locks. If there are none, the key shares
                // its rule's overflow counter.
                drop(locked);
                if !(take && self.drop_expired_keys(moment, bound))
                    && let Some(index) = index
                {
                    lookups[index] = lookups[index].overflow();
                }
                continue;
            }
            let first = |index: usize| !lookups[..index].contains(&lookups[index]);
            let unshared =
                |(index, lookup): &(usize, &Lookup)| lookup.is_overflow() && missing(lookup) && first(*index);
            let shared: SmallVec<[usize; 4]> =
                lookups.iter().enumerate().filter(unshared).map(|(index, _)| index).collect();
            if take {
                (locked.keys_reserved, locked.ad_hoc_keys_reserved) = (own, own_ad_hoc);
            }
            // Overflow counters beyond their bound; the failure mode of their limits applies.
            let mut uncounted: SmallVec<[usize; 4]> = SmallVec::new();
            for index in shared {
                let origin = lookups[index].origin();
                let (pool, max) = self.overflow.of(origin);
                if !reserve(pool, 1, max, take) {
                    uncounted.push(index);
                } else if take {
                    locked.overflow_reserved.push(origin);
                }
            }
            let decision = if uncounted.is_empty() {
                let mut states = LockedStates { locked: &mut locked, lookups: &lookups };
                if take {
                    chain::take(command.charges, &mut states, now)
                } else {
                    chain::peek(command.charges, &mut states, now)
                }
            } else {
                self.uncounted.fetch_add(1, Ordering::Relaxed);
                let is_uncounted =
                    |index: usize| uncounted.iter().any(|other| lookups[*other] == lookups[index]);
                decide_counted(command, &mut locked, &lookups, is_uncounted, now, take)
            };
            let due = locked.pass();
            drop(locked);
            if due {
                self.sweep_next(moment);
            }
            return Ok(decision);
        }
    }

    /// A take or a peek under an idempotency key, which stays locked from the lookup to the record.
    fn once(
        &self,
        command: &Command<'_>,
        idempotency: &Idempotency<'_>,
        now: Option<Timestamp>,
        take: bool,
    ) -> Result<Outcome, StoreError> {
        let (key, limits) = (digest(idempotency), command.limits_digest());
        let shard = usize::from(key[0]) % ADMISSION_SHARDS;
        // Always locked before the counters, whose locks are never held here.
        let mut admissions = self.admissions[shard].lock();
        match admissions.look_up(&key, &idempotency.fingerprint, limits, self.moment(now).now) {
            Earlier::Admitted(decision) => Ok(Outcome::Decided(decision)),
            Earlier::AdmittedOtherwise => {
                self.decide(command, now, false).map(|peeked| Outcome::Decided(peeked.into_replay()))
            }
            Earlier::Mismatch => Ok(Outcome::Mismatch),
            Earlier::None if !take => self.decide(command, now, false).map(Outcome::Decided),
            Earlier::None => {
                let sender = idempotency.sender.map(|sender| self.hasher.hash_one(sender));
                let max = self.options.max_idempotency_keys.div_ceil(ADMISSION_SHARDS);
                let has_slot = admissions.has_slot(sender, max);
                if !has_slot && idempotency.home.is_none() {
                    // Such a command has no purpose but its record.
                    return Err(StoreError::overloaded());
                }
                let decision = self.decide(command, now, true)?;
                if !has_slot {
                    // Charged now, and charged again if it is repeated: limits hold, whatever
                    // callers send.
                    self.unrecorded.fetch_add(1, Ordering::Relaxed);
                } else if decision.allowed {
                    admissions.record(key, idempotency.fingerprint, limits, sender, &decision);
                }
                Ok(Outcome::Decided(decision))
            }
        }
    }

    fn refund(&self, command: &Command<'_>, now: Option<Timestamp>) -> ChainDecision {
        let mut lookups = self.lookups(command);
        let mut locked = Locked::new(self, &lookups);
        // A key without an entry was charged in its rule's overflow counter. Only its time
        // identifies that charge.
        if !self.overflow.is_empty() {
            let is_absent = |(charge, lookup): (&Charge<'_>, &Lookup)| {
                charge.taken_at.is_some() && locked.find(lookup).is_none()
            };
            let absent: SmallVec<[bool; 4]> = command.charges.iter().zip(&lookups).map(is_absent).collect();
            drop(locked);
            for (lookup, _) in lookups.iter_mut().zip(absent).filter(|(_, absent)| *absent) {
                *lookup = lookup.overflow();
            }
            locked = Locked::new(self, &lookups);
        }
        let now = self.moment(now).now;
        chain::refund(command.charges, &mut LockedStates { locked: &mut locked, lookups: &lookups }, now)
    }

    fn reset(&self, command: &Command<'_>, now: Option<Timestamp>) -> Timestamp {
        let mut lookups = self.lookups(command);
        if matches!(command.action, Action::ResetVariants) {
            let mut counters = command.charges.iter().map(|charge| charge.key.counter());
            lookups.retain(|_| counters.next().is_some_and(|counter| !counter.has_variants()));
        }
        let mut locked = Locked::new(self, &lookups);
        for lookup in &lookups {
            locked.remove(lookup);
        }
        self.moment(now).now
    }

    /// Searches all shards, one after another: there is no index by the part of the digest that
    /// variants share.
    fn reset_variants(&self, command: &Command<'_>) {
        let mut families: HashMap<u32, SmallVec<[Lookup; 1]>> = HashMap::new();
        for charge in command.charges.iter().filter(|charge| charge.key.counter().has_variants()) {
            families.entry(charge.key.counter().family()).or_default().push(Lookup::new(&charge.key));
        }
        if families.is_empty() {
            return;
        }
        for shard in &self.shards {
            let removed = shard.lock().remove_variants(&families, &self.hasher);
            self.subtract(removed);
        }
    }

    fn lookups(&self, command: &Command<'_>) -> SmallVec<[Lookup; 4]> {
        command.charges.iter().map(|charge| Lookup::new(&charge.key)).collect()
    }

    #[inline(always)]
    fn shard_of(&self, hash: u64) -> usize {
        // The table inside the shard uses the lowest and the seven highest bits.
        (hash >> 40) as usize & (self.shards.len() - 1)
    }

    /// Reserves slots for new keys, of which some belong to ad-hoc limits, or returns the exceeded
    /// bound.
    fn reserve_keys(&self, own: usize, ad_hoc: usize, take: bool) -> Result<(), Bound> {
        if ad_hoc > 0 && !reserve(&self.ad_hoc_keys, ad_hoc, self.options.max_ad_hoc_keys, take) {
            return Err(Bound::AdHocKeys);
        }
        if own > 0 && !reserve(&self.keys, own, self.options.max_keys, take) {
            if take {
                self.ad_hoc_keys.fetch_sub(ad_hoc, Ordering::Relaxed);
            }
            return Err(Bound::Keys);
        }
        Ok(())
    }

    /// Searches a few shards for expired keys; returns whether it dropped any under this bound.
    #[cold]
    fn drop_expired_keys(&self, moment: Moment, bound: Bound) -> bool {
        (0..SEARCHED_SHARDS.min(self.shards.len())).any(|_| {
            let dropped = self.sweep_next(moment);
            let found = if bound == Bound::Keys { dropped.keys } else { dropped.ad_hoc_keys };
            found > 0
        })
    }

    /// Subtracts what a shard has dropped.
    fn subtract(&self, dropped: Dropped) {
        self.keys.fetch_sub(dropped.keys, Ordering::Relaxed);
        self.ad_hoc_keys.fetch_sub(dropped.ad_hoc_keys, Ordering::Relaxed);
        self.overflow.configured.fetch_sub(dropped.configured_overflow, Ordering::Relaxed);
        self.overflow.callers.fetch_sub(dropped.callers_overflow, Ordering::Relaxed);
    }

    /// Examines a few entries of the next shard in turn and drops the expired ones; returns how
    /// many.
    ///
    /// The turn passes through all shards whatever keys the commands touch, so that idle shards are
    /// cleared as well. No lock is held here.
    #[cold]
    fn sweep_next(&self, moment: Moment) -> Dropped {
        if !moment.own {
            return Dropped::default();
        }
        let turn = self.hand.fetch_add(1, Ordering::Relaxed) & (self.shards.len() - 1);
        let dropped = self.shards[turn].lock().sweep(moment.now, &self.hasher);
        self.subtract(dropped);
        dropped
    }
}

/// The states of a command's keys, for the chain of its charges.
struct LockedStates<'l, 's> {
    locked: &'l mut Locked<'s>,
    lookups: &'l [Lookup],
}

impl States for LockedStates<'_, '_> {
    fn state(&self, index: usize) -> Option<&State> {
        self.locked.find(&self.lookups[index]).map(|entry| &entry.state)
    }

    #[inline]
    fn update<T>(
        &mut self,
        index: usize,
        change: impl FnOnce(&mut State) -> (T, Option<Timestamp>),
    ) -> Option<T> {
        let entry = self.locked.find_mut(&self.lookups[index])?;
        let (result, fresh_at) = change(&mut entry.state);
        if fresh_at.is_some() {
            entry.set_fresh_at(fresh_at);
        }
        Some(result)
    }

    fn insert(&mut self, index: usize, state: State, fresh_at: Option<Timestamp>) {
        self.locked.insert(&self.lookups[index], state, fresh_at);
    }

    /// New keys of one rule share its overflow counter, so several charges of a command can have
    /// the same one.
    #[inline]
    fn same_key_before(&self, index: usize) -> Option<usize> {
        let (before, own) = (&self.lookups[..index], &self.lookups[index]);
        if own.is_overflow() { before.iter().rposition(|lookup| lookup == own) } else { None }
    }
}

/// Decides a command in which some charges get no counter, not even an overflow counter. The
/// failure mode of these applies, and the others are charged if all of them are allowed.
#[cold]
fn decide_counted(
    command: &Command<'_>,
    locked: &mut Locked<'_>,
    lookups: &[Lookup],
    is_uncounted: impl Fn(usize) -> bool,
    now: Timestamp,
    take: bool,
) -> ChainDecision {
    let indices = || 0..command.charges.len();
    let passes = |index: usize| command.charges[index].shadow || command.charges[index].uncounted().allowed;
    let pass = indices().filter(|index| is_uncounted(*index)).all(passes);
    let counted_indices = || indices().filter(|index| !is_uncounted(*index));
    let charges: SmallVec<[Charge<'_>; 4]> = counted_indices().map(|index| command.charges[index]).collect();
    let own: SmallVec<[Lookup; 4]> = counted_indices().map(|index| lookups[index].clone()).collect();
    let mut states = LockedStates { locked, lookups: &own };
    let decision = if take && pass {
        chain::take(&charges, &mut states, now)
    } else {
        chain::peek(&charges, &mut states, now)
    };
    let mut counted = decision.answers.into_iter();
    let answers: Answers = indices()
        .filter_map(|index| {
            if is_uncounted(index) { Some(command.charges[index].uncounted()) } else { counted.next() }
        })
        .collect();
    ChainDecision::new(pass && decision.allowed, now, answers)
}

/// Whether `newcomers` more fit under `max`; if so, a take reserves their slots.
fn reserve(counted: &AtomicUsize, newcomers: usize, max: usize, take: bool) -> bool {
    let fits = |count: usize| (count + newcomers <= max).then_some(count + newcomers);
    if take {
        counted.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    } else {
        fits(counted.load(Ordering::Relaxed)).is_some()
    }
}

/// The time of a command. Keys expire only by the store's own clock: a time that a command
/// specifies may belong to another history.
#[derive(Clone, Copy, Debug)]
struct Moment {
    now: Timestamp,
    own: bool,
}

/// The locked shards of a command's keys.
struct Locked<'a> {
    store: &'a MemoryStore,
    /// By ascending shard number, which is the order in which locks are taken.
    shards: SmallVec<[(usize, MutexGuard<'a, Shard>); 4]>,
    /// Slots that are already counted; unused ones are released at the end.
    keys_reserved: usize,
    /// How many of them are for ad-hoc limits.
    ad_hoc_keys_reserved: usize,
    /// The origins of the overflow counters that were reserved.
    overflow_reserved: SmallVec<[Origin; 4]>,
}

impl<'a> Locked<'a> {
    fn new(store: &'a MemoryStore, lookups: &[Lookup]) -> Self {
        let shard_of = |lookup: &Lookup| store.shard_of(lookup.probe(&store.hasher).hash);
        let mut numbers: SmallVec<[usize; 4]> = lookups.iter().map(shard_of).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let shards = numbers.into_iter().map(|number| (number, store.shards[number].lock())).collect();
        let overflow_reserved = SmallVec::new();
        Self { store, shards, keys_reserved: 0, ad_hoc_keys_reserved: 0, overflow_reserved }
    }

    /// Whether a sweep is due after this command.
    fn pass(&mut self) -> bool {
        self.shards.first_mut().is_some_and(|(_, shard)| shard.pass())
    }

    fn find(&self, lookup: &Lookup) -> Option<&Entry> {
        let probe = lookup.probe(&self.store.hasher);
        let shard = &self.shards[self.index_of(&probe)].1;
        shard.find(&probe).map(|position| shard.entry(position))
    }

    fn find_mut(&mut self, lookup: &Lookup) -> Option<&mut Entry> {
        let probe = lookup.probe(&self.store.hasher);
        let index = self.index_of(&probe);
        let shard = &mut self.shards[index].1;
        shard.find(&probe).map(|position| shard.entry_mut(position))
    }

    /// Stores a state under a key that had none.
    fn insert(&mut self, lookup: &Lookup, state: State, fresh_at: Option<Timestamp>) {
        let probe = lookup.probe(&self.store.hasher);
        let index = self.index_of(&probe);
        self.shards[index].1.insert(&probe, state, fresh_at, &self.store.hasher);
        let origin = lookup.origin();
        if lookup.is_overflow() {
            if let Some(reserved) = self.overflow_reserved.iter().position(|other| *other == origin) {
                self.overflow_reserved.swap_remove(reserved);
            }
        } else {
            self.keys_reserved = self.keys_reserved.saturating_sub(1);
            let ad_hoc = usize::from(origin == Origin::AdHoc);
            self.ad_hoc_keys_reserved = self.ad_hoc_keys_reserved.saturating_sub(ad_hoc);
        }
    }

    fn remove(&mut self, lookup: &Lookup) {
        let probe = lookup.probe(&self.store.hasher);
        let index = self.index_of(&probe);
        let shard = &mut self.shards[index].1;
        if let Some(position) = shard.find(&probe) {
            let mut dropped = Dropped::default();
            dropped.count(shard.entry(position));
            shard.remove(position, &self.store.hasher);
            self.store.subtract(dropped);
        }
    }

    fn index_of(&self, probe: &Probe<'_>) -> usize {
        let number = self.store.shard_of(probe.hash);
        self.shards.iter().position(|(locked, _)| *locked == number).unwrap_or_default()
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if self.keys_reserved > 0 {
            self.store.keys.fetch_sub(self.keys_reserved, Ordering::Relaxed);
            self.store.ad_hoc_keys.fetch_sub(self.ad_hoc_keys_reserved, Ordering::Relaxed);
        }
        for origin in &self.overflow_reserved {
            self.store.overflow.of(*origin).0.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Store for MemoryStore {
    fn apply<'a>(&'a self, command: &'a Command<'a>, now: Option<Timestamp>) -> ApplyFuture<'a> {
        Box::pin(ready(self.apply_now(command, now)))
    }

    fn apply_batch<'a>(&'a self, commands: &'a [Command<'a>], now: Option<Timestamp>) -> BatchFuture<'a> {
        let outcomes = commands.iter().map(|command| self.apply_now(command, now)).collect();
        Box::pin(ready(outcomes))
    }

    fn figures(&self) -> Figures {
        let mut figures = vec![
            ("keys", Figure::Level(self.keys() as u64)),
            ("ad_hoc_keys", Figure::Level(self.ad_hoc_keys.load(Ordering::Relaxed) as u64)),
            ("uncounted", Figure::Count(self.uncounted.load(Ordering::Relaxed) as u64)),
            ("unrecorded", Figure::Count(self.unrecorded.load(Ordering::Relaxed) as u64)),
        ];
        if let StoreClock::System(clock) = &self.clock {
            figures.push(("clock_ahead_seconds", Figure::Level(clock.ahead() / 1_000_000)));
        }
        figures
    }
}
