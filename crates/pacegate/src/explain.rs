//! Explains which rules apply to a check, which do not, and why.

use std::sync::Arc;

use pacegate_core::named;

use crate::check::Check;
use crate::endpoint::Endpoint;
use crate::error::CheckError;
use crate::limiter::Limiter;
use crate::methods::Methods;
use crate::pattern::Pattern;
use crate::rule::NamedLimit;
use crate::ruleset::{CompiledRule, RuleSet};

pub use crate::effective::EffectiveLimit;

/// A rule, and whether it applies to a check.
#[derive(Clone, Debug)]
pub struct Explained {
    /// The limit in force if the rule applies, with the numbers of an override. Otherwise the
    /// rule's own limit.
    pub limit: Arc<NamedLimit>,
    /// The rule's own limit, without overrides.
    pub own_limit: Arc<NamedLimit>,
    /// The endpoints it matches.
    pub endpoint: Pattern,
    /// The methods it matches; empty for all.
    pub methods: Methods,
    /// Whether it exempts what it matches, so that nothing is counted.
    pub unlimited: bool,
    /// The only identifier it matches.
    pub identifier: Option<Box<str>>,
    /// The only tier it matches.
    pub tier: Option<Box<str>>,
    /// Whether it applies, or the first reason why it does not.
    pub verdict: Verdict,
    /// Whether the rule is for certain methods and the check has none. Such a rule applies, because
    /// the method may match.
    pub assumes_method: bool,
}

/// Whether a rule applies to a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// The rule applies.
    Applies,
    /// A more specific rule of the same name applies instead.
    Shadowed,
    /// It counts a unit in which the check has no cost.
    OtherUnit,
    /// It is for another method.
    OtherMethod,
    /// It is for another tier.
    OtherTier,
    /// It is for another identifier.
    OtherIdentifier,
    /// It is for other endpoints.
    OtherEndpoint,
    /// The check has no identity in its dimension.
    OtherDimension,
}

named!(Verdict {
    Applies => "applies",
    Shadowed => "shadowed",
    OtherUnit => "other_unit",
    OtherMethod => "other_method",
    OtherTier => "other_tier",
    OtherIdentifier => "other_identifier",
    OtherEndpoint => "other_endpoint",
    OtherDimension => "other_dimension",
});

impl Limiter {
    /// Returns every rule and whether it applies to `check`: the ones that apply first, then by how
    /// closely they match. Charges nothing.
    ///
    /// ```
    /// use pacegate::{Check, Limit, Limiter, Rule, explain::Verdict};
    ///
    /// let limiter = Limiter::builder()
    ///     .rule(Rule::builder("per-user", "user", Limit::per_minute(10)))
    ///     .rule(Rule::builder("per-user", "user", Limit::per_minute(100)).tier("premium"))
    ///     .rule(Rule::builder("per-address", "ip", Limit::per_minute(50)))
    ///     .build()?;
    /// let explained = limiter.explain(&Check::new("user", "u1").endpoint("/"))?;
    /// let verdicts: Vec<Verdict> = explained.iter().map(|rule| rule.verdict).collect();
    /// assert_eq!(verdicts, [Verdict::Applies, Verdict::OtherTier, Verdict::OtherDimension]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`CheckError`] if the check is not valid.
    pub fn explain(&self, check: &Check<'_>) -> Result<Vec<Explained>, CheckError> {
        let check = &*self.canonical(check)?;
        let endpoint = self.endpoint(check)?;
        let rules = self.rules();
        let identities = check.identities().iter();
        let chosen: Vec<&CompiledRule> = identities
            .flat_map(|(dimension, identifier)| rules.chosen(check, dimension, identifier, endpoint.as_ref()))
            .collect();
        let applies = |rule: &CompiledRule| chosen.iter().any(|other| std::ptr::eq(*other, rule));
        let in_force = |rule: &CompiledRule| {
            let counted = |(dimension, _): &&(&str, _)| *dimension == rule.limit.dimension();
            let Some((dimension, identifier)) = check.identities().iter().find(counted) else {
                return rule.limit.clone();
            };
            rule.limit_for(dimension, rules.profile_of(dimension, identifier, check.profile))
        };
        let explained = |rule: &Arc<CompiledRule>| {
            let verdict = mismatch(&rules, rule, check, endpoint.as_ref())
                .unwrap_or_else(|| if applies(rule) { Verdict::Applies } else { Verdict::Shadowed });
            Explained {
                limit: if verdict == Verdict::Applies { in_force(rule) } else { rule.limit.clone() },
                own_limit: rule.limit.clone(),
                endpoint: rule.endpoint.clone(),
                methods: rule.methods.clone(),
                unlimited: rule.unlimited,
                identifier: rule.identifier.clone(),
                tier: rule.tier.clone(),
                verdict,
                assumes_method: !rule.methods.is_empty() && check.method.is_none(),
            }
        };
        let mut all: Vec<Explained> = rules.rules().iter().map(explained).collect();
        all.sort_by_key(|rule| rule.verdict);
        Ok(all)
    }
}

/// Returns the reason why a rule does not match, regardless of other rules.
fn mismatch(
    rules: &RuleSet,
    rule: &CompiledRule,
    check: &Check<'_>,
    endpoint: Option<&Endpoint<'_>>,
) -> Option<Verdict> {
    let mut counted =
        check.identities().iter().filter(|(own, _)| rules.counts_dimension(rule, own)).peekable();
    if counted.peek().is_none() {
        return Some(Verdict::OtherDimension);
    }
    let mut is_other = |own: &Option<Box<str>>| {
        own.as_deref().is_some_and(|own| !counted.any(|(_, identifier)| *identifier == own))
    };
    let tier = check.effective_tier();
    // Rules apply to endpoints. A check without one uses only its plans.
    let here = endpoint.is_some_and(|endpoint| endpoint.is_covered_by(&rule.endpoint));
    let other =
        |own: &Option<Box<str>>, given: Option<&str>| own.as_deref().is_some_and(|own| Some(own) != given);
    if !here {
        Some(Verdict::OtherEndpoint)
    } else if is_other(&rule.identifier) {
        Some(Verdict::OtherIdentifier)
    } else if other(&rule.tier, tier) {
        Some(Verdict::OtherTier)
    } else if !rule.applies_to_method(check.method) {
        Some(Verdict::OtherMethod)
    } else if rule.limit.cost_of(&check.all_costs()).is_none() {
        Some(Verdict::OtherUnit)
    } else {
        None
    }
}
