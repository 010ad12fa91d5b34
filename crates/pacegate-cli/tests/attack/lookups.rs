//! Made-up users must not slow down the checks of others.
