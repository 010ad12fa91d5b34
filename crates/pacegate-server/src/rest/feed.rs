//! `GET /api/v1/live`: what is happening now, once as JSON or every second as server-sent events.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream, StreamExt};
use hyper::header::{ACCEPT, CACHE_CONTROL};
use hyper::{HeaderMap, StatusCode};
use pacegate::store::{BreakerState, StoreHealth};
use pacegate_catalog::UsageRecord;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use utoipa::ToSchema;

use super::extract::Reader;
use super::json;
use super::watchers::Watching;
use crate::app::Shared;
use crate::auth::Need;
use crate::clock::{now, rfc3339};
use crate::observe::telemetry::Counted;
use crate::openapi::vocabulary as value;
use crate::peer::Peer;
use crate::respond::ApiError;
use crate::run::Protocol;

/// How often the figures are computed and sent.
const EVERY: Duration = Duration::from_secs(1);
/// Every so many figures it is made sure that the key still opens this.
const ADMIT_EVERY: u32 = 5;
/// How many keys are listed.
const KEYS_LISTED: usize = 10;
/// How many rules are listed, those with the most denials first.
const RULES_LISTED: usize = 100;

/// What is happening now.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LiveFigures)]
struct Figures {
    #[schema(value_type = value::Time)]
    at: String,
    version: &'static str,
    uptime_seconds: u64,
    ready: bool,
    connections: u64,
    /// Over the last second; since the start when it is asked for once.
    allowed_per_second: f64,
    blocked_per_second: f64,
    degraded_per_second: f64,
    latency: Latency,
    /// Over the last minute or two.
    heaviest: Vec<KeyFigures>,
    most_blocked: Vec<KeyFigures>,
    /// Since the start.
    rules: Vec<RuleFigures>,
    stores: Vec<StoreFigures>,
}

/// How long checks took; null when there were none.
#[derive(Debug, Serialize, ToSchema)]
struct Latency {
    #[schema(required = true)]
    p50_ms: Option<f64>,
    #[schema(required = true)]
    p95_ms: Option<f64>,
    #[schema(required = true)]
    p99_ms: Option<f64>,
}

#[derive(Debug, Serialize, ToSchema)]
struct KeyFigures {
    dimension: String,
    identifier: String,
    allowed: u64,
    blocked: u64,
}

#[derive(Debug, Serialize, ToSchema)]
struct RuleFigures {
    rule: String,
    /// `none` where no limit applied.
    algorithm: &'static str,
    allowed: u64,
    blocked: u64,
    shadow_blocked: u64,
}

#[derive(Debug, Serialize, ToSchema)]
struct StoreFigures {
    name: String,
    /// `up`, `down` or `rejected`.
    health: &'static str,
    /// `closed`, `half_open` or `open`.
    breaker: &'static str,
    /// Null for a store outside this process.
    #[schema(required = true)]
    keys: Option<u64>,
    errors: u64,
    degraded: u64,
}

/// Totals, to find out what changed between two of them.
#[derive(Clone, Debug)]
struct Totals {
    at: Instant,
    allowed: u64,
    blocked: u64,
    degraded: u64,
    latency: Counted,
}

/// What is happening now
///
/// Once as JSON; every second, as events named `figures`, for whoever accepts `text/event-stream`. An event named `error` says why the stream ends.
#[utoipa::path(
    get,
    path = "/api/v1/live",
    operation_id = "live",
    tag = "Service",
    responses(
        (status = 200, description = "The figures.", body = Figures),
        (status = 429, description = "The key watches too often already."),
        (status = 503, description = "Too many watch already."),
    )
)]
pub(crate) async fn live(
    State(shared): State<Arc<Shared>>,
    Reader(caller): Reader,
    headers: HeaderMap,
    peer: Option<Extension<Peer>>,
) -> Result<Response, ApiError> {
    let wanted = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let started =
        Totals { at: shared.started, allowed: 0, blocked: 0, degraded: 0, latency: nothing(&shared) };
    if !wanted.contains("text/event-stream") {
        return Ok(json(StatusCode::OK, &figures(&shared, &started, &totals(&shared)).await));
    }
    let place = shared.watchers.take(caller.key_id)?;
    let peer = peer.map(|Extension(peer)| peer);
    let events = events(shared.clone(), headers, peer, place).take_until(stopped(shared));
    Ok(([(CACHE_CONTROL, "no-store")], Sse::new(events)).into_response())
}

fn events(
    shared: Arc<Shared>,
    headers: HeaderMap,
    peer: Option<Peer>,
    place: Watching,
) -> impl Stream<Item = Result<Event, Infallible>> {
    let latest = subscribe(&shared);
    let state = Some((shared, latest, 0_u32, place));
    stream::unfold(state, move |state| {
        let (headers, peer) = (headers.clone(), peer.clone());
        async move {
            let (shared, mut latest, count, place) = state?;
            let data = next(&mut latest).await?;
            if count > 0
                && count.is_multiple_of(ADMIT_EVERY)
                && let Err(error) = shared.gate.admit_known(&headers, peer.as_ref(), Need::Read).await
            {
                return Some((Ok(Event::default().event("error").data(&error.message)), None));
            }
            let event = Event::default().event("figures").data(&*data);
            Some((Ok(event), Some((shared, latest, count.wrapping_add(1), place))))
        }
    })
}

/// The newest figures, which are computed once a second for all watchers together, and only while there is one.
#[derive(Debug, Default)]
pub(crate) struct Feed {
    latest: watch::Sender<Option<Arc<str>>>,
    is_computed: Mutex<bool>,
}

/// The next figures as JSON; a client that was slow gets what is now, not what was.
async fn next(latest: &mut watch::Receiver<Option<Arc<str>>>) -> Option<Arc<str>> {
    loop {
        latest.changed().await.ok()?;
        if let Some(figures) = &*latest.borrow_and_update() {
            return Some(figures.clone());
        }
    }
}

/// A watcher's view of the figures. The first watcher starts the task that computes them.
fn subscribe(shared: &Arc<Shared>) -> watch::Receiver<Option<Arc<str>>> {
    let mut is_computed = shared.feed.is_computed.lock();
    let mut latest = shared.feed.latest.subscribe();
    // What was computed less than a second ago is shown at once.
    latest.mark_changed();
    if !std::mem::replace(&mut *is_computed, true) {
        tokio::spawn(compute(shared.clone()));
    }
    latest
}

async fn compute(shared: Arc<Shared>) {
    let mut ticks = interval_at(Instant::now(), EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut before = None::<Totals>;
    let mut stopped = pin!(stopped(shared.clone()));
    loop {
        let is_stopped = tokio::select! {
            _ = ticks.tick() => false,
            () = &mut stopped => true,
        };
        {
            let mut is_computed = shared.feed.is_computed.lock();
            if is_stopped || shared.feed.latest.receiver_count() == 0 {
                *is_computed = false;
                shared.feed.latest.send_replace(None);
                return;
            }
        }
        let totals = totals(&shared);
        let since = before.unwrap_or_else(|| totals.clone());
        let figures = figures(&shared, &since, &totals).await;
        let data = serde_json::to_string(&figures).unwrap_or_default();
        shared.feed.latest.send_replace(Some(data.into()));
        before = Some(totals);
    }
}

async fn stopped(shared: Arc<Shared>) {
    let _ = shared.stopping.subscribe().wait_for(|stopping| *stopping).await;
}

fn nothing(shared: &Shared) -> Counted {
    let counted = shared.observer.telemetry.latency();
    counted.since(&counted)
}

fn totals(shared: &Shared) -> Totals {
    let (mut allowed, mut blocked) = (0, 0);
    for (_, rule) in shared.observer.telemetry.rules.all() {
        allowed += rule.allowed();
        blocked += rule.blocked();
    }
    let stores = store_figures(shared);
    Totals {
        at: Instant::now(),
        allowed,
        blocked,
        degraded: stores.iter().map(|store| store.degraded).sum(),
        latency: shared.observer.telemetry.latency(),
    }
}

async fn figures(shared: &Shared, before: &Totals, now_: &Totals) -> Figures {
    let seconds = now_.at.duration_since(before.at).as_secs_f64();
    let rate =
        |now: u64, before: u64| if seconds > 0.0 { now.saturating_sub(before) as f64 / seconds } else { 0.0 };
    let latency = now_.latency.since(&before.latency);
    let of = |share| latency.quantile(share).map(|seconds| (seconds * 1e6).round() / 1e3);
    let (heaviest, most_blocked) =
        shared.live.as_ref().map(|live| live.journal.top(KEYS_LISTED)).unwrap_or_default();
    let connections =
        Protocol::ALL.map(|protocol| shared.observer.telemetry.connections(protocol).open.level().value());
    Figures {
        at: rfc3339(now()),
        version: env!("CARGO_PKG_VERSION"),
        uptime_seconds: shared.started.elapsed().as_secs(),
        ready: shared.readiness().await.is_ok(),
        connections: connections.iter().sum(),
        allowed_per_second: rate(now_.allowed, before.allowed),
        blocked_per_second: rate(now_.blocked, before.blocked),
        degraded_per_second: rate(now_.degraded, before.degraded),
        latency: Latency { p50_ms: of(0.5), p95_ms: of(0.95), p99_ms: of(0.99) },
        heaviest: heaviest.into_iter().map(KeyFigures::from).collect(),
        most_blocked: most_blocked.into_iter().map(KeyFigures::from).collect(),
        rules: rule_figures(shared),
        stores: store_figures(shared),
    }
}

impl From<UsageRecord> for KeyFigures {
    fn from(record: UsageRecord) -> Self {
        let UsageRecord { dimension, identifier, allowed, blocked, .. } = record;
        Self { dimension, identifier, allowed, blocked }
    }
}

fn rule_figures(shared: &Shared) -> Vec<RuleFigures> {
    let of = |(name, rule): (crate::observe::telemetry::RuleName, Arc<crate::observe::telemetry::Rule>)| {
        RuleFigures {
            rule: name.rule.into(),
            algorithm: name.algorithm.map_or("none", |algorithm| algorithm.name()),
            allowed: rule.allowed(),
            blocked: rule.blocked(),
            shadow_blocked: rule.shadow_blocked(),
        }
    };
    let mut rules: Vec<RuleFigures> = shared.observer.telemetry.rules.all().into_iter().map(of).collect();
    // Sorted by name before, which those that are equal stay in.
    rules.sort_by_key(|rule| std::cmp::Reverse((rule.blocked + rule.shadow_blocked, rule.allowed)));
    rules.truncate(RULES_LISTED);
    rules
}

fn store_figures(shared: &Shared) -> Vec<StoreFigures> {
    let stores = shared.limiter.stores();
    let mut listed = Vec::new();
    for ((name, health), ((_, breaker), (_, figures))) in
        stores.health().zip(stores.breakers().zip(stores.figures()))
    {
        let figure =
            |wanted: &str| figures.iter().find(|(name, _)| *name == wanted).map(|(_, figure)| figure.value());
        listed.push(StoreFigures {
            name: name.to_owned(),
            health: match health {
                StoreHealth::Up => "up",
                StoreHealth::Rejected => "rejected",
                _ => "down",
            },
            breaker: match breaker {
                BreakerState::Closed => "closed",
                BreakerState::HalfOpen => "half_open",
                BreakerState::Open => "open",
            },
            keys: figure("keys"),
            errors: figure("errors").unwrap_or_default(),
            degraded: figure("degraded").unwrap_or_default(),
        });
    }
    listed
}
