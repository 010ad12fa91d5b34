//! The methods that a rule is for.

use std::borrow::Cow;

use crate::identity::{self, Invalid};

const GET: &str = "GET";
const HEAD: &str = "HEAD";

/// Methods that a rule is for, each once and in alphabetical order; none means all of them.
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
    /// In upper case, with a comma between them: most rules have none or one.
    Option<Box<str>>,
);

impl Methods {
    /// The methods of these names, in upper or lower case.
    ///
    /// # Errors
    /// [`Invalid`] for a name that is not 1 to 32 letters.
    pub fn try_new<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, Invalid> {
        let names: Result<Vec<Cow<'_, str>>, _> = names.into_iter().map(identity::method).collect();
        let mut names = names?;
        names.sort_unstable();
        names.dedup();
        Ok(Self((!names.is_empty()).then(|| names.join(",").into())))
    }

    /// Whether all methods are meant.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The methods; none when all are meant.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.as_deref().into_iter().flat_map(|names| names.split(','))
    }

    /// The methods as one text, with a comma between them; `None` when all are meant.
    pub fn as_text(&self) -> Option<&str> {
        self.0.as_deref()
    }

    /// Whether `method` is among them. A HEAD request costs the upstream what a GET request costs, so GET includes it.
    pub fn contain(&self, method: &str) -> bool {
        let is_among =
            |own: &str| own.eq_ignore_ascii_case(method) || (own == GET && method.eq_ignore_ascii_case(HEAD));
        self.is_empty() || self.iter().any(is_among)
    }

    /// Whether every method of `other` is among them.
    pub(crate) fn cover(&self, other: &Self) -> bool {
        if other.is_empty() { self.is_empty() } else { other.iter().all(|method| self.contain(method)) }
    }

    /// How specific they are: a rule for HEAD is more specific than one for GET, which includes it.
    pub(crate) fn specificity(&self) -> u8 {
        match self.as_text() {
            None => 0,
            Some(HEAD) => 2,
            Some(_) => 1,
        }
    }
}
