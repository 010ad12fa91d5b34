//! What stores count about themselves.

use std::ops::AddAssign;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A figure that a store keeps about itself, for operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// How often something happened: only grows.
    Count(u64),
    /// How much there is of something now.
    Level(u64),
}

impl Figure {
    /// The number alone.
    pub fn value(self) -> u64 {
        let (Self::Count(value) | Self::Level(value)) = self;
        value
    }
}

impl AddAssign for Figure {
    fn add_assign(&mut self, other: Self) {
        let (Self::Count(value) | Self::Level(value)) = self;
        *value = value.saturating_add(other.value());
    }
}

/// Figures with their names.
pub type Figures = Vec<(&'static str, Figure)>;

/// How many there are of something now: each [`Present`] counts for as long as it lives.
#[derive(Clone, Debug, Default)]
pub struct Gauge(Arc<AtomicU64>);

impl Gauge {
    /// One more, until it is dropped.
    pub fn enter(&self) -> Present {
        self.0.fetch_add(1, Ordering::Relaxed);
        Present(self.0.clone())
    }

    /// How many there are.
    pub fn level(&self) -> Figure {
        Figure::Level(self.0.load(Ordering::Relaxed))
    }
}

/// One of those that a [`Gauge`] counts.
#[derive(Debug)]
pub struct Present(Arc<AtomicU64>);

impl Drop for Present {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
