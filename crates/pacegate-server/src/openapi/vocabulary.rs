//! Values that occur in many bodies, with their bounds. Only their schemas are used; in code they
//! are strings and numbers.

use std::borrow::Cow;

use pacegate::identity::{
    DIMENSION_LENGTH_MAX, IDENTIFIER_LENGTH_MAX, METHOD_LENGTH_MAX, NAME_LENGTH_MAX, UNIT_LENGTH_MAX,
};
use pacegate::{
    Algorithm, FailureMode, Limit, LimitSource, Mode, Reason, Scope, Standing, explain::Verdict,
    path::ENDPOINT_LENGTH_MAX,
};
use pacegate_config::Role;
use utoipa::openapi::schema::{KnownFormat, Schema, SchemaFormat, Type};
use utoipa::openapi::{ObjectBuilder, RefOr};
use utoipa::{PartialSchema, ToSchema};

use crate::ad_hoc::SLIDING_WINDOW;

/// Declares an uninhabited type for each schema.
macro_rules! vocabulary {
    ($($(#[doc = $documentation:literal])+ $name:ident => $make:expr;)+) => {
        $(
            $(#[doc = $documentation])+
            pub(crate) enum $name {}

            impl PartialSchema for $name {
                fn schema() -> RefOr<Schema> {
                    let object: ObjectBuilder = $make;
                    let description = concat!($($documentation,)+).trim();
                    RefOr::T(object.description(Some(description)).into())
                }
            }

            impl ToSchema for $name {
                fn name() -> Cow<'static, str> {
                    Cow::Borrowed(stringify!($name))
                }
            }
        )+
    };
}

/// No control characters.
const CLEAN: &str = r"^[^\x00-\x1f\x7f-\x9f]+$";
/// No ASCII control characters.
const PATH: &str = r"^[^\x00-\x1f\x7f]+$";
/// Printable ASCII without quotes and backslashes.
const PRINTABLE: &str = r"^[ !#-\[\]-~]+$";

vocabulary! {
    /// The identifier of a user: 1 to 1,024 bytes without control characters.
    UserId => text(IDENTIFIER_LENGTH_MAX, CLEAN);
    /// The identifier that is counted in a dimension: 1 to 1,024 bytes without control characters.
    /// In the dimension `ip` it is an address: IPv6 is counted by its prefix (`server.ipv6_prefix`,
    /// 64 bits by default), IPv4-mapped IPv6 counts as IPv4, and a port is dropped.
    Identifier => text(IDENTIFIER_LENGTH_MAX, CLEAN);
    /// The kind of an identifier, such as `user`, `ip` or `key`: a word in lower case. `USER`, `IP`
    /// and `API_KEY`, in any case, mean `user`, `ip` and `apikey`.
    Dimension => text(DIMENSION_LENGTH_MAX, "^([a-z0-9_.-]+|[Uu][Ss][Ee][Rr]|[Ii][Pp]|[Aa][Pp][Ii]_[Kk][Ee][Yy])$");
    /// A path of the protected API. Its query is ignored, and the path is normalised.
    Endpoint => text(ENDPOINT_LENGTH_MAX, PATH);
    /// A pattern of endpoints: `/orders/{id}`, `/api/{*rest}` (matches `/api` as well), or `*` for
    /// all.
    EndpointPattern => text(ENDPOINT_LENGTH_MAX, PATH);
    /// An HTTP method, in any case. A check without one is limited by rules for any method.
    MethodName => text(METHOD_LENGTH_MAX, "^[A-Za-z]+$");
    /// The name of a rule, plan or store: printable ASCII without quotes and backslashes.
    Name => text(NAME_LENGTH_MAX, PRINTABLE);
    /// The name of a key.
    KeyName => text(NAME_LENGTH_MAX, CLEAN);
    /// The name of a tier.
    TierName => text(NAME_LENGTH_MAX, CLEAN);
    /// A repeated request with the same key within five minutes is not charged again.
    IdempotencyKey => text(255, CLEAN);
    /// A time in RFC 3339 format.
    Time => ObjectBuilder::new()
        .schema_type(Type::String)
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)));
    /// The number of requests that a window allows, or that a bucket regains per window. At most
    /// 1,000,000 for `sliding_log`.
    Quota => count(1, Limit::QUOTA_MAX);
    /// The capacity of a bucket.
    Burst => count(1, Limit::QUOTA_MAX);
    /// The cost of a request.
    CostNumber => count(1, Limit::QUOTA_MAX);
    /// The unit that a limit counts: `requests`, `tokens`, `bytes` or another word in lower case.
    UnitName => text(UNIT_LENGTH_MAX, "^[a-z][a-z0-9_-]*$");
    /// A window in whole seconds, up to 366 days.
    WholeWindow => count(1, Limit::WINDOW_MAX.as_secs());
    /// A window in seconds, up to 366 days, with up to three decimals.
    Window => ObjectBuilder::new()
        .schema_type(Type::Number)
        .minimum(Some(0.001))
        .maximum(Some(Limit::WINDOW_MAX.as_secs_f64()));
    /// A lifetime in seconds, up to 366 days.
    Lifetime => count(1, 366 * 24 * 3_600);
    /// The algorithm. The sliding log is `sliding_window` in responses to requests that use that
    /// alias.
    AlgorithmName => words(Algorithm::ALL.map(Algorithm::name).into_iter().chain([SLIDING_WINDOW]));
    /// The algorithm, in any case. `sliding_window` is an alias of `sliding_log`.
    AlgorithmChoice => words(algorithm_choices());
    /// The state of a limit: `warning` from above 80 % usage until it is below 70 %, `throttled`
    /// when it is exhausted.
    StandingName => words(Standing::ALL.map(Standing::name));
    /// Why a limit denied, or how it was decided while its store was unavailable.
    ReasonName => words(Reason::ALL.map(Reason::name));
    /// Whether a rule applies, or the first reason why it does not.
    VerdictName => words(Verdict::ALL.map(Verdict::name));
    /// Whether a rule denies requests (`enforce`) or only counts them (`shadow`).
    ModeName => words(Mode::ALL.map(Mode::name));
    /// Whether a rule has one counter for all its endpoints or one per endpoint.
    CounterScope => words(Scope::ALL.map(Scope::name));
    /// What a rule does while its store is unavailable.
    FailureModeName => words(FailureMode::ALL.map(FailureMode::name));
    /// Where the entry is defined. Entries from the configuration file are changed there.
    SourceName => words(["file", "catalog"]);
    /// The role of a key.
    RoleName => words(Role::ALL.map(Role::name));
    /// Whether a key is still valid.
    KeyState => words(["active", "revoked", "expired"]);
    /// Why a limit is in force for a user; the values are ordered from most to least specific.
    WhyName => words(LimitSource::ALL.into_iter().filter(is_of_users).map(LimitSource::name));
    /// `ok` if alive, `ready` if ready for traffic.
    HealthName => words(["ok", "ready"]);
    /// The status of a component.
    Condition => words(["UP", "DOWN"]);
    /// The state of a key; `UNKNOWN` while its store is unavailable.
    KeyCondition => words(["OK", "WARNING", "THROTTLED", "UNKNOWN"]);
    /// ThrottleX's names of the algorithms.
    PolicyType => words(
        ["TOKEN_BUCKET", "LEAKY_BUCKET", "GCRA", "SLIDING_WINDOW", "FIXED_WINDOW", "SLIDING_COUNTER"]
    );
}

/// Returns whether a source applies to users; rules for descriptors do not.
fn is_of_users(source: &LimitSource) -> bool {
    *source != LimitSource::Descriptor
}

fn text(length_max: usize, pattern: &str) -> ObjectBuilder {
    let object = ObjectBuilder::new().schema_type(Type::String);
    object.min_length(Some(1)).max_length(Some(length_max)).pattern(Some(pattern))
}

fn count(least: u64, most: u64) -> ObjectBuilder {
    let object = ObjectBuilder::new().schema_type(Type::Integer);
    object.minimum(Some(least)).maximum(Some(most))
}

fn algorithm_choices() -> Vec<String> {
    let names = Algorithm::ALL.map(Algorithm::name).into_iter().chain([SLIDING_WINDOW]);
    let (mut lower, upper): (Vec<String>, Vec<String>) =
        names.map(|name| (name.to_owned(), name.to_ascii_uppercase())).unzip();
    lower.extend(upper);
    lower
}

fn words<T: Into<serde_json::Value>>(words: impl IntoIterator<Item = T>) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String).enum_values(Some(words))
}
