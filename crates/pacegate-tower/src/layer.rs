//! The layer and its builder.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Response;
use pacegate::{CheckError, Cost, LimitBuilder, Limiter, identity};
use pacegate_http::HeaderFamily;
use tower_layer::Layer;

use crate::error::InvalidLayer;
use crate::gate::{Gate, MissingKey, OnError};
use crate::log_throttle::LogThrottle;
use crate::resolve::{RequestHead, Resolve, check_dimensions};
use crate::response::{Denial, Format, Responder};
use crate::service::Pacegate;
use crate::shape::{Shaping, WAITERS_MAX};
use pacegate::observe::Observer;
use pacegate_http::headers::Families;

/// A rate limit in front of a service.
///
/// It can wrap a whole router or a single route, and can be applied more than once. If two layers
/// write headers, the inner layer's headers are kept.
///
/// ```
/// use pacegate::{Limit, Limiter, Rule};
/// use pacegate_tower::resolve::{Identifier, Resolve, address, principal};
/// use pacegate_tower::{MissingKey, PacegateLayer};
///
/// #[derive(Clone)]
/// struct User { name: String }
///
/// let limiter = Limiter::builder()
///     .rule(Rule::builder("per-user", "user", Limit::per_minute(100)))
///     .rule(Rule::builder("per-address", "ip", Limit::per_minute(1_000)))
///     .build()?;
/// let layer = PacegateLayer::builder(limiter)
///     .by(principal(|user: &User| Identifier::from(&user.name)))
///     .and_by(address())
///     .on_missing_key(MissingKey::Deny)
///     .build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct PacegateLayer {
    gate: Arc<Gate>,
}

impl PacegateLayer {
    /// Returns a builder for a layer that uses `limiter`. Clones of a limiter share their counters,
    /// so several layers can use one limiter.
    pub fn builder(limiter: Limiter) -> LayerBuilder {
        LayerBuilder {
            resolvers: Vec::new(),
            limit: None,
            waiters: WAITERS_MAX,
            wait_max: None,
            use_rules: false,
            gate: Gate {
                in_process: limiter.is_in_process(),
                limiter,
                resolvers: Vec::new(),
                on_missing_key: MissingKey::default(),
                plans: Vec::new(),
                choose_plan: None,
                limit: None,
                rules: false,
                cost: None,
                unless: None,
                on_error: OnError::default(),
                shaping: None,
                responder: Responder {
                    format: Format::default(),
                    own: None,
                    families: Families::new(&[HeaderFamily::XRateLimit, HeaderFamily::Ietf]),
                },
                log_throttle: LogThrottle::default(),
                observer: None,
            },
        }
    }
}

impl<S> Layer<S> for PacegateLayer {
    type Service = Pacegate<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Pacegate::new(inner, self.gate.clone())
    }
}

/// Builds a [`PacegateLayer`].
#[must_use = "a builder has no effect until `build` is called"]
pub struct LayerBuilder {
    resolvers: Vec<Box<dyn Resolve>>,
    limit: Option<LimitBuilder>,
    wait_max: Option<Duration>,
    waiters: usize,
    use_rules: bool,
    gate: Gate,
}

impl LayerBuilder {
    /// Sets the identity that is charged.
    pub fn by(mut self, resolver: impl Resolve) -> Self {
        self.resolvers.push(Box::new(resolver));
        self
    }

    /// Adds an identity that is charged in the same step: all limits of all identities are charged,
    /// or none is. To combine two values into one key, see [`Resolve::and`].
    pub fn and_by(self, resolver: impl Resolve) -> Self {
        self.by(resolver)
    }

    /// Applies the limits of a plan, which must exist when the layer is built. The counters of a
    /// plan do not depend on the path.
    pub fn plan(mut self, name: &str) -> Self {
        self.gate.plans.push(name.into());
        self
    }

    /// Applies the limits of several plans.
    pub fn plans<'a>(self, names: impl IntoIterator<Item = &'a str>) -> Self {
        names.into_iter().fold(self, Self::plan)
    }

    /// Applies the limits of the plan that `choose` returns, for example the plan that the user has
    /// paid for. An unknown plan is an error ([`on_error`](Self::on_error)); `None` means no plan.
    pub fn plan_by<F>(mut self, choose: F) -> Self
    where
        F: for<'a> Fn(&RequestHead<'a>) -> Option<&'a str> + Send + Sync + 'static,
    {
        self.gate.choose_plan = Some(Box::new(choose));
        self
    }

    /// Applies an ad-hoc limit, named `ad-hoc`. All layers with an ad-hoc limit of the same
    /// algorithm and window share its counters. A plan has its own name and counters, and is
    /// faster.
    pub fn limit(mut self, limit: impl Into<LimitBuilder>) -> Self {
        self.limit = Some(limit.into());
        self
    }

    /// Applies the rules of the limiter, by the path and method of each request. This is the
    /// default if neither a plan nor a limit is set. With rules, an ad-hoc limit and the default
    /// limit count each path separately.
    pub fn rules(mut self) -> Self {
        self.use_rules = true;
        self
    }

    /// Sets the cost of a request. Default: 1.
    pub fn cost<C: Into<Cost>>(
        mut self,
        cost: impl Fn(&RequestHead<'_>) -> C + Send + Sync + 'static,
    ) -> Self {
        self.gate.cost = Some(Box::new(move |request| cost(request).into()));
        self
    }

    /// Lets matching requests pass unchecked, such as health checks.
    pub fn unless(mut self, predicate: impl Fn(&RequestHead<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.gate.unless = Some(Box::new(predicate));
        self
    }

    /// Sets what happens to a request without a key. Default: it is rejected.
    pub fn on_missing_key(mut self, missing: MissingKey) -> Self {
        self.gate.on_missing_key = missing;
        self
    }

    /// Sets what happens to a request that could not be checked. Default: it is rejected. While a
    /// store is unavailable, the failure mode of the limiter decides
    /// (`LimiterBuilder::on_store_error`).
    pub fn on_error(mut self, on_error: OnError) -> Self {
        self.gate.on_error = on_error;
        self
    }

    /// Delays requests instead of only denying them: a request that a leaky bucket allows waits for
    /// its turn, so the service receives a constant rate. A request that would wait longer than
    /// `wait_max` is denied (429), and its charge is refunded. Other algorithms have no queue and
    /// never wait.
    pub fn shape(mut self, wait_max: Duration) -> Self {
        self.wait_max = Some(wait_max);
        self
    }

    /// Sets the maximum number of waiting requests, over all keys. Default: 1,000. Further requests
    /// are denied (429).
    pub fn waiters(mut self, waiters_max: usize) -> Self {
        self.waiters = waiters_max;
        self
    }

    /// Sets which headers responses get. Default: all.
    pub fn headers(mut self, families: &[HeaderFamily]) -> Self {
        self.gate.responder.families = Families::new(families);
        self
    }

    /// Sets the format of the body of a denial. Default: JSON.
    pub fn format(mut self, format: Format) -> Self {
        self.gate.responder.format = format;
        self
    }

    /// Sets a function that writes the response to a request that does not pass. Rate limit headers
    /// and `Retry-After` are added to its response. gRPC requests always get a gRPC response.
    ///
    /// ```
    /// # use pacegate::{Limit, Limiter};
    /// # use pacegate_tower::{PacegateLayer, resolve::address};
    /// # let limiter = Limiter::builder().plan("public", [Limit::per_second(10)]).build()?;
    /// let layer = PacegateLayer::builder(limiter).by(address()).plan("public").respond_with(|denial| {
    ///     let mut response = http::Response::new(denial.message().into());
    ///     *response.status_mut() = denial.status();
    ///     response
    /// });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn respond_with(
        mut self,
        respond: impl Fn(&Denial<'_>) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        self.gate.responder.own = Some(Box::new(respond));
        self
    }

    /// Reports each decision to `observer`, with the id of the request.
    ///
    /// ```
    /// # use pacegate::{Limit, Limiter};
    /// use pacegate::observe::Observed;
    /// # use pacegate_tower::{PacegateLayer, resolve::address};
    /// # let limiter = Limiter::builder().plan("public", [Limit::per_second(10)]).build()?;
    /// let layer = PacegateLayer::builder(limiter).by(address()).plan("public").observe(|observed: &Observed<'_, '_>| {
    ///     if observed.decided.is_ok_and(|decision| !decision.allowed()) {
    ///         tracing::info!(request_id = observed.request_id, "denied");
    ///     }
    /// });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn observe(mut self, observer: impl Observer + 'static) -> Self {
        self.gate.observer = Some(Box::new(observer));
        self
    }

    /// Validates and returns the layer.
    ///
    /// # Errors
    /// [`InvalidLayer`] if there is no resolver, a limit is not valid, a plan is unknown, or two
    /// resolvers conflict.
    pub fn build(self) -> Result<PacegateLayer, InvalidLayer> {
        let Self { resolvers, limit, wait_max, waiters, use_rules, mut gate } = self;
        if resolvers.is_empty() {
            return Err(InvalidLayer::NoResolver);
        }
        check_dimensions(resolvers.iter().map(|resolver| &**resolver))?;
        for (index, name) in gate.plans.iter().enumerate() {
            if let Err(CheckError::UnknownPlan { name }) = gate.limiter.plan(name) {
                return Err(InvalidLayer::UnknownPlan { name });
            }
            if gate.plans[..index].contains(name) {
                return Err(InvalidLayer::DuplicatePlan { name: name.clone() });
            }
        }
        if let MissingKey::Use(identifier) = gate.on_missing_key {
            for resolver in &resolvers {
                let dimension = identity::dimension(resolver.dimension()).unwrap_or_default();
                identity::identifier(dimension, identifier, gate.limiter.ipv6_prefix()).map_err(
                    |reason| {
                        let (identifier, dimension) = (identifier.into(), dimension.into());
                        InvalidLayer::InvalidIdentifier { identifier, dimension, reason }
                    },
                )?;
            }
        }
        gate.limit = limit.map(LimitBuilder::build).transpose().map_err(InvalidLayer::InvalidLimit)?;
        gate.resolvers = resolvers;
        gate.rules =
            use_rules || (gate.plans.is_empty() && gate.choose_plan.is_none() && gate.limit.is_none());
        gate.shaping = wait_max.map(|wait_max| Shaping::new(wait_max, waiters));
        Ok(PacegateLayer { gate: Arc::new(gate) })
    }
}

impl fmt::Debug for LayerBuilder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("LayerBuilder").field("gate", &self.gate).finish_non_exhaustive()
    }
}
