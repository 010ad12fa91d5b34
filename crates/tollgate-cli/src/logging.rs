//! Logs on the error output, and traces to a collector when one is configured.

use std::fmt::{self, Debug};
use std::io::IsTerminal;
use std::time::Duration;

use anyhow::Context;
use opentelemetry::trace::TracerProvider;
use opentelemetry::{KeyValue, global};
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use tollgate::{Config, LogFormat, TRACES, TracesConfig};
use tracing::field::Field;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// How long the collector may take to take the last spans.
const LAST_SPANS: Duration = Duration::from_secs(3);

/// Logs and traces, until they are finished.
#[derive(Debug)]
pub(crate) struct Logging {
    traces: Option<SdkTracerProvider>,
}

impl Logging {
    /// Starts to log. It must be called within the runtime, which sends the traces.
    pub(crate) fn start(config: &Config) -> anyhow::Result<Self> {
        // What is only meant for traces would double what the log says.
        let filter = EnvFilter::try_new(format!("{},{TRACES}=off", config.log.level)).context("log.level")?;
        let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
        let lines = match config.log.format {
            LogFormat::Pretty => lines
                .with_ansi(std::io::stderr().is_terminal())
                .fmt_fields(debug_fn(write_field).delimited(" "))
                .boxed(),
            LogFormat::Json => lines.json().flatten_event(true).boxed(),
        };
        let traces = config.traces.as_ref().map(provider).transpose().context("traces.otlp")?;
        let spans = traces.as_ref().map(|provider| {
            global::set_text_map_propagator(TraceContextPropagator::new());
            tracing_opentelemetry::layer()
                .with_tracer(provider.tracer("tollgate"))
                .with_location(false)
                .with_threads(false)
                .with_target(false)
                .with_filter(Targets::new().with_target(TRACES, LevelFilter::INFO))
        });
        tracing_subscriber::registry()
            .with(lines.with_filter(filter))
            .with(spans)
            .try_init()
            .context("could not start logging")?;
        Ok(Self { traces })
    }

    /// Sends what is left.
    pub(crate) fn finish(self) {
        if let Some(Err(error)) = self.traces.map(|traces| traces.shutdown_with_timeout(LAST_SPANS)) {
            tracing::warn!(%error, "the last spans did not reach the collector");
        }
    }
}

fn provider(config: &TracesConfig) -> anyhow::Result<SdkTracerProvider> {
    let exporter = SpanExporter::builder().with_tonic().with_endpoint(&config.otlp).build()?;
    let resource = Resource::builder()
        .with_service_name(config.service_name.clone())
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .build();
    Ok(SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(resource)
        // Whoever traces the whole request decides; traces that begin here are sampled.
        .with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(config.sample))))
        .build())
}

/// Writes a field so that whatever is in it stays within its line: an error may hold what somebody sent.
fn write_field(writer: &mut Writer<'_>, field: &Field, value: &dyn Debug) -> fmt::Result {
    if field.name() != "message" {
        write!(writer, "{}=", field.name())?;
    }
    for character in format!("{value:?}").chars() {
        if character.is_control() {
            write!(writer, "{}", character.escape_default())?;
        } else {
            writer.write_char(character)?;
        }
    }
    Ok(())
}
