//! Checking the descriptors of a request, all of them in one decision.

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

/// What a descriptor does with the limits that apply to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hits {
    /// Takes this much. More than a limit can ever hold can only be the report of something that
    /// happened already: it is denied, and takes what is left of that limit.
    Take(Cost),
    /// Takes nothing; asks whether 1 could be taken.
    Look,
    /// Gives back this much of what was taken last, never beyond a fresh counter, and denies nothing.
    GiveBack(Cost),
}

impl Default for Hits {
    fn default() -> Self {
        Self::Take(Cost::ONE)
    }
}

impl Hits {
    pub(super) fn cost(self) -> Cost {
        match self {
            Self::Take(cost) | Self::GiveBack(cost) => cost,
            Self::Look => Cost::ONE,
        }
    }

    /// The hits of two descriptors that do the same to one counter.
    pub(super) fn and(self, other: Self) -> Self {
        let sum = u64::from(self.cost().get()) + u64::from(other.cost().get());
        let sum = Cost::from(u32::try_from(sum).unwrap_or(u32::MAX));
        match self {
            Self::Take(_) => Self::Take(sum),
            Self::GiveBack(_) => Self::GiveBack(sum),
            Self::Look => Self::Look,
        }
    }
}

/// One of the descriptors of a request: keys and values in order, and what it does.
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
    /// A descriptor that takes 1.
    pub fn new(entries: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let entries = entries.into_iter().collect();
        Self { entries, hits: Hits::default(), refundable_only: false, allowance: None, profile: None }
    }

    /// What it does; takes 1 unless said.
    #[must_use]
    pub fn hits(mut self, hits: Hits) -> Self {
        self.hits = hits;
        self
    }

    /// Lets it give back only to limits of rules with
    /// [`refundable`](crate::descriptor::DescriptorRule::refundable); at others it only looks. For callers that
    /// are not known.
    #[must_use]
    pub fn refundable_only(mut self) -> Self {
        self.refundable_only = true;
        self
    }

    /// A limit for its path that takes the place of the rule for it. Limits with conditions apply all the same.
    #[must_use]
    pub fn allowance(mut self, allowance: Allowance) -> Self {
        self.allowance = Some(allowance);
        self
    }

    /// What is known about the user, for rules that count the dimension `user`.
    #[must_use]
    pub fn profile(mut self, profile: impl Into<Option<&'a Profile>>) -> Self {
        self.profile = profile.into();
        self
    }

    /// What it may do to limits that have no descriptor rule.
    fn terms(&self) -> Terms {
        Terms { overdraw: false, refund: !self.refundable_only }
    }
}

/// Whether a request may pass, and what each of its descriptors has to do with it.
#[derive(Clone, Debug)]
pub struct DescriptorDecision {
    /// Whether the request may pass. If not, nothing was taken, except from limits that can never
    /// hold what was asked for.
    pub allowed: bool,
    /// When it was decided, by the store's clock; the epoch when no store was asked.
    pub at: Timestamp,
    /// One for each descriptor, in order.
    pub outcomes: Vec<DescriptorOutcome>,
}

impl DescriptorDecision {
    /// Whether any limit was decided without its store.
    pub fn degraded(&self) -> bool {
        self.outcomes.iter().any(|outcome| outcome.decision.degraded())
    }

    /// The limits of all descriptors as one decision, which says which of them binds.
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

/// What became of one descriptor.
#[derive(Clone, Debug)]
pub struct DescriptorOutcome {
    /// Whether any rule is for it, also one that another rule of the request replaces.
    pub matched: bool,
    /// Whether a rule for it says that it is not limited.
    pub unlimited: bool,
    /// The rule that always denies it.
    pub banned_by: Option<Box<str>>,
    /// Whether hits were given back.
    pub refunded: bool,
    /// Whether a limit was not given hits back because its rule does not permit it
    /// ([`Descriptor::refundable_only`]).
    pub refund_refused: bool,
    /// Its own limits' decision: it may be allowed when the request is not, because of another descriptor.
    pub decision: Decision,
}

/// What was found out about a descriptor before its limits are asked.
#[derive(Default)]
struct Found {
    matched: bool,
    unlimited: bool,
    banned_by: Option<Box<str>>,
    /// The places of its limits in the tally.
    limits: SmallVec<[usize; 2]>,
}

impl Limiter {
    /// Decides on the descriptors of one request: all of them take what they take, or none does.
    ///
    /// A descriptor that no descriptor rule is for is held against the ordinary rules: its entries `path` (or `endpoint`) and `method` say where,
    /// every other one is a dimension and an identifier. One that nothing is for is allowed; the default limit is not for descriptors.
    ///
    /// Descriptors whose counters are in one store, and in a Redis Cluster in one slot, are decided in one atomic step.
    ///
    /// # Errors
    /// [`CheckError::Store`] when a store could not decide. There are no others: values may have any length and any characters.
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
        let counted = || self.limits.iter().map(|place| &tally.counted[*place]);
        let answers: Answers = counted().filter_map(|counted| counted.answer).collect();
        let passes = |answer: &Answer| answer.allowed || answer.shadow;
        let allowed = self.banned_by.is_none() && answers.iter().all(passes);
        let at = answers.iter().filter_map(|answer| answer.at).max().unwrap_or_default();
        let limits = counted().map(|counted| counted.limit.clone()).collect();
        let decision = Decision::of(pacegate_core::ChainDecision::new(allowed, at, answers), limits);
        let refunds = |permitted| counted().any(|own| own.gives_back() && own.terms.refund == permitted);
        let (refunded, refund_refused) = (request_allowed && refunds(true), refunds(false));
        let Self { matched, unlimited, banned_by, .. } = self;
        DescriptorOutcome { matched, unlimited, banned_by, refunded, refund_refused, decision }
    }
}

/// What applies to each descriptor; their limits go into `tally`.
fn find(
    rules: &RuleSet,
    domain: &str,
    descriptors: &[Descriptor<'_>],
    spelling: (u8, PathOptions),
    tally: &mut Tally,
) -> Vec<Found> {
    let matches = |(place, descriptor): (usize, &Descriptor<'_>)| {
        rules.descriptors().find(domain, place, &descriptor.entries, descriptor.allowance.is_some())
    };
    let matches: Vec<SmallVec<[Match<'_>; 1]>> = descriptors.iter().enumerate().map(matches).collect();
    // A rule that is replaced itself replaces others nevertheless, as in Envoy's service.
    let replaced: HashSet<&str> =
        matches.iter().flatten().flat_map(|found| &found.rule.replaces).map(String::as_str).collect();
    let applies =
        |found: &Match<'_>| found.rule.own_name.as_deref().is_none_or(|name| !replaced.contains(name));
    let mut all = Vec::with_capacity(descriptors.len());
    for (descriptor, matches) in descriptors.iter().zip(matches) {
        let mut found = Found { matched: !matches.is_empty(), ..Found::default() };
        if let Some(allowance) = &descriptor.allowance {
            found.add_given(rules, domain, descriptor, allowance, tally);
        }
        if !found.matched {
            found.add_ordinary(rules, descriptor, spelling, tally);
        }
        for Match { rule, identifier } in matches.into_iter().filter(applies) {
            match &rule.allows {
                Allows::Everything => found.unlimited = true,
                // What only watches, and what brings something back, is let through.
                Allows::Nothing if rule.mode == Mode::Shadow => {}
                Allows::Nothing => found.ban(descriptor, &rule.display_name),
                Allows::Limit(limit) => {
                    let refund = !descriptor.refundable_only || rule.refundable;
                    let terms = Terms { overdraw: rule.overdraw, refund };
                    let place = tally.add(limit.clone(), identifier, "", descriptor.hits, terms);
                    found.limits.push(place);
                }
            }
        }
        all.push(found);
    }
    all
}

impl Found {
    fn ban(&mut self, descriptor: &Descriptor<'_>, name: &str) {
        if !matches!(descriptor.hits, Hits::GiveBack(_)) {
            self.banned_by = Some(name.into());
        }
    }

    /// The limit that the request brought along.
    fn add_given(
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
                let named = set.limit_brought(*limit, domain, &descriptor.entries, mode);
                let identifier = path_identifier(domain, &descriptor.entries);
                self.limits.push(tally.add(named, identifier, "", descriptor.hits, descriptor.terms()));
            }
        }
    }

    /// The ordinary rules for the descriptor's identities.
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
                // Whatever its length and characters: an error would let it pass, because Envoy allows on errors.
                "path" | "endpoint" => endpoint = (!value.is_empty()).then(|| paths.any_endpoint(value)),
                "method" => method = Some(value),
                _ if value.is_empty() => {}
                // The same holds for identifiers.
                _ => {
                    let identity = identity::of_entry(key, value, ipv6_prefix);
                    // The first of a dimension that is there twice.
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
