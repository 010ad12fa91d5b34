//! One shard: a dense list of entries and an index over it.
//!
//! The index holds 4-byte positions instead of the entries, because a hash table at the low end of
//! its load would waste half of every entry's 80 bytes.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, Hasher as _};

use compact_str::CompactString;
use foldhash::quality::RandomState;
use pacegate_core::{Answer, Demand, Key, Origin, State, Timestamp, chain};
use smallvec::SmallVec;

use crate::index::Index;

/// Number of entries that one sweep examines: a few microseconds of work.
const SWEEP_STEP: usize = 64;
/// A sweep is due after this many commands. A sweep reads memory that the command does not need, so
/// a command pays for a quarter of an entry only.
const SWEEP_EVERY: u32 = 4 * SWEEP_STEP as u32;
/// A new key counts as this many commands more and pays for three entries, so that keys are dropped
/// faster than they are added.
const NEW_KEY_COMMANDS: u32 = 3 * SWEEP_EVERY / SWEEP_STEP as u32 - 1;

/// Expiry is stored in periods of 2^20 µs, about a second: a shift instead of a division, and 32
/// bits last until 2112.
const PERIOD_BITS: u32 = 20;

/// The entry of one key.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The rule, dimension and scope of the key: 96 bits in two parts.
    digest_high: u64,
    digest_low: u32,
    /// When the state equals a fresh one, in periods since the epoch, rounded up; `u32::MAX` means
    /// never.
    fresh_at: u32,
    /// The identifier and, for a counter per endpoint, the endpoint.
    tail: CompactString,
    pub(crate) state: State,
}

// The documented memory bound depends on this size.
const _: () = assert!(size_of::<Entry>() == 80);

impl Entry {
    /// Sets when the state equals a fresh one; `None` means never.
    #[inline(always)]
    pub(crate) fn set_fresh_at(&mut self, at: Option<Timestamp>) {
        let at = at.unwrap_or(Timestamp::MAX);
        // At most 2^32: the last period is never reached in practice and means never.
        self.fresh_at = u32::try_from((at.as_micros() >> PERIOD_BITS) + 1).unwrap_or(u32::MAX);
    }

    /// Decides the request, whatever the limit was before, and charges it if it fits.
    #[inline(never)]
    pub(crate) fn take(&mut self, demand: &Demand<'_>, now: Timestamp) -> Answer {
        let mut fresh_at = None;
        let answer = chain::take_one(demand, &mut self.state, now, |at| fresh_at = at);
        if fresh_at.is_some() {
            self.set_fresh_at(fresh_at);
        }
        answer
    }

    fn is_overflow(&self) -> bool {
        self.tail.is_empty()
    }

    fn origin(&self) -> Origin {
        Origin::of_digest((self.digest_high, self.digest_low))
    }

    fn is_fresh(&self, now: u32) -> bool {
        self.fresh_at <= now && self.fresh_at != u32::MAX
    }
}

/// A key prepared for lookup: its hash, and what is compared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probe<'a> {
    pub(crate) hash: u64,
    digest: (u64, u32),
    tail: &'a [u8],
}

impl<'a> Probe<'a> {
    #[inline(always)]
    fn new(digest: (u64, u32), tail: &'a [u8], hasher: &RandomState) -> Self {
        Self { hash: hash(digest.0, tail, hasher), digest, tail }
    }

    /// The probe of a key whose tail is its identifier: the common case, which copies nothing.
    #[inline(always)]
    pub(crate) fn of_plain(key: &Key<'a>, hasher: &RandomState) -> Option<Self> {
        let identifier = key.identifier();
        let has_endpoint = key.endpoint().is_some_and(|endpoint| !endpoint.is_empty());
        if has_endpoint || identifier.is_empty() || key.is_shortened() {
            return None;
        }
        Some(Self::new(key.counter().digest(), identifier.as_bytes(), hasher))
    }
}

/// The digest and tail of a key, if the tail has to be built or stored for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lookup {
    digest: (u64, u32),
    tail: SmallVec<[u8; 96]>,
}

impl Lookup {
    pub(crate) fn new(key: &Key<'_>) -> Self {
        let identifier = key.identifier();
        let tail = match (key.shortened(), key.endpoint()) {
            // Substitutes start with this character, and identifiers that do are replaced by one,
            // so it is free for the empty identifier.
            (None, None | Some("")) if identifier.is_empty() => SmallVec::from_slice(b"\x01"),
            (None, None | Some("")) => SmallVec::from_slice(identifier.as_bytes()),
            (None, Some(endpoint)) => joined(identifier, endpoint),
            (Some(substitute), _) => SmallVec::from_slice(substitute.as_bytes()),
        };
        Self { digest: key.counter().digest(), tail }
    }

    /// The counter that new keys of a rule share when the store is full. Its tail is empty, which
    /// no key has.
    pub(crate) fn overflow(&self) -> Self {
        Self { digest: self.digest, tail: SmallVec::new() }
    }

    /// Whether the entry has the same identifier and endpoint.
    fn has_tail_of(&self, entry: &Entry) -> bool {
        entry.tail.as_bytes() == &*self.tail
    }

    pub(crate) fn is_overflow(&self) -> bool {
        self.tail.is_empty()
    }

    /// The origin of its counter.
    pub(crate) fn origin(&self) -> Origin {
        Origin::of_digest(self.digest)
    }

    pub(crate) fn probe(&self, hasher: &RandomState) -> Probe<'_> {
        Probe::new(self.digest, &self.tail, hasher)
    }
}

/// A character that no identifier starts with, the identifier's length, so that the two parts
/// cannot be confused, then both parts.
fn joined(identifier: &str, endpoint: &str) -> SmallVec<[u8; 96]> {
    let mut bytes = SmallVec::new();
    // Both are at most 512 bytes long here: nine bits in two ASCII characters. The first one is not
    // a hexadecimal digit, which a substitute would have there.
    bytes.extend_from_slice(&[1, b'G' + (identifier.len() >> 5) as u8, b'0' + (identifier.len() & 31) as u8]);
    bytes.extend_from_slice(identifier.as_bytes());
    bytes.extend_from_slice(endpoint.as_bytes());
    bytes
}

#[inline(always)]
fn hash(digest_high: u64, tail: &[u8], hasher: &RandomState) -> u64 {
    let mut state = hasher.build_hasher();
    state.write_u64(digest_high);
    state.write(tail);
    state.finish()
}

fn hash_of(entry: &Entry, hasher: &RandomState) -> u64 {
    hash(entry.digest_high, entry.tail.as_bytes(), hasher)
}

/// Whether two byte strings are equal, compared eight bytes at a time. For short identifiers, a
/// call to the general comparison costs more than the comparison itself.
#[inline(always)]
fn same(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    match (a.last_chunk::<8>(), b.last_chunk::<8>()) {
        (Some(a_end), Some(b_end)) if a_end != b_end => false,
        // The last eight bytes overlap the previous ones.
        (Some(_), Some(_)) if a.len() <= 16 => a.first_chunk::<8>() == b.first_chunk::<8>(),
        (Some(_), Some(_)) => a.chunks_exact(8).eq(b.chunks_exact(8)),
        _ => a.iter().eq(b),
    }
}

/// The number of dropped entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dropped {
    pub(crate) keys: usize,
    /// How many of the keys belonged to ad-hoc limits.
    pub(crate) ad_hoc_keys: usize,
    pub(crate) configured_overflow: usize,
    pub(crate) callers_overflow: usize,
}

impl Dropped {
    /// Counts one more.
    pub(crate) fn count(&mut self, entry: &Entry) {
        match (entry.is_overflow(), entry.origin()) {
            (false, origin) => {
                self.keys += 1;
                self.ad_hoc_keys += usize::from(origin == Origin::AdHoc);
            }
            (true, Origin::Configured) => self.configured_overflow += 1,
            (true, _) => self.callers_overflow += 1,
        }
    }
}

/// A part of the keys, guarded by one lock.
#[derive(Debug, Default)]
pub(crate) struct Shard {
    index: Index,
    entries: Vec<Entry>,
    /// The position at which the next sweep starts.
    hand: u32,
    /// The number of commands since the last sweep that they caused.
    commands: u32,
}

// With its lock it fills one cache line.
const _: () = assert!(size_of::<Shard>() <= 56);

impl Shard {
    /// The position of a key's entry; valid until the next removal or sweep.
    #[inline(always)]
    pub(crate) fn find(&self, probe: &Probe<'_>) -> Option<usize> {
        self.index.find(probe.hash, |position| {
            self.entries.get(position).is_some_and(|entry| {
                (entry.digest_high, entry.digest_low) == probe.digest
                    && same(entry.tail.as_bytes(), probe.tail)
            })
        })
    }

    #[inline]
    pub(crate) fn entry(&self, position: usize) -> &Entry {
        &self.entries[position]
    }

    #[inline]
    pub(crate) fn entry_mut(&mut self, position: usize) -> &mut Entry {
        &mut self.entries[position]
    }

    pub(crate) fn insert(
        &mut self,
        probe: &Probe<'_>,
        state: State,
        fresh_at: Option<Timestamp>,
        hasher: &RandomState,
    ) {
        if self.entries.len() == self.entries.capacity() {
            // Doubling every time would leave up to half of the memory of a million keys unused.
            let length = self.entries.len();
            self.entries.reserve_exact(if length < 512 { length.max(8) } else { (length / 16).max(512) });
        }
        self.commands += NEW_KEY_COMMANDS;
        let position = self.entries.len();
        let mut entry = Entry {
            digest_high: probe.digest.0,
            digest_low: probe.digest.1,
            fresh_at: 0,
            // Keys are made of text, so this cannot fail; the lossy conversion would be slower.
            tail: CompactString::from_utf8(probe.tail)
                .unwrap_or_else(|_| CompactString::from_utf8_lossy(probe.tail)),
            state,
        };
        entry.set_fresh_at(fresh_at);
        self.entries.push(entry);
        let entries = &self.entries;
        self.index.push(probe.hash, position, |position| hash_of(&entries[position], hasher));
    }

    /// Drops the entry at `position`; the last entry moves there.
    pub(crate) fn remove(&mut self, position: usize, hasher: &RandomState) {
        let entries = &self.entries;
        let hash_at = |position: usize| hash_of(&entries[position], hasher);
        self.index.remove(hash_at(position), position, hash_at);
        let last = entries.len() - 1;
        if position != last {
            self.index.replace(hash_at(last), last, position);
        }
        self.entries.swap_remove(position);
    }

    /// Drops the entries whose counters differ from one of the keys only in the variant, by the
    /// part of the digest that variants share.
    #[cold]
    pub(crate) fn remove_variants(
        &mut self,
        families: &HashMap<u32, SmallVec<[Lookup; 1]>>,
        hasher: &RandomState,
    ) -> Dropped {
        let mut dropped = Dropped::default();
        let mut position = 0;
        while let Some(entry) = self.entries.get(position) {
            let family = families.get(&entry.digest_low);
            if family.is_some_and(|lookups| lookups.iter().any(|lookup| lookup.has_tail_of(entry))) {
                dropped.count(entry);
                // The entry that moved here is examined next.
                self.remove(position, hasher);
            } else {
                position += 1;
            }
        }
        dropped
    }

    /// Called by every command; returns whether a sweep is due.
    #[inline]
    pub(crate) fn pass(&mut self) -> bool {
        self.commands += 1;
        let due = self.commands >= SWEEP_EVERY;
        if due {
            self.commands = 0;
        }
        due
    }

    /// Examines the next few entries and drops those whose state equals a fresh one.
    #[cold]
    pub(crate) fn sweep(&mut self, now: Timestamp, hasher: &RandomState) -> Dropped {
        let now = u32::try_from(now.as_micros() >> PERIOD_BITS).unwrap_or(u32::MAX);
        let mut dropped = Dropped::default();
        let mut hand = self.hand as usize;
        for _ in 0..SWEEP_STEP.min(self.entries.len()) {
            if hand >= self.entries.len() {
                hand = 0;
            }
            let entry = self.entry(hand);
            if entry.is_fresh(now) {
                dropped.count(entry);
                // The entry that moved here is examined next.
                self.remove(hand, hasher);
            } else {
                hand += 1;
            }
        }
        self.hand = hand as u32;
        let roomy = self.entries.capacity() > 64 && self.entries.len() < self.entries.capacity() / 4;
        if roomy && dropped != Dropped::default() {
            self.shrink(hasher);
        }
        dropped
    }

    /// Releases memory after a flood of new keys.
    fn shrink(&mut self, hasher: &RandomState) {
        self.entries.shrink_to(self.entries.len() * 2);
        let entries = &self.entries;
        self.index.shrink(entries.len(), |position| hash_of(&entries[position], hasher));
    }
}
