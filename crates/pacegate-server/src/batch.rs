//! Many checks in one request, each decided on its own, whichever way they came.

use hyper::HeaderMap;
use pacegate::{Check, CheckError, Decision};
use tokio::time::Instant;
use tracing::Instrument;

use crate::app::Shared;
use crate::request_id::request_id;
use crate::respond::ApiError;
use crate::trace;

/// The most checks of one batch, over REST as over gRPC.
pub(crate) use pacegate_proto::BATCH_CHECKS_MAX as CHECKS_MAX;

/// One of many checks, or what is wrong with it, and the idempotency key that it has of its own.
pub(crate) struct Item<'a> {
    pub(crate) check: Result<Check<'a>, ApiError>,
    pub(crate) key: Option<&'a str>,
}

/// Decides on `items` in their order. `key` is the idempotency key of all of them, which come in `body`; `explain` names the field that an item was
/// refused for.
pub(crate) async fn decide<'a>(
    shared: &Shared,
    items: Vec<Item<'a>>,
    key: Option<&'a str>,
    body: &[u8],
    headers: &HeaderMap,
    explain: impl Fn(usize, CheckError) -> ApiError,
) -> Result<Vec<Result<Decision, ApiError>>, ApiError> {
    // Whose the batch's key is at each item: the place keeps equal items, and keys of single checks, apart from each other.
    let caller = |(place, item): (usize, &Item<'_>)| match &item.check {
        Ok(check) => format!("batch:{place}:{}", check.identity()),
        Err(_) => String::new(),
    };
    let callers: Vec<String> = items.iter().enumerate().map(caller).collect();
    if let Some(key) = key {
        // Recorded before anything is charged: the same key of the same identities on another batch is refused as a whole.
        shared.limiter.anchor(&format!("whole {}", callers.concat()), key, body).await?;
    }
    let mut checks: Vec<Check<'_>> = Vec::with_capacity(items.len());
    let mut places: Vec<Result<(), ApiError>> = Vec::with_capacity(items.len());
    for (item, caller) in items.into_iter().zip(callers) {
        places.push(item.check.map(|check| {
            checks.push(match (item.key, key) {
                // A key of the item's own is the same key as that of a single check, so that a retry may come either way.
                (Some(own), _) => {
                    let caller = check.identity();
                    check.idempotency(caller, own)
                }
                (None, Some(key)) => check.idempotency(caller, key),
                (None, None) => check,
            });
        }));
    }
    let (started, span) = (Instant::now(), trace::batch(headers, checks.len()));
    let outcomes = shared.limiter.check_each(&checks).instrument(span.clone()).await;
    let took = started.elapsed();
    let mut outcomes = checks.iter().zip(outcomes);
    let decided = |(index, place): (usize, Result<(), ApiError>)| {
        place?;
        let Some((check, outcome)) = outcomes.next() else {
            return Err(explain(index, CheckError::NotInProcess));
        };
        let decision = outcome.map_err(|error| {
            if matches!(error, CheckError::Store(_)) {
                shared.telemetry.observe_error(took);
            }
            explain(index, error).logged(request_id(headers))
        })?;
        trace::part(&span, &decision);
        shared.observe(check, request_id(headers), &decision, took);
        Ok(decision)
    };
    Ok(places.into_iter().enumerate().map(decided).collect())
}
