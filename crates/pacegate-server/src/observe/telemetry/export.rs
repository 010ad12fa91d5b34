//! The measurements under their names, in the text format of OpenMetrics, which Prometheus reads.

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

/// What stores count about themselves: the name there, the name here, and what it means.
const STORE_FIGURES: [(&str, &str, &str); 17] = [
    ("keys", "pacegate_keys", "Counters that are kept now"),
    ("ad_hoc_keys", "pacegate_ad_hoc_keys", "Counters of ad-hoc limits among them"),
    (
        "uncounted",
        "pacegate_store_uncounted",
        "Checks of which a limit had no place in a store in memory and was answered by its failure mode",
    ),
    (
        "unrecorded",
        "pacegate_idempotency_unrecorded",
        "Checks whose idempotency key was not recorded because there was no place for it",
    ),
    (
        "clock_ahead_seconds",
        "pacegate_store_clock_ahead_seconds",
        "How far the time of counters in memory is ahead of the wall clock, which was set back",
    ),
    ("errors", "pacegate_store_errors", "Commands that a store failed to carry out"),
    ("degraded", "pacegate_degraded", "Checks and looks that were answered without their store"),
    ("breaker_openings", "pacegate_breaker_openings", "How often a store was given up for a while"),
    ("full", "pacegate_store_full", "Checks that needed a new key for which a store had no memory"),
    (
        "over_budget",
        "pacegate_new_keys_refused",
        "Checks that needed a new key beyond new_keys_per_second and were counted in this process",
    ),
    ("connections", "pacegate_store_connections", "Connections to a store that are open now"),
    ("connects", "pacegate_store_connects", "Connections that were made"),
    ("script_loads", "pacegate_script_loads", "How often Redis was given the script"),
    ("primary_changes", "pacegate_store_primary_changes", "How often another server became the primary"),
    ("resends", "pacegate_store_resends", "Commands that were sent again"),
    ("batches", "pacegate_store_batches", "Round trips or transactions"),
    ("batched", "pacegate_store_batched", "Requests in those round trips or transactions"),
];

/// Everything, as text. `catalog_up` says whether the catalog answers; `None` that there is none.
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
        // Told by ourselves: the system's own answer is hidden where processes see nothing but themselves.
        let started = self.shared.observer.telemetry.started.as_micros() as f64 / 1e6;
        page.gauge("process_start_time_seconds", "When the process started", started)?;
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
            for (place, reason) in REASONS.iter().enumerate() {
                let reason = reason.map_or("none", |reason| reason.name());
                let labels = [("rule", &*name.rule), ("algorithm", algorithm), ("reason", reason)];
                for (series, counts) in [(&mut allowed, &rule.allowed), (&mut blocked, &rule.blocked)] {
                    let count = counts[place].load(Ordering::Relaxed);
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
                // A policy is one number to look at, however many variants it has.
                match least.last_mut() {
                    Some(([(_, policy)], lowest)) if *policy == &*name.rule => {
                        *lowest = remaining.min(*lowest);
                    }
                    _ => least.push(([("policy", &*name.rule)], remaining)),
                }
            }
        }
        page.counters("pacegate_allowed", "Checks that passed, by the limit that binds", &allowed)?;
        page.counters("pacegate_blocked", "Checks that were denied, by the limit that binds", &blocked)?;
        page.counters("pacegate_shadow_blocked", "What limits that only watch would have denied", &shadow)?;
        page.counters("pacegate_uncharged", "Costs beyond a debt of one capacity", &uncharged)?;
        page.gauges("pacegate_tokens_remaining", "The least that any key had left lately, by rule", &least)
    }

    fn latency(&self, page: &mut Page<'_>) -> fmt::Result {
        let telemetry = &self.shared.observer.telemetry;
        let mut series = Vec::new();
        for ((store, _), histograms) in self.shared.limiter.stores().health().zip(&telemetry.latency) {
            for (ending, histogram) in Ending::ALL.iter().zip(histograms) {
                series.push(([("store", store), ("outcome", ending.name())], histogram.counted()));
            }
        }
        page.histograms("pacegate_latency_seconds", "How long checks took, stores included", &series)?;
        let skew = [([], self.shared.observer.skew.counted())];
        let help = "How far the clocks of callers are from that of this node, in either direction";
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
        page.gauges("pacegate_store_up", "1 when a store can be relied on", &up)?;
        let state = |(store, state), caller| ([("store", store), ("caller", caller)], state as u64);
        let breakers: Vec<_> = any
            .breakers()
            .map(|breaker| state(breaker, "any"))
            .chain(envoy.breakers().map(|breaker| state(breaker, "envoy")))
            .collect();
        page.gauges("pacegate_breaker_state", "0 closed, 1 half open, 2 open", &breakers)?;
        for (figure, name, help) in STORE_FIGURES {
            let mut series = figures(any, figure);
            // Each guard counts its own failures; what is below them is shared.
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
        page.gauges("pacegate_queue_depth", "What waits now", &queues)
    }

    fn service(&self, page: &mut Page<'_>) -> fmt::Result {
        let (shared, telemetry) = (&self.shared, &self.shared.observer.telemetry);
        let to = Standing::ALL.map(|standing| [("to", standing.name())]);
        let transitions: Vec<_> = to.into_iter().zip(shared.observer.transitions.counts()).collect();
        page.counters("pacegate_state_transitions", "Keys that changed their state", &transitions)?;
        let lines = shared.observer.lines.held_back()
            + shared.observer.transitions.held_back()
            + server::lines_held_back()
            + library_lines::held_back()
            + shared.gate.lines_held_back()
            + shared.observer.refunds.held_back()
            + shared.observer.ignored_limits.held_back();
        page.counter("pacegate_log_lines_dropped", "Log lines that were too many", lines)?;
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
        page.counters("pacegate_responses", "Answers, by class of status or code", &responses)?;
        let [rate, queue] = shared.overload.refused();
        let overloaded = [rate, queue, ("memory", shared.bodies.refused())];
        let overloaded = overloaded.map(|(reason, count)| ([("reason", reason)], count));
        let help = "Requests that were refused at once because the node was overloaded";
        page.counters("pacegate_overloaded", help, &overloaded)?;
        let help = "Memory that bodies of requests under way take now";
        page.gauge("pacegate_request_memory_bytes", help, shared.bodies.held())?;
        let refused = shared.gate.refused_keys().map(|(reason, count)| ([("reason", reason)], count));
        page.counters("pacegate_refused_keys", "API keys that were refused", &refused)?;
        let refunds =
            shared.observer.refunds.counts().map(|(outcome, count)| ([("outcome", outcome)], count));
        page.counters("pacegate_refunds", "Requests to give back what checks took", &refunds)?;
        let help = "Limits in Envoy's requests that were ignored";
        page.counter("pacegate_ad_hoc_ignored", help, shared.observer.ignored_limits.count())?;
        let listeners =
            Protocol::ALL.map(|protocol| ([("protocol", protocol.name())], telemetry.connections(protocol)));
        let open = listeners.map(|(labels, figures)| (labels, figures.open.level().value()));
        page.gauges("pacegate_connections", "Connections of clients that are open now", &open)?;
        let refused = listeners.map(|(labels, figures)| (labels, count(&figures.refused)));
        let help = "Connections that were refused because their address had too many";
        page.counters("pacegate_connections_refused", help, &refused)?;
        let evicted = listeners.map(|(labels, figures)| (labels, count(&figures.evicted)));
        let help = "Connections without a request that were closed to make room for others";
        page.counters("pacegate_connections_evicted", help, &evicted)?;
        if let Some(live) = &shared.live {
            page.counter("pacegate_log_dropped", "Decisions that were not kept", live.journal.dropped())?;
            let help = "Rows of usage that were removed because there were too many";
            page.counter("pacegate_usage_rows_removed", help, live.journal.usage_removed())?;
            let help = "Checks that were decided without looking up their user";
            page.counter("pacegate_user_lookups_skipped", help, live.profiles.skipped())?;
            page.gauge("pacegate_rules", "Rules in force", live.sources().rules().count() as u64)?;
        }
        if let Some(up) = self.catalog_up {
            page.gauge(
                "pacegate_catalog_up",
                "1 when the catalog answers and can be written to",
                u64::from(up),
            )?;
        }
        let version = [([("version", env!("CARGO_PKG_VERSION"))], 1)];
        page.gauges("pacegate_build_info", "1, with the version as a label", &version)
    }
}

/// One figure of every store that has it.
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
        page.counter("process_cpu_seconds", "Time spent on processors", seconds)?;
    }
    for (name, help, value) in [
        ("process_resident_memory_bytes", "Memory in use", figures.resident_bytes),
        ("process_virtual_memory_bytes", "Memory that was asked for", figures.virtual_bytes),
        ("process_threads", "Threads", figures.threads),
        ("process_open_fds", "Open files and connections", figures.open_files),
        ("process_max_fds", "How many files and connections may be open", figures.max_files),
    ] {
        if let Some(value) = value {
            page.gauge(name, help, value)?;
        }
    }
    Ok(())
}

/// The page that is being written. A metric without any series is left out.
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
