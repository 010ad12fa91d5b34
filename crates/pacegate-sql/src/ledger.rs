//! The states of a batch while its rows are locked. Commands are decided on them in order, and the
//! changed rows are written back.

use std::collections::BTreeMap;

use pacegate_core::{ChainDecision, State, States, Timestamp, chain};
use pacegate_store::{Idempotency, Outcome, StoreError};

use crate::record::Record;
use crate::request::{Act, OwnedCharge, Request};

/// The locked rows, by key. Empty bytes mean a key without a state.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    rows: BTreeMap<String, Row>,
    /// Set when a command has an explicit time, as in tests: the sweep must not remove such rows.
    keep: bool,
}

#[derive(Debug)]
struct Row {
    content: Content,
    /// When the content expires, if it changed.
    changed: Option<Timestamp>,
}

#[derive(Debug)]
enum Content {
    Nothing,
    State(State),
    Record(Record),
    /// Bytes that no version of Pacegate wrote.
    Foreign,
}

/// A row to write back.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) key: String,
    /// Empty to reset the key.
    pub(crate) bytes: Vec<u8>,
    pub(crate) needed_until: Timestamp,
}

impl Ledger {
    /// `rows` are the existing ones; every other key has no state.
    pub(crate) fn new(rows: impl Iterator<Item = (String, Vec<u8>)>) -> Self {
        let content = |key: &str, bytes: &[u8]| match bytes {
            [] => Content::Nothing,
            bytes if Request::is_record(key) => {
                Record::decode(bytes).map_or(Content::Foreign, Content::Record)
            }
            bytes => State::decode(bytes).map_or(Content::Foreign, Content::State),
        };
        let rows = rows.map(|(key, bytes)| {
            let content = content(&key, &bytes);
            (key, Row { content, changed: None })
        });
        Self { rows: rows.collect(), keep: false }
    }

    /// Whether the row exists.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.rows.contains_key(key)
    }

    /// Excludes the written rows from the sweep, which uses the database's time.
    pub(crate) fn keep(&mut self) {
        self.keep = true;
    }

    /// Decides one request at `now` and charges it in the ledger.
    pub(crate) fn apply(&mut self, request: &Request, now: Timestamp) -> Result<Outcome, StoreError> {
        if request.keys().any(|key| matches!(self.rows.get(key), Some(Row { content: Content::Foreign, .. })))
        {
            let rule = request.charges.first().map_or("", |charge| &charge.rule);
            let message = format!("the row of rule `{rule}` contains a value that Pacegate did not write");
            return Err(StoreError::foreign(message));
        }
        if let (Some(record), Act::Take | Act::Peek) = (&request.record, request.act)
            && let Some(Row { content: Content::Record(earlier), .. }) = self.rows.get(&record.key)
            && now < earlier.decision.at.saturating_add(Idempotency::TTL)
        {
            if earlier.fingerprint != record.fingerprint {
                return Ok(Outcome::Mismatch);
            }
            if earlier.limits != record.limits {
                return Ok(Outcome::Decided(self.decide(request, Act::Peek, now).into_replay()));
            }
            let mut decision = earlier.decision.clone();
            decision.replayed = true;
            return Ok(Outcome::Decided(decision));
        }
        match request.act {
            Act::Take => Ok(Outcome::Decided(self.take(request, now))),
            act @ (Act::Peek | Act::Refund) => Ok(Outcome::Decided(self.decide(request, act, now))),
            Act::Reset => {
                for charge in &request.charges {
                    if self.state(&charge.key).is_some() {
                        self.put(&charge.key, Content::Nothing, now);
                    }
                }
                Ok(Outcome::Reset { at: now })
            }
        }
    }

    /// The changed rows, in key order.
    pub(crate) fn changes(&self) -> Vec<Change> {
        let changed = self.rows.iter().filter_map(|(key, row)| {
            let needed_until = if self.keep { row.changed.map(|_| Timestamp::MAX) } else { row.changed }?;
            let bytes = match &row.content {
                Content::State(state) => state.encode(),
                Content::Record(record) => record.encode(),
                Content::Nothing | Content::Foreign => Vec::new(),
            };
            Some(Change { key: key.clone(), bytes, needed_until })
        });
        changed.collect()
    }

    fn take(&mut self, request: &Request, now: Timestamp) -> ChainDecision {
        let decision = self.decide(request, Act::Take, now);
        if let Some(record) = request.record.as_ref().filter(|_| decision.allowed) {
            let kept =
                Record { fingerprint: record.fingerprint, limits: record.limits, decision: decision.clone() };
            let until = now.saturating_add(Idempotency::TTL);
            self.put(&record.key, Content::Record(kept), until);
        }
        decision
    }

    fn decide(&mut self, request: &Request, act: Act, now: Timestamp) -> ChainDecision {
        let mut rows = Rows { ledger: self, charges: &request.charges };
        match act {
            Act::Take => chain::take(&request.charges, &mut rows, now),
            Act::Refund => chain::refund(&request.charges, &mut rows, now),
            Act::Peek | Act::Reset => chain::peek(&request.charges, &mut rows, now),
        }
    }

    fn state(&self, key: &str) -> Option<&State> {
        match self.rows.get(key) {
            Some(Row { content: Content::State(state), .. }) => Some(state),
            _ => None,
        }
    }

    fn put(&mut self, key: &str, content: Content, needed_until: Timestamp) {
        self.rows.insert(key.to_owned(), Row { content, changed: Some(needed_until) });
    }
}

/// The rows of a request's charges, as the states of its chain.
struct Rows<'a> {
    ledger: &'a mut Ledger,
    charges: &'a [OwnedCharge],
}

impl States for Rows<'_> {
    fn state(&self, index: usize) -> Option<&State> {
        self.ledger.state(&self.charges[index].key)
    }

    fn update<T>(
        &mut self,
        index: usize,
        change: impl FnOnce(&mut State) -> (T, Option<Timestamp>),
    ) -> Option<T> {
        let row = self.ledger.rows.get_mut(&self.charges[index].key)?;
        let Content::State(state) = &mut row.content else { return None };
        let (result, fresh_at) = change(state);
        row.changed = fresh_at.or(row.changed);
        Some(result)
    }

    fn insert(&mut self, index: usize, state: State, fresh_at: Option<Timestamp>) {
        let needed_until = fresh_at.unwrap_or(Timestamp::MAX);
        self.ledger.put(&self.charges[index].key, Content::State(state), needed_until);
    }
}
