//! The methods that a rule applies to.

use std::borrow::Cow;

use crate::identity::{self, Invalid};

const GET: &str = "GET";
const HEAD: &str = "HEAD";

/// The methods that a rule applies to, sorted and without duplicates. Empty means all methods.
///
/// ```
/// use pacegate::Methods;
///
/// let writes = Methods::try_new(["post", "PUT"])?;
/// assert!(writes.contain("PUT") && !writes.contain("GET"));
/// assert!(Methods::default().contain("GET"));
/// # Ok::<(), pacegate::identity::Invalid>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Methods(
    /// In upper case, separated by commas. Most rules have none or one.
    Option<Box<str>>,
);

impl Methods {
    /// Returns the methods with these names, in upper or lower case.
    ///
    /// # Errors
    /// [`Invalid`] unless every name is 1 to 32 ASCII letters.
    pub fn try_new<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, Invalid> {
        let names: Result<Vec<Cow<'_, str>>, _> = names.into_iter().map(identity::method).collect();
        let mut names = names?;
        names.sort_unstable();
        names.dedup();
        Ok(Self((!names.is_empty()).then(|| names.join(",").into())))
    }

    /// Whether all methods match.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the methods; none if all methods match.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.as_deref().into_iter().flat_map(|names| names.split(','))
    }

    /// Returns the methods separated by commas; `None` if all methods match.
    pub fn as_text(&self) -> Option<&str> {
        self.0.as_deref()
    }

    /// Whether `method` matches. GET includes HEAD, because a HEAD request costs the upstream as
    /// much as a GET request.
    pub fn contain(&self, method: &str) -> bool {
        let is_among =
            |own: &str| own.eq_ignore_ascii_case(method) || (own == GET && method.eq_ignore_ascii_case(HEAD));
        self.is_empty() || self.iter().any(is_among)
    }

    /// Whether every method of `other` matches.
    pub(crate) fn cover(&self, other: &Self) -> bool {
        if other.is_empty() { self.is_empty() } else { other.iter().all(|method| self.contain(method)) }
    }

    /// Orders methods by specificity: a rule for HEAD is more specific than a rule for GET, which
    /// includes HEAD.
    pub(crate) fn specificity(&self) -> u8 {
        match self.as_text() {
            None => 0,
            Some(HEAD) => 2,
            Some(_) => 1,
        }
    }
}
