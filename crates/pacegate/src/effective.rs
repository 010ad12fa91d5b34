//! Which limits hold for somebody, wherever they go: what operators look at.

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

/// A limit that holds for somebody, where it does, and how much of it is used.
#[derive(Clone, Debug)]
pub struct EffectiveLimit {
    /// The limit, and why it holds.
    pub limit: Arc<NamedLimit>,
    /// Where it holds, as far as no more specific one does.
    pub endpoint: Pattern,
    /// The only methods it holds for.
    pub methods: Methods,
    /// Whether nothing is counted: what it applies to is not limited.
    pub unlimited: bool,
    /// How it stands; `None` when every endpoint has a counter of its own.
    pub answer: Option<Answer>,
}

impl Limiter {
    /// Every limit that holds for an identifier somewhere, with its current use, without consuming anything.
    ///
    /// # Errors
    /// [`CheckError`] when the identifier is not valid or a store fails.
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

/// The rules for `identifier` that no other rule of their name outdoes everywhere, and the default limit unless they leave no place to it.
fn in_force(
    rules: &RuleSet,
    dimension: &str,
    identifier: &str,
    profile: Option<&Profile>,
) -> Vec<EffectiveLimit> {
    let profile = rules.profile_of(dimension, identifier, profile);
    let tier = profile.and_then(|profile| profile.tier.as_deref());
    let applies = |rule: &&Arc<CompiledRule>| {
        rules.is_about(rule, dimension)
            && rule.identifier.as_deref().is_none_or(|own| own == identifier)
            && rule.tier.as_deref().is_none_or(|own| Some(own) == tier)
    };
    let mut candidates: Vec<&Arc<CompiledRule>> = rules.rules().iter().filter(applies).collect();
    candidates.sort_by(|a, b| a.limit.name.cmp(&b.limit.name));
    let mut found = Vec::new();
    let mut default_applies = true;
    for variants in candidates.chunk_by(|a, b| a.limit.name == b.limit.name) {
        let outdone = |rule: &CompiledRule| {
            variants.iter().any(|other| {
                other.methods.cover(&rule.methods)
                    && other.endpoint.covers(&rule.endpoint)
                    && other.beats(rule)
            })
        };
        let kept: Vec<&&Arc<CompiledRule>> = variants.iter().filter(|rule| !outdone(rule)).collect();
        let everywhere =
            |rule: &CompiledRule| rule.methods.is_empty() && rule.endpoint.covers(&Pattern::all());
        // One name that always enforces something leaves no place to the default limit.
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
