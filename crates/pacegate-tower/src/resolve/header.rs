//! The value of a header, or its hash if it is secret.

use http::header::HeaderName;
use pacegate::identity::{API_KEY, check_identifier, check_text};

use super::{Identifier, Identity, RequestHead, Resolve, canonical_dimension};
use crate::error::{InvalidLayer, Unresolved};

/// Maximum length of a secret, in bytes. Signed tokens are longer than names.
const SECRET_LENGTH_MAX: usize = 8_192;

/// Counts by the value of a header. Created by [`header`] and [`api_key`].
///
/// Surrounding blanks are removed. A request without the header, or with an empty one, has no key.
/// A value that is not UTF-8, contains control characters, is too long, or is sent twice is
/// rejected (400).
#[derive(Clone, Debug)]
pub struct Header {
    name: Result<HeaderName, Box<str>>,
    dimension: Box<str>,
    secret: bool,
}

/// Counts by the value of a header, in the dimension of its lowercase name. Use only headers that
/// the client cannot choose freely, such as those that a gateway sets after authentication.
///
/// ```
/// use pacegate_tower::resolve::{Resolve, header};
///
/// assert_eq!(header("X-Tenant").dimension(), "x-tenant");
/// ```
pub fn header(name: &str) -> Header {
    let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| name.into());
    let dimension = canonical_dimension(name.as_ref().map_or("header", HeaderName::as_str));
    Header { name, dimension, secret: false }
}

/// Counts by the hash of `X-API-Key`, in the dimension `apikey`. The key itself never reaches
/// stores or logs. The identifier is the SHA-256 of the key in hexadecimal; use it in rules for a
/// single key.
pub fn api_key() -> Header {
    Header { dimension: API_KEY.into(), ..header("x-api-key") }.secret()
}

impl Header {
    /// Counts by the SHA-256 of the value.
    #[must_use]
    pub fn secret(mut self) -> Self {
        self.secret = true;
        self
    }
}

impl Resolve for Header {
    fn dimension(&self) -> &str {
        &self.dimension
    }

    fn resolve<'a>(&'a self, request: &RequestHead<'a>) -> Result<Identity<'a>, Unresolved> {
        let missing = || {
            let name = self.name.as_ref().map_or_else(|name| &**name, HeaderName::as_str);
            Unresolved::Missing { what: format!("header `{name}`"), credential: self.secret }
        };
        let Ok(name) = &self.name else { return Err(missing()) };
        let invalid = |reason| Unresolved::Invalid { field: name.to_string(), reason };
        let mut values = request.headers.get_all(name).iter();
        let value = values.next().ok_or_else(missing)?;
        if values.next().is_some() {
            return Err(invalid("duplicate header".to_owned()));
        }
        let text = str::from_utf8(value.as_bytes()).map_err(|_| invalid("must be UTF-8".to_owned()))?;
        let text = text.trim_matches([' ', '\t']);
        if text.is_empty() {
            return Err(missing());
        }
        if !self.secret {
            check_identifier(text).map_err(|wrong| invalid(wrong.reason().to_owned()))?;
            return Ok(Identity::new(&self.dimension, text));
        }
        check_text("secret", text, SECRET_LENGTH_MAX).map_err(|wrong| invalid(wrong.reason().to_owned()))?;
        Ok(Identity::new(&self.dimension, Identifier::of_secret(text.as_bytes())))
    }

    fn validate(&self) -> Result<(), InvalidLayer> {
        match &self.name {
            Ok(_) => Ok(()),
            Err(name) => Err(InvalidLayer::InvalidHeader { name: name.clone() }),
        }
    }
}
