//! The releases that introduced the values of NCCL's enums.

/// Implements `since` and `require` for an enum with `ALL`, `as_raw` and `raw_name`.
macro_rules! releases_of_values {
    ($type:ident) => {
        impl $type {
            /// The numbers of the values that some releases lack, as a set of bits. Checking the others costs nothing.
            const NEWER: u32 = {
                let (all, mut newer, mut index) = (Self::ALL, 0, 0);
                while index < all.len() {
                    let value = all[index];
                    let since = $crate::Version::since(value.raw_name()).code();
                    if since > $crate::Version::OLDEST.code() {
                        newer |= 1 << value.as_raw().0;
                    }
                    index += 1;
                }
                newer
            };

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
pub(crate) use releases_of_values;

#[cfg(test)]
#[allow(unsafe_code, unreachable_pub)]
mod tests {
    use crate::sys::{Functions, ncclRedOp_t, ncclResult_t};
    use crate::{Error, Nccl};

    /// A reduction that the oldest release has, and one that only newer ones have: no real one is newer yet.
    #[derive(Debug, Clone, Copy)]
    enum Reduction {
        Old,
        New,
    }

    impl Reduction {
        const ALL: [Self; 2] = [Self::Old, Self::New];

        const fn as_raw(self) -> ncclRedOp_t {
            ncclRedOp_t(self as u32 + 4)
        }

        /// Borrows the names of other items, with their releases.
        const fn raw_name(self) -> &'static str {
            match self {
                Self::Old => "ncclAvg",
                Self::New => "ncclCommShrink",
            }
        }
    }

    releases_of_values!(Reduction);

    #[test]
    fn value_newer_than_the_library_is_unsupported() {
        unsafe extern "C" fn older(out: *mut std::ffi::c_int) -> ncclResult_t {
            // SAFETY: `out` is an int of the facade.
            unsafe { *out = 22_602 };
            ncclResult_t::ncclSuccess
        }
        unsafe extern "C" fn same(out: *mut std::ffi::c_int) -> ncclResult_t {
            // SAFETY: as above.
            unsafe { *out = 22_703 };
            ncclResult_t::ncclSuccess
        }
        // SAFETY: the only function behaves as NCCL's documentation says.
        let nccl = |version| unsafe {
            Nccl::from_table("test", Functions { ncclGetVersion: Some(version), ..Functions::EMPTY }).unwrap()
        };
        let (older, same) = (nccl(older as _), nccl(same as _));
        assert_eq!(Reduction::NEWER, 1 << 5);
        assert_eq!(Reduction::New.since().to_string(), "2.27.3");
        Reduction::Old.require(&older.library).unwrap();
        Reduction::New.require(&same.library).unwrap();
        let error = Reduction::New.require(&older.library).unwrap_err();
        assert!(matches!(error, Error::Unsupported { function: "ncclCommShrink", .. }), "{error}");
    }
}
