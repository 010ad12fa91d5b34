//! What is wrong with a configuration.

use std::fmt;

use thiserror::Error;

/// One error in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The line, or the environment variable.
    pub place: String,
    /// The path of the value, such as `rules[2].window`.
    pub path: String,
    /// What is wrong with it, and what was expected.
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() {
            write!(formatter, "{}: {}", self.place, self.message)
        } else {
            write!(formatter, "{}: {}: {}", self.place, self.path, self.message)
        }
    }
}

/// All errors in a configuration, in the order of its lines.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(formatter, "{separator}{error}")?;
        }
        Ok(())
    }
}
