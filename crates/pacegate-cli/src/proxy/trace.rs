//! Traces of the proxy: a span for each request, between those of the client and the upstream.

use hyper::HeaderMap;
use opentelemetry::Context;
use opentelemetry::global::get_text_map_propagator;
use opentelemetry_http::{HeaderExtractor, HeaderInjector};
use pacegate::store::TRACES;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// Creates the span of a request with these headers.
pub(super) fn request(headers: &HeaderMap) -> Span {
    let span = tracing::info_span!(target: TRACES, "proxy", otel.kind = "server");
    if !span.is_disabled() {
        let context = get_text_map_propagator(|known| known.extract(&HeaderExtractor(headers)));
        // If the client does not trace, the trace begins here.
        let _ = span.set_parent(context);
    }
    span
}

/// Adds the current span to the headers for the upstream. Without traces, the headers of the client
/// stay.
pub(super) fn inject(headers: &mut HeaderMap) {
    get_text_map_propagator(|known| known.inject_context(&Context::current(), &mut HeaderInjector(headers)));
}
