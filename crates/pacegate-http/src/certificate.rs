//! Typed names in client certificates.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use thiserror::Error;

use pacegate::identity::{Invalid, check_identifier};

/// A subject alternative name of a client certificate. An authority may let the owners of e-mail
/// addresses choose them, so a name of one type never equals the same text of another type.
///
/// ```
/// use pacegate_http::CertificateName;
///
/// let name: CertificateName = "dns:OPS.example.com".parse()?;
/// assert_eq!(name.to_string(), "dns:ops.example.com");
/// assert!("ops.example.com".parse::<CertificateName>().is_err());
/// # Ok::<(), pacegate_http::InvalidCertificateName>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CertificateName {
    /// `dns:` and a host name, in lower case.
    Dns(Box<str>),
    /// `uri:` and a URI, such as a SPIFFE ID.
    Uri(Box<str>),
    /// `email:` and an e-mail address.
    Email(Box<str>),
    /// `ip:` and an address.
    Ip(IpAddr),
}

impl CertificateName {
    /// Returns a host name, converted to lower case.
    pub fn dns(name: &str) -> Self {
        Self::Dns(name.to_ascii_lowercase().into())
    }

    /// Returns an address, with IPv4-mapped IPv6 converted to IPv4.
    pub fn ip(address: IpAddr) -> Self {
        Self::Ip(address.to_canonical())
    }
}

impl fmt::Display for CertificateName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dns(name) => write!(formatter, "dns:{name}"),
            Self::Uri(uri) => write!(formatter, "uri:{uri}"),
            Self::Email(address) => write!(formatter, "email:{address}"),
            Self::Ip(address) => write!(formatter, "ip:{address}"),
        }
    }
}

/// Why a text is not a certificate name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidCertificateName {
    /// The type of the name is missing.
    #[error("expected a name with its type, such as `{expected}`")]
    Untyped {
        /// A likely correction.
        expected: String,
    },
    /// It is a common name, which does not identify certificates.
    #[error(
        "common names are not supported; expected dns:, uri:, email: or ip: and a subject alternative name"
    )]
    CommonName,
    /// It is too long, empty or has invalid characters.
    #[error("a name {}", .0.reason())]
    Text(Invalid),
    /// What follows `ip:` is not an address.
    #[error("expected an IP address after ip:")]
    Address,
}

impl FromStr for CertificateName {
    type Err = InvalidCertificateName;

    fn from_str(text: &str) -> Result<Self, InvalidCertificateName> {
        check_identifier(text).map_err(InvalidCertificateName::Text)?;
        let (kind, name) = text.split_once(':').unwrap_or(("", text));
        if matches!(kind, "dns" | "uri" | "email" | "ip") {
            check_identifier(name).map_err(InvalidCertificateName::Text)?;
        }
        match kind {
            "dns" => Ok(Self::dns(name)),
            "uri" => Ok(Self::Uri(name.into())),
            "email" => Ok(Self::Email(name.into())),
            "ip" => name.parse().map(Self::ip).map_err(|_| InvalidCertificateName::Address),
            "cn" => Err(InvalidCertificateName::CommonName),
            _ => Err(InvalidCertificateName::Untyped { expected: format!("{}:{text}", likely_type(text)) }),
        }
    }
}

fn likely_type(text: &str) -> &'static str {
    match text {
        _ if text.parse::<IpAddr>().is_ok() => "ip",
        _ if text.contains("://") => "uri",
        _ if text.contains('@') => "email",
        _ => "dns",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn certificate_names_have_a_type() {
        let rows = [
            ("dns:Ops.Example.org", "dns:ops.example.org"),
            ("uri:spiffe://example.org/Ops", "uri:spiffe://example.org/Ops"),
            ("uri:dns:x", "uri:dns:x"),
            ("email:Ops@example.org", "email:Ops@example.org"),
            ("ip:10.0.0.7", "ip:10.0.0.7"),
            ("ip:2001:DB8::7", "ip:2001:db8::7"),
            ("ip:::ffff:10.0.0.7", "ip:10.0.0.7"),
        ];
        for (text, name) in rows {
            assert_eq!(text.parse::<CertificateName>().unwrap().to_string(), name);
        }
        let rows = [
            ("ops.example.org", "`dns:ops.example.org`"),
            ("localhost:8080", "`dns:localhost:8080`"),
            ("spiffe://example.org/ops", "`uri:spiffe://example.org/ops`"),
            ("ops@example.org", "`email:ops@example.org`"),
            ("10.0.0.7", "`ip:10.0.0.7`"),
            ("2001:db8::7", "`ip:2001:db8::7`"),
            ("cn:ops", "common names are not supported"),
            ("ip:ops", "expected an IP address"),
            ("dns:", "a name"),
            ("", "a name"),
        ];
        for (text, expected) in rows {
            let error = text.parse::<CertificateName>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
