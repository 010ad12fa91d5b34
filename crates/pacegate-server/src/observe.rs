//! Observability of decisions: metrics, spans, log lines, the decision log and usage.
//!
//! Every decision of every protocol passes through [`Observer`], so that all are timed, traced,
//! counted and logged in the same way.

pub(crate) mod journal;
pub(crate) mod library_lines;
pub(crate) mod lines;
pub(crate) mod refunds;
pub(crate) mod skew;
pub(crate) mod telemetry;
pub(crate) mod trace;
pub(crate) mod transitions;
pub(crate) mod usage;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::HeaderMap;
use pacegate::{Check, CheckError, Decision, Limiter, NamedLimit};
use pacegate_config::Config;
use pacegate_http::request_id::request_id;
use tokio::time::Instant;
use tracing::{Instrument, Span};

use crate::ad_hoc::IgnoredLimits;
use crate::live::Live;
use lines::Lines;
use refunds::Refunds;
use skew::Skew;
use telemetry::Telemetry;
use transitions::Transitions;

/// Observes decisions.
#[derive(Debug)]
pub(crate) struct Observer {
    pub(crate) telemetry: Telemetry,
    pub(crate) transitions: Transitions,
    pub(crate) lines: Lines,
    pub(crate) skew: Skew,
    pub(crate) refunds: Refunds,
    pub(crate) ignored_limits: IgnoredLimits,
    /// Holds the decision log and usage, if there is a catalog.
    live: Option<Arc<Live>>,
}

/// The span, request id and duration of a decision.
pub(crate) struct Deciding<'a> {
    span: Span,
    pub(crate) request_id: &'a str,
    pub(crate) took: Duration,
}

impl Observer {
    pub(crate) fn new(config: &Config, limiter: &Limiter, live: Option<Arc<Live>>) -> Self {
        Self {
            telemetry: Telemetry::new(limiter, config.metrics),
            transitions: Transitions::default(),
            lines: Lines::new(&config.log),
            skew: Skew::default(),
            refunds: Refunds::default(),
            ignored_limits: IgnoredLimits::default(),
            live,
        }
    }

    /// Runs the decision of one request in its own span, and measures its duration. The future is
    /// pinned by the caller, because moving it costs more than the decision.
    pub(crate) async fn time<'a, T>(
        &self,
        headers: &'a HeaderMap,
        deciding: Pin<&mut impl Future<Output = T>>,
    ) -> (T, Deciding<'a>) {
        timed(trace::check(headers), headers, deciding).await
    }

    /// Runs the decision of a batch of `checks` in its own span, and measures its duration.
    pub(crate) async fn time_batch<'a, T>(
        &self,
        headers: &'a HeaderMap,
        checks: usize,
        deciding: Pin<&mut impl Future<Output = T>>,
    ) -> (T, Deciding<'a>) {
        timed(trace::batch(headers, checks), headers, deciding).await
    }

    /// Records one decision. It may cover several checks: it counts once, and adds to the usage of
    /// each.
    #[inline]
    pub(crate) fn note(&self, checks: &[Check<'_>], request_id: &str, decision: &Decision, took: Duration) {
        self.telemetry.observe(checks, decision, took);
        let key = |limit: &NamedLimit| self.lines.key(checks, Some(limit));
        self.transitions.observe(decision, request_id, key);
        for check in checks {
            self.lines.note(check, request_id, decision, took);
            if let Some(live) = &self.live {
                live.journal.note(check, request_id, decision);
            }
        }
    }

    /// Records a failed decision. Invalid requests are not failures of the service.
    pub(crate) fn note_error(&self, error: &CheckError, took: Duration) {
        if matches!(error, CheckError::Store(_)) {
            self.telemetry.observe_error(took);
        }
    }
}

impl Deciding<'_> {
    /// Records the decision in the request's span.
    pub(crate) fn record(&self, decision: &Decision) {
        trace::decided(&self.span, decision);
    }

    /// Records the decision of one check of a batch in its own span under the batch's span.
    pub(crate) fn record_part(&self, decision: &Decision) {
        trace::part(&self.span, decision);
    }
}

async fn timed<T>(span: Span, headers: &HeaderMap, deciding: impl Future<Output = T>) -> (T, Deciding<'_>) {
    let started = Instant::now();
    let decided = deciding.instrument(span.clone()).await;
    (decided, Deciding { span, request_id: request_id(headers), took: started.elapsed() })
}
