//! What to change, so that no regular customer is blocked.

use std::collections::BTreeMap;

use super::customers::People;
use crate::report::Suggestion;
use crate::tally::customers::Customer;
use crate::tally::keys::Need;

/// Returns a suggestion for each rule that blocked regular customers, in the order of the rules.
pub(super) fn suggest(set: usize, people: &People<'_>) -> Vec<Suggestion> {
    let mut by_rule: BTreeMap<u32, Suggestion> = BTreeMap::new();
    let blocked_by = |wanted: &dyn Fn(&Customer) -> bool| {
        let found = people.all().iter().filter(|customer| wanted(customer));
        found.filter_map(|customer| people.need(customer, set)).collect::<Vec<_>>()
    };
    for (culprit, needed) in blocked_by(&|customer| people.is_regular(customer, set)) {
        let limit = people.limit(set, culprit);
        let suggestion = by_rule.entry(culprit.rule).or_insert_with(|| Suggestion {
            rule: limit.name.to_string(),
            setting: Need::of(&limit.limit).name().to_owned(),
            current: people.available(set, culprit),
            suggested: 0,
            exact: Need::is_exact(&limit.limit),
            customers: 0,
            outliers: 0,
            outliers_blocked: 0,
        });
        suggestion.customers += 1;
        suggestion.suggested = suggestion.suggested.max(needed);
    }
    for (culprit, needed) in blocked_by(&|customer| people.is_outlier(customer, set)) {
        if let Some(suggestion) = by_rule.get_mut(&culprit.rule) {
            suggestion.outliers += 1;
            suggestion.outliers_blocked += u64::from(needed > suggestion.suggested);
        }
    }
    // A customer that several rules blocked can need no more than one of them allows.
    by_rule.into_values().filter(|each| each.suggested > u64::from(each.current)).collect()
}
