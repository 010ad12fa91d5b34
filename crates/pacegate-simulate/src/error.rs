//! Errors of a simulation.

use thiserror::Error;

/// Why a simulation has no report.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SimulateError {
    /// The options, the rules or the field mapping do not fit the log.
    #[error("{0}")]
    Misused(String),
    /// The log cannot be read, or contains no request.
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
