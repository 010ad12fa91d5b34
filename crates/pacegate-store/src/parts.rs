//! Commands whose keys cannot be touched in one step: they live in different stores, or in different slots of one.
//!
//! A take charges part by part. When a later part denies, or fails, the earlier ones are given back exactly. A crash in between can only leave
//! too little, never admit too much.

use pacegate_core::{Answer, Answers, Decision, Timestamp};
use smallvec::SmallVec;

use crate::error::StoreError;
use crate::store::{Action, Charge, Command, Idempotency, Outcome, Store};

/// Some charges of a command, by their places in it, and the store that keeps them.
#[derive(Clone, Debug)]
pub struct Part<'a> {
    /// Where they are kept.
    pub store: &'a dyn Store,
    /// Which charges of the command.
    pub places: SmallVec<[usize; 4]>,
}

/// Applies `command` part by part. Every charge is in exactly one part, and all callers name the parts in the same order.
///
/// # Errors
/// That of the first part that fails; what was charged before it is given back.
pub async fn apply_in_parts(
    parts: &[Part<'_>],
    command: &Command<'_>,
    now: Option<Timestamp>,
) -> Result<Outcome, StoreError> {
    let run = Run { parts, command, now };
    match command.action {
        Action::Take { idempotency } => run.take(idempotency).await,
        Action::Reset => run.reset().await,
        Action::Peek { idempotency: Some(idempotency) } => match run.recall(&idempotency).await? {
            Some(outcome) => Ok(outcome),
            None => run.look(Action::peek()).await,
        },
        other => run.look(other).await,
    }
}

struct Run<'a> {
    parts: &'a [Part<'a>],
    command: &'a Command<'a>,
    now: Option<Timestamp>,
}

impl Run<'_> {
    async fn take(&self, idempotency: Option<Idempotency<'_>>) -> Result<Outcome, StoreError> {
        // The record of an idempotency key is kept with the last part, because only that one knows that all were admitted.
        if let Some(idempotency) = &idempotency
            && let Some(outcome) = self.recall(idempotency).await?
        {
            return Ok(outcome);
        }
        let mut taken: Vec<Decision> = Vec::with_capacity(self.parts.len());
        let last = self.parts.len().saturating_sub(1);
        for (index, part) in self.parts.iter().enumerate() {
            let recorded = idempotency.filter(|_| index == last);
            let outcome = self.apply(part, Action::Take { idempotency: recorded }).await;
            match outcome {
                Ok(Outcome::Decided(decision)) if decision.allowed && !decision.replayed => {
                    taken.push(decision)
                }
                Ok(Outcome::Decided(decision)) if decision.allowed => {
                    // The same request was quicker: its admission stands, ours is undone.
                    self.give_back(&taken).await;
                    return self.with_others(index, decision).await;
                }
                Ok(Outcome::Decided(decision)) => {
                    self.give_back(&taken).await;
                    if let Some(idempotency) = idempotency.filter(|_| index < last)
                        && let Some(outcome) = self.recall(&idempotency).await?
                    {
                        return Ok(outcome);
                    }
                    return self.with_others(index, decision).await;
                }
                other => {
                    self.give_back(&taken).await;
                    return other;
                }
            }
        }
        Ok(Outcome::Decided(self.merge(taken)))
    }

    /// The recorded admission of an idempotency key, or that it belongs to another request.
    async fn recall(&self, idempotency: &Idempotency<'_>) -> Result<Option<Outcome>, StoreError> {
        let Some(part) = self.parts.last() else { return Ok(None) };
        match self.apply(part, Action::Peek { idempotency: Some(*idempotency) }).await? {
            Outcome::Decided(decision) if decision.replayed => {
                Ok(Some(self.with_others(self.parts.len() - 1, decision).await?))
            }
            Outcome::Decided(_) => Ok(None),
            other => Ok(Some(other)),
        }
    }

    /// Completes the decision of one part with a look at the others.
    async fn with_others(&self, index: usize, decision: Decision) -> Result<Outcome, StoreError> {
        let (allowed, replayed, at) = (decision.allowed, decision.replayed, decision.at);
        let mut decisions = Vec::with_capacity(self.parts.len());
        let mut own = Some(decision);
        for (other, part) in self.parts.iter().enumerate() {
            if other == index {
                decisions.extend(own.take());
            } else {
                let mut other = decided(self.apply(part, Action::peek()).await?)?;
                if replayed {
                    // It was admitted then; that nothing is left now does not deny it.
                    for answer in &mut other.answers {
                        (answer.allowed, answer.reason, answer.retry_at) = (true, None, None);
                    }
                }
                decisions.push(other);
            }
        }
        let merged = self.merge(decisions);
        let mut decision = Decision::new(allowed && (replayed || merged.allowed), at, merged.answers);
        decision.replayed = replayed;
        Ok(Outcome::Decided(decision))
    }

    async fn look(&self, action: Action<'_>) -> Result<Outcome, StoreError> {
        let mut decisions = Vec::with_capacity(self.parts.len());
        for part in self.parts {
            decisions.push(decided(self.apply(part, action).await?)?);
        }
        Ok(Outcome::Decided(self.merge(decisions)))
    }

    /// Tries every part, whatever happens to the others.
    async fn reset(&self) -> Result<Outcome, StoreError> {
        let mut latest = Timestamp::default();
        let mut failure = None;
        for part in self.parts {
            match self.apply(part, Action::Reset).await {
                Ok(Outcome::Reset { at }) => latest = latest.max(at),
                Ok(_) => failure = Some(StoreError::unanswered()),
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or(Ok(Outcome::Reset { at: latest }), Err)
    }

    /// Undoes the parts that were charged. What cannot be given back stays charged: too little is left, never too much.
    async fn give_back(&self, taken: &[Decision]) {
        for (part, decision) in self.parts.iter().zip(taken) {
            let charged = decision.answers.iter().map(|answer| answer.allowed && !answer.degraded);
            let places = part.places.iter().zip(charged).filter(|(_, charged)| *charged);
            let part = Part { store: part.store, places: places.map(|(place, _)| *place).collect() };
            if !part.places.is_empty() {
                let _ = self.apply(&part, Action::Refund { taken_at: Some(decision.at) }).await;
            }
        }
    }

    async fn apply(&self, part: &Part<'_>, action: Action<'_>) -> Result<Outcome, StoreError> {
        let charges: SmallVec<[Charge<'_>; 4]> =
            part.places.iter().filter_map(|place| self.command.charges.get(*place).copied()).collect();
        let command = Command { action, charges: &charges, cost: self.command.cost };
        let outcome = part.store.apply(&[command], self.now).await.pop();
        outcome.unwrap_or_else(|| Err(StoreError::unanswered()))
    }

    /// The decisions of all parts as one, with the answers in the order of the command's charges.
    fn merge(&self, decisions: Vec<Decision>) -> Decision {
        let allowed = decisions.iter().all(|decision| decision.allowed);
        let at = decisions.iter().map(|decision| decision.at).max().unwrap_or_default();
        let mut placed: Vec<(usize, Answer)> = Vec::with_capacity(self.command.charges.len());
        for (part, decision) in self.parts.iter().zip(decisions) {
            // Each part has a clock of its own, and a refund needs the time of the charge it gives back.
            let at = Some(decision.at);
            let timed = decision.answers.into_iter().map(|mut answer| {
                answer.at = at;
                answer
            });
            placed.extend(part.places.iter().copied().zip(timed));
        }
        placed.sort_by_key(|(place, _)| *place);
        Decision::new(allowed, at, placed.into_iter().map(|(_, answer)| answer).collect::<Answers>())
    }
}

fn decided(outcome: Outcome) -> Result<Decision, StoreError> {
    match outcome {
        Outcome::Decided(decision) => Ok(decision),
        _ => Err(StoreError::unanswered()),
    }
}
