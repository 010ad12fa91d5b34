//! The script, its arguments and its replies.

use pacegate_core::{Answer, Answers, ChainDecision, Fit, Reason, Standing, Timestamp};
use pacegate_store::{Action, Charge, Command, Idempotency, Outcome, StoreError};
use redis::Cmd;

use crate::keys::Keys;

/// The script; its header documents its arguments.
pub(crate) const SCRIPT: &str = include_str!("check.lua");

const CHARGE_LENGTH: usize = 67;
const ANSWER_LENGTH: usize = 36;
/// What a debt bound kept from being charged, if anything.
const UNCHARGED_LENGTH: usize = 4;

/// The call of the script for `command`. A take creates new keys unless `known_only` is set.
pub(crate) fn invocation(
    hash: &str,
    command: &Command<'_>,
    keys: &Keys,
    known_only: bool,
    now: Option<Timestamp>,
) -> Cmd {
    let mut call = redis::cmd("EVALSHA");
    call.arg(hash).arg(keys.names.len());
    for name in &keys.names {
        call.arg(name.as_str());
    }
    let (action, extra) = match &command.action {
        Action::Take { idempotency } => {
            (if known_only { "k" } else { "t" }, idempotency.map(|own| request(&own, command)))
        }
        Action::Peek { idempotency } => ("p", idempotency.map(|own| request(&own, command))),
        Action::Refund => ("f", times(command.charges)),
        // Resets, and any action without a reply of its own.
        _ => ("x", None),
    };
    call.arg(action);
    for charge in command.charges {
        call.arg(&packed(charge)[..]);
    }
    if extra.is_some() || now.is_some() {
        call.arg(extra.unwrap_or_default());
    }
    if let Some(now) = now {
        call.arg(now.as_micros());
    }
    call
}

/// The fingerprints of the request and of its limits.
fn request(idempotency: &Idempotency<'_>, command: &Command<'_>) -> Vec<u8> {
    [&idempotency.fingerprint[..], &command.limits_digest()[..]].concat()
}

/// When the cost of each charge was taken, as doubles; `None` if no time is given.
fn times(charges: &[Charge<'_>]) -> Option<Vec<u8>> {
    charges.iter().any(|charge| charge.taken_at.is_some()).then(|| {
        let time = |charge: &Charge<'_>| charge.taken_at.map_or(-1.0, |at| at.as_micros() as f64);
        charges.iter().flat_map(|charge| time(charge).to_le_bytes()).collect()
    })
}

/// A charge as the script unpacks it: `<BBBI4I4ddddddd`.
fn packed(charge: &Charge<'_>) -> [u8; CHARGE_LENGTH] {
    let (limit, scale) = (charge.limit, charge.limit.scale());
    let mut bytes = [0; CHARGE_LENGTH];
    let fit = match charge.fit {
        Fit::Whole => 0,
        Fit::Overdraw => 2,
        Fit::Forced => 4,
    };
    bytes[0] = limit.algorithm().code();
    bytes[1] = u8::from(charge.shadow) | fit;
    bytes[2] = scale.tick_exponent();
    bytes[3..7].copy_from_slice(&limit.quota().to_le_bytes());
    bytes[7..11].copy_from_slice(&limit.capacity().to_le_bytes());
    let window = u64::try_from(limit.window().as_micros()).unwrap_or(u64::MAX);
    let (cost, capacity) = (u64::from(charge.cost.get()), scale.capacity());
    let numbers = [cost, window, scale.tick(), scale.window_ticks(), scale.unit(), scale.rate(), capacity];
    for (field, number) in bytes[11..].chunks_exact_mut(8).zip(numbers) {
        // Exact: all of them are below 2^53.
        field.copy_from_slice(&(number as f64).to_le_bytes());
    }
    bytes
}

/// The number of long-lived keys that the command created.
pub(crate) fn new_keys(reply: &[u8]) -> u64 {
    reply.first().map_or(0, |status| u64::from(status.saturating_sub(16)))
}

/// Parses the script's reply to `command`.
pub(crate) fn outcome(command: &Command<'_>, reply: &[u8]) -> Result<Outcome, StoreError> {
    let mut reply = Reply(reply);
    parse(command, &mut reply).ok_or_else(|| StoreError::rejected("Redis ran another version of the script"))
}

fn parse(command: &Command<'_>, reply: &mut Reply<'_>) -> Option<Outcome> {
    let (status, at) = (reply.byte()?, reply.time()?);
    match status {
        2 => return Some(Outcome::Mismatch),
        3 => return Some(Outcome::Reset { at }),
        _ => {}
    }
    let allowed = reply.byte()? == 1;
    let (length, charges) = (reply.0.len(), command.charges.len());
    if length != charges * ANSWER_LENGTH && length != charges * (ANSWER_LENGTH + UNCHARGED_LENGTH) {
        return None;
    }
    let answers: Option<Answers> = command.charges.iter().map(|charge| answer(charge, reply)).collect();
    let mut answers = answers?;
    if !reply.0.is_empty() {
        for answer in &mut answers {
            answer.uncharged = reply.whole()?;
        }
    }
    let mut decision = ChainDecision::new(allowed, at, answers);
    decision.replayed = status == 1;
    Some(Outcome::Decided(if status == 4 { decision.into_replay() } else { decision }))
}

fn answer(charge: &Charge<'_>, reply: &mut Reply<'_>) -> Option<Answer> {
    let (allowed, reason) = (reply.byte()?, reply.byte()?);
    let (standing, previous) = (reply.standing()?, reply.standing()?);
    let (remaining, position) = (reply.whole()?, reply.whole()?);
    let (reset_at, retry_at, delay) = (reply.time()?, reply.number()?, reply.time()?);
    let mut answer = Answer::undecided(charge.limit, remaining, reset_at, previous);
    answer.allowed = allowed == 1;
    answer.shadow = charge.shadow;
    answer.standing = standing;
    answer.reason = match reason {
        0 => None,
        1 => Some(Reason::LimitExceeded),
        _ => Some(Reason::CostExceedsLimit),
    };
    answer.retry_at = (retry_at >= 0.0).then_some(Timestamp::from_micros(retry_at as u64));
    answer.set_queue(std::time::Duration::from_micros(delay.as_micros()), position);
    Some(answer)
}

struct Reply<'a>(&'a [u8]);

impl Reply<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take().map(|[byte]| byte)
    }

    fn whole(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn number(&mut self) -> Option<f64> {
        self.take().map(f64::from_le_bytes)
    }

    /// A double that holds a whole number of microseconds.
    fn time(&mut self) -> Option<Timestamp> {
        self.number().map(|number| Timestamp::from_micros(number as u64))
    }

    fn standing(&mut self) -> Option<Standing> {
        match self.byte()? {
            0 => Some(Standing::Normal),
            1 => Some(Standing::Warning),
            _ => Some(Standing::Throttled),
        }
    }
}
