//! The byte encoding of a state: version, algorithm and standing, then varints.

use thiserror::Error;

use super::{Counts, State};
use crate::algorithm::{Bucket, FixedWindow, Log, WindowCounts};
use crate::limit::{Algorithm, Limit, Shape};
use crate::standing::Standing;
use crate::time::EXACT_MAX;

const VERSION: u8 = 1;
/// No limit has a tick above 10^7 µs, and a 366-day window has 14 digits of microseconds; a larger
/// exponent cannot be valid.
const TICK_EXPONENT_MAX: u8 = 13;

impl State {
    /// Encodes the state as bytes that every later version of Pacegate can read.
    ///
    /// ```
    /// use pacegate_core::{Cost, Evaluation, Limit, State, Timestamp};
    ///
    /// let limit = Limit::per_second(10).build()?;
    /// let now = Timestamp::from_micros(1_000_000);
    /// let state = Evaluation::new(&limit, None, now, Cost::ONE).into_state();
    /// assert_eq!(State::decode(&state.encode())?, state);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION, self.algorithm().code(), standing_code(self.standing)];
        bytes.push(self.shape.tick_exponent());
        put(&mut bytes, u64::from(self.quota));
        put(&mut bytes, self.shape.window());
        match &self.counts {
            Counts::TokenBucket(bucket) | Counts::LeakyBucket(bucket) | Counts::Gcra(bucket) => {
                put(&mut bytes, bucket.level);
                put(&mut bytes, bucket.tick);
            }
            Counts::FixedWindow(window) => {
                put(&mut bytes, window.number);
                put(&mut bytes, u64::from(window.count));
            }
            Counts::SlidingCounter(counts) => {
                put(&mut bytes, counts.number);
                put(&mut bytes, u64::from(counts.current));
                put(&mut bytes, u64::from(counts.previous));
            }
            Counts::SlidingLog(log) => {
                let entries = log.iter();
                put(&mut bytes, entries.len() as u64);
                let mut before = 0;
                for (time, cost) in entries {
                    put(&mut bytes, time - before);
                    put(&mut bytes, cost);
                    before = time;
                }
            }
        }
        bytes
    }

    /// Decodes what [`State::encode`] wrote.
    ///
    /// # Errors
    /// [`InvalidState`] for any bytes that no version of Pacegate writes. Never panics, whatever
    /// `bytes` contains.
    pub fn decode(bytes: &[u8]) -> Result<Self, InvalidState> {
        let mut reader = Reader { bytes };
        let version = reader.byte()?;
        if version != VERSION {
            return Err(InvalidState::UnknownVersion { version });
        }
        let algorithm = algorithm_from(reader.byte()?)?;
        let standing = standing_from(reader.byte()?)?;
        let tick_exponent = reader.byte()?;
        if tick_exponent > TICK_EXPONENT_MAX {
            return Err(InvalidState::OutOfRange { field: "tick" });
        }
        let quota = reader.number("quota", 1, Limit::QUOTA_MAX)? as u32;
        let window = reader.number(
            "window",
            Limit::WINDOW_MIN.as_micros() as u64,
            Limit::WINDOW_MAX.as_micros() as u64,
        )?;
        let counts = match algorithm {
            Algorithm::TokenBucket => Counts::TokenBucket(reader.bucket()?),
            Algorithm::LeakyBucket => Counts::LeakyBucket(reader.bucket()?),
            Algorithm::FixedWindow => Counts::FixedWindow(FixedWindow {
                number: reader.number("window number", 0, EXACT_MAX)?,
                count: reader.count("count")?,
            }),
            Algorithm::SlidingCounter => Counts::SlidingCounter(WindowCounts {
                number: reader.number("window number", 0, EXACT_MAX)?,
                current: reader.count("current count")?,
                previous: reader.count("previous count")?,
            }),
            Algorithm::Gcra => Counts::Gcra(reader.bucket()?),
            Algorithm::SlidingLog => Counts::SlidingLog(Box::new(reader.log()?)),
        };
        if !reader.bytes.is_empty() {
            return Err(InvalidState::TrailingBytes);
        }
        Ok(Self { shape: Shape::new(algorithm, window, tick_exponent), quota, standing, counts })
    }
}

/// The error of decoding bytes that are not a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidState {
    /// The state was written by a version that this program does not know.
    #[error("unsupported state version {version}; expected 1")]
    UnknownVersion {
        /// The version byte.
        version: u8,
    },
    /// The bytes end too early.
    #[error("state is truncated")]
    Truncated,
    /// Bytes follow the end of the state.
    #[error("state has trailing bytes")]
    TrailingBytes,
    /// A number is outside the range that a limit can produce.
    #[error("state has an out-of-range {field}")]
    OutOfRange {
        /// The name of the number.
        field: &'static str,
    },
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl Reader<'_> {
    fn byte(&mut self) -> Result<u8, InvalidState> {
        let (first, rest) = self.bytes.split_first().ok_or(InvalidState::Truncated)?;
        self.bytes = rest;
        Ok(*first)
    }

    fn varint(&mut self) -> Result<u64, InvalidState> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            // More than 64 bits, or a longer form than needed: every number has exactly one
            // encoding.
            if (shift == 63 && bits > 1) || (shift > 0 && byte == 0) {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(InvalidState::OutOfRange { field: "number" })
    }

    fn number(&mut self, field: &'static str, min: u64, max: u64) -> Result<u64, InvalidState> {
        let value = self.varint()?;
        if (min..=max).contains(&value) { Ok(value) } else { Err(InvalidState::OutOfRange { field }) }
    }

    /// Reads a count. Debt lets it reach twice the quota.
    fn count(&mut self, field: &'static str) -> Result<u32, InvalidState> {
        self.number(field, 0, 2 * Limit::QUOTA_MAX).map(|count| count as u32)
    }

    fn bucket(&mut self) -> Result<Bucket, InvalidState> {
        Ok(Bucket { level: self.number("level", 0, EXACT_MAX)?, tick: self.number("time", 0, EXACT_MAX)? })
    }

    fn log(&mut self) -> Result<Log, InvalidState> {
        let length = self.number("log length", 0, 2 * Limit::SLIDING_LOG_QUOTA_MAX)?;
        let mut entries = Vec::new();
        let mut time = 0u64;
        for _ in 0..length {
            time += self.number("entry time", 0, EXACT_MAX - time)?;
            entries.push((time, self.number("entry cost", 1, 2 * Limit::SLIDING_LOG_QUOTA_MAX)?));
        }
        Log::from_entries(entries.into_iter()).ok_or(InvalidState::OutOfRange { field: "entry time" })
    }
}

fn put(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

fn algorithm_from(code: u8) -> Result<Algorithm, InvalidState> {
    Algorithm::ALL
        .into_iter()
        .find(|algorithm| algorithm.code() == code)
        .ok_or(InvalidState::OutOfRange { field: "algorithm" })
}

const fn standing_code(standing: Standing) -> u8 {
    match standing {
        Standing::Normal => 0,
        Standing::Warning => 1,
        Standing::Throttled => 2,
    }
}

fn standing_from(code: u8) -> Result<Standing, InvalidState> {
    [Standing::Normal, Standing::Warning, Standing::Throttled]
        .into_iter()
        .find(|standing| standing_code(*standing) == code)
        .ok_or(InvalidState::OutOfRange { field: "standing" })
}
