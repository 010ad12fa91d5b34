//! A check: the identities to charge, the endpoint, and the cost.

use std::borrow::Cow;

use pacegate_core::{Cost, InvalidLimit, Limit, LimitBuilder};
use sha2::{Digest, Sha256};
use smallvec::SmallVec;

use crate::error::CheckError;
use crate::identity;
use crate::profile::Profile;
#[cfg(doc)]
use crate::rule::Rule;

const IDEMPOTENCY_KEY_LENGTH_MAX: usize = 255;

/// A request to decide on: one or more identities, an endpoint, and a cost.
///
/// ```
/// use pacegate::Check;
///
/// // A key, checked against two plans at once:
/// let plans = Check::key("user-123").plan("gold").plan("daily");
/// // A request, checked against the rules that match it:
/// let request = Check::new("user", "u1").and("ip", "10.0.0.1").endpoint("/api/v1/orders").method("GET");
/// ```
#[derive(Clone, Debug)]
pub struct Check<'a> {
    pub(crate) identities: SmallVec<[(&'a str, Cow<'a, str>); 1]>,
    /// The IPv6 prefix for which the identities are already canonical.
    canonical_by: Option<u8>,
    /// The endpoint of the request.
    pub endpoint: Option<&'a str>,
    /// The method of the request.
    pub method: Option<&'a str>,
    /// The cost for limits that count requests.
    pub cost: Cost,
    /// The cost for limits with other units.
    pub(crate) costs: SmallVec<[(&'a str, Cost); 1]>,
    pub(crate) plans: SmallVec<[&'a str; 2]>,
    pub(crate) limit: Option<Result<Limit, InvalidLimit>>,
    pub(crate) idempotency: Option<(Cow<'a, str>, &'a str)>,
    pub(crate) sender: Option<&'a str>,
    pub(crate) profile: Option<&'a Profile>,
    pub(crate) tier: Option<&'a str>,
}

/// The cost of a request, by unit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Costs<'a> {
    pub(crate) requests: Cost,
    others: &'a [(&'a str, Cost)],
}

impl Costs<'_> {
    /// A cost in requests alone.
    pub(crate) fn requests(cost: Cost) -> Self {
        Self { requests: cost, others: &[] }
    }

    /// Returns the cost in a unit (`None` for requests), or `None` if there is none.
    #[inline(always)]
    pub(crate) fn of(&self, unit: Option<&str>) -> Option<Cost> {
        match unit {
            None => Some(self.requests),
            Some(unit) => self.of_other(unit),
        }
    }

    #[cold]
    fn of_other(&self, unit: &str) -> Option<Cost> {
        self.others.iter().find(|(own, _)| *own == unit).map(|(_, cost)| *cost)
    }
}

impl<'a> Check<'a> {
    /// Returns a check of `identifier` in `dimension`.
    pub fn new(dimension: &'a str, identifier: &'a str) -> Self {
        Self::of([(dimension, Cow::Borrowed(identifier))])
    }

    /// Returns a check of several identities, each a dimension and an identifier. At least one is
    /// required.
    pub fn of(identities: impl IntoIterator<Item = (&'a str, Cow<'a, str>)>) -> Self {
        Self {
            identities: identities.into_iter().collect(),
            canonical_by: None,
            endpoint: None,
            method: None,
            cost: Cost::ONE,
            costs: SmallVec::new(),
            plans: SmallVec::new(),
            limit: None,
            idempotency: None,
            sender: None,
            profile: None,
            tier: None,
        }
    }

    /// Returns a check of a key that the program chooses, in the dimension `key`.
    pub fn key(key: &'a str) -> Self {
        Self::new(identity::KEY, key)
    }

    /// Adds another identity, decided in the same step: all limits of all identities are charged,
    /// or none is.
    #[must_use]
    pub fn and(mut self, dimension: &'a str, identifier: &'a str) -> Self {
        self.identities.push((dimension, Cow::Borrowed(identifier)));
        self.canonical_by = None;
        self
    }

    /// Sets the endpoint. Rules apply only to checks with an endpoint.
    #[must_use]
    pub fn endpoint(mut self, endpoint: &'a str) -> Self {
        self.endpoint = Some(endpoint);
        self
    }

    /// Sets the method. A rule for certain methods applies unless the method is known to differ: it
    /// also limits a check without a method, and a rule for GET applies to HEAD.
    #[must_use]
    pub fn method(mut self, method: &'a str) -> Self {
        self.method = Some(method);
        self
    }

    /// Sets the cost for limits that count requests. Default: 1.
    #[must_use]
    pub fn cost(mut self, cost: impl Into<Cost>) -> Self {
        self.cost = cost.into();
        self
    }

    /// Sets the cost for limits of a [unit](Rule::unit). Limits of a unit without a cost do not
    /// apply. The unit `requests` is that of limits without a unit.
    ///
    /// ```
    /// use pacegate::{Check, Limit, Limiter, Rule};
    ///
    /// let tokens = Rule::builder("tokens", "user", Limit::per_minute(1_000)).unit("tokens");
    /// let limiter = Limiter::builder().rule(tokens).build()?;
    /// let check = Check::new("user", "u1").endpoint("/v1/chat").cost_in("tokens", 900);
    /// assert_eq!(limiter.check_now(&check)?.remaining(), Some(100));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn cost_in(mut self, unit: &'a str, cost: impl Into<Cost>) -> Self {
        let cost = cost.into();
        if unit == identity::REQUESTS {
            return self.cost(cost);
        }
        match self.costs.iter_mut().find(|(own, _)| *own == unit) {
            Some((_, own)) => *own = cost,
            None => self.costs.push((unit, cost)),
        }
        self
    }

    /// Returns the costs in units other than requests.
    pub fn costs(&self) -> &[(&'a str, Cost)] {
        &self.costs
    }

    /// Returns the cost of the request, by unit.
    #[inline]
    pub(crate) fn all_costs(&self) -> Costs<'_> {
        Costs { requests: self.cost, others: &self.costs }
    }

    /// Adds the limits of a plan.
    #[must_use]
    pub fn plan(mut self, name: &'a str) -> Self {
        self.plans.push(name);
        self
    }

    /// Adds an ad-hoc limit for this check, counted per identity, endpoint, algorithm and window.
    /// If the limit is not valid, the check is an error.
    #[must_use]
    pub fn limit(mut self, limit: impl Into<LimitBuilder>) -> Self {
        self.limit = Some(limit.into().build());
        self
    }

    /// Sets the profile of the user, which is the identity of the dimension `user`.
    #[must_use]
    pub fn profile(mut self, profile: impl Into<Option<&'a Profile>>) -> Self {
        self.profile = profile.into();
        self
    }

    /// Sets the tier of the user, instead of the tier in the profile.
    #[must_use]
    pub fn tier(mut self, tier: impl Into<Option<&'a str>>) -> Self {
        self.tier = tier.into();
        self
    }

    /// Makes the check idempotent: repeated with the same `key` by the same `caller` within five
    /// minutes, it is charged once.
    #[must_use]
    pub fn idempotency(mut self, caller: impl Into<Cow<'a, str>>, key: &'a str) -> Self {
        self.idempotency = Some((caller.into(), key));
        self
    }

    /// Sets the sender, such as an API key or an address. A store with limited capacity for
    /// idempotency keys shares it among senders. Default: the program itself.
    #[must_use]
    pub fn sender(mut self, sender: impl Into<Option<&'a str>>) -> Self {
        self.sender = sender.into();
        self
    }

    /// Returns all identities, each a dimension and an identifier, in the order given.
    pub fn identities(&self) -> &[(&'a str, Cow<'a, str>)] {
        &self.identities
    }

    /// Returns each dimension with its identifier.
    #[inline]
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.identities.iter().map(|(dimension, identifier)| (*dimension, &**identifier))
    }

    /// Returns the identifier of the dimension `user`, whose profile applies.
    pub fn user(&self) -> Option<&str> {
        self.pairs().find(|(dimension, _)| *dimension == identity::USER).map(|(_, user)| user)
    }

    /// Returns the plans whose limits apply.
    pub fn plans(&self) -> &[&'a str] {
        &self.plans
    }

    /// Returns the ad-hoc limit of the check, if it is valid.
    pub fn own_limit(&self) -> Option<Limit> {
        self.limit.and_then(Result::ok)
    }

    /// Validates the ad-hoc limit of the check.
    pub(crate) fn check_limit(&self) -> Result<(), CheckError> {
        self.limit.map_or(Ok(()), |limit| limit.map(drop).map_err(CheckError::InvalidLimit))
    }

    /// Returns the tier that the check names.
    pub fn own_tier(&self) -> Option<&'a str> {
        self.tier
    }

    /// Returns the tier that selects rules: of the check itself, or of the profile.
    pub fn effective_tier(&self) -> Option<&'a str> {
        self.tier.or_else(|| self.profile?.tier.as_deref())
    }

    /// Returns the idempotency key.
    pub fn idempotency_key(&self) -> Option<&'a str> {
        self.idempotency.as_ref().map(|(_, key)| *key)
    }

    /// Returns a text that is unique to the set of identities, independent of their order.
    pub fn identity(&self) -> String {
        let mut pairs: SmallVec<[(&str, &str); 4]> = self.pairs().collect();
        pairs.sort_unstable();
        let part = |text: &str| format!("{}:{text};", text.len());
        pairs.into_iter().map(|(dimension, identifier)| part(dimension) + &part(identifier)).collect()
    }

    /// A strong hash of everything that the check contains.
    pub(crate) fn fingerprint(&self) -> [u8; 16] {
        let mut text = Vec::with_capacity(256);
        let mut part = |bytes: &[u8]| {
            text.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
            text.extend_from_slice(bytes);
        };
        part(self.identity().as_bytes());
        part(self.endpoint.unwrap_or_default().as_bytes());
        part(self.method.unwrap_or_default().as_bytes());
        part(&self.cost.get().to_le_bytes());
        let mut costs = self.costs.clone();
        costs.sort_unstable();
        for (unit, cost) in costs {
            part(unit.as_bytes());
            part(&cost.get().to_le_bytes());
        }
        for plan in &self.plans {
            part(plan.as_bytes());
        }
        part(b"|");
        if let Some(tier) = self.tier {
            part(tier.as_bytes());
        }
        if let Some(limit) = self.own_limit() {
            part(limit.algorithm().name().as_bytes());
            part(&limit.quota().to_le_bytes());
            part(&limit.capacity().to_le_bytes());
            part(&limit.window().as_micros().to_le_bytes());
        }
        fingerprint(&text)
    }

    /// Rewrites the identities in canonical form. `ipv6_prefix` is the number of leading bits by
    /// which IPv6 addresses are counted.
    pub(crate) fn canonicalise(&mut self, ipv6_prefix: u8) -> Result<(), CheckError> {
        if !self.is_canonical(ipv6_prefix)? {
            for (dimension, identifier) in &mut self.identities {
                let (word, rewritten) = canonical(dimension, identifier, ipv6_prefix)?;
                if let Cow::Owned(text) = rewritten {
                    *identifier = Cow::Owned(text);
                }
                *dimension = word;
            }
            // Two spellings may have been the same dimension.
            self.is_canonical(ipv6_prefix)?;
        }
        self.canonical_by = Some(ipv6_prefix);
        Ok(())
    }

    /// Returns the check with its identities in canonical form; clones only if something changes.
    pub(crate) fn canonical(&self, ipv6_prefix: u8) -> Result<Cow<'_, Check<'a>>, CheckError> {
        self.tier.map_or(Ok(()), identity::check_tier).map_err(CheckError::InvalidTier)?;
        for (unit, _) in &self.costs {
            identity::check_unit(unit)
                .map_err(|reason| CheckError::InvalidUnit { unit: (*unit).into(), reason })?;
        }
        self.check_limit()?;
        if let Some((_, key)) = &self.idempotency {
            check_idempotency_key(key)?;
        }
        if self.is_canonical(ipv6_prefix)? {
            return Ok(Cow::Borrowed(self));
        }
        let mut check = self.clone();
        check.canonicalise(ipv6_prefix)?;
        Ok(Cow::Owned(check))
    }

    fn is_canonical(&self, ipv6_prefix: u8) -> Result<bool, CheckError> {
        if self.canonical_by == Some(ipv6_prefix) {
            return Ok(true);
        }
        if self.identities.is_empty() {
            return Err(CheckError::NoIdentity);
        }
        for (index, (dimension, identifier)) in self.identities.iter().enumerate() {
            let (word, rewritten) = canonical(dimension, identifier, ipv6_prefix)?;
            if word != *dimension || matches!(rewritten, Cow::Owned(_)) {
                return Ok(false);
            }
            if self.identities[..index].iter().any(|(other, _)| other == dimension) {
                return Err(CheckError::DuplicateDimension { dimension: word.into() });
            }
        }
        Ok(true)
    }
}

/// Returns one identity in canonical form.
#[inline]
fn canonical<'d, 'i>(
    dimension: &'d str,
    identifier: &'i str,
    ipv6_prefix: u8,
) -> Result<(&'d str, Cow<'i, str>), CheckError> {
    let word = identity::dimension(dimension)
        .map_err(|reason| CheckError::InvalidDimension { dimension: dimension.into(), reason })?;
    let identifier = identity::identifier(word, identifier, ipv6_prefix)
        .map_err(|reason| CheckError::InvalidIdentifier { dimension: word.into(), reason })?;
    Ok((word, identifier))
}

/// The first 128 bits of SHA-256.
pub(crate) fn fingerprint(bytes: &[u8]) -> [u8; 16] {
    let mut fingerprint = [0; 16];
    fingerprint.copy_from_slice(&Sha256::digest(bytes)[..16]);
    fingerprint
}

pub(crate) fn check_idempotency_key(key: &str) -> Result<(), CheckError> {
    identity::check_text("idempotency_key", key, IDEMPOTENCY_KEY_LENGTH_MAX)
        .map_err(CheckError::InvalidIdempotencyKey)
}
