//! Limits on descriptors: lists of keys and values, as Envoy sends them, instead of an identity and
//! an endpoint.
//!
//! [`Limiter::check_descriptors`](crate::Limiter::check_descriptors) decides on all descriptors of
//! a request in one command. A rule selects descriptors by a path, matched step by step as Envoy's
//! rate limit service does, or by conditions, as Limitador does. The counter of a path belongs to
//! its actual values, so a more specific rule takes over the counter of a less specific one. A cost
//! above the capacity of a limit can only be the report of past usage, so it is denied and still
//! charged. Values of any length and with any characters are counted: an error would let them pass,
//! because Envoy allows requests on errors.

pub(crate) mod check;
mod conditions;
pub(crate) mod conflict;
pub(crate) mod set;
pub(crate) mod tally;
mod tree;

use pacegate_core::Limit;
use pacegate_store::FailureMode;

use crate::identity::{IDENTIFIER_REASON, Invalid, check_name, is_identifier};
use crate::rule::Mode;

pub use check::{Descriptor, DescriptorDecision, DescriptorOutcome, Hits};
pub use conflict::Conflict;

/// A limit on the descriptors of a request.
///
/// ```
/// use pacegate::{Limit, Limiter, descriptor::{Descriptor, DescriptorRule, PathEntry}};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let path = [PathEntry::exact("database", "users"), PathEntry::any("remote_address")];
/// let rule = DescriptorRule::path(path, Limit::per_second(500).build()?);
/// let limiter = Limiter::builder().descriptor(rule).build()?;
///
/// let descriptor = Descriptor::new([("database", "users"), ("remote_address", "10.0.0.1")]);
/// let decision = limiter.check_descriptors("edge", &[descriptor]).await?;
/// assert!(decision.allowed);
/// assert_eq!(decision.outcomes[0].decision.remaining(), Some(499));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescriptorRule {
    /// Applies only to requests of this domain.
    pub domain: Option<String>,
    /// The name in responses and in `replaces`. Default: derived from the selector.
    pub name: Option<String>,
    /// The descriptors it applies to.
    pub selects: Selector,
    /// How much they may consume.
    pub allowance: Allowance,
    /// Whether the rule denies requests or only counts them.
    pub mode: Mode,
    /// The name of the store for the counters. Default: the default store.
    pub store: Option<String>,
    /// What happens while that store is unavailable. Default: the mode of the limiter.
    pub on_store_error: Option<FailureMode>,
    /// The names of rules that do not apply to a request if this rule does.
    pub replaces: Vec<String>,
    /// Allows a request while at least 1 remains and charges its full cost, into a debt of up to
    /// one capacity. Use it for costs that are known only afterwards.
    pub overdraw: bool,
    /// Whether callers restricted by
    /// [`Descriptor::refundable_only`](crate::descriptor::Descriptor::refundable_only) may refund
    /// hits of this rule.
    pub refundable: bool,
}

/// Which descriptors a rule applies to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Selector {
    /// Descriptors with exactly these entries, in this order. At each entry, an exact value takes
    /// precedence over values with a `*`, in the order of the rules, and these over the key alone;
    /// there is no backtracking. Each path of actual values has a separate counter.
    Path(Vec<PathEntry>),
    /// Descriptors that meet all conditions, whatever other entries they have. All matching rules
    /// of this kind are charged.
    Conditions {
        /// Applies only to the descriptor with this index in the request, starting at 0.
        descriptor: Option<usize>,
        /// The conditions; all of them must hold.
        when: Vec<Condition>,
        /// The keys whose values have separate counters. The rule does not apply if one of them is
        /// missing.
        by: Vec<String>,
    },
}

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PathEntry {
    /// The key of the entry.
    pub key: String,
    /// The value of the entry, in which `*` matches any characters. `None` matches any value.
    pub value: Option<String>,
}

impl PathEntry {
    /// Returns an entry with this value.
    pub fn exact(key: &str, value: &str) -> Self {
        Self { key: key.into(), value: Some(value.into()) }
    }

    /// Returns an entry with any value.
    pub fn any(key: &str) -> Self {
        Self { key: key.into(), value: None }
    }
}

/// A condition on the value of a key. It does not hold if the key is missing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Condition {
    /// The key.
    pub key: String,
    /// The test of its value.
    pub test: ValueTest,
}

/// The test of a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ValueTest {
    /// The value equals this text.
    Is(String),
    /// The value differs from this text.
    IsNot(String),
    /// The value starts with this text.
    StartsWith(String),
}

impl ValueTest {
    pub(crate) fn holds(&self, value: &str) -> bool {
        match self {
            Self::Is(text) => value == text,
            Self::IsNot(text) => value != text,
            Self::StartsWith(text) => value.starts_with(text.as_str()),
        }
    }

    fn text(&self) -> &str {
        let (Self::Is(text) | Self::IsNot(text) | Self::StartsWith(text)) = self;
        text
    }

    fn sign(&self) -> &'static str {
        match self {
            Self::Is(_) => "=",
            Self::IsNot(_) => "!=",
            Self::StartsWith(_) => "^=",
        }
    }
}

/// How much a descriptor may consume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowance {
    /// As much as the limit allows.
    Limit(Limit),
    /// Everything; nothing is counted.
    Unlimited,
    /// Nothing; every request is denied.
    Nothing,
}

impl DescriptorRule {
    /// Maximum number of entries or conditions of one rule.
    pub const ENTRIES_MAX: usize = 64;

    /// Returns a rule for descriptors with these entries, in any domain.
    pub fn path(entries: impl IntoIterator<Item = PathEntry>, limit: Limit) -> Self {
        Self::new(Selector::Path(entries.into_iter().collect()), Allowance::Limit(limit))
    }

    /// Returns an enforced rule for any domain.
    pub fn new(selects: Selector, allowance: Allowance) -> Self {
        Self {
            domain: None,
            name: None,
            selects,
            allowance,
            mode: Mode::Enforce,
            store: None,
            on_store_error: None,
            replaces: Vec::new(),
            overdraw: false,
            refundable: false,
        }
    }

    /// Returns the name, or one derived from the selector: `database=users.remote_address`,
    /// `tier!=gold by user`.
    pub fn display_name(&self) -> String {
        let name = match (&self.name, &self.selects) {
            (Some(name), _) => return name.clone(),
            (None, Selector::Path(entries)) => {
                let step = |entry: &PathEntry| match &entry.value {
                    None => entry.key.clone(),
                    Some(value) => format!("{}={value}", entry.key),
                };
                entries.iter().map(step).collect::<Vec<_>>().join(".")
            }
            (None, Selector::Conditions { when, by, .. }) => {
                let condition =
                    |Condition { key, test }: &Condition| format!("{key}{}{}", test.sign(), test.text());
                let when = when.iter().map(condition).collect::<Vec<_>>().join(" and ");
                let by = by.join(", ");
                match (when.is_empty(), by.is_empty()) {
                    (true, true) => "all".to_owned(),
                    (false, true) => when,
                    (true, false) => format!("by {by}"),
                    (false, false) => format!("{when} by {by}"),
                }
            }
        };
        // The name appears in headers, metrics and logs.
        let fit = |character: char| {
            if matches!(character, ' '..='~') && !matches!(character, '"' | '\\') { character } else { '?' }
        };
        name.chars().map(fit).take(128).collect()
    }

    /// Validates the rule.
    ///
    /// # Errors
    /// [`Invalid`] with the first field that is not valid.
    pub fn validate(&self) -> Result<(), Invalid> {
        let invalid = |field, reason: &'static str| Err(Invalid::new(field, reason));
        if !self.domain.as_deref().is_none_or(is_identifier) {
            return invalid("domain", IDENTIFIER_REASON);
        }
        self.name.as_deref().map(check_name).transpose()?;
        if self.name.as_ref().is_some_and(|name| self.replaces.contains(name)) {
            return invalid("replaces", "must not contain the rule's own name");
        }
        if self.overdraw && !matches!(self.allowance, Allowance::Limit(_)) {
            return invalid("overdraw", "requires a limit");
        }
        if self.refundable && !matches!(self.allowance, Allowance::Limit(_)) {
            return invalid("refundable", "requires a limit");
        }
        match &self.selects {
            Selector::Path(entries) if !(1..=Self::ENTRIES_MAX).contains(&entries.len()) => {
                invalid("entries", "must have 1 to 64 entries")
            }
            Selector::Path(entries) => {
                let clean = |entry: &PathEntry| {
                    is_identifier(&entry.key) && entry.value.as_deref().is_none_or(is_identifier)
                };
                if entries.iter().all(clean) { Ok(()) } else { invalid("entries", IDENTIFIER_REASON) }
            }
            Selector::Conditions { when, by, .. } => {
                if when.len() > Self::ENTRIES_MAX {
                    return invalid("when", "must have at most 64 conditions");
                }
                if by.len() > Self::ENTRIES_MAX {
                    return invalid("by", "must have at most 64 keys");
                }
                let clean = |condition: &Condition| {
                    let text = condition.test.text();
                    is_identifier(&condition.key) && (text.is_empty() || is_identifier(text))
                };
                if !when.iter().all(clean) {
                    return invalid("when", IDENTIFIER_REASON);
                }
                if !by.iter().all(|key| is_identifier(key)) {
                    return invalid("by", IDENTIFIER_REASON);
                }
                if self.allowance == Allowance::Unlimited {
                    return invalid(
                        "unlimited",
                        "has no effect with `when` or `by`: every such rule that matches is charged",
                    );
                }
                Ok(())
            }
        }
    }
}
