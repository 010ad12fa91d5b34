//! Names in the certificates of clients, with their type.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use thiserror::Error;

use pacegate::identity::{Invalid, check_identifier};

/// A subject alternative name of a client's certificate. An authority that signs e-mail addresses may
/// let their owners choose them, so a name of one type never stands for the same text of another.
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
    /// `uri:` and a URI, like a SPIFFE ID.
    Uri(Box<str>),
    /// `email:` and an e-mail address.
    Email(Box<str>),
    /// `ip:` and an address.
    Ip(IpAddr),
}

impl CertificateName {
    /// A host name, whose case does not matter.
    pub fn dns(name: &str) -> Self {
        Self::Dns(name.to_ascii_lowercase().into())
    }

    /// An address, with IPv4 in IPv6 folded.
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

/// Why a text is not the name in a certificate.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidCertificateName {
    /// It does not say which type of name it is.
    #[error("expected a name with its type, such as `{expected}`")]
    Untyped {
        /// What may have been meant.
        expected: String,
    },
    /// It is a common name, which certificates are not identified by.
    #[error("common names are not used; expected dns:, uri:, email: or ip: and a subject alternative name")]
    CommonName,
    /// It is too long, empty or has characters that it must not have.
    #[error("a name {}", .0.reason())]
    Text(Invalid),
    /// What follows `ip:` is not an address.
    #[error("expected an address after ip:")]
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
    fn names_of_certificates_have_a_type() {
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
            ("cn:ops", "common names are not used"),
            ("ip:ops", "expected an address"),
            ("dns:", "a name"),
            ("", "a name"),
        ];
        for (text, expected) in rows {
            let error = text.parse::<CertificateName>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
