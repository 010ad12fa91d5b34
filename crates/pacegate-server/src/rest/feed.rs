//! `GET /api/v1/live`: current figures, once as JSON or every second as server-sent events; and
//! `GET /api/v1/live/history`: the decisions of the last 15 minutes.

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
use pacegate::Timestamp;
use pacegate::store::{BreakerState, StoreHealth};
use pacegate_catalog::UsageRecord;
use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use utoipa::ToSchema;

use super::extract::Reader;
use super::history::{SECONDS, Second};
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

/// Interval at which the figures are computed and sent.
const EVERY: Duration = Duration::from_secs(1);
/// Number of events between two checks that the key is still valid.
const ADMIT_EVERY: u32 = 5;
/// Maximum number of keys that are listed.
const KEYS_LISTED: usize = 10;
/// Maximum number of rules that are listed, those with the most denials first.
const RULES_LISTED: usize = 100;

/// Current figures of this node.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LiveFigures)]
struct Figures {
    #[schema(value_type = value::Time)]
    at: String,
    version: &'static str,
    uptime_seconds: u64,
    ready: bool,
    connections: u64,
    /// Over the last second; since the start of the node in a single response.
    allowed_per_second: f64,
    blocked_per_second: f64,
    degraded_per_second: f64,
    latency: Latency,
    /// Over the last 10 to 20 seconds, as `most_blocked`.
    heaviest: Vec<KeyFigures>,
    most_blocked: Vec<KeyFigures>,
    /// Since the start of the node.
    rules: Vec<RuleFigures>,
    stores: Vec<StoreFigures>,
}

/// Latency of checks; null without checks.
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
    /// `none` if no limit applied.
    algorithm: &'static str,
    allowed: u64,
    blocked: u64,
    /// Requests that the rule would have denied in shadow mode.
    shadow_blocked: u64,
    /// Requests that the rule evaluated in shadow mode.
    shadow_checked: u64,
    /// About how many different keys those requests had.
    shadow_keys: u64,
    /// About how many of these keys would have been denied at least once.
    shadow_keys_blocked: u64,
}

#[derive(Debug, Serialize, ToSchema)]
struct StoreFigures {
    name: String,
    /// `up`, `down` or `rejected`.
    health: &'static str,
    /// `closed`, `half_open` or `open`.
    breaker: &'static str,
    /// Null for a store outside of this process.
    #[schema(required = true)]
    keys: Option<u64>,
    errors: u64,
    degraded: u64,
}

/// Totals. Rates are the difference between two of them.
#[derive(Clone, Debug)]
struct Totals {
    at: Instant,
    allowed: u64,
    blocked: u64,
    degraded: u64,
    latency: Counted,
}

/// Current figures of this node
///
/// A single JSON response, or with `Accept: text/event-stream` an event named `figures` every
/// second. An event named `error` contains the reason why the stream ends.
#[utoipa::path(
    get,
    path = "/api/v1/live",
    operation_id = "live",
    tag = "Service",
    responses(
        (status = 200, description = "The figures.", body = Figures),
        (status = 429, description = "The key has too many streams."),
        (status = 503, description = "The node has too many streams."),
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

/// The decisions of one second.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = HistorySecond)]
struct SecondResponse {
    /// When the second began.
    #[schema(value_type = value::Time)]
    at: String,
    checks: u64,
    allowed: u64,
    blocked: u64,
}

/// The decisions of the last 15 minutes.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LiveHistory)]
struct HistoryResponse {
    /// Oldest first, from the start of the node on.
    seconds: Vec<SecondResponse>,
}

/// Decisions of the last 15 minutes, second by second
///
/// Decisions of this node only. The history is kept in memory and is empty after a restart.
#[utoipa::path(
    get,
    path = "/api/v1/live/history",
    operation_id = "live_history",
    tag = "Service",
    responses((status = 200, description = "At most 900 seconds.", body = HistoryResponse)),
)]
pub(crate) async fn history(State(shared): State<Arc<Shared>>, _: Reader) -> Response {
    let since = seconds_now().saturating_sub(SECONDS as u64);
    let second = |second: Second| SecondResponse {
        at: rfc3339(Timestamp::from_micros(second.start * 1_000_000)),
        checks: second.allowed + second.blocked,
        allowed: second.allowed,
        blocked: second.blocked,
    };
    let seconds = shared.history.since(since).into_iter().map(second).collect();
    json(StatusCode::OK, &HistoryResponse { seconds })
}

/// Records the history every second, until the future is dropped.
pub(crate) async fn record_history(shared: Arc<Shared>) {
    let mut ticks = interval_at(Instant::now(), EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        shared.history.record(seconds_now(), shared.observer.telemetry.rules.totals());
    }
}

fn seconds_now() -> u64 {
    now().as_micros() / 1_000_000
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

/// The newest figures. They are computed once a second for all watchers, while there is one.
#[derive(Debug, Default)]
pub(crate) struct Feed {
    latest: watch::Sender<Option<Arc<str>>>,
    is_computed: Mutex<bool>,
}

/// Waits for the next figures as JSON. A slow client skips older ones.
async fn next(latest: &mut watch::Receiver<Option<Arc<str>>>) -> Option<Arc<str>> {
    loop {
        latest.changed().await.ok()?;
        if let Some(figures) = &*latest.borrow_and_update() {
            return Some(figures.clone());
        }
    }
}

/// Subscribes a watcher to the figures. The first watcher starts the task that computes them.
fn subscribe(shared: &Arc<Shared>) -> watch::Receiver<Option<Arc<str>>> {
    let mut is_computed = shared.feed.is_computed.lock();
    let mut latest = shared.feed.latest.subscribe();
    // Figures that were computed less than a second ago are sent immediately.
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
    let (allowed, blocked) = shared.observer.telemetry.rules.totals();
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
        let shadow = rule.shadow();
        RuleFigures {
            rule: name.rule.into(),
            algorithm: name.algorithm.map_or("none", |algorithm| algorithm.name()),
            allowed: rule.allowed(),
            blocked: rule.blocked(),
            shadow_blocked: shadow.blocked,
            shadow_checked: shadow.checked,
            shadow_keys: shadow.keys,
            shadow_keys_blocked: shadow.keys_blocked,
        }
    };
    let mut rules: Vec<RuleFigures> = shared.observer.telemetry.rules.all().into_iter().map(of).collect();
    // A stable sort: equal rules stay sorted by name.
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
