//! Where the time comes from when a command does not bring it.

use std::fmt;

use pacegate_core::Timestamp;

/// Tells the time. Only adapters ask it; everything inward of them gets `now` as an argument.
pub trait Clock: Send + Sync + fmt::Debug {
    /// The present. It may stand still or go back: stores never let a key's time go back.
    fn now(&self) -> Timestamp;
}
