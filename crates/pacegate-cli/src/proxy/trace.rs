//! The proxy's part in traces: a span for each request, under the client's, that the upstream finds its own under.

use hyper::HeaderMap;
use opentelemetry::Context;
use opentelemetry::global::get_text_map_propagator;
use opentelemetry_http::{HeaderExtractor, HeaderInjector};
use pacegate::store::TRACES;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// The span of a request with these headers.
pub(super) fn request(headers: &HeaderMap) -> Span {
    let span = tracing::info_span!(target: TRACES, "proxy", otel.kind = "server");
    if !span.is_disabled() {
        let context = get_text_map_propagator(|known| known.extract(&HeaderExtractor(headers)));
        // Without a client that traces, a trace begins here.
        let _ = span.set_parent(context);
    }
    span
}

/// Tells the upstream about the span that is current. Nobody is told anything while there are no traces, and the client's own header stays then.
pub(super) fn tell(headers: &mut HeaderMap) {
    get_text_map_propagator(|known| known.inject_context(&Context::current(), &mut HeaderInjector(headers)));
}
