//! A caller without a key must not undo a counter.
