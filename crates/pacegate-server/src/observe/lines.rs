//! Log lines of decisions: the key, the rule that decided, and the duration.

use std::borrow::Cow;
use std::fmt::Write;
use std::time::Duration;

use pacegate::{Check, Decision, NamedLimit};
use pacegate_catalog::shorten_identifier;
use pacegate_config::{LogConfig, LoggedDecisions, LoggedKeys};
use pacegate_core::hexadecimal;
use sha2::{Digest, Sha256};

use pacegate_http::server::PerSecond;

/// Number of bytes of a hash that identify a key in the log.
const HASH_BYTES: usize = 8;

/// Writes log lines of decisions, at a bounded rate.
#[derive(Debug)]
pub(crate) struct Lines {
    decisions: LoggedDecisions,
    keys: LoggedKeys,
    lines: PerSecond,
}

impl Lines {
    pub(crate) fn new(config: &LogConfig) -> Self {
        Self {
            decisions: config.decisions,
            keys: config.keys,
            lines: PerSecond::new(config.lines_per_second),
        }
    }

    /// Returns the number of suppressed lines.
    pub(crate) fn suppressed(&self) -> u64 {
        self.lines.suppressed()
    }

    #[inline]
    pub(crate) fn note(&self, check: &Check<'_>, request_id: &str, decision: &Decision, took: Duration) {
        let wanted = match self.decisions {
            LoggedDecisions::None => false,
            LoggedDecisions::Denied => !decision.allowed() || decision.degraded(),
            LoggedDecisions::All => true,
        };
        if wanted
            && tracing::enabled!(target: "pacegate::decision", tracing::Level::INFO)
            && self.lines.admit()
        {
            self.write(check, request_id, decision, took);
        }
    }

    fn write(&self, check: &Check<'_>, request_id: &str, decision: &Decision, took: Duration) {
        let answer = decision.binding();
        let reason = answer.and_then(|answer| answer.reason).map(|reason| reason.name());
        tracing::info!(
            target: "pacegate::decision",
            request_id = Some(request_id).filter(|id| !id.is_empty()),
            key = &*self.key(std::slice::from_ref(check), decision.binding_limit()),
            endpoint = check.endpoint,
            rule = decision.binding_limit().map(|limit| &*limit.name),
            reason,
            remaining = answer.and_then(|answer| answer.remaining),
            latency_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
            degraded = decision.degraded(),
            "{}",
            if decision.allowed() { "allowed" } else { "denied" },
        );
    }

    /// Returns the identities of `checks` that `limit` counts, or all of them, in the form that the
    /// configuration allows in logs.
    pub(crate) fn key(&self, checks: &[Check<'_>], limit: Option<&NamedLimit>) -> String {
        let counts = |(dimension, identifier): &(&str, Cow<'_, str>)| {
            limit.is_some_and(|limit| limit.counts(dimension, identifier))
        };
        let identities = || checks.iter().flat_map(|check| check.identities());
        let any = identities().any(counts);
        let mut text = String::new();
        for (dimension, identifier) in identities().filter(|identity| !any || counts(identity)) {
            let separator = if text.is_empty() { "" } else { "|" };
            let _ = write!(text, "{separator}{dimension}:{}", shown(identifier, self.keys));
        }
        text
    }
}

/// Returns an identifier as logs show it.
pub(crate) fn shown(identifier: &str, keys: LoggedKeys) -> Cow<'_, str> {
    match keys {
        LoggedKeys::Plain => shorten_identifier(identifier),
        LoggedKeys::Hashed => Cow::Owned(hexadecimal(&Sha256::digest(identifier)[..HASH_BYTES])),
    }
}
