//! Identifiers and identities, borrowed from the request or short enough to need no allocation.

use std::borrow::Cow;
use std::fmt;

use compact_str::CompactString;
use pacegate_core::hexadecimal;
use sha2::{Digest, Sha256};

/// The value that is counted: an address, a user name, the hash of a key.
///
/// It borrows from the request where possible. Logs never contain it: its `Debug` form is a hash,
/// equal for equal identifiers.
///
/// ```
/// use pacegate_tower::resolve::Identifier;
///
/// assert_eq!(Identifier::from(123_u64).as_str(), "123");
/// assert!(!format!("{:?}", Identifier::from("secret")).contains("secret"));
/// ```
#[derive(Clone)]
pub struct Identifier<'a>(Text<'a>);

#[derive(Clone)]
enum Text<'a> {
    Borrowed(&'a str),
    Owned(CompactString),
}

impl<'a> Identifier<'a> {
    /// Returns the text.
    #[inline]
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Text::Borrowed(text) => text,
            Text::Owned(text) => text,
        }
    }

    /// Detaches it from the request.
    pub fn into_owned(self) -> Identifier<'static> {
        Identifier(Text::Owned(match self.0 {
            Text::Borrowed(text) => text.into(),
            Text::Owned(text) => text,
        }))
    }

    pub(crate) fn of(text: CompactString) -> Self {
        Self(Text::Owned(text))
    }

    /// The SHA-256 of `secret` in hexadecimal, so that a secret never reaches stores or logs.
    pub(crate) fn of_secret(secret: &[u8]) -> Self {
        Self::of(hexadecimal(&Sha256::digest(secret)).into())
    }
}

impl fmt::Debug for Identifier<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "#{}", hexadecimal(&Sha256::digest(self.as_str())[..8]))
    }
}

impl<'a> From<&'a str> for Identifier<'a> {
    fn from(text: &'a str) -> Self {
        Self(Text::Borrowed(text))
    }
}

impl<'a> From<&'a String> for Identifier<'a> {
    fn from(text: &'a String) -> Self {
        Self(Text::Borrowed(text))
    }
}

impl From<String> for Identifier<'_> {
    fn from(text: String) -> Self {
        Self::of(text.into())
    }
}

impl<'a> From<Cow<'a, str>> for Identifier<'a> {
    fn from(text: Cow<'a, str>) -> Self {
        match text {
            Cow::Borrowed(text) => text.into(),
            Cow::Owned(text) => text.into(),
        }
    }
}

impl From<u64> for Identifier<'_> {
    fn from(number: u64) -> Self {
        Self::of(itoa::Buffer::new().format(number).into())
    }
}

impl From<i64> for Identifier<'_> {
    fn from(number: i64) -> Self {
        Self::of(itoa::Buffer::new().format(number).into())
    }
}

/// An identifier and its dimension.
#[derive(Clone, Debug)]
pub struct Identity<'a> {
    dimension: Cow<'a, str>,
    identifier: Identifier<'a>,
}

impl<'a> Identity<'a> {
    /// Returns `identifier` in `dimension`.
    #[inline]
    pub fn new(dimension: &'a str, identifier: impl Into<Identifier<'a>>) -> Self {
        Self { dimension: Cow::Borrowed(dimension), identifier: identifier.into() }
    }

    /// Returns the dimension.
    #[inline]
    pub fn dimension(&self) -> &str {
        &self.dimension
    }

    /// Returns the identifier.
    #[inline]
    pub fn identifier(&self) -> &str {
        self.identifier.as_str()
    }

    /// Detaches it from the request.
    pub fn into_owned(self) -> Identity<'static> {
        Identity {
            dimension: Cow::Owned(self.dimension.into_owned()),
            identifier: self.identifier.into_owned(),
        }
    }

    pub(crate) fn in_dimension(self, dimension: &'a str) -> Self {
        Self { dimension: Cow::Borrowed(dimension), ..self }
    }
}
