//! The headers that tell a client about its limits: `X-RateLimit-*` and the IETF draft's fields.

use hyper::HeaderMap;
use hyper::header::{HeaderName, HeaderValue, RETRY_AFTER};
use tollgate::{Algorithm, Decision, HeaderFamily, Standing};

const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
const STRATEGY: HeaderName = HeaderName::from_static("x-ratelimit-strategy");
const STATE: HeaderName = HeaderName::from_static("x-ratelimit-state");
// draft-ietf-httpapi-ratelimit-headers-10; later drafts rename the parameters, so the format lives in this file alone.
const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");

/// The largest Integer of a Structured Field.
const INTEGER_MAX: u64 = 999_999_999_999_999;

/// Which families are sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Families {
    x_ratelimit: bool,
    ietf: bool,
}

impl Families {
    pub(crate) fn new(families: &[HeaderFamily]) -> Self {
        Self {
            x_ratelimit: families.contains(&HeaderFamily::XRateLimit),
            ietf: families.contains(&HeaderFamily::Ietf),
        }
    }

    /// Adds what there is to say about `decision`; nothing when no limit applied.
    pub(crate) fn write(self, decision: &Decision, headers: &mut HeaderMap) {
        // A limit that only watches is nobody's business but the operator's.
        let Some(binding) = decision.binding().filter(|binding| !binding.shadow) else { return };
        headers.reserve(8);
        if self.x_ratelimit {
            headers.insert(LIMIT, HeaderValue::from(binding.capacity));
            // What nobody knows, because the store failed, is left out rather than made up.
            if let Some(remaining) = binding.remaining {
                headers.insert(REMAINING, HeaderValue::from(remaining));
            }
            if let Some(at) = binding.reset_at {
                headers.insert(RESET, HeaderValue::from(at.as_secs_ceil()));
            }
            headers.insert(STRATEGY, strategy(binding.algorithm));
            if binding.standing != Standing::Normal {
                headers.insert(STATE, HeaderValue::from_static(binding.standing.name()));
            }
        }
        if self.ietf {
            write_ietf(decision, headers);
        }
    }
}

/// How long to wait, on a denial that waiting helps against.
pub(crate) fn write_retry_after(decision: &Decision, headers: &mut HeaderMap) {
    if let Some(wait) = decision.retry_after() {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds_ceil(wait)));
    }
}

pub(crate) fn seconds_ceil(wait: std::time::Duration) -> u64 {
    wait.as_secs() + u64::from(wait.subsec_nanos() > 0)
}

fn strategy(algorithm: Algorithm) -> HeaderValue {
    HeaderValue::from_static(algorithm.name())
}

/// One item per enforced limit: `"name";q=100;w=60` and `"name";r=50;t=30`, in whole seconds.
fn write_ietf(decision: &Decision, headers: &mut HeaderMap) {
    let (mut policies, mut states) = (Vec::with_capacity(48), Vec::with_capacity(48));
    let mut numbers = itoa::Buffer::new();
    for (place, (named, answer)) in decision.limits().iter().zip(&decision.answers).enumerate() {
        if answer.shadow {
            continue;
        }
        let earlier = decision.limits()[..place].iter().filter(|other| other.name == named.name).count();
        let mut item = |list: &mut Vec<u8>, parameters: [(&[u8], u64); 2]| {
            if !list.is_empty() {
                list.extend_from_slice(b", ");
            }
            list.push(b'"');
            list.extend_from_slice(named.name.as_bytes());
            if earlier > 0 {
                // Several limits of one name (a plan's) are told apart, as policy names have to be.
                list.push(b'#');
                list.extend_from_slice(numbers.format(earlier + 1).as_bytes());
            }
            list.push(b'"');
            for (name, value) in parameters {
                list.extend_from_slice(name);
                list.extend_from_slice(numbers.format(value.min(INTEGER_MAX)).as_bytes());
            }
        };
        // A burst above the quota is the same rate over a longer window, so that the remainder never exceeds the quota sent.
        let (quota, window) = (u64::from(named.limit.capacity()), named.limit.refill_secs_ceil());
        item(&mut policies, [(b";q=", quota), (b";w=", window)]);
        if let (Some(remaining), Some(reset_at)) = (answer.remaining, answer.reset_at) {
            let until_reset = seconds_ceil(reset_at.saturating_since(decision.at));
            item(&mut states, [(b";r=", u64::from(remaining)), (b";t=", until_reset)]);
        }
    }
    for (name, list) in [(POLICY, policies), (RATE_LIMIT, states)] {
        if !list.is_empty()
            && let Ok(value) = HeaderValue::try_from(list)
        {
            headers.insert(name, value);
        }
    }
}
