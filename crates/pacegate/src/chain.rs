//! Several checks decided as one: all of them are charged, or none is.

use pacegate_core::Answers;

use crate::check::Check;
use crate::decision::Decision;
use crate::descriptor::check::Hits;
use crate::descriptor::tally::{Tally, Terms};
use crate::error::CheckError;
use crate::limiter::Limiter;

impl Limiter {
    /// Decides on several checks as one: every limit of every check is charged, or none is. The
    /// decision contains all their limits, in order.
    ///
    /// A single check with several plans or identities is already all-or-nothing. Use this method
    /// for keys with different plans or costs. Checks whose counters are in one store, and in one
    /// slot of a Redis Cluster, are decided in one atomic step.
    ///
    /// ```
    /// use pacegate::{Check, Limit, Limiter};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::builder()
    ///     .plan("gold", [Limit::per_second(10)])
    ///     .plan("tenant", [Limit::per_minute(1)])
    ///     .build()?;
    /// let checks = [Check::key("user-123").plan("gold"), Check::key("tenant-7").plan("tenant")];
    /// assert!(limiter.check_all(&checks).await?.allowed());
    /// let decision = limiter.check_all(&checks).await?;
    /// assert!(!decision.allowed());
    /// assert_eq!(decision.binding_limit().map(|limit| &*limit.name), Some("tenant"));
    /// assert_eq!(limiter.peek(&checks[0]).await?.remaining(), Some(9), "a denied chain charges nothing");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`CheckError`] if no decision could be made, or if a check has an idempotency key, which
    /// applies only to single checks.
    pub async fn check_all(&self, checks: &[Check<'_>]) -> Result<Decision, CheckError> {
        let started = self.observing.start();
        let decided = match &self.remote {
            None => self.check_all_here(checks).await,
            Some(remote) => self.check_all_remotely(remote, checks).await,
        };
        if let Some(first) = checks.first() {
            self.observing.note(first, started, &decided);
        }
        decided
    }

    pub(crate) async fn check_all_here(&self, checks: &[Check<'_>]) -> Result<Decision, CheckError> {
        if checks.iter().any(|check| check.idempotency.is_some()) {
            return Err(CheckError::IdempotencyInChain);
        }
        let rules = self.rules();
        let mut tally = Tally::default();
        for check in checks {
            let check = self.canonical(check)?;
            let resolved = self.resolve_by(&rules, &check)?;
            let endpoint = resolved.endpoint.as_deref().unwrap_or_default();
            for (limit, identifier) in resolved.applied {
                // A limit does not apply if the check has no cost in its unit.
                let Some(cost) = limit.cost_of(&check.all_costs()) else { continue };
                let terms = Terms { overdraw: limit.overdraw, ..Terms::default() };
                tally.add(limit, identifier.to_owned(), endpoint, Hits::Take(cost), terms);
            }
        }
        let allowed = tally.apply(self.stores(), false).await?;
        let answers: Answers = tally.counted.iter().filter_map(|counted| counted.answer).collect();
        let at = answers.iter().filter_map(|answer| answer.at).max().unwrap_or_default();
        let limits = tally.counted.into_iter().map(|counted| counted.limit).collect();
        Ok(Decision::of(pacegate_core::ChainDecision::new(allowed, at, answers), limits))
    }
}
