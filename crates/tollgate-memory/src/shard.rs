//! One shard: a dense list of entries and an index over it.
//!
//! The index holds 4-byte positions instead of the entries, because a hash table at the low end of its load would waste half
//! of every entry's 80 bytes.

use std::hash::{BuildHasher as _, Hasher as _};

use compact_str::CompactString;
use foldhash::quality::RandomState;
use hashbrown::HashTable;
use smallvec::SmallVec;
use tollgate_core::{Key, State, Timestamp};

/// How many entries one sweep looks at: a few microseconds of work.
const SWEEP_STEP: usize = 64;
/// Every command pays one step towards the next sweep, and a new key some more, to keep the dropping ahead of the adding.
const NEW_KEY_STEPS: usize = 2;

/// What is kept for one key.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The rule, dimension and scope of the key.
    digest: [u32; 3],
    /// When the state equals a fresh one, in whole seconds since the epoch, rounded up; `u32::MAX` is never.
    fresh_at: u32,
    /// The identifier and, where it counts, the endpoint.
    tail: CompactString,
    pub(crate) state: State,
}

// The memory bound that users are told follows from this size.
const _: () = assert!(size_of::<Entry>() == 80);

impl Entry {
    pub(crate) fn set_fresh_at(&mut self, at: Timestamp) {
        self.fresh_at = u32::try_from(at.as_secs_ceil()).unwrap_or(u32::MAX);
    }

    fn is_fresh(&self, now: u32) -> bool {
        self.fresh_at <= now && self.fresh_at != u32::MAX
    }
}

/// A key as this store looks it up.
#[derive(Clone, Debug)]
pub(crate) struct Lookup<'a> {
    pub(crate) hash: u64,
    digest: [u32; 3],
    tail: Tail<'a>,
}

#[derive(Clone, Debug)]
enum Tail<'a> {
    /// The identifier itself: the common case copies nothing.
    Borrowed(&'a str),
    Built(SmallVec<[u8; 96]>),
}

/// The tail of a rule's overflow counter, which its new keys share when the store is full. No key has an empty tail.
const OVERFLOW: Tail<'_> = Tail::Borrowed("");

impl<'a> Lookup<'a> {
    #[inline]
    pub(crate) fn new(key: &Key<'a>, hasher: &RandomState) -> Self {
        let identifier = key.identifier();
        let tail = match (key.shortened(), key.endpoint()) {
            (None, None) if !identifier.is_empty() => Tail::Borrowed(identifier),
            // A stand-in starts with this character, and identifiers that do are replaced by one: it is free for the empty identifier.
            (None, None) => Tail::Borrowed("\u{1}"),
            (None, Some(endpoint)) => Tail::Built(joined(identifier, endpoint)),
            (Some(stand_in), _) => Tail::Built(SmallVec::from_slice(stand_in.as_bytes())),
        };
        Self::hashed(key.counter().digest(), tail, hasher)
    }

    /// The overflow counter of the same rule.
    pub(crate) fn overflow(&self, hasher: &RandomState) -> Lookup<'static> {
        Lookup::hashed(self.digest, OVERFLOW, hasher)
    }

    pub(crate) fn is_overflow(&self) -> bool {
        self.tail().is_empty()
    }

    #[inline]
    fn hashed(digest: [u32; 3], tail: Tail<'a>, hasher: &RandomState) -> Self {
        let mut lookup = Self { hash: 0, digest, tail };
        lookup.hash = hash(&lookup.digest, lookup.tail(), hasher);
        lookup
    }

    #[inline]
    fn tail(&self) -> &[u8] {
        match &self.tail {
            Tail::Borrowed(text) => text.as_bytes(),
            Tail::Built(bytes) => bytes,
        }
    }
}

/// The identifier's length, so that nothing can move across the border, then both.
fn joined(identifier: &str, endpoint: &str) -> SmallVec<[u8; 96]> {
    let mut bytes = SmallVec::new();
    // Both are at most 512 bytes long here; nine bits in two characters that are text on their own.
    bytes.push(b'0' + (identifier.len() >> 5) as u8);
    bytes.push(b'0' + (identifier.len() & 31) as u8);
    bytes.extend_from_slice(identifier.as_bytes());
    bytes.extend_from_slice(endpoint.as_bytes());
    bytes
}

#[inline]
fn hash(digest: &[u32; 3], tail: &[u8], hasher: &RandomState) -> u64 {
    let mut state = hasher.build_hasher();
    state.write_u64(u64::from(digest[0]) << 32 | u64::from(digest[1]));
    state.write_u32(digest[2]);
    state.write(tail);
    state.finish()
}

/// A part of the keys, guarded by one lock.
#[derive(Debug, Default)]
pub(crate) struct Shard {
    index: HashTable<u32>,
    entries: Vec<Entry>,
    /// Where the sweep goes on.
    hand: usize,
    /// How many entries the commands here have paid for since they last caused a sweep.
    steps_due: usize,
}

impl Shard {
    /// The position of a key's entry; valid until the next removal or sweep.
    #[inline]
    pub(crate) fn find(&self, lookup: &Lookup<'_>) -> Option<usize> {
        let tail = lookup.tail();
        let found = self.index.find(lookup.hash, |&position| {
            let entry = &self.entries[position as usize];
            entry.digest == lookup.digest && entry.tail.as_bytes() == tail
        });
        found.map(|&position| position as usize)
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
        lookup: &Lookup<'_>,
        state: State,
        fresh_at: Timestamp,
        hasher: &RandomState,
    ) {
        if self.entries.len() == self.entries.capacity() {
            // Doubling would leave up to half of a million keys' memory unused.
            self.entries.reserve_exact(self.entries.len() / 16 + 8);
        }
        self.steps_due += NEW_KEY_STEPS;
        let position = self.entries.len() as u32;
        let mut entry = Entry {
            digest: lookup.digest,
            fresh_at: 0,
            tail: CompactString::from_utf8_lossy(lookup.tail()),
            state,
        };
        entry.set_fresh_at(fresh_at);
        self.entries.push(entry);
        let entries = &self.entries;
        self.index.insert_unique(lookup.hash, position, |&position| {
            let entry = &entries[position as usize];
            hash(&entry.digest, entry.tail.as_bytes(), hasher)
        });
    }

    /// Forgets the entry at `position`; the last entry takes its place.
    pub(crate) fn remove(&mut self, position: usize, hasher: &RandomState) {
        let removed = self.entry(position);
        let removed_hash = hash(&removed.digest, removed.tail.as_bytes(), hasher);
        if let Ok(found) = self.index.find_entry(removed_hash, |&candidate| candidate as usize == position) {
            found.remove();
        }
        let last = self.entries.len() - 1;
        if position != last {
            let moved = self.entry(last);
            let moved_hash = hash(&moved.digest, moved.tail.as_bytes(), hasher);
            if let Some(found) = self.index.find_mut(moved_hash, |&candidate| candidate as usize == last) {
                *found = position as u32;
            }
        }
        self.entries.swap_remove(position);
    }

    /// Called by every command; says whether enough of them have passed that some shard is due for a sweep.
    #[inline]
    pub(crate) fn pass(&mut self) -> bool {
        self.steps_due += 1;
        let due = self.steps_due >= SWEEP_STEP;
        if due {
            self.steps_due = 0;
        }
        due
    }

    /// Looks at the next few entries and drops those whose state equals a fresh one.
    #[cold]
    pub(crate) fn sweep(&mut self, now: Timestamp, hasher: &RandomState) -> usize {
        let now = u32::try_from(now.as_micros() / 1_000_000).unwrap_or(u32::MAX);
        let mut dropped = 0;
        for _ in 0..SWEEP_STEP.min(self.entries.len()) {
            if self.hand >= self.entries.len() {
                self.hand = 0;
            }
            if self.entry(self.hand).is_fresh(now) {
                // The entry that takes its place is looked at next.
                self.remove(self.hand, hasher);
                dropped += 1;
            } else {
                self.hand += 1;
            }
        }
        if dropped > 0 && self.entries.capacity() > 64 && self.entries.len() < self.entries.capacity() / 4 {
            self.shrink(hasher);
        }
        dropped
    }

    /// Gives memory back after a flood is over.
    fn shrink(&mut self, hasher: &RandomState) {
        self.entries.shrink_to(self.entries.len() * 2);
        let entries = &self.entries;
        self.index.shrink_to(entries.len() * 2, |&position| {
            let entry = &entries[position as usize];
            hash(&entry.digest, entry.tail.as_bytes(), hasher)
        });
    }
}
