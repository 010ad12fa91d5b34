//! The layer, and the sentence that builds it.

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
use crate::noise::Noise;
use crate::resolve::{RequestHead, Resolve, check_dimensions};
use crate::response::{Denial, Format, Responder};
use crate::service::Pacegate;
use crate::shape::{Shaping, WAITERS_MAX};
use pacegate::observe::Observer;
use pacegate_http::headers::Families;

/// Puts a rate limit in front of a service. It can stand in front of a whole router or a single route, and in several places at once: where two of them
/// answer, the inner one's headers are kept.
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
    /// Starts to put a layer together that asks `limiter`. Clones of a limiter share their counters, so several layers can ask one.
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
                noise: Noise::default(),
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

/// Puts a [`PacegateLayer`] together.
#[must_use = "a builder does nothing until `build` is called"]
pub struct LayerBuilder {
    resolvers: Vec<Box<dyn Resolve>>,
    limit: Option<LimitBuilder>,
    wait_max: Option<Duration>,
    waiters: usize,
    use_rules: bool,
    gate: Gate,
}

impl LayerBuilder {
    /// Whom requests are counted for.
    pub fn by(mut self, resolver: impl Resolve) -> Self {
        self.resolvers.push(Box::new(resolver));
        self
    }

    /// Whom they are counted for as well, in the same step: all limits of all of them are charged, or none is. To make one key of two, see
    /// [`Resolve::and`].
    pub fn and_by(self, resolver: impl Resolve) -> Self {
        self.by(resolver)
    }

    /// Applies the limits of a plan, which must be there when the layer is built. Its counters are the same wherever a request goes.
    pub fn plan(mut self, name: &str) -> Self {
        self.gate.plans.push(name.into());
        self
    }

    /// Applies the limits of several plans at once.
    pub fn plans<'a>(self, names: impl IntoIterator<Item = &'a str>) -> Self {
        names.into_iter().fold(self, Self::plan)
    }

    /// Applies the limits of the plan that `choose` names, such as one that the user has paid for. A name that the limiter does not know is an error
    /// ([`on_error`](Self::on_error)); `None` means no plan.
    pub fn plan_by<F>(mut self, choose: F) -> Self
    where
        F: for<'a> Fn(&RequestHead<'a>) -> Option<&'a str> + Send + Sync + 'static,
    {
        self.gate.choose_plan = Some(Box::new(choose));
        self
    }

    /// Applies a limit of this layer's own, under the name `ad-hoc`. All layers with a limit of the same algorithm and window count together; a plan has
    /// counters, and a name, of its own, and is faster.
    pub fn limit(mut self, limit: impl Into<LimitBuilder>) -> Self {
        self.limit = Some(limit.into());
        self
    }

    /// Applies the limiter's rules, by the path and method of each request. That is so anyway if neither a plan nor a limit is named. With rules, an
    /// ad-hoc limit and the limiter's default limit count each path on its own.
    pub fn rules(mut self) -> Self {
        self.use_rules = true;
        self
    }

    /// How much a request costs; 1 unless this is said.
    pub fn cost<C: Into<Cost>>(
        mut self,
        cost: impl Fn(&RequestHead<'_>) -> C + Send + Sync + 'static,
    ) -> Self {
        self.gate.cost = Some(Box::new(move |request| cost(request).into()));
        self
    }

    /// Lets requests pass unchecked, such as health checks.
    pub fn unless(mut self, predicate: impl Fn(&RequestHead<'_>) -> bool + Send + Sync + 'static) -> Self {
        self.gate.unless = Some(Box::new(predicate));
        self
    }

    /// What happens to a request that has no key; it is refused unless this is said.
    pub fn on_missing_key(mut self, missing: MissingKey) -> Self {
        self.gate.on_missing_key = missing;
        self
    }

    /// What happens to a request that could not be checked; it is refused unless this is said. While a store does not answer, the limiter's failure mode
    /// decides (`LimiterBuilder::on_store_error`).
    pub fn on_error(mut self, on_error: OnError) -> Self {
        self.gate.on_error = on_error;
        self
    }

    /// Shapes instead of policing: a request that a leaky bucket admits waits until it is its turn, so that the service sees a constant rate. One that would wait longer than
    /// `wait_max` is refused (429), and what it took is given back. Other algorithms know no queue and never wait.
    pub fn shape(mut self, wait_max: Duration) -> Self {
        self.wait_max = Some(wait_max);
        self
    }

    /// How many requests wait at once, over all keys; 1,000 unless this is said. Further ones are refused (429).
    pub fn waiters(mut self, waiters_max: usize) -> Self {
        self.waiters = waiters_max;
        self
    }

    /// Which headers responses get; all unless this is said.
    pub fn headers(mut self, families: &[HeaderFamily]) -> Self {
        self.gate.responder.families = Families::new(families);
        self
    }

    /// How the body of a refusal is written; as JSON unless this is said.
    pub fn format(mut self, format: Format) -> Self {
        self.gate.responder.format = format;
        self
    }

    /// Writes refusals in a way of one's own. The headers of the limits and `Retry-After` are added to it; gRPC requests are answered as gRPC has it.
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

    /// Reports each decision to `observer`, with the id of its request.
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

    /// Checks that the layer is what it is meant to be.
    ///
    /// # Errors
    /// [`InvalidLayer`]: no resolver, a limit with invalid numbers, a plan that the limiter does not know, or resolvers that
    /// contradict each other.
    pub fn build(self) -> Result<PacegateLayer, InvalidLayer> {
        let Self { resolvers, limit, wait_max, waiters, use_rules, mut gate } = self;
        if resolvers.is_empty() {
            return Err(InvalidLayer::NoResolver);
        }
        check_dimensions(resolvers.iter().map(|resolver| &**resolver))?;
        for (place, name) in gate.plans.iter().enumerate() {
            if let Err(CheckError::UnknownPlan { name }) = gate.limiter.plan(name) {
                return Err(InvalidLayer::UnknownPlan { name });
            }
            if gate.plans[..place].contains(name) {
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
