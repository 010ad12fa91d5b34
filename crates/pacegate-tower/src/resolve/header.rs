//! The value of a header, or the hash of one that is secret.

use http::header::HeaderName;
use pacegate::identity::{API_KEY, check_identifier, check_text};

use super::{Identifier, Identity, RequestHead, Resolve, spelled};
use crate::error::{InvalidLayer, Unresolved};

/// The longest secret: signed tokens are longer than names.
const SECRET_LENGTH_MAX: usize = 8_192;

/// Counts by the value of a header. Made by [`header`] and [`api_key`].
///
/// The value is taken without the blanks around it. A request without the header, or with an empty one, has none. A value that is not UTF-8, has control
/// characters, is too long, or stands there twice is refused (400): it is counted with nobody else's.
#[derive(Clone, Debug)]
pub struct Header {
    name: Result<HeaderName, Box<str>>,
    dimension: Box<str>,
    secret: bool,
}

/// Counts by the value of a header, in the dimension of its name in lower case. Only headers that the client cannot choose freely should be
/// counted by, such as those that a gateway sets after it knows who is there.
///
/// ```
/// use pacegate_tower::resolve::{Resolve, header};
///
/// assert_eq!(header("X-Tenant").dimension(), "x-tenant");
/// ```
pub fn header(name: &str) -> Header {
    let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| name.into());
    let dimension = spelled(name.as_ref().map_or("header", HeaderName::as_str));
    Header { name, dimension, secret: false }
}

/// Counts by the hash of `X-API-Key`, in dimension `apikey`: the key itself reaches neither stores nor logs. The identifier is the key's SHA-256 in
/// hexadecimal digits, for rules that are about one key.
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
