//! `X-Forwarded-For` and `Forwarded` (RFC 7239), read from right to left: whoever wrote last stands there.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::header::{FORWARDED, HeaderName};
use http::{HeaderMap, HeaderValue};
use smallvec::SmallVec;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// A longer line of `Forwarded`, which has to be read from its beginning, says nothing.
const FORWARDED_LENGTH_MAX: usize = 8_192;

/// The entries, the last one first; `None` for what is not an address.
pub(super) fn x_forwarded_for(headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
    let lines = headers.get_all(X_FORWARDED_FOR).iter().rev();
    lines.flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b',')).map(|entry| {
        let entry = str::from_utf8(entry).ok()?.trim_matches([' ', '\t']);
        // An IPv6 address may also stand without brackets, and then has no port.
        entry.parse::<Ipv6Addr>().map(IpAddr::V6).ok().or_else(|| with_port(entry))
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
                if name.eq_ignore_ascii_case("for") && node.replace(with_port(&value)).is_some() {
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

/// `192.0.2.1`, `192.0.2.1:4711`, `[2001:db8::1]` and `[2001:db8::1]:4711`. Neither `unknown` nor a made-up name (`_hidden`) is an address.
fn with_port(text: &str) -> Option<IpAddr> {
    let (address, port) = match text.strip_prefix('[') {
        Some(inside) => {
            let (address, after) = inside.split_once(']')?;
            (address.parse::<Ipv6Addr>().ok()?.into(), after)
        }
        None => {
            let (address, after) = text.split_at(text.find(':').unwrap_or(text.len()));
            (address.parse::<Ipv4Addr>().ok()?.into(), after)
        }
    };
    (port.is_empty() || is_port(port.strip_prefix(':')?)).then_some(address)
}

/// A number, or a name that hides one.
fn is_port(text: &str) -> bool {
    match text.strip_prefix('_') {
        Some(name) => {
            !name.is_empty()
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        }
        None => (1..=5).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit()),
    }
}
