//! Which limits callers have brought along, so that a reset finds their counters.

use std::collections::{HashSet, VecDeque};
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use pacegate_core::{Algorithm, Limit};

/// How many different ones are remembered; a program has a handful.
const SHAPES_MAX: usize = 1_024;

/// The algorithms and windows of ad-hoc limits seen by this process: what tells their counters apart.
#[derive(Debug, Default)]
pub(crate) struct AdHocShapes {
    shapes: RwLock<Shapes>,
}

#[derive(Debug, Default)]
struct Shapes {
    known: HashSet<(Algorithm, Duration)>,
    order: VecDeque<(Algorithm, Duration)>,
}

impl AdHocShapes {
    pub(crate) fn remember(&self, limit: &Limit) {
        let shape = (limit.algorithm(), limit.window());
        // A panic cannot leave the set half-changed in a way that matters.
        if self.shapes.read().unwrap_or_else(PoisonError::into_inner).known.contains(&shape) {
            return;
        }
        let mut shapes = self.shapes.write().unwrap_or_else(PoisonError::into_inner);
        if shapes.known.insert(shape) {
            shapes.order.push_back(shape);
        }
        if shapes.order.len() > SHAPES_MAX
            && let Some(oldest) = shapes.order.pop_front()
        {
            shapes.known.remove(&oldest);
        }
    }

    /// A limit of each shape; the numbers do not matter to a reset.
    pub(crate) fn limits(&self) -> Vec<Limit> {
        let shapes = self.shapes.read().unwrap_or_else(PoisonError::into_inner);
        shapes
            .order
            .iter()
            .filter_map(|(algorithm, window)| Limit::try_new(*algorithm, 1, *window).ok())
            .collect()
    }
}
