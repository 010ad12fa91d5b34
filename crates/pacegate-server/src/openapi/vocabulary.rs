//! Values that stand in many bodies, each with its bounds. Only their schemas are used: inside they are texts and numbers.

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

/// Names a schema that has no values, and makes it.
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
/// No control characters of ASCII.
const PATH: &str = r"^[^\x00-\x1f\x7f]+$";
/// Printable ASCII without quotes and backslashes.
const PRINTABLE: &str = r"^[ !#-\[\]-~]+$";

vocabulary! {
    /// The identifier of a user: 1 to 1,024 bytes without control characters.
    UserId => text(IDENTIFIER_LENGTH_MAX, CLEAN);
    /// What is counted in a dimension: 1 to 1,024 bytes without control characters. In the dimension `ip` it is an address: IPv6 is counted by its
    /// prefix (64 bits unless `server.ipv6_prefix` says otherwise), IPv4 inside IPv6 is IPv4, and a port is dropped.
    Identifier => text(IDENTIFIER_LENGTH_MAX, CLEAN);
    /// What identifiers are of, like `user`, `ip` or `key`: a word in lower case. `USER`, `IP` and `API_KEY`, in any case, mean `user`, `ip` and `apikey`.
    Dimension => text(DIMENSION_LENGTH_MAX, "^([a-z0-9_.-]+|[Uu][Ss][Ee][Rr]|[Ii][Pp]|[Aa][Pp][Ii]_[Kk][Ee][Yy])$");
    /// A path of the protected API. Its query is ignored and its spelling normalised.
    Endpoint => text(ENDPOINT_LENGTH_MAX, PATH);
    /// Which endpoints: `/orders/{id}`, `/api/{*rest}` (also `/api`), or `*` for all.
    EndpointPattern => text(ENDPOINT_LENGTH_MAX, PATH);
    /// A method of HTTP, in either case. A check without one is limited by rules for any method.
    MethodName => text(METHOD_LENGTH_MAX, "^[A-Za-z]+$");
    /// The name of a rule, plan or store: printable ASCII without quotes and backslashes.
    Name => text(NAME_LENGTH_MAX, PRINTABLE);
    /// The name of a key.
    KeyName => text(NAME_LENGTH_MAX, CLEAN);
    /// The name of a tier.
    TierName => text(NAME_LENGTH_MAX, CLEAN);
    /// Makes a repeated request harmless for five minutes.
    IdempotencyKey => text(255, CLEAN);
    /// A time as RFC 3339 has it.
    Time => ObjectBuilder::new()
        .schema_type(Type::String)
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)));
    /// How many requests a window allows, or a bucket gets back in one. At most 1,000,000 for `sliding_log`.
    Quota => count(1, Limit::QUOTA_MAX);
    /// How much a bucket can hold.
    Burst => count(1, Limit::QUOTA_MAX);
    /// How much a request takes.
    CostNumber => count(1, Limit::QUOTA_MAX);
    /// What a limit counts: `requests`, `tokens`, `bytes` or another word in lower case.
    UnitName => text(UNIT_LENGTH_MAX, "^[a-z][a-z0-9_-]*$");
    /// A window in whole seconds, up to 366 days.
    WholeWindow => count(1, Limit::WINDOW_MAX.as_secs());
    /// A window in seconds, up to 366 days, with up to three decimals.
    Window => ObjectBuilder::new()
        .schema_type(Type::Number)
        .minimum(Some(0.001))
        .maximum(Some(Limit::WINDOW_MAX.as_secs_f64()));
    /// In how many seconds something ends, up to 366 days.
    Lifetime => count(1, 366 * 24 * 3_600);
    /// How requests are counted. The sliding log is `sliding_window` in answers to requests that call it so.
    AlgorithmName => words(Algorithm::ALL.map(Algorithm::name).into_iter().chain([SLIDING_WINDOW]));
    /// How requests are counted, in either case; `sliding_window` is `sliding_log`.
    AlgorithmChoice => words(algorithm_choices());
    /// How a limit stands: `warning` above 80 % used until below 70 %, `throttled` at its end.
    StandingName => words(Standing::ALL.map(Standing::name));
    /// Why a limit denied, or how it was decided while its store failed.
    ReasonName => words(Reason::ALL.map(Reason::name));
    /// Whether a rule applies, or the first thing that stands in the way.
    VerdictName => words(Verdict::ALL.map(Verdict::name));
    /// Whether a rule denies or only watches.
    ModeName => words(Mode::ALL.map(Mode::name));
    /// Whether a rule has one counter for all its endpoints or one for each.
    CounterScope => words(Scope::ALL.map(Scope::name));
    /// What a rule does while its store fails.
    FailureModeName => words(FailureMode::ALL.map(FailureMode::name));
    /// Where something is from; what is from the configuration file is changed there.
    SourceName => words(["file", "catalog"]);
    /// What a key is for.
    RoleName => words(Role::ALL.map(Role::name));
    /// Whether a key still opens anything.
    KeyState => words(["active", "revoked", "expired"]);
    /// Why a limit is in force for a user, the most specific reason first.
    WhyName => words(LimitSource::ALL.into_iter().filter(is_of_users).map(LimitSource::name));
    /// Alive, or ready for traffic.
    HealthName => words(["ok", "ready"]);
    /// Whether a part works.
    Condition => words(["UP", "DOWN"]);
    /// How a key stands; `UNKNOWN` while its store fails.
    KeyCondition => words(["OK", "WARNING", "THROTTLED", "UNKNOWN"]);
    /// ThrottleX's names of the algorithms.
    PolicyType => words(
        ["TOKEN_BUCKET", "LEAKY_BUCKET", "GCRA", "SLIDING_WINDOW", "FIXED_WINDOW", "SLIDING_COUNTER"]
    );
}

/// Rules for descriptors count no users.
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
