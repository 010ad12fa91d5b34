//! The cost of a request.

use thiserror::Error;

/// The cost of a charge: 1 to [`Cost::MAX`], or [`Cost::ZERO`] to check without charging.
///
/// A `u32` converts into a cost, so methods that take a cost also accept a literal.
///
/// ```
/// use pacegate_core::Cost;
///
/// assert_eq!(Cost::from(5), Cost::try_new(5)?);
/// assert_eq!(Cost::try_new(5)?.get(), 5);
/// assert!(Cost::try_new(0).is_err());
/// # Ok::<(), pacegate_core::InvalidCost>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost(u32);

impl Cost {
    /// Takes nothing. A charge of this cost is admitted if a cost of 1 would be.
    pub const ZERO: Self = Self(0);
    /// The cost of a request that does not specify one.
    pub const ONE: Self = Self(1);
    /// The largest cost; no valid limit could ever admit a larger one.
    pub const MAX: Self = Self(1_000_000_000);

    /// Returns the cost, if it is between 1 and [`Cost::MAX`].
    ///
    /// # Errors
    /// [`InvalidCost`] otherwise.
    pub fn try_new(cost: u64) -> Result<Self, InvalidCost> {
        match u32::try_from(cost) {
            Ok(value) if (1..=Self::MAX.0).contains(&value) => Ok(Self(value)),
            _ => Err(InvalidCost { cost }),
        }
    }

    /// The cost as a number.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Whether nothing is taken.
    #[inline]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The cost, capped at `max`.
    #[inline]
    pub(crate) const fn at_most(self, max: u32) -> Self {
        if self.0 < max { self } else { Self(max) }
    }

    /// The cost minus `part`, saturating at zero.
    #[must_use]
    pub const fn less(self, part: u32) -> Self {
        Self(self.0.saturating_sub(part))
    }
}

impl From<u32> for Cost {
    /// Converts a number to a cost: 0 is [`Cost::ZERO`], and a number above [`Cost::MAX`] becomes
    /// `MAX + 1`, which exceeds every limit, so that the request is denied for its cost.
    fn from(cost: u32) -> Self {
        Self(cost.min(Self::MAX.0 + 1))
    }
}

impl Default for Cost {
    fn default() -> Self {
        Self::ONE
    }
}

/// The error of a cost that is zero or too large.
///
/// ```
/// use pacegate_core::Cost;
///
/// assert_eq!(Cost::try_new(0).unwrap_err().field(), "cost");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{}: {}", self.field(), self.reason())]
pub struct InvalidCost {
    /// The value that was passed.
    pub cost: u64,
}

impl InvalidCost {
    /// The name of the invalid field: `cost`.
    pub const fn field(&self) -> &'static str {
        "cost"
    }

    /// What is wrong with the field, without its name.
    pub fn reason(&self) -> String {
        format!("must be between 1 and {}, got {}", Cost::MAX.get(), self.cost)
    }
}
