//! Parses `X-Forwarded-For` and `Forwarded` (RFC 7239) from right to left: the nearest proxy wrote
//! the last entry.

use std::net::{IpAddr, Ipv6Addr};

use http::header::{FORWARDED, HeaderName};
use http::{HeaderMap, HeaderValue};
use pacegate::identity::parse_address;
use smallvec::SmallVec;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// Maximum length of a `Forwarded` line, which must be parsed from its start. Longer lines are
/// ignored.
const FORWARDED_LENGTH_MAX: usize = 8_192;

/// Returns the entries, last one first; `None` for entries that are not addresses.
pub(super) fn x_forwarded_for(headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
    let lines = headers.get_all(X_FORWARDED_FOR).iter().rev();
    lines.flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b',')).map(|entry| {
        let entry = str::from_utf8(entry).ok()?.trim_matches([' ', '\t']);
        parse_address(entry)
    })
}

/// Returns the nodes in `for`, last one first; `None` for nodes that are not addresses. A malformed
/// line counts as one such node.
pub(super) fn forwarded(headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
    headers.get_all(FORWARDED).iter().rev().flat_map(|line| {
        let nodes = read_line(line).unwrap_or_else(|| SmallVec::from_elem(None, 1));
        nodes.into_iter().rev()
    })
}

type Nodes = SmallVec<[Option<IpAddr>; 4]>;

/// Returns the nodes of a line, in order; `None` if the line does not conform to RFC 7239.
fn read_line(line: &HeaderValue) -> Option<Nodes> {
    if line.len() > FORWARDED_LENGTH_MAX {
        return None;
    }
    let mut rest = str::from_utf8(line.as_bytes()).ok()?;
    let mut nodes = Nodes::new();
    loop {
        let mut node: Option<Option<IpAddr>> = None;
        loop {
            rest = skip_space(rest);
            if !rest.starts_with([',', ';']) && !rest.is_empty() {
                let (name, after) = token(rest)?;
                let (value, after) = value(after.strip_prefix('=')?)?;
                if name.eq_ignore_ascii_case("for") && node.replace(read_node(&value)).is_some() {
                    return None;
                }
                rest = skip_space(after);
            }
            match rest.strip_prefix(';') {
                Some(after) => rest = after,
                None => break,
            }
        }
        nodes.push(node.flatten());
        match rest.strip_prefix(',') {
            Some(after) => rest = after,
            None if rest.is_empty() => return Some(nodes),
            None => return None,
        }
    }
}

fn skip_space(text: &str) -> &str {
    text.trim_start_matches([' ', '\t'])
}

/// Splits off a token.
fn token(text: &str) -> Option<(&str, &str)> {
    let is_token =
        |character: char| character.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(character);
    let end = text.find(|character| !is_token(character)).unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

/// Splits off a token or a quoted string.
fn value(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        return token(text).map(|(value, after)| (value.to_owned(), after));
    };
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((index, character)) = characters.next() {
        match character {
            '"' => return Some((value, &quoted[index + 1..])),
            '\\' => value.push(characters.next()?.1),
            other => value.push(other),
        }
    }
    None
}

/// Parses `192.0.2.1`, `192.0.2.1:4711`, `[2001:db8::1]` and `[2001:db8::1]:4711`; the port may be
/// an obfuscated name. `unknown`, obfuscated names (`_hidden`) and IPv6 addresses without brackets
/// are not addresses.
fn read_node(text: &str) -> Option<IpAddr> {
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    };
    let hidden = text.rsplit_once(":_").filter(|(_, name)| is_name(name));
    let text = hidden.map_or(text, |(address, _)| address);
    if text.parse::<Ipv6Addr>().is_ok() { None } else { parse_address(text) }
}
