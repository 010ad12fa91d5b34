//! Header values of a response, in one allocation, and a cache of those that never change.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderValue;
use pacegate::{Answer, Decision, NamedLimit};

use super::{earlier_with_same_name, seconds_ceil};

/// The largest Integer of a Structured Field (RFC 8941).
const INTEGER_MAX: u64 = 999_999_999_999_999;
/// Number of limits whose values each thread caches.
const CACHED: usize = 8;

/// Builds header values: written one after the other, then sliced from one allocation.
pub(super) struct Values {
    text: Vec<u8>,
}

impl Values {
    pub(super) fn new() -> Self {
        // Enough for one limit with a short name.
        Self { text: Vec::with_capacity(64) }
    }

    #[inline]
    pub(super) fn number(&mut self, number: u64) -> Range<usize> {
        let start = self.text.len();
        self.push(itoa::Buffer::new().format(number));
        start..self.text.len()
    }

    /// Writes one item per enforced limit, in whole seconds: `"name";q=100;w=60`, with
    /// `qu="tokens"` for a unit other than requests.
    pub(super) fn policies(&mut self, decision: &Decision) -> Range<usize> {
        let start = self.text.len();
        for index in enforced(decision) {
            let (limit, unit) = (&decision.limits()[index].limit, &decision.limits()[index].unit);
            self.name(decision, index, start);
            // A burst above the quota is sent as the same rate over a longer window, so that the
            // remaining quota never exceeds the quota sent.
            self.push(";q=");
            self.integer(u64::from(limit.capacity()));
            if let Some(unit) = unit {
                // A unit has letters, digits, `_` and `-` only, so it needs no escaping.
                self.push(";qu=\"");
                self.push(unit);
                self.push("\"");
            }
            self.push(";w=");
            self.integer(limit.refill_secs_ceil());
        }
        start..self.text.len()
    }

    /// Writes one item per enforced limit whose numbers are known: `"name";r=50;t=30`
    pub(super) fn states(&mut self, decision: &Decision) -> Range<usize> {
        let start = self.text.len();
        for index in enforced(decision) {
            if is_known(&decision.answers()[index]) {
                self.name(decision, index, start);
                self.state(&decision.answers()[index], decision);
            }
        }
        start..self.text.len()
    }

    /// Writes the item of a decision by one limit, whose quoted name is cached.
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

    /// Writes the quoted name of a limit, after the other items of the list that begins at `start`.
    fn name(&mut self, decision: &Decision, index: usize, start: usize) {
        if self.text.len() > start {
            self.push(", ");
        }
        self.push("\"");
        self.push(&decision.limits()[index].name);
        let earlier = earlier_with_same_name(decision, index);
        if earlier > 0 {
            // Policy names must be unique, so several limits of one name (as in a plan) get a
            // number.
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

/// Returns whether the numbers of an answer are known; they are not if its store was unavailable.
fn is_known(answer: &Answer) -> bool {
    answer.remaining.is_some() && answer.reset_at.is_some()
}

/// Finished values that can be sliced.
pub(super) struct Written(Bytes);

impl Written {
    /// Returns the value at a range that [`Values`] returned; `None` if the range is empty.
    pub(super) fn get(&self, range: Range<usize>) -> Option<HeaderValue> {
        if range.is_empty() {
            return None;
        }
        HeaderValue::from_maybe_shared(self.0.slice(range)).ok()
    }
}

fn enforced(decision: &Decision) -> impl Iterator<Item = usize> {
    (0..decision.limits().len().min(decision.answers().len()))
        .filter(|index| !decision.answers()[*index].shadow)
}

/// The header values of a limit that do not depend on its state.
pub(super) struct Fixed {
    limit: Arc<NamedLimit>,
    pub(super) capacity: HeaderValue,
    pub(super) strategy: HeaderValue,
    pub(super) policy: HeaderValue,
    /// Its quoted name.
    pub(super) name: Box<str>,
}

thread_local! {
    /// Keyed by the memory address of the limit. The limit is kept alive, so that no other one can
    /// have its address.
    static LIMITS: RefCell<[Option<Fixed>; CACHED]> =
        const { RefCell::new([const { None }; CACHED]) };
}

impl Fixed {
    /// Calls `use_it` with the fixed values of a decision by one limit, which is the usual case;
    /// `None` for others.
    #[inline]
    pub(super) fn with<T>(decision: &Decision, use_it: impl FnOnce(Option<&Self>) -> T) -> T {
        let ([limit], [answer]) = (decision.limits(), decision.answers()) else { return use_it(None) };
        // A replayed decision may be older than the limit.
        if answer.capacity != limit.limit.capacity() {
            return use_it(None);
        }
        let slot = (Arc::as_ptr(limit) as usize / 64) % CACHED;
        // Taken out during the call, because the callback may call this function again.
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
