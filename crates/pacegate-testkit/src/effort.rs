//! The effort of a test: bounded in a normal run, full in `scripts/reliability`.

/// Returns `full` if the environment has `PACEGATE_EFFORT=full`, else `normal`.
///
/// ```
/// let rounds = pacegate_testkit::effort(10, 1_000);
/// assert!(rounds >= 10);
/// ```
pub fn effort<T>(normal: T, full: T) -> T {
    if std::env::var_os("PACEGATE_EFFORT").is_some_and(|effort| effort == "full") { full } else { normal }
}
