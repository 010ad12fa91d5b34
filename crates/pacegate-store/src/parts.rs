//! Commands whose keys cannot be touched in one step, because they are in different stores or
//! cluster slots.
//!
//! A take charges part by part. If a later part denies or fails, or the caller stops waiting, the
//! earlier ones are refunded exactly, without the caller if necessary. A crash in between can only
//! leave too little, never admit too much.

use std::sync::Arc;

use pacegate_core::{Answer, Answers, ChainDecision, Timestamp};
use smallvec::SmallVec;

use crate::detached::{Caller, detachable};
use crate::error::StoreError;
use crate::owned::{OwnedCharge, OwnedIdempotency};
use crate::store::{Action, Charge, Command, Idempotency, Outcome, Store};

/// Some charges of a command, by index, and the store that holds them.
#[derive(Clone, Debug)]
pub struct Part {
    /// The store.
    pub store: Arc<dyn Store>,
    /// The indices of the charges in the command.
    pub charges: SmallVec<[usize; 4]>,
}

/// Applies `command` part by part. Every charge is in exactly one part, and all callers order the
/// parts in the same way.
///
/// The record of an idempotency key is stored with the last part, which may have no charges. The
/// last part must not depend on the limits in force; otherwise a repetition does not find the
/// record after they change.
///
/// If the caller stops waiting, a refund continues to its end, and a take continues until
/// everything it took is refunded. Only an admission that is recorded under an idempotency key is
/// kept: a repetition is admitted for it.
///
/// # Errors
/// The error of the first part that fails; what was charged before it is refunded.
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
        // The record is stored with the last part, because only that one knows that all were
        // admitted.
        if let Some(idempotency) = &idempotency
            && let Some(outcome) = self.recall(idempotency).await?
        {
            return Ok(outcome);
        }
        let mut taken: Vec<ChainDecision> = Vec::with_capacity(self.parts.len());
        let last = self.parts.len().saturating_sub(1);
        for (index, part) in self.parts.iter().enumerate() {
            if caller.is_gone() {
                self.undo(&taken).await;
                return Err(abandoned());
            }
            let recorded = idempotency.filter(|_| index == last);
            let applied = caller.wait_for(self.apply(part, Action::Take { idempotency: recorded })).await;
            match applied.unwrap_or_else(|| Err(abandoned())) {
                Ok(Outcome::Decided(decision)) if decision.allowed && !decision.replayed => {
                    taken.push(decision)
                }
                Ok(Outcome::Decided(decision)) if decision.allowed => {
                    // The same request was faster: its admission is kept and ours is undone.
                    self.undo(&taken).await;
                    return self.with_others(index, decision).await;
                }
                Ok(Outcome::Decided(decision)) => {
                    self.undo(&taken).await;
                    if let Some(idempotency) = idempotency.filter(|_| index < last)
                        && let Some(outcome) = self.recall(&idempotency).await?
                    {
                        return Ok(outcome);
                    }
                    return self.with_others(index, decision).await;
                }
                // The admission may be recorded. A repetition is then admitted for these charges,
                // so they are kept.
                Err(error) if error.may_have_run() && recorded.is_some() => return Err(error),
                other => {
                    self.undo(&taken).await;
                    return other;
                }
            }
        }
        // An admission that was not delivered is undone, unless it is recorded and a repetition
        // will be admitted for it.
        if idempotency.is_none() && caller.is_gone() {
            self.undo(&taken).await;
            return Err(abandoned());
        }
        Ok(Outcome::Decided(self.merge(taken)))
    }

    /// The recorded admission of an idempotency key, or a mismatch.
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

    /// Completes the decision of one part with a peek at the others.
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

    /// Refunds every part, whatever happens to the others.
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

    /// Resets every part, whatever happens to the others.
    async fn reset(&self, action: Action<'_>) -> Result<Outcome, StoreError> {
        let mut latest = Timestamp::default();
        let mut failure = None;
        for part in self.parts {
            match self.apply(part, action).await {
                Ok(Outcome::Reset { at }) => latest = latest.max(at),
                Ok(_) => failure = Some(StoreError::missing_outcome()),
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or(Ok(Outcome::Reset { at: latest }), Err)
    }

    /// Refunds the parts that were charged. What cannot be refunded stays charged: too little
    /// remains, never too much.
    async fn undo(&self, taken: &[ChainDecision]) {
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
            // The part only holds a record.
            return Ok(Outcome::Decided(ChainDecision::new(true, Timestamp::default(), Answers::new())));
        }
        let charges = self.charges_of(part);
        let outcome = part.store.apply(&Command { action, charges: &charges }, self.now).await;
        outcome.map_err(|error| error.at(&part.charges))
    }

    fn charges_of(&self, part: &Part) -> SmallVec<[Charge<'_>; 4]> {
        part.charges.iter().filter_map(|index| self.charges.get(*index).copied()).collect()
    }

    /// Merges the decisions of all parts, with the answers in the order of the command's charges.
    fn merge(&self, decisions: Vec<ChainDecision>) -> ChainDecision {
        let allowed = decisions.iter().all(|decision| decision.allowed);
        let at = decisions.iter().map(|decision| decision.at).max().unwrap_or_default();
        let mut answers: Vec<(usize, Answer)> = Vec::with_capacity(self.charges.len());
        for (part, decision) in self.parts.iter().zip(decisions) {
            // Each part has its own clock, and a refund needs the time of the charge.
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
        _ => Err(StoreError::missing_outcome()),
    }
}

/// The caller left while a call was in progress; it may have run.
fn abandoned() -> StoreError {
    StoreError::timed_out("the caller stopped waiting")
}
