//! Names of enum values.

/// An enum whose values have names. Implemented by [`named!`](crate::named).
pub trait Named: Copy + 'static {
    /// Every value, in documentation order.
    const VALUES: &'static [Self];

    /// The name in files, bodies, tables and logs.
    fn name(self) -> &'static str;

    /// Returns the value with that name.
    fn parse(name: &str) -> Option<Self> {
        Self::VALUES.iter().copied().find(|value| value.name() == name)
    }

    /// Returns the names as error messages list them: `open, closed or local`.
    fn expected() -> String {
        one_of(&Self::VALUES.iter().map(|value| value.name()).collect::<Vec<_>>())
    }
}

/// Returns `words` as error messages list them: `open, closed or local`.
pub fn one_of(words: &[&str]) -> String {
    match words.split_last() {
        Some((last, rest @ [_, ..])) => format!("{} or {last}", rest.join(", ")),
        _ => words.concat(),
    }
}

/// Implements `ALL`, `name`, `parse` and [`Named`] for an enum. A missing value is a compile error.
///
/// ```
/// use pacegate_core::{Named, named};
///
/// #[derive(Clone, Copy, Debug, PartialEq)]
/// pub enum Mode { Enforce, Shadow }
/// named!(Mode { Enforce => "enforce", Shadow => "shadow" });
///
/// assert_eq!(Mode::ALL.map(Mode::name), ["enforce", "shadow"]);
/// assert_eq!((Mode::parse("shadow"), Mode::parse("other")), (Some(Mode::Shadow), None));
/// assert_eq!(Mode::expected(), "enforce or shadow");
/// ```
#[macro_export]
macro_rules! named {
    ($type:ident { $($value:ident => $name:literal),+ $(,)? }) => {
        impl $type {
            /// Every value, in documentation order.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$value),+];

            /// The name in files, bodies, tables and logs.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $name,)+
                }
            }

            /// Returns the value with that name.
            pub fn parse(name: &str) -> Option<Self> {
                <Self as $crate::Named>::parse(name)
            }
        }

        impl $crate::Named for $type {
            const VALUES: &'static [Self] = &Self::ALL;

            fn name(self) -> &'static str {
                self.name()
            }
        }
    };
}
