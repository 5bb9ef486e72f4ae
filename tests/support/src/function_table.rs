//! Tables of NCCL's functions that lack some of them.

use libnccl::sys::Functions;

macro_rules! define_restricted {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $(-> $returned:ty)?;)*) => {
        /// Returns `table` with only those functions that `has` keeps.
        pub fn restricted(table: Functions, has: impl Fn(&str) -> bool) -> Functions {
            Functions { $($name: table.$name.filter(|_| has(stringify!($name)))),* }
        }
    };
}
libnccl::for_each_function!(define_restricted);
