//! Limits on descriptors: lists of keys and values, as Envoy sends them, instead of an identity and an endpoint.

pub(crate) mod check;
mod conditions;
pub(crate) mod contradiction;
pub(crate) mod set;
pub(crate) mod tally;
mod tree;

use pacegate_core::Limit;
use pacegate_store::FailureMode;

use crate::identity::{IDENTIFIER_REASON, Invalid, check_name, is_identifier};
use crate::rule::Mode;

pub use check::{Descriptor, DescriptorDecision, DescriptorOutcome, Hits};
pub use contradiction::Contradiction;

/// A limit on the descriptors of a request: which ones, and how much.
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
    /// Only for requests of this domain.
    pub domain: Option<String>,
    /// What it is called in answers and by `replaces`; made of what it selects unless it is set.
    pub name: Option<String>,
    /// Which descriptors it applies to.
    pub selects: Selector,
    /// How much they may take.
    pub allowance: Allowance,
    /// Whether it denies or only watches.
    pub mode: Mode,
    /// Which store its counters are in; the default one unless it is set.
    pub store: Option<String>,
    /// What happens while that store fails; the limiter's own mode unless it is set.
    pub on_store_error: Option<FailureMode>,
    /// The names of rules that do not apply to a request that this one applies to.
    pub replaces: Vec<String>,
    /// Whether a request passes while at least 1 is left and is charged in full, into a debt of up to
    /// one capacity: for costs that are known only afterwards.
    pub overdraw: bool,
    /// Whether hits may be given back by a caller that only rules permit to
    /// ([`Descriptor::refundable_only`](crate::descriptor::Descriptor::refundable_only)).
    pub refundable: bool,
}

/// Which descriptors a rule applies to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Selector {
    /// Those whose entries are these, in this order and no more. At each entry an exact value goes before those with a `*`, in the order of the
    /// rules, and these before the key alone; what was chosen is not given up again. Each path of actual values has a counter.
    Path(Vec<PathEntry>),
    /// Those that fulfil conditions, whatever else they have. All rules of this kind that apply are charged.
    Conditions {
        /// Only the request's descriptor at this place, the first being 0.
        descriptor: Option<usize>,
        /// What must hold, all of it.
        when: Vec<Condition>,
        /// The keys whose values have a counter of their own. The rule does not apply where one of them is missing.
        by: Vec<String>,
    },
}

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PathEntry {
    /// The entry's key.
    pub key: String,
    /// The entry's value, in which `*` stands for any run of characters; any value unless it is set.
    pub value: Option<String>,
}

impl PathEntry {
    /// An entry with this value.
    pub fn exact(key: &str, value: &str) -> Self {
        Self { key: key.into(), value: Some(value.into()) }
    }

    /// An entry with whatever value.
    pub fn any(key: &str) -> Self {
        Self { key: key.into(), value: None }
    }
}

/// Something that must hold for a key. It does not hold where the key is missing, whatever the test.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Condition {
    /// The key.
    pub key: String,
    /// What its value must be.
    pub test: ValueTest,
}

/// What a value must be.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ValueTest {
    /// This text.
    Is(String),
    /// Another text.
    IsNot(String),
    /// A text that begins so.
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

/// How much something may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowance {
    /// As much as a limit says.
    Limit(Limit),
    /// Everything; nothing is counted.
    Unlimited,
    /// Nothing, ever.
    Nothing,
}

impl DescriptorRule {
    /// The most entries or conditions of one rule.
    pub const ENTRIES_MAX: usize = 64;

    /// A limit on descriptors with these entries, in any domain.
    pub fn path(entries: impl IntoIterator<Item = PathEntry>, limit: Limit) -> Self {
        Self::new(Selector::Path(entries.into_iter().collect()), Allowance::Limit(limit))
    }

    /// A rule for any domain that is enforced.
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

    /// The name, or one made of what the rule selects: `database=users.remote_address`, `tier!=gold by user`.
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
        // It stands in headers, metrics and logs, as every name.
        let fit = |character: char| {
            if matches!(character, ' '..='~') && !matches!(character, '"' | '\\') { character } else { '?' }
        };
        name.chars().map(fit).take(128).collect()
    }

    /// Says which field cannot be what it is, if there is one.
    ///
    /// # Errors
    /// [`Invalid`] with the name of the field.
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
