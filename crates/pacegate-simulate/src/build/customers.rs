//! The customers that would have been blocked, and which of them are regular customers.

use std::cmp::Reverse;

use pacegate::NamedLimit;
use pacegate_core::hexadecimal;
use sha2::{Digest, Sha256};

use super::share;
use crate::log::LogReader;
use crate::log::record::visible;
use crate::options::Options;
use crate::replay::{Replay, ReplaySet};
use crate::report::{CustomerReport, DimensionReport};
use crate::tally::customers::{Customer, PERIOD};
use crate::tally::keys::{Need, NeedOf};
use crate::tally::rules::Culprit;
use crate::time::format_time;
use crate::words::OFTEN;

const SHOWN: usize = 50;
/// Minimum number of requests of a regular customer, and of ten-minute periods with requests.
const REGULAR_REQUESTS: u64 = 20;
const REGULAR_PERIODS: u64 = 3;
/// Minimum share of blocked requests of an outlier, and how many times its demand exceeds the limit
/// and the demand of a typical key.
const OUTLIER_SHARE: f64 = 0.5;
const OUTLIER_FACTOR: u64 = 3;
/// Number of bytes of a hash in the report: among a million customers, a collision is unlikely.
const HASH_BYTES: usize = 6;

/// All customers in the log.
pub(super) struct People<'a> {
    replay: &'a Replay,
    dimensions: Vec<&'a str>,
    secret: Option<&'a [u8]>,
    /// Fewer than [`REGULAR_PERIODS`] in a log that is shorter.
    periods_needed: u64,
    /// The median of the needs of all keys but the greatest, by set of rules and rule: an only key
    /// is not typical.
    typical: Vec<Vec<u64>>,
}

impl<'a> People<'a> {
    pub(super) fn new(log: &'a LogReader, replay: &'a Replay, options: &'a Options) -> Self {
        let number = |micros: u64| micros / PERIOD.as_micros() as u64;
        let periods =
            replay.span.map_or(1, |(first, last)| number(last.as_micros()) - number(first.as_micros()) + 1);
        let median =
            |(needs, _): &(Vec<u64>, u64)| needs.len().checked_sub(2).map_or(0, |last| needs[last / 2]);
        let typical = |set: &ReplaySet| set.tally.keys_by_rule().iter().map(median).collect();
        Self {
            replay,
            typical: replay.sets.iter().map(typical).collect(),
            dimensions: log.mapping().dimensions.iter().map(|(dimension, _)| dimension.as_str()).collect(),
            secret: options.hash_keys.as_deref(),
            periods_needed: REGULAR_PERIODS.min(periods),
        }
    }

    pub(super) fn dimensions(&self) -> &[&'a str] {
        &self.dimensions
    }

    pub(super) fn all(&self) -> &'a [Customer] {
        self.replay.customers.all()
    }

    /// Returns the customers with the most blocked requests.
    pub(super) fn most_blocked(&self, set: usize) -> Vec<CustomerReport> {
        self.listed(set, SHOWN, |_| true)
    }

    /// Returns regular customers that are blocked: first those blocked often, then the others.
    pub(super) fn regular_hurt(&self, set: usize) -> Vec<CustomerReport> {
        let kind = |often: bool| {
            self.listed(set, SHOWN, |customer| {
                self.is_regular(customer, set) && is_blocked_often(customer, set) == often
            })
        };
        [kind(true), kind(false)].concat()
    }

    /// Returns customers with a demand far above the limit and above that of other keys.
    pub(super) fn outliers(&self, set: usize) -> Vec<CustomerReport> {
        self.listed(set, SHOWN, |customer| self.is_outlier(customer, set))
    }

    /// Returns the customers that `wanted` accepts and that the set blocked, most blocked first.
    pub(super) fn listed(
        &self,
        set: usize,
        shown: usize,
        wanted: impl Fn(&Customer) -> bool,
    ) -> Vec<CustomerReport> {
        let blocked = |customer: &Customer| customer.hurt(set).map_or(0, |hurt| hurt.blocked);
        let mut found: Vec<&Customer> =
            self.all().iter().filter(|customer| blocked(customer) > 0 && wanted(customer)).collect();
        let rank = |customer: &&Customer| {
            (Reverse(blocked(customer)), customer.dimension, customer.requests, customer.identifier.clone())
        };
        found.sort_by_cached_key(rank);
        found.truncate(shown);
        found.into_iter().filter_map(|customer| self.report(customer, set)).collect()
    }

    pub(super) fn by_dimension(&self, set: usize) -> Vec<DimensionReport> {
        let mut dimensions: Vec<DimensionReport> = self
            .dimensions
            .iter()
            .map(|dimension| DimensionReport {
                dimension: (*dimension).to_owned(),
                customers: 0,
                blocked: 0,
                regular_hurt: 0,
                regular_often: 0,
                outliers: 0,
            })
            .collect();
        for customer in self.all() {
            let dimension = &mut dimensions[usize::from(customer.dimension)];
            dimension.customers += 1;
            dimension.blocked += u64::from(customer.hurt(set).is_some());
            let regular_hurt = customer.hurt(set).is_some() && self.is_regular(customer, set);
            dimension.outliers += u64::from(self.is_outlier(customer, set));
            dimension.regular_hurt += u64::from(regular_hurt);
            dimension.regular_often += u64::from(regular_hurt && is_blocked_often(customer, set));
        }
        dimensions
    }

    pub(super) fn is_regular(&self, customer: &Customer, set: usize) -> bool {
        customer.requests >= REGULAR_REQUESTS
            && u64::from(customer.periods) >= self.periods_needed
            && !self.is_outlier(customer, set)
    }

    /// Whether most requests of a customer are blocked because it wants several times what the rule
    /// allows and what a typical key of the rule needs. A limit that is too low for everyone makes
    /// no outliers.
    pub(super) fn is_outlier(&self, customer: &Customer, set: usize) -> bool {
        let Some(hurt) = customer.hurt(set) else { return false };
        let Some((culprit, needed)) = self.need(customer, set) else { return false };
        let typical = self.typical[set][culprit.rule as usize].max(u64::from(self.available(set, culprit)));
        share(hurt.blocked, customer.requests) >= OUTLIER_SHARE && needed >= OUTLIER_FACTOR * typical
    }

    /// Returns the rule and key that blocked most requests of a customer, and what the key needs.
    pub(super) fn need(&self, customer: &Customer, set: usize) -> Option<(Culprit, u64)> {
        let culprit = customer.hurt(set)?.culprit()?;
        let key = self.replay.sets[set].tally.keys.get(culprit.key)?;
        Some((culprit, key.need.enough()))
    }

    pub(super) fn limit(&self, set: usize, culprit: Culprit) -> &'a NamedLimit {
        &self.replay.sets[set].tally.rows()[culprit.rule as usize].limit
    }

    /// The limit or burst of the rule, whichever its keys need more of.
    pub(super) fn available(&self, set: usize, culprit: Culprit) -> u32 {
        let limit = &self.limit(set, culprit).limit;
        match Need::of(limit) {
            NeedOf::Limit => limit.quota(),
            NeedOf::Burst => limit.capacity(),
        }
    }

    fn report(&self, customer: &Customer, set: usize) -> Option<CustomerReport> {
        let hurt = customer.hurt(set)?;
        let culprit = hurt.culprit()?;
        let limit = self.limit(set, culprit);
        let key = self.replay.sets[set].tally.keys.get(culprit.key);
        let shown_key = key.map(|key| {
            let (identifier, endpoint) = key.name.split_once('\n').unwrap_or((&key.name, ""));
            let at = if endpoint.is_empty() { String::new() } else { format!(" at {endpoint}") };
            format!("{} {}{at}", limit.dimension(), self.shown(limit.dimension(), identifier))
        });
        let dimension = self.dimensions[usize::from(customer.dimension)];
        let other =
            (self.replay.sets.len() > 1).then(|| customer.hurt(1 - set).map_or(0, |hurt| hurt.blocked));
        Some(CustomerReport {
            dimension: dimension.to_owned(),
            identifier: self.shown(dimension, &customer.identifier),
            requests: customer.requests,
            blocked: hurt.blocked,
            blocked_share: share(hurt.blocked, customer.requests),
            often: is_blocked_often(customer, set),
            blocked_by_other: other,
            first_blocked: format_time(hurt.first),
            last_blocked: format_time(hurt.last),
            longest_stretch_seconds: super::seconds(hurt.longest),
            rule: limit.name.to_string(),
            key: shown_key,
            needed: key.map(|key| key.need.enough()),
            available: self.available(set, culprit),
        })
    }

    /// Returns an identifier as the report shows it: unchanged, or hashed with the secret.
    pub(super) fn shown(&self, dimension: &str, identifier: &str) -> String {
        let Some(secret) = self.secret else { return visible(identifier) };
        let mut hasher = Sha256::new();
        for part in [secret, dimension.as_bytes(), identifier.as_bytes()] {
            hasher.update((part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        format!("#{}", hexadecimal(&hasher.finalize()[..HASH_BYTES]))
    }
}

fn is_blocked_often(customer: &Customer, set: usize) -> bool {
    customer.hurt(set).is_some_and(|hurt| share(hurt.blocked, customer.requests) >= OFTEN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::{OUTLIER, REGULAR, REGULAR_LISTS};

    #[test]
    fn definition_of_regular_is_the_documented_one() {
        let documented = format!(
            "at least {REGULAR_REQUESTS} requests in at least {REGULAR_PERIODS} periods of ten minutes"
        );
        let often = format!("{} %", OFTEN * 100.0);
        assert!(REGULAR_LISTS.iter().all(|(title, _)| title.contains(&often)));
        assert_eq!((REGULAR, PERIOD.as_secs()), (documented.as_str(), 600));
        let outlier = format!("{OUTLIER_FACTOR} times");
        assert!(OUTLIER.contains(&outlier) && OUTLIER.contains("half") && OUTLIER_SHARE == 0.5);
    }
}
