//! Large batches must not fail the checks of other callers.
