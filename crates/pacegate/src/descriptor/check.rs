//! Decides on all descriptors of a request as one.

use std::borrow::Cow;
use std::collections::HashSet;

use pacegate_core::{Answer, Answers, Cost, Timestamp};
use smallvec::SmallVec;

use super::Allowance;
use super::set::{Allows, Match, path_identifier};
use super::tally::{Tally, Terms};
use crate::check::Check;
use crate::decision::Decision;
use crate::endpoint::{Endpoint, PathOptions};
use crate::error::CheckError;
use crate::identity;
use crate::limiter::Limiter;
use crate::profile::Profile;
use crate::rule::Mode;
use crate::ruleset::RuleSet;

/// What a descriptor does to the limits that apply to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hits {
    /// Charges this cost. A cost above the capacity of a limit can only be the report of past
    /// usage: it is denied and still charged, into a debt of up to one capacity.
    Take(Cost),
    /// Charges nothing; decides whether a cost of 1 would be allowed.
    Peek,
    /// Refunds this much of the most recent usage, never more than was used. Always allowed.
    Refund(Cost),
}

impl Default for Hits {
    fn default() -> Self {
        Self::Take(Cost::ONE)
    }
}

impl Hits {
    pub(super) fn cost(self) -> Cost {
        match self {
            Self::Take(cost) | Self::Refund(cost) => cost,
            Self::Peek => Cost::ONE,
        }
    }

    /// The sum of the hits of two descriptors on one counter.
    pub(super) fn and(self, other: Self) -> Self {
        let sum = u64::from(self.cost().get()) + u64::from(other.cost().get());
        let sum = Cost::from(u32::try_from(sum).unwrap_or(u32::MAX));
        match self {
            Self::Take(_) => Self::Take(sum),
            Self::Refund(_) => Self::Refund(sum),
            Self::Peek => Self::Peek,
        }
    }
}

/// One descriptor of a request: keys and values in order, and its hits.
///
/// ```
/// use pacegate::{descriptor::{Descriptor, Hits}};
///
/// let one = Descriptor::new([("remote_address", "10.0.0.1")]);
/// let many = Descriptor::new([("model", "large")]).hits(Hits::Take(800.into()));
/// ```
#[derive(Clone, Debug)]
pub struct Descriptor<'a> {
    entries: SmallVec<[(&'a str, &'a str); 4]>,
    hits: Hits,
    refundable_only: bool,
    allowance: Option<Allowance>,
    profile: Option<&'a Profile>,
}

impl<'a> Descriptor<'a> {
    /// Returns a descriptor that charges 1.
    pub fn new(entries: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let entries = entries.into_iter().collect();
        Self { entries, hits: Hits::default(), refundable_only: false, allowance: None, profile: None }
    }

    /// Sets what the descriptor does. Default: charge 1.
    #[must_use]
    pub fn hits(mut self, hits: Hits) -> Self {
        self.hits = hits;
        self
    }

    /// Allows refunds only for rules with
    /// [`refundable`](crate::descriptor::DescriptorRule::refundable); for other rules a refund only
    /// peeks. Use it for callers that are not authenticated.
    #[must_use]
    pub fn refundable_only(mut self) -> Self {
        self.refundable_only = true;
        self
    }

    /// Sets an ad-hoc limit for its path, which replaces the rule for that path. Rules with
    /// conditions still apply.
    #[must_use]
    pub fn allowance(mut self, allowance: Allowance) -> Self {
        self.allowance = Some(allowance);
        self
    }

    /// Sets the profile of the user, for rules of the dimension `user`.
    #[must_use]
    pub fn profile(mut self, profile: impl Into<Option<&'a Profile>>) -> Self {
        self.profile = profile.into();
        self
    }

    /// What it may do to limits without a descriptor rule.
    fn terms(&self) -> Terms {
        Terms { overdraw: false, refund: !self.refundable_only }
    }
}

/// The decision on a request, with the outcome of each of its descriptors.
#[derive(Clone, Debug)]
pub struct DescriptorDecision {
    /// Whether the request may pass. If not, nothing was charged, except to limits whose capacity
    /// is below the cost.
    pub allowed: bool,
    /// The time of the decision, by the clock of the store; the epoch if no store was called.
    pub at: Timestamp,
    /// The outcome of each descriptor, in order.
    pub outcomes: Vec<DescriptorOutcome>,
}

impl DescriptorDecision {
    /// Whether any limit was decided without its store.
    pub fn degraded(&self) -> bool {
        self.outcomes.iter().any(|outcome| outcome.decision.degraded())
    }

    /// Returns the limits of all descriptors as one decision, which names the binding limit.
    pub fn whole(&self) -> Cow<'_, Decision> {
        if let [only] = &*self.outcomes {
            return Cow::Borrowed(&only.decision);
        }
        let decisions = || self.outcomes.iter().map(|outcome| &outcome.decision);
        let answers = decisions().flat_map(|decision| decision.answers().iter().copied()).collect();
        let limits = decisions().flat_map(|decision| decision.limits().iter().cloned()).collect();
        Cow::Owned(Decision::of(pacegate_core::ChainDecision::new(self.allowed, self.at, answers), limits))
    }
}

/// The outcome of one descriptor.
#[derive(Clone, Debug)]
pub struct DescriptorOutcome {
    /// Whether any rule matched, including rules that another rule of the request replaces.
    pub matched: bool,
    /// Whether a matching rule exempts it from limits.
    pub unlimited: bool,
    /// The rule that always denies it, if any.
    pub banned_by: Option<Box<str>>,
    /// Whether hits were refunded.
    pub refunded: bool,
    /// Whether a refund was rejected because the rule does not allow it
    /// ([`Descriptor::refundable_only`]).
    pub refund_rejected: bool,
    /// The decision of its own limits. It can be allowed while the request is denied because of
    /// another descriptor.
    pub decision: Decision,
}

/// What applies to a descriptor, before stores are called.
#[derive(Default)]
struct Found {
    matched: bool,
    unlimited: bool,
    banned_by: Option<Box<str>>,
    /// The indices of its limits in the tally.
    limits: SmallVec<[usize; 2]>,
}

impl Limiter {
    /// Decides on the descriptors of one request: all of them are charged, or none is.
    ///
    /// A descriptor that no descriptor rule matches is checked against the ordinary rules: its
    /// entries `path` (or `endpoint`) and `method` are the endpoint and method, and every other
    /// entry is a dimension and an identifier. A descriptor without any matching rule is allowed;
    /// the default limit does not apply to descriptors.
    ///
    /// Descriptors whose counters are in one store, and in one slot of a Redis Cluster, are decided
    /// in one atomic step.
    ///
    /// # Errors
    /// Only [`CheckError::Store`], if a store failed. Values may have any length and any
    /// characters.
    pub async fn check_descriptors(
        &self,
        domain: &str,
        descriptors: &[Descriptor<'_>],
    ) -> Result<DescriptorDecision, CheckError> {
        let rules = self.rules();
        let mut tally = Tally::of_descriptors();
        let spelling = (self.ipv6_prefix(), self.paths());
        let found = find(&rules, domain, descriptors, spelling, &mut tally);
        let banned = found.iter().any(|found| found.banned_by.is_some());
        let allowed = tally.apply(self.stores(), banned).await?;
        let outcomes: Vec<DescriptorOutcome> =
            found.into_iter().map(|found| found.outcome(&tally, allowed)).collect();
        let at = outcomes.iter().map(|outcome| outcome.decision.at()).max().unwrap_or_default();
        Ok(DescriptorDecision { allowed, at, outcomes })
    }
}

impl Found {
    fn outcome(self, tally: &Tally, request_allowed: bool) -> DescriptorOutcome {
        let counted = || self.limits.iter().map(|index| &tally.counted[*index]);
        let answers: Answers = counted().filter_map(|counted| counted.answer).collect();
        let passes = |answer: &Answer| answer.allowed || answer.shadow;
        let allowed = self.banned_by.is_none() && answers.iter().all(passes);
        let at = answers.iter().filter_map(|answer| answer.at).max().unwrap_or_default();
        let limits = counted().map(|counted| counted.limit.clone()).collect();
        let decision = Decision::of(pacegate_core::ChainDecision::new(allowed, at, answers), limits);
        let refunds = |permitted| counted().any(|own| own.is_refund() && own.terms.refund == permitted);
        let (refunded, refund_rejected) = (request_allowed && refunds(true), refunds(false));
        let Self { matched, unlimited, banned_by, .. } = self;
        DescriptorOutcome { matched, unlimited, banned_by, refunded, refund_rejected, decision }
    }
}

/// Finds what applies to each descriptor, and adds the limits to `tally`.
fn find(
    rules: &RuleSet,
    domain: &str,
    descriptors: &[Descriptor<'_>],
    spelling: (u8, PathOptions),
    tally: &mut Tally,
) -> Vec<Found> {
    let matches = |(index, descriptor): (usize, &Descriptor<'_>)| {
        rules.descriptors().find(domain, index, &descriptor.entries, descriptor.allowance.is_some())
    };
    let matches: Vec<SmallVec<[Match<'_>; 1]>> = descriptors.iter().enumerate().map(matches).collect();
    // As in Envoy's rate limit service, a rule that is itself replaced still replaces others.
    let replaced: HashSet<&str> =
        matches.iter().flatten().flat_map(|found| &found.rule.replaces).map(String::as_str).collect();
    let applies =
        |found: &Match<'_>| found.rule.own_name.as_deref().is_none_or(|name| !replaced.contains(name));
    let mut all = Vec::with_capacity(descriptors.len());
    for (descriptor, matches) in descriptors.iter().zip(matches) {
        let mut found = Found { matched: !matches.is_empty(), ..Found::default() };
        if let Some(allowance) = &descriptor.allowance {
            found.add_ad_hoc(rules, domain, descriptor, allowance, tally);
        }
        if !found.matched {
            found.add_ordinary(rules, descriptor, spelling, tally);
        }
        for Match { rule, identifier } in matches.into_iter().filter(applies) {
            match &rule.allows {
                Allows::Everything => found.unlimited = true,
                // Shadow rules and refunds are allowed.
                Allows::Nothing if rule.mode == Mode::Shadow => {}
                Allows::Nothing => found.ban(descriptor, &rule.display_name),
                Allows::Limit(limit) => {
                    let refund = !descriptor.refundable_only || rule.refundable;
                    let terms = Terms { overdraw: rule.overdraw, refund };
                    let index = tally.add(limit.clone(), identifier, "", descriptor.hits, terms);
                    found.limits.push(index);
                }
            }
        }
        all.push(found);
    }
    all
}

impl Found {
    fn ban(&mut self, descriptor: &Descriptor<'_>, name: &str) {
        if !matches!(descriptor.hits, Hits::Refund(_)) {
            self.banned_by = Some(name.into());
        }
    }

    /// Adds the ad-hoc limit of the request.
    fn add_ad_hoc(
        &mut self,
        rules: &RuleSet,
        domain: &str,
        descriptor: &Descriptor<'_>,
        allowance: &Allowance,
        tally: &mut Tally,
    ) {
        self.matched = true;
        match allowance {
            Allowance::Unlimited => self.unlimited = true,
            Allowance::Nothing => self.ban(descriptor, "ad-hoc"),
            Allowance::Limit(limit) => {
                let (set, mode) = (rules.descriptors(), rules.on_store_error());
                let named = set.ad_hoc_limit(*limit, domain, &descriptor.entries, mode);
                let identifier = path_identifier(domain, &descriptor.entries);
                self.limits.push(tally.add(named, identifier, "", descriptor.hits, descriptor.terms()));
            }
        }
    }

    /// Adds the ordinary rules for the identities of the descriptor.
    fn add_ordinary(
        &mut self,
        rules: &RuleSet,
        descriptor: &Descriptor<'_>,
        (ipv6_prefix, paths): (u8, PathOptions),
        tally: &mut Tally,
    ) {
        let mut endpoint = None;
        let mut method = None;
        let mut identities: SmallVec<[(&str, Cow<'_, str>); 2]> = SmallVec::new();
        for &(key, value) in &descriptor.entries {
            match key {
                // Any length and characters: an error would let the request pass, because Envoy
                // allows requests on errors.
                "path" | "endpoint" => endpoint = (!value.is_empty()).then(|| paths.any_endpoint(value)),
                "method" => method = Some(value),
                _ if value.is_empty() => {}
                // The same applies to identifiers.
                _ => {
                    let identity = identity::of_entry(key, value, ipv6_prefix);
                    // Of duplicate dimensions, the first one counts.
                    let is_first = |(own, _): &(&str, _)| identities.iter().all(|(other, _)| other != own);
                    identities.extend(identity.filter(is_first));
                }
            }
        }
        if identities.is_empty() {
            return;
        }
        let mut check = Check::of(identities).profile(descriptor.profile);
        check.method = method.filter(|method| !method.is_empty());
        let (applied, unlimited) = rules.resolve_rules(&check, endpoint.as_ref());
        for (limit, identifier) in applied {
            self.matched = true;
            let endpoint = endpoint.as_ref().map_or("/", Endpoint::counted);
            let hits = match (descriptor.hits, limit.cost) {
                (Hits::Take(_), Some(cost)) => Hits::Take(cost),
                (hits, _) => hits,
            };
            let terms = Terms { overdraw: limit.overdraw, ..descriptor.terms() };
            self.limits.push(tally.add(limit, identifier.to_owned(), endpoint, hits, terms));
        }
        if unlimited {
            (self.matched, self.unlimited) = (true, true);
        }
    }
}
