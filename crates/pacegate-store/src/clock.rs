//! The source of time for commands that do not specify one.

use std::fmt;

use pacegate_core::Timestamp;

/// A clock. Only adapters read it; everything inside them gets `now` as an argument.
pub trait Clock: Send + Sync + fmt::Debug {
    /// The current time. It may stand still or go back: stores never let a key's time go back.
    fn now(&self) -> Timestamp;
}
