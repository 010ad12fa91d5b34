//! Collects what one request charges, for its descriptors or for the checks of a chain, into one
//! command.
//!
//! Charges and peeks are one atomic step if one store holds all of them; refunds are a second step.

use std::sync::Arc;
use std::time::Duration;

use pacegate_core::{Answer, Cost, Fit, Reason};
use pacegate_store::{Action, Charge, Command, Outcome, StoreError};
use smallvec::SmallVec;
use tokio::time::Instant;

use super::check::Hits;
use crate::error::CheckError;
use crate::resolved::charge;
use crate::rule::NamedLimit;
use crate::stores::{Group, Stores};

/// A counter that parts of a request share, with the sum of their hits.
#[derive(Debug)]
pub(crate) struct Counted {
    pub(crate) limit: Arc<NamedLimit>,
    identifier: String,
    endpoint: String,
    hits: Hits,
    /// The largest cost of a single part.
    largest: Cost,
    pub(crate) terms: Terms,
    pub(crate) answer: Option<Answer>,
}

/// Options of the hits on a counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Terms {
    /// Whether a charge is allowed while at least 1 remains; the excess becomes debt.
    pub(crate) overdraw: bool,
    /// Whether refunds are allowed. If not, a refund only peeks.
    pub(crate) refund: bool,
}

/// All counters of a request.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) counted: Vec<Counted>,
    /// Whether a cost above the capacity of a limit is the report of past usage, which is denied
    /// and charged.
    counts_late_charges: bool,
}

/// Indices of counters.
type Members = SmallVec<[usize; 4]>;

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

    pub(crate) fn is_refund(&self) -> bool {
        matches!(self.hits, Hits::Refund(_))
    }

    fn charge(&self, fit: Fit) -> Charge<'_> {
        let cost = match self.hits {
            Hits::Take(cost) | Hits::Refund(cost) => cost,
            Hits::Peek => Cost::ZERO,
        };
        let fit = if self.terms.overdraw && fit == Fit::Whole { Fit::Overdraw } else { fit };
        Charge { fit, ..charge(&self.limit, &self.identifier, &self.endpoint, cost) }
    }
}

impl Tally {
    /// The counters of the descriptors of a request, whose costs may be reported late.
    pub(crate) fn of_descriptors() -> Self {
        Self { counts_late_charges: true, ..Self::default() }
    }

    /// Adds `hits` to a counter, merged with those of other parts that share it. Returns the index
    /// of the answer.
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
            Some(index) => {
                let counted = &mut self.counted[index];
                counted.hits = counted.hits.and(hits);
                counted.largest = counted.largest.max(largest);
                index
            }
            None => {
                self.counted.push(new);
                self.counted.len() - 1
            }
        }
    }

    /// Applies charges, peeks and refunds; returns whether the request is allowed. A request that
    /// is denied, or already `banned`, charges and refunds nothing, except that late charges are
    /// applied.
    pub(crate) async fn apply(&mut self, stores: &Stores, banned: bool) -> Result<bool, CheckError> {
        let until = stores.budget.map(|budget| Instant::now() + budget);
        let takes = self.members(|counted| !counted.is_refund());
        let refunded = self.members(|counted| counted.is_refund() && counted.terms.refund);
        let peeked = self.members(|counted| counted.is_refund() && !counted.terms.refund);
        let late = self.members(|counted| self.is_late(counted));
        let is_enforced = |index: &usize| !self.counted[*index].limit.is_shadow();
        let steps = [&refunded, &peeked].iter().filter(|members| !members.is_empty()).count();
        let allowed = if banned {
            self.apply_step(stores, Action::peek(), &takes, Time::new(until, steps + 1)).await?;
            false
        } else if late.iter().any(is_enforced) {
            let others: Members = takes.into_iter().filter(|index| !late.contains(index)).collect();
            self.apply_step(stores, Action::peek(), &others, Time::new(until, steps + 2)).await?;
            self.apply_step(stores, Action::take(), &late, Time::new(until, steps + 1)).await?;
            false
        } else {
            self.apply_step(stores, Action::take(), &takes, Time::new(until, steps + 1)).await?
        };
        if !banned {
            self.deny_late(&late);
        }
        let refund = if allowed { Action::Refund } else { Action::peek() };
        for (action, members) in [(refund, refunded), (Action::peek(), peeked)] {
            self.apply_step(stores, action, &members, Time::new(until, steps)).await?;
            for index in members {
                // A refund is always allowed, because it charges nothing.
                if let Some(answer) = &mut self.counted[index].answer {
                    (answer.allowed, answer.retry_at) = (true, None);
                    answer.reason = answer.reason.filter(|_| answer.degraded);
                }
            }
        }
        Ok(allowed)
    }

    fn members(&self, wanted: impl Fn(&Counted) -> bool) -> Members {
        (0..self.counted.len()).filter(|index| wanted(&self.counted[*index])).collect()
    }

    /// Whether the cost can only be the report of past usage, because it exceeds the capacity.
    fn is_late(&self, counted: &Counted) -> bool {
        self.counts_late_charges
            && !counted.terms.overdraw
            && matches!(counted.hits, Hits::Take(_))
            && counted.largest.get() > counted.limit.limit.capacity()
    }

    /// Late charges are applied like forced ones, and denied because their cost exceeds the limit.
    fn deny_late(&mut self, late: &[usize]) {
        for index in late {
            if let Some(answer) = &mut self.counted[*index].answer
                && !answer.degraded
            {
                (answer.allowed, answer.retry_at) = (false, None);
                answer.reason = Some(Reason::CostExceedsLimit);
            }
        }
    }

    /// Applies an action to the members in one command and stores their answers. Returns whether it
    /// was allowed.
    async fn apply_step(
        &mut self,
        stores: &Stores,
        action: Action<'_>,
        members: &[usize],
        time: Time,
    ) -> Result<bool, CheckError> {
        if members.is_empty() {
            return Ok(true);
        }
        let counted = || members.iter().map(|index| &self.counted[*index]);
        let takes = matches!(action, Action::Take { .. });
        let charges: SmallVec<[Charge<'_>; 4]> = counted()
            .map(|counted| {
                counted.charge(if takes && self.is_late(counted) { Fit::Forced } else { Fit::Whole })
            })
            .collect();
        let command = Command { action, charges: &charges };
        let Outcome::Decided(decision) =
            stores.apply_groups(&command, &self.groups(members), time.left()).await?
        else {
            return Err(StoreError::missing_outcome().into());
        };
        drop(charges);
        for (index, answer) in members.iter().zip(&decision.answers) {
            let mut answer = *answer;
            answer.at = answer.at.or(Some(decision.at));
            self.counted[*index].answer = Some(answer);
        }
        Ok(decision.allowed)
    }

    /// Groups charges that can be applied in one step: those of one store with different keys.
    fn groups(&self, members: &[usize]) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        for (charge, index) in members.iter().enumerate() {
            let counted = &self.counted[*index];
            let store = counted.limit.store;
            let collides = |other: &usize| self.counted[members[*other]].same_counter(counted);
            let fits = |group: &&mut Group| group.store == store && !group.charges.iter().any(collides);
            match groups.iter_mut().find(fits) {
                Some(group) => group.charges.push(charge),
                None => groups.push(Group { store, charges: SmallVec::from_elem(charge, 1) }),
            }
        }
        // All callers charge in the order of the stores.
        groups.sort_by_key(|group| group.store);
        groups
    }
}

/// The time that all steps of a request share, and the number of remaining steps.
#[derive(Clone, Copy)]
struct Time {
    until: Option<Instant>,
    steps: usize,
}

impl Time {
    fn new(until: Option<Instant>, steps: usize) -> Self {
        Self { until, steps: steps.max(1) }
    }

    /// The time for the next step.
    fn left(self) -> Duration {
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        left.map_or(Duration::MAX, |left| left / u32::try_from(self.steps).unwrap_or(u32::MAX))
    }
}
