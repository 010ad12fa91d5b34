//! The common and the combined log format, with additional fields.
//!
//! `192.0.2.1 - alice [10/Oct/2000:13:55:36 -0700] "GET /a HTTP/1.1" 200 2326 "referer" "agent" …`

use std::borrow::Cow;
use std::net::IpAddr;

use super::record::Fields;

/// The names of the fields, in the order of a line. Fields after the agent are numbered.
pub(crate) const NAMES: [&str; 18] = [
    "address", "ident", "user", "time", "request", "status", "bytes", "referer", "agent", "extra1", "extra2",
    "extra3", "extra4", "extra5", "extra6", "extra7", "extra8", "extra9",
];
const TIME: usize = 3;
const STATUS: usize = 5;

/// A parser of lines of access logs.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    /// The slot of each field in the order of a line.
    slots: [Option<usize>; NAMES.len()],
    slot_count: usize,
    last: usize,
}

impl Access {
    pub(crate) fn new(fields: &[String]) -> Self {
        let slots = NAMES.map(|name| fields.iter().position(|field| field == name));
        // A line without a status is invalid, even if the status is not used.
        let last = slots.iter().rposition(Option::is_some).unwrap_or_default().max(STATUS);
        Self { slots, slot_count: fields.len(), last }
    }

    /// The fields of a line.
    pub(crate) fn fields<'a>(&self, line: &'a str) -> Result<Fields<'a>, String> {
        let mut found: Fields<'a> = smallvec::smallvec![None; self.slot_count];
        let mut put = |place: usize, value: Cow<'a, str>| {
            if let Some(slot) = self.slots[place] {
                found[slot] = Some(value);
            }
        };
        let line = without_host(line);
        let (address, rest) = line.split_once(' ').ok_or("is not in the common log format")?;
        let (ident, rest) = rest.split_once(' ').ok_or("is not in the common log format")?;
        // User names can contain spaces and brackets: the time is followed by a quote.
        let end = rest.find("] \"").ok_or("has no `[time] \"request\"`")?;
        let start = rest[..end].rfind('[').ok_or("has no `[time]`")?;
        put(0, Cow::Borrowed(address));
        put(1, Cow::Borrowed(ident));
        put(2, Cow::Borrowed(rest[..start].trim_end()));
        put(TIME, Cow::Borrowed(&rest[start + 1..end]));
        let mut rest = &rest[end + 2..];
        for place in TIME + 1..=self.last {
            let (value, after) = match next_field(rest) {
                Some(field) => field,
                None if place > STATUS => break,
                None => return Err("ends before its status".to_owned()),
            };
            put(place, value);
            rest = after;
        }
        Ok(found)
    }
}

/// Returns a line without the leading host and port of Apache's `vhost_combined`.
fn without_host(line: &str) -> &str {
    let Some((host, rest)) = line.split_once(' ') else { return line };
    let has_port = host.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())
    });
    let is_address = |text: &str| text.parse::<IpAddr>().is_ok();
    let then_address = || rest.split_once(' ').is_some_and(|(address, _)| is_address(address));
    if has_port && !is_address(host) && then_address() { rest } else { line }
}

/// Returns the next field, quoted or not, and the rest of the line.
fn next_field(text: &str) -> Option<(Cow<'_, str>, &str)> {
    let text = text.trim_start_matches(' ');
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find(' ').unwrap_or(text.len());
        return (end > 0).then(|| (Cow::Borrowed(&text[..end]), &text[end..]));
    };
    let bytes = quoted.as_bytes();
    let mut at = 0;
    let mut escaped = false;
    loop {
        at += memchr::memchr2(b'"', b'\\', bytes.get(at..)?)?;
        if bytes[at] == b'"' {
            break;
        }
        escaped = true;
        at += 2;
    }
    let value = &quoted[..at];
    let value = if escaped { Cow::Owned(unescape(value)) } else { Cow::Borrowed(value) };
    Some((value, &quoted[at + 1..]))
}

/// Reverts the escapes of Apache and nginx: `\"`, `\\`, `\n`, `\x16`.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'\\' {
            bytes.push(*first);
            continue;
        }
        match after {
            [b'x', high, low, after @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                let digit = |byte: &u8| char::from(*byte).to_digit(16).unwrap_or_default() as u8;
                bytes.push(digit(high) * 16 + digit(low));
                rest = after;
            }
            [escape, after @ ..] => {
                bytes.push(match escape {
                    b'n' => b'\n',
                    b't' => b'\t',
                    b'r' => b'\r',
                    other => *other,
                });
                rest = after;
            }
            [] => bytes.push(b'\\'),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(line: &str, names: &[&str]) -> Result<Vec<Option<String>>, String> {
        let access = Access::new(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        Ok(access.fields(line)?.into_iter().map(|field| field.map(Cow::into_owned)).collect())
    }

    #[test]
    fn lines_are_split_into_fields() {
        let common = r#"192.0.2.1 - alice [10/Oct/2000:13:55:36 -0700] "GET /a?b HTTP/1.0" 200 2326"#;
        let combined = format!(r#"{common} "http://e/" "Mozilla \"5\" (X; Y)""#);
        let extra = format!(r#"{combined} "203.0.113.9" 0.012 -"#);
        let spaces = r#"::1 - Anna [x] B. [10/Oct/2000:13:55:36 -0700] "GET /\x22\xc3\xa9 b HTTP/1.0" 404 -"#;
        let user = ["address", "user", "time", "request", "status"];
        let alice = ["192.0.2.1", "alice", "10/Oct/2000:13:55:36 -0700", "GET /a?b HTTP/1.0", "200"];
        let alice: Vec<Option<String>> = alice.map(|text| Some(text.to_owned())).to_vec();
        let vhost = format!("www.example.com:443 {combined}");
        for line in [common, &combined, &extra, &vhost] {
            assert_eq!(fields(line, &user).as_ref(), Ok(&alice), "{line}");
        }
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(fields(&combined, &["agent", "extra1"]), Ok(vec![some("Mozilla \"5\" (X; Y)"), None]));
        assert_eq!(fields(&extra, &["extra1", "extra2"]), Ok(vec![some("203.0.113.9"), some("0.012")]));
        assert_eq!(
            fields(spaces, &["user", "request"]),
            Ok(vec![some("Anna [x] B."), some("GET /\"é b HTTP/1.0")])
        );
    }

    #[test]
    fn broken_lines_are_rejected() {
        for line in [
            "",
            " ",
            "x",
            "a b c",
            "a - - 10/Oct/2000:13:55:36 -0700 \"GET / HTTP/1.0\" 200 1",
            "a - - ] \"GET / HTTP/1.0\" 200 1",
            "a - - [10/Oct/2000:13:55:36 -0700] \"GET / HTTP/1.0",
            "a - - [10/Oct/2000:13:55:36 -0700] \"GET / HTTP/1.0\\",
            "a - - [10/Oct/2000:13:55:36 -0700] \"GET / HTTP/1.0\"",
            "a - - [10/Oct/2000:13:55:36 -0700] \"é\\é",
        ] {
            assert!(fields(line, &["time", "extra9"]).is_err(), "{line}");
        }
        // An unclosed quote after the status ends the fields.
        let open = "a - - [10/Oct/2000:13:55:36 -0700] \"GET / HTTP/1.0\" 200 1 \"x";
        assert_eq!(fields(open, &["referer"]), Ok(vec![None]));
    }

    #[test]
    fn leading_address_is_not_a_host() {
        let rest = "192.0.2.1 - - [10/Oct/2000:13:55:36 -0700] \"GET / HTTP/1.0\" 200 1";
        for (start, expected) in
            [("a:80 ", "192.0.2.1"), ("::1 ", "::1"), ("unix: ", "unix:"), ("a ", "a"), (":80 ", ":80")]
        {
            let found = fields(&format!("{start}{rest}"), &["address"]).unwrap();
            assert_eq!(found, [Some(expected.to_owned())], "{start}");
        }
    }
}
