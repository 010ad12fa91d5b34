//! The limiters that are compared, each with the same limit on the same string keys.
//!
//! The limit is one token every 50 s and a burst so large that it never denies: every key stays in
//! use while it is measured, and no contender wins by dropping keys early.

mod governor;
mod limitador;
mod pacegate;
mod throttlecrab;

use std::time::Duration;

use anyhow::{Result, bail};

use crate::workload::Walk;

/// How many tokens come back in [`PERIOD`].
pub const TOKENS: u32 = 72;
/// See [`TOKENS`].
pub const PERIOD: Duration = Duration::from_secs(3_600);
/// How many checks a key is good for: as many as the peers can count in 64-bit nanoseconds at this
/// rate, roughly.
pub const BURST: u32 = 100_000_000;

/// A limiter that is measured.
pub trait Contender: Send + Sync {
    /// Whether one request of `key` is admitted. A failure counts as a denial; neither may
    /// happen here.
    #[expect(
        clippy::ptr_arg,
        reason = "governor looks up a `&String`, and would have to make one of a `&str`"
    )]
    fn check(&self, key: &String) -> bool;

    /// Checks the keys in order and returns the number of denials. `alone` means that no other
    /// thread runs at the same time.
    fn walk(&self, walk: Walk<'_>, _alone: bool) -> usize {
        // A default method is compiled for each contender, so that the loop holds no indirect call.
        walk.refused(|key| self.check(key))
    }
}

/// A kind of [`Contender`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Ours.
    Pacegate,
    /// `governor` with its default keyed store, a `DashMap`.
    Governor,
    /// `throttlecrab` with its default store, the periodic one.
    Throttlecrab,
    /// `limitador` with its counters in memory.
    Limitador,
}

impl Kind {
    /// All of them, ours first.
    pub const ALL: [Self; 4] = [Self::Pacegate, Self::Governor, Self::Throttlecrab, Self::Limitador];

    /// What it is called on the command line and in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pacegate => "pacegate",
            Self::Governor => "governor",
            Self::Throttlecrab => "throttlecrab",
            Self::Limitador => "limitador",
        }
    }

    /// Finds one by its name.
    ///
    /// # Errors
    /// When there is none of that name.
    pub fn named(name: &str) -> Result<Self> {
        match Self::ALL.into_iter().find(|kind| kind.name() == name) {
            Some(kind) => Ok(kind),
            None => {
                bail!("no contender is called {name:?}; there are {}", Self::ALL.map(Self::name).join(", "))
            }
        }
    }

    /// A new one that expects `keys` keys.
    ///
    /// # Errors
    /// When the library refuses the limit.
    pub fn build(self, keys: usize) -> Result<Box<dyn Contender>> {
        Ok(match self {
            Self::Pacegate => Box::new(pacegate::Pacegate::new()?),
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
