//! What one request charges: the limits of its descriptors, or of the checks of a chain, as one command.
//!
//! Takes and looks are one atomic step wherever one store can hold them; hits that are given back are a second one.

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

/// A counter that parts of a request share, and what they do to it together.
#[derive(Debug)]
pub(crate) struct Counted {
    pub(crate) limit: Arc<NamedLimit>,
    identifier: String,
    endpoint: String,
    hits: Hits,
    /// The most that one of the parts takes.
    largest: Cost,
    pub(crate) terms: Terms,
    pub(crate) answer: Option<Answer>,
}

/// What hits may do to a counter beside the usual.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Terms {
    /// Whether a charge is admitted while at least 1 is left, and the rest becomes debt.
    pub(crate) overdraw: bool,
    /// Whether hits may be given back. Where they may not, a give-back only looks.
    pub(crate) refund: bool,
}

/// All counters of a request.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) counted: Vec<Counted>,
    /// Whether a cost above the capacity of a limit is the report of something that happened already: it is denied and charged.
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

    pub(crate) fn gives_back(&self) -> bool {
        matches!(self.hits, Hits::GiveBack(_))
    }

    fn charge(&self, fit: Fit) -> Charge<'_> {
        let cost = match self.hits {
            Hits::Take(cost) | Hits::GiveBack(cost) => cost,
            Hits::Look => Cost::ZERO,
        };
        let fit = if self.terms.overdraw && fit == Fit::Whole { Fit::Overdraw } else { fit };
        Charge { fit, ..charge(&self.limit, &self.identifier, &self.endpoint, cost) }
    }
}

impl Tally {
    /// The counters of a request's descriptors, whose costs may be reported late.
    pub(crate) fn of_descriptors() -> Self {
        Self { counts_late_charges: true, ..Self::default() }
    }

    /// Adds `hits` to a counter, together with those of other parts that share it; returns the index of the answer.
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

    /// Takes, looks and gives back; returns whether the request is admitted. A request that is denied, or `banned` already, takes and gives
    /// back nothing, except that costs which are reported late are charged.
    pub(crate) async fn apply(&mut self, stores: &Stores, banned: bool) -> Result<bool, CheckError> {
        let until = stores.budget.map(|budget| Instant::now() + budget);
        let takes = self.members(|counted| !counted.gives_back());
        let given_back = self.members(|counted| counted.gives_back() && counted.terms.refund);
        let looked_at = self.members(|counted| counted.gives_back() && !counted.terms.refund);
        let late = self.members(|counted| self.is_late(counted));
        let is_enforced = |index: &usize| !self.counted[*index].limit.is_shadow();
        let steps = [&given_back, &looked_at].iter().filter(|members| !members.is_empty()).count();
        let allowed = if banned {
            self.ask(stores, Action::peek(), &takes, Time::new(until, steps + 1)).await?;
            false
        } else if late.iter().any(is_enforced) {
            let others: Members = takes.into_iter().filter(|index| !late.contains(index)).collect();
            self.ask(stores, Action::peek(), &others, Time::new(until, steps + 2)).await?;
            self.ask(stores, Action::take(), &late, Time::new(until, steps + 1)).await?;
            false
        } else {
            self.ask(stores, Action::take(), &takes, Time::new(until, steps + 1)).await?
        };
        if !banned {
            self.deny_late(&late);
        }
        let refund = if allowed { Action::Refund } else { Action::peek() };
        for (action, members) in [(refund, given_back), (Action::peek(), looked_at)] {
            self.ask(stores, action, &members, Time::new(until, steps)).await?;
            for index in members {
                // A give-back is never denied: nothing would be taken.
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

    /// Whether the cost can only be the report of something that happened already, because it never fits.
    fn is_late(&self, counted: &Counted) -> bool {
        self.counts_late_charges
            && !counted.terms.overdraw
            && matches!(counted.hits, Hits::Take(_))
            && counted.largest.get() > counted.limit.limit.capacity()
    }

    /// Late charges are counted like forced ones, and answered like the costs that they are.
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

    /// Asks about the members in one command, and keeps their answers; returns whether it was allowed.
    async fn ask(
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

    /// What can be asked in one step: the charges of one store, as long as their keys differ.
    fn groups(&self, members: &[usize]) -> Vec<Group> {
        let mut groups: Vec<Group> = Vec::new();
        for (charge, index) in members.iter().enumerate() {
            let counted = &self.counted[*index];
            let store = counted.limit.store;
            let meets = |other: &usize| self.counted[members[*other]].same_counter(counted);
            let fits = |group: &&mut Group| group.store == store && !group.charges.iter().any(meets);
            match groups.iter_mut().find(fits) {
                Some(group) => group.charges.push(charge),
                None => groups.push(Group { store, charges: SmallVec::from_elem(charge, 1) }),
            }
        }
        // The order in which all callers charge.
        groups.sort_by_key(|group| group.store);
        groups
    }
}

/// The time that all steps of a request have together, and how many are to come.
#[derive(Clone, Copy)]
struct Time {
    until: Option<Instant>,
    steps: usize,
}

impl Time {
    fn new(until: Option<Instant>, steps: usize) -> Self {
        Self { until, steps: steps.max(1) }
    }

    /// What is left for the next step.
    fn left(self) -> Duration {
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        left.map_or(Duration::MAX, |left| left / u32::try_from(self.steps).unwrap_or(u32::MAX))
    }
}
