//! The enums of NCCL, and the releases that introduced their values.

/// Defines an enum of NCCL's constants, in NCCL's order.
macro_rules! values {
    (
        $(#[$attribute:meta])*
        pub enum $type:ident: $raw_type:ident {
            $($(#[$documentation:meta])* $value:ident = $raw:ident,)+
        }
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

            /// The numbers of the values that some releases lack, as a set of bits. Checking the others costs nothing.
            const NEWER: u32 = {
                let mut newer = 0;
                $(if $crate::Version::since(stringify!($raw)).code() > $crate::Version::OLDEST.code() {
                    newer |= 1 << $raw_type::$raw.0;
                })+
                newer
            };

            /// Returns NCCL's constant.
            #[must_use]
            pub const fn as_raw(self) -> $raw_type {
                match self {
                    $(Self::$value => $raw_type::$raw,)+
                }
            }

            /// Returns the name of NCCL's constant.
            const fn raw_name(self) -> &'static str {
                match self {
                    $(Self::$value => stringify!($raw),)+
                }
            }

            /// Returns the first release of NCCL that has it.
            #[must_use]
            pub fn since(self) -> $crate::Version {
                $crate::Version::since(self.raw_name())
            }

            /// Returns an error if the library is too old to know the value. It would report an invalid argument, or,
            /// worse, take the number for a custom operator.
            #[inline]
            pub(crate) fn require(self, library: &$crate::backend::Library) -> $crate::Result<()> {
                if Self::NEWER >> self.as_raw().0 & 1 == 0 {
                    Ok(())
                } else {
                    library.require(self.raw_name())
                }
            }
        }
    };
}
pub(crate) use values;
