//! Observes decisions, for the metrics, logs and traces of the embedding program.
//!
//! ```
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicU64, Ordering};
//! use pacegate::observe::Observed;
//! use pacegate::{Limit, Limiter};
//!
//! let denied = Arc::new(AtomicU64::new(0));
//! let count = denied.clone();
//! let limiter = Limiter::builder()
//!     .default_limit(Limit::per_hour(1))
//!     .observer(move |observed: &Observed<'_, '_>| {
//!         if observed.decided.is_ok_and(|decision| !decision.allowed()) {
//!             count.fetch_add(1, Ordering::Relaxed);
//!         }
//!     })
//!     .build()?;
//! limiter.check_now("user-1")?;
//! limiter.check_now("user-1")?;
//! assert_eq!(denied.load(Ordering::Relaxed), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! With the feature `metrics`, `MetricsObserver` reports decisions to the facade of the `metrics`
//! crate, under the names that the service uses in `GET /metrics`.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::check::Check;
use crate::decision::Decision;
use crate::error::CheckError;

/// Receives every decision of a limiter or of a tower layer.
///
/// It is called in the path of the request, so it must be fast. Closures that take an [`Observed`]
/// implement it.
pub trait Observer: Send + Sync {
    /// Handles a decision.
    fn observe(&self, observed: &Observed<'_, '_>);
}

impl<F: Fn(&Observed<'_, '_>) + Send + Sync> Observer for F {
    fn observe(&self, observed: &Observed<'_, '_>) {
        self(observed);
    }
}

/// A decision, and how it was made.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Observed<'a, 'c> {
    /// The check; the first one if several were decided as one.
    pub check: &'a Check<'c>,
    /// The decision, or why none could be made.
    pub decided: Result<&'a Decision, &'a CheckError>,
    /// The duration, including calls of stores.
    pub took: Duration,
    /// The id of the request; empty if unknown.
    pub request_id: &'a str,
}

impl<'a, 'c> Observed<'a, 'c> {
    /// Returns an observed decision without a request id.
    pub fn new(check: &'a Check<'c>, decided: &'a Result<Decision, CheckError>, took: Duration) -> Self {
        Self { check, decided: decided.as_ref(), took, request_id: "" }
    }

    /// Sets the id of the request.
    #[must_use]
    pub fn of_request(self, request_id: &'a str) -> Self {
        Self { request_id, ..self }
    }
}

/// The observer of a limiter, if any.
#[derive(Clone, Default)]
pub(crate) struct Observing(Option<Arc<dyn Observer>>);

impl Observing {
    pub(crate) fn by(observer: impl Observer + 'static) -> Self {
        Self(Some(Arc::new(observer)))
    }

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the start time if there is an observer.
    #[inline]
    pub(crate) fn start(&self) -> Option<Instant> {
        self.is_on().then(Instant::now)
    }

    /// Reports a decision that began at `started`.
    #[inline]
    pub(crate) fn note(
        &self,
        check: &Check<'_>,
        started: Option<Instant>,
        decided: &Result<Decision, CheckError>,
    ) {
        if let (Some(observer), Some(started)) = (&self.0, started) {
            observer.observe(&Observed::new(check, decided, started.elapsed()));
        }
    }
}

impl fmt::Debug for Observing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.is_on() { "Observing" } else { "NotObserving" })
    }
}

/// Reports decisions to the [`metrics`] facade, under the names that the service uses in `GET
/// /metrics`: `pacegate_allowed_total` and `pacegate_blocked_total` (labels `rule`, `algorithm`,
/// `reason`), `pacegate_shadow_blocked_total` and `pacegate_uncharged_total` (`rule`, `algorithm`),
/// and `pacegate_latency_seconds` (`outcome`).
///
/// Identifiers are never used as labels.
///
/// ```
/// use pacegate::observe::MetricsObserver;
/// use pacegate::{Limit, Limiter};
///
/// let limiter = Limiter::builder().default_limit(Limit::per_second(10)).observer(MetricsObserver).build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg(feature = "metrics")]
#[derive(Clone, Copy, Debug, Default)]
pub struct MetricsObserver;

#[cfg(feature = "metrics")]
impl Observer for MetricsObserver {
    fn observe(&self, observed: &Observed<'_, '_>) {
        use pacegate_core::Reason;

        const NONE: &str = "none";
        let outcome = match observed.decided {
            Ok(decision) if decision.allowed() => "allowed",
            Ok(_) => "blocked",
            Err(CheckError::Store(_)) => "error",
            // An invalid check does not count as a failure of the limiter.
            Err(_) => return,
        };
        metrics::histogram!("pacegate_latency_seconds", "outcome" => outcome).record(observed.took);
        let Ok(decision) = observed.decided else { return };
        if decision.replayed() {
            return;
        }
        let rule = decision.binding_limit().map_or(NONE, |limit| limit.label()).to_owned();
        let algorithm = decision.binding().map_or(NONE, |answer| answer.algorithm.name());
        let reason = decision.binding().and_then(|answer| answer.reason).map_or(NONE, Reason::name);
        let name = if decision.allowed() { "pacegate_allowed_total" } else { "pacegate_blocked_total" };
        metrics::counter!(name, "rule" => rule, "algorithm" => algorithm, "reason" => reason).increment(1);
        for (limit, answer) in decision.limits().iter().zip(decision.answers()) {
            let labels =
                || [("rule", limit.label().to_owned()), ("algorithm", answer.algorithm.name().to_owned())];
            if answer.shadow && !answer.allowed {
                metrics::counter!("pacegate_shadow_blocked_total", &labels()).increment(1);
            }
            if answer.uncharged > 0 {
                metrics::counter!("pacegate_uncharged_total", &labels()).increment(answer.uncharged.into());
            }
        }
    }
}
