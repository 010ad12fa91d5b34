//! Requests by endpoint.

use std::borrow::Cow;

use compact_str::CompactString;
use hashbrown::HashMap;

use super::SETS_MAX;

/// Maximum number of endpoints. Further ones are counted together.
const ENDPOINTS_MAX: usize = 10_000;
/// Minimum length of a hexadecimal number. Shorter ones can be words.
const HEXADECIMAL_MIN: usize = 16;

/// The requests of one endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EndpointCount {
    pub(crate) requests: u64,
    pub(crate) blocked: [u64; SETS_MAX],
}

impl EndpointCount {
    fn add(&mut self, blocked: [bool; SETS_MAX]) {
        self.requests += 1;
        for (count, blocked) in self.blocked.iter_mut().zip(blocked) {
            *count += u64::from(blocked);
        }
    }
}

/// All endpoints, up to a bound.
#[derive(Debug, Default)]
pub(crate) struct Endpoints {
    counts: HashMap<CompactString, EndpointCount, foldhash::fast::RandomState>,
    pub(crate) others: EndpointCount,
}

impl Endpoints {
    pub(crate) fn count(&mut self, endpoint: &str, blocked: [bool; SETS_MAX]) {
        let name = without_numbers(endpoint);
        if let Some(count) = self.counts.get_mut(&*name) {
            count.add(blocked);
        } else if self.counts.len() < ENDPOINTS_MAX {
            self.counts.entry(CompactString::new(name)).or_default().add(blocked);
        } else {
            self.others.add(blocked);
        }
    }

    /// Returns the endpoints, those with the most blocked requests first.
    pub(crate) fn sorted(&self) -> Vec<(&str, EndpointCount)> {
        let mut all: Vec<(&str, EndpointCount)> =
            self.counts.iter().map(|(name, count)| (name.as_str(), *count)).collect();
        all.sort_unstable_by_key(|(name, count)| {
            (std::cmp::Reverse((count.blocked.iter().sum::<u64>(), count.requests)), *name)
        });
        all
    }
}

/// Returns `/orders/{id}` for `/orders/17`, so that endpoints that differ by a number are counted
/// together.
fn without_numbers(endpoint: &str) -> Cow<'_, str> {
    if !endpoint.bytes().any(|byte| byte.is_ascii_digit()) || !endpoint.split('/').any(is_number) {
        return Cow::Borrowed(endpoint);
    }
    let parts: Vec<&str> =
        endpoint.split('/').map(|part| if is_number(part) { "{id}" } else { part }).collect();
    Cow::Owned(parts.join("/"))
}

/// Whether a part is a decimal number, or a long hexadecimal number with or without hyphens.
fn is_number(part: &str) -> bool {
    let digits = |byte: u8| byte.is_ascii_digit();
    let hexadecimal = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
    !part.is_empty() && part.bytes().all(digits)
        || part.len() >= HEXADECIMAL_MIN && part.bytes().all(hexadecimal) && part.bytes().any(digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_replaced() {
        let rows = [
            ("/", "/"),
            ("/orders/17", "/orders/{id}"),
            ("/v1/orders/17/items/2", "/v1/orders/{id}/items/{id}"),
            ("/u/550e8400-e29b-41d4-a716-446655440000", "/u/{id}"),
            ("/u/a1b2c3", "/u/a1b2c3"),
        ];
        for (endpoint, expected) in rows {
            assert_eq!(without_numbers(endpoint), expected);
        }
    }

    #[test]
    fn endpoints_are_bounded() {
        let mut endpoints = Endpoints::default();
        for number in 0..ENDPOINTS_MAX + 5 {
            endpoints.count(&format!("/x{number}"), [number == 7, false]);
        }
        assert_eq!(endpoints.sorted().len(), ENDPOINTS_MAX);
        assert_eq!(endpoints.others.requests, 5);
        assert_eq!(endpoints.sorted()[0].0, "/x7");
    }
}
