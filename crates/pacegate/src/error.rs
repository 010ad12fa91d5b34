//! Errors of checks and of rule sets.

use std::time::Duration;

use pacegate_core::{Algorithm, InvalidLimit};
use pacegate_store::StoreError;
use thiserror::Error;

use crate::endpoint::InvalidEndpoint;
use crate::identity::Invalid;

/// A check on which no decision could be made. A denial is a decision, not an error.
///
/// ```
/// use pacegate::{Check, CheckError, Limiter};
///
/// let error = Limiter::default().check_now(Check::key("user-1").plan("gold")).unwrap_err();
/// assert!(matches!(error, CheckError::UnknownPlan { .. }));
/// ```
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The check has no identity.
    #[error("a check needs at least one dimension and identifier")]
    NoIdentity,
    /// Two identities have the same dimension.
    #[error("duplicate dimension `{dimension}`")]
    DuplicateDimension {
        /// The dimension.
        dimension: Box<str>,
    },
    /// The dimension is not a lowercase word.
    #[error("{reason}")]
    InvalidDimension {
        /// The value that was given.
        dimension: Box<str>,
        /// What the value must be.
        reason: Invalid,
    },
    /// The identifier is not valid.
    #[error("{reason}")]
    InvalidIdentifier {
        /// The dimension of the identifier.
        dimension: Box<str>,
        /// What the value must be.
        reason: Invalid,
    },
    /// The tier is not valid.
    #[error("{0}")]
    InvalidTier(Invalid),
    /// The unit of a cost is not valid.
    #[error("{reason}")]
    InvalidUnit {
        /// The value that was given.
        unit: Box<str>,
        /// What the value must be.
        reason: Invalid,
    },
    /// The endpoint is not valid.
    #[error("endpoint: {0}")]
    InvalidEndpoint(#[from] InvalidEndpoint),
    /// The ad-hoc limit of the check is not valid.
    #[error("ad-hoc limit: {0}")]
    InvalidLimit(InvalidLimit),
    /// The idempotency key is empty or too long.
    #[error("{0}")]
    InvalidIdempotencyKey(Invalid),
    /// The limiter has no plan with this name.
    #[error("unknown plan `{name}`")]
    UnknownPlan {
        /// The name.
        name: Box<str>,
    },
    /// The check names a plan twice, which would charge it twice.
    #[error("duplicate plan `{name}`")]
    DuplicatePlan {
        /// The name.
        name: Box<str>,
    },
    /// The idempotency key was used for a different request within the last five minutes.
    #[error("the idempotency key was already used for a different request")]
    IdempotencyMismatch,
    /// One of several checks that are decided as one has an idempotency key.
    #[error("an idempotency key applies to a single check, not to several checks decided together")]
    IdempotencyInChain,
    /// The cost is not valid.
    #[error(transparent)]
    InvalidCost(pacegate_core::InvalidCost),
    /// The remote service rejected the check.
    #[error("the service rejected the check: {0}")]
    Rejected(Box<str>),
    /// `#[rate_limit]` was used without a limiter.
    #[error(
        "no limiter is installed: call `Limiter::install` at startup, or set `limiter = …` in the attribute"
    )]
    NotInstalled,
    /// A synchronous method was called on a limiter whose store is not in this process.
    #[error("this limiter's store is not in this process; use the asynchronous methods")]
    NotInProcess,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Rules or plans that are not valid, or conflict with each other.
///
/// ```
/// use pacegate::{InvalidRules, Limit, Limiter, Rule};
///
/// let rule = Rule::builder("per-user", "user", Limit::per_minute(10));
/// let error = Limiter::builder().rule(rule.clone()).rule(rule).build().unwrap_err();
/// assert!(matches!(error, InvalidRules::DuplicateRule { .. }));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidRules {
    /// Two rules of the same name match the same requests.
    #[error(
        "duplicate rule `{name}`: another rule has the same dimension, identifier, tier, endpoint and method"
    )]
    DuplicateRule {
        /// The index of the second one in the list of rules.
        index: usize,
        /// The name.
        name: String,
    },
    /// A field of a rule is not valid.
    #[error("rule `{name}`: {invalid}")]
    InvalidRule {
        /// The index in the list of rules.
        index: usize,
        /// The name.
        name: String,
        /// The field, and what it must be.
        invalid: Invalid,
    },
    /// A limit of a plan is not valid.
    #[error("plan `{plan}`: limits[{index}]: {invalid}")]
    InvalidPlanLimit {
        /// The plan.
        plan: String,
        /// The index in the list of limits of the plan.
        index: usize,
        /// What is wrong with the limit.
        invalid: InvalidLimit,
    },
    /// The default limit is not valid.
    #[error("default limit: {0}")]
    InvalidDefaultLimit(InvalidLimit),
    /// The IPv6 prefix is out of range.
    #[error("ipv6_prefix: must be between 1 and 128, got {bits}")]
    InvalidIpv6Prefix {
        /// The value that was given.
        bits: u8,
    },
    /// Two plans have the same name.
    #[error("duplicate plan `{name}`")]
    DuplicatePlan {
        /// The name.
        name: String,
    },
    /// Two limits of a plan would share a counter.
    #[error("plan `{plan}`: duplicate {algorithm} limit over {window:?}; keep only the lower one")]
    DuplicateInPlan {
        /// The plan.
        plan: String,
        /// The algorithm of both.
        algorithm: Algorithm,
        /// The window of both.
        window: Duration,
    },
    /// A rule names an unknown store.
    #[error("rule `{rule}`: unknown store `{store}`")]
    UnknownStore {
        /// The rule.
        rule: String,
        /// The store.
        store: String,
    },
    /// A descriptor rule is not valid, or conflicts with another one.
    #[error("descriptors[{index}].{field}: {reason}")]
    InvalidDescriptor {
        /// The index in the list of descriptor rules.
        index: usize,
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A store is not in this process and not connected.
    #[error("store `{store}` is not in this process; connect to it and pass it to `Config::limiter_with`")]
    NotConnected {
        /// The store.
        store: String,
    },
    /// There are too many rules.
    #[error("too many rules: got {rules}, the maximum is {max}")]
    TooMany {
        /// The number of rules.
        rules: usize,
        /// The maximum number of rules.
        max: usize,
    },
}
