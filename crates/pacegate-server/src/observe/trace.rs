//! Trace spans: one per check, under the caller's span if it sends one. They cost nothing unless
//! they are collected.

use hyper::HeaderMap;
use opentelemetry_http::HeaderExtractor;
use pacegate::{Decision, store::TRACES};
use tracing::Span;
use tracing::field::Empty;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// Creates the span of one check.
pub(crate) fn check(headers: &HeaderMap) -> Span {
    under_caller(empty(), headers)
}

fn empty() -> Span {
    tracing::info_span!(
        target: TRACES,
        "check",
        otel.kind = "server",
        pacegate.allowed = Empty,
        pacegate.rule = Empty,
        pacegate.algorithm = Empty,
        pacegate.dimension = Empty,
        pacegate.reason = Empty,
        pacegate.remaining = Empty,
        pacegate.degraded = Empty,
    )
}

/// Creates the span of a batch.
pub(crate) fn batch(headers: &HeaderMap, checks: usize) -> Span {
    let span =
        tracing::info_span!(target: TRACES, "batch_check", otel.kind = "server", pacegate.checks = checks);
    under_caller(span, headers)
}

/// Adds the decision to a span. Traces, like metrics, contain no identifiers.
pub(crate) fn decided(span: &Span, decision: &Decision) {
    if span.is_disabled() {
        return;
    }
    span.record("pacegate.allowed", decision.allowed());
    span.record("pacegate.degraded", decision.degraded());
    if let Some(limit) = decision.binding_limit() {
        span.record("pacegate.rule", &*limit.name);
        span.record("pacegate.dimension", limit.dimension());
    }
    if let Some(answer) = decision.binding() {
        span.record("pacegate.algorithm", answer.algorithm.name());
        span.record("pacegate.reason", answer.reason.map(|reason| reason.name()));
        span.record("pacegate.remaining", answer.remaining);
    }
}

/// Records the decision of one check of a batch as a span under the batch's span; the store call
/// was shared.
pub(crate) fn part(batch: &Span, decision: &Decision) {
    if !batch.is_disabled() {
        batch.in_scope(|| decided(&empty(), decision));
    }
}

fn under_caller(span: Span, headers: &HeaderMap) -> Span {
    if !span.is_disabled() {
        let context =
            opentelemetry::global::get_text_map_propagator(|known| known.extract(&HeaderExtractor(headers)));
        // If the caller sends no trace context, a trace starts here.
        let _ = span.set_parent(context);
    }
    span
}
