//! Many checks in one request, each decided on its own, whichever way they came.

use hyper::HeaderMap;
use pacegate::{Check, CheckError, Decision};
use tokio::task::yield_now;
use tokio::time::Instant;
use tracing::Instrument;

use crate::app::Shared;
use crate::respond::ApiError;
use crate::trace;
use pacegate_http::request_id::request_id;

/// The most checks of one batch, over REST as over gRPC.
pub(crate) use pacegate_proto::BATCH_CHECKS_MAX as CHECKS_MAX;

/// So many checks of a batch are worked on before other requests get their turn on the thread: a check can have 16 identities.
const AT_ONCE: usize = 8;

/// Lets other requests go on, now and then, while work on a batch's checks goes on; `index` counts them.
pub(crate) async fn between(index: usize) {
    if index > 0 && index.is_multiple_of(AT_ONCE) {
        yield_now().await;
    }
}

/// How many identities the checks have together: what a batch costs.
pub(crate) fn identities(checks: &[Result<Check<'_>, ApiError>]) -> usize {
    checks.iter().map(|check| check.as_ref().map_or(1, |check| check.identities().len().max(1))).sum()
}

/// One of many checks, or what is wrong with it, and the idempotency key that it has of its own.
pub(crate) struct Item<'a> {
    pub(crate) check: Result<Check<'a>, ApiError>,
    pub(crate) key: Option<&'a str>,
}

/// What all checks of a batch have in common.
#[derive(Clone, Copy)]
pub(crate) struct Sent<'a> {
    /// The idempotency key of all of them.
    pub(crate) key: Option<&'a str>,
    /// Who sent them.
    pub(crate) sender: &'a str,
    /// What they came in.
    pub(crate) body: &'a [u8],
}

/// Decides on `items` in their order; `explain` names the field that an item was refused for.
pub(crate) async fn decide<'a>(
    shared: &Shared,
    items: Vec<Item<'a>>,
    Sent { key, sender, body }: Sent<'a>,
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
        let caller = format!("whole {}", callers.concat());
        shared.limiter.claim_idempotency_key(&caller, Some(sender), key, body).await?;
    }
    let mut checks: Vec<Check<'_>> = Vec::with_capacity(items.len());
    let mut places: Vec<Result<(), ApiError>> = Vec::with_capacity(items.len());
    for (item, caller) in items.into_iter().zip(callers) {
        places.push(item.check.map(|check| {
            let check = check.sender(sender);
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
    let mut decided = Vec::with_capacity(places.len());
    for (index, place) in places.into_iter().enumerate() {
        between(index).await;
        decided.push(match place {
            Err(wrong) => Err(wrong),
            Ok(()) => match outcomes.next() {
                Some((check, Ok(decision))) => {
                    trace::part(&span, &decision);
                    shared.observe(check, request_id(headers), &decision, took);
                    Ok(decision)
                }
                Some((_, Err(error))) => {
                    if matches!(error, CheckError::Store(_)) {
                        shared.telemetry.observe_error(took);
                    }
                    Err(explain(index, error).logged(request_id(headers)))
                }
                None => Err(explain(index, CheckError::NotInProcess)),
            },
        });
    }
    Ok(decided)
}
