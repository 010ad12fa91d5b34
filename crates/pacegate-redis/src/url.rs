//! Redis URLs: `redis://`, `rediss://`, `redis+sentinel://` and `redis+cluster://`.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use percent_encoding::percent_decode_str;
use thiserror::Error;

const DEFAULT_PORT: u16 = 6_379;
const DEFAULT_SENTINEL_PORT: u16 = 26_379;
/// Maximum number of seeds or sentinels.
const ADDRESSES_MAX: usize = 64;

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(formatter, "[{}]:{}", self.host, self.port)
        } else {
            write!(formatter, "{}:{}", self.host, self.port)
        }
    }
}

/// A user name and a password.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub(crate) username: Option<String>,
    pub(crate) password: Option<String>,
}

impl fmt::Debug for Credentials {
    /// Never shows the password.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let password = self.password.as_ref().map(|_| "…");
        formatter
            .debug_struct("Credentials")
            .field("username", &self.username)
            .field("password", &password)
            .finish()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Topology {
    Single(Address),
    Sentinel { sentinels: Vec<Address>, service: String },
    Cluster { seeds: Vec<Address> },
}

/// A parsed Redis URL.
///
/// ```
/// use pacegate_redis::RedisUrl;
///
/// let url: RedisUrl = "redis+sentinel://app:secret@10.0.0.1:26379,10.0.0.2/main?db=2".parse()?;
/// assert_eq!(url.to_string(), "redis+sentinel://10.0.0.1:26379,10.0.0.2:26379/main");
/// assert!("redis://".parse::<RedisUrl>().is_err());
/// # Ok::<(), pacegate_redis::InvalidRedisUrl>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisUrl {
    pub(crate) topology: Topology,
    pub(crate) tls: bool,
    pub(crate) credentials: Credentials,
    pub(crate) sentinel_credentials: Credentials,
    pub(crate) database: i64,
}

/// The error of parsing a text that is not a Redis URL.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct InvalidRedisUrl(String);

fn invalid<T>(message: impl Into<String>) -> Result<T, InvalidRedisUrl> {
    Err(InvalidRedisUrl(message.into()))
}

impl RedisUrl {
    /// Whether `text` has a Redis scheme, even if it is not a valid URL.
    pub fn is_redis(text: &str) -> bool {
        text.starts_with("redis://")
            || text.starts_with("rediss://")
            || text.starts_with("redis+sentinel://")
            || text.starts_with("redis+cluster://")
    }
}

impl fmt::Display for RedisUrl {
    /// Without credentials, so that it can be logged.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list =
            |addresses: &[Address]| addresses.iter().map(Address::to_string).collect::<Vec<_>>().join(",");
        match &self.topology {
            Topology::Single(address) => {
                let scheme = if self.tls { "rediss" } else { "redis" };
                write!(formatter, "{scheme}://{address}/{}", self.database)
            }
            Topology::Sentinel { sentinels, service } => {
                write!(formatter, "redis+sentinel://{}/{service}", list(sentinels))
            }
            Topology::Cluster { seeds } => write!(formatter, "redis+cluster://{}", list(seeds)),
        }
    }
}

impl FromStr for RedisUrl {
    type Err = InvalidRedisUrl;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let Some((scheme, rest)) = text.split_once("://").filter(|_| Self::is_redis(text)) else {
            return invalid("must start with redis://, rediss://, redis+sentinel:// or redis+cluster://");
        };
        let (rest, query) = rest.split_once('?').map_or((rest, ""), |(rest, query)| (rest, query));
        // A password may contain an @, so the last one is the separator.
        let (user, rest) = rest.rsplit_once('@').map_or(("", rest), |(user, rest)| (user, rest));
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let mut url = Self {
            topology: Topology::Cluster { seeds: Vec::new() },
            tls: scheme == "rediss",
            credentials: credentials(user)?,
            sentinel_credentials: Credentials::default(),
            database: 0,
        };
        let default_port = if scheme == "redis+sentinel" { DEFAULT_SENTINEL_PORT } else { DEFAULT_PORT };
        let mut addresses = addresses(hosts, default_port)?;
        url.topology = match scheme {
            "redis+sentinel" => {
                if path.is_empty() || path.contains('/') {
                    return invalid(
                        "redis+sentinel:// requires a service name after a slash, such as redis+sentinel://host:26379/main",
                    );
                }
                Topology::Sentinel { sentinels: addresses, service: decode(path)? }
            }
            "redis+cluster" => {
                if !path.is_empty() && path != "0" {
                    return invalid("a Redis Cluster supports only database 0");
                }
                Topology::Cluster { seeds: addresses }
            }
            _ => {
                if !path.is_empty() {
                    url.database = database(path)?;
                }
                match addresses.pop() {
                    Some(address) if addresses.is_empty() => Topology::Single(address),
                    _ => {
                        return invalid(
                            "redis:// takes one host; use redis+sentinel:// or redis+cluster:// for several",
                        );
                    }
                }
            }
        };
        url.read_query(query)?;
        Ok(url)
    }
}

impl RedisUrl {
    fn read_query(&mut self, query: &str) -> Result<(), InvalidRedisUrl> {
        let several = !matches!(self.topology, Topology::Single(_));
        let sentinel = matches!(self.topology, Topology::Sentinel { .. });
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match name {
                "tls" if several => match value {
                    "true" => self.tls = true,
                    "false" => self.tls = false,
                    _ => return invalid("`tls` must be true or false"),
                },
                "db" if sentinel => self.database = database(value)?,
                "sentinel_user" if sentinel => self.sentinel_credentials.username = Some(decode(value)?),
                "sentinel_password" if sentinel => self.sentinel_credentials.password = Some(decode(value)?),
                _ => {
                    let known = match &self.topology {
                        Topology::Single(_) => "a single server has no parameters",
                        Topology::Sentinel { .. } => {
                            "expected one of db, tls, sentinel_user, sentinel_password"
                        }
                        Topology::Cluster { .. } => "expected `tls`",
                    };
                    return invalid(format!("unknown parameter `{name}`; {known}"));
                }
            }
        }
        Ok(())
    }
}

fn database(text: &str) -> Result<i64, InvalidRedisUrl> {
    match text.parse() {
        Ok(database @ 0..=65_535) => Ok(database),
        _ => invalid(format!("the database must be a number such as 0, got `{text}`")),
    }
}

fn credentials(user: &str) -> Result<Credentials, InvalidRedisUrl> {
    if user.is_empty() {
        return Ok(Credentials::default());
    }
    let Some((username, password)) = user.split_once(':') else {
        return invalid("credentials must be user:password@, or :password@ without a user");
    };
    let username = decode(username)?;
    Ok(Credentials {
        username: (!username.is_empty()).then_some(username),
        password: Some(decode(password)?),
    })
}

fn addresses(hosts: &str, default_port: u16) -> Result<Vec<Address>, InvalidRedisUrl> {
    let addresses: Vec<Address> =
        hosts.split(',').map(|host| address(host, default_port)).collect::<Result<_, _>>()?;
    if addresses.len() > ADDRESSES_MAX {
        return invalid(format!("at most {ADDRESSES_MAX} addresses are allowed"));
    }
    Ok(addresses)
}

fn address(text: &str, default_port: u16) -> Result<Address, InvalidRedisUrl> {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, rest)) => (host, rest.strip_prefix(':')),
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':');
    if host.is_empty() || !host.bytes().all(valid) {
        return invalid(format!(
            "`{text}` is not a valid host; expected one such as redis.example or 10.0.0.1:6379"
        ));
    }
    let port = match port.map(str::parse) {
        None => default_port,
        Some(Ok(port @ 1..)) => port,
        Some(_) => return invalid(format!("the port of `{text}` must be between 1 and 65535")),
    };
    Ok(Address { host: host.to_owned(), port })
}

/// Decodes percent-encoding.
fn decode(text: &str) -> Result<String, InvalidRedisUrl> {
    let is_escape = |after: &str| after.bytes().take(2).filter(u8::is_ascii_hexdigit).count() == 2;
    if !text.split('%').skip(1).all(is_escape) {
        return invalid("% must be followed by two hexadecimal digits; write %25 for a literal %");
    }
    let decoded = percent_decode_str(text).decode_utf8().map(Cow::into_owned);
    decoded.or_else(|_| invalid("percent-encoded parts must be UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_parsed() {
        let parse = |text: &str| text.parse::<RedisUrl>().unwrap();
        let single = parse("rediss://app:p%40ss@redis.example:7000/3");
        assert!(single.tls);
        assert_eq!(single.database, 3);
        assert_eq!(single.credentials.username.as_deref(), Some("app"));
        assert_eq!(single.credentials.password.as_deref(), Some("p@ss"));
        assert_eq!(parse("redis://:secret@localhost").credentials.username, None);
        assert_eq!(parse("redis://[::1]:7000").to_string(), "redis://[::1]:7000/0");
        let sentinel = parse("redis+sentinel://a,b:1/main?db=2&tls=true&sentinel_password=x");
        assert_eq!((sentinel.database, sentinel.tls), (2, true));
        assert_eq!(sentinel.sentinel_credentials.password.as_deref(), Some("x"));
        assert_eq!(parse("redis+cluster://a:1,b:2").to_string(), "redis+cluster://a:1,b:2");
    }

    #[test]
    fn invalid_urls_are_rejected() {
        let rows = [
            ("", "must start with"),
            ("http://localhost", "must start with"),
            ("redis:localhost", "must start with"),
            ("redis://", "not a valid host"),
            ("redis://a:0", "the port of"),
            ("redis://a:99999", "the port of"),
            ("redis://a:b", "the port of"),
            ("redis://a,b", "one host"),
            ("redis://a/x", "database"),
            ("redis://a/-1", "database"),
            ("redis://secret@a", "user:password"),
            ("redis://a?db=1", "unknown parameter `db`"),
            ("redis://:%zz@a", "hexadecimal"),
            ("redis+sentinel://a:1", "service name"),
            ("redis+sentinel://a:1/main?tls=maybe", "true or false"),
            ("redis+cluster://a:1/2", "database 0"),
            ("redis+cluster://a:1,,b", "not a valid host"),
        ];
        for (text, reason) in rows {
            let error = text.parse::<RedisUrl>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn password_is_never_shown() {
        let url: RedisUrl = "redis://app:hunter2@localhost".parse().unwrap();
        assert!(!format!("{url} {url:?}").contains("hunter2"));
    }
}
