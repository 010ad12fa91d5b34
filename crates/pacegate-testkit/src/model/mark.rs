//! The mark of a key: a warning level with hysteresis that is stored with each write.

/// How close to its capacity a key is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ModelMark {
    /// Far from the capacity.
    #[default]
    Normal,
    /// More than 80 % used, and not yet back below 70 %.
    Warning,
    /// Nothing remaining, or a request was just denied.
    Throttled,
}

impl ModelMark {
    /// The mark that follows this one when `remaining` of `capacity` tokens remain.
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
