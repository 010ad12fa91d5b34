//! Leaky bucket: the same level as a token bucket, seen as a queue that drains at a constant rate.

use std::time::Duration;

use super::Bucket;
use crate::cost::Cost;
use crate::limit::Limit;

/// Where a request stands in the queue, for callers that shape traffic instead of rejecting it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Queued {
    /// How long until everything ahead of the request has drained.
    pub(crate) delay: Duration,
    /// 1 is the head of the queue.
    pub(crate) position: u32,
}

impl Queued {
    /// `bucket` is the reading before the request of `cost` is added.
    pub(crate) fn behind(bucket: &Bucket, limit: &Limit, cost: Cost) -> Self {
        let scale = limit.scale();
        let delay = scale.micros_of(bucket.level.div_ceil(scale.rate));
        // The request fits, so the level with it is at most the burst, which is 32 bits wide.
        let position = bucket.level.div_ceil(scale.unit) as u32 + cost.get();
        Self { delay: Duration::from_micros(delay), position }
    }
}
