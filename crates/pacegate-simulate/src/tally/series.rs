//! Requests over time, in a bounded number of steps that grow with the log.

use pacegate::Timestamp;

use super::SETS_MAX;

/// Maximum number of steps, which is what a chart can show.
pub(crate) const STEPS_MAX: usize = 240;
/// Lengths of a step in seconds. Each is a multiple of the previous one, so that steps can be
/// merged.
const LADDER: [u64; 10] = [1, 5, 15, 60, 300, 900, 3_600, 21_600, 86_400, 604_800];

/// The requests of one step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) requests: u64,
    pub(crate) blocked: [u64; SETS_MAX],
    /// Requests over the limit of each rule, by set.
    pub(crate) by_rule: [Vec<u64>; SETS_MAX],
}

impl Step {
    fn merge(&mut self, other: Self) {
        self.requests += other.requests;
        for set in 0..SETS_MAX {
            self.blocked[set] += other.blocked[set];
            for (rule, blocked) in other.by_rule[set].iter().enumerate() {
                *self.rule_mut(set, rule) += blocked;
            }
        }
    }

    fn rule_mut(&mut self, set: usize, rule: usize) -> &mut u64 {
        let rules = &mut self.by_rule[set];
        if rules.len() <= rule {
            rules.resize(rule + 1, 0);
        }
        &mut rules[rule]
    }
}

/// All steps from the first request to the last.
#[derive(Clone, Debug)]
pub(crate) struct Steps {
    /// The length of a step in seconds.
    pub(crate) length: u64,
    /// Index of the first step, counted from 1970.
    first: Option<u64>,
    pub(crate) steps: Vec<Step>,
}

impl Default for Steps {
    fn default() -> Self {
        Self { length: LADDER[0], first: None, steps: Vec::new() }
    }
}

impl Steps {
    /// Returns the start of the first step.
    pub(crate) fn start(&self) -> Timestamp {
        Timestamp::from_micros(self.first.unwrap_or_default() * self.length * 1_000_000)
    }

    /// Returns the step of a request, which is not earlier than previous ones.
    pub(crate) fn at(&mut self, at: Timestamp) -> &mut Step {
        let seconds = at.as_micros() / 1_000_000;
        loop {
            let number = seconds / self.length;
            let place = number.saturating_sub(*self.first.get_or_insert(number)) as usize;
            if place < STEPS_MAX {
                if self.steps.len() <= place {
                    self.steps.resize(place + 1, Step::default());
                }
                return &mut self.steps[place];
            }
            self.lengthen();
        }
    }

    /// Counts the requests over the limits of rules of a set.
    pub(crate) fn count(&mut self, at: Timestamp, set: usize, blocked: bool, over_limit: &[u32]) {
        let step = self.at(at);
        step.blocked[set] += u64::from(blocked);
        for rule in over_limit {
            *step.rule_mut(set, *rule as usize) += 1;
        }
    }

    /// Merges steps into longer ones.
    fn lengthen(&mut self) {
        let next = LADDER.into_iter().find(|length| *length > self.length).unwrap_or(self.length * 2);
        let factor = next / self.length;
        let first = self.first.unwrap_or_default();
        let mut merged: Vec<Step> = Vec::new();
        for (place, step) in std::mem::take(&mut self.steps).into_iter().enumerate() {
            let to = ((first + place as u64) / factor - first / factor) as usize;
            merged.resize(merged.len().max(to + 1), Step::default());
            merged[to].merge(step);
        }
        *self = Self { length: next, first: Some(first / factor), steps: merged };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_steps_keep_all_counts() {
        for span in [1, 239, 240, 1_000, 86_400, 40_000_000, 4_000_000_000] {
            let mut steps = Steps::default();
            let start = 1_790_000_123;
            for place in 0..=500_u64 {
                let at = Timestamp::from_micros((start + span * place / 500) * 1_000_000);
                steps.at(at).requests += 1;
                steps.count(at, 1, place % 2 == 0, &[(place % 3) as u32]);
            }
            assert!(steps.steps.len() <= STEPS_MAX, "{span}");
            let sum = |of: fn(&Step) -> u64| steps.steps.iter().map(of).sum::<u64>();
            assert_eq!(sum(|step| step.requests), 501);
            assert_eq!((sum(|step| step.blocked[0]), sum(|step| step.blocked[1])), (0, 251));
            assert_eq!(sum(|step| step.by_rule[1].iter().sum()), 501);
            assert!(steps.start().as_micros() <= start * 1_000_000);
            assert_eq!(steps.start().as_micros() % (steps.length * 1_000_000), 0);
        }
    }
}
