//! Positions of entries by the hash of their key.
//!
//! A slot has four bytes: the position and eight bits of the hash. A lookup therefore reads one
//! cache line before the entry itself, where a table of control bytes beside its values reads two,
//! one after the other. With linear probing and at most 7/8 of the slots in use, the lookup of a
//! known key seldom leaves that line.

/// An unused slot.
const EMPTY: u32 = u32::MAX;
const POSITION_BITS: u32 = 24;
const POSITION_MASK: u32 = (1 << POSITION_BITS) - 1;

/// The maximum number of positions.
pub(crate) const POSITIONS_MAX: usize = POSITION_MASK as usize;

/// An open-addressing table of positions. The list of entries knows how many there are.
#[derive(Debug, Default)]
pub(crate) struct Index {
    slots: Box<[u32]>,
}

impl Index {
    /// The position with this hash for which `is_wanted` holds.
    #[inline(always)]
    pub(crate) fn find(&self, hash: u64, is_wanted: impl Fn(usize) -> bool) -> Option<usize> {
        let mut number = self.home(hash);
        loop {
            match self.slots.get(number) {
                Some(&EMPTY) => return None,
                Some(&slot) if slot >> POSITION_BITS == tag(hash) && is_wanted(position(slot)) => {
                    return Some(position(slot));
                }
                Some(_) => number += 1,
                // The table is empty, or it goes on at its start.
                None if number == 0 => return None,
                None => number = 0,
            }
        }
    }

    /// Adds the position after the last one, with this hash. `hash_at` returns the hash of the
    /// other positions.
    pub(crate) fn push(&mut self, hash: u64, position: usize, hash_at: impl Fn(usize) -> u64) {
        if position >= usable(self.slots.len()) {
            // By a half: a table that doubles would leave more memory unused.
            self.resize((self.slots.len() * 3 / 2).max(8), position, hash_at);
        }
        self.place(hash, position);
    }

    /// Removes a position that is in the table.
    pub(crate) fn remove(&mut self, hash: u64, position: usize, hash_at: impl Fn(usize) -> u64) {
        let Some(mut hole) = self.slot_of(hash, position) else { return };
        // Later slots move back into the hole, unless that would place them before their home.
        let mut number = hole;
        loop {
            number = self.next(number);
            let slot = self.slots[number];
            if slot == EMPTY {
                break;
            }
            let home = self.home(hash_at(self::position(slot)));
            if self.distance(home, number) >= self.distance(hole, number) {
                self.slots[hole] = slot;
                hole = number;
            }
        }
        self.slots[hole] = EMPTY;
    }

    /// Replaces the position of a key.
    pub(crate) fn replace(&mut self, hash: u64, old: usize, new: usize) {
        if let Some(number) = self.slot_of(hash, old) {
            self.slots[number] = slot(hash, new);
        }
    }

    /// Releases memory: keeps space for twice as many positions as there are.
    pub(crate) fn shrink(&mut self, positions: usize, hash_at: impl Fn(usize) -> u64) {
        let length = (positions * 2).max(8);
        if length < self.slots.len() {
            self.resize(length, positions, hash_at);
        }
    }

    /// Makes a new table of the first `positions`, in their order: entries that are next to each
    /// other are read several times faster than in the order of their hashes.
    fn resize(&mut self, length: usize, positions: usize, hash_at: impl Fn(usize) -> u64) {
        self.slots = vec![EMPTY; length].into();
        for position in 0..positions {
            self.place(hash_at(position), position);
        }
    }

    fn place(&mut self, hash: u64, position: usize) {
        let mut number = self.home(hash);
        while self.slots[number] != EMPTY {
            number = self.next(number);
        }
        self.slots[number] = slot(hash, position);
    }

    /// The number of the slot with this position.
    fn slot_of(&self, hash: u64, position: usize) -> Option<usize> {
        let mut number = self.home(hash);
        while *self.slots.get(number)? != slot(hash, position) {
            if self.slots[number] == EMPTY {
                return None;
            }
            number = self.next(number);
        }
        Some(number)
    }

    /// The slot where a search starts: the hash scaled to the length, which need not be a power of
    /// two.
    #[inline(always)]
    fn home(&self, hash: u64) -> usize {
        (((hash & u64::from(u32::MAX)) * self.slots.len() as u64) >> u32::BITS) as usize
    }

    fn next(&self, number: usize) -> usize {
        if number + 1 == self.slots.len() { 0 } else { number + 1 }
    }

    /// The number of steps from one slot to another.
    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.slots.len() - from }
    }
}

/// The number of slots of a table that may be in use.
fn usable(length: usize) -> usize {
    length * 7 / 8
}

/// Bits of the hash that neither the shard nor the home depends on.
#[inline(always)]
fn tag(hash: u64) -> u32 {
    (hash >> (u64::BITS - 8)) as u32
}

#[inline(always)]
fn slot(hash: u64, position: usize) -> u32 {
    tag(hash) << POSITION_BITS | position as u32
}

#[inline(always)]
fn position(slot: u32) -> usize {
    (slot & POSITION_MASK) as usize
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use foldhash::fast::FixedState;
    use proptest::prelude::*;
    use std::hash::BuildHasher as _;

    use super::*;

    proptest! {
        /// A random history of insertions, removals, moves and releases, compared with a map.
        #[test]
        fn index_equals_a_map(steps in prop::collection::vec((0u8..8, 0u32..120), 1..400), spread in 1u64..9) {
            // Few distinct hashes make long runs of slots.
            let hash = |key: u32| FixedState::with_seed(1).hash_one(u64::from(key) % (spread * 20));
            let (mut index, mut keys) = (Index::default(), Vec::<u32>::new());
            let mut positions = HashMap::new();
            for (step, key) in steps {
                let known = positions.get(&key).copied();
                match (step, known) {
                    (0..5, None) => {
                        positions.insert(key, keys.len());
                        keys.push(key);
                        index.push(hash(key), keys.len() - 1, |position| hash(keys[position]));
                    }
                    (5..7, Some(position)) => {
                        index.remove(hash(key), position, |position| hash(keys[position]));
                        let last = keys.len() - 1;
                        if position != last {
                            index.replace(hash(keys[last]), last, position);
                            positions.insert(keys[last], position);
                        }
                        positions.remove(&key);
                        keys.swap_remove(position);
                    }
                    (7, _) => index.shrink(keys.len(), |position| hash(keys[position])),
                    _ => {}
                }
                for key in 0..120 {
                    let found = index.find(hash(key), |position| keys[position] == key);
                    prop_assert_eq!(found, positions.get(&key).copied());
                }
            }
        }
    }
}
