//! Values that are valid and can never match what they seem to be meant for.

use ipnet::IpNet;
use pacegate::identity;

/// The methods of the IANA registry that consist of letters alone, and methods in common use that
/// are not registered.
const METHODS: [&str; 45] = [
    "ACL",
    "BAN",
    "BIND",
    "CHECKIN",
    "CHECKOUT",
    "CONNECT",
    "COPY",
    "DELETE",
    "GET",
    "HEAD",
    "LABEL",
    "LINK",
    "LOCK",
    "MERGE",
    "MKACTIVITY",
    "MKCALENDAR",
    "MKCOL",
    "MKREDIRECTREF",
    "MKWORKSPACE",
    "MOVE",
    "NOTIFY",
    "OPTIONS",
    "ORDERPATCH",
    "PATCH",
    "POST",
    "PRI",
    "PROPFIND",
    "PROPPATCH",
    "PURGE",
    "PUT",
    "QUERY",
    "REBIND",
    "REFRESH",
    "REPORT",
    "SEARCH",
    "SOURCE",
    "SUBSCRIBE",
    "TRACE",
    "UNBIND",
    "UNCHECKOUT",
    "UNLINK",
    "UNLOCK",
    "UNSUBSCRIBE",
    "UPDATE",
    "UPDATEREDIRECTREF",
];

/// Warns about an endpoint in the syntax of another router, which is compared as literal text.
pub(crate) fn endpoint(text: &str) -> Option<String> {
    if let Some((method, path)) = text.split_once(' ')
        && path.starts_with('/')
        && METHODS.contains(&method.to_ascii_uppercase().as_str())
    {
        let method = method.to_ascii_uppercase();
        return Some(format!(
            "an endpoint has no method; did you mean `method: {method}` and `endpoint: {path}`?"
        ));
    }
    if let Some((_, rest)) = text.split_once("://").filter(|(scheme, _)| matches!(*scheme, "http" | "https"))
    {
        let path = rest.find('/').map_or("/", |start| &rest[start..]);
        return Some(format!(
            "an endpoint has no scheme and host, so this never matches a path; did you mean `{path}`?"
        ));
    }
    if text.starts_with('^') || text.ends_with('$') {
        return Some(
            "an endpoint is not a regular expression, so this matches only the literal text; expected a pattern such as `/orders/{id}` or `/api/{*rest}`"
                .into(),
        );
    }
    let parameter = text.split('/').find(|segment| parameter_name(segment).is_some())?;
    let intended: Vec<String> = text
        .split('/')
        .map(|segment| parameter_name(segment).map_or(segment.to_owned(), |name| format!("{{{name}}}")))
        .collect();
    let intended = intended.join("/");
    Some(format!("`{parameter}` matches only the literal text `{parameter}`; did you mean `{intended}`?"))
}

/// The name of a parameter in the syntax of another router: `:id`, `<id>`, `<int:id>` or `[id]`.
fn parameter_name(segment: &str) -> Option<&str> {
    let enclosed = |open, close| segment.strip_prefix(open)?.strip_suffix(close);
    let typed = |name: &'_ str| name.rsplit(':').next().map(str::len).map(|length| name.len() - length);
    let name = segment
        .strip_prefix(':')
        .or_else(|| enclosed('[', ']'))
        .or_else(|| enclosed('<', '>').map(|name| &name[typed(name).unwrap_or(0)..]))?;
    let is_name = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    is_name.then_some(name)
}

/// Warns about a method that no client is likely to send.
pub(crate) fn method(name: &str) -> Option<String> {
    if METHODS.contains(&name) {
        return None;
    }
    let similar = METHODS.iter().find(|known| differs_by_one(name, known));
    let hint = similar.map_or(String::new(), |known| format!("; did you mean {known}?"));
    Some(format!("{name} is not a registered HTTP method{hint}"))
}

/// Whether one letter is added, missing, replaced or swapped with the next one.
fn differs_by_one(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let start = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    let (one, other) = (&one[start..], &other[start..]);
    match (one, other) {
        ([_, rest @ ..], _) if rest == other => true,
        (_, [_, rest @ ..]) if rest == one => true,
        ([_, rest @ ..], [_, other_rest @ ..]) if rest == other_rest => true,
        ([a, b, rest @ ..], [c, d, other_rest @ ..]) => (a, b, rest) == (d, c, other_rest),
        _ => false,
    }
}

/// Warns about an identifier that no check is counted by.
pub(crate) fn identifier(dimension: &str, text: &str, ipv6_prefix: u8) -> Option<String> {
    if text == "*" {
        return Some("matches only the identifier `*`; to match all identifiers, remove `identifier`".into());
    }
    let network: IpNet = text.parse().ok().filter(|_| dimension == identity::IP)?;
    (network.prefix_len() < ipv6_prefix).then(|| {
        format!(
            "never matches: IPv6 addresses are counted by their first {ipv6_prefix} bits \
             (server.ipv6_prefix); {NETWORK_HINT}"
        )
    })
}

/// The error about an IPv4 network where an address is expected.
pub(crate) fn network_instead_of_address(dimension: &str, text: &str) -> Option<String> {
    let network: IpNet = text.parse().ok().filter(|_| dimension == identity::IP)?;
    Some(format!("expected a single address, got the network {network}; {NETWORK_HINT}"))
}

const NETWORK_HINT: &str =
    "to limit a network as a whole, send it in a dimension of its own, such as `network`";
