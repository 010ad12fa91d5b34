//! Runs a history on a store and on the model side by side.

use std::fmt;

use pacegate_core::{
    Algorithm, Answer, ChainDecision, Cost, Counter, Fit, Key, Limit, Reason, Standing, Timestamp,
};
use pacegate_store::{Action, Charge, Command, Outcome, Store};

use crate::history::{Act, Charged, History, Operation};
use crate::model::{
    Model, ModelAlgorithm, ModelAnswer, ModelCharge, ModelDecision, ModelFit, ModelLimit, ModelMark,
};

/// The first operation on which a store and the model disagree.
#[derive(Debug)]
pub struct Difference {
    /// The index of the operation in the history.
    pub operation: usize,
    /// The time of the operation.
    pub now: u64,
    /// What the store and the model return.
    pub detail: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "operation {} at {} µs: {}", self.operation, self.now, self.detail)
    }
}

/// Replays `history` on `store` under keys that start with `namespace`, and compares every answer
/// with the model's.
///
/// It compares allowed, remaining, reset_at, retry_at, standing, delay, and which limit binds.
/// Returns the number of operations.
///
/// # Errors
/// The first [`Difference`], which also covers a store that fails.
pub async fn replay(store: &dyn Store, history: &History, namespace: &str) -> Result<usize, Difference> {
    let mut model = Model::new();
    let mut now = history.start;
    let mut retry_at = None;
    let mut latest_admission = None;
    let counters: Vec<Counter> =
        (0..history.keys.len()).map(|key| Counter::new(&format!("{namespace}-{key}"), "user", "")).collect();
    for (index, operation) in history.operations.iter().enumerate() {
        let first = &history.keys[operation.charges[0].key][operation.charges[0].limit];
        now = operation.step.apply(now, first.window().as_micros() as u64, retry_at);
        let taken_at = latest_admission.filter(|_| operation.act == Act::RefundLatest);

        let expected = on_model(&mut model, history, operation, now, taken_at);
        let outcome = on_store(store, history, &counters, operation, now, taken_at).await;
        let difference = |detail: String| Difference { operation: index, now, detail };
        match (&expected, outcome) {
            (None, Ok(Outcome::Reset { .. })) => {}
            (Some(expected), Ok(Outcome::Decided(decision))) => {
                if operation.act == Act::Take && decision.allowed {
                    latest_admission = Some(decision.at.as_micros());
                }
                let refund = matches!(operation.act, Act::Refund | Act::RefundLatest);
                compare(expected, &decision, now, refund).map_err(difference)?;
            }
            (expected, outcome) => {
                return Err(difference(format!("model {expected:?}, store {outcome:?}")));
            }
        }
        if let Some(expected) = &expected {
            retry_at = expected.answers[expected.binding].retry_at.or(retry_at);
        }
    }
    Ok(history.operations.len())
}

fn on_model(
    model: &mut Model,
    history: &History,
    operation: &Operation,
    now: u64,
    taken_at: Option<u64>,
) -> Option<ModelDecision> {
    let charge = |charged: &Charged| {
        let limit = &history.keys[charged.key][charged.limit];
        ModelCharge {
            key: charged.key.to_string(),
            limit: model_limit(limit),
            cost: charged.amount.cost(u64::from(limit.capacity())),
            fit: match charged.fit {
                Fit::Whole => ModelFit::Whole,
                Fit::Overdraw => ModelFit::Overdraw,
                Fit::Forced => ModelFit::Forced,
            },
            taken_at: time_of(charged, taken_at),
            shadow: charged.shadow,
        }
    };
    let charges: Vec<ModelCharge> = operation.charges.iter().map(charge).collect();
    match operation.act {
        Act::Take => Some(model.take(now, &charges)),
        Act::Peek => Some(model.peek(now, &charges)),
        Act::Refund | Act::RefundLatest => Some(model.refund(now, &charges)),
        Act::Reset => {
            let keys: Vec<String> = charges.into_iter().map(|charge| charge.key).collect();
            model.reset(&keys);
            None
        }
    }
}

async fn on_store(
    store: &dyn Store,
    history: &History,
    counters: &[Counter],
    operation: &Operation,
    now: u64,
    taken_at: Option<u64>,
) -> Result<Outcome, String> {
    let charge = |charged: &Charged| {
        let key = Key::new(&counters[charged.key], "user-1", "/");
        let limit = &history.keys[charged.key][charged.limit];
        let cost = match charged.amount.cost(u64::from(limit.capacity())) {
            0 => Cost::ZERO,
            cost => Cost::try_new(cost).map_err(|error| error.to_string())?,
        };
        let taken_at = time_of(charged, taken_at).map(Timestamp::from_micros);
        Ok(Charge { cost, fit: charged.fit, taken_at, shadow: charged.shadow, ..Charge::new(key, limit) })
    };
    let charges: Vec<Charge<'_>> = operation.charges.iter().map(charge).collect::<Result<_, String>>()?;
    let action = match operation.act {
        Act::Take => Action::take(),
        Act::Peek => Action::peek(),
        Act::Reset => Action::Reset,
        Act::Refund | Act::RefundLatest => Action::Refund,
    };
    let outcome =
        store.apply(&Command { action, charges: &charges }, Some(Timestamp::from_micros(now))).await;
    outcome.map_err(|error| error.to_string())
}

/// Charges of one refund have different times: every third one has none.
fn time_of(charged: &Charged, taken_at: Option<u64>) -> Option<u64> {
    taken_at.filter(|_| charged.key % 3 != 2)
}

fn compare(expected: &ModelDecision, decision: &ChainDecision, now: u64, refund: bool) -> Result<(), String> {
    let answers: Vec<ModelAnswer> = decision.answers.iter().map(model_answer).collect();
    if refund {
        // A refund returns what remains; whether a request of cost 1 would be allowed is not part
        // of its contract.
        let left = |answers: &[ModelAnswer]| {
            answers.iter().map(|answer| (answer.remaining, answer.reset_at)).collect::<Vec<_>>()
        };
        return if left(&expected.answers) == left(&answers) {
            Ok(())
        } else {
            Err(format!("after a refund, model {:?}, store {answers:?}", expected.answers))
        };
    }
    if expected.allowed != decision.allowed {
        return Err(format!("model allowed={}, store {decision:?}", expected.allowed));
    }
    if expected.answers != answers {
        return Err(format!("model {:?}, store {answers:?}", expected.answers));
    }
    if expected.binding != decision.binding_index() {
        return Err(format!("model binds {}, store {}", expected.binding, decision.binding_index()));
    }
    let retry_after = expected.answers[expected.binding].retry_at.filter(|_| !expected.allowed);
    let retry_after = retry_after.map(|at| u128::from(at.saturating_sub(now)));
    if retry_after != decision.retry_after().map(|wait| wait.as_micros()) {
        return Err(format!("model retries after {retry_after:?} µs, store {:?}", decision.retry_after()));
    }
    Ok(())
}

fn model_limit(limit: &Limit) -> ModelLimit {
    ModelLimit {
        algorithm: match limit.algorithm() {
            Algorithm::TokenBucket => ModelAlgorithm::TokenBucket,
            Algorithm::LeakyBucket => ModelAlgorithm::LeakyBucket,
            Algorithm::FixedWindow => ModelAlgorithm::FixedWindow,
            Algorithm::SlidingLog => ModelAlgorithm::SlidingLog,
            Algorithm::SlidingCounter => ModelAlgorithm::SlidingCounter,
            _ => ModelAlgorithm::Gcra,
        },
        quota: u64::from(limit.quota()),
        burst: u64::from(limit.capacity()),
        window: limit.window().as_micros() as u64,
    }
}

fn model_answer(answer: &Answer) -> ModelAnswer {
    ModelAnswer {
        allowed: answer.allowed,
        capacity: u64::from(answer.capacity),
        // A working store reports its values; the value for a failed one differs from the model.
        remaining: answer.remaining.map_or(u64::MAX, u64::from),
        reset_at: answer.reset_at.map_or(u64::MAX, Timestamp::as_micros),
        retry_at: answer.retry_at.map(Timestamp::as_micros),
        never_fits: answer.reason == Some(Reason::CostExceedsLimit),
        mark: match answer.standing {
            Standing::Normal => ModelMark::Normal,
            Standing::Warning => ModelMark::Warning,
            Standing::Throttled => ModelMark::Throttled,
        },
        delay: answer.delay().map(|delay| delay.as_micros() as u64),
        queue_position: answer.queue_position().map(u64::from),
        uncharged: u64::from(answer.uncharged),
    }
}
