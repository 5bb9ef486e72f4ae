//! The macro for NCCL's enums: their names, and the versions that introduced their values.

/// Defines an enum of NCCL's constants, in NCCL's order. Each has its name in nccl-tests and an optional second name. `expected`
/// describes the enum in the error for text that is not one of the names.
macro_rules! values {
    (
        $(#[$attribute:meta])*
        pub enum $type:ident: $raw_type:ident {
            $($(#[$documentation:meta])* $value:ident = $raw:ident as $name:literal $(or $other_name:literal)?,)+
        }

        expected: $expected:literal;
    ) => {
        $(#[$attribute])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $type {
            $($(#[$documentation])* $value,)+
        }

        impl $type {
            /// All values, in NCCL's order.
            pub const ALL: &'static [Self] = &[$(Self::$value),+];

            /// The numbers of the values that some NCCL versions lack, as a bit set. Other values need no check of the version.
            const NEWER: u32 = {
                let mut newer = 0;
                $(if $crate::version::Version::since(stringify!($raw)).code() > $crate::version::Version::OLDEST.code() {
                    newer |= 1 << $raw_type::$raw.0;
                })+
                newer
            };

            /// Returns NCCL's constant for this value.
            #[must_use]
            pub const fn as_raw(self) -> $raw_type {
                match self {
                    $(Self::$value => $raw_type::$raw,)+
                }
            }

            /// Returns the name in nccl-tests, then the second name if there is one.
            const fn names(self) -> &'static [&'static str] {
                match self {
                    $(Self::$value => &[$name $(, $other_name)?],)+
                }
            }

            /// Returns an error if the library is too old for the value. Such a library would report an invalid argument, or take
            /// the number for a custom operator.
            #[inline]
            pub(crate) fn require(self, library: &$crate::backend::Library) -> $crate::error::Result<()> {
                if Self::NEWER >> self.as_raw().0 & 1 == 0 {
                    return Ok(());
                }
                library.require(match self {
                    $(Self::$value => stringify!($raw),)+
                })
            }
        }

        /// Writes the name that nccl-tests uses.
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.names()[0])
            }
        }

        /// Parses the name that nccl-tests uses, or the name of the Rust type if there is one. Case is ignored.
        impl std::str::FromStr for $type {
            type Err = $crate::error::ParseError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let is_named = |value: &&Self| value.names().iter().any(|name| name.eq_ignore_ascii_case(text));
                Self::ALL.iter().find(is_named).copied().ok_or_else(|| {
                    let names = $crate::values::list(Self::ALL.iter().map(|value| value.names()));
                    $crate::error::ParseError::new(format_args!(
                        "{text:?} is not {} of NCCL; expected {names}",
                        $expected
                    ))
                })
            }
        }
    };
}
pub(crate) use values;

/// Lists the expected names for an error, as `float (f32), ...`.
pub(crate) fn list<'a>(values: impl Iterator<Item = &'a [&'a str]>) -> String {
    let describe = |names: &[&str]| match names {
        [name, other] => format!("{name} ({other})"),
        names => names.concat(),
    };
    values.map(describe).collect::<Vec<_>>().join(", ")
}
