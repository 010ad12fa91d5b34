//! Rate limit headers: `X-RateLimit-*` and the fields of the IETF draft.
//!
//! ```
//! use http::HeaderMap;
//! use pacegate::{Check, Limit, Limiter};
//! use pacegate_http::HeaderFamily;
//! use pacegate_http::headers::Families;
//!
//! let limiter = Limiter::builder().plan("gold", [Limit::per_minute(10)]).build()?;
//! let decision = limiter.check_now(&Check::key("user-123").plan("gold"))?;
//! let mut headers = HeaderMap::new();
//! Families::new(&[HeaderFamily::XRateLimit, HeaderFamily::Ietf]).write(&decision, &mut headers);
//! assert_eq!(headers["x-ratelimit-remaining"], "9");
//! assert_eq!(headers["ratelimit-policy"], "\"gold\";q=10;w=60");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod values;

use http::HeaderMap;
use http::header::{Entry, HeaderName, HeaderValue, RETRY_AFTER};
use pacegate::{Decision, Standing};
use pacegate_core::named;

use values::{Fixed, Values};

const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
const STRATEGY: HeaderName = HeaderName::from_static("x-ratelimit-strategy");
const STATE: HeaderName = HeaderName::from_static("x-ratelimit-state");
// draft-ietf-httpapi-ratelimit-headers-10. Later drafts rename the parameters, so the format is
// defined in this file and in `values` alone.
const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// A family of rate limit headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderFamily {
    /// `X-RateLimit-Limit` and the other `X-RateLimit-*` headers.
    XRateLimit,
    /// `RateLimit` and `RateLimit-Policy` of draft-ietf-httpapi-ratelimit-headers-10.
    Ietf,
}

named!(HeaderFamily { XRateLimit => "x-ratelimit", Ietf => "ietf" });

/// The header families to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Families {
    x_ratelimit: bool,
    ietf: bool,
}

/// A target of headers.
trait Target {
    /// Reserves space for `count` headers.
    fn reserve(&mut self, _count: usize) {}

    /// Adds the first header of a family; returns whether the others follow.
    fn first(&mut self, name: HeaderName, value: HeaderValue) -> bool {
        self.next(name, value);
        true
    }

    fn next(&mut self, name: HeaderName, value: HeaderValue);
}

/// The headers of a response.
struct Map<'a> {
    headers: &'a mut HeaderMap,
    /// Whether a family that is already present is kept.
    keep: bool,
}

impl Target for Map<'_> {
    fn reserve(&mut self, count: usize) {
        self.headers.reserve(count);
    }

    fn first(&mut self, name: HeaderName, value: HeaderValue) -> bool {
        match self.headers.entry(name) {
            Entry::Occupied(_) if self.keep => return false,
            Entry::Occupied(mut entry) => drop(entry.insert(value)),
            Entry::Vacant(entry) => drop(entry.insert(value)),
        }
        true
    }

    fn next(&mut self, name: HeaderName, value: HeaderValue) {
        self.headers.insert(name, value);
    }
}

/// A callback that receives each header.
struct Callback<F>(F);

impl<F: FnMut(HeaderName, HeaderValue)> Target for Callback<F> {
    fn next(&mut self, name: HeaderName, value: HeaderValue) {
        self.0(name, value);
    }
}

impl Families {
    /// Whether no headers are written.
    #[inline]
    pub fn is_empty(self) -> bool {
        !self.x_ratelimit && !self.ietf
    }

    /// Selects these families, which may be none.
    pub fn new(families: &[HeaderFamily]) -> Self {
        Self {
            x_ratelimit: families.contains(&HeaderFamily::XRateLimit),
            ietf: families.contains(&HeaderFamily::Ietf),
        }
    }

    /// Adds the headers of `decision`; none if no limit applied.
    pub fn write(self, decision: &Decision, headers: &mut HeaderMap) {
        self.write_to(decision, &mut Map { headers, keep: false });
    }

    /// Calls `visit` with each header that [`write`](Self::write) would add, for protocols with
    /// their own header lists.
    ///
    /// ```
    /// use pacegate::{Check, Limit, Limiter};
    /// use pacegate_http::HeaderFamily;
    /// use pacegate_http::headers::Families;
    ///
    /// let limiter = Limiter::builder().plan("gold", [Limit::per_minute(10)]).build()?;
    /// let decision = limiter.check_now(&Check::key("user-123").plan("gold"))?;
    /// let mut lines = Vec::new();
    /// Families::new(&[HeaderFamily::Ietf]).for_each(&decision, |name, value| {
    ///     lines.push(format!("{name}: {}", value.to_str().unwrap_or_default()));
    /// });
    /// assert_eq!(lines, ["ratelimit-policy: \"gold\";q=10;w=60", "ratelimit: \"gold\";r=9;t=6"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn for_each(self, decision: &Decision, visit: impl FnMut(HeaderName, HeaderValue)) {
        self.write_to(decision, &mut Callback(visit));
    }

    /// Like [`write`](Self::write), but keeps the headers of an inner limiter.
    #[inline]
    pub fn write_if_absent(self, decision: &Decision, headers: &mut HeaderMap) {
        if self.x_ratelimit || self.ietf {
            self.write_to(decision, &mut Map { headers, keep: true });
        }
    }

    fn write_to(self, decision: &Decision, target: &mut impl Target) {
        // Limits in shadow mode are visible to operators only.
        let Some(binding) = decision.binding().filter(|binding| !binding.shadow) else { return };
        target.reserve(4 * usize::from(self.x_ratelimit) + 2 * usize::from(self.ietf));
        Fixed::with(decision, |fixed| {
            let mut values = Values::new();
            // Values that are unknown because the store is unavailable are omitted.
            let remaining = binding.remaining.map_or(0..0, |remaining| values.number(u64::from(remaining)));
            let reset = binding.reset_at.map_or(0..0, |at| values.number(at.as_secs_ceil()));
            let (states, capacity, policies) = match fixed {
                Some(fixed) => (values.only_state(&fixed.name, decision), 0..0, 0..0),
                None => {
                    let capacity = values.number(u64::from(binding.capacity));
                    (values.states(decision), capacity, values.policies(decision))
                }
            };
            let values = values.finish();
            let capacity =
                || fixed.map_or_else(|| values.get(capacity), |fixed| Some(fixed.capacity.clone()));
            let policies = || fixed.map_or_else(|| values.get(policies), |fixed| Some(fixed.policy.clone()));
            if self.x_ratelimit && first(target, LIMIT, capacity()) {
                next(target, REMAINING, values.get(remaining));
                next(target, RESET, values.get(reset));
                let strategy = || HeaderValue::from_static(binding.algorithm.name());
                target.next(STRATEGY, fixed.map_or_else(strategy, |fixed| fixed.strategy.clone()));
                if binding.standing != Standing::Normal {
                    target.next(STATE, HeaderValue::from_static(binding.standing.name()));
                }
            }
            if self.ietf && first(target, POLICY, policies()) {
                next(target, RATE_LIMIT, values.get(states));
            }
        });
    }
}

/// Adds the first header of a family, without which the others are omitted.
fn first(target: &mut impl Target, name: HeaderName, value: Option<HeaderValue>) -> bool {
    value.is_some_and(|value| target.first(name, value))
}

/// Adds another header, if it has a value.
fn next(target: &mut impl Target, name: HeaderName, value: Option<HeaderValue>) {
    if let Some(value) = value {
        target.next(name, value);
    }
}

/// Adds `Retry-After` to a denial if waiting helps.
pub fn write_retry_after(decision: &Decision, headers: &mut HeaderMap) {
    if let Some(wait) = decision.retry_after() {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds_ceil(wait)));
    }
}

/// Returns whole seconds, rounded up, so that waiting that long is always enough.
pub fn seconds_ceil(wait: std::time::Duration) -> u64 {
    wait.as_secs() + u64::from(wait.subsec_nanos() > 0)
}

/// Returns the number of limits before the one at `index` with the same name, as in a plan.
fn earlier_with_same_name(decision: &Decision, index: usize) -> usize {
    let limits = decision.limits();
    limits[..index].iter().filter(|other| other.name == limits[index].name).count()
}

/// Returns the name of the limit at `index` as in `RateLimit-Policy`.
pub fn policy_name(decision: &Decision, index: usize) -> String {
    match (earlier_with_same_name(decision, index), &decision.limits()[index].name) {
        (0, name) => name.to_string(),
        (earlier, name) => format!("{name}#{}", earlier + 1),
    }
}

#[cfg(test)]
mod tests {
    use pacegate::{Check, Limit, Limiter};

    use super::*;

    #[test]
    fn for_each_callback_can_reenter() {
        let limiter = Limiter::builder().plan("gold", [Limit::per_minute(10)]).build().unwrap();
        let decision = limiter.check_now(Check::key("u1").plan("gold")).unwrap();
        let families = Families::new(&[HeaderFamily::XRateLimit, HeaderFamily::Ietf]);
        let mut written = HeaderMap::new();
        families.write(&decision, &mut written);
        let mut visited = HeaderMap::new();
        families.for_each(&decision, |name, value| {
            let mut within = HeaderMap::new();
            families.write(&decision, &mut within);
            assert_eq!(within, written);
            visited.insert(name, value);
        });
        assert_eq!(visited, written);
        assert_eq!(visited.len(), 6);
    }
}
