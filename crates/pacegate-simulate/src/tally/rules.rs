//! Results of rules.

use std::sync::Arc;

use hashbrown::HashMap;
use pacegate::{Check, Decision, Mode, NamedLimit, Timestamp};

use super::keys::KeyTable;

/// Maximum number of limits that are found by address: the maximum number of rules of a set.
const ADDRESSES_MAX: usize = 100_000;

/// The results of a rule. Variants that look the same in a report share a row.
#[derive(Debug)]
pub(crate) struct RuleRow {
    pub(crate) limit: Arc<NamedLimit>,
    /// Number of requests that the rule applied to.
    pub(crate) requests: u64,
    /// Number of requests over the limit. In shadow mode they are allowed.
    pub(crate) blocked: u64,
    /// Number of requests of keys beyond the bound.
    pub(crate) untracked: u64,
}

/// What blocked a request: a rule and, if it is tracked, its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Culprit {
    pub(crate) rule: u32,
    /// `u32::MAX` if the key is not tracked.
    pub(crate) key: u32,
}

/// The results of a set of rules.
#[derive(Debug)]
pub(crate) struct RuleTally {
    rows: Vec<RuleRow>,
    /// Rows by the address of a limit. The limit is kept alive, so that its address stays unique.
    by_address: HashMap<usize, (u32, Arc<NamedLimit>), foldhash::fast::RandomState>,
    pub(crate) keys: KeyTable,
    pub(crate) allowed: u64,
    pub(crate) blocked: u64,
    /// Allowed requests that a rule in shadow mode would have blocked.
    pub(crate) would_block: u64,
    /// The rows whose limit the last request exceeded, for the time series.
    pub(crate) over_limit: Vec<u32>,
}

impl RuleTally {
    pub(crate) fn new(keys_max: usize) -> Self {
        Self {
            rows: Vec::new(),
            by_address: HashMap::default(),
            keys: KeyTable::new(keys_max),
            allowed: 0,
            blocked: 0,
            would_block: 0,
            over_limit: Vec::new(),
        }
    }

    pub(crate) fn rows(&self) -> &[RuleRow] {
        &self.rows
    }

    /// Counts a decision on `check`, whose endpoint is normalized. Returns the culprit if it was
    /// denied.
    pub(crate) fn count(&mut self, check: &Check<'_>, at: Timestamp, decision: &Decision) -> Option<Culprit> {
        self.over_limit.clear();
        let binding = decision.binding_index();
        let mut culprit = None;
        let mut watched = false;
        for (place, (limit, answer)) in decision.limits().iter().zip(decision.answers()).enumerate() {
            let rule = self.row(limit);
            let row = &mut self.rows[rule as usize];
            row.requests += 1;
            let blocked = !answer.allowed;
            if blocked {
                row.blocked += 1;
                watched |= limit.mode == Mode::Shadow;
                self.over_limit.push(rule);
            }
            let named = check.identities().iter().find(|(dimension, _)| *dimension == limit.dimension());
            let endpoint = check.endpoint.filter(|_| limit.is_per_endpoint());
            let key = named.and_then(|(_, identifier)| self.keys.place(rule, identifier, endpoint));
            match key {
                None => row.untracked += 1,
                Some(key) => {
                    let entry = self.keys.entry_mut(key);
                    entry.requests = entry.requests.saturating_add(1);
                    entry.blocked = entry.blocked.saturating_add(u32::from(blocked));
                    entry.need.add(&limit.limit, at, check.cost.get());
                }
            }
            if !decision.allowed() && place == binding {
                culprit = Some(Culprit { rule, key: key.unwrap_or(u32::MAX) });
            }
        }
        self.allowed += u64::from(decision.allowed());
        self.blocked += u64::from(!decision.allowed());
        self.would_block += u64::from(watched && decision.allowed());
        culprit
    }

    /// Returns the needs of the keys of each rule in ascending order, and the number of blocked
    /// keys.
    pub(crate) fn keys_by_rule(&self) -> Vec<(Vec<u64>, u64)> {
        let mut rules = vec![(Vec::new(), 0); self.rows.len()];
        for entry in self.keys.entries() {
            let (needs, blocked) = &mut rules[entry.rule as usize];
            needs.push(entry.need.enough());
            *blocked += u64::from(entry.blocked > 0);
        }
        rules.iter_mut().for_each(|(needs, _)| needs.sort_unstable());
        rules
    }

    /// Returns the index of the row of a limit, which is added if it is new.
    fn row(&mut self, limit: &Arc<NamedLimit>) -> u32 {
        let address = Arc::as_ptr(limit).addr();
        if let Some((row, _)) = self.by_address.get(&address) {
            return *row;
        }
        let known = self.rows.iter().position(|row| looks_same(&row.limit, limit));
        let row = known.unwrap_or_else(|| {
            self.rows.push(RuleRow { limit: limit.clone(), requests: 0, blocked: 0, untracked: 0 });
            self.rows.len() - 1
        }) as u32;
        if self.by_address.len() < ADDRESSES_MAX {
            self.by_address.insert(address, (row, limit.clone()));
        }
        row
    }
}

/// Whether two limits look the same in a report.
pub(crate) fn looks_same(a: &NamedLimit, b: &NamedLimit) -> bool {
    let seen = |limit: &NamedLimit| (limit.limit, limit.mode, limit.why, limit.is_per_endpoint());
    a.name == b.name && a.dimension() == b.dimension() && seen(a) == seen(b)
}
