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
use crate::shard::{Dropped, Entry, Lookup, Probe, Shard};
use crate::sync::{AtomicUsize, Mutex, MutexGuard, Ordering};

/// How many shards a full store looks through for expired keys before a new key goes to the overflow counter.
const SHARDS_SEARCHED: usize = 2;
/// How many overflow counters there can be beside the keys. Those of the configuration are one for each
/// rule, of which there can be 100,000; callers make up the others, and share a smaller number.
const CONFIGURED_OVERFLOW_MAX: usize = 1 << 17;
const CALLERS_OVERFLOW_MAX: usize = 4_096;
/// Fewer keys than this do not need a lock of their own.
const KEYS_PER_SHARD_MIN: usize = 64;
const SHARDS_MAX: usize = 1 << 12;
/// Idempotency keys are rarer than checks and held under their lock for a whole take.
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
    /// How many keys are kept; further ones share an overflow counter per rule while all of these are live.
    pub max_keys: usize,
    /// How many of them can be of limits that requests bring along; further ones of these share
    /// overflow counters.
    pub max_ad_hoc_keys: usize,
    /// How many idempotency keys are kept, for five minutes. Where there is no place for one, a take is
    /// decided as if it had none.
    pub max_idempotency_keys: usize,
    /// How many parts the keys are split into, rounded up to a power of two. More parts mean less waiting between threads, and shorter
    /// pauses when the table of one part grows.
    pub shards: usize,
}

impl MemoryOptions {
    /// The most keys a store can be configured for.
    pub const KEYS_MAX: usize = 1 << 30;

    /// The same bounds with room for `max` keys of ad-hoc limits; for a tenth of all keys if it is `None`.
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

/// Counters in this process. See the crate documentation.
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
    /// Keys in all shards, and those about to be inserted.
    keys: CachePadded<AtomicUsize>,
    /// The same for keys of limits that requests brought along.
    ad_hoc_keys: CachePadded<AtomicUsize>,
    /// The same for overflow counters.
    overflow: CachePadded<OverflowPools>,
    /// Commands of which a limit had no place and was answered by its failure mode.
    uncounted: AtomicUsize,
    /// Takes whose idempotency key had no place.
    unrecorded: AtomicUsize,
    /// The shard whose turn it is to be searched for expired keys.
    hand: AtomicUsize,
    options: MemoryOptions,
    clock: StoreClock,
}

/// How many overflow counters there are, by where they come from: what callers make up does not use up
/// the places of rules.
#[derive(Debug)]
struct OverflowPools {
    configured: AtomicUsize,
    callers: AtomicUsize,
}

impl OverflowPools {
    /// How many there are of this origin, and how many there can be.
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

/// Which bound a new key does not fit under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bound {
    Keys,
    AdHocKeys,
}

/// The machine's clock is the usual one, and is read without a detour.
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

    /// An empty store. `clock` is asked whenever a command brings no time of its own.
    pub fn with_clock(options: MemoryOptions, clock: Arc<dyn Clock>) -> Self {
        Self::build(options, StoreClock::Other(clock))
    }

    fn build(options: MemoryOptions, clock: StoreClock) -> Self {
        // A store of few keys has few shards, so that a search for expired ones sees them all.
        let useful = options.max_keys.div_ceil(KEYS_PER_SHARD_MIN);
        let shards = options.shards.min(useful).clamp(1, SHARDS_MAX).next_power_of_two();
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

    /// How many keys are kept now.
    pub fn keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    /// Charges one limit without waiting. `now` is the store's own time when it is `None`.
    ///
    /// # Errors
    /// None now: a limit without a place, be it in an overflow counter, is answered by its failure mode.
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

    /// The quickest way through this store, for the common case: one enforced limit with room, under a key that is there already. It says when
    /// that was, and what is left. `None`, which charges nothing, sends the caller to [`take`](Self::take). As a key that is not valid is never
    /// there, a caller need check it only then.
    #[inline(always)]
    pub fn take_known(&self, charge: &Charge<'_>) -> Option<(Timestamp, Taken)> {
        self.take_at(charge, &Probe::of_plain(&charge.key, &self.hasher)?)
    }

    /// As [`take_known`](Self::take_known), for a counter per endpoint: the parts of its key are put
    /// together first.
    #[inline]
    pub fn take_known_per_endpoint(&self, charge: &Charge<'_>) -> Option<(Timestamp, Taken)> {
        self.take_at(charge, &Lookup::new(&charge.key).probe(&self.hasher))
    }

    #[inline(always)]
    fn take_at(&self, charge: &Charge<'_>, probe: &Probe<'_>) -> Option<(Timestamp, Taken)> {
        if charge.fit != Fit::Whole {
            return None;
        }
        // Before the lock, which is 70 ns faster among many keys: what is taken here is not given back by its time, as a log's entries are.
        let moment = self.moment(None);
        let mut shard = self.shards[self.shard_of(probe.hash)].lock();
        let position = shard.find(probe)?;
        let entry = shard.entry_mut(position);
        let taken = entry.state.take(charge.limit, moment.now, charge.cost)?;
        entry.set_fresh_at(Some(taken.reset_at));
        // Counted last: what is not taken here passes once more on the long way.
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
    /// [`StoreError`] when there are too many idempotency keys to record one that goes with no identity.
    pub fn apply_now(&self, command: &Command<'_>, now: Option<Timestamp>) -> Result<Outcome, StoreError> {
        match (command.charges, &command.action) {
            ([charge], Action::Take { idempotency: None }) => self.take(charge, now).map(Outcome::Decided),
            _ => self.execute(command, now),
        }
    }

    /// When a command happens. Asked under the locks wherever it matters that the time of a key goes forward in the order of its commands.
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

    /// Decides on any number of limits at once, and charges them if `take` is set.
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
            let homeless = |lookup: &Lookup| !lookup.is_overflow() && missing(lookup);
            let ad_hoc = |lookup: &Lookup| lookup.origin() == Origin::AdHoc && homeless(lookup);
            let own = lookups.iter().filter(|lookup| homeless(lookup)).count();
            let own_ad_hoc = lookups.iter().filter(|lookup| ad_hoc(lookup)).count();
            if let Err(bound) = self.reserve_keys(own, own_ad_hoc, take) {
                // Limits of the configuration get what places there are before ad-hoc ones.
                let place = lookups.iter().position(ad_hoc).or_else(|| lookups.iter().position(homeless));
                // Room is made without holding locks; if there is none, the key shares its rule's overflow counter.
                drop(locked);
                if !(take && self.make_room(moment, bound))
                    && let Some(place) = place
                {
                    lookups[place] = lookups[place].overflow();
                }
                continue;
            }
            let first = |place: usize| !lookups[..place].contains(&lookups[place]);
            let unshared =
                |(place, lookup): &(usize, &Lookup)| lookup.is_overflow() && missing(lookup) && first(*place);
            let shared: SmallVec<[usize; 4]> =
                lookups.iter().enumerate().filter(unshared).map(|(place, _)| place).collect();
            if take {
                (locked.keys_reserved, locked.ad_hoc_keys_reserved) = (own, own_ad_hoc);
            }
            // Overflow counters that there is no place for; their limits are answered by their failure mode.
            let mut unplaced: SmallVec<[usize; 4]> = SmallVec::new();
            for place in shared {
                let origin = lookups[place].origin();
                let (pool, max) = self.overflow.of(origin);
                if !reserve(pool, 1, max, take) {
                    unplaced.push(place);
                } else if take {
                    locked.overflow_reserved.push(origin);
                }
            }
            let decision = if unplaced.is_empty() {
                let mut states = LockedStates { locked: &mut locked, lookups: &lookups };
                if take {
                    chain::take(command.charges, &mut states, now)
                } else {
                    chain::peek(command.charges, &mut states, now)
                }
            } else {
                self.uncounted.fetch_add(1, Ordering::Relaxed);
                let is_unplaced =
                    |index: usize| unplaced.iter().any(|other| lookups[*other] == lookups[index]);
                decide_placed(command, &mut locked, &lookups, is_unplaced, now, take)
            };
            let due = locked.pass();
            drop(locked);
            if due {
                self.sweep_next(moment);
            }
            return Ok(decision);
        }
    }

    /// A take or a peek under an idempotency key, which stays locked from the look-up to the record.
    fn once(
        &self,
        command: &Command<'_>,
        idempotency: &Idempotency<'_>,
        now: Option<Timestamp>,
        take: bool,
    ) -> Result<Outcome, StoreError> {
        let (key, limits) = (digest(idempotency), command.limits_digest());
        let shard = usize::from(key[0]) % ADMISSION_SHARDS;
        // Always taken before the counters' locks, which are never held here.
        let mut admissions = self.admissions[shard].lock();
        match admissions.look_up(&key, &idempotency.fingerprint, limits, self.moment(now).now) {
            Earlier::Admitted(decision) => Ok(Outcome::Decided(decision)),
            Earlier::AdmittedOtherwise => {
                self.decide(command, now, false).map(|looked| Outcome::Decided(looked.into_replay()))
            }
            Earlier::Mismatch => Ok(Outcome::Mismatch),
            Earlier::None if !take => self.decide(command, now, false).map(Outcome::Decided),
            Earlier::None => {
                let sender = idempotency.sender.map(|sender| self.hasher.hash_one(sender));
                let max = self.options.max_idempotency_keys.div_ceil(ADMISSION_SHARDS);
                let has_place = admissions.has_place(sender, max);
                if !has_place && idempotency.home.is_none() {
                    // Such a command is for its record alone.
                    return Err(StoreError::overloaded());
                }
                let decision = self.decide(command, now, true)?;
                if !has_place {
                    // Charged, and charged again when it is repeated: limits hold, whatever callers send.
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
        // A key without an entry was charged in its rule's overflow counter. Which charge that was is known by its time alone.
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

    /// Looks through all shards, one after the other: entries have no index by what variants have in common.
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
            self.forget(removed);
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

    /// Takes places for new keys, of which some are of ad-hoc limits, or says what there is no room for.
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

    /// Looks through a few shards for expired keys; whether it found any under this bound.
    #[cold]
    fn make_room(&self, moment: Moment, bound: Bound) -> bool {
        (0..SHARDS_SEARCHED.min(self.shards.len())).any(|_| {
            let dropped = self.sweep_next(moment);
            let found = if bound == Bound::Keys { dropped.keys } else { dropped.ad_hoc_keys };
            found > 0
        })
    }

    /// Counts what a shard has no more.
    fn forget(&self, dropped: Dropped) {
        self.keys.fetch_sub(dropped.keys, Ordering::Relaxed);
        self.ad_hoc_keys.fetch_sub(dropped.ad_hoc_keys, Ordering::Relaxed);
        self.overflow.configured.fetch_sub(dropped.configured_overflow, Ordering::Relaxed);
        self.overflow.callers.fetch_sub(dropped.callers_overflow, Ordering::Relaxed);
    }

    /// Looks at a few entries of the shard whose turn it is and drops the expired ones; says how many.
    ///
    /// Whatever keys the commands touch, the turn goes round all shards, so that idle ones are cleared as well. No lock is held here.
    #[cold]
    fn sweep_next(&self, moment: Moment) -> Dropped {
        if !moment.own {
            return Dropped::default();
        }
        let turn = self.hand.fetch_add(1, Ordering::Relaxed) & (self.shards.len() - 1);
        let dropped = self.shards[turn].lock().sweep(moment.now, &self.hasher);
        self.forget(dropped);
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

    /// New keys of one rule share its overflow counter, so that several charges of a command can concern the same one.
    #[inline]
    fn same_key_before(&self, index: usize) -> Option<usize> {
        let (before, own) = (&self.lookups[..index], &self.lookups[index]);
        if own.is_overflow() { before.iter().rposition(|lookup| lookup == own) } else { None }
    }
}

/// Decides on a command of which some charges have no entry, not even an overflow counter: these are answered by their failure
/// mode, and the others are charged if all of them pass.
#[cold]
fn decide_placed(
    command: &Command<'_>,
    locked: &mut Locked<'_>,
    lookups: &[Lookup],
    is_unplaced: impl Fn(usize) -> bool,
    now: Timestamp,
    take: bool,
) -> ChainDecision {
    let indices = || 0..command.charges.len();
    let passes = |index: usize| command.charges[index].shadow || command.charges[index].uncounted().allowed;
    let pass = indices().filter(|index| is_unplaced(*index)).all(passes);
    let placed = || indices().filter(|index| !is_unplaced(*index));
    let charges: SmallVec<[Charge<'_>; 4]> = placed().map(|index| command.charges[index]).collect();
    let own: SmallVec<[Lookup; 4]> = placed().map(|index| lookups[index].clone()).collect();
    let mut states = LockedStates { locked, lookups: &own };
    let decision = if take && pass {
        chain::take(&charges, &mut states, now)
    } else {
        chain::peek(&charges, &mut states, now)
    };
    let mut counted = decision.answers.into_iter();
    let answers: Answers = indices()
        .filter_map(|index| {
            if is_unplaced(index) { Some(command.charges[index].uncounted()) } else { counted.next() }
        })
        .collect();
    ChainDecision::new(pass && decision.allowed, now, answers)
}

/// Whether `newcomers` more fit under `max`; if so, a take has their places from then on.
fn reserve(counted: &AtomicUsize, newcomers: usize, max: usize, take: bool) -> bool {
    let fits = |count: usize| (count + newcomers <= max).then_some(count + newcomers);
    if take {
        counted.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    } else {
        fits(counted.load(Ordering::Relaxed)).is_some()
    }
}

/// When a command happens. Keys expire by the store's own clock alone: a time that a command brings may belong to another history.
#[derive(Clone, Copy, Debug)]
struct Moment {
    now: Timestamp,
    own: bool,
}

/// The locked shards of a command's keys.
struct Locked<'a> {
    store: &'a MemoryStore,
    /// By ascending shard number: the one order in which locks are taken.
    shards: SmallVec<[(usize, MutexGuard<'a, Shard>); 4]>,
    /// Places that are counted already; what is left of them is given back at the end.
    keys_reserved: usize,
    /// How many of them are for ad-hoc limits.
    ad_hoc_keys_reserved: usize,
    /// Where the overflow counters come from that have a place.
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

    /// Whether this command is the one after which some shard is swept.
    fn pass(&mut self) -> bool {
        self.shards.first_mut().is_some_and(|(_, shard)| shard.pass())
    }

    fn find(&self, lookup: &Lookup) -> Option<&Entry> {
        let probe = lookup.probe(&self.store.hasher);
        let shard = &self.shards[self.place(&probe)].1;
        shard.find(&probe).map(|position| shard.entry(position))
    }

    fn find_mut(&mut self, lookup: &Lookup) -> Option<&mut Entry> {
        let probe = lookup.probe(&self.store.hasher);
        let place = self.place(&probe);
        let shard = &mut self.shards[place].1;
        shard.find(&probe).map(|position| shard.entry_mut(position))
    }

    /// Keeps a state under a key that had none.
    fn insert(&mut self, lookup: &Lookup, state: State, fresh_at: Option<Timestamp>) {
        let probe = lookup.probe(&self.store.hasher);
        let place = self.place(&probe);
        self.shards[place].1.insert(&probe, state, fresh_at, &self.store.hasher);
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
        let place = self.place(&probe);
        let shard = &mut self.shards[place].1;
        if let Some(position) = shard.find(&probe) {
            let mut dropped = Dropped::default();
            dropped.count(shard.entry(position));
            shard.remove(position, &self.store.hasher);
            self.store.forget(dropped);
        }
    }

    fn place(&self, probe: &Probe<'_>) -> usize {
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
