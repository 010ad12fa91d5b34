//! Profiles: the tier, custom limits and temporary overrides of a user.

use std::time::Duration;

use pacegate_core::{InvalidLimit, Limit};

/// The tier, custom limits and overrides of one user.
///
/// ```
/// use pacegate::{Check, Limit, Limiter, Profile, Rule};
///
/// let limiter = Limiter::builder()
///     .rule(Rule::builder("per-user", "user", Limit::per_minute(100)))
///     .rule(Rule::builder("per-user", "user", Limit::per_minute(1_000)).tier("premium"))
///     .build()?;
///
/// let profile = Profile { tier: Some("premium".into()), ..Profile::default() };
/// let decision = limiter.check_now(&Check::new("user", "u1").endpoint("/").profile(&profile))?;
/// assert_eq!(decision.remaining(), Some(999));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// The tier, which selects rules.
    pub tier: Option<String>,
    /// Custom limits of this user, by the name of the rule.
    pub custom_limits: Vec<(String, LimitOverride)>,
    /// Temporary overrides, by the name of the rule. They take precedence over everything else.
    pub overrides: Vec<(String, LimitOverride)>,
}

impl Profile {
    /// Whether the profile has no effect.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Numbers that replace those of a limit. The algorithm stays the rule's.
///
/// ```
/// use pacegate::{Limit, LimitOverride};
///
/// let limit = Limit::per_minute(10).sliding_log().build()?;
/// let raised = LimitOverride { quota: 100, window: None, burst: None }.apply_to(&limit)?;
/// assert_eq!((raised.quota(), raised.window()), (100, limit.window()));
/// # Ok::<(), pacegate::InvalidLimit>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitOverride {
    /// The quota per window.
    pub quota: u64,
    /// The window. Default: the window of the rule.
    pub window: Option<Duration>,
    /// The capacity. Default: scaled in proportion to the quota.
    pub burst: Option<u64>,
}

impl LimitOverride {
    /// Returns `limit` with these numbers.
    ///
    /// # Errors
    /// [`InvalidLimit`] if the numbers are not valid for the algorithm of the limit.
    pub fn apply_to(&self, limit: &Limit) -> Result<Limit, InvalidLimit> {
        let window = self.window.unwrap_or(limit.window());
        let replaced = Limit::try_new(limit.algorithm(), self.quota, window)?;
        match self.burst {
            Some(burst) => replaced.with_burst(burst),
            None if limit.algorithm().takes_burst() => replaced.with_burst(self.scaled(limit)),
            None => Ok(replaced),
        }
    }

    /// The capacity of `limit`, scaled in proportion to the quota, rounded up and clamped to the
    /// valid range.
    fn scaled(&self, limit: &Limit) -> u64 {
        let burst = u128::from(self.quota) * u128::from(limit.capacity());
        let burst = burst.div_ceil(u128::from(limit.quota())).max(1);
        u64::try_from(burst).unwrap_or(u64::MAX).min(Limit::QUOTA_MAX)
    }
}

pub(crate) fn find<'a>(numbers: &'a [(String, LimitOverride)], rule: &str) -> Option<&'a LimitOverride> {
    numbers.iter().find(|(name, _)| name == rule).map(|(_, numbers)| numbers)
}
