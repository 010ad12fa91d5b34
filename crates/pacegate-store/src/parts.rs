//! Commands whose keys cannot be touched in one step: they live in different stores, or in different slots of one.
//!
//! A take charges part by part. When a later part denies or fails, or the caller stops waiting, the earlier ones are given back exactly, without
//! the caller if need be. A crash in between can only leave too little, never admit too much.

use std::sync::Arc;

use pacegate_core::{Answer, Answers, ChainDecision, Timestamp};
use smallvec::SmallVec;

use crate::detached::{Caller, detachable};
use crate::error::StoreError;
use crate::owned::{OwnedCharge, OwnedIdempotency};
use crate::store::{Action, Charge, Command, Idempotency, Outcome, Store};

/// Some charges of a command, by their indices in it, and the store that keeps them.
#[derive(Clone, Debug)]
pub struct Part {
    /// Where they are kept.
    pub store: Arc<dyn Store>,
    /// Which charges of the command.
    pub charges: SmallVec<[usize; 4]>,
}

/// Applies `command` part by part. Every charge is in exactly one part, and all callers name the parts in the same order.
///
/// The record of an idempotency key is kept with the last part, which may have no charges: the last part must be the
/// same whatever limits are in force, or a repetition does not find the record once they changed.
///
/// A take or a refund whose caller stops waiting goes on without it: a refund to its end, a take until everything it took is given back. Only an
/// admission that is recorded under an idempotency key stands: a repetition is admitted for it.
///
/// # Errors
/// That of the first part that fails; what was charged before it is given back.
pub async fn apply_in_parts(
    parts: Vec<Part>,
    command: &Command<'_>,
    now: Option<Timestamp>,
) -> Result<Outcome, StoreError> {
    let Command { action, charges } = *command;
    let run = Run { parts: &parts, charges, now };
    match action {
        Action::Take { idempotency } => {
            let idempotency = idempotency.map(OwnedIdempotency::from);
            let owned: Vec<OwnedCharge> = charges.iter().map(OwnedCharge::from).collect();
            let take = detachable(|caller| async move {
                let charges: SmallVec<[Charge<'_>; 4]> = owned.iter().map(OwnedCharge::as_charge).collect();
                let run = Run { parts: &parts, charges: &charges, now };
                run.take(idempotency.as_ref().map(OwnedIdempotency::as_idempotency), &caller).await
            });
            take.await
        }
        Action::Refund => {
            let owned: Vec<OwnedCharge> = charges.iter().map(OwnedCharge::from).collect();
            let refund = detachable(|_| async move {
                let charges: SmallVec<[Charge<'_>; 4]> = owned.iter().map(OwnedCharge::as_charge).collect();
                Run { parts: &parts, charges: &charges, now }.refund().await
            });
            refund.await
        }
        Action::Reset | Action::ResetVariants => run.reset(action).await,
        Action::Peek { idempotency: Some(idempotency) } => match run.recall(&idempotency).await? {
            Some(outcome) => Ok(outcome),
            None => run.look().await,
        },
        Action::Peek { idempotency: None } => run.look().await,
    }
}

struct Run<'a> {
    parts: &'a [Part],
    charges: &'a [Charge<'a>],
    now: Option<Timestamp>,
}

impl Run<'_> {
    async fn take(
        &self,
        idempotency: Option<Idempotency<'_>>,
        caller: &Caller,
    ) -> Result<Outcome, StoreError> {
        // The record of an idempotency key is kept with the last part, because only that one knows that all were admitted.
        if let Some(idempotency) = &idempotency
            && let Some(outcome) = self.recall(idempotency).await?
        {
            return Ok(outcome);
        }
        let mut taken: Vec<ChainDecision> = Vec::with_capacity(self.parts.len());
        let last = self.parts.len().saturating_sub(1);
        for (index, part) in self.parts.iter().enumerate() {
            if caller.is_gone() {
                self.give_back(&taken).await;
                return Err(abandoned());
            }
            let recorded = idempotency.filter(|_| index == last);
            let applied = caller.wait_for(self.apply(part, Action::Take { idempotency: recorded })).await;
            match applied.unwrap_or_else(|| Err(abandoned())) {
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
                // The admission may be recorded: a repetition is then admitted for the charges that were made here, so they stay.
                Err(error) if error.may_have_run() && recorded.is_some() => return Err(error),
                other => {
                    self.give_back(&taken).await;
                    return other;
                }
            }
        }
        // An admission that was never delivered is undone, unless it is recorded and a repetition will be admitted for it.
        if idempotency.is_none() && caller.is_gone() {
            self.give_back(&taken).await;
            return Err(abandoned());
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
    async fn with_others(&self, index: usize, decision: ChainDecision) -> Result<Outcome, StoreError> {
        let (allowed, replayed) = (decision.allowed, decision.replayed);
        let mut decisions = Vec::with_capacity(self.parts.len());
        let mut own = Some(decision);
        for (other, part) in self.parts.iter().enumerate() {
            if other == index {
                decisions.extend(own.take());
            } else {
                let other = decided(self.apply(part, Action::peek()).await?)?;
                decisions.push(if replayed { other.into_replay() } else { other });
            }
        }
        let merged = self.merge(decisions);
        let mut decision =
            ChainDecision::new(allowed && (replayed || merged.allowed), merged.at, merged.answers);
        decision.replayed = replayed;
        Ok(Outcome::Decided(decision))
    }

    async fn look(&self) -> Result<Outcome, StoreError> {
        let mut decisions = Vec::with_capacity(self.parts.len());
        for part in self.parts {
            decisions.push(decided(self.apply(part, Action::peek()).await?)?);
        }
        Ok(Outcome::Decided(self.merge(decisions)))
    }

    /// Tries every part, whatever happens to the others.
    async fn refund(&self) -> Result<Outcome, StoreError> {
        let mut decisions = Vec::with_capacity(self.parts.len());
        let mut failure = None;
        for part in self.parts {
            match self.apply(part, Action::Refund).await.and_then(decided) {
                Ok(decision) => decisions.push(decision),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        failure.map_or_else(|| Ok(Outcome::Decided(self.merge(decisions))), Err)
    }

    /// Tries every part, whatever happens to the others.
    async fn reset(&self, action: Action<'_>) -> Result<Outcome, StoreError> {
        let mut latest = Timestamp::default();
        let mut failure = None;
        for part in self.parts {
            match self.apply(part, action).await {
                Ok(Outcome::Reset { at }) => latest = latest.max(at),
                Ok(_) => failure = Some(StoreError::unanswered()),
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or(Ok(Outcome::Reset { at: latest }), Err)
    }

    /// Undoes the parts that were charged. What cannot be given back stays charged: too little is left, never too much.
    async fn give_back(&self, taken: &[ChainDecision]) {
        for (part, decision) in self.parts.iter().zip(taken) {
            let charges = self.charges_of(part);
            let refunds: SmallVec<[Charge<'_>; 4]> = charges
                .iter()
                .zip(&decision.answers)
                .filter_map(|(charge, answer)| charge.refund(answer, decision.at))
                .collect();
            if !refunds.is_empty() {
                let command = Command { action: Action::Refund, charges: &refunds };
                let _ = part.store.apply(&command, self.now).await;
            }
        }
    }

    async fn apply(&self, part: &Part, action: Action<'_>) -> Result<Outcome, StoreError> {
        if part.charges.is_empty() && matches!(action, Action::Peek { idempotency: None }) {
            // It only keeps a record.
            return Ok(Outcome::Decided(ChainDecision::new(true, Timestamp::default(), Answers::new())));
        }
        let charges = self.charges_of(part);
        let outcome = part.store.apply(&Command { action, charges: &charges }, self.now).await;
        outcome.map_err(|error| error.at(&part.charges))
    }

    fn charges_of(&self, part: &Part) -> SmallVec<[Charge<'_>; 4]> {
        part.charges.iter().filter_map(|index| self.charges.get(*index).copied()).collect()
    }

    /// The decisions of all parts as one, with the answers in the order of the command's charges.
    fn merge(&self, decisions: Vec<ChainDecision>) -> ChainDecision {
        let allowed = decisions.iter().all(|decision| decision.allowed);
        let at = decisions.iter().map(|decision| decision.at).max().unwrap_or_default();
        let mut answers: Vec<(usize, Answer)> = Vec::with_capacity(self.charges.len());
        for (part, decision) in self.parts.iter().zip(decisions) {
            // Each part has a clock of its own, and a refund needs the time of the charge it gives back.
            let at = Some(decision.at);
            let timed = decision.answers.into_iter().map(|mut answer| {
                answer.at = at;
                answer
            });
            answers.extend(part.charges.iter().copied().zip(timed));
        }
        answers.sort_by_key(|(index, _)| *index);
        ChainDecision::new(allowed, at, answers.into_iter().map(|(_, answer)| answer).collect::<Answers>())
    }
}

fn decided(outcome: Outcome) -> Result<ChainDecision, StoreError> {
    match outcome {
        Outcome::Decided(decision) => Ok(decision),
        _ => Err(StoreError::unanswered()),
    }
}

/// The caller went away while a call was under way; it may have run.
fn abandoned() -> StoreError {
    StoreError::timed_out("the caller stopped waiting")
}
