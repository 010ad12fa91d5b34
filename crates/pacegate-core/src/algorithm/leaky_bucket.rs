//! Leaky bucket: the same level as a token bucket, interpreted as a queue that drains at a constant
//! rate.

use super::Bucket;
use crate::cost::Cost;
use crate::decision::Answer;
use crate::limit::Limit;

/// Sets the queue position and delay of a request of `cost`, for callers that shape traffic instead
/// of rejecting it. `bucket` is the reading before the request is added.
pub(crate) fn queue(answer: &mut Answer, bucket: &Bucket, limit: &Limit, cost: Cost) {
    let scale = limit.scale();
    answer.delay_micros = scale.micros_of(bucket.level.div_ceil(scale.rate));
    // The request fits, so the level with it is at most the burst, which is 32 bits wide.
    answer.queue_position = bucket.level.div_ceil(scale.unit) as u32 + cost.get();
}
