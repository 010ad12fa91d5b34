//! The states of a batch while its rows are locked: commands are decided on them one after the other, and what changed is written back.

use std::collections::BTreeMap;

use pacegate_core::{Answers, Decision, Evaluation, State, Timestamp, refund};
use pacegate_store::{Idempotency, Outcome, StoreError};

use crate::record::Record;
use crate::request::{Act, Request};

/// The locked rows, by key: empty bytes are a key that has no state yet.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    rows: BTreeMap<String, Row>,
    /// Tests bring a time of their own, by which nothing may be swept.
    keep: bool,
}

#[derive(Debug)]
struct Row {
    content: Content,
    /// When the content is no longer needed, if it changed.
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

/// A row to be written back.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) key: String,
    /// Empty when the key is to be forgotten.
    pub(crate) bytes: Vec<u8>,
    pub(crate) needed_until: Timestamp,
}

impl Ledger {
    /// `rows` are those that were found; every other key has no state.
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

    /// Whether a row was found.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.rows.contains_key(key)
    }

    /// From now on nothing is swept by the database's time.
    pub(crate) fn keep(&mut self) {
        self.keep = true;
    }

    /// Decides on one request at `now`, and charges it in the ledger.
    pub(crate) fn apply(&mut self, request: &Request, now: Timestamp) -> Result<Outcome, StoreError> {
        if request.keys().any(|key| matches!(self.rows.get(key), Some(Row { content: Content::Foreign, .. })))
        {
            let rule = request.charges.first().map_or("", |charge| &charge.rule);
            let message = format!("a row of rule `{rule}` holds a value that Pacegate did not write");
            return Err(StoreError::foreign(message));
        }
        if let (Some(record), Act::Take | Act::Peek) = (&request.record, request.act)
            && let Some(Row { content: Content::Record(earlier), .. }) = self.rows.get(&record.key)
            && now < earlier.decision.at.saturating_add(Idempotency::KEPT_FOR)
        {
            if earlier.fingerprint != record.fingerprint {
                return Ok(Outcome::Mismatch);
            }
            if earlier.limits != record.limits {
                let looked = self.decide(request, now, false);
                return Ok(Outcome::Decided(looked.into_replay()));
            }
            let mut decision = earlier.decision.clone();
            decision.replayed = true;
            return Ok(Outcome::Decided(decision));
        }
        match request.act {
            Act::Take => Ok(Outcome::Decided(self.take(request, now))),
            Act::Peek => Ok(Outcome::Decided(self.decide(request, now, false))),
            Act::Refund(taken_at) => Ok(Outcome::Decided(self.refund(request, now, taken_at))),
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

    /// What has to be written, in the order of the keys.
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

    fn take(&mut self, request: &Request, now: Timestamp) -> Decision {
        let decision = self.decide(request, now, true);
        if let Some(record) = request.record.as_ref().filter(|_| decision.allowed) {
            let kept =
                Record { fingerprint: record.fingerprint, limits: record.limits, decision: decision.clone() };
            let until = now.saturating_add(Idempotency::KEPT_FOR);
            self.put(&record.key, Content::Record(kept), until);
        }
        decision
    }

    fn decide(&mut self, request: &Request, now: Timestamp, take: bool) -> Decision {
        let evaluations: Vec<Evaluation<'_>> = request
            .charges
            .iter()
            .map(|charge| Evaluation::new(&charge.limit, self.state(&charge.key), now, request.cost))
            .collect();
        let denies = |(evaluation, shadow): (&Evaluation<'_>, bool)| !evaluation.allows() && !shadow;
        let allowed = !evaluations.iter().zip(request.charges.iter().map(|charge| charge.shadow)).any(denies);
        let mut answers = Answers::new();
        for (evaluation, charge) in evaluations.iter().zip(&request.charges) {
            let charged = take && allowed && evaluation.allows();
            let mut corrected = false;
            let mut answer = match self.rows.get_mut(&charge.key) {
                Some(Row { content: Content::State(state), .. }) if charged => evaluation.charge(state),
                Some(Row { content: Content::State(state), .. }) => {
                    corrected = take && evaluation.correct_time(state);
                    evaluation.answer(Some(state))
                }
                _ if charged => {
                    let (answer, state) = evaluation.charge_fresh();
                    self.put(&charge.key, Content::State(state), now);
                    answer
                }
                _ => evaluation.answer(None),
            };
            if charged || corrected {
                self.touch(&charge.key, answer.reset_at);
            }
            answer.shadow = charge.shadow;
            answers.push(answer);
        }
        Decision::new(allowed, now, answers)
    }

    fn refund(&mut self, request: &Request, now: Timestamp, taken_at: Option<Timestamp>) -> Decision {
        let mut answers = Answers::new();
        for charge in &request.charges {
            let state = match self.rows.get_mut(&charge.key) {
                Some(Row { content: Content::State(state), .. }) => Some(state),
                _ => None,
            };
            let (mut answer, changed) = refund(&charge.limit, state, now, request.cost, taken_at);
            if changed {
                self.touch(&charge.key, answer.reset_at);
            }
            answer.shadow = charge.shadow;
            answers.push(answer);
        }
        let allowed = answers.iter().all(|answer| answer.allowed || answer.shadow);
        Decision::new(allowed, now, answers)
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

    fn touch(&mut self, key: &str, needed_until: Option<Timestamp>) {
        if let Some(row) = self.rows.get_mut(key) {
            row.changed = Some(needed_until.unwrap_or(Timestamp::MAX));
        }
    }
}
