//! A flood of new keys on a full Redis must not free users who are over their limit.
