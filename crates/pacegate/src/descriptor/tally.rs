//! The limits that the parts of one request count in (its descriptors, or the checks of a chain), asked in as few steps as their costs allow.
//!
//! A command has one cost for all its charges. Where parts of one request take different amounts, each amount is a step of its own; when a
//! later step denies, or the caller stops waiting, the earlier ones are given back exactly. A crash in between can only leave too little, never
//! admit too much.
//!
//! A charge that is larger than what is left takes what is left where the rule says so (`overdraw`), and where a descriptor asks for more than
//! the limit can ever hold. A command charges its cost or nothing, so what is left is read first and then taken. Other requests may come in
//! between: then less is read and taken, never more than there is.

use std::sync::Arc;
use std::time::Duration;

use pacegate_core::{Answer, Cost, Decision, Timestamp};
use pacegate_store::{Action, Caller, Charge, Command, Outcome, StoreError, detachable};
use smallvec::SmallVec;
use tokio::time::Instant;

use super::check::Hits;
use crate::error::CheckError;
use crate::resolved::charge;
use crate::rule::NamedLimit;
use crate::stores::Stores;

/// How often what is left is read and taken, while other requests take it at the same time.
const LOWERED_MAX: u32 = 8;

/// A limit that descriptors of a request count in, and what they do with it together.
#[derive(Debug)]
pub(crate) struct Counted {
    pub(crate) limit: Arc<NamedLimit>,
    identifier: String,
    endpoint: String,
    hits: Hits,
    /// The most that one of the descriptors takes.
    largest: Cost,
    pub(crate) terms: Terms,
    pub(crate) answer: Option<Answer>,
}

/// What hits may do to a limit beside the usual.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Terms {
    /// Whether a request for more than is left takes what is left, and passes.
    pub(crate) overdraw: bool,
    /// Whether hits may be given back. Where they may not, a give-back only looks.
    pub(crate) refund: bool,
}

/// All limits of a request.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) counted: Vec<Counted>,
    /// Whether more than a limit can ever hold takes what is left of it.
    drains: bool,
    /// How long each step may take, where all of them together have only so long.
    step_timeout: Option<Duration>,
    /// When all of them must be over: a step that has to wait for a timer takes longer than its part.
    until: Option<Instant>,
}

/// What is asked in one step: places of limits, and one cost for all of them.
struct Step {
    cost: Cost,
    members: SmallVec<[usize; 4]>,
}

impl Counted {
    fn same_counter(&self, other: &Self) -> bool {
        self.limit.counter == other.limit.counter
            && self.identifier == other.identifier
            && (!self.limit.is_per_endpoint() || self.endpoint == other.endpoint)
    }

    /// Whether the hits of both can be one charge.
    fn joins(&self, other: &Self) -> bool {
        let (own, theirs) = (&*self.limit, &*other.limit);
        self.same_counter(other)
            && (own.limit, own.mode, own.store) == (theirs.limit, theirs.mode, theirs.store)
            && std::mem::discriminant(&self.hits) == std::mem::discriminant(&other.hits)
            && self.terms == other.terms
    }

    fn takes(&self) -> bool {
        matches!(self.hits, Hits::Take(_))
    }

    pub(crate) fn gives_back(&self) -> bool {
        matches!(self.hits, Hits::GiveBack(_))
    }

    /// The answer to a take that has no room.
    fn denied(&self) -> Option<Answer> {
        self.answer.filter(|answer| self.takes() && !answer.allowed)
    }
}

impl Tally {
    /// The limits of a request's descriptors: costs may come after what they are for.
    pub(crate) fn of_descriptors() -> Self {
        Self { drains: true, ..Self::default() }
    }

    /// Counts `hits` in a limit, together with those of other descriptors that share its counter; says where the answer will be.
    pub(crate) fn add(
        &mut self,
        limit: Arc<NamedLimit>,
        identifier: String,
        endpoint: &str,
        hits: Hits,
        terms: Terms,
    ) -> usize {
        let (endpoint, largest) = (endpoint.to_owned(), hits.cost());
        let new = Counted { limit, identifier, endpoint, hits, largest, terms, answer: None };
        match self.counted.iter().position(|counted| counted.joins(&new)) {
            Some(place) => {
                let counted = &mut self.counted[place];
                counted.hits = counted.hits.and(hits);
                counted.largest = counted.largest.max(largest);
                place
            }
            None => {
                self.counted.push(new);
                self.counted.len() - 1
            }
        }
    }

    /// Takes, looks and gives back. Nothing is given back when something denies, or when the request is `banned` already, and nothing is taken
    /// except from limits that can never hold what was asked for.
    pub(crate) async fn apply(&mut self, stores: &Stores, banned: bool) -> Result<bool, CheckError> {
        let looks = self.steps(|counted| counted.hits == Hits::Look);
        let takes = self.steps(Counted::takes);
        let refunds = self.steps(|counted| counted.gives_back() && counted.terms.refund);
        let refused = self.steps(|counted| counted.gives_back() && !counted.terms.refund);
        let until = stores.budget.map(|budget| Instant::now() + budget);
        self.divide_time(until, looks.len() + takes.len() + refunds.len() + refused.len());
        let mut allowed = self.look(stores, &looks).await? && !banned;
        if allowed {
            allowed = self.take(stores, takes).await?;
            for _ in 0..LOWERED_MAX {
                if allowed || !has_time(stores, until) || !self.lower_overdrawn() {
                    break;
                }
                let takes = self.steps(Counted::takes);
                self.divide_time(until, takes.len() + refunds.len() + refused.len());
                allowed = self.take(stores, takes).await?;
            }
        } else {
            self.look(stores, &takes).await?;
        }
        if !banned {
            self.drain(stores, allowed, until).await;
        }
        let refund = if allowed { Action::Refund { taken_at: None } } else { Action::peek() };
        let refunds = refunds.iter().map(|step| (step, refund));
        for (step, action) in refunds.chain(refused.iter().map(|step| (step, Action::peek()))) {
            self.ask(stores, step, action).await?;
            for member in &step.members {
                // A give-back is not denied: there is nothing that could be taken.
                if let Some(answer) = &mut self.counted[*member].answer {
                    (answer.allowed, answer.retry_at) = (true, None);
                    answer.reason = answer.reason.filter(|_| answer.degraded);
                }
            }
        }
        Ok(allowed)
    }

    /// The largest costs first: they are the likeliest to be denied, and then nothing has to be given back.
    fn steps(&self, wanted: impl Fn(&Counted) -> bool) -> Vec<Step> {
        let mut steps: Vec<Step> = Vec::new();
        for (place, counted) in self.counted.iter().enumerate().filter(|(_, counted)| wanted(counted)) {
            let cost = counted.hits.cost();
            // The keys of one command differ from one another.
            let fits = |step: &&mut Step| {
                let met = |member: &usize| self.counted[*member].same_counter(counted);
                step.cost == cost && !step.members.iter().any(met)
            };
            match steps.iter_mut().find(fits) {
                Some(step) => step.members.push(place),
                None => steps.push(Step { cost, members: SmallVec::from_elem(place, 1) }),
            }
        }
        steps.sort_by_key(|step| std::cmp::Reverse(step.cost));
        steps
    }

    /// Divides the time that is left among steps to come.
    fn divide_time(&mut self, until: Option<Instant>, steps: usize) {
        self.until = until;
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        self.step_timeout = left.map(|left| left / u32::try_from(steps.max(1)).unwrap_or(u32::MAX));
    }

    /// Has every limit that denies and may be overdrawn take what is left of it. False when another one denies, or nothing is left: then
    /// the request is denied.
    fn lower_overdrawn(&mut self) -> bool {
        let mut lowered = false;
        for counted in &mut self.counted {
            let Some(denied) = counted.denied().filter(|denied| !denied.shadow) else { continue };
            let left = denied.remaining.map(|left| Cost::try_new(left.into()));
            match left {
                Some(Ok(left)) if counted.terms.overdraw && left < counted.hits.cost() => {
                    (counted.hits, lowered) = (Hits::Take(left), true);
                }
                _ => return false,
            }
        }
        lowered
    }

    /// Takes what is left of limits that can never hold what was asked for, and of those that may be overdrawn and only watch. Their answers
    /// stay what they were, with the numbers of now.
    async fn drain(&mut self, stores: &Stores, allowed: bool, until: Option<Instant>) {
        for member in 0..self.counted.len() {
            let counted = &self.counted[member];
            let Some(denied) = counted.denied() else { continue };
            let never_fits = self.drains && counted.largest.get() > counted.limit.limit.capacity();
            let overdrawn = counted.terms.overdraw && allowed;
            if !never_fits && !overdrawn {
                continue;
            }
            for _ in 0..LOWERED_MAX {
                let left = self.counted[member].answer.and_then(|answer| answer.remaining);
                let Some(Ok(cost)) = left.map(|left| Cost::try_new(left.into())) else { break };
                if !has_time(stores, until) {
                    break;
                }
                self.divide_time(until, 1);
                let step = Step { cost, members: SmallVec::from_elem(member, 1) };
                // What cannot be taken is not: the request is answered all the same.
                let Ok(_) = self.ask(stores, &step, Action::take()).await else { break };
                if self.counted[member].answer.is_some_and(|answer| answer.allowed) {
                    break;
                }
            }
            if let Some(answer) = &mut self.counted[member].answer {
                (answer.allowed, answer.reason, answer.retry_at) = (false, denied.reason, denied.retry_at);
            }
        }
    }

    async fn take(&mut self, stores: &Stores, mut steps: Vec<Step>) -> Result<bool, CheckError> {
        if steps.len() < 2 {
            let Some(step) = steps.pop() else { return Ok(true) };
            return Ok(self.ask(stores, &step, Action::take()).await?.allowed);
        }
        // What several steps took is given back even if the caller stops waiting in between.
        let (mut tally, stores) = (std::mem::take(self), stores.clone());
        let work = detachable(|caller| async move {
            let allowed = tally.take_in_steps(&stores, &steps, &caller).await;
            (tally, allowed)
        });
        let (tally, allowed) = work.await;
        *self = tally;
        allowed
    }

    async fn take_in_steps(
        &mut self,
        stores: &Stores,
        steps: &[Step],
        caller: &Caller,
    ) -> Result<bool, CheckError> {
        for (index, step) in steps.iter().enumerate() {
            let outcome = self.ask(stores, step, Action::take()).await;
            if let Ok(decision) = &outcome
                && decision.allowed
            {
                if caller.is_gone() {
                    // An admission that cannot be delivered is undone, without the caller's budget.
                    (self.step_timeout, self.until) = (None, None);
                    self.give_back_all(stores, &steps[..=index]).await;
                    return Ok(false);
                }
                continue;
            }
            self.give_back_all(stores, &steps[..index]).await;
            outcome?;
            self.look(stores, &steps[..index]).await?;
            self.look(stores, &steps[index + 1..]).await?;
            return Ok(false);
        }
        Ok(true)
    }

    async fn look(&mut self, stores: &Stores, steps: &[Step]) -> Result<bool, CheckError> {
        let mut allowed = true;
        for step in steps {
            allowed &= self.ask(stores, step, Action::peek()).await?.allowed;
        }
        Ok(allowed)
    }

    async fn give_back_all(&mut self, stores: &Stores, steps: &[Step]) {
        for step in steps {
            self.give_back(stores, step).await;
        }
    }

    /// Undoes a step. What cannot be given back stays charged: too little is left, never too much.
    async fn give_back(&mut self, stores: &Stores, step: &Step) {
        let mut charged: SmallVec<[(Timestamp, usize); 4]> = SmallVec::new();
        for member in &step.members {
            if let Some(answer) = &self.counted[*member].answer
                && answer.allowed
                && !answer.degraded
            {
                let limit = &self.counted[*member].limit.limit;
                charged.extend(answer.at.map(|at| (answer.refund_at(limit, step.cost, at), *member)));
            }
        }
        charged.sort_unstable();
        // Limits that are kept apart were charged by different clocks.
        for together in charged.chunk_by(|a, b| a.0 == b.0) {
            let members = together.iter().map(|(_, member)| *member).collect();
            let action = Action::Refund { taken_at: Some(together[0].0) };
            let _ = self.ask(stores, &Step { cost: step.cost, members }, action).await;
        }
    }

    async fn ask(
        &mut self,
        stores: &Stores,
        step: &Step,
        action: Action<'_>,
    ) -> Result<Decision, CheckError> {
        let members = || step.members.iter().map(|member| &self.counted[*member]);
        let charges: SmallVec<[Charge<'_>; 4]> =
            members().map(|counted| charge(&counted.limit, &counted.identifier, &counted.endpoint)).collect();
        let places: SmallVec<[usize; 4]> = members().map(|counted| counted.limit.store).collect();
        let command = Command { action, charges: &charges, cost: step.cost };
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        let at_most = self.step_timeout.unwrap_or(Duration::MAX).min(left.unwrap_or(Duration::MAX));
        let Outcome::Decided(decision) = stores.apply_within(&command, &places, at_most).await? else {
            return Err(StoreError::unanswered().into());
        };
        drop(charges);
        for (member, answer) in step.members.iter().zip(&decision.answers) {
            let mut answer = *answer;
            answer.at = answer.at.or(Some(decision.at));
            self.counted[*member].answer = Some(answer);
        }
        Ok(decision)
    }
}

/// Whether another attempt can be answered in time: one that is cut short would look like a store that fails.
fn has_time(stores: &Stores, until: Option<Instant>) -> bool {
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    left.zip(stores.budget).is_none_or(|(left, budget)| left >= budget / 2)
}
