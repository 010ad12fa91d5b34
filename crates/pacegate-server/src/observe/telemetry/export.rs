//! The metrics in the OpenMetrics text format, which Prometheus reads.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pacegate::{Standing, Stores, store::Figure};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::Registry;
use tonic::Code;

use super::histogram::Counted;
use super::rules::REASONS;
use super::{CLASSES, Ending, process};
use crate::app::Shared;
use crate::observe::library_lines;
use crate::run::Protocol;
use pacegate_http::server;

/// The figures of stores: name in the store, name of the metric, and help text.
const STORE_FIGURES: [(&str, &str, &str); 17] = [
    ("keys", "pacegate_keys", "Stored counters"),
    ("ad_hoc_keys", "pacegate_ad_hoc_keys", "Stored counters of ad-hoc limits"),
    (
        "uncounted",
        "pacegate_store_uncounted",
        "Checks with a limit that the full memory store could not count and decided by its failure mode",
    ),
    (
        "unrecorded",
        "pacegate_idempotency_unrecorded",
        "Checks whose idempotency key was not recorded because the memory store was full",
    ),
    (
        "clock_ahead_seconds",
        "pacegate_store_clock_ahead_seconds",
        "Seconds by which the clock of counters in memory is ahead of the wall clock, which was set back",
    ),
    ("errors", "pacegate_store_errors", "Failed commands of a store"),
    ("degraded", "pacegate_degraded", "Checks and peeks that were decided without their store"),
    ("breaker_openings", "pacegate_breaker_openings", "Times that the circuit breaker of a store opened"),
    ("full", "pacegate_store_full", "Checks with a new key that a store rejected because its memory is full"),
    (
        "over_budget",
        "pacegate_new_keys_refused",
        "Checks with a new key above new_keys_per_second, counted in this process instead",
    ),
    ("connections", "pacegate_store_connections", "Open connections to a store"),
    ("connects", "pacegate_store_connects", "Connections opened to a store"),
    ("script_loads", "pacegate_script_loads", "Times that the script was loaded into Redis"),
    ("primary_changes", "pacegate_store_primary_changes", "Times that another server became the primary"),
    ("resends", "pacegate_store_resends", "Retried commands"),
    ("batches", "pacegate_store_batches", "Round trips or transactions of a store"),
    ("batched", "pacegate_store_batched", "Requests in the round trips or transactions of a store"),
];

/// Returns all metrics as text. `catalog_up` is whether the catalog is available, `None` without a
/// catalog.
pub(crate) fn scrape(shared: &Arc<Shared>, catalog_up: Option<bool>) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Scrape { shared: shared.clone(), catalog_up }));
    let mut text = String::with_capacity(16 * 1024);
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Scrape {
    shared: Arc<Shared>,
    catalog_up: Option<bool>,
}

impl Collector for Scrape {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page(encoder);
        self.decisions(&mut page)?;
        self.latency(&mut page)?;
        self.stores(&mut page)?;
        self.service(&mut page)?;
        // Measured here, because the system's value is hidden from isolated processes.
        let started = self.shared.observer.telemetry.started.as_micros() as f64 / 1e6;
        page.gauge(
            "process_start_time_seconds",
            "Start time of the process, in seconds since the epoch",
            started,
        )?;
        processes(&mut page)
    }
}

impl Scrape {
    fn decisions(&self, page: &mut Page<'_>) -> fmt::Result {
        let rules = self.shared.observer.telemetry.rules.all();
        let (mut allowed, mut blocked, mut shadow, mut uncharged) = (vec![], vec![], vec![], vec![]);
        let mut least: Vec<([(&str, &str); 1], u64)> = Vec::new();
        for (name, rule) in &rules {
            let algorithm = name.algorithm.map_or("none", |algorithm| algorithm.name());
            for (index, reason) in REASONS.iter().enumerate() {
                let reason = reason.map_or("none", |reason| reason.name());
                let labels = [("rule", &*name.rule), ("algorithm", algorithm), ("reason", reason)];
                for (series, counts) in [(&mut allowed, &rule.allowed), (&mut blocked, &rule.blocked)] {
                    let count = counts[index].load(Ordering::Relaxed);
                    if count > 0 {
                        series.push((labels, count));
                    }
                }
            }
            for (series, count) in [(&mut shadow, rule.shadow_blocked()), (&mut uncharged, rule.uncharged())]
            {
                if count > 0 {
                    series.push(([("rule", &*name.rule), ("algorithm", algorithm)], count));
                }
            }
            if let Some(remaining) = rule.least_remaining() {
                // One series per policy, however many variants it has.
                match least.last_mut() {
                    Some(([(_, policy)], lowest)) if *policy == &*name.rule => {
                        *lowest = remaining.min(*lowest);
                    }
                    _ => least.push(([("policy", &*name.rule)], remaining)),
                }
            }
        }
        page.counters("pacegate_allowed", "Allowed checks, by binding limit", &allowed)?;
        page.counters("pacegate_blocked", "Denied checks, by binding limit", &blocked)?;
        page.counters(
            "pacegate_shadow_blocked",
            "Checks that limits in shadow mode would have denied",
            &shadow,
        )?;
        page.counters(
            "pacegate_uncharged",
            "Costs that were not charged because they exceed a debt of one capacity",
            &uncharged,
        )?;
        page.gauges(
            "pacegate_tokens_remaining",
            "Lowest remaining quota of any key in the last 30 to 60 seconds, by rule",
            &least,
        )
    }

    fn latency(&self, page: &mut Page<'_>) -> fmt::Result {
        let telemetry = &self.shared.observer.telemetry;
        let mut series = Vec::new();
        for ((store, _), histograms) in self.shared.limiter.stores().health().zip(&telemetry.latency) {
            for (ending, histogram) in Ending::ALL.iter().zip(histograms) {
                series.push(([("store", store), ("outcome", ending.name())], histogram.counted()));
            }
        }
        page.histograms("pacegate_latency_seconds", "Latency of checks, including stores", &series)?;
        let skew = [([], self.shared.observer.skew.counted())];
        let help = "Absolute difference between the clocks of callers and of this node";
        page.histograms("pacegate_clock_skew_seconds", help, &skew)
    }

    fn stores(&self, page: &mut Page<'_>) -> fmt::Result {
        let (any, envoy) = (self.shared.limiter.stores(), self.shared.envoy.stores());
        let up: Vec<_> = any
            .health()
            .map(|(store, health)| {
                ([("store", store)], u64::from(health == pacegate::store::StoreHealth::Up))
            })
            .collect();
        page.gauges("pacegate_store_up", "1 if the store is available", &up)?;
        let state = |(store, state), caller| ([("store", store), ("caller", caller)], state as u64);
        let breakers: Vec<_> = any
            .breakers()
            .map(|breaker| state(breaker, "any"))
            .chain(envoy.breakers().map(|breaker| state(breaker, "envoy")))
            .collect();
        page.gauges(
            "pacegate_breaker_state",
            "State of the circuit breaker: 0 closed, 1 half open, 2 open",
            &breakers,
        )?;
        for (figure, name, help) in STORE_FIGURES {
            let mut series = figures(any, figure);
            // Each guard counts its own failures; the store below the guards is shared.
            if ["errors", "degraded", "breaker_openings", "full", "over_budget"].contains(&figure) {
                for ((_, sum), (_, more)) in series.iter_mut().zip(figures(envoy, figure)) {
                    *sum += more;
                }
            }
            let counts: Vec<_> =
                series.iter().map(|(store, figure)| ([("store", *store)], figure.value())).collect();
            match series.first() {
                Some((_, Figure::Count(_))) => page.counters(name, help, &counts)?,
                Some((_, Figure::Level(_))) => page.gauges(name, help, &counts)?,
                None => {}
            }
        }
        let waiting: Vec<_> = figures(any, "queue_depth")
            .into_iter()
            .map(|(store, depth)| (format!("store:{store}"), depth.value()))
            .chain(self.shared.live.iter().map(|live| ("decision_log".to_owned(), live.journal.waiting())))
            .collect();
        let queues: Vec<_> = waiting.iter().map(|(queue, depth)| ([("queue", &**queue)], *depth)).collect();
        page.gauges("pacegate_queue_depth", "Number of queued items", &queues)
    }

    fn service(&self, page: &mut Page<'_>) -> fmt::Result {
        let (shared, telemetry) = (&self.shared, &self.shared.observer.telemetry);
        let to = Standing::ALL.map(|standing| [("to", standing.name())]);
        let transitions: Vec<_> = to.into_iter().zip(shared.observer.transitions.counts()).collect();
        page.counters("pacegate_state_transitions", "State transitions of keys, by new state", &transitions)?;
        let lines = shared.observer.lines.suppressed()
            + shared.observer.transitions.suppressed()
            + server::suppressed_lines()
            + library_lines::suppressed()
            + shared.gate.suppressed_lines()
            + shared.observer.refunds.suppressed()
            + shared.observer.ignored_limits.suppressed();
        page.counter("pacegate_log_lines_dropped", "Suppressed log lines", lines)?;
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let labels = |protocol, status| [("protocol", protocol), ("status", status)];
        let codes: Vec<String> =
            (0..).take(super::CODES).map(|code| format!("{:?}", Code::from_i32(code))).collect();
        let http = CLASSES.iter().zip(&telemetry.http_responses);
        let grpc = codes.iter().zip(&telemetry.grpc_responses).filter(|(_, responses)| count(responses) > 0);
        let responses: Vec<_> = http
            .map(|(class, responses)| (labels("http", *class), count(responses)))
            .chain(grpc.map(|(code, responses)| (labels("grpc", &**code), count(responses))))
            .collect();
        page.counters(
            "pacegate_responses",
            "Responses, by class of HTTP status or by gRPC code",
            &responses,
        )?;
        let [rate, queue] = shared.overload.shed();
        let overloaded = [rate, queue, ("memory", shared.bodies.rejected())];
        let overloaded = overloaded.map(|(reason, count)| ([("reason", reason)], count));
        let help = "Requests that were shed because the node was overloaded";
        page.counters("pacegate_overloaded", help, &overloaded)?;
        let help = "Memory used by request bodies in flight";
        page.gauge("pacegate_request_memory_bytes", help, shared.bodies.held())?;
        let refused = shared.gate.rejected_keys().map(|(reason, count)| ([("reason", reason)], count));
        page.counters("pacegate_refused_keys", "Rejected API keys, by reason", &refused)?;
        let refunds =
            shared.observer.refunds.counts().map(|(outcome, count)| ([("outcome", outcome)], count));
        page.counters("pacegate_refunds", "Refund requests, by outcome", &refunds)?;
        let help = "Ignored ad-hoc limits in Envoy's requests";
        page.counter("pacegate_ad_hoc_ignored", help, shared.observer.ignored_limits.count())?;
        let listeners =
            Protocol::ALL.map(|protocol| ([("protocol", protocol.name())], telemetry.connections(protocol)));
        let open = listeners.map(|(labels, figures)| (labels, figures.open.level().value()));
        page.gauges("pacegate_connections", "Open client connections", &open)?;
        let refused = listeners.map(|(labels, figures)| (labels, count(&figures.refused)));
        let help = "Connections rejected because their address had too many";
        page.counters("pacegate_connections_refused", help, &refused)?;
        let evicted = listeners.map(|(labels, figures)| (labels, count(&figures.evicted)));
        let help = "Idle connections closed to free slots for others";
        page.counters("pacegate_connections_evicted", help, &evicted)?;
        if let Some(live) = &shared.live {
            page.counter(
                "pacegate_log_dropped",
                "Decisions dropped from the decision log",
                live.journal.dropped(),
            )?;
            let help = "Usage rows removed above retention.usage_rows";
            page.counter("pacegate_usage_rows_removed", help, live.journal.usage_removed())?;
            let help = "Checks decided without a needed user lookup";
            page.counter("pacegate_user_lookups_skipped", help, live.profiles.skipped())?;
            page.gauge("pacegate_rules", "Rules in force", live.sources().rules().count() as u64)?;
        }
        if let Some(up) = self.catalog_up {
            page.gauge("pacegate_catalog_up", "1 if the catalog is available and writable", u64::from(up))?;
        }
        let version = [([("version", env!("CARGO_PKG_VERSION"))], 1)];
        page.gauges("pacegate_build_info", "Build information; the value is always 1", &version)
    }
}

/// Returns one figure of every store that has it.
fn figures<'a>(stores: &'a Stores, name: &str) -> Vec<(&'a str, Figure)> {
    let of = |(store, figures): (&'a str, pacegate::store::Figures)| {
        let figure = figures.into_iter().find(|(other, _)| *other == name)?.1;
        Some((store, figure))
    };
    stores.figures().filter_map(of).collect()
}

fn processes(page: &mut Page<'_>) -> fmt::Result {
    let figures = process::figures();
    if let Some(seconds) = figures.cpu_seconds {
        page.counter("process_cpu_seconds", "CPU time of the process", seconds)?;
    }
    for (name, help, value) in [
        ("process_resident_memory_bytes", "Resident memory", figures.resident_bytes),
        ("process_virtual_memory_bytes", "Virtual memory", figures.virtual_bytes),
        ("process_threads", "Threads", figures.threads),
        ("process_open_fds", "Open file descriptors", figures.open_files),
        ("process_max_fds", "Maximum number of open file descriptors", figures.max_files),
    ] {
        if let Some(value) = value {
            page.gauge(name, help, value)?;
        }
    }
    Ok(())
}

/// The page being written. A metric without series is omitted.
struct Page<'a>(DescriptorEncoder<'a>);

type Series<'a, const N: usize, T> = [([(&'a str, &'a str); N], T)];

impl Page<'_> {
    fn counters<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        series: &Series<'_, N, u64>,
    ) -> fmt::Result {
        if series.is_empty() {
            return Ok(());
        }
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, count) in series {
            metric.encode_family(labels)?.encode_counter(count, NO_EXEMPLAR)?;
        }
        Ok(())
    }

    fn counter(&mut self, name: &str, help: &str, count: impl EncodeCounterValue) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        metric.encode_counter(&count, NO_EXEMPLAR)
    }

    fn gauges<const N: usize>(&mut self, name: &str, help: &str, series: &Series<'_, N, u64>) -> fmt::Result {
        if series.is_empty() {
            return Ok(());
        }
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, level) in series {
            metric.encode_family(labels)?.encode_gauge(level)?;
        }
        Ok(())
    }

    fn gauge(&mut self, name: &str, help: &str, level: impl EncodeGaugeValue) -> fmt::Result {
        self.0.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&level)
    }

    fn histograms<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        series: &Series<'_, N, Counted>,
    ) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (labels, counted) in series {
            let (sum, total) = (counted.sum_seconds, counted.total());
            if labels.is_empty() {
                metric.encode_histogram::<NoLabelSet>(sum, total, &counted.buckets, None)?;
                continue;
            }
            metric.encode_family(labels)?.encode_histogram::<NoLabelSet>(
                sum,
                total,
                &counted.buckets,
                None,
            )?;
        }
        Ok(())
    }
}

const NO_EXEMPLAR: Option<&Exemplar<NoLabelSet, u64>> = None;
