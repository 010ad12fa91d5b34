//! Metrics, in a registry of the service's own: two services in one process do not mix theirs.

use std::fmt;

use metrics::{Histogram, Key, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

/// The differences between clocks that are told apart, in seconds.
const SKEW_BUCKETS: [f64; 10] = [0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 30.0, 60.0, 300.0, 3_600.0];
const CLOCK_SKEW: &str = "tollgate_clock_skew_seconds";
const BUILD_INFO: &str = "tollgate_build_info";
static BUILD_LABELS: [Label; 1] = [Label::from_static_parts("version", env!("CARGO_PKG_VERSION"))];

/// The registry. Whoever measures something asks for a handle once and keeps it.
pub(crate) struct Telemetry {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
}

impl Telemetry {
    pub(crate) fn new() -> Self {
        let name = Matcher::Full(CLOCK_SKEW.to_owned());
        let builder = PrometheusBuilder::new().set_buckets_for_metric(name, &SKEW_BUCKETS);
        // Only an empty list of buckets is refused.
        let recorder = builder.unwrap_or_default().build_recorder();
        let handle = recorder.handle();
        recorder.describe_gauge(BUILD_INFO.into(), None, "1, with the version as a label".into());
        let key = Key::from_static_parts(BUILD_INFO, &BUILD_LABELS);
        recorder.register_gauge(&key, &METADATA).set(1.0);
        Self { recorder, handle }
    }

    /// How far callers' clocks are from this one.
    pub(crate) fn clock_skew(&self) -> Histogram {
        let help = "How far the clocks of callers are from that of this node, in either direction";
        self.recorder.describe_histogram(CLOCK_SKEW.into(), Some(metrics::Unit::Seconds), help.into());
        self.recorder.register_histogram(&Key::from_static_name(CLOCK_SKEW), &METADATA)
    }

    /// Everything measured so far, in Prometheus' text format.
    pub(crate) fn render(&self) -> String {
        self.handle.run_upkeep();
        self.handle.render()
    }
}

const METADATA: Metadata<'static> = Metadata::new(module_path!(), Level::INFO, None);

impl fmt::Debug for Telemetry {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Telemetry").finish_non_exhaustive()
    }
}
