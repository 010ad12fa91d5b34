//! The mark with hysteresis that each key carries from write to write.

/// How close to its capacity a key is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ModelMark {
    /// Plenty of room.
    #[default]
    Normal,
    /// More than 80 % used, and not yet back below 70 %.
    Warning,
    /// Nothing left, or a request was just turned away.
    Throttled,
}

impl ModelMark {
    /// The mark that follows this one when `remaining` of `capacity` tokens are left.
    pub(super) fn settle(self, remaining: u64, capacity: u64) -> ModelMark {
        let hundredfold_used = 100 * u128::from(capacity - remaining);
        if remaining == 0 {
            ModelMark::Throttled
        } else if hundredfold_used > 80 * u128::from(capacity) {
            ModelMark::Warning
        } else if hundredfold_used < 70 * u128::from(capacity) {
            ModelMark::Normal
        } else {
            match self {
                ModelMark::Normal => ModelMark::Normal,
                ModelMark::Warning | ModelMark::Throttled => ModelMark::Warning,
            }
        }
    }
}
