//! The limiters that are compared, each with the same limit on the same string keys.
//!
//! The limit is one token every 50 s with a burst so large that nothing is denied. Every key stays
//! in use during a measurement, so no contender gains by dropping keys early.

mod governor;
mod limitador;
mod pacegate;
mod throttlecrab;

use std::time::Duration;

use anyhow::{Result, bail};

use crate::workload::Walk;

/// Number of tokens that are refilled per [`PERIOD`].
pub const TOKENS: u32 = 72;
/// See [`TOKENS`].
pub const PERIOD: Duration = Duration::from_secs(3_600);
/// The burst: about the maximum that the peers can count in 64-bit nanoseconds at this rate.
pub const BURST: u32 = 100_000_000;

/// A limiter that is measured.
pub trait Contender: Send + Sync {
    /// Returns whether one request of `key` is allowed. A failure counts as a denial. Neither is
    /// expected here.
    #[expect(
        clippy::ptr_arg,
        reason = "governor looks up a `&String`, and would have to make one of a `&str`"
    )]
    fn check(&self, key: &String) -> bool;

    /// Runs the checks, and returns the number of denials. With `alone`, no other thread runs at
    /// the same time.
    fn walk(&self, walk: Walk<'_>, _alone: bool) -> usize {
        // A default method is compiled for each contender, so the loop has no indirect call.
        walk.refused(|key| self.check(key))
    }
}

/// A kind of [`Contender`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Pacegate: a plan, looked up once.
    Pacegate,
    /// Pacegate: a bare key.
    PacegateKey,
    /// Pacegate: a check that a rule applies to.
    PacegateRule,
    /// `governor` with its default keyed store, a `DashMap`.
    Governor,
    /// `throttlecrab` with its default store, the periodic one.
    Throttlecrab,
    /// `limitador` with its counters in memory.
    Limitador,
}

impl Kind {
    /// All contenders, Pacegate first.
    pub const ALL: [Self; 6] = [
        Self::Pacegate,
        Self::PacegateKey,
        Self::PacegateRule,
        Self::Governor,
        Self::Throttlecrab,
        Self::Limitador,
    ];

    /// Returns its name on the command line and in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pacegate => "pacegate",
            Self::PacegateKey => "pacegate-key",
            Self::PacegateRule => "pacegate-rule",
            Self::Governor => "governor",
            Self::Throttlecrab => "throttlecrab",
            Self::Limitador => "limitador",
        }
    }

    /// Returns the contender of a name.
    ///
    /// # Errors
    /// If the name is unknown.
    pub fn named(name: &str) -> Result<Self> {
        match Self::ALL.into_iter().find(|kind| kind.name() == name) {
            Some(kind) => Ok(kind),
            None => {
                bail!("unknown contender {name:?}; expected one of {}", Self::ALL.map(Self::name).join(", "))
            }
        }
    }

    /// Returns a new contender for `keys` keys.
    ///
    /// # Errors
    /// If the library rejects the limit.
    pub fn build(self, keys: usize) -> Result<Box<dyn Contender>> {
        Ok(match self {
            Self::Pacegate => Box::new(pacegate::ByPlan::new(keys)?),
            Self::PacegateKey => Box::new(pacegate::ByKey::new()?),
            Self::PacegateRule => Box::new(pacegate::ByRule::new()?),
            Self::Governor => Box::new(governor::Governor::new()?),
            Self::Throttlecrab => Box::new(throttlecrab::Throttlecrab::new(keys)),
            Self::Limitador => Box::new(limitador::Limitador::new(keys)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Workload;

    #[test]
    fn every_contender_admits_what_is_measured() {
        let workload = Workload::named("hot").unwrap();
        for kind in Kind::ALL {
            let contender = Kind::named(kind.name()).unwrap().build(1).unwrap();
            for alone in [true, false] {
                let refused = contender.walk(workload.walk(0, 1, 1_000), alone);
                assert_eq!(refused, 0, "{}", kind.name());
            }
        }
    }
}
