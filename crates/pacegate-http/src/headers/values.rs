//! The texts of a response's headers, in one piece of memory; and those that never change, written once.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderValue;
use pacegate::{Answer, Decision, NamedLimit};

use super::{earlier_of_that_name, seconds_ceil};

/// The largest Integer of a Structured Field.
const INTEGER_MAX: u64 = 999_999_999_999_999;
/// How many limits each thread remembers the texts of.
const REMEMBERED: usize = 8;

/// Texts on their way into headers: written one after the other, then cut out of one allocation.
pub(super) struct Values {
    text: Vec<u8>,
}

impl Values {
    pub(super) fn new() -> Self {
        // What one limit with a short name needs.
        Self { text: Vec::with_capacity(64) }
    }

    #[inline]
    pub(super) fn number(&mut self, number: u64) -> Range<usize> {
        let start = self.text.len();
        self.push(itoa::Buffer::new().format(number));
        start..self.text.len()
    }

    /// One item per enforced limit, in whole seconds: `"name";q=100;w=60`, with `qu="tokens"` for a unit other than requests.
    pub(super) fn policies(&mut self, decision: &Decision) -> Range<usize> {
        let start = self.text.len();
        for place in enforced(decision) {
            let (limit, unit) = (&decision.limits()[place].limit, &decision.limits()[place].unit);
            self.name(decision, place, start);
            // A burst above the quota is the same rate over a longer window, so that the remainder never exceeds the quota sent.
            self.push(";q=");
            self.integer(u64::from(limit.capacity()));
            if let Some(unit) = unit {
                // A unit is a word of letters, digits, `_` and `-`: nothing to escape.
                self.push(";qu=\"");
                self.push(unit);
                self.push("\"");
            }
            self.push(";w=");
            self.integer(limit.refill_secs_ceil());
        }
        start..self.text.len()
    }

    /// One item per enforced limit whose numbers are known: `"name";r=50;t=30`
    pub(super) fn states(&mut self, decision: &Decision) -> Range<usize> {
        let start = self.text.len();
        for place in enforced(decision) {
            if is_known(&decision.answers()[place]) {
                self.name(decision, place, start);
                self.state(&decision.answers()[place], decision);
            }
        }
        start..self.text.len()
    }

    /// The same for a decision by one limit, whose quoted name is written already.
    #[inline]
    pub(super) fn only_state(&mut self, name: &str, decision: &Decision) -> Range<usize> {
        let start = self.text.len();
        if let [answer] = decision.answers()
            && is_known(answer)
        {
            self.push(name);
            self.state(answer, decision);
        }
        start..self.text.len()
    }

    #[inline]
    fn state(&mut self, answer: &Answer, decision: &Decision) {
        let reset_at = answer.reset_at.unwrap_or(decision.at());
        self.push(";r=");
        self.integer(u64::from(answer.remaining.unwrap_or_default()));
        self.push(";t=");
        self.integer(seconds_ceil(reset_at.saturating_since(decision.at())));
    }

    /// The quoted name of a limit, behind others of the list that begins at `start`.
    fn name(&mut self, decision: &Decision, place: usize, start: usize) {
        if self.text.len() > start {
            self.push(", ");
        }
        self.push("\"");
        self.push(&decision.limits()[place].name);
        let earlier = earlier_of_that_name(decision, place);
        if earlier > 0 {
            // Several limits of one name (a plan's) are told apart, as policy names have to be.
            self.push("#");
            self.number(earlier as u64 + 1);
        }
        self.push("\"");
    }

    #[inline]
    fn integer(&mut self, value: u64) {
        self.number(value.min(INTEGER_MAX));
    }

    #[inline]
    fn push(&mut self, text: &str) {
        self.text.extend_from_slice(text.as_bytes());
    }

    pub(super) fn finish(self) -> Written {
        Written(Bytes::from(self.text))
    }
}

/// Whether the numbers of an answer are known, which they are not when its store failed.
fn is_known(answer: &Answer) -> bool {
    answer.remaining.is_some() && answer.reset_at.is_some()
}

/// Texts that can be cut out.
pub(super) struct Written(Bytes);

impl Written {
    /// The text at a place that [`Values`] said; `None` when there is none.
    pub(super) fn get(&self, range: Range<usize>) -> Option<HeaderValue> {
        if range.is_empty() {
            return None;
        }
        HeaderValue::from_maybe_shared(self.0.slice(range)).ok()
    }
}

fn enforced(decision: &Decision) -> impl Iterator<Item = usize> {
    (0..decision.limits().len().min(decision.answers().len()))
        .filter(|place| !decision.answers()[*place].shadow)
}

/// What is said about a limit in every response, whatever is left of it.
pub(super) struct Fixed {
    limit: Arc<NamedLimit>,
    pub(super) capacity: HeaderValue,
    pub(super) strategy: HeaderValue,
    pub(super) policy: HeaderValue,
    /// Its quoted name.
    pub(super) name: Box<str>,
}

thread_local! {
    /// By where the limit is in memory. The limit is kept, so that no other one can be there.
    static LIMITS: RefCell<[Option<Fixed>; REMEMBERED]> =
        const { RefCell::new([const { None }; REMEMBERED]) };
}

impl Fixed {
    /// Has `use_it` see what is fixed about a decision by one limit, which most are; `None` for others.
    #[inline]
    pub(super) fn with<T>(decision: &Decision, use_it: impl FnOnce(Option<&Self>) -> T) -> T {
        let ([limit], [answer]) = (decision.limits(), decision.answers()) else { return use_it(None) };
        // A repeated answer may be older than the limit.
        if answer.capacity != limit.limit.capacity() {
            return use_it(None);
        }
        let slot = (Arc::as_ptr(limit) as usize / 64) % REMEMBERED;
        // Taken out meanwhile, because whoever uses it may come here again.
        let mut known = LIMITS.with_borrow_mut(|limits| limits[slot].take());
        if !known.as_ref().is_some_and(|known| Arc::ptr_eq(&known.limit, limit)) {
            known = Self::write(decision, limit);
        }
        let used = use_it(known.as_ref());
        LIMITS.with_borrow_mut(|limits| limits[slot] = known);
        used
    }

    #[cold]
    fn write(decision: &Decision, limit: &Arc<NamedLimit>) -> Option<Self> {
        let mut values = Values::new();
        let capacity = values.number(u64::from(limit.limit.capacity()));
        let policy = values.policies(decision);
        let values = values.finish();
        Some(Self {
            limit: limit.clone(),
            capacity: values.get(capacity)?,
            strategy: HeaderValue::from_static(limit.limit.algorithm().name()),
            policy: values.get(policy)?,
            name: format!("\"{}\"", limit.name).into(),
        })
    }
}
