//! What a simulation is asked for.

use std::str::FromStr;
use std::time::Duration;

use compact_str::CompactString;
use hashbrown::HashMap;
use pacegate_config::Config;

use crate::log::LogOptions;

/// A configuration to replay a log against.
#[derive(Clone, Debug)]
pub struct RuleFile {
    /// How it is called in reports.
    pub name: String,
    /// Its rules and default limit.
    pub config: Config,
}

/// How to replay.
#[derive(Clone, Debug)]
pub struct Options {
    /// How to read the log.
    pub log: LogOptions,
    /// How much later than its time a line may be written and still be put in order.
    pub reorder: Duration,
    /// Whether the requests of one second are spread over it, in the order of their lines, where a log does not say more than the second.
    pub spread: bool,
    /// How many keys are kept, by the limiter and by each table of the report.
    pub max_keys: usize,
    /// Only requests that were answered so.
    pub only_status: Option<StatusFilter>,
    /// The tiers of users, where the log does not tell.
    pub tiers: Tiers,
    /// Whether rules that only watch are enforced, so that the report names whom they would block.
    pub enforce_shadow: bool,
    /// Hides identifiers: whoever knows this secret, and only they, can find out whose hash it is.
    pub hash_keys: Option<Vec<u8>>,
}

impl Options {
    /// How many keys there are unless somebody says otherwise.
    pub const MAX_KEYS: usize = 1_000_000;
    /// How late a line may be unless somebody says otherwise.
    pub const REORDER: Duration = Duration::from_secs(5);
}

impl Default for Options {
    fn default() -> Self {
        Self {
            log: LogOptions::default(),
            reorder: Self::REORDER,
            spread: true,
            max_keys: Self::MAX_KEYS,
            only_status: None,
            tiers: Tiers::default(),
            enforce_shadow: false,
            hash_keys: None,
        }
    }
}

/// A secret for [`Options::hash_keys`] that nobody knows.
///
/// # Errors
/// Whatever the operating system says if it has no randomness.
pub fn random_secret() -> std::io::Result<Vec<u8>> {
    let mut secret = vec![0; 32];
    getrandom::fill(&mut secret).map_err(|error| std::io::Error::other(error.to_string()))?;
    Ok(secret)
}

/// Which answers count: `2xx,3xx,404`.
///
/// ```
/// use pacegate_simulate::StatusFilter;
///
/// let filter: StatusFilter = "2xx,404".parse()?;
/// assert!(filter.matches(204) && filter.matches(404) && !filter.matches(403));
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusFilter(Vec<(u16, u16)>);

impl StatusFilter {
    /// Whether an answer counts.
    pub fn matches(&self, status: u16) -> bool {
        self.0.iter().any(|(first, last)| (*first..=*last).contains(&status))
    }
}

impl FromStr for StatusFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let range = |part: &str| {
            let part = part.trim();
            let wrong = || format!("`{part}` is neither a status like 404 nor a class like 2xx");
            match part.strip_suffix("xx") {
                Some(class) => {
                    let class: u16 =
                        class.parse().ok().filter(|class| (1..=5).contains(class)).ok_or_else(wrong)?;
                    Ok((class * 100, class * 100 + 99))
                }
                None => {
                    let valid = |status: &u16| (100..=599).contains(status);
                    let status = part.parse().ok().filter(valid).ok_or_else(wrong)?;
                    Ok((status, status))
                }
            }
        };
        text.split(',').map(range).collect::<Result<_, _>>().map(Self)
    }
}

/// The tiers of users.
#[derive(Clone, Debug, Default)]
pub struct Tiers(HashMap<CompactString, CompactString, foldhash::fast::RandomState>);

impl Tiers {
    /// The tier of a user.
    pub fn of(&self, user: &str) -> Option<&str> {
        self.0.get(user).map(CompactString::as_str)
    }

    /// Whether nobody has one.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromStr for Tiers {
    type Err = String;

    /// Reads lines of `user,tier`; the first may be just that.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut tiers = Self::default();
        for (place, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || (place == 0 && line.eq_ignore_ascii_case("user,tier")) {
                continue;
            }
            // A user may have a comma, a tier never needs one.
            let pair = line.rsplit_once(',').map(|(user, tier)| (user.trim().trim_matches('"'), tier.trim()));
            match pair {
                Some((user, tier)) if !user.is_empty() && !tier.is_empty() => {
                    tiers.0.insert(user.into(), tier.into());
                }
                _ => return Err(format!("line {} is not `user,tier`", place + 1)),
            }
        }
        Ok(tiers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiers_are_read_line_by_line() {
        let tiers: Tiers = "user,tier\nalice,gold\n\n\"Bob, Jr.\",free\n".parse().unwrap();
        assert_eq!(
            (tiers.of("alice"), tiers.of("Bob, Jr."), tiers.of("eve")),
            (Some("gold"), Some("free"), None)
        );
        assert_eq!("a,b\nx".parse::<Tiers>().unwrap_err(), "line 2 is not `user,tier`");
    }

    #[test]
    fn statuses_are_told_by_name() {
        for text in ["", "6xx", "2x", "99", "2xx,", "abc"] {
            assert!(text.parse::<StatusFilter>().is_err(), "{text}");
        }
    }
}
