//! `X-Forwarded-For` and `Forwarded` (RFC 7239), read from right to left: whoever wrote last stands there.

use std::net::{IpAddr, Ipv6Addr};

use http::header::{FORWARDED, HeaderName};
use http::{HeaderMap, HeaderValue};
use pacegate::identity::parse_address;
use smallvec::SmallVec;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// A longer line of `Forwarded`, which has to be read from its beginning, says nothing.
const FORWARDED_LENGTH_MAX: usize = 8_192;

/// The entries, the last one first; `None` for what is not an address.
pub(super) fn x_forwarded_for(headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
    let lines = headers.get_all(X_FORWARDED_FOR).iter().rev();
    lines.flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b',')).map(|entry| {
        let entry = str::from_utf8(entry).ok()?.trim_matches([' ', '\t']);
        parse_address(entry)
    })
}

/// The nodes that `for` names, the last one first; `None` for what is not an address. A line that cannot be read is one such entry.
pub(super) fn forwarded(headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
    headers.get_all(FORWARDED).iter().rev().flat_map(|line| {
        let nodes = read_line(line).unwrap_or_else(|| SmallVec::from_elem(None, 1));
        nodes.into_iter().rev()
    })
}

type Nodes = SmallVec<[Option<IpAddr>; 4]>;

/// The nodes of a line, the first one first; `None` when the line is not as RFC 7239 has it.
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

/// A token and what follows it.
fn token(text: &str) -> Option<(&str, &str)> {
    let is_token =
        |character: char| character.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(character);
    let end = text.find(|character| !is_token(character)).unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

/// A token or a quoted string, and what follows it.
fn value(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        return token(text).map(|(value, after)| (value.to_owned(), after));
    };
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((place, character)) = characters.next() {
        match character {
            '"' => return Some((value, &quoted[place + 1..])),
            '\\' => value.push(characters.next()?.1),
            other => value.push(other),
        }
    }
    None
}

/// `192.0.2.1`, `192.0.2.1:4711`, `[2001:db8::1]` and `[2001:db8::1]:4711`, whose port may be a name that hides one. Neither `unknown` nor a made-up
/// name (`_hidden`) is an address, nor is an IPv6 address without brackets.
fn read_node(text: &str) -> Option<IpAddr> {
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    };
    let hidden = text.rsplit_once(":_").filter(|(_, name)| is_name(name));
    let text = hidden.map_or(text, |(address, _)| address);
    if text.parse::<Ipv6Addr>().is_ok() { None } else { parse_address(text) }
}
