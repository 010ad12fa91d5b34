//! Errors and warnings in a configuration.

use std::fmt;

use thiserror::Error;

/// One error or warning in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The line, as `line 7`, or the environment variable.
    pub place: String,
    /// The path of the value, such as `rules[2].window`.
    pub path: String,
    /// What is wrong with the value, and what was expected.
    pub message: String,
}

impl ConfigError {
    /// Returns the line, if the value is in the file.
    pub fn line(&self) -> Option<u64> {
        self.place.strip_prefix("line ")?.parse().ok()
    }
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

/// All errors in a configuration, sorted by line.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl ConfigErrors {
    /// Adds errors that were found later, and sorts all of them by line.
    pub fn extend(&mut self, errors: impl IntoIterator<Item = ConfigError>) {
        self.0.extend(errors);
        self.0.sort_by_key(|error| error.line().unwrap_or(u64::MAX));
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(formatter, "{separator}{error}")?;
        }
        Ok(())
    }
}
