//! Options of a simulation.

use std::str::FromStr;
use std::time::Duration;

use compact_str::CompactString;
use hashbrown::HashMap;
use pacegate_config::Config;

use crate::log::LogOptions;

/// A configuration that a log is replayed against.
#[derive(Clone, Debug)]
pub struct RuleFile {
    /// The name in reports.
    pub name: String,
    /// The rules and the default limit.
    pub config: Config,
}

/// How a log is replayed.
#[derive(Clone, Debug)]
pub struct Options {
    /// How the log is parsed.
    pub log: LogOptions,
    /// Maximum delay of a line, compared with its time, for it to be sorted by time.
    pub reorder: Duration,
    /// Whether requests of one second are spread evenly over it, in the order of their lines, if
    /// the times of the log have no fraction of a second.
    pub spread: bool,
    /// Maximum number of keys in the limiter and in each table of the report.
    pub max_keys: usize,
    /// Replays only requests with these response statuses.
    pub only_status: Option<StatusFilter>,
    /// The tiers of users, for logs without a tier.
    pub tiers: Tiers,
    /// Whether rules in shadow mode are enforced, so that the report lists the customers they would
    /// block.
    pub enforce_shadow: bool,
    /// Secret for hashing identifiers in the report. Only with the secret can a hash be matched to
    /// an identifier. `None` shows identifiers unchanged.
    pub hash_keys: Option<Vec<u8>>,
}

impl Options {
    /// Default of `max_keys`.
    pub const MAX_KEYS: usize = 1_000_000;
    /// Default of `reorder`.
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

/// Returns a random secret for [`Options::hash_keys`].
///
/// # Errors
/// The error of the operating system if it has no random numbers.
pub fn random_secret() -> std::io::Result<Vec<u8>> {
    let mut secret = vec![0; 32];
    getrandom::fill(&mut secret).map_err(|error| std::io::Error::other(error.to_string()))?;
    Ok(secret)
}

/// Response statuses to replay: `2xx,3xx,404`.
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
    /// Whether requests with this status are replayed.
    pub fn matches(&self, status: u16) -> bool {
        self.0.iter().any(|(first, last)| (*first..=*last).contains(&status))
    }
}

impl FromStr for StatusFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let range = |part: &str| {
            let part = part.trim();
            let wrong = || format!("expected a status such as 404 or a class such as 2xx, got `{part}`");
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
    /// Returns the tier of a user.
    pub fn of(&self, user: &str) -> Option<&str> {
        self.0.get(user).map(CompactString::as_str)
    }

    /// Whether no user has a tier.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromStr for Tiers {
    type Err = String;

    /// Parses lines of `user,tier`. The first line can be this header.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut tiers = Self::default();
        for (place, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || (place == 0 && line.eq_ignore_ascii_case("user,tier")) {
                continue;
            }
            // A user can contain a comma, a tier cannot.
            let pair = line.rsplit_once(',').map(|(user, tier)| (user.trim().trim_matches('"'), tier.trim()));
            match pair {
                Some((user, tier)) if !user.is_empty() && !tier.is_empty() => {
                    tiers.0.insert(user.into(), tier.into());
                }
                _ => return Err(format!("line {}: expected `user,tier`", place + 1)),
            }
        }
        Ok(tiers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiers_are_parsed_line_by_line() {
        let tiers: Tiers = "user,tier\nalice,gold\n\n\"Bob, Jr.\",free\n".parse().unwrap();
        assert_eq!(
            (tiers.of("alice"), tiers.of("Bob, Jr."), tiers.of("eve")),
            (Some("gold"), Some("free"), None)
        );
        assert_eq!("a,b\nx".parse::<Tiers>().unwrap_err(), "line 2: expected `user,tier`");
    }

    #[test]
    fn invalid_statuses_are_rejected() {
        for text in ["", "6xx", "2x", "99", "2xx,", "abc"] {
            assert!(text.parse::<StatusFilter>().is_err(), "{text}");
        }
    }
}
