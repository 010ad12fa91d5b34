//! The limits in force for one identifier at any endpoint, for operators.

use std::sync::Arc;

use pacegate_core::{Answer, Cost};
use pacegate_store::{Charge, Command, Outcome};
use smallvec::SmallVec;

use crate::check::Check;
use crate::error::CheckError;
use crate::limiter::Limiter;
use crate::methods::Methods;
use crate::pattern::Pattern;
use crate::profile::Profile;
use crate::resolved::charge;
use crate::rule::{Mode, NamedLimit};
use crate::ruleset::{CompiledRule, RuleSet};

/// A limit in force for an identifier, and its current usage.
#[derive(Clone, Debug)]
pub struct EffectiveLimit {
    /// The limit, and why it applies.
    pub limit: Arc<NamedLimit>,
    /// The endpoints it matches, except where a more specific variant applies.
    pub endpoint: Pattern,
    /// The methods it matches; empty for all.
    pub methods: Methods,
    /// Whether it exempts what it matches, so that nothing is counted.
    pub unlimited: bool,
    /// Its current usage; `None` if each endpoint has a separate counter.
    pub answer: Option<Answer>,
}

impl Limiter {
    /// Returns every limit that applies to an identifier at some endpoint, with its current usage.
    /// Charges nothing.
    ///
    /// # Errors
    /// [`CheckError`] if the identifier is not valid or a store fails.
    #[doc(hidden)]
    pub async fn limits_of(
        &self,
        dimension: &str,
        identifier: &str,
        profile: Option<&Profile>,
    ) -> Result<Vec<EffectiveLimit>, CheckError> {
        let mut check = Check::new(dimension, identifier);
        check.profile = profile;
        self.canonicalise(&mut check)?;
        let Some((dimension, identifier)) = check.identities.first() else { return Ok(Vec::new()) };
        let mut found = in_force(&self.rules(), dimension, identifier, profile);
        let is_counted = |at: &usize| !found[*at].limit.is_per_endpoint() && !found[*at].unlimited;
        let counted: Vec<usize> = (0..found.len()).filter(is_counted).collect();
        let charges: SmallVec<[Charge<'_>; 2]> =
            counted.iter().map(|at| charge(&found[*at].limit, identifier, "", Cost::ONE)).collect();
        let stores: SmallVec<[usize; 2]> = counted.iter().map(|at| found[*at].limit.store).collect();
        let outcome = self.stores().apply(&Command::peek(&charges), &stores).await?;
        drop(charges);
        if let Outcome::Decided(decision) = outcome {
            for (at, answer) in counted.into_iter().zip(decision.answers) {
                found[at].answer = Some(answer);
            }
        }
        Ok(found)
    }
}

/// Returns the rules for `identifier`, except those shadowed everywhere by another variant, and the
/// default limit unless rules always replace it.
fn in_force(
    rules: &RuleSet,
    dimension: &str,
    identifier: &str,
    profile: Option<&Profile>,
) -> Vec<EffectiveLimit> {
    let profile = rules.profile_of(dimension, identifier, profile);
    let tier = profile.and_then(|profile| profile.tier.as_deref());
    let applies = |rule: &&Arc<CompiledRule>| {
        rules.counts_dimension(rule, dimension)
            && rule.identifier.as_deref().is_none_or(|own| own == identifier)
            && rule.tier.as_deref().is_none_or(|own| Some(own) == tier)
    };
    let mut candidates: Vec<&Arc<CompiledRule>> = rules.rules().iter().filter(applies).collect();
    candidates.sort_by(|a, b| a.limit.name.cmp(&b.limit.name));
    let mut found = Vec::new();
    let mut default_applies = true;
    for variants in candidates.chunk_by(|a, b| a.limit.name == b.limit.name) {
        let is_shadowed = |rule: &CompiledRule| {
            variants.iter().any(|other| {
                other.methods.cover(&rule.methods)
                    && other.endpoint.covers(&rule.endpoint)
                    && other.beats(rule)
            })
        };
        let kept: Vec<&&Arc<CompiledRule>> = variants.iter().filter(|rule| !is_shadowed(rule)).collect();
        let everywhere =
            |rule: &CompiledRule| rule.methods.is_empty() && rule.endpoint.covers(&Pattern::all());
        // A name that is enforced for all requests always replaces the default limit.
        default_applies &= !(kept.iter().all(|rule| rule.limit.mode == Mode::Enforce)
            && kept.iter().any(|rule| everywhere(rule)));
        found.extend(kept.into_iter().map(|rule| EffectiveLimit {
            limit: rule.limit_for(dimension, profile),
            endpoint: rule.endpoint.clone(),
            methods: rule.methods.clone(),
            unlimited: rule.unlimited,
            answer: None,
        }));
    }
    if default_applies {
        found.extend(rules.default_for(dimension, profile).map(|limit| EffectiveLimit {
            limit,
            endpoint: Pattern::all(),
            methods: Methods::default(),
            unlimited: false,
            answer: None,
        }));
    }
    found
}
