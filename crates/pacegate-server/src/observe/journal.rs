//! The decision log: sampled, bounded, and written to the catalog without delaying checks.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pacegate::{Check, Decision, Timestamp};
use pacegate_catalog::{Catalog, DECISIONS_MAX, DecisionRecord, Retention, UsageRecord};
use pacegate_config::{Config, DecisionLogConfig, RetentionConfig};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Mutex, mpsc};

use crate::clock::now;
use crate::observe::usage::Usage;
use pacegate_http::server::PerSecond;

/// Time between two writes of decisions.
const WRITE_EVERY: Duration = Duration::from_secs(1);
/// Number of writes between two writes of usage.
const USAGE_EVERY: u32 = 10;
/// Average number of writes between two removals of expired rows: one hour.
const RETENTION_EVERY: u32 = 3_600;

/// Collects decisions and usage.
pub(crate) struct Journal {
    catalog: Catalog,
    queue: mpsc::Sender<DecisionRecord>,
    /// The receiving end of the queue.
    decisions: Mutex<mpsc::Receiver<DecisionRecord>>,
    usage: Usage,
    log: DecisionLogConfig,
    retention: RetentionConfig,
    /// Maximum number of rows per second. Denials have a separate budget, so that allowed requests
    /// cannot use it up.
    allowed_rows: PerSecond,
    denied_rows: PerSecond,
    dropped: AtomicU64,
    /// Number of usage rows that this node removed above the configured maximum.
    usage_removed: AtomicU64,
}

impl Journal {
    pub(crate) fn new(config: &Config, catalog: Catalog) -> Self {
        let (queue, decisions) = mpsc::channel(config.decision_log.queue);
        Self {
            catalog,
            queue,
            decisions: Mutex::new(decisions),
            usage: Usage::default(),
            log: config.decision_log,
            retention: config.retention,
            allowed_rows: PerSecond::new(config.decision_log.rows_per_second),
            denied_rows: PerSecond::new(config.decision_log.rows_per_second),
            dropped: AtomicU64::new(0),
            usage_removed: AtomicU64::new(0),
        }
    }

    /// Counts a decision, and queues it if it is sampled.
    pub(crate) fn note(&self, check: &Check<'_>, request_id: &str, decision: &Decision) {
        if decision.replayed() {
            return;
        }
        for (dimension, identifier) in check.identities() {
            self.usage.count(dimension, identifier, decision.allowed());
        }
        let (share, rows) = if decision.allowed() {
            (self.log.allowed, &self.allowed_rows)
        } else {
            (self.log.denied, &self.denied_rows)
        };
        if share <= 0.0 || (share < 1.0 && fastrand::f64() >= share) {
            return;
        }
        // The second half of the queue is reserved for denials.
        let has_room = !decision.allowed() || self.queue.capacity() > self.queue.max_capacity() / 2;
        if !has_room || !rows.admit() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let record = record(check, request_id, decision);
        if let Err(TrySendError::Full(_)) = self.queue.try_send(record) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the number of sampled decisions that were dropped.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Returns the number of usage rows that this node removed above the configured maximum.
    pub(crate) fn usage_removed(&self) -> u64 {
        self.usage_removed.load(Ordering::Relaxed)
    }

    /// Returns the identifiers with the most recent requests, and those with the most denials.
    pub(crate) fn top(&self, count: usize) -> (Vec<UsageRecord>, Vec<UsageRecord>) {
        self.usage.top(count)
    }

    /// Returns the number of queued decisions.
    pub(crate) fn waiting(&self) -> u64 {
        (self.queue.max_capacity() - self.queue.capacity()) as u64
    }

    /// Writes queued decisions and usage until the task is aborted.
    pub(crate) async fn write(&self) {
        let mut rounds = 0_u32;
        loop {
            tokio::time::sleep(WRITE_EVERY).await;
            self.write_decisions().await;
            rounds = rounds.wrapping_add(1);
            if rounds.is_multiple_of(USAGE_EVERY) {
                self.write_usage().await;
            }
            // Random, so that the nodes of a fleet share the work.
            if fastrand::u32(..RETENTION_EVERY) == 0 {
                self.remove_old().await;
            }
        }
    }

    /// Writes everything that is queued, before shutdown.
    pub(crate) async fn finish(&self) {
        self.write_decisions().await;
        self.write_usage().await;
    }

    async fn write_decisions(&self) {
        let mut decisions = self.decisions.lock().await;
        // No more than the queue holds, because checks keep adding.
        for _ in 0..self.log.queue.div_ceil(DECISIONS_MAX) {
            let mut batch = Vec::new();
            while batch.len() < DECISIONS_MAX
                && let Ok(decision) = decisions.try_recv()
            {
                batch.push(decision);
            }
            if batch.is_empty() {
                return;
            }
            let lost = self.catalog.append_decisions(&batch).await.unwrap_or_else(|error| {
                tracing::warn!(%error, decisions = batch.len(), "decision log write failed; decisions lost");
                batch.len() as u64
            });
            self.dropped.fetch_add(lost, Ordering::Relaxed);
        }
    }

    /// Writes the usage since the last write.
    async fn write_usage(&self) {
        for (period, usage) in self.usage.take(now()) {
            if usage.is_empty() {
                continue;
            }
            if let Err(error) = self.catalog.add_usage(period, &usage).await {
                tracing::warn!(%error, "usage write failed");
                return;
            }
        }
    }

    async fn remove_old(&self) {
        let ago = |kept: Duration| {
            let micros = u64::try_from(kept.as_micros()).unwrap_or(u64::MAX);
            Timestamp::from_micros(now().as_micros().saturating_sub(micros))
        };
        let kept = &self.retention;
        let retention = Retention {
            audit: ago(kept.audit),
            decisions: ago(kept.decisions),
            minutes: ago(kept.usage_minutes),
            hours: ago(kept.usage_hours),
            usage_rows: kept.usage_rows,
            overrides: ago(Duration::from_secs(24 * 3_600)),
        };
        match self.catalog.remove_old(retention).await {
            Ok(removed) => {
                tracing::debug!(?removed, "expired rows removed");
                if removed.usage_beyond > 0 {
                    self.usage_removed.fetch_add(removed.usage_beyond, Ordering::Relaxed);
                    tracing::warn!(
                        rows = removed.usage_beyond,
                        kept = kept.usage_rows,
                        "oldest usage rows removed: more than retention.usage_rows"
                    );
                }
            }
            Err(error) => tracing::warn!(%error, "removal of expired rows failed"),
        }
    }
}

fn record(check: &Check<'_>, request_id: &str, decision: &Decision) -> DecisionRecord {
    let answer = decision.binding();
    let counted = decision.binding_limit().and_then(|limit| {
        check.identities().iter().find(|(dimension, identifier)| limit.counts(dimension, identifier))
    });
    let named = counted.or(check.identities().first());
    let (dimension, identifier) = named.map_or(("", ""), |(dimension, identifier)| (dimension, identifier));
    DecisionRecord {
        at: now(),
        request_id: Some(request_id).filter(|id| !id.is_empty()).map(str::to_owned),
        user_id: check.user().map(str::to_owned),
        dimension: dimension.to_owned(),
        identifier: identifier.to_owned(),
        endpoint: check.endpoint.unwrap_or_default().to_owned(),
        method: check.method.map(str::to_owned),
        allowed: decision.allowed(),
        rule: decision.binding_limit().map(|limit| limit.name.to_string()),
        reason: answer.and_then(|answer| answer.reason).map(|reason| reason.name().to_owned()),
        cost: check.cost.get().into(),
        capacity: answer.map(|answer| answer.capacity.into()),
        remaining: answer.and_then(|answer| answer.remaining).map(Into::into),
    }
    .bounded()
}

impl fmt::Debug for Journal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Journal").field("dropped", &self.dropped()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dashboard_states_the_period_of_the_heaviest_keys() {
        let period = WRITE_EVERY.as_secs() * u64::from(USAGE_EVERY);
        let text = format!("last {period} to {} seconds", 2 * period);
        assert_eq!(include_str!("../dashboard/index.html").matches(&text).count(), 2);
    }
}
