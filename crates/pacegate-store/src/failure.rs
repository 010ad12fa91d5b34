//! What happens to a request when its store is unavailable.

use std::sync::Arc;

use pacegate_core::{Answer, Answers, ChainDecision, Reason, Timestamp, named};

use crate::error::StoreError;
use crate::store::{Action, ApplyFuture, Charge, Command, Outcome, Store};

/// What a limit does while its store is unavailable.
///
/// ```
/// use pacegate_store::FailureMode;
///
/// assert_eq!(FailureMode::default(), FailureMode::Open);
/// assert_eq!(FailureMode::Closed.name(), "closed");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FailureMode {
    /// The limit fails open: it allows the request.
    #[default]
    Open,
    /// The limit fails closed: it denies the request.
    Closed,
    /// The limit falls back to local counters in this process.
    Local,
}

named!(FailureMode { Open => "open", Closed => "closed", Local => "local" });

/// Replaces a store that rejects new keys, using the failure mode of each limit.
#[derive(Debug)]
pub(crate) struct WithoutStore {
    pub(crate) local: Arc<dyn Store>,
    /// Overrides the failure modes of the limits.
    pub(crate) mode: Option<FailureMode>,
}

impl WithoutStore {
    pub(crate) async fn decide(
        &self,
        command: &Command<'_>,
        now: Option<Timestamp>,
    ) -> Result<Outcome, StoreError> {
        let Some(mode) = self.mode else { return decide_without_store(command, &*self.local, now).await };
        let charges: Vec<Charge<'_>> =
            command.charges.iter().map(|charge| Charge { on_store_error: mode, ..*charge }).collect();
        decide_without_store(&Command { charges: &charges, ..*command }, &*self.local, now).await
    }
}

impl Store for WithoutStore {
    fn apply<'a>(&'a self, command: &'a Command<'a>, now: Option<Timestamp>) -> ApplyFuture<'a> {
        Box::pin(self.decide(command, now))
    }
}

impl Charge<'_> {
    /// The answer when neither the limit's store nor a local one counts it: allowed if the limit
    /// fails open or is a shadow limit.
    pub fn uncounted(&self) -> Answer {
        let mut answer = match mode(self) {
            FailureMode::Open => Answer::unknown(self.limit, true, Reason::FailOpen),
            FailureMode::Closed | FailureMode::Local => {
                Answer::unknown(self.limit, false, Reason::FailClosed)
            }
        };
        answer.shadow = self.shadow;
        answer
    }
}

/// Decides a take or a peek without its store. A limit that fails closed denies the request;
/// otherwise `local` decides the limits that fall back to it, all or nothing as usual.
pub(crate) async fn decide_without_store(
    command: &Command<'_>,
    local: &dyn Store,
    now: Option<Timestamp>,
) -> Result<Outcome, StoreError> {
    // A shadow limit never denies, whatever its mode.
    let closed = command.charges.iter().any(|charge| mode(charge) == FailureMode::Closed);
    let locals: Vec<Charge<'_>> =
        command.charges.iter().filter(|charge| mode(charge) == FailureMode::Local).copied().collect();
    let action = if closed { Action::peek() } else { command.action };
    let decision = match local.apply(&Command { action, charges: &locals }, now).await? {
        Outcome::Decided(decision) => decision,
        other => return Ok(other),
    };
    let mut local_answers = decision.answers.into_iter();
    let answers: Answers = command
        .charges
        .iter()
        .map(|charge| {
            let mut answer = match mode(charge) {
                FailureMode::Open | FailureMode::Closed => charge.uncounted(),
                FailureMode::Local => match local_answers.next() {
                    Some(answer) => decided_locally(answer),
                    None => charge.uncounted(),
                },
            };
            answer.shadow = charge.shadow;
            answer
        })
        .collect();
    let mut decided = ChainDecision::new(decision.allowed && !closed, decision.at, answers);
    decided.replayed = decision.replayed;
    Ok(Outcome::Decided(decided))
}

fn mode(charge: &Charge<'_>) -> FailureMode {
    match charge.on_store_error {
        FailureMode::Closed if charge.shadow => FailureMode::Open,
        mode => mode,
    }
}

fn decided_locally(mut answer: Answer) -> Answer {
    answer.degraded = true;
    // No retry succeeds with a cost above the capacity, whichever store counts it: that reason is
    // kept.
    if answer.reason != Some(Reason::CostExceedsLimit) {
        answer.reason = Some(Reason::LocalFallback);
    }
    answer
}
