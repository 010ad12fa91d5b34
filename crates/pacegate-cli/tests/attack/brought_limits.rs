//! Limits that callers bring along must not use up what other callers need.
