//! A request of the log.

use std::borrow::Cow;

use compact_str::CompactString;
use pacegate::identity::{self, Invalid};
use pacegate::{Cost, PathOptions};
use smallvec::SmallVec;

use super::mapping::Mapping;
use crate::time::LogTime;

/// The fields of a line by slot. `None` is a missing field.
pub(crate) type Fields<'a> = SmallVec<[Option<Cow<'a, str>>; 8]>;

/// The position of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    /// The index of the log.
    pub(crate) file: usize,
    /// The number of the line, from 1.
    pub(crate) line: u64,
}

/// A request of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) time: LogTime,
    /// The identities: indices of the mapping's dimensions, and identifiers.
    pub(crate) identities: SmallVec<[(u8, CompactString); 2]>,
    /// The normalized endpoint.
    pub(crate) endpoint: CompactString,
    /// Empty if it is not known. The same applies to the tier.
    pub(crate) method: CompactString,
    pub(crate) tier: CompactString,
    pub(crate) status: Option<u16>,
    pub(crate) cost: Cost,
    /// Costs in other units: indices of the mapping's units.
    pub(crate) costs: SmallVec<[(u8, Cost); 1]>,
    /// The line of the request.
    pub(crate) place: Place,
}

#[cfg(test)]
impl Record {
    /// Returns a request of `name`, for tests.
    pub(crate) fn of(name: &str, time: LogTime, place: Place) -> Self {
        Self {
            time,
            identities: smallvec::smallvec![(0, name.into())],
            endpoint: "/".into(),
            method: "".into(),
            tier: "".into(),
            status: None,
            cost: Cost::ONE,
            costs: SmallVec::new(),
            place,
        }
    }
}

impl Mapping {
    /// Returns the request of a line.
    ///
    /// # Errors
    /// The reason why the line is not a request.
    pub(crate) fn record(&self, fields: &Fields<'_>) -> Result<Record, String> {
        let text = |slot: Option<usize>| {
            let field = slot.and_then(|slot| fields.get(slot)?.as_deref());
            field.filter(|text| !text.bytes().all(|byte| byte == b'-'))
        };
        let time =
            text(Some(self.time)).ok_or_else(|| format!("has no time in `{}`", self.fields[self.time]))?;
        let time = LogTime::parse(time).ok_or_else(|| format!("{} is not a time", self.quoted(time)))?;
        let (mut method, mut endpoint) = (text(self.method), text(self.endpoint));
        if let Some((of_request, target)) = text(self.request).and_then(split_request) {
            (method, endpoint) = (method.or(Some(of_request)), endpoint.or(Some(target)));
        }
        match (endpoint, self.request, self.endpoint) {
            (None, Some(_), _) => return Err("has no request such as `GET /path HTTP/1.1`".to_owned()),
            (None, None, Some(_)) => return Err("has no endpoint".to_owned()),
            _ => {}
        }
        // Settings of a rule file are applied later, by its limiter.
        let endpoint = PathOptions::default()
            .normalise(path_of(endpoint.unwrap_or("/")))
            .map_err(|error| format!("the endpoint {error}"))?;
        let mut identities = SmallVec::new();
        for (place, (dimension, slot)) in self.dimensions.iter().enumerate() {
            let Some(identifier) = text(Some(*slot)) else { continue };
            let identifier = if dimension == identity::IP {
                address(identifier).map_err(|_| {
                    format!(
                        "{} is not an address; set the field with --map ip=FIELD",
                        self.quoted(identifier)
                    )
                })?
            } else {
                identity::check_identifier(identifier)
                    .map_err(|invalid| format!("the {dimension} {}", invalid.reason()))?;
                Cow::Borrowed(identifier)
            };
            identities.push((place as u8, CompactString::new(identifier)));
        }
        if identities.is_empty() {
            return Err("has no identity, such as a user or an address".to_owned());
        }
        let status = text(self.status)
            .map(|status| status.parse().map_err(|_| format!("{} is not a status", self.quoted(status))));
        let parse = |cost: &str| {
            let parsed = cost.parse().ok().and_then(|cost| Cost::try_new(cost).ok());
            parsed.ok_or_else(|| {
                format!("{} is not a cost between 1 and {}", self.quoted(cost), Cost::MAX.get())
            })
        };
        let cost = text(self.cost).map(parse);
        let mut costs = SmallVec::new();
        for (index, (_, slot)) in self.costs.iter().enumerate() {
            // A request with cost 0 in a unit does not count for the limits of that unit.
            if let Some(cost) = text(Some(*slot)).filter(|cost| *cost != "0") {
                costs.push((index as u8, parse(cost)?));
            }
        }
        Ok(Record {
            time,
            identities,
            endpoint: CompactString::new(endpoint),
            method: CompactString::new(method.unwrap_or_default()),
            tier: CompactString::new(text(self.tier).unwrap_or_default()),
            status: status.transpose()?,
            cost: cost.transpose()?.unwrap_or(Cost::ONE),
            costs,
            place: Place::default(),
        })
    }

    /// Quotes a value, unless the log is hidden.
    fn quoted(&self, text: &str) -> String {
        if self.hidden { "a value".to_owned() } else { format!("`{}`", excerpt(text)) }
    }
}

/// Returns the start of a text of the log, safe to print.
pub(crate) fn excerpt(text: &str) -> String {
    const CHARACTERS_MAX: usize = 80;
    match text.char_indices().nth(CHARACTERS_MAX) {
        None => visible(text),
        Some((end, _)) => visible(&text[..end]) + "…",
    }
}

/// Returns a text of the log without control characters, which could change a terminal.
pub(crate) fn visible(text: &str) -> String {
    text.chars().flat_map(visible_character).collect()
}

/// Escapes control characters and characters that change the direction of text.
fn visible_character(character: char) -> impl Iterator<Item = char> {
    let hidden = character.is_control()
        || matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}');
    let escaped = hidden.then(|| character.escape_default());
    let plain = (!hidden).then_some(character);
    escaped.into_iter().flatten().chain(plain)
}

/// Splits `GET /path HTTP/1.1`. The protocol can be missing, and the path can contain spaces.
fn split_request(request: &str) -> Option<(&str, &str)> {
    let (method, rest) = request.split_once(' ')?;
    let target = match rest.rsplit_once(' ') {
        Some((target, protocol)) if protocol.starts_with("HTTP/") => target,
        _ => rest,
    };
    let is_method =
        !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'-');
    (is_method && !target.is_empty()).then_some((method, target))
}

/// Returns the path of a target, which is a whole URL in logs of proxies.
fn path_of(target: &str) -> &str {
    if target.starts_with('/') {
        return target;
    }
    let Some((_, rest)) = target.split_once("://") else { return target };
    rest.find('/').map_or("/", |slash| &rest[slash..])
}

/// Returns the canonical form of an address, with all of its bits: each set of rules has its own
/// IPv6 prefix. Of a list, as in `X-Forwarded-For`, it is the last address, which the nearest proxy
/// added.
fn address(text: &str) -> Result<Cow<'_, str>, Invalid> {
    identity::identifier(identity::IP, text.rsplit(',').next().unwrap_or(text).trim(), 128)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_canonical() {
        let rows = [
            ("192.0.2.1", Some("192.0.2.1")),
            ("192.0.2.1:4711", Some("192.0.2.1")),
            ("2001:DB8:1:2:3:4:5:6", Some("2001:db8:1:2:3:4:5:6")),
            ("[2001:db8::1]:443", Some("2001:db8::1")),
            ("::ffff:192.0.2.1", Some("192.0.2.1")),
            ("203.0.113.9, 192.0.2.1", Some("192.0.2.1")),
            ("unix:", None),
            ("host.example", None),
            ("192.0.2.1, ", None),
        ];
        for (text, expected) in rows {
            assert_eq!(address(text).ok().as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn requests_are_split() {
        let rows = [
            ("GET /a?b=c HTTP/1.1", Some(("GET", "/a?b=c"))),
            ("GET /a b HTTP/1.1", Some(("GET", "/a b"))),
            ("GET /a", Some(("GET", "/a"))),
            ("M-SEARCH * HTTP/1.1", Some(("M-SEARCH", "*"))),
            ("\u{16}\u{3}", None),
            ("GET", None),
            ("GET ", None),
        ];
        for (text, expected) in rows {
            assert_eq!(split_request(text), expected, "{text}");
        }
        assert_eq!(path_of("http://example.com/a"), "/a");
        assert_eq!(path_of("http://example.com"), "/");
        assert_eq!(path_of("a/b"), "a/b");
    }

    #[test]
    fn excerpts_escape_control_characters() {
        assert_eq!(excerpt("a\u{1b}[31m\tb\u{202e}"), "a\\u{1b}[31m\\tb\\u{202e}");
        assert_eq!(excerpt(&"é".repeat(100)).chars().count(), 81);
    }
}
