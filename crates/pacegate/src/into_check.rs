//! The types that a limiter accepts as a check: a key, or a [`Check`] by value or by reference.

use std::borrow::Borrow;

use crate::check::Check;

/// A key or a check. `&str` and `&String` are keys, like [`Check::key`]; a [`Check`] passed by
/// reference is not copied. This trait is sealed.
///
/// ```
/// use pacegate::{Check, Limit, Limiter};
///
/// let limiter = Limiter::new(Limit::per_minute(10))?;
/// limiter.check_now("user-1")?;
/// limiter.check_now(&String::from("user-1"))?;
/// limiter.check_now(Check::key("user-1").cost(5))?;
/// let check = Check::key("user-1");
/// assert_eq!(limiter.check_now(&check)?.remaining(), Some(2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait IntoCheck<'s, 'a: 's>: Sealed {
    /// What is held while the check is decided. A reference stays a reference, so no check is
    /// moved.
    #[doc(hidden)]
    type Held: Borrow<Check<'a>> + Send + 's;

    #[doc(hidden)]
    fn into_check(self) -> Self::Held;

    /// Returns the key if the check consists of nothing else.
    #[doc(hidden)]
    #[inline(always)]
    fn bare_key(&self) -> Option<&'a str> {
        None
    }
}

/// Prevents other types from implementing [`IntoCheck`].
pub trait Sealed {}

impl Sealed for &str {}
impl Sealed for &String {}
impl Sealed for Check<'_> {}
impl Sealed for &Check<'_> {}

impl<'s, 'a: 's> IntoCheck<'s, 'a> for &'a str {
    type Held = Check<'a>;

    #[inline]
    fn into_check(self) -> Check<'a> {
        Check::key(self)
    }

    #[inline(always)]
    fn bare_key(&self) -> Option<&'a str> {
        Some(self)
    }
}

impl<'s, 'a: 's> IntoCheck<'s, 'a> for &'a String {
    type Held = Check<'a>;

    #[inline]
    fn into_check(self) -> Check<'a> {
        Check::key(self)
    }

    #[inline(always)]
    fn bare_key(&self) -> Option<&'a str> {
        Some(self)
    }
}

impl<'s, 'a: 's> IntoCheck<'s, 'a> for Check<'a> {
    type Held = Self;

    #[inline(always)]
    fn into_check(self) -> Self {
        self
    }
}

impl<'s, 'a> IntoCheck<'s, 'a> for &'s Check<'a> {
    type Held = Self;

    #[inline(always)]
    fn into_check(self) -> Self {
        self
    }
}
