//! Preconditions of a change: `If-Match` over HTTP.

use pacegate::Rule;

use crate::error::CatalogError;

/// A precondition, checked inside the transaction of the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// The resource exists, in any version.
    Present,
    /// The resource exists and has this version.
    Version(i64),
}

impl Expected {
    /// Compares `expected` with the version of the resource, or its absence.
    pub(crate) fn check(
        expected: Option<Self>,
        version: Option<i64>,
        resource: &str,
    ) -> Result<(), CatalogError> {
        let holds = match expected {
            None => true,
            Some(Self::Present) => version.is_some(),
            Some(Self::Version(expected)) => version == Some(expected),
        };
        if holds {
            return Ok(());
        }
        Err(CatalogError::changed(match version {
            Some(version) => format!("the {resource} has version {version}, which is not the expected one"),
            None => format!("the {resource} does not exist"),
        }))
    }
}

/// Identifies a stored rule.
#[derive(Clone, Copy, Debug)]
pub enum RuleRef<'a> {
    /// The rule with this id.
    Id(&'a str),
    /// The rule with the name, dimension, identifier, tier, endpoints and method of this one.
    Variant(&'a Rule),
}

impl<'a> From<&'a str> for RuleRef<'a> {
    fn from(rule_id: &'a str) -> Self {
        Self::Id(rule_id)
    }
}

impl<'a> From<&'a String> for RuleRef<'a> {
    fn from(rule_id: &'a String) -> Self {
        Self::Id(rule_id)
    }
}

impl<'a> From<&'a Rule> for RuleRef<'a> {
    fn from(rule: &'a Rule) -> Self {
        Self::Variant(rule)
    }
}
