//! The bodies of requests. These types exist only here; inside, a request is a `Check`.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::time::Duration;

use pacegate::{Algorithm, Check, CheckError, Cost, Limit, identity};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use utoipa::ToSchema;

use super::decode::{Count, Integer, Whole, read_object};
use crate::ad_hoc::{AdHoc, is_sliding_window};
use crate::app::Shared;
use crate::openapi::vocabulary::{
    AlgorithmChoice, Burst, CostNumber, Dimension, Endpoint, IdempotencyKey, Identifier, MethodName, Name,
    Quota, TierName, UnitName, UserId, WholeWindow,
};
use crate::pipeline::Question;
use crate::respond::{ApiError, Code, invalid_ad_hoc};

/// How many identities one check can have.
const KEYS_MAX: usize = 16;
/// In how many units one check can have a cost.
const COSTS_MAX: usize = 16;
/// How many plans one check can name.
const PLANS_MAX: usize = 16;

/// Borrowed from the body unless it has escapes. Serde would make a copy of every `Option<Cow<str>>`.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(crate) struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'a, T: Into<Cow<'a, str>>> From<T> for Text<'a> {
    fn from(text: T) -> Self {
        Self(text.into())
    }
}

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

/// The body of a check, of a reset, and of each item of a batch. Who is checked is said by `user_id`, by `dimension` and `identifier`, or by `keys`.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CheckRequest<'a> {
    #[serde(borrow, default)]
    #[schema(value_type = Option<UserId>)]
    pub(crate) user_id: Option<Text<'a>>,
    #[serde(borrow, default)]
    #[schema(value_type = Endpoint, required = true)]
    pub(crate) endpoint: Option<Text<'a>>,
    #[serde(borrow, default)]
    #[schema(value_type = Option<Dimension>)]
    dimension: Option<Text<'a>>,
    #[serde(borrow, default)]
    #[schema(value_type = Option<Identifier>)]
    identifier: Option<Text<'a>>,
    /// Several at once, by dimension: `{"user": "u1", "ip": "10.0.0.1"}`, at most 16.
    #[serde(borrow, default)]
    #[schema(value_type = Option<std::collections::BTreeMap<Dimension, Identifier>>)]
    keys: Option<Entries<'a, Text<'a>>>,
    /// What is taken from limits that count requests; 1 unless given.
    #[serde(default)]
    #[schema(value_type = Option<CostNumber>)]
    cost: Option<Count>,
    /// What is taken from limits of other units: `{"requests": 1, "tokens": 900}`, at most 16. Limits of units that are not named do not apply.
    #[serde(borrow, default)]
    #[schema(value_type = Option<std::collections::BTreeMap<UnitName, CostNumber>>)]
    costs: Option<Entries<'a, Count>>,
    #[serde(borrow, default)]
    #[schema(value_type = Option<MethodName>)]
    pub(crate) method: Option<Text<'a>>,
    /// The algorithm of the request's own limit; alone it takes the default limit's numbers.
    #[serde(borrow, default)]
    #[schema(value_type = Option<AlgorithmChoice>)]
    pub(crate) strategy: Option<Text<'a>>,
    /// A limit of the request's own, beside the rules. What of `limit`, `window_seconds` and `strategy` is left out is the default limit's.
    #[serde(default)]
    #[schema(value_type = Option<Quota>)]
    pub(crate) limit: Option<Count>,
    #[serde(default)]
    #[schema(value_type = Option<WholeWindow>)]
    pub(crate) window_seconds: Option<Count>,
    /// For token buckets, leaky buckets and GCRA.
    #[serde(default)]
    #[schema(value_type = Option<Burst>)]
    pub(crate) burst_capacity: Option<Count>,
    /// The user's tier, instead of the one that the catalog has.
    #[serde(borrow, default)]
    #[schema(value_type = Option<TierName>)]
    pub(crate) tier: Option<Text<'a>>,
    /// Plans whose limits apply as well.
    #[serde(borrow, default)]
    #[schema(value_type = Option<Vec<Name>>, max_items = 16)]
    plans: Option<Vec<Text<'a>>>,
    /// As the header `Idempotency-Key` or `X-Idempotency-Key`.
    #[serde(borrow, default)]
    #[schema(value_type = Option<IdempotencyKey>)]
    pub(crate) idempotency_key: Option<Text<'a>>,
    /// The client's clock, in milliseconds. It is accepted so that its skew can be measured, and never trusted.
    #[serde(default)]
    #[schema(value_type = Option<i64>)]
    timestamp: Option<Integer>,
}

/// `{"user": "u1", "ip": "10.0.0.1"}`, in the order sent.
#[derive(Debug)]
struct Entries<'a, V>(Vec<(Text<'a>, V)>);

impl<'de: 'a, 'a, V: Deserialize<'de>> Deserialize<'de> for Entries<'a, V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntriesVisitor<V>(PhantomData<V>);

        impl<'de, V: Deserialize<'de>> Visitor<'de> for EntriesVisitor<V> {
            type Value = Vec<(Text<'de>, V)>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(entries)
            }
        }

        deserializer.deserialize_map(EntriesVisitor(PhantomData)).map(Entries)
    }
}

impl<'a> CheckRequest<'a> {
    /// Reads a body.
    pub(crate) fn parse(body: &'a [u8]) -> Result<Self, ApiError> {
        read_object::<Self>(body)?.with_method()
    }

    /// The same with its method in upper case.
    pub(super) fn with_method(mut self) -> Result<Self, ApiError> {
        if let Some(Text(method)) = &mut self.method {
            let canonical = identity::method(method);
            if let Cow::Owned(upper) =
                canonical.map_err(|invalid| ApiError::input("method", invalid.reason()))?
            {
                *method = Cow::Owned(upper);
            }
        }
        Ok(self)
    }

    fn identities(&self) -> Result<Check<'_>, ApiError> {
        match (&self.user_id, &self.dimension, &self.identifier, &self.keys) {
            (Some(user_id), None, None, None) => Ok(Check::new(identity::USER, user_id)),
            (None, Some(dimension), Some(identifier), None) => Ok(Check::new(dimension, identifier)),
            (None, Some(_), None, None) => {
                Err(ApiError::input("identifier", "is missing; it goes with dimension"))
            }
            (None, None, Some(_), None) => {
                Err(ApiError::input("dimension", "is missing; it goes with identifier"))
            }
            (None, None, None, Some(Entries(keys))) => {
                if keys.len() > KEYS_MAX {
                    return Err(ApiError::input("keys", format!("must have at most {KEYS_MAX} entries")));
                }
                let mut entries = keys.iter();
                let Some((dimension, identifier)) = entries.next() else {
                    return Err(ApiError::input("keys", "must not be empty"));
                };
                let first = Check::new(dimension, identifier);
                Ok(entries.fold(first, |check, (dimension, identifier)| check.and(dimension, identifier)))
            }
            (None, None, None, None) => {
                Err(ApiError::input("user_id", "is missing; or give dimension and identifier, or keys"))
            }
            _ => Err(ApiError::input("user_id", "give either user_id, or dimension and identifier, or keys")),
        }
    }

    /// The limit that the request brings along, completed from the default limit.
    fn ad_hoc_limit(&self, shared: &Shared) -> Result<Option<Limit>, ApiError> {
        let ad_hoc = AdHoc {
            algorithm: self.strategy.as_deref().map(|text| parse_strategy("strategy", text)).transpose()?,
            quota: self.limit.map(|Whole(limit)| limit),
            window: self.window_seconds.map(|Whole(seconds)| Duration::from_secs(seconds)),
            burst: self.burst_capacity.map(|Whole(burst)| burst),
        };
        if ad_hoc == AdHoc::default() {
            return Ok(None);
        }
        ad_hoc.limit(shared.limiter.default_limit(), &shared.ad_hoc).map_err(invalid_ad_hoc)
    }

    /// Whether the client calls the sliding log `sliding_window`.
    pub(crate) fn says_sliding_window(&self) -> bool {
        self.strategy.as_deref().is_some_and(is_sliding_window)
    }
}

impl Question for CheckRequest<'_> {
    fn check(&self, shared: &Shared) -> Result<Check<'_>, ApiError> {
        let endpoint = self.endpoint.as_deref().ok_or_else(|| ApiError::input("endpoint", "is missing"))?;
        let mut check = self.identities()?.endpoint(endpoint).tier(self.tier.as_deref());
        shared.limiter.canonicalise(&mut check).map_err(|error| self.explain(error))?;
        check.method = self.method.as_deref();
        if let Some(Whole(cost)) = self.cost {
            let cost = Cost::try_new(cost).map_err(|error| ApiError::input("cost", error.reason()))?;
            check = check.cost(cost);
        }
        if let Some(Entries(costs)) = &self.costs {
            if costs.len() > COSTS_MAX {
                return Err(ApiError::input("costs", format!("must have at most {COSTS_MAX} entries")));
            }
            for (index, (unit, Whole(cost))) in costs.iter().enumerate() {
                let is_twice = costs[..index].iter().any(|(other, _)| **other == **unit);
                if is_twice || (self.cost.is_some() && **unit == *identity::REQUESTS) {
                    let unit: String = unit.chars().take(64).collect();
                    return Err(ApiError::input("costs", format!("the cost in `{unit}` is given twice")));
                }
                identity::check_unit(unit).map_err(|invalid| ApiError::input("costs", invalid.reason()))?;
                let cost = Cost::try_new(*cost)
                    .map_err(|error| ApiError::input(&format!("costs.{}", &**unit), error.reason()))?;
                check = check.cost_in(unit, cost);
            }
        }
        if let Some(plans) = &self.plans {
            if plans.len() > PLANS_MAX {
                return Err(ApiError::input("plans", format!("must name at most {PLANS_MAX} plans")));
            }
            for plan in plans {
                check = check.plan(plan);
            }
        }
        if let Some(limit) = self.ad_hoc_limit(shared)? {
            check = check.limit(limit);
        }
        Ok(check)
    }

    fn idempotency_key(&self) -> Option<&str> {
        self.idempotency_key.as_deref()
    }

    fn timestamp(&self) -> Option<i64> {
        self.timestamp.map(|Whole(at)| at)
    }

    fn explain(&self, error: CheckError) -> ApiError {
        match &error {
            CheckError::InvalidIdentifier { dimension, reason } if self.user_id.is_none() => {
                let field =
                    if self.keys.is_some() { format!("keys.{dimension}") } else { "identifier".to_owned() };
                ApiError::input(&field, reason.reason())
            }
            CheckError::InvalidDimension { .. } if self.keys.is_some() => {
                ApiError::input("keys", error.to_string())
            }
            _ => error.into(),
        }
    }
}

/// The algorithm that `field` names.
pub(crate) fn parse_strategy(field: &str, text: &str) -> Result<Algorithm, ApiError> {
    text.parse().map_err(|_| {
        let reason = "must be token_bucket, leaky_bucket, fixed_window, sliding_log (or sliding_window), sliding_counter or gcra";
        ApiError::field(Code::InvalidStrategy, field, reason)
    })
}
