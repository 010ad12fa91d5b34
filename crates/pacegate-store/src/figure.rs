//! Metrics that stores collect about themselves.

use std::ops::AddAssign;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The value of a metric that a store collects about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// A counter: the number of events so far.
    Count(u64),
    /// A gauge: the current amount.
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

/// Metrics with their names.
pub type Figures = Vec<(&'static str, Figure)>;

/// A gauge that counts the live [`Present`] values it created.
#[derive(Clone, Debug, Default)]
pub struct Gauge(Arc<AtomicU64>);

impl Gauge {
    /// Adds one, until the returned value is dropped.
    pub fn enter(&self) -> Present {
        self.0.fetch_add(1, Ordering::Relaxed);
        Present(self.0.clone())
    }

    /// The current count.
    pub fn level(&self) -> Figure {
        Figure::Level(self.0.load(Ordering::Relaxed))
    }
}

/// One unit of a [`Gauge`], until it is dropped.
#[derive(Debug)]
pub struct Present(Arc<AtomicU64>);

impl Drop for Present {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
