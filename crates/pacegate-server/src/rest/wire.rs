//! Request bodies. These types exist only here; the rest of the crate works with `Check`.

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
use crate::pipeline::CheckMessage;
use crate::respond::{ApiError, Code, invalid_ad_hoc};

/// Maximum number of identities of one check.
const KEYS_MAX: usize = 16;
/// Maximum number of units in which one check has a cost.
const COSTS_MAX: usize = 16;
/// Maximum number of plans named by one check.
const PLANS_MAX: usize = 16;

/// Text borrowed from the body unless it has escapes. Serde would copy every `Option<Cow<str>>`.
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

/// The body of a check, of a reset, and of each item of a batch. The identity is `user_id`, or
/// `dimension` and `identifier`, or `keys`.
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
    /// Several identities by dimension: `{"user": "u1", "ip": "10.0.0.1"}`. At most 16.
    #[serde(borrow, default)]
    #[schema(value_type = Option<std::collections::BTreeMap<Dimension, Identifier>>)]
    keys: Option<Entries<'a, Text<'a>>>,
    /// The cost charged to limits that count requests. Default: 1.
    #[serde(default)]
    #[schema(value_type = Option<CostNumber>)]
    cost: Option<Count>,
    /// The costs by unit: `{"requests": 1, "tokens": 900}`. At most 16. Limits in other units do
    /// not apply.
    #[serde(borrow, default)]
    #[schema(value_type = Option<std::collections::BTreeMap<UnitName, CostNumber>>)]
    costs: Option<Entries<'a, Count>>,
    #[serde(borrow, default)]
    #[schema(value_type = Option<MethodName>)]
    pub(crate) method: Option<Text<'a>>,
    /// The algorithm of an ad-hoc limit. Without `limit` and `window_seconds`, the numbers of the
    /// default limit apply.
    #[serde(borrow, default)]
    #[schema(value_type = Option<AlgorithmChoice>)]
    pub(crate) strategy: Option<Text<'a>>,
    /// The quota of an ad-hoc limit, which applies in addition to the rules. Each of `limit`,
    /// `window_seconds` and `strategy` defaults to the value of the default limit.
    #[serde(default)]
    #[schema(value_type = Option<Quota>)]
    pub(crate) limit: Option<Count>,
    #[serde(default)]
    #[schema(value_type = Option<WholeWindow>)]
    pub(crate) window_seconds: Option<Count>,
    /// The burst of an ad-hoc token bucket, leaky bucket or GCRA limit.
    #[serde(default)]
    #[schema(value_type = Option<Burst>)]
    pub(crate) burst_capacity: Option<Count>,
    /// The user's tier. Overrides the tier in the catalog.
    #[serde(borrow, default)]
    #[schema(value_type = Option<TierName>)]
    pub(crate) tier: Option<Text<'a>>,
    /// Plans whose limits apply in addition.
    #[serde(borrow, default)]
    #[schema(value_type = Option<Vec<Name>>, max_items = 16)]
    plans: Option<Vec<Text<'a>>>,
    /// Same as the header `Idempotency-Key` or `X-Idempotency-Key`.
    #[serde(borrow, default)]
    #[schema(value_type = Option<IdempotencyKey>)]
    pub(crate) idempotency_key: Option<Text<'a>>,
    /// The client's clock, in milliseconds since the epoch. Used only to measure its skew.
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
    /// Parses a body.
    pub(crate) fn parse(body: &'a [u8]) -> Result<Self, ApiError> {
        read_object::<Self>(body)?.with_method()
    }

    /// Converts the method to upper case.
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
            (None, Some(_), None, None) => Err(ApiError::input(
                "identifier",
                "required field is missing; `dimension` requires `identifier`",
            )),
            (None, None, Some(_), None) => Err(ApiError::input(
                "dimension",
                "required field is missing; `identifier` requires `dimension`",
            )),
            (None, None, None, Some(Entries(keys))) => {
                if keys.len() > KEYS_MAX {
                    return Err(ApiError::input(
                        "keys",
                        format!("must have at most {KEYS_MAX} entries, got {}", keys.len()),
                    ));
                }
                let mut entries = keys.iter();
                let Some((dimension, identifier)) = entries.next() else {
                    return Err(ApiError::input("keys", "must not be empty"));
                };
                let first = Check::new(dimension, identifier);
                Ok(entries.fold(first, |check, (dimension, identifier)| check.and(dimension, identifier)))
            }
            (None, None, None, None) => Err(ApiError::input(
                "user_id",
                "required field is missing; send user_id, or dimension and identifier, or keys",
            )),
            _ => Err(ApiError::input(
                "user_id",
                "user_id, dimension with identifier, and keys are mutually exclusive",
            )),
        }
    }

    /// Returns the ad-hoc limit of the request, completed from the default limit.
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

    /// Returns whether the client calls the sliding log `sliding_window`.
    pub(crate) fn uses_sliding_window(&self) -> bool {
        self.strategy.as_deref().is_some_and(is_sliding_window)
    }
}

impl CheckMessage for CheckRequest<'_> {
    fn check(&self, shared: &Shared) -> Result<Check<'_>, ApiError> {
        let endpoint = self
            .endpoint
            .as_deref()
            .ok_or_else(|| ApiError::input("endpoint", "required field is missing"))?;
        let mut check = self.identities()?.endpoint(endpoint).tier(self.tier.as_deref());
        shared.limiter.canonicalise(&mut check).map_err(|error| self.explain(error))?;
        check.method = self.method.as_deref();
        if let Some(Whole(cost)) = self.cost {
            let cost = Cost::try_new(cost).map_err(|error| ApiError::input("cost", error.reason()))?;
            check = check.cost(cost);
        }
        if let Some(Entries(costs)) = &self.costs {
            if costs.len() > COSTS_MAX {
                return Err(ApiError::input(
                    "costs",
                    format!("must have at most {COSTS_MAX} entries, got {}", costs.len()),
                ));
            }
            for (index, (unit, Whole(cost))) in costs.iter().enumerate() {
                let is_twice = costs[..index].iter().any(|(other, _)| **other == **unit);
                if is_twice || (self.cost.is_some() && **unit == *identity::REQUESTS) {
                    let unit: String = unit.chars().take(64).collect();
                    return Err(ApiError::input("costs", format!("duplicate cost for unit `{unit}`")));
                }
                identity::check_unit(unit).map_err(|invalid| ApiError::input("costs", invalid.reason()))?;
                let cost = Cost::try_new(*cost)
                    .map_err(|error| ApiError::input(&format!("costs.{}", &**unit), error.reason()))?;
                check = check.cost_in(unit, cost);
            }
        }
        if let Some(plans) = &self.plans {
            if plans.len() > PLANS_MAX {
                return Err(ApiError::input(
                    "plans",
                    format!("must have at most {PLANS_MAX} entries, got {}", plans.len()),
                ));
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

/// Parses the algorithm in `field`.
pub(crate) fn parse_strategy(field: &str, text: &str) -> Result<Algorithm, ApiError> {
    text.parse().map_err(|_| {
        let reason = "expected one of token_bucket, leaky_bucket, fixed_window, sliding_log, sliding_window, sliding_counter, gcra";
        ApiError::field(Code::InvalidStrategy, field, reason)
    })
}
