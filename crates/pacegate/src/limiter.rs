//! The limiter: finds the limits that apply to a check and has the store decide on them in one
//! step.

mod builder;
mod current;

use std::borrow::{Borrow, Cow};
use std::sync::Arc;
use std::time::Duration;

use pacegate_core::{Cost, InvalidLimit, Limit, LimitBuilder, Timestamp};
use pacegate_store::{Action, Charge, Command, Idempotency, Outcome, StoreError};
use smallvec::SmallVec;
use tokio::time::Instant;

use crate::check::{Check, Costs, check_idempotency_key, fingerprint};
use crate::decision::{Charged, Decision, reuse};
use crate::endpoint::{Endpoint, PathOptions};
use crate::error::{CheckError, InvalidRules};
use crate::identity::{self, IPV6_PREFIX};
use crate::into_check::IntoCheck;
use crate::observe::Observing;
use crate::plan::Plan;
use crate::remote::RemoteService;
use crate::resolved::{Act, Resolved, charge, command, decided};
use crate::ruleset::RuleSet;
use crate::stores::{Backend, Stores, in_memory, yield_after_batch};
use crate::wait::Waiters;

use self::current::CurrentRules;

pub use builder::LimiterBuilder;

/// Decides whether requests may pass, by rules and plans, with counters in a store.
///
/// Cloning a limiter is cheap, and clones share rules and counters.
///
/// ```
/// use pacegate::{Check, Limit, Limiter};
///
/// let limiter = Limiter::builder()
///     .plan("gold", [Limit::per_second(1).burst(10)])
///     .plan("daily", [Limit::per_hour(100)])
///     .build()?;
///
/// let decision = limiter.check_now(&Check::key("user-123").plan("gold").plan("daily"))?;
/// assert!(decision.allowed());
/// assert_eq!(decision.remaining(), Some(9));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Limiter {
    rules: Arc<CurrentRules>,
    stores: Stores,
    /// Number of leading bits by which IPv6 addresses are counted.
    ipv6_prefix: u8,
    paths: PathOptions,
    pub(crate) waiters: Arc<Waiters>,
    /// A service that decides instead of this limiter.
    pub(crate) remote: Option<RemoteService>,
    pub(crate) observing: Observing,
}

impl Default for Limiter {
    /// Returns a limiter without any limits, with counters in memory.
    fn default() -> Self {
        Self::of(RuleSet::default())
    }
}

impl Limiter {
    /// Returns a limiter with one limit for every key, with counters in memory.
    ///
    /// ```
    /// use pacegate::{Limit, Limiter};
    ///
    /// let limiter = Limiter::new(Limit::per_second(10).burst(20))?;
    /// let decision = limiter.check_now("user-1")?;
    /// assert_eq!(decision.remaining(), Some(19));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`InvalidLimit`] if the limit is not valid.
    pub fn new(limit: impl Into<LimitBuilder>) -> Result<Self, InvalidLimit> {
        limit.into().build().map(|limit| Self::of(RuleSet::only_default(limit)))
    }

    fn of(rules: RuleSet) -> Self {
        Self {
            rules: Arc::new(CurrentRules::new(rules)),
            stores: Stores::default(),
            ipv6_prefix: IPV6_PREFIX,
            paths: PathOptions::default(),
            waiters: Arc::default(),
            remote: None,
            observing: Observing::default(),
        }
    }

    /// Returns a builder for a limiter with rules, plans and stores.
    pub fn builder() -> LimiterBuilder {
        LimiterBuilder::default()
    }

    /// Replaces all rules, plans and the default limit, in every clone of this limiter.
    ///
    /// The change applies to all later checks. Stores and their counters are kept.
    ///
    /// # Errors
    /// [`InvalidRules`] if the new rules are not valid; the previous ones then stay in force.
    ///
    /// ```
    /// use pacegate::{Check, Limit, Limiter, Rule};
    ///
    /// let rule = |quota| Rule::builder("per-user", "user", Limit::per_minute(quota));
    /// let limiter = Limiter::builder().rule(rule(10)).build()?;
    /// let check = Check::new("user", "u1").endpoint("/");
    /// assert_eq!(limiter.check_now(&check)?.remaining(), Some(9));
    /// limiter.replace(Limiter::builder().rule(rule(100)))?;
    /// assert_eq!(limiter.check_now(&check)?.remaining(), Some(98));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn replace(&self, builder: LimiterBuilder) -> Result<(), InvalidRules> {
        self.rules.store(builder.compile(&self.stores, self.ipv6_prefix, self.paths)?);
        Ok(())
    }

    /// Returns the same limiter for callers that need a decision within about `timeout`. If a store
    /// does not answer in time, the failure mode decides. Rules and counters are shared; each of
    /// the two limiters has its own circuit breaker per store.
    #[doc(hidden)]
    #[must_use]
    pub fn within(&self, timeout: Duration) -> Self {
        Self { stores: self.stores.within(timeout), ..self.clone() }
    }

    /// Decides on a request and, if it is allowed, charges every limit that applies.
    ///
    /// # Errors
    /// [`CheckError`] if no decision could be made. A denial is a decision, not an error.
    pub fn check<'s, 'a: 's>(
        &'s self,
        check: impl IntoCheck<'s, 'a>,
    ) -> impl Future<Output = Result<Decision, CheckError>> + Send {
        let check = check.into_check();
        async move {
            let check: &Check<'_> = check.borrow();
            let started = self.observing.start();
            let decided = match &self.remote {
                None => self.run(check, Act::Take).await,
                Some(remote) => Box::pin(self.check_remotely(remote, check)).await,
            };
            self.observing.note(check, started, &decided);
            decided
        }
    }

    /// Like [`check`](Self::check), but synchronous. Requires a store in this process.
    ///
    /// # Errors
    /// [`CheckError`]; [`NotInProcess`](CheckError::NotInProcess) if the store is remote.
    #[inline]
    pub fn check_now<'s, 'a: 's>(&self, check: impl IntoCheck<'s, 'a>) -> Result<Decision, CheckError> {
        if let Some(key) = check.bare_key()
            && let Some(charged) = self.check_known_key(key)
        {
            return Ok(charged.into());
        }
        self.check_any_now(check.into_check().borrow())
    }

    fn check_any_now(&self, check: &Check<'_>) -> Result<Decision, CheckError> {
        let started = self.observing.start();
        let decided = self.decide_now(check);
        self.observing.note(check, started, &decided);
        decided
    }

    fn decide_now(&self, check: &Check<'_>) -> Result<Decision, CheckError> {
        if self.remote.is_some() {
            return Err(CheckError::NotInProcess);
        }
        if let Some(charged) = self.check_known(check) {
            return Ok(charged.into());
        }
        let check = self.canonical(check)?;
        let resolved = self.resolve(&check)?;
        let store = self.only_store(&resolved, &check).ok_or(CheckError::NotInProcess)?;
        let Backend::Memory(store) = self.stores.backend(store) else { return Err(CheckError::NotInProcess) };
        resolved.run_in(store, &check, Act::Take)
    }

    /// Fast path for the most common check: one known identity and one plan with a single limit
    /// that allows the request. `None` means that nothing was charged.
    #[inline]
    fn check_known(&self, check: &Check<'_>) -> Option<Charged> {
        let ([(dimension, identifier)], [plan]) = (&*check.identities, &*check.plans) else { return None };
        if check.endpoint.is_some() || check.limit.is_some() || check.idempotency.is_some() {
            return None;
        }
        self.charge_known(dimension, identifier, plan, &check.all_costs())
    }

    #[inline]
    fn charge_known(
        &self,
        dimension: &str,
        identifier: &str,
        plan: &str,
        costs: &Costs<'_>,
    ) -> Option<Charged> {
        let Backend::Memory(store) = self.stores.backend(0) else { return None };
        self.rules.with(|rules| {
            let [limit] = rules.plan(plan).ok()?.prepared(dimension)? else { return None };
            let (at, taken) = store.take_known(&charge(limit, identifier, "", limit.cost_of(costs)?))?;
            Some(Charged::new(at, taken, reuse(limit)))
        })
    }

    /// The same fast path for layers, which would otherwise build a check for every request.
    #[doc(hidden)]
    #[inline]
    pub fn check_known_now(
        &self,
        dimension: &str,
        identifier: &str,
        plan: &str,
        cost: Cost,
    ) -> Option<Decision> {
        if self.remote.is_some() || self.observing.is_on() {
            return None;
        }
        self.charge_known(dimension, identifier, plan, &Costs::requests(cost)).map(Decision::from)
    }

    /// Fast path for a bare key, to which only the default limit applies. `None` means that nothing
    /// was charged.
    #[inline]
    fn check_known_key(&self, key: &str) -> Option<Charged> {
        if self.remote.is_some() || self.observing.is_on() {
            return None;
        }
        let Backend::Memory(store) = self.stores.backend(0) else { return None };
        self.rules.with(|rules| {
            let limit = rules.default_of_keys()?;
            let (at, taken) = store.take_known(&charge(limit, key, "", Cost::ONE))?;
            Some(Charged::new(at, taken, reuse(limit)))
        })
    }

    /// Decides like [`check`](Self::check), but charges nothing.
    ///
    /// # Errors
    /// [`CheckError`] if no decision could be made.
    pub fn peek<'s, 'a: 's>(
        &'s self,
        check: impl IntoCheck<'s, 'a>,
    ) -> impl Future<Output = Result<Decision, CheckError>> + Send {
        let check = check.into_check();
        async move {
            let check: &Check<'_> = check.borrow();
            match &self.remote {
                None => self.run(check, Act::Peek).await,
                Some(remote) => Box::pin(self.peek_remotely(remote, check)).await,
            }
        }
    }

    /// Validates a check without a call to a store.
    ///
    /// # Errors
    /// [`CheckError`] if the check is not valid or names an unknown plan.
    pub fn validate(&self, check: &Check<'_>) -> Result<(), CheckError> {
        self.endpoint(&*self.canonical(check)?)?;
        let rules = self.rules.load();
        check.plans.iter().try_for_each(|name| rules.plan(name).map(drop))
    }

    /// Resets every counter that the identities of the check have at its endpoint, whichever
    /// process created it. Returns the time of the reset.
    ///
    /// This covers all matching rules of any tier, method, algorithm and window, all plans, the
    /// default limit and ad-hoc limits.
    ///
    /// # Errors
    /// [`CheckError`] if the check is not valid or the store fails.
    pub fn reset<'s, 'a: 's>(
        &'s self,
        check: impl IntoCheck<'s, 'a>,
    ) -> impl Future<Output = Result<Timestamp, CheckError>> + Send {
        let check = check.into_check();
        async move { self.reset_check(check.borrow()).await }
    }

    async fn reset_check(&self, check: &Check<'_>) -> Result<Timestamp, CheckError> {
        if let Some(remote) = &self.remote {
            check.check_limit()?;
            return remote.service.reset(check).await;
        }
        self.validate(check)?;
        let check = &*self.canonical(check)?;
        let endpoint = self.endpoint(check)?;
        let applied = self.rules.load().resolve_all(check, endpoint.as_ref());
        let resolved =
            Resolved { applied, endpoint: endpoint.map(Endpoint::into_counted), costs: check.all_costs() };
        let charges = resolved.charges();
        match self.stores.apply(&command(check, Act::Reset, &charges), &resolved.stores()).await? {
            Outcome::Reset { at } => Ok(at),
            _ => Err(StoreError::missing_outcome().into()),
        }
    }

    /// Records an idempotency key for `body` without charging anything, so that the same key with a
    /// different body is rejected. A store that is full does not record it.
    ///
    /// # Errors
    /// [`CheckError::IdempotencyMismatch`] if the caller used the key for a different body within
    /// the last five minutes.
    #[doc(hidden)]
    pub async fn claim_idempotency_key(
        &self,
        caller: &str,
        sender: Option<&str>,
        key: &str,
        body: &[u8],
    ) -> Result<(), CheckError> {
        check_idempotency_key(key)?;
        let idempotency =
            Some(Idempotency { caller, key, fingerprint: fingerprint(body), home: None, sender });
        let command = Command { action: Action::Take { idempotency }, charges: &[] };
        match self.stores.apply(&command, &[]).await {
            Err(error) if error.is_overloaded() => Ok(()),
            outcome => decided(outcome?).map(drop),
        }
    }

    /// Decides on many requests, in order, with as few round trips as possible. Each is decided
    /// independently; [`check_all`](Self::check_all) decides on several as one.
    pub async fn check_each(&self, checks: &[Check<'_>]) -> Vec<Result<Decision, CheckError>> {
        let started = self.observing.start();
        let decided = match &self.remote {
            None => self.check_each_here(checks).await,
            Some(remote) => self.check_each_remotely(remote, checks).await,
        };
        checks.iter().zip(&decided).for_each(|(check, decided)| self.observing.note(check, started, decided));
        decided
    }

    pub(crate) async fn check_each_here(&self, checks: &[Check<'_>]) -> Vec<Result<Decision, CheckError>> {
        let until = self.stores.budget.map(|budget| Instant::now() + budget);
        let rules = self.rules.load();
        let mut canonical: Vec<Result<Cow<'_, Check<'_>>, CheckError>> = Vec::with_capacity(checks.len());
        for (index, check) in checks.iter().enumerate() {
            yield_after_batch(index).await;
            canonical.push(self.canonical(check));
        }
        let mut resolved: Vec<Result<Resolved<'_>, CheckError>> = Vec::with_capacity(checks.len());
        for (index, check) in canonical.iter().enumerate() {
            yield_after_batch(index).await;
            resolved.push(match check {
                Ok(check) => self.resolve_by(&rules, check),
                Err(error) => Err(error.clone()),
            });
        }
        // Commands borrow their charges, so the charges must outlive the calls of the store.
        let charges: Vec<SmallVec<[Charge<'_>; 2]>> = resolved
            .iter()
            .map(|resolved| resolved.as_ref().map(Resolved::charges).unwrap_or_default())
            .collect();
        let mut commands: Vec<Command<'_>> = Vec::with_capacity(checks.len());
        for (index, (check, charges)) in canonical.iter().zip(&charges).enumerate() {
            yield_after_batch(index).await;
            commands.push(command(check.as_deref().unwrap_or(&checks[index]), Act::Take, charges));
        }
        let mut outcomes: Vec<Option<Result<Outcome, StoreError>>> = checks.iter().map(|_| None).collect();
        // Checks of one store are sent together. A check with several stores is sent on its own,
        // after all checks before it.
        let mut together: Vec<(usize, Vec<usize>)> = Vec::new();
        for (index, (resolved, check)) in resolved.iter().zip(&canonical).enumerate() {
            let (Ok(resolved), Ok(check)) = (resolved, check) else { continue };
            match self.only_store(resolved, check) {
                None => {
                    self.apply_together(std::mem::take(&mut together), &commands, &mut outcomes, until).await;
                    let applied =
                        self.stores.apply_within(&commands[index], &resolved.stores(), left(until)).await;
                    outcomes[index] = Some(applied);
                }
                Some(store) => match together.iter_mut().find(|(other, _)| *other == store) {
                    Some((_, indices)) => indices.push(index),
                    None => together.push((store, vec![index])),
                },
            }
        }
        self.apply_together(together, &commands, &mut outcomes, until).await;
        drop(commands);
        drop(charges);
        let mut decisions = Vec::with_capacity(checks.len());
        for (index, (resolved, outcome)) in resolved.into_iter().zip(outcomes).enumerate() {
            yield_after_batch(index).await;
            let outcome = outcome.unwrap_or_else(|| Err(StoreError::missing_outcome()));
            decisions.push(resolved.and_then(|resolved| resolved.decision(outcome?)));
        }
        decisions
    }

    /// Applies the commands at the given indices, one call per store.
    async fn apply_together(
        &self,
        together: Vec<(usize, Vec<usize>)>,
        commands: &[Command<'_>],
        outcomes: &mut [Option<Result<Outcome, StoreError>>],
        until: Option<Instant>,
    ) {
        for (store, indices) in together {
            let batch: Vec<Command<'_>> = indices.iter().map(|index| commands[*index]).collect();
            let answers = self.stores.backend(store).apply_each(&batch, left(until)).await;
            for (index, answer) in indices.into_iter().zip(answers) {
                outcomes[index] = Some(answer);
            }
        }
    }

    /// Looks up a plan once. This is the fastest way to check many keys: later changes of the rules
    /// do not affect it.
    ///
    /// # Errors
    /// [`CheckError::UnknownPlan`] if there is no plan of that name.
    pub fn plan(&self, name: &str) -> Result<Plan, CheckError> {
        let limits = self.rules.load().plan(name)?.of(identity::KEY);
        Ok(Plan {
            limits: limits.iter().filter(|limit| limit.unit.is_none()).cloned().collect(),
            store: self.remote.is_none().then(|| self.stores.backend(0).clone()),
        })
    }

    /// Returns the limit that applies where no other limit does.
    pub fn default_limit(&self) -> Option<Limit> {
        self.rules.load().default_limit()
    }

    /// Whether all counters are in one store of this process, so that
    /// [`check_now`](Self::check_now) can decide every check.
    pub fn is_in_process(&self) -> bool {
        self.remote.is_none() && self.stores.only_memory().is_some()
    }

    /// Returns the stores of this limiter.
    pub fn stores(&self) -> &Stores {
        &self.stores
    }

    pub(crate) fn rules(&self) -> Arc<RuleSet> {
        self.rules.load()
    }

    /// The only store that a check needs, including the record of its idempotency key.
    fn only_store(&self, resolved: &Resolved<'_>, check: &Check<'_>) -> Option<usize> {
        let recorded_there =
            |store: &usize| check.idempotency.is_none() || *store == self.stores.record_store();
        resolved.only_store().filter(recorded_there)
    }

    pub(crate) async fn run(&self, check: &Check<'_>, act: Act) -> Result<Decision, CheckError> {
        match self.stores.only_memory() {
            Some(store) => {
                let check = self.canonical(check)?;
                let resolved = self.resolve(&check)?;
                let _span = in_memory(1).entered();
                resolved.run_in(store, &check, act)
            }
            None => Box::pin(self.run_and_wait(check, act)).await,
        }
    }

    async fn run_and_wait(&self, check: &Check<'_>, act: Act) -> Result<Decision, CheckError> {
        let check = &*self.canonical(check)?;
        let resolved = self.resolve(check)?;
        let charges = resolved.charges();
        let outcome = self.stores.apply(&command(check, act, &charges), &resolved.stores()).await?;
        drop(charges);
        resolved.decision(outcome)
    }

    /// Rewrites the identities of a check in their canonical form, for callers that display or
    /// record them. The limiter does the same with every check.
    ///
    /// ```
    /// use pacegate::{Check, Limiter};
    ///
    /// let mut check = Check::new("IP", "[2001:DB8::1]:443");
    /// Limiter::default().canonicalise(&mut check)?;
    /// assert_eq!(check.identities(), [("ip", "2001:db8::/64".into())]);
    /// # Ok::<(), pacegate::CheckError>(())
    /// ```
    ///
    /// # Errors
    /// [`CheckError`] if an identity is not valid.
    pub fn canonicalise(&self, check: &mut Check<'_>) -> Result<(), CheckError> {
        check.canonicalise(self.ipv6_prefix)
    }

    /// Returns the number of leading bits by which IPv6 addresses are counted.
    pub fn ipv6_prefix(&self) -> u8 {
        self.ipv6_prefix
    }

    /// Returns how paths are normalised and compared.
    pub fn paths(&self) -> PathOptions {
        self.paths
    }

    #[inline]
    pub(crate) fn canonical<'s, 'a>(&self, check: &'s Check<'a>) -> Result<Cow<'s, Check<'a>>, CheckError> {
        check.canonical(self.ipv6_prefix)
    }

    pub(crate) fn resolve<'a>(&self, check: &'a Check<'_>) -> Result<Resolved<'a>, CheckError> {
        self.rules.with(|rules| self.resolve_by(rules, check))
    }

    /// Returns the limits that apply to a check whose identities are canonical.
    pub(crate) fn resolve_by<'a>(
        &self,
        rules: &RuleSet,
        check: &'a Check<'_>,
    ) -> Result<Resolved<'a>, CheckError> {
        let endpoint = self.endpoint(check)?;
        let applied = rules.resolve(check, endpoint.as_ref())?;
        Ok(Resolved { applied, endpoint: endpoint.map(Endpoint::into_counted), costs: check.all_costs() })
    }

    /// The normalised endpoint of a check.
    pub(crate) fn endpoint<'a>(&self, check: &Check<'a>) -> Result<Option<Endpoint<'a>>, CheckError> {
        Ok(check.endpoint.map(|endpoint| self.paths.endpoint(endpoint)).transpose()?)
    }
}

/// The remaining time.
fn left(until: Option<Instant>) -> Duration {
    until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()))
}
