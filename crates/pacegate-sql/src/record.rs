//! The record of an admission under an idempotency key: enough to replay the decision.

use std::time::Duration;

use pacegate_core::{Algorithm, Answer, Answers, ChainDecision, Limit, Reason, Standing, Timestamp};

const VERSION: u8 = 2;
/// Encodes the absence of a time.
const NEVER: u64 = u64::MAX;

/// Flags of an answer. Versions without debt wrote neither the last flag nor the field that it
/// announces.
const ALLOWED: u8 = 1;
const SHADOW: u8 = 2;
const UNCHARGED: u8 = 4;

/// An admitted request and its decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) fingerprint: [u8; 16],
    /// A digest of the limits that the answers are valid for.
    pub(crate) limits: [u8; 8],
    pub(crate) decision: ChainDecision,
}

impl Record {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        bytes.extend(self.fingerprint);
        bytes.extend(self.limits);
        bytes.extend(self.decision.at.as_micros().to_le_bytes());
        for answer in &self.decision.answers {
            bytes.extend([
                answer.algorithm.code(),
                flags(answer),
                match answer.reason {
                    None => 0,
                    Some(Reason::LimitExceeded) => 1,
                    Some(_) => 2,
                },
                answer.standing as u8,
                answer.previous_standing as u8,
            ]);
            let numbers = [
                answer.capacity,
                answer.remaining.unwrap_or_default(),
                answer.queue_position().unwrap_or_default(),
            ];
            bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
            let delay = answer.delay().map_or(0, |delay| u64::try_from(delay.as_micros()).unwrap_or(NEVER));
            let times = [micros(answer.reset_at), micros(answer.retry_at), delay];
            bytes.extend(times.iter().flat_map(|time| time.to_le_bytes()));
            if answer.uncharged > 0 {
                bytes.extend(answer.uncharged.to_le_bytes());
            }
        }
        bytes
    }

    /// `None` for bytes that no version of Pacegate writes.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        if reader.byte()? != VERSION {
            return None;
        }
        let (fingerprint, limits) = (reader.take()?, reader.take()?);
        let at = Timestamp::from_micros(reader.time()?);
        let mut answers = Answers::new();
        while !reader.0.is_empty() {
            answers.push(reader.answer()?);
        }
        // Only admissions are recorded.
        Some(Self { fingerprint, limits, decision: ChainDecision::new(true, at, answers) })
    }
}

fn flags(answer: &Answer) -> u8 {
    let set = [(answer.allowed, ALLOWED), (answer.shadow, SHADOW), (answer.uncharged > 0, UNCHARGED)];
    set.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum()
}

fn micros(time: Option<Timestamp>) -> u64 {
    time.map_or(NEVER, Timestamp::as_micros)
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take().map(|[byte]| byte)
    }

    fn number(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn time(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn standing(&mut self) -> Option<Standing> {
        match self.byte()? {
            0 => Some(Standing::Normal),
            1 => Some(Standing::Warning),
            2 => Some(Standing::Throttled),
            _ => None,
        }
    }

    fn answer(&mut self) -> Option<Answer> {
        let code = self.byte()?;
        let algorithm = Algorithm::ALL.into_iter().find(|algorithm| algorithm.code() == code)?;
        let (flags, reason) = (self.byte()?, self.byte()?);
        let (standing, previous) = (self.standing()?, self.standing()?);
        let (capacity, remaining, position) = (self.number()?, self.number()?, self.number()?);
        let (reset_at, retry_at, delay) = (self.time()?, self.time()?, self.time()?);
        // An answer takes its algorithm and capacity from a limit; the window is not part of it.
        let limit = Limit::try_new(algorithm, u64::from(capacity), Duration::from_secs(1)).ok()?;
        let mut answer = Answer::undecided(&limit, remaining, Timestamp::from_micros(reset_at), previous);
        answer.allowed = flags & ALLOWED != 0;
        answer.shadow = flags & SHADOW != 0;
        answer.uncharged = if flags & UNCHARGED == 0 { 0 } else { self.number()? };
        answer.standing = standing;
        answer.reason = match reason {
            0 => None,
            1 => Some(Reason::LimitExceeded),
            _ => Some(Reason::CostExceedsLimit),
        };
        answer.retry_at = (retry_at != NEVER).then(|| Timestamp::from_micros(retry_at));
        answer.set_queue(Duration::from_micros(delay), position);
        Some(answer)
    }
}
