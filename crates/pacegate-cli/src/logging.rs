//! Logs to the standard error output, and traces to a collector if one is configured.

use std::fmt::{self, Debug};
use std::io::{self, IsTerminal, Stderr, Write, stderr};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context;
use opentelemetry::trace::TracerProvider;
use opentelemetry::{KeyValue, global};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithTonicConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{self, Sampler, SdkTracerProvider, SpanData};
use pacegate::store::TRACES;
use pacegate_config::{Config, LogFormat, TracesConfig};
use pacegate_server::admits_line;
use tokio::time::Instant;
use tonic::transport::ClientTlsConfig;
use tracing::field::Field;
use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Metadata, Subscriber};
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::filter::{FilterExt, Targets};
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::layer::{Context as Scope, Filter, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

use crate::output::steers;

/// Time after which the last spans are dropped at shutdown.
const LAST_SPANS: Duration = Duration::from_secs(3);

/// Minimum time between two log lines about lost spans.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// Logs and traces, until they are finished.
#[derive(Debug)]
pub(crate) struct Logging {
    traces: Option<SdkTracerProvider>,
}

impl Logging {
    /// Starts logging. Must be called within the runtime, which sends the traces.
    pub(crate) fn start(config: &Config) -> anyhow::Result<Self> {
        // Events for traces would repeat what the log has.
        let level: LevelFilter = config.log.level.name().parse().context("log.level")?;
        let filter = Targets::new().with_default(level).with_target(TRACES, LevelFilter::OFF);
        let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
        let lines = match config.log.format {
            LogFormat::Pretty => lines
                .with_ansi(std::io::stderr().is_terminal())
                .fmt_fields(debug_fn(write_field).delimited(" "))
                .boxed(),
            LogFormat::Json => lines.with_writer(|| Plain(stderr())).json().flatten_event(true).boxed(),
        };
        let traces = config.traces.as_ref().map(provider).transpose().context("traces.otlp")?;
        if traces.is_some() {
            global::set_text_map_propagator(TraceContextPropagator::new());
        }
        subscriber(lines.with_filter(filter.and(Bounded)), traces.as_ref())
            .try_init()
            .context("could not start logging")?;
        Ok(Self { traces })
    }

    /// Sends the remaining spans.
    pub(crate) fn finish(self) {
        if let Some(Err(error)) = self.traces.map(|traces| traces.shutdown_with_timeout(LAST_SPANS)) {
            tracing::warn!(%error, "the last spans were not exported");
        }
    }
}

/// A subscriber that writes `lines`, and creates spans if `traces` are exported.
fn subscriber(
    lines: impl Layer<Registry> + Send + Sync,
    traces: Option<&SdkTracerProvider>,
) -> Box<dyn Subscriber + Send + Sync> {
    let lines = tracing_subscriber::registry().with(lines);
    let Some(provider) = traces else {
        // With a layer that is `None`, every check would still create spans.
        return Box::new(lines);
    };
    let spans = tracing_opentelemetry::layer()
        .with_tracer(provider.tracer("pacegate"))
        .with_location(false)
        .with_threads(false)
        .with_tracked_inactivity(false)
        .with_target(false)
        .with_filter(Targets::new().with_target(TRACES, LevelFilter::INFO));
    Box::new(lines.with(spans))
}

/// Limits the log lines of libraries per second, because callers can provoke those of `h2`.
struct Bounded;

impl Bounded {
    fn is_bounded(metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && !metadata.target().starts_with("pacegate")
    }
}

impl<S> Filter<S> for Bounded {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Scope<'_, S>) -> bool {
        !Self::is_bounded(metadata) || admits_line()
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        // Lines without a bound are enabled once, without a call for each of them.
        if Self::is_bounded(metadata) { Interest::sometimes() } else { Interest::always() }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::TRACE)
    }
}

/// An exporter that logs its failures at a bounded rate.
#[derive(Debug)]
struct LoggedExporter {
    exporter: SpanExporter,
    reported: Mutex<Option<Instant>>,
}

impl trace::SpanExporter for LoggedExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let exported = self.exporter.export(batch).await;
        if let Err(error) = &exported {
            let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
            if reported.is_none_or(|at| at.elapsed() >= REPORT_EVERY) {
                *reported = Some(Instant::now());
                tracing::warn!(spans, %error, "spans not exported, and lost");
            }
        }
        exported
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

fn provider(config: &TracesConfig) -> anyhow::Result<SdkTracerProvider> {
    let mut exporter = SpanExporter::builder().with_tonic().with_endpoint(&config.otlp);
    if config.otlp.starts_with("https://") {
        exporter = exporter.with_tls_config(ClientTlsConfig::new().with_enabled_roots());
    }
    let exporter = LoggedExporter { exporter: exporter.build()?, reported: Mutex::new(None) };
    let resource = Resource::builder()
        .with_service_name(config.service_name.clone())
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .build();
    Ok(SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(resource)
        // The caller decides for its own traces. Traces that begin here are sampled.
        .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(config.sample))))
        .build())
}

/// Escapes characters that control a terminal. JSON allows them in strings; escaped, they mean the
/// same.
struct Plain(Stderr);

impl Write for Plain {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        if !text.chars().any(|character| steers(character) && character != '\n') {
            return self.0.write(line);
        }
        let mut plain = String::with_capacity(text.len() + 16);
        for character in text.chars() {
            if steers(character) && character != '\n' {
                // All of them fit into four digits.
                plain.push_str(&format!("\\u{:04x}", u32::from(character)));
            } else {
                plain.push(character);
            }
        }
        self.0.write_all(plain.as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Writes a field with control characters escaped, because an error can contain text from a caller.
fn write_field(writer: &mut Writer<'_>, field: &Field, value: &dyn Debug) -> fmt::Result {
    if field.name() != "message" {
        write!(writer, "{}=", field.name())?;
    }
    for character in format!("{value:?}").chars() {
        if steers(character) {
            write!(writer, "{}", character.escape_default())?;
        } else {
            writer.write_char(character)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::sync::Arc;

    use super::*;

    /// Serializes the tests: the interest of subscribers is cached for the whole process.
    static TURN: Mutex<()> = Mutex::new(());

    #[test]
    fn spans_are_created_only_for_a_collector() {
        let _turn = TURN.lock().unwrap();
        let lines = || {
            let filter =
                Targets::new().with_default(LevelFilter::TRACE).with_target(TRACES, LevelFilter::OFF);
            tracing_subscriber::fmt::layer().with_writer(io::sink).with_filter(filter)
        };
        let is_created = || !tracing::info_span!(target: TRACES, "check").is_disabled();
        assert!(!tracing::subscriber::with_default(subscriber(lines(), None), is_created));
        let provider = SdkTracerProvider::builder().build();
        assert!(tracing::subscriber::with_default(subscriber(lines(), Some(&provider)), is_created));
    }

    #[test]
    fn only_log_lines_of_libraries_are_bounded() {
        let _turn = TURN.lock().unwrap();
        #[derive(Clone, Default)]
        struct Written(Arc<Mutex<Vec<u8>>>);
        impl Write for Written {
            fn write(&mut self, line: &[u8]) -> io::Result<usize> {
                self.0.lock().unwrap().write(line)
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let written = Written::default();
        let lines = tracing_subscriber::fmt::layer().with_writer({
            let written = written.clone();
            move || written.clone()
        });
        let lines = lines.with_filter(LevelFilter::INFO.and(Bounded));
        tracing::subscriber::with_default(subscriber(lines, None), || {
            for _ in 0..500 {
                tracing::warn!(target: "h2::proto::streams", "provoked");
                tracing::debug!(target: "h2::proto::streams", "below the level");
                tracing::warn!(target: "pacegate_server::door", "own");
            }
        });
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        let (provoked, own) = (text.matches("provoked").count(), text.matches("own").count());
        // Up to ten lines in each of up to three seconds.
        assert!((10..=30).contains(&provoked), "{provoked}");
        assert_eq!((own, text.matches("below").count()), (500, 0));
    }
}
