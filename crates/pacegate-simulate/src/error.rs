//! Why there is no report.

use thiserror::Error;

/// Why there is no report, and whose fault that is.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SimulateError {
    /// Options, rules or mapping do not fit the log.
    #[error("{0}")]
    Misused(String),
    /// The log could not be read, or there is nothing in it to decide with.
    #[error("{0}")]
    Failed(String),
}

impl SimulateError {
    pub(crate) fn misused(message: impl Into<String>) -> Self {
        Self::Misused(message.into())
    }

    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::Failed(message.into())
    }
}
